"""Arrays in files of NumPy's that carry checksums, so that each part is checked when it is read.

What follows NumPy's bytes in a file is left alone by NumPy:

    CRC-32C of each 2²⁰ bytes of it, the last ones being fewer   4 bytes each
    the number of those bytes                                    8 bytes
    CRC-32C of these checksums and this number                   4 bytes

all little-endian.
"""

from __future__ import annotations

import io
import itertools
import mmap
import os
from typing import IO, Any, NoReturn

import google_crc32c
import numpy as np
import numpy.typing as npt

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import DamagedFileError
from dmkl.files.writing import replacing

__all__ = ["check_file", "load_array", "load_arrays", "load_rows", "save_array", "save_arrays"]

_BLOCK = 2**20
_END = 12
"""Bytes after the checksums of the blocks."""


# --- writing ---------------------------------------------------------------------------------------------------------


class _Checking:
    """Passes bytes on to a file, and ends it with their checksums."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sums: list[int] = []
        self._last = 0  # of the block that is not full yet
        self._size = 0

    def write(self, data: Any) -> int:
        """As of a file."""
        view = memoryview(data).cast("B")
        for start, stop in _cut(self._size, len(view)):
            part = np.frombuffer(view[start:stop], dtype=np.uint8)
            self._last = google_crc32c.extend(self._last, part)
            self._size += len(part)
            if self._size % _BLOCK == 0:
                self._sums.append(self._last)
                self._last = 0
        self._file.write(view)
        return len(view)

    def finish(self) -> None:
        """Write the checksums."""
        sums = [*self._sums, self._last] if self._size % _BLOCK else self._sums
        end = np.array(sums, dtype="<u4").tobytes() + self._size.to_bytes(8, "little")
        self._file.write(end + google_crc32c.value(end).to_bytes(4, "little"))


def _cut(offset: int, length: int) -> list[tuple[int, int]]:
    """Where bytes that follow `offset` others fall into blocks."""
    first = min(length, -offset % _BLOCK)
    edges = [0, *range(first, length, _BLOCK), length]
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


def save_array(path: str | os.PathLike[str], array: Array) -> None:
    """Write an array so that a file of that name is always whole."""
    array = np.asarray(array)
    with replacing(path) as file:
        checking = _Checking(file)
        # As np.save does it, whose own way of writing to a file tells nothing of a full disk.
        form = np.lib.format
        header = form.header_data_from_array_1_0(array)
        header["fortran_order"] = False
        form.write_array_header_1_0(checking, header)
        for part in array if array.ndim > 1 and not array.flags.c_contiguous else [array]:
            checking.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        checking.finish()


def save_arrays(path: str | os.PathLike[str], arrays: dict[str, Array]) -> None:
    """Write small arrays by name so that a file of that name is always whole."""
    held = io.BytesIO()
    np.savez(held, **arrays)  # type: ignore[arg-type]
    with replacing(path) as file:
        checking = _Checking(file)
        checking.write(held.getbuffer())
        checking.finish()


# --- reading ---------------------------------------------------------------------------------------------------------


def load_array(path: str | os.PathLike[str]) -> Array:
    """Map an array into memory, to be read; all of it is checked, when the setting ``dmkl.verify`` says, as for tiles.

    Raises
    ------
    DamagedFileError
        If it is missing, or not what was written.
    """
    file = _Checked(path)
    file.verify(0, file.size)
    return file.array()[0]


def load_rows(path: str | os.PathLike[str], place: int, rows: slice) -> Array:
    """Some rows of one of the matrices of an array, as a copy; nothing else is read. Raises as `load_array`.

    Parameters
    ----------
    place
        Which matrix of an array (matrices, rows, columns).
    rows
        Which rows, from the first to the one after the last.
    """
    file = _Checked(path)
    array, offset = file.array()
    part = array[place, rows]
    first = offset + place * array.strides[0] + rows.start * array.strides[1]
    file.verify(first, first + part.nbytes)
    # A copy, so that the mapping and the pages it holds go at once.
    return np.array(part)


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays that `save_arrays` wrote; raises as `load_array`."""
    file = _Checked(path)
    file.verify(0, file.size, "always")
    with np.load(io.BytesIO(file.content())) as found:
        return dict(found)


def check_file(path: str | os.PathLike[str]) -> None:
    """Read a whole file and check it; raises as `load_array`."""
    file = _Checked(path)
    file.verify(0, file.size, "always")


_VERIFIED: dict[tuple[str, int, int, int], npt.NDArray[np.bool_]] = {}
"""Which blocks of which files this process has checked."""
_WAY_OUT = "what it belongs to cannot be gone on with: start anew (--restart), or move its folder away"


class _Checked:
    """A file of NumPy's with its checksums, mapped into memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        try:
            with open(self._path, "rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_size < _END:
                    self._refuse(f"it has {stat.st_size} bytes")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            msg = f"{self._path} is missing; {_WAY_OUT}"
            raise DamagedFileError(msg) from error
        self._key = (self._path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        self.size = int.from_bytes(self._map[-_END:-4], "little")
        n_blocks = -(-self.size // _BLOCK)
        ends = self._map[self.size : -4] if self.size + 4 * n_blocks + _END == stat.st_size else b""
        if google_crc32c.value(ends) != int.from_bytes(self._map[-4:], "little") or not ends:
            self._refuse("the checksums at its end are not those that were written")
        self._sums: npt.NDArray[np.uint32] = np.frombuffer(ends, dtype="<u4", count=n_blocks)

    def verify(self, start: int, stop: int, rule: str | None = None) -> None:
        """Check the blocks that some bytes are in."""
        rule = rule or settings.get("verify")
        if rule == "never":
            return
        verified = _VERIFIED.setdefault(self._key, np.zeros(len(self._sums), dtype=bool))
        for block in range(start // _BLOCK, -(-stop // _BLOCK)):
            if rule == "first" and verified[block]:
                continue
            first = block * _BLOCK
            length = min(_BLOCK, self.size - first)
            found = google_crc32c.value(np.frombuffer(self._map, dtype=np.uint8, count=length, offset=first))
            if found != self._sums[block]:
                self._refuse(
                    f"bytes {first:,} to {first + length:,} have the checksum {found:08x}, "
                    f"{int(self._sums[block]):08x} was written"
                )
            verified[block] = True

    def content(self) -> bytes:
        """NumPy's bytes."""
        return self._map[: self.size]

    def array(self) -> tuple[Array, int]:
        """The array in the mapped file, and where it begins."""
        form = np.lib.format
        self.verify(0, min(self.size, _BLOCK))  # the header before it is believed
        start = io.BytesIO(self._map[: min(self.size, _BLOCK)])
        try:
            form.read_magic(start)
            shape, _, dtype = form.read_array_header_1_0(start)
            offset = start.tell()
            return np.ndarray(shape, dtype, self._map, offset), offset
        except (ValueError, TypeError) as error:  # unchecked, or written by something else
            self._refuse(str(error))

    def _refuse(self, why: str) -> NoReturn:
        msg = f"{self._path} is damaged: {why}; {_WAY_OUT}"
        raise DamagedFileError(msg)
