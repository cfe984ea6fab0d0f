"""The Newton iteration of MK-FDA, and `dmkl.solve_mkfda` on plain arrays, against dense references."""

from functools import partial

import numpy as np
import pytest
from helpers.optima import bounds, case, optimum, slopes, solve, system, value
from helpers.references import dense_view, in_memory, psd
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import IndefiniteKernelError, InputError
from dmkl.numerics.cholesky import Factor
from dmkl.numerics.fisher import encode_targets
from dmkl.solvers import driver
from dmkl.solvers.fisher import mkfda
from dmkl.solvers.interface import CombinedFactor, OfFactor, Task, ask
from dmkl.solvers.masters import Factored
from dmkl.solvers.weight_sets import Ball

EXPONENTS = [1.0, 1 + 2**-6, 1.5, 2.0, 8.0, np.inf]


@pytest.mark.parametrize(
    ("p", "lam", "kind"),
    [
        (p, lam, ("binary", "multiclass")[(i + j) % 2])
        for i, p in enumerate(EXPONENTS)
        for j, lam in enumerate([1e-3, 10.0])
    ],
)
def test_plain_arrays_are_solved_to_the_optimum(p, lam, kind):
    """The gap is recomputed from (α, β) by dense formulas; the optimum is from cvxpy."""
    kernels, _, (h,) = case(kind)
    solution = dmkl.solve_mkfda(kernels, h, p, lam, tol=1e-6)
    lower, upper = bounds(kernels, solution.dual, solution.weights, h, lam, p)
    assert solution.status.word == "certified"
    assert (upper - lower) / abs(solution.objective) <= 1.01e-6
    assert solution.bound == pytest.approx(upper, rel=1e-9)
    assert solution.objective == pytest.approx(solve(kernels, solution.weights, h, lam)[1], rel=1e-8)
    assert solution.objective == pytest.approx(optimum(kernels, h, lam, p), rel=5e-6)


@pytest.mark.parametrize(("p", "atol"), [(1.0, 1e-3), (1 + 2**-6, 1e-3), (2.0, 1e-5), (8.0, 1e-3)])
def test_many_kernels(p, atol, monkeypatch):
    """With more than 100 kernels masters are solved by a factor of the curvature; the bounds are dense formulas."""
    rng, m = np.random.default_rng(0), 30
    X = rng.standard_normal((150, m, 3))
    kernels, h = X @ X.transpose(0, 2, 1), X[:3, :, 0].sum(axis=0)[:, None] + 0.3 * rng.standard_normal((m, 2))
    solution = dmkl.solve_mkfda(kernels, h, p, 0.1, tol=1e-7)
    lower, upper = bounds(kernels, solution.dual, solution.weights, h, 0.1, p)
    assert (upper - lower) / abs(solution.objective) <= 1.01e-7
    assert len(solution.steps) <= 20
    # The wrapper solver uses a factor of the curvature too, of the rank m of the problem: n·c > m. No square matrix of
    # the samples leaves the factor of the system.
    shapes, answered = [], driver._answered

    def recorded(requests, tally):
        answers = answered(requests, tally)
        shapes.extend(np.shape(answer) for answer in answers if isinstance(answer, np.ndarray))
        return answers

    monkeypatch.setattr(driver, "_answered", recorded)
    model = dmkl.MKRidge(p, 0.1, solver="direct", steps=(), tol=1e-7).fit(in_memory(kernels, 20), h[:, 0])
    assert (150, m) in shapes
    assert (m, m) not in shapes
    np.testing.assert_allclose(model.weights_, dmkl.solve_mkfda(kernels, h[:, 0], p, 0.1, tol=1e-7).weights, atol=atol)


@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_few_steps_of_newton_at_p_1(n_classes, lam):
    """50 kernels, ten of them informative: weights to their accuracy, for which cutting planes take a hundred steps."""
    rng, y = np.random.default_rng(0), np.arange(60) % n_classes
    X = rng.standard_normal((50, 60, 4))
    X[:10] += 0.8 * np.eye(4)[y]
    kernels = np.stack([rbf_kernel(x, gamma=0.2) for x in X])
    (h,) = encode_targets(y, 60).problems
    solution = dmkl.solve_mkfda(dense_view(kernels, steps=("center", "trace")), h, 1.0, lam)
    assert solution.status.word == "certified"
    assert solution.weights_error <= 1e-3
    assert len(solution.steps) <= 8
    assert dmkl.MKFDA(1.0, lam, solver="direct").fit(in_memory(kernels, 60), y).n_iter_ <= 8


@pytest.mark.parametrize(("n", "c"), [(3, 1), (3, 2), (40, 1)])
def test_curvature_by_a_factor_where_it_is(n, c):
    """Σ_k W_ikᵀA⁻¹W_jk by its definition; the rows of the factor are in another order than the samples."""
    m, lam, rng = 17, 0.3, np.random.default_rng(0)
    kernels, rows, W, beta = psd(n, m), rng.permutation(m), rng.standard_normal((n, m, c)), rng.random(n)
    given = W.copy()

    def solver():
        factor = yield CombinedFactor(beta, lam)
        return (yield OfFactor(factor, Factor.root_of_forms, (W,)))

    (root,), _ = driver.drive([(in_memory(kernels, 6)[rows, rows].lens(), solver())])
    inverse = np.linalg.inv(system(kernels[:, rows][:, :, rows], beta, lam))
    expected = np.einsum("imk,ml,jlk->ij", given, inverse, given)
    assert root.shape == (n, min(n, c * m))
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-9, atol=1e-12 * expected.max())
    np.testing.assert_array_equal(W, given)


def test_the_curvature_belongs_to_an_evaluation():
    """−∂q/∂β by differences, whatever weights the oracle has evaluated since."""
    kernels, _, (h,) = case("multiclass")
    oracle, beta, step = mkfda.MemoryOracle(kernels, h, 0.3, Ball(2.0)), np.full(len(kernels), 0.4), 1e-6

    def at(weights):
        return mkfda.run_here(oracle.evaluate(weights, 1e-6, careful=False))

    first = at(beta)
    moved = [[at(beta + sign * step * unit).certificate.gradient for unit in np.eye(len(beta))] for sign in (1, -1)]
    expected = (moved[1] - np.array(moved[0])) / (2 * step)
    np.testing.assert_allclose(mkfda.run_here(oracle.curvature(first)), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("large", [np.ones((1200, 1200)), Factored(np.ones((1200, 1200)))])
def test_large_arguments_of_a_master_are_not_in_the_graph(large):
    """Dask warns of a graph of 10 MB, and a warning is an error here."""
    request = Task("restricted-master", len, (large,))
    (length,), _ = driver.drive([(in_memory(psd(2, 6), 6).lens(), ask(request))])
    assert length == len(large)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_plain_arrays_lead_from_any_weights_to_the_optimum(p):
    """Outside of the ball of the norm, inside of it, and without some of the kernels or any."""
    kernels, y, (h,) = case("binary")
    signs, n = np.where(y, 1.0, -1.0), len(kernels)
    for solved in (partial(dmkl.solve_mkfda, kernels, h), partial(dmkl.solve_mkglm, kernels, signs)):
        best = solved(p=p, lam=0.1, tol=1e-8)
        for start in (np.ones(n), 9 * np.eye(n)[0], np.full(n, 1e-3), np.zeros(n)):
            solution = solved(p=p, lam=0.1, tol=1e-6, start=start)
            assert solution.gap <= 1e-6
            assert solution.objective == pytest.approx(best.objective, rel=2e-6)
            assert np.linalg.norm(solution.weights, p) <= 1 + 1e-12


def test_what_plain_arrays_are_refused():
    kernels, _, (h,) = case("binary")
    unknown, triangles = np.where(np.arange(len(h)) == 3, np.nan, kernels), np.triu(kernels)
    for wrong, message in [
        (dict(kernels=unknown, H=h), "kernels and H must be finite numbers"),
        (dict(kernels=triangles, H=h), "kernels must be symmetric, and number 0 is not"),
        (dict(kernels=kernels[:0], H=h), "kernels must have the shape"),
        (dict(kernels=kernels, H=h, max_iter=0), "max_iter must be 1 or more"),
        (dict(kernels=kernels, H=h, start=[1.0]), "start must be . finite weights of 0 or more"),
        (dict(kernels=kernels, H=h, start=-np.ones(len(kernels))), "start must be"),
        (dict(kernels=kernels[0], H=h), r"kernels must have the shape \(n, m, m\)"),
        (dict(kernels=kernels, H=h[1:]), r"kernels must have the shape"),
        (dict(kernels=kernels, H=h, lam=0.0), "lam must be positive"),
        (dict(kernels=kernels, H=h, p=0.5), "p must be at least 1"),
    ]:
        with pytest.raises(InputError, match=message):
            dmkl.solve_mkfda(**wrong)
    indefinite = kernels.copy()
    indefinite[1] -= 2 * np.eye(len(h)) * np.trace(kernels[1])
    with pytest.raises(IndefiniteKernelError):
        dmkl.solve_mkfda(indefinite, h, 2.0, 1e-3)


@pytest.mark.parametrize("solver", [dmkl.Direct(), dmkl.Direct("taylor"), dmkl.CG("exact")], ids=str)
def test_the_violation_is_that_of_earlier_planes(solver):
    """|1 − J/θ| of Eq. 16, where θ is the lowest plane S(α, ·) of the earlier steps at the present weights."""
    kernels, labels, (h,) = case("multiclass")
    model = dmkl.MKFDA(1.5, 1e-2, solver=solver, steps=(), tol=1e-6).fit(in_memory(kernels, 20), labels)
    history = model.history_
    assert history["violation"].values[0] == 1.0  # θ = −∞
    constants, gradients = [], []
    for t, beta in enumerate(history["weight"].values):
        if t:
            theta = np.min(constants + np.array(gradients) @ beta)
            expected = abs(1 - history["objective"].values[t] / theta)
            assert history["violation"].values[t] == pytest.approx(expected, rel=1e-2, abs=1e-5)
        alpha = solve(kernels, beta, h, 1e-2)[0]
        gradients.append(slopes(kernels, alpha, 1e-2))
        constants.append(value(kernels, alpha, beta, h, 1e-2) - beta @ gradients[-1])
