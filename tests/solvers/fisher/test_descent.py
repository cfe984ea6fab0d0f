"""Solvers that descend on the dual over a span of directions: against exact optima, and what all of them share."""

from __future__ import annotations

from functools import cache

import dask
import numpy as np
import pytest
from helpers.optima import bounds, case, few_digits, norm, optimum, value
from helpers.references import Counting, in_memory, over

import dmkl
from dmkl.errors import ConvergenceWarning, IndefiniteKernelError, MemoryBudgetError
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher.descent import GradientSource, WorkingSetSource, descend, least_columns
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.working_sets import working_sets
from dmkl.solvers.outcome import Status
from dmkl.solvers.weight_sets.balls import Ball

POINTS = [
    (1.0625, 1e-3, "binary"),
    (1.5, 1.0, "multiclass"),
    (2.0, 1e-2, "multilabel"),
    (8.0, 1e-3, "multiclass"),
    (np.inf, 1e-2, "binary"),
]
AT_ONE = [(1.0, 1e-3, "multilabel"), (1.0, 1.0, "multiclass")]


@cache
def best(kind, p, lam):
    """The weights of each problem from plain arrays, and its value by cvxpy."""
    kernels, _, targets = case(kind)
    return [(dmkl.solve_mkfda(kernels, h, p, lam, tol=1e-8).weights, optimum(kernels, h, lam, p)) for h in targets]


@pytest.mark.parametrize(
    ("solver", "p", "lam", "kind"),
    [
        *(("dual", *point) for point in POINTS),
        *(("interleaved", *point) for point in [*POINTS, *AT_ONE]),
        *(("anchored", *point) for point in [*POINTS[:3], *AT_ONE]),
    ],
)
def test_agrees_with_the_optimum_and_proves_it(solver, p, lam, kind):
    kernels, labels, targets = case(kind)
    K, source = over(in_memory(few_digits()[0], 8), Counting)
    # S hardly depends on β where λ is large: its weights need a small gap.
    model = dmkl.MKFDA(p, lam, solver=solver, tol=1e-4 if lam < 1e-2 else 1e-7).fit(K, labels)
    assert model.solver_ == solver
    assert model.status_ == Status.CERTIFIED.advice
    weights = model.weights_.values.reshape(len(kernels), -1).T
    alphas = np.split(model.dual_coef_.values, len(weights), axis=1)
    gaps, objectives = np.atleast_1d(model.gap_), np.atleast_1d(model.objective_)
    for alpha, beta, h, gap, objective, (expected, exact) in zip(
        alphas, weights, targets, gaps, objectives, best(kind, p, lam), strict=True
    ):
        lower, upper = bounds(kernels, alpha, beta, h, lam, p)
        assert gap <= model.tol
        assert gap == pytest.approx((upper - lower) / abs(objective), rel=1e-3, abs=1e-10)
        assert objective == pytest.approx(value(kernels, alpha, beta, h, lam), rel=1e-9)
        assert lower - 2e-6 * abs(exact) <= exact <= upper + 2e-6 * abs(exact)
        assert objective == pytest.approx(exact, rel=1e-4)
        assert norm(beta, p) == pytest.approx(1.0)
        np.testing.assert_allclose(beta, expected, atol=3e-3 if lam < 1e-2 else 1e-3)
    read = sum(source.reads.values()) / (len(K) * len(K.view.tile_tasks()))
    if solver != "anchored" or p > 1:  # a product leaves out kernels that have no weight for any task
        assert model.n_passes_ == pytest.approx(read)
    if solver == "dual":  # one pass a step, whatever the number of tasks, each tile once
        assert model.n_passes_ == model.n_iter_ == model.history_.passes.max()
        assert set(source.reads.values()) == {model.n_passes_}


@pytest.mark.parametrize("solver", ["dual", "interleaved"])
def test_certifies_with_the_least_memory(solver):
    """The fewest directions there may be, and one factor of a working set."""
    kernels, _, (h,) = case("multiclass")
    lens = in_memory(kernels, 8).lens()

    def solved(capacity=None):
        source = GradientSource(3) if solver == "dual" else WorkingSetSource(working_sets(lens, 10**6), 1e-2, 3, 1)
        capacity = capacity or least_columns(3, source.width)
        descent = descend(FisherProblem(h, 1e-2, Ball(1.5)), 5, source, FisherOptions(), capacity=capacity)
        return drive([(lens, descent)])[0][0]

    little, plenty = solved(), solved(len(h))
    assert len(plenty.steps) <= len(little.steps)
    for solution in (little, plenty):
        assert solution.status is Status.CERTIFIED
        lower, upper = bounds(kernels, solution.dual, solution.weights, h, 1e-2, 1.5)
        assert (upper - lower) / abs(solution.objective) <= 1.001e-4


@pytest.mark.parametrize("solver", ["dual", "interleaved"])
def test_memory_is_bounded(solver):
    K, labels = in_memory(few_digits()[0], 5), case("multiclass")[1]
    if solver == "dual":
        with dask.config.set({"dmkl.memory": "50kB"}):  # 11 directions in half of it
            assert dmkl.MKFDA(1.5, 1e-3, solver=solver).fit(K, labels).gap_ <= 1e-4
    with dask.config.set({"dmkl.memory": "30kB"}), pytest.raises(MemoryBudgetError, match="solver='subspace'"):
        dmkl.MKFDA(1.5, 1e-3, solver=solver).fit(K, labels)


@pytest.mark.parametrize("solver", ["dual", "interleaved"])
def test_what_is_left_is_told(solver):
    K, labels = in_memory(few_digits()[0], 8), case("multiclass")[1]
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        early = dmkl.MKFDA(2.0, 1e-3, solver=solver, max_iter=1).fit(K, labels)
    assert 1 <= early.n_passes_ + 1e-9 < 1.4
    assert early.gap_ > 1e-4
    with pytest.warns(ConvergenceWarning, match="arithmetic resolves no more"):
        stalled = dmkl.MKFDA(2.0, 1e-3, solver=solver, tol=1e-30).fit(K, labels)
    assert stalled.gap_ < 1e-8


@pytest.mark.parametrize("solver", ["dual", "interleaved"])
def test_an_indefinite_kernel_is_named(solver):
    kernels, y = few_digits()
    bad = kernels.copy()
    bad[2] -= 3 * np.outer(bad[2][0], bad[2][0]) / bad[2][0, 0]
    with pytest.raises(IndefiniteKernelError, match="dmkl check"):
        dmkl.MKFDA(2.0, 1e-2, solver=solver, steps=("center",)).fit(in_memory(bad, 8), y)


@pytest.mark.parametrize("solver", ["dual", "interleaved"])
def test_searches(solver):
    K, labels = in_memory(few_digits()[0], 20), case("multiclass")[1]
    grid = {"p": [1.5, 2] if solver == "dual" else [1, 2], "lam": [1e-2, 1e-1]}
    results = dmkl.search(dmkl.MKFDA(solver=solver), K, labels, grid, cv=2, baselines="none")
    assert (results.scores.gap.values <= 1e-4).all()
    assert results.best_.solver_ == solver
    assert results.best_.gap_ <= 1e-4
