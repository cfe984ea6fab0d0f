"""Blocked conjugate gradients against dense solutions, and their memory."""

import dask
import numpy as np
import pytest
from helpers.references import memory_below
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import MemoryBudgetError
from dmkl.solvers.fisher.cg import block_cg
from dmkl.solvers.interface import ask, run_with


def operator(m, seed=0, spread=4.0):
    """A = ½(I + K/λ) with eigenvalues from ½ to about 10^spread, which decay like those of kernels."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((m, m)))
    return 0.5 * (np.eye(m) + (basis * 10 ** np.linspace(spread, -4, m)) @ basis.T)


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 8), st.floats(0, 5), st.integers(0, 2**16))
def test_any_rank_of_the_right_hand_sides(m, columns, rank, spread, seed):
    """Dependent columns, zero columns, more columns than the rank, and no columns, which need no product."""
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((m, rank)) @ rng.integers(-1, 2, (rank, columns))
    a = operator(m, seed, spread)
    x, products = run_with(block_cg(ask, b, 1e-20 * np.sum(b**2), 200), lambda block: a @ block)
    assert products < 200
    assert (products == 0) == (not b.any())
    np.testing.assert_array_equal(x[:, ~b.any(axis=0)], 0)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=1e-8 * max(np.abs(x).max(), 1e-300))


@pytest.mark.parametrize("spread", [0.0, 4.0, 6.0])
def test_rounding_is_not_taken_for_indefinite(spread):
    a, b = operator(60, spread=spread).astype(np.float32), np.random.default_rng(6).standard_normal((60, 4))
    _, products = run_with(block_cg(ask, b, 1e-6 * np.sum(b**2), 200), lambda block: a @ block.astype(np.float32))
    assert products > 0


def stored_kernels(folder, m, gamma):
    """Four Gaussian kernels and three classes."""
    X = np.random.default_rng(0).standard_normal((4, m, 3))
    y = (X[0] + 0.3 * X[1]).argmax(axis=1)
    K = dmkl.create(folder / "kernels.zarr", [rbf_kernel(x, gamma=gamma) for x in X], tile=128, dtype="float64")
    return K, y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
def test_a_fit_keeps_the_memory_budget(tmp_path):
    """All directions of an α-step would take more than 4 MiB."""
    K, y = stored_kernels(tmp_path, 400, 1.0)
    with dask.config.set({"dmkl.memory": "3MiB"}):
        model = dmkl.MKFDA(1.5, 1e-5, solver="cg", max_iter=1)
        clone(model).fit(K[:100, :100], y[:100])  # imported and compiled before
        with memory_below(3 * 2**20):
            model.fit(K, y)


def test_a_fit_of_little_memory_finds_the_same(tmp_path):
    K, y = stored_kernels(tmp_path, 120, 0.3)
    with dask.config.set({"dmkl.memory": "1MiB"}):
        model = dmkl.MKFDA(1.5, 1e-3, solver="cg").fit(K, y)
    with dask.config.set({"dmkl.memory": "128KiB"}), pytest.raises(MemoryBudgetError, match="solver='cg' would take"):
        dmkl.MKFDA(1.5, 1e-3, solver="cg").fit(K, y)
    exact = dmkl.MKFDA(1.5, 1e-3, solver="direct", tol=1e-8).fit(K, y)
    assert model.gap_ <= model.tol
    assert model.objective_ == pytest.approx(exact.objective_, rel=model.tol)
