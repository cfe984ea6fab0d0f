"""Groups of samples inside each class, by k-means, kernel k-means or pLSA."""

from dmkl.numerics.grouping.groups import FeatureGroups as FeatureGroups
from dmkl.numerics.grouping.groups import SampleGroups as SampleGroups
from dmkl.numerics.grouping.groups import one_hot as one_hot
from dmkl.numerics.grouping.kernel_kmeans import KernelGroups as KernelGroups
from dmkl.numerics.grouping.kernel_kmeans import group_by_kernel as group_by_kernel
from dmkl.numerics.grouping.kmeans import KMeansGroups as KMeansGroups
from dmkl.numerics.grouping.kmeans import group_by_kmeans as group_by_kmeans
from dmkl.numerics.grouping.plsa import PLSAGroups as PLSAGroups
from dmkl.numerics.grouping.plsa import group_by_plsa as group_by_plsa
from dmkl.numerics.grouping.saved import groups_from_arrays as groups_from_arrays
