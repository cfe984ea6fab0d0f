"""Products with weighted sums of many symmetric matrices, and traces with all of them.

A sum Σ_j w_j K_j is another one for each of many vectors of weights, and is used once: made whole it would go to memory
and come back. Made of a few rows it stays in the cache of a processor, so that what is left are the flops
(`tile_loops`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float
from dmkl.numerics.memory import aligned
from dmkl.numerics.tile_loops import FOUR, add_products, add_traces

__all__ = ["PART", "Tiles"]

PART = 48
"""Targets that go together: more read matrices less often, and their vectors leave the cache."""
_LINE, _STRIP, _WIDTH = 64, 2**19, 4096
"""Bytes of a cache line, of rows that stay in the second cache level, and of a row of sums that stays in the first."""


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
        self.n, self.m, self.rows, self.dtype = n, m, rows, np.dtype(dtype)
        per_line = _LINE // self.dtype.itemsize
        self._columns, self._kernels = _up(m, 2 * per_line), _up(n, FOUR)
        self._square = aligned((self._columns, self._kernels, self._columns), self.dtype)
        self._beside = aligned((_up(rows, FOUR), self._kernels, self._columns), self.dtype)
        row = self._kernels * self._columns * self.dtype.itemsize
        self._strip = max(FOUR, _STRIP // row // FOUR * FOUR)
        self._room = aligned((FOUR * FOUR, min(self._columns, _WIDTH // self.dtype.itemsize)), self.dtype)
        # Taken once: memory that is new for every call costs as much as what is computed in it.
        self._x, self._y = np.empty((2, 0), dtype=self.dtype)

    def put(self, j: int, square: Array, beside: Array) -> None:
        """Take the matrices (m, m) and (rows, m) as the j-th of their kind."""
        self._square[: self.m, j, : self.m] = square
        self._beside[: self.rows, j, : self.m] = beside

    def sum(self, weights: Float) -> Array:
        """Σ_j w_j K_j for weights (n,), (m, m)."""
        found = np.matmul(weights.astype(self.dtype), self._square[: self.m, : self.n])
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

    def traces(self, x: Array) -> Float:
        """Σ_c x_cᵀK_j x_c of each, (t, n), for X (t, c, m)."""
        found = np.empty((len(x), self.n))
        for some in _parts(len(x)):
            vectors = self._padded(x[some])
            sums = np.zeros((len(vectors), self._kernels))
            add_traces(self._square, vectors, sums, self._room, self._factors(vectors), self._strip)
            found[some] = 2.0 * sums[: some.stop - some.start, : self.n]
        return found

    def _multiplied(self, matrices: Array, rows: int, weights: Float, x: Array) -> Array:
        found = np.empty((*x.shape[:2], rows), dtype=self.dtype)
        for some in _parts(len(x)):
            vectors = self._padded(x[some])
            t, c, _ = vectors.shape
            factors = np.zeros((t, self._kernels), dtype=self.dtype)
            factors[: some.stop - some.start, : self.n] = weights[some]
            if self._y.size < t * c * self._columns:
                self._y = aligned((t * c * self._columns,), self.dtype)
            width = max(len(matrices), 1)
            out = self._y[: t * c * width].reshape(t, c, width)
            out[:] = 0
            by = self._factors(vectors)
            add_products(matrices, factors, vectors, out, self._room, by, self._strip, matrices is self._square)
            found[some] = out[: some.stop - some.start, : x.shape[1], :rows]
        return found

    def _padded(self, x: Array) -> Array:
        """Some X with as many targets, columns and entries as the loops take, in memory that the next call takes."""
        t, c = _up(len(x), FOUR), _up(x.shape[1], FOUR)
        size = t * c * self._columns
        if self._x.size < size:
            self._x = aligned((size,), self.dtype)
        found = self._x[:size].reshape(t, c, -1)
        found[len(x) :] = 0
        found[:, x.shape[1] :] = 0
        found[:, :, self.m :] = 0
        found[: len(x), : x.shape[1], : self.m] = x
        return found

    def _factors(self, x: Array) -> Array:
        return np.zeros((FOUR + max(FOUR, x.shape[1]), FOUR), dtype=self.dtype)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _parts(size: int) -> list[slice]:
    return [slice(i, min(i + PART, size)) for i in range(0, size, PART)]
