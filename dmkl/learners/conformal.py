"""Conformal prediction: sets of labels and intervals of a given coverage, from rows that a model was not trained on.

The nonconformity of a row is 1 − p(its label), or |y − ŷ|. With the scores of m such rows, sets and intervals hold all
labels whose nonconformity is at most the ⌈(m + 1)·coverage⌉-th smallest of them. If these rows and a new one are
exchangeable, and the model depends on neither, they hold its label with at least this probability (Vovk, Gammerman,
Shafer: Algorithmic learning in a random world, 2005). Each group of rows counts as one row, for new rows of other
groups (Lee, Barber, Willett: Distribution-free inference with hierarchical data, 2023).

By the models of all folds (CV+), of which k(i) is the one that was trained without row i, a set holds the labels c that
fewer than coverage·(m + 1) rows exceed, s_k(i)(x, c) > s_i. The ends of an interval are order statistics of ŷ_k(i)(x) −
s_i and ŷ_k(i)(x) + s_i. For a single model that is the rule above. They hold the true label with a probability of at
least about 2·coverage − 1, which is proven if rows are exchangeable, and near the coverage as a rule (Barber, Candès,
Ramdas, Tibshirani: Predictive inference with the jackknife+, Annals of Statistics 49, 2021; Romano, Sesia, Candès:
Classification with valid and adaptive coverage, NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from dmkl.arrays import Array, Float, Index, Mask, is_known
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


def by_row(
    scores: Float, problem: Index, label: Index, group: Array, learnt_on: str, model: Array | None = None
) -> xr.Dataset:
    """`nonconformity_` of a model, from arrays of one shape: a row for each score that is known.

    The score, its problem (a task, a target, or 0), the number of its class (0 in a regression), its group, and of
    several models the one that was trained without it. `learnt_on` names the rows, on which the model may depend.
    """
    number = np.unique(group, return_inverse=True)[1].reshape(scores.shape)
    columns = {"nonconformity": scores.astype(np.float64), "problem": problem, "true_class": label, "row_group": number}
    columns |= {} if model is None else {"row_model": model}
    known = np.isfinite(scores)
    attrs = {"learnt_on": learnt_on, "guaranteed": 0}
    return describe(xr.Dataset({name: ("held_out", of[known]) for name, of in columns.items()}, attrs=attrs))


def of_predictions(predictions: xr.Dataset, models: Sequence[str] = ()) -> xr.Dataset | None:
    """`nonconformity_` from out-of-fold predictions (`GridResult.predictions`); None if these lack probabilities.

    A sample that several folds hold out counts once. With the names of folds, rows have the number of theirs.
    """
    given = _nonconformity(predictions)
    if given is None:
        return None
    scores, label, _ = given
    group, model = predictions.get("sample_group", predictions["sample"]).values, None
    group, problem = (np.broadcast_to(of, scores.shape) for of in (group[:, None], np.arange(scores.shape[1])))
    if models:
        numbers = [models.index(name) for name in predictions["sample_fold"].values.tolist()]
        model = np.broadcast_to(np.array(numbers)[:, None], scores.shape)
    return by_row(scores, problem, label, group, FOLDS, model)


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


def sets(new: Sequence[xr.DataArray], table: xr.Dataset, coverage: float, *, per_class: bool = False) -> xr.DataArray:
    """Which labels are in the set of each sample, (sample, class), or (sample, task, class) of tasks.

    `new` are the probabilities by each of the models of the rows of `table`. With `per_class` those of a class are
    compared with its own rows.
    """
    # A class without training rows in a fold has no probability there.
    new = xr.align(*new, join="outer", fill_value=0.0)
    improbable = [1.0 - _by_class(of_model) for of_model in new]
    _, n_problems, n_classes = improbable[0].shape
    inside: Mask = np.empty(improbable[0].shape, dtype=bool)
    for k in range(n_problems):
        for label in range(n_classes) if per_class else [None]:
            scores, counts, needed, model = _of_problem(table, coverage, k, label)
            c = slice(None) if label is None else label
            exceeded = np.zeros(inside[:, k, c].shape)
            for number, of_model in enumerate(improbable):
                own = model == number
                order = np.argsort(scores[own])
                sums = np.append(0.0, np.cumsum(counts[own][order]))
                exceeded += sums[np.searchsorted(scores[own][order], of_model[:, k, c])]
            inside[:, k, c] = exceeded < needed - _ROUNDING
    coords: dict[Any, Any] = {name: new[0][name].values for name in new[0].dims}
    coords |= {"class": np.array([0, 1])} if "task" in coords else {}
    inside = inside.reshape([len(labels) for labels in coords.values()])
    return describe(xr.DataArray(inside, coords, list(coords), "in_set", _attrs(table, coverage)))


def intervals(new: Sequence[xr.DataArray], table: xr.Dataset, coverage: float) -> xr.Dataset:
    """The mean prediction `new` of the models of the rows of `table`, and the ends of its interval."""
    prediction = new[0].copy(data=np.mean([of_model.values for of_model in new], axis=0))
    centers = np.stack([of_model.values.reshape(len(of_model), -1) for of_model in new])
    ends = np.empty((2, *centers.shape[1:]))
    for k in range(centers.shape[2]):
        errors, counts, needed, model = _of_problem(table, coverage, k)
        for sign, end in zip((-1.0, 1.0), ends, strict=True):
            if len(new) == 1:  # the errors are in one order for all samples
                end[:, k] = centers[0, :, k] + sign * _order_statistic(errors, counts, needed)
                continue
            of_samples = (sign * of_sample[model] + errors for of_sample in centers[:, :, k].T)
            end[:, k] = [sign * _order_statistic(values, counts, needed) for values in of_samples]
    of_names = {}
    for name, end in zip(("lower", "upper"), ends, strict=True):
        values = prediction.copy(data=end.reshape(prediction.shape)).drop_attrs()
        of_names[name] = values.assign_attrs(long_name=f"{name} end of the interval")
    return describe(xr.Dataset({"prediction": prediction, **of_names}, attrs=_attrs(table, coverage)))


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


def _of_problem(
    table: xr.Dataset, coverage: float, problem: int, label: int | None = None
) -> tuple[Float, Float, float, Index]:
    """The scores of the rows of a problem, or of a class, how much each counts, how much is needed, and the models."""
    rows = table["problem"].values == problem
    rows = rows if label is None else rows & (table["true_class"].values == label)
    counts, n_groups = _counts(table["row_group"].values[rows])
    model = table["row_model"].values[rows] if "row_model" in table else np.zeros(len(counts), dtype=np.int64)
    return table["nonconformity"].values[rows], counts, coverage * (n_groups + 1), model


def _by_class(probabilities: xr.DataArray) -> Float:
    """Probabilities as (samples, tasks or 1, classes)."""
    p = probabilities.values
    return np.stack([1.0 - p, p], axis=-1) if "task" in probabilities.dims else p[:, None]


def _attrs(table: xr.Dataset, coverage: float) -> dict[str, Any]:
    """The coverage, the rows that it follows from, and what is guaranteed."""
    rows = table.attrs["learnt_on"]
    if "row_model" in table:
        proven = 2.0 * coverage - 1.0
        holds = (
            f"about {coverage:g} of new samples that are exchangeable with the {rows}; at least about {proven:.3g} is "
            "proven"
        )
    elif table.attrs["guaranteed"]:
        holds = f"at least {coverage:g} of new samples on average, guaranteed if they are exchangeable with the {rows}"
    else:
        holds = f"about {coverage:g} of new samples that are exchangeable with the {rows}; not guaranteed"
    return {"coverage": coverage, "learnt_on": rows, "guarantee": holds}
