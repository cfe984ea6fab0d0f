"""Means of scores over the folds, and what the rules of choice ask of the points of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from dmkl.errors import InputError
from dmkl.searching.choice import Rule, choose

__all__ = ["best_index", "class_values", "grid_points", "mean_and_error", "of_task", "task_dim", "tasks_of"]


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
    mean = scores["mean_score"]
    points = {"mean": mean, "standard_error": scores["standard_error"]}
    points |= {name: scores[name].broadcast_like(mean) for name in ("lam", "p") if name in names}
    if "C" in names:  # the smaller, the more regularized
        points["lam"] = 1.0 / scores["C"].broadcast_like(mean)
    return {name: values.transpose(*names).values for name, values in points.items()}


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
    scores = scores[["mean_score", "standard_error"]]  # a part of all variables takes long
    sizes = tuple(scores.sizes[dim] for dim in by)
    found = np.zeros((len(names), *sizes), dtype=np.int64)
    for place in np.ndindex(sizes):
        part = scores.isel(dict(zip(by, place, strict=True)))
        try:
            found[(slice(None), *place)] = choose(**grid_points(part, names), rule=rule)
        except InputError as error:
            if not by:
                raise
            msg = f"{', '.join(f'{dim} {str(part[dim].values)!r}' for dim in by)}: {error}"
            raise InputError(msg) from error
    coords = {dim: scores[dim].values for dim in by}
    return {name: xr.DataArray(at, coords, by, name) for name, at in zip(names, found, strict=True)}


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
    n, mean = score.count("fold"), score.mean("fold")
    squares = ((score - mean) ** 2).sum("fold")
    return mean, (squares / (n * (n - 1)).where(n > 1)) ** 0.5  # of one fold xarray's std warns, in some versions
