"""Margin-based problems on kernels in memory, and their optima by cvxpy."""

from __future__ import annotations

import warnings
from contextlib import suppress

import cvxpy as cp
import numpy as np

from helpers.optima import conjugate

__all__ = ["made", "optimum", "reference"]


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
    size = {1: cp.max, np.inf: cp.sum}.get(p, lambda v: cp.pnorm(v, conjugate(p), approx=False))(forms)
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
