"""Tables in text and Parquet: delimiter and titles are detected, and numbers are read a strip of rows at a time."""

from __future__ import annotations

import codecs
import csv
import io
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np

from dmkl import settings
from dmkl.arrays import UNKNOWN_TEXTS, Array, Float, Lazy, is_numeral
from dmkl.errors import damaged_as, needing, refuse
from dmkl.inputs.columns import (
    Columns,
    are_numbers,
    counts,
    is_number,
    is_title,
    matched_share,
    name_rows,
    without_codes,
)
from dmkl.inputs.formats.compressed import COMPRESSED, content_name, stream
from dmkl.names import Expected, Names, listed_names
from dmkl.settings import check_memory

if TYPE_CHECKING:
    import pandas as pd

FAM_TITLES = ("FID", "IID", "PAT", "MAT", "SEX", "PHENO")
"""The columns of PLINK's .fam files, which have no titles."""
_HEAD_LINES, _HEAD_CHARACTERS = 40, 2**20
"""Lines from which the layout is detected, and the number of characters after which no more are read."""
_STRIP_CELLS = 2**21  # Cells that are in memory at a time while columns of numbers are detected.
_CHUNK_ROWS = 256  # Rows between two requested rows that are read along with them, since seeking costs more.
_LINE_BYTES, _CELL_BYTES = 2**20, 128
"""Lines up to this length are cut into cells without a check of memory, and the memory that a cell takes at most as a
Python string and in lists, in addition to its characters."""
_TEXT_BYTES = 58  # Memory of a short Python string and its place in a list.
_ROWS_CHECKED = 2**18  # Rows after which the memory of their positions is checked again.
_PARQUET_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Memory of a value of a fixed length; a few bytes of a file may stand for millions of equal ones."""
_FEWER = "write fewer rows or columns, or the columns of numbers as .npy, which is read in parts"
_ALLOW = "write fewer rows, or allow more"
_MARKS = "\t;,|"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COMMENTS = ("#", "%")
_TYPES = re.compile(r"(?i)id_1[ \t]+id_2[ \t]+missing.*\n0[ \t]+0[ \t]+0([ \t]+[dcpb])*\s*|.+\n#q2:types\t.*")
"""Titles and types of the columns in Oxford's .sample and in QIIME 2."""
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
_TRUTH = {word: value for name, value in (("false", "0"), ("true", "1")) for word in (name, name.title(), name.upper())}


class Text(Columns):
    """A text file whose lines are rows of cells (see `dmkl.inputs.columns.Columns`).

    Only the first lines may be something else: ``sep=;`` as Excel writes it, comments (``#``, ``%``), the number of
    rows alone (TASSEL, PHYLIP), one line of titles, and one of types (Oxford's .sample, QIIME 2). Numbers may have
    decimal commas if cells have another delimiter. Rows of empty cells, which spreadsheets write for rows that were
    emptied, are left out of a table that names its rows; in others they count. `notes` hold the lines that were taken
    for titles or comments, if that is uncertain, `categories` the titles of columns whose type is discrete.
    """

    titles: Names = None  # "" above the names of the rows, where R writes none
    _unpacked: IO[bytes] | None = None
    _trailing = False  # whether delimiters end the rows
    _filled: Sequence[Sequence[str]] | None = None  # the first rows with a value, once the titles are known

    def __init__(self, path: Path, expected: Expected = None, title: str | None = None) -> None:
        self.path, self.where, self._has_codes = path, str(path), bool(settings.get("unknown"))
        self.index, self.notes, self.categories = None, [], set[str]()
        self.count: int | None = None  # the number of rows that the file states in a line of its own
        lines, size = [], 0  # the first ones that are not blank, as (number from 1, text)
        for number, _, text in lines_of(path):
            lines += [(number, text)] if text.strip() else []
            size += len(text)
            if len(lines) > 3 and (len(lines) >= _HEAD_LINES or size > _HEAD_CHARACTERS):
                break
        if not lines:
            refuse(f"{path} holds no lines, expected a table")
        at = next((k for k in range(1, len(lines) - 1) if _TYPES.fullmatch(f"{lines[k - 1][1]}\n{lines[k][1]}")), 0)
        types = lines.pop(at) if at else (0, "")  # a line below the titles
        separator = re.fullmatch(r'"?sep=(.)"?', lines[0][1])
        comments, rest = [], lines[1:] if separator else lines
        while rest and ((is_count := self._is_count(rest)) or _is_comment(rest[0][1], expected)):
            if is_count:
                self.count = int(rest[0][1])
            comments += [] if is_count else rest[:1]
            rest = rest[1:]
        # A file of comments alone holds rows that begin so.
        rest, comments = (rest, comments) if rest else (lines, [])
        texts = [text for _, text in rest if not _is_comment(text, expected)] or [text for _, text in rest]
        self.delimiter = separator[1] if separator else _delimiter(texts, expected)
        cells = [cell for text in texts[1:] or texts for cell in _cells(text, self.delimiter)]
        has_commas = self.delimiter != "," and any(map(_DECIMAL_COMMA.fullmatch, cells))
        self.decimal_comma = has_commas and not any("." in cell and is_numeral(cell) for cell in cells)
        # The most frequent number of cells after the first row; in a tie that of the first row, or the larger.
        first, *others = (len(self._split(text)) for text in texts)
        times = Counter(others or [first])
        self.n_columns = max(times, key=lambda length: (times[length], length == first, length))
        head = [(number, text) for number, text in rest if self._is_row(text)]
        rows = [self._split(text) for _, text in head]
        steps = np.diff([len(cells) for cells in rows])
        self.is_triangle = len(rows) > 2 and set(steps.tolist()) == {1}
        self._trailing = self.n_columns > 1 and all(not row[-1] for row in rows if len(row) == self.n_columns)
        self.n_columns -= self._trailing
        rows = [row[:-1] if self._trailing and not row[-1] else row for row in rows]
        self._first, is_taken = head[0][0], self._take_titles_of(comments)
        filled = [row for row in rows if any(row)] if any(rows[0]) else rows
        has_titles, doubtful = (False, False) if is_taken else self._find_titles(filled, head[0], expected, title)
        self._expected = expected
        self._filled = [row for row in filled[has_titles:] if len(row) == self.n_columns > 1]
        rows = filled if len(filled) < len(rows) and self._has_names else rows
        for comment in comments[:3]:
            self._note(*comment, "a comment")
        self._begin = max(self._first + has_titles, types[0] + 1)  # the number of the line after titles
        if at:
            if not self.titles:
                refuse(f"{path}, line {types[0]} names the types of columns; expected titles above it, and rows below")
            kinds = zip(self.titles, self._split(types[1]), strict=False)
            self.categories = {title for title, kind in kinds if kind in ("D", "categorical")}
            self.titles = ("FID", "IID", *self.titles[2:]) if self.titles[1].lower() == "id_2" else self.titles
        self.first_rows = rows[has_titles:]
        if self.n_columns == len(FAM_TITLES) and content_name(path.name).endswith(".fam"):
            self.titles = self.titles or FAM_TITLES
        # Titles that may be a row are taken if each has a row, of the same name if the first column holds names.
        more = len(rows[0]) - self.n_rows if doubtful else 0
        if doubtful and (more not in (0, 1) or (more == 1 and set(self.texts([0])[0]) != set(rows[0][1:]))):
            self.refuse_first_line(rows[0])

    def refuse_first_line(self, cells: Sequence[str]) -> NoReturn:
        """Refuse a first line of words and numbers: a row that is taken for titles would not be missed."""
        what = f"{self.path}, line {self._first}: found words and numbers ({listed_names(cells)})"
        way_out = "title the first column 'sample' if it holds titles, add a line of titles if it does not"
        refuse(f"{what}, so it may hold titles or be a row; {way_out}")

    @cached_property
    def _lines(self) -> tuple[array[int], array[int], bool]:
        """The positions of the rows in the file and their line numbers, and whether other lines are among them."""
        starts, numbers, has_comments, n_empty = array("q"), array("q"), False, 0
        for number, position, text in lines_of(self.path):
            if number < self._begin or not text.strip():
                continue
            if self._is_row(text):
                starts.append(position)
                numbers.append(number)
                if len(starts) % _ROWS_CHECKED == 0:
                    check_memory(f"the positions of the rows of {self.path}", 16 * len(starts), _ALLOW)
                continue
            if not self._is_empty(text):
                self._note(number, text, "a comment")
            elif not n_empty:
                self._note(number, text, "no row, like all others of empty cells")
            n_empty += self._is_empty(text)
            has_comments = True
        return starts, numbers, has_comments

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        """The number of rows."""
        return len(self._lines[0])

    @property
    def is_ragged(self) -> bool:
        """Whether rows of a matrix differ in length: those of a triangle, or of more lines than one (PHYLIP)."""
        return self.is_triangle or (self.count is not None and self.n_rows > self.count)

    def _is_row(self, text: str) -> bool:
        """Whether a line is no comment: a line that begins so is a row if it has the usual number of cells."""
        is_comment = text.lstrip().startswith(_COMMENTS)
        is_row = not is_comment or len(self._split(text)) - self._trailing == self.n_columns
        return is_row and not (self._filled is not None and self._is_empty(text) and self._has_names)

    @cached_property
    def _has_names(self) -> bool:
        """Whether a column names the rows, so that a row of empty cells is none."""
        return bool(self.delimiter and self._filled) and name_rows(self.titles, self._filled or (), self._expected)

    def _is_empty(self, text: str) -> bool:
        """Whether a line has delimiters and nothing between them."""
        return not text.strip(f'{self.delimiter or ""}" \t')

    def _is_count(self, lines: Sequence[tuple[int, str]]) -> bool:
        """Whether the first of some lines states the number of rows."""
        # The first row of PHYLIP's triangles is only a name; a triangle of numbers may begin with its entry 0 or 1.
        has_cells = any(len(re.split(r"[\s,;]+", text.strip())) > 1 for _, text in lines[1:3])
        first = lines[0][1].strip()
        return self.count is None and first.isdecimal() and first not in ("0", "1") and has_cells

    def _take_titles_of(self, comments: list[tuple[int, str]]) -> bool:
        """Take the titles from the last comment, which is removed from the list, if it holds them."""
        number, text = comments[-1] if comments else (0, "")
        cells = self._split(text.lstrip().lstrip("#%").lstrip())
        are_titles = any(map(is_title, cells)) or re.match(r"\s*[#%]+\w", text)
        if not comments or len(cells) != self.n_columns or not are_titles:
            return False
        del comments[-1]
        self.titles = tuple(cells)
        self._note(number, text, "titles of the columns")
        return True

    def _find_titles(
        self, rows: Sequence[Sequence[str]], line: tuple[int, str], expected: Expected, title: str | None
    ) -> tuple[bool, bool]:
        """Take the titles from the first row if it holds them; returns whether it does, and is doubtful."""
        first, body, (number, text) = rows[0], rows[1:], line
        if not body or self.is_triangle or self.count is not None:
            return False, False
        if len(first) == self.n_columns - 1 >= 1 and (
            not any(map(is_numeral, first))
            or (all(cell.isdecimal() for cell in first) and set(first) >= {row[0] for row in body})
            or '"' in text
        ):
            first = ["", *first]  # R writes no title above the names of the rows
            self._refuse_decimals(body)
        columns = list(zip(*(row for row in body if len(row) == self.n_columns), strict=True))
        certain = first[0] == "" or title in first or _has_title(first, columns)
        if not certain and not _is_header(first, columns, expected, self.decimal_comma):
            return False, False
        if len(first) != self.n_columns:
            expected_titles = f"expected {len(body[0])} as in the next line"
            refuse(f"{self.path}, line {number}: found {len(first)} titles, {expected_titles}")
        self.titles = tuple(first)
        numerals = sum(map(is_numeral, first))
        if not certain and (numerals or not any(map(are_numbers, columns))):
            self._note(number, ", ".join(first), "titles of the columns")
        return True, not certain and 0 < numerals < len(first)

    def _refuse_decimals(self, rows: Sequence[Sequence[str]]) -> None:
        """Refuse a column of numbers with decimal commas, which looks like names of rows and a column of numbers."""
        pairs = [row for row in rows if len(row) == 2]
        are_decimal = self.delimiter == "," and all(_DECIMAL_COMMA.fullmatch(",".join(pair)) for pair in pairs)
        names = [name for name, _ in pairs] if are_decimal else []
        # Names of rows are unique, and not negative; whole numbers do not begin with 0.
        odd = len(set(names)) < len(names) or any(a[:1] == "-" or re.match(r"0\d", b) for a, b in pairs)
        if names and odd and not counts(names, 1):
            what = f"{self.path}: lines such as {','.join(pairs[0])!r} may be numbers with decimal commas"
            refuse(f"{what}, or names and numbers; write decimal points, or a title above the names too")

    def take_first_row_as_titles(self) -> None:
        """Take the first row for titles of the columns, which the shape of the table shows."""
        self.titles = tuple(self.head_row())
        starts, numbers, _ = self._lines
        self._note(numbers[0], " ".join(self.titles), "titles of the columns, since one row follows for each")
        del starts[0], numbers[0]

    def head_row(self) -> Sequence[str]:
        """Return the cells of the first row; the titles if no row follows."""
        return next(self._rows(0, 1))[1] if self.n_rows else self.titles or ()

    def _note(self, number: int, text: str, what: str) -> None:
        self.notes.append(f"{self.path}, line {number} ({text.strip()!r:.60}) was taken for {what}")

    def _split(self, text: str) -> list[str]:
        cells = _cells(text, self.delimiter)
        return without_codes(cells).tolist() if self._has_codes else cells

    def texts(self, columns: Sequence[int]) -> list[list[str]]:
        """Return the cells of some columns as they are written."""
        check_memory(f"the cells of {self.path}", _TEXT_BYTES * self.n_rows * len(columns), _ALLOW)
        texts: list[list[str]] = [[] for _ in columns]
        for _, cells in self._rows(0, self.n_rows) if columns else ():
            for column, at in zip(texts, columns, strict=True):
                column.append(cells[at])
        return texts

    def values(self, columns: Sequence[int]) -> Array:
        """Return some columns as one array (rows, columns) of numbers or words."""
        texts = self.texts(columns)
        for column in texts if self.decimal_comma else ():
            if are_numbers(column, comma=True):
                column[:] = [cell.replace(",", ".") for cell in column]
        longest = max((len(cell) for column in texts for cell in column), default=0)
        check_memory(f"the cells of {self.path}", 4 * longest * self.n_rows * len(columns), _ALLOW)
        cells = np.array(texts, dtype=str).T
        # Codes such as 01 are words, since 1 may be another code.
        if any(re.fullmatch(r"[-+]?0\d+", cell) for cell in cells.ravel()) or not all(map(are_numbers, texts)):
            return cells
        return np.where(np.isin(cells, list(UNKNOWN_TEXTS)), "nan", cells).astype(np.float64)

    def ragged(self) -> list[list[str]]:
        """Return the cells of all rows, which may differ in length."""
        check_memory(f"the cells of {self.path}", 8 * self._lines[0][-1], "allow more")
        return [cells for _, cells in self._cells_of(0, self.n_rows)]

    def _cells_of(self, start: int, stop: int) -> Iterator[tuple[int, list[str]]]:
        """Return the line numbers, from 1, and the cells of some rows."""
        _, numbers, has_comments = self._lines
        step = max(1, _STRIP_CELLS // self.n_columns)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            lines = [line.strip("\r") for line in self._bytes(first, last).decode().split("\n") if line.strip()]
            lines = list(filter(self._is_row, lines)) if has_comments else lines
            yield from zip(numbers[first:last], map(self._split, lines), strict=True)

    def _rows(self, start: int, stop: int) -> Iterator[tuple[int, list[str]]]:
        """Return the line numbers and the cells of some rows, as many as the columns."""
        for number, cells in self._cells_of(start, stop):
            if self._trailing and len(cells) == self.n_columns + 1 and not cells[-1]:
                del cells[-1]
            if len(cells) == self.n_columns - 1 and self.delimiter is None and self.n_columns == 2:
                cells.append("")  # a missing value
            if len(cells) != self.n_columns:
                hint = "; numbers with decimal commas need tabs or semicolons between cells" * (self.delimiter == ",")
                expected = f"{self.n_columns} as in the first lines; every row of a table must be as long{hint}"
                refuse(f"{self.path}, line {number}: found {len(cells)} cells, expected {expected}")
            yield number, cells

    @cached_property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers, truth values or nothing."""
        numeric = [self._is_number(cell) for cell in self.head_row()]
        for start in range(0, self.n_rows, step := max(1, _STRIP_CELLS // self.n_columns)):
            stop = min(start + step, self.n_rows)
            columns = [at for at in range(self.n_columns) if numeric[at]]
            if columns and self._numbers_in(start, stop, columns) is None:
                for _, cells in self._rows(start, stop):
                    numeric = [is_numeric and self._is_number(cells[at]) for at, is_numeric in enumerate(numeric)]
        return numeric

    def numbers(self, columns: Sequence[int]) -> Lazy:
        """Return some columns as a matrix of float64, read in strips of rows."""

        def part(key: tuple[Any, Any]) -> Array:
            wanted = np.arange(self.n_rows)[key[0]]
            start, stop = (int(wanted.min()), int(wanted.max()) + 1) if len(wanted) else (0, 0)
            return np.asarray(self._strip(start, stop, columns)[wanted - start][:, key[1]])

        shape, chunks = (self.n_rows, len(columns)), (_CHUNK_ROWS, len(columns))  # neighboring rows are read together
        return Lazy(shape, np.float64, part, chunks)

    def _strip(self, start: int, stop: int, columns: Sequence[int]) -> Float:
        """Read some columns of some rows, (rows, columns)."""
        values = self._numbers_in(start, stop, columns) if stop > start else None
        if values is not None:
            return values
        values = np.empty((stop - start, len(columns)))
        for row, (number, cells) in enumerate(self._rows(start, stop)):
            try:
                values[row] = [self._float(cells[at]) for at in columns]
            except ValueError as error:
                at = next(at for at in columns if not self._is_number(cells[at]))
                refuse(f"{self.path}, line {number}, column {at + 1}: {cells[at]!r:.60} is not a number", error)
        return values

    def _float(self, cell: str) -> float:
        if cell in UNKNOWN_TEXTS:
            return np.nan
        number = cell.replace(",", ".") if self.decimal_comma else cell
        return float(_TRUTH.get(number, "no number" if "_" in number else number))

    def _is_number(self, cell: str) -> bool:
        return cell in _TRUTH or is_number(cell, self.decimal_comma)

    def _numbers_in(self, start: int, stop: int, columns: Sequence[int]) -> Float | None:
        """Read numbers by NumPy, which is fast; None if the lines differ in length or have other cells."""
        delimiter, n_rows = self.delimiter, stop - start
        raw = self._bytes(start, stop)
        n_cells = len(raw.split()) if delimiter is None else raw.count(delimiter.encode()) + n_rows if delimiter else 0
        if n_cells != n_rows * (self.n_columns + self._trailing) or self._lines[2] or self._has_codes:
            return None
        text = io.StringIO(raw.decode().replace(",", ".") if self.decimal_comma else raw.decode())
        quote = '"' if b'"' in raw else None
        with suppress(ValueError):
            values = np.loadtxt(text, float, None, delimiter, usecols=columns, ndmin=2, quotechar=quote)
            return values if values.shape == (n_rows, len(columns)) else None
        return None

    def _bytes(self, start: int, stop: int) -> bytes:
        """Read the lines of some rows, with the blank lines and comments between them."""
        with ExitStack() as stack:
            file = self._unpacked or stack.enter_context(_opened(self.path))
            if self._unpacked is None and self.path.suffix.lower() in COMPRESSED:
                # It stays open with the table: opening it again would unpack it from the beginning.
                self._open, self._unpacked = stack.pop_all(), file
            starts, *_ = self._lines
            file.seek(starts[start])
            return file.read(starts[stop] - starts[start] if stop < len(starts) else -1)

    def read_frame(self, texts: Sequence[int], numbers: Sequence[int]) -> pd.DataFrame:
        """Read some columns of words and of numbers by pandas, which is fast; rows that are too short end in NaN."""
        import pandas as pd

        kinds: dict[int, Any] = {**dict.fromkeys(texts, str), **dict.fromkeys(numbers, np.float64)}
        how: dict[str, Any] = {"sep": self.delimiter or r"\s+", "decimal": "," if self.decimal_comma else "."}
        how |= {"header": None, "skiprows": self._begin - 1, "usecols": list(kinds), "dtype": kinds}
        unknown = [*UNKNOWN_TEXTS, *settings.get("unknown")]
        how |= {"keep_default_na": False, "na_values": dict.fromkeys(numbers, unknown)}
        parts, n_rows = [], 0
        with damaged_as(f"{self.path} cannot be read as a table", Exception), _opened(self.path) as file:
            for part in pd.read_csv(file, chunksize=_ROWS_CHECKED, skipinitialspace=True, **how):
                parts.append(part)
                n_rows += len(part)
                needed = file.tell() + n_rows * (_TEXT_BYTES * len(texts) + 8 * len(numbers))
                check_memory(f"the cells of {self.path}", 2 * needed, _ALLOW)
        frame = pd.concat(parts, ignore_index=True)
        if len(frame.columns) < len(kinds):
            refuse(f"{self.path}, line {self._begin}: found {frame.shape[1]} cells, expected more")
        return frame


def parquet_columns(path: Path, expected: Expected = None, title: str | None = None) -> Columns:
    """Read the table in a Parquet file as a whole; needs pyarrow."""
    import pandas as pd

    # pyarrow and pandas raise many exceptions.
    with damaged_as(f"{path} cannot be read as a table", Exception), needing("pyarrow", f"{path} is read with"):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            metadata, n_bytes = file.metadata, 0
        columns = [metadata.schema.column(k) for k in range(metadata.num_columns)]
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            n_bytes += group.total_byte_size
            for k, column in enumerate(columns):
                width = _PARQUET_BYTES.get(column.physical_type, max(column.length, 8))
                n_bytes += width * max(group.column(k).num_values, group.num_rows)
        check_memory(f"the table in {path}", 2 * n_bytes, f"{_FEWER}, or allow more")  # twice while it is read
        # A text that is repeated is in memory once, as in the file.
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY" and "." not in column.path]
        return Columns(str(path), pd.read_parquet(path, engine="pyarrow", read_dictionary=texts))


def looks_like_text(path: Path) -> bool:
    """Whether a file begins as text does."""
    if not path.is_file():
        return False
    with stream(path) as file:
        begin = file.read(2**12)
    text = begin.decode(errors="ignore")  # the last character may be cut
    is_utf8 = len(text.encode()) > len(begin) - 4 and all(c.isprintable() or c.isspace() for c in text)
    return begin[:2] in _UTF16 or (is_utf8 and bool(text.strip()))


def _is_comment(text: str, expected: Expected) -> bool:
    """Whether a line begins as comments do, and not with a name that is known."""
    first = re.split(r"[\t;, ]", text.lstrip(), maxsplit=1)[0].strip('"')
    return text.lstrip().startswith(_COMMENTS) and not (expected and first in expected)


def _is_header(first: Sequence[str], columns: Sequence[Sequence[str]], expected: Expected, comma: bool) -> bool:
    if counts(first) and len(first) > 1:
        # As pandas names columns, unless these are tasks of 0 and 1.
        return len(first) > 2 or not all(cell in ("0", "1", "-1", "NA", "") for cells in columns for cell in cells)
    return any(
        # Words above a column of numbers, or a word above all names.
        (cell and not is_number(cell, comma) and are_numbers(column, comma))
        or (matched_share(column, expected) == 1 and cell not in (expected or ()))
        for cell, column in zip(first, columns, strict=False)
    )


def _has_title(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Whether a cell of the first line is a title, and no value of its column."""
    return any(is_title(cell) and cell not in column for cell, column in zip(first, columns, strict=False))


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file in UTF-8; one in UTF-16, as Excel writes it, is converted in memory, and .zst unpacked there."""
    with stream(path) as file:
        mark, can_seek = file.read(2), path.suffix.lower() != ".zst"
        if mark not in _UTF16 and can_seek:
            file.seek(0)
            yield file
            return
        most = settings.memory_budget_bytes() // 4
        raw = mark + file.read(most + 1)  # a file that is compressed may unpack to anything
        what = f"{path} in {'UTF-16' if can_seek else 'memory'}"
        check_memory(what, 4 * len(raw), "save it as UTF-8, or with gzip, or allow more")
        with damaged_as(f"{path} is not written in UTF-16", UnicodeDecodeError):
            text = raw.decode("utf-16").encode("utf-8", "surrogatepass") if mark in _UTF16 else raw
        yield io.BytesIO(text)


def lines_of(path: Path) -> Iterator[tuple[int, int, str]]:
    """Return (line number from 1, position in bytes, text) of every line; one too long for memory is refused."""
    position, most = 0, settings.memory_budget_bytes() // 4
    with damaged_as(f"{path} is not written in UTF-8; save it as UTF-8", UnicodeDecodeError), _opened(path) as file:
        for number, raw in enumerate(iter(partial(file.readline, most + 1), b""), start=1):
            if len(raw) > _LINE_BYTES:
                cells = 1 + max(raw.count(mark) for mark in (*_MARKS.encode(), *b" "))
                needed = 4 * len(raw) + cells * _CELL_BYTES
                check_memory(f"a line of {path}", needed, "save the matrix in a binary format, or allow more")
            if b"\0" in raw or b"\r" in raw.rstrip(b"\r\n"):
                what = "a zero byte" if b"\0" in raw else "a carriage return inside; save it with line feeds"
                refuse(f"{path} is no text: line {number} holds {what}")
            begin = len(codecs.BOM_UTF8) if number == 1 and raw.startswith(codecs.BOM_UTF8) else 0
            yield number, position + begin, raw[begin:].decode().strip("\r\n")
            position += len(raw)


def _delimiter(lines: Sequence[str], expected: Expected) -> str | None:
    """Return the delimiter; None for white space, "" if lines are single cells."""
    if matched_share([line.strip() for line in lines[1:] or lines], expected) > 0.5:
        return ""  # names with blanks
    split: dict[str | None, list[list[str]]] = {m: [_cells(line, m) for line in lines] for m in (*_MARKS, None)}
    is_even = any(len(rows[0]) > 1 and len(set(map(len, rows))) == 1 for rows in split.values())
    for mark, rows in split.items():
        if not is_even and len(rows) > 2 and all(np.diff([len(row) for row in rows]) == 1):
            return mark  # a triangle
    shares: dict[str | None, float] = {}
    for mark, rows in split.items():
        length, times = Counter(map(len, rows[1:] or rows)).most_common(1)[0]
        shares[mark] = times / len(rows[1:] or rows) if length > 1 else 0.0
    for mark in ("|", None):
        commas = [cell for row in split[mark] for cell in row if "," in cell]  # also of titles
        are_decimal = bool(commas) and all(map(_DECIMAL_COMMA.fullmatch, commas))
        if shares[mark] > 0.5 and are_decimal and not shares["\t"] + shares[";"]:
            return mark
    best = max(shares, key=lambda mark: shares[mark])
    if shares[best] == 0 or (best is None and not _are_columns(split[None], expected, lines)):
        marks = [mark for mark in _MARKS if any(mark in line for line in lines)]
        blank = split[None][1:] or split[None]
        words = [row[0] for row in blank if not is_number(row[0])]  # names, unless they repeat
        ragged = max(map(len, blank)) > 1 and all(is_number(cell) for row in blank for cell in row[1:])
        ragged &= len(set(words)) == len(words)
        return marks[0] if marks else None if ragged else ""
    return best


def _are_columns(rows: Sequence[Sequence[str]], expected: Expected, lines: Sequence[str]) -> bool:
    """Whether blanks separate cells; names and classes may also contain blanks."""
    firsts = [row[0] for row in rows[1:]]
    if len({len(row) for row in rows[1:]}) > 1 and len(set(firsts)) < len(firsts):
        return False  # classes of one word and of several
    whole = [row for row in rows if len(row) == len(rows[-1])]
    columns = list(zip(*(row for row in rows[1:] or rows if len(row) == len(rows[-1])), strict=True))
    if all(map(are_numbers, columns)) or '"' in lines[-1] or len(rows[0]) == len(rows[-1]) - 1:
        return True
    if _has_title(rows[0], columns) or any(matched_share(column, expected) > 0.5 for column in columns):
        return True
    # Names of individuals, or of families and individuals, are unique.
    keys = list(zip(*whole, strict=True)) if len(rows[-1]) == 2 else [tuple(tuple(row[:2]) for row in whole)]
    return len(whole) > 1 and any(len(set(key)) == len(whole) for key in keys)


def _cells(line: str, delimiter: str | None) -> list[str]:
    if delimiter == "":
        return [line.strip().strip('"').strip()]
    if '"' not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    line = line if delimiter else " ".join(line.split())
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter or " ", skipinitialspace=True))]
