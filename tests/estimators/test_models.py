"""Models on disk, and scikit-learn's conventions."""

from __future__ import annotations

import itertools
import json
import pickle
import signal
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.conformance import unseal
from helpers.references import in_memory, psd
from sklearn.base import clone, is_classifier
from sklearn.model_selection import KFold, ParameterGrid

import dmkl
from dmkl.errors import (
    DamagedFileError,
    FormatVersionError,
    InputError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from dmkl.estimators import saving

pytestmark = pytest.mark.usefixtures("synchronous")

M = 40
TRAIN, TEST = np.arange(30), np.arange(30, 40)
LABELS = {
    "integers": np.arange(M) % 3,
    "words": np.array(["rot", "grün", "blau"])[np.arange(M) % 3],
    "objects": np.array(["no", "yes"], dtype=object)[np.arange(M) % 2],
    "floats": np.array([3.0, -1.0])[np.arange(M) % 2],
    "truths": np.arange(M) % 2 == 0,
    "tasks": np.stack([np.arange(M) % 2, np.arange(M) % 3 == 0], axis=1).astype(int),
}
MODELS = {
    "MKFDA": lambda: dmkl.MKFDA(1.0, 0.5, steps=("center", "cosine"), solver=dmkl.CG(master="exact"), max_iter=300),
    "MKFDA p=inf": lambda: dmkl.MKFDA(np.inf, 0.5),
    "MKFDA bare": lambda: dmkl.MKFDA(np.float64(1.5), np.float32(0.5), steps=()),
    "Uniform": lambda: dmkl.Uniform(0.5, steps=("center", "multiplicative")),
    "SingleBest": lambda: dmkl.SingleBest(0.5, cv=4),
    "Product": lambda: dmkl.Product(0.5),
}


@cache
def kernels():
    return np.abs(psd(3, M)) + 50 * np.eye(M)


def train_set():
    return in_memory(kernels(), 16)[TRAIN, TRAIN]


def new_set():
    return in_memory(kernels(), 16)[TEST, TRAIN]


def fitted(name="MKFDA", labels="words"):
    return MODELS[name]().fit(train_set(), LABELS[labels][TRAIN])


def attrs_of(path):
    return json.loads((path / "zarr.json").read_text())["attributes"]


# --- round trips --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "labels"),
    [*(("MKFDA", labels) for labels in LABELS), *itertools.product(list(MODELS)[1:], ["words", "tasks"])],
)
def test_round_trip(tmp_path, name, labels):
    model = fitted(name, labels)
    model.save(tmp_path / "model.zarr")
    loaded = dmkl.load(tmp_path / "model.zarr")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    for attribute in ("weights_", "dual_coef_", "scores_"):
        assert hasattr(loaded, attribute) == hasattr(model, attribute)
        if hasattr(model, attribute):
            xr.testing.assert_identical(getattr(loaded, attribute), getattr(model, attribute))
    xr.testing.assert_identical(loaded.history_, model.history_)
    for attribute in ("gap_", "objective_", "classes_", "train_samples_", "tasks_"):
        np.testing.assert_array_equal(getattr(loaded, attribute), getattr(model, attribute))
    for attribute in ("status_", "solver_", "n_iter_", "n_passes_", "kind_", "kernel_names_", "n_features_in_"):
        assert getattr(loaded, attribute) == getattr(model, attribute)
    for attribute in ("best_", "factors_"):
        assert getattr(loaded, attribute, None) == getattr(model, attribute, None)
    xr.testing.assert_identical(loaded.decision_function(new_set()), model.decision_function(new_set()))
    predictions = loaded.predict(new_set())
    np.testing.assert_array_equal(predictions, model.predict(new_set()))
    assert predictions[0] in LABELS[labels]


def test_a_loaded_model_is_a_model(tmp_path):
    """It saves again, clones, and fits anew."""
    fitted("MKFDA p=inf").save(tmp_path / "one")
    loaded = dmkl.load(str(tmp_path / "one"))
    loaded.save(tmp_path / "two")
    xr.testing.assert_identical(dmkl.load(tmp_path / "two").dual_coef_, loaded.dual_coef_)
    again = clone(loaded).fit(train_set(), LABELS["words"][TRAIN])
    np.testing.assert_array_equal(again.dual_coef_, loaded.dual_coef_)


def test_a_splitter_is_kept_as_its_text(tmp_path):
    model = dmkl.SingleBest(cv=KFold(3)).fit(train_set(), LABELS["words"][TRAIN])
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    assert loaded.cv == repr(KFold(3))
    np.testing.assert_array_equal(loaded.predict(new_set()), model.predict(new_set()))


def test_repeated_samples(tmp_path):
    """A bootstrap sample of the training set names some samples twice."""
    rows = np.random.default_rng(0).integers(0, 30, 30)
    K = in_memory(kernels(), 16)
    model = dmkl.MKFDA().fit(K[rows, rows], LABELS["words"][rows])
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(K[TEST, rows]), model.predict(K[TEST, rows]))


# --- what is on disk ----------------------------------------------------------------------------------------


def test_xarray_opens_a_model(tmp_path):
    model = fitted()
    model.save(tmp_path / "model")
    with xr.open_zarr(tmp_path / "model", consolidated=False) as opened:
        assert opened.sizes.items() >= {"kernel": 3, "sample": 30, "class": 3, "model_kernel": 3}.items()
        np.testing.assert_array_equal(opened.weights_.sel(kernel="kernel_1"), model.weights_.sel(kernel="kernel_1"))
        assert list(opened["class"].values) == ["blau", "grün", "rot"]
        assert opened.attrs["parameters"]["lam"] == 0.5
    with xr.open_zarr(tmp_path / "model", group="history", consolidated=False) as history:
        np.testing.assert_array_equal(history.gap, model.history_.gap)


@pytest.mark.parametrize("name", MODELS)
def test_no_pickle(tmp_path, name):
    """Zarr's own files alone, JSON of plain values, arrays of numbers and variable-length strings."""
    fitted(name, "tasks").save(tmp_path / "model")
    for file in (tmp_path / "model").rglob("*"):
        if file.is_dir():
            continue
        if file.name == "zarr.json":
            meta = json.loads(file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
            if meta["node_type"] == "array":
                assert meta["data_type"] in ("float64", "int64", "string")
                assert {codec["name"] for codec in meta["codecs"]} <= {"bytes", "zstd", "vlen-utf8", "crc32c"}
        else:
            content = file.read_bytes()
            assert content[:1] != pickle.PROTO
            assert b"numpy" not in content
    assert attrs_of(tmp_path / "model")["format"] == "dmkl-model"


# --- overwriting --------------------------------------------------------------------------------------------


def test_overwriting(tmp_path):
    path = tmp_path / "deep" / "model"
    fitted("Uniform").save(path)
    with pytest.raises(StoreExistsError, match=r"model exists already; .*overwrite=True"):
        fitted("Product").save(path)
    assert type(dmkl.load(path)) is dmkl.Uniform
    fitted("Product").save(path, overwrite=True)
    assert type(dmkl.load(path)) is dmkl.Product
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]


def test_only_models_are_overwritten(tmp_path):
    """A slip of the path does not cost a kernel set or a folder of results."""
    dmkl.create(tmp_path / "set.zarr", kernels())
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "figure.txt").write_text("years of work")
    (tmp_path / "file").write_text("years of work")
    for name in ("set.zarr", "results", "file"):
        with pytest.raises(StoreExistsError, match=rf"{name} is not a model, .*move it away"):
            fitted("Uniform").save(tmp_path / name, overwrite=True)
    assert dmkl.open(tmp_path / "set.zarr").shape == (3, M, M)
    assert (tmp_path / "results" / "figure.txt").read_text() == (tmp_path / "file").read_text() == "years of work"


@pytest.mark.parametrize("nth", [0, 1])
def test_a_failed_save_leaves_the_old_model(tmp_path, monkeypatch, nth):
    path = tmp_path / "model"
    old, new = fitted("Uniform"), fitted("MKFDA")
    old.save(path)
    write, calls = saving.write_dataset, []

    def fail(*args):
        if len(calls) == nth:
            msg = "no space left on device"
            raise OSError(msg)
        calls.append(args)
        write(*args)

    monkeypatch.setattr(saving, "write_dataset", fail)
    with pytest.raises(OSError, match="no space left"):
        new.save(path, overwrite=True)
    xr.testing.assert_identical(dmkl.load(path).dual_coef_, old.dual_coef_)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_save_has_left_is_removed_by_the_next(tmp_path):
    """A process that is killed cannot clean up: the next one does, and puts back what was moved aside."""
    path = tmp_path / "model"
    killed = (
        "import os, pathlib, signal, sys; from dmkl.store.saved import replace_group\n"
        "def write(path):\n    path.mkdir()\n    (path / 'part').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "replace_group(pathlib.Path(sys.argv[1]), write, 'dmkl-model', 'model', overwrite=False)"
    )
    assert subprocess.run([sys.executable, "-c", killed, path], check=False).returncode == -signal.SIGKILL
    assert list(tmp_path.glob("model.*.partial"))
    fitted("Uniform").save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    path.rename(tmp_path / f"model.{'0' * 32}.replaced")
    with pytest.raises(StoreExistsError, match="model exists already"):
        fitted("Uniform").save(path)
    assert type(dmkl.load(path)) is dmkl.Uniform
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


# --- what load refuses --------------------------------------------------------------------------------------


def test_nothing_there(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(StoreNotFoundError, match="there is no model at"):
            dmkl.load(path)


def test_not_a_model(tmp_path):
    dmkl.create(tmp_path / "set", kernels())
    zarr.create_group(tmp_path / "group", attributes={"format": "other"})
    zarr.create_array(tmp_path / "array", shape=(2,), dtype="float64")
    (tmp_path / "nonsense").mkdir()
    (tmp_path / "nonsense" / "zarr.json").write_text("nonsense")
    with pytest.raises(
        DamagedFileError, match=r"nonsense/zarr.json is damaged, or no metadata of Zarr: Expecting value"
    ):
        dmkl.load(tmp_path / "nonsense")
    for name, words in {
        "set": r"'dmkl-kernel-set', expected 'dmkl-model'; it is a kernel set, open it with dmkl\.open",
        "group": "'format' is 'other', expected 'dmkl-model'$",
        "array": "array",
    }.items():
        with pytest.raises(StoreError, match=f"{name} is not a model.*{words}"):
            dmkl.load(tmp_path / name)


def test_a_newer_format_and_an_unknown_model(tmp_path):
    path = tmp_path / "model"
    fitted("Uniform").save(path)
    unseal(path, format_version=7)
    with pytest.raises(FormatVersionError, match="version 7, and this dmkl reads up to 2; install a newer dmkl"):
        dmkl.load(path)
    unseal(path, format_version=2, model="Oracle")
    with pytest.raises(
        StoreError, match="kind 'Oracle', which this dmkl does not know; expected one of GMKL, GSMKL, MKFDA"
    ):
        dmkl.load(path)


@pytest.mark.parametrize(
    ("center", "normalize", "steps"),
    [(True, "trace", ("center", "trace")), (False, None, ()), (False, "cosine", ("cosine",))],
)
def test_a_model_of_the_format_before(tmp_path, center, normalize, steps):
    """It had one parameter for centering and one for the scale, and statistics of one part."""
    path = tmp_path / "model"
    model = dmkl.Uniform(0.5, steps=steps).fit(train_set(), LABELS["words"][TRAIN])
    model.save(path)
    attrs = json.loads((path / "zarr.json").read_text())["attributes"]
    del attrs["parameters"]["steps"]
    (part,) = attrs["parts"]
    for array in path.glob(f"{part['prefix']}step_*"):
        array.rename(path / array.name.removeprefix(part["prefix"]))
    parameters = attrs["parameters"] | {"center": center, "normalize": normalize}
    unseal(path, format_version=1, parameters=parameters, steps=part["steps"], parts=None)
    found = dmkl.load(path)
    assert found.steps == steps
    scores = model.decision_function(new_set())
    np.testing.assert_array_equal(found.decision_function(new_set()), scores)


@pytest.mark.parametrize("part", ["weights_", "dual_coef_/c", "train_sample", "part_0_step_0_col_mean", "history"])
def test_a_model_with_a_part_missing(tmp_path, part):
    path = tmp_path / "model"
    fitted("Uniform").save(path)
    (path / part).rename(tmp_path / "lost")
    with pytest.raises(StoreError, match=r"the model at .*model is damaged .*save it again"):
        dmkl.load(path)


@pytest.mark.parametrize("part", ["weights_/c/0", "train_sample/c/0", "history/gap/c/0"])
def test_a_model_cut_short(tmp_path, part):
    path = tmp_path / "model"
    fitted("Uniform").save(path)
    chunk = path / part
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with pytest.raises(StoreError, match=r"the model at .*model is damaged .*save it again"):
        dmkl.load(path)


# --- scikit-learn's conventions -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_parameters(name):
    model = MODELS[name]()
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy is not model
    assert not [attribute for attribute in vars(copy) if attribute.endswith("_")]
    assert is_classifier(model)
    assert copy.set_params(lam=3.0, solver="direct") is copy
    assert (copy.lam, copy.solver) == (3.0, "direct")
    with pytest.raises(ValueError, match="Invalid parameter 'gamma'"):
        copy.set_params(gamma=1)
    assert repr(copy).startswith(f"{type(model).__name__}(")
    assert "lam=3.0" in repr(copy)


def test_constructors_keep_what_they_are_given():
    """No check before fit, and no copy: what clone relies on."""
    model = dmkl.MKFDA(p=0.1, lam=-1)
    assert (model.p, model.lam) == (0.1, -1)
    assert repr(dmkl.MKFDA(p=np.inf, lam=0.1)) == "MKFDA(lam=0.1, p=inf)"
    splitter = KFold(3)
    assert dmkl.SingleBest(cv=splitter).cv is splitter


def test_parameter_grid():
    model = dmkl.MKFDA()
    objectives = []
    for point in ParameterGrid({"p": [1.0, 2.0, np.inf], "lam": [0.1, 1.0]}):
        learner = clone(model).set_params(**point).fit(train_set(), LABELS["words"][TRAIN])
        assert learner.gap_ <= 1e-4
        objectives.append(learner.objective_)
    assert len(set(objectives)) == 6
    assert not hasattr(model, "weights_")


def test_fit_returns_the_model_and_can_be_repeated():
    model = dmkl.MKFDA()
    assert model.fit(train_set(), LABELS["words"][TRAIN]) is model
    model.fit(train_set(), LABELS["objects"][TRAIN])
    assert list(model.classes_) == ["no", "yes"]
    once = dmkl.MKFDA().fit(train_set(), LABELS["objects"][TRAIN])
    np.testing.assert_array_equal(model.dual_coef_, once.dual_coef_)
    np.testing.assert_array_equal(model.predict(new_set()), once.predict(new_set()))


def test_weighted_score():
    model, y = fitted(), LABELS["words"][TEST]
    right = model.predict(new_set()) == y
    weights = np.arange(1.0, 11.0)
    assert model.score(new_set(), y) == np.mean(right)
    assert model.score(new_set(), y, sample_weight=weights) == pytest.approx(weights[right].sum() / weights.sum())
    with pytest.raises(InputError, match="score needs labels"):
        model.score(new_set())
