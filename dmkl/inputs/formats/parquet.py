"""Tables in Parquet, read by pandas and pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from dmkl.errors import InputError
from dmkl.inputs.columns import FrameColumns, find_names
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as

__all__ = ["parquet_arrays", "parquet_columns"]


def parquet_columns(path: Path, known: Collection[str] | None = None, title: str | None = None) -> FrameColumns:
    """The table in a Parquet file; needs pyarrow. It is read as a whole."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        msg = f"{path}: Parquet files are read with pyarrow, which is not installed; pip install pyarrow"
        raise InputError(msg) from error
    with damaged_as(f"{path} cannot be read as a table", Exception):  # pyarrow and pandas raise of many kinds
        return FrameColumns(str(path), pd.read_parquet(path))


def parquet_arrays(path: Path) -> list[FileArray]:
    """The matrix in a Parquet file, with the names of its rows and columns."""
    table = parquet_columns(path)
    numeric = table.numeric()
    names = find_names(table, None, numeric)
    columns = [at for at in range(table.n_columns) if numeric[at] and at not in names.columns]
    titles = tuple(str(table.frame.columns[at]) for at in columns)
    matrix = partial(table.numbers, columns)
    dtype = matrix().dtype if columns else np.dtype(np.float64)
    counted = titles == tuple(map(str, range(len(titles))))
    shape, titles_given = (table.n_rows, len(columns)), None if counted else titles
    return [FileArray(path, "", shape, dtype, matrix, rows=names.names, columns=titles_given)]
