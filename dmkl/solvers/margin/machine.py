"""A support vector machine on one kernel matrix, with a gap that is computed from the solution.

With u = α∘y the C-SVM (Cortes, Vapnik 1995) with the hinge loss and a free bias is

    dual    maximize D(u) = yᵀu − ½ uᵀKu      subject to 0 ≤ y_iu_i ≤ C, Σu = 0,
    primal  minimize P(u, b) = ½ uᵀKu + C Σ max(0, 1 − y_i((Ku)_i + b)),

and for each u of the dual's box, with f = y − Ku its gradient,

    P − D = Σ_i [C max(0, y_i(f_i − b)) − u_i(f_i − b)],

with every term at least 0, also if each sample has its own C_i. For a positive semidefinite K the gap bounds the gain
of any better u; for any other K it vanishes where no small change of u gains anything, and proves no more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, plain_repr
from dmkl.errors import InputError
from dmkl.numerics.cholesky import Cholesky
from dmkl.numerics.fisher import relative_gap

__all__ = [
    "Bounds",
    "SVMSolution",
    "as_signs",
    "best_bias",
    "box",
    "certify",
    "feasible",
    "hinge",
    "is_concave",
    "solve_among_free",
]

Bounds = float | Float
"""C: one for all samples, or (m,), one for each."""

# Fraction of the trace of the kernel over free vectors that keeps it regular if rows are equal.
_RIDGE = 1e-12


@dataclass(frozen=True, eq=False)
class SVMSolution:
    """A support vector machine with its certificate.

    All values are computed from the returned u and scores, so that the gap is proven for them.
    """

    u: Float
    """α∘y, (m,): 0 ≤ y_iu_i ≤ C, and Σu = 0 up to rounding"""
    bias: float
    """b, the minimizer of the primal for this u"""
    dual: float
    """D(u)"""
    primal: float
    """P(u, b)"""
    scores: Float
    """Ku, (m,), without the bias"""
    free: npt.NDArray[np.intp]
    """The samples with 0 < y_iu_i < C, in order."""
    free_kernel: Float | None = field(default=None, repr=False)
    """K over the free samples, (f, f); None if it did not fit the memory"""
    concave: bool | None = None
    """Whether D is proven concave (`is_concave`), as the gap assumes; None if K was not tested."""

    @property
    def gap(self) -> float:
        """(P − D)/|P|, at least 0."""
        return relative_gap(self.primal, self.dual, self.primal)

    def curvature(self, products: Array) -> Float | None:
        """The second derivatives of the optimal value J in the weights, (n, n), as long as the same vectors are free.

        With F the free vectors and B the leading block of the inverse of [K_FF 1; 1ᵀ 0], a change of weight j changes
        the free part of u by −B(K_ju)_F, hence ∂²J/∂β_i∂β_j = (K_iu)_FᵀB(K_ju)_F, from the products K_ju, (n, m). It is
        zero if fewer than two vectors are free, since u cannot move then; None if `free_kernel` is missing or is not
        positive semidefinite.
        """
        if self.free_kernel is None:
            return None
        # Σu is fixed: with fewer than two free vectors none can move.
        if len(self.free) < 2:
            return np.zeros((len(products), len(products)))
        inside = np.asarray(products[:, self.free], dtype=np.float64).T
        # B annihilates constants, since Σu is fixed: their removal first keeps the solution on vectors of sum zero.
        inside = inside - inside.mean(axis=0)
        try:
            return np.asarray(inside.T @ solve_among_free(self.free_kernel, inside))
        except np.linalg.LinAlgError:
            return None


def best_bias(scores: Float, y: Float, C: Bounds = 1.0) -> float:
    """The b that minimizes Σ C_i max(0, 1 − y_i(s_i + b)).

    The sum is piecewise linear in b, with a kink at each y_i − s_i where its derivative rises by C_i, from −Σ₊C_i to
    Σ₋C_i. For equal C the minimum is between the m₊-th and the next of the sorted kinks, and b is their middle;
    otherwise it is at the kink where the derivative changes its sign, or between two where it is zero.
    """
    kinks = y - scores
    if np.ndim(C):
        order = np.argsort(kinks)
        risen = np.cumsum(np.broadcast_to(C, y.shape)[order])
        target = float(np.sum(np.broadcast_to(C, y.shape)[y > 0]))
        level = 1e-12 * risen[-1]  # equal parts may be summed in another order
        first = int(np.searchsorted(risen, target - level))
        last = min(int(np.searchsorted(risen, target + level)), len(y) - 1)
        return 0.5 * float(kinks[order[first]] + kinks[order[last]])
    n_positive = int(np.count_nonzero(y > 0))
    around = np.partition(kinks, (n_positive - 1, n_positive))
    return 0.5 * float(around[n_positive - 1] + around[n_positive])


def hinge(scores: Float, bias: float, y: Float, C: Bounds = 1.0) -> float:
    """Σ C_i max(0, 1 − y_i(s_i + b))."""
    return float(np.sum(C * np.maximum(0.0, 1.0 - y * (scores + bias))))


def feasible(start: npt.ArrayLike | None, y: Float, C: Bounds) -> Float:
    """Clip the start to the box 0 ≤ y_iu_i ≤ C, and scale its heavier side down until Σu = 0; zeros by default.

    InputError is raised if the length of the start is not that of y, or it holds NaN or infinity.
    """
    if start is None:
        return np.zeros(len(y))
    u = np.asarray(start, dtype=np.float64)
    if u.shape != y.shape or not np.isfinite(u).all():
        msg = f"start must hold {len(y)} finite numbers, one u_i a sample; found shape {u.shape}, or NaN or infinity"
        raise InputError(msg)
    u = y * np.clip(y * u, 0.0, C)
    # Scaling down keeps every u_i in its box; scaling the lighter side up could not.
    up, down = float(u[u > 0].sum()), float(-u[u < 0].sum())
    if up > down:
        u[u > 0] *= down / up
    elif down > up:
        u[u < 0] *= up / down
    return u


def as_signs(y: npt.ArrayLike, C: Bounds) -> Float:
    """The labels as float64; InputError unless they are 1 and −1, both present, and every C is positive and finite."""
    signs = np.asarray(y, dtype=np.float64)
    if signs.ndim != 1 or not np.array_equal(np.unique(signs), [-1.0, 1.0]):
        msg = (
            f"the labels of a support vector machine are 1 and −1, both present, in a vector; found shape "
            f"{signs.shape} with {np.unique(signs)[:5]}. Turn classes into signs, one class against others"
        )
        raise InputError(msg)
    if not (np.isfinite(C) & (np.asarray(C) > 0)).all():
        msg = f"C must be a positive finite number, got {plain_repr(C)}; a hard margin is a large C"
        raise InputError(msg)
    if np.shape(C) not in ((), signs.shape):
        msg = f"C must be one number, or one for each of the {len(signs)} samples; found shape {np.shape(C)}"
        raise InputError(msg)
    return signs


def box(y: Float, C: Bounds) -> tuple[Float, Float]:
    """The smallest and the largest u of the box 0 ≤ y_iu_i ≤ C."""
    return np.where(y > 0, 0.0, -C), np.where(y > 0, C, 0.0)


def certify(u: Float, scores: Float, y: Float, C: Bounds) -> SVMSolution:
    """The SVM of u with its gap, from u and its scores Ku alone."""
    # For any u with Σu = 0 in the box D(u) is below the optimum, and for any b P(u, b) is above it: the pair is a
    # proof, however it was produced.
    bias = best_bias(scores, y, C)
    energy = 0.5 * float(u @ scores)
    return SVMSolution(
        u=u,
        bias=bias,
        dual=float(y @ u) - energy,
        primal=energy + hinge(scores, bias, y, C),
        scores=scores,
        free=np.flatnonzero((u != 0) & (np.abs(u) < C)),
    )


def is_concave(kernel: Float, noise: float) -> bool:
    """Whether xᵀKx ≥ −noise·‖x‖² for all x of sum zero, proven by a Cholesky factor of the centered kernel.

    D is then concave on Σu = 0, and P − D bounds the gain of any better u. Kernels need not be positive semidefinite
    for that: negative squared distances are an example.
    """
    centered = _centered(kernel)
    if not centered.any():
        return True
    # The vector of ones is in the null space, and a factorization needs a positive matrix.
    centered[np.diag_indices_from(centered)] += max(noise, _RIDGE * float(np.abs(centered.diagonal()).sum()))
    try:
        Cholesky.of(centered.T)
    except np.linalg.LinAlgError:
        return False
    return True


def _centered(kernel: Float) -> Float:
    """HKH, H = I − 11ᵀ/m, of a symmetric K."""
    means = kernel.mean(axis=0)
    centered = kernel - means
    centered -= (means - means.mean())[:, None]
    return np.asarray(centered)


def solve_among_free(kernel: Float, right: Float) -> Float:
    """B times a right side with column sums zero: the inverse on the vectors of sum zero, by a Cholesky factor."""
    centered = _centered(kernel)
    # The vector of ones, which centering makes null, and further null vectors get a ridge. It does not change the
    # solution for right sides in the range of the centered kernel (up to its size relative to the eigenvalues there).
    size = float(np.trace(centered))
    centered[np.diag_indices_from(centered)] += _RIDGE * size if size > 0 else 1.0
    # The matrix is symmetric, so its transpose has the same factor, and is column-major: LAPACK needs no copy.
    solved = Cholesky.of(centered.T).solve(right)
    return np.asarray(solved - solved.mean(axis=0))
