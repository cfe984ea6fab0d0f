"""Labels, names and splits found beside kernels, in the order of the kernels' samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.labels import Labels, by_split, labeled_names, single_samples
from dmkl.inputs.names import (
    Join,
    LabelTable,
    Named,
    in_order,
    named_by_position,
    places,
    same_order,
    taken_by_position,
)

__all__ = ["OF_SAMPLES", "KernelShape", "SideData", "gather", "names_beside", "of_rows"]

_PARTS = {
    **dict.fromkeys(("train", "training", "0"), 0),
    **dict.fromkeys(("validation", "valid", "val", "1"), 1),
    **dict.fromkeys(("test", "testing", "2"), 2),
    **dict.fromkeys(("none", "", "-1"), -1),
}


@dataclass(frozen=True)
class SideData:
    """Labels, names or splits, recognized by the name of their file or array, or given as such."""

    role: str  # one of the values of `ROLES`
    where: str  # how messages name it
    read: Callable[[], LabelTable]
    reread: Callable[[Collection[str]], LabelTable] | None = None  # reads it where names of samples are known

    def knowing(self, names: Collection[str] | None) -> SideData:
        """The same, read with the names of the samples, which show which of its columns holds them."""
        return self if self.reread is None or not names else replace(self, read=partial(self.reread, names))

    def held(
        self, names: Sequence[str] | None = None, notes: list[str] | None = None, *, by_position: bool = False
    ) -> SideData:
        """The same, read now; `names` are those of its rows, where it is of samples and has none.

        With `by_position` no other source has names, so a table of several columns needs none.
        """
        table = self.read()
        if by_position:
            table = replace(table, is_table=False)
        if notes is not None:
            notes += table.notes
        if self.role in (*OF_SAMPLES, "diagonal"):
            table = named_by_position(table, names)
        return replace(self, read=lambda: table)

    def without_header(self, n_rows: int, notes: list[str]) -> SideData:
        """The same without a first row of words, where there is one row more than samples: that row is a header."""
        if self.role not in OF_SAMPLES:
            return self
        table = self.read()
        values = table.values
        if len(values) != n_rows + 1 or values.dtype.kind != "U" or np.isin(values[0], values[1:]).any():
            return replace(self, read=lambda: table)  # a file is read once
        names = None if table.row_names is None else table.row_names[1:]
        title = " ".join(map(str, np.ravel(values[0])))
        notes.append(
            f"{self.where}: its first line ({title!r:.80}) was taken for a header, since {n_rows} values follow it"
        )
        shorter = replace(table, values=values[1:], row_names=names)
        return replace(self, read=lambda: shorter)


OF_SAMPLES = ("labels", "splits")
"""Roles of data with one value for each sample."""


@dataclass(frozen=True)
class KernelShape:
    """Number and shape of the kernels, and the names of their samples."""

    n_kernels: int
    n_rows: int
    n_cols: int
    samples: Sequence[str] | None = None  # names of the rows, or None
    train_samples: Sequence[str] | None = None  # names of the columns, or None


def of_rows(found: Sequence[SideData], shape: tuple[int, int], notes: list[str]) -> list[SideData]:
    """Side data without the labels and splits of the columns of rectangular kernels."""
    kept = []
    for item in found:
        lengths = item.read().values.shape if item.role in OF_SAMPLES else shape
        if shape[1] in lengths and shape[0] not in lengths:
            notes.append(
                f"{item.where} was left out: it is as long as the kernels' columns, and labels belong to their rows"
            )
        else:
            kept.append(item)
    return kept


def names_beside(found: Sequence[SideData], join: Join) -> list[Named]:
    """The names that labels and splits carry; where samples may be left out, those whose label is missing are."""
    named = []
    for item in found:
        table = item.read() if item.role in OF_SAMPLES else LabelTable(np.empty(0))
        names, families = table.row_names, table.families
        if names is not None and item.role == "labels" and join == "inner":
            kept = labeled_names(table) or ()
            at = places(names, kept) if families is not None else ()
            names, families = kept, None if families is None else tuple(families[k] for k in at)
        if names is not None:
            named.append(Named(item.where, names, families))
    return named


def gather(found: Sequence[SideData], frame: KernelShape, notes: list[str]) -> tuple[Labels, list[str] | None]:
    """Combine side data into labels, in the order of the kernels' samples.

    Where nothing else names the samples, they get the names that labels or splits carry, one after another.

    Returns
    -------
    tuple
        The labels, and the kernels' names where there are any.
    """
    held: dict[str, tuple[str, LabelTable]] = {}
    for role in dict.fromkeys(item.role for item in found):
        tables = [(item.where, item.read()) for item in found if item.role == role]
        if role in OF_SAMPLES:  # what is one by name has to agree
            tables = [(where, _in_order(where, table, frame.samples, notes)) for where, table in tables]
        only = _only(role, tables, notes)
        if only is not None:
            held[role] = only
    samples = frame.samples
    if samples is None:
        named = [(held[role][0], held[role][1].row_names) for role in OF_SAMPLES if role in held]
        fitting = [(where, names) for where, names in named if names is not None and len(names) == frame.n_rows]
        numbers = [str(i) for i in range(frame.n_rows if fitting else 0)]
        if any(set(names) == set(numbers) for _, names in fitting):
            samples = numbers  # the numbers of the rows, in another order
        elif fitting:
            where, samples = fitting[0]
            notes.append(taken_by_position(where, samples))
    result = Labels(samples=samples, train_samples=frame.train_samples)
    if "labels" in held:
        where, table = held["labels"]
        result.labels, tasks = _labels(where, _in_order(where, table, samples, notes), frame)
        result.tasks = held["tasks"][1].values if "tasks" in held else tasks
        single = single_samples(np.asarray(result.labels), samples)
        if single is not None:
            notes.append(f"{where}: {single}")
    if "splits" in held:
        where, table = held["splits"]
        result.splits = _splits(where, _in_order(where, table, samples, notes), frame)
    if "diagonal" in held:
        where, table = held["diagonal"]
        values = np.atleast_2d(_in_order(where, table, samples, notes).values)
        result.diagonal = values.T if values.shape == (frame.n_rows, frame.n_kernels) else values
    names = None
    if "names" in held:
        where, table = held["names"]
        names = [str(name) for name in table.values.ravel()]
        if len(names) != frame.n_kernels:
            msg = f"{where} has {len(names)} names, expected one for each of the {frame.n_kernels} kernels"
            raise InputError(msg)
    return result, names


def _only(role: str, tables: Sequence[tuple[str, LabelTable]], notes: list[str]) -> tuple[str, LabelTable] | None:
    """The side data of one role; where there are several they must agree."""
    first, *others = tables
    for where, table in others:
        if not np.array_equal(table.values, first[1].values) or table.row_names != first[1].row_names:
            notes.append(f"{role}: {first[0]} and {where} differ, so neither was taken; say which holds")
            return None
    return first


def _in_order(where: str, table: LabelTable, samples: Sequence[str] | Array | None, notes: list[str]) -> LabelTable:
    names = None if samples is None else tuple(map(str, samples))
    ordered = in_order(where, table, names)
    if ordered is not table and not (names and same_order(table.row_names or (), names)):
        notes.append(f"{where} was put into the order of the samples, by name")
    return ordered


def _labels(where: str, table: LabelTable, frame: KernelShape) -> tuple[Array, Sequence[str] | None]:
    values = table.values
    if values.ndim == 2 and values.shape[0] != frame.n_rows and values.shape[1] == frame.n_rows:
        values = values.T
    if values.shape[:1] != (frame.n_rows,):
        msg = (
            f"{where} has shape {values.shape}, expected ({frame.n_rows},), a class or a number for each sample, or "
            f"({frame.n_rows}, tasks)"
        )
        raise InputError(msg)
    tasks = table.columns if values.ndim == 2 and len(table.columns or ()) == values.shape[1] else None
    return values, tasks


def _splits(where: str, table: LabelTable, frame: KernelShape) -> Array:
    values = by_split(table.values, frame.n_rows)
    if values.ndim != 2 or values.shape[1] != frame.n_rows:
        msg = f"{where} has shape {values.shape}, expected a part for each of the {frame.n_rows} samples"
        raise InputError(msg)
    if values.dtype.kind not in "UO":
        if values.dtype.kind == "f" and np.isnan(values).any():
            n_missing = int(np.isnan(values).any(axis=0).sum())
            msg = f"{where}: the part of {n_missing} samples is missing, expected 0, 1, 2 or -1"
            raise InputError(msg)
        return values
    unknown = sorted({str(value) for value in values.ravel() if str(value).casefold() not in _PARTS})
    if unknown:
        msg = f"{where} holds {unknown[0]!r}, expected train, validation, test or none (or 0, 1, 2, -1)"
        raise InputError(msg)
    return np.array([[_PARTS[str(value).casefold()] for value in row] for row in values], dtype=np.int8)
