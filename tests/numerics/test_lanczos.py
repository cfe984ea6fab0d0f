"""Both ends of a spectrum, which `check` estimates, against dense eigenvalues."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dmkl.numerics.semidefinite import extreme_eigenvalues


def random_symmetric(size, seed, spread):
    """A matrix with eigenvalues over `spread` orders of magnitude, of both signs."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((size, size)))
    values = rng.choice([-1.0, 1.0], size) * 10.0 ** rng.uniform(-spread, 0, size)
    return (basis * values) @ basis.T


def extremes(matrix, n_steps, seed=0):
    return extreme_eigenvalues(matrix.__matmul__, len(matrix), n_steps=n_steps, rng=np.random.default_rng(seed))


@given(st.integers(2, 60), st.integers(1, 12), st.integers(0, 10**6))
def test_few_steps_stay_inside_the_spectrum_and_their_bounds_hold(size, n_steps, seed):
    matrix = random_symmetric(size, seed, 2)
    computed, exact = extremes(matrix, n_steps, seed), np.linalg.eigvalsh(matrix)
    rounding = 1e-12 * np.abs(exact).max()
    assert exact[0] - rounding <= computed.lowest <= computed.highest <= exact[-1] + rounding
    assert np.abs(exact - computed.lowest).min() <= computed.lowest_bound + rounding
    assert np.abs(exact - computed.highest).min() <= computed.highest_bound + rounding
