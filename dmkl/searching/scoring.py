"""Measures of decision scores, larger being better: the papers' own and scikit-learn's."""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import average_precision_score, get_scorer, matthews_corrcoef, precision_recall_curve

from dmkl.arrays import Array, Float, plain_repr
from dmkl.errors import InputError
from dmkl.estimators.decisions import index_of
from dmkl.numerics.fisher import Kind
from dmkl.searching.regression import named_measure, scored_values
from dmkl.unknown import is_known

__all__ = [
    "OWN_METRICS",
    "Metric",
    "accuracy",
    "as_metrics",
    "average_precision_voc",
    "average_precision_voc07",
    "evaluate",
    "evaluate_each",
    "matthews",
    "mean_class_accuracy",
]

Metric = Callable[[Array, Array, Array], float]
"""(truth, decision, classes) ↦ a number: labels (rows,), scores (rows,) for two classes or (rows, classes) for more,
the classes sorted; the second of two is the positive one."""


# --- binary measures, averaged over classes ------------------------------------------------------------------------


def average_precision_voc07(positive: Array, scores: Array) -> float:
    """Eleven-point interpolated average precision: (1/11) Σ_{r = 0, 0.1, …, 1} max_{r' ≥ r} precision(r').

    Everingham, Van Gool, Williams, Winn, Zisserman: The PASCAL Visual Object Classes (VOC) challenge, IJCV 88 (2010),
    Section 4.2; used up to VOC 2009. Precision and recall are taken where the score changes, so that tied samples
    enter together.

    Parameters
    ----------
    positive
        (rows,) booleans
    scores
        (rows,)

    Returns
    -------
    float
        NaN where no row is positive.
    """
    if not positive.any():
        return float("nan")
    precision, recall = _curve(positive, scores)
    # Quotients of integers on both sides, so that a recall of three tenths reaches the level 0.3.
    reached = recall >= np.arange(11)[:, None] / 10
    return float(np.where(reached, precision, 0.0).max(axis=1).mean())


def average_precision_voc(positive: Array, scores: Array) -> float:
    """Area under the envelope of precision: ∫₀¹ max_{r' ≥ r} precision(r') dr.

    Everingham, Winn: The PASCAL VOC 2010 development kit; used from VOC 2010 on. Parameters and result as in
    `average_precision_voc07`.
    """
    if not positive.any():
        return float("nan")
    precision, recall = _curve(positive, scores)
    return float(-np.diff(recall, append=0.0) @ np.maximum.accumulate(precision))


def _curve(positive: Array, scores: Array) -> tuple[Float, Float]:
    """Precision and recall at every threshold, recall falling, without the point (1, 0) that closes a drawn curve."""
    precision, recall, _ = precision_recall_curve(positive, scores)
    return precision[:-1], recall[:-1]


def _average_precision(positive: Array, scores: Array) -> float:
    return float(average_precision_score(positive, scores)) if positive.any() else float("nan")


def _correlation(positive: Array, found: Array) -> float:
    """Matthews' coefficient; undefined where the truth has one value only, 0 where the prediction has."""
    return float("nan") if positive.all() or not positive.any() else float(matthews_corrcoef(positive, found))


def _one_vs_rest(measure: Callable[[Array, Array], float]) -> Metric:
    """The measure of the second of two classes, or its mean over more, each against the rest, where it is defined."""

    def metric(truth: Array, decision: Array, classes: Array) -> float:
        index = index_of(truth, classes)
        if decision.ndim == 1:
            return measure(index == 1, decision)
        values = np.array([measure(index == k, column) for k, column in enumerate(decision.T)])
        defined = values[~np.isnan(values)]
        return float(defined.mean()) if len(defined) else float("nan")

    return metric


def matthews(truth: Array, decision: Array, classes: Array) -> float:
    """Matthews correlation coefficient, averaged over the classes that the truth has, each against the rest.

    MCC = (TP·TN − FP·FN) / √((TP + FP)(TP + FN)(TN + FP)(TN + FN)), 0 where a class is never predicted. JMLR Section
    3.6, after Kloft, Brefeld, Sonnenburg, Zien: ℓp-norm multiple kernel learning, JMLR 12 (2011).

    Returns
    -------
    float
        NaN where the truth is of one class.
    """
    found = decision > 0 if decision.ndim == 1 else np.eye(decision.shape[1], dtype=bool)[np.argmax(decision, axis=1)]
    return _one_vs_rest(_correlation)(truth, found, classes)


# The next two are scikit-learn's, counted here: a search measures every point on every fold, and for some hundred rows
# the checks of a scorer take longer than solving the point. They take the decisions of several points at once too, with
# a dimension of points in front, and return an array then.


def accuracy(truth: Array, decision: Array, classes: Array) -> Any:
    """Share of the rows whose class is predicted."""
    return _of_one(np.mean(index_of(truth, classes) == _predicted(decision, classes), axis=-1))


def mean_class_accuracy(truth: Array, decision: Array, classes: Array) -> Any:
    """Mean over the classes that the truth has of the share of their rows that are predicted: Σ_k recall_k / c.

    Scikit-learn's balanced accuracy, and the average accuracy of JMLR Section 3.4.
    """
    index = index_of(truth, classes)
    rows = np.bincount(index, minlength=len(classes))
    right = (index == _predicted(decision, classes)) @ np.eye(len(classes))[:, rows > 0][index]
    return _of_one(np.mean(right / rows[rows > 0], axis=-1))


def _predicted(decision: Array, classes: Array) -> Array:
    """Numbers of the predicted classes."""
    return (decision > 0).astype(np.int64) if len(classes) == 2 else np.argmax(decision, axis=-1)


def _of_one(values: Any) -> Any:
    """A plain number of one decision; an array of several."""
    return values if np.ndim(values) else float(values)


OWN_METRICS: dict[str, Metric] = {
    "mean_class_accuracy": mean_class_accuracy,
    "balanced_accuracy": mean_class_accuracy,
    "accuracy": accuracy,
    "average_precision": _one_vs_rest(_average_precision),
    "average_precision_voc": _one_vs_rest(average_precision_voc),
    "average_precision_voc07": _one_vs_rest(average_precision_voc07),
    "matthews": matthews,
    "neg_matthews_loss": lambda truth, decision, classes: matthews(truth, decision, classes) - 1.0,
}
OWN_METRICS |= {f"mean_{name}": metric for name, metric in OWN_METRICS.items() if name.startswith("average_precision")}
"""The measures of `as_metrics` that are not looked up in scikit-learn, by name."""
_OF_SEVERAL = (accuracy, mean_class_accuracy)
"""Measures that take the decisions of several points at once."""


# --- scikit-learn's scorers ----------------------------------------------------------------------------------------


class _Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier of samples that are their own decision scores."""

    def __init__(self, classes: Array) -> None:
        self.classes = classes
        self.classes_ = classes

    def decision_function(self, X: Array) -> Array:
        return X[:, 0] if X.shape[1] == 1 else X

    def predict(self, X: Array) -> Array:
        predicted: Array = self.classes_[_predicted(self.decision_function(X), self.classes_)]
        return predicted


def _call(scorer: Any, truth: Array, decision: Array, classes: Array) -> float:
    value = scorer(_Scores(classes), decision.reshape(len(decision), -1), truth)
    if not isinstance(value, numbers.Real):
        msg = f"it must return one number, and returned {plain_repr(value)}"
        raise InputError(msg)
    return float(value)


def _call_perfect(scorer: Any, index: Array, classes: Array) -> float:
    """The measure of scores that tell the truth; raises where even those have none."""
    signs = 2.0 * np.eye(len(classes))[index] - 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UndefinedMetricWarning)
        return _call(scorer, classes[index], signs[:, 1] if len(classes) == 2 else signs, classes)


_FAILURES = (ValueError, AttributeError, UndefinedMetricWarning)
"""What scorers raise when they do not suit the problem."""

_BY_LABEL = "matthews_corrcoef"
_SUITABLE = {
    False: f"{_BY_LABEL}, f1, jaccard, precision, recall, roc_auc",
    True: f"{_BY_LABEL}, f1_macro, f1_weighted, jaccard_macro, precision_macro, recall_macro, top_k_accuracy",
}
"""Scikit-learn's for two classes and for more."""


def _refusal(name: str, classes: Array, error: Exception) -> InputError:
    several = len(classes) > 2
    if "predict_proba" in str(error):
        why = "needs probabilities, and what is measured here are decision scores"
    else:
        why = f"does not suit {'more than two classes' if several else 'two classes'} with decision scores: {error}"
    return InputError(f"scoring {name!r} {why}; these do: {_SUITABLE[several]}, and dmkl's {', '.join(OWN_METRICS)}")


def _check(name: str, scorer: Any, classes: Array) -> None:
    """Refuse a scorer that cannot measure scores which tell the truth on labels of all classes."""
    try:
        _call_perfect(scorer, np.tile(np.arange(len(classes)), 2), classes)
    except _FAILURES as error:
        raise _refusal(name, classes, error) from error


def _scored(name: str, scorer: Any, *, numbered: bool) -> Metric:
    """The measure that a scorer takes, of labels as they are or `numbered` in their order."""

    def metric(truth: Array, decision: Array, classes: Array) -> float:
        index = index_of(truth, classes)
        if numbered:
            truth, classes = index, np.arange(len(classes))
        complete = len(np.unique(index)) == len(classes)
        if not complete:
            _check(name, scorer, classes)
            try:
                perfect = _call_perfect(scorer, index, classes)
            except _FAILURES:
                return float("nan")
            if np.isnan(perfect):
                return perfect
        with warnings.catch_warnings():
            # With all classes there, what scikit-learn calls undefined is only that some class was never predicted.
            warnings.simplefilter("ignore", UndefinedMetricWarning if complete else Warning)
            try:
                return _call(scorer, truth, decision, classes)
            except _FAILURES as error:
                raise _refusal(name, classes, error) from error

    return metric


# --- from names to measures ----------------------------------------------------------------------------------------


def as_metrics(scoring: Any, kind: Kind) -> dict[str, Metric]:
    """Turn any description of what is to be measured into measures by name.

    Parameters
    ----------
    scoring
        One of

        - None: "accuracy", "average_precision" for a multilabel problem, "r2" for a regression;
        - a name of the table below, or of ``sklearn.metrics.get_scorer_names()``;
        - a callable (estimator, X, y) ↦ a number, such as ``sklearn.metrics.make_scorer`` returns; its estimator has
          classes_, decision_function and predict, and the labels are as they are;
        - a list of names;
        - a mapping from names of your choice to names or callables.
    kind
        "binary", "multiclass", "multilabel", where each task is measured as a binary problem, or "regression", where
        each target is measured by itself: by "correlation" (Pearson's), "r2", "neg_mean_squared_error" …

    Returns
    -------
    dict
        Functions of (truth, decision, classes) by name, in the order given: the first decides. Larger is better. A
        callable alone is known by its ``__name__``, or as "score".

    Raises
    ------
    InputError
        If a name is unknown, a measure needs probabilities or does not suit this kind of problem, or `scoring` is
        something else.

    Notes
    -----
    For two classes the second is the positive one, whatever the labels. For more, all but the first two are means
    over the classes that the truth has, each against the rest.

    =========================== ==================================================================================
    accuracy                    share of the rows whose class is predicted, as in scikit-learn
    mean_class_accuracy         Σ_k recall_k / c, scikit-learn's balanced_accuracy (JMLR Section 3.4)
    average_precision           Σ_i (r_i − r_{i−1}) p_i over falling thresholds, as in scikit-learn (JMLR Section 3.2)
    average_precision_voc       ∫₀¹ max_{r' ≥ r} p(r') dr, from VOC 2010 on
    average_precision_voc07     (1/11) Σ_{r = 0, 0.1, …, 1} max_{r' ≥ r} p(r'), up to VOC 2009
    mean_average_precision…     the same three under the name that their mean over classes has, MAP
    matthews                    (TP·TN − FP·FN) / √((TP + FP)(TP + FN)(TN + FP)(TN + FN)) (JMLR Section 3.6)
    neg_matthews_loss           matthews − 1: the 1 − MCC of JMLR Table 3 with its sign turned
    =========================== ==================================================================================

    Names of scikit-learn's see the labels as numbers in their order. All measures are NaN where the labels at hand
    leave them undefined: the precision of a class of which there are no rows, the area under a ROC curve of one class.
    """
    if scoring is None:
        scoring = {"multilabel": "average_precision", "regression": "r2"}.get(kind, "accuracy")
    if isinstance(scoring, str):
        return {scoring: _named(scoring, kind)}
    if isinstance(scoring, Mapping):
        chosen = dict(scoring)
    elif isinstance(scoring, list | tuple):
        chosen = {name: name for name in scoring if isinstance(name, str)}
        if len(chosen) < len(scoring):
            msg = f"a list of scoring holds names, each once, got {scoring!r}; for callables give a mapping of names"
            raise InputError(msg)
    elif callable(scoring):
        chosen = {getattr(scoring, "__name__", "score"): scoring}
    else:
        msg = f"scoring must be a name, a callable (estimator, X, y), a list of names or a mapping, got {scoring!r}"
        raise InputError(msg)
    if not chosen or not all(isinstance(name, str) for name in chosen):
        msg = f"scoring must name one measure at least, by strings, got {scoring!r}"
        raise InputError(msg)
    return {
        name: _named(what, kind) if isinstance(what, str) else _scorer(name, what, kind)
        for name, what in chosen.items()
    }


def _named(name: str, kind: Kind) -> Metric:
    if kind == "regression":
        return named_measure(name)
    if name in OWN_METRICS:
        return OWN_METRICS[name]
    try:
        scorer = get_scorer(name)
    except ValueError as error:
        msg = (
            f"there is no scoring {name!r}; dmkl has {', '.join(OWN_METRICS)}, and scikit-learn those of "
            "sklearn.metrics.get_scorer_names()"
        )
        raise InputError(msg) from error
    _check(name, scorer, np.arange(3 if kind == "multiclass" else 2))
    return _scored(name, scorer, numbered=True)


def _scorer(name: str, scorer: Any, kind: Kind) -> Metric:
    try:
        inspect.signature(scorer).bind(None, None, None)
    except (TypeError, ValueError) as error:
        msg = (
            f"scoring {name!r} must be a name or take (estimator, X, y), got {scorer!r}; wrap a measure of truth and "
            "prediction with sklearn.metrics.make_scorer"
        )
        raise InputError(msg) from error
    return scored_values(name, scorer) if kind == "regression" else _scored(name, scorer, numbered=False)


def evaluate(
    metrics: Mapping[str, Metric], kind: Kind, classes: npt.ArrayLike, truth: npt.ArrayLike, decision: npt.ArrayLike
) -> Float:
    """Measure decision scores.

    Parameters
    ----------
    metrics
        From `as_metrics`.
    classes
        The labels that were learnt, sorted; not used for a regression.
    truth
        (rows,) labels, or (rows, tasks or targets), of which those that are unknown do not count.
    decision
        (rows,) for two classes and for one target, (rows, classes), or (rows, tasks or targets).

    Returns
    -------
    ndarray
        (metrics,), or (metrics, tasks or targets), each measured by itself. NaN where a measure is undefined for these
        labels.

    Raises
    ------
    InputError
        If a label is none of the classes, or a scorer fails.
    """
    return evaluate_each(metrics, kind, classes, truth, np.asarray(decision)[None])[:, 0]


def evaluate_each(
    metrics: Mapping[str, Metric], kind: Kind, classes: npt.ArrayLike, truth: npt.ArrayLike, decisions: npt.ArrayLike
) -> Float:
    """Measure the decision scores of several points about the same rows, as `evaluate` does.

    Parameters
    ----------
    metrics, kind, classes, truth
        As there.
    decisions
        (points, rows), (points, rows, classes) or (points, rows, tasks or targets).

    Returns
    -------
    ndarray
        (metrics, points), or (metrics, points, tasks or targets).
    """
    truth, decisions, classes = np.asarray(truth), np.asarray(decisions), np.asarray(classes)
    as_number = {"multilabel": np.int64, "regression": np.float64}.get(kind)

    def measured(metric: Metric, truth: Array, decisions: Array) -> Array:
        truth = truth if as_number is None else truth.astype(as_number)
        if metric in _OF_SEVERAL:
            return np.asarray(metric(truth, decisions, classes))
        return np.array([metric(truth, decision, classes) for decision in decisions])

    if truth.ndim == 1:
        return np.array([measured(metric, truth, decisions) for metric in metrics.values()])
    found = np.full((len(metrics), len(decisions), truth.shape[1]), np.nan)
    for t, column in enumerate(truth.T):
        known = is_known(column)
        if known.any():
            for k, metric in enumerate(metrics.values()):
                found[k, :, t] = measured(metric, column[known], decisions[:, known, t])
    return found
