"""Arrays in files of NumPy's formats with checksums, so that each part is checked when it is read.

After NumPy's bytes, where NumPy ignores them, a file has

    CRC-32C of each 2²⁰ bytes of it, the last ones being fewer   4 bytes each
    the number of those bytes                                    8 bytes
    CRC-32C of these checksums and this number                   4 bytes

all little-endian.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, NoReturn

import google_crc32c
import numpy as np
import numpy.typing as npt

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import DamagedFileError, refuse
from dmkl.files.writing import replacing

_BLOCK = 2**20
_END = 12  # Bytes after the checksums of the blocks.


def crc32c(block: Array) -> int:
    """CRC-32C (Castagnoli) of the numbers of a block, row after row."""
    return int(google_crc32c.value(np.ascontiguousarray(block).view(np.uint8).reshape(-1)))


def json_crc32c(content: Mapping[str, Any]) -> str:
    """CRC-32C, in eight hexadecimal digits, of an object as JSON in ASCII without spaces and with sorted keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(text.encode()):08x}"


# --- writing -------------------------------------------------------------------------------------------------------


class _ChecksumWriter:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sums: list[int] = []  # of all blocks that have begun
        self._size = 0

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self._file.write(view)
        while len(view):
            if self._size % _BLOCK == 0:
                self._sums.append(0)
            part = np.frombuffer(view[: _BLOCK - self._size % _BLOCK], dtype=np.uint8)
            self._sums[-1] = google_crc32c.extend(self._sums[-1], part)
            self._size += len(part)
            view = view[len(part) :]

    def finish(self) -> None:
        end = np.array(self._sums, dtype="<u4").tobytes() + self._size.to_bytes(8, "little")
        self._file.write(end + google_crc32c.value(end).to_bytes(4, "little"))


def save_array(path: str | os.PathLike[str], array: Array) -> None:
    """Write an array completely or not at all; it is on the disk when its folder is synced (`dmkl.files.syncing`)."""
    array = np.asarray(array)
    parts = [array]
    if not array.flags.c_contiguous:  # each part is copied, of about a block
        step = max(1, _BLOCK * len(array) // max(1, array.nbytes))
        parts = [array[start : start + step] for start in range(0, len(array), step)]
    save_parts(path, array.shape, array.dtype, parts)


def save_parts(
    path: str | os.PathLike[str], shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterable[Array]
) -> None:
    """Write an array of this shape as `save_array`, from its parts along the first axis, in order."""
    with replacing(path, synced=False) as file:
        writer = _ChecksumWriter(file)
        # As np.save, which does not report a full disk when it writes to a file.
        form = np.lib.format
        header = {"descr": form.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        form.write_array_header_1_0(writer, header)
        for part in parts:
            writer.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        writer.finish()


def save_arrays(path: str | os.PathLike[str], arrays: dict[str, Array], *, synced: bool = False) -> None:
    """Write small arrays by name, completely or not at all; see `save_array`, unless they are `synced` at once."""
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    with replacing(path, synced=synced) as file:
        writer = _ChecksumWriter(file)
        writer.write(content.getbuffer())
        writer.finish()


# --- reading -------------------------------------------------------------------------------------------------------


def load_array(path: str | os.PathLike[str]) -> Array:
    """Map an array into memory for reading; all of it is checked as the setting ``dmkl.verify`` asks.

    DamagedFileError if it is missing, or differs from what was written.
    """
    with _opened(path) as file:
        file.verify(0, file.size)
        shape, dtype, offset = file.form()
        return np.ndarray(shape, dtype, file.mapped(), offset)


def read_array(path: str | os.PathLike[str], scratch: Array) -> Array:
    """Read an array into the memory of `scratch` if it fits, else into new memory; raises as `load_array`.

    For files that several threads read repeatedly: mapping files and allocating pages takes a lock of the process.
    """
    with _opened(path) as file:
        file.verify(0, file.size)
        shape, dtype, offset = file.form()
        buffer = scratch.reshape(-1).view(np.uint8) if scratch.flags.c_contiguous else np.empty(0, np.uint8)
        n_bytes = math.prod(shape) * dtype.itemsize
        buffer = buffer[:n_bytes] if len(buffer) >= n_bytes else np.empty(n_bytes, np.uint8)
        file.read(offset, buffer)
        return buffer.view(dtype).reshape(shape)


def load_rows(path: str | os.PathLike[str], matrix: int, rows: slice) -> Array:
    """Copy some rows of one matrix of an array (matrices, rows, columns), and read nothing else; see `load_array`."""
    with _opened(path) as file:
        (_, n_rows, n_cols), dtype, offset = file.form()
        part = np.empty((rows.stop - rows.start, n_cols), dtype)
        first = offset + (matrix * n_rows + rows.start) * n_cols * dtype.itemsize
        file.verify(first, first + part.nbytes)
        file.read(first, part.reshape(-1).view(np.uint8))
        return part


def load_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays that `save_arrays` wrote; raises as `load_array`."""
    with _opened(path) as file:
        file.verify(0, file.size, "always")
        with np.load(io.BytesIO(file.content(0, file.size))) as arrays:
            return dict(arrays)


def kept_arrays(path: str | os.PathLike[str]) -> dict[str, Array] | None:
    """The arrays that `save_arrays` wrote; None if there are none, or they are damaged, as after a power cut."""
    if os.path.exists(path):
        with suppress(DamagedFileError):
            return load_arrays(path)
    return None


def check_file(path: str | os.PathLike[str]) -> None:
    """Read a whole file and check it; raises as `load_array`."""
    with _opened(path) as file:
        file.verify(0, file.size, "always")


@dataclass(eq=False)
class _FileInfo:
    """Header and checksums of a file that this process has opened, since headers are slow to parse."""

    size: int  # number of NumPy's bytes
    sums: npt.NDArray[np.uint32]
    verified: npt.NDArray[np.bool_]  # which blocks have been checked
    form: tuple[tuple[int, ...], np.dtype[Any], int] | None = None  # shape, type and first byte of the array


_PARSING = threading.Lock()
"""NumPy's headers are Python literals, and CPython 3.11 raises SystemError if two threads parse them at once."""
_MOST_INFOS = 10_000
_INFOS: dict[tuple[str, int, int, int], _FileInfo] = {}  # Files by path, inode, time of writing and size.
_WAY_OUT = "the computation that wrote it cannot continue: start again (--restart), or move its folder away"


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[_CheckedFile]:
    try:
        file = open(path, "rb", buffering=0)
    except FileNotFoundError as error:
        msg = f"{path} is missing; {_WAY_OUT}"
        raise DamagedFileError(msg) from error
    with file:
        yield _CheckedFile(os.fspath(path), file.fileno())


class _CheckedFile:
    def __init__(self, path: str, file: int) -> None:
        self._path, self._file = path, file
        stat = os.fstat(file)
        key = (path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        info = _INFOS.get(key)
        if info is None:
            info = self._read_info(stat.st_size)
            if len(_INFOS) >= _MOST_INFOS:
                _INFOS.clear()
            _INFOS[key] = info
        self._info, self.size = info, info.size

    def _read_info(self, n_bytes: int) -> _FileInfo:
        if n_bytes < _END:
            self._refuse(f"it has {n_bytes} bytes")
        end = self.content(n_bytes - _END, _END)
        size = int.from_bytes(end[:-4], "little")
        n_blocks = -(-size // _BLOCK)
        ends = self.content(size, n_bytes - size - 4) if size + 4 * n_blocks + _END == n_bytes else b""
        if not ends or google_crc32c.value(ends) != int.from_bytes(end[-4:], "little"):
            self._refuse("the checksums at its end are not those that were written")
        return _FileInfo(size, np.frombuffer(ends, dtype="<u4", count=n_blocks), np.zeros(n_blocks, dtype=bool))

    def verify(self, start: int, stop: int, rule: str | None = None) -> None:
        """Check the blocks that contain some bytes."""
        rule = rule or settings.get("verify")
        first, last = start // _BLOCK, -(-stop // _BLOCK)
        if rule == "never" or (rule == "first" and self._info.verified[first:last].all()):
            return
        data = np.empty(min(_BLOCK, self.size), dtype=np.uint8)
        for block in range(first, last):
            if rule == "first" and self._info.verified[block]:
                continue
            offset = block * _BLOCK
            part = data[: min(_BLOCK, self.size - offset)]
            self.read(offset, part)
            computed, written = google_crc32c.value(part), int(self._info.sums[block])
            if computed != written:
                what = f"bytes {offset:,} to {offset + len(part):,} have the checksum {computed:08x}"
                self._refuse(f"{what}, {written:08x} was written")
            self._info.verified[block] = True

    def read(self, offset: int, into: npt.NDArray[np.uint8]) -> None:
        """Fill an array with the bytes from an offset on."""
        done = 0
        while done < len(into):
            n_bytes = os.preadv(self._file, [into[done:].data], offset + done)
            if not n_bytes:
                self._refuse(f"it ends after {offset + done:,} bytes")
            done += n_bytes

    def content(self, offset: int, n_bytes: int) -> bytes:
        buffer = np.empty(n_bytes, dtype=np.uint8)
        self.read(offset, buffer)
        return buffer.tobytes()

    def mapped(self) -> mmap.mmap:
        return mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)

    def form(self) -> tuple[tuple[int, ...], np.dtype[Any], int]:
        """Shape and type of the array, and its first byte."""
        if self._info.form is None:
            n_bytes = min(self.size, _BLOCK)
            self.verify(0, n_bytes)  # before the header is parsed
            start = io.BytesIO(self.content(0, n_bytes))
            form = np.lib.format
            try:
                form.read_magic(start)
                with _PARSING:
                    shape, _, dtype = form.read_array_header_1_0(start)
            except (ValueError, TypeError) as error:  # not checked, or written by another program
                self._refuse(str(error))
            if start.tell() + math.prod(shape) * dtype.itemsize > self.size:
                self._refuse(f"it has no room for an array of shape {shape}")
            self._info.form = shape, dtype, start.tell()
        return self._info.form

    def _refuse(self, why: str) -> NoReturn:
        refuse(f"{self._path} is damaged: {why}; {_WAY_OUT}", kind=DamagedFileError)
