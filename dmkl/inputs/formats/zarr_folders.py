"""Kernels in Zarr arrays and groups that are no kernel sets, read in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dmkl.errors import InputError
from dmkl.files.plain import PlainStore, check_plain
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.limits import asked_bytes, check_memory, n_bytes
from dmkl.inputs.formats.zarr_chunks import check_chunks, is_written

__all__ = ["KERNEL_SET", "is_zarr", "nodes_in", "zarr_array", "zarr_arrays"]

KERNEL_SET = "dmkl-kernel-set"
"""The attribute `format` of kernel sets (`dmkl.store.schema.FORMAT`), which are opened and not read."""

_MOST_CHUNKS = 100_000
"""Files that are opened for one strip of a matrix, or for a vector."""


def is_zarr(path: Path) -> bool:
    """Whether a folder is a Zarr array or group, of format 2 or 3."""
    return any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def zarr_arrays(path: Path) -> list[FileArray]:
    """The arrays of a Zarr folder, those in groups included."""
    # Of metadata that are wrong Zarr raises of many kinds; among these is its refusal to read pickled objects.
    with damaged_as(f"{path} cannot be read as Zarr", Exception):
        root: Any = zarr.open(PlainStore(path), mode="r")
        if isinstance(root, zarr.Array):
            return [zarr_array(path, "", root)]
        if root.attrs.get("format") == KERNEL_SET:
            msg = f"{path} is a kernel set already; open it with dmkl.open"
            raise InputError(msg)
        nodes = nodes_in(path)
    return [zarr_array(path, name, node) for name, node in nodes.items() if isinstance(node, zarr.Array)]


def nodes_in(path: Path) -> dict[str, Any]:
    """All groups and arrays in the folder of a group, by their names in order."""
    # One after another: Zarr's `members` opens all at once, and of one damaged asyncio prints what became of others.
    nodes: dict[str, Any] = {}
    for folder in sorted(filter(is_zarr, path.iterdir())):
        check_plain(path, folder.name)
        node = nodes[folder.name] = zarr.open(PlainStore(folder), mode="r")
        if isinstance(node, zarr.Group):
            nodes |= {f"{folder.name}/{name}": inner for name, inner in nodes_in(folder).items()}
    return nodes


def zarr_array(path: Path, name: str, array: Any) -> FileArray:
    """A Zarr array as one of a folder."""
    lazy = _ZarrArray(path, name, array)
    dtype = lazy.dtype
    problem = ""
    if dtype.kind in "OSTU":
        dtype = np.dtype("U1")
    elif dtype.kind not in "fiub":
        problem = "complex" if dtype.kind == "c" else "not numbers"
    return FileArray(path, name, lazy.shape, dtype, lambda: lazy, lambda: lazy[...], problem)


class _ZarrArray:
    """A Zarr array whose damage is told by file and variable."""

    def __init__(self, path: Path, name: str, array: Any) -> None:
        self._path, self._name, self._array = path, name, array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.chunks: tuple[int, ...] | None = tuple(array.chunks)

    def check_written(self, axis: int, j: int) -> None:
        """Refuse a part, the one at position j along an axis, of which nothing was written: all of it would be zero."""
        what = f"array {self._name or '/'!r} of {self._path}"
        with damaged_as(f"{what} is damaged", Exception):  # chunks may have any shape
            written = is_written(self._array, (slice(None),) * axis + (slice(j, j + 1),))
        if not written:
            msg = (
                f"{what} has the shape {self.shape}, but of number {j} along axis {axis} nothing was ever written, and "
                "it would be zero everywhere; write it, or leave it out"
            )
            raise InputError(msg)

    def __getitem__(self, key: Any) -> Any:
        what = f"array {self._name or '/'!r} of {self._path}"
        chunks, itemsize = self._array.chunks, self.dtype.itemsize
        needed = max(asked_bytes(self.shape, key, itemsize), n_bytes(chunks, itemsize))
        check_memory(f"a part of {what}", needed, "write it in smaller chunks, or allow more")
        n_chunks = asked_bytes(self.shape, key, 1) // max(1, n_bytes(chunks, 1))
        if n_chunks > _MOST_CHUNKS:
            msg = f"a part of {what} lies in {n_chunks:,} chunks of shape {chunks}; write it in larger chunks"
            raise InputError(msg)
        with damaged_as(f"{what} is damaged", Exception):
            check_chunks(self._array, key, what)
            return np.asarray(self._array[key])
