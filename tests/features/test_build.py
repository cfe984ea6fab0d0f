"""Building kernel sets from features: storage, interruptions and refusals."""

from functools import cache

import dask
import numpy as np
import pandas as pd
import pytest
from helpers.conformance import problems, tree
from helpers.faults import interrupted
from scipy.spatial.distance import pdist
from sklearn.metrics import pairwise
from zarr.storage import MemoryStore

import dmkl
from dmkl.errors import IncompleteStoreError, InputError, MemoryBudgetError, StoreExistsError, StoreNotFoundError
from dmkl.store.features import read_tables
from dmkl.store.reader import StoreReader
from dmkl.store.tiles import TileWriter

M = 37
SPECS = [
    {"function": ["rbf", "laplacian"], "feature": "a", "bandwidth": [0.5, 2]},
    {"function": ["rbf", "chi2", "linear", "polynomial", "cosine", "intersection"], "feature": "b"},
    {"function": "rbf", "feature": "a", "columns": {"left": [0, 1], "right": [5, 3]}},
    {"function": "pyramid", "feature": "b", "levels": 2},
    {"function": "proximity", "feature": "a", "scales": [2, 4], "weights": [1.0, 0.5]},
    {"function": "distance", "feature": "D"},
    {"function": "random_rbf", "copies": 2},
]


@cache
def features():
    rng = np.random.default_rng(0)
    a, b = rng.random((M, 6)), rng.random((M, 5)).astype("f4")
    D = pairwise.manhattan_distances(rng.random((M, 4)))
    return {"a": a, "b": b, "D": np.maximum(D, D.T)}


def some(*names):
    return {name: features()[name] for name in names}


def lacking(**absent):
    """Features with rows of NaN."""
    tables = {name: features()[name].copy() for name in ("a", "b")}
    for name, rows in absent.items():
        tables[name][rows] = np.nan
    return tables


# --- storage -------------------------------------------------------------------------------------------------
def test_stored_is_computed(tmp_path):
    K = dmkl.build(tmp_path / "set.zarr", features(), SPECS, tile=10)
    lazy = dmkl.build(None, features(), SPECS, tile=10)
    assert K.names == lazy.names
    np.testing.assert_array_equal(K, lazy)
    assert not problems(tmp_path / "set.zarr")
    every = np.arange(len(K))
    np.testing.assert_allclose(lazy.view.source.diagonal(every), StoreReader(tmp_path / "set.zarr").diagonal(every))
    dense = np.asarray(K)
    for tile in (6, 36, 37, 100):
        np.testing.assert_allclose(dmkl.build(None, features(), SPECS, tile=tile), dense, rtol=1e-12, atol=1e-14)
    V = np.random.default_rng(3).random((M, 2))
    np.testing.assert_allclose(K.apply(V), dense @ V, rtol=1e-10)
    np.testing.assert_allclose(lazy.apply(V), dense @ V, rtol=1e-10)


def test_wherever_tasks_run_the_set_is_the_same(tmp_path, scheduler, synchronous_content):
    K = dmkl.build(tmp_path / "set.zarr", features(), SPECS, tile=16)
    assert tree(tmp_path / "set.zarr") == synchronous_content
    lazy = dmkl.build(None, features(), SPECS, tile=16)
    assert [e["parameters"] for e in lazy.provenance] == [e["parameters"] for e in K.provenance]
    V = np.ones((M, 3))
    np.testing.assert_array_equal(lazy.apply(V), K.apply(V))
    np.testing.assert_allclose(lazy.persist().apply(V), K.apply(V), rtol=1e-12)


def test_cores_do_not_show_in_what_is_built(tmp_path):
    """Features and tiles are wide, so that BLAS divides the work among its threads."""
    rng = np.random.default_rng(4)
    tables = {"x": rng.random((300, 200)), "y": rng.random((300, 30)).astype("f4")}
    tables["y"][[5, 250]] = np.nan
    specs = {"function": ["linear", "rbf", "laplacian", "chi2"], "feature": ["x", "y"]}
    for threads in (1, 4):
        with dask.config.set({"dmkl.blas-threads": threads}):
            dmkl.build(tmp_path / str(threads), tables, specs, missing="zero", tile=300)
    assert tree(tmp_path / "1") == tree(tmp_path / "4")


@pytest.fixture(scope="module")
def synchronous_content(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "set.zarr"
    with dask.config.set(scheduler="synchronous"):
        dmkl.build(path, features(), SPECS, tile=16)
    return tree(path)


@pytest.mark.parametrize("missing", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_provenance_is_enough_to_compute_the_kernels_again(tmp_path, missing):
    tables = {name: np.array(table) for name, table in features().items()}
    if missing:
        tables["a"][[3, 20]] = np.nan
    more = {"missing": "zero"} if missing else {}
    K = dmkl.build(tmp_path / "set.zarr", tables, SPECS, tile=16, train=range(25), **more)
    again = [respelled(entry) for entry in K.provenance]
    # The specifications have no bandwidth: only means of absent samples depend on the training rows.
    built = dmkl.build(tmp_path / "again.zarr", tables, again, tile=16, train=range(25), **more)
    assert built.content_id == K.content_id
    for entry in K.provenance:
        assert entry["training_content"] == K.provenance[0]["training_content"]
        if "feature" in entry and entry["feature"] != "D":
            assert entry["feature_content"] == read_tables(str(tmp_path / "set.zarr"))[entry["feature"]].content


def respelled(entry):
    """A specification from the provenance in a store."""
    spec = {key: entry[key] for key in ("name", "function", "feature", "columns") if key in entry}
    parameters = dict(entry["parameters"])
    if "widths" in parameters:
        parameters["levels" if entry["function"] == "pyramid" else "scales"] = parameters.pop("widths")
    return spec | parameters


def test_features_stand_beside_the_kernels_in_any_zarr_store():
    store, frame = MemoryStore(), pd.DataFrame(features()["a"], columns=list("uvwxyz"))
    specs = [{"function": "linear", "feature": ["a", "b"]}, {"function": "distance", "feature": "D"}]
    dmkl.build(store, {**features(), "a": frame, "unused": np.ones((M, 2))}, specs, tile=8)
    tables = read_tables(store)
    assert set(tables) == {"a", "b"}  # distances to training samples are of no use for new ones
    np.testing.assert_array_equal(tables["a"].read(slice(0, M)), features()["a"])
    np.testing.assert_array_equal(tables["b"].read(slice(3, 9), np.array([4, 0])), features()["b"][3:9, [4, 0]])
    np.testing.assert_allclose(tables["a"].center, features()["a"].mean(axis=0))
    assert tables["a"].columns == tuple("uvwxyz")
    assert tables["b"].columns is None
    assert tables["b"].dtype == np.float32
    with pytest.raises(StoreExistsError, match="holds something already"):
        dmkl.build(store, some("a", "b"), FEW, tile=8)


def test_labels_splits_and_samples(tmp_path):
    samples, labels = [f"s{i}" for i in range(M)], np.arange(M) % 3
    splits = np.stack([np.where(np.arange(M) < 20, 0, 2), np.where(np.arange(M) < 30, 0, 1)])
    more = {"samples": samples, "labels": labels, "splits": splits}
    for path in (tmp_path / "set.zarr", None):
        K = dmkl.build(path, some("a"), {"function": "rbf"}, **more)
        assert list(K.samples) == list(K.train_samples) == samples
        np.testing.assert_array_equal(K.labels, labels)
        np.testing.assert_array_equal(K.splits, splits)
        assert K.provenance[0]["training_rows"] == 20
    assert not problems(tmp_path / "set.zarr")
    tasks = np.eye(M, 2, dtype=int)
    K = dmkl.build(tmp_path / "tasks.zarr", some("a"), {"function": "rbf"}, labels=tasks, tasks=["u", "v"])
    np.testing.assert_array_equal(K.labels, tasks)
    assert list(K.tasks) == ["u", "v"]
    with pytest.raises(InputError, match=r"labels= has shape \(2,\), expected \(37,\)"):
        dmkl.build(None, some("a"), {"function": "rbf"}, labels=[0, 1])


def test_memory_is_refused_before_anything_is_computed(tmp_path):
    wide = np.random.default_rng(0).random((300, 2000))
    with dask.config.set({"dmkl.memory": "1MiB"}), pytest.raises(MemoryBudgetError, match="smaller tile"):
        dmkl.build(tmp_path / "set.zarr", {"x": wide}, {"function": "linear"}, tile=300)
    assert not (tmp_path / "set.zarr").exists()
    dmkl.build(tmp_path / "set.zarr", {"x": wide}, {"function": "linear"}, tile=300)


# --- interruption --------------------------------------------------------------------------------------------
def tiles_in(folder):
    """Every tile file with its inode, which another write would change."""
    files = folder.glob("gram_upper/c/*/*/*")
    return {file.relative_to(folder): file.stat().st_ino for file in files if file.name.isdecimal()}


def build_until(n, *args, **more):
    """Build, and stop before the n-th tile is written."""
    with interrupted(TileWriter, "write", n):
        dmkl.build(*args, **more)


FEW = [{"function": "rbf"}, {"function": "linear", "feature": "b"}]
TILES = 3 * 15  # kernels a-rbf, b-rbf, b-linear, each of 5 · 6/2 tiles


@pytest.mark.parametrize("n", [0, 16])
def test_what_stands_is_not_computed_again(tmp_path, computed, n):
    dmkl.build(tmp_path / "whole.zarr", some("a", "b"), FEW, tile=8)
    assert len(computed) == TILES
    path = tmp_path / "set.zarr"
    build_until(n, path, some("a", "b"), FEW, tile=8)
    stood = tiles_in(tmp_path / "set.zarr.partial")
    with pytest.raises((IncompleteStoreError, StoreNotFoundError)):
        dmkl.open(path)
    computed.clear()
    dmkl.build(path, some("a", "b"), FEW, tile=8)
    assert sum(computed.values()) == TILES - n
    assert stood.items() <= tiles_in(path).items()
    assert tree(path) == tree(tmp_path / "whole.zarr")


def test_a_damaged_tile_is_computed_again(tmp_path, computed):
    whole = dmkl.build(tmp_path / "whole.zarr", some("a", "b"), FEW, tile=8)
    path = tmp_path / "set.zarr"
    build_until(20, path, some("a", "b"), FEW, tile=8)
    harmed = sorted((tmp_path / "set.zarr.partial").glob("gram_upper/c/*/*/*"))[::4]
    for number, file in enumerate(harmed):
        content = bytearray(file.read_bytes())
        content[17] ^= 1
        file.write_bytes([content, content[:100], b""][number % 3])  # flipped, cut short, empty
    computed.clear()
    made = dmkl.build(path, some("a", "b"), FEW, tile=8)
    assert sum(computed.values()) == TILES - 20 + len(harmed)
    assert made.content_id == whole.content_id
    assert not problems(path)


WITHOUT = {"tables": lacking(a=[9]), "specs": {"function": ["cosine", "linear", "rbf"]}, "missing": "zero"}
CHANGES = {
    "a value": ({}, {"tables": some("a") | {"b": features()["b"] + 0.25 * (np.arange(5) == 2)}}),
    "train": ({}, {"train": range(20)}),
    "samples": ({}, {"samples": [f"s{i}" for i in range(M)]}),
    "bandwidth": ({}, {"specs": [{"function": "rbf", "bandwidth": 2.0, "name": "{feature}-rbf"}, *FEW[1:]]}),
    "more": ({}, {"specs": [*FEW, {"function": "cosine", "feature": "a"}]}),
    "rows": ({}, {"tables": {name: table[::-1] for name, table in some("a", "b").items()}}),
    "names of columns": (
        {"tables": some("b") | {"a": pd.DataFrame(features()["a"], columns=list("uvwxyz"))}},
        {"tables": some("b") | {"a": pd.DataFrame(features()["a"], columns=list("abcdef"))}},
    ),
    "mask": (WITHOUT, {**WITHOUT, "present": {"a": ~np.isin(np.arange(M), [3, 5])}}),
    "means of the training rows": ({**WITHOUT, "train": range(30)}, {**WITHOUT, "train": range(20)}),
}


@pytest.mark.parametrize("case", CHANGES)
def test_whatever_changes_between_runs_nothing_is_mixed(tmp_path, case):
    path, fresh = tmp_path / "set.zarr", tmp_path / "fresh.zarr"
    before, after = ({"tables": some("a", "b"), "specs": FEW, "tile": 8, **change} for change in CHANGES[case])
    build_until(37, path, before.pop("tables"), before.pop("specs"), **before)
    tables, specs = after.pop("tables"), after.pop("specs")
    made = dmkl.build(path, tables, specs, **after)
    dmkl.build(fresh, tables, specs, **after)
    assert tree(path) == tree(fresh)
    assert not problems(path)
    assert [e["name"] for e in made.provenance] == list(made.names)


def test_imports_and_builds_over_unfinished_sets_of_the_other_keep_nothing(tmp_path):
    path, other = tmp_path / "set.zarr", tmp_path / "other.zarr"
    build_until(20, path, some("a", "b"), FEW, tile=8)
    kernels = np.asarray(dmkl.build(None, some("a"), {"function": "linear"}, tile=8))
    made = dmkl.create(path, kernels, tile=8)
    np.testing.assert_array_equal(made, kernels)
    assert not (path / "features").exists()
    assert not problems(path)
    assert "function" not in made.provenance[0]
    with interrupted(TileWriter, "write", 20):
        dmkl.create(other, [*kernels] * 3, tile=8)
    for built in (other, tmp_path / "fresh.zarr"):
        dmkl.build(built, some("a", "b"), FEW, tile=8)
    assert tree(other) == tree(tmp_path / "fresh.zarr")


# --- refusals, which change nothing --------------------------------------------------------------------------
def spoiled(value, row=4, column=2, name="a"):
    table = features()[name].copy()
    table[row, column] = value
    return {name: table}


def uneven():
    D = features()["D"].copy()
    D[2, 30] += 0.1
    return {"D": D}


RBF = {"function": "rbf"}
REFUSED = {
    "NaN in a row": (lambda: spoiled(np.nan), RBF, {}, r"'a'.*(sample|row) '?4"),
    "infinity": (lambda: spoiled(np.inf), RBF, {}, r"'a'.*(sample|row) '?4"),
    "no specs": (lambda: some("a"), [], {}, "kernels are specified by a mapping"),
    "overflow": (
        lambda: spoiled(1e30, name="b"),
        {"function": "polynomial", "degree": 3},
        {},
        r"kernel 'b-polynomial': the entry of samples '(4' and '\d+|\d+' and '4)' overflows float32; scale the",
    ),
    "asymmetric, gamma": (uneven, {"function": "distance", "gamma": 1.0}, {}, "not symmetric"),
    "missing, what": (lambda: some("a"), RBF, {"missing": "drop"}, "missing must be 'refuse' or 'zero', got 'drop'"),
    "missing distances": (
        lambda: spoiled(np.nan, 4, slice(None), "D"),
        {"function": "distance"},
        {"missing": "zero"},
        "the distances 'D' lack samples",
    ),
    "missing in training": (
        lambda: spoiled(np.nan, slice(0, 20), slice(None)),
        {"function": "linear"},
        {"missing": "zero", "train": range(20)},
        "no training sample has 'a'",
    ),
    "other lengths": (lambda: {"a": np.ones((M, 2)), "b": np.ones((M - 1, 2))}, RBF, {}, "36"),
    "tile": (lambda: some("a"), RBF, {"tile": 0}, "tile must be a positive number of samples"),
    "samples": (lambda: some("a"), RBF, {"samples": ["x"] * M}, "unique"),
    "splits": (lambda: some("a"), RBF, {"splits": [[5] * M]}, r"found \[5\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_named_and_changes_nothing(tmp_path, case):
    tables, specs, more, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        dmkl.build(tmp_path / "new.zarr", tables(), specs, **{"tile": 8, **more})
    assert not list(tmp_path.iterdir())
    dmkl.build(tmp_path / "set.zarr", some("b"), {"function": "linear"})
    before = tree(tmp_path)
    with pytest.raises(InputError, match=message):
        dmkl.build(tmp_path / "set.zarr", tables(), specs, overwrite=True, **{"tile": 8, **more})
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("case", ["overflow", "asymmetric, gamma"])
def test_bad_input_is_named_from_a_worker(tmp_path, case):
    tables, specs, _, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        dmkl.build(tmp_path / "new.zarr", tables(), specs, tile=8)
    assert not list(tmp_path.iterdir())


def test_a_task_that_ends_late_begins_no_set_that_was_given_up(tmp_path, monkeypatch):
    write, late = TileWriter.write, []

    def refused(self, *tile):
        late.append((self, *tile))
        raise InputError("no")

    with monkeypatch.context() as patched:
        patched.setattr(TileWriter, "write", refused)
        with pytest.raises(InputError, match="no"):
            dmkl.build(tmp_path / "new.zarr", some("a"), RBF, tile=8)
    with pytest.raises(FileNotFoundError):
        write(*late[0])
    assert not list(tmp_path.iterdir())


# --- samples without a source --------------------------------------------------------------------------------
def test_missing_samples_are_counted_for_every_source(tmp_path):
    message = r"'a' is missing for 3 of 37, 'b' is missing for 1 of 37\. Drop or impute them"
    with pytest.raises(InputError, match=message):
        dmkl.build(tmp_path / "set.zarr", lacking(a=[1, 2, 9], b=[2]), {"function": "rbf"})
    present = {"a": ~np.isin(np.arange(M), [1, 2, 9]), "b": np.arange(M) != 2}
    with pytest.raises(InputError, match=message):
        dmkl.build(tmp_path / "set.zarr", some("a", "b"), {"function": "rbf"}, present=present)
    assert not list(tmp_path.iterdir())
    # A source without a kernel is not needed.
    dmkl.build(tmp_path / "set.zarr", lacking(a=[1]), {"function": "rbf", "feature": "b"})


ALL_ON_FEATURES = [
    {"function": ["linear", "rbf", "chi2", "intersection"], "feature": "a"},
    {"function": ["linear", "polynomial", "cosine", "rbf", "laplacian"], "feature": "b"},
    {"function": "pyramid", "levels": 2, "feature": "b"},
    {"function": "proximity", "scales": 2, "feature": "a"},
]


@pytest.mark.parametrize("dtype", ["f4", pytest.param("f8", marks=pytest.mark.slow)])
def test_absent_samples_are_zero_and_the_others_as_if_alone(tmp_path, dtype):
    train = np.array([0, 3, 5, 6, 9, 11, 14, 15, 16, 20, 21, 30, 33])
    absent = {"a": np.array([3, 4, 9, 36]), "b": np.array([4, 9, 10, 33])}
    tables = lacking(**absent)
    K = dmkl.build(tmp_path / "set.zarr", tables, ALL_ON_FEATURES, missing="zero", train=train, tile=16, dtype=dtype)
    lazy = dmkl.build(None, tables, ALL_ON_FEATURES, missing="zero", train=train, tile=16, dtype=dtype)
    dense = np.asarray(K)
    np.testing.assert_array_equal(lazy, dense)
    assert not problems(tmp_path / "set.zarr")
    atol = 1e-12 if dtype == "f8" else 2e-6
    np.testing.assert_allclose(
        lazy.view.source.diagonal(np.arange(len(K))), np.diagonal(dense, axis1=1, axis2=2), rtol=1e-6
    )
    centered, every = np.asarray(K[train, train].center()), np.asarray(K[np.arange(M), train].center())
    metrics = {"rbf": "sqeuclidean", "laplacian": "cityblock", "chi2": lambda x, y: ((x - y) ** 2 / (x + y)).sum()}
    for k, entry in enumerate(K.provenance):
        scale = np.abs(dense[k]).max()
        name = entry["feature"]
        lost = np.isin(train, absent[name])
        assert lost.any()
        np.testing.assert_allclose(centered[k][lost] / scale, 0, atol=atol)
        np.testing.assert_allclose(centered[k][:, lost] / scale, 0, atol=atol)
        np.testing.assert_allclose(every[k][absent[name]] / scale, 0, atol=atol)
        # Samples that have the source: the same entries as in a set of them alone.
        alone = dmkl.build(None, {name: features()[name]}, respelled(entry), dtype=dtype)
        kept, there = train[~lost], np.setdiff1d(np.arange(M), absent[name])
        np.testing.assert_allclose(
            dense[k][np.ix_(there, there)], np.asarray(alone)[0][np.ix_(there, there)], rtol=1e-5
        )
        np.testing.assert_allclose(
            centered[k][np.ix_(~lost, ~lost)] / scale, np.asarray(alone[kept, kept].center())[0] / scale, atol=atol
        )
        if "bandwidth" in entry:
            distances = pdist(features()[name][kept].astype("f8"), metrics[entry["function"]])
            assert entry["mean_distance"] == pytest.approx(distances.mean(), rel=1e-6)
