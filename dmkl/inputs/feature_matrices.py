"""Feature matrices (samples, columns) of real numbers, read some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, Protocol

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_complex_dtype, is_numeric_dtype

from dmkl.arrays import Array, Mask
from dmkl.errors import InputError
from dmkl.inputs.condensed import CondensedMatrix, n_condensed
from dmkl.inputs.joins import places
from dmkl.inputs.labels import only_counts, sample_names
from dmkl.inputs.side_data import SideData
from dmkl.inputs.sparse import SparseMatrix, is_sparse

__all__ = [
    "LABEL_ROLES",
    "FeatureMatrix",
    "Numbers",
    "SourceMatrix",
    "UnalignedFeatures",
    "against",
    "aligned",
    "array_matrix",
    "check_rows",
    "dtype_of",
    "frame_matrix",
    "is_number",
    "missing_rows",
    "refuse_columns",
    "stored",
]

Rows = slice | npt.NDArray[np.intp]
"""Some rows in increasing order."""


class FeatureMatrix(Protocol):
    """A feature matrix whose rows are the samples, in their order."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, columns)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns."""

    @property
    def holds(self) -> str:
        """Kernel or distances, where its place says so and columns are the samples; "" for all other."""

    def read(self, rows: slice) -> Array:
        """Some rows; rows of NaN for samples that lack this source."""


@dataclass(frozen=True)
class SourceMatrix:
    """A `FeatureMatrix` with its rows in the order of the file or object that holds them."""

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None
    samples: tuple[str, ...] | None  # names of its rows, unique
    part: Callable[[Rows], Any]  # gives some rows, for `numpy.asarray`; masked entries are missing
    holds: str = ""  # see `FeatureMatrix`

    def read(self, rows: Rows) -> Array:
        """See `FeatureMatrix`."""
        values = self.part(rows)
        if isinstance(values, da.Array):
            values = values.compute()
        if is_sparse(values):  # blocks of what is sparse on disk, or in Dask's chunks
            values = values.toarray()
        # What overflows is told as infinite by `check_rows`.
        with np.errstate(over="ignore"):
            if isinstance(values, np.ma.MaskedArray):
                values = np.ma.filled(values.astype(self.dtype), np.nan)
            # Row after row, however they were given: sums round otherwise in another layout.
            return np.asarray(values, dtype=self.dtype, order="C")


def aligned(matrix: SourceMatrix, order: npt.NDArray[np.intp]) -> SourceMatrix:
    """The matrix with its rows put in the order of the samples: `order` has the row of each, -1 where it has none."""

    def part(rows: Rows) -> Array:
        wanted = order[rows]
        values = np.full((len(wanted), matrix.shape[1]), np.nan, dtype=matrix.dtype)
        here = np.flatnonzero(wanted >= 0)
        if len(here):
            # HDF5 reads rows in increasing order only, and a slice at once.
            here = here[np.argsort(wanted[here])]
            places = wanted[here]
            together = places[-1] - places[0] + 1 == len(places)
            values[here] = matrix.read(slice(int(places[0]), int(places[-1]) + 1) if together else places)
        return values

    return replace(matrix, shape=(len(order), matrix.shape[1]), samples=None, part=part)


def against(matrix: FeatureMatrix, samples: Sequence[str] | None) -> FeatureMatrix:
    """A matrix of distances with its columns in the order of samples, by name; as it is where they have other names."""
    columns, names = matrix.columns, tuple(map(str, samples or ()))
    if columns is None or not names or columns == names:
        return matrix
    at = places(columns, names)
    if (at < 0).any() or len(set(columns)) < len(columns):
        return matrix

    def part(rows: Rows) -> Array:
        assert isinstance(rows, slice)
        return matrix.read(rows)[:, at]

    return SourceMatrix(matrix.name, (matrix.shape[0], len(names)), matrix.dtype, names, None, part, matrix.holds)


def array_matrix(
    name: str,
    values: Any,
    *,
    samples: Iterable[Any] | None = None,
    columns: Iterable[Any] | None = None,
    open: Callable[[], Any] | None = None,
    holds: str = "",
) -> SourceMatrix:
    """Take an array with a shape and a type, read in parts, as a feature matrix.

    `values` tell shape and type; `open` gives the array to read from, where that is another. A vector of as many
    numbers as samples have pairs is one of distances (see `dmkl.inputs.condensed`).
    """
    if is_sparse(values):
        values = SparseMatrix(values)
    n = n_condensed(*values.shape) if np.shape(values.shape) == (1,) and np.dtype(values.dtype).kind == "f" else None
    if n is not None:
        open = partial(_condensed, open or partial(_itself, values), n)
        values, holds = CondensedMatrix(values, n), "distances"
    shape, dtype = _shape(name, values.shape), stored(name, values.dtype)
    get = open or (lambda: values)
    names = sample_names(f"features {name!r}", samples, shape[0])
    titles = None if columns is None else tuple(map(str, columns))
    return SourceMatrix(name, shape, dtype, titles, names, lambda rows: get()[rows, slice(None)], holds)


def _itself(values: Any) -> Any:
    return values


def _condensed(get: Callable[[], Any], n: int) -> CondensedMatrix:
    return CondensedMatrix(get(), n)


def _shape(name: str, found: Sequence[Any]) -> tuple[int, int]:
    try:
        shape = tuple(int(length) for length in found)
    except (TypeError, ValueError) as error:
        msg = (
            f"features {name!r} do not know how many rows they have; call compute_chunk_sizes() of a Dask array, "
            "to_dask_array(lengths=True) of a Dask data frame"
        )
        raise InputError(msg) from error
    if len(shape) != 2:
        way_out = "; give one column as values.reshape(-1, 1)" if len(shape) == 1 else ""
        msg = f"features {name!r} have shape {shape}, expected two dimensions, (samples, columns){way_out}"
        raise InputError(msg)
    if 0 in shape:
        msg = f"features {name!r} have {shape[0]} rows and {shape[1]} columns, expected at least one of each"
        raise InputError(msg)
    return shape


def stored(name: str, dtype: Any) -> np.dtype[Any]:
    """Stored type of entries: float32 where that loses nothing and they are narrow, else float64."""
    found = np.dtype(dtype)
    if found.kind not in "fiub":
        msg = f"features {name!r} hold {'Python objects' if found.kind == 'O' else found}, expected real numbers"
        if found.kind == "c":
            msg += "; give real and imaginary parts as columns of their own"
        elif found.kind in "OUST":
            msg += "; convert them, as values.astype(float), or encode what is no number"
        raise InputError(msg)
    narrow = found.itemsize <= (4 if found.kind == "f" else 2)
    return np.dtype(np.float32 if narrow else np.float64)


def missing_rows(values: Array) -> Mask:
    """Which rows are NaN throughout: samples that lack this source."""
    return np.asarray(np.isnan(values).all(axis=1))


def check_rows(
    name: str, values: Array, first_row: int, samples: Sequence[str] | None, columns: Sequence[str] | None
) -> Mask:
    """Find the rows that are NaN throughout, and check that all others are finite; returns a mask, (rows,).

    `values` are the rows of the matrix from `first_row` on; `samples` and `columns` name all its rows and columns.
    """
    bad = ~np.isfinite(values)
    if not bad.any():
        return np.zeros(len(values), dtype=bool)
    missing = missing_rows(values)
    bad[missing] = False
    if bad.any():
        i, k = (int(position) for position in np.argwhere(bad)[0])
        row = first_row + i
        sample = f"row {row}" if samples is None else f"sample {samples[row]!r} (row {row})"
        column = str(k) if columns is None else f"{columns[k]!r} ({k})"
        count = int(bad.any(axis=1).sum())
        msg = (
            f"features {name!r}: {sample} is {values[i, k]} in column {column}; {count} of the rows {first_row} "
            f"to {first_row + len(values) - 1} {'is' if count == 1 else 'are'} NaN in part or infinite. A sample has "
            "finite values in all columns of a source, or NaN in all where it lacks the source: impute what is "
            "missing, or drop the sample"
        )
        raise InputError(msg)
    return missing


LABEL_ROLES = ("labels", "splits", "tasks")
"""Roles of side data that are kept beside features, apart from the names of samples."""


@dataclass
class UnalignedFeatures:
    """Feature matrices whose rows are not aligned yet, and what was found beside them."""

    matrices: list[SourceMatrix] = field(default_factory=list)  # each in the order of its source
    found: list[SideData] = field(default_factory=list)  # labels, splits and names of tasks
    samples: tuple[str, ...] | None = None  # names of the rows of all matrices that carry none
    notes: list[str] = field(default_factory=list)  # what was left out or taken for what


# --- data frames ------------------------------------------------------------------------------------------------------


def frame_matrix(name: str, frame: pd.DataFrame) -> SourceMatrix:
    """Take a data frame as a feature matrix; its index names the samples unless it only counts."""
    others = [str(column) for column, dtype in frame.dtypes.items() if not is_number(dtype)]
    if others:
        refuse_columns(f"features {name!r}", others, "; names of samples go into the index (set_index)")
    index = None if only_counts(frame.index) else frame.index
    values = Numbers(frame, dtype_of(name, frame.dtypes))
    return array_matrix(name, values, samples=index, columns=frame.columns)


def is_number(dtype: Any) -> bool:
    """Whether a column of this type is numeric."""
    return bool(is_numeric_dtype(dtype)) and not is_complex_dtype(dtype)


def refuse_columns(where: str, columns: Sequence[str], way_out: str = "") -> NoReturn:
    """Refuse columns that are not numeric, by their names."""
    more = f" … ({len(columns)} in all)" if len(columns) > 8 else ""
    msg = (
        f"{where}: not numeric {'is column' if len(columns) == 1 else 'are columns'} "
        f"{', '.join(map(repr, columns[:8]))}{more}; encode as numbers (pandas.get_dummies) or drop{way_out}"
    )
    raise InputError(msg)


def dtype_of(name: str, dtypes: pd.Series[Any]) -> np.dtype[Any]:
    """The type that holds all columns."""
    # Pandas's own types tell the NumPy type of their numbers.
    found = {stored(name, getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype))) for dtype in dtypes}
    return np.result_type(*found, np.float32)


class Numbers:
    """A data frame of numbers as an array."""

    def __init__(self, frame: pd.DataFrame, dtype: np.dtype[Any]) -> None:
        self._frame, self.shape, self.dtype = frame, frame.shape, dtype

    def __getitem__(self, key: Any) -> Any:
        return self._frame.iloc[key].to_numpy(self.dtype, na_value=np.nan)
