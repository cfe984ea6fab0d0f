"""Margin-based problems on kernels in memory, and their optima, computed by cvxpy."""

import cvxpy as cp
import numpy as np
import pytest

from helpers.optima import conjugate, power_norm, quadratic_form, to_optimality


def made(n, m, seed=0, noisy=0.4):
    """Gaussian kernels of informative features or of noise, and the labels."""
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
    """max over u of Σα − ½‖v‖_p*, v_j = Σ_k u_kᵀK_ju_k over the columns of y, (m,) or (m, k), for C or C_i, (m,).

    By Clarabel, to a tolerance of 1e-8, or at most 1e-6 if that fails.
    """
    most = np.max(C)
    share = cp.Variable(y.shape)  # u over the largest C, so that the variables are near one
    forms = cp.hstack([quadratic_form(kernel, share, 1e-10) for kernel in kernels])
    size = {1: cp.max, np.inf: cp.sum}.get(p, lambda v: power_norm(v, conjugate(p)))(forms)
    signed, bounds = cp.multiply(y, share), np.broadcast_to(np.divide(C, most), y.shape[::-1]).T
    unit = most * len(y) / (1 + most)
    cost = (most / unit) * cp.sum(signed) - (most * most / unit / 2) * size
    problem = cp.Problem(cp.Maximize(cost), [signed >= 0, signed <= bounds, cp.sum(share, axis=0) == 0])
    return unit * to_optimality(problem, f"p = {p}, C = {C}")


def svm_optimum(kernel, y, C):
    """The dual optimum of one support vector machine, by Clarabel."""
    u = cp.Variable(len(y))
    signed = cp.multiply(y, u)
    cost = cp.Maximize(y @ u - quadratic_form(kernel, u) / 2)
    problem = cp.Problem(cost, [signed >= 0, signed <= C, cp.sum(u) == 0])
    return problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)


def checked_machine(solution, kernel, y, C):
    """Check that the solution is feasible and that its values are those of its u by the definitions."""
    alpha = y * solution.u
    assert alpha.min() >= 0
    assert (alpha <= C).all()
    assert abs(solution.u.sum()) <= 1e-12 * (1 + alpha.sum())
    scores = kernel @ solution.u
    np.testing.assert_allclose(solution.scores, scores, rtol=1e-9, atol=1e-12 * (1 + alpha.sum()))
    energy = solution.u @ scores / 2
    losses = (C * np.maximum(0, 1 - y * (scores + solution.bias))).sum()
    assert solution.dual == pytest.approx(alpha.sum() - energy, rel=1e-9)
    assert solution.primal == pytest.approx(energy + losses, rel=1e-9, abs=1e-9)
    assert solution.gap == max(solution.primal - solution.dual, 0) / abs(solution.primal)
    np.testing.assert_array_equal(solution.free, np.flatnonzero((alpha > 0) & (alpha < C)))
    if solution.free_kernel is not None:
        np.testing.assert_array_equal(solution.free_kernel, kernel[np.ix_(solution.free, solution.free)])
    return solution


def reference(kernels, y, C, weights):
    """The dual problem of Varma and Ray in its original form, by cvxpy.

    max Σα + bᵀp   over   0 ≤ α ≤ C,  αᵀy = 0,  p ≥ 0,   ½ uᵀK_ju + (Aᵀp)_j ≤ σ_j  for all j,   u = α∘y
    """
    u, p = cp.Variable(len(y)), cp.Variable(len(weights.b), nonneg=True) if len(weights.b) else np.zeros(0)
    alpha = cp.multiply(y, u)
    limits = [
        quadratic_form(K, u) / 2 + (weights.A.T @ p)[j] <= sigma
        for j, (K, sigma) in enumerate(zip(kernels, weights.sigma, strict=True))
    ]
    rules = [cp.sum(u) == 0, alpha >= 0, alpha <= C, *limits]
    return float(to_optimality(cp.Problem(cp.Maximize(cp.sum(alpha) + weights.b @ p), rules), "the problem of GMKL"))


def composite_kernel(kernels, weights, rows, columns=None):
    """K(x_i, x_j) = Σ_m β_m^{c(i)} β_m^{c(j)} K_m(x_i, x_j), (r, c); the columns default to the rows."""
    left, right = weights[:, rows], weights[:, rows if columns is None else columns]
    return np.einsum("nr,nc,nrc->rc", left, right, np.asarray(kernels, dtype=np.float64), optimize=True)
