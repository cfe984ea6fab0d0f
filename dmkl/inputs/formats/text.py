"""Kernels and labels in text: delimiters and headers are found out, matrices are read in strips."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import ROLES, FileArray, decompressed, vector, where
from dmkl.inputs.formats.limits import lines_of
from dmkl.inputs.formats.phenotypes import phenotypes
from dmkl.inputs.kernel_sources import Axes
from dmkl.inputs.labels import LabelTable
from dmkl.unknown import UNKNOWN_TEXTS

__all__ = ["TextMatrix", "read_array", "read_table", "text_arrays"]

_COMMENTS = ("#", "%")
_CORNERS = {"", *(name for name, role in ROLES.items() if role == "samples")}
"""What a header has above a column of sample names."""
_HEADERS = {*(name for name, role in ROLES.items() if role != "names"), "class", "classes"}
"""What a header of one word is, above a column of words."""


def text_arrays(path: Path) -> list[FileArray]:
    """The matrix in a text file."""
    layout = _layout(path)
    if not layout.n_cols:
        msg = (
            f"{path} holds {sum(1 for _ in _lines(path))} lines of words and no numbers, expected a matrix; labels and "
            "names of samples are given as such (labels=, samples=, --labels, --samples)"
        )
        raise InputError(msg)

    def matrix() -> TextMatrix:
        return TextMatrix(path, layout)

    shape = (-1, layout.n_cols)
    return [FileArray(path, "", shape, np.dtype(np.float64), matrix, lambda: matrix().whole())]


# --- how a text file is laid out ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """What the first lines tell."""

    delimiter: str | None  # None for any white space
    decimal_comma: bool  # whether numbers are written 0,5
    header: tuple[str, ...] | None  # the cells of the header without its corner; None where there is no header
    row_names: bool  # whether the first column holds names
    told: bool  # whether the header says so; the names may then be numbers
    n_cols: int  # columns of numbers

    def cells(self, line: str) -> list[str]:
        """The cells of a line, without quotes and surrounding blanks."""
        return _cells(line, self.delimiter)

    def is_number(self, cell: str) -> bool:
        """Whether a cell is a number, as this file writes numbers."""
        return _is_number(cell, self.decimal_comma)


def _layout(path: Path) -> Layout:
    lines = list(islice(_lines(path), 2))
    if not lines:
        msg = f"{path} holds no lines, expected a matrix"
        raise InputError(msg)
    # The header may hold any words; the last of the first lines is one of numbers.
    delimiter, comma = _delimiter(lines[-1][2])
    first, second = _cells(lines[0][2], delimiter), _cells(lines[-1][2], delimiter)

    def is_number(cell: str) -> bool:
        return _is_number(cell, comma)

    words = [not is_number(cell) for cell in first]
    # As R writes it: no cell above the names of the rows, and words, or numbers in quotes, above the others.
    no_corner = len(second) == len(first) + 1 and (all(words) or '"' in lines[0][2])
    has_corner = len(first) > 1 and first[0].casefold() in _CORNERS
    is_header = len(lines) == 2 and (no_corner or has_corner or any(words[1:]) or (words[0] and is_number(second[0])))
    if not is_header:
        return Layout(delimiter, comma, None, words[0], has_corner, len(first) - words[0])
    row_names = no_corner or has_corner or not is_number(second[0])
    header = first[1:] if row_names and not no_corner else first
    n_cols = len(second) - row_names
    if len(header) != n_cols:
        msg = (
            f"{path}, line {lines[0][0]}: the header names {len(header)} columns, but line {lines[1][0]} has "
            f"{n_cols} numbers; every row of a matrix must be as long"
        )
        raise InputError(msg)
    return Layout(delimiter, comma, tuple(header), row_names, no_corner or has_corner, n_cols)


def _lines(path: Path) -> Iterator[tuple[int, int, str]]:
    """(line number from 1, position in bytes, text) of every line that is neither blank nor a comment."""
    position = 0
    try:
        with decompressed(path) as file:
            for number, raw in enumerate(lines_of(path, file), start=1):
                if b"\0" in raw:
                    msg = f"{path} is no text: line {number} holds a zero byte"
                    raise InputError(msg)
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                if text.strip() and not text.lstrip().startswith(_COMMENTS):
                    yield number, position, text
                position += len(raw)
    except UnicodeDecodeError as error:
        msg = f"{path} is not written in UTF-8: {error}; save it as UTF-8"
        raise InputError(msg) from error


def _delimiter(line: str) -> tuple[str | None, bool]:
    """What parts the cells of a line of numbers (None: white space), and whether numbers are written 0,5."""
    marks = [mark for mark in "\t;," if mark in line]
    for mark in (*marks, None):
        for comma in (False, True) if mark != "," else (False,):
            cells = _cells(line, mark)
            if len(cells) > 1 and all(_is_number(cell, comma) for cell in cells[1:]):
                return mark, comma
    return (marks[0] if marks else None), False


def _cells(line: str, delimiter: str | None) -> list[str]:
    if '"' not in line:
        cells = line.split(delimiter)
    elif delimiter is None:
        cells = next(csv.reader([" ".join(line.split())], delimiter=" "))
    else:
        cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    # Some programs end each line with the delimiter too.
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return [cell.strip() for cell in cells]


def _is_number(cell: str, decimal_comma: bool) -> bool:
    try:
        float(cell.replace(",", ".") if decimal_comma else cell)
    except ValueError:
        return False
    return "_" not in cell  # which Python takes for a separator of thousands


# --- matrices -----------------------------------------------------------------------------------------------


class TextMatrix:
    """A matrix in a text file: one pass finds where its lines begin, then strips of rows are read."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self.layout = path, layout
        starts, numbers, names = [], [], []
        for number, position, line in _lines(path):
            starts.append(position)
            numbers.append(number)
            if layout.row_names:
                # Of a long line only the first cell: the limit leaves the others in one piece.
                names.append(_first_cell(line, layout.delimiter))
        skip = 1 if layout.header is not None else self._counting_header(starts)
        self._starts, self._numbers = starts[skip:], numbers[skip:]
        self.row_names: list[str] | None = names[skip:] if layout.row_names else None
        self.shape: tuple[int, ...] = (len(self._starts), layout.n_cols)
        self.dtype: np.dtype[Any] = np.dtype(np.float64)
        self._check_guesses(numbers[0])

    def _check_guesses(self, first_line: int) -> None:
        """Refuse a file that may as well be a matrix with a bad cell: no row or column is left out unasked."""
        header = self.layout.header or ()
        numeric = [self.layout.is_number(cell) for cell in header]
        if any(numeric) and not all(numeric) and not self.layout.told and self.shape[0] != self.shape[1]:
            column = numeric.index(False) + 1 + self.layout.row_names
            msg = (
                f"{self.path}, line {first_line}, column {column}: {header[numeric.index(False)]!r:.60} is "
                "not a number; if the line is a header, name the first column 'sample'"
            )
            raise InputError(msg)
        names = self.row_names or []
        numeric = [self.layout.is_number(name) for name in names]
        if any(numeric) and not self.layout.told:
            at = numeric.index(False) if False in numeric else 0
            msg = (
                f"{self.path}, line {self._numbers[at]}, column 1: {names[at]!r:.60} is not a number, others "
                "in this column are; if they are names, add a header that calls the column 'sample'"
            )
            raise InputError(msg)

    def _counting_header(self, starts: Sequence[int]) -> int:
        """1 where the first line counts the columns of a square matrix (0, 1, 2 …), as in pandas, else 0."""
        if self.layout.row_names or len(starts) != self.layout.n_cols + 1:
            return 0
        first = self.layout.cells(next(_lines(self.path))[2])
        return int(first == [str(position) for position in range(len(first))])

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        rows, cols = key
        start, stop, _ = rows.indices(self.shape[0])
        if start >= stop:
            return np.empty((0, self.shape[1]))[:, cols]
        try:
            strip = np.loadtxt(self._numbers_of(start, stop), delimiter=self.layout.delimiter, comments=None, ndmin=2)
        except ValueError as error:
            self._blame(start, stop, error)
        if strip.shape != (stop - start, self.shape[1]):
            self._blame(start, stop, None)
        return np.asarray(strip)[:, cols]

    def axes(self) -> Axes:
        """The names of its rows and columns; those that pandas writes for a data frame without names are none."""
        header = self.layout.header
        rows, cols = (None if names is None else tuple(names) for names in (self.row_names, header))
        counts = [tuple(map(str, range(length))) for length in self.shape]
        square = self.shape[0] == self.shape[1]
        return Axes(None if rows == counts[0] else rows, None if cols == counts[1] else cols, square)

    def whole(self) -> Array:
        """All of it."""
        return self[: self.shape[0], : self.shape[1]]

    def _raw(self, start: int, stop: int) -> Iterator[str]:
        wanted = set(self._numbers[start:stop])
        with decompressed(self.path) as file:  # its lines are known by now
            file.seek(self._starts[start])
            number = self._numbers[start]
            while wanted:
                raw = file.readline()
                if number in wanted:
                    wanted.remove(number)
                    yield raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                number += 1

    def _numbers_of(self, start: int, stop: int) -> Iterator[str]:
        delimiter = self.layout.delimiter
        for line in self._raw(start, stop):
            text = line.replace('"', "") if not self.layout.row_names else _after_first_cell(line, delimiter)
            if self.layout.decimal_comma:
                text = text.replace(",", ".")
            yield text if delimiter is None else text.rstrip().removesuffix(delimiter)

    def _blame(self, start: int, stop: int, error: Exception | None) -> NoReturn:
        """Name the line and column that cannot be read."""
        expected = self.layout.n_cols + self.layout.row_names
        for number, line in zip(self._numbers[start:stop], self._raw(start, stop), strict=True):
            cells = self.layout.cells(line)
            if len(cells) != expected:
                msg = (
                    f"{self.path}, line {number}: found {len(cells)} cells, expected {expected} as in the "
                    "first lines; every row of a matrix must be as long"
                )
                raise InputError(msg) from error
            for column, cell in enumerate(cells, start=1):
                if column > self.layout.row_names and not self.layout.is_number(cell):
                    msg = f"{self.path}, line {number}, column {column}: {cell!r:.60} is not a number"
                    raise InputError(msg) from error
        msg = f"{self.path} cannot be read as numbers: {error}"
        raise InputError(msg) from error


def _first_cell(line: str, delimiter: str | None) -> str:
    text = line.lstrip()
    if text.startswith('"'):
        end = text.find('"', 1)
        return text[1:end]
    return text.split(delimiter, 1)[0].strip()


def _after_first_cell(line: str, delimiter: str | None) -> str:
    text = line.lstrip() if delimiter is None else line
    end = 0
    if text.lstrip().startswith('"'):
        end = text.find('"', text.find('"') + 1)
    parts = text[end:].split(delimiter, 1)
    return parts[1].replace('"', "") if len(parts) == 2 else ""


# --- labels, names and splits -------------------------------------------------------------------------------


def read_array(variable: FileArray, samples: tuple[str, ...] | None = None) -> LabelTable:
    """The values of an array of a file; `samples` are the names of its rows, where it has none of its own.

    A cell array of equal vectors, such as the labels of each view, is read as one of them.
    """
    parts = [part.read()[...] for part in variable.views] or [variable.read()]
    values = [vector(part, where(variable)) for part in parts]
    if any(not np.array_equal(other, values[0]) for other in values[1:]):
        msg = f"{where(variable)} is a cell array of parts that differ, expected equal vectors; save the one that holds"
        raise InputError(msg)
    return LabelTable(values[0], samples if variable.rows is None else variable.rows)


def read_table(path: Path, column: str | None = None) -> LabelTable:
    """A text file of labels, names or splits: one value a line, or a line of values, or a table or a column of one.

    The first column of a table holds the samples' names where it holds words, or where the header says so. Lines of
    FID, IID and values are geneticists' (see `dmkl.inputs.formats.phenotypes`).
    """
    lines = list(_lines(path))
    if not lines:
        msg = f"{path} holds no lines, expected values"
        raise InputError(msg)
    texts = [text for _, _, text in lines]
    found = phenotypes(path, texts)
    if found is not None:
        return found if column is None else _column(path, found, column)
    delimiter = _table_delimiter(texts)
    # Names may hold blanks; blanks part the cells where all that they part are numbers.
    rows = (
        [[text.strip().strip('"')] for text in texts]
        if delimiter == ""
        else [_cells(text, delimiter) for text in texts]
    )
    width = max(map(len, rows))
    for (number, _, text), row in zip(lines, rows, strict=True):
        if delimiter and len(row) == width - 1 and text.rstrip(" ").endswith(delimiter):
            row.append("")  # a value that is missing at the end of its line
        if len(row) != width:
            msg = f"{path}, line {number}: found {len(row)} cells, expected {width} as in other lines"
            raise InputError(msg)
    columns: tuple[str, ...] | None = None
    if column is not None or _has_header(rows):
        columns = tuple(rows.pop(0))
    row_names: tuple[str, ...] | None = None
    unique = len({row[0] for row in rows}) == len(rows)
    # Labels of several columns are numbers, so words beside numbers are classes beside names.
    words = not all(_are_numbers(column) for column in zip(*rows, strict=True))
    if (
        len(rows[0]) > 1
        and len(rows) > 1
        and unique
        and (words or (columns is not None and columns[0].casefold() in _CORNERS))
    ):
        row_names = tuple(row[0] for row in rows)
        rows = [row[1:] for row in rows]
        columns = None if columns is None else columns[1:]
    if column is not None:
        at = _place(path, columns or (), column)
        rows = [[row[at]] for row in rows]
        columns = None
    cells = np.array(rows, dtype=str)
    if all(_are_numbers(column) for column in zip(*rows, strict=True)):
        cells = np.where(np.isin(cells, list(UNKNOWN_TEXTS)), "nan", cells).astype(np.float64)
    return LabelTable(vector(cells, str(path)), row_names, columns)


def _place(path: Path, columns: Sequence[str], column: str) -> int:
    if column not in columns:
        msg = f"{path} has no column {column!r}; it has {', '.join(map(repr, columns[:12])) or 'none'}"
        raise InputError(msg)
    return columns.index(column)


def _column(path: Path, table: LabelTable, column: str) -> LabelTable:
    at = _place(path, table.columns or (), column)
    return LabelTable(table.values[:, at], table.row_names)


def _table_delimiter(texts: Sequence[str]) -> str | None:
    """The delimiter, None for white space, or "" where each line is one value."""
    last = texts[-1]
    marks = [mark for mark in "\t;," if mark in last]
    if marks:
        return marks[0]
    parts = last.split()
    return None if len(parts) > 1 and all(_is_number(part, False) for part in parts) else ""


def _has_header(rows: Sequence[Sequence[str]]) -> bool:
    if len(rows) < 2:
        return False
    first = rows[0]
    if first[0].casefold() in _CORNERS and len(first) > 1:
        return True
    if len(first) == 1 and first[0].casefold() in _HEADERS:
        return True
    # Words above a column of numbers.
    return any(
        not _is_number(cell, False) and cell not in UNKNOWN_TEXTS and _are_numbers(row[column] for row in rows[1:])
        for column, cell in enumerate(first)
    )


def _are_numbers(cells: Iterable[str]) -> bool:
    """Whether cells are numbers, as far as they are known."""
    return all(cell in UNKNOWN_TEXTS or _is_number(cell, False) for cell in cells)
