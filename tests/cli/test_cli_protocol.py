"""Results of evaluate, predict, fit and search on samples outside selection and training."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from sklearn.metrics import confusion_matrix

import dmkl

M = 45
NO_BASELINES = ("--baselines", "none")
SMALL = ("--p", "1,2", "--lam", "1e-2,1", *NO_BASELINES)
POINT = ("--p", "2", "--lam", "1e-2")
GRID = {"p": [2.0], "lam": [1e-2]}


@pytest.fixture(scope="module")
def parts(tmp_path_factory, kernels, classes):
    """Two splits of three parts: validation samples of the first split are test samples of the second."""
    splits = np.zeros((2, M), dtype=int)
    splits[0, 27:36], splits[0, 36:] = 1, 2
    splits[1, 36:], splits[1, 27:36] = 1, 2
    path = tmp_path_factory.mktemp("protocol") / "split.zarr"
    return dmkl.create(path, kernels, labels=classes, splits=splits, tile=16).view.source.location


# --- search --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_each_split_chooses_for_itself(error_of, json_of, output_of, tmp_path, parts):
    command = ("search", parts, tmp_path / "result", *SMALL)
    rows = [line.split()[:6] for line in output_of(*command).splitlines()]
    result = dmkl.load(tmp_path / "result")
    for fold, point in result.best_params_.items():
        chosen = result.chosen.sel(fold=fold)
        numbers = [f"{float(chosen[name]):#.3g}" for name in ("score", "test_score", "refit_test_score")]
        assert [fold, f"{point['p']:g}", f"{point['lam']:g}", *numbers] in rows
    printed = json_of(*command, "--overwrite")
    assert (printed["choice"], printed["best"]) == ("fold", result.best_params_)
    words = "9 training and validation rows of stored split 0 are test rows of stored split 1"
    assert words in error_of("search", parts, tmp_path / "other", *SMALL, "--choice", "joint")


# --- questions ---------------------------------------------------------------------------------------------------
GROUPS = np.arange(M) // 3
QUESTIONS = {
    "evaluate": (
        ["-p", "1,2", "--lam", 1, "--outer", 2, "--inner", "StratifiedKFold(2)", "--scoring", "accuracy,matthews"],
        {"grid": {"p": [1.0, 2.0], "lam": [1.0]}, "outer": 2, "inner": 2, "scoring": ["accuracy", "matthews"]},
        lambda printed: (printed["mean_score"], list(printed["confusion"].values())),
        lambda result: (result.mean_score_, result.confusion.values.tolist()),
    ),
    "importance": (
        [*POINT, "--cv", 2, "--kernel-group", "good=cle*,fair", "--shapley", 2],
        {"grid": GRID, "cv": 2, "kernel_groups": {"good": ["clear", "fair"]}, "shapley": 2},
        lambda printed: [row["source"] for row in printed["sources"]],
        lambda result: result.table()["source"].tolist(),
    ),
    "stability": (
        [*POINT, "--resamples", 4, "--selected", 1, "--groups", "groups.txt"],
        {"n_resamples": 4, "n_selected": 1, "groups": GROUPS},
        lambda printed: printed["error_bound"],
        lambda result: result.error_bound(),
    ),
    "permute": (
        [*POINT, "--cv", 2, "--permutations", 9, "--groups", "groups.txt"],
        {"grid": GRID, "n_permutations": 9, "cv": 2, "groups": GROUPS},
        lambda printed: printed["p_value"],
        lambda result: result.data["p_value"],
    ),
}
"""Options of the command, arguments in Python, and facts of JSON and of the result."""


@pytest.mark.filterwarnings("ignore::dmkl.errors.SampleOrderWarning")
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] * (name != "stability")) for name in QUESTIONS]
)
def test_a_question_has_the_answer_of_python(json_of, output_of, tmp_path, plain, monkeypatch, command):
    options, arguments, printed, expected = QUESTIONS[command]
    monkeypatch.chdir(tmp_path)
    np.savetxt("groups.txt", GROUPS, fmt="%d")
    text = " ".join(output_of(command, plain, "out", *options, "--plot", "picture.svg").split())
    learner = dmkl.MKFDA(2, 1e-2) if command == "stability" else dmkl.MKFDA()
    ask = dmkl.permutation_test if command == "permute" else getattr(dmkl, command)
    result = dmkl.load("out")
    xr.testing.assert_allclose(result.data, ask(learner, dmkl.open(plain), **arguments).data)
    description = result.describe()
    assert f"{description.headline}, on 45 samples (all)" in text
    assert all(line in text for line in description.lines("scores", "baselines", "chance", "kernels"))
    for table in (make() for key, make in description.tables.items() if key not in ("choices", "comparison")):
        assert all(cell.text in text for row in table.cells(table.first_rows) for cell in row)
    assert printed(json_of(command, plain, "out", *options, "--overwrite")) == expected(result)
    assert b"<svg" in Path("picture.svg").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"groups.txt", "out", "picture.svg"}


# --- predict and fit -----------------------------------------------------------------------------------------
def test_samples_that_were_trained_on_are_told_and_not_scored_with_others(json_of, output_of, tmp_path, plain):
    (tmp_path / "train.txt").write_text("\n".join(f"s{i:02}" for i in range(30)))
    model, out = tmp_path / "model", tmp_path / "predictions.csv"
    output_of("fit", plain, model, "--train", tmp_path / "train.txt")
    printed = json_of("predict", model, plain, "--rows", "25:45")
    assert (printed["samples"], printed["trained_on"]) == (20, 5)
    assert printed["accuracy"] == dmkl.load(model).score(dmkl.open(plain)[30:, :30])
    text = output_of("predict", model, plain, "--rows", "3,1", "--out", out)
    assert "2 samples" in text
    assert "which the model was trained on: this says nothing about new samples" in text
    assert [line.split(",")[0] for line in out.read_text().splitlines()] == ["sample", "s03", "s01"]


def test_parts_of_a_split_that_were_trained_on_are_refused(error_of, output_of, tmp_path, parts):
    output_of("fit", parts, tmp_path / "model", "--all")
    command = ("predict", tmp_path / "model", parts, "--split", 0)
    for part in ("test", "validation"):
        err = error_of(*command, "--part", part)
        assert f"trained on 9 samples of the 9 in the {part} part of split 0" in err
        assert "says nothing about new samples; take a model that was not, another --part, or choose" in err
    output_of(*command, "--part", "train")


def test_measures_of_a_fit_and_of_its_predictions(error_of, json_of, output_of, tmp_path, parts, monkeypatch):
    drawn, plot = [], dmkl.plot_confusion
    monkeypatch.setattr(dmkl, "plot_confusion", lambda counts: drawn.append(counts) or plot(counts))
    arguments = [parts, tmp_path / "model", "--split", 1, "--scoring", "matthews,accuracy"]
    text = output_of("fit", *arguments)
    K, model = dmkl.open(parts), dmkl.load(tmp_path / "model")
    train, _, test = K.split(1)
    matthews = dmkl.assess(model, K[test, train], scoring="matthews")["score"].item()
    assert f"matthews {matthews:#.3g}" in text
    held_out = json_of("fit", *arguments, "--overwrite")["held_out"]
    predict = ("predict", tmp_path / "model", parts, *arguments[2:], "--plot", tmp_path / "c.png")
    printed = json_of(*predict)
    assert printed["scores"] == held_out["scores"]
    assert printed["scores"]["matthews"] == matthews
    expected = confusion_matrix(K.labels[test].astype(str), model.predict(K[test, train]).astype(str))
    for counts in (list(printed["confusion"].values()), drawn[0].transpose("true", "predicted")):
        np.testing.assert_array_equal(counts, expected)
    assert "c.png exists already" in error_of(*predict)


# --- classes of few samples ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def rare(tmp_path_factory, kernels, classes):
    """A set with one sample of class "rare" and two of "few", some of them in the validation part of the split."""
    labels = np.array(classes, dtype=object)
    labels[[3, 9, 30]] = "rare", "few", "few"
    splits = np.where(np.arange(M) < 27, 0, np.where(np.arange(M) < 36, 1, 2))[None]
    path = tmp_path_factory.mktemp("protocol") / "rare.zarr"
    return dmkl.create(path, kernels, labels=labels.astype(str), splits=splits, tile=16).view.source.location


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The least populated class", "ignore::dmkl.errors.LabelWarning")
@pytest.mark.parametrize(
    ("command", "options"), [("evaluate", NO_BASELINES), ("permute", ["--cv", "2", "--permutations", "2"])]
)
def test_classes_of_few_samples_can_be_left_out(error_of, output_of, tmp_path, rare, command, options):
    arguments = [command, rare, tmp_path / "out", *POINT, *options]
    err = error_of(*arguments)
    assert "that class has 1 in all; leave classes of fewer than" in err
    fewest = 3 if command == "evaluate" else 2
    assert f"--drop-classes-below {fewest}, or in Python K[rows, rows]" in err
    out = output_of(*arguments, "--drop-classes-below", 3)
    assert "42 samples (all; without 2 classes of fewer than 3: few, rare)" in out


@pytest.mark.slow
def test_classes_of_few_samples_are_left_out_of_stored_splits_and_models(output_of, tmp_path, rare):
    K = dmkl.open(rare)
    rows = np.flatnonzero(K.labels != "rare")
    folds = {"0": [np.flatnonzero(np.isin(rows, part)) for part in K.split(0)]}
    command = ("search", rare, tmp_path / "result", *NO_BASELINES, "--cv", "splits", "--split", "0", *POINT)
    output_of(*command, "--drop-classes-below", "2")
    expected = dmkl.search(dmkl.MKFDA(), K[rows, rows], grid=GRID, cv=folds, baselines="none")
    np.testing.assert_allclose(dmkl.load(tmp_path / "result").scores["test_score"], expected.scores["test_score"])
    (tmp_path / "names.txt").write_text("\n".join(map(str, K.samples[:40])))
    command = ("fit", rare, tmp_path / "model", "--scoring", "accuracy", *POINT)
    output_of(*command, "--train", tmp_path / "names.txt", "--drop-classes-below", "2")
    assert "rare" not in dmkl.load(tmp_path / "model").classes_
