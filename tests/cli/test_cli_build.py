"""`dmkl build`, and what other commands know of kernels that were computed from features."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics.pairwise import euclidean_distances, linear_kernel, manhattan_distances

import dmkl
from dmkl.cli import creating
from dmkl.cli.main import main

pytest_plugins = ["helpers.command_line"]

M, TRAIN = 45, 30
"""Samples, and those of them in the training part of the split."""
NAMES = [f"s{i:02}" for i in range(M)]
PART = np.where(np.arange(M) < TRAIN, 0, 2)
HERE = ("--cluster", "threads")
RBF = ("--function", "rbf", "--bandwidth", "0.5,2", *HERE)


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((3, 6)) * 2
    return {
        "shape": centers[np.arange(M) % 3] + rng.standard_normal((M, 6)),
        "color": rng.random((M, 4)),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tables, classes):
    """Features as one file of arrays and as tables with names; the last samples once more, as new ones."""
    path = tmp_path_factory.mktemp("features")
    np.savez(path / "all.npz", **tables, y=classes, split=PART)
    np.savez(path / "new.npz", **{name: values[TRAIN:] for name, values in tables.items()}, y=classes[TRAIN:])
    genes = pd.DataFrame(tables["shape"], NAMES, [f"g{k}" for k in range(6)])
    genes.to_csv(path / "genes.csv")
    # In another order, and without the last three samples.
    pd.DataFrame(tables["color"], NAMES, list("abcd")).iloc[: M - 3].iloc[::-1].to_csv(path / "colors.csv")
    pd.Series(classes, NAMES, name="class").iloc[::-1].to_csv(path / "classes.csv", index_label="sample")
    pd.Series(PART, NAMES, name="part").to_csv(path / "parts.csv", index_label="sample")
    (path / "odd.txt").write_text("\n".join(NAMES[1::2]))
    (path / "sets.gmt").write_text("first\t-\tg0\tg1\tunmeasured\nempty\t-\tnone\tnever\n")
    (path / "kernels.toml").write_text(
        '[[kernel]]\nfunction = ["rbf", "laplacian"]\nfeature = "genes"\nbandwidth = [0.5, 2]\n'
        '[[kernel]]\nfunction = "linear"\nfeature = "genes"\ncolumns = "sets.gmt"\n'
    )
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory, folder):
    path = tmp_path_factory.mktemp("built") / "set.zarr"
    assert main(["build", str(path), str(folder / "all.npz"), *RBF, "--tile", "16"]) == 0
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, built):
    path = tmp_path_factory.mktemp("built") / "model"
    assert main(["fit", str(built), str(path), "--p", "1", *HERE]) == 0
    return path


def gamma(distances, rows, bandwidth):
    """1/(b · mean over pairs of different rows)."""
    among = distances[np.ix_(rows, rows)]
    return 1 / (bandwidth * among[~np.eye(len(rows), dtype=bool)].mean())


def rbf(values, rows, bandwidth):
    distances = euclidean_distances(values, squared=True)
    return np.exp(-gamma(distances, rows, bandwidth) * distances)


def files(path):
    return {entry.relative_to(path): entry.read_bytes() for entry in sorted(path.rglob("*")) if entry.is_file()}


# --- what is built ---------------------------------------------------------------------------------------------------


def test_it_explains_itself_with_examples(run):
    status, out, _ = run("build", "--help")
    assert status == 0
    assert "dmkl build " in out.split("Examples")[1]


def test_kernels_without_a_file_of_specs(run, tmp_path, folder, tables, classes):
    out = tmp_path / "set.zarr"
    status, text, err = run("build", out, folder / "all.npz", *RBF, "--function", "linear", "--feature", "sh*")
    assert status == 0
    lines = text.splitlines()
    assert lines[0].startswith(f"{out}: 3 kernels of 45 × 45, float64, ")
    assert lines[1] == f"Describe it with dmkl info {out}, learn with dmkl fit {out} MODEL."
    assert err == "dmkl: note: no kernel is made of 'color': left out\n"
    K = dmkl.open(out)
    assert K.names == ("shape-rbf-bandwidth0.5", "shape-rbf-bandwidth2", "shape-linear")
    assert K.labels.tolist() == classes.tolist()
    assert K.split(0).test.tolist() == list(range(TRAIN, M))
    train = np.arange(TRAIN)
    expected = [rbf(tables["shape"], train, 0.5), rbf(tables["shape"], train, 2), linear_kernel(tables["shape"])]
    np.testing.assert_allclose(np.asarray(K), expected, rtol=1e-10)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set.zarr"]


def test_tables_with_names_and_a_file_of_specs(run, tmp_path, folder, tables, classes):
    out = tmp_path / "set.zarr"
    arguments = ["build", out, folder / "genes.csv", folder / "colors.csv", "--specs", folder / "kernels.toml", *HERE]
    arguments += ["--labels", folder / "classes.csv", "--splits", folder / "parts.csv", "--split", 0]
    arguments += ["--dtype", "float32", "--tile", 16, "--join", "outer"]
    status, text, err = run(*arguments)
    assert status == 0
    assert "5 kernels of 45 × 45, float32" in text
    for note in (
        "features 'colors' lack 3 of the 45 samples",
        "classes.csv was put into the order",
        "no kernel is made of 'colors': left out",
        "left out 1 of the 2 column sets",
        "unmeasured",
    ):
        assert note in err
    K = dmkl.open(out)
    assert K.samples.tolist() == NAMES
    assert K.labels.tolist() == classes.tolist()
    assert K.view.source.tiling.tile == 16
    train = np.arange(TRAIN)
    manhattan = manhattan_distances(tables["shape"])
    expected = {
        "genes-rbf-bandwidth0.5": rbf(tables["shape"], train, 0.5),
        "genes-rbf-bandwidth2": rbf(tables["shape"], train, 2),
        "genes-laplacian-bandwidth0.5": np.exp(-gamma(manhattan, train, 0.5) * manhattan),
        "genes-laplacian-bandwidth2": np.exp(-gamma(manhattan, train, 2) * manhattan),
        "genes-linear-first": linear_kernel(tables["shape"][:, :2]),
    }
    assert K.names == tuple(expected)
    np.testing.assert_allclose(np.asarray(K), list(expected.values()), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ((), np.arange(TRAIN)),
        (("--split", 1), np.arange(5, M)),
        (("--train", "odd.txt"), np.arange(1, M, 2)),
        (("--train", "positions.txt"), np.array([2, 3, 40])),
    ],
)
def test_the_samples_between_which_distances_are_averaged(run, tmp_path, folder, tables, options, rows):
    np.savez(tmp_path / "plain.npz", shape=tables["shape"])
    names = NAMES if "odd.txt" in options else [str(i) for i in range(M)]
    (tmp_path / "odd.txt").write_text((folder / "odd.txt").read_text())
    (tmp_path / "positions.txt").write_text("40\n2\n3\n")
    (tmp_path / "names.txt").write_text("\n".join(names))
    pd.DataFrame({"one": PART, "two": np.where(np.arange(M) < 5, 2, 0)}).to_csv(tmp_path / "parts.csv", index=False)
    given = [tmp_path / str(option) if str(option).endswith(".txt") else option for option in options]
    named = ["--samples", tmp_path / "names.txt"] if "odd.txt" in options else []
    status, _, err = run(
        "build", tmp_path / "set.zarr", tmp_path / "plain.npz", *RBF, "--splits", tmp_path / "parts.csv", *named, *given
    )
    assert (status, err) == (0, "")
    K = dmkl.open(tmp_path / "set.zarr")
    assert K.samples.tolist() == names
    np.testing.assert_allclose(np.asarray(K)[1], rbf(tables["shape"], rows, 2), rtol=1e-10)


def test_samples_that_lack_a_table(run, tmp_path, folder):
    out = tmp_path / "set.zarr"
    arguments = ["build", out, folder / "genes.csv", folder / "colors.csv", *RBF]
    status, text, err = run(*arguments)
    assert (status, text) == (1, "")
    assert "features 'colors' lacks 3 (" in err
    assert "--join outer" in err
    status, text, err = run(*arguments, "--join", "outer", "--missing", "refuse")
    assert "'colors' is missing for 3 of 45" in err
    assert not list(tmp_path.iterdir())
    assert run(*arguments, "--join", "outer")[0] == 0
    centered = dmkl.open(out).center()
    assert np.abs(np.asarray(centered)[2, M - 3 :]).max() < 1e-12
    status, text, _ = run("info", out)
    assert status == 0
    assert [line.split() for line in text.splitlines()[-2:]] == [["genes", "6", "0"], ["colors", "4", "3"]]
    assert [line.split()[-1] for line in text.splitlines() if "-rbf-" in line] == ["0", "0", "3", "3"]
    assert "matched by name" in text
    told = json.loads(run("info", out, "--json")[1])
    assert [kernel["samples_missing"] for kernel in told["kernels"]] == [0, 0, 3, 3]
    assert told["samples_have_names"]


def test_a_set_is_replaced_when_asked_for(run, tmp_path, folder):
    out = tmp_path / "set.zarr"
    assert run("build", out, folder / "all.npz", *RBF)[0] == 0
    before = files(out)
    status, text, err = run("build", out, folder / "all.npz", "--function", "linear", *HERE)
    assert (status, text) == (1, "")
    assert "exists already" in err
    assert files(out) == before
    assert run("build", out, folder / "all.npz", "--function", "linear", "--overwrite", *HERE)[0] == 0
    assert dmkl.open(out).names == ("shape-linear", "color-linear")


def test_processes_build_the_same(run, tmp_path, folder, built, cluster):
    out = tmp_path / "set.zarr"
    where = cluster.scheduler_address
    status, _, _ = run("build", out, folder / "all.npz", *RBF[:4], "--tile", 16, "--cluster", where)
    assert status == 0
    assert dmkl.open(out).content_id == dmkl.open(built).content_id


def test_what_a_set_without_labels_is_good_for(run, tmp_path, tables):
    np.save(tmp_path / "X.npy", tables["shape"])
    _, text, _ = run("build", tmp_path / "set.zarr", tmp_path / "X.npy", *RBF)
    assert text.splitlines()[1] == f"Describe it with dmkl info {tmp_path / 'set.zarr'}."


# --- new samples -----------------------------------------------------------------------------------------------------


def test_new_samples_against_a_set(run, tmp_path, folder, built, classes):
    out = tmp_path / "new.zarr"
    (tmp_path / "names.txt").write_text("\n".join(NAMES[TRAIN:]))
    status, text, _ = run(
        "build", out, folder / "new.npz", "--against", built, "--samples", tmp_path / "names.txt", *HERE
    )
    assert status == 0
    assert "4 kernels of 15 × 45, float64" in text
    assert f"dmkl predict MODEL {out}" in text
    K, whole = dmkl.open(out), dmkl.open(built)
    assert not K.is_square
    assert K.samples.tolist() == NAMES[TRAIN:]
    assert K.labels.tolist() == classes[TRAIN:].tolist()
    np.testing.assert_allclose(np.asarray(K), np.asarray(whole)[:, TRAIN:], rtol=1e-12)
    status, text, _ = run("info", out)
    assert status == 0
    assert "new samples × training samples" in text
    assert "rbf of shape, gamma " in text


@pytest.mark.parametrize("kind", ["fit", "search"])
def test_predictions_from_features_are_those_from_the_set(run, tmp_path, folder, built, fitted, kind):
    model = fitted
    if kind == "search":
        model = tmp_path / "found"
        assert run("search", built, model, "--p", "1,2", "--lam", "0.01,1", "--cv", 3, *HERE)[0] == 0
    status, text, _ = run("predict", model, built, "--split", 0, "--out", tmp_path / "store.csv", *HERE)
    assert status == 0
    first = text.splitlines()[0]
    status, text, err = run("predict", model, "--features", folder / "new.npz", "--out", tmp_path / "new.csv", *HERE)
    assert (status, err) == (0, "")
    assert text.splitlines()[0] == first.replace(str(built), str(folder / "new.npz"))
    assert first.startswith("Accuracy ")
    theirs, ours = (pd.read_csv(tmp_path / f"{name}.csv", dtype={"sample": str}) for name in ("store", "new"))
    assert ours["sample"].tolist() == [str(i) for i in range(M - TRAIN)]
    assert ours["predicted"].tolist() == theirs["predicted"].tolist()
    pd.testing.assert_frame_equal(ours.drop(columns="sample"), theirs.drop(columns="sample"), rtol=1e-6, atol=1e-8)


def test_predictions_of_features_in_several_files(run, tmp_path, fitted, tables):
    arguments = ["predict", fitted]
    for name, values in tables.items():
        np.save(tmp_path / f"{name}.npy", values[TRAIN:].astype(np.float32))
        arguments += ["--features", tmp_path / f"{name}.npy"]
    status, text, _ = run(*arguments, *HERE)
    assert status == 0
    assert text.splitlines()[0].startswith("Predicted 15 samples of ")
    status, text, _ = run(*arguments, "--json", *HERE)
    assert json.loads(text) == {
        "model": str(fitted),
        "store": None,
        "features": [str(tmp_path / "shape.npy"), str(tmp_path / "color.npy")],
        "samples": 15,
        "trained_on": 0,
        "accuracy": None,
        "out": None,
    }


def test_predictions_of_samples_that_lack_a_table(run, tmp_path, folder, tables):
    out, model = tmp_path / "set.zarr", tmp_path / "model"
    assert run("build", out, folder / "all.npz", *RBF)[0] == 0
    assert run("fit", out, model, "--model", "uniform", *HERE)[0] == 0
    color = tables["color"][TRAIN:].copy()
    color[4] = np.nan
    np.savez(tmp_path / "new.npz", shape=tables["shape"][TRAIN:], color=color)
    arguments = ["predict", model, "--features", tmp_path / "new.npz", *HERE]
    status, text, err = run(*arguments)
    assert (status, text) == (1, "")
    assert "'color' is missing for 1 of 15" in err
    status, text, _ = run(*arguments, "--missing", "zero")
    assert status == 0
    assert "Predicted 15 samples" in text


# --- what info says --------------------------------------------------------------------------------------------------


def test_info_says_how_kernels_were_made(run, tmp_path, folder, tables):
    out = tmp_path / "set.zarr"
    (tmp_path / "specs.toml").write_text(
        '[[kernel]]\nfunction = "rbf"\nfeature = "shape"\nbandwidth = 0.5\n'
        '[[kernel]]\nfunction = "laplacian"\nfeature = "shape"\ncolumns = [0, 2, 5]\ngamma = 0.0123456\n'
        '[[kernel]]\nfunction = "pyramid"\nfeature = "color"\nlevels = [1, 3]\n'
        '[[kernel]]\nfunction = "random_rbf"\nseed = 4\n'
    )
    assert run("build", out, folder / "all.npz", "--specs", tmp_path / "specs.toml", *HERE)[0] == 0
    status, text, _ = run("info", out)
    assert status == 0
    distances = euclidean_distances(tables["shape"][:TRAIN], squared=True)
    mean = distances.sum() / (TRAIN * (TRAIN - 1))
    for line in (
        f"shape-rbf rbf of shape, gamma {1 / (0.5 * mean):.3g} (bandwidth 0.5, mean distance {mean:.3g})",
        "shape-laplacian-0+2+5 laplacian of shape, gamma 0.0123, 3 columns",
        "color-pyramid pyramid of color, widths 1/3, weights 0.5/0.5",
        "random_rbf-seed4 random_rbf, seed 4, dimensions 16, gamma ",
        "stored feature columns samples missing",
        "shape 6 0",
        "color 4 0",
    ):
        assert line in " ".join(text.split())
    status, text, _ = run("info", out, "--json")
    assert status == 0
    found = json.loads(text)
    made = {kernel["name"]: kernel["made_by"] for kernel in found["kernels"]}
    assert made["shape-rbf"]["parameters"]["gamma"] == pytest.approx(1 / (0.5 * mean), rel=1e-12)
    assert made["shape-rbf"]["bandwidth"] == 0.5
    assert made["shape-rbf"]["training_rows"] == TRAIN
    assert made["shape-rbf"]["feature_content"] == made["shape-laplacian-0+2+5"]["feature_content"]
    assert made["shape-laplacian-0+2+5"]["columns"] == [0, 2, 5]
    assert found["features"] == [
        {"name": "shape", "columns": 6, "samples_missing": 0, "dtype": "float64", "column_names": None},
        {"name": "color", "columns": 4, "samples_missing": 0, "dtype": "float64", "column_names": None},
    ]


def test_info_of_an_imported_set_has_no_features(run, store):
    status, text, _ = run("info", store)
    assert status == 0
    assert "feature kept" not in text
    assert json.loads(run("info", store, "--json")[1])["features"] == []


# --- interruption ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Arguments of a build of some seconds, without OUT."""
    path = tmp_path_factory.mktemp("long") / "big.npz"
    np.savez(path, big=np.random.default_rng(2).random((600, 64)))
    widths = ",".join(map(str, range(1, 13)))
    return [str(path), "--function", "laplacian", "--bandwidth", widths, "--tile", "50", *HERE, "--workers", "1"]


def broken_off(out, arguments, number):
    """Begin a build and send it a signal when some tiles stand."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dmkl", "build", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(dmkl.__file__).parents[1],
    )
    while len(standing(out)) < 40:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def standing(out):
    """When each tile of an unfinished set was written."""
    folder = out.with_name(f"{out.name}.partial") / "gram_upper" / "c"
    found = {}
    for file in folder.rglob("*"):
        if file.name.isdecimal() and file.is_file():
            found[file.relative_to(folder)] = file.stat().st_mtime_ns
    return found


def test_after_a_kill_the_same_command_goes_on(run, tmp_path, long):
    out = tmp_path / "set.zarr"
    assert broken_off(out, long, signal.SIGKILL)[0] == -signal.SIGKILL
    assert not out.exists()
    before = standing(out)
    status, _, err = run("info", out)
    assert status == 1
    assert "is not finished" in err
    assert "of 12 kernels over 600 samples are finished" in err
    assert run("build", out, *long)[0] == 0
    folder = out / "gram_upper" / "c"
    assert {tile: (folder / tile).stat().st_mtime_ns for tile in before} == before
    assert run("build", tmp_path / "whole.zarr", *long)[0] == 0
    assert files(out) == files(tmp_path / "whole.zarr")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["set.zarr", "whole.zarr"]


def test_an_interrupt_says_what_is_kept(tmp_path, long):
    out = tmp_path / "set.zarr"
    status, err = broken_off(out, long, signal.SIGINT)
    assert status == 130
    assert err.splitlines()[-1] == (
        f"dmkl: note: the finished part is kept next to {out}; the same command resumes from there"
    )
    assert "Traceback" not in err
    assert not out.exists()


def test_an_interrupt_before_anything_was_done_says_nothing(run, tmp_path, folder, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(creating.dmkl, "build", interrupt)
    status, _, err = run("build", tmp_path / "set.zarr", folder / "new.npz", *RBF)
    assert (status, err) == (130, "")


UNAWAITED = """
import sys
from dmkl.cli import creating, main

kept = []

async def reading(): ...

def interrupted(*_, **__):
    kept.append(reading())
    raise KeyboardInterrupt

creating.dmkl.build = interrupted
sys.exit(main.main())
"""
"""An interrupt while a store's reads have begun on the event loop of another thread."""


def test_an_interrupt_says_nothing_of_what_it_cut_short(tmp_path, folder):
    arguments = ["build", str(tmp_path / "set.zarr"), str(folder / "new.npz"), *RBF]
    ended = subprocess.run([sys.executable, "-c", UNAWAITED, *arguments], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["all.npz"], "say which kernels to make: --specs FILE.toml"),
        (["all.npz", "--feature", "shape"], "say which kernels to make"),
        (["all.npz", *RBF[:4], "--specs", "kernels.toml"], "leave out --function and --bandwidth"),
        (["all.npz", "--specs", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["all.npz", "--specs", "kernels.toml"], "no feature is named 'genes'"),
        (["all.npz", "--function", "rfb"], "did you mean rbf?"),
        (["all.npz", "--function", "linear", "--bandwidth", "2"], "linear takes no 'bandwidth'"),
        (["all.npz", "--function", "rbf", "--bandwidth", "2,wide"], "--bandwidth takes numbers such as 0.1,1,10"),
        (["all.npz", "--function", "rbf", "--bandwidth", "0"], "bandwidth must be a number > 0"),
        (["all.npz", "--function", "rbf", "--feature", "form"], "no feature is named 'form'"),
        (["nowhere.npz", *RBF], "nowhere.npz"),
        (["sets.gmt", *RBF], "sets.gmt"),
        (["broken.npz", *RBF], "features 'shape': row 7 is nan in column 2"),
        (["all.npz", "--function", "chi2"], "chi2 is for histograms"),
        (["all.npz", *RBF, "--train", "odd.txt"], "has 22 names that no sample of the set has"),
        (["genes.csv", *RBF, "--train", "odd.txt", "--split", "0"], "--train and --split exclude each other"),
        (["all.npz", *RBF, "--split", "1"], "there is no split 1, the samples have 1"),
        (["genes.csv", *RBF, "--split", "0"], "there is no split 0, the samples have 0"),
        (["all.npz", *RBF, "--labels", "odd.txt"], "odd.txt"),
        (["all.npz", *RBF, "--samples", "odd.txt"], "there are 22 samples"),
        (["genes.csv", *RBF, "--labels", "nowhere.txt"], "nowhere.txt"),
        (["new.npz", "--against", "set.zarr", "--split", "0", "--tile", "8"], "leave out --split and --tile"),
        (["new.npz", "--against", "set.zarr", *RBF[:2]], "leave out --function"),
        (["genes.csv", "--against", "set.zarr", *HERE], "which the new features lack"),
        (["new.npz", "--against", "nowhere.zarr"], "there is no kernel set at"),
        (["new.npz", "--against", "imported.zarr"], "were not computed from features"),
    ],
)
def test_bad_input_leaves_nothing(run, tmp_path, folder, tables, built, store, arguments, told):
    shape = tables["shape"].copy()
    shape[7, 2] = np.nan
    np.savez(tmp_path / "broken.npz", shape=shape)
    there = {"set.zarr": built, "imported.zarr": store, "broken.npz": tmp_path / "broken.npz"}
    given = [there.get(text, folder / text) if "." in text and not text[0].isdecimal() else text for text in arguments]
    out = tmp_path / "out" / "set.zarr"
    if not any("threads" in text for text in arguments):
        given += HERE
    status, text, err = run("build", out, *given)
    assert (status, text) == (1, "")
    *notes, error = err.splitlines()
    assert all(note.startswith("dmkl: note: ") for note in notes)
    assert error.startswith("dmkl: error: ")
    assert told in error
    assert not out.parent.exists() or not list(out.parent.iterdir())


def test_too_little_memory_is_told_before_anything_is_computed(run, tmp_path, folder, built):
    out = tmp_path / "set.zarr"
    arguments = ["build", out, folder / "all.npz", *RBF, "--tile", 16]
    status, text, err = run(*arguments, "--memory", "10KiB")
    assert (status, text) == (1, "")
    assert err.startswith("dmkl: error: building these kernels would take ")
    assert not out.exists()
    assert not standing(out)
    assert run(*arguments)[0] == 0
    assert dmkl.open(out).content_id == dmkl.open(built).content_id


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "out.zarr"],
        ["build", "out.zarr", "x.npz", "--missing", "mean"],
        ["build", "out.zarr", "x.npz", "--split", "-1"],
        ["build", "out.zarr", "x.npz", "--dtype", "int8"],
        ["predict", "model", "--missing", "mean"],
    ],
)
def test_a_wrong_command_line_is_status_2(run, arguments):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "Usage: dmkl" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "samples come from either STORE or --features"),
        (["SET", "--features", "new.npz"], "samples come from either STORE or --features"),
        (["--features", "new.npz", "--split", "0"], "--split is for STORE; all samples of --features are predicted"),
        (["--features", "new.npz", "--rows", "0"], "--rows is for STORE; all samples of --features are predicted"),
        (["SET", "--missing", "zero"], "--missing is for --features"),
        (["--features", "nowhere.npz"], "nowhere.npz"),
        (["--features", "genes.csv"], "which the new features lack"),
    ],
)
def test_bad_arguments_of_predict(run, tmp_path, folder, built, fitted, arguments, told):
    given = [built if text == "SET" else folder / text if "." in text else text for text in arguments]
    status, text, err = run("predict", fitted, *given, "--out", tmp_path / "out.csv", *HERE)
    assert (status, text) == (1, "")
    assert err.startswith("dmkl: error: ")
    assert told in err
    assert not (tmp_path / "out.csv").exists()


def test_a_model_of_imported_kernels_needs_kernels(run, folder, model):
    status, text, err = run("predict", model, "--features", folder / "new.npz", *HERE)
    assert (status, text) == (1, "")
    assert "were not computed from features" in err


@pytest.mark.parametrize("command", ["fit", "search"])
def test_the_command_that_uses_a_model_of_built_kernels_works(run, tmp_path, folder, command):
    """The set holds no samples that the model has not seen, and the kernels of new ones are computed from features."""
    run("build", tmp_path / "set.zarr", folder / "all.npz", *RBF)
    options = ["--lam", "0.1", "--all", *HERE, *(["--cv", "2"] if command == "search" else [])]
    status, text, err = run(command, tmp_path / "set.zarr", tmp_path / "model", *options)
    assert status == 0, err
    told = " ".join(text.split()).partition("use it with: dmkl ")[2]
    assert told == f"predict {tmp_path / 'model'} --features NEW_SAMPLES"
    assert run(*told.replace("NEW_SAMPLES", str(folder / "new.npz")).split(), *HERE)[0] == 0
    status, text, _ = run(
        command, tmp_path / "set.zarr", tmp_path / "part", "--split", 0, *options[:2], *HERE, *options[5:]
    )
    assert f"use it with: dmkl predict {tmp_path / 'part'} {tmp_path / 'set.zarr'}" in " ".join(text.split())
