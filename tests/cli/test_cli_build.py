"""`dmkl build`, and other commands on kernels that were computed from features."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics.pairwise import euclidean_distances, linear_kernel, manhattan_distances

import dmkl
from dmkl.cli.main import main
from dmkl.store.writer import StoreWriter

M, TRAIN = 45, 30
"""Number of samples, and of samples in the training part of the split."""
NAMES = [f"s{i:02}" for i in range(M)]
PART = np.where(np.arange(M) < TRAIN, 0, 2)
RBF = ("--function", "rbf", "--bandwidth", "0.5,2")


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
    """Features as one file of arrays and as named tables; the last samples also in a file of new samples."""
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
        '[[kernel]]\nfunction = "linear"\nfeature = "genes"\ncolumns = "sets.gmt"\nmin_columns = 1\n'
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
    assert main(["fit", str(built), str(path), "--p", "1"]) == 0
    return path


def gamma(distances, rows, bandwidth):
    """1/(b · mean over pairs of different rows)."""
    among = distances[np.ix_(rows, rows)]
    return 1 / (bandwidth * among[~np.eye(len(rows), dtype=bool)].mean())


def rbf(values, rows, bandwidth):
    distances = euclidean_distances(values, squared=True)
    return np.exp(-gamma(distances, rows, bandwidth) * distances)


# --- the built set ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("always::dmkl.errors.FeatureWarning")
def test_tables_with_names_and_a_file_of_specs(run, tmp_path, folder, tables, classes):
    out = tmp_path / "set.zarr"
    arguments = ["build", out, folder / "genes.csv", folder / "colors.csv", "--specs", folder / "kernels.toml"]
    arguments += ["--labels", folder / "classes.csv", "--splits", folder / "parts.csv", "--split", 0]
    arguments += ["--dtype", "float32", "--tile", 16, "--join", "outer"]
    status, text, err = run(*arguments)
    assert status == 0
    assert "5 kernels of 45 × 45, float32" in text
    for note in (
        "features 'colors' lack 3 of the 45 samples",
        "classes.csv was put into the order",
        "no kernel uses 'colors': left out",
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
def test_the_samples_between_which_distances_are_averaged(
    output_of, tmp_path, monkeypatch, folder, tables, options, rows
):
    monkeypatch.chdir(tmp_path)
    np.savez("plain.npz", shape=tables["shape"])
    names = NAMES if "odd.txt" in options else [str(i) for i in range(M)]
    for file, lines in (("odd.txt", NAMES[1::2]), ("positions.txt", ["40", "2", "3"]), ("names.txt", names)):
        (tmp_path / file).write_text("\n".join(lines))
    pd.DataFrame({"one": PART, "two": np.where(np.arange(M) < 5, 2, 0)}).to_csv("parts.csv", index=False)
    named = ["--samples", "names.txt"] if "odd.txt" in options else []
    output_of("build", "set.zarr", "plain.npz", *RBF, "--splits", "parts.csv", *named, *options)
    K = dmkl.open("set.zarr")
    assert K.samples.tolist() == names
    np.testing.assert_allclose(np.asarray(K)[1], rbf(tables["shape"], rows, 2), rtol=1e-10)


def test_samples_that_lack_a_table(error_of, json_of, output_of, tmp_path, folder):
    arguments = ["build", tmp_path / "set.zarr", folder / "genes.csv", folder / "colors.csv", *RBF]
    assert "--join outer" in error_of(*arguments)
    assert "'colors' is missing for 3 of 45" in error_of(*arguments, "--join", "outer", "--missing", "refuse")
    output_of(*arguments, "--join", "outer")
    text = output_of("info", tmp_path / "set.zarr")
    assert [line.split() for line in text.splitlines()[-2:]] == [["genes", "6", "0"], ["colors", "4", "3"]]
    assert [line.split()[-1] for line in text.splitlines() if "-rbf-" in line] == ["0", "0", "3", "3"]
    assert "matched by name" in text
    printed = json_of("info", tmp_path / "set.zarr")
    assert [kernel["samples_missing"] for kernel in printed["kernels"]] == [0, 0, 3, 3]


# --- new samples -----------------------------------------------------------------------------------------------------


def test_new_samples_against_a_set(output_of, tmp_path, folder, built, classes):
    out = tmp_path / "new.zarr"
    (tmp_path / "names.txt").write_text("\n".join(NAMES[TRAIN:]))
    text = output_of("build", out, folder / "new.npz", "--against", built, "--samples", tmp_path / "names.txt")
    assert "4 kernels of 15 × 45, float64" in text
    assert f"dmkl predict MODEL {out}" in text
    K, whole = dmkl.open(out), dmkl.open(built)
    assert K.samples.tolist() == NAMES[TRAIN:]
    assert K.labels.tolist() == classes[TRAIN:].tolist()
    np.testing.assert_allclose(np.asarray(K), np.asarray(whole)[:, TRAIN:], rtol=1e-12)
    assert "rbf of shape, gamma " in output_of("info", out)


def test_predictions_from_features_are_those_from_the_set(run, json_of, output_of, tmp_path, folder, built, fitted):
    first = output_of("predict", fitted, built, "--split", 0, "--out", tmp_path / "store.csv").splitlines()[0]
    status, text, err = run("predict", fitted, "--features", folder / "new.npz", "--out", tmp_path / "new.csv")
    assert (status, err) == (0, "")
    assert text.splitlines()[0] == first.replace(str(built), str(folder / "new.npz"))
    assert first.startswith("Accuracy ")
    of_store, of_features = (pd.read_csv(tmp_path / f"{name}.csv", dtype={"sample": str}) for name in ("store", "new"))
    assert of_features["sample"].tolist() == [str(i) for i in range(M - TRAIN)]
    numbers = (table.drop(columns="sample") for table in (of_features, of_store))
    pd.testing.assert_frame_equal(*numbers, rtol=1e-6, atol=1e-8)
    printed = json_of("predict", fitted, "--features", folder / "new.npz")
    assert (printed["store"], printed["features"]) == (None, [str(folder / "new.npz")])


def test_predictions_of_samples_that_lack_a_table(error_of, output_of, tmp_path, built, tables):
    output_of("fit", built, tmp_path / "model", "--model", "uniform")
    color = tables["color"][TRAIN:].copy()
    color[4] = np.nan
    np.savez(tmp_path / "new.npz", shape=tables["shape"][TRAIN:], color=color)
    command = ["predict", tmp_path / "model", "--features", tmp_path / "new.npz"]
    assert "'color' is missing for 1 of 15" in error_of(*command)
    assert "Predicted 15 samples" in output_of(*command, "--missing", "zero")


# --- output of info --------------------------------------------------------------------------------------------------


def test_info_says_how_kernels_were_made(json_of, output_of, tmp_path, folder, tables):
    out = tmp_path / "set.zarr"
    (tmp_path / "specs.toml").write_text(
        '[[kernel]]\nfunction = "rbf"\nfeature = "shape"\nbandwidth = 0.5\n'
        '[[kernel]]\nfunction = "laplacian"\nfeature = "shape"\ncolumns = [0, 2, 5]\ngamma = 0.0123456\n'
        '[[kernel]]\nfunction = "pyramid"\nfeature = "color"\nlevels = [1, 3]\n'
        '[[kernel]]\nfunction = "random_rbf"\nseed = 4\n'
    )
    output_of("build", out, folder / "all.npz", "--specs", tmp_path / "specs.toml")
    text = output_of("info", out)
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
    printed = json_of("info", out)
    made = {kernel["name"]: kernel["made_by"] for kernel in printed["kernels"]}
    assert made["shape-rbf"]["parameters"]["gamma"] == pytest.approx(1 / (0.5 * mean), rel=1e-12)
    assert made["shape-rbf"]["bandwidth"] == 0.5
    assert made["shape-laplacian-0+2+5"]["columns"] == [0, 2, 5]
    about = {"samples_missing": 0, "dtype": "float64", "column_names": None}
    assert printed["features"] == [{"name": "shape", "columns": 6, **about}, {"name": "color", "columns": 4, **about}]


# --- interruption ----------------------------------------------------------------------------------------------------


def test_after_an_interrupt_the_same_command_goes_on(run, error_of, output_of, tmp_path, folder, built, monkeypatch):
    """For killed builds see tests/features and tests/faults."""
    out, command = tmp_path / "set.zarr", ("build", tmp_path / "set.zarr", folder / "all.npz", *RBF, "--tile", 16)

    def end(self, *given, ended=StoreWriter.end_kernel):
        ended(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "end_kernel", end)
        status, _, err = run(*command)
    assert status == 130
    note = f"dmkl: note: the finished part is kept next to {out}; the same command resumes from there"
    assert err.splitlines()[-1] == note
    assert "of 4 kernels over 45 samples are finished" in error_of("info", out)
    output_of(*command)
    assert dmkl.open(out).content_id == dmkl.open(built).content_id


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
"""A program that is interrupted while the event loop of another thread reads a store."""


def test_an_interrupt_says_nothing_of_what_it_cut_short(tmp_path, folder):
    arguments = ["build", str(tmp_path / "set.zarr"), str(folder / "new.npz"), *RBF]
    ended = subprocess.run([sys.executable, "-c", UNAWAITED, *arguments], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "all.npz", "--feature", "shape"], "say which kernels to make: --specs FILE.toml"),
        (["build", "all.npz", *RBF, "--specs", "kernels.toml"], "leave out --function and --bandwidth"),
        (["build", "all.npz", "--specs", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["build", "all.npz", "--function", "linear", "--bandwidth", "2"], "linear takes no 'bandwidth'"),
        (["build", "all.npz", "--function", "rbf", "--bandwidth", "2,wide"], "--bandwidth takes numbers such as 0.1,"),
        (["build", "nowhere.npz", *RBF], "nowhere.npz"),
        (["build", "sets.gmt", *RBF], "sets.gmt"),
        (["build", "broken.npz", *RBF], "features 'shape': row 7 is nan in column 2"),
        (["build", "all.npz", *RBF, "--train", "odd.txt"], "has 22 names that no sample of the set has"),
        (["build", "genes.csv", *RBF, "--train", "odd.txt", "--split", "0"], "--train and --split exclude each other"),
        (["build", "all.npz", *RBF, "--split", "1"], "there is no split 1, the samples have 1"),
        (["build", "genes.csv", *RBF, "--split", "0"], "there is no split 0, the samples have 0"),
        (["build", "all.npz", *RBF, "--labels", "odd.txt"], "odd.txt"),
        (["build", "all.npz", *RBF, "--samples", "odd.txt"], "there are 22 samples"),
        (["build", "new.npz", "--against", "SET", "--split", "0", "--tile", "8"], "leave out --split and --tile"),
        (["build", "new.npz", "--against", "nowhere.zarr"], "there is no kernel set at"),
        (["build", "all.npz", *RBF, "--missing-features", "zero"], "--missing-features is for --against STORE"),
        (["build", "new.npz", "--against", "SET", "--storage", "factors"], "leave out --storage"),
        (["predict"], "samples come from either STORE or --features"),
        (["predict", "SET", "--features", "new.npz"], "samples come from either STORE or --features"),
        (["predict", "--features", "new.npz", "--split", "0"], "--split is for STORE; all samples of --features are"),
        (["predict", "--features", "new.npz", "--rows", "0"], "--rows is for STORE; all samples of --features are"),
        (["predict", "SET", "--missing", "zero"], "--missing is for --features"),
        (["predict", "--features", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_bad_input_leaves_nothing(error_of, tmp_path, folder, tables, built, fitted, arguments, words):
    shape = tables["shape"].copy()
    shape[7, 2] = np.nan
    np.savez(tmp_path / "broken.npz", shape=shape)
    there = {"SET": built, "broken.npz": tmp_path / "broken.npz"}
    command, *given = [
        there.get(text, folder / text if "." in text and not text[0].isdecimal() else text) for text in arguments
    ]
    out = tmp_path / "out" / "result"
    places = [out] if command == "build" else [fitted, "--out", out]
    *notes, error = error_of(command, *places, *given).splitlines()
    assert all(note.startswith("dmkl: note: ") for note in notes)
    assert words in error
    assert not out.parent.exists() or not list(out.parent.iterdir())


@pytest.mark.parametrize(
    ("command", "options"),
    [("fit", []), pytest.param("search", ["--cv", "2", "--baselines", "none"], marks=pytest.mark.slow)],
)
def test_the_command_that_uses_a_model_of_built_kernels_works(output_of, tmp_path, folder, built, command, options):
    """The model has seen all samples of the set; kernels of new samples are computed from features."""
    arguments = [command, built, tmp_path / "model", "--lam", "0.1", "-p", "2", *options]
    words = " ".join(output_of(*arguments, "--all").split()).partition("use it with: dmkl ")[2]
    assert words == f"predict {tmp_path / 'model'} --features NEW_SAMPLES"
    output_of(*words.replace("NEW_SAMPLES", str(folder / "new.npz")).split())
    text = output_of(*arguments, "--overwrite", "--split", 0)
    assert f"use it with: dmkl predict {tmp_path / 'model'} {built}" in " ".join(text.split())
