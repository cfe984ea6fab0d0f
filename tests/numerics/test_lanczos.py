"""The NumPy parts of `check`: both ends of a spectrum, and which matrices are the same up to a factor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmkl.numerics.alignment import centered_probes, proportional_groups
from dmkl.numerics.semidefinite import extreme_eigenvalues


def random_symmetric(size, seed, spread):
    """A matrix with eigenvalues over `spread` orders of magnitude, of both signs."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((size, size)))
    values = rng.choice([-1.0, 1.0], size) * 10.0 ** rng.uniform(-spread, 0, size)
    return (basis * values) @ basis.T


def extremes(matrix, n_steps, seed=0):
    return extreme_eigenvalues(matrix.__matmul__, len(matrix), n_steps=n_steps, rng=np.random.default_rng(seed))


@given(st.integers(1, 40), st.integers(0, 10**6), st.floats(0, 6))
def test_as_many_steps_as_rows_find_the_spectrum(size, seed, spread):
    matrix = random_symmetric(size, seed, spread)
    computed, exact = extremes(matrix, size, seed), np.linalg.eigvalsh(matrix)
    scale = np.abs(exact).max()
    assert computed.lowest == pytest.approx(exact[0], abs=1e-9 * scale)
    assert computed.highest == pytest.approx(exact[-1], abs=1e-9 * scale)
    assert computed.steps <= size


@given(st.integers(2, 60), st.integers(1, 12), st.integers(0, 10**6))
def test_few_steps_stay_inside_the_spectrum_and_their_bounds_hold(size, n_steps, seed):
    matrix = random_symmetric(size, seed, 2)
    computed, exact = extremes(matrix, n_steps, seed), np.linalg.eigvalsh(matrix)
    rounding = 1e-12 * np.abs(exact).max()
    assert exact[0] - rounding <= computed.lowest <= computed.highest <= exact[-1] + rounding
    assert np.abs(exact - computed.lowest).min() <= computed.lowest_bound + rounding
    assert np.abs(exact - computed.highest).min() <= computed.highest_bound + rounding


def groups_of(matrices, eps=1e-12):
    probes = centered_probes(len(matrices[0]), 4, np.random.default_rng(0))
    noise = np.array([eps * np.linalg.norm(matrix) for matrix in matrices])
    return proportional_groups(np.stack([probes.T @ matrix @ probes for matrix in matrices]), noise)


def test_positive_multiples_are_grouped_and_others_are_not():
    a, b = random_symmetric(30, 0, 1), random_symmetric(30, 1, 1)
    assert groups_of([a, b, 7 * a, -a, 0.5 * b, a + 1e-3 * b]) == [[0, 2], [1, 4]]


def test_a_constant_added_changes_nothing_once_centred():
    a = random_symmetric(30, 0, 1)
    assert groups_of([a, a + 5.0], eps=1e-10) == [[0, 1]]


def test_what_rounding_could_explain_is_in_no_group():
    a, ones = random_symmetric(30, 0, 1), np.ones((30, 30))
    assert groups_of([ones, 2 * ones, np.zeros((30, 30)), a]) == []
    # 1 + 1e-7 is 1 in single precision.
    assert groups_of([ones + 1e-7 * a, ones + 1e-7 * a], eps=1e-6) == []
