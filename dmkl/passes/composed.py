"""Kernels of several sets over the same records, and entrywise products of them, computed tile by tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from dask.base import tokenize

from dmkl import settings
from dmkl.arrays import Array, Index, Tiling
from dmkl.passes.elements import raw_block
from dmkl.passes.view import Factors, TileKey, View


class Composed:
    """A source of products K_a ∘ K_b ∘ … of kernels of some square views without steps, each of the same shape.

    The kernels of all views are counted one after the other; each of `terms` names those that are multiplied entry by
    entry, a single one for a kernel itself. A product of positive semidefinite kernels is one (Schur). Views may repeat
    samples, which stores of other sizes hold once: m records of g genotypes in e environments take g² + e² stored
    numbers, and no matrix of m² is formed.
    """

    symmetric = True
    factors: Factors | None = None

    def __init__(
        self,
        views: Sequence[View],
        terms: Sequence[tuple[int, ...]],
        names: Sequence[str],
        samples: Array,
        individuals: Array,
    ) -> None:
        self.views, self.terms, self.names = tuple(views), tuple(terms), tuple(names)
        self.samples = self.train_samples = samples
        self.individuals = individuals  # of which the samples are records, by name
        m = len(samples)
        tile = max(settings.tile_size(m), *(view.source.tiling.tile for view in views))
        self.dtype: np.dtype[Any] = np.result_type(*(view.source.dtype for view in views))
        self.tiling = Tiling(m, m, min(tile, m), upper=True)
        self.kernels = [(view, int(k)) for view in views for k in view.kernels]
        self.reads_per_tile = max(map(len, terms)) * max(view.source.reads_per_tile for view in views)
        of_sources = max(view.source.scratch_bytes for view in views)
        self.scratch_bytes = (1 + max(map(len, terms))) * self.tiling.tile**2 * self.dtype.itemsize + of_sources

    @cached_property
    def content_id(self) -> str:
        """See `TileSource`."""
        parts = [(view.source.content_id, view.kernels, view.rows) for view in self.views]
        return f"composed({tokenize(parts, self.terms)})"

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """See `TileSource`. A stored kernel that is no larger than a tile is read once for all tiles in a row."""
        whole: dict[int, Array | None] = {}
        for key in keys:
            k, i, j = key
            at = self.tiling.row_slice(i), self.tiling.col_slice(j)
            whole = {kernel: whole[kernel] if kernel in whole else self._small(kernel) for kernel in self.terms[k]}
            first, *others = (self._block(kernel, whole[kernel], *at) for kernel in self.terms[k])
            total = first.astype(self.dtype, copy=False)
            for block in others:
                total = np.multiply(total, block, out=total)
            yield key, total

    def _small(self, kernel: int) -> Array | None:
        view, k = self.kernels[kernel]
        every = np.arange(view.source.tiling.rows)
        return raw_block(view, k, every, every) if len(every) <= self.tiling.tile else None

    def _block(self, kernel: int, whole: Array | None, rows: slice, cols: slice) -> Array:
        view, k = self.kernels[kernel]
        at = view.rows[rows], view.cols[cols]
        return raw_block(view, k, *at) if whole is None else whole[np.ix_(*at)]

    def diagonal(self, kernels: Index) -> Array | None:
        """See `TileSource`."""
        diagonals = []
        for view in self.views:
            of_source = view.source.diagonal(view.kernels)
            if of_source is None:
                return None
            diagonals.append(of_source[:, view.rows])
        every = np.concatenate(diagonals)
        return np.stack([np.prod(every[list(self.terms[k])], axis=0) for k in kernels])

    def row_sum(self, kernels: Index) -> Array | None:
        """See `TileSource`: not available, since samples are repeated and kernels multiplied."""
        return None

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.content_id
