"""A kernel that is a function of other kernels' entries, computed tile by tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.errors import InputError
from dmkl.numerics.tiling import Tiling
from dmkl.passes.view import TileKey, TileSource

__all__ = ["GeometricMean"]


class GeometricMean:
    """The entrywise geometric mean of some kernels of a source, as a source of one kernel.

    (∏_j K_j)^(1/n), through logarithms, which neither overflow nor vanish however many kernels there are.
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

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """See `TileSource`."""
        tiles = self.source.stream([(int(k), i, j) for _, i, j in keys for k in self.kernels])
        for key in keys:
            total: Array | None = None
            for _ in self.kernels:
                (k, _, _), tile = next(tiles)
                logs = self._log(tile, k)
                total = logs if total is None else np.add(total, logs, out=total)
            assert total is not None
            total /= len(self.kernels)
            yield key, np.exp(total, out=total).astype(self.dtype, copy=False)

    def _log(self, values: Array, k: int) -> Array:
        if float(values.min()) < 0:
            msg = (
                "the product (geometric mean) needs entries that are not negative, but kernel "
                f"{self.source.names[k]!r} has {values.min():.3g}; leave it out with select()"
            )
            raise InputError(msg)
        with np.errstate(divide="ignore"):  # log 0 = −∞, and exp brings it back to 0
            return np.log(values, dtype=np.float64)

    def diagonal(self, kernels: Index) -> Array | None:
        """See `TileSource`."""
        diagonal = self.source.diagonal(self.kernels)
        if diagonal is None:
            return None
        logs = np.mean([self._log(d, int(k)) for d, k in zip(diagonal, self.kernels, strict=True)], axis=0)
        return np.repeat(np.exp(logs)[None], len(kernels), axis=0)

    def row_sum(self, kernels: Index) -> Array | None:
        """See `TileSource`: not known, the sum of products is no product of sums."""
        return None

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.content_id
