"""The dual solver and its Tikhonov form: against exact optima, the paper's Eq. 26, finite differences; the span."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import scipy.optimize
from helpers.optima import bounds, case, conjugate, few_digits, norm, optimum, slopes
from helpers.references import in_memory, psd
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import InputError
from dmkl.numerics.fisher import certify, steepest
from dmkl.solvers.fisher.descent import GradientSource, Iterate, Span
from dmkl.solvers.fisher.mkfda import solve_restricted
from dmkl.solvers.requests import EachProduct
from dmkl.solvers.semidefinite import UNKNOWN
from dmkl.solvers.weight_sets.balls import Ball

# --- the dual and its gradient ------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0625, 2.0, np.inf])
def test_the_direction_is_minus_the_gradient_of_the_dual(p):
    kernels, _, (h,) = case("multiclass")
    rng, lam = np.random.default_rng(0), 1e-2
    alpha = rng.standard_normal(h.shape)

    def dual(flat):
        a = flat.reshape(h.shape)
        return 0.25 * np.sum(a * a) - np.sum(h * a) + norm(slopes(kernels, a, lam), conjugate(p))

    products = kernels @ alpha
    beta = steepest(slopes(kernels, alpha, lam), p)
    certificate, residual = certify(alpha, products, beta, h, lam, Ball(p))
    assert certificate.upper == pytest.approx(dual(alpha.ravel()))
    asked = next(GradientSource(h.shape[1])(Iterate(beta, residual, products)))
    assert isinstance(asked, EachProduct)
    direction = rng.standard_normal((h.size, 5))
    slope = [(dual(alpha.ravel() + 1e-5 * d) - dual(alpha.ravel() - 1e-5 * d)) / 2e-5 for d in direction.T]
    np.testing.assert_allclose(slope, -asked.block.ravel() @ direction, rtol=1e-5)


# --- Tikhonov form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "mu"), [(1.0625, 0.1), (2.0, 1e-3), (np.inf, 10.0)])
def test_tikhonov_agrees_with_its_own_optimum(p, mu):
    kernels, labels, (h,) = case("multiclass")
    lam = 1e-2
    model = dmkl.MKFDA(p, lam, solver=dmkl.Dual(mu=mu), tol=1e-6).fit(in_memory(few_digits()[0], 20), labels)
    alpha, beta = model.dual_coef_.values, model.weights_.values
    rho = norm(beta, p)
    penalized = model.objective_ - lam * mu * rho**2
    bounded = [optimum(kernels, h, lam / r, p) - lam * mu * r**2 for r in (0.9 * rho, rho, 1.1 * rho)]
    assert penalized == pytest.approx(bounded[1], rel=1e-5)
    assert bounded[1] > max(bounded[0], bounded[2])
    # What is returned has the bound that its own slopes give, and the gap holds for both forms.
    dual_norm = norm(slopes(kernels, alpha, lam), conjugate(p))
    assert rho == pytest.approx(dual_norm / (2 * lam * mu), rel=1e-9)
    lower, _ = bounds(kernels, alpha, beta, h, lam, p)
    upper = 0.25 * np.sum(alpha**2) - np.sum(h * alpha) + dual_norm**2 / (4 * lam * mu)
    gap = (upper - (lower - lam * mu * rho**2)) / abs(model.objective_)
    assert model.gap_ == pytest.approx(gap, rel=1e-3, abs=1e-10)
    assert gap <= 1e-6


@pytest.mark.parametrize("p", [1.0625, 8.0])
def test_tikhonov_in_the_scaling_of_the_paper(p):
    """Eq. 26 is stationary at C α/2 with C = 1/λ, and its closed form for β gives the weights."""
    kernels, labels, (h,) = case("multiclass")
    lam, mu, q = 1e-2, 0.1, conjugate(p)
    model = dmkl.MKFDA(p, lam, solver=dmkl.Dual(mu=mu), tol=1e-9).fit(in_memory(few_digits()[0], 20), labels)
    alpha, beta = model.dual_coef_.values, model.weights_.values
    C = 1 / lam
    a = C / 2 * alpha
    s = np.array([np.trace(a.T @ kernel @ a) for kernel in kernels])
    closed = norm(s, q) ** (2 - q) * s ** (q / p) / (2 * mu)
    np.testing.assert_allclose(beta, closed, atol=1e-3 * beta.max())
    gradient = h - a / C - np.tensordot(closed, kernels @ a, axes=1)
    assert np.linalg.norm(gradient) <= 1e-2 * np.linalg.norm(h)

    def paper(t):
        forms = t**2 * s
        return np.sum(h * t * a) - np.sum((t * a) ** 2) / (2 * C) - norm(forms, q) ** 2 / (8 * mu)

    assert scipy.optimize.minimize_scalar(lambda t: -paper(t), bounds=(0.5, 2), method="bounded").x == pytest.approx(
        1.0, abs=1e-4
    )


def test_each_task_has_a_norm_of_its_own():
    _, labels, _ = case("multilabel")
    K = in_memory(few_digits()[0], 20)
    together = dmkl.MKFDA(2.0, 1e-2, solver=dmkl.Dual(mu=0.01)).fit(K, labels)
    alone = [dmkl.MKFDA(2.0, 1e-2, solver=dmkl.Dual(mu=0.01)).fit(K, column) for column in labels.T]
    np.testing.assert_allclose(together.weights_.values.T, [one.weights_.values for one in alone], rtol=1e-3)
    assert together.n_passes_ == max(one.n_passes_ for one in alone)


# --- the span -------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(8, 14))
def test_a_span_keeps_what_it_says(seed, width, capacity):
    """Whatever comes, dependent directions too: D orthonormal, K_jD its products, α kept, and S never falls back."""
    rng = np.random.default_rng(seed)
    kernels, h = psd(3, 12, seed=seed) / 100, rng.standard_normal((12, 2))
    span, coefficients, beta = Span(h, 3, capacity), np.zeros((0, 2)), np.full(3, 3**-0.5)
    last = np.inf
    for number in range(8):
        block = rng.standard_normal((12, width)) * 10.0 ** rng.integers(-8, 8, width)
        if number % 3 == 2:
            block[:, 0] = span.combine(np.ones((span.size, 1)))[0][:, 0]  # nothing new
            block[:, -1] = 0.0
        alpha = span.combine(coefficients)[0]
        grown = span.extend(block, kernels @ block, coefficients)
        if not grown:
            assert width <= 2 or span.size == 12
            coefficients = np.linalg.lstsq(span.combine(np.eye(span.size))[0], alpha, rcond=None)[0]
        basis, products = span.combine(np.eye(span.size))
        assert span.size <= capacity
        np.testing.assert_allclose(basis.T @ basis, np.eye(span.size), atol=1e-10)
        np.testing.assert_allclose(products, kernels @ basis, atol=1e-6 * np.abs(kernels).max())
        np.testing.assert_allclose(basis @ (basis.T @ alpha), alpha, atol=1e-7 * (1 + np.abs(alpha).max()))
        oracle = span.oracle(0.1, Ball(2.0), UNKNOWN)
        np.testing.assert_allclose(oracle.kernels, basis.T @ kernels @ basis, atol=1e-6 * np.abs(kernels).max())
        solution = solve_restricted(oracle, beta, 1e-10)
        coefficients, beta = solution.alpha, solution.beta
        assert solution.certificate.upper <= last + 1e-6 * abs(last)
        last = solution.certificate.upper


# --- how it ends, and what it refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["dual", dmkl.Dual(mu=1.0)])
def test_a_norm_without_gradient_is_refused(solver):
    with pytest.raises(InputError, match="p = 1; take solver='interleaved'"):
        dmkl.MKFDA(1.0, solver=solver).fit(in_memory(few_digits()[0], 20), few_digits()[1])


def test_a_saved_model_knows_its_penalty(tmp_path):
    K, labels = in_memory(few_digits()[0], 20), case("multiclass")[1]
    model = dmkl.MKFDA(2.0, 1e-2, solver=dmkl.Dual(mu=0.5)).fit(K, labels)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    assert loaded.solver == dmkl.Dual(mu=0.5)
    assert loaded.n_passes_ == model.n_passes_
    np.testing.assert_array_equal(loaded.predict(K), model.predict(K))


# --- what "auto" takes out of core ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "n_tasks", "solver"), [(2.0, 1, "dual"), (1.0, 1, "interleaved"), (2.0, 2, "subspace")])
def test_auto_descends_on_the_dual_where_lambda_is_ample(p, n_tasks, solver):
    """Tasks share a subspace."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1200)
    kernels = [rbf_kernel(rng.standard_normal((1200, 5)) + s * y[:, None], gamma=0.1) for s in (0.0, 1.0)]
    labels = np.stack([y, 1 - y], axis=1) if n_tasks > 1 else y
    with dask.config.set({"dmkl.memory": "14MB"}):
        model = dmkl.MKFDA(p, 1.0).fit(in_memory(np.stack(kernels), 256), labels)
    assert model.solver_ == solver
    assert np.max(model.gap_) <= 1e-4
