"""Margin-based problems on kernels in memory, and their optima by cvxpy."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass

import clarabel
import cvxpy as cp
import numpy as np
import scipy.linalg

from dmkl.errors import InputError
from dmkl.solvers.weight_sets.base import ConicError, ConicProgram
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


def reference(kernels, problem):
    """T* by cvxpy: the dual of Varma and Ray."""
    m, k = len(problem.y), len(problem.b)
    u, p = cp.Variable(m), cp.Variable(k, nonneg=True) if k else np.zeros(0)
    alpha = cp.multiply(problem.y, u)
    rules = [cp.sum(u) == 0, alpha >= 0, alpha <= problem.C]
    for j, K in enumerate(kernels):
        root = np.linalg.cholesky(K + 1e-10 * np.eye(m))
        rules.append(0.5 * cp.sum_squares(root.T @ u) + (problem.A.T @ p)[j] <= problem.sigma[j])
    return cp.Problem(cp.Maximize(cp.sum(alpha) + problem.b @ p), rules).solve(solver=cp.CLARABEL)


def composite_kernel(kernels, weights, rows, columns=None):
    """K(x_i, x_j) = Σ_m β_m^{c(i)} β_m^{c(j)} K_m(x_i, x_j), (r, c); the columns are the rows where missing."""
    left, right = weights[:, rows], weights[:, rows if columns is None else columns]
    return np.einsum("nr,nc,nrc->rc", left, right, np.asarray(kernels, dtype=np.float64), optimize=True)


@dataclass(frozen=True)
class ConicOptimum:
    """The optimum of a small problem: its value T*, d (n,), u (m,) and the bias."""

    value: float
    weights: np.ndarray
    u: np.ndarray
    bias: float


def conic_optimum(kernels, problem):
    """Solve the dual of Varma and Ray as it stands, a second-order cone program, by an interior-point method.

        max Σα + bᵀp   over   0 ≤ α ≤ C,  αᵀy = 0,  p ≥ 0,   ½ uᵀK_ju + (Aᵀp)_j ≤ σ_j  for all j,   u = α∘y

    The multipliers of the last constraints are the weights.
    Eigenvalues of the n kernels, (m, m) each, below 1e-12 of the largest are left out.
    """
    m, n, k = len(problem.y), len(problem.sigma), len(problem.b)
    shapes = {np.shape(K) for K in kernels}
    if len(kernels) != n or shapes != {(m, m)}:
        msg = (
            f"got {len(kernels)} kernels of shapes {sorted(shapes)}, expected {n} of ({m}, {m}), as sigma and y have it"
        )
        raise InputError(msg)
    program = ConicProgram(m + k)
    none = np.zeros((m, k))
    program.add(np.concatenate([np.ones(m), np.zeros(k)])[None], 0.0, clarabel.ZeroConeT(1))
    signs = np.diag(problem.y)
    program.at_most(np.hstack([-signs, none]), np.zeros(m))
    program.at_most(np.hstack([signs, none]), np.full(m, problem.C))
    program.at_most(np.hstack([none.T, -np.eye(k)]), np.zeros(k))
    heads, first = [], 1 + 2 * m + k
    for j, K in enumerate(kernels):
        values, vectors = scipy.linalg.eigh(np.asarray(K, dtype=np.float64))
        kept = values > 1e-12 * values[-1]
        root = (np.sqrt(values[kept]) * vectors[:, kept]).T
        row = np.concatenate([np.zeros(m), -problem.A[:, j]])
        root = np.hstack([root, np.zeros((len(root), k))])
        program.bounded_square(root, np.zeros(len(root)), row, float(problem.sigma[j]))
        heads.append(first)
        first += len(root) + 2
    try:
        x, z = program.minimize(-np.concatenate([problem.y, problem.b]))
    except ConicError as error:
        msg = "the conic dual ended without a solution: scale the kernels to unit trace, or use gmkl"
        raise InputError(msg) from error
    u, p = x[:m], x[m:]
    # σ_j stands in the first two rows of its cone, so what a unit of it is worth, d_j, is the sum of their multipliers.
    weights = np.maximum(z[heads] + z[np.asarray(heads) + 1], 0.0)
    return ConicOptimum(float(problem.y @ u + problem.b @ p), weights, u, float(z[0]))
