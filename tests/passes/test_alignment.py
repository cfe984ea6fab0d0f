"""Alignments of kernels: the pass over pairs of tiles against dense products, and estimates from random probes."""

import dask
import numpy as np
import pytest
from helpers.references import Counting, dense_view, in_memory, over, psd, stepped
from hypothesis import given
from hypothesis import strategies as st

import dmkl
from dmkl.errors import MemoryBudgetError
from dmkl.numerics.alignment import alignments, estimated, sign_probes
from dmkl.passes import alignment as alignment_module

M = 23
ROWS = np.array([20, 3, 3, 0, 15, 11, 8, 22, 4, 18, 13, 1])
CHAINS = [(), ("cosine", "center", "trace"), ("multiplicative", (np.arange(1, 9), np.arange(1, 9)))]


def aligned(kernels, centered=False):
    """Alignments by the definition, in extended precision where available."""
    kernels = np.asarray(kernels, dtype=np.longdouble)
    if centered:
        means = kernels.mean(axis=2)
        grand = means.mean(axis=1)[:, None, None]
        kernels = kernels - means[:, :, None] - means[:, None, :] + grand
    gram = np.einsum("iab,jab->ij", kernels, kernels)
    norm = np.sqrt(gram.diagonal())
    return (gram / norm[:, None] / norm).astype(np.float64)


def reads(K, **options):
    """The number of reads of each tile by an alignment."""
    K, counting = over(K, Counting)
    K.alignment(**options)
    return counting.reads


# --- against dense products ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "scheduler"),
    [("float64", "synchronous"), ("float32", "threads"), pytest.param("float64", "processes", marks=pytest.mark.slow)],
    indirect=["scheduler"],
)
def test_alignments_agree_everywhere(tmp_path, dense, dtype, scheduler):
    """Sums are in float64 for kernels of any precision."""
    K = dmkl.create(tmp_path / "set.zarr", dense.astype(dtype), names=list("abcd"), tile=5)
    for chain in CHAINS:
        seen = stepped(K[ROWS, ROWS], chain)
        expected = dense_view(dense.astype(dtype), ROWS, ROWS, chain)
        for centered in (True, False):
            alignment = seen.alignment(centered)
            np.testing.assert_allclose(alignment, aligned(expected, centered), rtol=0, atol=1e-12)
    assert alignment.dims == ("kernel", "kernel_2")
    assert alignment.kernel.values.tolist() == alignment.kernel_2.values.tolist() == list("abcd")
    assert alignment.attrs["method"] == "exact"
    assert "standard_error" not in alignment.coords


@given(
    m=st.integers(2, 14),
    n=st.integers(1, 5),
    tile=st.integers(1, 15),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
    entries=st.sampled_from([1, 7, 40, 2**15]),
    seed=st.integers(0, 99),
)
def test_centring_loses_no_digits_of_kernels_with_large_means(m, n, tile, offset, entries, seed):
    """With an offset of 1e6 the error of ⟨K_i, K_j⟩ − (2/m) r_iᵀr_j + s_is_j/m² is 1e-16 · 1e12."""
    kernels = psd(n, m, seed) + offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment_module, "_PANEL_ENTRIES", entries)
        alignment = in_memory(kernels, tile).alignment()
    # Stored entries are rounded to 1e-16 · offset already: the reference uses the same entries.
    np.testing.assert_allclose(alignment, aligned(kernels, centered=True), rtol=0, atol=1e-15 * max(offset, 100.0))
    assert (alignment.values.diagonal() == 1).all()
    np.testing.assert_array_equal(alignment.values, alignment.values.T)


def test_a_kernel_of_which_centring_leaves_rounding_has_no_alignment(tmp_path, dense):
    kernels = np.stack([dense[0], np.full((M, M), 0.1), np.zeros((M, M))]).astype(np.float32)
    K = dmkl.create(tmp_path / "set.zarr", kernels, tile=8)
    centered = K.alignment().values
    assert centered[0, 0] == 1
    assert np.isnan(centered[1:]).all()
    assert np.isnan(centered[:, 1:]).all()
    raw = K.alignment(centered=False).values
    np.testing.assert_allclose(raw[:2, :2], aligned(kernels[:2]), atol=1e-12)
    assert np.isnan(raw[2]).all()


# --- one pass, within memory --------------------------------------------------------------------------------
def test_every_tile_is_read_once(stored):
    expected = {(k, i, j): 1 for k in range(4) for i in range(5) for j in range(i, 5)}
    assert reads(stored) == expected
    assert reads(stored, centered=False) == expected
    # Samples of some tiles only: the others are not read.
    rows = np.array([1, 3, 21])
    some = {(k, i, j): 1 for k in range(4) for i, j in ((0, 0), (0, 4), (4, 4))}
    assert reads(stored[rows, rows], centered=False) == some
    assert reads(stored.center()[rows, rows], centered=False) == some


def test_many_kernels_go_through_a_small_budget(tmp_path):
    """Bands of rows if the tiles of all kernels do not fit, and an error if not even one row fits."""
    kernels = psd(40, 64, rank=5)
    K = dmkl.create(tmp_path / "set.zarr", kernels, tile=32)
    expected = aligned(kernels, centered=True)
    np.testing.assert_allclose(K.alignment(), expected, atol=1e-13)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment_module, "_PANEL_ENTRIES", 32)
        for budget, most in ((2**20, 1), (2**18, 4)):
            with dask.config.set({"dmkl.memory": budget}):
                np.testing.assert_allclose(K.alignment(), expected, atol=1e-13)
                times = set(reads(K).values())
                assert max(times) <= most
                assert (min(times) > 1) == (most > 1)
        with (
            dask.config.set({"dmkl.memory": 2**16}),
            pytest.raises(MemoryBudgetError, match=r"a row of every kernel's tile.*dmkl\.memory"),
        ):
            K.alignment()


# --- estimates ----------------------------------------------------------------------------------------------
def test_standard_errors_are_those_of_repeated_estimates():
    """The standard errors may be larger, as the jackknife counts some terms twice."""
    kernels = psd(3, 60, rank=20)
    exact = aligned(kernels)
    probes = [sign_probes(60, 50, seed) for seed in range(300)]
    estimates = [estimated(Z.T @ kernels @ Z, alignments) for Z in probes]
    values, errors = (np.array(part) for part in zip(*estimates, strict=True))
    upper = np.triu_indices(3, 1)
    scatter, claimed = values.std(axis=0)[upper], np.sqrt((errors**2).mean(axis=0))[upper]
    assert (claimed > 0.9 * scatter).all()
    assert (claimed < 1.45 * scatter).all()
    within = np.abs(values - exact)[:, *upper] < 2 * errors[:, *upper]
    assert within.mean() > 0.88


def test_an_estimate_is_near_says_so_and_comes_back(stored, dense, scheduler):
    centered = scheduler != "threads"
    exact = aligned(dense, centered)
    alignment = stored.alignment(centered, probes=200, seed=1)
    error = alignment.standard_error.values
    assert alignment.attrs["method"] == "estimate from 200 random probes, seed 1"
    assert (np.abs(alignment.values - exact) <= 4 * error + 1e-12).all()
    assert (error.diagonal() < 1e-12).all()
    assert 0 < error[0, 1] < 0.1
    again = stored.alignment(centered, probes=200, seed=1)
    np.testing.assert_allclose(again, alignment, atol=1e-12)
    assert not np.allclose(stored.alignment(centered, probes=200, seed=2), alignment)
