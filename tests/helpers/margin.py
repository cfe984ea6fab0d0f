"""Margin-based problems on kernels in memory, and their optima by cvxpy."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from dmkl.errors import InputError
from helpers.optima import conjugate, power_norm

__all__ = ["ConicOptimum", "composite_kernel", "conic_optimum", "made", "optimum", "reference"]


def made(n, m, seed=0, noisy=0.4):
    """Gaussian kernels, on features that the labels follow or on noise, and the labels."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((m, 6))
    score = features[:, 0] + features[:, 1] * features[:, 2] + 0.5 * rng.standard_normal(m)
    kernels = []
    for number in range(n):
        if number < noisy * n:
            x, width = rng.standard_normal((m, 16)), 16.0
        else:
            x, width = features[:, rng.permutation(6)[: rng.integers(1, 5)]], 10 ** rng.uniform(-0.5, 1)
        kernels.append(np.exp(-((x[:, None] - x) ** 2).sum(axis=2) / (2 * width)))
    return np.array(kernels), np.where(score > 0, 1.0, -1.0)


def optimum(kernels, y, C, p):
    """max over u of Σα − ½‖v‖_p*, by Clarabel; to 1e-8, or what the arithmetic gives up to 1e-6."""
    share = cp.Variable(len(y))  # u/C, so that all is near one
    forms = []
    for kernel in kernels:
        values, vectors = np.linalg.eigh(kernel)
        keep = values > 1e-10 * values[-1]
        forms.append(cp.sum_squares((vectors[:, keep] * np.sqrt(values[keep])).T @ share))
    forms = cp.hstack(forms)
    size = {1: cp.max, np.inf: cp.sum}.get(p, lambda v: power_norm(v, conjugate(p)))(forms)
    signed = cp.multiply(y, share)
    unit = C * len(y) / (1 + C)
    cost = (C / unit) * (y @ share) - (C * C / unit / 2) * size
    problem = cp.Problem(cp.Maximize(cost), [signed >= 0, signed <= 1, cp.sum(share) == 0])
    for tolerance in (1e-8, 1e-7, 1e-6):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            with suppress(cp.error.SolverError):
                problem.solve(solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
        if problem.status == cp.OPTIMAL:
            return unit * problem.value
    msg = f"Clarabel ended with {problem.status} at p = {p}, C = {C}"
    raise AssertionError(msg)


@dataclass(frozen=True)
class ConicOptimum:
    """The optimum of a small problem: its value T*, and d (n,)."""

    value: float
    weights: np.ndarray


def conic_optimum(kernels, problem):
    """The dual of Varma and Ray as it stands, by cvxpy; the multipliers of its last constraints are the weights.

    max Σα + bᵀp   over   0 ≤ α ≤ C,  αᵀy = 0,  p ≥ 0,   ½ uᵀK_ju + (Aᵀp)_j ≤ σ_j  for all j,   u = α∘y
    """
    m, k = len(problem.y), len(problem.b)
    if len(kernels) != len(problem.sigma):
        msg = f"got {len(kernels)} kernels, expected {len(problem.sigma)}, as sigma has it"
        raise InputError(msg)
    u, p = cp.Variable(m), cp.Variable(k, nonneg=True) if k else np.zeros(0)
    alpha = cp.multiply(problem.y, u)
    limits = []
    for j, K in enumerate(kernels):
        root = np.linalg.cholesky(K + 1e-10 * np.eye(m))
        limits.append(0.5 * cp.sum_squares(root.T @ u) + (problem.A.T @ p)[j] <= problem.sigma[j])
    rules = [cp.sum(u) == 0, alpha >= 0, alpha <= problem.C, *limits]
    value = cp.Problem(cp.Maximize(cp.sum(alpha) + problem.b @ p), rules).solve(solver=cp.CLARABEL)
    return ConicOptimum(float(value), np.maximum(np.ravel([limit.dual_value for limit in limits]), 0.0))


def reference(kernels, problem):
    """T* by cvxpy."""
    return conic_optimum(kernels, problem).value


def composite_kernel(kernels, weights, rows, columns=None):
    """K(x_i, x_j) = Σ_m β_m^{c(i)} β_m^{c(j)} K_m(x_i, x_j), (r, c); the columns are the rows where missing."""
    left, right = weights[:, rows], weights[:, rows if columns is None else columns]
    return np.einsum("nr,nc,nrc->rc", left, right, np.asarray(kernels, dtype=np.float64), optimize=True)
