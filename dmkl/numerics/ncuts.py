"""Normalized cuts: from known partitions to a quadratic program over the simplex of kernel weights.

A cut of samples into two sides is good under K(α) = Σ_l α_l K_l if uᵀα/vᵀα is small, where u_l is the similarity
between the sides under K_l and v_l the similarity within them (Mukherjee, Singh, Peng, Hinrichs, CVPR 2010, Eqs. 4 and
6). The sum of several ratios is not convex. Following the paper (Eqs. 8 to 13), the ratios are taken in pairs g < h,

    uᵍᵀα/vᵍᵀα + uʰᵀα/vʰᵀα = αᵀA α / αᵀB α,   A = uᵍvʰᵀ + uʰvᵍᵀ,   B = vᵍvʰᵀ,

and the sum of αᵀ(A − B)α over all pairs is minimized instead: αᵀQα over α ≥ 0, Σα = 1, a standard quadratic program.
Unlike a ratio, this sum depends on the scale of a kernel: doubling K_l doubles the effect of α_l.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from sklearn.model_selection import StratifiedKFold

from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.numerics.compiling import compiled

# --- ratios --------------------------------------------------------------------------------------------------------


def sample_examples(labels: Index, n_examples: int, seed: int, classes: Array) -> Index:
    """Divide samples at random into examples, each with its share of every class.

    `labels` (m,) holds the number of each sample's class, `classes` the names of the classes for messages. Returns
    the number of each sample's example, (m,); InputError if a class has fewer samples than there are examples.
    """
    sizes = np.bincount(labels, minlength=len(classes))
    if sizes.min() < n_examples:
        least = int(np.argmin(sizes))
        refuse(
            f"every example needs a sample of every class, and there are n_examples={n_examples} of them while class "
            f"{classes.tolist()[least]!r} has {sizes[least]} training samples; take n_examples={sizes[least]} or "
            "fewer, or leave that class out"
        )
    examples = np.zeros(len(labels), dtype=np.intp)
    if n_examples > 1:
        # Every sample is in the test part of one fold, and stratified folds have every class in proportion.
        folds = StratifiedKFold(n_examples, shuffle=True, random_state=seed).split(labels, labels)
        for number, (_, rows) in enumerate(folds):
            examples[rows] = number
    return examples


def class_columns(labels: Index, examples: Index, n_classes: int, wanted: range) -> Float:
    """The indicators of the classes inside the `wanted` examples, (m, len(wanted) · classes), example by example."""
    # BᵀKB of these columns holds the sums of K over pairs of classes in an example, from which all cuts are computed:
    # the size of the program does not depend on the samples.
    inside = (examples >= wanted.start) & (examples < wanted.stop)
    columns = np.zeros((len(labels), len(wanted) * n_classes))
    columns[inside, (examples[inside] - wanted.start) * n_classes + labels[inside]] = 1.0
    return columns


def ratios(sums: Float, sizes: Float, signs: Float, *, one_sided: bool = False) -> tuple[Float, Float]:
    """Numerators u and denominators v of cuts (Eqs. 4 and 6), (cuts, examples, kernels) each.

    They are means over pairs of samples for the sides S and T of a cut, so that sides of unequal size have equal
    influence:

        u_l = Σ_{p∈S, q∈T} K_l(p, q) / |S||T|,   v_l = Σ_{p,q∈S} K_l(p, q) / |S|² + Σ_{p,q∈T} K_l(p, q) / |T|².

    For sides of equal size they are Eq. 4's sums divided by a common number, which does not change the minimizer. With
    `one_sided` v_l is the mean within S alone: the term of one part of a partition (Eqs. 2 to 5).

    `sums` holds Σ K_l(p, q) over p of class a and q of class b in an example, (kernels, examples, classes, classes),
    `sizes` the samples of each class in each example, and `signs`, (cuts, classes), the side of each class in each cut:
    1, −1, or 0 for a class that takes no part.
    """
    in_s, in_t = (signs > 0).astype(np.float64), (signs < 0).astype(np.float64)
    n_s, n_t = in_s @ sizes.T, in_t @ sizes.T

    def total(first: Float, second: Float) -> Float:
        return np.asarray(np.einsum("ca,leab,cb->cel", first, sums, second, optimize=True))

    # The indicator vectors of the sides select and add the sums between classes, so that no kernel is read here.
    u = total(in_s, in_t) / (n_s * n_t)[:, :, None]
    v = total(in_s, in_s) / (n_s**2)[:, :, None]
    return u, v if one_sided else v + total(in_t, in_t) / (n_t**2)[:, :, None]


def cut_matrix(u: Float, v: Float) -> Float:
    """Q = (J + Jᵀ)/2, J = Σ_{g<h} (uᵍvʰᵀ + uʰvᵍᵀ − vᵍvʰᵀ) (Eqs. 9 to 13), of u and v (ratios, kernels).

    The sum over all pairs is the product of the sums minus the pairs of a ratio with itself; every unordered pair
    counts once. (Over ordered pairs, as the paper writes Φ, Q is twice as large, with the same minimizers.) It is zero
    for a single ratio, which has no pairs.
    """
    mixed = np.outer(u.sum(axis=0), v.sum(axis=0)) - u.T @ v
    within = np.outer(v.sum(axis=0), v.sum(axis=0)) - v.T @ v
    return np.asarray(0.5 * (mixed + mixed.T - 0.5 * (within + within.T)))


def smallest_ratio(u: Float, v: Float) -> tuple[Float, float]:
    """α and the minimum of uᵀα/vᵀα over the simplex, for a single ratio: the kernel with the smallest ratio (Eq. 6)."""
    values = np.divide(u, v, out=np.full(len(u), np.inf), where=v > 0)
    # A ratio of nonnegative combinations lies between the smallest and the largest of u_l/v_l, so a vertex is optimal.
    best = int(np.argmin(values))
    if not np.isfinite(values[best]):
        refuse(
            "a cut's ratio needs kernels by which samples of one side are similar, and every mean similarity within "
            f"the sides is negative or zero (at most {v.max():.3g}); take steps without 'center', and kernels that are "
            "similarities"
        )
    return np.eye(len(u))[best], float(values[best])


# --- the quadratic program ---------------------------------------------------------------------------------------


def rounded(Z: Float) -> Float:
    """α_i ∝ √Z_ii, Σα = 1: the paper's rounding of the relaxation's solution (Eq. 15)."""
    alpha = np.sqrt(np.maximum(Z.diagonal(), 0.0))
    return np.asarray(alpha / alpha.sum())


# Fraction of the largest entry of Z above which an entry counts as nonzero.
_NOT_ZERO = 1e-4


def is_positive_block(Z: Float) -> bool:
    """Whether Z is positive in every entry, or in every entry of a principal block and zero elsewhere.

    Theorem 1 and its extension (Eq. 20): with such an optimal Z, the relaxation's value is the quadratic program's.
    """
    there = Z > _NOT_ZERO * float(Z.max())
    used = there.diagonal()
    return bool(np.array_equal(there, np.outer(used, used)))


def starts(Z: Float) -> Iterable[Float]:
    """Starting points for the descent, in addition to the paper's rounding and the vertices.

    The leading eigenvector of Z is the optimum where Theorem 1 holds (its proof, Eq. 19; √Z_ii equals it only if Z has
    rank one). For up to three kernels the optimum is among Z's columns and the vertices: these are the pieces of rank
    one into which the proof of Theorem 2 (Eq. 24) cuts Z.
    """
    # Perron and Frobenius: the leading eigenvector of a nonnegative matrix has entries of one sign, up to rounding.
    leading = np.abs(np.linalg.eigh(Z)[1][:, -1])
    yield leading / leading.sum()
    for column in Z[Z.diagonal() > _NOT_ZERO * float(Z.max())]:
        yield column / column.sum()


def descend(Q: Float, start: Float, *, precision: float = 1e-13, steps: int = 1000) -> tuple[Float, float]:
    """Minimize αᵀQα over the simplex to a point that no small change of α improves; returns α and the value there.

    Each step moves weight from the kernel in use with the largest gradient to the kernel with the smallest, either to
    the minimum along the line or all of it. The value falls in every step. Two entries of the gradient count as equal
    if they differ by at most `precision` times the range of Q's entries; `steps` bounds the number of steps, in
    multiples of n.
    """
    # A copy, since the compiled loop changes it.
    alpha = np.array(start, dtype=np.float64)
    _exchange(np.ascontiguousarray(Q), alpha, precision * float(np.ptp(Q)), steps * len(alpha))
    # Moves of weight keep Σα = 1 up to rounding; the division removes the accumulated error.
    alpha /= alpha.sum()
    return alpha, float(alpha @ Q @ alpha)


@compiled()
def _exchange(Q: Array, alpha: Array, eps: float, steps: int) -> None:
    """Run the steps of `descend`; alpha is overwritten."""
    n = len(alpha)
    gradient = np.zeros(n)  # half the gradient, Qα
    for k in range(n):
        if alpha[k] > 0:
            for a in range(n):
                gradient[a] += alpha[k] * Q[k, a]
    for _ in range(steps):
        low, high = 0, -1
        for k in range(n):
            if gradient[k] < gradient[low]:
                low = k
            if alpha[k] > 0 and (high < 0 or gradient[k] > gradient[high]):
                high = k
        apart = gradient[high] - gradient[low]
        if apart <= eps:
            return
        # Along α + t(e_low − e_high) the value changes by −2t·apart + t²·curvature: its minimum is t = apart/curvature.
        # Without positive curvature, or if that exceeds α_high, all weight of the kernel is moved.
        curvature = Q[low, low] + Q[high, high] - 2.0 * Q[low, high]
        moved = alpha[high]
        if curvature * moved > apart:
            moved = apart / curvature
            alpha[high] -= moved
        else:
            alpha[high] = 0.0
        alpha[low] += moved
        for k in range(n):
            gradient[k] += moved * (Q[low, k] - Q[high, k])
