"""The relaxation of standard quadratic programs: optima, bounds that hold, rounding, the theorems."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dmkl.errors import InputError
from dmkl.numerics.ncuts import cut_matrix, descend, is_positive_block, rounded, smallest_ratio, starts
from dmkl.solvers.cuts import best_cut, relax


def optimum(Q, solver=cp.CLARABEL):
    """The relaxation's value by an interior point method (or SCS), in units in which Q spans one."""
    least, spread = Q.min(), np.ptp(Q) or 1.0
    Z = cp.Variable(Q.shape, PSD=True)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply((Q - least) / spread, Z))), [Z >= 0, cp.sum(Z) == 1])
    more = {"eps": 1e-8, "max_iters": 50_000} if solver == cp.SCS else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        problem.solve(solver=solver, **more)
    assert problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
    return least + spread * problem.value


def graph(n, seed, share=0.5):
    """I + A of a random graph: the minimum over the simplex is 1 over the largest set of unconnected vertices."""
    A = np.triu(np.random.default_rng(seed).random((n, n)) < share, 1)
    return np.eye(n) + A + A.T


def symmetric(n, seed, kind="normal"):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n)) if kind == "normal" else rng.random((n, n))
    return A @ A.T / n if kind == "psd" else (A + A.T) / 2


CASES = [(d, kind) for d in (2, 3, 4, 6, 9, 12) for kind in ("normal", "uniform", "psd")]


@pytest.mark.parametrize(("d", "kind"), CASES)
def test_the_optimum_of_an_interior_point_method(d, kind):
    Q = symmetric(d, d, kind)
    found, expected = relax(Q, tol=1e-7), optimum(Q)
    assert found.gap <= 1e-7
    assert found.value == pytest.approx(expected, abs=1e-5 * np.ptp(Q))
    assert found.bound <= expected + 1e-7 * np.ptp(Q)
    assert found.value == pytest.approx(np.sum(Q * found.Z), abs=1e-12)


def test_scs_agrees_where_the_relaxation_has_a_gap():
    Q = graph(12, 3)
    found = relax(Q, tol=1e-7)
    assert found.value == pytest.approx(optimum(Q, cp.SCS), abs=1e-5)


@pytest.mark.parametrize("start", ["none", "good", "bad"])
def test_any_start_leads_to_the_optimum(start):
    Q = symmetric(20, 1)
    alpha = {"none": None, "good": descend(Q, np.full(20, 0.05))[0], "bad": np.eye(20)[int(np.argmax(Q.diagonal()))]}
    found = relax(Q, alpha[start], tol=1e-7)
    assert found.gap <= 1e-7
    assert found.value == pytest.approx(optimum(Q), abs=1e-6 * np.ptp(Q))


@pytest.mark.parametrize("max_iter", [1, 10, 60, 5000])
def test_Z_is_feasible_and_the_bounds_enclose_whatever_the_number_of_steps(max_iter):
    for seed in range(5):
        Q = 100.0 + 7.0 * symmetric(15, seed)
        found, expected = relax(Q, tol=1e-9, max_iter=max_iter), optimum(Q)
        assert found.Z.min() >= 0
        assert np.sum(found.Z) == pytest.approx(1, abs=1e-12)
        assert np.linalg.eigvalsh(found.Z)[0] >= -1e-12
        assert found.bound <= expected + 1e-6 * np.ptp(Q)
        assert found.value >= expected - 1e-6 * np.ptp(Q)
        assert found.iterations <= max_iter
        assert [step.figures["bound"] for step in found.steps] == sorted(step.figures["bound"] for step in found.steps)
        assert all(step.figures["value"] >= found.value - 1e-9 for step in found.steps)


@given(
    arrays(np.float64, (5, 5), elements=st.floats(-1e3, 1e3, allow_subnormal=False)),
    st.sampled_from([1, 3, 25, 100]),
    arrays(np.float64, (20, 5), elements=st.floats(0, 1)),
)
@settings(max_examples=60, deadline=None)
def test_no_weights_have_a_value_below_the_bound(A, max_iter, points):
    Q = (A + A.T) / 2
    found = relax(Q, max_iter=max_iter)
    points = np.vstack([np.eye(5), points[points.sum(axis=1) > 0]])
    for point in points:
        alpha = point / point.sum()
        slack = 1e-14 * np.abs(Q).max()
        assert alpha @ Q @ alpha >= found.bound - slack
        assert descend(Q, alpha)[1] >= found.bound - slack


def test_equal_entries_and_one_kernel():
    for Q in (np.full((4, 4), -2.5), np.array([[3.0]])):
        found = relax(Q)
        assert (found.value, found.bound, found.gap) == (Q[0, 0], Q[0, 0], 0.0)
        assert np.sum(found.Z) == pytest.approx(1)


@pytest.mark.parametrize("Q", [np.ones((2, 3)), np.array([[0.0, 1.0], [2.0, 0.0]]), np.full((2, 2), np.nan)])
def test_what_is_no_symmetric_matrix_is_refused(Q):
    with pytest.raises(InputError, match="symmetric matrix of finite numbers"):
        relax(Q)


# --- rounding and descent --------------------------------------------------------------------------------------------


def test_rounding_gives_back_a_matrix_of_rank_one():
    alpha = np.array([0.5, 0.0, 0.3, 0.2])
    np.testing.assert_allclose(rounded(np.outer(alpha, alpha)), alpha)


@given(arrays(np.float64, (6, 6), elements=st.floats(-10, 10)), arrays(np.float64, 6, elements=st.floats(0.01, 1)))
@settings(max_examples=100, deadline=None)
def test_a_descent_never_rises_and_ends_where_slopes_agree(A, start):
    Q, start = (A + A.T) / 2, start / start.sum()
    alpha, value = descend(Q, start)
    assert alpha.min() >= 0
    assert alpha.sum() == pytest.approx(1)
    spread, slack = np.ptp(Q), 1e-13 * np.abs(Q).max()
    assert value <= start @ Q @ start + slack
    slopes = Q @ alpha
    # The first-order conditions (Karush, Kuhn, Tucker): all kernels in use have the smallest slope.
    assert slopes[alpha > 0].max() - slopes.min() <= 1e-6 * spread + slack


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
    # αᵀ(A − B)α is the pair's two ratios, less one, times their denominators.
    alpha = np.array([0.1, 0.2, 0.3, 0.4])
    top, bottom = u[:2] @ alpha, v[:2] @ alpha
    expected = (top[0] / bottom[0] + top[1] / bottom[1] - 1) * bottom[0] * bottom[1]
    assert alpha @ cut_matrix(u[:2], v[:2]) @ alpha == pytest.approx(expected)


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_up_to_three_kernels_reach_the_relaxation(d, seed):
    """Theorem 2: its value is that of weights, and descents find them."""
    found = best_cut(*ratio_pair(seed, 5, d), 1e-8)
    Q = cut_matrix(*ratio_pair(seed, 5, d))
    assert found.proof == "theorem 2"
    assert found.value == pytest.approx(optimum(Q), abs=1e-6 * np.ptp(Q))
    assert found.value == pytest.approx(found.alpha @ Q @ found.alpha)
    assert found.bound <= found.value <= found.descended <= found.rounded + 1e-12 * np.ptp(Q)


@pytest.mark.parametrize("seed", range(8))
def test_three_kernels_of_any_quadratic_form(seed):
    """Theorem 2 for relaxations solved from equal weights, and so not of rank one: its proof's pieces."""
    Q = graph(3, seed, 0.7) + 1e-3 * symmetric(3, seed)
    relaxation = relax(Q, tol=1e-9)
    value = min(descend(Q, start)[1] for start in [*starts(relaxation.Z), *np.eye(3)])
    assert value - relaxation.bound <= 1e-8 * np.ptp(Q)


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
    wide = np.full((8, 8), Q.max() + 5.0)
    wide[2:, 2:] = Q
    block = relax(wide, tol=1e-10)
    assert is_positive_block(block.Z)
    np.testing.assert_allclose(block.Z[2:, 2:], inside.Z, atol=1e-3)
    assert not is_positive_block(np.array([[0.3, 0.2, 0.0], [0.2, 0.3, 0.0], [0.0, 0.0, 0.0]]) + np.diag([0, 0, 0.1]))


def test_where_the_relaxation_is_loose_no_proof_is_claimed():
    """The complement of a cycle of five: the largest set is 2, the relaxation says √5 (Lovász)."""
    n = 5
    Q = np.eye(n)
    for i in range(n):
        Q[i, (i + 1) % n] = Q[(i + 1) % n, i] = 1.0
    relaxation = relax(Q, tol=1e-9)
    assert relaxation.value == pytest.approx(1 / np.sqrt(5), abs=1e-7)
    assert min(descend(Q, start)[1] for start in [*starts(relaxation.Z), *np.eye(n)]) == pytest.approx(0.5)


def test_reports_of_a_loose_relaxation(monkeypatch):
    cycle = np.eye(5) + np.roll(np.eye(5), 1, axis=0) + np.roll(np.eye(5), -1, axis=0)
    monkeypatch.setattr("dmkl.solvers.cuts.cut_matrix", lambda u, v: cycle)
    found = best_cut(np.ones((2, 5)), np.ones((2, 5)), 1e-7)
    assert (found.proof, found.converged) == ("none", True)
    assert found.value == pytest.approx(0.5)
    assert found.gap == pytest.approx(0.5 - 1 / np.sqrt(5), abs=1e-6)
    assert found.relaxed == pytest.approx(1 / np.sqrt(5), abs=1e-6)
    assert found.rounded > found.descended - 1e-12
    cut_short = best_cut(np.ones((2, 5)), np.ones((2, 5)), 1e-12, max_iter=2)
    assert not cut_short.converged
    assert cut_short.proof == "none"


def test_one_ratio_is_that_of_the_best_kernel():
    u, v = np.array([[0.4, 0.1, 0.9]]), np.array([[1.0, -1.0, 3.0]])
    found = best_cut(u, v)
    assert (found.proof, found.value, found.bound, found.gap) == ("single ratio", pytest.approx(0.3), found.value, 0.0)
    np.testing.assert_array_equal(found.alpha, [0, 0, 1])
    with pytest.raises(InputError, match="kernels that are similarities"):
        smallest_ratio(u[0], np.array([-1.0, -0.1, 0.0]))


def test_many_kernels():
    """120 kernels, by the whole of it: gaps proven, one task."""
    rng = np.random.default_rng(4)
    v = 1 + 0.05 * rng.standard_normal((1, 120)) + 0.02 * rng.standard_normal((40, 120))
    u = 0.5 * v * (0.8 + 0.1 * rng.random((1, 120))) + 0.01 * rng.standard_normal((40, 120))
    found = best_cut(u, v, 1e-6)
    assert found.gap <= 1e-6
    assert found.converged
