"""Feature matrices in tables that pandas reads whole: CSV and Parquet."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from dmkl.errors import InputError
from dmkl.inputs.feature_matrices import (
    Numbers,
    SourceMatrix,
    array_matrix,
    dtype_of,
    is_number,
    refuse_columns,
)
from dmkl.inputs.formats.file_arrays import (
    ROLES,
    FileArray,
    damaged_as,
    decompressed,
    listed,
    role_of,
    stem,
    vector,
    where,
)
from dmkl.inputs.formats.limits import lines_of
from dmkl.inputs.formats.text import read_array
from dmkl.inputs.label_objects import label_table
from dmkl.inputs.labels import LabelTable, only_counts, sample_names
from dmkl.inputs.side_data import SideData

__all__ = ["EXACT", "LastOpened", "csv_table", "parquet_arrays", "parquet_labels", "parquet_table"]

EXACT: dict[str, Any] = (
    {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
)
"""What has pandas take the number that is nearest to the decimals; from 3.1 on it does, and deprecates being asked."""
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_CHUNK_CELLS = 2**21
"""Cells of a text file that are in memory at a time while the types of its columns are found out."""


class LastOpened:
    """Holds what was opened last, and lets go of it when something else is opened."""

    def __init__(self) -> None:
        self._held: tuple[object, Any] | None = None

    def get(self, key: object, open: Callable[[], Any]) -> Any:
        """What `open` gives, or gave for this key if that was the last one."""
        held = self._held
        if held is None or held[0] != key:
            self._held = held = None  # let go of the last one before the next is read
            self._held = held = (key, open())
        return held[1]


@dataclass(frozen=True)
class _File:
    """Columns and rows of a table file, known before its values are read."""

    path: Path
    n_rows: int
    columns: pd.Series[Any]  # the types of its columns, by name
    titled: bool  # whether these names stand in the file
    index: Sequence[Any] | None  # the names of its rows, where they are in no column
    corner: bool  # whether the first column holds names of rows because its title is empty
    column: Callable[[int, bool], pd.Series[Any]]
    """Reads one column, by position; if asked for, a text file's as it is written."""
    load: Callable[[], pd.DataFrame]  # reads the whole file

    def variable(self, at: int) -> FileArray:
        """A column as a variable, for what its name says."""
        number = is_number(self.columns.iloc[at])
        dtype = np.dtype(np.float64 if number else "U1")
        read = partial(self.column, at, not number)
        return FileArray(self.path, str(self.columns.index[at]), (self.n_rows,), dtype, read, read)


def csv_table(path: Path, last: LastOpened, notes: list[str]) -> tuple[SourceMatrix, list[SideData]]:
    """The feature matrix in a CSV file, and the labels and splits among its columns."""
    return _matrix(_text(path, notes), last, notes)


def parquet_table(path: Path, last: LastOpened, notes: list[str]) -> tuple[SourceMatrix, list[SideData]]:
    """The feature matrix in a Parquet file, and the labels and splits among its columns; needs pyarrow."""
    return _matrix(_parquet(path), last, notes)


def parquet_arrays(path: Path) -> list[FileArray]:
    """The matrix in a Parquet file, with the names of its rows and columns; needs pyarrow."""
    file = _parquet(path)
    numeric, _, names = _sorted_columns(file)
    titles = tuple(str(file.columns.index[at]) for at in numeric)
    dtype = dtype_of(path.stem, file.columns.iloc[numeric])

    def opened() -> Numbers:
        with _reading(path):
            return Numbers(file.load().iloc[:, numeric], dtype)

    return [
        FileArray(
            path,
            "",
            (file.n_rows, len(numeric)),
            dtype,
            opened,
            lambda: opened()[:, :],
            rows=sample_names(str(path), names),
            columns=None if titles == tuple(map(str, range(len(titles)))) else titles,
        )
    ]


def parquet_labels(path: Path, column: str | None) -> LabelTable:
    """Labels, names or splits in a Parquet file, or a column of it, with the names of samples beside them."""
    _pyarrow(path)
    with _reading(path):
        frame = pd.read_parquet(path)
    table = label_table(frame)
    if column is None:
        return LabelTable(vector(table.values, str(path)), table.row_names, table.columns)
    if column not in frame.columns:
        msg = f"{path} has no column {column!r}; it has {listed([repr(str(name)) for name in frame.columns])}"
        raise InputError(msg)
    return LabelTable(vector(frame[column].to_numpy(), f"column {column!r} of {path}"), table.row_names)


def _matrix(file: _File, last: LastOpened, notes: list[str]) -> tuple[SourceMatrix, list[SideData]]:
    path = file.path
    if not file.n_rows:
        msg = f"{path} has columns but no rows, expected at least one sample"
        raise InputError(msg)
    features, found, names = _sorted_columns(file)
    samples = sample_names(str(path), names)
    if file.corner and samples == tuple(map(str, range(file.n_rows))):
        samples = None  # the index of a data frame that has none
    titles = [str(title) for title in file.columns.index]
    if not features:
        msg = (
            f"{path} has no column of numbers, found {', '.join(map(repr, titles[:8])) or 'none'}; expected commas "
            "between the values of a .csv, tabs of a .tsv"
        )
        raise InputError(msg)
    dtype = dtype_of(stem(path), file.columns.iloc[features])

    def opened() -> Numbers:
        with _reading(path):
            return Numbers(file.load().iloc[:, features], dtype)

    beside = []
    for at, role in found:
        variable = file.variable(at)
        notes.append(f"{where(variable)} was taken for {role}, not for a feature")
        beside.append(SideData(role, where(variable), partial(read_array, variable, samples)))
    matrix = array_matrix(
        stem(path),
        SimpleNamespace(shape=(file.n_rows, len(features)), dtype=dtype),
        samples=samples,
        columns=[titles[at] for at in features] if file.titled else None,
        open=lambda: last.get(path, opened),
    )
    return matrix, beside


def _sorted_columns(file: _File) -> tuple[list[int], list[tuple[int, str]], Sequence[Any] | None]:
    """Positions of the features, positions and roles of labels and splits, and the names of the rows."""
    features: list[int] = []
    words: list[int] = []
    found: list[tuple[int, str]] = []
    names = file.index
    for at, dtype in enumerate(file.columns):
        role = role_of(file.variable(at)) if file.titled else None
        if names is None and (role == "samples" or (at == 0 and file.corner)):
            names = list(file.column(at, True))
        elif role in ("labels", "splits"):
            found.append((at, role))
        else:
            (features if is_number(dtype) else words).append(at)
    if names is None:
        first = next((at for at in words if file.column(at, True).is_unique), None)
        if first is not None:
            words.remove(first)
            names = list(file.column(first, True))
    if words:
        refuse_columns(str(file.path), [str(file.columns.index[at]) for at in words])
    return features, found, names


def _reading(path: Path) -> AbstractContextManager[None]:
    """Tell the file in what pandas and pyarrow raise."""
    return damaged_as(f"{path} cannot be read as a table", Exception)  # pyarrow and pandas raise of many kinds


# --- text ---------------------------------------------------------------------------------------------------


def _text(path: Path, notes: list[str]) -> _File:
    separator = _SEPARATORS[Path(path.name.lower().removesuffix(".gz")).suffix]
    with decompressed(path) as raw:
        for _ in lines_of(path, raw):  # pandas takes a line of any length
            pass
    with _reading(path), decompressed(path) as raw:
        lines = TextIOWrapper(raw, encoding="utf-8-sig", newline="")
        rows = list(islice(filter(None, csv.reader(lines, delimiter=separator)), 2))
    if not rows:
        msg = f"{path} holds no lines, expected a table"
        raise InputError(msg)
    first = [cell.strip() for cell in rows[0]]
    # R writes no title above the names of the rows.
    untitled_names = len(rows[-1]) == len(first) + 1
    titled = untitled_names or _are_titles(path, first)
    if not titled:
        notes.append(f"{path}: its columns have no names, since its first line holds numbers")
    read: Any = partial(
        pd.read_csv,
        path,
        sep=separator,
        header=0 if titled else None,
        names=["", *first] if untitled_names else None,
        low_memory=False,
        **EXACT,
    )

    def column(at: int, as_written: bool) -> Any:
        more = {"dtype": str, "keep_default_na": False} if as_written else {}
        with _reading(path):
            return read(usecols=[at], **more).iloc[:, 0]

    kinds, n_rows = [], 0
    with _reading(path), read(chunksize=max(1, _CHUNK_CELLS // len(rows[-1]))) as chunks:
        for chunk in chunks:
            kinds.append(chunk.dtypes)
            n_rows += len(chunk)
    columns = kinds[0] if len(kinds) == 1 else _common(kinds)
    return _File(path, n_rows, columns, titled, None, untitled_names or not first[0], column, read)


def _common(kinds: list[pd.Series[Any]]) -> pd.Series[Any]:
    """The types of the columns of all parts of a file: numeric where all parts are."""
    parts = zip(*kinds, strict=True)
    common = [
        types[0] if len(set(types)) == 1 else np.dtype(np.float64 if all(map(is_number, types)) else object)
        for types in parts
    ]
    return pd.Series(common, index=kinds[0].index, dtype=object)


def _are_titles(path: Path, cells: Sequence[str]) -> bool:
    """Whether the first line names the columns; refused where that is unclear, for nobody would miss a sample."""
    numeric = [_is_numeral(cell) for cell in cells]
    if not any(numeric) or not cells[0] or ROLES.get(cells[0].casefold()) == "samples":
        return True
    if all(numeric):
        return list(cells) == [str(position) for position in range(len(cells))]  # as pandas names columns
    if not all(cell.isdecimal() for cell, number in zip(cells, numeric, strict=True) if number):
        return False
    msg = (
        f"{path}: the first line has words and whole numbers ({', '.join(map(repr, cells[:4]))} …), so it may name the "
        "columns or be a sample; call the first column 'sample' if it names them, add a line of names if it does not"
    )
    raise InputError(msg)


def _is_numeral(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# --- Parquet ------------------------------------------------------------------------------------------------


def _pyarrow(path: Path) -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        msg = f"{path}: Parquet files are read with pyarrow, which is not installed; pip install pyarrow"
        raise InputError(msg) from error


def _parquet(path: Path) -> _File:
    parquet = _pyarrow(path)

    def read(**more: Any) -> pd.DataFrame:
        with _reading(path):
            frame = pd.read_parquet(path, **more)
            return frame.reset_index(drop=True)

    with _reading(path):
        schema = parquet.read_schema(path)
        n_rows = parquet.read_metadata(path).num_rows
        described = (schema.pandas_metadata or {}).get("index_columns", [])
        inside = {name for name in described if isinstance(name, str)}
        columns = schema.empty_table().to_pandas(ignore_metadata=True).dtypes.drop(list(inside))
        index = pd.read_parquet(path, columns=[]).index if schema.pandas_metadata else None
        if index is not None and len(index) != n_rows:  # an older pyarrow loses it where no column is read
            ranges = [item for item in described if isinstance(item, dict) and item.get("kind") == "range"]
            found = [range(item["start"], item["stop"], item["step"]) for item in ranges]
            index = pd.RangeIndex(found[0]) if found and len(found[0]) == n_rows else None

    def column(at: int, _: bool) -> pd.Series[Any]:
        return read(columns=[columns.index[at]]).iloc[:, 0]

    return _File(
        path, n_rows, columns, True, None if index is None or only_counts(index) else list(index), False, column, read
    )
