"""Group-sensitive weights against finite differences and canonical MKL, and their benefit on hidden groups."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.margin import composite_kernel, made
from sklearn.metrics import balanced_accuracy_score
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.errors import IndefiniteKernelError
from dmkl.numerics.grouping import group_by_kmeans, one_hot
from dmkl.solvers.groups import GroupProblem, group_weights, gs_mkl, localized_mkl, parameter_gradients
from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import SVM, Status, run_with
from dmkl.solvers.margin.svm import fit_square, solve_dense


def run(solver, kernels):
    """Run a solver on kernels in memory, with classifiers that are trained from zero."""

    def cold(request):
        return replace(request, start=None) if isinstance(request, SVM) else request

    return run_with(solver, lambda request: answer(kernels, cold(request)))


GROUPS = np.random.default_rng(0).permutation(np.arange(40) % 3)


@pytest.mark.parametrize(("loss", "weighting"), [("hinge", "root"), ("square", "softmax")])
def test_gradients_by_finite_differences(loss, weighting):
    (kernels, y), groups, rng = made(4, 40), GROUPS, np.random.default_rng(0)
    statistics = rng.uniform(0.2, 2, size=(4, 3))
    a, b = rng.normal(size=(2, 4, 3))

    def train(a, b):
        K = composite_kernel(kernels, group_weights(a * statistics + b, weighting), groups)
        return solve_dense(K, y, 2.0, 1e-12) if loss == "hinge" else fit_square(K, y, 0.3)

    block = one_hot(groups, 3) * train(a, b).u[:, None]
    projected = np.einsum("mg,nmk,kh->ngh", block, kernels, block, optimize=True)
    weights = group_weights(a * statistics + b, weighting)
    by_a, by_b = parameter_gradients(weights, statistics, projected, 0.5 if loss == "hinge" else 0.3, weighting)
    for j in range(4):
        for g in range(3):
            step = np.zeros((4, 3))
            step[j, g] = 1e-4
            for gradient, high, low in (
                (by_a, train(a + step, b), train(a - step, b)),
                (by_b, train(a, b + step), train(a, b - step)),
            ):
                change = (high.dual - low.dual) / 2e-4
                assert change == pytest.approx(gradient[j, g], rel=2e-3, abs=2e-4 * np.abs(gradient).max())


@pytest.mark.parametrize(("loss", "weighting"), [({"C": 4.0}, "softmax"), ({"lam": 0.3}, "root")])
def test_each_step_lowers_the_objective(weighting, loss):
    (kernels, y), groups = made(4, 40, seed=6), GROUPS
    solutions = [
        run(gs_mkl(GroupProblem(y, groups, 4, **loss), 4, weighting=weighting, seed=seed), kernels)
        for seed in (None, 0, 1)
    ]
    for solution in solutions:
        assert (np.diff([step.figures["objective"] for step in solution.steps]) < 0).all()
        assert solution.status is Status.SMALL_DECREASE
        assert np.isnan([solution.gap, solution.bound]).all()
        assert solution.extra["trainings"] >= len(solution.steps) > 3
        assert np.isfinite(solution.weights).all()  # also for the fourth group, which is empty
        K = composite_kernel(kernels, solution.weights, groups)
        trained = solve_dense(K, y, 4.0, 1e-9) if "C" in loss else fit_square(K, y, 0.3)
        assert solution.objective == pytest.approx(trained.primal, rel=1e-4)


def test_an_indefinite_kernel_is_named():
    (kernels, y), groups = made(4, 40, seed=2), GROUPS
    values, vectors = np.linalg.eigh(kernels[1])
    values[-3:] *= -1
    kernels[1] = (vectors * values) @ vectors.T
    localized = GroupProblem(y, np.arange(40), 40, C=8.0)
    for solver in (
        gs_mkl(GroupProblem(y, groups, 3, C=2.0), 4),
        localized_mkl(localized, 4, np.eye(3)[groups], tol=1e-4, max_iter=5),
    ):
        with pytest.raises(IndefiniteKernelError, match="kernel number 1 is not positive semidefinite"):
            run(solver, kernels)


def subcategories(seed, m=150, m_new=600):
    """Two classes with three hidden sub-categories; view s separates the classes in sub-category s only.

    Five views, two of them noise, give a kernel each; a context depends on the sub-category, but not on the class.
    """
    rng = np.random.default_rng(seed)
    total = m + m_new
    y = np.where(rng.random(total) < 0.5, 1.0, -1.0)
    hidden = rng.integers(0, 3, total)
    views = []
    for v in range(5):
        X = rng.normal(size=(total, 4))
        X[:, 0] += 1.6 * np.where(hidden == v, y, rng.choice([-1.0, 1.0], total))
        views.append(X)
    context = 4 * np.eye(3)[hidden] + 0.7 * rng.normal(size=(total, 3))
    return np.array([rbf_kernel(X, X[:m], gamma=0.1) for X in views]), context, y, m


def accuracy(kernels, y, m, groups, new, n_groups, loss, weighting):
    problem = GroupProblem(y[:m], groups, n_groups, **loss)
    solution = run(gs_mkl(problem, len(kernels), tol=1e-3, weighting=weighting), kernels[:, :m])
    scores = composite_kernel(kernels[:, m:], solution.weights, new, groups) @ solution.dual[:, 0] + solution.bias
    return balanced_accuracy_score(y[m:], np.sign(scores))


@pytest.mark.parametrize("options", [({"C": 1.0}, "root"), ({"C": 1.0}, "softmax"), ({"lam": 1.0}, "root")])
def test_hidden_subcategories_need_groups(options):
    """The mean gain over one set of weights for all, over six seeds, exceeds ten standard errors."""
    gains = []
    for seed in range(6):
        kernels, context, y, m = subcategories(seed)
        groups = group_by_kmeans(context[:m], y[:m], 3).as_new(context[:m])
        grouped = accuracy(kernels, y, m, groups.labels, groups.labels_of(context[m:]), 6, *options)
        gains.append(grouped - accuracy(kernels, y, m, np.zeros(m, int), np.zeros(len(y) - m, int), 1, *options))
    error = np.std(gains, ddof=1) / np.sqrt(len(gains))
    assert np.mean(gains) > 0.15
    assert np.mean(gains) > 10 * error
