"""Survival by Cox's partial likelihood: labels, scores of risks, fits, searches and saved models."""

import itertools
import warnings

import dask
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import dmkl
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.searching.scoring import as_metrics, evaluate

TRAIN, TEST, ONES = np.arange(60), np.arange(60, 90), np.ones(60)
CENTERS = np.where(np.arange(90) % 3, "a", "b")
PARTS = [CENTERS[TRAIN] == name for name in "ab"]


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
    measured = evaluate(metrics, "regression", (), y, risk)
    assert measured[0] == pytest.approx(brute_force(y, risk))

    def uncensored(t):
        share = 1.0
        for s in np.unique(np.abs(y[y < 0])):
            left = np.sum(np.abs(y) >= s) - np.sum(y == s)
            share *= 1 - np.sum(y == -s) / left if s <= t else 1.0
        return share

    def weight(i):
        return 1 / uncensored(y[i]) ** 2 if uncensored(y[i]) > 0 else 0.0

    assert measured[1] == pytest.approx(brute_force(y, risk, weight))
    assert np.isnan(evaluate(metrics, "regression", (), [-1.0, -2.0], np.zeros(2))[0])


def test_scores_of_curves_are_those_of_scikit_survival():
    """Numbers are those of its version 0.28, with equal times and risks."""
    y = dmkl.signed_times([2, 3, 3, 5, 6, 6, 8, 9, 11, 12], [1, 1, 0, 0, 1, 1, 0, 1, 1, 0])
    risk = np.array([0.9, 0.3, 0.5, 0.8, 0.8, 0.1, 0.4, 0.3, 0.2, 0.2])
    trained = dmkl.signed_times([1, 3, 4, 4, 7, 10, 13, 14], [1, 0, 1, 0, 0, 1, 0, 1])
    times = np.array([3.0, 6.0, 9.0, 11.0])
    scores = dmkl.survival_scores(np.exp(-risk[:, None] * times / 8), y, trained, times)
    np.testing.assert_allclose(scores["brier_score"], [0.1647108, 0.29113363, 0.3279472, 0.39511046], atol=1e-8)
    np.testing.assert_allclose(scores["dynamic_auc"], [0.73076923, 0.62704918, 0.79249012, 0.72910217], atol=1e-8)
    assert float(scores["integrated_brier_score"]) == pytest.approx(0.2919306928927553)
    assert float(scores["mean_dynamic_auc"]) == pytest.approx(0.7101149061333893)
    areas = as_metrics("dynamic_auc", "regression")
    assert evaluate(areas, "regression", (), y, risk) == pytest.approx(0.7475525971879733)
    assert np.isnan(evaluate(areas, "regression", (), -np.abs(y), risk)).all()
    late = dmkl.survival_scores(np.full((10, 2), 0.5), y, -np.minimum(np.abs(y), 8.0), [3.0, 9.0])
    assert np.isnan(late["brier_score"][1])  # no training row was observed so long
    with pytest.raises(InputError, match="two increasing times or more, got"):
        dmkl.survival_scores(np.full((10, 2), 0.5), y, times=[3.0, 2.0])


def test_a_fit_is_that_of_plain_arrays_and_ranks_risks(study):
    K, y = study
    model = dmkl.MKCox(p=1.5, lam=2.0, steps=("center",), tol=1e-8).fit(K[TRAIN, TRAIN], y[TRAIN])
    kernels = K[TRAIN, TRAIN].center().to_dask().compute()
    plain = dmkl.solve_mkglm(kernels, y[TRAIN], "cox", p=1.5, lam=2.0, tol=1e-8)
    np.testing.assert_allclose(model.weights_, plain.weights, atol=1e-5)
    assert model.gap_ <= 1e-8
    score = model.score(K[TEST, TRAIN], y[TEST])
    assert score == pytest.approx(brute_force(y[TEST], model.predict(K[TEST, TRAIN]).values))
    assert score > 0.75
    assert float(dmkl.assess(model, K[TEST, TRAIN], y[TEST])["score"][0]) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_survival_curves_are_those_of_breslow(study, tmp_path, ties):
    K, y = study
    y, d = y[:60], np.where(np.arange(60) % 5, 1.0, 2.0)
    model = dmkl.MKCox(lam=2.0, ties=ties, steps=("center",)).fit(K[:60, :60], y, d)
    f = K[:60, :60].center().to_dask().compute().T @ model.weights_.values @ model.dual_coef_.values[:, 0]
    steps = [(t, d[y == t].sum() / np.sum((d * np.exp(f))[np.abs(y) >= t])) for t in np.unique(y[y > 0])]
    np.testing.assert_array_equal(model.baseline_hazard_["time"], [t for t, _ in steps])
    np.testing.assert_allclose(model.baseline_hazard_, np.cumsum([step for _, step in steps]), rtol=1e-6)
    model.save(tmp_path / "model")
    times = [0.0, steps[0][0], steps[4][0] + 0.5, 1e6]
    survival = dmkl.load(tmp_path / "model").predict_survival(K[60:, :60], times)
    assert survival.dims == ("sample", "time")
    for at, column in zip(times, survival.values.T, strict=True):
        hazard = sum(step for t, step in steps if t <= at)
        np.testing.assert_allclose(column, np.exp(-hazard * np.exp(model.predict(K[60:, :60]))), rtol=1e-6)
    everywhere = model.predict_survival(K[60:, :60])
    np.testing.assert_array_equal(everywhere["time"], model.baseline_hazard_["time"])


def test_strata_have_risk_sets_and_baseline_hazards_of_their_own(study, tmp_path):
    """The loss is the sum of partial likelihoods of the strata, in a fit and in a search."""
    K, y = study
    centers = pd.Series(CENTERS, K.samples)
    times = np.where(CENTERS == "a", 1.0, 7.0) * y  # of which those of all together would say little
    model = dmkl.MKCox(p=1.5, lam=2.0, strata=centers, steps=("center",), tol=1e-9).fit(K[TRAIN, TRAIN], times[TRAIN])
    kernels = K[TRAIN, TRAIN].center().to_dask().compute()
    kernel = np.tensordot(model.weights_.values, kernels, 1)

    def objective(alpha):
        f, cox = kernel @ alpha, dmkl.Cox()
        slopes = np.zeros(60)
        for of in PARTS:
            slopes[of] = cox.slope(y[:60][of], f[of], ONES[of])
        loss = sum(cox.total(y[:60][of], f[of], ONES[of]) for of in PARTS)
        return loss + alpha @ f, kernel @ (slopes + 2.0 * alpha)

    best = minimize(objective, np.zeros(60), jac=True, options={"gtol": 1e-8})
    assert model.objective_ == pytest.approx(best.fun, rel=1e-7)
    plain = dmkl.solve_mkglm(kernels, times[TRAIN], dmkl.Cox(strata=centers[:60]), p=1.5, lam=2.0, tol=1e-9)
    np.testing.assert_allclose(model.weights_, plain.weights, atol=1e-5)
    f = model.predict(K[TRAIN, TRAIN]).values
    assert model.baseline_hazard_.dims == ("stratum", "time")
    model.save(tmp_path / "model")
    for fitted in (model, dmkl.load(tmp_path / "model")):
        at = [0.5, 3.0, 14.0, 40.0]
        survival = fitted.predict_survival(K[TEST, TRAIN], at)
        for name, of in zip("ab", PARTS, strict=True):
            own, risk = times[:60][of], np.exp(f[of])
            seen = [(t, np.sum(own == t) / risk[np.abs(own) >= t].sum()) for t in np.unique(own[own > 0])]
            hazard = [sum(step for t, step in seen if t <= until) for until in at]
            rows = (centers[60:] == name).values
            expected = np.exp(-np.outer(np.exp(fitted.predict(K[TEST, TRAIN]).values[rows]), hazard))
            np.testing.assert_allclose(survival[rows], expected, rtol=1e-6)
    model.set_params(strata=centers[:60])
    with pytest.raises(InputError, match=r"30 of 30 have none, .*predict_survival\(strata=, --strata\)"):
        model.predict_survival(K[TEST, TRAIN], at)
    with pytest.raises(InputError, match="'c' had no training samples"):
        model.predict_survival(K[TEST, TRAIN], at, strata="c")
    np.testing.assert_array_equal(
        model.predict_survival(K[TEST, TRAIN], at, strata=centers[60:].values),
        fitted.predict_survival(K[TEST, TRAIN], at),
    )


@pytest.mark.slow
def test_strata_go_with_covariates_and_folds(study):
    K, y = study
    times = np.where(CENTERS == "a", 1.0, 7.0) * y
    Z = np.random.default_rng(3).normal(size=(90, 2))
    learner = dmkl.MKCox(strata=CENTERS, steps=(dmkl.residualize(Z), "trace"))
    search = dmkl.search(learner, K, times, grid={"lam": [2.0]}, cv=[(TRAIN, TEST)])
    null = minimize(lambda b: sum(dmkl.Cox().total(y[:60][of], Z[:60][of] @ b, ONES[of]) for of in PARTS), [0, 0])
    assert float(search.scores["covariates_score"].max()) == pytest.approx(brute_force(times[TEST], Z[TEST] @ null.x))
    fitted = learner.set_params(lam=2.0).fit(K[TRAIN, TRAIN], times[TRAIN])
    assert search.best_score_ == pytest.approx(fitted.score(K[TEST, TRAIN], times[TEST]), abs=1e-9)
    with pytest.raises(InputError, match="that of '1' is unknown"):
        dmkl.MKCox(strata=["a", None, *CENTERS[2:]]).fit(K, times)


@pytest.mark.slow
def test_strata_are_a_column_of_a_file(study, tmp_path, output_of, error_of):
    K, y = study
    names = [f"s{k}" for k in range(90)]
    splits = np.where(np.arange(90) < 60, 0, 2)
    dmkl.create(tmp_path / "set", K.to_dask().compute(), labels=y, samples=names, splits=splits)
    clinical = pd.DataFrame({"age": 50, "center": CENTERS}, pd.Index(names, name="sample"))
    clinical.to_csv(tmp_path / "clinical.csv")
    clinical[:60].to_csv(tmp_path / "old.csv")
    fit = ("fit", tmp_path / "set", tmp_path / "model", "--split", 0, "--model", "mkcox", "--strata")
    assert "takes one column, got age, center" in error_of(*fit, tmp_path / "old.csv")
    output_of(*fit, f"{tmp_path / 'old.csv'}:center")
    predict = ("predict", tmp_path / "model", tmp_path / "set", "--split", 0, "--out", tmp_path / "p.csv")
    strata = ("--strata", f"{tmp_path / 'clinical.csv'}:center")
    assert "give --times too" in error_of(*predict, *strata)
    assert "predict_survival(strata=, --strata)" in error_of(*predict, "--times", "5")
    output_of(*predict, "--times", "5", *strata)
    model = dmkl.MKCox(strata=CENTERS).fit(K[:60, :60], y[:60])
    expected = model.predict_survival(K[60:, :60], [5.0])[:, 0]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "p.csv")["survival 5.0"], expected, atol=1e-6)


def test_covariates_are_effects_without_a_penalty(study):
    K, y = study
    Z = np.random.default_rng(3).normal(size=(90, 2)) + 5.0
    model = dmkl.MKCox(lam=0.1, steps=(dmkl.residualize(Z), "trace"), tol=1e-9).fit(K[TRAIN, TRAIN], y[TRAIN])
    kernels = K[TRAIN, TRAIN].residualize(Z[TRAIN]).normalize("trace").to_dask().compute()
    plain = dmkl.solve_mkglm(kernels, y[TRAIN], "cox", lam=0.1, covariates=Z[TRAIN], intercept=False, tol=1e-9)
    np.testing.assert_allclose(model.weights_, plain.weights, atol=1e-5)
    expected = np.tensordot(plain.weights, kernels, 1) @ plain.dual[:, 0] + Z[TRAIN] @ plain.extra["effects"][:, 0]
    difference = model.predict(K[TRAIN, TRAIN]).values - expected
    np.testing.assert_allclose(difference, difference.mean(), atol=1e-4)  # the hazard ratio of nobody is 1
    search = dmkl.search(model, K, y, grid={"lam": [0.1]}, cv=[(TRAIN, TEST)])
    assert search.scores.attrs["scoring"] == "concordance_index"
    null = minimize(lambda b: dmkl.Cox().total(y[TRAIN], Z[TRAIN] @ b, ONES), np.zeros(2)).x
    assert float(search.scores["covariates_score"].max()) == pytest.approx(
        brute_force(y[TEST], Z[TEST] @ null), abs=1e-12
    )
    assert "residual_score" not in search.scores
    assert float(search.scores["score"].max()) == pytest.approx(model.score(K[TEST, TRAIN], y[TEST]), abs=1e-9)


def test_two_columns_are_labels_in_either_order(study, tmp_path, output_of, error_of):
    K, y = study
    columns = np.stack([np.abs(y), y > 0], axis=1)
    model = dmkl.MKCox(lam=2.0).fit(K[:60, :60], y[:60])
    for given in (columns, columns[:, ::-1]):
        np.testing.assert_array_equal(dmkl.MKCox(lam=2.0).fit(K[:60, :60], given[:60]).weights_, model.weights_)
        assert model.score(K[60:, :60], given[60:]) == model.score(K[60:, :60], y[60:])
    clinical = pd.DataFrame(columns, columns=["days", "dead"]).assign(age=50)
    clinical.to_csv(tmp_path / "clinical.csv", index_label="sample")
    matrices = dict(zip("abcd", K.to_dask().compute(), strict=True))
    np.savez(tmp_path / "kernels.npz", sample=np.arange(90).astype(str), **matrices)
    output_of(
        "import", tmp_path / "set", tmp_path / "kernels.npz", "--labels", f"{tmp_path / 'clinical.csv'}:days,dead"
    )
    command = ("search", tmp_path / "set", tmp_path / "out", "--model", "mkcox", "--cv", "3")
    assert "concordance_index" in output_of(*command, "--grid", "lam=1,10", "--grid", "p=2", "--baselines", "none")
    search = dmkl.search(dmkl.MKCox(), K, y, grid={"p": [2], "lam": [1, 10]}, cv=3, baselines="none")
    np.testing.assert_allclose(dmkl.load(tmp_path / "out").scores["score"], search.scores["score"], atol=1e-9)
    predict = ("predict", tmp_path / "out", tmp_path / "set", "--rows", "0:4", "--times")
    output_of(*predict, "1,2.5", "--out", tmp_path / "curves.csv")
    table = pd.read_csv(tmp_path / "curves.csv")
    curves = search.best_.predict_survival(K[:4, :], [1.0, 2.5])
    np.testing.assert_allclose(table[["survival 1.0", "survival 2.5"]], curves, atol=1e-6)
    assert "give the file by --out" in error_of(*predict, "1")
    assert "got 'soon'" in error_of(*predict, "soon", "--out", tmp_path / "other.csv")


def test_hazards_have_no_errors_whatever_scores_them(study):
    K, y = study
    options = {"grid": {"lam": [1.0]}, "outer": 2, "inner": 2}
    result = dmkl.evaluate(dmkl.MKCox(), K, y, scoring="dynamic_auc", **options)
    assert "coverage" not in result.summary()
    assert not any("paired_loss" in name for name in result.scores)
    with pytest.raises(InputError, match="log hazard ratios have no intervals"):
        result.predict(K, coverage=0.9)
    with pytest.raises(InputError, match="log hazard ratios are not compared with times"):
        dmkl.compare_predictions(result.predictions, result.predictions)
    years = np.sign(y) * np.clip(np.ceil(np.abs(y) / 15), 1, 3)  # events at three times
    assert "integrated_brier_score" in dmkl.evaluate(dmkl.MKCox(), K, years, baselines="none", **options).summary()
    once = np.sign(y)
    assert "mean_dynamic_auc" not in dmkl.evaluate(dmkl.MKCox(), K, once, baselines="none", **options).summary()


def test_the_second_derivative_counts_in_memory_whatever_the_kernels_are(study):
    _, y = study
    rng = np.random.default_rng(2)
    K = dmkl.build(None, {"x": rng.normal(size=(900, 3))}, {"function": "linear"})
    labels = np.tile(y, 10)
    with dask.config.set({"dmkl.memory": "40MiB"}):
        assert dmkl.MKGLM("huber").fit(K, labels).gap_ < 1e-4  # a factor of three columns
        with pytest.raises(MemoryBudgetError, match="the loss of all samples together"):
            dmkl.MKCox().fit(K, labels)


def test_bad_labels_are_refused(study):
    K, y = study
    for message, action in (
        ("the loss Cox is; take another", lambda: dmkl.MKCox().fit(K, -np.abs(y))),
        ("got 2 columns, 0 of them of 0 and 1", lambda: dmkl.MKCox().fit(K, np.stack([y, y], axis=1))),
        ("is that of MKCox", lambda: dmkl.MKGLM("cox").fit(K, y)),
        ("event must be 1", lambda: dmkl.signed_times([1.0, 2.0], [1, 2])),
        ("times must be positive, found 0", lambda: dmkl.signed_times([1.0, 0.0], [1, 0])),
        ("ties must be 'efron' or 'breslow', got 'exact'", lambda: dmkl.MKCox(ties="exact").fit(K, y)),
        ("level must be between 0 and 1, got 1.0", lambda: dmkl.SmoothedQuantile(level=1.0)),
        ("delta must be positive and finite, got 0.0", lambda: dmkl.Huber(delta=0.0)),
        ("times of survival must be finite", lambda: dmkl.MKCox().fit(K, y).predict_survival(K, times=[-1.0])),
    ):
        with pytest.raises(InputError, match=message):
            action()


def test_unknown_events_have_no_label(study):
    labels = dmkl.signed_times([3.0, 5.0, np.nan, 4.0], [1, np.nan, 1, 0])
    np.testing.assert_array_equal(labels, [3, np.nan, np.nan, -4])
    K, y = study
    with pytest.raises(InputError, match="1 labels that are missing"):
        dmkl.MKCox().fit(K, np.stack([np.abs(y), np.where(np.arange(len(y)) == 1, np.nan, y > 0)], axis=1))


def test_folds_have_equal_shares_of_events(study):
    K, y = study
    given = np.concatenate([y[y > 0], y[y < 0]])  # without strata the last folds would have no events
    K = K[np.argsort(y < 0, kind="stable"), :][:, np.argsort(y < 0, kind="stable")]
    options = {"grid": {"lam": [2.0]}, "baselines": "none"}
    result = dmkl.evaluate(dmkl.MKCox(), K, given, outer=3, inner=2, **options)
    for of_rows in (result.folds, *(search.folds for search in result.searches.values())):
        shares = [np.mean(given[held_out] > 0) for _, held_out in of_rows.values()]
        np.testing.assert_allclose(shares, np.mean(y > 0), atol=0.05)
    figure = result.describe().figures["Survival by predicted risk"]
    assert "log-rank test p = " in figure.draw().figure.get_suptitle()
    scores = result.survival_scores(times=[0.5, 1.0, 1.5])
    for name, (train, test) in result.folds.items():
        model = dmkl.MKCox(lam=2.0).fit(K[train, train], given[train])
        curves = model.predict_survival(K[test, train], times=[0.5, 1.0, 1.5])
        expected = dmkl.survival_scores(curves, given[test], given[train])
        np.testing.assert_allclose(scores.sel(fold=name).brier_score, expected.brier_score, rtol=1e-3)
    mean = float(result.survival_scores().integrated_brier_score.mean())
    assert f"integrated_brier_score {mean:#.3g} ± " in str(result)
    with pytest.raises(InputError, match="evaluations of MKCox"):
        dmkl.evaluate(dmkl.MKRidge(), K, given, outer=2, inner=2, **options).survival_scores()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        dmkl.search(dmkl.MKCox(), K, np.abs(given), cv=3, **options)  # no sample is censored
