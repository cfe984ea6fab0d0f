"""Labels, names and splits found beside kernels, in the order of the kernels' samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.formats.text import LabelTable
from dmkl.inputs.labels import Labels

__all__ = ["KernelShape", "SideData", "gather"]

_PARTS = {
    **dict.fromkeys(("train", "training", "0"), 0),
    **dict.fromkeys(("validation", "valid", "val", "1"), 1),
    **dict.fromkeys(("test", "testing", "2"), 2),
    **dict.fromkeys(("none", "", "-1"), -1),
}


@dataclass(frozen=True)
class SideData:
    """Labels, names or splits, recognized by the name of their file or array."""

    role: str  # one of the values of `ROLES`
    where: str  # how messages name it
    read: Callable[[], LabelTable]


@dataclass(frozen=True)
class KernelShape:
    """Number and shape of the kernels, and the names of rows and columns that their files hold."""

    n_kernels: int
    n_rows: int
    n_cols: int
    row_names: Sequence[str] | None = None  # the names in a text file; None where it has none
    col_names: Sequence[str] | None = None  # the names in a text file; None where it has none


def gather(found: Sequence[SideData], frame: KernelShape, notes: list[str]) -> tuple[Labels, list[str] | None]:
    """Combine side data into labels, in the order of the kernels' samples.

    Returns
    -------
    tuple
        The labels, and the kernels' names where there are any.
    """
    held: dict[str, tuple[str, LabelTable]] = {}
    for role in dict.fromkeys(item.role for item in found):
        only = _only([item for item in found if item.role == role], notes)
        if only is not None:
            held[role] = only
    samples = _samples(held, frame)
    result = Labels(samples=samples)
    if "train_samples" in held:
        result.train_samples = _fitting(*held["train_samples"], frame.n_cols, "column")
    elif frame.n_rows != frame.n_cols:
        result.train_samples = frame.col_names
    if "labels" in held and not _of_columns(*held["labels"], frame, notes):
        where, table = held["labels"]
        result.labels, tasks = _labels(where, _in_order(where, table, samples, notes), frame)
        result.tasks = held["tasks"][1].values if "tasks" in held else tasks
    if "splits" in held and not _of_columns(*held["splits"], frame, notes):
        where, table = held["splits"]
        result.splits = _splits(where, _in_order(where, table, samples, notes), frame)
    if "diagonal" in held:
        where, table = held["diagonal"]
        values = np.atleast_2d(table.values)
        result.diagonal = values.T if values.shape == (frame.n_rows, frame.n_kernels) else values
    names = None
    if "names" in held:
        where, table = held["names"]
        names = [str(name) for name in table.values.ravel()]
        if len(names) != frame.n_kernels:
            msg = f"{where} has {len(names)} names, expected one for each of the {frame.n_kernels} kernels"
            raise InputError(msg)
    return result, names


def _only(items: Sequence[SideData], notes: list[str]) -> tuple[str, LabelTable] | None:
    """The side data of one role; where there are several they must agree."""
    first, *others = [(item.where, item.read()) for item in items]
    for where, table in others:
        if not np.array_equal(table.values, first[1].values) or table.row_names != first[1].row_names:
            notes.append(f"{items[0].role}: {first[0]} and {where} differ, so neither was taken; say which holds")
            return None
    return first


def _samples(held: dict[str, tuple[str, LabelTable]], frame: KernelShape) -> Sequence[str] | Array | None:
    if "samples" in held:
        return _fitting(*held["samples"], frame.n_rows, "row")
    if frame.row_names is not None:
        return frame.row_names
    if frame.col_names is not None and frame.n_rows == frame.n_cols:
        return frame.col_names
    named = [held[role][1].row_names for role in ("labels", "splits") if role in held]
    return next((names for names in named if names is not None and len(names) == frame.n_rows), None)


def _fitting(where: str, table: LabelTable, length: int, what: str) -> Array:
    # A table of samples has their names in its first column; what else it says of them is no name.
    values = np.array(table.row_names) if table.row_names is not None else table.values
    if values.shape != (length,):
        msg = f"{where} has shape {values.shape}, expected a name for each of the {length} {what}s of the kernels"
        raise InputError(msg)
    return values


def _of_columns(where: str, table: LabelTable, frame: KernelShape, notes: list[str]) -> bool:
    """Whether these belong to the columns of rectangular kernels; a set has labels for its rows alone."""
    theirs = frame.n_cols in table.values.shape and frame.n_rows not in table.values.shape
    if theirs:
        notes.append(f"{where} was left out: it is as long as the kernels' columns, and labels belong to their rows")
    return theirs


def _in_order(where: str, table: LabelTable, samples: Sequence[str] | Array | None, notes: list[str]) -> LabelTable:
    """A table with its rows in the order of the samples."""
    if table.row_names is None or samples is None:
        return table
    wanted = [str(sample) for sample in samples]
    if list(table.row_names) == wanted:
        return table
    position = {name: i for i, name in enumerate(table.row_names)}
    missing = [name for name in wanted if name not in position]
    if missing or len(position) != len(wanted):
        extra = [name for name in table.row_names if name not in set(wanted)]
        msg = (
            f"{where} has {len(table.row_names)} rows, the kernels {len(wanted)} samples"
            + (f"; sample {missing[0]!r} is missing from it" if missing else "")
            + (f"; {extra[0]!r} is no sample of the kernels" if extra else "")
        )
        raise InputError(msg)
    notes.append(f"{where} was put into the order of the kernels' samples, by name")
    return LabelTable(table.values[[position[name] for name in wanted]], tuple(wanted), table.columns)


def _labels(where: str, table: LabelTable, frame: KernelShape) -> tuple[Array, Sequence[str] | None]:
    values = table.values
    if values.ndim == 2 and values.shape[0] != frame.n_rows and values.shape[1] == frame.n_rows:
        values = values.T
    if values.shape[:1] != (frame.n_rows,) or (values.ndim == 2 and values.dtype.kind == "U"):
        msg = (
            f"{where} has shape {values.shape}, expected ({frame.n_rows},), a class for each sample, or "
            f"({frame.n_rows}, tasks) of 0 and 1"
        )
        raise InputError(msg)
    tasks = table.columns if values.ndim == 2 and len(table.columns or ()) == values.shape[1] else None
    return values, tasks


def _splits(where: str, table: LabelTable, frame: KernelShape) -> Array:
    values = np.atleast_2d(table.values)
    if values.shape[1] != frame.n_rows and values.shape[0] == frame.n_rows:
        values = values.T  # a column for each split, as tables have them
    if values.ndim != 2 or values.shape[1] != frame.n_rows:
        msg = f"{where} has shape {values.shape}, expected a part for each of the {frame.n_rows} samples"
        raise InputError(msg)
    if values.dtype.kind != "U":
        return values
    unknown = sorted({str(value) for value in values.ravel() if str(value).casefold() not in _PARTS})
    if unknown:
        msg = f"{where} holds {unknown[0]!r}, expected train, validation, test or none (or 0, 1, 2, -1)"
        raise InputError(msg)
    return np.array([[_PARTS[str(value).casefold()] for value in row] for row in values], dtype=np.int8)
