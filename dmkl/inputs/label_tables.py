"""Labels, groups, splits, covariates and lists of samples: from objects in memory, or from files of any format."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dmkl.arrays import Array, is_instance, is_known, unmasked
from dmkl.errors import SampleOrderWarning, first_names, refuse, warn
from dmkl.files.urls import file_and_name
from dmkl.inputs.columns import ROLES, Columns, axis_names, find_names, matched_share, names_among, plain_title
from dmkl.inputs.formats.file_arrays import FileArray, vector
from dmkl.inputs.formats.registry import PathLike, check_file
from dmkl.inputs.formats.tables import FAM_TITLES, Text
from dmkl.inputs.formats.text_kernels import names_beside
from dmkl.inputs.labels import OF_SAMPLES, LabelTable, SideData, in_columns, in_order, refuse_without_names
from dmkl.inputs.objects import recognize
from dmkl.names import Expected, Individual, Names, listed_names, names_as_known, sample_names

if TYPE_CHECKING:
    import pandas as pd

OF_AXES = ("samples", "train_samples")
"""The roles of names of rows and columns."""
_COVARIATES = (".covar", ".qcovar", ".eigenvec")
"""GCTA's files of categories, of numbers and of principal components."""


def label_table(values: Any, expected: Expected = None) -> LabelTable:
    """Return labels or splits with the names of samples and tasks that they carry.

    Names of samples are in the index of a series; in the index or a column of a data frame (see `find_names`); in the
    coordinate of the dimension of an xarray array that is called as samples are, or else of its first.
    """
    if isinstance(values, LabelTable):
        return values
    if isinstance(values, np.ndarray):
        return LabelTable(unmasked(values))
    if is_instance(values, "pandas", "Series", "DataFrame"):
        # An index that only counts names the rows of a set whose names are these numbers.
        numbers = tuple(map(str, range(len(values))))
        index = axis_names(values, 0) or (numbers if expected and set(expected) == set(numbers) else None)
        if is_instance(values, "pandas", "Series"):
            return LabelTable(values.to_numpy(), index)
        table = Columns("the data frame", values)
        table.index = index
        return _labels_of(table, None, expected)
    is_labelled = is_instance(values, "xarray", "DataArray")
    of_samples = [dim for dim in values.dims if ROLES.get(plain_title(str(dim))) == "samples"] if is_labelled else []
    array, *others = recognize("the labels", values.transpose(of_samples[0], ...) if of_samples else values)
    if others:
        refuse(f"labels are one array or table, got a {type(values).__name__} of several; give one of them")
    entries = array.read()
    if is_labelled and entries.ndim == 2 and entries.shape[1] == 1:
        return LabelTable(entries[:, 0], array.rows)
    return LabelTable(entries, array.rows, array.columns)


def given_data(*pairs: tuple[str, Any], **values: Any) -> list[SideData]:
    """Return labels, splits and names of tasks that were given by role: values, or paths as `read_file` takes them."""
    return [
        SideData(role, str(given), partial(read_file, given, None))
        if isinstance(given, str | os.PathLike)
        else SideData(role, f"{role}=", partial(label_table, given))
        for role, given in (*pairs, *values.items())
        if given is not None
    ]


def matched(where: str, values: Any, samples: Array, *, named: bool, stored: Array | None = None) -> LabelTable:
    """Return labels or groups in the order of samples, by name if they carry names.

    `named` states whether the samples have names; otherwise their names are their numbers. If only one side has
    names, row i is taken for sample i with a `SampleOrderWarning`, unless the values equal the `stored` labels.
    """
    wanted = tuple(map(str, samples))
    table = label_table(values, set(wanted) if named else None)
    names, note = table.row_names, ""
    if named and names is None and len(set(wanted)) == len(wanted):  # records that repeat a sample have no other names
        are_numbers = stored is not None and {table.values.dtype.kind, stored.dtype.kind} <= set("fiub")
        kind: Any = float if are_numbers else str
        if stored is None or not np.array_equal(table.values.astype(kind), stored.astype(kind), equal_nan=are_numbers):
            note = f"has no names of samples, and the kernels have: row i is taken for sample i ({wanted[0]!r} is row 0"
            note += "). Give names: a column of the file, or the index of a Series or data frame"
    elif names is not None and not named and not set(wanted) <= set(names):
        note = f"carries names of samples ({names[0]!r} …), but the kernels have none: matched by position"
        note += ". Name the samples of the kernels (samples=, --samples)"
        wanted = names
    ordered = in_order(where, table, wanted)
    if note:
        warn(f"{where} {note}", SampleOrderWarning)
    return ordered


def is_labelled_mask(key: Any) -> bool:
    """Whether a choice of samples is a boolean mask of pandas or xarray, which may have their names."""
    is_labelled = is_instance(key, "pandas", "Series") or is_instance(key, "xarray", "DataArray")
    return is_labelled and bool(key.dtype == bool)


def matched_to(array: Any, y: Any) -> Array:
    """Return labels in the order of the samples of an array that is labelled with xarray, by name if both have names.

    So are the columns of several targets. Samples that are called by numbers alone are positions in the set of all
    samples. The rows of any other array, and of one without samples, have no names.
    """
    if "sample" not in getattr(array, "coords", ()):
        return label_table(y).values
    names = array["sample"].values
    table = matched("y", y, names, named=not all(str(name).isdecimal() for name in names))
    return in_columns(table.values, table.columns, array["target"].values if "target" in array.coords else None)


def read_file(
    path: PathLike, name: str | None = None, samples: Iterable[str] | None = None, *, alone: bool = False
) -> LabelTable:
    """Read the values of a file of one array or table, with the names of its rows and columns.

    `name` is the column of a table or the array of a container, if a file holds several, also written as FILE:NAME;
    `samples` are the names of the samples, if they are known, which show the column that holds them. An array that is
    wanted `alone` holds names itself: no other array of its file names its rows.
    """
    path = Path(path).expanduser()
    path, name = file_and_name(path) if name is None else (path, name)
    file_format = check_file(path, "labels")
    expected = None if samples is None else frozenset(map(str, samples))
    if file_format.columns is not None:
        return _labels_of(file_format.columns(path, expected, name), name, expected)
    if file_format.labels is not None:
        return file_format.labels(path, name)
    arrays = file_format.arrays(path)
    chosen = [variable for variable in arrays if name in (None, variable.name)]
    if not chosen and name is not None:
        refuse(f"{path} has no variable {name!r}; it has {first_names(arrays, 12) or 'none'}")
    if len(chosen) != 1:
        refuse(f"{path} holds {len(chosen)} arrays, expected one: {first_names(chosen, 12)}; say which, as {path}:NAME")
    table = read_array(chosen[0])
    if alone:
        return table
    (named,), _ = sort_arrays(path, arrays, chosen, [])  # other arrays of the file may name the rows
    rows = [names for names in (named.rows, named.columns) if names and len(names) in named.shape]
    rows = [names for names in rows if names is named.rows or matched_share(names, expected) > 0.5]  # a row a split
    rows += [names for names in named.numbers if matched_share(names, expected) > 0.5]
    return replace(table, row_names=table.row_names or (rows[0] if rows else None))


def read_array(variable: FileArray, samples: Names = None) -> LabelTable:
    """Read an array of a file, or equal vectors of a cell array as one; `samples` name rows without names."""
    parts = [part.open()[...] for part in variable.views] or [variable.read()]
    first, *others = (vector(part, variable.where) for part in parts)
    if not all(np.array_equal(other, first) for other in others):
        refuse(f"{variable.where} is a cell array of parts that differ, expected equal vectors; save the right one")
    return LabelTable(first, samples if variable.rows is None else variable.rows, variable.columns)


def sort_arrays(
    path: Path,
    arrays: Sequence[FileArray],
    data: Sequence[FileArray],
    notes: list[str],
    kernel_axes: Sequence[int | None] = (),
    *,
    ordered: bool = False,
) -> tuple[list[FileArray], list[SideData]]:
    """Give the arrays with data the names of samples in their file, and return also labels and such of the file.

    Names are in vectors as long as a side of the data (see `names_among`). `kernel_axes` are the axes of the data that
    count kernels, which words may name too; if the samples are `ordered`, the names of rows come from elsewhere.
    """
    axes = list(kernel_axes) or [None] * len(data)
    sides = [np.delete(v.shape, [] if axis is None else axis).tolist() for v, axis in zip(data, axes, strict=True)]
    n_kernels = sum(1 if axis is None else v.shape[axis] for v, axis in zip(data, axes, strict=True))
    rest = [variable for variable in arrays if variable not in data]
    usable = {variable.name: variable for variable in rest if not variable.problem}
    of_role: dict[str, Names] = {}
    for variable in usable.values():
        if variable.role in OF_AXES and variable.role not in of_role:
            of_role[variable.role] = sample_names(variable.where, read_array(variable).values.ravel().tolist())
    vectors, lengths = dict[str, Array](), {*chain(*sides), n_kernels}
    for name, variable in usable.items():
        length = max(variable.shape, default=0)
        free = variable.role in (None, "samples") or (variable.role == "names" and length != n_kernels)
        if free and length > 1 and length in lengths and math.prod(variable.shape) == length:
            vectors[name] = read_array(variable).values
    taken, named, side_data = set[str](), list[FileArray](), list[SideData]()
    beside = () if ordered or all(v.rows for v in data) else names_beside(path, set(chain(*sides)), notes)
    for variable, side in zip(data, sides, strict=True):
        n_rows, n_cols = (*side, *side, 0, 0)[:2]
        rows, in_rows = names_among(str(path), {} if ordered or variable.rows else vectors, n_rows)
        cols, in_cols = names_among(str(path), {} if n_cols == n_rows or variable.columns else vectors, n_cols)
        for what, titles in (("samples", in_rows), ("columns", in_cols)):
            taken |= set(titles)
            if untitled := [repr(title) for title in titles if usable[title].role != "samples"]:
                notes.append(f"{path}: {first_names(untitled, 3)} taken for names of the {what}")
        rows, cols = variable.rows or rows or of_role.get("samples"), variable.columns or cols
        if beside and not rows:
            rows, cols = (beside, cols) if len(beside) == n_rows else (rows, cols or beside)
        integers = [v.tolist() for v in vectors.values() if v.dtype.kind in "iu" and not (rows or ordered)]
        numbers = [tuple(map(str, own)) for own in integers if len(own) == len(set(own)) == n_rows]
        named.append(replace(variable, rows=rows, columns=cols or of_role.get("train_samples"), numbers=numbers))
    if axes != [None] * len(data) and n_kernels > 1 and n_kernels not in sides[0]:
        words = {name: v for name, v in vectors.items() if v.dtype.kind == "U" and len(set(v.tolist())) == n_kernels}
        for name in list(words)[: len({tuple(v) for v in words.values()}) == 1]:
            side_data.append(SideData("names", usable[name].where, partial(lambda v, _: LabelTable(v), words[name])))
            notes.append(f"{path}: {name!r} taken for names of the kernels")
            taken |= set(words)
    left_out = [v for v in rest if v.name not in taken and (v.problem or (not v.role and max(v.shape, default=1) != 1))]
    if left_out:
        notes.append(f"{path}: left out {first_names(left_out, 12)}")
    for variable in arrays:
        notes += variable.notes
    for name, variable in usable.items():
        if variable.role is not None and variable.role not in of_role and name not in taken:
            own = named[0].rows if named and variable.role in OF_SAMPLES else None
            read = partial(lambda v, names, _: read_array(v, names), variable, own)
            side_data.append(SideData(variable.role, variable.where, read))
    return named, side_data


def read_names(path: Path, samples: Iterable[str] | None = None) -> tuple[str, ...]:
    """Read names of samples from a file: a name a line, FID and IID, or a table; see `read_file`."""
    table = read_file(path, samples=samples, alone=True)
    names = table.row_names
    if names is None and table.is_table and table.values.shape[1:] == (2,):  # FID and IID
        families, individuals = table.values.astype(str).T.tolist()
        names = Individual.of(individuals, families)
    return names_as_known(tuple(map(str, np.ravel(table.values))) if names is None else names, samples)


def read_covariates(path: Path, samples: Iterable[str] | None = None) -> pd.DataFrame:
    """Read covariates, (samples, covariates), from a file of any kind that labels are read from; see `read_file`.

    The table must name its columns and samples; a single column without a title is called by NAME in FILE:NAME or by
    the file. Columns hold numbers if all known values are numbers, else words; unknown values are missing. Columns
    without titles of GCTA's .covar, .qcovar and .eigenvec are numbered; values of .covar are categories, and those of
    columns that Oxford's .sample or QIIME 2 call discrete or categorical.
    """
    table = read_file(path, samples=samples)
    values = table.values  # of a single sample a vector
    if values.ndim == 1:
        values = values[None] if len(table.row_names or ()) == 1 else values[:, None]
    titles, n_columns = table.columns, values.shape[1]
    if titles is None and n_columns == 1:
        titles = (path.stem if path.exists() else str(path).rpartition(":")[2],)
    if titles is None and path.suffix.lower() in _COVARIATES:
        titles = tuple(f"{path.stem}_{number}" for number in range(1, n_columns + 1))
    if table.row_names is None or titles is None:
        missing = "samples" if table.row_names is None else "columns"
        refuse(f"{path} does not name its {missing}, expected titles, and names of samples in a column titled 'sample'")
    names = sample_names(str(path), names_as_known(table.row_names, samples))
    columns: dict[str, Any] = {}
    for title, cells in zip(titles, values.T, strict=True):
        columns[title] = np.where(is_known(cells), cells.astype(object), None)
        with suppress(ValueError):
            columns[title] = np.where(is_known(cells), cells, "nan").astype(np.float64)
            if path.suffix.lower() == ".covar" or title in table.categories:
                columns[title] = np.array([None if value != value else f"{value:g}" for value in columns[title]])
    import pandas as pd

    return pd.DataFrame(columns, index=list(names or ()))


def _labels_of(table: Columns, column: str | None, expected: Expected) -> LabelTable:
    """Return the labels in a table: all columns that do not name its rows, or the requested one."""
    if isinstance(table, Text) and (table.count is not None or table.is_triangle):
        refuse(f"{table.where} holds a kernel or distances of PHYLIP or TASSEL, expected labels, a row for each sample")
    (names, rest), titles = find_names(table, expected), table.titles
    if titles is not None and matched_share(titles, expected) > max(0.5, matched_share(names or (), expected)):
        refuse(f"{table.where}: the columns bear the names of the samples, expected the rows to do so; transpose it")
    if column is not None:
        if expected and names is None and len(rest) > 1:
            refuse_without_names(table.where, len(rest), sorted(expected))
        known = {title.casefold() for title in titles or ()}
        wanted = [column] if column.casefold() in known else column.split(",")  # such as time,event
        rest = [_column_of(table, name.strip()) for name in wanted]
    elif titles == FAM_TITLES:
        rest = [FAM_TITLES.index("PHENO")]
    if not rest:
        return LabelTable(np.array(names or (), dtype=str), names, None, tuple(table.notes), is_table=True)
    values = table.values(rest)
    if isinstance((names or ("",))[0], Individual) or "iid" in map(plain_title, titles or ()):
        values = _without_missing_codes(table, values, rest)
    if names is None and titles is None and len(rest) == 2 and getattr(table, "delimiter", None) == ",":
        cells = [cell for row in zip(*table.texts(rest), strict=True) for cell in row]
        # Tasks are 0 and 1.
        if all(re.fullmatch(r"-?\d+", cell) for cell in cells) and not set(cells) <= {"0", "1", "-1"}:
            pair = f"lines such as {','.join(cells[:2])!r} may be numbers with decimal commas, or two columns"
            refuse(f"{table.where}: {pair} of whole numbers; write decimal points, or titles above two columns")
    single = len(rest) == 1 and (column is not None or not isinstance(table, Text))
    columns = None if single else table.titles_of(rest)
    entries = values[:, 0] if len(rest) == 1 else values
    if isinstance(table, Text):
        entries = vector(entries, table.where)
    categories = getattr(table, "categories", ())
    return LabelTable(entries, names, columns, tuple(table.notes), is_table=True, categories=categories)


def _column_of(table: Columns, name: str) -> int:
    """Return the position of a column by its title, in any case where no other differs by that."""
    titles = table.titles or ()
    same = [at for at, title in enumerate(titles) if title.casefold() == name.casefold()]
    exact = [at for at in same if titles[at] == name]
    if len(same) != 1 and not exact:
        refuse(f"{table.where} has no column {name!r}; it has {listed_names(titles, 12) or 'no titles'}")
    return (exact or same)[0]


def _without_missing_codes(table: Columns, values: Array, columns: Sequence[int]) -> Array:
    """Return values of geneticists' tables with NaN or NA for -9, and for 0 among controls (1) and cases (2)."""
    missing = np.isin(values.astype(str), ("-9", "-9.0"))
    if missing.any():
        table.notes.append(f"{table.where}: -9 was taken for missing, as in PLINK and GCTA")
        values = np.where(missing, "NA" if values.dtype.kind in "OU" else np.nan, values)
    where = table.where
    has_phenotypes = values.dtype.kind == "f" and not where.lower().endswith(_COVARIATES)
    for k, at in enumerate(columns if has_phenotypes else ()):
        codes = set(values[~np.isnan(values[:, k]), k].tolist())
        # PLINK's codes of phenotypes: missing, control, case.
        if codes == {0, 1, 2} or (codes == {0, 2} and where.lower().endswith(".fam")):
            values = np.where((np.arange(values.shape[1]) == k) & (values == 0), np.nan, values)
            what = f"{where}: 0 in {table.title(at)} was taken for missing"
            table.notes.append(f"{what}: the others are 1 and 2, as in PLINK")
    return values
