"""`dmkl search`: results, files and messages, and resumption after an interruption."""

import io
import re
import sys
from functools import partial
from types import SimpleNamespace

import dask
import numpy as np
import pandas as pd
import pytest
from helpers.interruption import cut_off
from rich.console import Console
from sklearn.model_selection import GroupKFold

import dmkl
from dmkl.progress import ConsoleWatch

pytestmark = pytest.mark.usefixtures("rounds")

search = partial(dmkl.search, baselines="none")

M = 45
GRID = {"p": [1.0, 2.0], "lam": [0.01, 1.0]}
NO_BASELINES = ("--baselines", "none")
SMALL = ("--p", "1,2", "--lam", "1e-2,1", *NO_BASELINES)
POINT = ("--p", "2", "--lam", "1", *NO_BASELINES)


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
        assert f"{point['mean_score']:#.3g} ± {point['standard_error']:.2g}" in shown
        assert ("chosen" in shown) == ({name: point[name] for name in GRID} == result.best_params_)
    assert "Plain sum of the kernels" in text
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
    command = ["search", plain, out, *POINT, "--solver", "subspace(basis=1GiB, finish=report)", "--tol", "1e-3"]
    parameters = json_of(*command, "--grid", "steps=cosine+center,none", "--cv", 2)["model"]["parameters"]
    assert (parameters["solver"], parameters["tol"]) == ("Subspace(basis='1GiB', finish='report')", 1e-3)
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


def test_json_holds_everything(json_of, tmp_path, plain):
    out = tmp_path / "result"
    printed = json_of("search", plain, out, "--p", "1,inf", "--lam", "0.1", *NO_BASELINES)
    result = dmkl.load(out)
    assert printed["grid"] == {"p": [1.0, "inf"], "lam": [0.1]}
    assert [printed[name] for name in ("folds", "samples", "scoring", "rule")] == [5, M, "accuracy", "best"]
    assert printed["best_score"] == result.best_score_
    assert printed["fits"] == {"certified": 10, "finished": 0, "converged": 0, "open": 0}
    assert printed["largest_gap"] == result.scores["gap"].values.max() <= 1e-4
    assert list(printed["model"]["weights"].values()) == result.best_.weights_.values.tolist()


def test_pictures(error_of, output_of, tmp_path, plain):
    pictures = tmp_path / "new" / "pictures"
    command = ["search", plain, tmp_path / "result", "--cv", 2, "--plot", pictures, *NO_BASELINES]
    output_of(*command, "--p", "1,2", "--lam", "0.1")
    for name in ("scores.png", "weights.png", "weights_over_p.png"):
        assert (pictures / name).exists()
    assert "scores.png exists already" in error_of("search", plain, tmp_path / "other", *POINT, "--plot", pictures)
    assert not (tmp_path / "other").exists()
    output_of(*command, "-p", 2, "--lam", 0.1, "--overwrite")
    assert not (pictures / "weights_over_p.png").exists()  # a picture of the replaced search


def test_groups(error_of, output_of, tmp_path, plain):
    K, table = dmkl.open(plain), tmp_path / "table.csv"
    groups = pd.Series(np.array(["a", "b", "c", "d", "e"])[np.arange(M) // 3 % 5], K.samples, name="group")
    groups.sample(frac=1, random_state=0).to_csv(table, index_label="sample")
    (tmp_path / "train.txt").write_text("\n".join(K.samples[10:40]))
    question = {"grid": {"p": [2.0], "lam": [1.0]}, "cv": GroupKFold(3), "refit": False}
    base = ["search", plain, tmp_path / "result", *POINT, "--overwrite", "--no-refit", "--cv", "GroupKFold(3)"]
    for rows, given in ((slice(None), ()), (slice(10, 40), ("--train", tmp_path / "train.txt"))):
        output_of(*base, "--groups", table, *given)
        expected = search(dmkl.MKFDA(), K[rows, rows], groups=groups[rows], **question).scores
        np.testing.assert_allclose(dmkl.load(tmp_path / "result").scores["score"], expected["score"])
    table.write_text("sample,group\ns00,a\ns01,b")
    assert "lacks 43 of the 45 samples ('s02', 's03', 's04' …)" in error_of(*base, "--groups", table)


# --- errors ----------------------------------------------------------------------------------------------------------
def test_a_wrong_argument_that_shows_late_leaves_nothing(error_of, tmp_path, plain):
    """The precision of the kernels is known after one pass; a corrected λ makes a new search."""
    assert "lam=1e-25 is below" in error_of("search", plain, tmp_path / "result", *POINT, "--lam", "1e-25")
    assert not list(tmp_path.iterdir())


# --- resumption ------------------------------------------------------------------------------------------------------
def test_the_state_of_another_search(notes_of, run, error_of, tmp_path, plain):
    kept = tmp_path / "result.partial"
    arguments = ["search", plain, tmp_path / "result", *SMALL]
    with cut_off(2):
        search(dmkl.MKFDA(), dmkl.open(plain), grid=GRID, state=kept)
    err = error_of(*arguments, "--cv", "3")
    assert "differs in: the folds" in err
    assert "--restart" in err
    # A wrong option neither uses nor changes the state.
    assert run(*arguments, "--scoring", "beauty")[0] == 1
    assert (kept / "state.json").exists()
    assert "going on" not in notes_of(*arguments, "--cv", "3", "--restart")
    assert not kept.exists()
    assert dmkl.load(tmp_path / "result").scores.sizes["fold"] == 3


def test_restart_throws_nothing_else_away(run, error_of, output_of, tmp_path, plain):
    kept = tmp_path / "result.partial"
    arguments = ["search", plain, tmp_path / "result", *POINT]
    kept.mkdir()
    output_of(*arguments, "--restart")
    texts = ("{", '{"format": "another"}')
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
def test_python_shows_progress_where_somebody_sees_it(monkeypatch, kernels, classes):
    monkeypatch.setattr(ConsoleWatch.__init__, "__defaults__", (None, 0.0))
    monkeypatch.setenv("COLUMNS", "80")

    def shown(terminal, setting="auto"):
        stderr = io.StringIO()
        stderr.isatty = lambda: terminal
        monkeypatch.setattr(sys, "stderr", stderr)
        with dask.config.set({"dmkl.progress": setting}):
            dmkl.MKFDA(solver="subspace").fit(kernels, classes)
        return stderr.getvalue()

    line = r"\d\.\d passes after \d:\d\d: (extend pass|error [≤>] [\d.]+ %)(, \d:\d\d left)?"
    assert re.search(line, shown(True))
    assert not shown(False)
    assert not shown(True, False)
    assert " passes after " in shown(False, True)
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    assert " passes after " in shown(False)


def compared(K, y, out):
    models = ["mkfda", "sum"]
    dmkl.compare(models, K, y, grids={name: {"lam": [0.1, 1]} for name in models}, outer=2, inner=2)
    return [f"model {name}" for name in models]


def permuted(K, y, out):
    dmkl.permutation_test(dmkl.MKFDA(solver="subspace"), K, y, {"lam": [0.1, 1]}, 4, cv=2, state=out)
    return ["0 of 4 permutations fitted"]


@pytest.mark.parametrize("work", [compared, pytest.param(permuted, marks=pytest.mark.slow)])
def test_the_counts_of_progress_only_rise(kernels, classes, tmp_path, work):
    shown = io.StringIO()
    with ConsoleWatch(Console(file=shown, width=200), delay_seconds=0.0) as watch:
        parts = work(kernels, classes, tmp_path / "state")
    lines = shown.getvalue().splitlines()
    counts = re.findall(r"^(\d+) of (\d+) solved, (\d+\.\d) passes after \d+:\d\d: ", shown.getvalue(), re.MULTILINE)
    solved, planned, passes = (list(map(float, numbers)) for numbers in zip(*counts, strict=True))
    assert [solved, planned, passes] == [sorted(solved), sorted(planned), sorted(passes)]
    assert solved[0] < solved[-1]
    assert passes[0] < passes[-1]
    assert watch.n_solved == watch.n_planned == int(counts[-1][1])
    places = [next(n for n, line in enumerate(lines) if part in line) for part in parts]
    assert places == sorted(places)


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


@pytest.mark.slow
@pytest.mark.parametrize("model", ["MKFDA", "MKSVM"])
def test_the_command_tries_the_chains_that_python_tries(notes_of, tmp_path, unlike, model, monkeypatch):
    monkeypatch.setattr("dmkl.searching.grid.C_VALUES", (0.5, 2.0))
    learner, how = getattr(dmkl, model)(), ["--model", model.lower(), "-p", "2", *NO_BASELINES]
    grid = {"C" if model == "MKSVM" else "lam": None, "p": [2.0]}
    err = notes_of("search", unlike, tmp_path / "result", "--cv", 2, "--no-refit", *how)
    assert f"the steps {'+'.join(learner.steps)} and cosine+center are both tried" in err
    K = dmkl.open(unlike)
    expected = search(learner, K, None, grid, cv=2, refit=False)
    scores = dmkl.load(tmp_path / "result").scores["score"]
    np.testing.assert_array_equal(scores.transpose(*expected.scores["score"].dims), expected.scores["score"])
    notes_of("evaluate", unlike, tmp_path / "estimate", "--outer", 2, "--inner", 2, *how)
    expected = dmkl.evaluate(learner, K, None, grid, outer=2, inner=2, baselines="none")
    estimate = dmkl.load(tmp_path / "estimate")
    assert set(estimate.parameters) == set(expected.parameters) >= {"steps"}
    np.testing.assert_array_equal(estimate.scores["test_score"], expected.scores["test_score"])


@pytest.mark.parametrize("options", [["--steps", "center+trace"], ["--lam", "0.1"], ["--model", "mksvm", "-C", "1"]])
def test_whoever_gives_steps_or_lam_gets_those(notes_of, tmp_path, unlike, options):
    err = notes_of("search", unlike, tmp_path / "result", *CHEAP, *options)
    assert "chain" not in err
    assert "steps" not in dmkl.load(tmp_path / "result").scores.dims


def test_where_samples_are_alike_in_size_one_chain_is_tried(notes_of, tmp_path, unlike):
    K = dmkl.open(unlike)
    unit = K.normalize("cosine").to_dask().compute().astype(np.float32)
    alike = dmkl.create(tmp_path / "alike.zarr", unit, labels=K.labels).view.source.location
    err = notes_of("search", alike, tmp_path / "result", *CHEAP)
    assert "one chain of steps is tried, center+trace; to compare it with another: --grid steps=" in err
