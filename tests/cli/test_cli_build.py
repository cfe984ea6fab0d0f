"""`dmkl build`, and other commands on kernels that were computed from features."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics.pairwise import euclidean_distances, linear_kernel, manhattan_distances

import dmkl
from dmkl.cli.main import main

M, TRAIN = 45, 30
"""Number of samples, and of samples in the training part of the split."""
NAMES = [f"s{i:02}" for i in range(M)]
PART = np.where(np.arange(M) < TRAIN, 0, 2)
RBF = ("--function", "rbf", "--bandwidth", "0.5,2")


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((3, 6)) * 2
    return {"shape": centers[np.arange(M) % 3] + rng.standard_normal((M, 6)), "color": rng.random((M, 4))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tables, classes):
    """Features as one file of arrays and as named tables; the last samples also in a file of new samples."""
    path = tmp_path_factory.mktemp("features")
    np.savez(path / "all.npz", **tables, y=classes, split=PART)
    np.savez(path / "new.npz", **{name: values[TRAIN:] for name, values in tables.items()}, y=classes[TRAIN:])
    np.savez(path / "plain.npz", shape=tables["shape"])
    pd.DataFrame({"one": PART, "two": np.where(np.arange(M) < 5, 2, 0)}).to_csv(path / "two.csv", index=False)
    genes = pd.DataFrame(tables["shape"], NAMES, [f"g{k}" for k in range(6)])
    genes.to_csv(path / "genes.csv")
    (path / "new").mkdir()
    genes.iloc[TRAIN:].to_csv(path / "new" / "genes.csv")
    # In another order, and without the last three samples.
    pd.DataFrame(tables["color"], NAMES, list("abcd")).iloc[: M - 3].iloc[::-1].to_csv(path / "colors.csv")
    pd.Series(classes, NAMES, name="class").iloc[::-1].to_csv(path / "classes.csv", index_label="sample")
    pd.Series(PART, NAMES, name="part").to_csv(path / "parts.csv", index_label="sample")
    (path / "odd.txt").write_text("\n".join(NAMES[1::2]))
    (path / "positions.txt").write_text("40\n2\n3")
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
    ("given", "rows"),
    [
        (["all.npz"], np.arange(TRAIN)),
        (["plain.npz", "--splits", "two.csv", "--split", "1"], np.arange(5, M)),
        (["genes.csv", "--train", "odd.txt"], np.arange(1, M, 2)),
        (["plain.npz", "--train", "positions.txt"], np.array([2, 3, 40])),
    ],
)
def test_the_samples_between_which_distances_are_averaged(output_of, tmp_path, folder, tables, given, rows):
    output_of("build", tmp_path / "set", *(folder / word if "." in word else word for word in given), *RBF)
    np.testing.assert_allclose(np.asarray(dmkl.open(tmp_path / "set"))[1], rbf(tables["shape"], rows, 2), rtol=1e-10)


def test_a_product_of_the_kernels_of_two_tables(output_of, error_of, tmp_path, folder):
    arguments = ["build", tmp_path / "set", folder / "all.npz", "--function", "linear", "--storage", "auto"]
    output_of(*arguments, "--product", "shape,color", "--product", "shape-linear,shape")
    K = dmkl.open(tmp_path / "set")
    shape, color, *products = np.asarray(K)
    assert K.names == ("shape-linear", "color-linear", "shape:color", "shape-linear:shape")
    np.testing.assert_allclose(products, [shape * color, shape * shape], rtol=1e-12)
    assert "product" in output_of("info", tmp_path / "set")
    output_of("check", tmp_path / "set")
    output_of("fit", tmp_path / "set", tmp_path / "model", "--lam", "0.1", "--kernels", "shape:color")
    output_of("predict", tmp_path / "model", "--features", folder / "new.npz", "--out", tmp_path / "predicted.csv")
    message = error_of("build", tmp_path / "new", folder / "new.npz", "--against", tmp_path / "set", "--product", "a,b")
    assert "leave out --product" in message


def test_samples_that_lack_a_table(error_of, json_of, output_of, tmp_path, folder):
    arguments = ["build", tmp_path / "set.zarr", folder / "genes.csv", folder / "colors.csv", *RBF]
    assert "--join outer" in error_of(*arguments)
    assert "'colors' is missing for 3 of 45" in error_of(*arguments, "--join", "outer", "--missing", "refuse")
    output_of(*arguments, "--join", "outer")
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


@pytest.fixture(scope="module")
def named_model(tmp_path_factory, folder):
    path = tmp_path_factory.mktemp("named")
    train = path / "train.txt"
    train.write_text("\n".join(NAMES[:TRAIN]))
    build = ["build", path / "set", folder / "genes.csv", *RBF, "--labels", folder / "classes.csv", "--train", train]
    for words in (build, ["fit", path / "set", path / "model", "--train", train]):
        assert main([*map(str, words)]) == 0
    return path / "model"


def test_features_are_scored_by_labels_of_a_file(output_of, json_of, error_of, tmp_path, folder, classes, named_model):
    command = ["predict", named_model, "--features", folder / "new" / "genes.csv", "--labels"]
    printed = json_of(*command, f"{folder / 'classes.csv'}:class")
    expected = dmkl.load(named_model).predict(features=folder / "new" / "genes.csv") == classes[TRAIN:]
    assert (printed["accuracy"], printed["trained_on"], printed["samples"]) == (expected.mean(), 0, M - TRAIN)
    assert "Accuracy " in output_of(*command, folder / "classes.csv", "--scoring", "matthews")
    pd.Series(classes, NAMES, name="class").iloc[:-1].to_csv(tmp_path / "fewer.csv", index_label="sample")
    assert "fewer.csv lacks 1 ('s44')" in error_of(*command, tmp_path / "fewer.csv")
    assert "14 samples of" in output_of(*command, tmp_path / "fewer.csv", "--join", "inner")


@pytest.mark.parametrize(
    ("first", "notes", "line"),
    [
        (TRAIN, 0, "15 samples of"),
        (TRAIN - 4, 4, "4 further samples, which the model was trained on, are not scored."),
        (0, 30, "30 further samples, which"),
    ],
)
def test_training_samples_among_the_features_are_not_scored(
    run, json_of, tmp_path, folder, named_model, first, notes, line
):
    genes = pd.read_csv(folder / "genes.csv", index_col=0).iloc[first:]
    genes.to_csv(tmp_path / "genes.csv")
    command = ["predict", named_model, "--features", tmp_path / "genes.csv"]
    status, text, err = run(*command)
    assert status == 0
    note = f"the model was trained on {notes} samples of these {len(genes)}, by their names"
    assert (note in " ".join(err.split())) == bool(notes)
    assert f"Predicted {len(genes)} samples of" in text
    labeled = [*command, "--labels", folder / "classes.csv"]
    assert line in " ".join(run(*labeled)[1].split())
    assert json_of(*labeled)["trained_on"] == notes
    if not notes:
        return
    genes.iloc[:notes].to_csv(tmp_path / "genes.csv")
    text = " ".join(run(*labeled)[1].split())
    assert "which the model was trained on: this says nothing about new samples" in text
    # Numbers of rows are no names.
    genes.reset_index(drop=True).to_csv(tmp_path / "genes.csv")
    assert "trained on" not in " ".join(map(str, run(*command)))


def test_a_page_has_the_labels_that_are_known_alone(output_of, tmp_path, folder, classes, named_model, monkeypatch):
    pages, known = [], np.arange(M) % 2 == 0
    monkeypatch.setattr(dmkl, "report", lambda description, path: pages.append(description))
    pd.Series(np.where(known, classes, "NA"), NAMES, name="class").to_csv(tmp_path / "some.csv", index_label="sample")
    given = ("--features", folder / "new" / "genes.csv", "--labels", tmp_path / "some.csv")
    output_of("predict", named_model, *given, "--report", tmp_path / "page.html")
    shown = pages[0].tables["least_sure"]().frame.set_index("sample")["true"]
    expected = pd.Series(np.where(known, classes, ""), NAMES)[shown.index]
    assert shown.tolist() == expected.tolist()


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
    )
    output_of("build", out, folder / "all.npz", "--specs", tmp_path / "specs.toml")
    text = " ".join(output_of("info", out).split())
    width = gamma(euclidean_distances(tables["shape"], squared=True), np.arange(TRAIN), 0.5)
    assert f"shape-rbf rbf of shape, gamma {width:.3g} (bandwidth 0.5, mean distance {2 / width:.3g})" in text
    assert "shape-laplacian-0+2+5 laplacian of shape, gamma 0.0123, 3 columns" in text
    assert "stored feature columns samples missing shape 6 0" in text
    made = {kernel["name"]: kernel["made_by"] for kernel in json_of("info", out)["kernels"]}
    assert made["shape-rbf"]["parameters"]["gamma"] == pytest.approx(width, rel=1e-12)
    assert made["shape-laplacian-0+2+5"]["columns"] == [0, 2, 5]


# --- errors ----------------------------------------------------------------------------------------------------------
WIDE = "--function rbf --bandwidth 0.5,2"
REFUSED = {
    "build OUT all.npz --feature shape": "say which kernels to make: --specs FILE.toml",
    f"build OUT all.npz {WIDE} --specs kernels.toml": "leave out --function and --bandwidth",
    "build OUT all.npz --function rbf --bandwidth 2,wide": "--bandwidth takes numbers such as 0.1,",
    f"build OUT all.npz {WIDE} --train odd.txt": "has 22 names that no sample of the set has",
    f"build OUT genes.csv {WIDE} --train odd.txt --split 0": "--train and --split exclude each other",
    f"build OUT all.npz {WIDE} --split 1": "there is no split 1, the samples have 1",
    "build OUT new.npz --against SET --split 0 --tile 8": "leave out --split and --tile",
    f"build OUT all.npz {WIDE} --missing-features zero": "--missing-features is for --against STORE",
    "predict MODEL SET --out OUT --features new.npz": "samples come from either STORE or --features",
    "predict MODEL --out OUT --features new.npz --split 0": "--split is for STORE; all samples of --features are",
    "predict MODEL SET --out OUT --missing zero": "--missing is for --features",
    "predict MODEL SET --out OUT --labels classes.csv": "--labels is for --features",
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_leaves_nothing(error_of, tmp_path, folder, built, fitted, monkeypatch, line):
    monkeypatch.chdir(folder)
    places = {"OUT": tmp_path / "out" / "result", "SET": built, "MODEL": fitted}
    *notes, error = error_of(*(places.get(word, word) for word in line.split())).splitlines()
    assert all(note.startswith("dmkl: note: ") for note in notes)
    assert REFUSED[line] in error
    assert not list(tmp_path.glob("out/*"))


def test_the_command_that_uses_a_model_of_built_kernels_works(output_of, tmp_path, folder, built):
    """The model has seen all samples of the set; kernels of new samples are computed from features."""
    arguments = ["fit", built, tmp_path / "model", "--lam", "0.1", "-p", "2"]
    words = " ".join(output_of(*arguments, "--all").split()).partition("use it with: dmkl ")[2]
    assert words == f"predict {tmp_path / 'model'} --features NEW_SAMPLES"
    output_of(*words.replace("NEW_SAMPLES", str(folder / "new.npz")).split())
    text = output_of(*arguments, "--overwrite", "--split", 0)
    assert f"use it with: dmkl predict {tmp_path / 'model'} {built}" in " ".join(text.split())


def test_the_memory_of_a_command_counts_for_tables_that_it_reads(tmp_path, error_of):
    pd.DataFrame(np.zeros((20_000, 2)), columns=["a", "b"]).to_parquet(tmp_path / "x.parquet")
    command = ("build", tmp_path / "k.zarr", tmp_path / "x.parquet", "--function", "linear")
    for options in (("--memory", "512KiB"), ("--cluster", "threads memory=512KiB")):
        assert "x.parquet takes 6.4" in error_of(*command, *options)
