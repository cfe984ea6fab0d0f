"""Survival by Cox's partial likelihood: labels, scores of risks, fits, searches and saved models."""

import itertools

import dask
import numpy as np
import pandas as pd
import pytest

import dmkl
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.searching.scoring import as_metrics

NONE = np.zeros(0)


@pytest.fixture(scope="module")
def study():
    """Two informative kernels among four, and times of which a third is censored."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4, 90, 3))
    times = rng.exponential(np.exp(-1.5 * X[0, :, 0] - X[1, :, 1]))
    censored = rng.exponential(3, size=90)
    y = dmkl.signed_times(np.ceil(20 * np.minimum(times, censored)), times <= censored)
    return dmkl.create(None, X @ X.transpose(0, 2, 1), dtype="float64"), y


def brute_force(y, risk, weight=lambda i: 1.0):
    right = total = 0.0
    for i, j in itertools.permutations(range(len(y)), 2):
        if y[i] > 0 and (abs(y[j]) > y[i] or (y[j] == -y[i])):
            total += weight(i)
            right += weight(i) * (1.0 if risk[j] < risk[i] else 0.5 if risk[j] == risk[i] else 0.0)
    return right / total


def test_concordance_counts_pairs():
    rng = np.random.default_rng(1)
    y = rng.integers(1, 12, 40) * np.where(rng.random(40) < 0.6, 1.0, -1.0)
    y[np.argmax(np.abs(y))] *= -1  # nobody is followed to the end
    risk = rng.integers(0, 9, 40).astype(float)
    metrics = as_metrics(["concordance_index", "concordance_index_ipcw"], "regression")
    assert metrics["concordance_index"](y, risk, NONE) == pytest.approx(brute_force(y, risk))

    def uncensored(t):
        share = 1.0
        for s in np.unique(np.abs(y[y < 0])):
            left = np.sum(np.abs(y) >= s) - np.sum(y == s)
            share *= 1 - np.sum(y == -s) / left if s <= t else 1.0
        return share

    def weight(i):
        return 1 / uncensored(y[i]) ** 2 if uncensored(y[i]) > 0 else 0.0

    assert metrics["concordance_index_ipcw"](y, risk, NONE) == pytest.approx(brute_force(y, risk, weight))
    assert np.isnan(metrics["concordance_index"](np.array([-1.0, -2.0]), np.zeros(2), NONE))


def test_a_fit_is_that_of_plain_arrays_and_has_the_score_of_a_search(study):
    K, y = study
    train, test = np.arange(60), np.arange(60, 90)
    model = dmkl.MKGLM("cox", p=1.5, lam=2.0, steps=("center",), tol=1e-8).fit(K[train, train], y[train])
    kernels = K[train, train].center().to_dask().compute()
    plain = dmkl.solve_mkglm(kernels, y[train], "cox", p=1.5, lam=2.0, tol=1e-8)
    np.testing.assert_allclose(model.weights_, plain.weights, atol=1e-5)
    assert model.gap_ <= 1e-8
    score = model.score(K[test, train], y[test])
    assert score == pytest.approx(brute_force(y[test], model.predict(K[test, train]).values))
    assert score > 0.75
    grid = {"p": [1.5], "lam": [2.0]}
    search = dmkl.search(model, K, y, grid=grid, cv=[(train, test)], baselines="none")
    assert search.scores.attrs["scoring"] == "concordance_index"
    assert float(search.scores["score"].max()) == pytest.approx(score, abs=1e-9)
    assert float(dmkl.assess(model, K[test, train], y[test])["score"][0]) == pytest.approx(score, abs=1e-12)


def test_two_columns_are_labels_in_either_order(study, tmp_path, output_of):
    K, y = study
    columns = np.stack([np.abs(y), y > 0], axis=1)
    model = dmkl.MKGLM("cox", lam=2.0).fit(K[:60, :60], y[:60])
    for given in (columns, columns[:, ::-1]):
        np.testing.assert_array_equal(dmkl.MKGLM("cox", lam=2.0).fit(K[:60, :60], given[:60]).weights_, model.weights_)
        assert model.score(K[60:, :60], given[60:]) == model.score(K[60:, :60], y[60:])
    clinical = pd.DataFrame(columns, columns=["days", "dead"]).assign(age=50)
    clinical.to_csv(tmp_path / "clinical.csv", index_label="sample")
    matrices = dict(zip("abcd", K.to_dask().compute(), strict=True))
    np.savez(tmp_path / "kernels.npz", sample=np.arange(90).astype(str), **matrices)
    output_of(
        "import", tmp_path / "set", tmp_path / "kernels.npz", "--labels", f"{tmp_path / 'clinical.csv'}:days,dead"
    )
    command = ("search", tmp_path / "set", tmp_path / "out", "--model", "mkglm", "--loss", "cox", "--cv", "3")
    assert "concordance_index" in output_of(*command, "--grid", "lam=1,10", "--grid", "p=2", "--baselines", "none")
    search = dmkl.search(dmkl.MKGLM("cox"), K, y, grid={"p": [2], "lam": [1, 10]}, cv=3, baselines="none")
    np.testing.assert_allclose(dmkl.load(tmp_path / "out").scores["score"], search.scores["score"], atol=1e-9)


def test_the_second_derivative_counts_in_memory_whatever_the_kernels_are(study):
    _, y = study
    rng = np.random.default_rng(2)
    K = dmkl.build(None, {"x": rng.normal(size=(900, 3))}, {"function": "linear"})
    labels = np.tile(y, 10)
    with dask.config.set({"dmkl.memory": "40MiB"}):
        assert dmkl.MKGLM("huber").fit(K, labels).gap_ < 1e-4  # a factor of three columns
        with pytest.raises(MemoryBudgetError, match="the loss of all samples together"):
            dmkl.MKGLM("cox").fit(K, labels)


def test_models_are_saved(study, tmp_path):
    K, y = study
    model = dmkl.MKGLM(dmkl.Cox(ties="breslow"), lam=2.0).fit(K[:60, :60], y[:60])
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(K[60:, :60]), model.predict(K[60:, :60]))


def test_bad_labels_are_refused(study):
    K, y = study
    with pytest.raises(InputError, match="the loss Cox is; take another"):
        dmkl.MKGLM("cox").fit(K, -np.abs(y))
    with pytest.raises(InputError, match="got 2 columns, 0 of them of 0 and 1"):
        dmkl.MKGLM("cox").fit(K, np.stack([y, y], axis=1))
    with pytest.raises(InputError, match="takes no covariates"):
        dmkl.MKGLM("cox", steps=(dmkl.residualize(y), "trace")).fit(K, y)
    with pytest.raises(InputError, match="event must be 1"):
        dmkl.signed_times([1.0, 2.0], [1, 2])
    with pytest.raises(InputError, match="times must be positive, found 0"):
        dmkl.signed_times([1.0, 0.0], [1, 0])
    with pytest.raises(InputError, match="ties must be"):
        dmkl.Cox(ties="exact")
