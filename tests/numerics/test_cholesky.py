"""Cholesky factors against SciPy's, and that they leave the interpreter to other threads."""

import threading
import time

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from dmkl.numerics.cholesky import Cholesky

TYPES = st.sampled_from([np.float32, np.float64])


def definite(rng, m, dtype):
    root = rng.standard_normal((m, m))
    return (root @ root.T + m * np.eye(m)).astype(dtype)


@given(st.integers(0, 2**32), st.integers(1, 40), TYPES, st.sampled_from("CF"))
def test_factors_and_solutions_are_scipys(seed, m, dtype, layout):
    rng = np.random.default_rng(seed)
    matrix, b = definite(rng, m, dtype), rng.standard_normal((m, 3))
    reference = scipy.linalg.cho_factor(matrix, lower=True)
    hidden = np.tril(matrix) + np.triu(np.full((m, m), np.nan, dtype), 1)  # what is above the diagonal is not read
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


def test_a_column_major_matrix_is_overwritten():
    matrix = np.asfortranarray(definite(np.random.default_rng(0), 5, np.float64))
    assert np.shares_memory(Cholesky.of(matrix).lower, matrix)


def test_what_is_not_positive_definite_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="minor of order 2"):
        Cholesky.of(np.diag([1.0, -1.0, 1.0]))


def test_other_threads_run_meanwhile():
    """Of a function that holds the interpreter's lock no other thread would see the middle."""
    matrix = definite(np.random.default_rng(0), 2000, np.float64)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(1e-4)

    thread = threading.Thread(target=tick)
    thread.start()
    started = time.perf_counter()
    Cholesky.of(matrix)
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(started < t < ended for t in ticks) >= 5
