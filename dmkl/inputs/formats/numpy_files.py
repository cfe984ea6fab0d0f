"""Arrays in NumPy's files: .npy is memory-mapped, and a member of an .npz is read as a whole or a kernel at a time."""

from __future__ import annotations

import io
import weakref
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from dmkl.arrays import Array, n_bytes
from dmkl.errors import damaged_as, refuse
from dmkl.inputs.formats.file_arrays import OBJECTS, FileArray, sparse_array, unreadable
from dmkl.inputs.matrices import open_alone
from dmkl.settings import check_memory

_Header = tuple[tuple[int, ...], np.dtype[Any], bool, int]
"""Shape, type, whether in Fortran order, and where the entries begin."""
_HEADER_BYTES = 2**16
_IN_PARTS = "save it as .npy, which is read in parts, or allow more"


def npy_arrays(path: Path) -> list[FileArray]:
    """Return the array of an .npy file."""
    # NumPy passes on errors of Python's parser, which reads the header.
    damaged = partial(damaged_as, f"{path} is not a whole .npy file", Exception)

    def mapped() -> Array:
        with damaged():
            # An empty array cannot be mapped.
            mode: Any = None if 0 in header[0] else "r"
            return np.load(path, mmap_mode=mode, allow_pickle=False)  # type: ignore[no-any-return]

    with damaged(), path.open("rb") as file:
        header = _header(file)
        return [_array(path, "", header, path.stat().st_size, mapped)]


def npz_arrays(path: Path) -> list[FileArray]:
    """Return the arrays of an .npz file, in the order in which they were saved."""
    arrays = []
    with damaged_as(f"{path} is not a whole .npz file", Exception), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name, suffix = member.filename[:-4], member.filename[-4:]
            if suffix != ".npy":
                continue
            with archive.open(member) as file:
                header = _header(file)
            arrays.append(_array(path, name, header, member.file_size, partial(_Member, path, name, header)))
    parts = {array.name: array for array in arrays}
    if set(parts) != {"data", "indices", "indptr", "shape", "format"}:
        return arrays
    with damaged_as(f"{path} is no sparse matrix of SciPy", Exception):
        form = bytes(parts["format"].read().item()).decode()
        n_rows, n_cols = (int(length) for length in parts["shape"].read())
        if form not in ("csr", "csc"):
            refuse(f"{path} holds a sparse matrix of the kind {form!r:.20}; save K.tocsr()")
    return [sparse_array(path, "", parts.__getitem__, (n_rows, n_cols), form)]


def _array(path: Path, name: str, header: _Header, file_bytes: int, opened: Callable[[], Any]) -> FileArray:
    """Return the array of a header, after a check that its file holds what it states."""
    shape, dtype, _, start = header
    if dtype.hasobject:
        return unreadable(path, name, shape, OBJECTS)
    array = FileArray(path, name, shape, dtype, opened)
    if not all(type(length) is int and length >= 0 for length in shape):
        refuse(f"{array.where} is damaged: its shape is {tuple(shape)!s:.80}, expected whole numbers from 0 on")
    expected = n_bytes(shape, max(1, dtype.itemsize))  # strings of no length take memory when they are read
    if file_bytes - start < expected:
        what = f"{array.where} is damaged: its header states {expected} bytes of entries"
        refuse(f"{what}, there are {file_bytes - start}")
    return array


def _header(file: IO[bytes]) -> _Header:
    head = file.read(12)
    n_bytes_left = int.from_bytes(head[8 : 10 if head[6:7] == b"\1" else 12], "little")
    # Read no more than NumPy accepts, whatever length the file states.
    begin = io.BytesIO(head + file.read(min(n_bytes_left, _HEADER_BYTES)))
    version = np.lib.format.read_magic(begin)
    # 3.0 differs from 2.0 in names of fields that are not Latin-1; kernels have no fields.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(begin)
    return tuple(shape), np.dtype(dtype), bool(fortran), begin.tell()


class _Member:
    """One array of an .npz file, read as a whole, or by kernel if the kernels lie one after another."""

    def __init__(self, path: Path, name: str, header: _Header) -> None:
        self._path, self._name = path, name
        self.shape, self.dtype, self._fortran, self._start = header
        self._what = f"variable {name!r} of {path}"
        self._slowest = len(self.shape) - 1 if self._fortran else 0
        self._last: list[Any] = []
        self._file: IO[bytes] | None = None

    def __getitem__(self, key: Any) -> Array:
        index = key if isinstance(key, tuple) else (key,)
        position = index[self._slowest] if len(self.shape) == len(index) == 3 else None
        if not isinstance(position, int):
            whole = open_alone(self._last, None, lambda: self._read(self._what, self.shape, 0))
            return np.asarray(whole[key])
        rest = (*self.shape[: self._slowest], *self.shape[self._slowest + 1 :])
        slab = open_alone(self._last, position, lambda: self._read(f"a kernel of {self._what}", rest, position))
        return np.asarray(slab[(*index[: self._slowest], *index[self._slowest + 1 :])])

    def _read(self, what: str, shape: tuple[int, ...], position: int) -> Array:
        """Read the part of this shape at a position from 0 along the slowest axis, or as a whole."""
        size = n_bytes(shape, self.dtype.itemsize)
        check_memory(what, size, _IN_PARTS)
        with damaged_as(f"{self._what} is damaged", Exception):
            if self._file is None:
                with zipfile.ZipFile(self._path) as archive:  # its file stays open while a member is open
                    self._file = archive.open(f"{self._name}.npy")
                weakref.finalize(self, self._file.close)
                self._file.read(self._start)  # from Python 3.13 on a seek would switch off the checksum
            # Seeking forward reads on; seeking back reads from the beginning, which only a second pass needs.
            self._file.seek(self._start + position * size)
            data = self._file.read(size)
            if len(data) < size:
                refuse(f"{self._what} is damaged: it ends too early")
            return np.ndarray(shape, self.dtype, data, order="F" if self._fortran else "C")
