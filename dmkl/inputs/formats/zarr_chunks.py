"""What the chunks of a Zarr array say that they unpack to, read from their first bytes before any is unpacked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from zarr.storage import LocalStore

from dmkl.errors import InputError
from dmkl.files.plain import check_plain
from dmkl.inputs.formats.limits import n_bytes, ranges_of

__all__ = ["check_chunks", "is_written"]

_HEAD_BYTES = 32
_MOST_LOOKED_FOR = 100_000
"""Files that are looked for: that many without one are no array that anybody has written."""
_SLACK_BYTES = 2**20
"""What filters may add to a chunk."""


def check_chunks(array: Any, key: Any, what: str) -> None:
    """Refuse chunks in a local folder that are, or claim to unpack to, far more than a chunk of the array holds.

    Raises
    ------
    InputError
        If one does.
    DamagedFileError
        If one is no regular file.
    """
    told = _CLAIMS.get(_compressor(array))
    if not isinstance(array.store, LocalStore):
        return
    texts = array.dtype.kind in "OT"  # whose length nothing bounds but the memory
    stored = getattr(array, "shards", None) or array.chunks
    most_stored = 2 * n_bytes(stored, array.dtype.itemsize) + _SLACK_BYTES
    most = 2 * n_bytes(array.chunks, array.dtype.itemsize) + _SLACK_BYTES
    for place, path in _files(array, key):
        size = check_plain(array.store.root, path.relative_to(array.store.root).as_posix())
        if size > most_stored and not texts:
            msg = f"{what} is damaged: its chunk {place} has {size} bytes, expected at most {most_stored}"
            raise InputError(msg)
        if told is None or not size:  # a chunk that is not there holds the fill value
            continue
        with path.open("rb") as file:
            claimed = told(file.read(_HEAD_BYTES))
        if claimed > most:
            msg = f"{what} is damaged: its chunk {place} claims to unpack to {claimed} bytes, expected at most {most}"
            raise InputError(msg)


def is_written(array: Any, key: Any) -> bool:
    """Whether any chunk of a part of an array is there, or that is not known; a part without holds the fill value."""
    return not isinstance(array.store, LocalStore) or any(
        path.exists() for _, path in itertools.islice(_files(array, key), _MOST_LOOKED_FOR)
    )


def _files(array: Any, key: Any) -> Iterator[tuple[tuple[int, ...], Path]]:
    """The chunks, or shards, of a part of an array in a local folder: their places, and their files."""
    folder = Path(array.store.root) / array.path
    stored = getattr(array, "shards", None) or array.chunks
    spans = [
        range(part.start // chunk, -(-part.stop // chunk)) if part.stop > part.start else range(0)
        for part, chunk in zip(ranges_of(array.shape, key), stored, strict=True)
    ]
    for place in itertools.product(*spans):
        yield place, folder / array.metadata.encode_chunk_key(place)


def _compressor(array: Any) -> str:
    """The name of the last codec that compresses; "" where none does, or where chunks lie within shards."""
    codecs: Sequence[Any] = array.compressors
    if not codecs or getattr(array, "shards", None):
        return ""
    config = getattr(codecs[-1], "codec_id", None)
    return str(config or type(codecs[-1]).__name__.removesuffix("Codec")).lower().removeprefix("numcodecs.")


def _blosc(head: bytes) -> int:
    return int.from_bytes(head[4:8], "little")


def _lz4(head: bytes) -> int:
    return int.from_bytes(head[:4], "little")


def _zstd(head: bytes) -> int:
    """The content size of a frame (RFC 8878, 3.1.1.1); 0 where it has none."""
    if head[:4] != b"\x28\xb5\x2f\xfd" or len(head) < 6:
        return 0
    single = head[4] >> 5 & 1
    start = 5 + (1 - single) + (0, 1, 2, 4)[head[4] & 3]
    size = (single, 2, 4, 8)[head[4] >> 6]
    return int.from_bytes(head[start : start + size], "little") + (256 if size == 2 else 0)


_CLAIMS: dict[str, Callable[[bytes], int]] = {"blosc": _blosc, "zstd": _zstd, "lz4": _lz4}
