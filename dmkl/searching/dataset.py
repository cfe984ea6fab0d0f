"""What a search has found as one labeled data set."""

from __future__ import annotations

import json
import warnings
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
from dmkl.searching.fits import GridFits, Question
from dmkl.searching.folds import Fold, parts_of
from dmkl.searching.grid import shape
from dmkl.searching.labeled import STATUS_FLAGS, as_coordinate
from dmkl.searching.scoring import as_metrics, evaluate, evaluate_each
from dmkl.solvers.outcome import Round
from dmkl.unknown import is_known

__all__ = ["as_dataset", "constant_scores", "fold_data", "measured"]


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
    for end, (validation, test) in zip(question.name_ends, measured(question, found), strict=True):
        variables[f"score{end}"] = (fold_dims, by_point(validation))
        if any(len(fold.test) for fold in question.folds):
            variables[f"test_score{end}"] = (fold_dims, by_point(test))
    if question.by_class:
        of_classes = _by_class(question, found)
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
    of_folds = fold_data(question, question.folds)
    variables |= {str(name): values.variable for name, values in of_folds.data_vars.items()}
    coords["sample"] = of_folds["sample"].variable
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
            "n_points": len(question.models) * len(question.folds) * question.n_tasks,
            "solver": found.solver,
            "created_by": f"dmkl {__version__}",
            **of_folds.attrs,
        },
    )


def _bandwidths_from_all_samples(K: KernelSet) -> int:
    """How many kernels have a bandwidth that the mean distance between all samples of the stored set gave them."""
    n_samples = len(K.view.source.samples)
    return sum(made.get("training_rows") == n_samples for made in K.provenance)


def fold_data(question: Question, folds: Sequence[Fold]) -> xr.Dataset:
    """What a result keeps of its folds and samples, so that it can be reproduced.

    Returns
    -------
    Dataset
        part (fold, sample), see `parts_of`; sample_group (sample) where there are groups; constant_score (fold[,
        task]), see `constant_scores`, unless a callable measures, which may not bear such decisions. Attributes:
        splitter, see
        `Fold.splitter`; asked (JSON), `Question.asked` with "source": "whole" where all kernels and samples of their
        source were used as they are, "part" where some of them were, "changed" where a step came before.
    """
    view = question.K.view
    whole = len(view.kernels) == len(view.source.names) and all(
        np.array_equal(at, np.arange(len(view.source.samples))) for at in view.final_positions()
    )
    source = "changed" if view.is_transformed else "whole" if whole else "part"
    asked = {name: encode(value) for name, value in question.asked.items()} | {"source": source}
    names = np.array(question.K.samples).astype(str)
    variables: dict[str, Any] = {"part": (("fold", "sample"), parts_of(folds, len(names)))}
    if question.groups is not None:
        groups = np.asarray(question.groups)
        variables["sample_group"] = ("sample", groups.astype(str) if groups.dtype.kind in "OTUS" else groups)
    coords = {"fold": np.array([fold.name for fold in folds], dtype=str), "sample": names}
    named = asked["scoring"] is None or isinstance(asked["scoring"], str)
    if named or (isinstance(asked["scoring"], list) and isinstance(asked["scoring"][0], str)):
        with warnings.catch_warnings():  # of measures that a constant leaves undefined
            warnings.simplefilter("ignore")
            values, dim = constant_scores(question, folds), question.targets.dim
        variables["constant_score"] = ("fold", values[:, 0]) if dim is None else (("fold", dim), values)
    return xr.Dataset(variables, coords, {"splitter": folds[0].splitter, "asked": json.dumps(asked)})


def measured(question: Question, found: GridFits) -> list[tuple[Float, Float]]:
    """Validation and test scores of each measure, (point, fold, task), of what is decided at each point."""
    sizes = (len(question.fitted), len(question.folds), question.n_tasks)
    scores = np.full((len(question.metrics), 2, *sizes), np.nan)
    # What scikit-learn checks of its arguments takes longer than most measures, and they are always of one kind here.
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        for f, (fold, targets, decision) in enumerate(zip(question.folds, found.targets, found.decided, strict=True)):
            middle = len(fold.validation)
            for part, rows, mine in ((0, fold.validation, decision[:, :middle]), (1, fold.test, decision[:, middle:])):
                if len(rows):
                    truth = question.labels[rows]
                    values = evaluate_each(question.metrics, targets.kind, targets.classes, truth, mine)
                    scores[:, part, question.fitted, f] = values.reshape(*values.shape[:2], -1)
    return [(validation, test) for validation, test in scores]


def _by_class(question: Question, found: GridFits) -> Float:
    """Average precision of the score of each class against the rest on the validation rows, (point, fold, class)."""
    classes = question.targets.classes
    scores = np.full((len(question.fitted), len(question.folds), len(classes)), np.nan)
    measure = as_metrics("average_precision", "binary")
    for f, (fold, targets, decision) in enumerate(zip(question.folds, found.targets, found.decided, strict=True)):
        for k, label in enumerate(targets.classes):
            truth = (question.labels[fold.validation] == label).astype(np.int64)
            columns = decision[:, : len(fold.validation), k]
            (values,) = evaluate_each(measure, "binary", [0, 1], truth, columns)
            scores[question.fitted, f, np.searchsorted(classes, label)] = values
    return scores


def constant_scores(question: Question, folds: Sequence[Fold]) -> Float:
    """The score, by the first measure, of a decision that is the same for all rows: (fold, task).

    Without a kernel a classifier knows the shares of the classes in training, and a regression the mean. Test rows are
    scored where folds have any, and validation rows otherwise.
    """
    metric = dict([next(iter(question.metrics.items()))])
    found = np.full((len(folds), question.n_tasks), np.nan)
    rows = "test" if any(len(fold.test) for fold in folds) else "validation"
    for own, fold in zip(found, folds, strict=True):
        held_out = getattr(fold, rows)
        if len(held_out):
            targets = question.targets_of(fold.train)
            shares = _shares(targets.kind, targets.classes, question.labels[fold.train])
            decision = np.broadcast_to(shares, (len(held_out), len(shares)))
            decision = decision[:, 0] if targets.one_column else decision
            own[:] = evaluate(metric, targets.kind, targets.classes, question.labels[held_out], decision)[0]
    return found


def _shares(kind: str, classes: Array, labels: Array) -> Float:
    """The constant scores, one for each column."""
    if kind in ("binary", "multiclass"):
        shares = np.array([np.mean(labels == label) for label in classes])
        return shares[1:] - shares[:1] if kind == "binary" else shares
    columns = labels.reshape(len(labels), -1).T
    means = np.array([np.mean(column[is_known(column)].astype(np.float64)) for column in columns])
    return means if kind == "regression" else means - 0.5
