"""The lower bound of generalized MKL from several machines, against cvxpy."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from helpers.generators import finish
from helpers.margin import made, reference

from dmkl.solvers.in_memory import answer
from dmkl.solvers.margin.gmkl import Hull, gmkl
from dmkl.solvers.margin.gmkl_problem import GeneralizedProblem, largest_sum
from dmkl.solvers.margin.svm import feasible
from dmkl.solvers.outcome import Status


def random_problem(seed, n=4, m=30):
    rng = np.random.default_rng(seed)
    kernels, y = made(n, m, seed)
    A = rng.normal(size=(2, n)) if seed % 2 else np.zeros((0, n))
    b = A @ rng.uniform(0, 0.5, n)
    C = rng.uniform(0.5, 2.0, m) if seed % 3 == 0 else float(rng.choice([0.5, 4.0]))
    return kernels, GeneralizedProblem(y, C, rng.uniform(0.2, 2.0, n) * m * 0.1, A, b)


def feasible_points(problem, seed, count):
    rng = np.random.default_rng(seed)
    return [
        feasible(problem.y * rng.uniform(-0.5, 1, len(problem.y)) * problem.C, problem.y, problem.C)
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_any_machines_bound_the_optimum_and_more_of_them_no_worse(seed):
    kernels, problem = random_problem(seed)
    best = reference(kernels, problem)
    hull, before = Hull(problem), -np.inf
    widest = largest_sum(problem, 2.0 * np.sum(problem.C * np.ones(len(problem.y))))
    for u in feasible_points(problem, seed, 6):
        hull.add(u, kernels @ u)
        bound, weights = hull.bound(widest)
        assert before - 1e-6 * abs(best) <= bound <= best + 1e-7 * abs(best)
        assert weights.min() >= 0
        assert (problem.A @ weights - problem.b).min(initial=0) >= -1e-6
        before = bound


@pytest.mark.parametrize("seed", range(4))
def test_the_hull_is_solved_as_cvxpy_does(seed):
    kernels, problem = random_problem(seed)
    hull, points = Hull(problem), feasible_points(problem, seed, 5)
    for u in points:
        hull.add(u, kernels @ u)
    U = np.column_stack(points)
    share = np.max(np.abs(U) / np.broadcast_to(problem.C, len(U))[:, None], axis=0)
    mixture, p = cp.Variable(5, nonneg=True), cp.Variable(max(1, len(problem.b)), nonneg=True)
    A, b = (problem.A, problem.b) if len(problem.b) else (np.zeros((1, len(kernels))), np.zeros(1))
    rules = [share @ mixture <= 1]
    for j, kernel in enumerate(kernels):
        root = np.linalg.cholesky(kernel + 1e-10 * np.eye(len(kernel))).T @ U
        rules.append(0.5 * cp.sum_squares(root @ mixture) + (A.T @ p)[j] <= problem.sigma[j])
    best = cp.Problem(cp.Maximize(problem.y @ U @ mixture + b @ p), rules).solve(solver=cp.CLARABEL)
    assert hull.bound(1e3)[0] == pytest.approx(best, rel=1e-5)


def test_more_machines_than_are_kept_still_bound():
    kernels, problem = random_problem(1)
    hull, best = Hull(problem), reference(kernels, problem)
    for u in feasible_points(problem, 1, 50):
        hull.add(u, kernels @ u)
        bound, _ = hull.bound(1e3)
    assert 0 < bound <= best * (1 + 1e-7)


def price_of_zero(kernels, y):
    """The price above which d = 0 is the optimum, for equal prices: min max_j ½uᵀK_ju over the u of the largest Σα."""
    u, level = cp.Variable(len(y)), cp.Variable()
    alpha = cp.multiply(y, u)
    most = 2.0 * min((y > 0).sum(), (y < 0).sum())
    rules = [cp.sum(u) == 0, alpha >= 0, alpha <= 1, cp.sum(alpha) == most]
    rules += [0.5 * cp.sum_squares(np.linalg.cholesky(K + 1e-10 * np.eye(len(y))).T @ u) <= level for K in kernels]
    return cp.Problem(cp.Minimize(level), rules).solve(solver=cp.CLARABEL), most


@pytest.mark.parametrize("seed", range(6))
def test_no_weights_at_all_are_proven_where_they_are_best(seed):
    rng = np.random.default_rng(seed)
    kernels, y = made(5, 50, seed)
    y = np.where(rng.random(50) < 0.2, 1.0, -1.0)
    price, most = price_of_zero(kernels, y)
    above = finish(
        gmkl(GeneralizedProblem(y, 1.0, np.full(5, 1.02 * price)), 5, tol=1e-4), lambda r: answer(kernels, r)
    )
    assert above.status is Status.CERTIFIED
    assert above.bound <= most * (1 + 1e-9)
    assert above.objective == pytest.approx(most, rel=1e-4)
    below = finish(gmkl(GeneralizedProblem(y, 1.0, np.full(5, 0.7 * price)), 5, tol=1e-4), lambda r: answer(kernels, r))
    assert below.status is Status.CERTIFIED
    assert below.objective < most * (1 - 1e-3)
    assert below.weights.max() > 0
    assert max(len(above.steps), len(below.steps)) <= 40
