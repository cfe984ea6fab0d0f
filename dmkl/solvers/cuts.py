"""Standard quadratic programs, min αᵀQα over α ≥ 0, Σα = 1, by their semidefinite relaxation.

    min ⟨Q, Z⟩   subject to   Z ⪰ 0,  Z ≥ 0 in every entry,  ⟨E, Z⟩ = 1   (E: all ones)

(Mukherjee, Singh, Peng, Hinrichs, CVPR 2010, Eq. 14) is solved by the alternating direction method of multipliers, one
eigendecomposition and one projection of n² numbers onto the simplex a step. An interior point method would factorize a
dense matrix of n⁴/4 entries instead: beyond some hundred kernels that does not fit.

Both bounds are proven from what is at hand, whether the iteration has converged or not:

- From below: for any X ⪰ 0, ⟨Q, Z⟩ = ⟨Q − X, Z⟩ + ⟨X, Z⟩ ≥ min_ij (Q − X)_ij, since the entries of Z are weights
  that sum to one. In the dual (Eq. 16) that is the best y for X₁ = X. No eigenvalue has to be known: X = BBᵀ is
  positive semidefinite whatever B is. (y + λ_min(Q − yE − X₂) for some X₂ ≥ 0 is a bound too, since tr Z ≤ ⟨E, Z⟩;
  there a residual counts by its largest eigenvalue, here by its largest entry, which is never more.)
- From above: a Z ⪰ 0 with some negative entries is made feasible by adding |Z_ij| (e_i + e_j)(e_i + e_j)ᵀ for each of
  them, and scaling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.linalg

from dmkl.arrays import Float
from dmkl.errors import InputError
from dmkl.numerics.fisher import relative_gap
from dmkl.numerics.ncuts import cut_matrix, descend, is_positive_block, rounded, smallest_ratio, starts
from dmkl.passes.blas import pinned_blas
from dmkl.solvers.outcome import Step

__all__ = ["KernelCut", "Proof", "Relaxation", "best_cut", "relax"]

Proof = Literal["single ratio", "theorem 1", "theorem 2", "bound", "none"]

_CHECK = 25
"""Steps from one look at the bounds, and at the penalty, to the next."""
_OVER_RELAXATION = 1.6
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A feasible Z of the relaxation, and how far from optimal it can be."""

    Z: Float
    """(n, n)"""
    value: float
    """⟨Q, Z⟩, at least the optimum"""
    bound: float
    """At most the optimum"""
    spread: float
    """max Q − min Q, the unit of gaps: adding a constant to Q, or scaling it, changes no minimizer."""
    iterations: int
    steps: list[Step]
    """What was known at each look at the bounds: √Z_ii, scaled to sum one, the value and the bound."""

    @property
    def gap(self) -> float:
        """(value − bound)/spread."""
        return relative_gap(self.value, self.bound, self.spread)


def _step(weights: Float, value: float, bound: float) -> Step:
    return Step(weights, {"value": value, "bound": bound})


def relax(Q: Float, start: Float | None = None, *, tol: float = 1e-6, max_iter: int = 5000) -> Relaxation:
    """Solve the semidefinite relaxation of min αᵀQα over the simplex, for a symmetric Q (n, n).

    `start` is an α in the simplex, to begin with Z = ααᵀ: with a good one mostly its proof is left to be found, which
    takes a tenth of the steps. Equal weights where missing. `tol` is the gap to prove, relative to the range of Q's
    entries; what is proven after max_iter steps is returned. InputError if Q is not symmetric and finite.
    """
    Q = np.asarray(Q, dtype=np.float64)
    if Q.ndim != 2 or not np.array_equal(Q, Q.T) or not np.isfinite(Q).all():
        msg = f"Q must be a symmetric matrix of finite numbers, found shape {Q.shape}; take (Q + Qᵀ)/2"
        raise InputError(msg)
    n, least, spread = len(Q), float(Q.min()), float(np.ptp(Q))
    alpha = np.full(n, 1.0 / n) if start is None else start
    Z = np.outer(alpha, alpha)
    if spread == 0:
        return Relaxation(Z, least, least, 0.0, 0, [_step(rounded(Z), least, least)])
    # Shifted and scaled to entries from 0 to 1; ρ, W and U are in those units. BLAS threads would wait for one another
    # longer than they work.
    H = (Q - least) / spread
    rounding = 4.0 * _EPS * (abs(least) + spread)
    best, bound, steps = Z, -np.inf, list[Step]()
    value = float(np.sum(H * Z))
    W, U, rho, threshold = Z, np.zeros((n, n)), float(np.sqrt(n)), 0.0
    iteration = 0
    with pinned_blas(1):
        while iteration < max_iter:
            iteration += 1
            # Z = (W − U − H/ρ)₊ of the positive eigenvalues; what they leave is −X/ρ.
            point = W - U - H / rho
            values, vectors = scipy.linalg.eigh(point, driver="evr", check_finite=False)
            negative = int(np.searchsorted(values, 0.0))
            X = _gram(vectors[:, :negative], -values[:negative])
            Z = point + X if negative <= n // 2 else _gram(vectors[:, negative:], values[negative:])
            mixed = _OVER_RELAXATION * Z + (1.0 - _OVER_RELAXATION) * W + U
            before = W
            W, threshold = _onto_simplex(mixed, threshold)
            U = mixed - W
            if iteration % _CHECK and iteration < max_iter:
                continue
            X *= rho
            error = (n + 4) * _EPS * (1.0 + float(X.diagonal().max()))
            bound = max(bound, float(np.min(H - X)) - error)
            feasible = _feasible(Z)
            if (reached := float(np.sum(H * feasible))) <= value:
                best, value = feasible, reached
            steps.append(_step(rounded(best), least + spread * value, least + spread * bound))
            if value - bound <= tol:
                break
            if iteration <= max_iter // 2:  # a penalty that changes for ever need not converge
                primal = _norm(Z - W) / max(_norm(Z), _norm(W))
                dual = _norm(W - before) / max(_norm(U), _EPS)
                factor = 1.5 if primal > 1.5 * dual else 1.0 / 1.5 if dual > 1.5 * primal else 1.0
                rho, U = rho * factor, U / factor
    value = float(np.sum(Q * best)) + rounding
    return Relaxation(best, value, least + spread * bound - rounding, spread, iteration, steps)


def _norm(matrix: Float) -> float:
    return float(np.linalg.norm(matrix))


def _gram(vectors: Float, values: Float) -> Float:
    """V diag(w) Vᵀ for w ≥ 0, as the product of a matrix with its own transpose."""
    root = vectors * np.sqrt(values)
    return root @ root.T


def _onto_simplex(matrix: Float, threshold: float) -> tuple[Float, float]:
    """The nearest matrix of entries ≥ 0 that sum to one, max(M − t, 0); and t, found by Newton's method from a guess.

    Σ max(M − t, 0) − 1 falls in t, convex and linear in pieces: from the first step on t rises to its root, and stays
    when the same entries remain.
    """
    while True:
        inside = matrix > threshold
        n_inside = np.count_nonzero(inside)
        # Beyond the largest entry there is no slope to go by; below it by one, that entry alone would do.
        better = (float(matrix[inside].sum()) - 1.0) / n_inside if n_inside else float(matrix.max()) - 1.0
        if abs(better - threshold) <= 4.0 * _EPS * max(1.0, abs(better)):
            return np.maximum(matrix - better, 0.0), better
        threshold = better


def _feasible(Z: Float) -> Float:
    """Z ⪰ 0 made ≥ 0 and of sum one, staying ⪰ 0: what is added is diagonally dominant."""
    lacking = np.maximum(-Z, 0.0)
    np.fill_diagonal(lacking, 0.0)
    found = np.maximum(Z, 0.0)
    found[np.diag_indices_from(found)] += lacking.sum(axis=1)
    total = float(found.sum())
    return found / total if total > 0 else np.full_like(Z, 1.0 / Z.size)


@dataclass(frozen=True, eq=False)
class KernelCut:
    """Weights of the kernels under which known partitions are good cuts, and how good they are proven to be."""

    alpha: Float
    """(n,), in the simplex"""
    value: float
    """αᵀQα; of a single ratio its value"""
    bound: float
    """No weights have a lower value."""
    relaxed: float
    """⟨Q, Z⟩ of the relaxation's solution"""
    rounded: float
    """The value of the paper's rounding"""
    descended: float
    """The value where a descent from there ended"""
    gap: float
    """(value − bound)/(max Q − min Q)"""
    proof: Proof
    """What proves α optimal to the tolerance."""
    converged: bool
    """Whether the relaxation was solved to the tolerance."""
    iterations: int
    steps: list[Step]


def best_cut(u: Float, v: Float, tol: float = 1e-6, max_iter: int = 5000) -> KernelCut:
    """Learn kernel weights from the ratios of cuts, u over v (ratios, kernels): relaxation, rounding, descent.

    The result is the best of what descents from the paper's rounding and from `dmkl.numerics.ncuts.starts` find. Where
    its value is within tol of the bound that proves it optimal, whatever led to it; `proof` names the theorem of the
    paper that foretells it, if one does. InputError if there is one ratio, and no kernel has a positive denominator.
    """
    if len(u) == 1:
        alpha, ratio = smallest_ratio(u[0], v[0])
        only = _step(alpha, ratio, ratio)
        return KernelCut(alpha, ratio, ratio, ratio, ratio, ratio, 0.0, "single ratio", True, 0, [only])
    Q = cut_matrix(u, v)
    alpha, value = _best_descent(Q, np.vstack([np.full(len(Q), 1.0 / len(Q)), np.eye(len(Q))]))
    relaxation = relax(Q, alpha, tol=tol, max_iter=max_iter)
    first = rounded(relaxation.Z)
    descended = descend(Q, first)[1]
    other, reached = _best_descent(Q, [first, *starts(relaxation.Z)])
    if reached < value:
        alpha, value = other, reached
    gap = relative_gap(value, relaxation.bound, relaxation.spread)
    proof: Proof = "none"
    if gap <= tol:
        proof = "theorem 2" if len(Q) <= 3 else "theorem 1" if is_positive_block(relaxation.Z) else "bound"
    return KernelCut(
        alpha,
        value,
        relaxation.bound,
        relaxation.value,
        float(first @ Q @ first),
        descended,
        gap,
        proof,
        relaxation.gap <= tol,
        relaxation.iterations,
        relaxation.steps,
    )


def _best_descent(Q: Float, points: Iterable[Float]) -> tuple[Float, float]:
    """Where the lowest of the descents from some points ends, and its value."""
    rough = (descend(Q, point, precision=1e-8, steps=20) for point in points)
    return descend(Q, min(rough, key=lambda found: found[1])[0])
