"""Restricted maximum likelihood of variance components by dense algebra, error contrasts and a general optimizer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

FLOOR = 1e-6
"""Lower bound of the residual variance, relative to the variance of y without kernels."""


def contrasts(X):
    """An orthonormal basis of the complement of the columns of X."""
    return scipy.linalg.null_space(X.T) if X.shape[1] else np.eye(len(X))


def log_likelihood(variances, kernels, y, X):
    """The log density of the error contrasts."""
    A = contrasts(X)
    V = np.tensordot(variances[:-1], kernels, 1) + variances[-1] * np.eye(len(y))
    return multivariate_normal(np.zeros(A.shape[1]), A.T @ V @ A).logpdf(A.T @ y)


def reml(kernels, y, X):
    """Maximize from several starts, then by Newton steps with the exact Hessian over the free components.

    Standard errors are those of average information, NaN for components on the boundary.
    """
    n, m = kernels.shape[:2]
    A = contrasts(X)
    reduced = np.stack([A.T @ K @ A for K in [*kernels, np.eye(m)]])
    z = A.T @ y
    scale = z @ z / len(z)
    unit = scale / np.array([np.trace(K) / len(z) for K in reduced])

    def derivatives(shares):
        V = np.tensordot(shares * unit, reduced, 1)
        inverse = np.linalg.inv(V)
        products, solved = inverse @ reduced, inverse @ z
        images = reduced @ solved
        value = 0.5 * (np.linalg.slogdet(V)[1] + z @ solved)
        gradient = 0.5 * (np.trace(products, axis1=1, axis2=2) - images @ solved) * unit
        hessian = images @ inverse @ images.T - 0.5 * np.einsum("iab,jba->ij", products, products)
        return value, gradient, hessian * np.outer(unit, unit)

    lower = np.append(np.zeros(n), FLOOR)
    bounds = [(low, None) for low in lower]
    starts = [np.full(n + 1, 1.0 / (n + 1)), np.append(np.full(n, 0.9 / n), 0.1), np.append(np.full(n, 0.1 / n), 0.9)]
    fits = [
        minimize(lambda x: derivatives(x)[:2], x, jac=True, bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-9})
        for x in starts
    ]
    best = min(fits, key=lambda fit: fit.fun).x
    for _ in range(50):
        _, gradient, hessian = derivatives(best)
        free = np.flatnonzero((best > lower + 1e-7) | (gradient < 0))
        step = np.zeros(n + 1)
        step[free] = -np.linalg.solve(hessian[np.ix_(free, free)], gradient[free])
        best = np.where(np.isin(np.arange(n + 1), free), np.maximum(best + step, lower), lower)
    variances = best * unit
    V = np.tensordot(variances[:-1], kernels, 1) + variances[-1] * np.eye(m)
    P = A @ np.linalg.inv(A.T @ V @ A) @ A.T
    images = np.stack([K @ P @ y for K in [*kernels, np.eye(m)]], axis=1)
    information = 0.5 * images.T @ P @ images
    free = np.flatnonzero(best > lower * (1 + 1e-9))
    errors = np.full(n + 1, np.nan)
    errors[free] = np.sqrt(np.diagonal(np.linalg.inv(information[np.ix_(free, free)])))
    inverse = np.linalg.inv(V)
    covariance = np.linalg.inv(X.T @ inverse @ X)
    return SimpleNamespace(
        variances=variances,
        log_likelihood=log_likelihood(variances, kernels, y, X),
        errors=errors,
        effects=covariance @ X.T @ inverse @ y,
        effect_errors=np.sqrt(np.diagonal(covariance)),
        dual=P @ y,
    )


def check_maximum(model, known):
    """A model of one target has the estimates of the reference."""
    table = model.components_.isel(term=slice(-1))
    assert model.objective_ == pytest.approx(known.log_likelihood, abs=1e-8)
    np.testing.assert_allclose(table.variance, known.variances, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(table.boundary, np.isnan(known.errors))
    np.testing.assert_allclose(table.variance_se, known.errors, rtol=1e-4)
    np.testing.assert_allclose(model.fixed_effects_.effect, known.effects, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.fixed_effects_.effect_se, known.effect_errors, rtol=1e-4)
    np.testing.assert_allclose(model.dual_coef_[:, 0], known.dual, rtol=1e-4, atol=1e-5)
