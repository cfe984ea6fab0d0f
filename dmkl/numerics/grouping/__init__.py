"""Groups of samples inside each class, by k-means, kernel k-means or pLSA."""

from collections.abc import Mapping

import numpy as np

from dmkl.arrays import Array
from dmkl.numerics.grouping.groups import FeatureGroups as FeatureGroups
from dmkl.numerics.grouping.groups import SampleGroups as SampleGroups
from dmkl.numerics.grouping.groups import one_hot as one_hot
from dmkl.numerics.grouping.kernel_kmeans import KernelGroups as KernelGroups
from dmkl.numerics.grouping.kernel_kmeans import group_by_kernel as group_by_kernel
from dmkl.numerics.grouping.kmeans import KMeansGroups as KMeansGroups
from dmkl.numerics.grouping.kmeans import group_by_kmeans as group_by_kmeans
from dmkl.numerics.grouping.plsa import PLSAGroups as PLSAGroups
from dmkl.numerics.grouping.plsa import group_by_plsa as group_by_plsa

_MODELS: dict[str, type[SampleGroups]] = {kind.model: kind for kind in (KMeansGroups, PLSAGroups, KernelGroups)}


def groups_from_arrays(arrays: Mapping[str, Array]) -> SampleGroups:
    """Restore the groups that `SampleGroups.arrays` was called on."""
    labels, members = (np.asarray(arrays[key], dtype=np.intp) for key in ("labels", "members"))
    kind = _MODELS[str(arrays["model"])]
    return kind(labels, np.asarray(arrays["classes"]), np.asarray(arrays["centers"]), members)
