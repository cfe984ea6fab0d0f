"""Exact optima of multiple kernel Fisher discriminant analysis, dense and independent of the package's solvers."""

import inspect
import warnings
from contextlib import suppress
from functools import cache

import cvxpy as cp
import numpy as np

from dmkl.numerics.fisher import encode_targets
from helpers.references import dense_view, digits


def norm(x, p):
    """‖x‖_p by NumPy, scaled against overflow."""
    size = np.abs(x).max()
    return size * np.linalg.norm(x / size, p) if size else 0.0


def conjugate(p):
    """p* with 1/p + 1/p* = 1."""
    return np.inf if p == 1 else 1.0 if np.isinf(p) else p / (p - 1)


def power_norm(x, p):
    """The ℓp-norm of a cvxpy expression; older versions approximate p by a fraction, exact for p of the tests."""
    exact = {"approx": False} if "approx" in inspect.signature(cp.pnorm).parameters else {}
    return cp.pnorm(x, p, **exact)


def quadratic_form(kernel, x, cut=1e-13):
    """Σ x_kᵀKx_k over the columns of a cvxpy expression, without eigenvalues below `cut` times the largest."""
    values, vectors = np.linalg.eigh(kernel)
    keep = values > cut * values[-1]
    return cp.sum_squares((vectors[:, keep] * np.sqrt(values[keep])).T @ x)


def value(kernels, alpha, beta, h, lam):
    """S(α, β) by its definition."""
    combined = np.tensordot(beta, kernels, axes=1)
    return sum(0.25 * a @ a + 0.25 / lam * a @ combined @ a - t @ a for a, t in zip(alpha.T, h.T, strict=True))


def slopes(kernels, alpha, lam):
    """q_j = (1/4λ) Σ_k α_kᵀK_jα_k."""
    return np.array([np.trace(alpha.T @ kernel @ alpha) for kernel in kernels]) / (4 * lam)


def system(kernels, beta, lam):
    """A = ½(I + K(β)/λ)."""
    return 0.5 * (np.eye(kernels.shape[1]) + np.tensordot(beta, kernels, axes=1) / lam)


def bounds(kernels, alpha, beta, h, lam, p):
    """S − ‖R‖² and F, bounds of the optimum for any α and any β in the ball."""
    residual = h - system(kernels, beta, lam) @ alpha
    upper = 0.25 * np.sum(alpha**2) - np.sum(h * alpha) + norm(slopes(kernels, alpha, lam), conjugate(p))
    return value(kernels, alpha, beta, h, lam) - np.sum(residual**2), upper


def scale(objective, h):
    """min(|S|, ‖H‖² − |S|), to which gaps are relative."""
    return min(abs(objective), np.sum(h * h) - abs(objective))


def proven_gap(kernels, alpha, beta, h, lam, p):
    """The gap of a pair, (F − S + ‖R‖²) relative to `scale`."""
    lower, upper = bounds(kernels, alpha, beta, h, lam, p)
    return (upper - lower) / scale(value(kernels, alpha, beta, h, lam), h)


def solve(kernels, beta, h, lam):
    """α and J(β) = min_α S(α, β) = −½ tr(Hᵀα)."""
    alpha = np.linalg.solve(system(kernels, beta, lam), h)
    return alpha, -0.5 * np.sum(h * alpha)


def optimum(kernels, h, lam, p):
    """The optimum min over α of F(α), by Clarabel."""
    # F is homogeneous of degree 2 in (α, H); scaled so that its value is near one.
    unit = np.sqrt(-solve(kernels, np.full(len(kernels), 1 / len(kernels)), h, lam)[1])
    alpha = cp.Variable(h.shape)
    forms = cp.hstack([quadratic_form(kernel / (4 * lam), alpha) for kernel in kernels])
    bound = {1: cp.max, np.inf: cp.sum}.get(p, lambda q: power_norm(q, conjugate(p)))(forms)
    problem = cp.Problem(cp.Minimize(0.25 * cp.sum_squares(alpha) - cp.sum(cp.multiply(h / unit, alpha)) + bound))
    return to_optimality(problem, f"p = {p}, λ = {lam}") * unit**2


def to_optimality(problem, where):
    """The optimum of a problem by Clarabel, to a tolerance of 1e-8, or at most 1e-6 if that fails."""
    for tolerance in (1e-8, 1e-7, 1e-6):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            with suppress(cp.error.SolverError):
                problem.solve(solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
        if problem.status == cp.OPTIMAL:
            return problem.value
    msg = f"Clarabel ended with {problem.status} at {where}"
    raise AssertionError(msg)


STEPS = ("center", "trace")
LABELS = {
    "binary": lambda y: y > 4,
    "multiclass": lambda y: y % 3,
    "multilabel": lambda y: np.stack([y % 2, y > 6], axis=1).astype(int),
}


def few_digits():
    """A subset of the digits small enough for cvxpy; its single 8 is labeled 3."""
    kernels, y = digits()
    return kernels[:, :45, :45], np.where(y[:45] == 8, 3, y[:45])


@cache
def case(kind):
    """The centred kernels of unit trace, the labels, and H of each problem."""
    kernels, y = few_digits()
    labels = LABELS[kind](y)
    return dense_view(kernels, steps=STEPS), labels, encode_targets(labels, len(y)).problems
