"""`dmkl.evaluate`: every outer fold against a separate search; groups, measures, tables, files."""

import numpy as np
import pytest
from helpers.references import Counting, digit_set, digits, labels, over
from sklearn.metrics import confusion_matrix, precision_score, recall_score
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

import dmkl
from dmkl.errors import InputError, StoreError
from dmkl.searching.folds import nest_folds

TIGHT = 1e-7
GRID = {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}
OUTER, INNER = (StratifiedKFold(n, shuffle=True, random_state=n) for n in (3, 2))


@pytest.fixture(scope="module")
def result():
    model, scoring = dmkl.MKFDA(tol=TIGHT), ["accuracy", "matthews"]
    return dmkl.evaluate(model, digit_set(), labels("multiclass"), GRID, outer=OUTER, inner=INNER, scoring=scoring)


# --- scores --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("estimator", "kind", "grid"),
    [
        (dmkl.MKFDA(tol=TIGHT), "multilabel", GRID),
        (dmkl.MKFDA(tol=TIGHT, solver="direct"), "binary", GRID),
        pytest.param(dmkl.MKSVM(tol=1e-5), "binary", {"p": [1.0, 2.0], "C": [0.5, 4.0]}, marks=pytest.mark.slow),
        (dmkl.Uniform(tol=TIGHT), "multiclass", {"steps": [("center", "trace"), ("cosine",)], "lam": [0.1]}),
    ],
)
def test_each_outer_fold_is_a_search_of_its_own(estimator, kind, grid):
    K, y = digit_set(), labels(kind)
    outer, inner = (StratifiedKFold(2), INNER) if kind != "multilabel" else (KFold(2), KFold(2))
    options = {"scoring": "accuracy", "baselines": "none"}
    together = dmkl.evaluate(estimator, K, y, grid, outer=outer, inner=inner, **options)
    for name, (train, test) in zip("01", outer.split(y, y), strict=True):
        alone = dmkl.search(estimator, K[train, train], y[train], grid, inner, **options)
        search, fold = together.searches[name], together.scores.sel(fold=name)
        np.testing.assert_array_equal(search.scores["score"], alone.scores["score"])
        np.testing.assert_allclose(search.scores["weight"], alone.scores["weight"], atol=1e-2)
        assert search.best_params_ == alone.best_params_
        np.testing.assert_allclose(fold["inner_score"], alone.chosen["mean_score"])
        own = dmkl.assess(alone.best_, K[test, train], y[test], scoring="accuracy")
        np.testing.assert_allclose(fold["test_score"], own["score"].sel(measure="accuracy"))
        np.testing.assert_array_equal(fold["confusion"].values, own["confusion"].values)
        weights = alone.best_.weights_
        if weights.dims == fold["weight"].dims:
            np.testing.assert_allclose(fold["weight"], weights, atol=1e-2)
        assert (fold["n_train"], fold["n_test"]) == (len(train), len(test))


@pytest.mark.parametrize(
    ("learner", "grid", "lams"),
    [(dmkl.MKFDA(tol=TIGHT), GRID, GRID["lam"]), (dmkl.MKFDA(lam=0.3), {"p": [1.5, 2.0]}, [0.3])],
)
def test_the_plain_sum_is_an_evaluation_of_its_own(learner, grid, lams):
    """Also where no parameter of the grid is one of the sum, whose ridge is that of the learner."""
    given, more = (digit_set(), labels("multiclass")), {"outer": OUTER, "inner": INNER}
    more["scoring"] = ["accuracy", "matthews"]
    result = dmkl.evaluate(learner, *given, grid, **more)
    alone = dmkl.evaluate(dmkl.Uniform(solver="direct"), *given, {"lam": lams}, baselines="none", **more)
    plain_sum = result.baselines.sel(baseline="plain sum of the kernels")
    for name in ("test_score", "test_score_matthews", "inner_score", "lam"):
        np.testing.assert_allclose(plain_sum[name], alone.scores[name], atol=1e-12)
    np.testing.assert_allclose(plain_sum["objective"], alone.scores["objective"], rtol=1e-3)
    for name, search in result.searches.items():
        np.testing.assert_allclose(search.baselines["score"][0], alone.searches[name].chosen["score"], atol=1e-12)


def test_an_evaluation_that_lost_a_part_is_damaged(result, tmp_path):
    result.save(tmp_path / "result")
    (tmp_path / "result" / "search-1" / "score").rename(tmp_path / "lost")
    with pytest.raises(StoreError, match=r"the (evaluation|search) at .* is damaged"):
        dmkl.load(tmp_path / "result")


def test_all_folds_share_the_passes():
    K, source = over(digit_set(), Counting)
    y = labels("binary")
    grid = {"p": [1.5, 2.0], "lam": [1e-2, 1.0]}  # nonzero weights, so that every pass reads every kernel
    plain = dmkl.search(dmkl.MKFDA(), K, y, grid, OUTER, refit=False, baselines="none")
    source.reads.clear()
    nested = dmkl.evaluate(dmkl.MKFDA(), K, y, grid, outer=OUTER, inner=INNER, baselines="none")
    assert source.reads.total() == nested.n_passes_ * len(K) * len(K.view.tile_tasks())
    inner = nested.n_passes_ - nested.scores.attrs["n_refit_passes"]
    assert inner <= 1.5 * plain.n_passes_


def test_stored_splits_are_the_papers_protocol(tmp_path):
    """Choice on validation rows, refit on both parts and score on test rows, as in a search with refits."""
    rng = np.random.default_rng(3)
    parts = np.stack([rng.permutation(np.repeat([0, 1, 2, -1], [50, 20, 15, 5])) for _ in range(2)])
    K = dmkl.create(tmp_path / "set.zarr", digits()[0], labels=labels("multiclass"), splits=parts)
    nested = dmkl.evaluate(dmkl.MKFDA(tol=TIGHT), K, grid=GRID, outer="splits", baselines="none")
    plain = dmkl.search(dmkl.MKFDA(tol=TIGHT), K, grid=GRID, baselines="none")
    np.testing.assert_allclose(nested.scores["test_score"], plain.scores["refit_test_score"])
    assert [search.best_params_ for search in nested.searches.values()] == list(plain.best_params_.values())
    with_inner = nest_folds("splits", 3, K.labels, splits=K.splits)
    assert [len(each.inner) for each in with_inner] == [3, 3]
    np.testing.assert_array_equal(with_inner[1].test, K.split(1).test)


# --- folds ---------------------------------------------------------------------------------------------------
def test_groups_are_whole_in_both_loops():
    groups, y = np.arange(90) // 3, labels("multiclass")
    for outer, inner in ((3, 2), (GroupKFold(3), GroupKFold(2))):
        for one in nest_folds(outer, inner, y, groups=groups):
            assert not set(groups[one.train]) & set(groups[one.test])
            for fold in one.inner:
                assert not set(groups[fold.train]) & set(groups[fold.validation])
                assert set(fold.seen) == set(one.train)


# --- reports -------------------------------------------------------------------------------------------------
def test_means_choices_and_tables(result):
    scores = result.scores
    assert result.mean_score_ == pytest.approx(scores["test_score"].values.mean())
    assert result.standard_error_ == pytest.approx(scores["test_score"].values.std(ddof=1) / np.sqrt(3))
    table = result.table()
    assert list(table.columns) == ["fold", "p", "lam", "inner_score", "accuracy", "matthews", "gap", "status"]
    np.testing.assert_array_equal(table["matthews"], scores["test_score_matthews"])
    assert table[["p", "lam"]].to_dict("records") == [search.best_params_ for search in result.searches.values()]
    assert result.choices["folds"].sum() == 3
    assert f"accuracy {result.mean_score_:#.3g} ± " in result.summary()
    assert "24 fits and " in result.summary()


def test_class_wise_measures_are_scikit_learns(result):
    truth, predicted = result.predictions["true_label"], result.predictions["predicted_label"]
    np.testing.assert_array_equal(result.confusion, confusion_matrix(truth, predicted))
    np.testing.assert_array_equal(result.plot_confusion()[0].images[0].get_array(), result.confusion)
    np.testing.assert_allclose(result.classes["recall"], recall_score(truth, predicted, average=None))
    np.testing.assert_allclose(result.classes["precision"], precision_score(truth, predicted, average=None))
    np.testing.assert_array_equal(result.classes["support"], np.bincount(truth))


# --- measures of a model -------------------------------------------------------------------------------------
@pytest.mark.parametrize("y", [labels("binary"), labels("binary") == "large"], ids=["texts", "booleans"])
def test_assess(y):
    K = digit_set()
    train, test = np.arange(60), np.arange(60, 90)
    model = dmkl.MKFDA().fit(K[train, train], y[train])
    measured = dmkl.assess(model, K[test, train], y[test], scoring=["accuracy", "roc_auc"])
    assert measured["score"].sel(measure="accuracy") == model.score(K[test, train], y[test])
    predicted = model.predict(K[test, train])
    np.testing.assert_array_equal(measured["confusion"], confusion_matrix(y[test], predicted))
    np.testing.assert_array_equal(measured["recall"], recall_score(y[test], predicted, average=None))
    for truth, words in (
        (None, "assess needs labels"),
        (y[test][1:], "y has 29 labels, and there are 30 samples"),
        (np.array(["huge"] * 30), "none of the classes learnt"),
    ):
        with pytest.raises(InputError, match=words):
            dmkl.assess(model, K[test, train], truth)


def test_the_picture_has_scores_of_each_fold_their_means_and_errors(result):
    ax = result.plot()
    baseline = result.baselines["test_score"].squeeze("baseline")
    expected = np.stack([result.scores["test_score"], baseline])
    lines = [line.get_xdata() for line in ax.lines if len(line.get_xdata()) == 2 and line.get_linewidth() < 1]
    np.testing.assert_array_equal(lines, expected.T)
    (drawn,) = ax.containers
    np.testing.assert_allclose(drawn[0].get_xdata(), expected.mean(axis=1))
    lengths = [np.ptp(segment[:, 0]) for segment in drawn[2][0].get_segments()]
    np.testing.assert_allclose(lengths, 2 * expected.std(axis=1, ddof=1) / np.sqrt(3))
    with pytest.raises(InputError, match="there is no task 'rna'"):
        result.plot("rna")
