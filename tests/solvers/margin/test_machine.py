"""One support vector machine, in and out of core, against cvxpy and scikit-learn."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from helpers.margin import svm_optimum
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dmkl.errors import MemoryBudgetError
from dmkl.solvers.margin.svm import best_bias, dense_bytes, hinge, is_concave, solve_by_columns, solve_dense


def rbf(m, seed=0, share=0.5, width=5.0, dimensions=4):
    """A Gaussian kernel and labels, `share` of them positive, that depend on the samples and on noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, dimensions))
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * rng.standard_normal(m)
    y = np.where(score > np.quantile(score, 1 - share), 1.0, -1.0)
    return np.exp(-((x[:, None] - x) ** 2).sum(axis=2) / (2 * width)), y


class Asked:
    """Columns of a kernel matrix, counted."""

    def __init__(self, kernel):
        self.kernel, self.calls = kernel, []

    def __call__(self, positions):
        self.calls.append(np.array(positions))
        return self.kernel[:, positions]


def by_columns(kernel, y, C, tol=1e-6, share=1.0, start=None):
    """The checked solution with memory for a share of the columns, and the columns that were read."""
    asked = Asked(kernel)
    budget = int(40 * len(y) ** 2 * share) + 40 * len(y)
    solution, count = solve_by_columns(asked, kernel.diagonal().copy(), y, C, tol, budget, start)
    assert count == sum(len(call) for call in asked.calls)
    assert max(len(call) for call in asked.calls) <= share * len(y) + 1
    return checked(solution, kernel, y, C), asked


def checked(solution, kernel, y, C):
    """Check that the solution is feasible and that its values are those of its u by the definitions."""
    alpha = y * solution.u
    assert alpha.min() >= 0
    assert alpha.max() <= C
    assert abs(solution.u.sum()) <= 1e-12 * (1 + alpha.sum())
    scores = kernel @ solution.u
    np.testing.assert_allclose(solution.scores, scores, rtol=1e-9, atol=1e-12 * (1 + alpha.sum()))
    energy = solution.u @ scores / 2
    slack = np.maximum(0, 1 - y * (scores + solution.bias)).sum()
    assert solution.dual == pytest.approx(alpha.sum() - energy, rel=1e-9)
    assert solution.primal == pytest.approx(energy + C * slack, rel=1e-9, abs=1e-9)
    assert solution.gap == max(solution.primal - solution.dual, 0) / abs(solution.primal)
    np.testing.assert_array_equal(solution.free, np.flatnonzero((alpha > 0) & (alpha < C)))
    if solution.free_kernel is not None:
        np.testing.assert_array_equal(solution.free_kernel, kernel[np.ix_(solution.free, solution.free)])
    return solution


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
    best, dense = svm_optimum(kernel, y, C), checked(solve_dense(kernel, y, C, tol), kernel, y, C)
    for solution in (dense, by_columns(kernel, y, C, max(tol, 1e-8), 0.4)[0]):
        assert solution.gap <= max(tol, 1e-8)
        assert solution.dual <= best * (1 + 1e-8)
        assert solution.primal >= best * (1 - 1e-8)
    assert dense.gap <= tol


@pytest.mark.parametrize(
    ("C", "share", "width", "tol"),
    [(1e-4, 0.6, 5.0, 1e-8), (8.0, 0.6, 5.0, 1e-8), (1e3, 1.0, 5.0, 1e-8), (1.0, 0.08, 20.0, 1e-4)],
)
def test_columns_agree_with_dense(C, share, width, tol):
    kernel, y = rbf(120, 5, width=width)
    solution, asked = by_columns(kernel, y, C, tol, share)
    assert solution.gap <= tol
    assert solution.dual == pytest.approx(solve_dense(kernel, y, C, 1e-8).dual, rel=max(tol, 1e-7))
    if share == 1:  # everything fits: no column is read twice
        every = np.concatenate(asked.calls)
        assert len(every) == len(np.unique(every))


def equal_rows():
    """Samples three times, some with opposite labels."""
    kernel, y = rbf(40)
    three_times = np.repeat(np.arange(40), 3)
    y = y[three_times]
    y[::7] *= -1
    return kernel[np.ix_(three_times, three_times)], y


def rank_one():
    x = np.linspace(-1, 1, 31)
    return np.outer(x, x), np.where(x > 0.1, 1.0, -1.0)


@pytest.mark.parametrize("make", [equal_rows, rank_one])
def test_singular_kernels(make):
    kernel, y = make()
    for C in (0.1, 10.0, 1e4):
        assert checked(solve_dense(kernel, y, C, 1e-6), kernel, y, C).gap <= 1e-6
        assert by_columns(kernel, y, C, 1e-6, 0.7)[0].gap <= 1e-6


@pytest.mark.parametrize("C", [0.1, 100.0])
def test_indefinite_kernels_end_where_no_small_change_gains(C):
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((50, 50))
    kernel = (kernel + kernel.T) / 2
    y = np.where(rng.random(50) < 0.5, 1.0, -1.0)
    for solution in (solve_dense(kernel, y, C, 1e-6), by_columns(kernel, y, C, 1e-6, 0.6)[0]):
        checked(solution, kernel, y, C)
        assert solution.gap <= 1e-6
        gradient = y - kernel @ solution.u
        may_rise, may_fall = solution.u < np.maximum(0, C * y), solution.u > np.minimum(0, C * y)
        assert gradient[may_rise].max() - gradient[may_fall].min() <= 1e-2


@given(
    hnp.arrays(np.float64, 12, elements=st.floats(-3, 3)),
    st.lists(st.booleans(), min_size=12, max_size=12).filter(lambda y: 0 < sum(y) < 12),
    st.booleans(),
)
@settings(deadline=None)
def test_bias_minimizes_the_primal(scores, positive, weighted):
    y = np.where(positive, 1.0, -1.0)
    C = (0.7 * np.arange(1, 13),) if weighted else ()
    # A convex, piecewise linear function has a minimum at one of its kinks.
    least = min(hinge(scores, kink, y, *C) for kink in y - scores)
    assert hinge(scores, best_bias(scores, y, *C), y, *C) <= least + 1e-12 * (1 + least)


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
    np.testing.assert_allclose(
        at.curvature(kernels @ at.u), differences, rtol=1e-4, atol=1e-6 * np.abs(differences).max()
    )
    out_of_core, _ = by_columns(np.tensordot(beta, kernels, axes=1), y, 4.0, 1e-12)
    np.testing.assert_allclose(out_of_core.curvature(kernels @ out_of_core.u), differences, rtol=1e-4)


def test_dense_memory():
    kernel, y = rbf(400, width=0.05)  # nearly orthogonal samples: all vectors free
    solve_dense(kernel[:30, :30], y[:30], 10.0)  # compiled before
    tracemalloc.start()
    solution = solve_dense(kernel, y, 10.0, 1e-8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(solution.free) > 350
    assert peak <= dense_bytes(400)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_memory_out_of_core(share):
    kernel, y = rbf(400, width=0.05 if share == 1 else 5.0)
    by_columns(kernel[:30, :30], y[:30], 10.0)  # compiled before
    budget, diagonal = int(40 * 400**2 * share), kernel.diagonal().copy()
    for start in (None, solve_dense(kernel, y, 5.0, 1e-3).u):
        tracemalloc.start()
        solution, _ = solve_by_columns(Asked(kernel), diagonal, y, 10.0, 1e-6, budget, start)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert solution.gap <= 1e-6
        assert peak <= budget


def test_two_columns_have_to_fit():
    kernel, y = rbf(10)
    with pytest.raises(MemoryBudgetError, match="takes 800 bytes, max_bytes is 799"):
        solve_by_columns(Asked(kernel), np.ones(10), y, 1.0, 1e-3, 799)


@pytest.mark.parametrize("seed", range(2))
def test_concave_is_positive_semidefinite_on_vectors_of_sum_zero(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((30, 3))
    gram, apart = x @ x.T, ((x[:, None] - x) ** 2).sum(axis=2)
    basis = np.linalg.svd(np.ones((1, 30)))[2][1:]
    bump = rng.standard_normal(30)
    for kernel in (gram, -apart, gram - 1e-3 * np.outer(bump, bump), -gram, np.zeros((30, 30)), np.ones((30, 30))):
        lowest = np.linalg.eigvalsh(basis @ kernel @ basis.T)[0]
        assert is_concave(kernel, 0.0) == (lowest > -1e-9)
    assert np.linalg.eigvalsh(-apart)[0] < -1.0
    assert is_concave(gram - 1e-6 * np.eye(30), 1e-5)
