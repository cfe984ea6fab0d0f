"""Alignments of kernels: the pass over pairs of tiles against dense products, and estimates from random probes."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from helpers.references import Counting, Watching, dense_view, in_memory, over, psd, stepped
from hypothesis import given
from hypothesis import strategies as st

import dmkl
from dmkl import progress
from dmkl.errors import CorruptTileError, InputError, MemoryBudgetError
from dmkl.numerics.alignment import alignments, estimated, inner_products, sign_probes
from dmkl.passes import alignment as alignment_module
from dmkl.passes.alignment import gram_pass

M = 23
ROWS = np.array([20, 3, 3, 0, 15, 11, 8, 22, 4, 18, 13, 1])
CHAINS = [(), ("center",), ("cosine",), ("cosine", "center", "trace"), ("multiplicative", (slice(1, 9), slice(1, 9)))]


def aligned(kernels, centered=False):
    """By the definition, with 80 bits where the machine has them."""
    kernels = np.asarray(kernels, dtype=np.longdouble)
    if centered:
        means = kernels.mean(axis=2)
        grand = means.mean(axis=1)[:, None, None]
        kernels = kernels - means[:, :, None] - means[:, None, :] + grand
    gram = np.einsum("iab,jab->ij", kernels, kernels)
    norm = np.sqrt(gram.diagonal())
    return (gram / norm[:, None] / norm).astype(np.float64)


def reads(K, **options):
    """How often an alignment reads each tile."""
    K, counting = over(K, Counting)
    K.alignment(**options)
    return counting.reads


# --- against dense products ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_alignments_agree_everywhere(tmp_path, dense, dtype, scheduler):
    """Sums are in float64 whatever the kernels are stored in."""
    K = dmkl.create(tmp_path / "set.zarr", dense.astype(dtype), names=list("abcd"), tile=5)
    for chain in CHAINS:
        seen = stepped(K[ROWS, ROWS], chain)
        positions = tuple(tuple(np.arange(12)[part] for part in s) if isinstance(s, tuple) else s for s in chain)
        expected = dense_view(dense.astype(dtype), ROWS, ROWS, positions)
        for centered in (True, False):
            found = seen.alignment(centered)
            np.testing.assert_allclose(found, aligned(expected, centered), rtol=0, atol=1e-12)
    assert found.dims == ("kernel", "kernel_2")
    assert found.kernel.values.tolist() == found.kernel_2.values.tolist() == list("abcd")
    assert found.attrs["method"] == "exact"
    assert "standard_error" not in found.coords


@pytest.mark.usefixtures("synchronous")
@pytest.mark.parametrize("tile", [1, 4, 11, 12, 100])
@pytest.mark.parametrize("full", [False, True])
def test_alignments_agree_for_every_tile(tmp_path, tile, full):
    kernels = psd(3, 11)
    K = dmkl.create(tmp_path / "set.zarr", kernels, tile=tile, full=full)
    np.testing.assert_allclose(K.alignment(), aligned(kernels, centered=True), rtol=0, atol=1e-13)
    rows = np.array([10, 2, 2, 7, 0])
    part = kernels[:, rows][:, :, rows]
    np.testing.assert_allclose(K[rows, rows].alignment(False), aligned(part), rtol=0, atol=1e-13)


@pytest.mark.usefixtures("synchronous")
@given(
    m=st.integers(2, 14),
    n=st.integers(1, 5),
    tile=st.integers(1, 15),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
    entries=st.sampled_from([1, 7, 40, 2**15]),
    seed=st.integers(0, 99),
)
def test_centring_loses_no_digits_of_kernels_with_large_means(m, n, tile, offset, entries, seed):
    """An offset of 1e6 leaves 1e-16 · 1e12 of ⟨K_i, K_j⟩ − (2/m) r_iᵀr_j + s_is_j/m²: nothing."""
    kernels = psd(n, m, seed) + offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment_module, "_PANEL_ENTRIES", entries)
        found = in_memory(kernels, tile).alignment()
    # What is stored is rounded to 1e-16 · offset already: the reference sees the same entries.
    np.testing.assert_allclose(found, aligned(kernels, centered=True), rtol=0, atol=1e-15 * max(offset, 100.0))
    assert (found.values.diagonal() == 1).all()
    np.testing.assert_array_equal(found.values, found.values.T)


@pytest.mark.usefixtures("synchronous")
def test_centring_makes_an_offset_and_a_factor_no_difference(dense):
    found = in_memory(np.concatenate([dense, 7 * dense + 3.0]), 6).alignment().values
    np.testing.assert_allclose(found[:4, :4], found[4:, 4:], atol=1e-12)
    np.testing.assert_allclose(found[range(4), range(4, 8)], 1, atol=1e-12)


@pytest.mark.usefixtures("synchronous")
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


def test_sets_that_are_computed_or_in_memory(tmp_path, scheduler):
    x = np.random.default_rng(0).standard_normal((30, 4))
    specs = [{"function": "rbf", "bandwidth": [0.3, 1, 3]}, {"function": "linear"}]
    K = dmkl.build(None, {"x": x}, specs, tile=7)
    expected = aligned(np.asarray(K), centered=True)
    np.testing.assert_allclose(K.alignment(), expected, atol=1e-12)
    np.testing.assert_allclose(K.persist().alignment(), expected, atol=1e-12)
    product = K.select([0, 1]).product()
    np.testing.assert_allclose(product.alignment(), 1)


# --- one pass, within memory --------------------------------------------------------------------------------


@pytest.mark.usefixtures("synchronous")
def test_every_tile_is_read_once(stored):
    expected = {(k, i, j): 1 for k in range(4) for i in range(5) for j in range(i, 5)}
    assert reads(stored) == expected
    assert reads(stored, centered=False) == expected
    # Samples of some tiles alone: the others are not read.
    rows = np.array([1, 3, 21])
    some = {(k, i, j): 1 for k in range(4) for i, j in ((0, 0), (0, 4), (4, 4))}
    assert reads(stored[rows, rows], centered=False) == some
    assert reads(stored.center()[rows, rows], centered=False) == some


@pytest.mark.usefixtures("synchronous")
def test_persisted_tiles_are_not_read_again(stored):
    K, counting = over(stored, Counting)
    held = K.persist()
    counting.reads.clear()
    np.testing.assert_array_equal(held.alignment(), stored.alignment())
    assert not counting.reads


@pytest.mark.usefixtures("synchronous")
def test_many_kernels_go_through_a_small_budget(tmp_path):
    """Bands of rows where the tiles of all kernels do not fit, and a refusal where not a row of them does."""
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


@pytest.mark.usefixtures("synchronous")
def test_progress_goes_through_the_bytes_of_one_pass(stored):
    told = []

    class Watch(progress.Watch):
        def begin(self, what, total_bytes):
            told.append([what, total_bytes, 0])

        def advance(self, n_bytes):
            told[-1][2] += n_bytes

    with progress.watching(Watch()):
        stored.alignment()
    ((what, total, done),) = told
    assert what.startswith("alignment-pass-")
    assert total == done == stored.bytes_per_pass


@pytest.mark.usefixtures("synchronous")
def test_a_damaged_tile_is_told(stored):
    def fail():
        msg = "tile is damaged"
        raise CorruptTileError(msg)

    K, _ = over(stored, Watching, fail)
    with pytest.raises(CorruptTileError, match="tile is damaged"):
        K.alignment()


def test_what_has_no_alignment_is_refused(stored):
    with pytest.raises(InputError, match=r"same samples as rows and columns, got 3 rows and 23 columns; take K\["):
        stored[:3, :].alignment(centered=False)
    with pytest.raises(InputError, match=r"this view has none"):
        stored[:0, :0].alignment(centered=False)
    with pytest.raises(InputError, match=r"at least 3 of them, got 2"):
        stored.alignment(probes=2)


def test_rectangular_sets_are_refused(tmp_path):
    K = dmkl.create(tmp_path / "set.zarr", np.ones((1, 3, 4)), symmetric=False)
    with pytest.raises(InputError, match="this set is rectangular"):
        K.alignment(centered=False)
    with pytest.raises(InputError, match="rectangular"):
        K.alignment()


# --- estimates ----------------------------------------------------------------------------------------------


def products(kernels, width, seed):
    Z = sign_probes(kernels.shape[1], width, seed)
    return Z.T @ kernels @ Z


def test_estimates_of_inner_products_are_unbiased_and_vary_as_derived():
    """Over 3,000 draws of 40 probes; the variance to leading order, (8/b)(‖M‖² − Σ M_aa²), M = ½(K_iK_j + K_jK_i)."""
    kernels = psd(3, 12, rank=6)
    b, draws = 40, 3000
    found = np.array([inner_products(products(kernels, b, seed)) for seed in range(draws)])
    exact = np.einsum("iab,jab->ij", kernels, kernels)
    scatter = found.std(axis=0)
    assert np.all(np.abs(found.mean(axis=0) - exact) < 4 * scatter / np.sqrt(draws))
    both = np.einsum("iab,jbc->ijac", kernels, kernels)
    symmetric = 0.5 * (both + both.swapaxes(2, 3))
    squares = (symmetric**2).sum(axis=(2, 3)) - (np.einsum("ijaa->ija", symmetric) ** 2).sum(axis=2)
    leading = 8 / b * squares
    assert np.all(scatter**2 > 0.9 * leading)
    assert np.all(scatter**2 < 1.5 * leading)


@pytest.mark.parametrize(("width", "most"), [(50, 1.45), (200, 1.2)])
def test_standard_errors_are_those_of_repeated_estimates(width, most):
    """Or larger, by what the jackknife counts twice, which falls with the number of probes."""
    kernels = psd(3, 60, rank=20)
    exact = aligned(kernels)
    estimates = [estimated(products(kernels, width, seed), alignments) for seed in range(300)]
    values, errors = (np.array(part) for part in zip(*estimates, strict=True))
    upper = np.triu_indices(3, 1)
    scatter, told = values.std(axis=0)[upper], np.sqrt((errors**2).mean(axis=0))[upper]
    assert (told > 0.9 * scatter).all()
    assert (told < most * scatter).all()
    within = np.abs(values - exact)[:, *upper] < 2 * errors[:, *upper]
    assert within.mean() > 0.88


def test_leaving_out_probes_agrees_with_estimating_anew():
    kernels, b = psd(2, 15), 7
    projections = products(kernels, b, 3)
    value, error = estimated(projections, alignments)
    np.testing.assert_allclose(value, alignments(inner_products(projections)))
    kept = [np.delete(np.arange(b), a) for a in range(b)]
    without = np.array([alignments(inner_products(projections[:, k][:, :, k])) for k in kept])
    np.testing.assert_allclose(error, np.sqrt((b - 1) / b * ((without - without.mean(axis=0)) ** 2).sum(axis=0)))
    by_pairs = [projections[0, a, c] * projections[1, a, c] for a in range(b) for c in range(b) if a != c]
    np.testing.assert_allclose(inner_products(projections)[0, 1], np.mean(by_pairs))


@pytest.mark.parametrize("centered", [True, False])
def test_an_estimate_is_near_says_so_and_comes_back(stored, dense, centered, scheduler):
    exact = aligned(dense, centered)
    found = stored.alignment(centered, probes=200, seed=1)
    error = found.standard_error.values
    assert found.attrs["method"] == "estimate from 200 random probes, seed 1"
    assert (np.abs(found.values - exact) <= 4 * error + 1e-12).all()
    assert (error.diagonal() < 1e-12).all()
    assert 0 < error[0, 1] < 0.1
    again = stored.alignment(centered, probes=200, seed=1)
    np.testing.assert_allclose(again, found, atol=1e-12)
    assert not np.allclose(stored.alignment(centered, probes=200, seed=2), found)


def test_alignment_of_one_lens_is_that_of_its_inner_products(stored, dense):
    """The pass itself: inner products, and not their ratios alone."""
    K = stored.normalize("trace")
    gram = gram_pass(K.lens())
    scaled = dense / np.trace(dense, axis1=1, axis2=2)[:, None, None]
    np.testing.assert_allclose(gram, np.einsum("iab,jab->ij", scaled, scaled), rtol=1e-12)
