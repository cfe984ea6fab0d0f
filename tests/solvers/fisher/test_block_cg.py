"""Blocked conjugate gradients against dense solutions, and the resulting model of the inverse."""

from __future__ import annotations

import tracemalloc

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import IndefiniteKernelError, MemoryBudgetError
from dmkl.solvers.fisher.cg import InverseModel, block_cg
from dmkl.solvers.interface import ask, run_with


def operator(m, seed=0, spread=4.0):
    """A = ½(I + K/λ) with eigenvalues from ½ to about 10^spread, which decay like those of kernels."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((m, m)))
    return 0.5 * (np.eye(m) + (basis * 10 ** np.linspace(spread, -4, m)) @ basis.T)


def solved(a, b, target=None, dtype=np.float64, **options):
    """X and the number of products; products with A are in the given precision."""
    target = 1e-20 * np.sum(b**2) if target is None else target
    return run_with(block_cg(ask, b, target, 200, **options), lambda s: a.astype(dtype) @ s.astype(dtype))


# --- solutions ----------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 20), st.integers(0, 8), st.floats(0, 5), st.integers(0, 2**16))
def test_any_rank_of_the_right_hand_sides(m, columns, rank, spread, seed):
    """Dependent columns, zero columns, more columns than the rank, and no columns, which need no product."""
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((m, rank)) @ rng.integers(-1, 2, (rank, columns))
    a = operator(m, seed, spread)
    x, products = solved(a, b)
    assert products < 200
    assert (products == 0) == (not b.any())
    np.testing.assert_array_equal(x[:, ~b.any(axis=0)], 0)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=1e-8 * max(np.abs(x).max(), 1e-300))


# --- indefinite operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("lowest", "dtype"), [(-1.0, np.float32), (0.0, np.float64), (0.3, np.float64)])
def test_an_indefinite_kernel_is_told(lowest, dtype):
    """Any eigenvalue of A below ½ is one of K below zero."""
    values, vectors = np.linalg.eigh(operator(30, spread=0))
    values[0] = lowest
    b = vectors[:, :3] @ np.random.default_rng(0).standard_normal((3, 3))
    with pytest.raises(IndefiniteKernelError, match=r"Rayleigh quotient .*less than 1.*dmkl check.*repair="):
        solved((vectors * values) @ vectors.T, b, dtype=dtype)


@pytest.mark.parametrize("spread", [0.0, 4.0, 6.0])
def test_rounding_is_not_taken_for_indefinite(spread):
    b = np.random.default_rng(6).standard_normal((60, 4))
    _, products = solved(operator(60, spread=spread), b, 1e-6 * np.sum(b**2), np.float32)
    assert products > 0


# --- the model of A⁻¹ ---------------------------------------------------------------------------------------


def exact_curvature(a, products):
    """Σ_k W_ikᵀA⁻¹W_jk."""
    return np.einsum("imk,mr,jrk->ij", products, np.linalg.inv(a), products)


def test_curvature_is_exact_where_the_directions_span_everything():
    a, rng = operator(40, spread=3), np.random.default_rng(7)
    directions = InverseModel()
    _, products = solved(a, rng.standard_normal((40, 10)), directions=directions)
    assert products == len(directions.s) == len(directions.t)
    assert sum(s.shape[1] for s in directions.s) >= 40
    w = rng.standard_normal((5, 40, 3))
    np.testing.assert_allclose(directions.curvature(w), exact_curvature(a, w), rtol=1e-6)
    assert directions.outside(w[0], 54).shape == (40, 0)
    # A ⪰ ½I: without directions the model of A⁻¹ is 2I.
    flat = w.reshape(5, -1)
    np.testing.assert_allclose(InverseModel().curvature(w), 2 * flat @ flat.T, rtol=1e-12)


# --- its memory ---------------------------------------------------------------------------------------------


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
        tracemalloc.start()
        model.fit(K, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 3 * 2**20


def test_a_fit_of_little_memory_finds_the_same(tmp_path):
    K, y = stored_kernels(tmp_path, 120, 0.3)
    with dask.config.set({"dmkl.memory": "1MiB"}):
        model = dmkl.MKFDA(1.5, 1e-3, solver="cg").fit(K, y)
    with (
        dask.config.set({"dmkl.memory": "128KiB"}),
        pytest.raises(MemoryBudgetError, match="solver='cg' would take"),
    ):
        dmkl.MKFDA(1.5, 1e-3, solver="cg").fit(K, y)
    exact = dmkl.MKFDA(1.5, 1e-3, solver="direct", tol=1e-8).fit(K, y)
    assert model.gap_ <= model.tol
    assert model.objective_ == pytest.approx(exact.objective_, rel=model.tol)
