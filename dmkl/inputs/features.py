"""Feature matrices (samples, columns) from files or objects in memory, aligned to one order of samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Mask, is_instance, is_numeral, refuse_codes, unmasked
from dmkl.errors import SampleOrderWarning, first_names, refuse, warn
from dmkl.inputs.columns import ROLES, Columns, find_names, float_dtype, is_title, plain_title, without_codes
from dmkl.inputs.formats.compressed import stem
from dmkl.inputs.formats.file_arrays import ELSEWHERE, FileArray, array_of, vector
from dmkl.inputs.formats.pairs import pairs_of
from dmkl.inputs.formats.registry import PathLike, check_file, find_files, names_of_arrays
from dmkl.inputs.formats.tables import Text
from dmkl.inputs.formats.text_kernels import names_beside
from dmkl.inputs.label_tables import read_file, read_names, sort_arrays
from dmkl.inputs.labels import OF_SAMPLES, Labels, LabelTable, SideData, align, gather
from dmkl.inputs.matrices import is_sparse, n_condensed, open_alone, square, transposed, upper_triangles
from dmkl.inputs.objects import holds_arrays, recognize
from dmkl.names import Join, Named, Names, listed_names, places, sample_names
from dmkl.settings import check_memory

_LABEL_ROLES = ("labels", "splits", "tasks")  # Roles of side data of features, apart from the names of samples.


@dataclass(frozen=True)
class FeatureMatrix:
    """A feature matrix whose rows are the samples, in their order."""

    name: str
    shape: tuple[int, int]  # (samples, columns)
    dtype: np.dtype[Any]  # float32 or float64
    columns: Names  # names of the columns
    samples: Names  # names of the rows, unique (individuals with their families)
    open: Callable[[], Any]  # returns the matrix, of which rows are read; masked entries are missing
    holds: str = ""  # kernel or distances, if its place determines it and columns are the samples
    numbers: Sequence[tuple[str, ...]] = ()  # numbers that name the rows if another source has these names
    by_name: bool = False  # whether it is taken only if it is named
    genotypes: bool = False  # whether it holds dosages of variants, by its format
    is_table: bool = False  # whether it is a file that could name its rows
    note: str = ""  # how it was read, if that could have been otherwise
    order: npt.NDArray[np.intp] | None = None  # the row of each sample, -1 for missing ones; None for all rows in order

    @property
    def named(self) -> Named:
        """The names of the rows, for joins and messages."""
        columns = self.columns if self.holds == "" else None
        return Named(f"features {self.name!r}", self.samples, self.numbers, columns)

    def read(self, rows: slice) -> Array:
        """Read some rows; rows of NaN for samples that lack this source."""
        if self.order is None:
            return self._read(rows)
        wanted = self.order[rows]
        values = np.full((len(wanted), self.shape[1]), np.nan, dtype=self.dtype)
        present = np.flatnonzero(wanted >= 0)
        if len(present):
            # HDF5 reads rows in increasing order only, and a slice at once.
            present = present[np.argsort(wanted[present])]
            rows_read = wanted[present]
            together = rows_read[-1] - rows_read[0] + 1 == len(rows_read)
            values[present] = self._read(slice(int(rows_read[0]), int(rows_read[-1]) + 1) if together else rows_read)
        return values

    def _read(self, rows: slice | npt.NDArray[np.intp]) -> Array:
        values = self.open()[rows, slice(None)]
        if is_instance(values, "dask.array", "Array"):
            values = values.compute()
        if is_sparse(values):  # blocks of sparse arrays on disk, or in Dask's chunks
            values = values.toarray()
        # `dmkl.store.features.scan` refuses overflow as infinite.
        with np.errstate(over="ignore"):
            # Rounding of sums depends on the memory layout: always row after row.
            return np.asarray(without_codes(unmasked(values)), dtype=self.dtype, order="C")


@dataclass
class Features:
    """Feature matrices over the same samples."""

    blocks: dict[str, FeatureMatrix]  # by name; all have the same number of rows, row i being sample i
    samples: list[str] | None  # names of the samples, if anything has names
    labels: Labels  # names, labels, tasks and splits of the samples
    notes: list[str]  # parts that were left out, and choices that could have been otherwise


@dataclass
class _Unaligned:
    """Feature matrices whose rows are not aligned yet, and their side data."""

    matrices: list[FeatureMatrix] = field(default_factory=list)  # each in the order of its source
    side_data: list[SideData] = field(default_factory=list)  # labels, splits and names of tasks
    samples: Names = None  # names of the rows of all matrices that carry none
    notes: list[str] = field(default_factory=list)  # see `Features`
    places: list[tuple[Path, str]] = field(default_factory=list)  # file and name of each matrix
    keep: set[str] = field(default_factory=set)  # names that are a place, such as X
    last: list[Any] = field(default_factory=list)  # see `open_alone`


def as_features(
    features: Any,
    *,
    samples: Sequence[Any] | Array | None = None,
    present: Mapping[str, Any] | None = None,
    join: Join = "exact",
    side_data: Sequence[SideData] = (),
    transpose: bool = False,
) -> Features:
    """Find features in files or memory and align their rows to one order of samples; no value is read yet.

    Accepted is what `dmkl.build` takes, whose arguments these are. `Features` of an earlier call stay in their order,
    and `samples` names them.

    Arrays, columns and files with a name of `ROLES` have that role, unless `side_data` has data of that role. The names
    of the samples in a table are found by `find_names`; those of the first table are known when the next is read. Rows
    without names are those of the samples, one after another. The wanted `samples` are by default those of the first
    matrix with names; the rows of samples that a matrix lacks are NaN.

    The matrices are float32 (from booleans, integers to 16 bits and floats to 32) or float64 (from other real numbers).
    Memory holds the rows that `FeatureMatrix.read` returns; and of .npz, MATLAB files before version 7.3 and Parquet
    the one matrix that was read last.
    """
    if isinstance(features, Features) and present is None:
        if side_data:
            what = "is given beside features that were taken with their labels; give it with the files"
            refuse(f"{side_data[0].where} {what}")
        return features if samples is None else replace(features, samples=list(map(str, samples)))
    wanted = sample_names("samples", None if samples is None else np.asarray(samples).tolist())
    unaligned = _find_features(features, wanted)
    matrices, notes, stored = unaligned.matrices, unaligned.notes, unaligned.samples
    notes += [matrix.note for matrix in matrices if matrix.note]
    if not matrices:
        refuse("kernels are computed from at least one matrix of features (samples, columns), got none")
    if transpose:
        matrices = list(map(_transposed, matrices))
    tables = [matrix.named for matrix in matrices]
    for k, (table, matrix) in enumerate(zip(tables, matrices, strict=True)):
        tables[k] = table._replace(names=table.names or sample_names(table.where, stored, matrix.shape[0]))
    # Data found with the features is in their order; given data is in that of `samples`, and replaces it.
    replaced = {item.role for item in side_data}
    replaced |= {"tasks"} if "labels" in replaced else set()  # other labels have other tasks
    inside = [item for item in unaligned.side_data if item.role not in replaced]
    first = stored or next((table.names for table in tables if table.names is not None), None)
    for item in inside:
        item.name_rows(first, by_position=True)
    shape = (matrices[0].shape[0] if wanted is None else len(wanted), None)
    tables, order, kept, order_notes = align(tables, join, wanted, inside, side_data, notes, shape=shape, stored=stored)
    matrices = [replace(matrix, samples=table.names) for matrix, table in zip(matrices, tables, strict=True)]
    named = [matrix for matrix in matrices if matrix.samples is not None]
    nameless = [matrix for matrix in matrices if matrix.samples is None]
    n_rows = nameless[0].shape[0] if order is None else len(order)
    for matrix in nameless:
        if named and wanted is None and matrix.is_table and matrix.shape[1] > 1:
            what = f"features {matrix.name!r} have {matrix.shape[1]} columns and none that names the samples"
            refuse(f"{what}, and {named[0].named.where} has names; expected a column of names, titled 'sample'")
        if matrix.shape[0] != n_rows:
            other = f"there are {n_rows} samples" if order is not None else f"{matrices[0].name!r} have {n_rows} rows"
            rule = "rows without names belong together by position"
            way_out = "Give all the same rows (NaN where a sample lacks all), or names (the index of a data frame)"
            refuse(f"features {matrix.name!r} have {matrix.shape[0]} rows, {other}; {rule}. {way_out}")
    check_memory(f"the order of {n_rows:,} samples", 8 * n_rows, "allow more, or look whether the features are damaged")
    masks = {name: np.asarray(mask) for name, mask in (present or {}).items()}
    for name, mask in masks.items():
        if name not in (names := [matrix.name for matrix in matrices]):
            refuse(f"present names {name!r}, but the features are {', '.join(map(repr, names))}")
        if mask.dtype != bool or mask.shape != (n_rows,):
            refuse(f"present[{name!r}] is {mask.dtype} of shape {mask.shape}, expected booleans of shape ({n_rows},)")
    blocks = {matrix.name: _aligned(matrix, order, masks.get(matrix.name), notes) for matrix in matrices}
    labels, _ = gather(kept, len(blocks), n_rows, order, notes)
    for note in order_notes:
        warn(note, SampleOrderWarning)
    everyone = None if labels.samples is None else list(map(str, labels.samples))
    return Features(blocks, everyone, labels, list(dict.fromkeys(notes)))


def _transposed(matrix: FeatureMatrix) -> FeatureMatrix:
    """Return a matrix (features, samples) as (samples, features); it is read as a whole."""
    samples, shape = sample_names(f"features {matrix.name!r}", matrix.columns), matrix.shape[::-1]
    turned = replace(matrix, shape=shape, samples=samples, columns=matrix.samples, numbers=())
    return replace(turned, open=lambda: transposed(matrix.read(slice(0, shape[1]))))


def _aligned(matrix: FeatureMatrix, samples: Names, mask: Mask | None, notes: list[str]) -> FeatureMatrix:
    if matrix.samples is None or samples is None or matrix.samples == samples:
        order = np.arange(matrix.shape[0])
    else:
        order = places(matrix.samples, samples)
        lacking = int((order < 0).sum())
        if lacking == len(samples):
            what = f"features {matrix.name!r} have none of the {len(samples)} samples: their names begin with "
            begins = f"{listed_names(matrix.samples)}, expected are {listed_names(samples)}"
            refuse(f"{what}{begins}; use the same names, or leave this matrix out")
        if lacking:
            notes.append(f"features {matrix.name!r} lack {lacking} of the {len(samples)} samples")
        if extra := matrix.shape[0] - (len(samples) - lacking):
            notes.append(f"features {matrix.name!r}: left out {extra} rows that are none of the samples")
    if mask is not None:
        order = np.where(mask, order, -1)
    if np.array_equal(order, np.arange(matrix.shape[0])):
        return matrix  # rows that are in order need no second array
    return replace(matrix, shape=(len(order), matrix.shape[1]), samples=None, order=order)


def _matrix(name: str, array: FileArray, **more: Any) -> FeatureMatrix:
    """Return an array as a feature matrix; a vector of all pairs holds distances (`square`)."""
    shape, dtype, columns, get = array.shape, array.dtype, array.columns, array.open
    more["holds"] = "" if array.holds == "features" else array.holds
    n = n_condensed(*shape) if len(shape) == 1 and dtype.kind == "f" else None
    if n is not None:
        more["holds"] = "distances"
        shape, get = (n, n), lambda: square(array.open(), n)
    if len(shape) == 3 and shape[1] == shape[2] > 1:
        more["note"] = f"features {name!r} are the entries above the diagonals of {shape[0]} matrices {shape[1:]}"
        shape, columns = (shape[0], shape[1] * (shape[1] - 1) // 2), None
        get = partial(lambda stack: upper_triangles(f"features {name!r}", stack()), array.open)
    if len(shape) != 2:
        way_out = "; give one column as values.reshape(-1, 1)" if len(shape) == 1 else ""
        refuse(f"features {name!r} have shape {shape}, expected two dimensions, (samples, columns){way_out}")
    if 0 in shape:
        refuse(f"features {name!r} have {shape[0]} rows and {shape[1]} columns, expected at least one of each")
    if dtype.kind not in "fiub":
        way_out = "; convert them, as values.astype(float), or encode what is no number" * (dtype.kind in "OUST")
        way_out += "; give real and imaginary parts as columns of their own" * (dtype.kind == "c")
        kind = "Python objects" if dtype.kind == "O" else dtype
        refuse(f"features {name!r} hold {kind}, expected real numbers{way_out}")
    more |= {"numbers": array.numbers, "by_name": array.by_name, "genotypes": array.genotypes}
    names = sample_names(f"features {name!r}", array.rows, shape[0])
    return FeatureMatrix(name, shape, float_dtype(dtype), columns, names, get, **more)


def _matrix_of_columns(name: str, table: Columns, unaligned: _Unaligned, expected: set[str] | None) -> FeatureMatrix:
    """Return the columns of numbers of a table; labels and splits among its columns go to `unaligned`."""
    if not table.n_rows or (table.n_rows == 1 and table.titles is None and not any(table.numeric)):
        refuse(f"{table.where} has columns but no rows, expected at least one sample")
    names, rest = find_names(table, expected)
    names = names or names_beside(Path(table.where), [table.n_rows], table.notes) or None
    sample_names(table.where, names)
    roles = {at: ROLES.get(plain_title(title)) for at, title in enumerate(table.titles or ())}
    features = [at for at in rest if roles.get(at) not in OF_SAMPLES]
    for at in rest:
        role, place = roles.get(at) or "", f"{table.title(at)} of {table.where}"
        if role in OF_SAMPLES:
            table.notes.append(f"{place} was taken for {role}, not for a feature")
            read = partial(lambda at, place, _: LabelTable(vector(table.values([at]), place), names), at, place)
            unaligned.side_data.append(SideData(role, place, read))
    words = [at for at in features if not table.numeric[at]]
    if words and len(words) < len(features):
        _refuse_columns(table, words)
    if table.titles is None and isinstance(table, Text):
        decimal = "," if table.decimal_comma else "."
        numerals = [cell for cell in table.head_row() if is_numeral(cell.replace(decimal, "."))]
        if 0 < len(numerals) < table.n_columns and all(cell.isdecimal() for cell in numerals):
            table.refuse_first_line(table.head_row())
    if words or not features:
        titles = first_names(map(table.title, range(table.n_columns)), 8)
        refuse(f"{table.where} has no column of numbers, found {titles}; expected columns with a delimiter")
    if names is None:
        _check_first_column(table, features)
    if table.titles is None:
        table.notes.append(f"{table.where}: its columns have no names, since its first line holds numbers")
    unaligned.notes += table.notes
    return _matrix(name, array_of(table, features, names, table.titles_of(features)), is_table=True)


def _check_first_column(table: Columns, features: Sequence[int]) -> None:
    """Note or refuse a first column of different whole numbers, which may be names of samples."""
    cells, *others = table.texts(features[:3])
    if not others or len(cells) < 4 or len(set(cells)) < len(cells) or not all(map(str.isdecimal, cells)):
        return
    if table.titles is None and not all(map(str.isdecimal, chain(*others))):
        what = f"holds different whole numbers ({listed_names(cells)}), so it may name the samples or be a feature"
        refuse(f"{table.where}: the first column {what}; add a line of titles, 'sample' above names")
    what = "holds different whole numbers and was taken for a feature; title it 'sample' if they name the samples"
    table.notes.append(f"{table.where}: {table.title(features[0])} {what}")


def _refuse_columns(table: Columns, columns: Sequence[int], way_out: str = "") -> NoReturn:
    for at in columns:
        way = "say so (--unknown '{code}') or write NA"
        refuse_codes(f"{table.title(at)} of {table.where} has", table.texts([at])[0], way)
    what = f"{first_names(map(table.title, columns), 8)} {'is' if len(columns) == 1 else 'are'} not numeric"
    refuse(f"{table.where}: {what}, expected numbers; encode them (pandas.get_dummies) or drop them{way_out}")


def _find_features(features: Any, wanted: Sequence[str] | None) -> _Unaligned:
    """Find feature matrices, labels, splits and names in files, of which only headers are read, or in memory."""
    unaligned = _Unaligned()
    paths = [features] if isinstance(features, str | os.PathLike) else features
    if holds_arrays(features):
        arrays = recognize("features", features)
        files = [array.path for array in arrays[:1]]
        for path in files:
            _take_arrays(path, arrays, unaligned)
    elif isinstance(paths, list | tuple) and all(isinstance(path, str | os.PathLike) for path in paths):
        files = _take_files(paths, None if wanted is None else set(wanted), unaligned)
    elif isinstance(features, Mapping) or hasattr(features, "shape"):
        matrices = features if isinstance(features, Mapping) else {"X": features}
        unaligned.matrices = [_object_matrix(str(name), values) for name, values in matrices.items()]
        return unaligned
    else:
        what = type(features).__name__
        refuse(f"features must be arrays (samples, columns), by name, or data or files of these, got {what}")
    if not unaligned.matrices:
        what = f"there are no features in {', '.join(map(str, files)) or 'no files'}: expected matrices of numbers"
        refuse(f"{what}, (samples, columns); give a column as (samples, 1), or in a mapping from names to arrays")
    # Matrices get their final names last, since these depend on the other names.
    names = names_of_arrays(unaligned.places, files, unaligned.keep)
    unaligned.matrices = [replace(matrix, name=name) for matrix, name in zip(unaligned.matrices, names, strict=True)]
    return unaligned


def _take_files(paths: Sequence[PathLike], expected: set[str] | None, unaligned: _Unaligned) -> list[Path]:
    """Take the feature matrices and labels of files; returns the files with features."""
    files, side_files = find_files(paths, "features", {"samples", *_LABEL_ROLES}, unaligned.notes)
    for path in files:
        file_format = check_file(path, "features")
        table = None if file_format.columns is None else file_format.columns(path, expected, None)
        pairs = pairs_of(table) if isinstance(table, Text) else []
        if table is None or pairs or (isinstance(table, Text) and table.is_ragged):
            _take_arrays(path, pairs or file_format.arrays(path), unaligned)
        else:
            unaligned.matrices.append(_matrix_of_columns(stem(path), table, unaligned, expected))
            unaligned.places.append((path, ""))
        expected = expected or next((set(matrix.samples) for matrix in unaligned.matrices if matrix.samples), None)
    for role, path in side_files:
        if role == "samples":
            unaligned.samples = sample_names(str(path), read_names(path, expected))
        else:
            unaligned.side_data.append(SideData(role, str(path), partial(read_file, path, None), expected))
    return files


def _take_arrays(path: Path, arrays: Sequence[FileArray], unaligned: _Unaligned) -> None:
    """Take the feature matrices among the arrays of a file or object, and its labels and such."""
    # Symmetric matrices (m, m, samples) of MATLAB.
    stacks = [v for v in arrays if v.matlab and not v.cell and len(v.shape) == 3 and v.shape[0] == v.shape[1]]
    arrays = [_reversed(variable) if variable in stacks else variable for variable in arrays]
    labels = [variable for variable in arrays if variable.name and variable.role == "labels"]
    n_labels = [length for variable in labels for length in (*variable.views, variable)[0].shape[:2] if length > 1]
    others = [variable for variable in arrays if not variable.name or variable.role is None]
    cells = [variable for variable in others if variable.views]
    chosen = [variable for variable in others if not variable.views and _is_features(variable)]
    chosen = [variable for variable in chosen if len(variable.shape) != 3] or chosen  # stacks only without tables
    views = [view for variable in cells for view in _matrices_of_cells(variable, n_labels, unaligned.notes)]
    rest = [variable for variable in arrays if variable not in cells]
    data, side = sort_arrays(path, rest, [*chosen, *views], unaligned.notes)
    unaligned.side_data += [item for item in side if item.role in _LABEL_ROLES]
    for variable in data:
        opened = partial(open_alone, unaligned.last, (path, variable.name), variable.open)
        unaligned.keep |= {variable.name} if variable.holds == "features" and variable.name else set()
        unaligned.matrices.append(_matrix(variable.name or stem(path), replace(variable, open=opened)))
        unaligned.places.append((path, variable.name))


def _reversed(variable: FileArray) -> FileArray:
    """Return an array whose axes are in reverse order."""
    return replace(variable, shape=variable.shape[::-1], open=lambda: transposed(variable.open()), matlab=False)


def _is_features(variable: FileArray) -> bool:
    """Whether an array is a feature matrix, as is the one array of a file without names."""
    # The shape of an array in another file is not known.
    is_matrix = len(variable.shape) == 2 or (len(variable.shape) == 3 and variable.shape[1] == variable.shape[2])
    if variable.name and variable.problem != ELSEWHERE and (not is_matrix or variable.is_text):
        return False
    variable.refuse()
    # MATLAB shows vectors and empty arrays with two dimensions.
    return not variable.problem and not (variable.matlab and min(variable.shape) <= 1)


def _matrices_of_cells(variable: FileArray, n_labels: Sequence[int], notes: list[str]) -> list[FileArray]:
    """Return the matrices of a cell array, each (samples, columns); notes get the axis of the samples.

    Along it all are as long as the labels (one of `n_labels`), or without labels equally long, rows before columns.
    """
    lengths = [{view.shape[axis] for view in variable.views} for axis in (0, 1)]
    fitting = [axis for axis in (0, 1) if len(lengths[axis]) == 1 and (not n_labels or lengths[axis] <= set(n_labels))]
    if not fitting:
        n = n_labels[0] if n_labels else 0
        wanted = f"{n} rows, or {n} columns, as there are labels" if n else "equally many rows or columns"
        what = f"{variable.where} is a cell array of {first_names(variable.views, 12)}; expected views of {wanted}"
        refuse(f"{what}. Save the views that belong together as variables of their own, (samples, columns)")
    axis, why = fitting[0], "as many as labels" if n_labels else "equally many in all"
    why += ", though the columns are as many" * (len(fitting) > 1)
    what = f"feature matrices, of which the {('rows', 'columns')[axis]} were taken for samples"
    notes.append(f"{variable.where}: {len(variable.views)} {what} ({lengths[axis].pop()}, {why})")
    return list(map(_reversed, variable.views) if axis else variable.views)


def _object_matrix(name: str, values: Any) -> FeatureMatrix:
    if is_instance(values, "pandas", "DataFrame"):
        table = Columns(f"features {name!r}", values)
        samples, rest = table.index, list(range(table.n_columns))
        if samples is None and any(map(is_title, table.titles or ())):
            samples, rest = find_names(table)
        if words := [at for at in rest if not table.numeric[at]]:
            _refuse_columns(table, words, "; names of samples go into the index (set_index)")
        columns = tuple(str(values.columns[at]) for at in rest)
        numbers = [] if samples else [tuple(map(str, range(table.n_rows)))]
        return _matrix(name, array_of(table, rest, samples, columns, numbers=numbers))
    if isinstance(values, str | os.PathLike):
        refuse(f"features {name!r} are the path {values}; give a list of paths, each matrix being named by its file")
    return _matrix(name, recognize(f"features {name!r}", values)[0])
