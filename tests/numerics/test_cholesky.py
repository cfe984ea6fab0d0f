"""Cholesky factors against SciPy's, bounds by factors in single precision, and triangles against dense matrices."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg
from helpers.references import dense_view, psd
from hypothesis import given
from hypothesis import strategies as st

from dmkl.numerics.cholesky import Cholesky, LowerTriangle, RoughFactor, refined_and_bounded

TYPES = st.sampled_from([np.float32, np.float64])


def definite(rng, m, dtype):
    root = rng.standard_normal((m, m))
    return (root @ root.T + m * np.eye(m)).astype(dtype)


@given(st.integers(0, 2**32), st.integers(1, 40), TYPES, st.sampled_from("CF"))
def test_factors_and_solutions_are_scipys(seed, m, dtype, layout):
    rng = np.random.default_rng(seed)
    matrix, b = definite(rng, m, dtype), rng.standard_normal((m, 3))
    (potrf,) = scipy.linalg.get_lapack_funcs(["potrf"], [matrix])  # cho_factor chooses a triangle by the layout
    reference = potrf(np.asfortranarray(matrix), lower=True)[0], True
    hidden = np.tril(matrix) + np.triu(np.full((m, m), np.nan, dtype), 1)  # entries above the diagonal are not read
    factor = Cholesky.of(np.array(hidden, order=layout))
    assert factor.lower.dtype == dtype
    np.testing.assert_array_equal(np.tril(factor.lower), np.tril(reference[0]))
    for right in (b, b[:, 0], b[:, :0]):
        expected = scipy.linalg.cho_solve(reference, right.astype(dtype))
        np.testing.assert_allclose(factor.solve(right), expected, rtol=1e-4 if dtype == np.float32 else 1e-12)
    half = factor.half_solve(b.copy())
    np.testing.assert_allclose(np.tril(factor.lower) @ half, b, atol=1e-5 if dtype == np.float32 else 1e-12)
    whole = factor.inverse()
    np.testing.assert_array_equal(whole, whole.T)
    np.testing.assert_allclose(whole @ matrix, np.eye(m), atol=1e-4 if dtype == np.float32 else 1e-12)
    np.testing.assert_allclose(factor.inverse_diagonal(), np.diag(whole), rtol=1e-4 if dtype == np.float32 else 1e-12)


def test_other_threads_run_meanwhile():
    """No other thread would run during a function that holds the interpreter's lock."""
    matrix, ticks = definite(np.random.default_rng(0), 2000, np.float64), 0
    with ThreadPoolExecutor(1) as pool:
        factor = pool.submit(Cholesky.of, matrix)
        while not factor.done():
            time.sleep(1e-4)
            ticks += 1
    assert ticks >= 5


def kernel(rng, m, rank):
    X = rng.standard_normal((m, rank))
    K = X @ X.T
    return K / np.trace(K)


def lower(K, order):
    """A function that returns a new input of `RoughFactor.of`, with NaN in the upper triangle."""

    def made():
        matrix = np.asfortranarray(np.tril(K[np.ix_(order, order)]), dtype=np.float32)
        matrix[np.triu_indices(len(K), 1)] = np.nan
        return matrix, order

    return made


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(-10, 1))
def test_the_bound_holds_for_any_ridge(seed, rank, exponent):
    """Also if M is indefinite in single precision, and if the term of the residual dominates the bound."""
    rng = np.random.default_rng(seed)
    m, ridge = 40, 10.0**exponent
    K, b = kernel(rng, m, rank), rng.standard_normal((m, 3))
    solve = RoughFactor.of(lower(K, rng.permutation(m)), ridge).solve
    computed, bound = refined_and_bounded(solve(b), solve, K.__matmul__, ridge, b)
    M = 0.5 * (np.eye(m) + K / ridge)
    exact = np.einsum("mc,mc->c", b, np.linalg.solve(M, b))
    assert np.isfinite(computed).all()
    assert (exact <= bound * (1 + 1e-6)).all()


@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("rank", [20, 200])
def test_solutions_refined_by_the_factor_of_this_or_another_ridge_are_sharp(rank, ratio):
    """Each column has its own ridge; the factor is that of a tenth of these, of these, or of ten times as much."""
    rng, m = np.random.default_rng(0), 200
    K = kernel(rng, m, rank) + 0.1 * kernel(rng, m, m)
    for ridges in ([1e-7] * 3, [1e-6] * 3, [1e-4, 2e-4, 1e-3], [1e-3] * 3, [1e-2, 1e-1, 1e-1]):
        b = rng.standard_normal((m, 3))
        solve = RoughFactor.of(lower(K, np.arange(m)), ratio * ridges[1]).solve
        computed, bound = refined_and_bounded(solve(b), solve, K.__matmul__, np.array(ridges), b)
        systems = 0.5 * (np.eye(m) + K / np.reshape(ridges, (3, 1, 1)))
        exact = np.linalg.solve(systems, b.T[:, :, None])[:, :, 0].T
        forms = np.einsum("mc,mc->c", b, exact)
        assert (bound <= 1.02 * forms).all()
        assert (bound >= forms * (1 - 1e-9)).all()
        is_own = ratio == 1.0 and len(set(ridges)) == 1
        assert np.linalg.norm(computed - exact) <= (0.1 if is_own else 0.2) * np.linalg.norm(exact)


@given(
    st.integers(1, 12),
    st.integers(1, 13),
    st.integers(0, 2**16),
    st.lists(st.sampled_from(["center", "take"]), max_size=4),
)
def test_centering_and_taking(m, side, seed, steps):
    rng = np.random.default_rng(seed)
    (K,) = psd(1, m, seed)
    order, chain, size = rng.permutation(m), [], m
    triangle, runs = LowerTriangle(order), [slice(start, min(start + side, m)) for start in range(0, m, side)]
    for i, rows in enumerate(runs):  # blocks of `side` rows and columns on and above the diagonal
        for cols in runs[i:]:
            triangle.put(rows, cols, K[np.ix_(order[rows], order[cols])])
    for step in steps:
        if step == "center":
            triangle.center()
            chain.append(step)
        else:
            positions = rng.integers(0, size, int(rng.integers(1, 14)))
            triangle.take(positions)
            chain.append((positions, positions))
            size = len(positions)
    (expected,) = dense_view(K[None], steps=chain)
    np.testing.assert_allclose(triangle.whole(), expected, atol=1e-12 * np.abs(K).max())
