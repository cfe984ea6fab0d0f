"""Scorers of decision scores and predictions, larger being better: those of the papers, and scikit-learn's."""

from __future__ import annotations

import inspect
import numbers
import re
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax, xlogy
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import (
    average_precision_score,
    get_scorer,
    log_loss,
    matthews_corrcoef,
    precision_recall_curve,
    roc_auc_score,
)

from dmkl.arrays import Array, Float, is_known, plain_repr
from dmkl.errors import InputError, refuse
from dmkl.learners.decisions import index_of
from dmkl.numerics.fisher import Kind, target_values
from dmkl.numerics.survival import concordance, concordance_ipcw, mean_dynamic_auc

Metric = Callable[[Array, Array, Array], float]
"""(truth, decision, classes) ↦ a number. For classes: labels (rows,), scores (rows,) for two classes or (rows, classes)
for more, the classes sorted; the second of two is the positive class. For a regression: numbers, predictions, unused.
"""


def average_precision_voc07(positive: Array, scores: Array) -> float:
    """Eleven-point interpolated average precision: (1/11) Σ_{r = 0, 0.1, …, 1} max_{r' ≥ r} precision(r').

    Everingham, Van Gool, Williams, Winn, Zisserman: The PASCAL Visual Object Classes (VOC) challenge, IJCV 88 (2010),
    Section 4.2; used up to VOC 2009. Precision and recall are taken where the score changes, so that tied samples count
    together.
    """
    precision, recall = _curve(positive, scores)
    # Quotients of integers on both sides, so that a recall of three tenths reaches the level 0.3.
    reached = recall >= np.arange(11)[:, None] / 10
    return float(np.where(reached, precision, 0.0).max(axis=1).mean())


def average_precision_voc(positive: Array, scores: Array) -> float:
    """Area under the envelope of precision: ∫₀¹ max_{r' ≥ r} precision(r') dr.

    Everingham, Winn: The PASCAL VOC 2010 development kit; used from VOC 2010 on.
    """
    precision, recall = _curve(positive, scores)
    return float(-np.diff(recall, append=0.0) @ np.maximum.accumulate(precision))


def _curve(positive: Array, scores: Array) -> tuple[Float, Float]:
    """Precision and recall at every threshold, recall falling, without the point (1, 0) that closes a drawn curve."""
    precision, recall, _ = precision_recall_curve(positive, scores)
    return precision[:-1], recall[:-1]


def _one_vs_rest(measure: Callable[[Array, Array], float], *, of_both: bool = False) -> Metric:
    """The score of the second of two classes, or its mean over more, each against the rest, where it is defined.

    It is undefined, NaN, where no row is positive and, if `of_both`, where all are.
    """

    def score(positive: Array, values: Array) -> float:
        undefined = not positive.any() or (of_both and positive.all())
        return float("nan") if undefined else float(measure(positive, values))

    def metric(truth: Array, decision: Array, classes: Array) -> float:
        index = index_of(truth, classes)
        if decision.ndim == 1:
            return score(index == 1, decision)
        values = np.array([score(index == k, column) for k, column in enumerate(decision.T)])
        defined = values[~np.isnan(values)]
        return float(defined.mean()) if len(defined) else float("nan")

    return metric


def matthews(truth: Array, decision: Array, classes: Array) -> float:
    """Matthews correlation coefficient, averaged over the classes in the truth, each against the rest.

    MCC = (TP·TN − FP·FN) / √((TP + FP)(TP + FN)(TN + FP)(TN + FN)), 0 where a class is never predicted, and NaN where
    the truth is of one class. JMLR Section 3.6, after Kloft, Brefeld, Sonnenburg, Zien: ℓp-norm multiple kernel
    learning, JMLR 12 (2011).
    """
    several = decision.ndim > 1
    predicted = np.eye(decision.shape[1], dtype=bool)[np.argmax(decision, axis=1)] if several else decision > 0
    return _one_vs_rest(matthews_corrcoef, of_both=True)(truth, predicted, classes)


# Scikit-learn has the next two as well. A search scores every point on every fold, and for some hundred rows the checks
# of a scikit-learn scorer take longer than solving the point. These also accept the decisions of several points, with a
# leading dimension of points, and then return an array.


def accuracy(truth: Array, decision: Array, classes: Array) -> Any:
    """Share of the rows with the right class."""
    return _as_float(np.mean(index_of(truth, classes) == predicted_numbers(decision, classes), axis=-1))


def mean_class_accuracy(truth: Array, decision: Array, classes: Array) -> Any:
    """Mean recall of the c classes in the truth, Σ_k recall_k / c: balanced accuracy (JMLR Section 3.4)."""
    index = index_of(truth, classes)
    rows = np.bincount(index, minlength=len(classes))
    right = (index == predicted_numbers(decision, classes)) @ np.eye(len(classes))[:, rows > 0][index]
    return _as_float(np.mean(right / rows[rows > 0], axis=-1))


def predicted_numbers(decision: Array, classes: Array) -> Array:
    """Numbers of the predicted classes."""
    return (decision > 0).astype(np.int64) if len(classes) == 2 else np.argmax(decision, axis=-1)


def _as_float(values: Any) -> Any:
    """A plain number for one decision, an array for several."""
    return values if np.ndim(values) else float(values)


def correlation(truth: Array, predicted: Array) -> float:
    """Pearson's correlation Σ(y − ȳ)(f − f̄) / √(Σ(y − ȳ)² Σ(f − f̄)²): NaN for a constant y, 0 for a constant f."""
    y, f = truth - truth.mean(), predicted - predicted.mean()
    sizes = [float(np.linalg.norm(values)) for values in (y, f)]
    # A constant less its mean is rounding error.
    flat = [size <= 1e-13 * np.linalg.norm(values) for size, values in zip(sizes, (truth, predicted), strict=True)]
    if flat[0]:
        return float("nan")
    return 0.0 if flat[1] else float(y @ f) / (sizes[0] * sizes[1])


OWN_METRICS: dict[str, Metric] = {
    "mean_class_accuracy": mean_class_accuracy,
    "balanced_accuracy": mean_class_accuracy,
    "accuracy": accuracy,
    "average_precision": _one_vs_rest(average_precision_score),
    "average_precision_voc": _one_vs_rest(average_precision_voc),
    "average_precision_voc07": _one_vs_rest(average_precision_voc07),
    "matthews": matthews,
    "neg_matthews_loss": lambda truth, decision, classes: matthews(truth, decision, classes) - 1.0,
}
OWN_METRICS |= {f"mean_{name}": metric for name, metric in OWN_METRICS.items() if name.startswith("average_precision")}
"""Scorers of classes that `as_metrics` does not look up in scikit-learn, by name."""
OF_TWO_CLASSES: dict[str, Metric] = {"roc_auc": _one_vs_rest(roc_auc_score, of_both=True)}
"""Scorers of two classes that `as_metrics` does not look up in scikit-learn."""
_OF_SEVERAL = (accuracy, mean_class_accuracy)  # Scorers that accept the decisions of several points at once.


_LIMITS = {
    r"neg_matthews_loss": (-2.0, 0.0),
    r"neg_.*": (-np.inf, 0.0),
    r"r2|d2_.*|explained_variance": (-np.inf, 1.0),
    r"correlation|quadratic_kappa|matthews(_corrcoef)?": (-1.0, 1.0),
    r"(mean_class_|balanced_|top_k_)?accuracy|(mean_)?average_precision.*|roc_auc.*": (0.0, 1.0),
    r"concordance_index(_ipcw)?|dynamic_auc": (0.0, 1.0),
    r"(f1|precision|recall|jaccard)(_.*)?": (0.0, 1.0),
}
"""The smallest and the largest value of scores, by patterns of the names of scorers."""


def limits(scoring: str, *, of_difference: bool = False) -> tuple[float, float]:
    """The smallest and the largest value of a score, or of the difference of two; infinite if they are not known."""
    low, high = next((ends for name, ends in _LIMITS.items() if re.fullmatch(name, scoring)), (-np.inf, np.inf))
    return (low - high, high - low) if of_difference else (low, high)


class OfProbabilities(partial[float]):
    """A metric of decisions that are logarithms of probabilities, as `probabilities` takes them."""


def probabilities(decision: Array) -> Float:
    """(rows, classes), from logarithms up to a constant of each row, or log odds (rows,): decisions by class means."""
    logits = np.asarray(decision, dtype=np.float64)
    return np.asarray(softmax(np.stack([0 * logits, logits], axis=-1) if logits.ndim == 1 else logits, axis=-1))


def _neg_log_loss(truth: Array, decision: Array, classes: Array) -> float:
    return -float(log_loss(index_of(truth, classes), probabilities(decision), labels=np.arange(len(classes))))


def _neg_brier_score(truth: Array, decision: Array, classes: Array) -> float:
    # As scikit-learn's from 1.7 on, which is the first to accept several classes.
    errors = probabilities(decision) - np.eye(len(classes))[index_of(truth, classes)]
    return -float(np.sum(errors**2, axis=1).mean() / (2 if len(classes) == 2 else 1))


def _roc_auc_ovr(truth: Array, decision: Array, classes: Array) -> float:
    return OF_TWO_CLASSES["roc_auc"](truth, decision if decision.ndim == 1 else probabilities(decision), classes)


PROBABILISTIC: dict[str, Metric] = {
    "neg_log_loss": OfProbabilities(_neg_log_loss),
    "neg_brier_score": OfProbabilities(_neg_brier_score),
    "roc_auc_ovr": OfProbabilities(_roc_auc_ovr),
}
"""Scorers of probabilities that `as_metrics` does not look up in scikit-learn: rows may lack a class."""


def r2(truth: Array, predicted: Array, _: Any = None) -> Any:
    """R² = 1 − Σ(y − f)²/Σ(y − ȳ)²; of a constant truth 1 if it is predicted and 0 otherwise, as in scikit-learn.

    The truth is (rows,) and predictions (rows,), or (rows, targets) and (…, rows, targets), which gives (…, targets).
    NaN for fewer than two rows.
    """
    axis = -min(truth.ndim, 2)
    total, left = np.sum((truth - truth.mean(axis=0)) ** 2, axis=0), np.sum((truth - predicted) ** 2, axis=axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, left / total, left > 0)
    return _as_float(1.0 - share if len(truth) > 1 else np.full(share.shape, np.nan))


def neg_mean_squared_error(truth: Array, predicted: Array, _: Any = None) -> Any:
    """−Σ(y − f)²/n, in the shapes of `r2`; NaN for fewer than two rows."""
    score = -np.mean((truth - predicted) ** 2, axis=-min(truth.ndim, 2))
    return _as_float(score if len(truth) > 1 else np.full(score.shape, np.nan))


def d2_poisson(truth: Array, predicted: Array, _: Any = None) -> float:
    """1 − Σ(y log(y/f) − y + f)/Σ y log(y/ȳ); NaN for constant counts, and for predictions that are not positive."""
    if not ((predicted > 0).all() and (truth >= 0).all() and np.ptp(truth)):
        return float("nan")
    left, total = (np.sum(xlogy(truth, truth / mean) - truth + mean) for mean in (predicted, truth.mean()))
    return float(1.0 - left / total)


def quadratic_kappa(truth: Array, predicted: Array, _: Any = None) -> float:
    """1 − mean (y_i − f_i)²/mean over all pairs of (y_i − f_j)²: Cohen's κ with quadratic weights of whole numbers.

    Cohen: Weighted kappa, Psychological Bulletin 70 (1968).
    """
    of_pairs = truth.var() + predicted.var() + (truth.mean() - predicted.mean()) ** 2
    return float(1.0 - np.mean((truth - predicted) ** 2) / of_pairs) if of_pairs else float("nan")


OF_NUMBERS: dict[str, Metric] = {
    "correlation": lambda truth, predicted, _: correlation(truth, predicted),
    "r2": r2,
    "neg_mean_squared_error": neg_mean_squared_error,
    "d2_poisson": d2_poisson,
    "quadratic_kappa": quadratic_kappa,
    "concordance_index": lambda truth, risk, _: concordance(truth, risk),
    "concordance_index_ipcw": lambda truth, risk, _: concordance_ipcw(truth, risk),
    "dynamic_auc": lambda truth, risk, _: mean_dynamic_auc(truth, risk),
}
"""Scorers of a regression that `as_metrics` does not look up in scikit-learn, by name."""
_OF_TARGETS = (r2, neg_mean_squared_error)
"""Scorers that accept several targets at once: thousands of them, at every point of a grid."""


class _Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose samples are their own decision scores."""

    def __init__(self, classes: Array) -> None:
        self.classes = classes
        self.classes_ = classes

    def decision_function(self, X: Array) -> Array:
        return X[:, 0] if X.shape[1] == 1 else X

    def predict(self, X: Array) -> Array:
        return np.asarray(self.classes_[predicted_numbers(self.decision_function(X), self.classes_)])


class _Probabilities(_Scores):
    """A fitted classifier whose samples are logarithms of their probabilities."""

    def predict_proba(self, X: Array) -> Float:
        return probabilities(self.decision_function(X))


class _Predictions(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted regression whose samples are their own predictions."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Array) -> Array:
        return X[:, 0]


_FAILURES = (ValueError, AttributeError, UndefinedMetricWarning)
"""Exceptions of scorers that do not suit the problem."""
_SUITABLE = {
    "a regression": "neg_mean_squared_error, neg_mean_absolute_error, explained_variance",
    "two classes": "matthews_corrcoef, f1, jaccard, precision, recall, roc_auc",
    "more than two classes": (
        "matthews_corrcoef, f1_macro, f1_weighted, jaccard_macro, precision_macro, recall_macro, top_k_accuracy"
    ),
}
"""Scikit-learn's scorers that suit each problem."""
_BY_PROBABILITIES = "response_method='predict_proba'"
"""Part of the text of those of scikit-learn's scorers that need probabilities."""


def _call(scorer: Any, truth: Array, decision: Array, classes: Array | None) -> float:
    of_classes = _Probabilities if _BY_PROBABILITIES in repr(scorer) else _Scores
    model = _Predictions() if classes is None else of_classes(classes)
    value = scorer(model, decision.reshape(len(decision), -1), truth)
    if not isinstance(value, numbers.Real):
        refuse(f"it must return one number, and returned {plain_repr(value)}")
    return float(value)


def _score_of_truth(scorer: Any, index: Array, classes: Array) -> float:
    """The score of perfect decisions; raises if even these have none."""
    signs = 2.0 * np.eye(len(classes))[index] - 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UndefinedMetricWarning)
        return _call(scorer, classes[index], signs[:, 1] if len(classes) == 2 else signs, classes)


def _refusal(name: str, classes: Array | None, error: Exception) -> InputError:
    problem = "a regression" if classes is None else "two classes" if len(classes) == 2 else "more than two classes"
    if "predict_proba" in str(error):
        why = "needs probabilities, and there are only decision scores (decision='means' or calibrate gives them)"
    else:
        why = f"does not suit {problem}{'' if classes is None else ' with decision scores'}: {error}"
    metrics = ", ".join(OF_NUMBERS if classes is None else OWN_METRICS)
    return InputError(f"scoring {name!r} {why}; these do: {_SUITABLE[problem]}, and dmkl's {metrics}")


def _check(name: str, scorer: Any, classes: Array) -> None:
    """Refuse a scorer that fails on perfect decisions about labels of all classes."""
    try:
        _score_of_truth(scorer, np.tile(np.arange(len(classes)), 2), classes)
    except _FAILURES as error:
        raise _refusal(name, classes, error) from error


def _of_classes(name: str, scorer: Any, kind: Kind, *, numbered: bool, probabilistic: bool) -> Metric:
    """A scikit-learn scorer of classes as a metric; it sees the labels, or their numbers if `numbered`."""
    numbers, by_probabilities = np.arange(3 if kind == "multiclass" else 2), _BY_PROBABILITIES in repr(scorer)
    if by_probabilities and not probabilistic:
        raise _refusal(name, numbers, AttributeError("predict_proba"))
    if numbered:
        _check(name, scorer, numbers)

    def metric(truth: Array, decision: Array, classes: Array) -> float:
        index = index_of(truth, classes)
        if numbered:
            truth, classes = index, np.arange(len(classes))
        complete = len(np.unique(index)) == len(classes)
        if not complete:
            _check(name, scorer, classes)
            try:
                perfect = _score_of_truth(scorer, index, classes)
            except _FAILURES:
                return float("nan")
            if np.isnan(perfect):
                return perfect
        with warnings.catch_warnings():
            # If all classes are present, scikit-learn's "undefined" only means that a class is never predicted.
            warnings.simplefilter("ignore", UndefinedMetricWarning if complete else Warning)
            try:
                return _call(scorer, truth, decision, classes)
            except _FAILURES as error:
                raise _refusal(name, classes, error) from error

    return OfProbabilities(metric) if by_probabilities else metric


def _of_numbers(name: str, scorer: Any) -> Metric:
    """A scikit-learn scorer of predictions as a metric; NaN for fewer than two values."""

    def metric(truth: Array, predicted: Array, classes: Array) -> float:
        if len(truth) < 2:
            return float("nan")
        try:
            return _call(scorer, truth, predicted, None)
        except (*_FAILURES, TypeError) as error:
            raise _refusal(name, None, error) from error

    return metric


def as_metrics(scoring: Any, kind: Kind, *, probabilistic: bool = False) -> dict[str, Metric]:
    """Turn any description of scorers into metrics by name.

    `scoring` is one of

    - None: "accuracy", "average_precision" for a multilabel problem, "r2" for a regression,
      "concordance_index" for MKCox;
    - a name of the table below, or of ``sklearn.metrics.get_scorer_names()``;
    - a callable (estimator, X, y) ↦ a number, such as ``sklearn.metrics.make_scorer`` returns; its estimator has
      classes_, decision_function and predict, the labels are as they are, and its name is ``__name__``, or "score";
    - a list of names, or a mapping from names of your choice to names or callables; the first decides.

    Tasks of the kind "multilabel" are scored as binary problems, and targets of a "regression" separately: by
    "correlation" (Pearson's), "r2", "neg_mean_squared_error" …. Scorers of probabilities, `OfProbabilities`, need
    `probabilistic`. The metrics are functions of (truth, decision, classes); larger is better. InputError if a name
    is unknown, a scorer needs probabilities or does not suit this kind of problem, or `scoring` is something else.

    For two classes the second is the positive class, whatever the labels. For more, all but the first two are means
    over the classes in the truth, each against the rest.

    =========================== ==================================================================================
    accuracy                    share of the rows with the right class, as in scikit-learn
    mean_class_accuracy         Σ_k recall_k / c, scikit-learn's balanced_accuracy (JMLR Section 3.4)
    average_precision           Σ_i (r_i − r_{i−1}) p_i over falling thresholds, as in scikit-learn (JMLR Section 3.2)
    average_precision_voc       ∫₀¹ max_{r' ≥ r} p(r') dr, from VOC 2010 on
    average_precision_voc07     (1/11) Σ_{r = 0, 0.1, …, 1} max_{r' ≥ r} p(r'), up to VOC 2009
    mean_average_precision…     the same three by the name of their mean over classes, MAP
    matthews                    (TP·TN − FP·FN) / √((TP + FP)(TP + FN)(TN + FP)(TN + FN)) (JMLR Section 3.6)
    neg_matthews_loss           matthews − 1: the 1 − MCC of JMLR Table 3 with its sign turned
    concordance_index           share of pairs whose earlier event has the larger risk (Harrell), of `signed_times`
    concordance_index_ipcw      the same with pairs weighted for censoring (Uno)
    dynamic_auc                 area under the ROC curve of events until t, weighted for censoring (Uno), mean over t
    d2_poisson                  1 − the deviance of counts over that of their mean, as scikit-learn's d2_tweedie_score
    quadratic_kappa             Cohen's κ of ordinal levels, as whole numbers, with quadratic weights
    neg_log_loss                mean log p_y of the right class y, as in scikit-learn
    neg_brier_score             −mean Σ_k (p_k − [k = y])², half of it for two classes, as in scikit-learn
    roc_auc_ovr                 area under the ROC curve of each p_k, as in scikit-learn where no class is missing
    =========================== ==================================================================================

    The last three and those of scikit-learn that need probabilities p take them from the decision rule of a learner
    that decides by class means, which is learnt from training rows, or from a model that has calibrated ones.
    Scikit-learn's named scorers see the labels as numbers in their order. A score is NaN if the labels leave it
    undefined: the precision of a class without rows, the area under a ROC curve of one class.
    """
    if scoring is None:
        scoring = {"multilabel": "average_precision", "regression": "r2"}.get(kind, "accuracy")
    if isinstance(scoring, str):
        return {scoring: _named(scoring, kind, probabilistic)}
    if isinstance(scoring, Mapping):
        chosen = dict(scoring)
    elif isinstance(scoring, list | tuple):
        chosen = {name: name for name in scoring if isinstance(name, str)}
        if len(chosen) < len(scoring):
            refuse(f"a list of scoring holds names, each once, got {scoring!r}; for callables give a mapping of names")
    elif callable(scoring):
        chosen = {getattr(scoring, "__name__", "score"): scoring}
    else:
        refuse(f"scoring must be a name, a callable (estimator, X, y), a list of names or a mapping, got {scoring!r}")
    if not chosen or not all(isinstance(name, str) for name in chosen):
        refuse(f"scoring must name at least one scorer, by strings, got {scoring!r}")
    return {
        name: (_named if isinstance(scorer, str) else partial(_called, name))(scorer, kind, probabilistic)
        for name, scorer in chosen.items()
    }


def _named(name: str, kind: Kind, probabilistic: bool) -> Metric:
    regression = kind == "regression"
    metrics = OF_NUMBERS if regression else OWN_METRICS | (PROBABILISTIC if probabilistic else {})
    metrics = metrics | ({} if kind in ("regression", "multiclass") else OF_TWO_CLASSES)
    if name in metrics:
        return metrics[name]
    try:
        scorer = get_scorer(name)
    except ValueError as error:
        refuse(
            f"there is no scoring {name!r}{' for a regression' if regression else ''}; dmkl has {', '.join(metrics)}, "
            "and scikit-learn those of sklearn.metrics.get_scorer_names()",
            error,
        )
    if not regression:
        return _of_classes(name, scorer, kind, numbered=True, probabilistic=probabilistic)
    metric, truth = _of_numbers(name, scorer), np.array([0.25, 0.5, 1.5])
    metric(truth, truth, np.zeros(0))
    return metric


def _called(name: str, scorer: Any, kind: Kind, probabilistic: bool) -> Metric:
    try:
        inspect.signature(scorer).bind(None, None, None)
    except (TypeError, ValueError) as error:
        refuse(
            f"scoring {name!r} must be a name or take (estimator, X, y), got {scorer!r}; wrap a function of truth and "
            "prediction with sklearn.metrics.make_scorer",
            error,
        )
    if kind == "regression":
        return _of_numbers(name, scorer)
    return _of_classes(name, scorer, kind, numbered=False, probabilistic=probabilistic)


def evaluate(
    metrics: Mapping[str, Metric], kind: Kind, classes: npt.ArrayLike, truth: npt.ArrayLike, decision: npt.ArrayLike
) -> Float:
    """Score decisions by metrics from `as_metrics`: (metrics,), or (metrics, tasks or targets), each scored separately.

    The truth is (rows,) labels, or (rows, tasks or targets), of which unknown labels do not count; `classes` are the
    learnt labels, sorted. The decision is (rows,) for two classes and for one target, (rows, classes), or (rows, tasks
    or targets). NaN where these labels leave a score undefined. InputError if a label is not one of the classes, or a
    scorer fails.
    """
    return evaluate_each(metrics, kind, classes, truth, np.asarray(decision)[None])[:, 0]


def evaluate_each(
    metrics: Mapping[str, Metric], kind: Kind, classes: npt.ArrayLike, truth: npt.ArrayLike, decisions: npt.ArrayLike
) -> Float:
    """Score the decisions of several points about the same rows, as `evaluate` does.

    Decisions are (points, rows), (points, rows, classes) or (points, rows, tasks or targets), and scores (metrics,
    points) or (metrics, points, tasks or targets).
    """
    truth, decisions, classes = np.asarray(truth), np.asarray(decisions), np.asarray(classes)
    truth = target_values(truth) if kind == "regression" else truth

    def score(metric: Metric, truth: Array, decisions: Array) -> Array:
        truth = truth.astype(np.int64) if kind == "multilabel" else truth
        if metric in _OF_SEVERAL:
            return np.asarray(metric(truth, decisions, classes))
        return np.array([metric(truth, decision, classes) for decision in decisions])

    if truth.ndim == 1:
        return np.array([score(metric, truth, decisions) for metric in metrics.values()])
    scores = np.full((len(metrics), len(decisions), truth.shape[1]), np.nan)
    is_labeled = is_known(truth)
    for k, metric in enumerate(metrics.values()):
        if metric in _OF_TARGETS and is_labeled.all():
            scores[k] = metric(truth, decisions, classes)
            continue
        for t, labeled in enumerate(is_labeled.T):
            if labeled.any():
                scores[k, :, t] = score(metric, truth[labeled, t], decisions[:, labeled, t])
    return scores
