"""Compressed files: text is read as a stream, other files are unpacked into a temporary folder."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

from dmkl.errors import damaged_as, needing
from dmkl.settings import check_memory, memory_budget_bytes


def _xz(path: Path, _: str) -> Any:
    with path.open("rb") as file:  # a few bytes state the memory that decoding takes
        lzma.LZMADecompressor(memlimit=memory_budget_bytes()).decompress(file.read(2**10), 1)
    return lzma.open(path)


def _zstd(path: Path, _: str) -> Any:
    with needing("pyarrow", f"{path} is read with"):
        import pyarrow
    return pyarrow.input_stream(str(path), compression="zstd")


_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": _xz, ".zst": _zstd}
COMPRESSED = tuple(_OPENERS)
"""The extensions of compressed files, which follow that of their content."""
_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
_CHUNK_BYTES, _FILE_BYTES = 2**20, 2**12


def content_name(name: str) -> str:
    """Return the name of a file in lower case, without the extension of its compression."""
    name = name.lower()
    return name[: name.rindex(".")] if name.endswith(COMPRESSED) else name


def stem(path: Path) -> str:
    """Return the name of a file without its extension, without both if it has two, as .csv.gz and .grm.bin."""
    return Path(path.stem).stem if path.suffix.lower() in (*COMPRESSED, ".bin", ".zip") else path.stem


@contextmanager
def stream(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, compressed or not; a stream of zstd cannot seek. InputError if it is not whole."""
    suffix = path.suffix.lower()
    with damaged_as(f"{path} is not a whole {suffix} file", *(_ERRORS if suffix in COMPRESSED else ())):
        with _OPENERS.get(suffix, open)(path, "rb") as file:
            yield file


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of copies, which is removed when Python ends."""
    return tempfile.TemporaryDirectory(prefix="dmkl-unpacked-", ignore_cleanup_errors=True)


def unpacked(path: Path) -> Path:
    """Return a copy of the content of a compressed file or a .zip, which the memory limits; other files as they are."""
    if not path.name.lower().endswith((*COMPRESSED, ".zip")):
        return path
    status = path.stat()
    return _copy(path.absolute(), status.st_mtime_ns, status.st_size)


@cache
def _copy(path: Path, *_: int) -> Path:
    copy, way_out = Path(tempfile.mkdtemp(dir=_folder().name)) / path.stem, "unpack it first, or allow more"
    if path.suffix.lower() == ".zip":
        with damaged_as(f"{path} is not a whole .zip file", Exception), ZipFile(path) as archive:
            n_bytes = sum(member.file_size + _FILE_BYTES for member in archive.infolist())
            check_memory(f"the content of {path}", n_bytes, way_out)
            copy.mkdir()  # also for no members
            archive.extractall(copy)
        return copy
    with stream(path) as packed, copy.open("wb") as file:
        while chunk := packed.read(_CHUNK_BYTES):
            check_memory(f"the content of {path}", file.tell() + len(chunk), way_out)
            file.write(chunk)
    return copy
