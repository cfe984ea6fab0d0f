"""Kernels of geneticists: relationship matrices of GCTA and PLINK, with the names of individuals beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as, decompressed, lines_of
from dmkl.inputs.formats.tables import Text
from dmkl.inputs.formats.text_kernels import matrix_of_pairs, matrix_of_rows
from dmkl.settings import check_memory


def gcta_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of GCTA in NAME.grm.bin, of the individuals in NAME.grm.id.

    It holds the lower triangle as float32, row after row: entry (i, k), i ≥ k from 0, is number i(i + 1)/2 + k. The
    numbers of variants (NAME.grm.N.bin) are not needed.
    """
    return _binary_arrays(path, ("<f4",), may_be_square=False)


def gcta_text_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of GCTA in NAME.grm.gz: lines of row, column (from 1), variants and entry."""
    names, families = _individuals(path)
    n, text = len(names), Text(path)
    if text.n_columns != 4 or text.n_rows != n * (n + 1) // 2:
        msg = (
            f"{path} has {text.n_rows} lines of {text.n_columns} cells, expected {n * (n + 1) // 2} of 4 (row, column, "
            f"variants, entry): one for each pair of the {n} individuals of the .id file beside it"
        )
        raise InputError(msg)
    at = text.strip(0, text.n_rows, [0, 1]) - 1
    if not np.isin(at, np.arange(n)).all():
        msg = f"{path} has positions outside 1 to {n}, the individuals of the .id file beside it"
        raise InputError(msg)
    rows, cols = at.astype(np.int64).T
    opened = partial(matrix_of_pairs, text, rows, cols, n, 3)
    return [FileArray(path, "", (n, n), np.dtype(float), opened, rows=names, families=families)]


def plink_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of PLINK in NAME.rel.bin, square or its lower triangle, as float64 or float32."""
    return _binary_arrays(path, ("<f8", "<f4"), may_be_square=True)


def plink_text_arrays(path: Path) -> list[FileArray]:
    """Return the relationship matrix of PLINK in NAME.rel or NAME.rel.gz: rows up to the diagonal, or whole rows."""
    names, families = _individuals(path)
    n = len(names)
    check_memory(str(path), 64 * n * n, "save it with --make-rel bin, which is read in parts, or allow more")
    rows = _split_lines(path)
    if len(rows) != n:
        msg = f"{path} has {len(rows)} lines, expected {n}: one for each individual of the .id file beside it"
        raise InputError(msg)
    matrix = matrix_of_rows(path, rows)
    return [FileArray(path, "", (n, n), matrix.dtype, lambda: matrix, rows=names, families=families)]


def matrix_of_prefix(path: Path) -> Path | None:
    """Return the relationship matrix of a prefix, as in GCTA's option --grm; None if there is none."""
    endings = (".grm.bin", ".grm.gz", ".rel.bin", ".rel", ".rel.gz")
    files = (path.with_name(path.name + ending) for ending in endings)
    return next((file for file in files if path.name and file.is_file()), None)


def _individuals(path: Path) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return IID, and FID if there are both, from the .id file of the matrix."""
    part = re.search(r"\.part_(\d+)_(\d+)\.", path.name)
    if part is not None:
        whole = path.name.replace(part[0], ".")
        pattern = path.name.replace(part[0], f".part_{part[1]}_*.")
        msg = (
            f"{path} is part {int(part[2])} of {part[1]} of a relationship matrix of GCTA, not the whole; put "
            f"all parts and their .grm.id files together: cat {pattern} > {whole}"
        )
        raise InputError(msg)
    beside = path.with_name(re.sub(r"(?i)\.(gz|bin)$", "", path.name) + ".id")
    if not beside.is_file():
        msg = f"{path} needs {beside.name} beside it, which names its individuals, and there is none; copy it there"
        raise InputError(msg)
    lines = _split_lines(beside)
    has_titles = bool(lines) and lines[0][:1] in (["#FID"], ["#IID"], ["FID"], ["IID"])
    rows = [cells for cells in lines[has_titles:] if cells]
    if not rows:
        msg = f"{beside} names no individuals, expected a line of FID and IID for each"
        raise InputError(msg)
    if any(len(row) == 1 for row in rows):
        return tuple(row[-1] for row in rows), None
    return tuple(row[1] for row in rows), tuple(row[0] for row in rows)


def _split_lines(path: Path) -> list[list[str]]:
    with damaged_as(f"{path} is not written in UTF-8", UnicodeDecodeError), decompressed(path) as file:
        return [raw.decode().split() for raw in lines_of(path, file)]


def _binary_arrays(path: Path, dtypes: Sequence[str], *, may_be_square: bool) -> list[FileArray]:
    """Return a matrix; the size of its file determines its type, and whether it holds the lower triangle or all."""
    names, families = _individuals(path)
    n, size = len(names), path.stat().st_size
    triangles, squares = (
        {length * np.dtype(dtype).itemsize: np.dtype(dtype) for dtype in dtypes} for length in (n * (n + 1) // 2, n * n)
    )
    forms = {**triangles, **squares} if may_be_square else triangles
    if size not in forms:
        sizes = " or ".join(map(str, sorted(forms)))
        msg = f"{path} has {size} bytes, expected {sizes} for the {n} individuals of the .id file beside it"
        raise InputError(msg)
    dtype = forms[size]
    packed = partial(_Packed, path, n, dtype)
    opened = packed if size in triangles else partial(np.memmap, path, dtype, "r", 0, (n, n))
    return [FileArray(path, "", (n, n), dtype, opened, rows=names, families=families)]


class _Packed:
    """A symmetric matrix whose lower triangle is stored, row after row."""

    def __init__(self, path: Path, n: int, dtype: np.dtype[Any]) -> None:
        self._path, self.shape, self.dtype = path, (n, n), dtype

    def __getitem__(self, key: tuple[slice, slice]) -> Array:
        rows, cols = (np.arange(self.shape[0])[part] for part in key)
        stored = np.memmap(self._path, self.dtype, "r")
        low = np.minimum(rows[:, None], cols)
        high = np.maximum(rows[:, None], cols)
        return np.asarray(stored[high * (high + 1) // 2 + low])
