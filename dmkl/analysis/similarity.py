"""Similar kernels: groups, exact multiples, an order by similarity, and alignment with ideal kernels of the labels.

Ideal kernels for two classes: T = yyᵀ with y = ±1 (Cristianini, Shawe-Taylor, Elisseeff, Kandola, On kernel-target
alignment, NIPS 2001). For more classes: T_ab = 1 if samples a and b are of one class, 0 otherwise. For several labels:
one of two classes for each. T = FFᵀ with one column, or one for each class, so that neither T nor its products are
formed:

    ⟨K, T⟩ = tr FᵀKF        ‖T‖ = ‖FᵀF‖        A(K, T) = ⟨K, T⟩/(‖K‖‖T‖)

With centering F becomes CF, and both definitions for two classes agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.cluster.hierarchy
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform

from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.numerics.alignment import proportional_groups
from dmkl.numerics.fisher import encode_targets


def group_alike(alignment: Float, threshold: float) -> Index:
    """Numbers of the groups of kernels that chains of alignments of at least `threshold` connect, (n,)."""
    linked = np.nan_to_num(alignment, nan=-1.0) >= threshold
    return np.asarray(connected_components(csr_array(linked.astype(np.int8)), directed=False)[1], dtype=np.int64)


def multiples(projections: Array, noise: Float) -> Index:
    """For each kernel the first that it is a positive multiple of, up to rounding (itself if none), (n,).

    The arguments are those of `proportional_groups`. Projections show differences that alignments, which are quadratic
    in them, round to 1.
    """
    first = np.arange(len(projections))
    for group in proportional_groups(projections, noise):
        first[group] = group[0]
    return first


def order_by_similarity(alignment: Float) -> Index:
    """An order of the kernels with similar kernels side by side, (n,).

    Average linkage of the distances 1 − A, the leaves in the order with the closest neighbors (Bar-Joseph, Gifford,
    Jaakkola, Bioinformatics 17, 2001). Kernels without alignments come last.
    """
    clear = ~np.isnan(alignment.diagonal())
    order = np.flatnonzero(clear)
    if len(order) > 2:
        distance = 1.0 - alignment[np.ix_(order, order)]
        np.fill_diagonal(distance, 0.0)
        # Rounding of the last digit may differ across the diagonal.
        distances = squareform(0.5 * (distance + distance.T), checks=False)
        tree = scipy.cluster.hierarchy.linkage(distances, "average", optimal_ordering=True)
        order = order[scipy.cluster.hierarchy.leaves_list(tree)]
    return np.concatenate([order, np.flatnonzero(~clear)])


# --- labels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IdealKernels:
    """The factors of an ideal kernel or, for a multilabel problem, of one for each task."""

    factors: tuple[Float, ...]  # F of each, (m, columns)
    tasks: tuple[str, ...] | None  # names of the tasks; None where there is one problem

    @property
    def columns(self) -> Float:
        """All factors side by side, (m, columns)."""
        return np.concatenate(self.factors, axis=1)


def ideal_kernels(y: npt.ArrayLike, n_samples: int, tasks: Array | None, *, centered: bool) -> IdealKernels:
    """The ideal kernels of labels, (m,) classes or (m, tasks) of 0 and 1.

    Tasks without names are numbered; `centered` is for the comparison with centered kernels. Raises as
    `encode_targets`, and InputError if a label is unknown.
    """
    targets = encode_targets(y, n_samples, tasks)
    if any(len(h) < n_samples for h in targets.problems):
        refuse(
            "alignments with the labels need a label for each sample, and some are unknown; select the samples with "
            "labels, or leave the labels out (targets=False, --no-targets)"
        )
    factors = []
    for h in targets.problems:
        if h.shape[1] == 1:
            factor = np.sign(h)
        else:
            factor = (h > 0).astype(np.float64)  # √(m/m_k) − √(m_k/m) is positive only for the class of the sample
        factors.append(factor - factor.mean(axis=0) if centered else factor)
    if targets.kind != "multilabel":
        return IdealKernels(tuple(factors), None)
    names = range(len(factors)) if tasks is None else tasks
    return IdealKernels(tuple(factors), tuple(str(name) for name in names))


def shares_between_classes(forms: Float, trace: Float, ideal: IdealKernels) -> Float:
    """The share of tr K_j between the classes, (n, tasks): tr PK_jP/tr K_j with P the projector on their indicators.

    It is 1 if a positive semidefinite centered kernel depends on the classes only. The arguments are those of
    `target_alignments`. For several classes the columns of F are centered indicators; their products with a centered
    kernel are those of the indicators, which are orthogonal.
    """
    shares, start = [], 0
    for factor in ideal.factors:
        stop = start + factor.shape[1]
        sizes = (factor > 0).sum(axis=0) if factor.shape[1] > 1 else (factor**2).sum(axis=0)
        between = (forms[:, start:stop] / sizes).sum(axis=1)
        # A kernel that is constant has no trace once it is centered, and no share.
        shares.append(np.divide(between, trace, out=np.full(len(trace), np.nan), where=trace > 0))
        start = stop
    return np.stack(shares, axis=1)


def target_alignments(forms: Float, norm: Float, ideal: IdealKernels) -> Float:
    """A(K_j, T_t), (n, tasks), from fᵀK_jf for each of `ideal.columns` and ‖K_j‖ (NaN if it is only rounding error)."""
    starts = np.cumsum([0, *(factor.shape[1] for factor in ideal.factors[:-1])])
    products = np.add.reduceat(forms, starts, axis=1)
    sizes = np.array([np.linalg.norm(factor.T @ factor) for factor in ideal.factors])
    return np.asarray(np.clip(products / sizes / norm[:, None], -1.0, 1.0))
