"""ℓp MK-SVM against cvxpy, and machines that are less than the weights need."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers.margin import made, optimum
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import SVM, Status, run_with
from dmkl.solvers.margin.mksvm import mk_svm
from dmkl.solvers.weight_sets import Ball


@pytest.mark.parametrize("p", [1.0, 8.0])
def test_machines_without_curvature_reach_the_optimum_and_poor_ones_end_the_descent(p):
    kernels, y = made(5, 40, seed=4)

    def solved(tol, change):
        def answered(request):
            return change(answer(kernels, request)) if isinstance(request, SVM) else answer(kernels, request)

        return run_with(mk_svm(y, 4.0, Ball(p), 5, tol=tol), answered)

    without = solved(1e-3, lambda machine: replace(machine, free_kernel=None))
    assert without.status is Status.CERTIFIED
    assert without.objective == pytest.approx(optimum(kernels, y, 4.0, p), rel=1e-3)
    poor = solved(1e-6, lambda machine: replace(machine, u=0.95 * machine.u))
    assert poor.status is Status.STALLED
    assert poor.gap > 1e-6


@pytest.mark.parametrize("seed", [22, 271, 312, 323, 328, 330])
def test_kernels_with_equal_rows_reach_the_optimum(seed):
    """The multipliers of equal rows are not unique: J has a kink at the weights where Newton's steps end."""
    rng, y = np.random.default_rng(seed), np.repeat([1.0, -1.0], 10)
    sides = rng.choice([-1, 1], size=(4, 1, 4))
    features = (rng.random((4, 20, 4)) < 0.5 + 0.35 * y[:, None] * sides).astype(float)
    kernels = np.stack([rbf_kernel(table, gamma=0.5) for table in features])
    solution = run_with(mk_svm(y, 10.0, Ball(1.0), 4), partial(answer, kernels))
    assert solution.status is Status.CERTIFIED
    assert solution.objective == pytest.approx(optimum(kernels, y, 10.0, 1.0), rel=1e-3)


@pytest.mark.parametrize(("p", "C"), [(1.0, 64.0), (1.0625, 0.25), (1.5, 64.0), (8.0, 4.0)])
def test_few_weightings(p, C):
    kernels, y = made(30, 120, seed=1)
    solution = run_with(mk_svm(y, C, Ball(p), 30, tol=1e-4), partial(answer, kernels))
    assert solution.status is Status.CERTIFIED
    assert len(solution.steps) <= 15
