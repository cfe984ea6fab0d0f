"""Kernels in text: whole matrices with or without names, triangles (PHYLIP), and lists of pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.errors import InputError
from dmkl.inputs.columns import RowNames, find_names, is_number, is_numeral
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.tables import Text
from dmkl.settings import check_memory


def text_arrays(path: Path) -> list[FileArray]:
    """Return the matrix in a text file, with the names of its rows and columns."""
    text = Text(path)
    if text.is_triangle or (text.count is not None and text.n_rows > text.count):
        return [_ragged_matrix(text)]
    pairs = _pairs_of(text)
    if pairs is not None:
        text.notes.append(f"{path} was taken for entries of pairs: name, name, value")
        n = len(pairs[0])
        return [_array(text, (n, n), partial(matrix_of_pairs, text, pairs[1], pairs[2], n, 2), pairs[0])]
    if text.titles is None and text.n_rows == text.n_columns + 1 and _are_whole(text.head_row()):
        text.take_first_row_as_titles()
    names = _row_names(text)
    columns = [at for at in range(text.n_columns) if at not in names.columns]
    if not columns:
        msg = (
            f"{path} holds {text.n_rows} lines of words and no numbers, expected a matrix; labels and "
            "names of samples are given as such (labels=, samples=, --labels, --samples)"
        )
        raise InputError(msg)
    words = [name for name in names.names or () if not is_numeral(name)]
    if text.titles is None and 0 < len(words) < text.n_rows:
        msg = (
            f"{path}: {words[0]!r:.60} in the first column is not a number, others in this column are; if they are "
            "names, add a line of titles with 'sample' above them"
        )
        raise InputError(msg)
    written = None if text.titles is None else tuple(text.titles[at] for at in columns)
    square = text.n_rows == len(columns)
    rows, titles = _dimnames(names.names, written, square=square)
    if rows is None and titles is None and written is not None and not _counts(written):
        text.notes.append(
            f"{path}: its names of rows and columns only count, as R writes those of a matrix without names; give the "
            "names of the rows in their order with --order FILE (order=)"
        )
    numbers = text.numbers(columns)
    if text.count not in (None, text.n_rows):
        msg = f"{path} states {text.count} rows in its first line, and has {text.n_rows}; it is not whole"
        raise InputError(msg)
    # PHYLIP's distances and TASSEL's kinships are written alike, but for the diagonal.
    holds = "distances" if text.count is not None and square and not numbers[0:1, 0:1].any() else ""
    families = None if rows is None else names.families
    return [_array(text, numbers.shape, lambda: numbers, rows, columns=titles, families=families, holds=holds)]


def _array(
    text: Text, shape: tuple[int, ...], opened: Callable[[], Any], rows: tuple[str, ...] | None, **more: Any
) -> FileArray:
    return FileArray(text.path, "", shape, np.dtype(float), opened, rows=rows, notes=tuple(text.notes), **more)


def _row_names(text: Text) -> RowNames:
    """Return the names of the rows, from a column with a title or from the columns before the numbers."""
    numeric = text.numeric_head()
    if text.titles is not None:
        names = find_names(text, frozenset(text.titles), numeric)
        if names.names is None and text.n_columns == text.n_rows + 1 and 0 not in names.columns:
            return RowNames(tuple(text.texts([0])[0]), None, frozenset([0]))
        return names
    n_names = [*numeric, True].index(True)
    more = text.n_columns - text.n_rows
    if n_names == 0 and more in (1, 2) and _are_whole(text.head_row()[:more]):
        n_names = more
        text.notes.append(
            f"{text.path}: column {n_names} was taken for names of the rows, since as many numbers follow"
        )
    elif n_names == 0 and more == 2 and not numeric[1]:
        n_names = 2
    cells = text.texts(range(n_names))
    if not cells:
        return RowNames()
    of_families = n_names == 2 and not _counts(cells[0]) and not _counts(cells[0], 1)
    return RowNames(tuple(cells[-1]), tuple(cells[0]) if of_families else None, frozenset(range(n_names)))


def _are_whole(cells: Sequence[str]) -> bool:
    return all(re.fullmatch(r"\d+", cell) for cell in cells)


def _counts(names: Sequence[str], first: int = 0, letter: str = "") -> bool:
    return list(names) == [f"{letter}{i + first}" for i in range(len(names))]


def _dimnames(
    rows: tuple[str, ...] | None, columns: tuple[str, ...] | None, *, square: bool
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the names of rows and columns, without those that pandas and R write if there are none.

    R's data frames begin titles with a letter and write a dot for all other signs (make.names).
    """
    if columns is not None and _counts(columns):
        columns = None
    elif columns is not None and (_counts(columns, 1, "V") or _counts(columns, 1, "X")):
        columns, rows = None, None if rows is not None and _counts(rows, 1) else rows
    if rows is not None and _counts(rows):
        rows = None
    if square and rows is not None and columns is not None and set(rows) != set(columns):
        made = {re.sub(r"^(?=[\d_]|\.\d)", "X", re.sub(r"[^\w.]", ".", name)): name for name in rows}
        if set(made) == set(columns):
            columns = tuple(made[title] for title in columns)
    return rows, columns


# --- pairs ---------------------------------------------------------------------------------------------------------


def _pairs_of(text: Text) -> tuple[tuple[str, ...], Index, Index] | None:
    """Return the names, and the positions of both in each row, if a table lists all pairs once or twice."""
    if text.n_columns != 3 or text.n_rows < 4:
        return None
    first, second = text.texts([0, 1])
    names = tuple(dict.fromkeys([*first, *second]))
    n = len(names)
    numeric = all(map(is_number, text.head_row()[:2]))
    # Missing pairs are refused when the matrix is read.
    of_samples = not numeric and 2 * len(set(first).intersection(second)) > n and text.n_rows > 2 * n
    if not of_samples and (text.n_rows not in (n * (n + 1) // 2, n * n) or (n == 3 and numeric)):
        return None
    place = {name: at for at, name in enumerate(names)}
    rows, cols = (np.array([place[name] for name in column], dtype=np.int64) for column in (first, second))
    return names, rows, cols


def matrix_of_pairs(text: Text, rows: Index, cols: Index, n: int, column: int) -> Float:
    """Return the symmetric matrix (n, n) whose entries a column lists, at these positions from 0.

    InputError is raised if an entry is missing.
    """
    check_memory(f"the matrix of {text.path}", 16 * n * n, "save it in a binary format, or allow more")
    values = np.full((n, n), np.nan)
    entries = text.strip(0, text.n_rows, [column])[:, 0]
    values[cols, rows] = entries
    values[rows, cols] = entries
    missing = np.argwhere(np.isnan(values))
    if len(missing):
        i, k = missing[0].tolist()
        msg = f"{text.path} lacks {len(missing)} entries of pairs, the first of rows {i} and {k}; give all"
        raise InputError(msg)
    return values


# --- triangles -----------------------------------------------------------------------------------------------------


def _ragged_matrix(text: Text) -> FileArray:
    """Return a triangle with a line for each row, or a matrix with several lines for each; it is read as a whole.

    PHYLIP's programs wrap rows so, and end rows of distances before the diagonal.
    """
    rows, comma, n = text.ragged(), text.decimal_comma, text.count or 0
    if not text.is_triangle:
        cells = [cell for row in rows for cell in row]
        if len(cells) != n * (n + 1):
            msg = (
                f"{text.path} states {n} rows and holds {len(cells)} cells, expected {n * (n + 1)}: a name and {n} "
                "numbers each"
            )
            raise InputError(msg)
        rows = [cells[start : start + n + 1] for start in range(0, len(cells), n + 1)]
    named = not text.is_triangle or not is_number(rows[-1][0], comma)
    values = matrix_of_rows(text.path, [row[named:] for row in rows], decimal_comma=comma)
    names = tuple(row[0] for row in rows) if named else None
    ends_before = len(rows[0]) == named
    holds = "distances" if ends_before or (not text.is_triangle and values[0, 0] == 0) else ""
    return _array(text, values.shape, lambda: values, names, holds=holds)


def matrix_of_rows(path: Path, rows: Sequence[Sequence[str]], *, decimal_comma: bool = False) -> Float:
    """Return the symmetric matrix whose rows end before the diagonal (which is 0), at it, or are whole.

    InputError is raised if a row has another length, or a cell is no number.
    """
    n = len(rows)
    check_memory(f"the matrix of {path}", 16 * n * n, "save it in a binary format, which is read in parts")
    has_diagonal = bool(n) and len(rows[0]) > 0
    values = np.zeros((n, n))
    for i, row in enumerate(rows):
        if len(row) not in (i + has_diagonal, n):
            msg = (
                f"{path}, row {i + 1}: found {len(row)} numbers, expected {i + has_diagonal}, as far as the "
                f"diagonal, or {n}: one for each of the rows"
            )
            raise InputError(msg)
        with damaged_as(f"expected numbers in {path}, row {i + 1}", ValueError):
            values[i, : len(row)] = [float(cell.replace(",", ".") if decimal_comma else cell) for cell in row]
        if len(row) <= i + 1:
            values[: len(row), i] = values[i, : len(row)]
    return values
