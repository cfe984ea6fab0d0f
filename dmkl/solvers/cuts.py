"""Normalized cuts: from known partitions to a quadratic program over the simplex of kernel weights, and its solution.

A cut of samples into two sides is good under K(α) = Σ_l α_l K_l if uᵀα/vᵀα is small, where u_l is the similarity
between the sides under K_l and v_l the similarity within them (Mukherjee, Singh, Peng, Hinrichs, CVPR 2010, Eqs. 4 and
6). The sum of several ratios is not convex. Following the paper (Eqs. 8 to 13), the ratios are taken in pairs g < h,

    uᵍᵀα/vᵍᵀα + uʰᵀα/vʰᵀα = αᵀA α / αᵀB α,   A = uᵍvʰᵀ + uʰvᵍᵀ,   B = vᵍvʰᵀ,

and the sum of αᵀ(A − B)α over all pairs is minimized instead: αᵀQα over α ≥ 0, Σα = 1, a standard quadratic program.
Eq. 5 maximizes the sum of the reciprocals vᵀα/uᵀα over the parts of a partition, which has the same optimum for a
single ratio (Eq. 6), but not for several; Eqs. 7 to 13 are for sums of uᵀα/vᵀα, and only these are minimized here.
Unlike a ratio, this sum depends on the scale of a kernel: doubling K_l doubles the effect of α_l.

The semidefinite relaxation

    min ⟨Q, Z⟩   subject to   Z ⪰ 0,  Z ≥ 0 in every entry,  ⟨E, Z⟩ = 1   (E: all ones)

(Eq. 14) is solved by the alternating direction method of multipliers, with one eigendecomposition and one projection of
n² numbers onto the simplex for each step. An interior point method would factorize a dense matrix of n⁴/4 entries
instead, which does not fit in memory beyond some hundred kernels.

Both bounds are proven from the present iterate, whether the iteration has converged or not:

- From below: for any X ⪰ 0, ⟨Q, Z⟩ = ⟨Q − X, Z⟩ + ⟨X, Z⟩ ≥ min_ij (Q − X)_ij, since the entries of Z are weights
  that sum to one. In the dual (Eq. 16) that is the best y for X₁ = X. No eigenvalue is needed: X = BBᵀ is positive
  semidefinite for any B. (y + λ_min(Q − yE − X₂) for some X₂ ≥ 0 is a bound too, since tr Z ≤ ⟨E, Z⟩; there a residual
  enters by its largest eigenvalue, here by its largest entry, which is never larger.)
- From above: a Z ⪰ 0 with some negative entries is made feasible by adding |Z_ij| (e_i + e_j)(e_i + e_j)ᵀ for each of
  them, and scaling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.model_selection import StratifiedKFold

from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.numerics.compiling import compiled
from dmkl.numerics.fisher import relative_gap
from dmkl.passes.blas import pinned_blas
from dmkl.solvers.interface import Outcome, Status, Step

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


def sum_of_ratios(u: Float, v: Float, alpha: Float) -> float:
    """Σ uᵀα/vᵀα over the ratios; infinite or NaN where a vᵀα is zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.sum((u @ alpha) / (v @ alpha)))


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


# --- the semidefinite relaxation --------------------------------------------------------------------------------------


# Steps between two computations of the bounds and of the penalty.
_CHECK = 25
_OVER_RELAXATION = 1.6
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A feasible Z of the relaxation, with a bound of its distance from the optimum."""

    Z: Float  # (n, n)
    value: float  # ⟨Q, Z⟩, at least the optimum
    bound: float  # at most the optimum
    spread: float  # max Q − min Q, the unit of gaps: adding a constant to Q, or scaling it, changes no minimizer
    iterations: int
    steps: list[Step]  # the history of the bounds: √Z_ii scaled to sum one, the value and the bound

    @property
    def gap(self) -> float:
        """(value − bound)/spread."""
        return relative_gap(self.value, self.bound, self.spread)


def relax(Q: Float, start: Float | None = None, *, tol: float = 1e-6, max_iter: int = 5000) -> Relaxation:
    """Solve the semidefinite relaxation of min αᵀQα over the simplex, for a symmetric Q (n, n).

    `start` is an α in the simplex, and Z = ααᵀ the first iterate; from a good α mostly its proof remains to be found,
    which takes a tenth of the steps. The default is equal weights. `tol` is the gap to prove, relative to the range of
    Q's entries; the bounds after max_iter steps are returned.
    """
    n, least, spread = len(Q), float(Q.min()), float(np.ptp(Q))
    alpha = np.full(n, 1.0 / n) if start is None else start
    Z = np.outer(alpha, alpha)
    if spread == 0:
        return Relaxation(Z, least, least, 0.0, 0, [Step(rounded(Z), {"value": least, "bound": least})])
    # The entries are shifted and scaled to [0, 1], which changes no minimizer because the entries of Z sum to one; ρ, W
    # and U are in those units. One BLAS thread: more would wait for one another longer than they work.
    H = (Q - least) / spread
    rounding = 4.0 * _EPS * (abs(least) + spread)
    best, bound, steps = Z, -np.inf, list[Step]()
    value = float(np.sum(H * Z))
    W, U, rho, threshold = Z, np.zeros((n, n)), float(np.sqrt(n)), 0.0
    iteration = 0
    with pinned_blas(1):
        while iteration < max_iter:
            iteration += 1
            # Z is the projection of W − U − H/ρ onto the positive semidefinite cone; the negative part is −X/ρ.
            point = W - U - H / rho
            values, vectors = scipy.linalg.eigh(point, driver="evr", check_finite=False)
            negative = int(np.searchsorted(values, 0.0))
            # The smaller part of the spectrum is multiplied out; the other one is the difference.
            X = _gram(vectors[:, :negative], -values[:negative])
            Z = point + X if negative <= n // 2 else _gram(vectors[:, negative:], values[negative:])
            mixed = _OVER_RELAXATION * Z + (1.0 - _OVER_RELAXATION) * W + U
            before = W
            W, threshold = _onto_simplex(mixed, threshold)
            U = mixed - W
            if iteration % _CHECK and iteration < max_iter:
                continue
            X *= rho
            # The bound is valid for the exact BBᵀ; `error` covers the rounding of its entries, which are at most its
            # largest diagonal entry, and of H − X.
            error = (n + 4) * _EPS * (1.0 + float(X.diagonal().max()))
            bound = max(bound, float(np.min(H - X)) - error)
            feasible = _feasible(Z)
            if (reached := float(np.sum(H * feasible))) <= value:
                best, value = feasible, reached
            steps.append(Step(rounded(best), {"value": least + spread * value, "bound": least + spread * bound}))
            if value - bound <= tol:
                break
            if iteration <= max_iter // 2:  # a penalty that changes without end need not converge
                # A larger ρ favors Z = W, a smaller one the objective: it is moved to make both residuals equal.
                primal = _norm(Z - W) / max(_norm(Z), _norm(W))
                dual = _norm(W - before) / max(_norm(U), _EPS)
                factor = 1.5 if primal > 1.5 * dual else 1.0 / 1.5 if dual > 1.5 * primal else 1.0
                rho, U = rho * factor, U / factor
    # The value of the returned Z is computed from Q itself; both bounds allow for the rounding of the shifted entries.
    value = float(np.sum(Q * best)) + rounding
    return Relaxation(best, value, least + spread * bound - rounding, spread, iteration, steps)


def _norm(matrix: Float) -> float:
    return float(np.linalg.norm(matrix))


def _gram(vectors: Float, values: Float) -> Float:
    """V diag(w) Vᵀ for w ≥ 0, as the product of a matrix with its own transpose."""
    # Exactly symmetric and positive semidefinite up to rounding; BLAS needs half the operations for it.
    root = vectors * np.sqrt(values)
    return root @ root.T


def _onto_simplex(matrix: Float, threshold: float) -> tuple[Float, float]:
    """The nearest matrix with entries ≥ 0 that sum to one, max(M − t, 0), and t by Newton's method from `threshold`.

    Σ max(M − t, 0) − 1 is decreasing, convex and piecewise linear in t: from the first step on t rises to the root, and
    the iteration ends when the set of positive entries no longer changes.
    """
    while True:
        inside = matrix > threshold
        n_inside = np.count_nonzero(inside)
        # Above the largest entry the derivative is zero; one below it, that entry alone has a sum of one.
        better = (float(matrix[inside].sum()) - 1.0) / n_inside if n_inside else float(matrix.max()) - 1.0
        if abs(better - threshold) <= 4.0 * _EPS * max(1.0, abs(better)):
            return np.maximum(matrix - better, 0.0), better
        threshold = better


def _feasible(Z: Float) -> Float:
    """Make Z ⪰ 0 nonnegative with sum one; it remains ⪰ 0, since the matrix added is diagonally dominant."""
    lacking = np.maximum(-Z, 0.0)
    np.fill_diagonal(lacking, 0.0)
    entries = np.maximum(Z, 0.0)
    entries[np.diag_indices_from(entries)] += lacking.sum(axis=1)
    total = float(entries.sum())
    return entries / total if total > 0 else np.full_like(Z, 1.0 / Z.size)


def best_cut(u: Float, v: Float, tol: float = 1e-6, max_iter: int = 5000) -> Outcome:
    """Learn kernel weights from the ratios of cuts, u over v (ratios, kernels): relaxation, rounding, descent.

    The result is the best end of the descents from the paper's rounding and from `starts`. Its objective is αᵀQα, or
    the ratio if there is one, and its gap (αᵀQα − bound)/(max Q − min Q). It is certified if the gap is within tol,
    converged if the relaxation proves no more, and open after `max_iter` steps of the relaxation. ``extra`` has
    `ratio`, Σ uᵀα/vᵀα over the ratios, `reciprocal`, Σ vᵀα/uᵀα, `relaxed`, ⟨Q, Z⟩ of the relaxation's solution,
    `rounded`, the value of the paper's rounding, `descended`, that at the end of a descent from there, `iterations`,
    and `proof`, the theorem of the paper that predicts the proof, if one does. InputError if there is one ratio and no
    kernel has a positive denominator.
    """
    if len(u) == 1:
        alpha, ratio = smallest_ratio(u[0], v[0])
        steps = [Step(alpha, {"value": ratio, "bound": ratio})]
        extra: dict[str, Any] = dict.fromkeys(("ratio", "relaxed", "rounded", "descended"), ratio)
        extra |= {"reciprocal": sum_of_ratios(v, u, alpha), "iterations": 0, "proof": "single ratio"}
        return Outcome(Status.CERTIFIED, alpha, None, ratio, ratio, 0.0, steps=steps, extra=extra)
    Q = cut_matrix(u, v)
    # The descents before the relaxation give it a good start; those after it start from its solution.
    alpha, value = _best_descent(Q, np.vstack([np.full(len(Q), 1.0 / len(Q)), np.eye(len(Q))]))
    relaxation = relax(Q, alpha, tol=tol, max_iter=max_iter)
    first = rounded(relaxation.Z)
    descended = descend(Q, first)[1]
    other, reached = _best_descent(Q, [first, *starts(relaxation.Z)])
    if reached < value:
        alpha, value = other, reached
    gap = relative_gap(value, relaxation.bound, relaxation.spread)
    proof, status = "none", Status.CONVERGED if relaxation.gap <= tol else Status.ITERATIONS
    if gap <= tol:
        proof = "theorem 2" if len(Q) <= 3 else "theorem 1" if is_positive_block(relaxation.Z) else "bound"
        status = Status.CERTIFIED if status is Status.CONVERGED else status
    extra = {
        "ratio": sum_of_ratios(u, v, alpha),
        "reciprocal": sum_of_ratios(v, u, alpha),
        "relaxed": relaxation.value,
        "rounded": float(first @ Q @ first),
        "descended": descended,
        "iterations": relaxation.iterations,
        "proof": proof,
    }
    return Outcome(status, alpha, None, value, relaxation.bound, gap, steps=relaxation.steps, extra=extra)


def _best_descent(Q: Float, points: Iterable[Float]) -> tuple[Float, float]:
    """The end of the best of the descents from several points, and its value."""
    # All descents run roughly; only the lowest is continued to full precision.
    rough = (descend(Q, point, precision=1e-8, steps=20) for point in points)
    return descend(Q, min(rough, key=lambda result: result[1])[0])
