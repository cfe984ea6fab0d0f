"""What a search has found as one labeled data set."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import sklearn
import xarray as xr

from dmkl._version import __version__
from dmkl.arrays import Array, Float
from dmkl.estimators.saving import encode
from dmkl.kernelset import KernelSet
from dmkl.progress import PHASES
from dmkl.searching.choice import Choice
from dmkl.searching.fits import GridFits, Question, decided
from dmkl.searching.grid import points, shape
from dmkl.searching.labeled import STATUS_FLAGS, as_coordinate
from dmkl.searching.scoring import as_metrics, evaluate_each
from dmkl.solvers.outcome import Round

__all__ = ["as_dataset", "measured"]


def as_dataset(question: Question, found: GridFits, choice: Choice, seconds: float) -> xr.Dataset:
    """Everything as one labeled data set."""
    sizes, names = shape(question.grid), list(question.grid)
    dim = question.targets.dim
    several = dim is not None
    task = () if dim is None else (dim,)
    fold_dims = (*names, "fold", *task)

    def by_point(array: Array) -> Array:
        """(point, fold, task, …) with the grid's own dimensions, without the task where there is one."""
        found = array.reshape(*sizes, *array.shape[1:])
        return found if several else np.take(found, 0, axis=len(sizes) + 1)

    variables: dict[str, Any] = {}
    decisions = decided(question, found)
    for end, (validation, test) in zip(question.name_ends, measured(question, found, decisions), strict=True):
        variables[f"score{end}"] = (fold_dims, by_point(validation))
        if any(len(fold.test) for fold in question.folds):
            variables[f"test_score{end}"] = (fold_dims, by_point(test))
    if question.by_class:
        of_classes = _by_class(question, found, decisions)
        variables["class_score"] = ((*names, "fold", "class"), of_classes.reshape(*sizes, *of_classes.shape[1:]))
    weights = found.weights.swapaxes(2, 3) if several else found.weights[:, :, :1].swapaxes(2, 3)
    weights = weights.reshape(*sizes, *weights.shape[1:])
    variables["weight"] = (
        (*names, "fold", "kernel", *task),
        weights if several else weights[..., 0],
    )
    variables["gap"] = (fold_dims, by_point(found.gap))
    variables["objective"] = (fold_dims, by_point(found.objective))
    variables["status"] = (fold_dims, by_point(found.status), STATUS_FLAGS)
    for field in fields(Round):
        name, key = f"round_{field.name.removeprefix('n_')}", field.name
        variables[name] = (("round",), np.array([getattr(entry, key) for entry in found.rounds]))
    variables["phase_seconds"] = (("phase",), np.array([found.phases[phase] for phase in PHASES]))
    coords: dict[str, Any] = {"phase": np.array(list(PHASES), dtype=str)}
    coords |= {name: as_coordinate(name, values) for name, values in question.grid.items()}
    coords |= {
        "fold": np.array([fold.name for fold in question.folds], dtype=str),
        "kernel": np.array(question.K.names, dtype=str),
    }
    if dim is not None:
        coords[dim] = np.array(
            [str(t) for t in (range(question.n_tasks) if question.tasks is None else question.tasks)], dtype=str
        )
    if "class_score" in variables:
        labels = question.targets.classes
        coords["class"] = labels.astype(str) if labels.dtype.kind in "OTU" else labels
    parameters = {name: encode(value) for name, value in question.estimator.get_params(deep=False).items()}
    return xr.Dataset(
        variables,
        coords=coords,
        attrs={
            "estimator": type(question.estimator).__name__,
            "parameters": json.dumps(parameters),
            "scoring": next(iter(question.metrics)),
            "kind": question.targets.kind,
            "choice": choice,
            "parameters_searched": json.dumps(names),
            "parameters_by_class": json.dumps(question.by_class),
            "bandwidths_from_all_samples": _bandwidths_from_all_samples(question.K),
            "n_passes": found.n_passes,
            "seconds": seconds,
            "n_points": math.prod(sizes) * len(question.folds) * question.n_tasks,
            "solver": found.solver,
            "created_by": f"dmkl {__version__}",
        },
    )


def _bandwidths_from_all_samples(K: KernelSet) -> int:
    """How many kernels have a bandwidth that the mean distance between all samples of the stored set gave them."""
    n_samples = len(K.view.source.samples)
    return sum(made.get("training_rows") == n_samples for made in K.provenance)


def measured(question: Question, found: GridFits, decisions: Sequence[Float]) -> list[tuple[Float, Float]]:
    """Validation and test scores of each measure, (point, fold, task), of what `decided` has found."""
    sizes = (len(points(question.grid)), len(question.folds), question.n_tasks)
    scores = np.full((len(question.metrics), 2, *sizes), np.nan)
    # What scikit-learn checks of its arguments takes longer than most measures, and they are always of one kind here.
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        for f, (fold, targets, decision) in enumerate(zip(question.folds, found.targets, decisions, strict=True)):
            middle = len(fold.validation)
            for part, rows, mine in ((0, fold.validation, decision[:, :middle]), (1, fold.test, decision[:, middle:])):
                if len(rows):
                    truth = question.labels[rows]
                    values = evaluate_each(question.metrics, targets.kind, targets.classes, truth, mine)
                    scores[:, part, :, f] = values.reshape(*values.shape[:2], -1)
    return [(validation, test) for validation, test in scores]


def _by_class(question: Question, found: GridFits, decisions: Sequence[Float]) -> Float:
    """Average precision of the score of each class against the rest on the validation rows, (point, fold, class)."""
    classes = question.targets.classes
    scores = np.full((len(points(question.grid)), len(question.folds), len(classes)), np.nan)
    measure = as_metrics("average_precision", "binary")
    for f, (fold, targets, decision) in enumerate(zip(question.folds, found.targets, decisions, strict=True)):
        for k, label in enumerate(targets.classes):
            truth = (question.labels[fold.validation] == label).astype(np.int64)
            columns = decision[:, : len(fold.validation), k]
            (scores[:, f, np.searchsorted(classes, label)],) = evaluate_each(measure, "binary", [0, 1], truth, columns)
    return scores
