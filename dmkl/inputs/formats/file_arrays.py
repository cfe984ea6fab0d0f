"""Arrays in data files, of any format, and the roles that their names give them."""

from __future__ import annotations

import gzip
import os
import reprlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import DamagedFileError, DmklError, InputError, one_line
from dmkl.inputs.columns import ROLES, plain_title
from dmkl.inputs.matrices import Matrix
from dmkl.inputs.names import as_text

__all__ = [
    "ELSEWHERE",
    "FileArray",
    "damaged_as",
    "decompressed",
    "listed",
    "role_of",
    "shape_text",
    "stamp",
    "stem",
    "vector",
    "where",
]

ELSEWHERE: Final = (
    "kept in other files",
    "keeps its values in other files, which are not read unasked: a file may name any of this machine. Set "
    "dmkl.external-files to true if you trust it (DASK_DMKL__EXTERNAL_FILES=true)",
)
"""The problem of an array that its file only points to, and what messages say of it."""


@dataclass(frozen=True)
class FileArray:
    """One array of a file; nothing of it is read yet."""

    path: Path
    name: str  # its name in the file; empty where the file holds one array alone
    shape: tuple[int, ...]
    """Its axes in the order in which the software that wrote the file shows them."""
    dtype: np.dtype[Any]  # type of its entries; "U" for strings
    open: Callable[[], Matrix]  # gives the array to read parts of. What it holds in memory goes with it
    whole: Callable[[], Any] | None = None  # gives the whole array, where `open` is no way to it
    problem: str = ""  # why it cannot be a kernel, whatever its shape
    matlab: bool = False  # whether its axes are in MATLAB's order, the kernels along the last one
    views: tuple[FileArray, ...] = ()
    """The matrices of a cell array, which may be feature matrices (samples, columns), or all (columns, samples)."""
    cell: bool = False  # whether it is a cell array of matrices, which `open` shows with the kernels along axis 0
    rows: tuple[str, ...] | None = None  # names of its rows, where the file has them of this array
    families: tuple[str, ...] | None = None  # families of its rows, where these are individuals
    notes: tuple[str, ...] = ()  # choices that could have been otherwise
    columns: tuple[str, ...] | None = None  # names of its columns, likewise
    holds: Literal["", "kernel", "distances", "features"] = ""
    """What its place in the file says it is; "" where its name and shape tell."""

    @property
    def is_text(self) -> bool:
        """Whether it holds strings."""
        return self.dtype.kind in "UST"

    @property
    def looks_like_kernels(self) -> bool:
        """Whether its place, or else its shape, is that of a kernel, or of several."""
        if self.holds:
            return self.holds == "kernel"
        if len(self.shape) == 3:
            return min(self.shape) > 0
        return len(self.shape) == 2 and self.shape[0] == self.shape[1] > 1

    def read(self) -> Any:
        """The whole array, for vectors."""
        return np.asarray(self.open()[(slice(None),) * len(self.shape)]) if self.whole is None else self.whole()

    def __str__(self) -> str:
        kind = "strings" if self.is_text else str(self.dtype)
        lengths = f"{shape_text(self.shape)} " if self.shape else "one "
        problem = f", {self.problem}" if self.problem else ""
        name = self.name or self.path.name
        return f"{name if name.isprintable() and len(name) < 100 else reprlib.repr(name)} ({lengths}{kind}{problem})"


@contextmanager
def damaged_as(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise what a library raises for a damaged file as an InputError that says `what` first."""
    try:
        yield
    except DamagedFileError as error:
        raise InputError(str(error)) from error
    except DmklError:
        raise
    except errors as error:
        msg = f"{what}: {one_line(error)}"
        raise InputError(msg) from error


@contextmanager
def decompressed(path: Path) -> Iterator[IO[bytes]]:
    """A file of text opened for reading as bytes, whether it is compressed (.gz) or not."""
    file: Any = gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")
    with damaged_as(f"{path} is not a whole gzip file", gzip.BadGzipFile, EOFError, zlib.error), file:
        yield file


def stem(path: Path) -> str:
    """The name of a file without its extension, both of them where it has two, as .csv.gz and .grm.bin."""
    return Path(path.stem).stem if path.suffix.lower() in (".gz", ".bin") else path.stem


def listed(arrays: Sequence[FileArray | str], most: int = 12) -> str:
    """Arrays as they are listed in messages: the first of many, and how many there are."""
    more = f" … ({len(arrays)} in all)" if len(arrays) > most else ""
    return ", ".join(map(str, arrays[:most])) + more


def where(variable: FileArray) -> str:
    """The variable as it is named in messages."""
    return f"variable {variable.name!r} of {variable.path}" if variable.name else str(variable.path)


def shape_text(shape: Sequence[int]) -> str:
    """A shape as it is named in messages."""
    return " × ".join(map(str, shape))


def role_of(variable: FileArray) -> str | None:
    """Role of an array by its name: labels, samples …; None for anything else."""
    if variable.holds:
        return None
    role = ROLES.get(plain_title(variable.name.rsplit("/", 1)[-1]))
    # Kernels are often called "kernels"; only strings of that name are names.
    return None if role == "names" and not variable.is_text else role


def stamp(path: Path) -> dict[str, Any]:
    """Identify the content of a file or folder by its size and modification time."""
    inside = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    found = [os.stat(file) for file in (inside if path.is_dir() else [path])]
    return {
        "path": str(path.absolute()),
        "bytes": sum(status.st_size for status in found),
        "mtime_ns": max((status.st_mtime_ns for status in found), default=0),
    }


def vector(values: Any, source: str) -> Array:
    """Values as labels and names need them: vectors with one dimension, whole numbers as integers."""
    array = np.asarray(values)
    if array.ndim > 8:  # some of NumPy's functions take no more than 32
        msg = f"{source} has {array.ndim} dimensions, expected one or two"
        raise InputError(msg)
    if array.dtype.kind in "OSTU":
        with damaged_as(f"{source} is damaged: it holds what is no text in Unicode", UnicodeDecodeError):
            if array.dtype.kind == "U":  # of four bytes a character, which may be none
                array.astype(array.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
            array = np.array([as_text(value) for value in array.ravel().tolist()], dtype=str).reshape(array.shape)
    if array.dtype.kind not in "fiubU":
        msg = f"{source} holds {array.dtype}, expected real numbers or strings"
        raise InputError(msg)
    if array.ndim != 1 and max(array.shape, default=1) == array.size:
        array = array.reshape(-1)
    if array.dtype.kind == "f" and array.size and np.array_equal(array, np.round(array)):
        array = array.astype(np.int64)
    return array
