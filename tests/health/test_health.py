"""The findings of `check` in sound sets and in sets with every kind of problem."""

import dask
import google_crc32c
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.damage import flip, tile_file
from helpers.references import psd
from sklearn.model_selection import KFold

import dmkl
from dmkl.errors import IndefiniteKernelWarning, MemoryBudgetError
from dmkl.health import check

M, TILE = 30, 8


def rbf(gamma, seed=0):
    features = np.random.default_rng(seed).standard_normal((M, 3))
    return np.exp(-gamma * ((features[:, None] - features[None]) ** 2).sum(axis=2))


def make(path, kernels, **more):
    return dmkl.create(path / "set.zarr", kernels, tile=TILE, **more)


def findings(report):
    """(severity, subject) of each finding, and all messages in one text."""
    rows = zip(report.severity.values.tolist(), report.subject.values.tolist(), strict=True)
    return list(rows), " | ".join(report.message.values.tolist())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sound_set_has_no_findings_and_its_figures_are_right(tmp_path, dtype):
    dense = psd(4, M)
    report = check(make(tmp_path, dense, names=list("abcd"), dtype=dtype), n_steps=M)
    assert report.sizes == {"kernel": 4, "finding": 0}
    spectra = np.linalg.eigvalsh(dense.astype(dtype))
    centred = np.trace(dense, axis1=1, axis2=2) - dense.sum(axis=(1, 2)) / M
    rounding = 1e-5 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(report.trace, np.trace(dense, axis1=1, axis2=2), rtol=rounding)
    np.testing.assert_allclose(report.mean_diagonal * M, report.trace)
    np.testing.assert_allclose(report.centered_trace, centred, rtol=rounding)
    np.testing.assert_allclose(report.largest_entry, np.abs(dense).max(axis=(1, 2)), rtol=rounding)
    np.testing.assert_allclose(report.lowest_eigenvalue, spectra[:, 0], rtol=1e-4)
    np.testing.assert_allclose(report.highest_eigenvalue, spectra[:, -1], rtol=rounding)
    assert (report.tiles == 10).all()
    assert (report.negative_part == 0).all()


def test_the_same_on_a_cluster_and_without_memory_to_hold_a_kernel(tmp_path, client):
    with pytest.warns(IndefiniteKernelWarning):
        K = make(tmp_path, {"a": rbf(1.0), "b": rbf(0.1) - 0.5 * np.eye(M)})
    there = check(K)
    # One task's budget: enough for the tiles and vectors of a step, but not for a whole kernel.
    budget = 6 * TILE**2 * 8 + (30 + 32) * M * 8 + 1000
    with dask.config.set({"scheduler": "synchronous", "dmkl.memory": budget}):
        here = check(K)
    xr.testing.assert_allclose(here, there, rtol=1e-9, atol=1e-12)  # texts are equal


def test_a_negative_eigenvalue_is_told_with_its_figure(tmp_path):
    kernel = psd(1, M)[0]
    kernel -= np.linalg.eigvalsh(kernel)[-1] * 0.01 * np.eye(M)
    exact = np.linalg.eigvalsh(kernel)
    assert exact[0] < 0
    report = check(make(tmp_path, {"good": rbf(1.0), "bad": kernel}))
    rows, text = findings(report)
    assert rows == [("warning", "bad")]
    assert f"{exact[0]:.3g}" in text
    assert "--repair clip" in text
    assert report.negative_part.sel(kernel="bad") == pytest.approx(-exact[0] / exact[-1], rel=1e-3)


def test_rounding_in_single_precision_is_no_warning(tmp_path):
    low_rank = np.random.default_rng(0).standard_normal((M, 2)).astype(np.float32)
    kernel = low_rank @ low_rank.T
    kernel = (kernel + kernel.T) / 2
    assert np.linalg.eigvalsh(kernel.astype(float))[0] < 0
    assert findings(check(make(tmp_path, kernel[None])))[0] == []


def test_repeated_and_proportional_kernels_are_named(tmp_path):
    a, b = rbf(1.0), rbf(0.01)
    kernels = {"a": a, "again": a, "b": b, "scaled": 3 * a, "near": rbf(1.01)}
    report = check(make(tmp_path, kernels))
    rows, text = findings(report)
    assert rows == [("warning", "again"), ("warning", "scaled")]
    assert report.repeats.values.tolist() == ["", "a", "", "a", ""]
    np.testing.assert_allclose(report.factor, [1, 1, 1, 3, 1], rtol=1e-5)
    assert "the same as kernel 'a'" in text
    assert "3 times kernel 'a'" in text


def test_constant_kernels_and_different_scales_are_told(tmp_path):
    constant = {"constant": np.full((M, M), 7.0), "zero": np.zeros((M, M))}
    rows, text = findings(check(make(tmp_path, {"small": rbf(1.0), **constant, "large": 1e5 * rbf(0.1)})))
    assert rows == [("warning", "constant"), ("warning", "zero"), ("note", "zero"), ("note", "")]
    assert "'large'" in text
    assert "k(x, x) = 0" in text


@pytest.mark.parametrize("full", [False, True])
def test_every_damaged_tile_is_counted(tmp_path, full):
    """Tiles are read again that were read and checked before."""
    K = make(tmp_path, {"a": rbf(1.0), "b": rbf(0.1), "c": rbf(0.01)}, full=full)
    assert findings(check(K))[0] == []
    flip(tile_file(tmp_path / "set.zarr", 0, 0, 0))
    flip(tile_file(tmp_path / "set.zarr", 0, 1, 3))
    tile_file(tmp_path / "set.zarr", 0, 1, 2).unlink()
    tile_file(tmp_path / "set.zarr", 1, 3, 3).write_bytes(b"short")
    if full:
        flip(tile_file(tmp_path / "set.zarr", 2, 3, 0))
    report = check(K)
    rows, text = findings(report)
    assert rows == [("error", name) for name in ("abc" if full else "ab")]
    assert report.damaged_tiles.values.tolist() == [3, 1, int(full)]
    assert f"3 of {16 if full else 10} tiles" in text
    assert np.isnan(report.highest_eigenvalue.sel(kernel="a"))
    assert report.highest_eigenvalue.sel(kernel="c").notnull() == (not full)


def test_statistics_that_do_not_belong_to_the_matrices_are_seen(tmp_path):
    K = make(tmp_path, {"a": rbf(1.0), "b": rbf(0.1)})
    assert findings(check(K))[0] == []
    group = zarr.open_group(tmp_path / "set.zarr", mode="r+")
    group["row_sum"][0, 3] += 0.5
    group["diagonal"][1, 4] = 2.0
    rows, text = findings(check(K))
    assert rows == [("error", "a"), ("error", "b")]
    assert "row sums" in text
    assert "diagonal" in text


def add_to_tile(path, kernel, i, j, added):
    """Add numbers to entries of a tile, against a rule, with a matching record, as another program might."""
    group = zarr.open_group(path, mode="r+")
    rows, cols = slice(i * TILE, min((i + 1) * TILE, M)), slice(j * TILE, min((j + 1) * TILE, M))
    block = np.array(group["gram_upper"][kernel, rows, cols])
    for place, number in added.items():
        block[place] += number
    group["gram_upper"][kernel, rows, cols] = block
    group["tile_crc32c"][kernel, i, j] = google_crc32c.value(block.tobytes())


def test_an_asymmetric_diagonal_tile_and_nan_are_errors(tmp_path):
    make(tmp_path, {"a": rbf(1.0), "b": rbf(0.1), "c": rbf(0.01)})
    add_to_tile(tmp_path / "set.zarr", 0, 1, 1, {(0, 1): 0.125, (1, 0): -0.125})
    add_to_tile(tmp_path / "set.zarr", 1, 0, 2, {(2, 3): np.nan})
    report = check(dmkl.open(tmp_path / "set.zarr"))
    rows, text = findings(report)
    assert rows[:2] == [("error", "a"), ("error", "a")]  # its row sums are off too
    assert ("error", "b") in rows
    assert report.asymmetry.values == pytest.approx([0.25, 0, 0])
    assert report.not_finite.values.tolist() == [0, 1, 0]
    assert "NaN" in text


def test_a_rectangular_set_is_read_and_compared_with_its_record(tmp_path):
    kernels = np.random.default_rng(0).standard_normal((2, 12, M))
    K = make(tmp_path, kernels, names=["a", "b"])
    report = check(K)
    assert findings(report)[0] == []
    assert report.trace.isnull().all()
    np.testing.assert_allclose(report.largest_entry, np.abs(kernels).max(axis=(1, 2)))
    flip(tile_file(tmp_path / "set.zarr", 1, 0, 3))
    assert findings(check(dmkl.open(tmp_path / "set.zarr")))[0] == [("error", "b")]


def test_it_looks_at_the_store_whatever_the_view(tmp_path):
    dense = psd(3, M)
    with pytest.warns(IndefiniteKernelWarning):
        K = make(tmp_path, {"a": dense[0], "b": dense[1], "c": -dense[2]})
    part = K.select(["b", "c"])[:5, :5].center()
    report = check(part)
    assert report.kernel.values.tolist() == ["b", "c"]
    assert report.trace.values[0] == pytest.approx(np.trace(dense[1]))
    assert findings(report)[0] == [("warning", "c")]
    assert report.negative_part.values == pytest.approx([0, 1])
    assert check(part.persist()).equals(report)


def test_a_budget_that_is_too_small_is_told(stored):
    with dask.config.set({"dmkl.memory": 1000}), pytest.raises(MemoryBudgetError, match="examining this set"):
        check(stored)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", ["given", "linear", "cosine", "rbf"])
@pytest.mark.parametrize("stored", [False, True])
def test_identical_samples_are_counted(function, stored, dtype, tmp_path):
    rng, path = np.random.default_rng(5), tmp_path / "k" if stored else None
    X = {name: rng.normal(size=(60, 9)) for name in "ab"}
    for values in X.values():
        values[50:] = values[10:20]
        values[40:45] = values[:5] + 1e-2 * rng.normal(size=(5, 9))  # measured twice
    X["a"][45] = X["a"][30]  # identical in one kernel
    if function == "given":
        kernels = [X["a"] @ X["a"].T, np.exp(-((X["b"][:, None] - X["b"]) ** 2).sum(axis=2))]
        K = dmkl.create(path, kernels, dtype=dtype, tile=16)
    else:
        specs = [{"function": function}, {"function": function, "columns": [0, 1, 2]}]
        K = dmkl.build(path, X, specs, dtype=dtype, tile=16)
        assert (K.provenance[0].get("storage") == "factors") == (stored and function != "rbf")
    texts = [text for text in check(K).message.values.tolist() if "pairs of samples" in text]
    assert len(texts) == 1
    assert texts[0].startswith("10 pairs of samples are identical in all kernels")
    assert "--groups" in texts[0]


def test_all_pairs_of_copies_are_counted(monkeypatch):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(30, 5))
    X[[3, 9, 17, 26]] = X[0]  # 5 copies are 10 pairs
    X[[5, 6]] = X[1]  # 3 copies are 3 pairs
    K = dmkl.create(None, [X @ X.T], labels=rng.integers(0, 2, 30), tile=8)

    def texts():
        notes = dmkl.search(dmkl.Uniform(), K, grid={"lam": [0.1]}, baselines="none", cv=KFold(30)).notes()
        return [text for text in (*dmkl.health.check(K).message.values.tolist(), *notes) if "identical in all" in text]

    of_check, of_search = texts()
    assert of_check.startswith("13 pairs of samples are identical")
    assert of_search.startswith("13 pairs of samples identical in all kernels, 13 of them")
    monkeypatch.setattr("dmkl.kernelset._MOST_CANDIDATES", 2)
    assert all(text.startswith("at least 3 pairs") for text in texts())


def test_searches_and_evaluations_count_copies_in_other_folds():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(40, 5))
    K = dmkl.create(None, [np.r_[X, X[:6]] @ np.r_[X, X[:6]].T], labels=rng.integers(0, 2, 46))
    groups = np.r_[np.arange(40), np.arange(6)]
    for run in (dmkl.search, dmkl.evaluate):
        apart, together = (
            run(dmkl.Uniform(), K, grid={"lam": [0.1]}, baselines="none", groups=given).notes()
            for given in (None, groups)
        )
        assert any(
            "6 pairs of samples identical in all kernels, 6 of them in different parts" in note for note in apart
        )
        assert any("identical in all kernels, 0 of them in different parts of a fold" in note for note in together)
