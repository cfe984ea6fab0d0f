"""Matrices in Matrix Market's files, .mtx, sparse or dense; SciPy's own reader of them dies of damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.limits import check_memory, lines_of
from dmkl.inputs.sparse import SparseMatrix

__all__ = ["mtx_arrays"]

_ENTRY_BYTES = 64
"""What reading takes for an entry at most: its place and value, as they come and in rows."""


@dataclass(frozen=True)
class _Header:
    """What the first lines tell."""

    coordinates: bool  # whether entries come with their places; else all of them, column after column
    field: str  # real, integer, pattern or complex
    symmetry: str  # general, or symmetric: the lower triangle alone
    shape: tuple[int, int]
    n_entries: int


def mtx_arrays(path: Path) -> list[FileArray]:
    """The matrix of a .mtx file; a sparse one stays sparse in memory."""
    header = _header(path)
    (n_rows, n_cols), size = header.shape, path.stat().st_size
    if min(n_rows, n_cols) < 1 or not 0 <= header.n_entries <= size:  # an entry takes two characters at least
        msg = f"{path} is damaged: it tells of {n_rows} × {n_cols} and {header.n_entries} entries, and has {size} bytes"
        raise InputError(msg)
    check_memory(str(path), _ENTRY_BYTES * header.n_entries + 8 * n_rows, "save it as .h5, or allow more")

    def opened() -> Any:
        with damaged_as(f"{path} is not a whole Matrix Market file", Exception):
            return _read(path, header)

    problem = "complex" if header.field == "complex" else ""
    dtype = np.dtype(np.float64)
    return [FileArray(path, "", header.shape, dtype, opened, lambda: opened()[:, :], problem)]


def _lines(path: Path) -> Iterator[str]:
    """The first line, and all others that are neither blank nor a comment."""
    with path.open("rb") as file:
        for number, raw in enumerate(lines_of(path, file)):
            if number == 0 or (raw.strip() and not raw.startswith(b"%")):
                yield raw.decode()


def _header(path: Path) -> _Header:
    with damaged_as(f"{path} is not a whole Matrix Market file", Exception):
        lines = _lines(path)
        words, sizes = next(lines, "").lower().split(), [int(word) for word in next(lines, "").split()]
    known = len(words) == 5 and words[0] == "%%matrixmarket" and words[4] in ("general", "symmetric")
    if not known or len(sizes) != (3 if words[2] == "coordinate" else 2):
        msg = f"{path} does not begin as Matrix Market's general or symmetric matrices do: {' '.join(words)!r:.80}"
        raise InputError(msg)
    n_rows, n_cols = sizes[:2]
    held = n_rows * n_cols if words[4] == "general" else n_rows * (n_rows + 1) // 2
    return _Header(
        words[2] == "coordinate", words[3], words[4], (n_rows, n_cols), sizes[2] if len(sizes) == 3 else held
    )


def _read(path: Path, header: _Header) -> Any:
    lines = _lines(path)
    next(lines), next(lines)
    found = np.loadtxt(lines, ndmin=2) if header.n_entries else np.empty((0, 3))
    mirrored = header.symmetry == "symmetric"
    if len(found) != header.n_entries or (mirrored and header.shape[0] != header.shape[1]):
        msg = f"{len(found)} entries, expected {header.n_entries} of a matrix of {header.shape[0]} × {header.shape[1]}"
        raise ValueError(msg)
    if not header.coordinates:
        return _dense(found[:, 0], header.shape, mirrored)
    rows, cols = (found[:, axis].astype(np.int64) - 1 for axis in (0, 1))
    for places, length in zip((rows, cols), header.shape, strict=True):
        if len(places) and not 0 <= places.min() <= places.max() < length:
            msg = f"an entry in row or column {places.max() + 1}, expected 1 to {length}"
            raise ValueError(msg)
    values = np.ones(len(found)) if header.field == "pattern" else found[:, 2]
    if mirrored:
        off = rows != cols
        rows, cols = np.concatenate([rows, cols[off]]), np.concatenate([cols, rows[off]])
        values = np.concatenate([values, values[off]])
    return SparseMatrix(scipy.sparse.coo_array((values, (rows, cols)), shape=header.shape))


def _dense(values: Array, shape: tuple[int, int], mirrored: bool) -> Array:
    if not mirrored:
        return np.asarray(values.reshape(shape, order="F"))
    matrix = np.empty(shape)
    upper = np.triu_indices(shape[0])  # row after row, as the lower triangle lies column after column
    matrix[upper] = matrix.T[upper] = values
    return matrix
