"""Tests of two models on the same rows, against SciPy and U-statistics by loops."""

import re

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import dmkl
from dmkl.errors import InputError
from dmkl.searching.paired import delong, mcnemar

M = 60
GRID = {"lam": [0.1]}


def kernel_set(seed, shift, n_classes=2):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(M) % n_classes)
    tables = [rng.normal(size=(M, 10)) + s * np.eye(10)[y] for s in (shift, 0.0)]
    return dmkl.create(None, [table @ table.T for table in tables], names=["signal", "noise"]), y


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 4), (7, 2), (5, 5), (30, 12)])
def test_mcnemar_is_the_exact_binomial_test(b, c):
    right = np.repeat([[True, False], [False, True], [True, True], [False, False]], [b, c, 5, 3], axis=0)
    result = mcnemar(*right.T)
    assert (result["mcnemar_first"], result["mcnemar_second"]) == (b, c)
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert result["mcnemar_p_value"] == pytest.approx(expected, rel=1e-12)


def area_and_placements(positive, scores):
    """The share of pairs in the right order, and the shares of each positive and of each negative row."""
    pairs = np.array([[np.sign(a - b) / 2 + 0.5 for b in scores[~positive]] for a in scores[positive]])
    return pairs.mean(), pairs.mean(axis=1), pairs.mean(axis=0)


def test_delong_is_the_u_statistic_of_all_pairs_in_each_fold():
    """Scores have ties, and a fold of one class does not count."""
    rng = np.random.default_rng(0)
    folds = np.repeat([0, 1, 2], [25, 30, 4])
    positive = rng.random(59) < 0.4
    positive[55:] = True
    scores = (rng.normal(size=(2, 59)) + positive).round(1)
    differences, variances = [], []
    for fold in (0, 1):
        at = folds == fold
        areas, *placements = zip(*(area_and_placements(positive[at], of[at]) for of in scores), strict=True)
        differences.append(areas[0] - areas[1])
        variances.append(sum(np.var(np.subtract(*each), ddof=1) / len(each[0]) for each in placements))
    result = delong(positive, scores, folds)
    error = np.sqrt(np.sum(variances)) / 2
    assert result["delong_difference"] == pytest.approx(np.mean(differences), rel=1e-12)
    assert result["delong_standard_error"] == pytest.approx(error, rel=1e-12)
    p = 2 * stats.norm.sf(abs(np.mean(differences)) / error)
    assert result["delong_p_value"] == pytest.approx(p, rel=1e-10)
    assert np.isnan(delong(positive[55:], scores[:, 55:], folds[55:])["delong_p_value"])


def of_folds(p):
    """The p-value of a normal deviate whose variance is twice that of independent rows."""
    return 2 * stats.norm.sf(stats.norm.isf(p / 2) / np.sqrt(2))


@pytest.fixture(scope="module")
def evaluations():
    K, y = kernel_set(0, 1.5)
    more = {"outer": 3, "inner": 2, "baselines": "none"}
    return [dmkl.evaluate(dmkl.MKFDA(p=p), K, y, GRID, **more).predictions for p in (1, np.inf)]


def test_predictions_of_two_evaluations_are_compared_by_rows(evaluations):
    first, second = evaluations
    shuffled = second.isel(sample=np.random.default_rng(0).permutation(M))
    result = dmkl.compare_predictions(first, shuffled)
    right = [each["predicted_label"].values == each["true_label"].values for each in evaluations]
    assert result["mcnemar_first"] == np.count_nonzero(right[0] & ~right[1])
    truth = first["true_label"].values
    losses = [-np.log(each["probability"].values[np.arange(M), truth]) for each in evaluations]
    assert float(result["paired_loss_p_value"]) == pytest.approx(of_folds(stats.ttest_rel(*losses).pvalue), rel=1e-9)
    assert float(result["paired_loss_difference"]) == pytest.approx(np.mean(losses[0] - losses[1]), rel=1e-9)
    folds = np.unique(first["sample_fold"], return_inverse=True)[1]
    expected = delong(truth == 1, np.stack([each["score"].values for each in evaluations]), folds)
    assert float(result["delong_p_value"]) == pytest.approx(of_folds(expected["delong_p_value"]))
    reverse = dmkl.compare_predictions(second, first)
    assert reverse["mcnemar_second"] == result["mcnemar_first"]
    assert float(reverse["delong_difference"]) == pytest.approx(-float(result["delong_difference"]))


def test_rows_that_are_not_independent_have_no_p_values(evaluations):
    """Samples that are held out twice, and groups."""
    first, second = (
        xr.concat([each, each.assign(sample_fold="again" + each["sample_fold"])], "sample") for each in evaluations
    )
    result = dmkl.compare_predictions(first, second)
    assert result["mcnemar_first"] == 2 * dmkl.compare_predictions(*evaluations)["mcnemar_first"]
    groups = np.arange(M) // 2
    pairs = [each.assign(sample_group=("sample", groups)) for each in evaluations]
    grouped = dmkl.evaluate(dmkl.MKFDA(p=1), *kernel_set(0, 1.5), GRID, outer=3, inner=2, groups=groups)
    for tests in (result, dmkl.compare_predictions(*pairs), grouped.baselines.isel(baseline=0)):
        names = [name for name in tests if re.search("(mcnemar|delong|paired).*(_p_value|_error)$", name)]
        assert len(names) == 5
        assert all(np.isnan(tests[name]) for name in names)


def test_predictions_of_other_rows_or_labels_are_refused(evaluations):
    first, second = evaluations
    with pytest.raises(InputError, match=r"outer=other\.folds"):
        dmkl.compare_predictions(first, second.isel(sample=slice(1, None)))
    with pytest.raises(InputError, match="other true labels"):
        dmkl.compare_predictions(first, second.assign(true_label=1 - second["true_label"]))
    with pytest.raises(InputError, match="predictions of two searches or evaluations"):
        dmkl.compare_predictions(first, xr.Dataset())


@pytest.mark.slow
def test_an_evaluation_tests_its_baseline_on_the_same_rows(evaluations):
    K, y = kernel_set(0, 1.5)
    expected = dmkl.compare_predictions(*evaluations)
    for scoring, test in (("accuracy", "mcnemar"), ("roc_auc", "delong"), ("neg_log_loss", "paired_loss")):
        result = dmkl.evaluate(dmkl.MKFDA(p=1), K, y, GRID, outer=3, inner=2, scoring=scoring)
        for name, value in expected.items():
            np.testing.assert_allclose(result.scores[f"sum_{name}"], value, rtol=1e-6, atol=1e-9)
        row = result.comparison().iloc[1]
        assert row["p_value"] == pytest.approx(float(expected[f"{test}_p_value"]), rel=1e-6)
        assert f"these models on these rows: {row['test']} p = {row['p_value']:.2g}" in result.summary()


def test_a_search_tests_baselines_on_test_rows_alone():
    """Also where no parameter of the grid is one of the sum."""
    K, y = kernel_set(1, 1.5, 3)
    rows = np.random.default_rng(1).permutation(M)
    folds = [(rows[:30], rows[30:45], rows[45:])]
    result = dmkl.search(dmkl.MKFDA(lam=0.1), K, y, {"p": [1, 2]}, folds)
    assert result.predictions.sizes["sample"] == 15
    assert "chance_p_value" in result.scores
    compared = result.comparison().set_index("model")
    assert compared["p_value"].notna().tolist() == [False, True, True]
    assert compared["test"].tolist()[1:] == ["McNemar", "McNemar"]
    machine = result.baselines.sel(baseline="SVM on the sum of kernels")
    n_right = 15 * (result.chosen["test_score"] - machine["test_score"]).sum()
    counts = [int(machine[f"mcnemar_{which}"]) for which in ("first", "second")]
    assert float(n_right) == pytest.approx(counts[0] - counts[1])
    # One fold has no other, and the test is exact.
    expected = stats.binomtest(counts[0], sum(counts)).pvalue if sum(counts) else 1.0
    assert compared.loc["SVM on the sum of kernels", "p_value"] == pytest.approx(expected)
    validated = dmkl.search(dmkl.MKFDA(), K, y, GRID, folds[0][:2], refit=False)
    assert "mcnemar_p_value" not in validated.baselines
    assert np.isnan(validated.comparison()["p_value"]).all()


def test_tasks_and_numbers_have_their_tests():
    K, y = kernel_set(2, 2.0, 4)
    tasks = np.stack([y % 2, y // 2], axis=1)
    result = dmkl.evaluate(dmkl.MKFDA(p=1), K, tasks, GRID, outer=3, inner=2)
    assert result.baselines["delong_p_value"].dims == ("baseline", "task")
    row, p = result.comparison().iloc[1], result.baselines["delong_p_value"].values
    assert row["p_value"] == pytest.approx(min(1.0, 2 * p.min()))
    assert f"DeLong (smallest of 2 tasks, Bonferroni) p = {row['p_value']:.2g}" in result.summary()
    both = [result.predictions, dmkl.evaluate(dmkl.MKFDA(p=np.inf), K, tasks, GRID, outer=3, inner=2).predictions]
    right = [(each["predicted_label"] == 1).values[:, 0] & (each["true_label"] == 1).values[:, 0] for each in both]
    of_ones = [each.isel(sample=np.logical_and(*right)) for each in both]  # in which a task has one label alone
    losses = [-np.log(each["probability"].values[:, 0]) for each in of_ones]
    tests = dmkl.compare_predictions(*of_ones)
    assert float(tests["paired_loss_difference"][0]) == pytest.approx(np.mean(losses[0] - losses[1]))
    of_numbers = dmkl.evaluate(dmkl.MKRidge(p=1), K, y.astype(float), GRID, outer=3, inner=2)
    predictions = of_numbers.predictions
    other = dmkl.evaluate(dmkl.MKRidge(p=np.inf), K, y.astype(float), GRID, outer=3, inner=2).predictions
    errors = [(each["prediction"] - each["true_label"]).values ** 2 for each in (predictions, other)]
    expected = of_folds(stats.ttest_rel(*errors).pvalue)
    assert float(of_numbers.comparison()["p_value"][1]) == pytest.approx(expected, rel=1e-5)


def test_single_kernels_and_covariates_alone_are_tested_on_the_same_rows():
    K, y = kernel_set(5, 1.0)
    rng = np.random.default_rng(5)
    Z, rows, numbers = rng.normal(size=(M, 2)), rng.permutation(M), y + rng.normal(size=M)
    numbers += Z[:, 0]
    folds = [(rows[:30], rows[30:45], rows[45:]), (rows[15:40], rows[40:], rows[:15])]
    steps, right, errors = (dmkl.residualize(Z), "trace"), [], [[], []]
    result = dmkl.search(dmkl.MKFDA(steps=steps), K, y, {"p": [2], "lam": [0.1, 1]}, folds, baselines="all")
    alone = result.baselines.sel(baseline="best single kernel")
    regression = dmkl.search(dmkl.MKRidge(2, 0.1, steps=steps), K, numbers, {"p": [2]}, folds, refit=False)
    for f, (train, _, test) in enumerate(folds):
        one, lam = K.select([alone["best_kernel"][f].item()]), alone["lam"][f].item()
        single = dmkl.Uniform(lam, steps=steps, solver="direct").fit(one[train, train], y[train])
        learnt = dmkl.MKFDA(2, result.best_params_[str(f)]["lam"], steps=steps).fit(K[train, train], y[train])
        right.append([single.predict(one[test, train]) == y[test], learnt.predict(K[test, train]) == y[test]])
        design = np.column_stack([np.ones(M), Z])
        model = dmkl.MKRidge(2, 0.1, steps=steps).fit(K[train, train], numbers[train])
        by_covariates = design[test] @ np.linalg.lstsq(design[train], numbers[train], rcond=None)[0]
        for of, predicted in zip(errors, (model.predict(K[test, train]).values, by_covariates), strict=True):
            of.append((predicted - numbers[test]) ** 2)
    of_single, of_choice = np.concatenate(right, axis=1)
    counts = [np.count_nonzero(of_choice & ~of_single), np.count_nonzero(of_single & ~of_choice)]
    assert [int(alone["mcnemar_first"]), int(alone["mcnemar_second"])] == counts
    compared = result.comparison().set_index("model")["p_value"]
    assert compared["best single kernel"] == pytest.approx(of_folds(stats.binomtest(counts[0], sum(counts)).pvalue))
    assert compared.notna().sum() == len(compared) - 1 == 4
    expected = of_folds(stats.ttest_rel(*map(np.concatenate, errors)).pvalue)
    p_value = regression.comparison().set_index("model").loc["covariates alone", "p_value"]
    assert p_value == pytest.approx(expected, rel=1e-4)


def predictions_of_ridge(table, y, folds):
    """Out-of-fold predictions of least squares on ±1 with a ridge, and log odds of three times the score."""
    scores = np.empty(M)
    for fold in range(3):
        train = folds != fold
        centered = table - table[train].mean(axis=0)
        system = centered[train].T @ centered[train] + 10 * np.eye(table.shape[1])
        weights = np.linalg.solve(system, centered[train].T @ (2.0 * y[train] - 1.0))
        scores[~train] = centered[~train] @ weights
    columns = {"sample_fold": folds, "true_label": y, "predicted_label": (scores > 0).astype(int), "score": scores}
    p = 1 / (1 + np.exp(-3 * scores))
    columns = {name: ("sample", values) for name, values in columns.items()}
    columns["probability"] = (("sample", "class"), np.stack([1 - p, p], axis=1))
    return xr.Dataset(columns, {"sample": np.arange(M), "class": [0, 1]})


@pytest.mark.parametrize("shift", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_equally_good_learners_seldom_differ(shift):
    """On tables of the same information at most 5 % and three standard errors have p ≤ 0.05; more as if independent."""
    p_values, n_sets = [], 150
    rng = np.random.default_rng(0)
    for _ in range(n_sets):
        y, folds = rng.permutation(np.arange(M) % 2), rng.permutation(np.arange(M) % 3)
        tables = rng.normal(size=(2, M, 8))
        tables[..., 0] += shift * (2 * y - 1)
        tests = dmkl.compare_predictions(*(predictions_of_ridge(table, y, folds) for table in tables))
        p_values.append([float(tests[f"{test}_p_value"]) for test in ("mcnemar", "delong", "paired_loss")])
    rates = np.mean(np.array(p_values) <= 0.05, axis=0)
    assert (rates <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_sets)).all()
    if shift == 0.0:  # p' = 2 Φ(z/√2) is 0.166 where p = 2 Φ(z) is 0.05
        of_independent = np.mean(np.array(p_values) <= 2 * stats.norm.sf(stats.norm.isf(0.025) / np.sqrt(2)), axis=0)
        assert of_independent[1] > 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_sets)
