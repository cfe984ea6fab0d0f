"""Labels, splits and names of samples, in the order of the samples."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import refuse
from dmkl.inputs.names import (
    Join,
    Named,
    as_text,
    hint_at_order,
    listed_names,
    names_as_known,
    note_of_order,
    places,
    refuse_control,
    sample_names,
    similar_names,
    unique_names,
)
from dmkl.unknown import is_known

OF_SAMPLES = ("labels", "splits")
"""Roles of data with one value for each sample."""
_PARTS = {
    **dict.fromkeys(("train", "training", "0"), 0),
    **dict.fromkeys(("validation", "valid", "val", "1"), 1),
    **dict.fromkeys(("test", "testing", "2"), 2),
    **dict.fromkeys(("none", "", "-1"), -1),
}


@dataclass(frozen=True)
class LabelTable:
    """Labels, names or splits as they were given, with the names of rows and columns."""

    values: Array  # (rows,) or (rows, columns)
    row_names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    families: tuple[str, ...] | None = None  # of the rows
    notes: tuple[str, ...] = ()  # choices that could have been otherwise
    is_table: bool = False  # whether it could hold names: text and data frames, no arrays


@dataclass
class Labels:
    """Labels, splits and names of the samples of a set; every field may be missing."""

    samples: Sequence[Any] | Array | None = None  # names, unique; numbers from 0 by default
    train_samples: Sequence[Any] | Array | None = None  # names, unique; numbers from 0 by default
    labels: Sequence[Any] | Array | None = None  # (sample,) classes or numbers, or (sample, task) of 0 and 1 or numbers
    tasks: Sequence[Any] | Array | None = None  # names of the tasks or targets of labels with several columns
    splits: Sequence[Any] | Array | None = None  # (split, sample): 0 train, 1 validation, 2 test, -1 in no part
    diagonal: Array | None = None
    """(kernel, sample), k(x, x) of the samples of rectangular kernels; symmetric ones contain it."""

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


def labels_in(nodes: Mapping[str, Array | None]) -> Array | None:
    """Return the labels among the arrays of a set: classes, or numbers."""
    return nodes["target"] if nodes["label"] is None else nodes["label"]


def single_samples(labels: Array, samples: Sequence[Any] | Array | None = None) -> str | None:
    """Return the note on classes with a single sample; None if there are none, or labels are no classes."""
    if labels.ndim != 1 or labels.dtype.kind == "f":
        return None
    values = [as_text(value) for value in labels.tolist()]
    times = Counter(values)
    single = [name for name, n in times.items() if n == 1]
    if not single:
        return None
    first = values.index(single[0])
    sample = f"sample {str(samples[first])!r}" if samples is not None else f"number {first}"
    text = f"the class {single[0]!r} has one sample ({sample})"
    if len(single) > 1:
        text = f"{len(single)} of the {len(times)} classes have one sample each ({listed_names(single)})"
    return f"{text}, too few to learn from and to test on"


def by_split(splits: Array, rows: int | None) -> Array:
    """Return splits as (split, sample), from these, a single split or a table with a column for each split."""
    splits = np.atleast_2d(splits)
    return splits.T if splits.shape[1] != rows == splits.shape[0] else splits


# --- checks of values ----------------------------------------------------------------------------------------------


def _checked_labels(labels: Array, samples: Array) -> Array:
    rows = len(samples)
    if labels.ndim not in (1, 2) or labels.shape[0] != rows:
        refuse(f"labels have shape {labels.shape}, expected ({rows},) or ({rows}, tasks): one for each sample")
    if labels.ndim == 2:
        return _checked_columns(labels)
    _refuse_missing(labels, samples)
    if labels.dtype.kind == "O" and all(isinstance(value, numbers.Real) for value in labels):
        labels = labels.astype(np.float64)
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            i = int(np.flatnonzero(~np.isfinite(labels))[0])
            refuse(f"the label of sample {str(samples[i])!r} is infinite; every sample needs a class or a number")
        if not np.array_equal(labels, np.round(labels)):
            return labels.astype(np.float64)
    if labels.dtype.kind in "fiub":
        return labels.astype(np.int64)
    names = np.array([as_text(value) for value in labels.tolist()], dtype=object)
    for name in dict.fromkeys(names.tolist()):
        refuse_control(name, "class")
    return names


def _refuse_missing(labels: Array, samples: Array) -> None:
    missing = np.flatnonzero(~is_known(labels))
    if not len(missing):
        return
    refuse(
        f"the labels of {len(missing)} of the {len(samples)} samples are missing "
        f"({listed_names(map(str, samples[missing]))}; written as {str(labels[missing[0]])!r}), and every sample needs "
        "a class or a number. Leave these samples out (where kernels and labels carry names of samples, join='inner', "
        "--join inner does), or call them another name if they are a class; unknown labels are for the tasks or "
        "targets of labels with several columns"
    )


def _checked_columns(labels: Array) -> Array:
    """Return labels of several tasks or targets: int8 if all are 0 or 1, else float64 with NaN for unknown labels."""
    cells = labels.astype(object)
    cells[~is_known(labels)] = np.nan
    try:
        values = cells.astype(np.float64)
    except (TypeError, ValueError) as error:
        refuse(
            f"labels (sample, task) must be numbers, 0 or 1 for tasks: {error}; or name one column (FILE:NAME)", error
        )
    if np.isinf(values).any():
        i, k = np.argwhere(np.isinf(values))[0].tolist()
        refuse(f"the label of sample {i} in column {k} is infinite; mend it, or leave it out as NaN")
    return values.astype(np.int8) if np.isin(values, (0, 1)).all() else values


def _checked_splits(splits: Array, rows: int) -> Array:
    splits = by_split(splits, rows)
    if splits.ndim != 2 or splits.shape[1] != rows:
        refuse(f"splits have shape {splits.shape}, expected (splits, {rows}): a part for each sample")
    if not np.isin(splits, (-1, 0, 1, 2)).all():
        refuse(f"splits must hold 0 (train), 1 (validation), 2 (test) or -1 (none), found {np.unique(splits).tolist()}")
    return splits.astype(np.int8)


# --- the order of the samples --------------------------------------------------------------------------------------


def in_order(where: str, table: LabelTable, samples: Sequence[str] | None) -> LabelTable:
    """Return a table with a row for each of the samples, by name; unchanged if the table or the samples have no names.

    InputError is raised if a sample is missing, or if a table of several columns has no names. Other rows are left out.
    """
    names = table.row_names
    if names is None and samples is not None and table.is_table and table.values.ndim == 2:
        refuse_without_names(where, table.values.shape[1], samples)
    if names is None or samples is None or names == tuple(samples):
        return table
    names = names_as_known(names, table.families, samples)
    sample_names(where, names)
    values = table.values
    if values.ndim == 2 and len(values) != len(names):
        values = values.T  # a row for each split
    if len(values) != len(names):
        return table  # the check of shapes refuses it
    at = places(names, samples)
    missing = [name for name, position in zip(samples, at, strict=True) if position < 0]
    if missing:
        refuse(
            f"{where} lacks {len(missing)} of the {len(samples)} samples ({listed_names(missing)}); its names begin "
            f"with {listed_names(names)}. Give each sample a value, or leave those samples out"
            f"{similar_names(missing, names)}{hint_at_order('the set', samples)}"
        )
    return LabelTable(values[at], tuple(samples), table.columns, notes=table.notes)


def refuse_without_names(where: str, n_columns: int, samples: Iterable[str]) -> NoReturn:
    """Refuse a table of several columns without names of samples, if the samples have names."""
    refuse(
        f"{where} is a table of {n_columns} columns, none of which names the samples, and the samples have names "
        f"({listed_names(samples)}); expected a column of these names, since rows are matched by name. Title it "
        "'sample', and give one column of values or its name (FILE:NAME)"
    )


class SideData:
    """Labels, splits or names, recognized by the name of their file or array, or given.

    Attributes
    ----------
    role
        A value of `dmkl.inputs.columns.ROLES`.
    where
        How messages name it.
    known
        The names of the samples, if they are known, which tell the column of names.
    """

    def __init__(self, role: str, where: str, read: Callable[[Collection[str] | None], LabelTable]) -> None:
        self.role, self.where, self._read = role, where, read
        self.expected: Collection[str] | None = None
        self._table: LabelTable | None = None

    @property
    def table(self) -> LabelTable:
        """The values, which are read at first use."""
        if self._table is None:
            self._table = self._read(self.expected)
        return self._table

    def name_rows(self, names: Sequence[str] | None, *, by_position: bool = False) -> None:
        """Give rows without names these names, one after another, if there are as many.

        A table of several columns must have names, unless nothing else has any (`by_position`).
        """
        table = self._table = replace(self.table, is_table=self.table.is_table and not by_position)
        several = table.is_table and table.values.ndim == 2
        if table.row_names is None and names is not None and not several and len(names) in table.values.shape:
            if self.role in (*OF_SAMPLES, "diagonal"):
                self._table = replace(table, row_names=tuple(names))

    def drop_header(self, n_rows: int, notes: list[str]) -> None:
        """Drop a first row of words if there is one row more than samples: that row is a header."""
        values = self.table.values
        if len(values) != n_rows + 1 or values.dtype.kind != "U" or np.isin(values[0], values[1:]).any():
            return
        title = " ".join(map(str, np.ravel(values[0])))
        notes.append(
            f"{self.where}: its first line ({title!r:.80}) was taken for a header, since {n_rows} values follow it"
        )
        names = self.table.row_names
        self._table = replace(self.table, values=values[1:], row_names=None if names is None else names[1:])

    def sort(self, samples: Sequence[str] | None, notes: list[str]) -> None:
        """Put the rows into the order of the samples, by name."""
        names = self.table.row_names or ()
        ordered = in_order(self.where, self.table, samples)
        if ordered is not self.table and samples is not None:
            wanted = set(samples)
            if [name for name in names if name in wanted] != list(samples):
                notes.append(f"{self.where} was put into the order of the samples, by name")
        self._table = ordered

    def named(self, join: Join) -> Named | None:
        """Return the names of its samples; with join="inner" only of samples with known labels."""
        table = self.table
        names, families = table.row_names, table.families
        if names is None or self.role not in OF_SAMPLES:
            return None
        if self.role == "labels" and join == "inner" and np.shape(table.values) == (len(names),):
            kept = np.flatnonzero(is_known(table.values))
            names = tuple(names[k] for k in kept)
            families = None if families is None else tuple(families[k] for k in kept)
        return Named(self.where, names, families)


def place_given(
    given: Iterable[SideData],
    expected: Collection[str],
    order: Sequence[str] | None,
    n_rows: int | None,
    notes: list[str],
    *,
    by_position: bool,
) -> list[str]:
    """Read data that was given, and name its rows; returns the titles of data of samples without names.

    `expected` are the names of the samples, `order` those of rows without names; with `by_position` nothing else has
    names.
    """
    without = []
    for item in given:
        item.expected = expected or None
        if item.role in OF_SAMPLES:
            if n_rows is not None:
                item.drop_header(n_rows, notes)
            without += [item.where] if item.table.row_names is None else []
        notes += item.table.notes
        item.name_rows(order, by_position=by_position)
    return without


def gather(
    beside: Sequence[SideData],
    n_kernels: int | None,
    n_rows: int | None,
    samples: Sequence[str] | None,
    notes: list[str],
) -> tuple[Labels, list[str] | None]:
    """Combine side data into labels, in the order of the samples.

    If nothing else names the samples, they get the names of labels or splits, one after another.

    Parameters
    ----------
    n_kernels, n_rows
        The numbers of kernels and of samples, to check shapes; None if they are unknown.

    Returns
    -------
    tuple
        The labels, and the kernels' names if there are any.
    """
    for item in beside:
        if item.role in OF_SAMPLES:  # data of one role is compared in the same order
            item.sort(samples, notes)
    roles = dict.fromkeys(item.role for item in beside)
    agreed = (_agreed([item for item in beside if item.role == role], notes) for role in roles)
    chosen = {item.role: item for item in agreed if item is not None}
    of_samples = [chosen[role] for role in OF_SAMPLES if role in chosen]
    if samples is None:
        named = {item.where: item.table.row_names or () for item in of_samples}
        fitting = {title: names for title, names in named.items() if names and n_rows in (None, len(names))}
        for title, names in islice(fitting.items(), 1):
            numbers = tuple(map(str, range(len(names))))
            if any(set(others) == set(numbers) for others in fitting.values()):
                samples = numbers  # the numbers of the rows, in another order
            else:
                samples = names
                notes.append(note_of_order(title, names))
    for item in chosen.values():
        if item.role in (*OF_SAMPLES, "diagonal"):
            item.sort(samples, notes)
    result = Labels(samples=samples)
    if "labels" in chosen:
        result.labels, result.tasks = _labels(chosen["labels"], n_rows)
        if "tasks" in chosen:
            result.tasks = chosen["tasks"].table.values
        single = single_samples(np.asarray(result.labels), samples)
        if single is not None:
            notes.append(f"{chosen['labels'].where}: {single}")
    if "splits" in chosen:
        result.splits = _splits(chosen["splits"], n_rows)
    if "diagonal" in chosen:
        values = np.atleast_2d(chosen["diagonal"].table.values)
        result.diagonal = values.T if values.shape == (n_rows, n_kernels) else values
    if "names" not in chosen:
        return result, None
    kernel_names = [str(name) for name in chosen["names"].table.values.ravel()]
    if len(kernel_names) != n_kernels:
        refuse(
            f"{chosen['names'].where} has {len(kernel_names)} names, expected one for each of the {n_kernels} kernels"
        )
    return result, kernel_names


def _agreed(items: Sequence[SideData], notes: list[str]) -> SideData | None:
    """Return the first data of one role if all of it agrees, else None."""
    first, *others = items
    for item in others:
        table, other = first.table, item.table
        if not np.array_equal(other.values, table.values) or other.row_names != table.row_names:
            notes.append(f"{first.role}: {first.where} and {item.where} differ, so neither was taken; say which holds")
            return None
    return first


def _labels(item: SideData, n_rows: int | None) -> tuple[Array, Sequence[str] | None]:
    values, columns = item.table.values, item.table.columns
    if n_rows is not None:
        if values.ndim == 2 and values.shape[0] != n_rows and values.shape[1] == n_rows:
            values = values.T
        if values.shape[:1] != (n_rows,):
            refuse(f"{item.where} has shape {values.shape}, expected ({n_rows},) or ({n_rows}, tasks)")
    return values, columns if values.ndim == 2 and len(columns or ()) == values.shape[1] else None


def _splits(item: SideData, n_rows: int | None) -> Array:
    values = by_split(item.table.values, n_rows)
    if n_rows is not None and (values.ndim != 2 or values.shape[1] != n_rows):
        refuse(f"{item.where} has shape {values.shape}, expected a part for each of the {n_rows} samples")
    if values.dtype.kind not in "UO":
        if values.dtype.kind == "f" and np.isnan(values).any():
            n_missing = int(np.isnan(values).any(axis=0).sum())
            refuse(f"{item.where}: the part of {n_missing} samples is missing, expected 0, 1, 2 or -1")
        return values
    unknown = sorted({str(value) for value in values.ravel() if str(value).casefold() not in _PARTS})
    if unknown:
        refuse(f"{item.where} holds {unknown[0]!r}, expected train, validation, test or none (or 0, 1, 2, -1)")
    return np.array([[_PARTS[str(value).casefold()] for value in row] for row in values], dtype=np.int8)
