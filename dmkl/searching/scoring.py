"""Scorers of decision scores and predictions, larger being better: those of the papers, and scikit-learn's."""

from __future__ import annotations

import inspect
import numbers
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax, xlogy
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import get_scorer

from dmkl.arrays import Array, Float, is_known, plain_repr
from dmkl.errors import InputError, refuse
from dmkl.learners.decisions import index_of, predicted_numbers
from dmkl.numerics.fisher import Kind, target_values
from dmkl.numerics.survival import concordance, concordance_ipcw, mean_dynamic_auc


@dataclass(frozen=True, eq=False)
class Metric:
    """A scorer of the decisions of several points about the same rows, under several labelings of these rows.

    `scores` is a function of the labelings (n, rows), the decisions (points, rows[, classes]) and the classes, sorted,
    with scores (points, n), NaN where they are undefined. Labels are numbers of classes, −1 of one that was not learnt,
    and decisions are (points, rows) for two classes, of which the second is the positive one. Of a regression labels
    and decisions are numbers, which may have a dimension of targets before the others.
    """

    scores: Callable[[Array, Array, Array], Float]
    cost: float = 1.0
    """The time for each point, row, class and labeling in units of a product of matrices; ∞ if each is a call."""


class OfProbabilities(Metric):
    """A metric of decisions that are logarithms of probabilities, as `probabilities` takes them."""


def _each(function: Callable[[Array, Array, Array], float], truths: Array, decisions: Array, classes: Array) -> Float:
    """The scores of a function of one labeling and the decisions of one point."""
    return np.array([[function(truth, decision, classes) for truth in truths] for decision in decisions])


_SORTS, _PAIRS = 40.0, 400.0
"""Time of a curve over sorted rows, and of counting pairs of some hundred rows, in units of a matrix product."""


# --- scorers of classes: means over a table ---------------------------------------------------------------------------


def _mean_of_table(
    table: Callable[[Array, int], Iterable[Array]],
    truths: Array,
    decisions: Array,
    classes: Array,
    *,
    by_class: bool = False,
) -> Float:
    """(1/m) Σ_k Σ_i [y_i = k] T_ki, T the score of row i if its class is k, of which `table` gives (point, row) by k.

    With `by_class` the rows of a class count 1/(its size) in place of 1/m, and the sum is over the number of classes.
    """
    total, n_present = np.zeros((len(decisions), len(truths))), np.zeros(len(truths))
    for k, scores in enumerate(table(decisions, len(classes))):
        is_class = truths == k
        size = is_class.sum(axis=1)
        # BLAS may also compute with uninitialized memory next to small matrices, and report that as invalid.
        with np.errstate(invalid="ignore"):
            sums = np.asarray(scores @ is_class.T.astype(scores.dtype), dtype=np.float64)
        total += sums / np.maximum(size, 1) if by_class else sums
        n_present += size > 0
    # A label that was not learnt has no score.
    learnt = (truths >= 0).all(axis=1)
    return np.where(learnt, total / np.where(learnt, n_present if by_class else truths.shape[1], 1), np.nan)


def probabilities(decision: Array) -> Float:
    """(rows, classes), from logarithms up to a constant of each row, or log odds (rows,): decisions by class means."""
    logits = np.asarray(decision, dtype=np.float64)
    return np.asarray(softmax(np.stack([0 * logits, logits], axis=-1) if logits.ndim == 1 else logits, axis=-1))


def _right(decisions: Array, n_classes: int) -> Iterable[Array]:
    predicted = predicted_numbers(decisions, n_classes)
    # Counts of rows are exact in single precision, whose products take half the time.
    return ((predicted == k).astype(np.float32) for k in range(n_classes))


def _log_probabilities(decisions: Array, n_classes: int) -> Iterable[Array]:
    p = np.stack([probabilities(of_point) for of_point in decisions])
    eps = np.finfo(p.dtype).eps  # as scikit-learn
    return np.moveaxis(np.log(np.clip(p, eps, 1.0 - eps)), -1, 0)


def _brier_scores(decisions: Array, n_classes: int) -> Iterable[Array]:
    # As scikit-learn's from 1.7 on, which is the first to accept several classes.
    p = np.stack([probabilities(of_point) for of_point in decisions])
    scores = 2.0 * p - (p**2).sum(axis=-1, keepdims=True) - 1.0
    return np.asarray(np.moveaxis(scores, -1, 0) / (2.0 if n_classes == 2 else 1.0))


# --- scorers of classes: each against the rest ------------------------------------------------------------------------


def _one_vs_rest(
    measure: Callable[[Array, Array], Float],
    truths: Array,
    decisions: Array,
    classes: Array,
    *,
    of_both: bool = False,
    values: Callable[[Array], Array] = np.asarray,
) -> Float:
    """The score of the second of two classes, or its mean over more, each against the rest, where it is defined.

    It is undefined, NaN, where no row is positive and, if `of_both`, where all are. `measure` takes which rows are
    positive, (n, rows), and their scores (points, rows): `values` of the decisions of a point.
    """
    decisions = np.stack([values(of_point) for of_point in decisions])
    several = decisions.ndim == 3
    scores = np.full((len(classes) if several else 1, len(decisions), len(truths)), np.nan)
    for k, of_class in enumerate(scores):
        positive = truths == (k if several else 1)
        defined = positive.any(axis=1) & ~(of_both & positive.all(axis=1))
        of_class[:, defined] = measure(positive[defined], decisions[..., k] if several else decisions)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(scores, axis=0) / np.isfinite(scores).sum(axis=0))


def _of_curves(summary: Callable[[Float, Float], Float], positive: Array, scores: Array) -> Float:
    """A number for each curve of precision and recall, (n, thresholds) with falling recall.

    Both are taken where the score changes, so that tied samples count together, without the point (1, 0) that closes a
    drawn curve.
    """
    values, n = np.empty((len(scores), len(positive))), positive.sum(axis=1)[:, None]
    for of_point, column in zip(values, scores, strict=True):
        order = np.argsort(-column, kind="stable")
        last = np.flatnonzero(np.diff(column[order], append=-np.inf))[::-1]
        found = np.take(np.cumsum(np.take(positive, order, axis=1), axis=1, dtype=np.float64), last, axis=1)
        recall = found / n
        of_point[:] = summary(np.divide(found, last + 1, out=found), recall)
    return values


def _area(precision: Float, recall: Float) -> Float:
    """Average precision Σ_i (r_i − r_{i−1}) p_i; overwrites recall, since new memory takes as long as the sums."""
    recall[:, :-1] -= recall[:, 1:]
    recall *= precision
    return np.asarray(recall.sum(axis=1))


def _area_of_envelope(precision: Float, recall: Float) -> Float:
    """∫₀¹ max_{r' ≥ r} precision(r') dr.

    Everingham, Winn: The PASCAL VOC 2010 development kit; used from VOC 2010 on.
    """
    return _area(np.maximum.accumulate(precision, axis=1), recall)


def _eleven_points(precision: Float, recall: Float) -> Float:
    """(1/11) Σ_{r = 0, 0.1, …, 1} max_{r' ≥ r} precision(r').

    Everingham, Van Gool, Williams, Winn, Zisserman: The PASCAL Visual Object Classes (VOC) challenge, IJCV 88 (2010),
    Section 4.2; used up to VOC 2009.
    """
    # Quotients of integers on both sides, so that a recall of three tenths reaches the level 0.3.
    return np.asarray(np.mean([np.where(recall >= k / 10, precision, 0.0).max(axis=1) for k in range(11)], axis=0))


def _roc_areas(positive: Array, scores: Array) -> Float:
    """(Σ_{i positive} r_i − n₊(n₊ + 1)/2)/(n₊n₋) with the midranks r (Mann, Whitney 1947)."""
    n = positive.sum(axis=1)
    above = rankdata(scores, axis=1) @ positive.T.astype(np.float64) - n * (n + 1) / 2
    return np.asarray(above / (n * (positive.shape[1] - n)))


def _matthews(positive: Array, predicted: Array) -> Float:
    """(TP·TN − FP·FN) / √((TP + FP)(TP + FN)(TN + FP)(TN + FN)), 0 where a class is never predicted.

    JMLR Section 3.6, after Kloft, Brefeld, Sonnenburg, Zien: ℓp-norm multiple kernel learning, JMLR 12 (2011).
    """
    predicted, m = predicted.astype(np.float64), positive.shape[1]
    n, n_predicted = positive.sum(axis=1), predicted.sum(axis=1)[:, None]
    covariance = m * (predicted @ positive.T.astype(np.float64)) - n_predicted * n
    total = n_predicted * (m - n_predicted) * n * (m - n)
    return np.asarray(np.divide(covariance, np.sqrt(total), out=np.zeros(total.shape), where=total > 0))


def _is_predicted(decision: Array) -> Array:
    """Whether the class, or each of several, is predicted for a row."""
    return np.eye(decision.shape[1], dtype=bool)[np.argmax(decision, axis=1)] if decision.ndim > 1 else decision > 0


_MEAN_CLASS_ACCURACY = Metric(partial(_mean_of_table, _right, by_class=True))
_MATTHEWS = partial(_one_vs_rest, _matthews, of_both=True, values=_is_predicted)
OWN_METRICS: dict[str, Metric] = {
    "mean_class_accuracy": _MEAN_CLASS_ACCURACY,
    "balanced_accuracy": _MEAN_CLASS_ACCURACY,
    "accuracy": Metric(partial(_mean_of_table, _right)),
    "average_precision": Metric(partial(_one_vs_rest, partial(_of_curves, _area)), _SORTS),
    "average_precision_voc": Metric(partial(_one_vs_rest, partial(_of_curves, _area_of_envelope)), _SORTS),
    "average_precision_voc07": Metric(partial(_one_vs_rest, partial(_of_curves, _eleven_points)), _SORTS),
    "matthews": Metric(_MATTHEWS),
    "neg_matthews_loss": Metric(lambda truths, decisions, classes: _MATTHEWS(truths, decisions, classes) - 1.0),
}
OWN_METRICS |= {f"mean_{name}": metric for name, metric in OWN_METRICS.items() if name.startswith("average_precision")}
"""Scorers of classes that `as_metrics` does not look up in scikit-learn, by name."""
_ROC_AUC = partial(_one_vs_rest, _roc_areas, of_both=True)
OF_TWO_CLASSES = {"roc_auc": Metric(_ROC_AUC)}
"""Scorers of two classes that `as_metrics` does not look up in scikit-learn."""
PROBABILISTIC: dict[str, Metric] = {
    "neg_log_loss": OfProbabilities(partial(_mean_of_table, _log_probabilities)),
    "neg_brier_score": OfProbabilities(partial(_mean_of_table, _brier_scores)),
    "roc_auc_ovr": OfProbabilities(partial(_ROC_AUC, values=lambda of: of if of.ndim == 1 else probabilities(of))),
}
"""Scorers of probabilities that `as_metrics` does not look up in scikit-learn: rows may lack a class."""


# --- scorers of a regression ------------------------------------------------------------------------------------------


def _squared_errors(truths: Array, predicted: Array) -> Float:
    """Σ(y − f)², (points, n)."""
    if truths.shape[-2] == 1:
        return np.asarray(np.sum((truths - predicted) ** 2, axis=-1)[..., None])
    # Of several labelings by a product of matrices, from numbers less the mean of all, which loses few digits.
    center = truths.mean()
    t, f = truths - center, predicted - center
    return np.asarray(np.sum(f**2, axis=-1)[..., None] - 2.0 * f @ t.mT + np.sum(t**2, axis=-1)[..., None, :])


def _r2(truths: Array, predicted: Array, _: Array) -> Float:
    """R² = 1 − Σ(y − f)²/Σ(y − ȳ)²; of a constant truth 1 if it is predicted and 0 otherwise, as in scikit-learn."""
    total = np.sum((truths - truths.mean(axis=-1, keepdims=True)) ** 2, axis=-1)[..., None, :]
    left = _squared_errors(truths, predicted)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, left / total, left > 0)
    return 1.0 - share if truths.shape[-1] > 1 else np.full(share.shape, np.nan)


def _neg_mean_squared_error(truths: Array, predicted: Array, _: Array) -> Float:
    m = truths.shape[-1]
    return _squared_errors(truths, predicted) / (-m if m > 1 else np.nan)


def _correlation(truths: Array, predicted: Array, _: Array) -> Float:
    """Pearson's correlation Σ(y − ȳ)(f − f̄) / √(Σ(y − ȳ)² Σ(f − f̄)²): NaN for a constant y, 0 for a constant f."""
    y, f = (values - values.mean(axis=-1, keepdims=True) for values in (truths, predicted))
    size_y, size_f = (np.linalg.norm(values, axis=-1) for values in (y, f))
    # A constant less its mean is rounding error.
    flat_y, flat_f = (
        size <= 1e-13 * np.linalg.norm(values, axis=-1) for size, values in ((size_y, truths), (size_f, predicted))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        value = f @ y.mT / (size_f[..., None] * size_y[..., None, :])
    return np.where(flat_y[..., None, :], np.nan, np.where(flat_f[..., None], 0.0, value))


def _d2_poisson(truths: Array, predicted: Array, _: Array) -> Float:
    """1 − Σ(y log(y/f) − y + f)/Σ y log(y/ȳ); NaN for constant counts, and for predictions that are not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        left = (xlogy(truths, truths) - truths).sum(axis=1) - np.log(predicted) @ truths.T
        left += predicted.sum(axis=1)[:, None]
        value = 1.0 - left / xlogy(truths, truths / truths.mean(axis=1, keepdims=True)).sum(axis=1)
    are_counts = (truths >= 0).all(axis=1) & (np.ptp(truths, axis=1) > 0)
    return np.where((predicted.min(axis=1, keepdims=True) > 0) & are_counts, value, np.nan)


def _quadratic_kappa(truths: Array, predicted: Array, _: Array) -> Float:
    """1 − mean (y_i − f_i)²/mean over all pairs of (y_i − f_j)²: Cohen's κ with quadratic weights of whole numbers.

    Cohen: Weighted kappa, Psychological Bulletin 70 (1968).
    """
    f_mean, f_variance = predicted.mean(axis=1)[:, None], predicted.var(axis=1)[:, None]
    of_pairs = truths.var(axis=1) + f_variance + (truths.mean(axis=1) - f_mean) ** 2
    of_pairs[of_pairs == 0.0] = np.nan
    return np.asarray(1.0 - _squared_errors(truths, predicted) / truths.shape[1] / of_pairs)


def _of_pairs(index: Callable[[Array, Float], Any], truths: Array, predicted: Array, _: Array) -> Float:
    return np.stack([index(truth, predicted) for truth in truths], axis=-1)


OF_NUMBERS: dict[str, Metric] = {
    "correlation": Metric(_correlation),
    "r2": Metric(_r2),
    "neg_mean_squared_error": Metric(_neg_mean_squared_error),
    "d2_poisson": Metric(_d2_poisson),
    "quadratic_kappa": Metric(_quadratic_kappa),
    "concordance_index": Metric(partial(_of_pairs, concordance), _PAIRS),
    "concordance_index_ipcw": Metric(partial(_of_pairs, concordance_ipcw), _PAIRS),
    "dynamic_auc": Metric(partial(_each, lambda truth, risk, _: mean_dynamic_auc(truth, risk)), np.inf),
}
"""Scorers of a regression that `as_metrics` does not look up in scikit-learn, by name."""
_OF_TARGETS = tuple(OF_NUMBERS[name] for name in ("correlation", "r2", "neg_mean_squared_error"))
"""Scorers that accept several targets at once: thousands of them, at every point of a grid."""


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


class _Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose samples are their own decision scores."""

    def __init__(self, classes: Array) -> None:
        self.classes = classes
        self.classes_ = classes

    def decision_function(self, X: Array) -> Array:
        return X[:, 0] if X.shape[1] == 1 else X

    def predict(self, X: Array) -> Array:
        return np.asarray(self.classes_[predicted_numbers(self.decision_function(X), len(self.classes_))])


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


def _score_truth(scorer: Any, index: Array, classes: Array) -> None:
    """Score perfect decisions; raises if even these have no score."""
    signs = 2.0 * np.eye(len(classes))[index] - 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UndefinedMetricWarning)
        _call(scorer, classes[index], signs[:, 1] if len(classes) == 2 else signs, classes)


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
        _score_truth(scorer, np.tile(np.arange(len(classes)), 2), classes)
    except _FAILURES as error:
        raise _refusal(name, classes, error) from error


def _of_classes(name: str, scorer: Any, kind: Kind, *, numbered: bool, probabilistic: bool) -> Metric:
    """A scikit-learn scorer of classes as a metric; it sees the labels, or their numbers if `numbered`."""
    numbers, by_probabilities = np.arange(3 if kind == "multiclass" else 2), _BY_PROBABILITIES in repr(scorer)
    if by_probabilities and not probabilistic:
        raise _refusal(name, numbers, AttributeError("predict_proba"))
    if numbered:
        _check(name, scorer, numbers)

    def score(index: Array, decision: Array, classes: Array) -> float:
        if (index < 0).any():  # a label that was not learnt
            return float("nan")
        classes = np.arange(len(classes)) if numbered else classes
        complete = len(np.unique(index)) == len(classes)
        if not complete:
            _check(name, scorer, classes)
            try:
                _score_truth(scorer, index, classes)
            except _FAILURES:
                return float("nan")
        with warnings.catch_warnings():
            # If all classes are present, scikit-learn's "undefined" only means that a class is never predicted.
            warnings.simplefilter("ignore", UndefinedMetricWarning if complete else Warning)
            try:
                return _call(scorer, classes[index], decision, classes)
            except _FAILURES as error:
                raise _refusal(name, classes, error) from error

    return (OfProbabilities if by_probabilities else Metric)(partial(_each, score), np.inf)


def _of_numbers(name: str, scorer: Any) -> Metric:
    """A scikit-learn scorer of predictions as a metric; NaN for fewer than two values."""

    def score(truth: Array, predicted: Array, classes: Array) -> float:
        if len(truth) < 2:
            return float("nan")
        try:
            return _call(scorer, truth, predicted, None)
        except (*_FAILURES, TypeError) as error:
            raise _refusal(name, None, error) from error

    return Metric(partial(_each, score), np.inf)


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
    `probabilistic`. InputError if a name is unknown, a scorer needs probabilities or does not suit this kind of
    problem, or `scoring` is something else.

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
        chosen = {scoring: scoring}
    elif isinstance(scoring, Mapping):
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
    return {name: _as_metric(name, scorer, kind, probabilistic) for name, scorer in chosen.items()}


def _as_metric(name: str, scorer: Any, kind: Kind, probabilistic: bool) -> Metric:
    """The metric of a scorer: the name of one, or a callable that is called `name` in messages."""
    is_regression, is_named = kind == "regression", isinstance(scorer, str)
    if is_named:
        name, metrics = scorer, OF_NUMBERS if is_regression else OWN_METRICS | (PROBABILISTIC if probabilistic else {})
        metrics = metrics | ({} if kind in ("regression", "multiclass") else OF_TWO_CLASSES)
        if name in metrics:
            return metrics[name]
        try:
            scorer = get_scorer(name)
        except ValueError as error:
            refuse(
                f"there is no scoring {name!r}{' for a regression' if is_regression else ''}; dmkl has "
                f"{', '.join(metrics)}, and scikit-learn those of sklearn.metrics.get_scorer_names()",
                error,
            )
    else:
        try:
            inspect.signature(scorer).bind(None, None, None)
        except (TypeError, ValueError) as error:
            refuse(
                f"scoring {name!r} must be a name or take (estimator, X, y), got {scorer!r}; wrap a function of truth "
                "and prediction with sklearn.metrics.make_scorer",
                error,
            )
    if not is_regression:
        return _of_classes(name, scorer, kind, numbered=is_named, probabilistic=probabilistic)
    metric, truth = _of_numbers(name, scorer), np.array([[0.25, 0.5, 1.5]])
    if is_named:  # refused if it does not suit a regression
        metric.scores(truth, truth, np.zeros(0))
    return metric


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
    if truth.ndim == 1:
        truths = (truth if kind == "regression" else index_of(truth, classes))[None]
        return np.array([metric.scores(truths, decisions, classes)[:, 0] for metric in metrics.values()])
    scores = np.full((len(metrics), len(decisions), truth.shape[1]), np.nan)
    is_labeled = is_known(truth)
    for k, metric in enumerate(metrics.values()):
        if metric in _OF_TARGETS and is_labeled.all():
            scores[k] = metric.scores(truth.T[:, None], np.moveaxis(decisions, -1, 0), classes)[..., 0].T
            continue
        for t, labeled in enumerate(is_labeled.T):
            if labeled.any():
                of_task = truth[labeled, t]
                of_task = of_task if kind == "regression" else index_of(of_task.astype(np.int64), classes)
                scores[k, :, t] = metric.scores(of_task[None], decisions[:, labeled, t], classes)[:, 0]
    return scores
