"""Generalized MKL on sets of weights and at prices, against the whole problem by cvxpy."""

from dataclasses import is_dataclass
from unittest.mock import patch

import clarabel
import cvxpy as cp
import numpy as np
import pytest
from helpers.margin import made, reference
from helpers.references import in_memory

import dmkl
from dmkl.errors import ConvergenceWarning, InputError
from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import Status, Task, run_with
from dmkl.solvers.knowledge import rows_and_cones
from dmkl.solvers.margin.gmkl import PricedSet, gmkl


def fitted(kernels, y, *arguments, **options):
    return dmkl.GMKL(*arguments, steps=(), **options).fit(in_memory(kernels, 60), y.astype(int))


CONVEX = {
    "second order": lambda d: [cp.norm(d, 2) <= 0.02],
    "an equation and a sum of squares": lambda d: [cp.sum(d) == 0.05, cp.sum_squares(d - 0.01) <= 2e-3],
    "exponential": lambda d: [cp.sum(cp.entr(100 * d)) >= 0.6, cp.sum(d) <= 0.05],
    "power": lambda d: [cp.pnorm(100 * d, 1.5) <= 1.2],
    "geometric mean": lambda d: [cp.geo_mean(d, approx=False) >= 0.1],
    "semidefinite": lambda d: [cp.diag(d) + 0.002 * np.eye(5) << 0.02 * np.eye(5), cp.lambda_min(cp.diag(d)) >= 0.001],
    "beside linear ones": lambda d: [cp.norm(d, 2) <= 0.05, d[0] >= d[1] + 0.001, d[4] >= 0.01],
}


@pytest.mark.parametrize(("kind", "method"), [*((kind, "newton") for kind in CONVEX), ("second order", "gradient")])
def test_weights_of_any_convex_set(kind, method):
    kernels, y = made(5, 24, seed=3)
    sigma, C = 20.0, 4.0
    model = fitted(kernels, y, C, sigma, constraints=CONVEX[kind], method=method, tol=1e-5)
    assert model.status_ == Status.CERTIFIED.advice

    d, bias, w, loss = cp.Variable(5), cp.Variable(), [], []
    for kernel in kernels:
        values, vectors = np.linalg.eigh(kernel)
        root = (vectors * np.sqrt(np.maximum(values, 0)))[:, values > 1e-10]
        w.append(cp.Variable(root.shape[1]))
        loss.append(root @ w[-1])
    losses = C * cp.sum(cp.pos(1 - cp.multiply(y, sum(loss) + bias)))
    norms = sum(cp.quad_over_lin(coefficients, d[j]) for j, coefficients in enumerate(w)) / 2
    whole = cp.Problem(cp.Minimize(sigma * cp.sum(d) + norms + losses), [d >= 0, *CONVEX[kind](d)])
    optimum = whole.solve(solver=cp.CLARABEL)
    assert model.objective_ == pytest.approx(optimum, rel=1e-4)
    assert model.objective_ * (1 - model.gap_) <= optimum * (1 + 1e-6)
    d.value = model.weights_.values
    for constraint in CONVEX[kind](d):
        assert np.max(constraint.violation()) < 1e-6


def test_what_a_convex_set_lacks_is_told():
    kernels, y = made(3, 24, seed=3)
    for sigma, rows, constraints, message in (
        (1.0, {"A": np.eye(3)[:1], "b": [2.0]}, lambda d: [cp.norm(d, 2) <= 1], "A d ≥ b and the constraints together"),
        ([1.0, 1.0, 0.0], {}, lambda d: [cp.geo_mean(d[:2], approx=False) >= 1], "weights of kernels? .*may grow"),
    ):
        with pytest.raises(InputError, match=message):
            fitted(kernels, y, 1.0, sigma, constraints=constraints, **rows)


def test_no_cone_of_a_later_cvxpy_is_left_out(monkeypatch):
    whole = cp.Problem.get_problem_data

    def reduced(problem, *arguments):
        data, *rest = whole(problem, *arguments)
        data["dims"].soc = []
        return data, *rest

    monkeypatch.setattr(cp.Problem, "get_problem_data", reduced)
    kernels, y = made(3, 24, seed=3)
    with pytest.raises(InputError, match=r"cvxpy \S+ reduces these constraints to 5 rows of cones, of which 1 are"):
        fitted(kernels, y, constraints=lambda d: [cp.norm(d, 2) <= 1])


def bounded_below(scale, seed=11):
    """Kernels, labels and d ≥ (.4, .3, .2), Σd ≤ 1, at a scale of the weights."""
    kernels, y = made(3, 60, seed=seed)
    return kernels / scale, y, np.vstack([np.eye(3), -np.ones(3)]), scale * np.array([0.4, 0.3, 0.2, -1.0])


@pytest.mark.parametrize(
    ("sigma", "scale", "method"),
    [(1e-2, 1.0, "newton"), (1e-4, 1e3, "gradient"), (1e-6, 1e-3, "newton"), (0.0, 1.0, "gradient")],
)
def test_certified_weights_satisfy_the_rows_whatever_the_prices(sigma, scale, method):
    kernels, y, A, b = bounded_below(scale)
    unscaled, *_, limits = bounded_below(1.0)
    for C in (0.1, 10.0):
        model = fitted(kernels, y, C, sigma / scale, A=A, b=b, method=method)
        best = reference(unscaled, y, C, PricedSet(np.full(3, sigma), A, limits))
        assert model.status_ == Status.CERTIFIED.advice
        assert (A @ model.weights_.values - b).min() >= -1e-8 * scale
        assert best * (1 - 1e-6) <= model.objective_ <= best * (1 + 1e-3)


def test_weights_outside_their_set_are_never_certified(monkeypatch):
    """The rows are checked at the returned weights, for any result of a projection."""
    kernels, y, A, b = bounded_below(1.0, seed=3)
    monkeypatch.setattr(
        "dmkl.solvers.weight_sets.ConicProgram.nearest", lambda program, aim: 0.3 * np.ones(program.width)
    )
    with pytest.warns(ConvergenceWarning):
        model = fitted(kernels, y, 10.0, 0.0, A=A, b=b, tol=1.0, max_iter=3)
    assert model.status_ != Status.CERTIFIED.advice
    assert not np.isfinite(model.gap_)


def test_no_weights_at_all_are_proven_where_they_are_best():
    """Prices above the gain of any kernel: the bias alone loses two for each sample of the rarer class."""
    kernels, y = made(5, 40)
    rare = 2.0 * min((y > 0).sum(), (y < 0).sum())
    model = fitted(kernels, y, 1.0, 1e3, tol=1e-4)
    assert model.status_ == Status.CERTIFIED.advice
    assert model.objective_ == pytest.approx(rare, rel=1e-4)
    assert model.objective_ * (1 - model.gap_) <= rare * (1 + 1e-9)


def arrays_in(value):
    """All arrays in nested tuples, lists and dataclasses."""
    if is_dataclass(value):
        value = list(vars(value).values())
    if isinstance(value, tuple | list):
        return [array for item in value for array in arrays_in(item)]
    return [value] if isinstance(value, np.ndarray) else []


@pytest.mark.parametrize("constraints", [lambda d: [d[0] >= 0.1], lambda d: [cp.norm(d, 2) <= 0.02, d[4] >= 0.01]])
def test_conic_programs_run_in_tasks_on_arrays_without_samples(constraints):
    kernels, y = made(5, 61, seed=3)
    A, b, _, cones = rows_and_cones(constraints, list("abcde"))
    solver = gmkl(y, 4.0, PricedSet(np.full(5, 20.0), A, b, cones=cones), tol=1e-6)
    tasks, minimize = [], clarabel.DefaultSolver

    def answered(request):
        if not isinstance(request, Task):
            return answer(kernels, request)
        tasks.append(request)
        with patch.object(clarabel, "DefaultSolver", minimize):
            return answer(kernels, request)

    with patch.object(clarabel, "DefaultSolver", side_effect=AssertionError("a program outside of tasks")):
        outcome = run_with(solver, answered)
    assert outcome.status is Status.CERTIFIED
    assert tasks
    assert all(61 not in array.shape for task in tasks for array in arrays_in(task.arguments))
