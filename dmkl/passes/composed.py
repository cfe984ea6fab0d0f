"""Entrywise products of kernels, and kernels of several sets over the same records, computed tile by tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from dask.base import tokenize

from dmkl import settings
from dmkl.arrays import Array, Index, TileKey, Tiling
from dmkl.errors import refuse
from dmkl.passes.elements import raw_block
from dmkl.passes.view import Factors, TileSource, View


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
        parts = [(view.source.content_id, view.kernels, view.rows) for view in self.views]
        return f"composed({tokenize(parts, self.terms)})"

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        # A stored kernel that is no larger than a tile is read once for all tiles in a row.
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
        diagonals = []
        for view in self.views:
            of_source = view.source.diagonal(view.kernels)
            if of_source is None:
                return None
            diagonals.append(of_source[:, view.rows])
        every = np.concatenate(diagonals)
        return np.stack([np.prod(every[list(self.terms[k])], axis=0) for k in kernels])

    def row_sum(self, kernels: Index) -> Array | None:
        return None  # samples are repeated, and kernels multiplied

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.content_id


class GeometricMean:
    """The entrywise geometric mean of some kernels of a source, as a source of one kernel.

    (∏_j K_j)^(1/n) is computed through logarithms, which neither overflow nor underflow for any number of kernels.
    """

    def __init__(self, source: TileSource, kernels: Index) -> None:
        self.source, self.kernels = source, kernels
        self.names: tuple[str, ...] = ("product",)
        self.samples, self.train_samples = source.samples, source.train_samples
        self.dtype: np.dtype[Any] = source.dtype
        self.tiling: Tiling = source.tiling
        self.symmetric = source.symmetric
        self.content_id = f"geometric-mean({','.join(map(str, kernels))}) of {source.content_id}"
        self.reads_per_tile = len(kernels) * source.reads_per_tile
        self.scratch_bytes = 2 * 8 * self.tiling.tile**2 + source.scratch_bytes  # two tiles of logarithms
        self.factors: Factors | None = None

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        tiles = self.source.stream([(int(k), i, j) for _, i, j in keys for k in self.kernels])
        for key in keys:
            total = np.zeros(self.tiling.tile_shape(*key[1:]))
            for _ in self.kernels:
                (k, _, _), tile = next(tiles)
                total += self._log(tile, k)
            total /= len(self.kernels)
            yield key, np.exp(total, out=total).astype(self.dtype, copy=False)

    def _log(self, values: Array, k: int) -> Array:
        if float(values.min()) < 0:
            refuse(
                "the product (geometric mean) needs entries that are not negative, but kernel "
                f"{self.source.names[k]!r} has {values.min():.3g}; leave it out with select()"
            )
        with np.errstate(divide="ignore"):  # log 0 = −∞, and exp brings it back to 0
            return np.log(values, dtype=np.float64)

    def diagonal(self, kernels: Index) -> Array | None:
        diagonal = self.source.diagonal(self.kernels)
        if diagonal is None:
            return None
        logs = np.mean([self._log(d, int(k)) for d, k in zip(diagonal, self.kernels, strict=True)], axis=0)
        return np.repeat(np.exp(logs)[None], len(kernels), axis=0)

    def row_sum(self, kernels: Index) -> Array | None:
        return None  # the sum of products is not the product of sums

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.content_id
