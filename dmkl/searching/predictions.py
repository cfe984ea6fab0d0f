"""Out-of-fold predictions: scores, probabilities and labels of the rows that each fold of a result holds out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import expit

from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.estimators.decisions import predicted_labels
from dmkl.numerics.fisher import Targets
from dmkl.searching.fits import Question
from dmkl.searching.scoring import probabilities
from dmkl.variables import describe

__all__ = ["Part", "held_out_variables", "predictions_of"]

_MOST_OUTPUTS = 100
"""Most tasks or targets whose predictions are kept."""


Part = tuple[Index, Targets, Float, Float]
"""Rows that a fold holds out, the targets of its training rows, and scores before and after the decision rule."""


def held_out_variables(question: Question, parts: Iterable[Part]) -> dict[str, Any]:
    """The variables of which `predictions_of` makes predictions, from a part of each fold; none for many outputs."""
    targets, arrays = question.targets, defaultdict[str, list[Array]](list)
    for fold, (rows, of_fold, scores, decided) in enumerate(parts if question.n_tasks <= _MOST_OUTPUTS else ()):
        arrays["sample"].append(rows.astype(np.int32))
        arrays["fold"].append(np.full(len(rows), fold, dtype=np.int32))
        arrays["true_label"].append(question.labels[rows])
        if targets.kind == "regression":
            arrays["prediction"].append(scores)
            continue
        arrays["predicted_label"].append(predicted_labels(of_fold.kind, of_fold.classes, decided))
        arrays["score"].append(_in_columns(targets, of_fold, scores, np.nan))
        if question.by_means:
            p = expit(decided) if targets.kind == "multilabel" else probabilities(decided)
            arrays["probability"].append(_in_columns(targets, of_fold, p, 0.0))
    joined = {name: np.concatenate(values) for name, values in arrays.items()}
    dims = ("held_out", targets.dim or "class")
    variables: dict[str, Any] = {f"held_out_{name}": (dims[: of.ndim], _plain(of)) for name, of in joined.items()}
    return variables | ({"class": _plain(targets.classes)} if "score" in joined and targets.dim is None else {})


def _plain(labels: Array) -> Array:
    return labels.astype(str) if labels.dtype.kind in "OTU" else labels


def _in_columns(targets: Targets, of_fold: Targets, values: Float, missing: float) -> Float:
    """Columns of the classes of a fold, which may train without one, as columns of all classes."""
    if targets.kind != "multiclass":
        return values
    columns = np.full((len(values), len(targets.classes)), missing)
    of_classes = np.stack([-values, values], axis=-1) if values.ndim == 1 else values
    columns[:, np.searchsorted(targets.classes, of_fold.classes)] = of_classes
    return columns


def predictions_of(data: xr.Dataset) -> xr.Dataset:
    """See `GridResult.predictions`."""
    if "held_out_sample" not in data:
        refuse(
            f"this result has no predictions: it has more than {_MOST_OUTPUTS} tasks or targets, no point could be "
            "chosen, or an earlier version of dmkl made it"
        )
    kept = [str(name) for name in data.data_vars if str(name).startswith("held_out_")]
    held_out = data[kept].rename({name: name.removeprefix("held_out_") for name in kept})
    samples, folds = held_out["sample"].values, held_out["fold"].values
    variables: dict[str, Any] = {"sample_fold": ("sample", data["fold"].values[folds])}
    if "sample_group" in data:
        variables["sample_group"] = ("sample", data["sample_group"].values[samples])
    predictions = held_out.drop_vars(["sample", "fold"]).rename(held_out="sample").assign(variables)
    predictions = predictions.assign_coords(sample=data["sample"].values[samples]).drop_attrs()
    return describe(predictions)
