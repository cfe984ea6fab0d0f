"""Products with weighted sums of many symmetric matrices, and traces with all of them, a few rows at a time.

A sum Σ_j w_j K_j is another one for each of many vectors of weights, and is used once: made whole it would go to memory
and come back. Made of a few rows it stays in the cache of a processor, so that what is left are the flops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float

__all__ = ["Tiles"]

_ROWS = 32
_TOGETHER = 32
"""Sums that are made together: a product of matrices that reads a tile once for all of them."""


class Tiles:
    """Symmetric matrices (n, m, m), and rows of others beside them, in tiles of a precision.

    Parameters
    ----------
    kernels
        (n, rows, m), the symmetric ones first.
    dtype
        Precision of the tiles, and of what is computed with them; sums of tiles are in double precision.
    """

    def __init__(self, kernels: Float, dtype: npt.DTypeLike) -> None:
        self._kernels = kernels
        self.n, self._rows, self.m = kernels.shape
        self.dtype = np.dtype(dtype)
        self._work = np.empty(min(_ROWS, self._rows) * self.m * _TOGETHER, dtype=self.dtype)

    @cached_property
    def _square(self) -> list[Array]:
        return [self._tile(self._kernels[:, i:j]) for i, j in _spans(0, self.m)]

    @cached_property
    def _held_out(self) -> list[Array]:
        return [self._tile(self._kernels[:, i:j]) for i, j in _spans(self.m, self._rows)]

    @cached_property
    def _wedges(self) -> list[Array]:
        """Of the symmetric ones what is on and right of a square on the diagonal, which has both its triangles."""
        found = []
        for i, j in _spans(0, self.m):
            wedge = np.array(self._kernels[:, i:j, i:], dtype=self.dtype)
            wedge[:, :, : j - i] *= 0.5
            found.append(wedge.reshape(self.n, -1))
        return found

    def _tile(self, rows: Float) -> Array:
        return np.ascontiguousarray(rows, dtype=self.dtype).reshape(self.n, -1)

    def products(self, weights: Float, x: Array) -> Array:
        """(Σ_j w_j K_j) X of each, (t, c, m), for weights (t, n) and X (t, c, m), whose rows are vectors."""
        return self._products(self._square, weights, x, self.m)

    def held_out(self, weights: Float, x: Array) -> Array:
        """The same with the rows beside the symmetric matrices, (t, c, rows)."""
        return self._products(self._held_out, weights, x, self._rows - self.m)

    def _products(self, tiles: Sequence[Array], weights: Array, x: Array, size: int) -> Array:
        found = np.empty((*x.shape[:2], size), dtype=self.dtype)
        weights, x = weights.astype(self.dtype), x.astype(self.dtype, copy=False)
        for some in _parts(len(x)):
            at, mine = 0, x[some]
            for tile in tiles:
                sums = self._room(len(mine), tile.shape[1])
                np.matmul(weights[some], tile, out=sums)
                rows = tile.shape[1] // self.m
                turned = sums.reshape(len(mine), rows, self.m).transpose(0, 2, 1)
                found[some, :, at : at + rows] = np.matmul(mine, turned)
                at += rows
        return found

    def traces(self, x: Array) -> Float:
        """Σ_c x_cᵀK_j x_c of each, (t, n), for X (t, c, m)."""
        found = np.zeros((len(x), self.n))
        x = x.astype(self.dtype, copy=False)
        for some in _parts(len(x)):
            mine = x[some]
            for (i, j), wedge in zip(_spans(0, self.m), self._wedges, strict=True):
                outer = self._room(len(mine), wedge.shape[1])
                np.matmul(mine[:, :, i:j].transpose(0, 2, 1), mine[:, :, i:], out=outer.reshape(len(mine), j - i, -1))
                found[some] += outer @ wedge.T
        return 2.0 * found

    def _room(self, t: int, width: int) -> Array:
        return self._work[: t * width].reshape(t, width)


def _spans(start: int, stop: int) -> Iterator[tuple[int, int]]:
    return ((i, min(i + _ROWS, stop)) for i in range(start, stop, _ROWS))


def _parts(t: int) -> Iterator[slice]:
    return (slice(i, i + _TOGETHER) for i in range(0, t, _TOGETHER))
