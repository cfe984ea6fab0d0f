"""Many targets: the distribution of scores, the plain sum beside them, R² by kernel, what each kernel wins."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.references import ridge_predictions
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold

import dmkl

M, T, SUM = 60, 40, "plain sum of the kernels"


@pytest.fixture(scope="module")
def Y():
    """The first 20 targets depend on kernel a, 15 on b, and 5 on nothing."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(3, M, 4))
    Y = 0.5 * rng.normal(size=(M, T)) + 3.0
    Y[:, :20] += features[0] @ rng.normal(size=(4, 20))
    Y[:, 20:35] += features[1] @ rng.normal(size=(4, 15))
    return features, Y


@pytest.fixture(scope="module")
def K(Y):
    features, _ = Y
    return dmkl.create(None, features @ features.transpose(0, 2, 1), names=["a", "b", "c"])


@pytest.fixture(scope="module")
def evaluated(K, Y):
    labels = pd.DataFrame(Y[1], K.samples, [f"voxel {t}" for t in range(T)])
    learner = dmkl.MKRidge(weights="shared", n_candidates=8)
    return dmkl.evaluate(learner, K, labels, {"lam": [1e-3, 0.1]}, outer=KFold(3), inner=2)


def parts_of(evaluated):
    return evaluated.scores["kernel_r2"].mean("fold").transpose("kernel", "target").values


def test_an_evaluation_splits_the_score_of_each_target_by_kernel(evaluated, Y):
    parts, scores = (evaluated.scores[name] for name in ("kernel_r2", "test_score"))
    for f, (train, test) in enumerate(evaluated.folds.values()):
        truth, constant = Y[1][test], Y[1][train].mean(axis=0)
        of_constant = r2_score(truth, np.tile(constant, (len(test), 1)), multioutput="raw_values")
        np.testing.assert_allclose(parts.isel(fold=f).sum("kernel") + of_constant, scores.isel(fold=f), atol=1e-9)
    mean = parts_of(evaluated)
    assert (mean[0, :20] > 0.2).all()
    assert (mean[1, 20:35] > 0.2).all()


def test_tables_have_the_best_targets_and_what_each_kernel_wins(evaluated):
    tables, score = evaluated.describe().tables, evaluated.scores["test_score"].mean("fold")
    best = tables["targets"]()
    order = np.argsort(-score.values, kind="stable")
    assert best.frame["target"].tolist() == score["target"].values[order].tolist()
    assert len(best.first_rows) == 10
    of_sum = evaluated.baselines["test_score"].sel(baseline=SUM).mean("fold")
    np.testing.assert_allclose(best.frame["plain_sum"], of_sum[order])
    parts, won = parts_of(evaluated), tables["kernels_of_targets"]().frame.set_index("kernel")
    expected = np.bincount(parts.argmax(axis=0)[score.values > 0], minlength=3)
    assert won.loc[["a", "b", "c"], "targets"].tolist() == expected.tolist()
    assert (expected[:2] >= [20, 15]).all()
    np.testing.assert_allclose(won.loc[["a", "b", "c"], "mean"], parts.mean(axis=1))


def test_pictures_have_every_target(evaluated):
    figures = evaluated.describe().figures
    assert [*figures] == ["Compared with simpler models", "Scores of targets", "Kernels by target"]
    histogram, beside = figures["Scores of targets"].draw()
    score = evaluated.scores["test_score"].mean("fold").values
    assert sum(bar.get_height() for bar in histogram.patches) == T
    of_sum = evaluated.baselines["test_score"].sel(baseline=SUM).mean("fold").values
    np.testing.assert_allclose(beside.lines[0].get_xydata(), np.maximum(np.c_[of_sum, score], -0.2))
    bars = figures["Kernels by target"].draw()
    means = parts_of(evaluated).mean(axis=1)
    np.testing.assert_allclose([bar.get_width() for bar in bars.patches], means[np.argsort(-np.abs(means))])


def test_a_search_has_shares_of_weights_and_no_map_of_its_points(K, Y):
    result = dmkl.search(dmkl.MKRidge(weights="shared", n_candidates=8), K, Y[1], {"lam": [1e-3, 0.1]}, cv=3)
    description, weights = result.describe(), result.chosen["weight"].mean("fold").transpose("kernel", "target").values
    assert [*description.figures] == ["Scores of targets", "Kernels by target"]
    assert [*description.tables] == ["targets", "kernels_of_targets", "comparison"]
    won = description.tables["kernels_of_targets"]().frame.set_index("kernel")["targets"]
    unequal = np.ptp(weights, axis=0) > 0  # the first candidate has equal weights
    positive = result.chosen["score"].mean("fold").values > 0
    expected = np.bincount(weights.argmax(axis=0)[unequal & positive], minlength=3)
    assert won.loc[["a", "b", "c"]].tolist() == expected.tolist()
    page = dmkl.report(result.best_)
    assert "0.1 (" in page or "0.001 (" in page  # λ of the targets are counted
    few = dmkl.search(dmkl.MKRidge(weights="shared", n_candidates=2), K, Y[1][:, :2], {"lam": [0.1]}, cv=3)
    assert "points" in few.describe().tables


def test_targets_with_candidates_choose_among_more_ridges_by_default(K, Y):
    """One value of λ in each decade costs noisy targets an R² of 0.01."""
    grids = []
    for learner in (dmkl.MKRidge(weights="shared", n_candidates=1), dmkl.MKRidge(np.inf)):
        result = dmkl.search(learner, K, Y[1][:, :2], {"lam": None}, cv=2, refit=False, baselines="none")
        grids.append(result.grid["lam"])
    dense, plain = grids
    assert {*plain} < {*dense}
    middle = [lam for lam in dense if 1e-4 <= lam <= 1]
    assert np.max(np.diff(np.log10(middle))) < 0.34


def test_scores_by_kernel_have_pictures_and_pages(K, Y):
    train, test = np.arange(40), np.arange(40, M)
    model = dmkl.MKRidge(lam=1e-2).fit(K[train, train], Y[1][train])
    scores = dmkl.kernel_scores(model.contributions(K[test, train]), Y[1][test])
    means = scores["kernel_r2"].mean("target").values
    widths = [bar.get_width() for bar in scores.plot().patches]
    np.testing.assert_allclose(widths, means[np.argsort(-np.abs(means))])
    page = dmkl.report([model, scores])
    assert "targets won" in page
    table = scores.table()
    assert len(table) == 3 * T
    assert {"target", "kernel", "kernel_r2", "total_r2"} <= {*table}
    single = dmkl.MKRidge(lam=1e-2).fit(K[train, train], Y[1][train, 0])
    of_one = dmkl.kernel_scores(single.contributions(K[test, train]), Y[1][test, 0])
    np.testing.assert_allclose(sorted(bar.get_width() for bar in of_one.plot().patches), np.sort(of_one["kernel_r2"]))
    assert "1 target" in of_one.summary()


# --- own candidates, and weights of each target ----------------------------------------------------------------------
W = np.random.default_rng(2).dirichlet([1.0, 1.0, 1.0], T)  # (targets, kernels)


@pytest.mark.parametrize("form", ["array", "labeled", "by name"])
def test_weights_of_each_target_are_those_of_fits_of_single_targets(K, Y, form):
    given = {"array": W.T, "by name": dict(zip("abc", W.T.tolist(), strict=True))}
    given["labeled"] = xr.DataArray(W.T[::-1], {"kernel": list("cba"), "target": np.arange(T)})
    lams = np.where(np.arange(T) % 2, 0.01, 0.1)
    model = dmkl.MKRidge(weights=given[form], lam=lams).fit(K, Y[1])
    np.testing.assert_allclose(model.weights_.transpose("target", "kernel"), W)
    for t in (0, 7, 39):
        alone = dmkl.MKRidge(weights=W[t], lam=lams[t], solver="direct", tol=1e-12).fit(K, Y[1][:, t])
        np.testing.assert_allclose(model.predict(K)[:, t], alone.predict(K), rtol=1e-8)
    assert model.gap_.max() <= 1e-8


def test_weights_of_each_target_are_saved_and_searched(K, Y, tmp_path):
    learner = dmkl.MKRidge(weights=xr.DataArray(W.T, {"kernel": list("abc"), "target": np.arange(T)}), lam=0.1)
    model = learner.fit(K, Y[1])
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(K), model.predict(K))
    np.testing.assert_allclose(loaded.fit(K, Y[1]).predict(K), model.predict(K), rtol=1e-12)
    result = dmkl.search(dmkl.MKRidge(weights=W.T), K, Y[1], {"lam": [1e-3, 0.1]}, KFold(3))
    dense = Y[0] @ Y[0].transpose(0, 2, 1)
    for f, (train, rows) in enumerate(KFold(3).split(Y[1])):
        for t in (3, 30):
            expected = r2_score(Y[1][rows, t], ridge_predictions(dense, Y[1][:, t], W[t], 1e-3, train, rows))
            assert float(result.scores["score"].isel(lam=0, fold=f, target=t)) == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(result.best_.weights_.transpose("target", "kernel"), W)


def test_own_candidates_are_those_that_are_chosen_from(K, Y):
    random = dmkl.search(dmkl.MKRidge(weights="shared", n_candidates=5), K, Y[1], {"lam": [0.1]}, KFold(3), refit=False)
    weights = random.scores["weight"].isel(lam=0, fold=0).transpose("candidate", "kernel").values
    for candidates in (weights, 5):
        learner = dmkl.MKRidge(weights="shared", candidates=candidates)
        own = dmkl.search(learner, K, Y[1], {"lam": [0.1]}, KFold(3), refit=False)
        np.testing.assert_allclose(own.scores["score"], random.scores["score"], rtol=1e-10)
        np.testing.assert_allclose(own.scores["sum_score"], random.scores["sum_score"], rtol=1e-10)
    # A candidate for each target is a fit of each target.
    of_targets = dmkl.MKRidge(weights="shared", candidates=W, candidate=tuple(range(T)))
    result = dmkl.search(of_targets, K, Y[1], {"lam": [0.1]}, KFold(3), baselines="none", refit=False)
    given = dmkl.search(dmkl.MKRidge(weights=W.T), K, Y[1], {"lam": [0.1]}, KFold(3), baselines="none", refit=False)
    np.testing.assert_allclose(result.scores["score"], given.scores["score"], rtol=1e-10)
