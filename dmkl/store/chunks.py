"""The bytes of tiles that are stored as they are, each with its checksum: mapped from a file, or fetched from a URL."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from zarr.abc.store import RangeByteRequest
from zarr.codecs import BytesCodec, Crc32cCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from dmkl.files.plain import check_plain
from dmkl.store.opening import FileMark, mark_of

__all__ = ["FetchedChunks", "MappedChunks", "plain_chunks", "plain_folder"]

_RANGE_BYTES = 4 * 2**20
"""What one request fetches: a chunk of 16 MiB comes by four of them, side by side."""
_FETCHES = 8
"""Chunks that a process fetches of a set at a time: as many as its tasks work on, and as many ahead."""


def _is_plain(gram: Any) -> bool:
    """Whether a chunk is the tile's bytes and its checksum."""
    codecs = gram.metadata.codecs
    return (
        sys.byteorder == "little"
        and gram.metadata.encode_chunk_key((0, 0, 0)) == "c/0/0/0"
        and len(codecs) == 2
        and isinstance(codecs[0], BytesCodec)
        and codecs[0].endian is not None
        and codecs[0].endian.value == "little"
        and isinstance(codecs[1], Crc32cCodec)
    )


def plain_folder(gram: Any) -> str | None:
    """The folder of the chunks, where a chunk's file is the tile's bytes and its checksum; else None."""
    store = gram.store
    return str(Path(store.root) / gram.path / "c") if isinstance(store, LocalStore) and _is_plain(gram) else None


def plain_chunks(gram: Any) -> MappedChunks | FetchedChunks | None:
    """Where the chunks' bytes come from; None where Zarr has to decode them."""
    if plain_folder(gram) is not None:
        return MappedChunks(str(gram.store.root), f"{gram.path}/c")
    if isinstance(gram.store, FsspecStore) and _is_plain(gram):
        return FetchedChunks(gram.store, f"{gram.path}/c".lstrip("/"), ThreadPoolExecutor(_FETCHES, "dmkl-fetch"))
    return None


@dataclass(frozen=True)
class MappedChunks:
    """Files of a folder, mapped into memory and never copied; the kernel is asked to read them ahead."""

    root: str
    """The folder of the set."""
    prefix: str
    """Where chunks lie in it."""

    def begin(self, key: Sequence[int], n_bytes: int) -> tuple[mmap.mmap, FileMark] | int:
        """A chunk that is expected to have so many bytes, with what its file is known by, or the bytes that it has.

        FileNotFoundError is raised without one, and DamagedFileError where it is no regular file.
        """
        name = f"{self.prefix}/{'/'.join(map(str, key))}"
        check_plain(self.root, name)
        path = f"{self.root}/{name}"
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            told = os.fstat(descriptor)
            if told.st_size != n_bytes:
                return told.st_size
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        if hasattr(mmap, "MADV_WILLNEED"):
            mapped.madvise(mmap.MADV_WILLNEED)
        return mapped, mark_of(told)

    def finish(self, begun: tuple[mmap.mmap, FileMark] | int) -> tuple[mmap.mmap, FileMark] | int:
        """What `begin` returned."""
        return begun


@dataclass(frozen=True)
class FetchedChunks:
    """Objects of a store, fetched by other threads in ranges side by side."""

    store: FsspecStore
    prefix: str
    pool: ThreadPoolExecutor

    def begin(self, key: Sequence[int], n_bytes: int) -> Future[npt.NDArray[np.uint8] | int]:
        """Ask for a chunk that is expected to have so many bytes."""
        return self.pool.submit(sync, self._fetch(f"{self.prefix}/{'/'.join(map(str, key))}", n_bytes))

    def finish(self, begun: Future[npt.NDArray[np.uint8] | int]) -> tuple[npt.NDArray[np.uint8], None] | int:
        """Wait for a chunk; the bytes that it has, where they are fewer, or more, than expected."""
        found = begun.result()
        return found if isinstance(found, int) else (found, None)

    async def _fetch(self, name: str, n_bytes: int) -> npt.NDArray[np.uint8] | int:
        whole = np.empty(n_bytes, dtype=np.uint8)
        # One byte more than there is to be tells a longer object.
        edges = [*range(0, n_bytes, _RANGE_BYTES), n_bytes + 1]
        if len(edges) > 2 and edges[-1] - edges[-2] < _RANGE_BYTES // 2:
            del edges[-2]
        sizes = await asyncio.gather(*(self._range(name, a, b, whole) for a, b in itertools.pairwise(edges)))
        size = sum(sizes)
        return whole if size == n_bytes else size

    async def _range(self, name: str, start: int, stop: int, whole: npt.NDArray[np.uint8]) -> int:
        found = await self.store.get(name, default_buffer_prototype(), RangeByteRequest(start, stop))
        if found is None:
            raise FileNotFoundError(name)
        part = np.asarray(found.as_numpy_array(), dtype=np.uint8)[: len(whole) - start]
        whole[start : start + len(part)] = part
        return len(found)
