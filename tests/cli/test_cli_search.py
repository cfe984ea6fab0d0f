"""`dmkl search`: results, files and messages, and resumption after an interruption."""

from __future__ import annotations

import io
import json
import re
import sys
import time
import tomllib
from functools import partial
from types import SimpleNamespace

import dask
import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sklearn.model_selection import (
    GroupKFold,
    LeaveOneOut,
    PredefinedSplit,
    ShuffleSplit,
    StratifiedKFold,
)

import dmkl
from dmkl.cli.parsing import parse_cv, parse_grid
from dmkl.errors import InputError
from dmkl.progress import ConsoleWatch
from dmkl.solvers.workspace import Workspace

pytestmark = pytest.mark.usefixtures("rounds")

search = partial(dmkl.search, baselines="none")

M = 45
"""Number of samples of the set."""
GRID = {"p": [1.0, 2.0], "lam": [0.01, 1.0]}
NO_BASELINES = ("--baselines", "none")
SMALL = ("--p", "1,2", "--lam", "1e-2,1", *NO_BASELINES)
POINT = ("--p", "2", "--lam", "1", *NO_BASELINES)


@pytest.fixture
def stopped():
    """Make searches raise `error` after a number of passes, until the returned function is called."""
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


# --- results and files -----------------------------------------------------------------------------------------------


def test_it_saves_what_a_search_finds(output_of, tmp_path, plain):
    out = tmp_path / "deep" / "result"
    text = output_of("search", plain, out, "--p", "1,2", "--lam", "1e-2,1", "--cv", 3)
    K = dmkl.open(plain)
    expected = dmkl.search(dmkl.MKFDA(), K, grid=GRID, cv=3)
    result = dmkl.load(out)
    assert result.grid == GRID
    for name in ("score", "weight", "objective"):
        np.testing.assert_allclose(result.scores[name], expected.scores[name], rtol=1e-10, atol=1e-12)
    assert result.best_params_ == expected.best_params_
    np.testing.assert_allclose(result.best_.weights_, expected.best_.weights_, rtol=1e-10, atol=1e-12)

    lines = text.splitlines()
    assert lines[0] == "Search of MKFDA: 2 p × 2 lam, 3 folds, on 45 samples (all)"
    for point in result.table().to_dict("records"):
        start = f"{point['p']:g} "
        shown = next(line for line in lines if line.startswith(start) and f" {point['lam']:g} " in line)
        assert f"{point['mean_score']:.4f} ± {point['standard_error']:.4f}" in shown
        assert ("chosen" in shown) == ({name: point[name] for name in GRID} == result.best_params_)
    assert "12 fits (12 certified" in text
    for title in ("plain sum of the kernels", "SVM on the sum of kernels, C = "):
        assert title in " ".join(text.split())
    for name, weight in zip(K.names, result.best_.weights_.values, strict=True):
        assert f"{weight:.4f}" in next(line for line in lines if line.startswith(name))
    assert f"dmkl predict {out} NEW_SAMPLES" in text


@pytest.mark.slow
def test_which_samples_the_search_may_see(output_of, tmp_path, store):
    K = dmkl.open(store)
    names = tmp_path / "train.txt"
    names.write_text("\n".join(K.samples[3:33]))
    everything, first, second = range(M), K.split(0).train, K.split(1).train
    for arguments, rows, folds in (
        (["--cv", "2"], first, 2),  # without the test samples, unless --all includes them
        (["--cv", "2", "--all"], everything, 2),
        (["--split", "1"], second, 5),
        (["--train", names, "--cv", "3"], range(3, 33), 3),
    ):
        out = tmp_path / "result"
        text = output_of("search", store, out, *POINT, "--overwrite", *arguments)
        result = dmkl.load(out)
        assert result.best_.train_samples_.tolist() == K.samples[list(rows)].tolist(), arguments
        assert result.scores.sizes["fold"] == folds, arguments
        assert f"{len(rows)} samples (" in text


def test_options_reach_the_estimator_and_the_grid(json_of, tmp_path, plain):
    out = tmp_path / "result"
    arguments = ["--solver", "subspace(basis=1GiB, finish=report)", "--tol", "1e-3"]
    parameters = json_of("search", plain, out, *POINT, *arguments, "--grid", "steps=cosine+center,none", "--cv", 2)[
        "model"
    ]["parameters"]
    assert parameters["solver"] == "Subspace(basis='1GiB', finish='report')"
    assert parameters["tol"] == 1e-3
    result = dmkl.load(out)
    assert result.grid == {"p": [2.0], "lam": [1.0], "steps": [("cosine", "center"), ()]}
    expected = search(dmkl.MKFDA(steps=(), tol=1e-3), dmkl.open(plain), grid={"p": [2.0], "lam": [1.0]}, cv=2)
    np.testing.assert_allclose(result.scores["score"].isel(steps=1), expected.scores["score"])


def test_scoring_rule_and_no_model(error_of, output_of, tmp_path, plain):
    out = tmp_path / "result"
    more = ["--scoring", "roc_auc", "--scoring", "accuracy", "--scoring", "matthews"]
    assert "roc_auc" in error_of("search", plain, out, *POINT, *more)
    more = ["--scoring", "matthews", "--scoring", "accuracy", "--rule", "one-standard-error", "--no-refit"]
    text = output_of("search", plain, out, *POINT, *more, "--predictions", tmp_path / "predictions.csv")
    result = dmkl.load(out)
    table = dmkl.prediction_table(result.predictions)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "predictions.csv", dtype={"fold": str}), table, rtol=1e-8)
    assert result.scores.attrs["scoring"] == "matthews"
    assert "score_accuracy" in result.scores
    assert result.rule == "one_standard_error"
    assert not hasattr(result, "best_")
    assert "without a model" in text
    assert "predict" not in text


def test_json_holds_everything(output_of, tmp_path, plain):
    out = tmp_path / "result"
    text = output_of("search", plain, out, "--p", "1,inf", "--lam", "0.1", "--json", *NO_BASELINES)
    printed, result = json.loads(text), dmkl.load(out)
    assert printed["grid"] == {"p": [1.0, "inf"], "lam": [0.1]}
    assert float(printed["best"]["p"]) == result.best_params_["p"]
    assert [printed[name] for name in ("folds", "samples", "scoring", "rule")] == [5, M, "accuracy", "best"]
    assert printed["best_score"] == result.best_score_
    assert printed["fits"] == {"certified": 10, "finished": 0, "converged": 0, "open": 0}
    assert printed["passes"] == result.n_passes_
    assert printed["largest_gap"] == result.scores["gap"].values.max() <= 1e-4
    assert len(printed["points"]) == 2
    assert printed["model"]["path"] == str(out / "best")
    assert list(printed["model"]["weights"].values()) == result.best_.weights_.values.tolist()


def test_pictures(error_of, output_of, tmp_path, plain):
    pictures = tmp_path / "new" / "pictures"
    command = ["search", plain, tmp_path / "result", "--cv", 2, "--plot", pictures, *NO_BASELINES]
    output_of(*command, "--p", "1,2", "--lam", "0.1")
    for name in ("scores.png", "weights.png", "weights_over_p.png"):
        assert (pictures / name).read_bytes().startswith(b"\x89PNG")
    assert "scores.png exists already" in error_of("search", plain, tmp_path / "other", *POINT, "--plot", pictures)
    assert not (tmp_path / "other").exists()
    output_of(*command, "-p", 2, "--lam", 0.1, "--overwrite")
    assert not (pictures / "weights_over_p.png").exists()  # a picture of the replaced search


def test_no_point_with_a_score(run, error_of, json_of, tmp_path, kernels):
    """The area under the curve is undefined on folds of one sample; finished work is kept."""
    dmkl.create(tmp_path / "set", kernels[:, :6, :6], labels=np.arange(6) % 2, tile=16)
    arguments = ["search", tmp_path / "set", tmp_path / "result", *POINT, "--cv", "LeaveOneOut", "--scoring", "roc_auc"]
    err = error_of(*arguments)
    assert "no point of the grid can be chosen" in err
    assert "what was done is kept" in err
    status, out, err = run(*arguments, "--no-refit")
    assert status == 0
    assert "going on after pass" in err
    assert "no point of the grid can be chosen" in out
    assert json_of(*arguments, "--no-refit", "--overwrite")["best"] is None


# --- folds and grids as text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" StratifiedKFold( n_splits = 3, shuffle=True, random_state=7 ) ",
         StratifiedKFold(3, shuffle=True, random_state=7)),
        ("StratifiedKFold(3, shuffle=True)", StratifiedKFold(3, shuffle=True, random_state=0)),
        ("ShuffleSplit(2, test_size=0.25)", ShuffleSplit(2, test_size=0.25, random_state=0)),
        ("LeaveOneOut", LeaveOneOut()),
        ("PredefinedSplit([-1, 0, 1, 0, 1, -1, 0, 1, 1, 0, 0, 1])",
         PredefinedSplit([-1, 0, 1, 0, 1, -1, 0, 1, 1, 0, 0, 1])),
    ],
)  # fmt: skip
def test_splitters_as_text_split_like_their_own(text, expected):
    y = np.arange(12) % 3
    splitter = parse_cv(text)
    assert type(splitter) is type(expected)
    for fold, other in zip(splitter.split(y, y), expected.split(y, y), strict=True):
        for part, other_part in zip(fold, other, strict=True):
            np.testing.assert_array_equal(part, other_part)


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
    grid = parse_grid([*texts, "C=1,4"])
    assert grid == {
        "p": [1.0, 4 / 3, np.inf],
        "lam": [1e-3, 2.0],
        "steps": [("center", "trace"), ()],
        "max_iter": [5, 10],
        "tol": [1e-2],
        "b": [True, False],
        "C": [1.0, 4.0],
    }
    assert all(type(value) is int for value in grid["max_iter"])


@pytest.mark.parametrize(
    "texts", [["p"], ["=1"], ["p="], ["p=1", "p=2"], ["p=1,,2"], ["lam=one"], ["p=0.5"], ["C=1,many"]]
)
def test_values_that_are_none(texts):
    with pytest.raises(InputError):
        parse_grid(texts)


@pytest.mark.filterwarnings("ignore::dmkl.errors.SampleOrderWarning")
def test_groups(error_of, output_of, tmp_path, plain):
    K = dmkl.open(plain)
    groups = np.array(["a", "b", "c", "d", "e"])[np.arange(M) // 3 % 5]
    vector, table, numbers = (tmp_path / name for name in ("groups.txt", "table.csv", "groups.npy"))
    vector.write_text("\n".join(groups))
    order = np.random.default_rng(0).permutation(M)
    table.write_text("sample,group\n" + "\n".join(f"{K.samples[i]},{groups[i]}" for i in order))
    np.save(numbers, np.unique(groups, return_inverse=True)[1])
    (tmp_path / "train.txt").write_text("\n".join(K.samples[10:40]))
    question = {"grid": {"p": [2.0], "lam": [1.0]}, "cv": GroupKFold(3), "refit": False}
    expected = search(dmkl.MKFDA(), K, groups=groups, **question)
    some = search(dmkl.MKFDA(), K[10:40, 10:40], groups=groups[10:40], **question)
    base = ["search", plain, tmp_path / "result", *POINT, "--overwrite", "--no-refit", "--cv", "GroupKFold(3)"]
    for given, scores in (
        ([table], expected.scores),
        ([numbers], expected.scores),
        ([table, "--train", tmp_path / "train.txt"], some.scores),
    ):
        output_of(*base, "--groups", *given)
        np.testing.assert_allclose(dmkl.load(tmp_path / "result").scores["score"], scores["score"])

    for file, text, words in (
        (vector, "a\nb", "(2,)"),
        (table, "sample,group\ns00,a\ns01,b", "lacks 43 of the 45 samples ('s02', 's03', 's04' …)"),
        (table, "sample,group\n" + "\n".join(f"x{i},a" for i in range(M)), "'x0'"),
        (tmp_path / "none.txt", None, "there is no file"),
    ):
        if text is not None:
            file.write_text(text)
        assert words in error_of(*base, "--groups", file)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_what_it_refuses_before_anything_runs(error_of, tmp_path, plain, monkeypatch):
    def nothing(*_, **__):
        pytest.fail("something ran")

    monkeypatch.setattr(Workspace, "commit", nothing)
    new = tmp_path / "new"
    for arguments, words in (
        ([plain, plain], "--overwrite"),
        ([plain, plain, "--overwrite"], "is not a search"),
        ([plain, new, "--p", "1", "--grid", "p=2"], "twice"),
        ([plain, new, "--grid", "depth=1"], "'depth' is no parameter of MKFDA"),
        ([plain, new, "--solver", "direct(basis=1GiB)"], "direct takes master="),
    ):
        assert words in error_of("search", *arguments), arguments
    assert not list(tmp_path.iterdir())


def test_a_wrong_argument_that_shows_late_leaves_nothing(error_of, tmp_path, plain):
    """The precision of the kernels is known after one pass; a corrected λ makes a new search."""
    assert "lam=1e-25 is below" in error_of("search", plain, tmp_path / "result", *POINT, "--lam", "1e-25")
    assert not list(tmp_path.iterdir())


# --- resumption ------------------------------------------------------------------------------------------------------


def test_several_subspaces_go_on(notes_of, run, tmp_path, plain, stopped):
    """Each value of a parameter other than p and λ has its own state."""
    arguments = ["search", plain, tmp_path / "result", *SMALL, "--grid", "steps=center+trace,none", "--cv", "2"]
    undo = stopped(4, KilledError())
    assert run(*arguments)[0] == 1
    undo()
    assert len(list((tmp_path / "result.partial").rglob("state.json"))) == 1
    err = notes_of(*arguments)
    assert "going on after pass 4" in err
    assert not (tmp_path / "result.partial").exists()


def test_the_state_of_another_search(notes_of, run, error_of, tmp_path, plain, stopped):
    kept = tmp_path / "result.partial"
    arguments = ["search", plain, tmp_path / "result", *SMALL]
    undo = stopped(3, KilledError())
    assert run(*arguments)[0] == 1
    undo()
    err = error_of(*arguments, "--cv", "3")
    assert "differs in: the folds" in err
    assert "--restart" in err
    assert "going on" not in err
    assert "the same command continues" not in err
    # A wrong option neither uses nor changes the state.
    assert run(*arguments, "--scoring", "beauty")[0] == 1
    assert (kept / "state.json").exists()
    err = notes_of(*arguments, "--cv", "3", "--restart")
    assert "going on" not in err
    assert not kept.exists()
    assert dmkl.load(tmp_path / "result").scores.sizes["fold"] == 3


def test_restart_throws_nothing_else_away(run, error_of, output_of, tmp_path, plain):
    kept = tmp_path / "result.partial"
    arguments = ["search", plain, tmp_path / "result", *POINT]
    kept.mkdir()
    output_of(*arguments, "--restart")
    texts = ("{", "[]", "null", '{"format": "another"}')
    for name, text in (("notes.txt", "mine"), *(("state.json", text) for text in texts)):
        kept.mkdir()
        (kept / name).write_text(text)
        for more in (["--restart"], []):
            assert str(kept) in error_of(*arguments, "--overwrite", *more)
            assert (kept / name).read_text() == text
        (kept / name).unlink()
        kept.rmdir()
    kept.write_text("a file")
    assert run(*arguments, "--overwrite", "--restart")[0] == 1
    assert kept.read_text() == "a file"


# --- progress --------------------------------------------------------------------------------------------------------

NOTE = "12,584/16,000 settings solved, error ≤ 0.014 %, pass 7"


def screens(text):
    """The lines shown on the terminal, in order of drawing."""
    return [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)) if line.strip()]


def test_progress_on_a_terminal_is_a_line(monkeypatch):
    file, now = io.StringIO(), [0.0]
    monkeypatch.setattr("dmkl.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    with ConsoleWatch(Console(file=file, force_terminal=True, width=80)) as watch:

        def draw(seconds):
            now[0] = seconds
            watch._live.refresh()

        watch.begin("extend-pass-1", 2**30)
        now[0] = 60
        watch.advance(2**29)
        draw(60)
        watch.end()
        watch.expect(8)
        watch.note("0/16,000 settings solved, pass 1")
        draw(119.7)  # rounded to a full minute
        watch.expect(1)
        watch.note(NOTE)
        draw(960)
        watch.expect(0)
        watch.note(f"{NOTE}; no room")
        draw(4500)
    lines = [line.rstrip() for line in screens(file.getvalue())]
    assert max(map(len, lines)) <= 80
    assert set(lines) >= {
        "extend pass 1 (50%) after 1:00, 1:00 left",
        "0/16,000 settings solved, pass 1 after 2:00, 15:58 left",
        f"{NOTE} after 16:00, 16:00 left",
        f"{NOTE} after 1.2 h; no room",
    }


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
    assert [line.partition(" after ")[0] for line in file.getvalue().splitlines()] == [NOTE, "next"]


class Terminal(io.StringIO):
    """A text stream that is a terminal."""

    def isatty(self):
        return True


def test_python_shows_progress_where_somebody_sees_it(monkeypatch, kernels, classes):
    monkeypatch.setattr(ConsoleWatch.__init__, "__defaults__", (None, 0.0))
    monkeypatch.setenv("COLUMNS", "80")

    def shown(stderr, setting="auto"):
        monkeypatch.setattr(sys, "stderr", stderr)
        with dask.config.set({"dmkl.progress": setting}):
            dmkl.MKFDA(solver="subspace").fit(kernels, classes)
        return [line.strip() for line in screens(stderr.getvalue())]

    line = r"(0/1 settings solved, pass 1|1/1 settings solved, pass \d) after \d:\d\d(, \d:\d\d left)?"
    assert any(re.fullmatch(line, text) for text in shown(Terminal()))
    assert not shown(io.StringIO())
    assert not shown(Terminal(), False)
    assert "settings solved" in shown(io.StringIO(), True)[0]
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    assert "settings solved" in " ".join(shown(io.StringIO()))


# --- chains of steps -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """A set in single precision whose samples differ in k(x, x)."""
    rng = np.random.default_rng(0)
    y = np.arange(36) % 2
    X = (rng.standard_normal((36, 6)) + 2 * np.eye(2, 6)[y]) * np.exp(0.7 * rng.standard_normal((36, 1)))
    path = tmp_path_factory.mktemp("unlike") / "set.zarr"
    return dmkl.create(path, [(X @ X.T).astype(np.float32)], labels=y).view.source.location


CHEAP = ("-p", "2", "--cv", "2", "--no-refit", "--overwrite", *NO_BASELINES)


def test_both_chains_of_steps_are_tried_where_samples_differ_in_size(notes_of, tmp_path, unlike):
    err = notes_of("search", unlike, tmp_path / "result", *CHEAP)
    assert "the steps center+trace and cosine+center are both tried, each with its own values of lam" in err
    assert "--steps center+trace tries that chain only" in err
    scores = dmkl.load(tmp_path / "result").scores
    grid = {"p": [2.0], "lam": None, "steps": ["center+trace", "cosine+center"]}
    expected = search(dmkl.MKFDA(), dmkl.open(unlike), None, grid, cv=2, refit=False)
    np.testing.assert_array_equal(scores["score"], expected.scores["score"])
    err = notes_of("search", unlike, tmp_path / "given", *CHEAP, "--grid", "steps=cosine+center,center+trace")
    assert "both tried" not in err
    given = dmkl.load(tmp_path / "given").scores["score"]
    np.testing.assert_array_equal(given.sel(steps=scores["steps"]), scores["score"])


@pytest.mark.parametrize(
    "options",
    [["--steps", "center+trace"], ["--lam", "0.1"], ["--model", "mksvm", "-C", "1"]],
    ids=["steps", "lam", "machine"],
)
def test_whoever_gives_steps_or_lam_gets_those(notes_of, tmp_path, unlike, options):
    err = notes_of("search", unlike, tmp_path / "result", *CHEAP, *options)
    assert "chain" not in err
    assert "steps" not in dmkl.load(tmp_path / "result").scores.dims


def test_where_samples_are_alike_in_size_another_chain_is_hinted_at(notes_of, tmp_path, unlike):
    K = dmkl.open(unlike)
    unit = K.normalize("cosine").to_dask().compute().astype(np.float32)
    alike = dmkl.create(tmp_path / "alike.zarr", unit, labels=K.labels).view.source.location
    err = notes_of("search", alike, tmp_path / "result", *CHEAP)
    assert "one chain of steps is tried, center+trace; to compare it with another: --grid steps=" in err
    assert "steps" not in dmkl.load(tmp_path / "result").scores.dims


def test_a_job_that_tried_both_chains_does_so_again(output_of, tmp_path, unlike):
    job = tmp_path / "job.toml"
    job.write_text(
        f'[data]\nstore = "{unlike}"\n[grid]\np = [2]\n[folds]\ncv = 2\nbaselines = "none"\nrefit = false\n'
        '[cluster]\nplace = "threads"\n[outputs]\nsearch = "result"\n'
    )
    output_of("run", job)
    recorded = tomllib.loads((tmp_path / "result.job.toml").read_text())
    assert recorded["grid"] == {"p": "2", "steps": "center+trace,cosine+center"}
    output_of("run", tmp_path / "result.job.toml", "--into", tmp_path / "again")
    first, second = dmkl.load(tmp_path / "result"), dmkl.load(tmp_path / "again" / "result")
    np.testing.assert_array_equal(first.scores["score"], second.scores["score"])
