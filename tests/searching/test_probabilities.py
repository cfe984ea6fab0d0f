"""Scorers of probabilities against scikit-learn's, on the probabilities of separate fits."""

import numpy as np
import pytest
import sklearn.metrics as skm
from helpers.references import digits, in_memory, labels
from sklearn.model_selection import StratifiedKFold

import dmkl
from dmkl.errors import InputError
from dmkl.searching.scoring import as_metrics, evaluate

SCORING = ["neg_log_loss", "neg_brier_score", "roc_auc_ovr", "roc_auc_ovo", "accuracy"]
FOLDS = StratifiedKFold(2, shuffle=True, random_state=0)


def kernels():
    return in_memory(digits()[0][:2], 200)


def references(truth, P, classes):
    """The scores of `SCORING` except the accuracy."""
    index = np.searchsorted(classes, truth)
    ranks = (P[:, 1], {}) if len(classes) == 2 else (P, {"labels": range(len(classes))})
    areas = [skm.roc_auc_score(index, ranks[0], multi_class=how, **ranks[1]) for how in ("ovr", "ovo")]
    losses = [loss(index, P, labels=range(len(classes))) for loss in (skm.log_loss, skm.brier_score_loss)]
    return [-losses[0], -losses[1], *areas]


@pytest.mark.parametrize(
    ("question", "estimator", "kind"),
    [
        ("search", dmkl.MKFDA(solver="direct"), "binary"),
        ("search", dmkl.MKFDA(solver="direct"), "multilabel"),
        ("evaluate", dmkl.MKFDA(solver="direct", tol=1e-7), "multiclass"),
        pytest.param("search", dmkl.MKSVM(decision="means"), "multiclass", marks=pytest.mark.slow),
    ],
)
def test_scores_of_probabilities_are_those_of_a_model_of_the_fold(question, estimator, kind):
    """The rule of each fold is learnt from its training rows; labels of the multilabel problem are binary problems."""
    K, y = kernels(), labels(kind)
    folds, more = list(FOLDS.split(y, y if y.ndim == 1 else y[:, 0])), {"scoring": SCORING, "baselines": "none"}
    more |= {"cv": folds, "refit": False} if question == "search" else {"outer": folds, "inner": 2}
    scores = getattr(dmkl, question)(estimator, K, y, {"p": [1.5]}, **more).scores
    first = "score" if question == "search" else "test_score"
    for f, (train, test) in enumerate(folds):
        model = estimator.set_params(p=1.5).fit(K[train, train], y[train])
        P = model.predict_proba(K[test, train]).values
        if kind == "multilabel":
            expected = np.transpose(
                [references(t, np.stack([1 - p, p], 1), [0, 1]) for t, p in zip(y[test].T, P.T, strict=True)]
            )
        else:
            expected = references(y[test], P, model.classes_)
        names = [first, *(f"{first}_{name}" for name in SCORING[1:-1])]
        np.testing.assert_allclose([scores[name].isel(fold=f).squeeze() for name in names], expected, rtol=1e-6)
        if kind == "multiclass":
            shares = np.array([np.mean(y[train] == k) for k in range(4)])
            constant = -skm.log_loss(y[test], np.tile(shares, (len(test), 1)))
            np.testing.assert_allclose(scores["constant_score"].isel(fold=f), constant)


def test_a_machine_that_decides_by_the_largest_score_has_no_probabilities_until_it_is_calibrated():
    K, y = kernels(), labels("multiclass")
    with pytest.raises(InputError, match=r"scoring 'neg_log_loss' needs probabilities, .*decision='means'"):
        dmkl.search(dmkl.MKSVM(), K, y, {"C": [1.0]}, 2, scoring="neg_log_loss")
    with pytest.raises(InputError, match=r"baselines='rules' .* has no probabilities"):
        dmkl.search(dmkl.MKFDA(), K, y, {"lam": [0.1]}, 2, scoring="neg_log_loss", baselines="rules")
    train, held_out, test = np.split(np.arange(len(y)), 3)
    model = dmkl.MKSVM().fit(K[train, train], y[train])
    with pytest.raises(InputError, match="calibrate"):
        dmkl.assess(model, K[test, train], y[test], scoring="neg_log_loss")
    model.calibrate(K[held_out, train], y[held_out])
    measured = dmkl.assess(model, K[test, train], y[test], scoring=SCORING)["score"].values
    P = model.predict_proba(K[test, train]).values
    np.testing.assert_allclose(measured[:-1], references(y[test], P, model.classes_), rtol=1e-9)
    assert measured[-1] == np.mean(model.predict(K[test, train]) == y[test])


def test_rows_without_a_class_have_the_scores_that_are_defined():
    classes, rng = np.array(["a", "b", "c"]), np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), 30)
    truth = classes[rng.integers(2, size=30)]
    values = evaluate(
        as_metrics(SCORING[:4], "multiclass", probabilistic=True), "multiclass", classes, truth, np.log(P)
    )
    index = np.searchsorted(classes, truth)
    areas = [skm.roc_auc_score(index == k, P[:, k]) for k in range(2)]
    losses = [loss(index, P, labels=range(3)) for loss in (skm.log_loss, skm.brier_score_loss)]
    np.testing.assert_allclose(values, [-losses[0], -losses[1], np.mean(areas), np.nan])


def test_folds_that_lack_a_class_are_told():
    K, y = kernels(), labels("multiclass")
    train, first, second = np.arange(45), np.arange(45, 90), 45 + np.flatnonzero(y[45:] != 3)
    folds, more = [(train, first), (train, second)], {"scoring": SCORING[:3], "refit": False, "baselines": "none"}
    result = dmkl.search(dmkl.MKFDA(2.0), K, y, {"lam": [0.1]}, folds, **more)
    assert "1 fold without held-out samples of some class" in result.summary()
    assert np.isfinite(result.scores["score_roc_auc_ovr"]).all()


@pytest.mark.slow
def test_the_machine_that_a_discriminant_is_compared_with_has_probabilities_where_they_are_scored():
    K, y = kernels(), labels("multiclass")
    train, test = np.arange(45), np.arange(45, 90)
    more = {"cv": (train, test), "scoring": "neg_log_loss", "refit": False}
    result = dmkl.search(dmkl.MKFDA(2.0), K, y, {"lam": [0.1]}, **more)
    machine = dmkl.MKSVM(np.inf, float(result.scores["C"][0]), decision="means", steps=("center", "trace"))
    machine.fit(K[train, train], y[train])
    expected = references(y[test], machine.predict_proba(K[test, train]).values, machine.classes_)
    np.testing.assert_allclose(result.scores["svm_score"][0, 0], expected[0], rtol=1e-6)
