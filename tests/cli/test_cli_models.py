"""`dmkl fit` and `dmkl predict`."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from sklearn.metrics import confusion_matrix

import dmkl
from dmkl.cli.parsing import parse_p
from dmkl.errors import InputError

pytest_plugins = ["helpers.command_line"]

M = 45
"""Samples of the set."""


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), (" 1.5 ", 1.5), ("4/3", 4 / 3), ("1+2^-6", 1 + 2**-6), ("1 + 2**3", 9), ("inf", np.inf), ("∞", np.inf)],
)
def test_norms_as_people_write_them(text, value):
    assert parse_p(text) == value


@pytest.mark.parametrize("text", ["", "two", "-1", "0.5", "1/2", "4/0", "1e400", "nan", "1+2^x", "__import__('os')"])
def test_norms_that_are_none(text):
    with pytest.raises(InputError):
        parse_p(text)


def test_fit_prints_what_the_model_holds(run, tmp_path, store, capsys):
    path = tmp_path / "model"
    status, out, _ = run("fit", store, path, "--p", "4/3", "--lam", 1e-2, "--cluster", "threads")
    assert status == 0
    assert "Trained on 30 samples (the training part of split 0)" in out
    found = dmkl.load(path)
    K = dmkl.open(store)
    train = K.split(0).train
    expected = dmkl.MKFDA(4 / 3, 1e-2).fit(K[train, train])
    np.testing.assert_allclose(found.weights_, expected.weights_)
    assert found.gap_ <= 1e-4
    for name, weight in zip(K.names, found.weights_.values, strict=True):
        assert f"{weight:.4f}" in next(line for line in out.splitlines() if line.startswith(name))

    status, out, err = run("fit", store, path, "--cluster", "threads")
    assert (status, out) == (1, "")
    assert "--overwrite" in err
    np.testing.assert_array_equal(dmkl.load(path).weights_, found.weights_)
    status, out, _ = run("fit", store, path, "--cluster", "threads", "--p", "inf", "--all", "--overwrite", "--json")
    result = json.loads(out)
    assert result["training_samples"] == M
    assert result["weights"] == {name: 1.0 for name in K.names}
    assert result["gap"] <= 1e-4
    assert result["parameters"]["p"] == "inf"


@pytest.mark.parametrize("kind", ["uniform", "single-best", "product"])
def test_baselines(run, tmp_path, store, kind):
    path = tmp_path / "model"
    assert run("fit", store, path, "--model", kind, "--cluster", "threads", "--split", 1)[0] == 0
    assert (
        type(dmkl.load(path)).__name__
        == {"uniform": "Uniform", "single-best": "SingleBest", "product": "Product"}[kind]
    )
    _status, out, _ = run("predict", path, store, "--cluster", "threads", "--split", 1, "--json")
    K = dmkl.open(store)
    train, _, test = K.split(1)
    assert json.loads(out)["accuracy"] == dmkl.load(path).score(K[test, train])
    assert json.loads(out)["samples"] == len(test)


def test_predict_writes_what_the_model_predicts(run, tmp_path, store, model):
    out = tmp_path / "predictions.csv"
    status, text, _ = run("predict", model, store, "--split", 0, "--out", out, "--cluster", "threads")
    assert status == 0
    K = dmkl.open(store)
    train, validation, test = K.split(0)
    estimator = dmkl.load(model)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sample"] for row in rows] == K.samples[test].tolist()
    assert [row["predicted"] for row in rows] == estimator.predict(K[test, train]).tolist()
    scores = [[float(row[f"score {name}"]) for name in estimator.classes_] for row in rows]
    np.testing.assert_allclose(scores, estimator.decision_function(K[test, train]), rtol=1e-6)
    assert f"{100 * estimator.score(K[test, train]):.2f} %" in text

    status, _, err = run("predict", model, store, "--out", out, "--cluster", "threads")
    assert status == 1
    assert "--overwrite" in err
    # Without a split: all that the model was not trained on.
    status, text, _ = run("predict", model, store, "--cluster", "threads", "--json")
    assert json.loads(text)["samples"] == len(validation) + len(test)


def test_probabilities_are_written_with_what_they_were_calibrated_on(run, tmp_path, store, model):
    out = tmp_path / "predictions.csv"
    estimator = dmkl.load(model)
    command = ("predict", model, store, "--split", 0, "--cluster", "threads", "--probabilities")
    status, text, _ = run(*command, "--out", out)
    assert status == 0
    assert f"probabilities calibrated on {estimator.calibrated_on_}" in text
    K = dmkl.open(store)
    train, _, test = K.split(0)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = [[float(row[f"probability {name}"]) for name in estimator.classes_] for row in rows]
    np.testing.assert_allclose(found, estimator.predict_proba(K[test, train]), rtol=1e-6)
    _, text, _ = run(*command, "--out", out, "--overwrite", "--json")
    assert json.loads(text)["calibrated_on"] == estimator.calibrated_on_
    status, _, err = run(*command)
    assert status == 1
    assert "--out FILE" in err
    assert run("fit", store, tmp_path / "machine", "--model", "mksvm", "--split", 0, "--cluster", "threads")[0] == 0
    status, _, err = run("predict", tmp_path / "machine", store, "--probabilities", "--out", tmp_path / "none.csv")
    assert status == 1
    assert "no calibrated probabilities" in err
    assert not (tmp_path / "none.csv").exists()


def test_numbers_have_no_probabilities(run, tmp_path, kernels):
    K = dmkl.create(tmp_path / "set.zarr", kernels, labels=np.sin(np.arange(M)), tile=16)
    place, model = K.view.source.location, tmp_path / "model"
    (tmp_path / "train.txt").write_text("\n".join(map(str, range(30))))
    arguments = ("--model", "mkridge", "--train", tmp_path / "train.txt", "--cluster", "threads")
    assert run("fit", place, model, *arguments)[0] == 0
    status, _, err = run("predict", model, place, "--probabilities", "--out", tmp_path / "p.csv")
    assert status == 1
    assert "MKRidge predicts numbers, which have no probabilities" in err


def test_priors_by_number_and_by_class(run, tmp_path, store):
    K = dmkl.open(store)
    train, _, test = K.split(0)
    q = [0.7, 0.1, 0.2]
    expected = dmkl.MKFDA(2.0, 1e-2, priors=q).fit(K[train, train])
    for name, text in (("numbers", "0.7,0.1,0.2"), ("classes", "plum=0.2, apple=0.7, pear=0.1")):
        arguments = ("--split", 0, "--priors", text, "--cluster", "threads", "--p", 2, "--lam", 1e-2)
        assert run("fit", store, tmp_path / name, *arguments)[0] == 0
        model = dmkl.load(tmp_path / name)
        np.testing.assert_allclose(model.priors_, [q])
        np.testing.assert_allclose(model.predict_proba(K[test, train]), expected.predict_proba(K[test, train]))
    for text, words in (
        ("flat", "empirical, uniform, numbers such as"),
        ("apple=0.5,apple=0.5", "two numbers for a class"),
        ("apple=0.5,pear=0.5", "the classes are"),
        ("apple=x,pear=0.5", "class=number"),
        ("0.5,0.5", "2 numbers and there are 3 classes"),
    ):
        status, _, err = run("fit", store, tmp_path / "none", "--split", 0, "--priors", text, "--cluster", "threads")
        assert status == 1
        assert words in err


def test_a_code_for_unknown_labels(run, tmp_path, kernels):
    labels = np.stack([np.arange(M) % 3 == 0, np.arange(M) % 3 == 1], axis=1) * 2 - 1
    labels[::7, 0] = labels[3::5, 1] = 0
    K = dmkl.create(tmp_path / "set.zarr", kernels, labels=labels, splits=np.where(np.arange(M) < 30, 0, 2), tile=16)
    place, model = K.view.source.location, tmp_path / "model"
    status, _, err = run("fit", place, model, "--cluster", "threads")
    assert status == 1
    assert "--unknown" in err
    status, out, _ = run("fit", place, model, "--unknown", 0, "--scoring", "accuracy", "--cluster", "threads", "--json")
    assert status == 0
    train, _, test = K.split(0)
    known = np.where(labels == 0, np.nan, labels > 0)
    expected = dmkl.MKFDA().fit(K[train, train], known[train])
    np.testing.assert_allclose(dmkl.load(model).weights_, expected.weights_)
    told = json.loads(out)["held_out"]
    scores = dmkl.assess(expected, K[test, train], known[test], scoring="accuracy")["score"]
    np.testing.assert_allclose(told["scores"]["accuracy"], scores[0])
    status, out, _ = run("predict", model, place, "--unknown", 0, "--split", 0, "--cluster", "threads", "--json")
    assert json.loads(out)["accuracy"] == told["accuracy"]
    for command in (("search", "--cv", 3), ("evaluate", "--outer", 2, "--inner", 2)):
        name, *folds = command
        arguments = ("--unknown", 0, "--all") if name == "search" else ("--unknown", 0)
        grid = ("--model", "uniform", "--lam", "0.1", "--cluster", "threads", "--json")
        status, out, _ = run(name, place, tmp_path / name, *folds, *arguments, *grid)
        assert status == 0


def test_predict_draws_the_confusion_of_what_it_predicted(run, tmp_path, store, model, monkeypatch):
    drawn = []
    plot_confusion = dmkl.plot_confusion
    monkeypatch.setattr(dmkl, "plot_confusion", lambda counts: drawn.append(counts) or plot_confusion(counts))
    command = ("predict", model, store, "--plot", tmp_path / "c.png", "--cluster", "threads")
    status, text, err = run(*command, "--out", tmp_path / "p.csv")
    assert status == 0, err
    assert "The picture is" in text
    assert imread(tmp_path / "c.png").shape[2] == 4
    table, K = pd.read_csv(tmp_path / "p.csv"), dmkl.open(store)
    truth = pd.Series(K.labels, K.samples)[table["sample"]].astype(str)
    classes = drawn[0]["true"].values
    expected = confusion_matrix(truth, table["predicted"].astype(str), labels=classes.astype(str))
    np.testing.assert_array_equal(drawn[0].transpose("true", "predicted"), expected)
    assert expected.sum() == len(table)
    status, _, err = run(*command)
    assert (status, "c.png exists already" in err) == (1, True)


def test_predict_draws_no_confusion_of_labels_that_are_not_known(run, tmp_path, store, model):
    dmkl.create(
        tmp_path / "k.zarr",
        list(np.asarray(dmkl.open(store))),
        names=dmkl.open(store).names,
        samples=dmkl.open(store).samples,
    )
    status, _, err = run("predict", model, tmp_path / "k.zarr", "--rows", "0:3", "--plot", tmp_path / "c.png")
    assert status == 1
    assert "--plot draws true against predicted classes, and they are not known; leave it out" in err
    assert not (tmp_path / "c.png").exists()


def test_predict_on_new_samples_without_labels(run, tmp_path, store, model, kernels):
    K = dmkl.open(store)
    train, _, test = K.split(0)
    # Columns in another order, and one more than the model knows: they are found by name.
    columns = np.concatenate([train[::-1], test[:1]])
    dmkl.create(
        tmp_path / "new.zarr",
        kernels[:, test][:, :, columns],
        names=K.names,
        train_samples=K.samples[columns],
        samples=[f"new{i}" for i in range(len(test))],
        symmetric=False,
    )
    out = tmp_path / "predictions.csv"
    status, text, _ = run("predict", model, tmp_path / "new.zarr", "--out", out, "--cluster", "threads")
    assert status == 0
    assert "labels are not known" in text
    with out.open(newline="") as file:
        predicted = [row["predicted"] for row in csv.DictReader(file)]
    assert predicted == dmkl.load(model).predict(K[test, train]).tolist()


def test_two_classes_and_several_tasks(run, tmp_path, kernels):
    rng = np.random.default_rng(0)
    tasks = np.stack([np.arange(M) % 3 == 0, rng.permutation(np.arange(M)) % 2 == 0], axis=1).astype(int)
    split = np.where(np.arange(M) < 30, 0, 2)
    for name, labels, more in (("two", tasks[:, 0], {}), ("tasks", tasks, {"tasks": ["sweet", "round"]})):
        path = tmp_path / name
        K = dmkl.create(path, kernels, labels=labels, splits=split, tile=16, **more)
        assert run("fit", path, tmp_path / f"{name}.model", "--lam", 0.1, "--cluster", "threads")[0] == 0
        csv_file = tmp_path / f"{name}.csv"
        status, text, _ = run(
            "predict",
            tmp_path / f"{name}.model",
            path,
            "--split",
            0,
            "--out",
            csv_file,
            "--json",
            "--cluster",
            "threads",
        )
        assert status == 0
        train, _, test = K.split(0)
        estimator = dmkl.load(tmp_path / f"{name}.model")
        assert json.loads(text)["accuracy"] == estimator.score(K[test, train])
        with csv_file.open(newline="") as file:
            header, *rows = csv.reader(file)
        if name == "two":
            assert header == ["sample", "predicted", "score 1"]
            predicted = [int(row[1]) for row in rows]
        else:
            assert header == ["sample", "predicted sweet", "predicted round", "score sweet", "score round"]
            predicted = [[int(row[1]), int(row[2])] for row in rows]
        np.testing.assert_array_equal(predicted, estimator.predict(K[test, train]))


def test_training_samples_by_name(run, tmp_path, store):
    names = tmp_path / "train.txt"
    names.write_text("\n".join(f"s{i:02}" for i in range(5, 35)))
    arguments = ["fit", store, tmp_path / "model", "--cluster", "threads", "--train", names]
    assert run(*arguments)[0] == 0
    assert dmkl.load(tmp_path / "model").train_samples_.tolist() == [f"s{i:02}" for i in range(5, 35)]
    for text, told in (("s01\ns02\ns01", "'s01' more than once"), ("s01\nx9", "'x9'")):
        names.write_text(text)
        status, _, err = run(*arguments, "--overwrite")
        assert status == 1
        assert told in err


def test_what_fit_and_predict_refuse(run, tmp_path, store, model, kernels):
    new = tmp_path / "model"
    dmkl.create(tmp_path / "other.zarr", kernels[:, :20, :20], tile=16)
    for arguments, told in (
        (["fit", store, new, "--p", "0.5"], "p must be at least 1"),
        (["fit", store, new, "--lam", "-1", "--cluster", "threads"], "lam must be positive"),
        (["fit", store, new, "--split", "7"], "there is no split 7"),
        (["fit", store, new, "--split", "0", "--all"], "exclude one another"),
        (["fit", tmp_path / "other.zarr", new, "--cluster", "threads"], "fit needs labels"),
        (["predict", store, store], "is not a model"),
        (["predict", tmp_path / "none", store], "there is no model"),
        (["predict", model, tmp_path / "other.zarr"], "'s00'"),
        (["predict", model, model], "not a kernel set"),
        (
            ["predict", model, store, "--split", "1", "--part", "validation"],
            "the validation part of split 1 is empty; choose another with --split or --part, or samples with --rows",
        ),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (1, ""), arguments
        assert told in err, arguments
        assert "Traceback" not in err
    assert not new.exists()


def test_covariates_of_a_file_are_taken_out(run, store, tmp_path):
    rng = np.random.default_rng(0)
    names = [f"s{i:02}" for i in range(45)]
    table = pd.DataFrame({"age": rng.normal(50, 9, 45), "site": rng.choice(["n", "s"], 45)}, names).sample(frac=1)
    table.to_csv(tmp_path / "about.csv", index_label="sample")
    steps = f"residualize={tmp_path / 'about.csv'},trace"
    command = ["fit", store, tmp_path / "model", "--cluster", "threads", "--p", "1", "--split", "0", "--steps", steps]
    assert run(*command)[0] == 0
    model = dmkl.load(tmp_path / "model")
    assert model.steps == (dmkl.residualize(table), "trace")
    K = dmkl.open(store)
    train = np.flatnonzero(K.splits[0] == 0)
    expected = dmkl.MKFDA(p=1, steps=(dmkl.residualize(table), "trace")).fit(K[train, train])
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-12)
    assert run("predict", tmp_path / "model", store, "--split", "0", "--out", tmp_path / "p.csv")[0] == 0
    assert run("analyze", store, "--steps", steps, "--cluster", "threads")[0] == 0
    status, _, err = run(*command[:-1], "residualize=nowhere.csv", "--overwrite")
    assert status == 1
    assert "the covariates of residualize=nowhere.csv cannot be read" in err


def test_a_regression_tells_the_effects_of_covariates(run, tmp_path):
    rng = np.random.default_rng(0)
    names = np.array([f"s{i:02}" for i in range(45)])
    table = pd.DataFrame({"age": rng.normal(50, 9, 45), "north": rng.integers(0, 2, 45)}, names)
    X = rng.standard_normal((45, 5))
    y = X[:, 0] + table["age"].to_numpy() + rng.standard_normal(45)
    train, test = np.arange(30), np.arange(30, 45)
    splits = np.where(np.arange(45) < 30, 0, 2)[None]
    K = dmkl.create(tmp_path / "set.zarr", [X @ X.T], samples=names, labels=y, splits=splits)
    table.to_csv(tmp_path / "about.csv", index_label="sample")
    command = ["fit", tmp_path / "set.zarr", tmp_path / "model", "--cluster", "threads", "--model", "mkridge"]
    command += ["--steps", f"residualize={tmp_path / 'about.csv'},trace", "--scoring", "r2"]
    status, out, err = run(*command, "--json")
    assert status == 0, err
    told, model = json.loads(out), dmkl.load(tmp_path / "model")
    effects = dict(zip(model.covariate_effects_.covariate.values, model.covariate_effects_.values[:, 0], strict=True))
    assert told["covariate_effects"] == effects == pytest.approx({"age": 1.0, "north": 0.0}, abs=1.0)
    assert told["held_out"]["scores"]["r2"] == pytest.approx(model.score(K[test, train], y[test]))
    assert told["held_out"]["scores"]["r2"] > 0.9
    assert json.loads(run("info", tmp_path / "model", "--json")[1])["covariate_effects"] == effects
    assert f"age {effects['age']:.4g}" in " ".join(run(*command, "--overwrite")[1].split())
    new = table.iloc[test].rename(index=str)
    new.to_csv(tmp_path / "new.csv", index_label="sample")
    predict = ["predict", tmp_path / "model", tmp_path / "set.zarr", "--covariates", tmp_path / "new.csv"]
    status, _, err = run(*predict, "--out", tmp_path / "p.csv", "--contributions", tmp_path / "c.csv")
    assert status == 0, err
    predicted = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(predicted["predicted"], model.predict(K[test, train]).values, rtol=1e-8)
