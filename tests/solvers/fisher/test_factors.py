"""MK-FDA on factors against the same problem on the kernels that they make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dmkl
from dmkl.errors import InputError


def problem(seed, m, widths, c):
    rng = np.random.default_rng(seed)
    factors = [rng.normal(size=(m, d)) / np.sqrt(m * d) for d in widths]
    factors[0] += 0.5 * np.outer(np.arange(m) % c - 0.5, np.ones(widths[0])) / np.sqrt(m * widths[0])
    H = np.eye(c)[np.arange(m) % c]
    return factors, H - H.mean(axis=0)


@pytest.mark.parametrize("p", [1, 1.0625, 1.5, 2, 8, np.inf])
@pytest.mark.parametrize("lam", [1e-8, 1e-4, 1e-1, 10])
@pytest.mark.parametrize("widths", [(3, 5, 2), (20, 20), (40, 30, 1)])  # D below, equal to and above m
def test_the_solution_is_that_on_the_kernels(p, lam, widths):
    factors, H = problem(0, 40, widths, 3)
    kernels = np.stack([Z @ Z.T for Z in factors])
    solution = dmkl.solve_mkfda_on_factors(factors, H, p, lam, tol=1e-9)
    expected = dmkl.solve_mkfda(kernels, H, p, lam, tol=1e-9)
    assert solution.gap <= 1e-7
    assert solution.objective == pytest.approx(expected.objective, rel=1e-6)
    if p > 1 and lam > 1e-8:  # there the kernels are so small a part of S that its gap leaves the weights open
        np.testing.assert_allclose(solution.weights, expected.weights, atol=1e-4)
    # The certificate is that of the returned pair, from the kernels themselves.
    K, alpha = np.tensordot(solution.weights, kernels, 1), solution.dual
    exact = np.linalg.solve(0.5 * (np.eye(40) + K / lam), H)
    objective = 0.25 * np.sum(alpha**2) + np.sum(alpha * (K @ alpha)) / (4 * lam) - np.sum(H * alpha)
    assert objective == pytest.approx(solution.objective, rel=1e-6)
    scores = np.concatenate(factors, axis=1) @ solution.extra["coefficients"]
    np.testing.assert_allclose(scores, K @ exact, atol=1e-8 * np.abs(scores).max())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**16), st.lists(st.integers(1, 6), min_size=1, max_size=5), st.floats(-6, 1), st.floats(1, 10))
def test_every_pair_is_as_near_to_the_optimum_as_its_gap_says(seed, widths, log_lam, p):
    factors, H = problem(seed, 12, widths, 2)
    lam = 10.0**log_lam
    solution = dmkl.solve_mkfda_on_factors(factors, H, p, lam, max_iter=2)
    best = dmkl.solve_mkfda(np.stack([Z @ Z.T for Z in factors]), H, p, lam, tol=1e-10).objective
    scale = abs(solution.objective)
    assert solution.objective - 1e-9 * scale <= best + solution.gap * scale
    assert best <= solution.objective + solution.gap * scale + 1e-7 * scale


def test_repeated_and_empty_components():
    factors, H = problem(1, 30, (4, 3), 3)
    repeated = [np.hstack([factors[0], factors[0], np.zeros((30, 2))]), factors[1]]
    solution = dmkl.solve_mkfda_on_factors(repeated, H, 1.5, 1e-4, tol=1e-8)
    kernels = np.stack([Z @ Z.T for Z in repeated])
    assert solution.objective == pytest.approx(dmkl.solve_mkfda(kernels, H, 1.5, 1e-4, tol=1e-8).objective, rel=1e-7)


def test_bad_input_is_refused():
    factors, H = problem(2, 10, (2, 2), 2)
    for bad, words in (([], "factors must be"), ([factors[0][:5]], "factors must be")):
        with pytest.raises(InputError, match=words):
            dmkl.solve_mkfda_on_factors(bad, H)
    with pytest.raises(InputError, match="lam must be positive"):
        dmkl.solve_mkfda_on_factors(factors, H, lam=0)
    with pytest.raises(InputError, match="p must be at least 1"):
        dmkl.solve_mkfda_on_factors(factors, H, p=0.5)
