"""Writing single tiles of a kernel set, from the process that begins it or from any task that sees it."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store

from dmkl.arrays import Array
from dmkl.files.checksums import crc32c
from dmkl.numerics.tiling import Tiling
from dmkl.store.chunks import plain_folder
from dmkl.store.objects import zarr_store

__all__ = ["TileWriter"]


class TileWriter:
    """The tiles of an unfinished kernel set. Cheap to pickle: a copy opens the set again where it arrives."""

    def __init__(self, target: str | Store, node: str, tiling: Tiling) -> None:
        self.target, self.node, self.tiling = target, node, tiling
        self._gram: Any = zarr.open_group(zarr_store(target), mode="r+", zarr_format=3, use_consolidated=False)[node]
        self._files = plain_folder(self._gram)
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return TileWriter, (self.target, self.node, self.tiling)

    def write(self, j: int, row: int, col: int, block: Array) -> int:
        """Write one tile of kernel j in one atomic step; returns its checksum without padding."""
        block = np.ascontiguousarray(block)
        checksum = crc32c(block)
        if self._files is None:
            self._gram[j, self.tiling.row_slice(row), self.tiling.col_slice(col)] = block
            return checksum
        # As Zarr does it, without its two copies of the tile.
        whole = self._padded(block)
        path = f"{self._files}/{j}/{row}/{col}"
        # One after another, and not those above: a set that was given up meanwhile is not begun again.
        for folder in (self._files, f"{self._files}/{j}", os.path.dirname(path)):
            Path(folder).mkdir(exist_ok=True)
        written = f"{path}.{uuid.uuid4().hex}.partial"
        try:
            with open(written, "xb") as file:
                file.write(whole.data)
                file.write((checksum if whole is block else crc32c(whole)).to_bytes(4, "little"))
            os.replace(written, path)
        except BaseException:
            Path(written).unlink(missing_ok=True)
            raise
        return checksum

    def _padded(self, block: Array) -> Array:
        """A ragged tile with NaN to the full side, in an array that this thread uses again and again."""
        side, (rows, cols) = self.tiling.tile, block.shape
        if block.shape == (side, side):
            return block
        if not hasattr(self._local, "padded"):
            self._local.padded = np.empty((side, side), block.dtype)
        whole: Array = self._local.padded
        whole[:rows, :cols] = block
        whole[:rows, cols:] = np.nan
        whole[rows:] = np.nan
        return whole

    def read(self, j: int, row: int, col: int) -> Array:
        """Read back a tile that was written."""
        return np.asarray(self._gram[j, self.tiling.row_slice(row), self.tiling.col_slice(col)])

    def standing(self, j: int, row: int, col: int) -> Array | None:
        """A tile that an interrupted run has written whole; None where there is none, or a damaged one.

        Known of local folders alone: elsewhere every tile of an unfinished kernel is written anew.
        """
        if self._files is None or not os.path.exists(f"{self._files}/{j}/{row}/{col}"):
            return None
        try:
            block = self.read(j, row, col)
        except (ValueError, RuntimeError):  # its checksum fails
            return None
        return None if np.isnan(block).any() else block
