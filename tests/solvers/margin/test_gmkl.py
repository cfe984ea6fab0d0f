"""Generalized MKL against cvxpy, finite differences and brute force."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from helpers.generators import finish
from helpers.margin import conic_optimum, reference

from dmkl.errors import IndefiniteKernelError, InputError
from dmkl.solvers.margin.gmkl import GeneralizedProblem, Hull, gmkl, largest_sum
from dmkl.solvers.margin.svm import feasible, solve_dense
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
    solution, _ = run(gmkl(problem, 5, method=method, tol=1e-5), kernels)
    assert solution.status is Status.CERTIFIED

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
    assert solution.objective == pytest.approx(optimum, rel=1e-4)
    assert solution.bound <= optimum * (1 + 1e-6)
    given = NamedWeights(names)
    given.value = solution.weights
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


@pytest.mark.parametrize(
    ("seed", "method"), [(0, "newton"), (1, "newton"), (2, "newton"), (4, "newton"), (1, "gradient")]
)
def test_the_optimum_is_cvxpys_and_bounds_hold_at_every_step(seed, method):
    kernels, problem = constrained(seed)
    best = reference(kernels, problem)
    exact = conic_optimum(kernels, problem)
    assert exact.value == pytest.approx(best, rel=1e-6)
    assert cost(kernels, problem, exact.weights) == pytest.approx(best, rel=1e-5)
    solution, _ = run(gmkl(problem, 5, method=method, tol=1e-4), kernels)
    assert solution.status is Status.CERTIFIED
    assert np.isfinite(solution.gap)
    assert cost(kernels, problem, solution.weights) == pytest.approx(best, rel=1e-3)
    for d in (solution.weights, exact.weights):
        assert d.min() >= 0
        assert (problem.A @ d - problem.b).min() >= -1e-6
    for step in solution.steps:
        assert step.figures["lower"] <= best * (1 + 1e-7)
        assert step.figures["objective"] >= best * (1 - 1e-7)
    assert solution.bound == solution.steps[-1].figures["lower"]
    assert solution.gap >= (solution.objective - best) / solution.objective - 1e-7


def bounded_below(scale):
    """Kernels, labels and d ≥ (.4, .3, .2), Σd ≤ 1, at a scale of the weights."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(60, 6))
    y = np.where(X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=60) > 0, 1.0, -1.0)
    pairs = X.reshape(60, 3, 2).transpose(1, 0, 2)
    kernels = np.exp(-((pairs[:, :, None] - pairs[:, None]) ** 2).sum(axis=3) / 2) / scale
    return kernels, y, np.vstack([np.eye(3), -np.ones(3)]), scale * np.array([0.4, 0.3, 0.2, -1.0])


@pytest.mark.parametrize(
    ("sigma", "scale", "method"),
    [(1e-2, 1.0, "newton"), (1e-4, 1e3, "gradient"), (1e-6, 1e-3, "newton"), (0.0, 1.0, "gradient")],
)
def test_certified_weights_satisfy_the_rows_whatever_the_prices(sigma, scale, method):
    kernels, y, A, b = bounded_below(scale)
    unscaled, *_, limits = bounded_below(1.0)
    for C in (0.1, 10.0):
        problem = GeneralizedProblem(y, C, np.full(3, sigma / scale), A, b)
        solution, _ = run(gmkl(problem, 3, method=method), kernels)
        best = reference(unscaled, GeneralizedProblem(y, C, np.full(3, sigma), A, limits))
        assert solution.status is Status.CERTIFIED
        assert (A @ solution.weights - b).min() >= -1e-8 * scale
        assert best * (1 - 1e-6) <= solution.objective <= best * (1 + 1e-3)


def test_weights_outside_their_set_are_never_certified(monkeypatch):
    """Whatever a projection returns: the rows are checked at the weights that are returned."""
    kernels, y, A, b = bounded_below(1.0)
    monkeypatch.setattr(
        "dmkl.solvers.weight_sets.base.ConicProgram.nearest", lambda program, aim: 0.3 * np.ones(program.width)
    )
    solution, _ = run(gmkl(GeneralizedProblem(y, 10.0, np.zeros(3), A, b), 3, tol=1.0, max_iter=3), kernels)
    assert solution.status is not Status.CERTIFIED
    assert solution.gap == np.inf
    assert not np.isfinite(solution.gap)


# --- the lower bound of several machines -------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "count"), [(0, 6), (1, 6), (2, 50)])
def test_any_machines_bound_the_optimum_and_more_of_them_no_worse(seed, count):
    """And so do more of them than are kept."""
    kernels, problem = constrained(seed)
    best, rng = reference(kernels, problem), np.random.default_rng(seed)
    hull, before = Hull(problem), -np.inf
    widest = largest_sum(problem, 2.0 * problem.C * len(problem.y))
    for number in range(count):
        u = feasible(problem.y * rng.uniform(-0.5, 1, 40) * problem.C, problem.y, problem.C)
        hull.add(u, kernels @ u)
        if 6 <= number < count - 1:
            continue
        bound, weights = hull.bound(widest)
        assert bound <= best + 1e-7 * abs(best)
        if number < 6:
            assert before - 1e-6 * abs(best) <= bound
        assert weights.min() >= 0
        assert (problem.A @ weights - problem.b).min(initial=0) >= -1e-6
        before = bound


# --- prices ------------------------------------------------------------------------------------------------------


def price_of_zero(kernels, y):
    """The price above which d = 0 is the optimum, for equal prices: min max_j ½uᵀK_ju over the u of the largest Σα."""
    u, level = cp.Variable(len(y)), cp.Variable()
    alpha = cp.multiply(y, u)
    most = 2.0 * min((y > 0).sum(), (y < 0).sum())
    rules = [cp.sum(u) == 0, alpha >= 0, alpha <= 1, cp.sum(alpha) == most]
    rules += [0.5 * cp.sum_squares(np.linalg.cholesky(K + 1e-10 * np.eye(len(y))).T @ u) <= level for K in kernels]
    return cp.Problem(cp.Minimize(level), rules).solve(solver=cp.CLARABEL), most


@pytest.mark.parametrize("seed", range(2))
def test_no_weights_at_all_are_proven_where_they_are_best(seed):
    rng, kernels, _ = made(seed)
    y = np.where(rng.random(40) < 0.2, 1.0, -1.0)
    price, most = price_of_zero(kernels, y)
    above, below = (
        run(gmkl(GeneralizedProblem(y, 1.0, np.full(5, share * price)), 5, tol=1e-4), kernels)[0]
        for share in (1.02, 0.7)
    )
    assert above.status is below.status is Status.CERTIFIED
    assert above.bound <= most * (1 + 1e-9)
    assert above.objective == pytest.approx(most, rel=1e-4)
    assert below.objective < most * (1 - 1e-3)
    assert below.weights.max() > 0
    assert max(len(above.steps), len(below.steps)) <= 40


# --- what cannot be solved ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.ones(4)}, "both present"),
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
    kernels[2] -= 2 * np.eye(40)
    with pytest.raises(IndefiniteKernelError, match="wrong one"):
        run(gmkl(problem, 5, facts=KernelFacts(("a", "b", "wrong one", "d", "e"))), kernels)
