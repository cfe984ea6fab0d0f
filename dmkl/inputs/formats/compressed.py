"""Sparse matrices in compressed rows or columns, of which a file holds the three vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from dmkl.arrays import Array
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.limits import check_memory
from dmkl.inputs.matrices import SparseMatrix

__all__ = ["PARTS", "sparse_array"]

PARTS = ("data", "indices", "indptr")
"""The names of the vectors, as SciPy and AnnData write them."""


def sparse_array(path: Path, name: str, parts: dict[str, FileArray], shape: tuple[int, int], form: str) -> FileArray:
    """The matrix of three vectors: of rows (`form` csr) those that are asked for are read, of columns (csc) all."""
    what = f"variable {name!r} of {path}" if name else str(path)
    vectors = [parts[part] for part in PARTS]
    data, indices, indptr = vectors
    with damaged_as(f"{what} is no sparse matrix", ValueError):
        major = shape[form == "csc"]
        if min(shape) < 0 or indptr.shape != (major + 1,) or data.shape != indices.shape:
            msg = f"{shape} with {indptr.shape} starts of {data.shape} entries at {indices.shape} places"
            raise ValueError(msg)
    problem = next(filter(None, (part.problem for part in vectors)), "")
    if data.dtype.kind not in "fiub" or {indices.dtype.kind, indptr.dtype.kind} - {"i", "u"}:
        problem = problem or "not numbers"

    def opened() -> Any:
        rows = _Rows(what, vectors, shape)
        return rows if form == "csr" else SparseMatrix(rows.compressed(0, shape[1], scipy.sparse.csc_array, shape))

    return FileArray(path, name, shape, data.dtype, opened, problem=problem)


class _Rows:
    """A matrix in compressed rows that is read as a dense one, some rows at a time."""

    def __init__(self, what: str, vectors: list[FileArray], shape: tuple[int, int]) -> None:
        self._what = what
        self._data, self._indices, self._indptr = (vector.open() for vector in vectors)
        self.shape, self.dtype = shape, np.dtype(vectors[0].dtype)
        self.chunks = (1, shape[1])  # rows are read whole

    def __getitem__(self, key: tuple[Any, slice]) -> Array:
        rows, cols = key
        wanted = np.arange(self.shape[0])[rows]
        start, stop = (int(wanted.min()), int(wanted.max()) + 1) if len(wanted) else (0, 0)
        matrix = self.compressed(start, stop, scipy.sparse.csr_array, (stop - start, self.shape[1]))
        return np.asarray(matrix[wanted - start][:, cols].toarray())

    def compressed(self, start: int, stop: int, kind: Any, shape: tuple[int, int]) -> Any:
        """The rows, or columns, from start to stop as a sparse matrix of SciPy."""
        with damaged_as(f"{self._what} is damaged", Exception):
            bounds = np.asarray(self._indptr[start : stop + 1]).astype(np.int64)
            first, last = int(bounds[0]), int(bounds[-1])
            # SciPy looks at the starts of rows only where there are entries, and then writes wherever they say.
            if not 0 <= first <= last <= self._data.shape[0] or (np.diff(bounds) < 0).any():
                msg = f"its rows or columns {start} to {stop} begin at entry {first}, end at {last} or are out of order"
                raise ValueError(msg)
            check_memory(f"a part of {self._what}", (last - first) * (self.dtype.itemsize + 8), "allow more")
            data, indices = (np.asarray(vector[first:last]) for vector in (self._data, self._indices))
            matrix = kind((data, indices.astype(np.int64), bounds - first), shape=shape)
            matrix.check_format(full_check=True)
            return matrix
