"""Sparse matrices, made dense a block at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from dmkl.arrays import Array

__all__ = ["SparseMatrix", "is_sparse"]


def is_sparse(values: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy."""
    return bool(scipy.sparse.issparse(values))


class SparseMatrix:
    """A sparse matrix of SciPy that is read as a dense one, of which only the rows that are asked for are made."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix.tocsr()
        self.shape: tuple[int, ...] = tuple(matrix.shape)
        self.dtype: np.dtype[Any] = np.dtype(matrix.dtype)

    def __getitem__(self, key: tuple[Any, slice]) -> Array:
        rows, cols = key
        return np.asarray(self._matrix[rows][:, cols].toarray())
