"""Arrays in Zarr folders that are no kernel sets, read in parts, and checks of what their chunks unpack to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import LocalStore

from dmkl.errors import refuse
from dmkl.files.plain import PlainStore
from dmkl.files.regular import check_plain
from dmkl.inputs.formats.file_arrays import (
    PACKED,
    FileArray,
    check_part,
    damaged_as,
    is_packed,
    n_bytes,
    natural_order,
    ranges_of,
)
from dmkl.settings import memory_budget_bytes

KERNEL_SET = "dmkl-kernel-set"
"""The attribute `format` of kernel sets, which are opened and not read."""

_MOST_CHUNKS = 100_000
"""Files that are opened for one strip of a matrix or a vector, or searched for a chunk that was written."""
_HEAD_BYTES = 32
_TEXT_GROWTH = 16
"""Most bytes of memory that a byte of a chunk of short texts takes as Python objects."""
_SLACK_BYTES = 2**20
"""Bytes that filters may add to a chunk."""


def is_zarr(path: Path) -> bool:
    """Whether a folder is a Zarr array or group, of format 2 or 3."""
    return any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def zarr_arrays(path: Path) -> list[FileArray]:
    """Return the arrays of a Zarr folder, including those in groups."""
    # Zarr raises many exceptions on wrong metadata, also when it refuses to read pickled objects.
    with damaged_as(f"{path} cannot be read as Zarr", Exception):
        root = open_node(path)
        if isinstance(root, zarr.Array):
            return [zarr_array(path, "", root)]
        if root.attrs.get("format") == KERNEL_SET:
            refuse(f"{path} is a kernel set already; open it with dmkl.open")
        nodes = nodes_in(path)
    arrays = [zarr_array(path, name, node) for name, node in nodes.items() if isinstance(node, zarr.Array)]
    return sorted(arrays, key=lambda array: natural_order(array.name))


def open_node(folder: Path) -> Any:
    """Open an array or a group, whose attributes must be a table: Zarr does not look at them."""
    node: Any = zarr.open(PlainStore(folder), mode="r")
    if not isinstance(attributes := node.metadata.attributes, dict):
        refuse(f"{folder} is damaged: its attributes are {type(attributes).__name__}, expected names with values")
    return node


def nodes_in(path: Path) -> dict[str, Any]:
    """Return all groups and arrays in the folder of a group, by their names in order."""
    # One after another: Zarr's `members` opens all at once, and asyncio prints the errors after the first.
    nodes: dict[str, Any] = {}
    for folder in sorted(filter(is_zarr, path.iterdir())):
        check_plain(path, folder.name)
        node = nodes[folder.name] = open_node(folder)
        if isinstance(node, zarr.Group):
            nodes |= {f"{folder.name}/{name}": inner for name, inner in nodes_in(folder).items()}
    return nodes


def zarr_array(path: Path, name: str, array: Any) -> FileArray:
    """Return a Zarr array as an array of a folder."""
    lazy = _ZarrArray(path, name, array)
    dtype = np.dtype("U1") if lazy.dtype.kind in "OSTU" else lazy.dtype
    problem = PACKED if is_packed(array.attrs) else ""
    return FileArray(path, name, lazy.shape, dtype, lambda: lazy, problem=problem)


class _ZarrArray:
    """A Zarr array whose errors name its file."""

    def __init__(self, path: Path, name: str, array: Any) -> None:
        self._what, self._array = f"array {name or '/'!r} of {path}", array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.chunks: tuple[int, ...] | None = tuple(array.chunks)

    def check_written(self, axis: int, j: int) -> None:
        """Refuse position j along an axis if nothing of it was written: all of it would be zero."""
        if not isinstance(self._array.store, LocalStore):
            return
        with damaged_as(f"{self._what} is damaged", Exception):  # chunks may have any shape
            chunks = itertools.islice(_files(self._array, (slice(None),) * axis + (slice(j, j + 1),)), _MOST_CHUNKS)
            written = any(path.exists() for _, path in chunks)
        if not written:
            lack = f"nothing was ever written at position {j} of axis {axis}, which would be zero everywhere"
            refuse(f"{self._what} has the shape {self.shape}, but {lack}; write it, or leave it out")

    def __getitem__(self, key: Any) -> Any:
        chunks = self._array.chunks
        n_asked = check_part(self._what, self.shape, chunks, key, self.dtype.itemsize)
        n_chunks = n_asked // max(1, n_bytes(chunks, 1))
        if n_chunks > _MOST_CHUNKS:
            refuse(f"a part of {self._what} lies in {n_chunks:,} chunks of shape {chunks}; write it in larger chunks")
        with damaged_as(f"{self._what} is damaged", Exception):
            check_chunks(self._array, key, self._what)
            return np.asarray(self._array[key])


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
    for place, path in _files(array, key):
        size = check_plain(array.store.root, path.relative_to(array.store.root).as_posix())
        if size > most_stored and not texts:
            refuse(f"{what} is damaged: its chunk {place} has {size} bytes, expected at most {most_stored}")
        if stated_bytes is None or not size:  # a missing chunk holds the fill value
            continue
        with path.open("rb") as file:
            stated = stated_bytes(file.read(_HEAD_BYTES))
        if stated > most and not (texts and stated <= memory_budget_bytes() // _TEXT_GROWTH):
            refuse(f"{what} is damaged: its chunk {place} claims to unpack to {stated} bytes, expected at most {most}")


def _files(array: Any, key: Any) -> Iterator[tuple[tuple[int, ...], Path]]:
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
