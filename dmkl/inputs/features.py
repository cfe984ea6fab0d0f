"""Feature matrices (samples, columns) from files or objects in memory, aligned to one order of samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from dmkl.arrays import Array, Mask
from dmkl.errors import InputError
from dmkl.inputs.annotated_objects import columns_of, is_annotated, parts_of
from dmkl.inputs.columns import ROLES, Columns, FrameColumns, find_names, float_dtype, is_numeral, is_title, plain_title
from dmkl.inputs.find import PathLike, find_files, names_of_arrays, short_names, sort_arrays
from dmkl.inputs.formats.annotated import role_of_column
from dmkl.inputs.formats.file_arrays import ELSEWHERE, FileArray, role_of, shape_text, stem, vector, where
from dmkl.inputs.formats.limits import check_memory
from dmkl.inputs.formats.registry import Format, arrays_in, check_file
from dmkl.inputs.formats.text import Text
from dmkl.inputs.formats.views import matrices_of_cells
from dmkl.inputs.label_tables import read_file, read_names
from dmkl.inputs.labels import Labels
from dmkl.inputs.matrices import CondensedMatrix, SparseMatrix, Transposed, is_sparse, n_condensed, plain
from dmkl.inputs.names import (
    Join,
    LabelTable,
    Named,
    axis_names,
    check_join,
    joined,
    left_out,
    listed_names,
    names_of_pairs,
    need_families,
    only_counts,
    places,
    sample_names,
    warn_of_positions,
)
from dmkl.inputs.side_data import OF_SAMPLES, KernelShape, SideData, gather, names_beside

__all__ = ["FeatureMatrix", "Features", "against", "as_features", "check_rows"]

_LABEL_ROLES = ("labels", "splits", "tasks")
"""Roles of side data that are kept beside features, apart from the names of samples."""


class FeatureMatrix(Protocol):
    """A feature matrix whose rows are the samples, in their order."""

    @property
    def name(self) -> str:
        """Its name."""

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
class _SourceMatrix:
    """A `FeatureMatrix` with its rows in the order of the file or object that holds them."""

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None
    samples: tuple[str, ...] | None  # names of its rows, unique (with their families)
    open: Callable[[], Any]  # gives the matrix, of which rows are read; masked entries are missing
    holds: str = ""  # see `FeatureMatrix`
    families: tuple[str, ...] | None = None
    counted: bool = False  # whether it is a data frame whose index only counts
    is_table: bool = False  # whether it is a file that could name its rows
    order: npt.NDArray[np.intp] | None = None  # the row of each sample, -1 where it has none

    def read(self, rows: slice) -> Array:
        """See `FeatureMatrix`."""
        if self.order is None:
            return self._read(rows)
        wanted = self.order[rows]
        values = np.full((len(wanted), self.shape[1]), np.nan, dtype=self.dtype)
        here = np.flatnonzero(wanted >= 0)
        if len(here):
            # HDF5 reads rows in increasing order only, and a slice at once.
            here = here[np.argsort(wanted[here])]
            rows_read = wanted[here]
            together = rows_read[-1] - rows_read[0] + 1 == len(rows_read)
            values[here] = self._read(slice(int(rows_read[0]), int(rows_read[-1]) + 1) if together else rows_read)
        return values

    def _read(self, rows: slice | npt.NDArray[np.intp]) -> Array:
        values = self.open()[rows, slice(None)]
        if isinstance(values, da.Array):
            values = values.compute()
        if is_sparse(values):  # blocks of sparse arrays on disk, or in Dask's chunks
            values = values.toarray()
        # `check_rows` refuses overflow as infinite.
        with np.errstate(over="ignore"):
            if isinstance(values, np.ma.MaskedArray):
                values = np.ma.filled(values.astype(self.dtype), np.nan)
            # Row after row, however they were given: sums round otherwise in another layout.
            return np.asarray(values, dtype=self.dtype, order="C")


@dataclass
class Features:
    """Feature matrices over the same samples."""

    blocks: dict[str, FeatureMatrix]  # by name; all have the same number of rows, row i being sample i
    samples: list[str] | None  # names of the samples; None where nothing has names
    labels: Labels  # names, labels, tasks and splits of the samples, as far as they were found beside the features
    notes: list[str]  # parts that were left out, and choices that could have been otherwise


@dataclass
class _Unaligned:
    """Feature matrices whose rows are not aligned yet, and what was found beside them."""

    matrices: list[_SourceMatrix] = field(default_factory=list)  # each in the order of its source
    beside: list[SideData] = field(default_factory=list)  # labels, splits and names of tasks
    samples: tuple[str, ...] | None = None  # names of the rows of all matrices that carry none
    notes: list[str] = field(default_factory=list)  # see `Features`


def as_features(
    features: Any,
    *,
    samples: Sequence[Any] | Array | None = None,
    present: Mapping[str, Any] | None = None,
    join: Join = "exact",
    beside: Sequence[SideData] = (),
    transpose: bool = False,
) -> Features:
    """Take features from files or memory and align their rows to one order of samples; no value is read yet.

    Understood are

    - a mapping from names to matrices (samples, columns): NumPy arrays (of a masked one a row that is masked
      throughout is missing), Dask, Zarr and xarray arrays, h5py data sets, pandas data frames;
    - one such matrix, called X;
    - an xarray Dataset, of which each variable of two dimensions is a matrix of features;
    - AnnData and MuData: X, layers and obsm, with obs_names and var_names;
    - files: each matrix of numbers in .npy, .npz, .mat, .h5, .hdf5 files and Zarr folders is one, and so is each
      text file and .parquet file; .h5ad and .h5mu, and their Zarr form, as AnnData and MuData; or a folder of them.

    Arrays, columns and files called labels, y, samples, ids, splits or tasks have that role. The names of the samples
    in a table are found as in `dmkl.inputs.columns.find_names`; the names of the first table are known when the next is
    read.

    A data frame has the names of its samples in its index, unless that only counts; an xarray array in the
    coordinate of its first dimension. Rows with names are put in the order of `samples`, or else of the first matrix
    that has names; `join` says which samples are taken. Rows without names are those of the samples, one after another.

    In memory is what `FeatureMatrix.read` is asked for; and of .npz, MATLAB files before version 7.3 and Parquet
    the one matrix that was read last.

    Parameters
    ----------
    features
        As above, or `Features` that were taken before: they stay in their order, and `samples` names them.
    samples
        Names of the samples that are wanted, in this order.
    present
        For some matrices, by name, which samples have them: (samples,) of booleans, in the order of the result. The
        rows of all other samples are NaN.
    join
        "exact": all matrices, labels and splits that have names have the same samples (or all of `samples`), in any
        order. "inner": the samples that all have. "outer": the samples that any matrix has; one that a matrix lacks is
        a row of NaN.
    beside
        Labels, splits and names of tasks, in place of those found beside the features.
    transpose
        Take the columns of all matrices for the samples, and their rows for the features.

    Returns
    -------
    Features
        Matrices of float32 (from booleans, integers to 16 bits and floats to 32) or float64 (from other real numbers).

    Raises
    ------
    InputError
        If features are no matrix of real numbers, names of samples are not unique, matrices do not fit together, or a
        file is missing, damaged or of an unknown kind.

    Warns
    -----
    SampleOrderWarning
        If something without names is matched by position with samples that have names.
    """
    check_join(join)
    if isinstance(features, Features) and present is None:
        if beside:
            msg = (
                f"{beside[0].where} is given beside features that were taken with their labels; give it with the files"
            )
            raise InputError(msg)
        return features if samples is None else replace(features, samples=list(map(str, samples)))
    wanted = sample_names("samples", None if samples is None else np.asarray(samples).tolist())
    unaligned = _from_files(features, wanted) if _are_paths(features) else _from_memory(features)
    if not unaligned.matrices:
        msg = "kernels are computed from at least one matrix of features (samples, columns), got none"
        raise InputError(msg)
    if transpose:
        unaligned.matrices = list(map(_transposed, unaligned.matrices))
    notes = unaligned.notes
    sources, first = _named(unaligned)
    carried = {name for m in sources if m.samples is not None for name in (*m.samples, *_pairs(m))}
    beside = [item.knowing(carried or (None if wanted is None else set(wanted))) for item in beside]
    # Data without names is in the order of its source; data that was given, in that of the samples asked for.
    found = [item.held(first, by_position=True) for item in unaligned.beside if item.role not in _replaced(beside)]
    n_given = sources[0].shape[0] if wanted is None else len(wanted)
    beside = [item.without_header(n_given, notes) for item in beside]
    unnamed = [item.where for item in beside if item.role in OF_SAMPLES and item.read().row_names is None]
    order_given = first if wanted is None else wanted
    found += [item.held(order_given, notes, by_position=not carried) for item in beside]
    named = [Named(f"features {m.name!r}", m.samples, m.families) for m in sources if m.samples is not None]
    labeled = names_beside(found, join) if named else []
    if need_families([*named, *labeled]):
        sources = [replace(m, samples=_pairs(m)) if m.samples is not None else m for m in sources]
        named, labeled = (
            [Named(n.where, names_of_pairs(n.names, n.families)) for n in own] for own in (named, labeled)
        )
    _check_transposed(sources, labeled, wanted)
    order = joined(named, join, unaligned.samples if wanted is None else wanted, labeled)
    if join == "inner" and wanted is None:
        notes += left_out([*named, *labeled], order)
    unnamed += [f"features {matrix.name!r}" for matrix in sources if matrix.samples is None]
    for matrix in sources:
        if named and wanted is None and matrix.is_table and matrix.samples is None and matrix.shape[1] > 1:
            msg = (
                f"features {matrix.name!r} have {matrix.shape[1]} columns and none that names the samples, and "
                f"{named[0].where} has names; expected a column of names, titled 'sample': rows are matched by name"
            )
            raise InputError(msg)
    n_rows = _common_length(sources, order)
    check_memory(f"the order of {n_rows:,} samples", 8 * n_rows, "allow more, or look whether the features are damaged")
    masks = _masks(present or {}, [matrix.name for matrix in sources], n_rows)
    blocks: dict[str, FeatureMatrix] = {m.name: _aligned(m, order, masks.get(m.name), notes) for m in sources}
    labels, _ = gather(found, KernelShape(len(blocks), n_rows, n_rows, order), notes)
    if wanted is None:
        warn_of_positions(unnamed, named, order)
    names = None if labels.samples is None else [str(name) for name in labels.samples]
    return Features(blocks, names, labels, list(dict.fromkeys(notes)))


def _replaced(beside: Sequence[SideData]) -> set[str]:
    """The roles that are not looked for beside the features; other labels have other tasks."""
    roles = {item.role for item in beside}
    return roles | {"tasks"} if "labels" in roles else roles


def _are_paths(features: Any) -> bool:
    if isinstance(features, str | os.PathLike):
        return True
    return isinstance(features, list | tuple) and all(isinstance(path, str | os.PathLike) for path in features)


def _pairs(matrix: _SourceMatrix) -> tuple[str, ...]:
    return names_of_pairs(matrix.samples or (), matrix.families)


def _named(unaligned: _Unaligned) -> tuple[list[_SourceMatrix], tuple[str, ...] | None]:
    """The matrices with names of samples found beside them, and the order of what has no names."""
    matrices, beside = unaligned.matrices, unaligned.samples
    # An index that only counts names the rows where other names are the same numbers in another order.
    shuffled = [set(m.samples) for m in matrices if m.samples is not None]
    matrices = [
        replace(m, samples=numbers)
        if m.counted and set(numbers := tuple(map(str, range(m.shape[0])))) in shuffled
        else m
        for m in matrices
    ]
    if beside is None:
        return matrices, next((matrix.samples for matrix in matrices if matrix.samples is not None), None)
    for matrix in matrices:
        if matrix.samples is None:
            sample_names(f"features {matrix.name!r}", beside, matrix.shape[0])
    return [replace(matrix, samples=beside) if matrix.samples is None else matrix for matrix in matrices], beside


def _transposed(matrix: _SourceMatrix) -> _SourceMatrix:
    """A matrix (features, samples) as (samples, features); it is read as a whole."""
    samples = sample_names(f"features {matrix.name!r}", matrix.columns)

    def turned() -> Any:
        return Transposed(matrix.read(slice(0, matrix.shape[0])))

    return replace(
        matrix, shape=matrix.shape[::-1], samples=samples, columns=matrix.samples, families=None, open=turned
    )


def _check_transposed(
    matrices: Sequence[_SourceMatrix], labeled: Sequence[Named], wanted: Sequence[str] | None
) -> None:
    """Refuse matrices whose columns, not rows, have the names of the samples."""
    for matrix in matrices:
        others = [set(m.samples) for m in matrices if m is not matrix and m.samples is not None]
        for names in [*others, *(set(each.names) for each in labeled), set(wanted or ())]:
            rows, columns = (len(names.intersection(own or ())) for own in (matrix.samples, matrix.columns))
            if matrix.holds == "" and columns > max(rows, len(names) / 2):
                msg = (
                    f"features {matrix.name!r}: the columns bear the names of the samples, {columns} of {len(names)}, "
                    f"and the rows {rows}; features are (samples, columns): give --transpose (transpose=True)"
                )
                raise InputError(msg)


def _common_length(matrices: Sequence[_SourceMatrix], samples: tuple[str, ...] | None) -> int:
    """The number of samples, which is that of the rows of each matrix without names."""
    nameless = [matrix for matrix in matrices if matrix.samples is None]
    n_rows = nameless[0].shape[0] if samples is None else len(samples)
    for matrix in nameless:
        if matrix.shape[0] != n_rows:
            other = f"there are {n_rows} samples" if samples is not None else f"{matrices[0].name!r} have {n_rows} rows"
            msg = (
                f"features {matrix.name!r} have {matrix.shape[0]} rows, {other}; without names of samples rows belong "
                "together by their position. Give all the same rows (NaN in all columns where a sample lacks it), or "
                "names of samples (the index of a data frame)"
            )
            raise InputError(msg)
    return n_rows


def _masks(present: Mapping[str, Any], names: Sequence[str], n_rows: int) -> dict[str, Mask]:
    masks = {name: np.asarray(mask) for name, mask in present.items()}
    for name, mask in masks.items():
        if name not in names:
            msg = f"present names {name!r}, but the features are {', '.join(map(repr, names))}"
            raise InputError(msg)
        if mask.dtype != bool or mask.shape != (n_rows,):
            msg = f"present[{name!r}] is {mask.dtype} of shape {mask.shape}, expected booleans of shape ({n_rows},)"
            raise InputError(msg)
    return masks


def _aligned(
    matrix: _SourceMatrix, samples: tuple[str, ...] | None, mask: Mask | None, notes: list[str]
) -> FeatureMatrix:
    if matrix.samples is None or samples is None or matrix.samples == samples:
        order = np.arange(matrix.shape[0])
    else:
        order = places(matrix.samples, samples)
        lacking = int((order < 0).sum())
        if lacking == len(samples):
            msg = (
                f"features {matrix.name!r} have none of the {len(samples)} samples: their names begin with "
                f"{listed_names(matrix.samples)}, expected are {listed_names(samples)}; use the same names, or leave "
                "this matrix out"
            )
            raise InputError(msg)
        if lacking:
            notes.append(f"features {matrix.name!r} lack {lacking} of the {len(samples)} samples")
        extra = matrix.shape[0] - (len(samples) - lacking)
        if extra:
            notes.append(f"features {matrix.name!r}: left out {extra} rows that are none of the samples")
    if mask is not None:
        order = np.where(mask, order, -1)
    if np.array_equal(order, np.arange(matrix.shape[0])):
        return matrix  # rows that are in order need no second array
    return replace(matrix, shape=(len(order), matrix.shape[1]), samples=None, order=order)


# --- one matrix ----------------------------------------------------------------------------------------------------


def _matrix(
    name: str,
    values: Any,
    *,
    samples: Iterable[Any] | None = None,
    columns: Iterable[Any] | None = None,
    open: Callable[[], Any] | None = None,
    holds: str = "",
    families: tuple[str, ...] | None = None,
) -> _SourceMatrix:
    """Take an array with a shape and a type, read in parts, as a feature matrix.

    `values` tell shape and type; `open` gives the array to read from, where that is another. A vector of as many
    numbers as samples have pairs is one of distances (see `CondensedMatrix`).
    """
    if is_sparse(values):
        values = SparseMatrix(values)
    get = open or partial(_itself, values)
    n = n_condensed(*values.shape) if np.shape(values.shape) == (1,) and np.dtype(values.dtype).kind == "f" else None
    if n is not None:
        get = partial(_condensed, get, n)
        values, holds = CondensedMatrix(values, n), "distances"
    shape, dtype = _shape(name, values.shape), _stored_dtype(name, values.dtype)
    names = None if samples is None else tuple(map(str, samples))
    if names is not None and families is None:
        sample_names(f"features {name!r}", names, shape[0])
    titles = None if columns is None else tuple(map(str, columns))
    return _SourceMatrix(name, shape, dtype, titles, names, get, holds, families)


def _itself(values: Any) -> Any:
    return values


def _condensed(get: Callable[[], Any], n: int) -> CondensedMatrix:
    return CondensedMatrix(get(), n)


def _shape(name: str, lengths: Sequence[Any]) -> tuple[int, int]:
    try:
        shape = tuple(int(length) for length in lengths)
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


def _stored_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    """Stored type of entries: float32 where that loses nothing and they are narrow, else float64."""
    given = np.dtype(dtype)
    if given.kind not in "fiub":
        msg = f"features {name!r} hold {'Python objects' if given.kind == 'O' else given}, expected real numbers"
        if given.kind == "c":
            msg += "; give real and imaginary parts as columns of their own"
        elif given.kind in "OUST":
            msg += "; convert them, as values.astype(float), or encode what is no number"
        raise InputError(msg)
    return float_dtype(given)


def against(matrix: FeatureMatrix, samples: Sequence[str] | None) -> FeatureMatrix:
    """A matrix of distances with its columns in the order of samples, by name; as it is where they have other names."""
    columns, names = matrix.columns, tuple(map(str, samples or ()))
    if columns is None or not names or columns == names:
        return matrix
    at = places(columns, names)
    if (at < 0).any() or len(set(columns)) < len(columns):
        return matrix
    return _SourceMatrix(
        matrix.name,
        (matrix.shape[0], len(names)),
        matrix.dtype,
        names,
        None,
        lambda: _WithColumns(matrix, at),
        matrix.holds,
    )


class _WithColumns:
    """Some columns of a feature matrix, in another order."""

    def __init__(self, matrix: FeatureMatrix, at: npt.NDArray[np.intp]) -> None:
        self._matrix, self._at = matrix, at

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        return self._matrix.read(key[0])[:, self._at]


def check_rows(
    name: str, values: Array, first_row: int, samples: Sequence[str] | None, columns: Sequence[str] | None
) -> Mask:
    """Find the rows that are NaN throughout, and check that all others are finite; returns a mask, (rows,).

    `values` are the rows of the matrix from `first_row` on; `samples` and `columns` name all its rows and columns.
    """
    bad = ~np.isfinite(values)
    if not bad.any():
        return np.zeros(len(values), dtype=bool)
    missing = np.asarray(np.isnan(values).all(axis=1))
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


# --- tables --------------------------------------------------------------------------------------------------------


def _matrix_of_columns(
    name: str, table: Columns, known: Collection[str] | None, beside: list[SideData]
) -> _SourceMatrix:
    """The columns of numbers of a table as a feature matrix; `beside` gets labels and splits among its columns."""
    if not table.n_rows:
        msg = f"{table.where} has columns but no rows, expected at least one sample"
        raise InputError(msg)
    titles, numeric = table.titles, table.numeric()
    names = find_names(table, known, numeric)
    samples = names.names
    if samples is not None and names.families is None:
        sample_names(table.where, samples)
    roles = [None if titles is None else ROLES.get(plain_title(title)) for title in titles or [""] * table.n_columns]
    rest = [at for at in range(table.n_columns) if at not in names.columns]
    for at in rest:
        if roles[at] in ("labels", "splits") and titles is not None:
            place = f"column {titles[at]!r} of {table.where}"
            table.notes.append(f"{place} was taken for {roles[at]}, not for a feature")
            beside.append(SideData(str(roles[at]), place, partial(_label_column, table, at, place, names.names)))
    features = [at for at in rest if roles[at] not in ("labels", "splits")]
    words = [at for at in features if not numeric[at]]
    shown = [str(at + 1) if titles is None else titles[at] for at in range(table.n_columns)]
    if words and len(words) < len(features):
        _refuse_columns(table.where, [shown[at] for at in words])
    if titles is None and isinstance(table, Text):
        _check_first_row(table)
    if words and table.n_rows == 1 and titles is None:
        msg = f"{table.where} has columns but no rows, expected at least one sample"
        raise InputError(msg)
    if words or not features:
        msg = (
            f"{table.where} has no column of numbers, found {listed_names(shown, 8)}; expected columns of numbers that "
            "tabs, semicolons, commas or blanks separate"
        )
        raise InputError(msg)
    if samples is None:
        _check_first_column(table, features, shown)
    if titles is None:
        table.notes.append(f"{table.where}: its columns have no names, since its first line holds numbers")
    columns = None if titles is None else [titles[at] for at in features]
    matrix = table.numbers(features)
    made = _matrix(name, matrix, samples=samples, columns=columns, families=names.families)
    return replace(made, is_table=True)


def _label_column(table: Columns, at: int, place: str, names: tuple[str, ...] | None) -> LabelTable:
    return LabelTable(vector(table.values([at])[:, 0], place), names)


def _check_first_row(table: Text) -> None:
    """Refuse a first line of words and whole numbers: nobody would miss a sample that is taken for titles."""
    first = table.head_row()
    numeric = [is_numeral(cell) for cell in first]
    if any(numeric) and not all(numeric) and all(c.isdecimal() for c, n in zip(first, numeric, strict=True) if n):
        msg = (
            f"{table.where}: the first line has words and whole numbers ({listed_names(first)}), so it may hold titles "
            "or be a sample; title the first column 'sample' if it holds titles, add a line of titles if it does not"
        )
        raise InputError(msg)


def _check_first_column(table: Columns, features: Sequence[int], shown: Sequence[str]) -> None:
    """Note or refuse a first column of different whole numbers, which may be names of samples."""
    first = features[0]
    cells = table.texts([first])[0]
    if len(features) < 2 or len(cells) < 4 or len(set(cells)) < len(cells) or not all(c.isdecimal() for c in cells):
        return
    sample = table.texts(features[1:3])
    if table.titles is None and not all(cell.isdecimal() for column in sample for cell in column):
        msg = (
            f"{table.where}: the first column holds different whole numbers ({listed_names(cells)}), so it may name "
            "the samples or be a feature; add a line of titles, 'sample' above names"
        )
        raise InputError(msg)
    table.notes.append(
        f"{table.where}: column {shown[first]!r} holds different whole numbers and was taken for a feature; title it "
        "'sample' if they name the samples"
    )


def _refuse_columns(source: str, columns: Sequence[str], way_out: str = "") -> NoReturn:
    """Refuse columns that are not numeric, by their names."""
    more = f" … ({len(columns)} in all)" if len(columns) > 8 else ""
    msg = (
        f"{source}: not numeric {'is column' if len(columns) == 1 else 'are columns'} "
        f"{', '.join(map(repr, columns[:8]))}{more}, expected numbers; encode them (pandas.get_dummies) or drop "
        f"them{way_out}"
    )
    raise InputError(msg)


# --- files ---------------------------------------------------------------------------------------------------------

_REFUSED = {
    "sparse": "is sparse, but kernels are computed from dense rows; save it dense",
    "complex": "is complex, expected real numbers; save real and imaginary parts as columns of their own",
    "Python objects": "holds Python objects, never unpickled: they can run any code; save numbers",
    ELSEWHERE[0]: ELSEWHERE[1],
}


class _LastOpened:
    """Holds the matrix that was opened last, and lets go of it when another is opened."""

    def __init__(self) -> None:
        self._held: tuple[object, Any] | None = None

    def get(self, key: object, open: Callable[[], Any]) -> Any:
        """The matrix that `open` gives, or gave for this key if that was the last one."""
        held = self._held
        if held is None or held[0] != key:
            self._held = held = None  # let go of the last one before the next is read
            self._held = held = (key, open())
        return held[1]


def _from_files(paths: PathLike | Sequence[PathLike], wanted: Sequence[str] | None) -> _Unaligned:
    """Find feature matrices in files, and labels, splits and names beside them; only headers are read."""
    unaligned, last = _Unaligned(), _LastOpened()
    files, beside = find_files(paths, Format.holds_features, {"samples", *_LABEL_ROLES}, unaligned.notes)
    # Blocks get their names last: they depend on what else there is.
    parts: list[tuple[_SourceMatrix, FileArray]] = []
    known: Collection[str] | None = None if wanted is None else frozenset(wanted)
    for path in files:
        read = check_file(path, Format.holds_features)
        table = None if read.columns is None else read.columns(path, known, None)
        if table is not None and not (isinstance(table, Text) and table.is_triangle):
            matrix = _matrix_of_columns(stem(path), table, known, unaligned.beside)
            unaligned.notes += table.notes
            own = [(matrix, FileArray(path, "", matrix.shape, matrix.dtype, matrix.open, matrix.open))]
        else:
            own = _array_file(path, last, unaligned)
        parts += own
        named = [matrix.samples for matrix, _ in own if matrix.samples is not None]
        known = known or (frozenset(named[0]) if named else None)
    if not parts:
        msg = (
            f"there are no features in {', '.join(map(str, files)) or 'no files'}: expected matrices (samples, "
            "columns) of numbers; give a column as (samples, 1), or in a mapping from names to arrays"
        )
        raise InputError(msg)
    names = names_of_arrays([(variable, None) for _, variable in parts], files) or []
    unaligned.matrices = [replace(matrix, name=name) for (matrix, _), name in zip(parts, names, strict=True)]
    for role, path in beside:
        if role == "samples":
            unaligned.samples = sample_names(str(path), read_names(path, known))
        else:
            unaligned.beside.append(SideData(role, str(path), partial(read_file, path, samples=known)))
    return unaligned


def _array_file(path: Path, last: _LastOpened, unaligned: _Unaligned) -> list[tuple[_SourceMatrix, FileArray]]:
    held = arrays_in(path)
    roles = [None if not variable.name else role_of(variable) for variable in held]
    labels = [variable for variable, role in zip(held, roles, strict=True) if role == "labels"]
    n_labels = [length for variable in labels for length in (*variable.views, variable)[0].shape[:2]]
    n_labels = [length for length in n_labels if length > 1]
    chosen = [v for v, role in zip(held, roles, strict=True) if role is None and not v.views and _is_features(v)]
    cells = [variable for variable, role in zip(held, roles, strict=True) if role is None and variable.views]
    views = [view for variable in cells for view in matrices_of_cells(variable, n_labels, unaligned.notes)]
    others = [variable for variable in held if variable not in cells]
    arrays = sort_arrays(path, others, [*chosen, *views], unaligned.notes)
    unaligned.beside += [item for item in arrays.beside if item.role in _LABEL_ROLES]
    matrices = []
    for variable in arrays.data:
        matrix = _matrix(
            variable.name or stem(path),
            variable,
            samples=variable.rows,
            columns=variable.columns,
            holds=variable.holds if variable.holds != "features" else "",
            open=partial(last.get, (path, variable.name), variable.open),
        )
        matrices.append((matrix, variable))
    return matrices


def _is_features(variable: FileArray) -> bool:
    """Whether an array is a feature matrix; the one array of a file without names is meant for one."""
    unknown = variable.problem == ELSEWHERE[0]  # no shape tells whether it is a matrix
    if not unknown and variable.name and (len(variable.shape) != 2 or variable.is_text):
        return False
    if variable.problem in _REFUSED:
        msg = f"{where(variable)} {_REFUSED[variable.problem]}"
        raise InputError(msg)
    # MATLAB shows vectors, and what is empty, with two dimensions.
    return not variable.problem and not (variable.matlab and min(variable.shape) <= 1)


# --- objects in memory ---------------------------------------------------------------------------------------------


def _from_memory(features: Any) -> _Unaligned:
    """Take an array, a data frame, an xarray Dataset, AnnData, MuData, or a mapping from names to such as features."""
    if is_annotated(features):
        return _annotated(features)
    if isinstance(features, xr.Dataset):
        return _dataset(features)
    if isinstance(features, Mapping):
        return _Unaligned([_object_matrix(str(name), values) for name, values in features.items()])
    if hasattr(features, "shape"):
        return _Unaligned([_object_matrix("X", features)])
    msg = (
        "features must be a mapping from names to arrays (samples, columns), one array, a data frame, an xarray "
        f"Dataset, AnnData, MuData, a path or a list of paths, got {type(features).__name__}"
    )
    raise InputError(msg)


def _object_matrix(name: str, values: Any) -> _SourceMatrix:
    if isinstance(values, pd.DataFrame):
        table = FrameColumns(f"features {name!r}", values)
        titled = table.index is None and any(map(is_title, table.titles or ()))
        names = find_names(table) if titled else None
        used = frozenset() if names is None else names.columns
        rest = [at for at in range(table.n_columns) if at not in used]
        titles = list(map(str, values.columns))
        words = [titles[at] for at, number in enumerate(table.numeric()) if not number and at not in used]
        if words:
            _refuse_columns(table.where, words, "; names of samples go into the index (set_index)")
        samples = table.index if names is None else names.names
        matrix = _matrix(name, table.numbers(rest), samples=samples, columns=[titles[at] for at in rest])
        return replace(matrix, counted=only_counts(values.index) and samples is None)
    if isinstance(values, xr.DataArray):
        return _matrix(name, plain(values), samples=axis_names(values, 0), columns=axis_names(values, 1))
    if isinstance(values, str | os.PathLike):
        msg = f"features {name!r} are the path {values}; give a list of paths, each matrix being named by its file"
        raise InputError(msg)
    try:
        np.dtype(values.dtype)
    except (AttributeError, TypeError):
        try:
            values = np.asarray(values)
        except ValueError as error:
            msg = f"features {name!r} are no matrix, {error}; every row must be as long"
            raise InputError(msg) from error
    return _matrix(name, values)


def _annotated(data: Any) -> _Unaligned:
    unaligned = _Unaligned()
    for part in parts_of(data):
        samples = sample_names("obs", part.samples)
        for name, values in part.features():
            columns = part.variables if np.shape(values)[1:] == (len(part.variables or ()),) else None
            matrix = _object_matrix(name, values)
            unaligned.matrices.append(replace(matrix, samples=samples, columns=columns or matrix.columns))
        for name, values, holds in part.squares():
            unaligned.matrices.append(_matrix(name, values, samples=samples, columns=samples, holds=holds))
    names = short_names(matrix.name for matrix in unaligned.matrices)
    unaligned.matrices = [replace(own, name=name) for own, name in zip(unaligned.matrices, names, strict=True)]
    for name, values, own in columns_of(data):
        role = role_of_column(name)
        if role is not None:
            place = f"column {name!r} of obs"
            unaligned.notes.append(f"{place} was taken for {role}")
            unaligned.beside.append(SideData(role, place, partial(_table, values, place, own, None)))
    return unaligned


def _dataset(dataset: xr.Dataset) -> _Unaligned:
    unaligned = _Unaligned()
    first: tuple[str, Hashable] | None = None
    left_out_ = []
    names: tuple[str, xr.DataArray] | None = None
    beside: list[tuple[str, str, xr.DataArray]] = []
    for key, array in dataset.variables.items():
        name, values = str(key), dataset[key]
        role = ROLES.get(plain_title(name))
        if role == "names" and array.dtype.kind in "fiubc":
            role = None  # kernels are often called so
        if role == "samples" and array.ndim == 1:
            names = (name, values)
        elif role in _LABEL_ROLES and array.ndim in (1, 2):
            beside.append((role, name, values))
        elif array.ndim == 2 and role is None:
            if first is not None and array.dims[0] != first[1]:
                msg = (
                    f"features {name!r} have the dimensions {array.dims}, {first[0]!r} begins with {first[1]!r}; all "
                    "begin with that of the samples, so transpose or rename"
                )
                raise InputError(msg)
            first = first or (name, array.dims[0])
            unaligned.matrices.append(_object_matrix(name, values))
        elif key not in dataset.dims:
            left_out_.append(f"{name} ({shape_text(array.shape) or 'one'} {array.dtype})")
    if left_out_:
        unaligned.notes.append(f"the dataset: left out {', '.join(left_out_)}")
    dimension = None if first is None else first[1]
    if names is not None and names[1].dims == (dimension,):
        unaligned.samples = sample_names("the samples of the dataset", names[1].to_numpy())
    # Those of all matrices, which share the dimension.
    samples = next((matrix.samples for matrix in unaligned.matrices), None) or unaligned.samples
    for role, name, values in beside:
        if role != "tasks" and dimension in values.dims:
            values = values.transpose(dimension, ...)
        place = f"variable {name!r} of the dataset"
        own = samples if dimension in values.dims else None
        unaligned.beside.append(SideData(role, place, partial(_table, values, place, own, axis_names(values, 1))))
    return unaligned


def _table(values: Any, place: str, names: tuple[str, ...] | None, columns: tuple[str, ...] | None) -> LabelTable:
    return LabelTable(vector(values, place), names, columns)
