"""Zarr stores in folders of unknown origin, and checks of what their chunks unpack to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from zarr.storage import LocalStore

from dmkl import settings
from dmkl.arrays import n_bytes
from dmkl.errors import DamagedFileError, refuse
from dmkl.files.regular import check_plain

_SMALL_BYTES = 2**24  # Bytes of files that every computation may hold in memory.
_HEAD_BYTES = 32
_TEXT_GROWTH = 16  # Most bytes of memory that a byte of a chunk of short texts takes as Python objects.
_SLACK_BYTES = 2**20  # Bytes that filters may add to a chunk.
TEXT_BYTES = 64
"""Memory that a string of an array takes at most in addition to its characters."""


class PlainStore(LocalStore):
    """A Zarr store in a folder, which reads only regular files that fit the memory budget."""

    def _check(self, key: str, byte_range: Any) -> None:
        size = check_plain(self.root, key)
        # Asking for the budget reads the limits of the machine, which takes longer than a small file.
        if byte_range is None and size > _SMALL_BYTES and size > (budget := settings.memory_budget_bytes()):
            most = f"more than a computation may hold in memory (the setting dmkl.memory, {budget:.3g} bytes)"
            what = f"{self.root}/{key} has {size:.3g} bytes, {most}"
            refuse(f"{what}; it is damaged, or allow more", kind=DamagedFileError)

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """A file, or a part of it; None if there is none."""
        self._check(key, byte_range)
        return await super().get(key, prototype, byte_range)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """A file, or a part of it; None if there is none."""
        self._check(key, byte_range)
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> Any:
        """Parts of files."""
        parts = list(key_ranges)
        for key, byte_range in parts:
            self._check(key, byte_range)
        return await super().get_partial_values(prototype, parts)


def ranges_of(shape: Sequence[int], key: Any) -> list[range]:
    """Return the positions that a key of Ellipsis, slices, positions or arrays of these spans along each axis."""
    parts = () if key is Ellipsis else key if isinstance(key, tuple) else (key,)
    ranges = []
    for length, part in zip(shape, (*parts, *[slice(None)] * (len(shape) - len(parts))), strict=False):
        positions = np.zeros(0) if isinstance(part, slice) else np.atleast_1d(part)
        spanned = range(int(positions.min()), int(positions.max()) + 1) if positions.size else range(0)
        ranges.append(range(*part.indices(length)) if isinstance(part, slice) else spanned)
    return ranges


def check_chunks(array: Any, key: Any, what: str) -> None:
    """Refuse chunks in a local folder that are larger, or unpack to far more, than a chunk of the array.

    Decoders allocate the size that the first bytes of a chunk state.
    """
    if not isinstance(array.store, LocalStore):
        return
    shards = getattr(array, "shards", None)  # a shard is a file of several chunks
    # Those of checksums, which follow, leave the first bytes as they are.
    compressors = (
        [] if shards else [codec for codec in array.compressors if "crc32" not in type(codec).__name__.lower()]
    )
    codec = getattr(compressors[-1], "codec_id", type(compressors[-1]).__name__) if compressors else ""
    stated_bytes = next((size_of for name, size_of in _STATED_SIZES.items() if name in codec.lower()), None)
    texts = array.dtype.kind in "OT"  # their length is limited by the memory alone
    sizes = (n_bytes(shape, array.dtype.itemsize) for shape in (shards or array.chunks, array.chunks))
    most_stored, most = (2 * size + _SLACK_BYTES for size in sizes)
    for place, path in chunk_files(array, key):
        size = check_plain(array.store.root, path.relative_to(array.store.root).as_posix())
        if size > most_stored and not texts:
            refuse(f"{what} is damaged: its chunk {place} has {size} bytes, expected at most {most_stored}")
        if stated_bytes is None or not size:  # a missing chunk holds the fill value
            continue
        with path.open("rb") as file:
            stated = stated_bytes(file.read(_HEAD_BYTES))
        if stated > most and not (texts and stated <= settings.memory_budget_bytes() // _TEXT_GROWTH):
            refuse(f"{what} is damaged: its chunk {place} claims to unpack to {stated} bytes, expected at most {most}")


def chunk_files(array: Any, key: Any) -> Iterator[tuple[tuple[int, ...], Path]]:
    """Return the positions and files of the chunks, or shards, of a part of an array in a local folder."""
    folder = Path(array.store.root) / array.path
    spans = [
        range(part.start // chunk, -(-part.stop // chunk)) if part.stop > part.start else range(0)
        for part, chunk in zip(ranges_of(array.shape, key), getattr(array, "shards", None) or array.chunks, strict=True)
    ]
    for place in itertools.product(*spans):
        yield place, folder / array.metadata.encode_chunk_key(place)


def _zstd(head: bytes) -> int:
    """Return the content size of a frame (RFC 8878, 3.1.1.1); 0 if it states none."""
    if head[:4] != b"\x28\xb5\x2f\xfd" or len(head) < 6:
        return 0
    single = head[4] >> 5 & 1
    start = 5 + (1 - single) + (0, 1, 2, 4)[head[4] & 3]
    size = (single, 2, 4, 8)[head[4] >> 6]
    return int.from_bytes(head[start : start + size], "little") + (256 if size == 2 else 0)


_STATED_SIZES: dict[str, Callable[[bytes], int]] = {
    "blosc": lambda head: int.from_bytes(head[4:8], "little"),
    "lz4": lambda head: int.from_bytes(head[:4], "little"),
    "zstd": _zstd,
}
