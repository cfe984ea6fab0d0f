"""Kernels in Zarr arrays and groups that are no kernel sets, read in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as

__all__ = ["KERNEL_SET", "is_zarr", "zarr_arrays"]

KERNEL_SET = "dmkl-kernel-set"
"""The attribute `format` of kernel sets (`dmkl.store.schema.FORMAT`), which are opened and not read."""


def is_zarr(path: Path) -> bool:
    """Whether a folder is a Zarr array or group, of format 2 or 3."""
    return any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def zarr_arrays(path: Path) -> list[FileArray]:
    """The arrays of a Zarr folder, those in groups included."""
    # Among what Zarr raises is its refusal to read the pickled objects of format 2.
    with damaged_as(f"{path} cannot be read as Zarr", ValueError, KeyError, OSError):
        root: Any = zarr.open(str(path), mode="r")
        if isinstance(root, zarr.Array):
            return [_variable(path, "", root)]
        if root.attrs.get("format") == KERNEL_SET:
            msg = f"{path} is a kernel set already; open it with dmkl.open"
            raise InputError(msg)
        arrays = [(name, node) for name, node in root.members(max_depth=None) if isinstance(node, zarr.Array)]
    return [_variable(path, name, array) for name, array in arrays]


def _variable(path: Path, name: str, array: Any) -> FileArray:
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

    def __getitem__(self, key: Any) -> Any:
        what = f"array {self._name or '/'!r} of {self._path} is damaged"
        with damaged_as(what, ValueError, RuntimeError, OSError):
            return np.asarray(self._array[key])
