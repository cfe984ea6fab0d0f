"""Several records of a sample on the command line (`--records`), against sets of all records."""

import numpy as np
import pandas as pd
import pytest

import dmkl

ANIMALS, M = [f"a{k}" for k in range(20)], 60


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A set of animals, and tables of records with and without names, whose trait depends on the animal and an age."""
    path, r = tmp_path_factory.mktemp("records"), np.random.default_rng(0)
    X = r.normal(size=(20, 4))
    kernels = np.stack([X @ X.T, np.exp(-((X[:, None] - X[None]) ** 2).sum(axis=2))])
    dmkl.create(path / "k", kernels, names=["A", "B"], samples=ANIMALS, dtype="float64")
    at, age = r.permutation(np.repeat(np.arange(20), 3)), r.normal(size=M)
    milk = X[at, 0] + age + 0.3 * r.normal(size=M)
    table = pd.DataFrame({"animal": np.array(ANIMALS)[at], "milk": milk, "age": age}, [f"r{i}" for i in range(M)])
    table.to_csv(path / "records.csv", index_label="record")
    table.to_csv(path / "nameless.csv", index=False)
    table.iloc[::-1][["milk"]].to_csv(path / "milk.csv", index_label="record")  # matched by name
    return path, table, at, kernels[:, at][:, :, at]


def of_records(path, table="records.csv", labels="records.csv:milk"):
    return ["--records", path / f"{table}:animal", "--labels", path / labels]


@pytest.mark.parametrize("labels", ["records.csv:milk", "milk.csv"])
def test_variance_components_are_those_of_all_records(trial, output_of, tmp_path, labels):
    path, table, _, dense = trial
    steps = f"residualize={path / 'records.csv'}:age,multiplicative"
    learner = ["--model", "variance-components", "--steps", steps]
    output_of("fit", path / "k", tmp_path / "model", *of_records(path, labels=labels), *learner)
    model = dmkl.load(tmp_path / "model")
    K = dmkl.create(None, dense, names=["A", "B"], samples=table.index.to_numpy(), dtype="float64")
    steps = (dmkl.residualize(table[["age"]]), "multiplicative")
    reference = dmkl.VarianceComponents(steps=steps).fit(K, table["milk"])
    np.testing.assert_allclose(model.components_["variance"], reference.components_["variance"], rtol=1e-4)
    assert model.train_samples_.tolist() == table.index.tolist()


@pytest.mark.parametrize("name", ["records.csv", "nameless.csv"])
def test_folds_keep_the_records_of_an_animal_together(trial, output_of, tmp_path, name):
    path, table, at, dense = trial
    arguments = ["--model", "mkridge", "--lam", "0.1,1", "--cv", 3, "--baselines", "none", "-p", "1.5", "--tol", 1e-8]
    output_of("search", path / "k", tmp_path / "out", *of_records(path, name, f"{name}:milk"), *arguments)
    search = dmkl.load(tmp_path / "out")
    folds = list(search.folds.values())
    for train, held_out in folds:
        assert not set(at[train]) & set(at[held_out])
    grid = {"p": [1.5], "lam": [0.1, 1.0]}
    K = dmkl.create(None, dense, names=["A", "B"], dtype="float64")
    learner = dmkl.MKRidge(tol=1e-8)
    reference = dmkl.search(learner, K, table["milk"].to_numpy(), cv=folds, grid=grid, baselines="none")
    np.testing.assert_allclose(search.scores["score"], reference.scores["score"], atol=1e-4)


def test_records_that_were_held_out_are_predicted_and_groups_may_be_others(trial, output_of, error_of, tmp_path):
    path, table, _, dense = trial
    (tmp_path / "train.txt").write_text("\n".join(table.index[:40]))
    training = ["--train", tmp_path / "train.txt", "--model", "mkridge", "--lam", "0.1"]
    output_of("fit", path / "k", tmp_path / "model", *of_records(path), *training)
    output_of("predict", tmp_path / "model", path / "k", *of_records(path), "--out", tmp_path / "p.csv")
    predicted = pd.read_csv(tmp_path / "p.csv", index_col=0)
    assert predicted.index.tolist() == table.index[40:].tolist()
    expected = dmkl.load(tmp_path / "model").predict({name: k[40:, :40] for name, k in zip("AB", dense, strict=True)})
    np.testing.assert_allclose(predicted.select_dtypes("number").iloc[:, -1], expected, rtol=1e-6)
    assert "records.csv:NAME; the columns of the table are animal, milk" in error_of(
        "fit", path / "k", tmp_path / "none", "--records", path / "records.csv"
    )
    assert "no sample of the set has" in error_of(
        "fit", path / "k", tmp_path / "none", "--records", path / "records.csv:milk"
    )


def test_records_with_names_in_python(trial):
    path, table, _, dense = trial
    K = dmkl.open(path / "k").repeat(table["animal"], names=table.index).with_labels(table["milk"][::-1])
    np.testing.assert_array_equal(K.labels, table["milk"])
    assert K.individuals.tolist() == table["animal"].tolist()
    assert K.persist()[5:9, 5:9].individuals.tolist() == table["animal"][5:9].tolist()
    np.testing.assert_allclose(np.asarray(K), dense, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(K.interaction("A", "B"))[2], dense[0] * dense[1], rtol=1e-12)
    with pytest.raises(dmkl.errors.InputError, match="call it before rows are chosen, and name repeated ones"):
        dmkl.open(path / "k").repeat(table["animal"]).with_labels(table["milk"])


def test_several_columns_of_a_table_are_covariates(trial, output_of, tmp_path):
    path, table, *_ = trial
    of_animals = table.groupby("animal")[["milk", "age"]].mean()
    of_animals.to_csv(tmp_path / "table.csv", index_label="sample")
    arguments = ["--model", "mkridge", "--steps", f"residualize={tmp_path / 'table.csv'}:milk+age,trace"]
    y = pd.Series(np.arange(20.0), ANIMALS, name="y")
    y.to_csv(tmp_path / "y.csv", index_label="sample")
    output_of("fit", path / "k", tmp_path / "m", "--labels", tmp_path / "y.csv:y", *arguments)
    reference = dmkl.MKRidge(steps=(dmkl.residualize(of_animals), "trace")).fit(dmkl.open(path / "k"), y)
    np.testing.assert_allclose(dmkl.load(tmp_path / "m").weights_, reference.weights_)
