"""Means of scores over the folds, and what the rules of choice ask of the points of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import stdtrit

from dmkl.searching import choice
from dmkl.searching.choice import Rule, choose, choose_each, simplicity
from dmkl.searching.folds import TEST, TRAIN, VALIDATION
from dmkl.variables import describe

__all__ = [
    "best_index",
    "chance_told",
    "class_values",
    "grid_points",
    "mean_and_error",
    "mean_and_margin",
    "of_task",
    "task_dim",
    "tasks_of",
]


def task_dim(scores: xr.Dataset) -> str | None:
    """The dimension of problems that choose each for itself, "task" or "target"; None where there is one."""
    return next((dim for dim in ("task", "target") if dim in scores["gap"].dims), None)


def tasks_of(scores: xr.Dataset) -> tuple[str, ...] | None:
    """Names along the dimension of `task_dim`."""
    dim = task_dim(scores)
    return None if dim is None else tuple(map(str, scores[dim].values))


def of_task(scores: xr.Dataset, task: str | None) -> xr.Dataset:
    """The scores of a task or target; all where None."""
    return scores if task is None else scores.sel({task_dim(scores): task})


def grid_points(scores: xr.Dataset, names: Sequence[str]) -> dict[str, Any]:
    """What the rules of `dmkl.searching.choice` ask of the points: arrays over the parameters `names`, by argument."""
    mean, error = (scores[name].transpose(*names).values for name in ("mean_score", "standard_error"))
    simple = simplicity({name: scores[name].values for name in names})
    return {"mean": mean, "standard_error": error} | {k: np.broadcast_to(v, mean.shape) for k, v in simple.items()}


def best_index(scores: xr.Dataset, names: Sequence[str], by: Sequence[str], rule: Rule) -> dict[str, xr.DataArray]:
    """Position of the chosen value of each parameter, over the dimensions that choose each for themselves.

    Parameters
    ----------
    scores
        With mean_score and standard_error over the parameters `names` and the dimensions `by`.

    Raises
    ------
    InputError
        If no point can be chosen, naming for whom.
    """
    mean, error = (scores[name].transpose(*names, *by).values for name in ("mean_score", "standard_error"))

    def whose(place: tuple[int, ...]) -> str:
        return ", ".join(f"{dim} {str(scores[dim].values[k])!r}" for dim, k in zip(by, place, strict=True))

    found = choose_each(mean, error, {name: scores[name].values for name in names}, rule, whose)
    coords = {dim: scores[dim].values for dim in by}
    about = {name: {"long_name": f"position of the chosen value of {name} in the grid", "units": "1"} for name in names}
    return {
        name: describe(xr.DataArray(at, coords, by, name, about[name])) for name, at in zip(names, found, strict=True)
    }


def class_values(
    scores: xr.Dataset, index: Mapping[str, int], name: str, values: Sequence[float], rule: Rule
) -> dict[Any, Any]:
    """The value of a parameter that each class chooses by its own scores, the others being at `index`.

    Parameters
    ----------
    scores
        With class_score over the parameters, fold and class.
    index
        Position of the chosen value of each parameter, where nobody else chooses.
    name, values
        The parameter and its values; of equally good ones the smallest is chosen.

    Returns
    -------
    dict
        By class. A class whose scores are undefined, since no fold validates it, takes the value at `index`.
    """
    own = scores["class_score"].isel({other: at for other, at in index.items() if other != name})
    own = own if "fold" in own.dims else own.expand_dims("fold")
    mean, error = mean_and_error(own)
    chosen = {}
    for k, label in enumerate(scores["class"].values.tolist()):
        of_class = {"class": k}
        place = index[name]
        if mean.isel(of_class).notnull().any():
            (place,) = choose(mean.isel(of_class).values, error.isel(of_class).values, rule, p=values)
        chosen[label] = values[place]
    return chosen


def mean_and_error(score: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the folds and its standard error, s/√n with the sample standard deviation s; NaN folds are skipped.

    The standard error of a single fold is NaN.
    """
    found: tuple[xr.DataArray, xr.DataArray] = xr.apply_ufunc(
        choice.mean_and_error, score, input_core_dims=[["fold"]], output_core_dims=[[], []]
    )
    return found


def mean_and_margin(score: xr.DataArray, scores: xr.Dataset, rows: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the folds and half the width of its 95 % confidence interval; NaN folds are skipped.

    The half width is t · s · √(1/n + n_test/n_train) with the standard deviation s over n folds, and t the 97.5 percent
    point of Student's distribution with n − 1 degrees of freedom. The second term under the root corrects for folds
    that share training rows. Without it intervals of 3 to 10 folds were seen to hold the mean over data sets in 88 to
    95 of 100 cases, with it in 92 to 98, and ±1.96 s/√n in 71 to 90.

    Parameters
    ----------
    score
        Scores, or differences of scores, over "fold" and other dimensions.
    scores
        The result that they are of, whose variable "part" tells how many rows train and are held out. Results of older
        versions lack it: folds are then taken for a partition, of which n_test/n_train is 1/(n − 1).
    rows
        Which rows were scored, "test" or "validation".

    Returns
    -------
    tuple of DataArray
        The half width is NaN for a single fold.

    Notes
    -----
    Nadeau, Bengio: Inference for the generalization error. Machine Learning 52 (2003), Section 3.
    """
    mean, error = mean_and_error(score)
    n = score.notnull().sum("fold")
    if "part" in scores:
        part = scores["part"]
        held_out = (part == (TEST if rows == "test" else VALIDATION)).sum("sample")
        ratio = float((held_out / (part == TRAIN).sum("sample")).mean())
    else:
        ratio = 1.0 / max(scores.sizes["fold"] - 1, 1)
    return mean, error * stdtrit(np.maximum(n - 1, 1), 0.975) * np.sqrt(1.0 + n * ratio)


def chance_told(score: xr.DataArray, scores: xr.Dataset, rows: str) -> list[str]:
    """A sentence where scores of left-out rows are not above that of one decision for all rows; see `mean_and_margin`.

    Nothing where that is not known: of results of older versions, of callable measures, and of a single fold.
    """
    if "constant_score" not in scores:
        return []
    above = score - scores["constant_score"]
    mean, margin = map(float, mean_and_margin(above.mean([dim for dim in above.dims if dim != "fold"]), scores, rows))
    if not np.isfinite(margin) or mean > margin:
        return []
    constant = float(scores["constant_score"].mean())
    return [
        f"That is not clearly above {constant:.4g}, the score of one decision for all rows: weights may be those of "
        "noise, which dmkl permute (dmkl.permutation_test) tests"
    ]
