"""Vectorized scores of many labelings against a call of the scorer for each."""

import numpy as np
import pytest

from dmkl.searching.chance import by_labels, cost
from dmkl.searching.scoring import OF_NUMBERS, OWN_METRICS, PROBABILISTIC, as_metrics, evaluate_each

M, N_POINTS, N_LABELINGS = 23, 3, 7
OF_CLASSES = [*OWN_METRICS, *PROBABILISTIC]


def scores_of_calls(metric, kind, classes, decisions, labels):
    return np.stack([evaluate_each({"": metric}, kind, classes, y, decisions)[0] for y in labels], axis=-1)


@pytest.mark.parametrize(("name", "n_classes"), [*((name, n) for name in OF_CLASSES for n in (2, 3)), ("roc_auc", 2)])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of labelings without some class
def test_scores_of_many_labelings_are_those_of_calls(name, n_classes):
    """Decisions have ties, labels are text, and one labeling is of a single class."""
    rng = np.random.default_rng(0)
    classes = np.array(["a", "b", "c"])[:n_classes]
    kind = "binary" if n_classes == 2 else "multiclass"
    shape = (N_POINTS, M) if n_classes == 2 else (N_POINTS, M, n_classes)
    decisions = rng.normal(size=shape).round(0 if n_classes == 2 else 1)
    labels = np.vstack([rng.choice(classes, (N_LABELINGS, M)), np.full(M, "b")])
    metric = as_metrics(name, kind, probabilistic=True)[name]
    assert np.isfinite(cost(metric))
    values = by_labels(metric, kind, classes, decisions)(labels)
    expected = scores_of_calls(metric, kind, classes, decisions, labels)
    assert values.shape == (N_POINTS, N_LABELINGS + 1)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_scores_of_many_numbers_are_those_of_calls(name):
    rng = np.random.default_rng(1)
    labels, predicted = rng.normal(40.0, 2.0, (N_LABELINGS, M)), rng.normal(40.0, 2.0, (N_POINTS, M))
    predicted[0] = 40.0
    metric = as_metrics(name, "regression")[name]
    assert np.isfinite(cost(metric)) == (name != "dynamic_auc")  # which counts pairs anew at each time
    values = by_labels(metric, "regression", np.zeros(0), predicted)(labels)
    np.testing.assert_allclose(values, scores_of_calls(metric, "regression", (), predicted, labels), atol=1e-10)


def test_other_scorers_are_called_and_labels_that_were_not_learnt_have_no_score():
    rng = np.random.default_rng(2)
    decisions, labels = rng.normal(size=(N_POINTS, M)), rng.choice(2, (N_LABELINGS, M))
    f1 = as_metrics("f1", "binary")["f1"]
    assert cost(f1) == np.inf
    values = by_labels(f1, "binary", np.arange(2), decisions)(labels)
    np.testing.assert_array_equal(values, scores_of_calls(f1, "binary", np.arange(2), decisions, labels))
    accuracy = by_labels(OWN_METRICS["accuracy"], "binary", np.arange(2), decisions)
    assert np.isnan(accuracy(np.full((1, M), 2))).all()
