"""Groups by k-means on features, inside each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

from dmkl.arrays import Float
from dmkl.numerics.grouping.groups import FeatureGroups, as_table, samples_by_class, united

__all__ = ["KMeansGroups", "group_by_kmeans"]


@dataclass(frozen=True)
class KMeansGroups(FeatureGroups):
    """k-means: −‖x − center‖²."""

    model: ClassVar[str] = "kmeans"

    def affinities_of(self, new: npt.ArrayLike) -> Float:
        """See `FeatureGroups.affinities_of`."""
        new = self._fitting(new)
        # ‖x‖² − 2xᵀc + ‖c‖²: one matrix product instead of all differences. Rounding matters only for near ties.
        apart = np.sum(new**2, axis=1)[:, None] - 2.0 * new @ self.centers.T + np.sum(self.centers**2, axis=1)
        return -np.asarray(apart)

    def affinities_apart(self, training: npt.ArrayLike) -> Float:
        """See `FeatureGroups.affinities_apart`."""
        return -self._stretched(-self.affinities_of(training))


def group_by_kmeans(
    features: npt.ArrayLike,
    y: npt.ArrayLike | None,
    n_groups: int | Mapping[Any, int],
    *,
    seed: int = 0,
    restarts: int = 10,
) -> KMeansGroups:
    """Cluster the features (m, d) of each class by k-means (scikit-learn's, from k-means++).

    y (m,) holds the classes, or is None for groups across all classes (see `dmkl.numerics.grouping.groups`); n_groups
    is a number of groups for each class, or a mapping from classes to numbers. The best of `restarts` runs is kept;
    `seed` makes the result reproducible.

    InputError is raised if features and labels do not fit together, or a class has fewer samples than groups.
    """
    table = as_table(features)
    wanted = samples_by_class(y, n_groups, len(table))
    parts = []
    for label, (rows, count) in wanted.items():
        distinct = min(count, len(np.unique(table[rows], axis=0)))  # identical samples cannot be in different groups
        clustering = KMeans(distinct, n_init=restarts, random_state=seed).fit(table[rows])
        parts.append((label, rows, clustering.labels_.astype(np.intp), clustering.cluster_centers_.astype(np.float64)))
    return united(KMeansGroups, len(table), parts)
