"""Kernel sets in memory, with the methods of writers and readers of stored sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Index, TileKey
from dmkl.files.arrays import crc32c
from dmkl.inputs.labels import labels_in
from dmkl.store.format import Header, content_id, text_array


class MemorySet:
    """Kernels whose tiles are arrays of this process: a `StoreWriter` and `TileSource`. A pickle holds all of them."""

    reads_per_tile, scratch_bytes = 1, 0
    factors: Any = None

    def __init__(self, header: Header) -> None:
        self.header, self.tiling = header, header.tiling
        self.dtype, self.symmetric = np.dtype(header.dtype), header.symmetric
        self._tiles: dict[TileKey, Array] = {}
        self._row_sum: list[Array] = []
        self._diagonal: list[Array] = []
        self.provenance: list[dict[str, Any]] = []

    def is_done(self, j: int, identity: dict[str, Any] | None) -> bool:
        return False  # nothing is left of an earlier import

    def begin_kernels(self, provenances: Mapping[int, dict[str, Any]]) -> None:
        """A kernel that is begun again replaces the one before."""
        for j, provenance in provenances.items():
            self.provenance[j:] = [provenance]

    def add_provenance(self, j: int, more: Mapping[str, Any]) -> None:
        self.provenance[j] |= more

    def write_tile(self, j: int, row: int, col: int, block: Array) -> None:
        """Keep a copy of a tile, which nobody can change."""
        tile = np.array(block, dtype=self.dtype, order="C")
        tile.flags.writeable = False
        self._tiles[j, row, col] = tile

    def read_tile(self, j: int, row: int, col: int) -> Array:
        return self._tiles[j, row, col]

    def end_kernel(self, j: int, row_sum: Array, diagonal: Array | None) -> None:
        self._row_sum.append(row_sum)
        self._diagonal += [] if diagonal is None else [diagonal]

    def finish(self, names: Sequence[str], labels: Mapping[str, Array | None]) -> MemorySet:
        """The set with the names and labels that a stored one would have."""
        values: dict[str, Any] = {
            name: None if array is None else text_array(array) if array.dtype.kind in "OUST" else np.array(array)
            for name, array in labels.items()
        }
        self.names = tuple(names)
        self.samples: Array = values["sample"]
        self.train_samples: Array = self.samples if values["train_sample"] is None else values["train_sample"]
        self.labels = labels_in(values)
        self.tasks, self.splits = values["task"], values["split"]
        self.provenance = [{"name": name} | provenance for name, provenance in zip(names, self.provenance, strict=True)]
        return self

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        return ((key, self._tiles[key]) for key in keys)

    def diagonal(self, kernels: Index) -> Array | None:
        return np.array([self._diagonal[k] for k in kernels]) if self._diagonal else None

    def row_sum(self, kernels: Index) -> Array | None:
        return np.array([self._row_sum[k] for k in kernels])

    def tile_crc32c(self) -> npt.NDArray[np.uint32]:
        table = np.zeros((len(self.names), *self.tiling.shape), dtype=np.uint32)
        for key, tile in self._tiles.items():
            table[key] = crc32c(tile)
        return table

    @cached_property
    def content_id(self) -> str:
        """That of the same set on disk."""
        return content_id(self.names, self.tile_crc32c())

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self.content_id
