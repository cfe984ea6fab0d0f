"""p-values of held-out scores: labels of the held-out rows are permuted, and the decisions about them are kept.

Scores of the same decisions under many labels are vectorized over points and permutations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.special import xlogy
from scipy.stats import rankdata

from dmkl.arrays import Array, Float, Index, is_known
from dmkl.numerics.fisher import Kind, Targets
from dmkl.numerics.survival import concordance, concordance_ipcw
from dmkl.searching.scoring import (
    OF_NUMBERS,
    OF_TWO_CLASSES,
    OWN_METRICS,
    PROBABILISTIC,
    Metric,
    accuracy,
    evaluate_each,
    matthews,
    mean_class_accuracy,
    predicted_numbers,
    probabilities,
)

_MOST, _FEWEST = 999, 99
_MOST_PRODUCTS, _MOST_CALLS = 4e9, 1e3
"""Most products of decisions with permuted labels (`cost`), and most calls of other scorers: they limit the
permutations."""
_BYTES = 2**26  # Bytes of permuted labels that are scored together.
_ROUNDING = 1e-9


def chance(
    metric: Metric,
    labels: Array,
    rows: Sequence[Index],
    targets: Sequence[Targets],
    decided: Sequence[Sequence[Float]],
    groups: Array | None = None,
    *,
    task: int | None = None,
    n_tasks: int = 1,
    by_fold: bool = False,
) -> tuple[float, float, int]:
    """The p-value (1 + #{T* ≥ T})/(1 + N) of the mean score T over the folds, the mean T* of permuted labels, and N.

    `rows` (fold,) are held out, and `decided` (fold, point) are the decisions about them. Of several points T is the
    largest mean; with `by_fold` the mean of the largest score of each fold. Labels change places within folds; whole
    groups do where each has one label, and the rows of a group otherwise. Folds of one row or group are exchanged
    together, and so are all rows if one is held out twice. Covariates stay with their rows: the hypothesis tested is
    that labels depend neither on kernels nor on covariates.

    Scores of folds that train on one another's rows are dependent. If they are bilinear in the labels of training and
    held-out rows, each pair counts in two folds, and the variance of the mean is twice that of permuted labels. With
    several folds, deviations from the mean of the permutations are multiplied by √2 therefore. In simulations of noise
    tests at 5 % rejected in 1.5 to 5.5 of 100 cases; in up to 13 without the factor.

    NaN if no label is known or changes its place, or a score is undefined. NaN and N = 0 if `_FEWEST` permutations of
    each of `n_tasks` would take too long, as they may with scorers that `cost` does not know.
    """
    y = labels if task is None else labels[:, task]
    known = [np.asarray(is_known(y[of_fold])) for of_fold in rows]
    rows = [of_fold[mask] for of_fold, mask in zip(rows, known, strict=True)]
    used, inverse = np.unique(np.concatenate(rows), return_inverse=True)
    if not len(used):
        return np.nan, np.nan, _MOST
    units, cells = _units_and_cells(y[used], rows, inverse, None if groups is None else groups[used])
    codes = np.unique(y[used], return_inverse=True)[1]
    kind: Kind = "binary" if targets[0].kind == "multilabel" else targets[0].kind
    n_points, n_classes = len(decided[0]), 1 if kind == "regression" else len(np.unique(codes))
    products = cost(metric) * len(inverse) * n_classes
    n = (_MOST_PRODUCTS / products if np.isfinite(products) else _MOST_CALLS / len(rows)) / (n_points * n_tasks)
    n = min(_MOST, int(n))
    if n < _FEWEST:
        return np.nan, np.nan, 0
    first = np.unique(units, return_index=True)[1]  # a row of each unit, from which its label is taken
    whole = len(first) < len(used)
    scorers = []
    for mask, of_points, learnt in zip(known, decided, targets, strict=True):
        classes = np.array([0, 1]) if learnt.kind == "multilabel" else learnt.classes
        values = np.stack([part[mask] if task is None else part[mask, task] for part in of_points])
        one_column = values.ndim == 3 and values.shape[2] == 1
        scorers.append(by_labels(metric, kind, classes, values[..., 0] if one_column else values))
    ends, rng = np.cumsum([len(of_fold) for of_fold in rows])[:-1], np.random.default_rng(0)
    scores = np.empty((len(rows), n_points, n + 1))
    together, changed = max(1, _BYTES // (8 * len(inverse))), False
    for start in range(0, n + 1, together):
        orders = np.tile(np.arange(len(cells)), (min(together, n + 1 - start), 1))
        given = int(start == 0)  # the given labels are the first
        for cell in np.unique(cells):
            members = np.flatnonzero(cells == cell)
            orders[given:, members] = rng.permuted(orders[given:, members], axis=1)
        permuted = y[used][first[orders[:, units]] if whole else orders]  # (permutation, row)
        changed = changed or bool((permuted != y[used]).any())
        for scorer, at, of_fold in zip(scorers, np.split(inverse, ends), scores, strict=True):
            of_fold[:, start : start + len(orders)] = scorer(permuted[:, at])
    if not changed:
        return np.nan, np.nan, n
    scores = scores[np.isfinite(scores).all(axis=(1, 2))]
    if not len(scores):
        return np.nan, np.nan, n
    if len(rows) > 1:
        mean = scores[..., 1:].mean(axis=-1, keepdims=True)
        scores[..., 1:] = mean + np.sqrt(2.0) * (scores[..., 1:] - mean)
    total = scores.max(axis=1).mean(axis=0) if by_fold else scores.mean(axis=0).max(axis=0)
    as_high = total[1:] >= total[0] - _ROUNDING * max(1.0, abs(total[0]))
    return float((1 + as_high.sum()) / (1 + n)), float(total[1:].mean()), n


def _units_and_cells(y: Array, rows: Sequence[Index], inverse: Index, groups: Array | None) -> tuple[Index, Index]:
    """The unit of each row, which keeps one label, and the cell of each unit, within which labels change places."""
    units = np.arange(len(y))
    if groups is not None:
        of_group = np.unique(groups.astype(str), return_inverse=True)[1]
        if any(len(np.unique(y[of_group == k])) > 1 for k in range(of_group.max() + 1)):
            return units, of_group
        units = of_group
    cells = np.zeros(units.max() + 1, dtype=np.int64)
    if len(inverse) == len(y):
        fold_of = np.empty(len(y), dtype=np.int64)
        fold_of[inverse] = np.repeat(np.arange(len(rows)), [len(of_fold) for of_fold in rows])
        cells[units] = fold_of
        cells[np.bincount(cells)[cells] == 1] = len(rows)
    return units, cells


ByLabels = Callable[[Array], Float]
"""Labels (permutation, row) ↦ scores (point, permutation)."""

_SORTS, _PAIRS = 40.0, 400.0
"""Time of a curve over sorted rows, and of counting pairs of some hundred rows, in units of a matrix product."""


def cost(metric: Metric) -> float:
    """The time for each point, row, class and permutation in units of a product; ∞ for metrics that are called."""
    if metric in _OF_CURVES or metric in _OF_PAIRS:
        return _SORTS if metric in _OF_CURVES else _PAIRS
    return 1.0 if any(metric in known for known in (_TABLES, _OF_CLASSES, _OF_TARGETS)) else np.inf


def by_labels(metric: Metric, kind: Kind, classes: Array, decisions: Float) -> ByLabels:
    """The scores of decisions (point, row[, class]) as a function of the labels of the rows.

    Accuracy, log loss and the Brier score are means over the rows of a table by label, (1/m) Σ_k Σ_i [y_i = k] T_ki;
    mean class accuracy has the size of class k in place of m, and divides by the number of classes. The area under the
    ROC curve is (Σ_{i positive} r_i − n₊(n₊ + 1)/2)/(n₊n₋) with the midranks r (Mann, Whitney 1947), average precision
    Σ_{i positive} precision_i/n₊ over the rows in falling order. All are as those of `searching.scoring`; other metrics
    are called for each point and permutation.
    """
    calls = partial(_calls, metric, kind, classes, decisions)
    if kind == "regression":
        of_targets = (_OF_TARGETS | _OF_PAIRS).get(metric)
        return calls if of_targets is None else partial(of_targets, decisions)
    if metric in _TABLES:
        tables = _TABLES[metric](decisions, classes)
        return partial(_sum_tables, classes, tables, by_class=metric is mean_class_accuracy)
    of_class = (_OF_CLASSES | _OF_CURVES).get(metric)
    if of_class is None:
        return calls
    if decisions.ndim == 3 and metric is PROBABILISTIC["roc_auc_ovr"]:
        decisions = np.stack([probabilities(of_point) for of_point in decisions])
    elif decisions.ndim == 3 and metric in _OF_LABELS:
        decisions = np.eye(decisions.shape[2])[np.argmax(decisions, axis=2)]
    return partial(_mean_over_classes, of_class, classes, decisions)


def _calls(metric: Metric, kind: Kind, classes: Array, decisions: Float, labels: Array) -> Float:
    truths = labels.astype(np.float64) if kind == "regression" else labels
    return np.stack([evaluate_each({"": metric}, kind, classes, truth, decisions)[0] for truth in truths], axis=-1)


def _right(decisions: Float, classes: Array) -> Array:
    is_right = predicted_numbers(decisions, classes) == np.arange(len(classes))[:, None, None]
    return np.asarray(is_right, dtype=np.float32)


def _log_probabilities(decisions: Float, classes: Array) -> Array:
    p = np.stack([probabilities(of_point) for of_point in decisions])
    eps = np.finfo(p.dtype).eps  # as scikit-learn
    return np.asarray(np.moveaxis(np.log(np.clip(p, eps, 1.0 - eps)), -1, 0))


def _brier_scores(decisions: Float, classes: Array) -> Array:
    p = np.stack([probabilities(of_point) for of_point in decisions])
    scores = 2.0 * p - (p**2).sum(axis=-1, keepdims=True) - 1.0
    return np.asarray(np.moveaxis(scores, -1, 0) / (2.0 if len(classes) == 2 else 1.0))


_TABLES: dict[Metric, Callable[[Float, Array], Array]] = {
    accuracy: _right,
    mean_class_accuracy: _right,
    PROBABILISTIC["neg_log_loss"]: _log_probabilities,
    PROBABILISTIC["neg_brier_score"]: _brier_scores,
}
"""The score of a row if its label is that of the class, (class, point, row), from decisions and classes."""


def _sum_tables(classes: Array, tables: Array, labels: Array, *, by_class: bool) -> Float:
    total, n_present, n_rows = 0.0, np.zeros(len(labels)), np.zeros(len(labels))
    for label, table in zip(classes, tables, strict=True):
        is_class = (labels == label).astype(table.dtype)
        size = is_class.sum(axis=1, dtype=np.float64)
        n_present, n_rows = n_present + (size > 0), n_rows + size
        total = total + (table @ is_class.T) / (np.maximum(size, 1.0) if by_class else 1.0)
    # A label that was not learnt has no score.
    return np.where(n_rows == labels.shape[1], total / (n_present if by_class else labels.shape[1]), np.nan)


def _mean_over_classes(
    of_class: Callable[[Float, Array], Float], classes: Array, decisions: Float, labels: Array
) -> Float:
    """As `scoring._one_vs_rest`: the mean over the classes where the score is defined."""
    if decisions.ndim == 3:
        values = np.stack([of_class(decisions[..., k], labels == label) for k, label in enumerate(classes)])
    else:
        values = of_class(decisions, labels == classes[1])[None]
    defined = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(defined, values, 0.0).sum(axis=0) / defined.sum(axis=0))


def _roc_areas(scores: Float, positive: Array) -> Float:
    n = positive.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        above = rankdata(scores, axis=1) @ positive.T.astype(np.float64) - n * (n + 1) / 2
        return np.asarray(above / (n * (positive.shape[1] - n)))


def _average_precisions(scores: Float, positive: Array, *, levels: int = 0, envelope: bool = False) -> Float:
    """Average precision; of the largest precision at the same or a larger recall with `envelope` or at `levels`."""
    n, averages = positive.sum(axis=1), np.empty((len(scores), len(positive)))
    for average, column in zip(averages, scores, strict=True):
        order = np.argsort(-column, kind="stable")
        last = np.searchsorted(-column[order], -column[order], side="right") - 1  # rows with one score count together
        hits = positive[:, order]
        n_found = np.cumsum(hits, axis=1)[:, last]
        precision = n_found / (last + 1)
        if envelope or levels:
            precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            if levels:
                reached = [n_found / n[:, None] >= k / (levels - 1) for k in range(levels)]
                average[:] = np.mean([np.where(at, precision, 0.0).max(axis=1) for at in reached], axis=0)
                average[n == 0] = np.nan
            else:
                average[:] = (hits * precision).sum(axis=1) / n
    return averages


def _matthews(scores: Float, positive: Array) -> Float:
    """Of scores of predicted classes, which are positive."""
    predicted, m = (scores > 0).astype(np.float64), positive.shape[1]
    n, n_predicted = positive.sum(axis=1), predicted.sum(axis=1)[:, None]
    covariance = m * (predicted @ positive.T.astype(np.float64)) - n_predicted * n
    with np.errstate(divide="ignore", invalid="ignore"):
        value = covariance / np.sqrt(n_predicted * (m - n_predicted) * n * (m - n))
    value = np.where((n_predicted > 0) & (n_predicted < m), value, 0.0)
    return np.where((n > 0) & (n < m), value, np.nan)


_OF_LABELS: dict[Metric, Callable[[Float, Array], Float]] = {
    matthews: _matthews,
    OWN_METRICS["neg_matthews_loss"]: lambda scores, positive: _matthews(scores, positive) - 1.0,
}
_OF_CLASSES: dict[Metric, Callable[[Float, Array], Float]] = {
    **_OF_LABELS,
    OF_TWO_CLASSES["roc_auc"]: _roc_areas,
    PROBABILISTIC["roc_auc_ovr"]: _roc_areas,
}
"""Scores (point, permutation) of one class, from its scores (point, row) and its rows (permutation, row)."""
_OF_CURVES: dict[Metric, Callable[[Float, Array], Float]] = {
    OWN_METRICS["average_precision"]: _average_precisions,
    OWN_METRICS["average_precision_voc"]: partial(_average_precisions, envelope=True),
    OWN_METRICS["average_precision_voc07"]: partial(_average_precisions, levels=11),
}


def _centered(predicted: Float, labels: Array) -> tuple[Float, Float, Float, Float]:
    """Numbers (permutation, row) less the mean of all, Σ(t − t̄)², predictions likewise, and the products of both."""
    center = labels.astype(np.float64).mean()
    t, f = labels.astype(np.float64) - center, predicted - center
    return t, ((t - t.mean(axis=1, keepdims=True)) ** 2).sum(axis=1), f, f @ t.T


def _squared_errors(predicted: Float, labels: Array) -> Float:
    t, _, f, products = _centered(predicted, labels)
    return np.asarray((t**2).sum(axis=1) - 2.0 * products + (f**2).sum(axis=1)[:, None])


def _r2(predicted: Float, labels: Array) -> Float:
    total = _centered(predicted, labels)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        left = _squared_errors(predicted, labels) / total
        return np.where((total > 0) & (labels.shape[1] > 1), 1.0 - left, np.nan)


def _correlations(predicted: Float, labels: Array) -> Float:
    t, total, f, products = _centered(predicted, labels)
    f_total = ((f - f.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)[:, None]
    covariance = products - t.shape[1] * f.mean(axis=1)[:, None] * t.mean(axis=1)
    flat = f_total <= 1e-26 * (predicted**2).sum(axis=1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, np.where(flat, 0.0, covariance / np.sqrt(f_total * total)), np.nan)


def _d2_poisson(predicted: Float, labels: Array) -> Float:
    t = labels.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = (xlogy(t, t) - t).sum(axis=1) - np.log(predicted) @ t.T + predicted.sum(axis=1)[:, None]
        value = 1.0 - left / xlogy(t, t / t.mean(axis=1, keepdims=True)).sum(axis=1)
    are_counts = (t >= 0).all(axis=1) & (np.ptp(t, axis=1) > 0)
    return np.where((predicted.min(axis=1, keepdims=True) > 0) & are_counts, value, np.nan)


def _quadratic_kappas(predicted: Float, labels: Array) -> Float:
    t, (f_mean, f_var) = labels.astype(np.float64), (of(predicted, axis=1)[:, None] for of in (np.mean, np.var))
    of_pairs = t.var(axis=1) + f_var + (t.mean(axis=1) - f_mean) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        value = 1.0 - _squared_errors(predicted, labels) / labels.shape[1] / of_pairs
    return np.where(of_pairs > 0, value, np.nan)


_OF_TARGETS: dict[Metric, Callable[[Float, Array], Float]] = {
    OF_NUMBERS["r2"]: _r2,
    OF_NUMBERS["correlation"]: _correlations,
    OF_NUMBERS["neg_mean_squared_error"]: lambda predicted, labels: (
        -_squared_errors(predicted, labels) / labels.shape[1]
    ),
    OF_NUMBERS["d2_poisson"]: _d2_poisson,
    OF_NUMBERS["quadratic_kappa"]: _quadratic_kappas,
}
"""Scores (point, permutation) of predictions (point, row) of numbers (permutation, row)."""


def _of_pairs(index: Callable[[Array, Float], Float], predicted: Float, labels: Array) -> Float:
    return np.stack([index(truth, predicted) for truth in labels.astype(np.float64)], axis=-1)


_OF_PAIRS: dict[Metric, Callable[[Float, Array], Float]] = {
    OF_NUMBERS["concordance_index"]: partial(_of_pairs, concordance),
    OF_NUMBERS["concordance_index_ipcw"]: partial(_of_pairs, concordance_ipcw),
}
