"""What commands say of samples that were not chosen by and not trained on: evaluate, predict, fit and search."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, matthews_corrcoef

import dmkl

pytest_plugins = ["helpers.command_line"]

M = 45
SMALL = ("--p", "1,2", "--lam", "1e-2,1", "--cluster", "threads")
GRID = {"p": [1.0, 2.0], "lam": [0.01, 1.0]}


@pytest.fixture(scope="module")
def parts(tmp_path_factory, kernels, classes):
    """Two splits of three parts, where what validates for the first tests for the second."""
    splits = np.zeros((2, M), dtype=int)
    splits[0, 27:36], splits[0, 36:] = 1, 2
    splits[1, 36:], splits[1, 27:36] = 1, 2
    path = tmp_path_factory.mktemp("protocol") / "split.zarr"
    return dmkl.create(path, kernels, labels=classes, splits=splits, tile=16).view.source.location


@pytest.fixture(scope="module")
def plain(tmp_path_factory, kernels, classes):
    path = tmp_path_factory.mktemp("protocol") / "plain.zarr"
    samples = [f"s{i:02}" for i in range(M)]
    return dmkl.create(path, kernels, samples=samples, labels=classes, tile=16).view.source.location


# --- search --------------------------------------------------------------------------------------------------


def test_each_split_chooses_for_itself(run, tmp_path, parts):
    status, text, _ = run("search", parts, tmp_path / "found", *SMALL)
    assert status == 0
    found = dmkl.load(tmp_path / "found")
    assert found.choosers == ("fold",)
    rows = [line.split() for line in text.splitlines()]
    for fold, point in found.best_params_.items():
        one = found.chosen.sel(fold=fold)
        numbers = [f"{float(one[name]):.4f}" for name in ("score", "test_score", "refit_test_score")]
        assert [fold, f"{point['p']:g}", f"{point['lam']:g}", *numbers] in [row[:6] for row in rows]
    status, text, _ = run("search", parts, tmp_path / "found", *SMALL, "--overwrite", "--json")
    told = json.loads(text)
    assert told["choice"] == "fold"
    assert told["best"] == found.best_params_
    assert told["refit_test_score"] == found.scores["refit_test_score"].values.tolist()
    status, _, err = run("search", parts, tmp_path / "other", *SMALL, "--choice", "joint")
    assert status == 1
    assert "9 training and validation rows of stored split 0 are test rows of stored split 1" in err


def test_one_of_the_splits(run, tmp_path, parts):
    status, text, err = run("search", parts, tmp_path / "found", *SMALL, "--cv", "splits", "--split", 1)
    assert status == 0, err
    assert "1 fold, on 45 samples (split 1)" in text
    found, K = dmkl.load(tmp_path / "found"), dmkl.open(parts)
    assert found.scores["fold"].values.tolist() == ["1"]
    expected = dmkl.search(dmkl.MKFDA(), K, grid=GRID, cv={"1": K.split(1)})
    assert found.best_params_ == expected.best_params_
    np.testing.assert_allclose(found.scores["test_score"], expected.scores["test_score"])
    assert found.scores["refit_test_score"].dims == ("fold",)


# --- evaluate ------------------------------------------------------------------------------------------------


def test_evaluate(run, tmp_path, plain):
    out = tmp_path / "estimate"
    arguments = ["--outer", 3, "--inner", "StratifiedKFold(2)", "--scoring", "accuracy,matthews"]
    status, text, err = run("evaluate", plain, out, *SMALL, *arguments)
    assert status == 0, err
    found = dmkl.load(out)
    expected = dmkl.evaluate(
        dmkl.MKFDA(), dmkl.open(plain), grid=GRID, outer=3, inner=2, scoring=["accuracy", "matthews"]
    )
    np.testing.assert_allclose(found.scores["test_score"], expected.scores["test_score"])
    assert found.table()[["p", "lam"]].equals(expected.table()[["p", "lam"]])
    assert "3 outer folds × 2 inner, on 45 samples (all)" in text
    assert f"accuracy {found.mean_score_:.4g}" in text
    assert f"{float(found.baselines['test_score'].mean()):.4g} ± " in found.beside()[0]
    assert found.beside()[0] in " ".join(text.split())
    for label, recall in zip(("apple", "pear", "plum"), found.classes["recall"].values, strict=True):
        assert f"{recall:.3g}" in next(line for line in text.splitlines() if line.startswith(label))
    assert not (tmp_path / "estimate.partial").exists()
    status, text, _ = run("evaluate", plain, out, *SMALL, *arguments, "--json", "--overwrite")
    told = json.loads(text)
    assert told["mean_score"] == found.mean_score_
    assert [list(counts) for counts in told["confusion"].values()] == found.confusion.values.tolist()
    assert len(told["folds"]) == told["outer_folds"] == 3
    assert [row["test_score"] for row in told["baselines"]] == found.baselines["test_score"].values.ravel().tolist()
    status, _, err = run("evaluate", plain, out, *SMALL)
    assert status == 1
    assert "exists already" in err
    status, _, err = run("evaluate", plain, tmp_path / "new", *SMALL, "--outer", "Fold(3)")
    assert "--outer takes a number of folds" in err


@pytest.mark.filterwarnings("ignore::dmkl.errors.SampleOrderWarning")
def test_evaluate_keeps_groups_whole(run, tmp_path, plain):
    (tmp_path / "groups.txt").write_text("\n".join(map(str, np.arange(M) // 5)))
    arguments = ["--outer", 2, "--inner", 2, "--groups", tmp_path / "groups.txt"]
    status, _, err = run("evaluate", plain, tmp_path / "estimate", *SMALL, *arguments)
    assert status == 0, err
    expected = dmkl.evaluate(dmkl.MKFDA(), dmkl.open(plain), grid=GRID, outer=2, inner=2, groups=np.arange(M) // 5)
    np.testing.assert_allclose(dmkl.load(tmp_path / "estimate").scores["test_score"], expected.scores["test_score"])


# --- stability -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::dmkl.errors.SampleOrderWarning")
def test_stability(run, tmp_path, plain):
    out, picture = tmp_path / "trust", tmp_path / "trust.png"
    (tmp_path / "groups.txt").write_text("\n".join(map(str, np.arange(M) // 3)))
    arguments = [
        "-p",
        1,
        "--resamples",
        4,
        "--selected",
        1,
        "--groups",
        tmp_path / "groups.txt",
        "--cluster",
        "threads",
    ]
    status, text, err = run("stability", plain, out, *arguments, "--plot", picture)
    assert status == 0, err
    groups = np.arange(M) // 3
    expected = dmkl.stability(dmkl.MKFDA(p=1), dmkl.open(plain), None, 4, n_selected=1, groups=groups)
    found = dmkl.load(out)
    np.testing.assert_allclose(found.data["weight"], expected.data["weight"])
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "Stability of MKFDA: 4 half-samples, 4 kernels, on 45 samples (all)" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if " % " in line}
    for kernel, share in zip(found.table()["kernel"], found.table()["selection_frequency"], strict=True):
        assert rows[kernel][6] == f"{100 * share:.0f}"
    assert not (tmp_path / "trust.partial").exists()
    status, text, _ = run("stability", plain, out, *arguments, "--overwrite", "--json")
    told = json.loads(text)
    assert told["error_bound"] == found.error_bound()
    assert [one["selection_frequency"] for one in told["kernels"]] == found.table()["selection_frequency"].tolist()
    assert run("check", out, "--strict")[0] == 0
    assert "Stability of MKFDA" in run("info", out)[1]
    status, _, err = run("stability", plain, tmp_path / "other", "--resamples", 3)
    assert status == 1
    assert "n_resamples must be even" in err


# --- predict and fit -----------------------------------------------------------------------------------------


def test_predicting_after_a_search_on_all_samples(run, tmp_path, plain):
    """There is nothing new in the set: the error says what to do, and samples by name are told to be no test."""
    found = tmp_path / "found"
    assert run("search", plain, found, *SMALL, "--cv", 3)[0] == 0
    status, _, err = run("predict", found, plain, "--cluster", "threads")
    assert status == 1
    assert "trained on all 45 samples of this set" in err
    assert "--rows FILE" in err
    (tmp_path / "rows.txt").write_text("s03\ns01\n")
    out = tmp_path / "predictions.csv"
    options = ["--rows", tmp_path / "rows.txt", "--cluster", "threads"]
    status, text, _ = run("predict", found, plain, *options, "--out", out)
    assert status == 0
    assert "2 samples" in text
    assert "which the model was trained on: this says nothing about new samples" in text
    assert [line.split(",")[0] for line in out.read_text().splitlines()] == ["sample", "s03", "s01"]
    _, text, _ = run("predict", found, plain, *options, "--json")
    assert (json.loads(text)["samples"], json.loads(text)["trained_on"]) == (2, 2)


def test_samples_that_were_trained_on_are_not_scored_with_others(run, tmp_path, plain):
    (tmp_path / "train.txt").write_text("\n".join(f"s{i:02}" for i in range(30)))
    model = tmp_path / "model"
    assert run("fit", plain, model, "--train", tmp_path / "train.txt", "--cluster", "threads")[0] == 0
    (tmp_path / "rows.txt").write_text("\n".join(f"s{i:02}" for i in range(25, 45)))
    _, text, _ = run("predict", model, plain, "--rows", tmp_path / "rows.txt", "--cluster", "threads", "--json")
    told = json.loads(text)
    K, rows = dmkl.open(plain), np.arange(30, 45)
    assert (told["samples"], told["trained_on"]) == (20, 5)
    assert told["accuracy"] == dmkl.load(model).score(K[rows, :30])


def test_parts_of_a_split_that_were_trained_on_are_refused(run, tmp_path, parts):
    assert run("fit", parts, tmp_path / "model", "--all", "--cluster", "threads")[0] == 0
    for part in ("test", "validation"):
        status, _, err = run("predict", tmp_path / "model", parts, "--split", 0, "--part", part)
        assert status == 1
        assert f"trained on 9 samples of the 9 in the {part} part of split 0" in err
        assert (
            "says nothing about new samples; take a model that was not, another --part, or choose samples with" in err
        )
    assert run("predict", tmp_path / "model", parts, "--split", 0, "--part", "train", "--cluster", "threads")[0] == 0
    status, _, err = run("predict", tmp_path / "model", parts, "--split", 0, "--rows", tmp_path / "none")
    assert "--split and --rows exclude one another" in err


def test_measures_of_a_fit_and_of_its_predictions(run, tmp_path, parts):
    model = tmp_path / "model"
    arguments = ["--split", 1, "--scoring", "matthews,accuracy", "--cluster", "threads"]
    status, text, _ = run("fit", parts, model, *arguments)
    assert status == 0
    assert "9 samples (the test part of split 1)" in text
    K = dmkl.open(parts)
    train, _, test = K.split(1)
    predicted = dmkl.load(model).predict(K[test, train])
    matthews = dmkl.assess(dmkl.load(model), K[test, train], scoring="matthews")["score"].item()
    assert f"matthews {matthews:.4g}" in text
    _, text, _ = run("fit", parts, model, *arguments, "--overwrite", "--json")
    held_out = json.loads(text)["held_out"]
    assert held_out["samples"] == 9
    _, text, _ = run("predict", model, parts, "--split", 1, "--scoring", "matthews,accuracy", "--json")
    told = json.loads(text)
    assert told["scores"] == held_out["scores"]
    assert told["scores"]["matthews"] == matthews
    expected = confusion_matrix(K.labels[test].astype(str), predicted.astype(str))
    np.testing.assert_array_equal(list(told["confusion"].values()), expected)
    assert [row["support"] for row in told["classes"]] == expected.sum(axis=1).tolist()
    assert -1 <= matthews_corrcoef(K.labels[test].astype(str), predicted.astype(str)) <= 1
    status, _, err = run("fit", parts, tmp_path / "other", "--all", "--scoring", "accuracy")
    assert status == 1
    assert "there are none" in err
    assert not (tmp_path / "other").exists()


# --- classes of few samples ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rare(tmp_path_factory, kernels, classes):
    """One sample of the class "rare" and two of "few", in a stored split that validates on some of them."""
    labels = np.array(classes, dtype=object)
    labels[[3, 9, 30]] = "rare", "few", "few"
    splits = np.where(np.arange(M) < 27, 0, np.where(np.arange(M) < 36, 1, 2))[None]
    path = tmp_path_factory.mktemp("protocol") / "rare.zarr"
    return dmkl.create(path, kernels, labels=labels.astype(str), splits=splits, tile=16).view.source.location


FOLDS = {
    "search": ["--cv", "3"],
    "evaluate": [],
    "importance": ["--cv", "3"],
    "permute": ["--cv", "3", "--permutations", "2"],
    "stability": ["--resamples", "2", "--all"],
}


@pytest.mark.filterwarnings("ignore:The least populated class", "ignore::dmkl.errors.LabelWarning")
@pytest.mark.parametrize("command", FOLDS)
def test_classes_of_few_samples_can_be_left_out(run, tmp_path, rare, command):
    grid = ["--p", "2", "--lam", "1e-2"]
    words = [command, rare, tmp_path / "out", "--cluster", "threads", *grid, *FOLDS[command]]
    status, _, err = run(*words, *(["--all"] if command in ("search", "importance") else []))
    fewest = 3 if command == "evaluate" else 2
    assert status == 1
    assert "that class has 1 in all; leave classes of fewer than" in err
    assert f"--drop-classes-below {fewest}, or in Python K[rows, rows]" in err
    status, out, err = run(
        *words, *(["--all"] if command in ("search", "importance") else []), "--drop-classes-below", 3
    )
    assert status == 0, err
    assert "42 samples (all; without 2 classes of fewer than 3: few, rare)" in out


def test_classes_of_few_samples_are_left_out_of_stored_splits_and_models(run, tmp_path, rare):
    K, drop = dmkl.open(rare), ["--drop-classes-below", "2", "--cluster", "threads", "--p", "2", "--lam", "1e-2"]
    rows = np.flatnonzero(K.labels != "rare")
    train, validation, test = (np.flatnonzero(np.isin(rows, part)) for part in K.split(0))
    status, _, err = run("search", rare, tmp_path / "found", "--cv", "splits", "--split", "0", *drop)
    assert status == 0, err
    expected = dmkl.search(
        dmkl.MKFDA(), K[rows, rows], grid={"p": [2.0], "lam": [1e-2]}, cv={"0": (train, validation, test)}
    )
    found = dmkl.load(tmp_path / "found")
    np.testing.assert_allclose(found.scores["test_score"], expected.scores["test_score"])
    status, _, err = run(
        "fit", rare, tmp_path / "model", "--train", _names(tmp_path, K, 40), *drop, "--scoring", "accuracy"
    )
    assert status == 0, err
    assert "rare" not in dmkl.load(tmp_path / "model").classes_
    status, _, err = run("fit", rare, tmp_path / "none", "--all", *drop[2:], "--drop-classes-below", "40")
    assert status == 1
    assert "--drop-classes-below 40 leaves 0 classes of 5, and learning needs two; the largest have" in err


def _names(folder, K, n):
    path = folder / "names.txt"
    path.write_text("\n".join(map(str, K.samples[:n])))
    return path
