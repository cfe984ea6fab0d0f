"""Kernels in NumPy's own files: .npy is memory-mapped, of an .npz one kernel at a time is in memory."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.limits import check_held, check_memory, n_bytes
from dmkl.inputs.sparse import SparseMatrix

__all__ = ["npy_arrays", "npz_arrays"]

_HEADER_BYTES = 2**16
_SPARSE_PARTS = {"data", "indices", "indptr", "shape", "format"}
_IN_PARTS = "save it as .npy, which is read in parts, or allow more"


def npy_arrays(path: Path) -> list[FileArray]:
    """The array of an .npy file."""
    problem = f"{path} is not a whole .npy file"
    # NumPy lets through what its parser of headers, Python's own, meets in a damaged one.
    with damaged_as(problem, Exception), path.open("rb") as file:
        shape, _, dtype = _header(file)
        if not dtype.hasobject:
            check_held(str(path), shape, dtype.itemsize, path.stat().st_size - file.tell())

    def mapped() -> Array:
        if dtype.hasobject:
            _refuse_objects(str(path))
        with damaged_as(problem, Exception):
            # An empty array cannot be mapped.
            return np.load(path, mmap_mode=None if 0 in shape else "r", allow_pickle=False)  # type: ignore[no-any-return]

    return [FileArray(path, "", shape, dtype, mapped, mapped, _problem(dtype))]


def npz_arrays(path: Path) -> list[FileArray]:
    """The arrays of an .npz file, in the order in which they were saved."""
    found = []
    with damaged_as(f"{path} is not a whole .npz file", Exception), zipfile.ZipFile(path) as archive:
        for inside in archive.infolist():
            member = inside.filename
            if member.endswith(".npy"):
                with archive.open(inside) as file:
                    shape, fortran, dtype = _header(file)
                    if not dtype.hasobject:
                        what = f"variable {member[:-4]!r} of {path}"
                        check_held(what, shape, dtype.itemsize, inside.file_size - file.tell())
                array = _Member(path, member, shape, dtype, fortran=fortran)
                found.append(FileArray(path, member[:-4], shape, dtype, array.fresh, array.whole, _problem(dtype)))
    parts = {array.name: array for array in found}
    return [_sparse(path, parts)] if set(parts) == _SPARSE_PARTS else found


def _sparse(path: Path, parts: Mapping[str, FileArray]) -> FileArray:
    """The matrix that scipy.sparse.save_npz has written, in compressed rows or columns."""
    with damaged_as(f"{path} is no sparse matrix of SciPy", Exception):
        form = bytes(parts["format"].read().item()).decode()
        n_rows, n_cols = (int(length) for length in parts["shape"].read())
        kinds = {"csr": scipy.sparse.csr_matrix, "csc": scipy.sparse.csc_matrix}
        if form not in kinds or min(n_rows, n_cols) < 0:
            msg = f"{path} holds a sparse matrix of the kind {form!r:.20}; save K.tocsr()"
            raise InputError(msg)
        check_memory(f"the rows of {path}", 8 * (n_rows if form == "csr" else n_cols), "allow more")

    def opened() -> SparseMatrix:
        with damaged_as(f"{path} is no whole sparse matrix of SciPy", Exception):
            held = tuple(parts[name].read() for name in ("data", "indices", "indptr"))
            matrix = kinds[form](held, shape=(n_rows, n_cols))
            matrix.check_format(full_check=True)
            if (np.diff(matrix.indptr) < 0).any():  # which SciPy looks at only where there are entries
                msg = "its rows or columns begin out of order"
                raise ValueError(msg)
            return SparseMatrix(matrix)

    dtype = parts["data"].dtype
    return FileArray(path, "", (n_rows, n_cols), dtype, opened, lambda: opened()[:, :], _problem(dtype))


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type."""
    head = file.read(10)
    if head[6:7] > b"\1":  # later versions tell the length in four bytes, not two
        head += file.read(2)
    # No more than NumPy takes, whatever the file says of its length.
    begin = io.BytesIO(head + file.read(min(int.from_bytes(head[8:], "little"), _HEADER_BYTES)))
    version = np.lib.format.read_magic(begin)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(begin)
    else:
        # 3.0 differs from 2.0 in allowing names of fields that are not Latin-1; kernels have no fields.
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(begin)
    return tuple(shape), bool(fortran), np.dtype(dtype)


def _problem(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject:
        return "Python objects"
    if dtype.kind == "c":
        return "complex"
    return "" if dtype.kind in "fiubUS" else "not numbers"


def _refuse_objects(where: str) -> None:
    msg = (
        f"{where} holds Python objects, which are never unpickled: they can run any code. Save numbers, or "
        "strings as np.array(names, dtype=str)"
    )
    raise InputError(msg)


class _Member:
    """One array of an .npz file.

    The part along the slowest axis that was asked for last stays in memory: one kernel, where the kernels lie
    one after another.
    """

    def __init__(self, path: Path, member: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, fortran: bool) -> None:
        self._path, self._member, self._fortran = path, member, fortran
        self.shape, self.dtype = shape, dtype
        self._damaged = f"variable {member[:-4]!r} of {path} is damaged"
        self._slowest = len(shape) - 1 if fortran else 0
        self._held: tuple[int | None, Array] | None = None
        self._file: IO[bytes] | None = None
        self._start = 0

    def fresh(self) -> _Member:
        """The same array with nothing in memory."""
        return _Member(self._path, self._member, self.shape, self.dtype, fortran=self._fortran)

    def __getitem__(self, key: Any) -> Array:
        index = key if isinstance(key, tuple) else (key,)
        position = index[self._slowest] if len(self.shape) == 3 and len(index) == 3 else None
        if not isinstance(position, int):
            return np.asarray(self._part(None)[key])
        rest = tuple(part for axis, part in enumerate(index) if axis != self._slowest)
        return np.asarray(self._part(position)[rest])

    def _part(self, position: int | None) -> Array:
        if self._held is None or self._held[0] != position:
            self._held = None  # let go of the last one before the next is read
            self._held = (position, self.whole() if position is None else self._slab(position))
        return self._held[1]

    def whole(self) -> Array:
        """All of the array."""
        if self.dtype.hasobject:
            _refuse_objects(f"variable {self._member[:-4]!r} of {self._path}")
        check_memory(
            f"variable {self._member[:-4]!r} of {self._path}", n_bytes(self.shape, self.dtype.itemsize), _IN_PARTS
        )
        opened = damaged_as(self._damaged, Exception)
        with opened, zipfile.ZipFile(self._path) as archive, archive.open(self._member) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def _slab(self, position: int) -> Array:
        rest = tuple(length for axis, length in enumerate(self.shape) if axis != self._slowest)
        size = n_bytes(rest, self.dtype.itemsize)
        check_memory(f"a kernel of {self._member[:-4]!r} of {self._path}", size, _IN_PARTS)
        with damaged_as(self._damaged, Exception):
            if self._file is None:
                self._file = zipfile.ZipFile(self._path).open(self._member)
                _header(self._file)
                self._start = self._file.tell()
            # Forward is reading on; back is from the beginning again, which only a second pass asks for.
            self._file.seek(self._start + position * size)
            data = self._file.read(size)
            if len(data) < size:
                msg = "it ends too early"
                raise EOFError(msg)
        return np.frombuffer(data, dtype=self.dtype).reshape(rest, order="F" if self._fortran else "C")
