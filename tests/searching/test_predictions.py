"""Out-of-fold predictions, scores of probabilities and the models of folds against separate fits; tables and files."""

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as skm
from helpers.references import digit_set, labels
from sklearn.model_selection import KFold, StratifiedKFold

import dmkl
from dmkl.errors import InputError
from dmkl.searching.scoring import as_metrics, evaluate

FOLDS = KFold(2, shuffle=True, random_state=0)


KINDS = ["binary", "multiclass", "multilabel", "regression", "targets"]
QUICK = [("search", "binary"), ("search", "targets"), ("evaluate", "multiclass")]
REST = [(question, kind) for question in ("search", "evaluate") for kind in KINDS if (question, kind) not in QUICK]


@pytest.mark.parametrize(
    ("question", "kind"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
)
def test_predictions_are_those_of_a_model_that_the_rows_did_not_train(question, kind, tmp_path):
    K, y = digit_set(kernels=[0, 1]), labels(kind)
    if kind in ("regression", "targets"):
        estimator = dmkl.MKRidge(np.inf, 0.1)
    else:
        estimator = dmkl.Uniform(0.1, solver="direct")
    folds, more = list(FOLDS.split(y)), {"baselines": "none"}
    more |= {"cv": folds, "refit": False} if question == "search" else {"outer": folds, "inner": KFold(2)}
    result = getattr(dmkl, question)(estimator, K, y, {"lam": [0.1]}, **more)
    held_out = result.predictions
    np.testing.assert_array_equal(held_out["sample"], K.samples.astype(str))
    np.testing.assert_array_equal(held_out["true_label"], y)
    for f, (train, test) in enumerate(folds):
        model = estimator.fit(K[train, train], y[train])
        part = held_out.isel(sample=held_out["sample_fold"] == str(f))
        np.testing.assert_array_equal(part["sample"], K.samples[test].astype(str))
        if isinstance(model, dmkl.MKRidge):
            np.testing.assert_allclose(part["prediction"], model.predict(K[test, train]), atol=1e-6)
            continue
        np.testing.assert_allclose(part["score"], model.decision_function(K[test, train]), atol=1e-6)
        np.testing.assert_allclose(part["probability"], model.predict_proba(K[test, train]), atol=1e-6)
        np.testing.assert_array_equal(part["predicted_label"], model.predict(K[test, train]))
    dmkl.prediction_table(held_out).to_csv(tmp_path / "table.csv", index=False)
    table = pd.read_csv(tmp_path / "table.csv", dtype=str)
    titles = {
        "binary": ["predicted", "score small", "probability large", "probability small"],
        "multiclass": ["predicted", *(f"{what} {k}" for what in ("score", "probability") for k in range(4))],
        "multilabel": [f"{what} {k}" for what in ("predicted", "score", "probability") for k in range(2)],
        "regression": ["predicted"],
        "targets": ["predicted 0", "predicted 1"],
    }[kind]
    truth = ["true"] if y.ndim == 1 else ["true 0", "true 1"]
    assert list(table) == ["sample", "fold", *truth, *titles]
    truths = table[truth].squeeze().to_numpy(object).astype(str).astype(held_out["true_label"].dtype)
    np.testing.assert_array_equal(truths, held_out["true_label"])


@pytest.mark.parametrize("question", ["search", "evaluate"])
def test_predictions_are_in_the_order_of_the_folds_if_a_sample_is_held_out_twice(question):
    K, y = digit_set(kernels=[0, 1]), labels("binary")
    cv = [*FOLDS.split(y)] * 2
    more = {"cv": cv, "refit": False} if question == "search" else {"outer": cv, "inner": KFold(2)}
    held_out = getattr(dmkl, question)(dmkl.Uniform(), K, y, {"lam": [0.1]}, baselines="none", **more).predictions
    rows = [np.concatenate([test for _, test in cv]), np.repeat(range(4), [len(test) for _, test in cv])]
    np.testing.assert_array_equal(held_out["sample"], K.samples.astype(str)[rows[0]])
    np.testing.assert_array_equal(held_out["sample_fold"], rows[1].astype(str))


def test_a_search_predicts_test_rows_where_folds_have_any_and_names_groups():
    K, y, groups = digit_set(kernels=[0, 1]), labels("multiclass"), np.repeat(["north", "south", "east"], 30)
    fold, more = tuple(np.split(np.arange(90), 3)), {"groups": groups, "baselines": "none", "refit": False}
    result = dmkl.search(dmkl.MKSVM(), K, y, {"C": [1.0]}, fold, **more)
    held_out = result.predictions
    assert {*result.chosen.dims} <= {"fold", "kernel", "class"}  # what belongs to no point is left out
    assert held_out["sample"].values.tolist() == K.samples[60:].astype(str).tolist()
    assert set(held_out["sample_group"].values) == {"east"}
    assert "probability" not in held_out  # the label has the largest score
    right = held_out["predicted_label"] == held_out["true_label"]
    assert float(right.mean()) == result.scores["test_score"].item()


def test_many_targets_have_no_predictions():
    K = digit_set(kernels=[0, 1])
    y = np.random.default_rng(0).standard_normal((90, 101))
    result = dmkl.search(dmkl.MKRidge(np.inf), K, y, {"lam": [1.0]}, FOLDS, baselines="none", refit=False)
    with pytest.raises(InputError, match="more than 100 tasks or targets"):
        _ = result.predictions


# --- scores of probabilities ----------------------------------------------------------------------------------
SCORING = ["neg_log_loss", "neg_brier_score", "roc_auc_ovr", "roc_auc_ovo", "accuracy"]
STRATIFIED = StratifiedKFold(2, shuffle=True, random_state=0)


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
    K, y = digit_set(kernels=[0, 1]), labels(kind)
    folds, more = list(STRATIFIED.split(y, y if y.ndim == 1 else y[:, 0])), {"scoring": SCORING, "baselines": "none"}
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
    K, y = digit_set(kernels=[0, 1]), labels("multiclass")
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
    K, y = digit_set(kernels=[0, 1]), labels("multiclass")
    train, first, second = np.arange(45), np.arange(45, 90), 45 + np.flatnonzero(y[45:] != 3)
    folds, more = [(train, first), (train, second)], {"scoring": SCORING[:3], "refit": False, "baselines": "none"}
    result = dmkl.search(dmkl.MKFDA(2.0), K, y, {"lam": [0.1]}, folds, **more)
    assert "1 fold without held-out samples of some class" in result.summary()
    assert np.isfinite(result.scores["score_roc_auc_ovr"]).all()


@pytest.mark.slow
def test_the_machine_that_a_discriminant_is_compared_with_has_probabilities_where_they_are_scored():
    K, y = digit_set(kernels=[0, 1]), labels("multiclass")
    train, test = np.arange(45), np.arange(45, 90)
    more = {"cv": (train, test), "scoring": "neg_log_loss", "refit": False}
    result = dmkl.search(dmkl.MKFDA(2.0), K, y, {"lam": [0.1]}, **more)
    machine = dmkl.MKSVM(np.inf, float(result.scores["C"][0]), decision="means", steps=("center", "trace"))
    machine.fit(K[train, train], y[train])
    expected = references(y[test], machine.predict_proba(K[test, train]).values, machine.classes_)
    np.testing.assert_allclose(result.scores["svm_score"][0, 0], expected[0], rtol=1e-6)


# --- models of folds ----------------------------------------------------------------------------------------
GRID = {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}


def assert_scored(result, name, K, y, path):
    """Assert that the fold models, in memory and loaded from a file, reproduce the scores."""
    result.save(path)
    loaded = dmkl.load(path)
    assert list(result.models_) == list(loaded.models_) == list(result.folds)
    for fold, (*seen, test) in result.folds.items():
        train = np.sort(np.concatenate(seen))
        for model in (result.models_[fold], loaded.models_[fold]):
            assert model.train_samples_.tolist() == K.samples[train].astype(str).tolist()
            assert model.score(K[test, train], y[test]) == result.scores[name].sel(fold=fold).item()


def test_an_evaluation_keeps_the_models_that_it_tests(tmp_path):
    K, y = digit_set(kernels=[0, 1]), labels("multiclass")
    result = dmkl.evaluate(dmkl.MKFDA(), K, y, GRID, outer=2, inner=2, baselines="none")
    assert_scored(result, "test_score", K, y, tmp_path / "result")
    for fold, model in result.models_.items():
        chosen = {name: result.scores[name].sel(fold=fold).item() for name in GRID}
        assert {name: getattr(model, name) for name in GRID} == chosen
        np.testing.assert_array_equal(model.weights_, result.scores["weight"].sel(fold=fold))


@pytest.mark.slow
def test_a_search_keeps_the_model_of_each_split_with_test_rows_and_a_refit(tmp_path):
    K, y = digit_set(kernels=[0, 1]), labels("multiclass")
    order = np.random.default_rng(0).permutation(len(y))
    folds = [(order[:50], order[50:70], order[70:]), (order[20:70], order[70:], order[:20])]
    result = dmkl.search(dmkl.MKFDA(), K, y, GRID, folds, choice="fold", baselines="none")
    assert_scored(result, "refit_test_score", K, y, tmp_path / "result")
    assert dmkl.search(dmkl.MKFDA(), K, y, GRID, 2, baselines="none").models_ == {}
    assert dmkl.search(dmkl.MKFDA(), K, y, GRID, folds[:1], baselines="none", refit=False).models_ == {}


def test_models_of_folds_predict_from_kernels_alone():
    x, y = np.random.default_rng(0).normal(size=(60, 4)) + np.arange(60)[:, None] % 3, np.arange(60) % 3
    K = dmkl.build(None, {"x": x}, {"function": "rbf", "bandwidth": 1.0}, labels=y)
    result = dmkl.evaluate(dmkl.MKFDA(), K, grid=GRID, outer=2, inner=2, baselines="none")
    with pytest.raises(InputError, match=r"without the features of training; take kernels, K\[test, train\]"):
        result.models_["0"].predict(features={"x": x})
