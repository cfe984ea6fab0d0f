"""Columns of a combined kernel that lies on disk, read as they are asked for: for solvers that need a few at a time."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.passes.combine import StoredSum
from dmkl.passes.sums import sum_order

__all__ = ["SumColumns"]


class SumColumns:
    """K(β) of a stored sum, after its chain of steps, as columns and products: `size` samples, m.

    The sum is stored before centering where the chain is the same for all kernels; then K = raw − u1ᵀ − 1uᵀ + c, with u
    and c from products of the raw sum with one vector for each centering. The matrix itself is never in memory.
    """

    def __init__(self, total: StoredSum) -> None:
        self._total = total
        # The raw row of each sample of the view.
        self._chosen = np.argsort(sum_order(total.lens).order)
        n_raw = len(self._chosen)
        self._offset, self._constant = np.zeros(n_raw), 0.0
        self._scale: Float | None = None
        if total.lens.fitted.same_for_all:
            total.lens.fitted.apply_to(self)
        self.size = len(self._chosen)

    @cached_property
    def diagonal(self) -> Float:
        """k(x, x) of each sample, (m,)."""
        diagonal = np.empty(len(self._offset))
        for tile in self._total.read():
            if tile.rows == tile.cols:
                diagonal[tile.rows] = tile.entries.diagonal()
        found = (diagonal - 2.0 * self._offset + self._constant)[self._chosen]
        return np.asarray(found if self._scale is None else found * self._scale**2)

    def __call__(self, columns: Index) -> Float:
        """K[:, columns], (m, columns): every tile that holds one of them is read, from the page cache at best."""
        wanted = self._chosen[columns]
        raw = np.empty((len(self._offset), len(wanted)))
        for rows, cols, entries in self._total.read():
            for these, others, part in ((cols, rows, entries), (rows, cols, entries.T)):
                mine = np.flatnonzero((wanted >= these.start) & (wanted < these.stop))
                if len(mine):
                    raw[others, mine] = part[:, wanted[mine] - these.start]
                if rows == cols:
                    break
        raw -= self._offset[:, None]
        raw += (self._constant - self._offset[wanted])[None, :]
        found = raw[self._chosen]
        return found if self._scale is None else found * self._scale[:, None] * self._scale[columns]

    def product(self, v: Float) -> Float:
        """K v for v (m,) or (m, c), one reading of the sum."""
        if self._scale is None:
            return self._centered_product(self._spread(v))[self._chosen]
        factor = self._scale.reshape(-1, *(1,) * (v.ndim - 1))
        return factor * self._centered_product(self._spread(factor * v))[self._chosen]

    def center(self, weights: Float | None = None) -> None:
        """Center the matrix over its samples, as a step of the chain."""
        mean = self._spread(np.full(len(self._chosen), 1.0 / len(self._chosen)) if weights is None else weights)
        if self._scale is not None:
            msg = "a sum on disk is centered before it is scaled, not after"
            raise NotImplementedError(msg)
        means = self._centered_product(mean)
        self._offset = self._offset + means
        self._constant += float(means @ mean)

    def scale(self, factor: Float) -> None:
        """Multiply rows and columns by numbers, as the last step of the chain that does so."""
        self._scale = factor if self._scale is None else self._scale * factor

    def take(self, positions: Index) -> None:
        """Keep the samples at these positions, as a step of the chain."""
        self._chosen = self._chosen[positions]
        self._scale = None if self._scale is None else self._scale[positions]

    def _spread(self, v: Float) -> Float:
        """A vector over the samples as one over the raw rows."""
        spread = np.zeros((len(self._offset), *v.shape[1:]))
        np.add.at(spread, self._chosen, v)  # samples may repeat
        return spread

    def _centered_product(self, v: Float) -> Float:
        """The product of the sum, as it is centered so far, with a vector over the raw rows."""
        found = np.zeros(v.shape)
        for rows, cols, entries in self._total.read():
            found[rows] += entries @ v[cols]
            if rows != cols:
                found[cols] += entries.T @ v[rows]
        offset = self._offset.reshape(-1, *(1,) * (v.ndim - 1))
        whole = v.sum(axis=0)
        return np.asarray(found - offset * whole - self._offset @ v + self._constant * whole)
