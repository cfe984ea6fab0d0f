"""Conformal prediction: sets of labels and intervals of a given coverage, from rows that a model was not trained on.

The nonconformity of a row is 1 − p(its label), or |y − ŷ|. With the scores of m such rows, sets and intervals hold all
labels whose nonconformity is at most the ⌈(m + 1)·coverage⌉-th smallest of them. If these rows and a new one are
exchangeable, and the model depends on neither, they hold its label with at least this probability (Vovk, Gammerman,
Shafer: Algorithmic learning in a random world, 2005). Each group of rows counts as one row, for new rows of other
groups (Lee, Barber, Willett: Distribution-free inference with hierarchical data, 2023).

By the models of all folds (CV+), each of which scores the rows that it was not trained on and every new row, sets and
intervals hold the true label with a probability of at least about 2·coverage − 1, which is proven if rows are
exchangeable, and near the coverage as a rule (Barber, Candès, Ramdas, Tibshirani: Predictive inference with the
jackknife+, Annals of Statistics 49, 2021; Romano, Sesia, Candès: Classification with valid and adaptive coverage,
NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from dmkl.arrays import Array, Float, Index, is_known
from dmkl.errors import refuse
from dmkl.variables import describe

FOLDS = "rows that folds held out"
_ROUNDING = 1e-9


def threshold(scores: Float, groups: Array, coverage: float) -> float:
    """The least score q for which the rows of scores up to q count `coverage`·(G + 1); ∞ if there is none.

    Each of the G groups counts one, shared equally by its rows; where rows are exchangeable, `groups` all differ.
    """
    counts, n_groups = _counts(groups)
    return _order_statistic(scores, counts, coverage * (n_groups + 1))


def _counts(groups: Array) -> tuple[Float, int]:
    """How much each row counts, and the number of groups."""
    _, member, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return 1.0 / sizes[member.ravel()], len(sizes)


def _order_statistic(scores: Float, counts: Float, needed: float) -> float:
    order = np.argsort(scores)
    place = int(np.searchsorted(np.cumsum(counts[order]), needed - _ROUNDING))
    return float(scores[order[place]]) if place < len(scores) else np.inf


def by_row(scores: Float, problem: Index, label: Index, group: Array, learnt_on: str) -> xr.Dataset:
    """`nonconformity_` of a model, from arrays of one shape: a row for each score that is known.

    The score, its problem (a task, a target, or 0), the number of its class (0 in a regression), and its group.
    `learnt_on` names the rows, on which the model may depend.
    """
    number = np.unique(group, return_inverse=True)[1].reshape(scores.shape)
    columns = {"nonconformity": scores.astype(np.float64), "problem": problem, "true_class": label, "row_group": number}
    known = np.isfinite(scores)
    attrs = {"learnt_on": learnt_on, "guaranteed": 0}
    return describe(xr.Dataset({name: ("held_out", of[known]) for name, of in columns.items()}, attrs=attrs))


def of_predictions(predictions: xr.Dataset) -> xr.Dataset | None:
    """`nonconformity_` from out-of-fold predictions (`GridResult.predictions`); None if these lack probabilities.

    A sample that several folds hold out counts once.
    """
    given = _nonconformity(predictions)
    if given is None:
        return None
    scores, label, _ = given
    group = predictions.get("sample_group", predictions["sample"]).values
    group, problem = (np.broadcast_to(of, scores.shape) for of in (group[:, None], np.arange(scores.shape[1])))
    return by_row(scores, problem, label, group, FOLDS)


def _nonconformity(predictions: xr.Dataset) -> tuple[Float, Index, Float | None] | None:
    """Scores of the rows, (rows, problems), the numbers of their classes, and scores of all labels, if there are."""
    truth = predictions["true_label"].values
    if "prediction" in predictions:
        scores = np.abs(truth.astype(np.float64) - predictions["prediction"].values).reshape(len(truth), -1)
        return scores, np.zeros(scores.shape, dtype=np.int64), None
    if "probability" not in predictions:
        return None
    improbable = 1.0 - _by_class(predictions["probability"])
    of_tasks = truth.ndim > 1
    label = (truth == 1).astype(np.int64) if of_tasks else np.searchsorted(predictions["class"], truth)[:, None]
    scores = np.take_along_axis(improbable, label[..., None], axis=2)[..., 0]
    return np.where(np.isnan(truth.astype(np.float64)), np.nan, scores) if of_tasks else scores, label, improbable


def sets(probabilities: xr.DataArray, table: xr.Dataset, coverage: float, *, per_class: bool) -> xr.DataArray:
    """Which labels are in the set of each sample, (sample, class), or (sample, task, class) of tasks."""
    by_class = _by_class(probabilities)
    inside = 1.0 - by_class <= _thresholds(table, by_class.shape[1], by_class.shape[2] if per_class else None, coverage)
    return _labelled_sets(inside, probabilities, _attrs(table, coverage))


def _labelled_sets(inside: Array, probabilities: xr.DataArray, attrs: dict[str, Any]) -> xr.DataArray:
    coords: dict[Any, Any] = {name: probabilities[name].values for name in probabilities.dims}
    coords |= {"class": np.array([0, 1])} if "task" in coords else {}
    inside = inside.reshape([len(labels) for labels in coords.values()])
    return describe(xr.DataArray(inside, coords, list(coords), "in_set", attrs))


def intervals(prediction: xr.DataArray, table: xr.Dataset, coverage: float) -> xr.Dataset:
    """The prediction, and the ends of its interval ŷ ± q."""
    width = _thresholds(table, prediction[0].size, None, coverage)[:, 0].reshape(prediction.shape[1:])
    ends = {name: prediction + sign * width for name, sign in (("lower", -1.0), ("upper", 1.0))}
    ends = {k: of.drop_attrs().assign_attrs(long_name=f"{k} end of the interval") for k, of in ends.items()}
    return describe(xr.Dataset({"prediction": prediction, **ends}, attrs=_attrs(table, coverage)))


def holds(regions: Any, truth: Array) -> Float:
    """Whether each set of `sets`, or interval of `intervals`, holds the true label, NaN where it is unknown."""
    if isinstance(regions, xr.Dataset):
        values = truth.astype(np.float64).reshape(regions["lower"].shape)
        inside = (regions["lower"].values <= values) & (values <= regions["upper"].values)
    elif "task" in regions.dims:
        inside = (regions.values & (truth[..., None] == np.array([0, 1]))).any(axis=-1)
    else:  # a file may store labels with another type than those of the training set
        inside = (regions.values & (truth.astype(str)[:, None] == regions["class"].values.astype(str))).any(axis=-1)
    return np.where(is_known(truth).reshape(inside.shape), inside, np.nan)


def mean_size(regions: Any) -> float:
    """The mean number of labels in a set, or the mean width of an interval."""
    sizes = regions["upper"] - regions["lower"] if isinstance(regions, xr.Dataset) else regions.sum("class")
    return float(sizes.mean())


def out_of_fold(predictions: xr.Dataset, coverage: float) -> tuple[float, float] | None:
    """The share of rows whose set or interval holds the label, and the mean size, each fold by the rows of the others.

    None for a single fold, or predictions without probabilities.
    """
    given, (names, fold) = _nonconformity(predictions), np.unique(predictions["sample_fold"], return_inverse=True)
    if given is None or len(names) < 2:
        return None
    scores, _, of_labels = given
    group = np.unique(predictions.get("sample_group", predictions["sample"]), return_inverse=True)[1]
    known, q = np.isfinite(scores), np.empty(scores.shape)
    for number, k in np.ndindex(len(names), scores.shape[1]):
        others = known[:, k] & (fold != number)
        q[fold == number, k] = threshold(scores[others, k], group[others], coverage)
    sizes = 2.0 * q if of_labels is None else (of_labels <= q[..., None]).sum(axis=-1)
    return float(np.mean((scores <= q)[known])), float(np.mean(sizes))


def by_folds(new: Mapping[str, xr.DataArray], predictions: xr.Dataset, coverage: float) -> Any:
    """Sets or intervals of new rows by CV+, as `sets` and `intervals` return them.

    `new` has the predictions, or the probabilities, of the new rows by the model of each fold, whose predictions of
    held-out rows i, by the model k(i), are in `predictions`. With the n nonconformities s_i a set holds the labels c
    that fewer than coverage·(n + 1) rows exceed, s_k(i)(x, c) > s_i. The ends of an interval are order statistics of
    ŷ_k(i)(x) − s_i and ŷ_k(i)(x) + s_i. Rows of a group count one together.
    """
    given = _nonconformity(predictions)
    if given is None:
        refuse("prediction sets are of probabilities, which these predictions lack; take decision='means'")
    scores, _, of_labels = given
    folds = predictions["sample_fold"].values.astype(str)
    group = np.unique(predictions.get("sample_group", predictions["sample"]).values, return_inverse=True)[1].ravel()
    first = next(iter(new.values()))
    attrs = {"coverage": coverage, "learnt_on": FOLDS}
    attrs["guarantee"] = (
        f"about {coverage:g} of new samples that are exchangeable with the {FOLDS}; at least about "
        f"{2.0 * coverage - 1.0:.3g} is proven"
    )
    if of_labels is None:
        values = {name: of_fold.values.reshape(len(of_fold), -1) for name, of_fold in new.items()}
        ends = np.empty((2, len(first), scores.shape[1]))
        for k in range(scores.shape[1]):
            known = np.isfinite(scores[:, k])
            errors, (counts, n_groups) = scores[known, k], _counts(group[known])
            needed = coverage * (n_groups + 1)
            centers = np.stack([values[name][:, k] for name in folds[known]], axis=1)
            for row, center in enumerate(centers):
                ends[:, row, k] = [s * _order_statistic(s * center + errors, counts, needed) for s in (-1.0, 1.0)]
        prediction = first.copy(data=np.mean([of_fold.values for of_fold in new.values()], axis=0))
        lower, upper = (prediction.copy(data=end.reshape(prediction.shape)) for end in ends)
        return describe(xr.Dataset({"prediction": prediction, "lower": lower, "upper": upper}, attrs=attrs))
    if "class" in first.dims:  # a class without training rows in a fold has no probability there
        new = {name: of_fold.reindex({"class": predictions["class"]}, fill_value=0.0) for name, of_fold in new.items()}
        first = next(iter(new.values()))
    improbable = {name: 1.0 - _by_class(of_fold) for name, of_fold in new.items()}
    inside = np.empty(next(iter(improbable.values())).shape, dtype=bool)
    for k in range(scores.shape[1]):
        known = np.isfinite(scores[:, k])
        (counts, n_groups), exceeded = _counts(group[known]), np.zeros(inside[:, k].shape)
        for name, of_new in improbable.items():
            of_fold = folds[known] == name
            order = np.argsort(scores[known, k][of_fold])
            sums = np.append(0.0, np.cumsum(counts[of_fold][order]))
            exceeded += sums[np.searchsorted(scores[known, k][of_fold][order], of_new[:, k])]
        inside[:, k] = exceeded < coverage * (n_groups + 1) - _ROUNDING
    return _labelled_sets(inside, first, attrs)


def _thresholds(table: xr.Dataset, n_problems: int, n_classes: int | None, coverage: float) -> Float:
    """The largest nonconformity within the coverage, (problems, classes): of each class by its own rows, or of all."""
    scores, problem, label, group = (
        table[name].values for name in ("nonconformity", "problem", "true_class", "row_group")
    )
    result = np.empty((n_problems, n_classes or 1))
    for k, c in np.ndindex(result.shape):
        rows = (problem == k) & ((label == c) if n_classes else True)
        result[k, c] = threshold(scores[rows], group[rows], coverage)
    return result


def _by_class(probabilities: xr.DataArray) -> Float:
    """Probabilities as (samples, tasks or 1, classes)."""
    p = probabilities.values
    return np.stack([1.0 - p, p], axis=-1) if "task" in probabilities.dims else p[:, None]


def _attrs(table: xr.Dataset, coverage: float) -> dict[str, Any]:
    """The coverage, the rows that it follows from, and what is guaranteed."""
    rows = table.attrs["learnt_on"]
    holds = (
        f"at least {coverage:g} of new samples on average, guaranteed if they are exchangeable with the {rows}"
        if table.attrs["guaranteed"]
        else f"about {coverage:g} of new samples that are exchangeable with the {rows}; not guaranteed"
    )
    return {"coverage": coverage, "learnt_on": rows, "guarantee": holds}
