"""Kernels of new samples from features: `build_cross`, and models that predict from features alone."""

from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.conformance import problems, unseal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import pairwise

import dmkl
from dmkl.errors import InputError, StoreExistsError
from dmkl.store.features import read_tables

pytestmark = [
    # Arrays without names are used with data frames with names.
    pytest.mark.filterwarnings("ignore::dmkl.errors.SampleOrderWarning"),
    pytest.mark.filterwarnings("ignore:columns of features 'a' are matched by position:dmkl.errors.FeatureWarning"),
]

M, NEW = 33, 14
OLD, LATER = np.arange(M), np.arange(M, M + NEW)
NAMES = [f"s{i:02}" for i in range(M + NEW)]
SPECS = [
    {"function": ["rbf", "laplacian", "chi2"], "feature": ["a", "b"], "bandwidth": [0.5, 2]},
    {"function": ["linear", "polynomial", "cosine", "intersection"], "feature": "b"},
    {"function": "rbf", "feature": "a", "columns": {"left": ["u", "v"], "right": ["z", "x"]}},
    {"function": "pyramid", "feature": "b", "levels": 2},
    {"function": "proximity", "feature": "a", "scales": [2, 4], "weights": [1.0, 0.5]},
    {"function": "random_rbf", "copies": 2},
]
DISTANCES = {"function": "distance", "feature": "D", "bandwidth": [0.5, 2]}


@cache
def whole():
    """Features of old and new samples; `D` has their distances."""
    rng = np.random.default_rng(0)
    D = pairwise.manhattan_distances(rng.random((M + NEW, 4)))
    return {
        "a": pd.DataFrame(rng.random((M + NEW, 6)), columns=list("uvwxyz"), index=NAMES),
        "b": rng.random((M + NEW, 5)).astype("f4"),
        "D": np.maximum(D, D.T),
    }


def rows(positions, *names):
    """Tables of some samples; distances to the old ones."""
    tables = whole()
    selected = {name: tables[name].iloc[positions] if name == "a" else tables[name][positions] for name in names}
    if "D" in selected:
        selected["D"] = selected["D"][:, OLD]
    return selected


def base(path, specs=SPECS, tables=("a", "b"), **more):
    return dmkl.build(path, rows(OLD, *tables), specs, samples=NAMES[:M], tile=12, **more)


def full(path, specs=SPECS, tables=("a", "b"), **more):
    """The set of old and new samples, with bandwidths and means of the old ones."""
    result = rows(np.arange(M + NEW), *tables)
    if "D" in result:
        result["D"] = whole()["D"]
    return dmkl.build(path, result, specs, samples=NAMES, tile=12, train=OLD, **more)


def close(result, expected, rtol=1e-12):
    result, expected = np.asarray(result), np.asarray(expected)
    assert result.shape == expected.shape
    scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(result / scale, expected / scale, rtol=0, atol=rtol)


# --- against the rows of a set of all ------------------------------------------------------------------------
@pytest.mark.parametrize("kept", [True, False], ids=["stored", "computed"])
def test_new_rows_are_those_of_a_set_of_all(tmp_path, kept):
    specs, tables = [*SPECS, DISTANCES], ("a", "b", "D")
    K = base(tmp_path / "old.zarr" if kept else None, specs, tables)
    everything = full(None, specs, tables)
    expected = np.asarray(everything)[:, LATER][:, :, OLD]
    C = dmkl.build_cross(K, rows(LATER, *tables), samples=NAMES[M:], labels=np.arange(NEW) % 2)
    assert C.names == K.names
    assert list(C.samples) == NAMES[M:]
    assert list(C.train_samples) == NAMES[:M]
    np.testing.assert_array_equal(C.labels, np.arange(NEW) % 2)
    close(C, expected)
    V = np.random.default_rng(1).random((M, 3))
    close(C.apply(V), expected @ V)
    own = np.diagonal(np.asarray(everything), axis1=1, axis2=2)[:, LATER]
    distance = np.array([name.startswith("D-") for name in C.names])
    np.testing.assert_allclose(C.view.source.diagonal(np.flatnonzero(~distance)), own[~distance], rtol=1e-6)
    # One new sample, tables in another order and among others, and columns without names.
    close(dmkl.build_cross(K, rows(LATER[[3]], *tables), samples=[NAMES[LATER[3]]]), np.asarray(C)[:, [3]])
    new = rows(LATER, *tables)
    other = {"unused": np.full((NEW, 3), np.nan), "D": new["D"], "b": new["b"], "a": new["a"].to_numpy()}
    np.testing.assert_array_equal(dmkl.build_cross(K, other, samples=NAMES[M:]), C)
    if kept:  # the rectangular set, stored too
        given = tmp_path / "old.zarr", rows(LATER, *tables), tmp_path / "new.zarr"
        made = dmkl.build_cross(*given, samples=NAMES[M:], labels=["x"] * NEW)
        np.testing.assert_array_equal(made, C)
        np.testing.assert_array_equal(made.apply(V), C.apply(V))
        assert not problems(tmp_path / "new.zarr")
        assert list(made.labels) == ["x"] * NEW
        with pytest.raises(StoreExistsError):
            dmkl.build_cross(*given)


@pytest.mark.parametrize("kept", [True, False], ids=["stored", "computed"])
def test_absent_sources_among_new_and_training_samples(tmp_path, kept):
    tables = {name: np.array(table) for name, table in rows(np.arange(M + NEW), "a", "b").items()}
    tables["a"][[3, 20, M + 1, M + 5]] = np.nan
    tables["b"][[3, 4, M + 5, M + 6]] = np.nan
    specs = [
        {"function": ["rbf", "laplacian", "chi2", "linear", "polynomial", "cosine", "intersection"]},
        {"function": "pyramid", "feature": "b", "levels": 2},
    ]
    old, new = ({name: table[at] for name, table in tables.items()} for at in (OLD, LATER))
    more = {"tile": 12, "dtype": "f8", "missing": "zero"}
    K = dmkl.build(tmp_path / "old.zarr" if kept else None, old, specs, **more)
    everything = np.asarray(dmkl.build(None, tables, specs, train=OLD, **more))
    C = dmkl.build_cross(K, new, missing="zero")
    close(C, everything[:, LATER][:, :, OLD])
    np.testing.assert_allclose(
        C.view.source.diagonal(np.arange(len(C))), np.diagonal(everything, axis1=1, axis2=2)[:, LATER], rtol=1e-10
    )
    with pytest.raises(InputError, match=r"'a' is missing for 2 of 14, 'b' is missing for 2 of 14"):
        dmkl.build_cross(K, new)
    # A mask is equivalent to rows of NaN.
    present = {name: ~np.isnan(table[:, 0]) for name, table in new.items()}
    filled = {name: np.nan_to_num(table) for name, table in new.items()}
    np.testing.assert_array_equal(dmkl.build_cross(K, filled, present=present, missing="zero"), C)
    # Complete new samples, and training samples with missing features.
    complete = {name: table[7:] for name, table in new.items()}
    close(dmkl.build_cross(K, complete), everything[:, LATER[7:]][:, :, OLD])


@pytest.mark.parametrize(("kept", "held"), [(True, True), (False, False)])
def test_columns_are_those_of_the_view(tmp_path, kept, held):
    specs, tables = [SPECS[0], SPECS[1], SPECS[2], {**DISTANCES, "gamma": 0.7, "bandwidth": None}], ("a", "b", "D")
    K = base(tmp_path / "old.zarr" if kept else None, specs, tables, train=np.arange(20))
    train = np.array([17, 4, 9, 30, 0, 5])
    view = K[train, train]
    view = view.persist() if held else view
    new = rows(LATER, *tables)
    whole_cross = np.asarray(dmkl.build_cross(K, new, samples=NAMES[M:]))
    new["D"] = new["D"][:, train]
    C = dmkl.build_cross(view, new, samples=NAMES[M:])
    assert list(C.train_samples) == [NAMES[i] for i in train]
    close(C, whole_cross[:, :, train])
    # Tables without a selected kernel are not needed.
    C = dmkl.build_cross(view.select(["b-cosine"]), rows(LATER, "b"), samples=NAMES[M:])
    assert list(C.names) == ["b-cosine"]
    close(C, whole_cross[[K.names.index("b-cosine")]][:, :, train])


# --- refusals ------------------------------------------------------------------------------------------------
WRONG = {
    "missing": (
        {"a": None},
        r"computed from 'a', which the new features lack; they have 'b', 'D'\. Give it under that name",
    ),
    "fewer columns": ({"b": np.ones((NEW, 4))}, "'b' have 4 columns, and had 5 in training"),
    "no column of training": (
        {"a": pd.DataFrame(np.ones((NEW, 6)), NAMES[M:], list("ghijkl"))},
        "'a' have none of the 6 columns that kernels use: their names begin with 'g', 'h', 'i' .*training with 'u'",
    ),
    "NaN": ({"b": np.where(np.eye(NEW, 5), np.nan, 1)}, r"'b'.*NaN"),
    "negative": ({"b": -np.ones((NEW, 5))}, "is for histograms.* 'b' has -1 at sample"),
    "one sample as a vector": (
        {"b": np.ones(NEW * (NEW - 1) // 2)},
        r"'b' are a vector .* one sample as values\.reshape\(1, -1\)",
    ),
    "a series": ({"b": pd.Series(np.ones(5))}, r"shape \(5,\), expected two dimensions"),
    "lengths": ({"b": np.ones((NEW + 1, 5))}, "15"),
    "fewer distances": ({"D": np.ones((NEW, M - 1))}, "'D' has 32 columns, expected the distances to the 33 training"),
    "more distances": ({"D": np.ones((NEW, M + 1))}, "'D' has 34 columns, expected the distances to the 33 training"),
}


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A stored and a lazy set of the old samples."""
    return [base(path, [*SPECS, DISTANCES], "abD") for path in (tmp_path_factory.mktemp("old") / "old.zarr", None)]


@pytest.mark.parametrize("case", WRONG)
def test_other_features_are_refused_by_name(tmp_path, case, old):
    changed, message = WRONG[case]
    tables = {name: table for name, table in {**rows(LATER, *"abD"), **changed}.items() if table is not None}
    for K, path in zip(old, (tmp_path / "new.zarr", None), strict=True):
        with pytest.raises(InputError, match=message):
            dmkl.build_cross(K, tables, path)
    assert not list(tmp_path.glob("new*"))


def test_kernels_that_no_features_made_are_refused(tmp_path):
    features, y = digits()
    imported = dmkl.create(tmp_path / "set.zarr", pairwise.rbf_kernel(features["pixels"])[None], labels=y, tile=64)
    model = dmkl.MKFDA().fit(imported[TRAIN, TRAIN])
    model.save(tmp_path / "model")
    for compute in (
        partial(dmkl.build_cross, tmp_path / "set.zarr", of(TEST)),
        partial(model.predict, features=of(TEST)),
        partial(dmkl.load(tmp_path / "model").predict, features=of(TEST)),
    ):
        with pytest.raises(InputError, match=r"were not computed from features by dmkl\.build .*as a rectangular set"):
            compute()
    centered = dmkl.build(None, features, {"function": "rbf"}, labels=y).center()
    model = dmkl.MKFDA(steps=("trace",)).fit(centered[TRAIN, TRAIN])
    for compute in (partial(dmkl.build_cross, centered, of(TEST)), partial(model.predict, features=of(TEST))):
        with pytest.raises(InputError, match=r"centered or normalized; let the model do that"):
            compute()


# --- models --------------------------------------------------------------------------------------------------
DIGITS_SPECS = [
    {"function": "rbf", "bandwidth": [0.1, 1, 10]},
    {"function": ["linear", "chi2", "intersection"], "feature": "pixels"},
    {"function": "cosine", "feature": "sums"},
]


@cache
def digits():
    X, y = load_digits(return_X_y=True)
    X, y = X[:360] / 16, y[:360]
    return {"pixels": X, "sums": np.concatenate([X.reshape(-1, 8, 8).sum(axis=k) for k in (1, 2)], axis=1)}, y


TRAIN, TEST = np.arange(0, 360, 2), np.arange(1, 360, 2)


def of(positions):
    return {name: table[positions] for name, table in digits()[0].items()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "digits.zarr"
    features, y = digits()
    splits = np.where(np.isin(np.arange(360), TRAIN), 0, 2)[None]
    return dmkl.build(path, features, DIGITS_SPECS, labels=y, splits=splits, tile=64)


SPARSE = [dmkl.MKFDA(p=1.0, lam=1e-3), dmkl.MKFDA(p=1.0, lam=1e-2, steps=("center", "cosine"))]


def same(found, expected):
    """Equal scores to 1e-6 of the largest."""
    xr.testing.assert_equal(found.coords.to_dataset(), expected.coords.to_dataset())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * float(np.abs(expected).max()))


@pytest.mark.parametrize("learner", [dmkl.MKFDA(p=1.5, lam=1e-2), SPARSE[1], dmkl.Product(lam=1e-2)], ids=str)
def test_prediction_from_features_is_that_from_kernels(built, tmp_path, learner):
    model = clone(learner).fit(built[TRAIN, TRAIN])
    expected = model.decision_function(built[TEST, TRAIN])
    values = model.decision_function(features=of(TEST), samples=TEST)
    same(values, expected)
    np.testing.assert_array_equal(model.predict(features=of(TEST)), model.predict(built[TEST, TRAIN]))
    y = digits()[1][TEST]
    assert model.score(features=of(TEST), y=y) == model.score(built[TEST, TRAIN]) > 0.9
    model.save(tmp_path / "model")
    dmkl.load(tmp_path / "model").save(tmp_path / "again")
    xr.testing.assert_equal(dmkl.load(tmp_path / "again").decision_function(features=of(TEST), samples=TEST), values)
    with pytest.raises(InputError, match="give kernels or features, not both"):
        model.predict(built[TEST, TRAIN], features=of(TEST))


@pytest.mark.parametrize("learner", SPARSE, ids=str)
def test_kernels_of_no_weight_are_neither_computed_nor_kept(built, tmp_path, computed, learner):
    model = clone(learner).fit(built[TRAIN, TRAIN])
    used = {str(k) for k in model.weights_.coords["kernel"].values[model.weights_.values > 0]}
    assert 0 < len(used) < len(built)
    model.decision_function(features=of(TEST))
    assert {name for name, *_ in computed} == used
    # Features of kernels without weight may be missing.
    sources = {entry["feature"] for entry in built.provenance if entry["name"] in used}
    few = {source: table for source, table in of(TEST).items() if source in sources}
    np.testing.assert_array_equal(model.predict(features=few), model.predict(features=of(TEST)))
    model.save(tmp_path / "model")
    kept = read_tables(str(tmp_path / "model"))
    assert set(kept) == sources
    assert all(table.shape[0] == len(TRAIN) for table in kept.values())
    computed.clear()
    np.testing.assert_array_equal(
        dmkl.load(tmp_path / "model").predict(features=few), model.predict(built[TEST, TRAIN])
    )
    assert {name for name, *_ in computed} == used


def test_samples_without_a_source_are_judged_by_the_others(tmp_path):
    features, y = digits()
    tables = {name: table.copy() for name, table in features.items()}
    tables["pixels"][np.random.default_rng(0).choice(360, 40, replace=False)] = np.nan
    labels = np.stack([y % 2, y < 5, y == 8], axis=1).astype(int)
    more = {"labels": labels, "train": TRAIN, "tile": 64, "missing": "zero"}
    K = dmkl.build(tmp_path / "set.zarr", tables, DIGITS_SPECS, **more)
    model = dmkl.MKFDA(p=2.0, lam=1e-2).fit(K[TRAIN, TRAIN])
    new = {name: table[TEST] for name, table in tables.items()}
    expected = model.decision_function(K[TEST, TRAIN])
    model.save(tmp_path / "model")
    same(dmkl.load(tmp_path / "model").decision_function(features=new, samples=TEST, missing="zero"), expected)
    with pytest.raises(InputError, match=r"'pixels' is missing for \d+ of 180\. Drop or impute"):
        model.predict(features=new)
    present = {"pixels": ~np.isnan(new["pixels"][:, 0])}
    same(model.decision_function(features=of(TEST), samples=TEST, present=present, missing="zero"), expected)


def test_kernels_of_the_former_function_random_are_read(tmp_path):
    table = np.random.default_rng(0).random((12, 3))
    specs = [{"function": "linear"}, {"function": "random_rbf"}]
    dmkl.build(tmp_path / "set.zarr", {"a": table}, specs, labels=np.arange(12) % 2)
    linear, random = dmkl.open(tmp_path / "set.zarr").provenance
    unseal(tmp_path / "set.zarr", kernels=[linear, {**random, "function": "random"}])
    K = dmkl.open(tmp_path / "set.zarr")
    model = dmkl.MKFDA(p=2).fit(K)
    model.save(tmp_path / "model")
    same(dmkl.load(tmp_path / "model").decision_function(K), model.decision_function(K))
    with pytest.raises(InputError, match="kernel 'random_rbf-seed0' was not computed from features"):
        dmkl.build_cross(K, {"a": table})


def test_linear_models_keep_their_primal_weights(tmp_path, monkeypatch):
    """A loaded model reads the training samples for its first prediction alone, also of models on the same features."""
    monkeypatch.setattr("dmkl.store.features._SMALL_BYTES", 0)  # as of large tables
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(60, 4)), {"x": rng.normal(size=(9, 4))}
    specs = [{"function": "linear", "columns": {"left": [0, 1], "right": [3, 2]}}, {"function": "cosine"}]
    y = (X[:, 0] + 0.5 * rng.normal(size=60) > 0).astype(int)
    K = dmkl.build(None, {"x": X}, specs, labels=y)
    first, second = (dmkl.MKFDA(lam=lam).fit(K) for lam in (0.01, 1.0))
    first.save(tmp_path / "first")
    loaded = dmkl.load(tmp_path / "first")
    scores = [model.decision_function(features=new) for model in (first, second, first, loaded)]
    assert not np.allclose(scores[0], scores[1])
    for again in scores[2:]:
        xr.testing.assert_identical(again, scores[0])
    chunk = tmp_path / "first/features/0/values/c/0/0"
    chunk.rename(tmp_path / "moved")
    xr.testing.assert_identical(loaded.decision_function(features=new), scores[0])
