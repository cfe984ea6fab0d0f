"""p-values of held-out scores: labels of the held-out rows are permuted, and the decisions about them are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmkl.arrays import Array, Float, Index, is_known
from dmkl.learners.decisions import index_of
from dmkl.numerics.fisher import Targets
from dmkl.searching.scoring import Metric

_MOST, _FEWEST = 999, 99
_MOST_PRODUCTS, _MOST_CALLS = 4e9, 1e3
"""Most products of decisions with permuted labels (`Metric.cost`), and most calls of other scorers: they limit the
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
    each of `n_tasks` would take too long, as they may with scorers that are called for each labeling.
    """
    y = labels if task is None else labels[:, task]
    known = [np.asarray(is_known(y[of_fold])) for of_fold in rows]
    rows = [of_fold[mask] for of_fold, mask in zip(rows, known, strict=True)]
    used, inverse = np.unique(np.concatenate(rows), return_inverse=True)
    if not len(used):
        return np.nan, np.nan, _MOST
    units, cells = _units_and_cells(y[used], rows, inverse, None if groups is None else groups[used])
    codes = np.unique(y[used], return_inverse=True)[1]
    is_regression = targets[0].kind == "regression"
    n_points, n_classes = len(decided[0]), 1 if is_regression else codes.max() + 1
    products = metric.cost * len(inverse) * n_classes
    n = (_MOST_PRODUCTS / products if np.isfinite(products) else _MOST_CALLS / len(rows)) / (n_points * n_tasks)
    n = min(_MOST, int(n))
    if n < _FEWEST:
        return np.nan, np.nan, 0
    first = np.unique(units, return_index=True)[1]  # a row of each unit, from which its label is taken
    values_used = y[used].astype(np.float64 if is_regression else np.int64 if task is not None else y.dtype)
    of_folds = []  # labels, decisions and classes, as metrics take them
    for mask, of_points, learnt in zip(known, decided, targets, strict=True):
        numbers = values_used if is_regression else index_of(values_used, learnt.classes, all_learnt=False)
        values = np.stack([part[mask] if task is None else part[mask, task] for part in of_points])
        one_column = values.ndim == 3 and values.shape[2] == 1
        of_folds.append((numbers, values[..., 0] if one_column else values, learnt.classes))
    ends, rng = np.cumsum([len(of_fold) for of_fold in rows])[:-1], np.random.default_rng(0)
    scores = np.empty((len(rows), n_points, n + 1))
    together, changed = max(1, _BYTES // (8 * len(inverse))), False
    for start in range(0, n + 1, together):
        orders = np.tile(np.arange(len(cells)), (min(together, n + 1 - start), 1))
        given = int(start == 0)  # the given labels are the first
        for cell in np.unique(cells):
            members = np.flatnonzero(cells == cell)
            orders[given:, members] = rng.permuted(orders[given:, members], axis=1)
        permuted = first[orders[:, units]]  # (permutation, row)
        changed = changed or bool((codes[permuted] != codes).any())
        for (numbers, *of_fold), at, values in zip(of_folds, np.split(inverse, ends), scores, strict=True):
            values[:, start : start + len(orders)] = metric.scores(numbers[permuted[:, at]], *of_fold)
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
