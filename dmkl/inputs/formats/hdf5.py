"""Kernels in HDF5 files, read in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dmkl.arrays import Array
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as

__all__ = ["H5Array", "hdf5_arrays", "opened"]

_CACHE_BYTES = 32 * 2**20
"""Decoded chunks that HDF5 keeps: neighboring tiles share those on their border."""


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file, closed at the end."""
    with damaged_as(f"{path} is not a whole HDF5 file", OSError):
        # A lock that a parallel file system does not grant is no reason not to read.
        file = h5py.File(path, "r", locking="best-effort")
    with file:
        yield file


def hdf5_arrays(path: Path) -> list[FileArray]:
    """The data sets of an HDF5 file, those in groups included."""
    found: list[FileArray] = []

    def visit(name: str, node: Any) -> None:
        if not isinstance(node, h5py.Dataset) or node.shape is None:
            return
        array = H5Array(path, name)
        if h5py.check_string_dtype(node.dtype) is not None:
            found.append(FileArray(path, name, array.shape, np.dtype("U1"), array.fresh, array.strings))
            return
        problem = ""
        if array.dtype.kind == "c":
            problem = "complex"
        elif array.dtype.kind not in "fiub":
            problem = "not numbers"
        found.append(FileArray(path, name, array.shape, array.dtype, array.fresh, lambda: array[...], problem))

    with opened(path) as file:
        file.visititems(visit)
    return found


class H5Array:
    """A data set that is opened when something of it is read.

    `reverse` shows the axes in reverse order: MATLAB writes an array of shape (a, b, c) as (c, b, a).
    """

    def __init__(self, path: Path, name: str, *, reverse: bool = False) -> None:
        self._path, self._name, self._reverse = path, name, reverse
        self._file: h5py.File | None = None
        self._node: Any = None
        with opened(path) as file:
            node = file[name]
            step = -1 if reverse else 1
            self.shape: tuple[int, ...] = tuple(node.shape[::step])
            self.chunks: tuple[int, ...] | None = None if node.chunks is None else tuple(node.chunks[::step])
            self.dtype: np.dtype[Any] = node.dtype

    def fresh(self) -> H5Array:
        """The same data set, not opened."""
        return H5Array(self._path, self._name, reverse=self._reverse)

    def __getitem__(self, key: Any) -> Array:
        with damaged_as(f"variable {self._name!r} of {self._path} is damaged", OSError, KeyError, RuntimeError):
            if self._node is None:
                self._file = h5py.File(self._path, "r", locking="best-effort", rdcc_nbytes=_CACHE_BYTES)
                self._node = self._file[self._name]
            found = np.asarray(self._node[key if not self._reverse or key is Ellipsis else key[::-1]])
        # Reversing what is left of the axes puts them in their order, whichever an integer has taken away.
        return found.T if self._reverse else found

    def strings(self) -> Array:
        """All of it, as strings."""
        with opened(self._path) as file:
            return np.asarray(file[self._name].asstr()[...])
