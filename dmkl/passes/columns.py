"""Columns of a combined kernel that lies on disk, read as they are asked for: for solvers that need a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.passes.combine import StoredSum

__all__ = ["SumColumns"]

Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


class SumColumns:
    """K(β) of a stored sum, after its chain of steps, as columns.

    The sum is stored before centring where the chain is the same for all kernels; then K = raw − u1ᵀ − 1uᵀ + c, with u
    and c from products of the raw sum with one vector for each centring. The matrix itself is never in memory.

    Parameters
    ----------
    total
        The sum.

    Attributes
    ----------
    size : int
        Samples, m.
    diagonal : ndarray
        (m,)
    """

    def __init__(self, total: StoredSum) -> None:
        self._total = total
        order, n_raw = total.places()
        # Where each raw row stands among the samples of the view, turned around.
        self._chosen = np.empty(n_raw, dtype=np.int64)
        self._chosen[order] = np.arange(n_raw)
        self._offset, self._constant = np.zeros(n_raw), 0.0
        if total.lens.fitted.same_for_all:
            total.lens.fitted.apply_to(self)
        self.size = len(self._chosen)
        diagonal = np.empty(n_raw)
        for rows, cols, block in self._blocks():
            if rows == cols:
                diagonal[rows] = block.diagonal()
        self.diagonal: Float = (diagonal - 2.0 * self._offset + self._constant)[self._chosen]

    def __call__(self, columns: Index) -> Float:
        """K[:, columns], (m, columns): every tile that holds one of them is read, from the page cache at best."""
        wanted = self._chosen[columns]
        n_raw = len(self._offset)
        raw = np.empty((n_raw, len(wanted)))
        for rows, cols, block in self._blocks():
            for these, others, part in ((cols, rows, block), (rows, cols, block.T)):
                mine = np.flatnonzero((wanted >= these.start) & (wanted < these.stop))
                if len(mine):
                    raw[others, mine] = part[:, wanted[mine] - these.start]
                if rows == cols:
                    break
        raw -= self._offset[:, None]
        raw += (self._constant - self._offset[wanted])[None, :]
        return raw[self._chosen]

    def product(self, v: Float) -> Float:
        """K v for v (m,), one reading of the sum."""
        spread = np.zeros(len(self._offset))
        np.add.at(spread, self._chosen, v)
        found = self._raw_product(spread) - self._offset * v.sum() - self._offset @ spread + self._constant * v.sum()
        return np.asarray(found[self._chosen])

    def center(self) -> None:
        """Center the matrix over its samples, as a step of the chain."""
        share = np.zeros(len(self._offset))
        np.add.at(share, self._chosen, 1.0 / len(self._chosen))
        means = self._raw_product(share) - self._offset - self._offset @ share + self._constant
        self._offset = self._offset + means
        self._constant += float(means @ share)

    def take(self, positions: Index) -> None:
        """Keep the samples at these positions, as a step of the chain."""
        self._chosen = self._chosen[positions]

    def _raw_product(self, v: Float) -> Float:
        found = np.zeros(len(v))
        for rows, cols, block in self._blocks():
            found[rows] += block @ v[cols]
            if rows != cols:
                found[cols] += block.T @ v[rows]
        return found

    def _blocks(self) -> Iterator[tuple[slice, slice, Any]]:
        yield from self._total.blocks(mmap_mode="r")
