"""Kernels in text: whole matrices, triangles (PHYLIP) and lists of pairs; relationship matrices of GCTA and PLINK."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.inputs.columns import RowNames, counts, find_names, is_number, is_numeral
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.tables import Text, lines_of
from dmkl.inputs.matrices import Lazy
from dmkl.inputs.names import Individual, Names
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
        return [_array(text, (n, n), partial(_matrix_of_pairs, text, pairs[1], pairs[2], n, 2), pairs[0])]
    if text.titles is None and text.n_rows == text.n_columns + 1 and all(map(str.isdecimal, text.head_row())):
        text.take_first_row_as_titles()
    rows, used = _row_names(text)
    columns = [at for at in range(text.n_columns) if at not in used]
    if not columns:
        what = f"{text.n_rows} lines of words and no numbers, expected a matrix; labels and names of samples"
        refuse(f"{path} holds {what} are given as such (labels=, samples=, --labels, --samples)")
    words = [name for name in rows or () if not is_numeral(name)]
    if text.titles is None and 0 < len(words) < text.n_rows:
        way_out = "if they are names, add a line of titles with 'sample' above them"
        refuse(f"{path}: {words[0]!r:.60} in the first column is not a number, others in it are; {way_out}")
    written = titles = None if text.titles is None else tuple(text.titles[at] for at in columns)
    square = text.n_rows == len(columns)
    # Names that pandas and R write if there are none.
    if titles is not None and (counts(titles, 1, "V") or counts(titles, 1, "X")):
        titles, rows = None, None if rows is not None and counts(rows, 1) else rows
    titles, rows = (None if names is not None and counts(names) else names for names in (titles, rows))
    if square and rows is not None and titles is not None and set(rows) != set(titles):
        # R's data frames begin titles with a letter and write a dot for all other signs (make.names).
        made = {re.sub(r"^(?=[\d_]|\.\d)", "X", re.sub(r"[^\w.]", ".", name)): name for name in rows}
        titles = tuple(made[title] for title in titles) if set(made) == set(titles) else titles
    if rows is None and titles is None and written is not None and not counts(written):
        what = "its names of rows and columns only count, as R writes those of a matrix without names"
        text.notes.append(f"{path}: {what}; give the names of the rows in their order with --order FILE (order=)")
    numbers = text.numbers(columns)
    if text.count not in (None, text.n_rows):
        refuse(f"{path} states {text.count} rows in its first line, and has {text.n_rows}; it is not whole")
    # PHYLIP's distances and TASSEL's kinships are written alike, but for the diagonal.
    holds = "distances" if text.count is not None and square and not numbers[0:1, 0:1].any() else ""
    return [_array(text, numbers.shape, lambda: numbers, rows, columns=titles, holds=holds)]


def _array(text: Text, shape: tuple[int, ...], opened: Callable[[], Any], rows: Names, **more: Any) -> FileArray:
    return FileArray(text.path, "", shape, np.dtype(float), opened, rows=rows, notes=tuple(text.notes), **more)


def _row_names(text: Text) -> RowNames:
    """Return the names of the rows, from a column with a title or from the columns before the numbers."""
    numeric = [is_number(cell, text.decimal_comma) for cell in text.head_row()]
    if text.titles is not None:
        names, used = find_names(text, frozenset(text.titles), numeric)
        if names is None and text.n_columns == text.n_rows + 1 and 0 not in used:
            return tuple(text.texts([0])[0]), frozenset([0])
        return names, used
    n_names = [*numeric, True].index(True)
    more = text.n_columns - text.n_rows
    if n_names == 0 and more in (1, 2) and all(map(str.isdecimal, text.head_row()[:more])):
        n_names = more
        what = "names of the rows, since as many numbers follow"
        text.notes.append(f"{text.path}: column {n_names} was taken for {what}")
    elif n_names == 0 and more == 2 and not numeric[1]:
        n_names = 2
    cells = text.texts(range(n_names))
    if n_names == 2 and not counts(cells[0]) and not counts(cells[0], 1):
        return Individual.of(cells[1], cells[0]), frozenset((0, 1))
    return tuple(cells[-1]) if cells else None, frozenset(range(n_names))


# --- pairs ---------------------------------------------------------------------------------------------------------


def _pairs_of(text: Text) -> tuple[tuple[str, ...], Index, Index] | None:
    """Return the names, and the positions of both in each row, if a table lists all pairs once or twice."""
    if text.n_columns != 3 or text.n_rows < 4:
        return None
    import pandas as pd

    first, second = text.texts([0, 1])
    places, names = pd.factorize(np.array([*first, *second], dtype=object))
    n = len(names)
    numeric = all(map(is_number, text.head_row()[:2]))
    # Missing pairs are refused when the matrix is read.
    of_samples = not numeric and 2 * len(set(first).intersection(second)) > n and text.n_rows > 2 * n
    if not of_samples and (text.n_rows not in (n * (n + 1) // 2, n * n) or (n == 3 and numeric)):
        return None
    rows, cols = np.split(places.astype(np.int64), 2)
    return tuple(names), rows, cols


def _matrix_of_pairs(text: Text, rows: Index, cols: Index, n: int, column: int) -> Float:
    """Return the symmetric matrix (n, n) whose entries a column lists, all of them, at these positions from 0."""
    check_memory(f"the matrix of {text.path}", 16 * n * n, "save it in a binary format, or allow more")
    values = np.full((n, n), np.nan)
    entries = text.strip(0, text.n_rows, [column])[:, 0]
    values[cols, rows] = entries
    values[rows, cols] = entries
    missing = np.argwhere(np.isnan(values))
    if len(missing):
        i, k = missing[0].tolist()
        refuse(f"{text.path} lacks {len(missing)} entries of pairs, the first of rows {i} and {k}; give all")
    return values


# --- triangles -----------------------------------------------------------------------------------------------------


def _ragged_matrix(text: Text) -> FileArray:
    """Return a triangle of a line a row, or a matrix whose rows PHYLIP has wrapped; it is read as a whole."""
    rows, comma, n = text.ragged(), text.decimal_comma, text.count or 0
    if not text.is_triangle:
        cells = [cell for row in rows for cell in row]
        if len(cells) != n * (n + 1):
            refuse(f"{text.path} states {n} rows and holds {len(cells)} cells, expected {n + 1} for each row")
        rows = [cells[start : start + n + 1] for start in range(0, len(cells), n + 1)]
    named = not text.is_triangle or not is_number(rows[-1][0], comma)
    values = _matrix_of_rows(text.path, [row[named:] for row in rows], decimal_comma=comma)
    names = tuple(row[0] for row in rows) if named else None
    # PHYLIP ends rows of distances before the diagonal.
    of_distances = len(rows[0]) == named or (not text.is_triangle and values[0, 0] == 0)
    return _array(text, values.shape, lambda: values, names, holds="distances" if of_distances else "")


def _matrix_of_rows(path: Path, rows: Sequence[Sequence[str]], *, decimal_comma: bool = False) -> Float:
    """Return the symmetric matrix whose rows end before the diagonal (which is 0), at it, or are whole."""
    n = len(rows)
    check_memory(f"the matrix of {path}", 16 * n * n, "save it in a binary format, which is read in parts")
    has_diagonal = bool(n) and len(rows[0]) > 0
    values = np.zeros((n, n))
    for i, row in enumerate(rows):
        if len(row) not in (i + has_diagonal, n):
            expected = f"{i + has_diagonal}, to the diagonal, or {n}"
            refuse(f"{path}, row {i + 1}: found {len(row)} numbers, expected {expected}")
        with damaged_as(f"expected numbers in {path}, row {i + 1}", ValueError):
            values[i, : len(row)] = [float(cell.replace(",", ".") if decimal_comma else cell) for cell in row]
        if len(row) <= i + 1:
            values[: len(row), i] = values[i, : len(row)]
    return values


# --- geneticists' files --------------------------------------------------------------------------------------------


def gcta_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of GCTA in NAME.grm.bin, of the individuals in NAME.grm.id.

    It holds the lower triangle as float32, row after row: entry (i, k), i ≥ k from 0, is number i(i + 1)/2 + k. The
    numbers of variants (NAME.grm.N.bin) are not needed.
    """
    return _binary_arrays(path, ("<f4",), may_be_square=False)


def gcta_text_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of GCTA in NAME.grm.gz: lines of row, column (from 1), variants and entry."""
    names = _individuals(path)
    n, text = len(names), Text(path)
    if text.n_columns != 4 or text.n_rows != n * (n + 1) // 2:
        expected = f"{n * (n + 1) // 2} of 4 (row, column, variants, entry), one for each pair of the {n} individuals"
        refuse(
            f"{path} has {text.n_rows} lines of {text.n_columns} cells, expected {expected} of the .id file beside it"
        )
    at = text.strip(0, text.n_rows, [0, 1]) - 1
    if not np.isin(at, np.arange(n)).all():
        refuse(f"{path} has positions outside 1 to {n}, the individuals of the .id file beside it")
    rows, cols = at.astype(np.int64).T
    opened = partial(_matrix_of_pairs, text, rows, cols, n, 3)
    return [FileArray(path, "", (n, n), np.dtype(float), opened, rows=names)]


def plink_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of PLINK in NAME.rel.bin, square or its lower triangle, as float64 or float32."""
    return _binary_arrays(path, ("<f8", "<f4"), may_be_square=True)


def plink_text_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of PLINK in NAME.rel or NAME.rel.gz: rows up to the diagonal, or whole rows."""
    names = _individuals(path)
    n = len(names)
    check_memory(str(path), 64 * n * n, "save it with --make-rel bin, which is read in parts, or allow more")
    rows = [text.split() for _, _, text in lines_of(path)]
    if len(rows) != n:
        refuse(f"{path} has {len(rows)} lines, expected {n}: one for each individual of the .id file beside it")
    matrix = _matrix_of_rows(path, rows)
    return [FileArray(path, "", (n, n), matrix.dtype, lambda: matrix, rows=names)]


def matrix_of_prefix(path: Path) -> Path | None:
    """Return the relationship matrix of a prefix, as in GCTA's option --grm; None if there is none."""
    endings = (".grm.bin", ".grm.gz", ".rel.bin", ".rel", ".rel.gz")
    files = (path.with_name(path.name + ending) for ending in endings)
    return next((file for file in files if path.name and file.is_file()), None)


def _individuals(path: Path) -> tuple[str, ...]:
    """Return IID, with FID if there are both, from the .id file of the matrix."""
    part = re.search(r"\.part_(\d+)_(\d+)\.", path.name)
    if part is not None:
        whole, pattern = (path.name.replace(part[0], text) for text in (".", f".part_{part[1]}_*."))
        way_out = f"put all parts and their .grm.id files together: cat {pattern} > {whole}"
        refuse(f"{path} is part {int(part[2])} of {part[1]} of a relationship matrix of GCTA, not the whole; {way_out}")
    beside = path.with_name(re.sub(r"(?i)\.(gz|bin)$", "", path.name) + ".id")
    if not beside.is_file():
        refuse(f"{path} needs {beside.name} beside it, which names its individuals, and there is none; copy it there")
    lines = [text.split() for _, _, text in lines_of(beside)]
    has_titles = bool(lines) and lines[0][:1] in (["#FID"], ["#IID"], ["FID"], ["IID"])
    rows = [cells for cells in lines[has_titles:] if cells]
    if not rows:
        refuse(f"{beside} names no individuals, expected a line of FID and IID for each")
    if any(len(row) == 1 for row in rows):
        return tuple(row[-1] for row in rows)
    return Individual.of((row[1] for row in rows), (row[0] for row in rows))


def _binary_arrays(path: Path, dtypes: Sequence[str], *, may_be_square: bool) -> list[FileArray]:
    """Return a matrix; the size of its file determines its type, and whether it holds the lower triangle or all."""
    names = _individuals(path)
    n, size = len(names), path.stat().st_size
    lengths = [n * (n + 1) // 2, n * n][: 1 + may_be_square]
    forms = {length * np.dtype(kind).itemsize: (length, np.dtype(kind)) for length in lengths for kind in dtypes}
    if size not in forms:
        sizes = " or ".join(map(str, sorted(forms)))
        refuse(f"{path} has {size} bytes, expected {sizes} for the {n} individuals of the .id file beside it")
    length, dtype = forms[size]

    def entries(key: tuple[slice, slice]) -> Array:
        rows, cols = (np.arange(n)[part] for part in key)
        stored = np.memmap(path, dtype, "r")
        low, high = np.minimum(rows[:, None], cols), np.maximum(rows[:, None], cols)
        return np.asarray(stored[high * (high + 1) // 2 + low])

    def opened() -> Any:
        return Lazy((n, n), dtype, entries) if length < n * n else np.memmap(path, dtype, "r", 0, (n, n))

    return [FileArray(path, "", (n, n), dtype, opened, rows=names)]
