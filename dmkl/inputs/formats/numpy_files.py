"""Kernels in NumPy's own files: .npy is memory-mapped, of an .npz one kernel at a time is in memory."""

from __future__ import annotations

import io
import zipfile
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.formats.compressed import PARTS, sparse_array
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.limits import check_held, check_memory, n_bytes, problem_of, unreadable

__all__ = ["npy_arrays", "npz_arrays"]

_HEADER_BYTES = 2**16
_OBJECTS = (
    "Python objects",
    "holds Python objects, which are never unpickled: they can run any code. Save numbers, or strings as "
    "np.array(names, dtype=str)",
)
"""The problem of arrays of Python objects, and the message about it."""
_IN_PARTS = "save it as .npy, which is read in parts, or allow more"


def npy_arrays(path: Path) -> list[FileArray]:
    """The array of an .npy file."""
    # NumPy lets through what its parser of headers, Python's own, meets in a damaged one.
    damaged = partial(damaged_as, f"{path} is not a whole .npy file", Exception)
    with damaged(), path.open("rb") as file:
        shape, _, dtype, start = _header(file)
        if dtype.hasobject:
            return [unreadable(path, "", shape, *_OBJECTS)]
        check_held(str(path), shape, dtype.itemsize, path.stat().st_size - start)

    def mapped() -> Array:
        with damaged():
            # An empty array cannot be mapped.
            return np.load(path, mmap_mode=None if 0 in shape else "r", allow_pickle=False)  # type: ignore[no-any-return]

    return [FileArray(path, "", shape, dtype, mapped, problem=problem_of(dtype))]


def npz_arrays(path: Path) -> list[FileArray]:
    """The arrays of an .npz file, in the order in which they were saved."""
    arrays = []
    with damaged_as(f"{path} is not a whole .npz file", Exception), zipfile.ZipFile(path) as archive:
        for inside in archive.infolist():
            name, suffix = inside.filename[:-4], inside.filename[-4:]
            if suffix != ".npy":
                continue
            with archive.open(inside) as file:
                shape, fortran, dtype, start = _header(file)
            if dtype.hasobject:
                arrays.append(unreadable(path, name, shape, *_OBJECTS))
                continue
            check_held(f"variable {name!r} of {path}", shape, dtype.itemsize, inside.file_size - start)
            opened = partial(_Member, path, name, shape, dtype, fortran=fortran)
            arrays.append(FileArray(path, name, shape, dtype, opened, problem=problem_of(dtype)))
    parts = {array.name: array for array in arrays}
    return [_sparse(path, parts)] if set(parts) == {*PARTS, "shape", "format"} else arrays


def _sparse(path: Path, parts: dict[str, FileArray]) -> FileArray:
    """The matrix that scipy.sparse.save_npz has written, in compressed rows or columns."""
    with damaged_as(f"{path} is no sparse matrix of SciPy", Exception):
        form = bytes(parts["format"].read().item()).decode()
        n_rows, n_cols = (int(length) for length in parts["shape"].read())
        if form not in ("csr", "csc"):
            msg = f"{path} holds a sparse matrix of the kind {form!r:.20}; save K.tocsr()"
            raise InputError(msg)
    return sparse_array(path, "", parts, (n_rows, n_cols), form)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran order, type, and where the entries begin."""
    head = file.read(12)
    n_bytes_left = int.from_bytes(head[8 : 10 if head[6:7] == b"\1" else 12], "little")
    # No more than NumPy takes, whatever the file says of its length.
    begin = io.BytesIO(head + file.read(min(n_bytes_left, _HEADER_BYTES)))
    version = np.lib.format.read_magic(begin)
    # 3.0 differs from 2.0 in allowing names of fields that are not Latin-1; kernels have no fields.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(begin)
    return tuple(shape), bool(fortran), np.dtype(dtype), begin.tell()


class _Member:
    """One array of an .npz file.

    The part along the slowest axis that was asked for last stays in memory: one kernel, where the kernels lie
    one after another.
    """

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, fortran: bool) -> None:
        self._path, self._name, self._fortran = path, name, fortran
        self.shape, self.dtype = shape, dtype
        self._what = f"variable {name!r} of {path}"
        self._slowest = len(shape) - 1 if fortran else 0
        self._held: tuple[int | None, Array] | None = None
        self._file: IO[bytes] | None = None
        self._start = 0

    def __getitem__(self, key: Any) -> Array:
        index = key if isinstance(key, tuple) else (key,)
        position = index[self._slowest] if len(self.shape) == len(index) == 3 else None
        if not isinstance(position, int):
            position = None
        if self._held is None or self._held[0] != position:
            self._held = None  # let go of the last one before the next is read
            self._held = (position, self.whole() if position is None else self._slab(position))
        rest = tuple(part for axis, part in enumerate(index) if axis != self._slowest)
        return np.asarray(self._held[1][key if position is None else rest])

    def whole(self) -> Array:
        """All of the array."""
        check_memory(self._what, n_bytes(self.shape, self.dtype.itemsize), _IN_PARTS)
        damaged = damaged_as(f"{self._what} is damaged", Exception)
        with damaged, zipfile.ZipFile(self._path) as archive, archive.open(f"{self._name}.npy") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def _slab(self, position: int) -> Array:
        rest = tuple(length for axis, length in enumerate(self.shape) if axis != self._slowest)
        size = n_bytes(rest, self.dtype.itemsize)
        check_memory(f"a kernel of {self._what}", size, _IN_PARTS)
        with damaged_as(f"{self._what} is damaged", Exception):
            if self._file is None:
                self._file = zipfile.ZipFile(self._path).open(f"{self._name}.npy")
                self._start = _header(self._file)[-1]
            # Forward is reading on; back is from the beginning again, which only a second pass asks for.
            self._file.seek(self._start + position * size)
            data = self._file.read(size)
            if len(data) < size:
                msg = "it ends too early"
                raise EOFError(msg)
        return np.frombuffer(data, dtype=self.dtype).reshape(rest, order="F" if self._fortran else "C")
