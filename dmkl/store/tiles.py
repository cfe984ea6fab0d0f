"""The tiles of a stored set as bytes: mapped from files, fetched from URLs, and written one by one."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from dmkl.arrays import Array, Tiling
from dmkl.files.arrays import crc32c
from dmkl.files.regular import check_plain
from dmkl.files.urls import is_url
from dmkl.store.zarr_groups import ROOT, zarr_store

_RANGE_BYTES = 4 * 2**20  # bytes of one request: a chunk of 16 MiB takes four concurrent requests
_FETCHES = 8  # chunks of a set that a process fetches at a time: those that its tasks work on, and as many ahead

FileVersion = tuple[int, int]
"""Inode and time of the last change of a file."""


def file_version(stat: os.stat_result) -> FileVersion:
    """The version of a file, from the result of `os.stat`."""
    return stat.st_ino, stat.st_mtime_ns


def root_version(location: str | Store) -> FileVersion | None:
    """The version of the root of a local folder, or of an archive; None for other locations, and if there is none."""
    if isinstance(location, Store) or is_url(location):
        return None
    try:
        return file_version(os.stat(location if os.path.isfile(location) else os.path.join(location, ROOT)))
    except OSError:
        return None


def _is_plain(gram: Any) -> bool:
    """Whether a chunk is the bytes of the tile and their checksum."""
    # The codecs as the format writes them: attributes of Zarr's classes change their types between its releases.
    codecs = [codec.to_dict() for codec in gram.metadata.codecs]
    return (
        sys.byteorder == "little"
        and gram.metadata.encode_chunk_key((0, 0, 0)) == "c/0/0/0"
        and codecs == [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    )


def chunk_folder(gram: Any) -> str | None:
    """The folder of the chunks, if a chunk's file is the bytes of the tile and their checksum; else None."""
    store = gram.store
    return str(Path(store.root) / gram.path / "c") if isinstance(store, LocalStore) and _is_plain(gram) else None


ChunkReader = Callable[[Sequence[int], int], Any]
"""Begins to read a chunk, from its position and the number of bytes that it should have.

It returns the bytes with the version of their file, or instead the number of bytes that it has, or a future of either.
"""


def chunk_reader(gram: Any) -> ChunkReader | None:
    """Reads the bytes of chunks; None if Zarr has to decode them."""
    if chunk_folder(gram) is not None:
        return partial(_map, str(gram.store.root), f"{gram.path}/c")
    if isinstance(gram.store, FsspecStore) and _is_plain(gram):
        pool, prefix = ThreadPoolExecutor(_FETCHES, "dmkl-fetch"), f"{gram.path}/c/".lstrip("/")
        return lambda key, n_bytes: pool.submit(sync, _fetch(gram.store, prefix + "/".join(map(str, key)), n_bytes))
    return None


def _map(root: str, prefix: str, key: Sequence[int], n_bytes: int) -> tuple[mmap.mmap, FileVersion] | int:
    """Map a file into memory without a copy, and ask the kernel to read it ahead; raises as `check_plain`."""
    name = f"{prefix}/{'/'.join(map(str, key))}"
    check_plain(root, name)
    descriptor = os.open(f"{root}/{name}", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        stat = os.fstat(descriptor)
        if stat.st_size != n_bytes:
            return stat.st_size
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    if hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    return mapped, file_version(stat)


async def _fetch(store: FsspecStore, name: str, n_bytes: int) -> tuple[npt.NDArray[np.uint8], None] | int:
    """Fetch an object in concurrent ranges."""
    whole = np.empty(n_bytes, dtype=np.uint8)
    # One byte more than expected shows whether the object is longer.
    edges = [*range(0, n_bytes, _RANGE_BYTES), n_bytes + 1]
    if len(edges) > 2 and edges[-1] - edges[-2] < _RANGE_BYTES // 2:
        del edges[-2]

    async def fetch_range(start: int, stop: int) -> int:
        buffer = await store.get(name, default_buffer_prototype(), RangeByteRequest(start, stop))
        if buffer is None:
            raise FileNotFoundError(name)
        part = np.asarray(buffer.as_numpy_array(), dtype=np.uint8)[: n_bytes - start]
        whole[start : start + len(part)] = part
        return len(buffer)

    size = sum(await asyncio.gather(*itertools.starmap(fetch_range, itertools.pairwise(edges))))
    return (whole, None) if size == n_bytes else size


class TileWriter:
    """Writes the tiles of an unfinished kernel set, from any process. A pickled copy opens the set on arrival."""

    def __init__(self, target: str | Store, node: str, tiling: Tiling) -> None:
        self.target, self.node, self.tiling = target, node, tiling
        self._gram: Any = zarr.open_group(zarr_store(target), mode="r+", zarr_format=3, use_consolidated=False)[node]
        self._folder = chunk_folder(self._gram)

    def __reduce__(self) -> tuple[Any, ...]:
        return TileWriter, (self.target, self.node, self.tiling)

    def write(self, j: int, row: int, col: int, block: Array) -> int:
        """Write one tile of kernel j in one atomic step; returns its checksum without padding."""
        block = np.ascontiguousarray(block)
        checksum = crc32c(block)
        if self._folder is None:
            self._gram[j, self.tiling.row_slice(row), self.tiling.col_slice(col)] = block
            return checksum
        # The same bytes as Zarr writes, without its two copies of the tile.
        padded, side = block, self.tiling.tile
        if block.shape != (side, side):
            padded = np.pad(block, [(0, side - length) for length in block.shape], constant_values=np.nan)
        path = f"{self._folder}/{j}/{row}/{col}"
        # No parents of the chunks' folder are made: that would bring back a set that was abandoned meanwhile.
        for folder in (self._folder, f"{self._folder}/{j}", os.path.dirname(path)):
            Path(folder).mkdir(exist_ok=True)
        written = f"{path}.{uuid.uuid4().hex}.partial"
        try:
            with open(written, "xb") as file:
                file.write(padded.data)
                file.write((checksum if padded is block else crc32c(padded)).to_bytes(4, "little"))
            os.replace(written, path)
        except BaseException:
            Path(written).unlink(missing_ok=True)
            raise
        return checksum

    def read(self, j: int, row: int, col: int) -> Array:
        """Read a tile that was written."""
        return np.asarray(self._gram[j, self.tiling.row_slice(row), self.tiling.col_slice(col)])

    def has(self, j: int, row: int, col: int) -> bool:
        """Whether a tile was written, with all its bytes; always true unless tiles are files."""
        if self._folder is None:
            return True
        try:
            size = os.path.getsize(f"{self._folder}/{j}/{row}/{col}")
        except OSError:
            return False
        return bool(size == self.tiling.tile**2 * self._gram.dtype.itemsize + 4)  # and its checksum

    def read_written(self, j: int, row: int, col: int) -> Array | None:
        """Read a tile that an interrupted run has written; None if there is none or it is damaged.

        Only for local folders: elsewhere every tile of an unfinished kernel is written again.
        """
        if self._folder is None or not self.has(j, row, col):
            return None
        try:
            block = self.read(j, row, col)
        except (ValueError, RuntimeError):  # its checksum fails
            return None
        return None if np.isnan(block).any() else block
