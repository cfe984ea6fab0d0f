"""Products with weighted sums of many symmetric matrices, and traces with all of them, a few rows at a time.

A sum Σ_j w_j K_j is another one for each of many vectors of weights, and is used once: made whole it would go to memory
and come back. Made of a few rows it stays in the cache of a processor, so that what is left are the flops.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float

__all__ = ["SUMS", "TRACES", "Tiles"]

_ROWS = 32
SUMS, TRACES = 48, 64
"""Sums, and outer products, that are made together: a product of matrices that reads a tile once for all of them. More
do not stay in the cache, least of all where two threads share one."""


class Tiles:
    """Symmetric matrices, and others of as many columns beside them, in tiles of a precision.

    Parameters
    ----------
    square
        The symmetric ones, (n, m, m).
    beside
        The others, (n, rows, m).
    dtype
        Precision of the tiles, and of what is computed with them; sums of tiles are in double precision.
    """

    def __init__(self, square: Array, beside: Array, dtype: npt.DTypeLike) -> None:
        self._square, self._beside = square, beside
        self.n, self.m, _ = square.shape
        self.dtype = np.dtype(dtype)
        rows = min(_ROWS, max(self.m, beside.shape[1]))
        # Taken once: memory that is new for every tile costs as much as what is computed in it.
        self._work = np.empty(rows * self.m * TRACES, dtype=self.dtype)
        self._more = np.empty(0, dtype=self.dtype)

    @cached_property
    def _wedges(self) -> list[Array]:
        """Of the symmetric ones a few rows each, from the diagonal on."""
        return [self._tile(self._square[:, i:j, i:]) for i, j in _spans(self.m)]

    @cached_property
    def _others(self) -> list[Array]:
        return [self._tile(self._beside[:, i:j]) for i, j in _spans(self._beside.shape[1])]

    def _tile(self, rows: Array) -> Array:
        return np.ascontiguousarray(rows, dtype=self.dtype).reshape(self.n, -1)

    def products(self, weights: Float, x: Array) -> Array:
        """(Σ_j w_j K_j) X of each, (t, c, m), for weights (t, n) and X (t, c, m), whose rows are vectors."""
        found = np.zeros(x.shape, dtype=self.dtype)
        for mine, y, w in self._parts(x, found, weights, SUMS):
            for (i, j), wedge in zip(_spans(self.m), self._wedges, strict=True):
                sums = self._sums(w, wedge, j - i)
                y[:, :, i:j] += self._multiplied(mine[:, :, i:], sums.transpose(0, 2, 1))
                if j < self.m:
                    y[:, :, j:] += self._multiplied(mine[:, :, i:j], sums[:, :, j - i :])
        return found

    def held_out(self, weights: Float, x: Array) -> Array:
        """The same with the matrices beside the symmetric ones, (t, c, rows)."""
        found = np.empty((*x.shape[:2], self._beside.shape[1]), dtype=self.dtype)
        for mine, y, w in self._parts(x, found, weights, SUMS):
            for (i, j), tile in zip(_spans(self._beside.shape[1]), self._others, strict=True):
                sums = self._sums(w, tile, j - i)
                np.matmul(mine, sums.transpose(0, 2, 1), out=y[:, :, i:j])
        return found

    def traces(self, x: Array) -> Float:
        """Σ_c x_cᵀK_j x_c of each, (t, n), for X (t, c, m)."""
        found = np.zeros((len(x), self.n))
        for mine, q, _ in self._parts(x, found, found, TRACES):
            for (i, j), wedge in zip(_spans(self.m), self._wedges, strict=True):
                outer = self._room(len(mine), wedge.shape[1])
                each = outer.reshape(len(mine), j - i, -1)
                np.matmul(mine[:, :, i:j].transpose(0, 2, 1), mine[:, :, i:], out=each)
                each[:, :, : j - i] *= 0.5  # a square on the diagonal has both its triangles
                q += outer @ wedge.T
        return 2.0 * found

    def _parts(self, x: Array, found: Array, weights: Float, size: int) -> Iterator[tuple[Array, Array, Array]]:
        """Some of the X, in the precision of the tiles, with where the results go, and their weights."""
        for i in range(0, len(x), size):
            some = slice(i, i + size)
            yield x[some].astype(self.dtype, copy=False), found[some], weights[some].astype(self.dtype)

    def _sums(self, weights: Array, tile: Array, rows: int) -> Array:
        """Σ_j w_j of a tile for each of some weights, (t, rows, columns)."""
        sums = self._room(len(weights), tile.shape[1])
        np.matmul(weights, tile, out=sums)
        return sums.reshape(len(weights), rows, -1)

    def _multiplied(self, a: Array, b: Array) -> Array:
        """Products of stacked matrices, in memory that the next call takes again."""
        shape = (*a.shape[:2], b.shape[2])
        if self._more.size < np.prod(shape):
            self._more = np.empty(int(np.prod(shape)), dtype=self.dtype)
        return np.matmul(a, b, out=self._more[: int(np.prod(shape))].reshape(shape))

    def _room(self, t: int, width: int) -> Array:
        return self._work[: t * width].reshape(t, width)


def _spans(size: int) -> Iterator[tuple[int, int]]:
    return ((i, min(i + _ROWS, size)) for i in range(0, size, _ROWS))
