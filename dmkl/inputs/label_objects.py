"""Labels and splits in memory: arrays, pandas and xarray objects with the names of their samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Array
from dmkl.errors import SampleOrderWarning, warn
from dmkl.inputs.formats.file_arrays import ROLES
from dmkl.inputs.joins import in_order
from dmkl.inputs.labels import LabelTable, as_text, axis_names, index_names, only_counts

__all__ = ["label_table", "matched"]


def label_table(values: Any) -> LabelTable:
    """Take labels or splits, with the names of samples and tasks that they carry.

    A series and a data frame have the names of samples in their index, unless that only counts; a data frame may have
    them in a column called sample, id or the like, or in its first column where that holds words without repetition.
    An xarray array has them in the coordinate of its dimension of samples: the one called so, or the first.
    """
    if isinstance(values, xr.DataArray):
        return _labeled(values)
    if isinstance(values, pd.Series):
        return LabelTable(values.to_numpy(), index_names(values.index))
    if isinstance(values, pd.DataFrame):
        return _frame(values)
    return LabelTable(np.asarray(values))


def matched(where: str, values: Any, samples: Array, *, named: bool) -> LabelTable:
    """Labels or groups in the order of samples, by name where they carry names.

    `named` says whether the samples have names; otherwise they are called by their numbers, and values with other names
    are theirs one after another, which a warning says. InputError is raised where a sample has none.
    """
    table, wanted = label_table(values), tuple(map(str, samples))
    names = table.row_names
    if names is None or named or set(wanted) <= set(names):
        return in_order(where, table, wanted)
    warn(
        f"{where} carries names of samples ({names[0]!r} …), but the kernels have none: matched by position. Name the "
        "samples of the kernels (samples=, --samples)",
        SampleOrderWarning,
    )
    return table


def _frame(frame: pd.DataFrame) -> LabelTable:
    at = _name_column(frame)
    names = index_names(frame.index) if at is None else tuple(map(as_text, frame.iloc[:, at]))
    rest = frame if at is None else frame.drop(columns=frame.columns[at])
    return _table(rest.to_numpy(), names, index_names(rest.columns))


def _name_column(frame: pd.DataFrame) -> int | None:
    """The column with the names of samples."""
    for at, title in enumerate(frame.columns):
        if ROLES.get(str(title).casefold().replace("-", "_").replace(" ", "_")) == "samples":
            return at
    first = frame.iloc[:, 0] if frame.shape[1] > 1 and only_counts(frame.index) else None
    words = first is not None and not pd.api.types.is_numeric_dtype(first.dtype)
    return 0 if words and first is not None and first.is_unique else None


def _labeled(array: xr.DataArray) -> LabelTable:
    of_samples = [dim for dim in array.dims if ROLES.get(str(dim).casefold()) == "samples"]
    if of_samples:
        array = array.transpose(of_samples[0], ...)
    return _table(array.to_numpy(), axis_names(array, 0), axis_names(array, 1))


def _table(values: Array, names: tuple[str, ...] | None, columns: tuple[str, ...] | None) -> LabelTable:
    """A table, or a vector where there is one column."""
    if values.ndim == 2 and values.shape[1] == 1:
        values, columns = values[:, 0], None
    return LabelTable(values, names, columns)
