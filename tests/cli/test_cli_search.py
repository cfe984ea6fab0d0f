"""`dmkl search`: what it finds, saves and says, and how it goes on after it was stopped."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest
from rich.console import Console
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneOut,
    PredefinedSplit,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedKFold,
)

import dmkl
from dmkl.cli.parsing import parse_cv, parse_grid
from dmkl.errors import InputError
from dmkl.progress import ConsoleWatch
from dmkl.solvers.workspace import Workspace

pytest_plugins = ["helpers.command_line"]

M = 45
"""Samples of the set."""
GRID = {"p": [1.0, 2.0], "lam": [0.01, 1.0]}
SMALL = ("--p", "1,2", "--lam", "1e-2,1", "--cluster", "threads")


@pytest.fixture(scope="module")
def plain(tmp_path_factory, kernels, classes):
    """The kernels without splits."""
    path = tmp_path_factory.mktemp("search") / "plain.zarr"
    names = ["clear", "fair", "poor", "noise"]
    samples = [f"s{i:02}" for i in range(M)]
    return dmkl.create(path, kernels, names=names, samples=samples, labels=classes, tile=16).view.source.location


@pytest.fixture(scope="module")
def split(tmp_path_factory, kernels, classes):
    """The kernels with two splits of three parts; samples 0 and 1 are in no part of the second."""
    parts = np.zeros((2, M), dtype=int)
    parts[0, 27:36], parts[0, 36:] = 1, 2
    parts[1, 9:18], parts[1, 2:9], parts[1, :2] = 1, 2, -1
    path = tmp_path_factory.mktemp("search") / "split.zarr"
    return dmkl.create(path, kernels, labels=classes, splits=parts, tile=16).view.source.location


@pytest.fixture
def stopped():
    """Lets searches end after so many passes, in the way that is given, until what it returns is called."""
    patch = pytest.MonkeyPatch()

    def stop(after, error):
        def commit(self, state, committed=Workspace.commit):
            committed(self, state)
            if state.get("solver", {"n_passes": 0})["n_passes"] == after:
                raise error

        patch.setattr(Workspace, "commit", commit)
        return patch.undo

    yield stop
    patch.undo()


class KilledError(Exception):
    pass


# --- what is found and saved -----------------------------------------------------------------------------------------


def test_help_has_examples(run):
    status, out, _ = run("search", "--help")
    assert status == 0
    assert "dmkl search " in out.split("Examples")[1]


def test_it_saves_what_a_search_finds(run, tmp_path, plain):
    out = tmp_path / "deep" / "found"
    status, text, _ = run("search", plain, out, *SMALL, "--cv", 3)
    assert status == 0
    K = dmkl.open(plain)
    expected = dmkl.search(dmkl.MKFDA(), K, grid=GRID, cv=3)
    found = dmkl.load(out)
    assert found.grid == GRID
    for name in ("score", "weight", "objective"):
        np.testing.assert_allclose(found.scores[name], expected.scores[name], rtol=1e-10, atol=1e-12)
    assert found.best_params_ == expected.best_params_
    np.testing.assert_allclose(found.best_.weights_, expected.best_.weights_, rtol=1e-10, atol=1e-12)
    assert not list(tmp_path.rglob("*.partial"))

    lines = text.splitlines()
    assert lines[0] == "Search of MKFDA: 2 p × 2 lam, 3 folds, on 45 samples (all)"
    points = found.table()
    for point in points.to_dict("records"):
        start = f"{point['p']:g} "
        shown = next(line for line in lines if line.startswith(start) and f" {point['lam']:g} " in line)
        assert f"{point['mean_score']:.4f} ± {point['standard_error']:.4f}" in shown
        assert ("chosen" in shown) == ({name: point[name] for name in GRID} == found.best_params_)
    assert "12 fits (12 certified" in text
    for name, weight in zip(K.names, found.best_.weights_.values, strict=True):
        assert f"{weight:.4f}" in next(line for line in lines if line.startswith(name))
    assert f"dmkl predict {out} NEW_SAMPLES" in text


def test_only_the_best_points_are_listed_and_the_chosen_one(run, tmp_path, plain):
    lams = [10.0**-k for k in range(14)]
    arguments = ["--p", 2, "--lam", ",".join(map(str, lams)), "--cv", 3, "--cluster", "threads"]
    _, text, _ = run("search", plain, tmp_path / "found", *arguments, "--rule", "one-standard-error")
    found = dmkl.load(tmp_path / "found")
    table = found.table()
    place = int(np.flatnonzero(table["lam"] == found.best_params_["lam"])[0])
    shown = [line.split() for line in text.splitlines() if line.startswith("2 ") or line.startswith("…")]
    expected = [f"{lam:g}" for lam in table["lam"][:10]]
    if place >= 10:
        expected.append(f"{found.best_params_['lam']:g}")
    assert [row[1] for row in shown if len(row) > 1] == expected
    assert [row[1] for row in shown if row[-1] == "chosen"] == [f"{found.best_params_['lam']:g}"]
    assert (["…"] in shown) == (place > 10)


def test_stored_splits_are_the_folds_by_default(run, tmp_path, split):
    out = tmp_path / "found"
    status, text, _ = run("search", split, out, *SMALL)
    assert status == 0
    assert "2 folds, on 45 samples (all)" in text
    found, K = dmkl.load(out), dmkl.open(split)
    expected = dmkl.search(dmkl.MKFDA(), K, grid=GRID, cv="splits")
    for name in ("score", "test_score", "refit_test_score"):
        np.testing.assert_allclose(found.scores[name], expected.scores[name], rtol=1e-12)
    train, validation, test = K.split(0)
    rows = np.union1d(train, validation)
    assert found.best_.train_samples_.tolist() == K.samples[rows].tolist()
    assert "Refitted on 36 samples (training and validation rows of fold 0)" in text
    accuracy = found.best_.score(K[test, rows])
    assert accuracy == found.scores["refit_test_score"].values[0]

    # The command that it names, and the model by itself.
    assert f"dmkl predict {out} {split}" in text
    for model in (out, out / "best"):
        _, told, _ = run("predict", model, split, "--cluster", "threads", "--json")
        assert json.loads(told)["accuracy"] == accuracy
        assert json.loads(told)["samples"] == len(test)


def test_which_samples_the_search_may_see(run, tmp_path, split):
    K = dmkl.open(split)
    names = tmp_path / "train.txt"
    names.write_text("\n".join(K.samples[3:33]))
    everything, first, second = range(M), K.split(0).train, K.split(1).train
    for arguments, rows, folds in (
        (["--cv", "3"], first, 3),  # not the test samples, unless they are asked for
        (["--cv", "3", "--all"], everything, 3),
        (["--split", "1"], second, 5),
        (["--train", names], range(3, 33), 5),
        (["--train", names, "--cv", "4"], range(3, 33), 4),
    ):
        out = tmp_path / "found"
        status, text, err = run("search", split, out, "--p", "1", "--lam", "1", "--cluster", "threads", "--overwrite",
                                *arguments)  # fmt: skip
        assert status == 0, err
        found = dmkl.load(out)
        assert found.best_.train_samples_.tolist() == K.samples[list(rows)].tolist(), arguments
        assert found.scores.sizes["fold"] == folds, arguments
        assert f"{len(rows)} samples (" in text


@pytest.mark.parametrize("kind", ["uniform", "single-best", "product"])
def test_baselines(run, tmp_path, plain, kind):
    out = tmp_path / "found"
    arguments = ["--model", kind, "--lam", "1e-2,1", "--cv", "2", "--cluster", "threads"]
    status, _, err = run("search", plain, out, *arguments)
    assert status == 0, err
    found = dmkl.load(out)
    model = {"uniform": dmkl.Uniform, "single-best": dmkl.SingleBest, "product": dmkl.Product}[kind]()
    expected = dmkl.search(model, dmkl.open(plain), grid={"lam": [0.01, 1.0]}, cv=2)
    np.testing.assert_allclose(found.scores["score"], expected.scores["score"])
    assert type(found.best_) is type(model)
    assert not (tmp_path / "found.partial").exists()


def test_options_reach_the_estimator_and_the_grid(run, tmp_path, plain):
    out = tmp_path / "found"
    arguments = ["--solver", "subspace(basis=1GiB, finish=report)", "--tol", "1e-3"]
    _, text, _ = run(
        "search", plain, out, *SMALL, *arguments, "--grid", "steps=cosine+center,none", "--cv", 2, "--json"
    )
    parameters = json.loads(text)["model"]["parameters"]
    for name, value in {
        "solver": "Subspace(basis='1GiB', finish='report')",
        "tol": 1e-3,
    }.items():
        assert parameters[name] == value
    found = dmkl.load(out)
    assert found.grid == {**GRID, "steps": [("cosine", "center"), ()]}
    expected = dmkl.search(dmkl.MKFDA(steps=(), tol=1e-3), dmkl.open(plain), grid=GRID, cv=2)
    np.testing.assert_allclose(found.scores["score"].isel(steps=1), expected.scores["score"])
    assert not (tmp_path / "found.partial").exists()


def test_the_papers_grid_by_default(run, tmp_path, plain):
    base = ["search", plain, tmp_path / "found", "--cluster", "threads", "--cv", 2, "--no-refit", "--overwrite"]
    for arguments, sizes, lam in (
        (["--lam", "1"], (12, 1), 1.0),
        (["--p", "2"], (1, 10), 1e-8),
        (["--p", "2", "--steps", "cosine,center"], (1, 10), 4.0**-5),
    ):
        assert run(*base, *arguments)[0] == 0
        grid = dmkl.load(tmp_path / "found").grid
        assert (len(grid["p"]), len(grid["lam"])) == sizes
        assert grid["lam"][0] == lam


def test_scoring_rule_and_no_model(run, tmp_path, plain):
    out = tmp_path / "found"
    more = ["--scoring", "roc_auc_ovr_weighted", "--scoring", "accuracy", "--scoring", "matthews"]
    status, _, err = run("search", plain, out, *SMALL, *more)
    assert status == 1
    assert "roc_auc_ovr_weighted" in err
    more = ["--scoring", "matthews", "--scoring", "accuracy", "--rule", "one-standard-error", "--no-refit"]
    status, text, _ = run("search", plain, out, *SMALL, *more)
    assert status == 0
    found = dmkl.load(out)
    assert found.scores.attrs["scoring"] == "matthews"
    assert "score_accuracy" in found.scores
    assert found.rule == "one_standard_error"
    assert not hasattr(found, "best_")
    assert "without a model" in text
    assert "predict" not in text


def test_several_tasks_have_a_row_each(run, tmp_path, kernels):
    rng = np.random.default_rng(0)
    labels = np.stack([np.arange(M) % 3 == 0, rng.permutation(np.arange(M)) % 2 == 0], axis=1).astype(int)
    dmkl.create(tmp_path / "tasks", kernels, labels=labels, tasks=["sweet", "round"], tile=16)
    arguments = ["search", tmp_path / "tasks", tmp_path / "found", *SMALL, "--cv", 3]
    status, text, _ = run(*arguments)
    assert status == 0
    found = dmkl.load(tmp_path / "found")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(("sweet", "round"))}
    for task in ("sweet", "round"):
        point = found.best_params_[task]
        assert rows[task][1:3] == [f"{point['p']:g}", f"{point['lam']:g}"]
        assert rows[task][3] == f"{found.best_score_[task]:.4f}"
    assert "24 fits" in text
    _, text, _ = run(*arguments, "--overwrite", "--json")
    told = json.loads(text)
    assert told["best"] == found.best_params_
    assert told["best_score"] == pytest.approx(found.best_score_)
    assert [row["task"] for row in told["points"]] == ["sweet"] * 4 + ["round"] * 4


def test_json_holds_everything(run, tmp_path, plain):
    out = tmp_path / "found"
    arguments = ["search", plain, out, "--p", "1,inf", "--lam", "0.1", "--cluster", "threads", "--json"]
    status, text, _ = run(*arguments)
    assert status == 0
    told, found = json.loads(text), dmkl.load(out)
    assert told["grid"] == {"p": [1.0, "inf"], "lam": [0.1]}
    assert float(told["best"]["p"]) == found.best_params_["p"]
    assert (told["folds"], told["samples"], told["scoring"], told["rule"]) == (5, M, "accuracy", "best")
    assert told["best_score"] == found.best_score_
    assert told["fits"] == {"certified": 10, "finished": 0, "converged": 0, "open": 0}
    assert told["passes"] == found.n_passes_
    assert told["largest_gap"] == found.scores["gap"].values.max() <= 1e-4
    assert len(told["points"]) == 2
    assert told["model"]["path"] == str(out / "best")
    assert list(told["model"]["weights"].values()) == found.best_.weights_.values.tolist()


def test_pictures(run, tmp_path, plain):
    pictures = tmp_path / "new" / "pictures"
    status, text, _ = run("search", plain, tmp_path / "found", *SMALL, "--plot", pictures)
    assert status == 0
    for name in ("scores.png", "weights.png", "weights_over_p.png"):
        assert (pictures / name).read_bytes().startswith(b"\x89PNG")
        assert name in text
    status, _, err = run("search", plain, tmp_path / "other", *SMALL, "--plot", pictures)
    assert status == 1
    assert "scores.png exists already" in err
    assert not (tmp_path / "other").exists()
    again = ["-p", 2, "--lam", 0.1, "--tol", 1e-2, "--plot", pictures, "--overwrite"]
    status, text, _ = run("search", plain, tmp_path / "found", *again)
    assert status == 0
    assert "scores.png, weights.png." in text
    assert not (pictures / "weights_over_p.png").exists()  # it was of a search that this one replaces


def test_no_point_with_a_score(run, tmp_path, kernels):
    """Of folds of one sample the area under the curve is undefined; what was computed is not lost."""
    dmkl.create(tmp_path / "set", kernels[:, :8, :8], labels=np.arange(8) % 2, tile=16)
    arguments = ["search", tmp_path / "set", tmp_path / "found", *SMALL, "--cv", "LeaveOneOut", "--scoring", "roc_auc"]
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert "no point of the grid can be chosen" in err
    assert "what was done is kept" in err
    status, out, err = run(*arguments, "--no-refit")
    assert status == 0
    assert "going on after pass" in err
    assert "no point of the grid can be chosen" in out
    _, out, _ = run(*arguments, "--no-refit", "--overwrite", "--json")
    assert json.loads(out)["best"] is None


# --- folds and grids as text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("KFold(4)", KFold(4)),
        (" StratifiedKFold( n_splits = 3, shuffle=True, random_state=7 ) ",
         StratifiedKFold(3, shuffle=True, random_state=7)),
        ("StratifiedKFold(3, shuffle=True)", StratifiedKFold(3, shuffle=True, random_state=0)),
        ("RepeatedStratifiedKFold(n_splits=3, n_repeats=2)",
         RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0)),
        ("ShuffleSplit(2, test_size=0.25)", ShuffleSplit(2, test_size=0.25, random_state=0)),
        ("LeaveOneOut", LeaveOneOut()),
        ("LeaveOneOut()", LeaveOneOut()),
        ("PredefinedSplit([-1, 0, 1, 0, 1, -1, 0, 1, 1, 0, 0, 1])",
         PredefinedSplit([-1, 0, 1, 0, 1, -1, 0, 1, 1, 0, 0, 1])),
    ],
)  # fmt: skip
def test_splitters_as_text_split_like_their_own(text, expected):
    y = np.arange(12) % 3
    found = parse_cv(text)
    assert type(found) is type(expected)
    for mine, theirs in zip(found.split(y, y), expected.split(y, y), strict=True):
        for part, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(part, other)


def test_folds_that_are_no_splitters():
    assert parse_cv("7") == 7
    assert parse_cv("splits") == "splits"


@pytest.mark.parametrize(
    "text",
    [
        "", "KFold(", "kfold(3)", "BaseCrossValidator()", "GridSearchCV", "train_test_split(3)", "KFold(3)(4)",
        "KFold(n_splits=int('3'))", "KFold(**{'n_splits': 3})", "KFold(*[3])", "__import__('os').system('false')",
        "(lambda: KFold(3))()", "sklearn.model_selection.KFold(3)", "KFold(3); 1", "KFold(1)", "KFold(folds=3)",
        "(" * 500 + ")" * 500,
    ],
)  # fmt: skip
def test_texts_that_are_no_folds(text):
    with pytest.raises(InputError, match="--cv"):
        parse_cv(text)


def test_values_as_text():
    texts = ["p=1, 4/3,inf", "lam=1e-3,2", "steps=center+trace,none", "max_iter=5,10", "tol=1e-2", "b=true,False"]
    found = parse_grid(texts)
    assert found["p"] == [1.0, 4 / 3, np.inf]
    assert found["lam"] == [1e-3, 2.0]
    assert found["steps"] == [("center", "trace"), ()]
    assert found["max_iter"] == [5, 10]
    assert all(type(value) is int for value in found["max_iter"])
    assert found["tol"] == [1e-2]
    assert found["b"] == [True, False]


@pytest.mark.parametrize("texts", [["p"], ["=1"], ["p="], ["p=1", "p=2"], ["p=1,,2"], ["lam=one"], ["p=0.5"]])
def test_values_that_are_none(texts):
    with pytest.raises(InputError):
        parse_grid(texts)


@pytest.mark.filterwarnings("ignore::dmkl.errors.SampleOrderWarning")
def test_groups(run, tmp_path, plain):
    K = dmkl.open(plain)
    groups = np.array(["a", "b", "c", "d", "e"])[np.arange(M) // 3 % 5]
    vector, table, numbers = (tmp_path / name for name in ("groups.txt", "table.csv", "groups.npy"))
    vector.write_text("\n".join(groups))
    order = np.random.default_rng(0).permutation(M)
    table.write_text("sample,group\n" + "\n".join(f"{K.samples[i]},{groups[i]}" for i in order))
    np.save(numbers, np.unique(groups, return_inverse=True)[1])
    expected = dmkl.search(dmkl.MKFDA(), K, grid=GRID, cv=GroupKFold(3), groups=groups, refit=False)
    train = tmp_path / "train.txt"
    train.write_text("\n".join(K.samples[10:40]))
    some = dmkl.search(
        dmkl.MKFDA(), K[10:40, 10:40], grid=GRID, cv=GroupKFold(3), groups=groups[10:40], refit=False
    )  # fmt: skip
    base = ["search", plain, tmp_path / "found", *SMALL, "--overwrite", "--no-refit", "--cv", "GroupKFold(3)"]
    for file in (vector, table, numbers):
        assert run(*base, "--groups", file)[0] == 0
        np.testing.assert_allclose(dmkl.load(tmp_path / "found").scores["score"], expected.scores["score"])
    assert run(*base, "--groups", table, "--train", train)[0] == 0
    np.testing.assert_allclose(dmkl.load(tmp_path / "found").scores["score"], some.scores["score"])

    for file, text, told in (
        (vector, "a\nb", "(2,)"),
        (table, "sample,group\ns00,a\ns01,b", "lacks 43 of the 45 samples ('s02', 's03', 's04' …)"),
        (table, "sample,group\n" + "\n".join(f"x{i},a" for i in range(M)), "'x0'"),
        (tmp_path / "none.txt", None, "there is no file"),
    ):
        if text is not None:
            file.write_text(text)
        status, _, err = run(*base, "--groups", file)
        assert status == 1
        assert told in err


# --- refusals --------------------------------------------------------------------------------------------------------


def test_what_it_refuses_before_anything_runs(run, tmp_path, plain, split, monkeypatch):
    def nothing(*_, **__):
        pytest.fail("something ran")

    monkeypatch.setattr(Workspace, "commit", nothing)
    new = tmp_path / "new"
    for arguments, told in (
        ([plain, plain], "--overwrite"),
        ([plain, plain, "--overwrite"], "is not a search"),
        ([plain, new, "--p", "0.5"], "p must be at least 1"),
        ([plain, new, "--lam", "-1"], "lam must be positive"),
        ([plain, new, "--lam", "1,1"], "twice"),
        ([plain, new, "--p", "1", "--grid", "p=2"], "twice"),
        ([plain, new, "--grid", "depth=1"], "'depth' is no parameter of MKFDA"),
        ([plain, new, "--model", "uniform", "--p", "1"], "'p' is no parameter of Uniform"),
        ([plain, new, "--solver", "subspace(basis=plenty)"], "basis must be a size"),
        ([plain, new, "--solver", "direct(basis=1GiB)"], "direct takes master="),
        ([plain, new, "--tol", "0"], "tol must be positive"),
        ([plain, new, "--cv", "1"], "cv=1"),
        ([plain, new, "--cv", "splits"], "needs splits"),
        ([plain, new, "--cv", "GroupKFold(3)"], "splits by groups"),
        ([plain, new, "--scoring", "beauty"], "no scoring 'beauty'"),
        ([split, new, "--split", "7"], "there is no split 7"),
        ([split, new, "--split", "0", "--all"], "exclude one another"),
        ([tmp_path / "nowhere", new], "there is no kernel set"),
    ):
        status, out, err = run("search", *arguments, "--cluster", "threads")
        assert (status, out) == (1, ""), arguments
        assert told in err, arguments
        assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_wrong_argument_that_shows_late_leaves_nothing(run, tmp_path, plain):
    """The precision of the kernels is known after a pass; another λ is another search."""
    arguments = ["search", plain, tmp_path / "found", "--p", "1", "--cluster", "threads"]
    status, _, err = run(*arguments, "--lam", "1e-25")
    assert status == 1
    assert "lam=1e-25 is below" in err
    assert not list(tmp_path.iterdir())


def test_overwriting(run, tmp_path, plain):
    arguments = ["search", plain, tmp_path / "found", "--p", "1", "--lam", "1", "--cluster", "threads"]
    assert run(*arguments)[0] == 0
    status, out, err = run(*arguments, "--cv", "3")
    assert (status, out) == (1, "")
    assert "--overwrite" in err
    assert dmkl.load(tmp_path / "found").scores.sizes["fold"] == 5
    assert run(*arguments, "--cv", "3", "--overwrite")[0] == 0
    assert dmkl.load(tmp_path / "found").scores.sizes["fold"] == 3


# --- going on --------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from dmkl.cli.main import main
from dmkl.solvers.workspace import Workspace

def commit(self, state, committed=Workspace.commit):
    committed(self, state)
    if state.get("solver", {"n_passes": 0})["n_passes"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)

Workspace.commit = commit
main(sys.argv[1:])
"""


def test_a_killed_search_goes_on(run, tmp_path, plain):
    arguments = [plain, str(tmp_path / "found"), *SMALL, "--cv", "3"]
    killed = subprocess.run([sys.executable, "-c", KILLED, "search", *arguments], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "found").exists()
    status, _, err = run("search", *arguments)
    assert status == 0
    assert "dmkl: note: going on after pass 3\n" in err
    assert not (tmp_path / "found.partial").exists()
    found = dmkl.load(tmp_path / "found")
    expected = dmkl.search(dmkl.MKFDA(), dmkl.open(plain), grid=GRID, cv=3)
    np.testing.assert_allclose(found.scores["score"], expected.scores["score"])
    np.testing.assert_allclose(found.scores["weight"], expected.scores["weight"], atol=1e-6)
    assert found.n_passes_ == expected.n_passes_


def test_an_interrupt_says_what_is_kept(run, tmp_path, plain, stopped):
    arguments = ["search", plain, tmp_path / "found", *SMALL]
    undo = stopped(3, KeyboardInterrupt)
    status, out, err = run(*arguments)
    assert (status, out) == (130, "")
    assert f"what was done is kept in {tmp_path / 'found.partial'}; the same command goes on after pass 3" in err
    undo()
    status, _, err = run(*arguments)
    assert status == 0
    assert "going on after pass 3" in err
    assert "going on" not in run(*arguments, "--overwrite")[2]


def test_several_subspaces_go_on(run, tmp_path, plain, stopped):
    """Each value of another parameter has a state of its own."""
    arguments = ["search", plain, tmp_path / "found", *SMALL, "--grid", "steps=center+trace,none", "--cv", "3"]
    undo = stopped(4, KilledError())
    assert run(*arguments)[0] == 1
    undo()
    states = list((tmp_path / "found.partial").rglob("state.json"))
    assert len(states) == 1
    status, _, err = run(*arguments)
    assert status == 0
    assert "going on after pass 4" in err
    assert not (tmp_path / "found.partial").exists()


def test_the_state_of_another_search(run, tmp_path, plain, stopped):
    kept = tmp_path / "found.partial"
    arguments = ["search", plain, tmp_path / "found", *SMALL]
    undo = stopped(3, KilledError())
    assert run(*arguments)[0] == 1
    undo()
    status, out, err = run(*arguments, "--cv", "3")
    assert (status, out) == (1, "")
    assert "differs in: the folds" in err
    assert "--restart" in err
    assert "going on" not in err
    assert "the same command goes on" not in err
    assert (kept / "state.json").exists()
    # A wrong option neither uses nor harms it.
    assert run(*arguments, "--scoring", "beauty")[0] == 1
    assert (kept / "state.json").exists()
    status, _, err = run(*arguments, "--cv", "3", "--restart")
    assert status == 0
    assert "going on" not in err
    assert not kept.exists()
    assert dmkl.load(tmp_path / "found").scores.sizes["fold"] == 3


def test_restart_throws_nothing_else_away(run, tmp_path, plain):
    kept = tmp_path / "found.partial"
    arguments = ["search", plain, tmp_path / "found", *SMALL]
    kept.mkdir()
    assert run(*arguments, "--restart")[0] == 0
    for name, text in (("notes.txt", "mine"), ("state.json", '{"format": "another"}'), ("state.json", "{")):
        kept.mkdir()
        (kept / name).write_text(text)
        for more in (["--restart"], []):
            status, _, err = run(*arguments, "--overwrite", *more)
            assert status == 1
            assert str(kept) in err
            assert (kept / name).read_text() == text
        (kept / name).unlink()
        kept.rmdir()
    kept.write_text("a file")
    assert run(*arguments, "--overwrite", "--restart")[0] == 1
    assert kept.read_text() == "a file"


def test_the_state_of_another_solver_is_left_alone(run, tmp_path, plain, stopped):
    arguments = ["search", plain, tmp_path / "found", *SMALL, "--cv", "3"]
    undo = stopped(3, KilledError())
    assert run(*arguments)[0] == 1
    undo()
    status, _, err = run(*arguments, "--solver", "direct")
    assert status == 1
    assert "differs in: parameter solver" in err
    assert "--restart" in err
    assert (tmp_path / "found.partial" / "state.json").exists()
    assert run(*arguments, "--solver", "direct", "--restart")[0] == 0
    assert not (tmp_path / "found.partial").exists()


def test_the_name_of_the_state_is_that_of_the_output(run, tmp_path, plain, stopped, monkeypatch):
    """Also where the output is given relative to the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    undo = stopped(2, KilledError())
    assert run("search", plain, "~/found", *SMALL)[0] == 1
    undo()
    assert (tmp_path / "found.partial" / "state.json").exists()
    assert "going on after pass 2" in run("search", plain, "~/found", *SMALL)[2]
    assert "--overwrite" in run("search", plain, "~/found", *SMALL)[2]


@pytest.mark.slow
def test_on_a_cluster(run, tmp_path, plain, cluster):
    arguments = ["--p", "1,2", "--lam", "1e-2,1", "--cv", 3, "--cluster", cluster.scheduler_address]
    assert run("search", plain, tmp_path / "found", *arguments)[0] == 0
    expected = dmkl.search(dmkl.MKFDA(), dmkl.open(plain), grid=GRID, cv=3)
    np.testing.assert_allclose(dmkl.load(tmp_path / "found").scores["score"], expected.scores["score"])


# --- progress --------------------------------------------------------------------------------------------------------

NOTE = (
    "12,584 of 16,000 settings solved; largest remaining error 0.014 %; about 1500 s left; pass 7, 1,215 basis vectors"
)


def screens(text):
    """What stood on the terminal, redrawn line by line."""
    return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)) if line.strip()]


def test_progress_on_a_terminal_is_a_note_above_a_stage():
    file = io.StringIO()
    with ConsoleWatch(Console(file=file, force_terminal=True, width=80), delay_seconds=0) as watch:
        watch.note(NOTE)
        watch.begin("extend-pass-7", 2**30)
        watch.advance(2**29)
        time.sleep(0.3)
        watch.end()
        watch.begin("restricted-master-8", 0)
        watch.advance(0)
        time.sleep(0.3)
        watch.end()
    lines = screens(file.getvalue())
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("12,584 of 16,000 settings solved; largest remaining error 0.014 %") for line in lines)
    stages = [line for line in lines if "extend-pass-7" in line]
    assert any("0.5/1.0 GiB" in line for line in stages)
    idle = [line for line in lines if "restricted-master-8" in line]
    assert idle
    assert all(line.strip() == "restricted-master-8" for line in idle)


def test_progress_in_a_log_is_a_line_now_and_then():
    file = io.StringIO()
    with ConsoleWatch(Console(file=file, width=80), delay_seconds=0.2) as watch:
        watch.begin("extend-pass-1", 100)
        watch.note("too early")
        time.sleep(0.25)
        watch.note(NOTE)
        watch.note("too soon after it")
        time.sleep(0.25)
        watch.note("next")
        watch.end()
    assert file.getvalue().splitlines() == [NOTE, "next"]


# --- chains of steps -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Samples that differ in k(x, x), in single precision."""
    rng = np.random.default_rng(0)
    y = np.arange(36) % 2
    X = (rng.standard_normal((36, 6)) + 2 * np.eye(2, 6)[y]) * np.exp(0.7 * rng.standard_normal((36, 1)))
    path = tmp_path_factory.mktemp("unlike") / "set.zarr"
    return dmkl.create(path, [(X @ X.T).astype(np.float32)], labels=y).view.source.location


CHEAP = ("-p", "2", "--cv", "2", "--baselines", "none", "--no-refit", "--cluster", "threads", "--overwrite")


def test_both_chains_of_steps_are_tried_where_samples_differ_in_size(run, tmp_path, unlike):
    status, _, err = run("search", unlike, tmp_path / "found", *CHEAP)
    assert status == 0, err
    assert "the steps center+trace and cosine+center are both tried, each with its own values of lam" in err
    assert "--steps center+trace tries that chain only" in err
    found = dmkl.load(tmp_path / "found")
    grid = {"p": [2.0], "lam": None, "steps": ["center+trace", "cosine+center"]}
    expected = dmkl.search(dmkl.MKFDA(), dmkl.open(unlike), None, grid, cv=2, baselines="none", refit=False)
    np.testing.assert_array_equal(found.scores["score"], expected.scores["score"])
    status, _, err = run("search", unlike, tmp_path / "given", *CHEAP, "--grid", "steps=cosine+center,center+trace")
    assert status == 0, err
    assert "both tried" not in err
    given = dmkl.load(tmp_path / "given").scores["score"]
    np.testing.assert_array_equal(given.sel(steps=found.scores["steps"]), found.scores["score"])


@pytest.mark.parametrize(
    "options",
    [["--steps", "center+trace"], ["--lam", "0.1"], ["--model", "mksvm", "-C", "1"]],
    ids=["steps", "lam", "machine"],
)
def test_whoever_gives_steps_or_lam_gets_those(run, tmp_path, unlike, options):
    status, _, err = run("search", unlike, tmp_path / "found", *CHEAP, *options)
    assert status == 0, err
    assert "chain" not in err
    assert "steps" not in dmkl.load(tmp_path / "found").scores.dims


def test_where_samples_are_alike_in_size_another_chain_is_hinted_at(run, tmp_path, unlike):
    K = dmkl.open(unlike)
    unit = K.normalize("cosine").to_dask().compute().astype(np.float32)
    alike = dmkl.create(tmp_path / "alike.zarr", unit, labels=K.labels).view.source.location
    status, _, err = run("search", alike, tmp_path / "found", *CHEAP)
    assert status == 0, err
    assert "one chain of steps is tried, center+trace; to compare it with another: --grid steps=" in err
    assert "steps" not in dmkl.load(tmp_path / "found").scores.dims


def test_a_job_that_tried_both_chains_does_so_again(run, tmp_path, unlike):
    job = tmp_path / "job.toml"
    job.write_text(
        f'[data]\nstore = "{unlike}"\n[grid]\np = [2]\n[folds]\ncv = 2\nbaselines = "none"\nrefit = false\n'
        '[cluster]\nplace = "threads"\n[outputs]\nsearch = "found"\n'
    )
    status, _, err = run("run", job)
    assert status == 0, err
    recorded = tomllib.loads((tmp_path / "found.job.toml").read_text())
    assert recorded["grid"] == {"p": "2", "steps": "center+trace,cosine+center"}
    status, _, err = run("run", tmp_path / "found.job.toml", "--into", tmp_path / "again")
    assert status == 0, err
    first, second = dmkl.load(tmp_path / "found"), dmkl.load(tmp_path / "again" / "found")
    np.testing.assert_array_equal(first.scores["score"], second.scores["score"])
