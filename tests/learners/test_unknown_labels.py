"""Unknown labels for some samples of a task: each task is learnt from, and scored on, its known samples."""

import numpy as np
import pytest
from helpers.references import digits, in_memory
from sklearn.base import clone
from sklearn.model_selection import KFold

import dmkl
from dmkl.errors import InputError

TRAIN, TEST = np.arange(60), np.arange(60, 90)
WEIGHTS = np.random.default_rng(2).uniform(0.5, 2.0, len(TRAIN))
KERNELS, DIGITS = digits()
K = in_memory(KERNELS, 25)
LABELS = np.stack([DIGITS < 5, DIGITS % 2 == 0, DIGITS > 2], axis=1).astype(float)
for n_unknown, task in ((30, 0), (36, 2)):
    LABELS[np.random.default_rng(task).permutation(90)[:n_unknown], task] = np.nan
"""Three tasks of digits: a third of the first is unknown, none of the second, two fifths of the last."""
CODED = np.where(np.isnan(LABELS), 0, 2 * LABELS - 1).astype(int)
"""−1 and 1, and 0 for unknown labels, as in the VOC challenges."""


def known_rows(labels, k, among):
    return among[~np.isnan(labels[among, k])]


P, LAM = (1.0, 2.0, np.inf), (1e-3, 1e-2, 0.1)


@pytest.mark.parametrize(
    ("learner", "weights", "close"),
    [
        *((dmkl.MKFDA(P, LAM, solver=solver, tol=1e-8), None, 1e-4) for solver in ("direct", "cg", "subspace")),
        (dmkl.Uniform(0.1, class_weight="balanced"), WEIGHTS, 1e-4),
        (dmkl.Product(0.1), None, 1e-4),
        (dmkl.MKSVM(P, (0.5, 4.0, 16.0), tol=1e-8, class_weight="balanced"), WEIGHTS, 1e-4),
        (dmkl.NCuts(2, tol=1e-7), None, 1e-6),
        (dmkl.MKRidge(P, LAM, tol=1e-8), WEIGHTS, 1e-6),
    ],
    ids=lambda value: repr(value) if hasattr(value, "fit") else "",
)
def test_a_column_is_the_fit_on_its_labeled_rows(learner, weights, close):
    """With parameters of its own, also with sample weights, and with a code for unknown labels."""
    labels = LABELS if learner.traits.takes_unknown_labels else np.nan_to_num(LABELS)
    if is_regression := isinstance(learner, dmkl.MKRidge):
        labels = labels + np.random.default_rng(1).standard_normal(labels.shape)
    model = clone(learner).fit(K[TRAIN, TRAIN], np.nan_to_num(labels[TRAIN], nan=-9), weights, unknown=-9)
    predicted = model.predict(K[TEST, TRAIN], as_xarray=True)
    scores = predicted if is_regression else model.decision_function(K[TEST, TRAIN])
    assert scores.dims == ("sample", "target" if is_regression else "task")
    n_passes = []
    for k in range(3):
        rows = known_rows(labels, k, TRAIN)
        given = {name: getattr(learner, name, None) for name in ("p", "lam", "C")}
        alone = clone(learner).set_params(**{name: of[k] for name, of in given.items() if isinstance(of, tuple)})
        alone.fit(K[rows, rows], labels[rows, k], None if weights is None else weights[rows])
        n_passes.append(alone.n_passes_)
        expected = alone.predict(K[TEST, rows]) if is_regression else alone.decision_function(K[TEST, rows])
        np.testing.assert_allclose(scores[:, k], expected, atol=close * np.abs(expected).max())
        np.testing.assert_allclose(model.weights_[:, k], np.ravel(alone.weights_), atol=close)
        np.testing.assert_allclose(model.objective_[k], alone.objective_, rtol=1e-6)
        assert not model.dual_coef_.values[np.setdiff1d(TRAIN, rows), k].any()
        if is_regression:
            assert float(model.intercept_[k]) == pytest.approx(np.average(labels[rows, k], weights=weights[rows]))
        else:
            np.testing.assert_array_equal(predicted[:, k], alone.predict(K[TEST, rows]))
    assert model.n_passes_ <= max(n_passes) + 2


def test_a_score_counts_known_labels():
    model = dmkl.MKFDA(2.0, 1e-2).fit(K[TRAIN, TRAIN], LABELS[TRAIN])
    predicted, truth = model.predict(K[TEST, TRAIN]), LABELS[TEST]
    right = [np.all((row == true)[~np.isnan(true)]) for row, true in zip(predicted, truth, strict=True)]
    some = ~np.isnan(truth).all(axis=1)
    assert model.score(K[TEST, TRAIN], truth) == pytest.approx(np.mean(np.array(right)[some]))


@pytest.mark.parametrize("learner", [dmkl.MKFDA(tol=1e-8), dmkl.MKRidge(tol=1e-8), dmkl.MKSVM(tol=1e-6)])
def test_a_search_of_a_task_is_that_on_its_labeled_rows(learner):
    price = "C" if isinstance(learner, dmkl.MKSVM) else "lam"
    grid = {"p": [2.0], price: [1e-2, 1.0]}
    scoring = "r2" if isinstance(learner, dmkl.MKRidge) else "roc_auc"
    options = {"scoring": scoring, "baselines": "none"}
    result = dmkl.search(learner, K, LABELS, grid, cv=2, **options)
    dim = "target" if scoring == "r2" else "task"
    rows = known_rows(LABELS, 2, np.arange(90))
    place = {row: i for i, row in enumerate(rows)}
    cv = [[np.array([place[i] for i in part if i in place]) for part in parts] for parts in KFold(2).split(LABELS)]
    alone = dmkl.search(learner, K[rows, rows], LABELS[rows, 2], grid, cv=cv, **options)
    np.testing.assert_allclose(result.scores["score"].sel({dim: "2"}), alone.scores["score"], atol=2e-3)
    np.testing.assert_allclose(result.best_.weights_.sel({dim: "2"}), alone.best_.weights_, atol=1e-2)


# --- marks of unknown labels -----------------------------------------------------------------------------------------
def test_ways_to_say_unknown():
    objects = np.where(np.isnan(LABELS), None, LABELS)
    texts = np.where(np.isnan(LABELS), "", np.nan_to_num(LABELS).astype(int).astype(str))
    learner = dmkl.Uniform(0.1)
    expected = clone(learner).fit(K, LABELS).dual_coef_
    for given, code in ((objects, None), (texts, None), (CODED, 0), (CODED.astype(str), "0")):
        assert clone(learner).fit(K, given, unknown=code).dual_coef_.identical(expected)
    with pytest.raises(InputError, match="unknown must be a number, as the labels are, got 'x'"):
        learner.fit(K, CODED, unknown="x")


def test_a_fold_without_a_class_of_a_task_is_refused():
    labels = np.where((LABELS == 0) & (np.arange(90) < 60)[:, None] & [True, False, False], np.nan, LABELS)
    with pytest.raises(InputError, match=r"fold 0 has (no )?training rows of .*class.* in task 0"):
        dmkl.search(dmkl.MKFDA(), K, labels, {"lam": [1.0]}, cv=[(TRAIN, TEST)])


# --- a code for unknown labels ---------------------------------------------------------------------------------------
def test_scores_with_a_code_are_those_with_nan():
    model = dmkl.Uniform(0.1).fit(K[TRAIN, TRAIN], CODED[TRAIN], unknown=0)
    expected = dmkl.Uniform(0.1).fit(K[TRAIN, TRAIN], LABELS[TRAIN])
    assert set(np.unique(model.predict(K[TEST, TRAIN]))) <= {0, 1}
    score = expected.score(K[TEST, TRAIN], LABELS[TEST])
    assert model.score(K[TEST, TRAIN], CODED[TEST], unknown=0) == score
    result = dmkl.assess(model, K[TEST, TRAIN], CODED[TEST], unknown=0, scoring="accuracy")
    assert result.identical(dmkl.assess(expected, K[TEST, TRAIN], LABELS[TEST], scoring="accuracy"))


def test_fronts_pass_on_the_code_and_weights_of_samples():
    rng = np.random.default_rng(3)
    X, weights = rng.normal(size=(40, 4)), rng.uniform(0.5, 2.0, 40)
    labels = np.sign(X[:, :2])
    labels[::5, 0] = 0
    known = labels != 0
    kernels = np.stack([np.exp(-b * ((X[:, None] - X) ** 2).sum(axis=2)) for b in (0.1, 1.0)], axis=2)
    fronts = dmkl.MKLClassifier(dmkl.Uniform()), dmkl.PrecomputedMKLClassifier(dmkl.Uniform())
    for front, table in zip(fronts, (X, kernels), strict=True):
        estimator = front.fit(table, labels, sample_weight=weights, unknown=0).estimator_
        np.testing.assert_array_equal(estimator.dual_coef_ != 0, known)
        shares = [np.average(labels[rows, t] > 0, weights=weights[rows]) for t, rows in enumerate(known.T)]
        np.testing.assert_allclose([priors[1] for priors in estimator.priors_], shares)
    values = np.where(known, X[:, :2], -9.0)
    regression = dmkl.MKLRegressor().fit(X, values, sample_weight=weights, unknown=-9).estimator_
    np.testing.assert_array_equal(regression.dual_coef_ != 0, known)
    means = [np.average(values[rows, t], weights=weights[rows]) for t, rows in enumerate(known.T)]
    np.testing.assert_allclose(regression.intercept_, means)


def test_searches_and_evaluations_take_it():
    asked = {"grid": {"lam": [1e-2, 1.0]}, "scoring": "accuracy", "baselines": "none"}
    result = dmkl.search(dmkl.Uniform(), K, CODED, cv=KFold(2), unknown=0, **asked)
    expected = dmkl.search(dmkl.Uniform(), K, LABELS, cv=KFold(2), **asked)
    np.testing.assert_array_equal(result.scores["score"], expected.scores["score"])
    result = dmkl.evaluate(dmkl.Uniform(), K, CODED, outer=KFold(2), inner=KFold(2), unknown=0, **asked)
    expected = dmkl.evaluate(dmkl.Uniform(), K, LABELS, outer=KFold(2), inner=KFold(2), **asked)
    np.testing.assert_array_equal(result.scores["test_score"], expected.scores["test_score"])


def test_a_column_of_two_classes_is_no_task_unless_some_are_unknown():
    y = 2 * LABELS[:, [1]].astype(int) - 1
    model = dmkl.Uniform(0.1).fit(K[TRAIN, TRAIN], y[TRAIN])
    right = np.mean(model.predict(K[TEST, TRAIN]) == y[TEST, 0])
    assert dmkl.assess(model, K[TEST, TRAIN], y[TEST], scoring="accuracy")["score"].item() == right
    alone, together = (dmkl.Uniform(0.1).fit(K, LABELS[:, :n]).dual_coef_ for n in (1, 3))
    np.testing.assert_allclose(alone[:, 0], together[:, 0], rtol=1e-9, atol=1e-12)
