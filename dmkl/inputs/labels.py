"""Labels, splits and names of samples: what goes into a kernel set beside the kernels."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.names import LabelTable, as_text, refuse_control, unique_names
from dmkl.unknown import is_known

__all__ = ["Labels", "by_split", "labeled_names", "labels_in", "single_samples"]


@dataclass
class Labels:
    """Labels, splits and names of the samples of a set; every field may be missing."""

    samples: Sequence[Any] | Array | None = None  # names, unique; numbers from 0 where missing
    train_samples: Sequence[Any] | Array | None = None  # names, unique; numbers from 0 where missing
    labels: Sequence[Any] | Array | None = None  # (sample,) classes or numbers, or (sample, task) of 0 and 1 or numbers
    tasks: Sequence[Any] | Array | None = None  # names of the tasks or targets of labels with several columns
    splits: Sequence[Any] | Array | None = None  # (split, sample): 0 train, 1 validation, 2 test, -1 in no part
    diagonal: Array | None = None
    """(kernel, sample), k(x, x) of the samples of rectangular kernels; symmetric ones have their own."""

    def checked(self, rows: int, cols: int, *, rectangular: bool) -> dict[str, Array | None]:
        """Check the labels against the shape of the kernels; returns the arrays to write."""
        samples = unique_names(self.samples, rows, "sample")
        labels = None if self.labels is None else _checked_labels(np.asarray(self.labels), samples)
        tasks = None
        if labels is not None and labels.ndim == 2:
            tasks = unique_names(self.tasks, labels.shape[1], "task")
        real = labels is not None and labels.dtype.kind == "f"
        return {
            "sample": samples,
            "train_sample": unique_names(self.train_samples, cols, "train_sample") if rectangular else None,
            "label": None if real else labels,
            "target": labels if real else None,
            "task": tasks,
            "split": None if self.splits is None else _checked_splits(np.asarray(self.splits), rows),
        }


def single_samples(labels: Array, samples: Sequence[Any] | Array | None = None) -> str | None:
    """What is told of classes that one sample alone has; None where there are none, or labels are no classes."""
    if labels.ndim != 1 or labels.dtype.kind == "f":
        return None
    values = [as_text(value) for value in labels.tolist()]
    times = Counter(values)
    single = [name for name, n in times.items() if n == 1]
    if not single:
        return None
    first = values.index(single[0])
    sample = f"sample {str(samples[first])!r}" if samples is not None else f"number {first}"
    told = f"the class {single[0]!r} has one sample ({sample})"
    if len(single) > 1:
        listed = ", ".join(map(repr, single[:3])) + (" …" if len(single) > 3 else "")
        told = f"{len(single)} of the {len(times)} classes have one sample each ({listed})"
    return f"{told}, too few to learn from and to test on"


def labeled_names(table: LabelTable) -> tuple[str, ...] | None:
    """The names of the samples whose label is known; all of them where labels have several columns."""
    if table.row_names is None or np.shape(table.values) != (len(table.row_names),):
        return table.row_names
    return tuple(name for name, known in zip(table.row_names, is_known(table.values), strict=True) if known)


def labels_in(nodes: Mapping[str, Array | None]) -> Array | None:
    """The labels among the arrays of a set: classes, or numbers."""
    return nodes["target"] if nodes["label"] is None else nodes["label"]


def by_split(splits: Array, rows: int) -> Array:
    """Splits with a row for each, (split, sample), of such, of one split or of a table with a column for each."""
    splits = np.atleast_2d(splits)
    return splits.T if splits.shape[1] != rows == splits.shape[0] else splits


def _checked_labels(labels: Array, samples: Array) -> Array:
    rows = len(samples)
    if labels.ndim not in (1, 2) or labels.shape[0] != rows:
        msg = f"labels have shape {labels.shape}, expected ({rows},) or ({rows}, tasks): one for each sample"
        raise InputError(msg)
    if labels.ndim == 2:
        return _checked_columns(labels)
    _refuse_missing(labels, samples)
    if labels.dtype.kind == "O" and all(isinstance(value, numbers.Real) for value in labels):
        labels = labels.astype(np.float64)
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            i = int(np.flatnonzero(~np.isfinite(labels))[0])
            msg = f"the label of sample {str(samples[i])!r} is infinite; every sample needs a class or a number"
            raise InputError(msg)
        if not np.array_equal(labels, np.round(labels)):
            return labels.astype(np.float64)
        labels = labels.astype(np.int64)
    if labels.dtype.kind in "iub":
        return labels.astype(np.int64)
    names = np.array([as_text(value) for value in labels.tolist()], dtype=object)
    for name in dict.fromkeys(names.tolist()):
        refuse_control(name, "class")
    return names


def _refuse_missing(labels: Array, samples: Array) -> None:
    missing = np.flatnonzero(~is_known(labels))
    if not len(missing):
        return
    written, few = str(labels[missing[0]]), ", ".join(repr(str(name)) for name in samples[missing[:3]])
    msg = (
        f"the labels of {len(missing)} of the {len(samples)} samples are missing ({few}{' …' * (len(missing) > 3)}; "
        f"written as {written!r}), and every sample needs a class or a number. Leave these samples out (where kernels "
        "and labels carry names of samples, join='inner', --join inner does), or call them another name if they are a "
        "class; unknown labels are for the tasks or targets of labels with several columns"
    )
    raise InputError(msg)


def _checked_columns(labels: Array) -> Array:
    """Labels of several tasks or targets: int8 where all are 0 or 1, float64 otherwise, NaN where unknown."""
    cells = labels.astype(object)
    cells[~is_known(labels)] = np.nan
    try:
        values = cells.astype(np.float64)
    except (TypeError, ValueError) as error:
        msg = (
            f"labels (sample, task) must be numbers, those of tasks 0 or 1: {error}; of several columns name "
            "the one that holds the labels (FILE:NAME)"
        )
        raise InputError(msg) from error
    if np.isinf(values).any():
        i, k = np.argwhere(np.isinf(values))[0].tolist()
        msg = f"the label of sample {i} in column {k} is infinite; mend it, or leave it out as NaN"
        raise InputError(msg)
    return values.astype(np.int8) if np.isin(values, (0, 1)).all() else values


def _checked_splits(splits: Array, rows: int) -> Array:
    splits = by_split(splits, rows)
    if splits.ndim != 2 or splits.shape[1] != rows:
        msg = f"splits have shape {splits.shape}, expected (splits, {rows}): a part for each sample"
        raise InputError(msg)
    if not np.isin(splits, (-1, 0, 1, 2)).all():
        msg = (
            "splits must hold 0 (train), 1 (validation), 2 (test) or -1 (none), found "
            f"{sorted(set(splits.ravel().tolist()))}"
        )
        raise InputError(msg)
    return splits.astype(np.int8)
