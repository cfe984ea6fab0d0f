"""Generalized MKL against cvxpy, finite differences and brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from helpers.generators import finish
from helpers.margin import conic_optimum, reference
from scipy.optimize import linprog

from dmkl.errors import IndefiniteKernelError, InputError
from dmkl.solvers.margin.gmkl import gmkl
from dmkl.solvers.margin.gmkl_problem import GeneralizedProblem
from dmkl.solvers.margin.svm import solve_dense
from dmkl.solvers.outcome import Status
from dmkl.solvers.requests import SVM, EachProduct
from dmkl.solvers.semidefinite import KernelFacts
from dmkl.solvers.weight_sets.knowledge import NamedWeights, rows_and_cones


def run(solver, kernels, curvature=True):
    """Drive a solver on kernels in memory; its result, and how many weightings it asked for."""
    weightings = 0

    def answer(request):
        nonlocal weightings
        if isinstance(request, SVM):
            weightings += 1
            machine = solve_dense(np.tensordot(request.weights, kernels, 1), request.y, request.C, request.tol)
            return machine if curvature else replace(machine, free_kernel=None)
        assert isinstance(request, EachProduct)
        return np.einsum("nij,jb->nib", kernels, request.block)

    return finish(solver, answer), weightings


def made(seed, n=5, m=40):
    """RBF kernels of random features, unit mean diagonal, and labels that some of them tell."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m, max(3, 2 * n)))
    y = np.where(X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=m) > 0, 1.0, -1.0)
    kernels = []
    for _ in range(n):
        Z = X[:, rng.integers(0, 2 * n, 3)]
        kernels.append(np.exp(-((Z[:, None] - Z[None]) ** 2).sum(-1) / rng.uniform(1, 8)))
    return rng, np.array(kernels), y


def constrained(seed, n=5, m=40, k=3):
    """A random problem whose rows some random weights satisfy, one of them tightly."""
    rng, kernels, y = made(seed, n, m)
    A = rng.normal(size=(k, n))
    b = A @ rng.uniform(0, 0.5, n) - np.array([0.0, 0.1, 0.1])[:k]
    C = float(rng.choice([0.25, 4.0, 64.0]))
    return kernels, GeneralizedProblem(y, C, rng.uniform(0.05, 2.0, n) * m * min(0.1, 0.1 * C), A, b)


CONVEX = {
    "second order": lambda d: [cp.norm(d, 2) <= 0.02],
    "an equation and a sum of squares": lambda d: [cp.sum(d) == 0.05, cp.sum_squares(d - 0.01) <= 2e-3],
    "exponential": lambda d: [cp.sum(cp.entr(100 * d)) >= 0.6, cp.sum(d) <= 0.05],
    "power": lambda d: [cp.pnorm(100 * d, 1.5) <= 1.2],
    "geometric mean": lambda d: [cp.geo_mean(d, approx=False) >= 0.1],
    "semidefinite": lambda d: [cp.diag(d) + 0.002 * np.eye(5) << 0.02 * np.eye(5), cp.lambda_min(cp.diag(d)) >= 0.001],
    "beside linear ones": lambda d: [cp.norm(d, 2) <= 0.05, d["0"] >= d["1"] + 0.001, d["4"] >= 0.01],
}


@pytest.mark.parametrize(("kind", "method"), [*((kind, "newton") for kind in CONVEX), ("second order", "gradient")])
def test_weights_of_any_convex_set(kind, method):
    """Against the whole problem by cvxpy: over functions, weights and constraints at once."""
    _, kernels, y = made(3, n=5, m=24)
    sigma, C, names = np.full(5, 20.0), 4.0, [str(k) for k in range(5)]
    A, b, rows, cones = rows_and_cones(CONVEX[kind], names)
    assert cones is not None
    problem = GeneralizedProblem(y, C, sigma, A, b, rows, cones=cones)
    found, _ = run(gmkl(problem, 5, method=method, tol=1e-5), kernels)
    assert found.status is Status.CERTIFIED

    d, bias, w, loss = NamedWeights(names), cp.Variable(), [], []
    for kernel in kernels:
        values, vectors = np.linalg.eigh(kernel)
        root = (vectors * np.sqrt(np.maximum(values, 0)))[:, values > 1e-10]
        w.append(cp.Variable(root.shape[1]))
        loss.append(root @ w[-1])
    losses = C * cp.sum(cp.pos(1 - cp.multiply(y, sum(loss) + bias)))
    norms = sum(cp.quad_over_lin(one, d[j]) for j, one in enumerate(w)) / 2
    whole = cp.Problem(cp.Minimize(sigma @ d + norms + losses), [d >= 0, *CONVEX[kind](d)])
    optimum = whole.solve(solver=cp.CLARABEL)
    assert found.objective == pytest.approx(optimum, rel=1e-4)
    assert found.bound <= optimum * (1 + 1e-6)
    given = NamedWeights(names)
    given.value = found.weights
    for constraint in CONVEX[kind](given):
        assert np.max(constraint.violation()) < 1e-6


def test_what_a_convex_set_lacks_is_told_before_any_work():
    _, _, y = made(3, n=3, m=24)
    names = ["rna", "dna", "noise"]
    with pytest.raises(InputError, match="contradict each other"):
        rows_and_cones(lambda d: [cp.norm(d, 2) <= 1, d["rna"] >= 2, d["dna"] >= 0.1], names)
    *_, cones = rows_and_cones(lambda d: [cp.norm(d, 2) <= 1], names)
    with pytest.raises(InputError, match="A d ≥ b and the constraints together"):
        GeneralizedProblem(y, 1.0, np.ones(3), np.eye(3)[:1], np.array([2.0]), cones=cones)
    *_, open_ended = rows_and_cones(lambda d: [cp.geo_mean(d[:2], approx=False) >= 1], names)
    with pytest.raises(InputError, match="weights of kernels 2 may grow"):
        GeneralizedProblem(y, 1.0, np.array([1.0, 1.0, 0.0]), cones=open_ended)
    GeneralizedProblem(y, 1.0, np.array([1.0, 1.0, 0.1]), cones=open_ended)


def cost(kernels, problem, d):
    """T(d), by an SVM of its own."""
    return problem.sigma @ d + solve_dense(np.tensordot(d, kernels, 1), problem.y, problem.C, 1e-9).primal


# --- the optimum -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_cvxpys(seed):
    kernels, problem = constrained(seed)
    best = reference(kernels, problem)
    exact = conic_optimum(kernels, problem)
    assert exact.value == pytest.approx(best, rel=1e-6)
    assert cost(kernels, problem, exact.weights) == pytest.approx(best, rel=1e-5)
    found, _ = run(gmkl(problem, 5, tol=1e-4), kernels)
    assert found.status is Status.CERTIFIED
    assert cost(kernels, problem, found.weights) == pytest.approx(best, rel=1e-3)
    for d in (found.weights, exact.weights):
        assert d.min() >= 0
        assert (problem.A @ d - problem.b).min() >= -1e-6


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("method", ["newton", "gradient"])
def test_bounds_hold_at_every_step(seed, method):
    kernels, problem = constrained(seed)
    best = reference(kernels, problem)
    found, _ = run(gmkl(problem, 5, method=method, tol=1e-4, max_iter=25), kernels)
    for step in found.steps:
        assert step.figures["lower"] <= best * (1 + 1e-7)
        assert step.figures["objective"] >= best * (1 - 1e-7)
    assert found.bound == found.steps[-1].figures["lower"]
    assert found.proven
    assert found.gap >= (found.objective - best) / found.objective - 1e-7


@pytest.mark.parametrize("C", [0.25, 4.0, 64.0])
@pytest.mark.parametrize("rows", ["none", "few", "sum"])
def test_newton_needs_few_weightings(C, rows):
    n, m = 20, 100
    rng, kernels, y = made(3, n, m)
    A, b = np.zeros((0, n)), np.zeros(0)
    if rows == "few":
        A = rng.normal(size=(3, n))
        b = A @ rng.uniform(0, 0.2, n)
    if rows == "sum":
        A, b = np.vstack([-np.ones(n), np.eye(n)[:2]]), np.array([-1.0, 0.1, 0.2])
    problem = GeneralizedProblem(y, C, rng.uniform(0.2, 2, n) * m * min(0.1, 0.1 * C), A, b)
    found, weightings = run(gmkl(problem, n, tol=1e-4), kernels)
    assert found.status is Status.CERTIFIED
    assert weightings == len(found.steps) <= 15


def test_the_gradient_method_finds_the_same():
    kernels, problem = constrained(1)
    newton, _ = run(gmkl(problem, 5, tol=1e-4), kernels)
    gradient, _ = run(gmkl(problem, 5, tol=1e-4, method="gradient"), kernels)
    assert gradient.objective == pytest.approx(newton.objective, rel=1e-3)


def test_without_a_curvature_it_still_certifies():
    kernels, problem = constrained(2)
    found, _ = run(gmkl(problem, 5, tol=1e-3), kernels, curvature=False)
    assert found.status is Status.CERTIFIED


def test_weights_of_sum_one_are_canonical_mkl():
    """Without prices and with Σd ≤ 1 it is ℓ1 MKL: min over the simplex of the SVM's optimum."""
    _, kernels, y = made(5, 3)
    problem = GeneralizedProblem(y, 2.0, np.zeros(3), -np.ones((1, 3)), np.array([-1.0]))
    found, _ = run(gmkl(problem, 3, tol=1e-4), kernels)
    grid = [np.array([i, j, 20 - i - j]) / 20 for i, j in itertools.product(range(21), repeat=2) if i + j <= 20]
    assert found.objective <= min(cost(kernels, problem, d) for d in grid) * (1 + 1e-4)
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-6)


def test_one_kernel_of_fixed_weight_is_an_svm():
    _, kernels, y = made(6, 1)
    problem = GeneralizedProblem(y, 1.0, np.ones(1), np.array([[1.0], [-1.0]]), np.array([0.7, -0.7]))
    found, _ = run(gmkl(problem, 1, tol=1e-6), kernels)
    svm = solve_dense(0.7 * kernels[0], y, 1.0, 1e-9)
    assert found.objective == pytest.approx(0.7 + svm.dual, rel=1e-5)
    np.testing.assert_allclose(kernels[0] @ found.dual[:, 0], kernels[0] @ svm.u, atol=0.01)


def test_the_gradient_by_finite_differences():
    kernels, problem = constrained(4)
    d = np.full(5, 0.4)
    svm = solve_dense(np.tensordot(d, kernels, 1), problem.y, problem.C, 1e-11)
    gradient = problem.sigma - 0.5 * np.einsum("i,nij,j->n", svm.u, kernels, svm.u)
    for j, step in enumerate(1e-3 * np.eye(5)):
        change = (cost(kernels, problem, d + step) - cost(kernels, problem, d - step)) / 2e-3
        assert change == pytest.approx(gradient[j], rel=1e-3, abs=1e-3 * np.abs(gradient).max())


def bounded_below(scale):
    """Kernels, labels and d ≥ (.4, .3, .2), Σd ≤ 1, at a scale of the weights."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(60, 6))
    y = np.where(X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=60) > 0, 1.0, -1.0)
    pairs = X.reshape(60, 3, 2).transpose(1, 0, 2)
    kernels = np.exp(-((pairs[:, :, None] - pairs[:, None]) ** 2).sum(axis=3) / 2) / scale
    return kernels, y, np.vstack([np.eye(3), -np.ones(3)]), scale * np.array([0.4, 0.3, 0.2, -1.0])


@pytest.mark.parametrize("method", ["newton", "gradient"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("sigma", [1e-2, 1e-4, 1e-6, 0.0])
def test_certified_weights_satisfy_the_rows_whatever_the_prices(sigma, scale, method):
    kernels, y, A, b = bounded_below(scale)
    unscaled, *_, limits = bounded_below(1.0)
    for C in (0.1, 10.0):
        problem = GeneralizedProblem(y, C, np.full(3, sigma / scale), A, b)
        found, _ = run(gmkl(problem, 3, method=method), kernels)
        best = reference(unscaled, GeneralizedProblem(y, C, np.full(3, sigma), A, limits))
        assert found.status is Status.CERTIFIED
        assert (A @ found.weights - b).min() >= -1e-8 * scale
        assert best * (1 - 1e-6) <= found.objective <= best * (1 + 1e-3)


@pytest.mark.parametrize("sigma", [1e-2, 1e-6])
def test_certified_weights_satisfy_a_convex_set_whatever_the_prices(sigma):
    kernels, y, _, _ = bounded_below(1.0)
    ball = lambda d: [cp.norm(d, 2) <= 0.1, d["0"] >= 0.04, d["1"] >= 0.03]  # noqa: E731
    A, b, rows, cones = rows_and_cones(ball, ["0", "1", "2"])
    found, _ = run(gmkl(GeneralizedProblem(y, 10.0, np.full(3, sigma), A, b, rows, cones=cones), 3), kernels)
    assert found.status is Status.CERTIFIED
    assert np.linalg.norm(found.weights) <= 0.1 * (1 + 1e-8)
    assert (found.weights[:2] >= np.array([0.04, 0.03]) - 1e-8).all()


def test_weights_outside_their_set_are_never_certified(monkeypatch):
    """Whatever a projection returns: the rows are checked at the weights that are returned."""
    kernels, y, A, b = bounded_below(1.0)
    monkeypatch.setattr(
        "dmkl.solvers.weight_sets.base.ConicProgram.nearest", lambda program, aim: 0.3 * np.ones(program.width)
    )
    found, _ = run(gmkl(GeneralizedProblem(y, 10.0, np.zeros(3), A, b), 3, tol=1.0, max_iter=3), kernels)
    assert found.status is not Status.CERTIFIED
    assert found.gap == np.inf
    assert not found.proven


# --- prices ------------------------------------------------------------------------------------------------------


def test_a_price_without_bound_drives_a_weight_to_zero():
    _, kernels, y = made(7)
    sigma = np.full(5, 0.5)
    first, _ = run(gmkl(GeneralizedProblem(y, 4.0, sigma), 5, tol=1e-5), kernels)
    j = int(np.argmax(first.weights))
    sizes = [first.weights[j]]
    for price in (1.0, 4.0, 16.0, 1e6):
        sigma[j] = price
        sizes.append(run(gmkl(GeneralizedProblem(y, 4.0, sigma), 5, tol=1e-5), kernels)[0].weights[j])
    assert (np.diff(sizes) <= 1e-6).all()
    assert sizes[-1] <= 1e-6 * sizes[0]


def test_prices_that_no_margin_is_worth():
    _, kernels, y = made(8)
    problem = GeneralizedProblem(y, 1.0, np.full(5, 1e7))
    found, _ = run(gmkl(problem, 5), kernels)
    assert found.status is Status.CERTIFIED
    assert found.weights.max() <= 1e-6
    assert found.objective == pytest.approx(2.0 * min((y > 0).sum(), (y < 0).sum()), rel=1e-2)


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_any_scale_of_the_kernels(scale):
    kernels, problem = constrained(9, k=1)
    free = GeneralizedProblem(problem.y, problem.C, problem.sigma * scale)
    plain = GeneralizedProblem(problem.y, problem.C, problem.sigma)
    scaled, weightings = run(gmkl(free, 5), kernels * scale)
    assert scaled.status is Status.CERTIFIED
    assert scaled.objective == pytest.approx(run(gmkl(plain, 5), kernels)[0].objective, rel=2e-3)
    assert weightings <= 20


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e4])
def test_any_start(size):
    kernels, problem = constrained(10)
    found, weightings = run(gmkl(problem, 5, start=size * np.array([1.0, 0, 3, 0, 0])), kernels)
    assert found.status is Status.CERTIFIED
    assert found.objective == pytest.approx(reference(kernels, problem), rel=1e-3)
    assert weightings <= 20
    with pytest.raises(InputError, match="start has shape"):
        next(gmkl(problem, 5, start=np.ones(4)))


def test_no_weights_at_all():
    _, kernels, y = made(11)
    found, _ = run(gmkl(GeneralizedProblem(y, 1.0, np.ones(5), -np.ones((1, 5)), np.zeros(1)), 5), kernels)
    assert found.objective == pytest.approx(2.0 * min((y > 0).sum(), (y < 0).sum()), rel=1e-6)
    assert found.weights.max() <= 1e-6


# --- what cannot be solved ---------------------------------------------------------------------------------------


def test_rows_that_contradict_each_other_are_named():
    y, sigma = np.array([1.0, -1.0]), np.ones(3)
    A = np.array([[1.0, 0, 0], [0, 1, 0], [-1, -1, 0], [0, 0, 1]])
    b = np.array([0.6, 0.6, -1.0, 5.0])
    with pytest.raises(InputError, match=r"color .*shape .*both") as caught:
        GeneralizedProblem(y, 1.0, sigma, A, b, rows=("color", "shape", "both", "texture"))
    assert "texture" not in str(caught.value)
    with pytest.raises(InputError, match="row 0"):
        GeneralizedProblem(y, 1.0, sigma, np.array([[-1.0, -1, 0]]), np.array([0.1]))
    with pytest.raises(InputError, match="row 1"):
        GeneralizedProblem(y, 1.0, sigma, np.array([[1.0, 0, 0], [0, 0, 0]]), np.array([0.1, 0.1]))
    GeneralizedProblem(y, 1.0, sigma, 1e-8 * np.eye(3), np.ones(3))  # far away, but there


@pytest.mark.parametrize("seed", range(20))
def test_named_rows_are_an_irreducible_conflict(seed):
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(12, 4)), rng.normal(size=12)
    scale = 10.0 ** rng.uniform(-3, 3, 12)

    def feasible(rows):
        return linprog(np.zeros(4), A_ub=-A[rows], b_ub=-b[rows]).status == 0

    names = tuple(f"<{k}>" for k in range(12))
    try:
        GeneralizedProblem(np.array([1.0, -1.0]), 1.0, np.ones(4), A * scale[:, None], b * scale, rows=names)
    except InputError as error:
        named = [k for k in range(12) if names[k] in str(error)]
        assert not feasible(named)
        assert all(feasible([k for k in named if k != left_out]) for left_out in named)
    else:
        assert feasible(np.arange(12))


def test_weights_without_a_price_are_named():
    y = np.array([1.0, -1.0])
    with pytest.raises(InputError, match="kernels 1 may grow"):
        GeneralizedProblem(y, 1.0, np.array([1.0, 0.0, 1.0]))
    with pytest.raises(InputError, match="kernels 2 may grow"):
        GeneralizedProblem(y, 1.0, np.array([1.0, 1.0, -1.0]))
    GeneralizedProblem(y, 1.0, np.array([1.0, -1.0]), np.array([[0.0, -1.0]]), np.array([-3.0]))  # bounded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.ones(4)}, "both in it"),
        ({"y": np.array([0.0, 1.0])}, "1 and −1"),
        ({"C": 0.0}, "C must be"),
        ({"sigma": np.array([1.0, np.nan])}, "finite price"),
        ({"A": np.ones((1, 3)), "b": np.ones(1)}, "A has shape"),
        ({"A": np.ones((1, 2)), "b": np.ones(2)}, "A has shape"),
        ({"A": np.ones((1, 2)), "b": np.ones(1), "rows": ("a", "b")}, "rows holds"),
    ],
)
def test_wrong_input(change, message):
    with pytest.raises(InputError, match=message):
        GeneralizedProblem(**{"y": np.array([1.0, -1.0]), "C": 1.0, "sigma": np.ones(2), **change})


def test_kernels_that_do_not_fit():
    _, kernels, y = made(0)
    problem = GeneralizedProblem(y, 1.0, np.ones(5))
    with pytest.raises(InputError, match="5 prices for 4"):
        next(gmkl(problem, 4))
    with pytest.raises(InputError, match="got 4 kernels"):
        conic_optimum(kernels[:4], problem)
    kernels[2] -= 2 * np.eye(40)
    with pytest.raises(IndefiniteKernelError, match="wrong one"):
        run(gmkl(problem, 5, facts=KernelFacts(("a", "b", "wrong one", "d", "e"))), kernels)
