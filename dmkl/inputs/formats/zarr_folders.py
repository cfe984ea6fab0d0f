"""Arrays in Zarr folders that are no kernel sets, read in parts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dmkl.arrays import Lazy, n_bytes
from dmkl.errors import damaged_as, refuse
from dmkl.files.plain import PlainStore, check_chunks, chunk_files
from dmkl.files.regular import check_plain
from dmkl.inputs.formats.file_arrays import FileArray, check_part, natural_order, packed

KERNEL_SET = "dmkl-kernel-set"
"""The attribute `format` of kernel sets, which are opened and not read."""

_MOST_CHUNKS = 100_000
"""Files that are opened for one strip of a matrix or a vector, or searched for a chunk that was written."""


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
    return FileArray(path, name, lazy.shape, dtype, lambda: lazy, problem=packed(array.attrs))


class _ZarrArray(Lazy):
    """A Zarr array whose errors name its file."""

    def __init__(self, path: Path, name: str, array: Any) -> None:
        super().__init__(array.shape, array.dtype, self._part, tuple(array.chunks))
        self._what, self._array = f"array {name or '/'!r} of {path}", array

    def check_written(self, axis: int, j: int) -> None:
        """Refuse position j along an axis if nothing of it was written: all of it would be zero."""
        with damaged_as(f"{self._what} is damaged", Exception):  # chunks may have any shape
            files = chunk_files(self._array, (slice(None),) * axis + (slice(j, j + 1),))
            written = any(path.exists() for _, path in islice(files, _MOST_CHUNKS))
        if not written:
            lack = f"nothing was ever written at position {j} of axis {axis}, which would be zero everywhere"
            refuse(f"{self._what} has the shape {self.shape}, but {lack}; write it, or leave it out")

    def _part(self, key: Any) -> Any:
        n_asked = check_part(self._what, self.shape, self.chunks, key, self.dtype.itemsize)
        n_chunks = n_asked // max(1, n_bytes(self.chunks, 1))
        if n_chunks > _MOST_CHUNKS:
            what = f"a part of {self._what} lies in {n_chunks:,} chunks of shape {self.chunks}"
            refuse(f"{what}; write it in larger chunks")
        with damaged_as(f"{self._what} is damaged", Exception):
            check_chunks(self._array, key, self._what)
            return np.asarray(self._array[key])
