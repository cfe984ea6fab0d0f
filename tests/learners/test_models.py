"""Models on disk, and scikit-learn's conventions."""

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.conformance import problems, tree, unseal
from helpers.references import in_memory, psd
from sklearn.base import clone
from sklearn.model_selection import KFold

import dmkl
from dmkl.errors import (
    DamagedFileError,
    FormatVersionError,
    InputError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
    TrainingRowsWarning,
)

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
    "MKFDA groups": lambda: dmkl.MKFDA(kernel_groups={"a": "*_[01]", "b": ("kernel_2",)}, sigma={"kernel_0": 2.0}),
    "MKFDA penalty": lambda: dmkl.MKFDA(2.0, 0.5, solver=dmkl.Dual(mu=0.5)),
    "MKFDA bare": lambda: dmkl.MKFDA(np.float64(1.5), np.float32(0.5), steps=()),
    "GMKL": lambda: dmkl.GMKL(4.0, [1.0, 2.0, 3.0], A=np.eye(3)[:2], b=[0.1, 0.2], steps=("multiplicative",)),
    "LPBoost": lambda: dmkl.LPBoost([0.1, 2.0], cv=3),
    "Weighted": lambda: dmkl.Weighted({"kernel_0": 0.5, "kernel_1": 0.0, "kernel_2": 2.0}),
    "NCuts": lambda: dmkl.NCuts(2, sharing="own"),
    "NCuts joint": lambda: dmkl.NCuts(2, sharing="joint"),
    "Uniform": lambda: dmkl.Uniform(0.5, steps=("center", "multiplicative")),
}
"""Parameters of other kinds than those that `check_learner` saves."""
KERNELS = np.abs(psd(3, M)) + 50 * np.eye(M)
SET = in_memory(KERNELS, 16)
TRAINING, NEW = SET[TRAIN, TRAIN], SET[TEST, TRAIN]


def fitted(name="MKFDA", labels="words"):
    return MODELS[name]().fit(TRAINING, LABELS[labels][TRAIN])


# --- round trips --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        *((name, "words") for name in MODELS),
        *(("Uniform", labels) for labels in LABELS if labels != "words"),
        *((name, "tasks") for name in ("MKFDA bare", "NCuts", "LPBoost")),
    ],
)
def test_round_trip(tmp_path, name, labels):
    model = fitted(name, labels)
    model.save(tmp_path / "model.zarr")
    assert problems(tmp_path / "model.zarr") == ""
    loaded = dmkl.load(tmp_path / "model.zarr")
    assert type(loaded) is type(model)
    np.testing.assert_equal(loaded.get_params(), model.get_params())
    for name in (name for name in vars(model) if name.endswith("_") and name not in ("statistics_", "decider_")):
        value, read = getattr(model, name), getattr(loaded, name)
        assert type(read) is type(value)
        if isinstance(value, xr.DataArray | xr.Dataset):
            xr.testing.assert_identical(read, value)
        else:
            np.testing.assert_equal(read, value)
    xr.testing.assert_identical(loaded.decision_function(NEW), model.decision_function(NEW))
    if getattr(model, "calibrated_on_", None):
        xr.testing.assert_identical(loaded.predict_proba(NEW), model.predict_proba(NEW))
    model.save(tmp_path / "model.zip", compact=True)
    compact = dmkl.load(tmp_path / "model.zip")
    xr.testing.assert_identical(compact.decision_function(NEW), model.decision_function(NEW))
    predictions = loaded.predict(NEW)
    np.testing.assert_array_equal(predictions, model.predict(NEW))
    assert predictions[0] in LABELS[labels]


def test_a_loaded_model_is_a_model(tmp_path):
    """It can be saved, cloned and fitted again; a splitter is kept as its text."""
    fitted("MKFDA p=inf").save(tmp_path / "one")
    loaded = dmkl.load(str(tmp_path / "one"))
    loaded.save(tmp_path / "two")
    xr.testing.assert_identical(dmkl.load(tmp_path / "two").dual_coef_, loaded.dual_coef_)
    again = clone(loaded).fit(TRAINING, LABELS["words"][TRAIN])
    np.testing.assert_array_equal(again.dual_coef_, loaded.dual_coef_)
    dmkl.SingleBest(cv=KFold(3)).fit(TRAINING, LABELS["words"][TRAIN]).save(tmp_path / "three")
    assert dmkl.load(tmp_path / "three").cv == repr(KFold(3))


# --- files on disk ------------------------------------------------------------------------------------------
def test_only_models_are_overwritten(tmp_path):
    """A wrong path does not overwrite a kernel set or a folder of results."""
    dmkl.create(tmp_path / "set.zarr", KERNELS)
    (tmp_path / "results").mkdir()
    for file in (tmp_path / "results" / "figure.txt", tmp_path / "file"):
        file.write_text("years of work")
    for name in ("set.zarr", "results", "file"):
        before = tree(tmp_path)
        with pytest.raises(StoreExistsError, match=rf"{name} is not a model, .*move it away"):
            fitted("Uniform").save(tmp_path / name, overwrite=True)
        assert tree(tmp_path) == before


def test_what_a_killed_save_has_left_is_removed_by_the_next(tmp_path):
    """The next process cleans up after a killed one, and restores the moved model."""
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
    with pytest.raises(StoreExistsError, match=r"model exists already; .*overwrite=True"):
        fitted("Uniform").save(path)
    assert type(dmkl.load(path)) is dmkl.Uniform
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


# --- refusals of load ---------------------------------------------------------------------------------------
def test_not_a_model(tmp_path):
    dmkl.create(tmp_path / "set", KERNELS)
    zarr.create_group(tmp_path / "group", attributes={"format": "other"})
    (tmp_path / "nonsense").mkdir()
    (tmp_path / "nonsense" / "zarr.json").write_text("nonsense")
    for name, error, words in (
        ("nothing", StoreNotFoundError, "there is no model at"),
        ("nonsense", DamagedFileError, r"nonsense/zarr.json is damaged, or no metadata of Zarr: Expecting value"),
        ("set", StoreError, r"'dmkl-kernel-set', expected 'dmkl-model'; it is a kernel set, open it with dmkl\.open"),
        ("group", StoreError, "group is not a model.*'format' is 'other', expected 'dmkl-model'$"),
    ):
        with pytest.raises(error, match=words):
            dmkl.load(tmp_path / name)


def test_a_newer_format_and_an_unknown_model(tmp_path):
    path = tmp_path / "model"
    fitted("Uniform").save(path)
    unseal(path, format_version=7)
    with pytest.raises(FormatVersionError, match="version 7, and this dmkl reads up to 3; install a newer dmkl"):
        dmkl.load(path)
    unseal(path, format_version=2, model="Oracle")
    with pytest.raises(
        FormatVersionError,
        match=r"kind 'Oracle', which this dmkl \S+ does not know: .* expected one of EasyMKL, GMKL, .*; import the "
        r"module of a learner of your own first \(--learners FILE.py of a command\), or install a newer",
    ):
        dmkl.load(path)


def test_what_a_newer_dmkl_has_added(tmp_path):
    """A new parameter at its default needs nothing; any other says who reads the model."""
    path = tmp_path / "model"
    model = dmkl.Uniform(0.5).fit(TRAINING, LABELS["words"][TRAIN])
    model.save(path)
    attrs = json.loads((path / "zarr.json").read_text())["attributes"]
    assert attrs["parameters"] == {"lam": 0.5}
    assert attrs["defaults"].keys() == model.get_params().keys() - {"lam"}
    unseal(path, defaults={**attrs["defaults"], "newer": 1}, created_by="dmkl 9.9")
    assert dmkl.load(path).get_params() == model.get_params()
    unseal(path, parameters={"lam": 0.5, "newest": 1, "newer": 2})
    words = (
        f"the parameters newer, newest, which this dmkl {dmkl.__version__} does not know: it was created by 'dmkl 9.9'"
    )
    with pytest.raises(FormatVersionError, match=rf"{re.escape(words)}; install a newer dmkl"):
        dmkl.load(path)
    (part,) = attrs["parts"]
    unseal(path, parameters={}, parts=[{**part, "steps": [{"kind": "rotation"}]}])
    words = (
        f"or of a newer dmkl (KeyError('rotation')): 'dmkl 9.9' wrote it, and this is dmkl {dmkl.__version__}; install"
    )
    with pytest.raises(StoreError, match=re.escape(words)):
        dmkl.load(path)


@pytest.mark.parametrize(
    ("center", "normalize", "steps"),
    [(True, "trace", ("center", "trace")), (False, None, ()), (False, "cosine", ("cosine",))],
)
def test_a_model_of_the_format_before(tmp_path, center, normalize, steps):
    """That format had one parameter for centering and one for the scale, and statistics of one part."""
    path = tmp_path / "model"
    model = dmkl.Uniform(0.5, steps=steps).fit(TRAINING, LABELS["words"][TRAIN])
    model.save(path)
    attrs = json.loads((path / "zarr.json").read_text())["attributes"]
    attrs["defaults"].pop("steps", None)
    attrs["parameters"].pop("steps", None)
    (part,) = attrs["parts"]
    for array in path.glob(f"{part['prefix']}step_*"):
        array.rename(path / array.name.removeprefix(part["prefix"]))
    parameters = attrs["parameters"] | {"center": center, "normalize": normalize}
    unseal(path, format_version=1, parameters=parameters, defaults=attrs["defaults"], steps=part["steps"], parts=None)
    loaded = dmkl.load(path)
    assert loaded.steps == steps
    scores = model.decision_function(NEW)
    np.testing.assert_array_equal(loaded.decision_function(NEW), scores)


# --- scikit-learn's conventions -----------------------------------------------------------------------------
def test_weighted_score():
    model, y = fitted(), LABELS["words"][TEST]
    right, weights = model.predict(NEW) == y, np.arange(1.0, 11.0)
    assert model.score(NEW, y) == np.mean(right)
    assert model.score(NEW, y, sample_weight=weights) == pytest.approx(weights[right].sum() / weights.sum())


@pytest.mark.parametrize("model", [dmkl.MKFDA(lam=0.1), dmkl.MKRidge(lam=0.1)], ids=lambda model: type(model).__name__)
def test_scores_of_training_rows_are_told_by_their_names(model):
    kernels, y = psd(2, M), np.arange(M) % 2
    named, numbered = (
        dmkl.create(None, kernels, labels=y, samples=names) for names in ([f"s{k}" for k in range(M)], None)
    )
    mixed, told = np.arange(25, 35), "trained on 5 samples of these 10, by their names"
    for K in (named, numbered):
        model.fit(K[TRAIN, TRAIN])
        for score in (model.score, lambda rows: dmkl.assess(model, rows)):
            score(K[TEST, TRAIN])
            with pytest.warns(TrainingRowsWarning, match=told):
                score(K[mixed, TRAIN])
    # Numbers of rows are no names of samples of another set.
    rows, train = (kernels[:, at][:, :, TRAIN] for at in (TEST, TRAIN))
    assert model.score(rows, y[TEST]) == model.score(numbered[TEST, TRAIN])
    model.score(train, y[TRAIN])
    if isinstance(model, dmkl.MKFDA):
        model.calibrate(rows, y[TEST])


# --- compact models -------------------------------------------------------------------------------------------
def test_a_compact_model_is_one_file_without_what_predictions_do_not_read(tmp_path):
    model, file = fitted("Weighted"), tmp_path / "model.zip"
    model.save(file, compact=True)
    assert problems(file) == ""
    compact = dmkl.load(file)
    assert compact.kernel_names_ == ("kernel_0", "kernel_2")
    with pytest.raises(InputError, match=r"is compact, .* its history; .* the model that it was written from"):
        compact.plot_convergence()
    with pytest.raises(StoreExistsError, match=r"overwrite=True"):
        model.save(file, compact=True)
    model.save(file, overwrite=True)
    with pytest.raises(InputError, match=r"is a folder, and a compact model is one file"):
        compact.save(file, overwrite=True, compact=True)
    file.rename(tmp_path / "model")
    dmkl.load(tmp_path / "model").save(file, compact=True)
    before = file.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "model.zip"]
    place = before.index(b"dual_coef_/c/0") + 60  # within the dual variables
    for damaged in (before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :], before[:-10], before[10:], b""):
        file.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"model\.zip is (damaged|not a model)|the model at .* is damaged"):
            dmkl.load(file)
