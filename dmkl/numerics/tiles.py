"""Products with weighted sums of many symmetric matrices, and traces with all of them.

A sum Σ_j w_j K_j is another one for each of many vectors of weights, and is used once: made whole it would go to memory
and come back. Made of a few rows it stays in the cache of a processor, so that what is left are the flops
(`tile_loops`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float
from dmkl.numerics.memory import aligned
from dmkl.numerics.tile_loops import COLUMNS, FOUR, add_multiplied, add_products, add_traces

__all__ = ["PART", "Dense", "Tiles"]

PART = 72
"""Targets that go together: more read matrices less often, and their vectors leave the cache."""
_STRIP, _WIDTH = 2**19, 2**12
"""Bytes of rows that stay in the second cache level, and of a row of sums that stays in the first."""


class Tiles:
    """Symmetric matrices, and others of as many columns beside them, row by row: row i of all, then row i + 1.

    Parameters
    ----------
    n
        How many of each there are.
    m, rows
        Order of the symmetric ones, and rows of the others.
    dtype
        Precision of the matrices, and of what is computed with them; sums over rows are in double precision.
    """

    def __init__(self, n: int, m: int, rows: int, dtype: npt.DTypeLike) -> None:
        self.n, self.m, self.rows = n, m, rows
        self._vectors = _Vectors(m, dtype)
        columns, self._kernels = self._vectors.columns, _up(n, FOUR)
        self._square = aligned((columns, self._kernels, columns), dtype)
        self._beside = aligned((_up(rows, FOUR), self._kernels, columns), dtype)
        itemsize = self._square.itemsize
        self._strip = max(FOUR, _STRIP // (self._kernels * columns * itemsize) // FOUR * FOUR)
        self._room = aligned((FOUR * FOUR, min(columns, _WIDTH // itemsize)), dtype)

    @staticmethod
    def padding(n: int) -> float:
        """How much larger n matrices are with what they are padded by, rows and columns aside."""
        return _up(n, FOUR) / n

    def put(self, j: int, square: Array, beside: Array) -> None:
        """Take the matrices (m, m) and (rows, m) as the j-th of their kind."""
        self._square[: self.m, j, : self.m] = square
        self._beside[: self.rows, j, : self.m] = beside

    def sum(self, weights: Float) -> Array:
        """Σ_j w_j K_j for weights (n,), (m, m)."""
        found = np.matmul(weights.astype(self._square.dtype), self._square[: self.m, : self.n])
        return np.ascontiguousarray(found[:, : self.m])

    def each(self, x: Array) -> Array:
        """X K_j for X (c, m), whose rows are vectors, (n, c, m)."""
        found = x @ self._square[: self.m].reshape(self.m, -1)
        return np.ascontiguousarray(found.reshape(len(x), self._kernels, -1).transpose(1, 0, 2)[: self.n, :, : self.m])

    def products(self, weights: Float, x: Array) -> Array:
        """(Σ_j w_j K_j) X of each, (t, c, m), for weights (t, n) and X (t, c, m), whose rows are vectors."""
        return self._multiplied(self._square, self.m, weights, x)

    def held_out(self, weights: Float, x: Array) -> Array:
        """The same with the matrices beside the symmetric ones, (t, c, rows)."""
        return self._multiplied(self._beside, self.rows, weights, x)

    def _multiplied(self, matrices: Array, rows: int, weights: Float, x: Array) -> Array:
        def add(vectors: Array, out: Array, dots: Array, some: slice) -> None:
            factors = np.zeros((len(vectors), self._kernels), dtype=vectors.dtype)
            factors[: some.stop - some.start, : self.n] = weights[some]
            add_products(matrices, factors, vectors, out, self._room, dots, self._strip, matrices is self._square)

        return self._vectors.multiplied(x, rows, add)

    def traces(self, x: Array) -> Float:
        """Σ_c x_cᵀK_j x_c of each, (t, n), for X (t, c, m)."""
        found = np.empty((len(x), self.n))
        for some in _parts(len(x)):
            vectors = self._vectors.padded(x[some])
            sums, dots = np.zeros((len(vectors), self._kernels)), np.empty((FOUR, FOUR), dtype=vectors.dtype)
            add_traces(self._square, vectors, sums, self._room, dots, self._strip)
            found[some] = 2.0 * sums[: some.stop - some.start, : self.n]
        return found


class Dense:
    """A matrix (rows, m), of which products with many X are asked for."""

    def __init__(self, matrix: Array) -> None:
        self.rows, m = matrix.shape
        self._vectors = _Vectors(m, matrix.dtype)
        self._matrix = aligned((_up(self.rows, FOUR), self._vectors.columns), matrix.dtype)
        self._matrix[: self.rows, :m] = matrix
        self._strip = max(FOUR, _STRIP // self._matrix[0].nbytes // FOUR * FOUR)

    def products(self, x: Array) -> Array:
        """A X of each, (t, c, rows), for X (t, c, m), whose rows are vectors."""

        def add(vectors: Array, out: Array, dots: Array, some: slice) -> None:
            add_multiplied(self._matrix, vectors, out, dots, self._strip)

        return self._vectors.multiplied(x, self.rows, add)


class _Vectors:
    """Memory for X (t, c, m) and products with them, padded as the loops take them.

    It is taken once: memory that is new for every call costs as much as what is computed in it.
    """

    def __init__(self, m: int, dtype: npt.DTypeLike) -> None:
        self.m, self.dtype = m, np.dtype(dtype)
        self.columns = _up(m, COLUMNS)
        self._x: Array = np.empty(0, dtype=self.dtype)
        self._y: Array = np.empty(0, dtype=self.dtype)

    def padded(self, x: Array) -> Array:
        """Some X with zeros around them, until the next call."""
        t, c = _up(len(x), FOUR), _up(x.shape[1], FOUR)
        size = t * c * self.columns
        if self._x.size < size:
            self._x = aligned((size,), self.dtype)
        found = self._x[:size].reshape(t, c, -1)
        found[: len(x), : x.shape[1], : self.m] = x
        found[len(x) :] = 0
        found[:, x.shape[1] :] = 0
        found[:, :, self.m :] = 0
        return found

    def multiplied(self, x: Array, rows: int, add: Callable[[Array, Array, Array, slice], None]) -> Array:
        """What a loop adds to zeros, (t, c, rows), for X (t, c, m); it is also told which of them it has."""
        found = np.empty((*x.shape[:2], rows), dtype=self.dtype)
        for some in _parts(len(x)):
            vectors = self.padded(x[some])
            t, c, _ = vectors.shape
            # The product with a square matrix has as many columns as X.
            width = self.columns if rows == self.m else _up(rows, FOUR)
            if self._y.size < t * c * width:
                self._y = aligned((t * c * width,), self.dtype)
            out = self._y[: t * c * width].reshape(t, c, width)
            out[:] = 0
            add(vectors, out, np.empty((c, FOUR), dtype=self.dtype), some)
            found[some] = out[: some.stop - some.start, : x.shape[1], :rows]
        return found


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _parts(size: int) -> list[slice]:
    return [slice(i, min(i + PART, size)) for i in range(0, size, PART)]
