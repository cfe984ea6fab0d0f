"""Prediction sets and intervals of a given coverage, against their definition, and on simulated sets."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
from sklearn.model_selection import KFold

import dmkl
from dmkl.errors import InputError
from dmkl.learners.conformal import threshold


def tables(rng, m, kind, n_groups=None):
    """Two tables, and labels or numbers that depend on them; members of a group are alike."""
    group = np.arange(m) if n_groups is None else rng.permutation(np.repeat(np.arange(n_groups), m // n_groups))
    shared = rng.standard_normal((len(np.unique(group)), 6))[group]
    x = shared + (0.0 if n_groups is None else 0.3) * rng.standard_normal((m, 6))
    f = x[:, 0] + np.sin(2 * x[:, 1]) + 0.5 * rng.standard_normal((len(np.unique(group)), 1))[group, 0]
    f += 0.5 * rng.standard_normal(m)
    y = f if kind == "regression" else np.digitize(f, [-0.8, 0.8])
    return np.stack([linear_kernel(x[:, :3]), rbf_kernel(x, gamma=0.2)]), y, group


LEARNERS = {"regression": (dmkl.MKRidge(), [0.1, 1.0]), "multiclass": (dmkl.MKFDA(), [1e-3, 1e-2])}


def searched(kind, kernels, y, train, cv=5):
    learner, lams = LEARNERS[kind]
    K = dmkl.create(None, kernels[:, train][:, :, train], symmetric=True)
    return dmkl.search(learner, K, y[train], {"p": [2.0], "lam": lams[:1]}, cv, baselines="none")


def share_inside(regions, y):
    """The share of labels that their sets or intervals hold; classes are the numbers from 0."""
    if "lower" in regions:
        return ((regions.lower <= y) & (y <= regions.upper)).values.mean()
    return np.take_along_axis(regions.values, y[..., None], axis=-1).mean()


def test_the_threshold_is_the_order_statistic_and_groups_count_once():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 8, 29) / 8  # with ties
    for coverage in (0.5, 0.8, 0.9, 0.95):
        rank = int(np.ceil(np.round(coverage * 30, 9)))
        assert threshold(scores, np.arange(29), coverage) == np.sort(scores)[rank - 1]
    assert threshold(scores, np.arange(29), 0.97) == np.inf
    # Rows that repeat a row count with it as one.
    assert threshold(np.repeat(scores, 3), np.repeat(np.arange(29), 3), 0.8) == threshold(scores, np.arange(29), 0.8)


def test_intervals_are_the_errors_of_held_out_rows(tmp_path):
    kernels, y, _ = tables(np.random.default_rng(1), 80, "regression")
    train, test = np.arange(60), np.arange(60, 80)
    result = searched("regression", kernels, y, train, cv=KFold(4))
    errors = np.sort(np.abs(result.predictions.true_label - result.predictions.prediction).values)
    new = kernels[:, test][:, :, train]
    intervals = result.best_.predict(new, coverage=0.9)
    assert intervals.prediction.dims == ("sample",)
    np.testing.assert_allclose(intervals.upper - intervals.prediction, errors[int(np.ceil(0.9 * 61)) - 1])
    np.testing.assert_allclose(intervals.prediction - intervals.lower, intervals.upper - intervals.prediction)
    result.best_.save(tmp_path / "model")
    assert dmkl.load(tmp_path / "model").predict(new, coverage=0.9).identical(intervals)
    assert "not guaranteed" in intervals.attrs["guarantee"]
    # Rows that were left out by hand.
    model = dmkl.MKRidge().fit(kernels[:, train][:, :, train], y[train])
    with pytest.raises(InputError, match=r"keeps no predictions of rows .* calibrate"):
        model.predict(new, coverage=0.9)
    model.calibrate(new, y[test])
    width = np.sort(np.abs(model.predict(new) - y[test]))[int(np.ceil(0.8 * 21)) - 1]
    given = model.predict(new, coverage=0.8)
    np.testing.assert_allclose(given.upper - given.prediction, width)
    assert "guaranteed if they are exchangeable with the rows that were given" in given.attrs["guarantee"]


def test_sets_are_the_labels_that_are_probable_enough():
    kernels, y, _ = tables(np.random.default_rng(2), 120, "multiclass")
    train, test = np.arange(90), np.arange(90, 120)
    result = searched("multiclass", kernels, y, train, cv=KFold(3))
    held_out, new = result.predictions, kernels[:, test][:, :, train]
    improbable = 1 - held_out.probability.values[np.arange(90), held_out.true_label]
    probabilities = result.best_.predict_proba(new)
    sets = result.best_.predict(new, coverage=0.9)
    np.testing.assert_array_equal(sets, 1 - probabilities <= np.sort(improbable)[int(np.ceil(0.9 * 91)) - 1])
    by_class = result.best_.predict(new, coverage=0.8, per_class=True)
    for k in range(3):
        of_class = np.sort(improbable[held_out.true_label == k])
        q = of_class[int(np.ceil(0.8 * (len(of_class) + 1))) - 1]
        np.testing.assert_array_equal(by_class.values[:, k], 1 - probabilities.values[:, k] <= q)
    with pytest.raises(InputError, match="between 0 and 1"):
        result.best_.predict(new, coverage=90)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "groups", "tasks", "machine"])
def test_coverage_of_searches_on_simulated_sets(kind):
    """Coverage of 200 simulated targets: 40 on the same samples of five sets."""
    rng, inside = np.random.default_rng(5), []
    of_numbers = kind in ("regression", "groups")
    learner = dmkl.MKRidge() if of_numbers else dmkl.MKSVM() if kind == "machine" else dmkl.MKFDA()
    for _ in range(5):
        m, n_groups = (400, 200) if kind == "groups" else (200, None)
        kernels, _, group = tables(rng, m, "regression", n_groups)
        f = np.stack([kernels[0] @ rng.standard_normal(m) for _ in range(40)], axis=1)
        f = f / f.std(axis=0) + 0.7 * rng.standard_normal(f.shape)
        f += 0.7 * rng.standard_normal(f.shape)[group] if n_groups else 0.0
        y = f if of_numbers else (f > 0).astype(int)
        train, test = np.split(np.argsort(group), [3 * m // 5])
        K = dmkl.create(None, kernels[:, train][:, :, train], symmetric=True)
        grid = {"C": [0.1]} if kind == "machine" else {"p": [2.0], "lam": [0.1]}
        groups = group[train].astype(str) if n_groups else None
        model = dmkl.search(learner, K, y[train], grid, 10, groups=groups, baselines="none").best_
        inside.append(share_inside(model.predict(kernels[:, test][:, :, train], coverage=0.9), y[test]))
    assert abs(np.mean(inside) - 0.9) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["given", "left out"])
def test_coverage_of_fits_on_simulated_sets(rows):
    rng, inside = np.random.default_rng(6), []
    for _ in range(200):
        kernels, y, _ = tables(rng, 200, "multiclass")
        train, given, test = np.split(np.arange(200), [60, 120])
        model = dmkl.MKFDA(lam=1e-3, weights=[1.0, 1.0]).fit(kernels[:, train][:, :, train], y[train])
        if rows == "given":
            model.calibrate(kernels[:, given][:, :, train], y[given])
        inside.append(share_inside(model.predict(kernels[:, test][:, :, train], coverage=0.9), y[test]))
    assert abs(np.mean(inside) - 0.9) < 0.02


def evaluated(kind, m, seed, outer=4):
    """An evaluation of `m` samples, and 20 new ones with their labels."""
    kernels, y, _ = tables(np.random.default_rng(seed), m + 20, kind)
    train, test = np.arange(m), np.arange(m, m + 20)
    learner, lams = LEARNERS[kind]
    K = dmkl.create(None, kernels[:, train][:, :, train])
    result = dmkl.evaluate(learner, K, y[train], {"p": [2.0], "lam": lams}, outer=outer, inner=3, baselines="none")
    return result, kernels[:, test][:, :, train], y[test]


@pytest.mark.parametrize("kind", ["regression", "multiclass"])
def test_models_of_folds_give_sets_and_intervals_by_their_definition(kind, tmp_path):
    result, new, _ = evaluated(kind, 48, 8)
    result.save(tmp_path / "result")
    regions, again = (r.predict(new, coverage=0.8) for r in (result, dmkl.load(tmp_path / "result")))
    held_out, n = result.predictions, 48
    models = [result.models_[name] for name in held_out.sample_fold.values.tolist()]
    columns = [[int(name) for name in model.train_samples_] for model in models]
    assert "at least about 0.6 is proven" in regions.attrs["guarantee"]
    if kind == "regression":
        errors = np.abs(held_out.true_label - held_out.prediction).values
        of_rows = np.stack([model.predict(new[:, :, at]) for model, at in zip(models, columns, strict=True)], axis=1)
        upper = np.sort(of_rows + errors, axis=1)[:, int(np.ceil(0.8 * (n + 1))) - 1]
        lower = np.sort(of_rows - errors, axis=1)[:, int(np.floor(0.2 * (n + 1) + 1e-9)) - 1]
        np.testing.assert_allclose(regions.upper, upper, rtol=1e-9)
        np.testing.assert_allclose(regions.lower, lower, rtol=1e-9)
        np.testing.assert_array_equal(again.lower, regions.lower)
        assert ((regions.lower <= regions.prediction) & (regions.prediction <= regions.upper)).all()
        return
    at = np.searchsorted(held_out["class"], held_out.true_label)
    errors = 1.0 - held_out.probability.values[np.arange(n), at]
    of_rows = np.stack(
        [1.0 - model.predict_proba(new[:, :, at]).values for model, at in zip(models, columns, strict=True)]
    )
    expected = (of_rows > errors[:, None, None]).sum(axis=0) < 0.8 * (n + 1)
    np.testing.assert_array_equal(regions.values, expected)
    np.testing.assert_array_equal(again.values, expected)


def test_models_of_folds_are_needed_and_know_their_samples():
    result, new, _ = evaluated("regression", 30, 9)
    with pytest.raises(InputError, match=r"between 0\.5 and 1"):
        result.predict(new, coverage=0.4)
    with pytest.raises(InputError, match="no columns for 29, on which"):
        result.predict(dmkl.create(None, new[:, :, :29], train_samples=range(29)), coverage=0.9)
    kernels, y, _ = tables(np.random.default_rng(1), 30, "regression")
    with pytest.raises(InputError, match=r"need test rows; take dmkl\.evaluate"):
        searched("regression", kernels, y, np.arange(30)).predict(kernels, coverage=0.9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "multiclass"])
def test_models_of_folds_cover(kind):
    """Over 40 sets: near 0.9, and far above 0.8, which is proven."""
    shares = []
    for seed in range(40):
        result, new, y = evaluated(kind, 60, 100 + seed, outer=5)
        shares.append(share_inside(result.predict(new, coverage=0.9), y))
    assert 0.87 < np.mean(shares) < 0.97
