"""Factors in single precision that need not be trusted: what is bounded by them is true all the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmkl.numerics.cholesky import RoughFactor, refined_and_bounded


def kernel(rng, m, rank):
    X = rng.standard_normal((m, rank))
    K = X @ X.T
    return K / np.trace(K)


def lower(K, order):
    """What `RoughFactor.of` is given, anew each time: of the upper triangle it knows nothing."""

    def made():
        matrix = np.asfortranarray(np.tril(K[np.ix_(order, order)]), dtype=np.float32)
        matrix[np.triu_indices(len(K), 1)] = np.nan
        return matrix, order

    return made


def settled(K, ridge, b, order):
    solve = RoughFactor.of(lower(K, order), ridge).solve
    return refined_and_bounded(solve(b), solve, lambda x: K @ x, ridge, b)


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(-10, 1))
def test_the_bound_holds_for_any_ridge(seed, rank, exponent):
    """Also where M is indefinite in single precision, and where the residual is all that is left of the solution."""
    rng = np.random.default_rng(seed)
    m, ridge = 40, 10.0**exponent
    K, b = kernel(rng, m, rank), rng.standard_normal((m, 3))
    found, bound = settled(K, ridge, b, rng.permutation(m))
    M = 0.5 * (np.eye(m) + K / ridge)
    exact = np.einsum("mc,mc->c", b, np.linalg.solve(M, b))
    assert np.isfinite(found).all()
    assert (exact <= bound * (1 + 1e-6)).all()


@pytest.mark.parametrize("ridge", [1e-7, 1e-5, 1e-3, 1.0])
def test_refined_solutions_are_sharp(ridge):
    rng = np.random.default_rng(0)
    K, b = kernel(rng, 200, 200), rng.standard_normal((200, 4))
    found, bound = settled(K, ridge, b, np.arange(200))
    M = 0.5 * (np.eye(200) + K / ridge)
    exact = np.linalg.solve(M, b)
    assert (bound <= 1.05 * np.einsum("mc,mc->c", b, exact)).all()
    assert np.linalg.norm(found - exact) <= 0.1 * np.linalg.norm(exact)


def test_what_rounding_leaves_indefinite_is_shifted():
    """A negative eigenvalue beyond the ridge, as rounding makes them: the factor exists, and solves about."""
    K = np.diag([1.0, 0.5, -1e-6])
    solve = RoughFactor.of(lower(K, np.arange(3)), 1e-8).solve
    assert np.isfinite(solve(np.ones((3, 1)))).all()
