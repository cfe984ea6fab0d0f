"""Out-of-fold predictions against separate fits, and their tables and files."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.references import digits, in_memory, labels
from sklearn.model_selection import KFold

import dmkl
from dmkl.errors import InputError

FOLDS = KFold(2, shuffle=True, random_state=0)


def kernels():
    return in_memory(digits()[0][:2], 200)


def expected_of(estimator, kind, K, y, train, test):
    """The predictions of a model: scores, probabilities (both None for a regression), labels or numbers."""
    model = estimator.fit(K[train, train], y[train])
    if isinstance(model, dmkl.MKRidge):
        return None, None, model.predict(K[test, train]).values
    return (
        model.decision_function(K[test, train]).values,
        model.predict_proba(K[test, train]).values,
        model.predict(K[test, train]),
    )


KINDS = ["binary", "multiclass", "multilabel", "regression", "targets"]
QUICK = [("search", "binary"), ("search", "targets"), ("evaluate", "multiclass")]
REST = [(question, kind) for question in ("search", "evaluate") for kind in KINDS if (question, kind) not in QUICK]


@pytest.mark.parametrize(
    ("question", "kind"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
)
def test_predictions_are_those_of_a_model_that_the_rows_did_not_train(question, kind, tmp_path):
    K, y = kernels(), labels(kind)
    if kind in ("regression", "targets"):
        estimator = dmkl.MKRidge(np.inf, 0.1)
    else:
        estimator = dmkl.Uniform(0.1, solver="direct")
    folds, more = list(FOLDS.split(y)), {"baselines": "none"}
    more |= {"cv": folds, "refit": False} if question == "search" else {"outer": folds, "inner": KFold(2)}
    result = getattr(dmkl, question)(estimator, K, y, {"lam": [0.1]}, **more)
    held_out = result.predictions
    assert held_out.sizes["sample"] == len(y)
    for f, (train, test) in enumerate(folds):
        scores, probabilities, predicted = expected_of(estimator, kind, K, y, train, test)
        part = held_out.isel(sample=held_out["sample_fold"] == str(f))
        np.testing.assert_array_equal(part["sample"], K.samples[test].astype(str))
        np.testing.assert_array_equal(part["true_label"], y[test])
        if probabilities is None:
            np.testing.assert_allclose(part["prediction"], predicted, atol=1e-6)
            continue
        np.testing.assert_allclose(part["score"], scores, atol=1e-6)
        np.testing.assert_allclose(part["probability"], probabilities, atol=1e-6)
        np.testing.assert_array_equal(part["predicted_label"], predicted)
    result.save(tmp_path / "result")
    xr.testing.assert_identical(dmkl.load(tmp_path / "result").predictions, held_out)
    dmkl.prediction_table(held_out).to_csv(tmp_path / "table.csv", index=False)
    table = pd.read_csv(tmp_path / "table.csv", float_precision="round_trip")
    titles = {
        "binary": ["predicted", "score small", "probability large", "probability small"],
        "multiclass": ["predicted", *(f"{what} {k}" for what in ("score", "probability") for k in range(4))],
        "multilabel": [f"{what} {k}" for what in ("predicted", "score", "probability") for k in range(2)],
        "regression": ["predicted"],
        "targets": ["predicted 0", "predicted 1"],
    }[kind]
    truth = ["true"] if y.ndim == 1 else ["true 0", "true 1"]
    assert list(table) == ["sample", "fold", *truth, *titles]
    np.testing.assert_array_equal(table[truth].squeeze(), held_out["true_label"])


def test_a_search_predicts_test_rows_where_folds_have_any_and_names_groups():
    K, y, groups = kernels(), labels("multiclass"), np.repeat(["north", "south", "east"], 30)
    fold, more = tuple(np.split(np.arange(90), 3)), {"groups": groups, "baselines": "none", "refit": False}
    result = dmkl.search(dmkl.MKSVM(), K, y, {"C": [1.0]}, fold, **more)
    held_out = result.predictions
    assert held_out["sample"].values.tolist() == K.samples[60:].astype(str).tolist()
    assert set(held_out["sample_group"].values) == {"east"}
    assert "probability" not in held_out  # the label has the largest score
    right = held_out["predicted_label"] == held_out["true_label"]
    assert float(right.mean()) == result.scores["test_score"].item()


def test_many_targets_have_no_predictions():
    K = kernels()
    y = np.random.default_rng(0).standard_normal((90, 101))
    result = dmkl.search(dmkl.MKRidge(np.inf), K, y, {"lam": [1.0]}, FOLDS, baselines="none", refit=False)
    with pytest.raises(InputError, match="more than 100 tasks or targets"):
        _ = result.predictions
