"""One support vector machine, in and out of core, against cvxpy and scikit-learn."""

import numpy as np
import pytest
from helpers.margin import checked_machine, svm_optimum
from helpers.references import in_memory, memory_below

import dmkl
from dmkl.solvers.margin.svm import curvature, dense_bytes, solve_by_columns, solve_dense


def rbf(m, seed=0, share=0.5, width=5.0, dimensions=4):
    """A Gaussian kernel and labels, `share` of them positive, that depend on the samples and on noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, dimensions))
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * rng.standard_normal(m)
    y = np.where(score > np.quantile(score, 1 - share), 1.0, -1.0)
    return np.exp(-((x[:, None] - x) ** 2).sum(axis=2) / (2 * width)), y


def by_columns(kernel, y, C, tol=1e-6, share=1.0, start=None):
    """The checked solution with memory for a share of the columns, and the columns of each call."""
    calls = []

    def columns(positions):
        calls.append(np.array(positions))
        return kernel[:, positions]

    budget = int(40 * len(y) ** 2 * share) + 40 * len(y)
    solution = solve_by_columns(columns, kernel.diagonal().copy(), y, C, tol, budget, start)
    assert max(map(len, calls)) <= share * len(y) + 1
    return checked_machine(solution, kernel, y, C), calls


@pytest.mark.parametrize(
    ("C", "share", "tol"),
    [
        (1e-3, 0.5, 1e-10),
        (0.25, 0.06, 1e-10),
        (4.0, 0.5, 1e-10),
        (64.0, 0.06, 1e-10),
        (8.0, 0.5, 0.3),
        (8.0, 0.5, 1e-4),
    ],
)
def test_the_optimum_lies_within_the_gap(C, share, tol):
    kernel, y = rbf(70, share=share)
    best, dense = svm_optimum(kernel, y, C), checked_machine(solve_dense(kernel, y, C, tol), kernel, y, C)
    columns = {memory: by_columns(kernel, y, C, max(tol, 1e-8), memory) for memory in (1.0, 0.4, 0.1)}
    for solution in (dense, *(solution for solution, _ in columns.values())):
        assert solution.gap <= max(tol, 1e-8)
        assert solution.dual <= best * (1 + 1e-8)
        assert solution.primal >= best * (1 - 1e-8)
    assert dense.gap <= tol
    every = np.concatenate(columns[1.0][1])  # all columns fit: none is read twice
    assert len(every) == len(np.unique(every))


def test_repeated_samples():
    """Each sample three times, some with opposite labels."""
    kernel, y = rbf(40)
    three_times = np.repeat(np.arange(40), 3)
    kernel, y = kernel[np.ix_(three_times, three_times)], y[three_times]
    y[::7] *= -1
    for C in (0.1, 10.0, 1e4):
        assert checked_machine(solve_dense(kernel, y, C, 1e-6), kernel, y, C).gap <= 1e-6
        assert by_columns(kernel, y, C, 1e-6, 0.7)[0].gap <= 1e-6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("unit", "C", "beside"), [(100.0, 10.0, 0.0), (1e3, 30.0, 1.0)])
def test_few_directions_that_are_long_have_the_optimum_too(seed, unit, C, beside):
    """Features in large units, alone and beside a kernel of full rank: steps of pairs end at gaps of 0.03 to 1."""
    rng = np.random.default_rng(seed)
    X, y = unit * rng.standard_normal((60, 3)), np.where(rng.permutation(60) % 2, 1.0, -1.0)
    kernel = X @ X.T + beside * rbf(60)[0]
    assert checked_machine(solve_dense(kernel, y, C, 1e-6), kernel, y, C).gap <= 1e-6


@pytest.mark.parametrize("C", [0.1, 100.0])
def test_indefinite_kernels_end_where_no_small_change_gains(C):
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((50, 50))
    kernel = (kernel + kernel.T) / 2
    y = np.where(rng.random(50) < 0.5, 1.0, -1.0)
    for solution in (solve_dense(kernel, y, C, 1e-6), by_columns(kernel, y, C, 1e-6, 0.6)[0]):
        checked_machine(solution, kernel, y, C)
        assert solution.gap <= 1e-6
        gradient = y - kernel @ solution.u
        may_rise, may_fall = solution.u < np.maximum(0, C * y), solution.u > np.minimum(0, C * y)
        assert gradient[may_rise].max() - gradient[may_fall].min() <= 1e-2


@pytest.mark.parametrize(("share", "class_weight"), [(0.5, None), (0.25, "balanced")])
def test_the_bias_is_the_middle_of_the_optimal_ones(share, class_weight):
    """With all samples at their bounds the loss does not change between two kinks of the hinge loss."""
    kernel, y = rbf(40, share=share)
    model = dmkl.MKSVM(np.inf, 1e-2, class_weight=class_weight, steps=(), tol=1e-9)
    model.fit(in_memory(kernel[None], 40), y.astype(int))
    prices = np.where(y > 0, 0.5 / share, 0.5 / (1 - share))
    scores = kernel @ model.dual_coef_.values[:, 0]
    np.testing.assert_allclose(np.abs(model.dual_coef_.values[:, 0]), 1e-2 * prices, rtol=1e-9)
    kinks = np.sort(y - scores)
    losses = np.array([prices @ np.maximum(0, 1 - y * (scores + b)) for b in kinks])
    optimal = kinks[losses <= losses.min() * (1 + 1e-12)]
    assert optimal[-1] - optimal[0] > 1
    assert float(model.intercept_[0]) == pytest.approx(0.5 * (optimal[0] + optimal[-1]), abs=1e-9)


def test_curvature_by_finite_differences():
    kernels = np.array([rbf(60, seed, width=width)[0] for seed, width in ((0, 3.0), (0, 10.0), (5, 5.0))])
    _, y = rbf(60)
    beta = np.array([0.5, 0.3, 0.4])

    def solved(weights):
        return solve_dense(np.tensordot(weights, kernels, axes=1), y, 4.0, 1e-14)

    def gradient(weights):
        u = solved(weights).u
        return -0.5 * np.array([u @ kernel @ u for kernel in kernels])

    at = solved(beta)
    assert len(at.free) > 5
    step = 1e-5
    differences = np.array([(gradient(beta + step * e) - gradient(beta - step * e)) / (2 * step) for e in np.eye(3)])
    second = curvature(*at.of_free(kernels @ at.u))
    np.testing.assert_allclose(second, differences, rtol=1e-4, atol=1e-6 * np.abs(differences).max())
    out_of_core, _ = by_columns(np.tensordot(beta, kernels, axes=1), y, 4.0, 1e-12)
    np.testing.assert_allclose(curvature(*out_of_core.of_free(kernels @ out_of_core.u)), differences, rtol=1e-4)


def test_dense_memory():
    kernel, y = rbf(800, width=0.05)  # nearly orthogonal samples: all vectors free
    solve_dense(kernel[:30, :30], y[:30], 10.0)  # compiled before
    with memory_below(dense_bytes(800)):  # 0.3 MB are left for threads of clusters of other tests
        solution = solve_dense(kernel, y, 10.0, 1e-8)
    assert len(solution.free) > 750


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_memory_out_of_core(share):
    kernel, y = rbf(400, width=0.05 if share == 1 else 5.0)
    by_columns(kernel[:30, :30], y[:30], 10.0)  # compiled before
    budget, problem = int(40 * 400**2 * share), (kernel.diagonal().copy(), y, 10.0, 1e-6)
    for start in (None, solve_dense(kernel, y, 5.0, 1e-3).u):
        with memory_below(budget):
            solution = solve_by_columns(lambda k: kernel[:, k], *problem, budget, start)
        assert solution.gap <= 1e-6
