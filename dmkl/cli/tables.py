"""Models and searches as tables for people, and as mappings for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from rich.table import Table
from rich.text import Text

from dmkl.cli.output import bar, table
from dmkl.errors import InputError
from dmkl.searching.result import SearchResult
from dmkl.solvers.outcome import WORDS

__all__ = ["model_as_mapping", "points_table", "search_as_mapping", "summary_table", "weights_table"]


_MOST_COLUMNS = 4
"""Of weights: what fits a terminal of 80 characters."""
_SEVERAL = {"class": "classes", "pair": "pairs", "task": "tasks"}


def weights_table(weights: Mapping[str, xr.DataArray]) -> Table:
    """A row for each kernel, a column for each model: the weight, and a bar of its share.

    Of a model with weights for several classes, pairs or tasks a column for each; of many their mean, the largest, and
    whose that is.
    """
    columns: dict[str, xr.DataArray] = {}
    whose: xr.DataArray | None = None
    for title, array in weights.items():
        if array.ndim == 1:
            columns[title] = array
            continue
        array = _by_column(array)
        dim = str(array.dims[1])
        if array.sizes[dim] <= _MOST_COLUMNS:
            columns |= {str(label): array.sel({dim: label}) for label in array[dim].values}
        else:
            columns |= {f"mean of {array.sizes[dim]} {_SEVERAL[dim]}": array.mean(dim), "largest": array.max(dim)}
            whose = array[dim][array.argmax(dim)]
    found = table("kernel")
    for title in columns:
        found.add_column("weight" if len(columns) == 1 else title, no_wrap=True)
    if whose is not None:
        found.add_column(str(whose.name), overflow="fold")
    width = 30 if len(columns) == 1 else 6
    for name in next(iter(weights.values())).kernel.values:
        cells = []
        for array in columns.values():
            value, largest = float(array.sel(kernel=name)), float(array.max())
            share = value / largest if largest > 0 else 0.0
            cells.append(Text.assemble(f"{value:.4f} ", (bar(share, width), "cyan")))
        if whose is not None:
            cells.append(Text(str(whose.sel(kernel=name).item())))
        found.add_row(Text(str(name)), *cells)
    return found


def _by_column(weights: xr.DataArray) -> xr.DataArray:
    """Weights of groups as columns of their own: (kernel, group, class) as (kernel, class), named with the group."""
    if weights.ndim < 3:
        return weights
    group, dim = (str(name) for name in weights.dims[1:])
    names = [f"{label}, group {g}" for g in weights[group].values for label in weights[dim].values]
    return xr.DataArray(
        weights.values.reshape(len(weights), -1),
        dims=("kernel", dim),
        coords={"kernel": weights.kernel.values, dim: names},
        name=weights.name,
    )


def summary_table(
    models: Mapping[str, Any], seconds: Mapping[str, float], accuracy: Mapping[str, float] | None = None
) -> Table:
    """A row for each model: accuracy where known, proven gap, passes, time."""
    solvers = any(hasattr(model, "solver_") for model in models.values())  # some learners have one alone
    optional = {"accuracy": bool(accuracy), "solver": solvers}
    columns = ("accuracy", "proven gap", "passes", "solver", "seconds")
    found = table("model", numbers=[name for name in columns if optional.get(name, True)])
    for name, model in models.items():
        gap = float(np.max(np.asarray(model.gap_)))
        found.add_row(
            Text(name),
            *([f"{100 * accuracy[name]:.2f} %"] if accuracy else []),
            _gap(gap),
            f"{model.n_passes_:.4g}",
            *([getattr(model, "solver_", "")] if solvers else []),
            f"{seconds[name]:.2f}",
        )
    return found


def _gap(value: float) -> str:
    return "none" if np.isnan(value) else "< 1e-12" if value < 1e-12 else f"{value:.1e}"


def model_as_mapping(estimator: Any, path: Path, n_samples: int, seconds: float) -> dict[str, Any]:
    """What is told of a fitted model that was saved at `path`."""
    weights = _by_column(estimator.weights_)
    rows: list[Any] = weights.values.tolist()
    if weights.ndim == 2:  # over classes, pairs or tasks
        labels = [str(label) for label in weights[weights.dims[1]].values]
        rows = [dict(zip(labels, row, strict=True)) for row in rows]
    return {
        "model": type(estimator).__name__,
        "parameters": estimator.get_params(deep=False),
        "path": str(path),
        "training_samples": n_samples,
        "weights": {str(name): row for name, row in zip(weights.kernel.values, rows, strict=True)},
        "gap": np.asarray(estimator.gap_).tolist(),
        "objective": np.asarray(estimator.objective_).tolist(),
        "passes": estimator.n_passes_,
        "solver": getattr(estimator, "solver_", None),  # machines have one alone
        "status": estimator.status_,
        "seconds": seconds,
    }


def points_table(result: SearchResult, most: int = 10) -> Table:
    """A row for each of the best points of a search, and for the chosen one; of each task the chosen one alone."""
    frame = result.table()
    chosen = pd.concat([_is_chosen(result, task, frame) for task in result.tasks or (None,)], axis=1).any(axis=1)
    several = result.tasks is not None
    shown = frame[chosen if several else chosen | (np.arange(len(frame)) < most)]
    names = [*(["task"] if several else []), *result.parameters]
    found = table(*names[: int(several)], numbers=[*result.parameters, result.scores.attrs["scoring"], "worst gap"])
    for name in ("status", ""):
        found.add_column(name, overflow="fold")
    for place, row in zip(shown.index, shown.to_dict("records"), strict=True):
        if not several and place > most:
            found.add_row("…")
        error = row["standard_error"]
        found.add_row(
            *(Text(f"{row[name]:g}" if isinstance(row[name], float) else str(row[name])) for name in names),
            f"{row['mean_score']:.4f}" + (f" ± {error:.4f}" if np.isfinite(error) else ""),
            _gap(row["gap"]),
            row["status"],
            Text("chosen" if chosen[place] and not several else "", style="green"),
        )
    return found


def _is_chosen(result: SearchResult, task: str | None, frame: pd.DataFrame) -> pd.Series[bool]:
    try:
        index = result.best_index_ if task is None else result.best_index_[task]
    except InputError:  # no point has a score
        return pd.Series(False, index=frame.index)
    same = pd.Series(True, index=frame.index) if task is None else frame["task"] == task
    for name, at in index.items():
        same &= frame[name] == result.scores[name].values[at]
    return same


def search_as_mapping(result: SearchResult) -> dict[str, Any]:
    """What is told of a search."""
    scores, attrs = result.scores, result.scores.attrs
    statuses = np.bincount(scores["status"].values.ravel(), minlength=len(WORDS))
    mapping: dict[str, Any] = {
        "estimator": attrs["estimator"],
        "grid": result.grid,
        "folds": scores.sizes["fold"],
        "scoring": attrs["scoring"],
        "rule": result.rule,
        "best": _chosen(result, "best_params_"),
        "best_score": _chosen(result, "best_score_"),
        "points": result.table().to_dict("records"),
        "fits": dict(zip(WORDS, statuses.tolist(), strict=True)),
        "largest_gap": float(scores["gap"].max()),
        "passes": result.n_passes_,
        "solver": attrs["solver"],
        "seconds": attrs["seconds"],
    }
    if "refit_test_score" in scores:
        mapping["refit_test_score"] = scores["refit_test_score"].values
    return mapping


def _chosen(result: SearchResult, attribute: str) -> Any:
    """What is known of the choice; None where no point has a score."""
    try:
        return getattr(result, attribute)
    except InputError:
        return None
