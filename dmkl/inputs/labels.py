"""Labels, splits and names of samples: what goes into a kernel set beside the kernels."""

from __future__ import annotations

import numbers
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.unknown import is_known

__all__ = [
    "LabelTable",
    "Labels",
    "as_text",
    "axis_names",
    "by_split",
    "index_names",
    "labeled_names",
    "labels_in",
    "only_counts",
    "sample_names",
    "single_samples",
    "unique_names",
]


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


@dataclass(frozen=True)
class LabelTable:
    """Labels, names or splits as they were given, with the names beside and above them."""

    values: Array  # (rows,) or (rows, columns)
    row_names: tuple[str, ...] | None = None  # the names of the rows, where they have any
    columns: tuple[str, ...] | None = None  # the names of the columns, where they have any


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


def unique_names(values: Sequence[Any] | Array | None, length: int, what: str) -> Array:
    """Names as an array of strings, numbers from 0 where there are none; `what` they are of, as messages say it."""
    if values is None:
        return np.array([str(i) for i in range(length)], dtype=object)
    given = np.asarray(values)
    if given.ndim != 1:
        msg = f"{what} names must be a list of {length}, got {values!r:.80}"
        raise InputError(msg)
    names = [as_text(value) for value in given.tolist()]
    if len(names) != length:
        msg = f"{what} names: found {len(names)}, expected one for each of the {length} {what}s"
        raise InputError(msg)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            msg = f"{what} names must be unique, but {name!r} occurs more than once"
            raise InputError(msg)
        _refuse_control(name, f"{what} name")
        seen.add(name)
    return np.array(names, dtype=object)


def _refuse_control(name: str, what: str) -> None:
    """Refuse control characters, which a terminal obeys, and which end names or lines in files of text."""
    control = [] if name.isprintable() else [c for c in name if unicodedata.category(c) in ("Cc", "Zl", "Zp")]
    if control:
        msg = f"{what} {name!r} holds a control character ({control[0]!r}); give it another name"
        raise InputError(msg)


def as_text(value: Any) -> str:
    """A name as a string."""
    # NumPy and HDF5 hold strings as bytes, whose str() is "b'...'".
    return value.decode() if isinstance(value, bytes) else str(value)


def sample_names(where: str, names: Iterable[Any] | None, length: int | None = None) -> tuple[str, ...] | None:
    """Names of samples as strings, checked to be unique and as many as the rows."""
    if names is None:
        return None
    found = tuple(map(as_text, names))
    if length is not None and len(found) != length:
        msg = f"{where} have {length} rows and {len(found)} sample names, expected a name for each row"
        raise InputError(msg)
    if len(set(found)) < len(found):
        name, count = Counter(found).most_common(1)[0]
        msg = (
            f"{where}: sample names must be unique, but {name!r} occurs {count} times; "
            "drop or average the rows of one name, or rename them"
        )
        raise InputError(msg)
    return found


def only_counts(index: pd.Index[Any]) -> bool:
    """Whether an index is that of a data frame without names of rows."""
    return isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1


def index_names(index: pd.Index[Any]) -> tuple[str, ...] | None:
    """The names in an index of pandas; None where it only counts."""
    return None if only_counts(index) else tuple(map(as_text, index))


def axis_names(array: xr.DataArray, axis: int) -> tuple[str, ...] | None:
    """The coordinate of an axis of an xarray array; None where it has none."""
    if axis >= array.ndim or array.dims[axis] not in array.coords:
        return None
    return tuple(map(as_text, array.coords[array.dims[axis]].to_numpy().tolist()))


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
        _refuse_control(name, "class")
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
        msg = f"labels (sample, task) must be numbers, those of tasks 0 or 1: {error}"
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
