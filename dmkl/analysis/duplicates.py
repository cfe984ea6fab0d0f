"""Similar kernels: groups above an alignment, exact multiples, and an order that puts similar ones together."""

from __future__ import annotations

import numpy as np
import scipy.cluster.hierarchy
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform

from dmkl.arrays import Array, Float, Index
from dmkl.numerics.alignment import proportional_groups

__all__ = ["alike", "multiples", "neighborly_order"]


def alike(alignment: Float, threshold: float) -> Index:
    """Label groups of kernels that a chain of alignments of at least `threshold` connects, (n,)."""
    joined = np.nan_to_num(alignment, nan=-1.0) >= threshold
    return np.asarray(connected_components(csr_array(joined.astype(np.int8)), directed=False)[1], dtype=np.int64)


def multiples(projections: Array, noise: Float) -> Index:
    """For each kernel the first one that it is a positive multiple of, up to rounding (itself if none), (n,).

    Projections and noise, as `proportional_groups` takes them, tell differences that alignments, which are quadratic in
    them, round to 1.
    """
    first = np.arange(len(projections))
    for group in proportional_groups(projections, noise):
        first[group] = group[0]
    return first


def neighborly_order(alignment: Float) -> Index:
    """An order of the kernels in which similar ones stand together, (n,).

    Average linkage of the distances 1 − A, the leaves in the order that keeps neighbors closest (Bar-Joseph, Gifford,
    Jaakkola, Bioinformatics 17, 2001). Kernels without alignments come last.
    """
    clear = ~np.isnan(alignment.diagonal())
    known = np.flatnonzero(clear)
    if len(known) > 2:
        distance = 1.0 - alignment[np.ix_(known, known)]
        np.fill_diagonal(distance, 0.0)
        # An estimate, too, is symmetric; rounding of the last digit may differ across the diagonal.
        distances = squareform(0.5 * (distance + distance.T), checks=False)
        tree = scipy.cluster.hierarchy.linkage(distances, "average", optimal_ordering=True)
        known = known[scipy.cluster.hierarchy.leaves_list(tree)]
    return np.concatenate([known, np.flatnonzero(~clear)])
