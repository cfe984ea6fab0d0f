"""Labels, splits and names of samples, in the order of the samples."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dmkl import settings
from dmkl.arrays import Array, is_known, note_of_code, refuse_codes, refuse_dates
from dmkl.errors import first_names, refuse
from dmkl.inputs.columns import counts, without_codes
from dmkl.names import (
    Join,
    Named,
    Names,
    all_names,
    as_text,
    joined,
    listed_names,
    names_as_known,
    need_families,
    note_of_order,
    pair_names,
    places,
    refuse_control,
    sample_names,
    similar_names,
    unique_names,
    without,
)

OF_SAMPLES = ("labels", "splits")
"""Roles of data with one value for each sample."""
_PARTS = {"train": 0, "training": 0, "0": 0, "validation": 1, "valid": 1, "val": 1, "1": 1}
_PARTS |= {"test": 2, "testing": 2, "2": 2, "none": -1, "": -1, "-1": -1}


@dataclass(frozen=True)
class LabelTable:
    """Labels, names or splits as they were given, with the names of rows and columns."""

    values: Array  # (rows,) or (rows, columns)
    row_names: Names = None
    columns: Names = None
    notes: tuple[str, ...] = ()  # choices that could have been otherwise
    is_table: bool = False  # whether it could hold names: text and data frames, no arrays
    categories: Collection[str] = ()  # titles of columns whose numbers are categories

    def __post_init__(self) -> None:
        if settings.get("unknown"):
            object.__setattr__(self, "values", without_codes(self.values))


@dataclass
class Labels:
    """Labels, splits and names of the samples of a set; every field may be missing."""

    samples: Sequence[Any] | Array | None = None  # names, unique; numbers from 0 by default
    train_samples: Sequence[Any] | Array | None = None  # names, unique; numbers from 0 by default
    labels: Sequence[Any] | Array | None = None  # (sample,) classes or numbers, or (sample, task) of 0 and 1 or numbers
    tasks: Sequence[Any] | Array | None = None  # names of the tasks or targets of labels with several columns
    splits: Sequence[Any] | Array | None = None  # (split, sample): 0 train, 1 validation, 2 test, -1 in no part
    diagonal: Array | None = None  # (kernel, sample), k(x, x) of rectangular kernels; symmetric ones contain it

    def checked(self, rows: int, cols: int, *, rectangular: bool) -> dict[str, Array | None]:
        """Check the labels against the shape of the kernels; returns the arrays to write."""
        samples = unique_names(self.samples, rows, "sample")
        nodes: dict[str, Array | None] = dict.fromkeys(("train_sample", "label", "target", "task", "split"))
        if rectangular:
            if self.train_samples is not None and len(self.train_samples) != cols:
                n = len(self.train_samples)
                way_out = "give them transposed" if rows == n != cols else "give K[new, train]"
                rule = "kernels of new samples have a column for each training sample"
                refuse(f"{rule}: found {rows} × {cols} entries, expected {n} columns; {way_out}")
            nodes["train_sample"] = unique_names(self.train_samples, cols, "train_sample")
        if self.labels is not None:
            labels = _checked_labels(np.asarray(self.labels), samples)
            nodes["target" if labels.dtype.kind == "f" else "label"] = labels
            nodes["task"] = unique_names(self.tasks, labels.shape[1], "task") if labels.ndim == 2 else None
        if self.splits is not None:
            splits = _checked_splits("splits", np.asarray(self.splits), rows)
            if not np.isin(splits, (-1, 0, 1, 2)).all():
                values = np.unique(splits).tolist()
                refuse(f"splits must hold 0 (train), 1 (validation), 2 (test) or -1 (none), found {values}")
            nodes["split"] = splits.astype(np.int8)
        return {"sample": samples, **nodes}


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
    text = f"{len(single)} of the {len(times)} classes have one sample each ({listed_names(single)})"
    if len(single) == 1:
        first = values.index(single[0])
        sample = f"sample {str(samples[first])!r}" if samples is not None else f"number {first}"
        text = f"the class {single[0]!r} has one sample ({sample})"
    return f"{text}, too few to learn from and to test on"


def _checked_labels(labels: Array, samples: Array) -> Array:
    """Return classes, numbers, or labels of several tasks: int8 if all are 0 or 1, else float64 with NaN if unknown."""
    rows = len(samples)
    refuse_dates(labels)
    if labels.ndim not in (1, 2) or labels.shape[0] != rows:
        refuse(f"labels have shape {labels.shape}, expected ({rows},) or ({rows}, tasks): one for each sample")
    missing = ~is_known(labels)
    if labels.ndim == 2:
        try:
            labels = np.where(missing, np.nan, labels.astype(object)).astype(np.float64)
        except (TypeError, ValueError) as error:
            refuse(f"labels (sample, task) must be numbers, 0 or 1 for tasks: {error}; or name one (FILE:NAME)", error)
    elif missing.any():
        which = f"{listed_names(map(str, samples[missing]))}; written as {str(labels[missing][0])!r}"
        what = f"the labels of {missing.sum()} of the {rows} samples are missing ({which}), and every sample needs a"
        way_out = "(by names: join='inner', --join inner), or call them another name if they are a class"
        refuse(f"{what} class or a number, unless labels have several columns. Leave these samples out {way_out}")
    elif labels.dtype.kind == "O" and all(isinstance(value, numbers.Real) for value in labels):
        labels = labels.astype(np.float64)
    if labels.dtype.kind == "f":
        for i, *column in np.argwhere(np.isinf(labels)).tolist():
            place = f"{i} in column {column[0]}" if column else repr(str(samples[i]))
            refuse(f"the label of sample {place} is infinite; mend it, or leave it out as NaN, or the sample")
    if labels.ndim == 2:
        return labels.astype(np.int8) if np.isin(labels, (0, 1)).all() else labels
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.round(labels)):
        return labels.astype(np.float64)
    if labels.dtype.kind in "fiub":
        return labels.astype(np.int64)
    names = np.array([as_text(value) for value in labels.tolist()], dtype=object)
    refuse_codes("the labels are", names, "say so (--unknown '{code}') or write NA")
    for name in dict.fromkeys(names.tolist()):
        refuse_control(name, "class")
    return names


def in_order(where: str, table: LabelTable, samples: Sequence[str] | None) -> LabelTable:
    """Return a table with a row for each of the samples, by name; the same table if one of both has no names."""
    names = table.row_names
    if names is None and samples is not None and table.is_table and table.values.ndim == 2:
        refuse_without_names(where, table.values.shape[1], samples)
    if names is None or samples is None or names == tuple(samples):
        return table
    names = names_as_known(names, samples)
    sample_names(where, names)
    values = table.values
    if values.ndim == 2 and len(values) != len(names):
        values = values.T  # a row for each split
    if len(values) != len(names):
        return table  # the check of shapes refuses it
    if missing := without(samples, names):
        hints = similar_names(missing, names, ("the set", samples))
        what = f"{where} lacks {len(missing)} of the {len(samples)} samples ({listed_names(missing)})"
        way_out = "Give each sample a value, or leave those samples out"
        refuse(f"{what}; its names begin with {listed_names(names)}. {way_out}{hints}")
    return LabelTable(values[places(names, samples)], tuple(samples), table.columns, notes=table.notes)


def in_columns(values: Array, columns: Iterable[Any] | None, wanted: Iterable[Any] | None) -> Array:
    """Return the columns of tasks or targets by their names, in this order; all columns if a name is not among them."""
    at = {str(name): k for k, name in enumerate(columns if columns is not None else ())}
    names = [str(name) for name in (wanted if wanted is not None else ())]
    return values[:, [at[name] for name in names]] if values.ndim == 2 and names and set(names) <= set(at) else values


def refuse_without_names(where: str, n_columns: int, samples: Iterable[str]) -> NoReturn:
    """Refuse a table of several columns without names of samples, if the samples have names."""
    what = f"{where} is a table of {n_columns} columns, none of which names the samples"
    names = f"a column of their names ({listed_names(samples)}), titled 'sample'"
    refuse(f"{what}; expected {names}, and one column of values or its name (FILE:NAME)")


@dataclass
class SideData:
    """Labels, splits or names of a set."""

    role: str  # a value of `dmkl.inputs.columns.ROLES`
    where: str  # how messages name it
    read: Callable[[Collection[str] | None], LabelTable]
    expected: Collection[str] | None = None  # the names of the samples, if known, which show the column of names

    @cached_property
    def table(self) -> LabelTable:
        """The values, which are read at first use."""
        return self.read(self.expected)

    def name_rows(self, names: Sequence[str] | None, *, by_position: bool = False) -> None:
        """Name rows without names one after another, those of a table of several columns only `by_position`."""
        table = self.table = replace(self.table, is_table=self.table.is_table and not by_position)
        several = table.is_table and table.values.ndim == 2
        if table.row_names is None and names is not None and not several and len(names) in table.values.shape:
            if self.role in (*OF_SAMPLES, "diagonal"):
                self.table = replace(table, row_names=tuple(names))

    def drop_header(self, n_rows: int, notes: list[str]) -> None:
        """Drop a first row of words if there is one row more than samples: that row is a header."""
        values, names = self.table.values, self.table.row_names
        if len(values) != n_rows + 1 or values.dtype.kind != "U" or np.isin(values[0], values[1:]).any():
            return
        what = f"its first line ({' '.join(map(str, np.ravel(values[0])))!r:.80}) was taken for a header"
        notes.append(f"{self.where}: {what}, since {n_rows} values follow it")
        self.table = replace(self.table, values=values[1:], row_names=None if names is None else names[1:])

    def widen(self, samples: Sequence[str]) -> None:
        """Make a table of one target, NaN where it is unknown, of numbers that some of the samples lack."""
        table = self.table
        has_numbers = table.values.ndim == 1 and table.values.dtype.kind in "if"
        if self.role != "labels" or table.row_names is None or not has_numbers or not samples:
            return
        names = names_as_known(table.row_names, samples)
        lacking = without(samples, names)
        if lacking or not is_known(table.values).all():
            values = np.append(table.values.astype(np.float64), np.full(len(lacking), np.nan))
            columns = (Path(self.where).name.partition(".")[0].strip("=") or "target",)
            self.table = LabelTable(values[:, None], (*names, *lacking), columns, notes=table.notes)

    def named(self, join: Join) -> Named | None:
        """Return the names of its samples; with join="inner" only of samples with known labels."""
        names, values = self.table.row_names, self.table.values
        if names is None or self.role not in OF_SAMPLES:
            return None
        if self.role == "labels" and join == "inner" and np.shape(values) == (len(names),):
            names = tuple(compress(names, is_known(values)))
        return Named(self.where, names)


def align(
    tables: Sequence[Named],
    join: Join,
    wanted: Names,
    read_data: Sequence[SideData],
    given: Sequence[SideData],
    notes: list[str],
    *,
    shape: tuple[int | None, int | None] = (None, None),
    stored: Names = None,
) -> tuple[list[Named], Names, list[SideData], list[str]]:
    """Join the samples of tables and of their labels by name.

    Returned are the tables with the names that are matched, the samples (None if nothing has names), their labels, and
    notes on data without names if other data has names. The samples are the `wanted` ones, those `stored` with the
    tables, or those of the tables. Labels and such that are `given` are read here, since the names of the tables show
    their columns of names. `shape` are the numbers of rows, and of columns if these are no samples of the rows.
    """
    # Numbers, such as those of an index that only counts, are names if other data has the same as names, in any order.
    bearing = [set(table.names) for table in tables if table.names is not None]
    if not bearing and any(table.numbers for table in tables):
        bearing = [set(item.table.row_names) for item in given if item.role in OF_SAMPLES and item.table.row_names]
    tables = [
        table._replace(names=next((own for own in table.numbers if set(own) in bearing), table.names))
        for table in tables
    ]
    expected = all_names(table.names for table in tables)
    order = wanted or stored
    first = order or next((table.names for table in tables if table.names is not None), None)
    unnamed = [table.where for table in tables if table.names is None]
    n_rows, n_cols = shape
    for item in given:
        item.expected = expected or set(wanted or ()) or None
        if item.role in OF_SAMPLES:
            if n_rows is not None:
                item.drop_header(n_rows, notes)
            unnamed += [item.where] if item.table.row_names is None else []
        notes += item.table.notes
        item.name_rows(first, by_position=not expected)
    kept = []
    for item in (*read_data, *given):
        lengths = item.table.values.shape if item.role in OF_SAMPLES and n_cols is not None else ()
        if n_cols in lengths and n_rows not in lengths:
            notes.append(f"{item.where} was left out: as long as the kernels' columns, and labels belong to their rows")
        else:
            kept.append(item)
    labeled = [table for item in kept if (table := item.named(join)) is not None]
    if need_families([table.names for table in (*tables, *labeled)]):
        tables, labeled = (
            [table._replace(names=table.names and pair_names(table.names)) for table in group]
            for group in (tables, labeled)
        )
    named = [table for table in tables if table.names is not None]
    for table in tables:
        others = [other.names for other in (*named, *labeled) if other is not table] if table.columns else []
        for names in map(set, filter(None, (*others, wanted))):
            rows, columns = (len(names.intersection(axis or ())) for axis in (table.names, table.columns))
            if columns > max(rows, len(names) / 2):
                what = f"the columns bear the names of the samples, {columns} of {len(names)}, and the rows {rows}"
                refuse(f"{table.where}: {what}; features are (samples, columns): give --transpose (transpose=True)")
    samples = joined(tables, join, order, labeled)
    for item in given if samples is None else ():
        _refuse_unknown_order(item, n_rows, first_names((table.where for table in tables), 3))
    if join == "inner" and samples is not None and wanted is None:
        names_of_all = {table.where: table.names or () for table in (*named, *labeled)}
        everyone = list(dict.fromkeys(name for names in names_of_all.values() for name in names))
        lost, n = without(everyone, samples), len(everyone)
        lacking = [f"{where} lacks {n - len(names)}" for where, names in names_of_all.items() if len(names) < n]
        if lost and lacking:
            what = f"{len(lost)} of {n} samples left out ({listed_names(lost)})"
            notes.append(f"{what} by join=inner: {first_names(lacking, 3)}")
    order_notes = []
    if unnamed and named and samples is not None and wanted is None:
        those, where = (first_names(titles, 3) for titles in (unnamed, [table.where for table in named]))
        what = f"{those} without names of samples: row i is taken for sample i ({samples[0]!r} is row 0) of {where}"
        way_out = "Give names (a column, or the index of a Series or data frame) to be safe"
        order_notes.append(f"{what}, which has names. {way_out}")
    for item in kept if join == "outer" else ():
        item.widen(samples or ())
    return list(tables), samples, kept, order_notes


def _refuse_unknown_order(item: SideData, n_rows: int | None, tables: str) -> None:
    """Refuse names of labels for tables without names, unless they are the numbers of the rows."""
    names = item.table.row_names
    if item.role not in OF_SAMPLES or not names or n_rows not in (None, len(names)):
        return
    if counts(names, 1) or set(names) == {str(i) for i in range(len(names))}:
        return
    what = f"{item.where} names its samples ({listed_names(names)}), and the rows of {tables} have no names"
    same = f"--order {item.where}" if not item.where.endswith("=") else "samples=y.index, or y.to_numpy() as labels"
    way_out = f"Give the names of the rows in their order (--order or --samples FILE, samples= in Python): {same}"
    refuse(f"{what}, so nothing says which row is {names[0]!r}. {way_out}, if row i is the i-th of these names")


def gather(
    side_data: Sequence[SideData], n_kernels: int | None, n_rows: int | None, samples: Names, notes: list[str]
) -> tuple[Labels, list[str] | None]:
    """Combine side data into labels, in the order of the samples; returns also the kernels' names if there are any.

    If nothing else names the samples, labels or splits do. Numbers of kernels and rows are checked unless None.
    """
    if samples is None:
        of_samples = [item for role in OF_SAMPLES for item in side_data if item.role == role]
        named = ((item.where, item.table.row_names or ()) for item in of_samples)
        fitting = {title: names for title, names in named if names and n_rows in (None, len(names))}
        for title, names in islice(fitting.items(), 1):
            numbers = tuple(map(str, range(len(names))))  # of the rows, in another order
            are_numbers = any(set(others) == set(numbers) for others in fitting.values())
            samples = numbers if are_numbers else names
            notes += [] if are_numbers else [note_of_order(title, names)]
    for item in side_data:
        names, table = item.table.row_names or (), item.table
        if item.role in (*OF_SAMPLES, "diagonal"):
            item.table = in_order(item.where, table, samples)
        if samples and item.table is not table and without(names, without(names, samples)) != list(samples):
            notes.append(f"{item.where} was put into the order of the samples, by name")
    chosen: dict[str, SideData] = {}
    for role in dict.fromkeys(item.role for item in side_data):
        first, *others = (item for item in side_data if item.role == role)
        order, values = first.table.row_names, first.table.values
        differing = [o for o in others if not np.array_equal(o.table.values, values) or o.table.row_names != order]
        if differing:
            what = f"{first.where} and {differing[0].where} differ, so neither was taken; say which holds"
            notes.append(f"{role}: {what}")
        else:
            chosen[role] = first
    result, tables = Labels(samples=samples), {role: item.table for role, item in chosen.items()}
    if "labels" in chosen:
        where, values, columns = chosen["labels"].where, tables["labels"].values, tables["labels"].columns or ()
        if n_rows is not None and values.ndim == 2 and values.shape[0] != n_rows == values.shape[1]:
            values = values.T
        if n_rows is not None and values.shape[:1] != (n_rows,):
            refuse(f"{where} has shape {values.shape}, expected ({n_rows},) or ({n_rows}, tasks)")
        result.labels = values
        result.tasks = columns if values.ndim == 2 and len(columns) == values.shape[1] else None
        if "tasks" in chosen:
            result.tasks = tables["tasks"].values
        targets: Any = np.atleast_2d(values.T) if values.dtype.kind in "if" else []
        notes += filter(None, (note_of_code(where, target) for target in targets))
        if single := single_samples(values, samples):
            notes.append(f"{where}: {single}")
    if "splits" in chosen:
        n_samples = n_rows if samples is None else len(samples)
        result.splits = _checked_splits(chosen["splits"].where, tables["splits"].values, n_samples)
    if "diagonal" in chosen:
        values = np.atleast_2d(tables["diagonal"].values)
        result.diagonal = values.T if values.shape == (n_rows, n_kernels) else values
    if "names" not in chosen:
        return result, None
    kernel_names, where = list(map(str, tables["names"].values.ravel())), chosen["names"].where
    if len(kernel_names) != n_kernels:
        refuse(f"{where} has {len(kernel_names)} names, expected one for each of the {n_kernels} kernels")
    return result, kernel_names


def _checked_splits(where: str, values: Array, n_rows: int | None) -> Array:
    """Return splits as (split, sample) of numbers, also from a single one, or from a column for each split."""
    values = np.atleast_2d(values)
    values = values.T if values.shape[1] != n_rows == values.shape[0] else values
    if n_rows is not None and (values.ndim != 2 or values.shape[1] != n_rows):
        refuse(f"{where} has shape {values.shape}, expected (splits, {n_rows}): a part for each sample")
    if values.dtype.kind == "f" and np.isnan(values).any():
        refuse(f"{where}: the part of {np.isnan(values).any(axis=0).sum()} samples is missing, expected 0, 1, 2 or -1")
    if values.dtype.kind not in "UO":
        return values
    for value in sorted({str(value) for value in values.ravel() if str(value).casefold() not in _PARTS}):
        refuse(f"{where} holds {value!r}, expected train, validation, test or none (or 0, 1, 2, -1)")
    return np.array([[_PARTS[str(value).casefold()] for value in row] for row in values], dtype=np.int8)
