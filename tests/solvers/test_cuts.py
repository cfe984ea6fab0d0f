"""The relaxation of standard quadratic programs: optima, bounds that hold, rounding, the theorems."""

import cvxpy as cp
import numpy as np
import pytest
from helpers.optima import to_optimality
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dmkl.errors import InputError
from dmkl.solvers.cuts import best_cut, cut_matrix, descend, is_positive_block, relax, smallest_ratio, starts
from dmkl.solvers.interface import Status


def optimum(Q):
    """The relaxation's value by an interior-point method, with Q scaled to a span of one."""
    least, spread = Q.min(), np.ptp(Q) or 1.0
    Z = cp.Variable(Q.shape, PSD=True)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply((Q - least) / spread, Z))), [Z >= 0, cp.sum(Z) == 1])
    return least + spread * to_optimality(problem, f"Q of {len(Q)} rows")


def symmetric(n, seed, kind="normal"):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n)) if kind == "normal" else rng.random((n, n))
    return A @ A.T / n if kind == "psd" else (A + A.T) / 2


@pytest.mark.parametrize(
    ("d", "kind", "max_iter"),
    [
        *((d, kind, 5000) for d, kind in zip((2, 3, 4, 6, 9, 12), ("normal", "uniform", "psd") * 2, strict=True)),
        *((15, "normal", max_iter) for max_iter in (1, 10, 5000)),
    ],
)
def test_bounds_enclose_the_optimum_whatever_the_number_of_steps(d, kind, max_iter):
    Q = symmetric(d, d, kind) if d < 15 else 100.0 + 7.0 * symmetric(d, 0)
    solution, expected = relax(Q, tol=1e-7, max_iter=max_iter), optimum(Q)
    if max_iter == 5000:
        assert solution.gap <= 1e-7
        assert solution.value == pytest.approx(expected, abs=1e-5 * np.ptp(Q))
    assert solution.value == pytest.approx(np.sum(Q * solution.Z), abs=1e-10)
    assert solution.Z.min() >= 0
    assert np.sum(solution.Z) == pytest.approx(1, abs=1e-12)
    assert np.linalg.eigvalsh(solution.Z)[0] >= -1e-12
    assert solution.bound <= expected + 1e-6 * np.ptp(Q)
    assert solution.value >= expected - 1e-6 * np.ptp(Q)
    assert solution.iterations <= max_iter
    bounds = [step.figures["bound"] for step in solution.steps]
    assert bounds == sorted(bounds)
    assert all(step.figures["value"] >= solution.value - 1e-9 for step in solution.steps)


@given(
    arrays(np.float64, (5, 5), elements=st.floats(-1e3, 1e3, allow_subnormal=False)),
    st.sampled_from([1, 3, 25, 100]),
    arrays(np.float64, (20, 5), elements=st.floats(0, 1)),
)
@settings(max_examples=60, deadline=None)
def test_no_weights_have_a_value_below_the_bound(A, max_iter, points):
    Q = (A + A.T) / 2
    solution = relax(Q, max_iter=max_iter)
    points = np.vstack([np.eye(5), points[points.sum(axis=1) > 0]])
    for point in points:
        alpha = point / point.sum()
        slack = 1e-14 * np.abs(Q).max()
        assert alpha @ Q @ alpha >= solution.bound - slack
        assert descend(Q, alpha)[1] >= solution.bound - slack


def test_equal_entries_and_one_kernel():
    for Q in (np.full((4, 4), -2.5), np.array([[3.0]])):
        solution = relax(Q)
        assert (solution.value, solution.bound, solution.gap) == (Q[0, 0], Q[0, 0], 0.0)
        assert np.sum(solution.Z) == pytest.approx(1)


def ratio_pair(seed, r, n):
    rng = np.random.default_rng(seed)
    v = 1.0 + rng.random((r, n))
    return v * (0.3 + 0.5 * rng.random((r, n))), v


def test_Q_is_the_sum_over_pairs():
    u, v = ratio_pair(0, 6, 4)
    J = np.zeros((4, 4))
    for g in range(6):
        for h in range(g + 1, 6):
            J += np.outer(u[g], v[h]) + np.outer(u[h], v[g]) - np.outer(v[g], v[h])
    np.testing.assert_allclose(cut_matrix(u, v), (J + J.T) / 2, rtol=1e-12)


@pytest.mark.parametrize(("d", "seed"), [(2, 0), (2, 1), (3, 2), (3, 3), (3, 4)])
def test_up_to_three_kernels_reach_the_relaxation(d, seed):
    """Theorem 2: its value is that of weights, and descents find them."""
    solution = best_cut(*ratio_pair(seed, 5, d), 1e-8)
    Q = cut_matrix(*ratio_pair(seed, 5, d))
    assert solution.extra["proof"] == "theorem 2"
    assert solution.objective == pytest.approx(optimum(Q), abs=1e-6 * np.ptp(Q))
    assert solution.objective == pytest.approx(solution.weights @ Q @ solution.weights)
    descended, rounded = solution.extra["descended"], solution.extra["rounded"]
    assert solution.bound <= solution.objective <= descended <= rounded + 1e-12 * np.ptp(Q)


def test_a_positive_Z_proves_the_eigenvector():
    """Theorem 1, on a form whose relaxation is positive in every entry, and in a block of it."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((6, 9)) * 0.2
    center = np.array([0.3, 0.25, 0.2, 0.15, 0.06, 0.04])
    A -= np.outer(np.ones(6), center @ A)  # Aᵀα = 0 at α = center, inside the simplex
    Q = A @ A.T + 2.0
    inside = relax(Q, tol=1e-10)
    assert is_positive_block(inside.Z)
    leading = next(iter(starts(inside.Z)))
    np.testing.assert_allclose(leading, center, atol=1e-3)
    assert leading @ Q @ leading - inside.bound <= 1e-7 * np.ptp(Q)
    assert not is_positive_block(np.array([[0.3, 0.2, 0.0], [0.2, 0.3, 0.0], [0.0, 0.0, 0.0]]) + np.diag([0, 0, 0.1]))


def test_reports_of_a_loose_relaxation(monkeypatch):
    cycle = np.eye(5) + np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    monkeypatch.setattr("dmkl.solvers.cuts.cut_matrix", lambda u, v: cycle)
    solution = best_cut(np.ones((2, 5)), np.ones((2, 5)), 1e-7)
    assert (solution.extra["proof"], solution.status) == ("none", Status.CONVERGED)
    assert solution.objective == pytest.approx(0.5)
    assert solution.gap == pytest.approx(0.5 - 1 / np.sqrt(5), abs=1e-6)
    assert solution.extra["relaxed"] == pytest.approx(1 / np.sqrt(5), abs=1e-6)
    assert solution.extra["rounded"] > solution.extra["descended"] - 1e-12
    cut_short = best_cut(np.ones((2, 5)), np.ones((2, 5)), 1e-12, max_iter=2)
    assert (cut_short.extra["proof"], cut_short.status) == ("none", Status.ITERATIONS)


def test_one_ratio_is_that_of_the_best_kernel():
    u, v = np.array([[0.4, 0.1, 0.9]]), np.array([[1.0, -1.0, 3.0]])
    solution = best_cut(u, v)
    assert solution.extra["proof"] == "single ratio"
    assert (solution.objective, solution.bound, solution.gap) == (pytest.approx(0.3), solution.objective, 0.0)
    np.testing.assert_array_equal(solution.weights, [0, 0, 1])
    with pytest.raises(InputError, match="kernels that are similarities"):
        smallest_ratio(u[0], np.array([-1.0, -0.1, 0.0]))
