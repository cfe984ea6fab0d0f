"""`dmkl fit` and `dmkl predict`."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

import dmkl

M = 45


def test_fit_prints_what_the_model_holds(error_of, json_of, output_of, tmp_path, store):
    path = tmp_path / "model"
    out = output_of("fit", store, path, "--p", "4/3", "--lam", 1e-2, "--plot", tmp_path / "weights.svg")
    assert b"<svg" in (tmp_path / "weights.svg").read_bytes()
    assert "Trained on 30 samples (the training part of split 0)" in out
    K, model = dmkl.open(store), dmkl.load(path)
    train = K.split(0).train
    expected = dmkl.MKFDA(4 / 3, 1e-2).fit(K[train, train])
    np.testing.assert_allclose(model.weights_, expected.weights_)
    assert model.gap_ <= 1e-4
    for name, weight in zip(K.names, model.weights_.values, strict=True):
        assert f"{weight:#.3g}" in next(line for line in out.splitlines() if line.startswith(name))

    assert "--overwrite" in error_of("fit", store, path)
    printed = json_of("fit", store, path, "--p", "inf", "--all", "--overwrite")
    assert printed["training_samples"] == M
    assert printed["weights"] == {name: 1.0 for name in K.names}
    assert printed["gap"] <= 1e-4
    assert printed["parameters"]["p"] == "inf"


def test_predict_writes_what_the_model_predicts(error_of, json_of, output_of, tmp_path, store, model):
    out, estimator, K = tmp_path / "predictions.csv", dmkl.load(model), dmkl.open(store)
    train, validation, test = K.split(0)
    command = ("predict", model, store, "--split", 0, "--probabilities")
    text = output_of(*command, "--out", out)
    rows = pd.read_csv(out)
    assert rows["sample"].tolist() == K.samples[test].tolist()
    assert rows["predicted"].tolist() == estimator.predict(K[test, train]).tolist()
    for column, values in (
        ("score", estimator.decision_function(K[test, train])),
        ("probability", estimator.predict_proba(K[test, train])),
    ):
        np.testing.assert_allclose(rows[[f"{column} {name}" for name in estimator.classes_]], values, rtol=1e-6)
    accuracy = f"{100 * estimator.score(K[test, train]):#.3g}".rstrip(".")
    assert f"Accuracy {accuracy} % on" in text
    assert f"probabilities calibrated on {estimator.calibrated_on_}" in text

    assert json_of(*command, "--out", out, "--overwrite")["calibrated_on"] == estimator.calibrated_on_
    assert "--overwrite" in error_of("predict", model, store, "--out", out)
    assert "--out FILE" in error_of(*command)
    # Without a split: all samples outside the training set of the model.
    assert json_of("predict", model, store)["samples"] == len(validation) + len(test)


def test_predict_writes_sets_of_labels_and_intervals(error_of, json_of, output_of, tmp_path, store, model):
    out, estimator, K = tmp_path / "sets.csv", dmkl.load(model), dmkl.open(store)
    train, _, test = K.split(0)
    sets = estimator.predict(K[test, train], coverage=0.8, per_class=True)
    expected = ["|".join(estimator.classes_[row]) for row in sets.values]
    command = ("predict", model, store, "--out", out, "--overwrite", "--split", 0, "--coverage")
    facts = json_of(*command, 0.8, "--per-class")["coverage"]
    assert pd.read_csv(out, keep_default_na=False)["set"].tolist() == expected
    inside = [label in labels.split("|") for label, labels in zip(K.labels[test], expected, strict=True)]
    assert facts["observed_coverage"] == np.mean(inside)
    assert facts["mean_size"] == sets.sum("class").mean()
    text = " ".join(output_of(*command, 0.8).split())
    assert estimator.predict(K[test, train], coverage=0.8).attrs["guarantee"] in text
    assert "between 0 and 1" in error_of(*command, 80)
    values, path, numbers = np.arange(45.0), tmp_path / "regression", tmp_path / "numbers.zarr"
    K = dmkl.create(numbers, K.to_xarray().values, names=K.names, labels=values, samples=K.samples)
    regression = dmkl.MKRidge().fit(K[train, train])
    regression.save(path)
    assert "calibrate" in error_of("predict", path, numbers, *command[3:6], "--coverage", 0.8)
    regression.calibrate(K[test, train]).save(path, overwrite=True)
    facts = json_of("predict", path, numbers, *command[3:6], "--coverage", 0.8)["coverage"]
    rows = np.setdiff1d(np.arange(45), train)
    intervals = regression.predict(K[rows, train], coverage=0.8)
    np.testing.assert_allclose(pd.read_csv(out)[["lower", "upper"]], intervals[["lower", "upper"]].to_dataframe())
    inside = (intervals.lower <= values[rows]) & (values[rows] <= intervals.upper)
    assert facts["observed_coverage"] == inside.mean()


def test_priors_by_number_and_by_class(output_of, tmp_path, store):
    K, command = dmkl.open(store), ("fit", store, tmp_path / "model", "--split", 0, "--p", 2, "--lam", 1e-2)
    train, _, test = K.split(0)
    q = [0.7, 0.1, 0.2]
    expected = dmkl.MKFDA(2.0, 1e-2, priors=q).fit(K[train, train])
    for text in ("0.7,0.1,0.2", "plum=0.2, apple=0.7, pear=0.1"):
        output_of(*command, "--priors", text, "--overwrite")
        model = dmkl.load(tmp_path / "model")
        np.testing.assert_allclose(model.priors_, [q])
        np.testing.assert_allclose(model.predict_proba(K[test, train]), expected.predict_proba(K[test, train]))


@pytest.mark.slow
def test_a_code_for_unknown_labels(error_of, json_of, tmp_path, kernels):
    labels = np.stack([np.arange(M) % 3 == 0, np.arange(M) % 3 == 1], axis=1) * 2 - 1
    labels[::7, 0] = labels[3::5, 1] = 0
    K = dmkl.create(tmp_path / "set.zarr", kernels, labels=labels, splits=np.where(np.arange(M) < 30, 0, 2), tile=16)
    place, model = K.view.source.location, tmp_path / "model"
    assert "--unknown" in error_of("fit", place, model)
    held_out = json_of("fit", place, model, "--unknown", 0, "--scoring", "accuracy")["held_out"]
    train, _, test = K.split(0)
    partial = np.where(labels == 0, np.nan, labels > 0)
    expected = dmkl.MKFDA().fit(K[train, train], partial[train])
    np.testing.assert_allclose(dmkl.load(model).weights_, expected.weights_)
    scores = dmkl.assess(expected, K[test, train], partial[test], scoring="accuracy")["score"]
    np.testing.assert_allclose(held_out["scores"]["accuracy"], scores[0])
    printed = json_of("predict", model, place, "--unknown", 0, "--split", 0)
    assert printed["accuracy"] == held_out["accuracy"]
    json_of("search", place, tmp_path / "found", "--cv", 3, "--all", "--unknown", 0, "--model", "uniform", "--lam", 0.1)


def test_predict_on_new_samples_without_labels(error_of, output_of, tmp_path, store, model, kernels):
    K = dmkl.open(store)
    train, _, test = K.split(0)
    # Columns in another order and an additional one: columns are matched by name.
    columns = np.concatenate([train[::-1], test[:1]])
    dmkl.create(
        tmp_path / "new.zarr",
        kernels[:, test][:, :, columns],
        names=K.names,
        train_samples=K.samples[columns],
        samples=[f"new{i}" for i in range(len(test))],
        symmetric=False,
    )
    out, command = tmp_path / "predictions.csv", ("predict", model, tmp_path / "new.zarr")
    assert "labels are not known" in output_of(*command, "--out", out)
    words = "--plot draws true against predicted classes, and they are not known; leave it out"
    assert words in error_of(*command, "--plot", tmp_path / "d.png")
    assert pd.read_csv(out)["predicted"].tolist() == dmkl.load(model).predict(K[test, train]).tolist()


def test_several_tasks(json_of, output_of, tmp_path, kernels):
    tasks, columns = ["sweet", "round"], ["predicted sweet", "predicted round", "score sweet", "score round"]
    labels = np.stack([np.arange(M) % 3 == 0, np.random.default_rng(0).permutation(M) % 2 == 0], axis=1).astype(int)
    splits = np.where(np.arange(M) < 30, 0, 2)
    K = dmkl.create(tmp_path / "set", kernels, labels=labels, splits=splits, tile=16, tasks=tasks)
    output_of("fit", tmp_path / "set", tmp_path / "model", "--lam", 0.1)
    printed = json_of("predict", tmp_path / "model", tmp_path / "set", "--split", 0, "--out", tmp_path / "p.csv")
    train, _, test = K.split(0)
    estimator, table = dmkl.load(tmp_path / "model"), pd.read_csv(tmp_path / "p.csv")
    assert printed["accuracy"] == estimator.score(K[test, train])
    assert table.columns.tolist() == ["sample", *columns]
    np.testing.assert_array_equal(table[columns[:2]], estimator.predict(K[test, train]))
    search = ["search", tmp_path / "set", tmp_path / "result", "-p", 1, "--lam", 0.1, "--cv", 2, "--no-refit"]
    assert len(json_of(*search)["chance_p_value"]) == 2


def test_covariates_of_a_file_are_taken_out(error_of, output_of, store, tmp_path):
    rng, K = np.random.default_rng(0), dmkl.open(store)
    Z = pd.DataFrame({"age": rng.normal(50, 9, M), "site": rng.choice(["n", "s"], M)}, [f"s{i:02}" for i in range(M)])
    train, _, test = K.split(0)
    Z.iloc[train[::-1]].to_csv(tmp_path / "old.csv", index_label="sample")
    Z.iloc[test].to_csv(tmp_path / "new.csv", index_label="sample")
    command = ["fit", store, tmp_path / "model", "--p", "2", "--split", "0", "--steps"]
    output_of(*command, f"residualize={tmp_path / 'old.csv'},trace")
    model = dmkl.load(tmp_path / "model")
    assert model.steps == (dmkl.residualize(Z.iloc[train[::-1]]), "trace")
    expected = dmkl.MKFDA(p=2, steps=(dmkl.residualize(Z), "trace")).fit(K[train, train])
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-12)
    words = "the covariates of residualize=nowhere.csv cannot be read"
    assert words in error_of(*command, "residualize=nowhere.csv", "--overwrite")
    predict = ("predict", tmp_path / "model", store, "--split", 0, "--out", tmp_path / "p.csv", "--overwrite")
    assert "residualize needs the covariates of every sample" in error_of(*predict)
    output_of(*predict, "--covariates", tmp_path / "new.csv")
    scores = pd.read_csv(tmp_path / "p.csv").iloc[:, 2:]
    np.testing.assert_allclose(scores, expected.decision_function(K[test, train]).values, rtol=1e-6)


def test_a_regression_tells_the_effects_of_covariates(json_of, output_of, tmp_path):
    rng = np.random.default_rng(0)
    X, age = rng.standard_normal((45, 5)), rng.normal(50, 9, 45)
    y, splits = X[:, 0] + age, np.where(np.arange(45) < 30, 0, 2)
    K = dmkl.create(tmp_path / "set.zarr", [X @ X.T], labels=y, splits=splits)
    pd.DataFrame({"age": age}).to_csv(tmp_path / "about.csv", index_label="sample")
    command = ["fit", tmp_path / "set.zarr", tmp_path / "model", "--model", "mkridge", "--scoring", "r2"]
    command += ["--steps", f"residualize={tmp_path / 'about.csv'},trace"]
    printed, model = json_of(*command), dmkl.load(tmp_path / "model")
    effects = {"age": model.covariate_effects_.item()}
    assert printed["covariate_effects"] == effects == pytest.approx({"age": 1.0}, abs=0.2)
    assert printed["held_out"]["scores"]["r2"] == pytest.approx(model.score(K[30:, :30], y[30:]))
    assert json_of("info", tmp_path / "model")["covariate_effects"] == effects
    assert f"age {effects['age']:#.3g}" in " ".join(output_of(*command, "--overwrite").split())
    by_covariates = np.polyval(np.polyfit(age[:30], y[:30], 1), age[30:])
    part = model.predict(K[30:, :30]).values - by_covariates
    expected = r2_score(y[30:] - by_covariates, part)
    assert printed["held_out"]["residual_scores"]["r2"] == pytest.approx(expected, rel=1e-9)
    predict = ["predict", tmp_path / "model", tmp_path / "set.zarr", "--split", 0]
    assert json_of(*predict)["residual_scores"]["r2"] == pytest.approx(expected, rel=1e-9)
    text = output_of(*predict, "--out", tmp_path / "p.csv")
    assert f"r2 {expected:#.3g} of the kernels' part" in " ".join(text.split())
    parts = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(parts["by covariates"], by_covariates, rtol=1e-6)
    np.testing.assert_allclose(parts["by kernels"], part, atol=1e-6)


def test_a_regression_on_a_set_of_classes_scores_nothing(json_of, notes_of, tmp_path):
    X = np.random.default_rng(0).normal(size=(24, 3))
    K = dmkl.build(tmp_path / "set.zarr", {"x": X}, {"function": "linear"}, labels=np.where(X[:, 0] > 0, "hi", "lo"))
    dmkl.MKRidge().fit(K[:16, :16], X[:16, 1]).save(tmp_path / "model")
    assert "no numbers, which the model predicts" in notes_of("predict", tmp_path / "model", tmp_path / "set.zarr")
    assert json_of("predict", tmp_path / "model", tmp_path / "set.zarr")["samples"] == 8
    np.savez(tmp_path / "new.npz", x=X, labels=K.labels.astype(str))
    note = f"the labels of {tmp_path / 'new.npz'} are no numbers, which the model predicts"
    assert note in notes_of("predict", tmp_path / "model", "--features", tmp_path / "new.npz")


def test_what_is_taken_for_missing_among_given_labels_is_told(error_of, notes_of, tmp_path, store):
    samples, fit = dmkl.open(store).samples, ("fit", store, tmp_path / "model", "--labels")
    (tmp_path / "y.phen").write_text("FID IID y\n" + "".join(f"f {name} {k % 3}\n" for k, name in enumerate(samples)))
    err = error_of(*fit, tmp_path / "y.phen")
    assert "the labels of 15 of the 45 samples are missing ('s00', 's03', 's06' …" in err
    assert "0 in column 'y' was taken for missing: the others are 1 and 2, as in PLINK" in err
    lines = (f"f {name} {k / 7} {-9 if k % 5 == 0 else k}\n" for k, name in enumerate(samples))
    (tmp_path / "two.phen").write_text("FID IID y z\n" + "".join(lines))
    assert "-9 was taken for missing, as in PLINK" in notes_of(*fit, tmp_path / "two.phen", "--model", "mkridge")


def test_exposures_of_counts_are_the_column_of_a_file(error_of, output_of, tmp_path):
    rng = np.random.default_rng(0)
    X, years = rng.standard_normal((45, 5)), rng.uniform(1, 9, 45)
    y, names = rng.poisson(years * np.exp(X[:, 0])), [f"s{k}" for k in range(45)]
    splits = np.where(np.arange(45) < 30, 0, 2)
    dmkl.create(tmp_path / "set.zarr", [X @ X.T], labels=y, samples=names, splits=splits)
    table = pd.DataFrame({"age": years, "years": years}, names)
    table.to_csv(tmp_path / "clinical.csv", index_label="sample")
    table[:30].to_csv(tmp_path / "old.csv", index_label="sample")
    given = ["--model", "mkglm", "--loss", "poisson", "--offset"]
    fit = ["fit", tmp_path / "set.zarr", tmp_path / "model", "--split", 0, "--overwrite", *given]
    assert "name it: FILE:NAME" in error_of(*fit, tmp_path / "clinical.csv")
    output_of(*fit, f"log({tmp_path / 'clinical.csv'}:years)")
    model = dmkl.load(tmp_path / "model")
    assert model.offset.columns == ("log(years)",)
    K = dmkl.open(tmp_path / "set.zarr")
    expected = dmkl.MKGLM("poisson", offset=np.log(table["years"])).fit(K[:30, :30])
    np.testing.assert_array_equal(model.predict(K[30:, :30]), expected.predict(K[30:, :30]))
    output_of(*fit, f"log({tmp_path / 'old.csv'}:years)")
    predict = ("predict", tmp_path / "model", tmp_path / "set.zarr", "--split", 0, "--out", tmp_path / "p.csv")
    assert "predict(offset=, --offset)" in error_of(*predict)
    output_of(*predict, "--offset", f"log({tmp_path / 'clinical.csv'}:years)")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["predicted"], expected.predict(K[30:, :30]), rtol=1e-6)
