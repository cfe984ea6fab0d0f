"""What a search has found as one labelled data set."""

from __future__ import annotations

import json
import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl._version import __version__
from dmkl.searching.grid import points, shape
from dmkl.searching.plan import Found, Plan
from dmkl.searching.result import as_coordinate
from dmkl.searching.scoring import evaluate

__all__ = ["as_dataset"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]


def as_dataset(plan: Plan, found: Found, seconds: float) -> xr.Dataset:
    """Everything as one labelled data set."""
    sizes, names = shape(plan.grid), list(plan.grid)
    multilabel = plan.targets.kind == "multilabel"
    task = ("task",) if multilabel else ()
    fold_dims = (*names, "fold", *task)

    def by_point(array: Array) -> Array:
        """(point, fold, task, …) with the grid's own dimensions, without the task where there is one."""
        found = array.reshape(*sizes, *array.shape[1:])
        return found if multilabel else np.take(found, 0, axis=len(sizes) + 1)

    variables: dict[str, Any] = {}
    for name, (validation, test) in _scored(plan, found).items():
        end = "" if name == next(iter(plan.metrics)) else f"_{name}"
        variables[f"score{end}"] = (fold_dims, by_point(validation))
        if any(len(fold.test) for fold in plan.folds):
            variables[f"test_score{end}"] = (fold_dims, by_point(test))
    weights = found.weights.swapaxes(2, 3) if multilabel else found.weights[:, :, :1].swapaxes(2, 3)
    weights = weights.reshape(*sizes, *weights.shape[1:])
    variables["weight"] = (
        (*names, "fold", "kernel", *task),
        weights if multilabel else weights[..., 0],
    )
    variables["gap"] = (fold_dims, by_point(found.gap))
    variables["objective"] = (fold_dims, by_point(found.objective))
    variables["status"] = (fold_dims, by_point(found.status))
    for name, key, empty in (
        ("round_kind", "kind", ""),
        ("round_seconds", "seconds", np.nan),
        ("round_bytes", "n_bytes", 0),
        ("round_basis", "basis", 0),
        ("round_certified", "certified", 0),
        ("round_worst_gap", "worst_gap", np.nan),
    ):
        variables[name] = (("round",), np.array([entry.get(key, empty) for entry in found.rounds]))
    coords: dict[str, Any] = {name: as_coordinate(name, values) for name, values in plan.grid.items()}
    coords |= {
        "fold": np.array([fold.name for fold in plan.folds], dtype=str),
        "kernel": np.array(plan.K.names, dtype=str),
    }
    if multilabel:
        coords["task"] = np.array(
            [str(t) for t in (range(plan.n_tasks) if plan.tasks is None else plan.tasks)], dtype=str
        )
    parameters = {name: repr(value) for name, value in plan.estimator.get_params(deep=False).items()}
    return xr.Dataset(
        variables,
        coords=coords,
        attrs={
            "estimator": type(plan.estimator).__name__,
            "parameters": json.dumps(parameters),
            "scoring": next(iter(plan.metrics)),
            "kind": plan.targets.kind,
            "parameters_searched": json.dumps(names),
            "n_passes": found.n_passes,
            "seconds": seconds,
            "n_points": math.prod(sizes) * len(plan.folds) * plan.n_tasks,
            "solver": found.solver,
            "created_by": f"dmkl {__version__}",
        },
    )


def _scored(plan: Plan, found: Found) -> dict[str, tuple[Float, Float]]:
    """Validation and test scores of every measure, (point, fold, task)."""
    sizes = (len(points(plan.grid)), len(plan.folds), plan.n_tasks)
    scores = {name: (np.full(sizes, np.nan), np.full(sizes, np.nan)) for name in plan.metrics}
    for (g, f), decision in found.decisions.items():
        fold, (kind, classes) = plan.folds[f], found.classes[f]
        middle = len(fold.validation)
        for part, rows, mine in ((0, fold.validation, decision[:middle]), (1, fold.test, decision[middle:])):
            if len(rows):
                values = evaluate(plan.metrics, cast(Any, kind), classes, plan.labels[rows], _plain(kind, mine))
                for name, value in zip(plan.metrics, values, strict=True):
                    scores[name][part][g, f] = value
    return scores


def _plain(kind: str, decision: Float) -> Float:
    """Scores as `decision_function` gives them: a vector for two classes."""
    return decision[:, 0] if kind == "binary" and decision.ndim == 2 else decision
