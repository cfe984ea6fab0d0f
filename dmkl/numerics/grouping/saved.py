"""Groups from the plain arrays that they were saved as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.numerics.grouping.groups import SampleGroups
from dmkl.numerics.grouping.kernel_kmeans import KernelGroups
from dmkl.numerics.grouping.kmeans import KMeansGroups
from dmkl.numerics.grouping.plsa import PLSAGroups

__all__ = ["groups_from_arrays"]

_MODELS: dict[str, type[SampleGroups]] = {made.model: made for made in (KMeansGroups, PLSAGroups, KernelGroups)}


def groups_from_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> SampleGroups:
    """The groups that `SampleGroups.arrays` was called on."""
    made = _MODELS[str(arrays["model"])]
    labels, members = (np.asarray(arrays[key], dtype=np.intp) for key in ("labels", "members"))
    return made(labels, np.asarray(arrays["classes"]), np.asarray(arrays["centers"]), members)
