"""Samples matched by name: kernels, labels and splits from pandas, xarray and files, in any order, in three joins."""

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.conformance import problems
from helpers.reading import imported, kernels_in
from helpers.references import memory_below, psd
from hypothesis import given, settings
from hypothesis import strategies as st

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import open_files

M = 13
K = psd(2, M).round(6)
SAMPLES = [f"s{i}" for i in range(M)]
Y = pd.Series(list("abc" * 5)[:M], SAMPLES)
TASKS = pd.DataFrame(np.random.default_rng(1).integers(0, 2, (M, 2)), SAMPLES, ["cat", "dog"])
SPLITS = pd.DataFrame({"one": [0, 0, 1, 2] * 3 + [0], "two": [2, 1, 0, 0] * 3 + [0]}, SAMPLES)
ORDERS = [np.random.default_rng(seed).permutation(SAMPLES) for seed in range(3)]


def frames(*orders):
    """The kernels with rows and columns each in a different order."""
    whole = [pd.DataFrame(kernel, SAMPLES, SAMPLES) for kernel in K]
    return {f"k{j}": frame.loc[orders[j % len(orders)], orders[-1 - j % len(orders)]] for j, frame in enumerate(whole)}


# --- create --------------------------------------------------------------------------------------------------
def test_kernels_of_every_source_in_any_order_are_the_sorted_ones(tmp_path):
    expected = dmkl.create(tmp_path / "sorted.zarr", frames(SAMPLES), labels=Y, splits=SPLITS, tile=5)
    assert list(expected.samples) == SAMPLES
    mixed, whole = frames(*ORDERS), expected.to_xarray()
    following = {"k0": frames(SAMPLES)["k0"], "k1": mixed["k1"]}
    array = whole.sel(sample=ORDERS[0], train_sample=ORDERS[1]).transpose("sample", "kernel", "train_sample")
    arrays = {"k0": whole.sel(kernel="k0"), "k1": whole.sel(kernel="k1", sample=ORDERS[0]).compute()}
    splits = xr.DataArray(SPLITS.T, dims=("split", "sample"))
    for number, (kernels, more) in enumerate(
        (
            (following, {}),
            (iter(following.values()), {"names": list(following)}),
            (mixed, {"samples": SAMPLES}),  # with the order given, the first kernel may have any order too
            (array, {"samples": SAMPLES, "splits": splits}),
            (array.compute(), {"samples": SAMPLES, "splits": splits}),
            (arrays, {}),
        )
    ):
        more = {"labels": Y[ORDERS[1]], "splits": SPLITS.loc[ORDERS[2]], "tile": 5, **more}
        made = dmkl.create(tmp_path / f"{number}.zarr", kernels, **more)
        assert made.content_id == expected.content_id
        for name in ("names", "samples", "labels", "splits"):
            np.testing.assert_array_equal(getattr(made, name), getattr(expected, name))
        np.testing.assert_array_equal(made, expected)
        assert not problems(tmp_path / f"{number}.zarr")


def test_names_of_tasks_are_kept(tmp_path):
    mixed = TASKS.loc[ORDERS[0]]
    for number, labels in enumerate((mixed, xr.DataArray(mixed.T, dims=("task", "sample")))):
        made = dmkl.create(tmp_path / f"{number}.zarr", frames(SAMPLES), labels=labels, tile=5)
        assert list(made.tasks) == ["cat", "dog"]
        np.testing.assert_array_equal(made.labels, TASKS)
    named = dmkl.create(tmp_path / "named.zarr", frames(SAMPLES), labels=mixed, tasks=["a", "b"])
    assert list(named.tasks) == ["a", "b"]


def test_rectangular_frames_are_matched_along_both_axes(tmp_path):
    new = [f"new {i}" for i in range(M)]  # as many as training samples: only the names differ
    parts = [pd.DataFrame(kernel, new, SAMPLES) for kernel in K]
    made = dmkl.create(tmp_path / "set.zarr", [parts[0], parts[1].loc[new[::-1], ORDERS[0]]], tile=5)
    np.testing.assert_array_equal(np.asarray(made), K)
    assert (list(made.samples), list(made.train_samples)) == (new, SAMPLES)
    assert not made.is_square
    with pytest.raises(InputError, match="a symmetric kernel has the same samples in rows and columns, but kernel 0"):
        dmkl.create(tmp_path / "no.zarr", parts, symmetric=True)
    with pytest.raises(InputError, match="join='outer' is for square kernels"):
        dmkl.create(tmp_path / "no.zarr", [parts[0], parts[1].iloc[1:]], join="outer")


def test_a_generator_of_frames_follows_its_first(tmp_path):
    given = frames(SAMPLES)
    with pytest.raises(InputError, match=r"kernel 1 lacks 1 \('s12'\)"):
        dmkl.create(tmp_path / "b.zarr", iter([given["k0"], given["k1"].drop(index="s12", columns="s12")]))
    with pytest.raises(InputError, match="needs the names of all kernels before the first is read"):
        dmkl.create(tmp_path / "c.zarr", iter(given.values()), join="outer")


@pytest.mark.parametrize(
    ("kernels", "more", "message"),
    [
        ({}, {"labels": Y[:5]}, r"the 13 of kernel 'k0', labels= lacks 8 \('s5', 's6', 's7' …\)"),
        ({}, {"labels": Y[:5], "join": "outer"}, r"labels= lacks 8 of the 13 samples \('s5'"),
        ({}, {"join": "left"}, "join must be 'exact', 'inner' or 'outer', got 'left'"),
        ({}, {"samples": ["s1", "x"]}, r"the 2 of samples=, kernel 'k0' lacks 1 \('x'\)"),
        ({"k1": frames(SAMPLES)["k1"].iloc[:9, :9]}, {}, r"kernel 'k1' lacks 4 .*join='inner', --join inner"),
        (
            {"k1": pd.DataFrame(np.eye(2), ["u", "v"])},
            {"join": "inner"},
            "no sample is in all sources, by name: those of kernel 'k0' begin",
        ),
        (
            {"k0": frames(SAMPLES)["k0"].iloc[:9, :9]},
            {"join": "outer", "splits": SPLITS.assign(one=np.where(np.arange(M) < 9, 2, 0))},
            "no training sample has kernel 'k0'",
        ),
        ({"k1": pd.DataFrame(np.eye(2), ["u", "u"])}, {}, "kernel 'k1': sample names must be unique, but 'u'"),
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path, kernels, more, message):
    with pytest.raises(InputError, match=message):
        dmkl.create(tmp_path / "set.zarr", {**frames(SAMPLES), **kernels}, **more)
    assert not list(tmp_path.iterdir())


@settings(max_examples=8)
@given(data=st.data(), dtype=st.sampled_from(["f4", "f8"]))
@pytest.mark.slow
def test_outer_gives_the_mean_in_feature_space(tmp_path_factory, data, dtype):
    """Against Φ Φᵀ, with the mean over present training samples in place of absent rows."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    has = rng.random((2, M)) < 0.7
    has[:, rng.integers(M)] = True  # one sample is in both kernels, and every sample is in a kernel
    has[0] |= ~has[1]
    train = rng.random(M) < 0.6
    train |= has.all(axis=0)
    expected, parts = [], []
    for j in range(2):
        phi = rng.normal(size=(M, 20))
        exact = pd.DataFrame(phi @ phi.T, SAMPLES, SAMPLES).astype(dtype)
        kept = rng.permutation(np.array(SAMPLES)[has[j]])
        parts.append(exact.loc[kept, rng.permutation(kept)])
        phi[~has[j]] = phi[has[j] & train].mean(axis=0)
        expected.append(phi @ phi.T)
    path = tmp_path_factory.mktemp("outer") / "set.zarr"
    made = dmkl.create(path, parts, join="outer", samples=SAMPLES, splits=np.where(train, 0, 2), tile=5)
    assert not problems(path)
    tolerance = {"f4": 1e-5, "f8": 1e-12}[dtype]
    np.testing.assert_allclose(np.asarray(made), expected, atol=40 * tolerance)
    assert [made.provenance[j].get("n_missing", 0) for j in range(2)] == (~has).sum(axis=1).tolist()
    centered = np.asarray(made[:, np.flatnonzero(train)].center())
    for j in range(2):
        assert np.abs(centered[j][~has[j]]).max(initial=0) < 40 * tolerance
    assert np.linalg.eigvalsh(np.asarray(made)).min() > -40 * tolerance


def test_an_interrupted_import_tells_orders_apart(tmp_path):
    bad = frames(SAMPLES)
    bad["k1"] = bad["k1"].where(np.eye(M) == 0, np.nan)
    with pytest.raises(InputError, match="is nan"):
        dmkl.create(tmp_path / "set.zarr", bad, tile=5)
    made = dmkl.create(tmp_path / "set.zarr", frames(SAMPLES), samples=ORDERS[0], tile=5)
    at = [SAMPLES.index(name) for name in ORDERS[0]]
    np.testing.assert_array_equal(np.asarray(made), K[:, at][:, :, at])


# --- files ---------------------------------------------------------------------------------------------------
def test_labels_in_a_file_belong_to_the_samples_in_it(tmp_path):
    first, second = frames(*ORDERS).values()
    paths = [tmp_path / "k0.npz", tmp_path / "k1.npz"]
    for path, frame in zip(paths, (first.loc[SAMPLES], second), strict=True):
        names = frame.index.to_numpy(str)
        np.savez(path, K=frame[names], samples=names, **({"y": Y[names].to_numpy(str)} if frame is second else {}))
    kernels, _, known = kernels_in(paths)
    np.testing.assert_array_equal(known.labels, Y)
    np.testing.assert_array_equal(kernels, K)


def test_files_are_joined(tmp_path):
    whole = frames(SAMPLES)
    whole["k0"].iloc[:9, :9].to_csv(tmp_path / "a.csv")
    whole["k1"].loc[ORDERS[0], ORDERS[1]].to_csv(tmp_path / "b.csv")
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    with pytest.raises(InputError, match="kernel 'b' has 4 more"):
        open_files(paths)
    np.testing.assert_array_equal(kernels_in(paths, join="inner")[0], K[:, :9, :9])
    outer, _ = imported(paths, tmp_path / "outer.zarr", join="outer")
    assert list(outer.samples[:9]) == SAMPLES[:9]
    assert [made.get("n_missing") for made in outer.provenance] == [4, None]
    assert np.abs(np.asarray(outer.center())[0, 9:]).max() < 1e-12


def test_a_reordered_matrix_is_read_a_few_rows_at_a_time(tmp_path):
    names = [f"s{i}" for i in range(1000)]
    values = np.random.default_rng(0).random((1000, 1000))
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file.create_dataset("K", data=values, chunks=(20, 1000))
        file["samples"] = names
    (tmp_path / "ids.txt").write_text("\n".join(names[::-1]))
    matrix = next(open_files(tmp_path / "k.h5", samples=tmp_path / "ids.txt")[0].matrices())
    with memory_below(values.nbytes / 4):  # imports and other threads allocate about 0.3 MB of the 2 MB
        np.testing.assert_array_equal(matrix[10:30, 5:25], values[::-1, ::-1][10:30, 5:25])
