"""The dual solver and its Tikhonov form: against exact optima, the paper's Eq. 26, finite differences; the span."""

from __future__ import annotations

from functools import cache

import dask
import numpy as np
import pytest
import scipy.optimize
from helpers.optima import bounds, case, conjugate, few_digits, norm, optimum, pairwise_covered, slopes, solve, value
from helpers.references import Counting, in_memory, over, psd
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import ConvergenceWarning, IndefiniteKernelError, InputError, MemoryBudgetError
from dmkl.numerics.fisher import certify, steepest
from dmkl.solvers.fisher.descent import GradientSource, Iterate, Span, descend, least_columns
from dmkl.solvers.fisher.mkfda import solve_restricted
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.outcome import Status
from dmkl.solvers.requests import EachProduct
from dmkl.solvers.semidefinite import UNKNOWN
from dmkl.solvers.weight_sets.balls import Ball

NEAR_ONE = 1 + 2**-6
EXPONENTS = [1.0625, 1.5, 2.0, 8.0, np.inf]
LAMBDAS = [1.0, 1e-2, 1e-3]

pytestmark = pytest.mark.usefixtures("synchronous")


@cache
def best(kind, p, lam):
    """The weights of the direct solver, and the value of each problem by cvxpy."""
    kernels, labels, targets = case(kind)
    model = dmkl.MKFDA(p, lam, solver="direct", tol=1e-8).fit(in_memory(few_digits()[0], 20), labels)
    return model.weights_.values.reshape(len(kernels), -1), [optimum(kernels, h, lam, p) for h in targets]


def pairs(model):
    """α (m, c) and β of each problem."""
    alpha, beta = model.dual_coef_.values, model.weights_.values
    return (
        list(zip(np.split(alpha, alpha.shape[1], axis=1), beta.T, strict=True)) if beta.ndim == 2 else [(alpha, beta)]
    )


# --- against exact solutions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "lam", "kind"), pairwise_covered(EXPONENTS, LAMBDAS))
def test_agrees_with_the_optimum_and_proves_it(p, lam, kind):
    kernels, labels, targets = case(kind)
    K, source = over(in_memory(few_digits()[0], 20), Counting)
    # S hardly depends on β where λ is large: its weights need a small gap.
    model = dmkl.MKFDA(p, lam, solver="dual", tol=1e-4 if lam < 1e-2 else 1e-7).fit(K, labels)
    weights, optima = best(kind, p, lam)
    assert model.solver_ == "dual"
    assert model.status_ == Status.CERTIFIED.advice
    gaps, objectives = np.atleast_1d(model.gap_), np.atleast_1d(model.objective_)
    for (alpha, beta), h, gap, objective, exact, expected in zip(
        pairs(model), targets, gaps, objectives, optima, weights.T, strict=True
    ):
        lower, upper = bounds(kernels, alpha, beta, h, lam, p)
        assert gap <= model.tol
        assert gap == pytest.approx((upper - lower) / abs(objective), rel=1e-3, abs=1e-10)
        assert objective == pytest.approx(value(kernels, alpha, beta, h, lam), rel=1e-9)
        assert lower - 2e-6 * abs(exact) <= exact <= upper + 2e-6 * abs(exact)
        assert objective == pytest.approx(exact, rel=1e-4)
        assert norm(beta, p) == pytest.approx(1.0)
        np.testing.assert_allclose(beta, expected, atol=3e-3 if lam < 1e-2 else 1e-3)
    # One pass a step, whatever the number of tasks, each tile once.
    assert model.n_passes_ == model.n_iter_ == model.history_.passes.max()
    assert set(source.reads.values()) == {model.n_passes_}


@pytest.mark.parametrize(
    "steps", [("center", "cosine"), ("cosine", "center"), ("center", "multiplicative"), ("center",)]
)
def test_any_chain_of_steps(steps):
    kernels, y = few_digits()
    train = np.random.default_rng(3).permutation(len(y))[:30]
    K = in_memory(kernels, 17)[train, train]
    fits = [dmkl.MKFDA(1.5, 1.0, steps=steps, solver=s, tol=1e-6).fit(K, y[train]) for s in ("direct", "dual")]
    np.testing.assert_allclose(fits[1].weights_, fits[0].weights_, atol=1e-3)
    assert fits[1].objective_ == pytest.approx(fits[0].objective_, rel=1e-5)


def test_fewer_passes_than_conjugate_gradients():
    K, labels = in_memory(few_digits()[0], 20), case("multiclass")[1]
    for p, lam in ((NEAR_ONE, 1e-3), (2.0, 1e-2)):
        dual, cg = (dmkl.MKFDA(p, lam, solver=solver).fit(K, labels) for solver in ("dual", "cg"))
        assert dual.n_passes_ < 0.7 * cg.n_passes_


# --- the dual and its gradient ------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0625, 1.5, 2.0, np.inf])
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
    found = [(dual(alpha.ravel() + 1e-5 * d) - dual(alpha.ravel() - 1e-5 * d)) / 2e-5 for d in direction.T]
    np.testing.assert_allclose(found, -asked.block.ravel() @ direction, rtol=1e-5)


def test_the_dual_falls_in_every_step():
    labels = case("multiclass")[1]
    model = dmkl.MKFDA(1.0625, 1e-3, solver="dual", tol=1e-8).fit(in_memory(few_digits()[0], 20), labels)
    upper = model.history_.upper.values
    assert len(upper) > 5
    assert (np.diff(upper) <= 1e-9 * np.abs(upper[:-1])).all()


# --- Tikhonov form --------------------------------------------------------------------------------------------


MUS = [1e-3, 0.1, 10.0]


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("p", [1.0625, 2.0, np.inf])
def test_tikhonov_agrees_with_its_own_optimum(p, mu):
    kernels, labels, (h,) = case("multiclass")
    lam = 1e-2
    model = dmkl.MKFDA(p, lam, solver=dmkl.Dual(mu=mu), tol=1e-6).fit(in_memory(few_digits()[0], 20), labels)
    ((alpha, beta),) = pairs(model)
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


@pytest.mark.parametrize("p", [1.0625, 2.0, 8.0])
def test_tikhonov_in_the_scaling_of_the_paper(p):
    """Eq. 26 is stationary at C α/2 with C = 1/λ, and its closed form for β gives the weights."""
    kernels, labels, (h,) = case("multiclass")
    lam, mu, q = 1e-2, 0.1, conjugate(p)
    model = dmkl.MKFDA(p, lam, solver=dmkl.Dual(mu=mu), tol=1e-9).fit(in_memory(few_digits()[0], 20), labels)
    ((alpha, beta),) = pairs(model)
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


@pytest.mark.parametrize("p", [1.0625, 1.5, 8.0, np.inf])
def test_norms_and_penalties_map_onto_each_other(p):
    kernels, labels, (h,) = case("multiclass")
    K, lam = in_memory(few_digits()[0], 20), 1e-2
    penalized = dmkl.MKFDA(p, lam, solver=dmkl.Dual(mu=0.3), tol=1e-8).fit(K, labels)
    beta = penalized.weights_.values
    rho = norm(beta, p)
    assert abs(np.log(rho)) > 0.1
    # There: weights of norm one and λ/ρ.
    bounded = dmkl.MKFDA(p, lam / rho, solver="direct", tol=1e-8).fit(K, labels)
    np.testing.assert_allclose(bounded.weights_, beta / rho, atol=5e-4)
    assert bounded.objective_ == pytest.approx(penalized.objective_, rel=1e-6)
    # And back: the penalty that gives weights of norm one.
    alpha = bounded.dual_coef_.values
    mu = norm(slopes(kernels, alpha, lam / rho), conjugate(p)) / (2 * lam / rho)
    back = dmkl.MKFDA(p, lam / rho, solver=dmkl.Dual(mu=mu), tol=1e-8).fit(K, labels)
    assert norm(back.weights_.values, p) == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(back.weights_, bounded.weights_, atol=1e-3)
    assert solve(kernels, back.weights_.values, h, lam / rho)[1] == pytest.approx(bounded.objective_, rel=1e-4)


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
        found = solve_restricted(oracle, beta, 1e-10)
        coefficients, beta = found.alpha, found.beta
        assert found.certificate.upper <= last + 1e-6 * abs(last)
        last = found.certificate.upper


def test_certifies_with_the_least_memory():
    kernels, _, (h,) = case("multiclass")
    problem, steps = FisherProblem(h, 1e-3, Ball(1.5)), GradientSource(3)
    found = {}
    for capacity in (least_columns(3, steps.width), len(h)):
        solver = descend(problem, len(kernels), steps, FisherOptions(), capacity=capacity)
        asked = next(solver)
        try:
            while True:
                asked = solver.send(kernels @ asked.block)
        except StopIteration as stop:
            found[capacity] = stop.value
    little, plenty = found.values()
    assert little.status is plenty.status is Status.CERTIFIED
    assert len(plenty.steps) <= len(little.steps) <= 3 * len(plenty.steps)
    for solution in (little, plenty):
        lower, upper = bounds(kernels, solution.dual, solution.weights, h, 1e-3, 1.5)
        assert (upper - lower) / abs(solution.objective) <= 1.001e-4


# --- how it ends, and what it refuses ---------------------------------------------------------------------------


def test_what_is_left_is_told():
    K, labels = in_memory(few_digits()[0], 20), case("multiclass")[1]
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        early = dmkl.MKFDA(2.0, 1e-3, solver="dual", max_iter=2).fit(K, labels)
    assert early.n_passes_ == 2
    assert early.gap_ > 1e-4
    with pytest.warns(ConvergenceWarning, match="arithmetic resolves no more"):
        stalled = dmkl.MKFDA(2.0, 1e-3, solver="dual", tol=1e-30).fit(K, labels)
    assert stalled.gap_ < 1e-8


def test_starts_from_given_weights_and_searches():
    K, labels = in_memory(few_digits()[0], 20), case("multiclass")[1]
    found = dmkl.search(dmkl.MKFDA(solver="dual"), K, labels, {"p": [1.5, 2], "lam": [1e-2, 1e-1]}, cv=2)
    assert (found.scores.gap.values <= 1e-4).all()
    assert found.best_.solver_ == "dual"
    assert found.best_.gap_ <= 1e-4


def test_an_indefinite_kernel_is_named():
    kernels, y = few_digits()
    bad = kernels.copy()
    bad[2] -= 3 * np.outer(bad[2][0], bad[2][0]) / bad[2][0, 0]
    with pytest.raises(IndefiniteKernelError, match="dmkl check"):
        dmkl.MKFDA(2.0, 1e-2, solver="dual", steps=("center",)).fit(in_memory(bad, 40), y)


@pytest.mark.parametrize("solver", ["dual", dmkl.Dual(mu=1.0)])
def test_a_norm_without_gradient_is_refused(solver):
    with pytest.raises(InputError, match="p = 1; take solver='interleaved'"):
        dmkl.MKFDA(1.0, solver=solver).fit(in_memory(few_digits()[0], 20), few_digits()[1])


def test_memory_is_bounded():
    K, labels = in_memory(few_digits()[0], 5), case("multiclass")[1]
    few = {"dmkl.memory": "50kB"}  # 11 directions in half of it
    with dask.config.set(few):
        model = dmkl.MKFDA(1.5, 1e-3, solver="dual").fit(K, labels)
    assert model.gap_ <= 1e-4
    with dask.config.set({"dmkl.memory": "30kB"}), pytest.raises(MemoryBudgetError, match="solver='subspace'"):
        dmkl.MKFDA(1.5, 1e-3, solver="dual").fit(K, few_digits()[1])


def test_a_saved_model_knows_its_penalty(tmp_path):
    K, labels = in_memory(few_digits()[0], 20), case("multiclass")[1]
    model = dmkl.MKFDA(2.0, 1e-2, solver=dmkl.Dual(mu=0.5)).fit(K, labels)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    assert loaded.solver == dmkl.Dual(mu=0.5)
    assert loaded.n_passes_ == model.n_passes_
    np.testing.assert_array_equal(loaded.predict(K), model.predict(K))


# --- what "auto" takes out of core ----------------------------------------------------------------------------------


@cache
def twelve_hundred():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1200)
    return np.stack([rbf_kernel(rng.standard_normal((1200, 5)) + s * y[:, None], gamma=0.1) for s in (0.0, 1.0)]), y


@pytest.mark.parametrize(
    ("p", "lam", "solver"), [(2.0, 1.0, "dual"), (1.0, 1.0, "interleaved"), (2.0, 1e-5, "subspace")]
)
def test_auto_descends_on_the_dual_where_lambda_is_ample(p, lam, solver):
    kernels, y = twelve_hundred()
    with dask.config.set({"dmkl.memory": "14MB"}):
        model = dmkl.MKFDA(p, lam).fit(in_memory(kernels, 256), y)
    assert model.solver_ == solver
    assert model.gap_ <= 1e-4


def test_auto_shares_a_subspace_among_tasks():
    kernels, y = twelve_hundred()
    with dask.config.set({"dmkl.memory": "14MB"}):
        model = dmkl.MKFDA(2.0, 1.0).fit(in_memory(kernels, 256), np.stack([y, 1 - y], axis=1))
    assert model.solver_ == "subspace"
