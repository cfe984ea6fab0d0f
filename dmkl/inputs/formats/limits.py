"""Limits of what is read of a file: numbers and strings, no more than the memory budget, nor than the file holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from dmkl import settings
from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray, where
from dmkl.settings import check_memory

__all__ = [
    "TEXT_BYTES",
    "asked_bytes",
    "check_held",
    "check_memory",
    "check_part",
    "lines_of",
    "n_bytes",
    "problem_of",
    "ranges_of",
    "unreadable",
]

_LINE_BYTES = 2**20
"""Lines up to this length are cut into cells without a thought of memory."""
_CELL_BYTES = 128
"""Memory that a cell of a line takes at most as a string of Python and in lists, beside its characters."""
TEXT_BYTES = 64
"""Memory that a string of an array takes at most beside its characters."""


def n_bytes(shape: Sequence[int], itemsize: int) -> int:
    """Bytes of an array; of Python's integers, which do not overflow."""
    return math.prod(map(int, shape)) * int(itemsize)


def ranges_of(shape: Sequence[int], key: Any) -> list[range]:
    """The positions that a key spans along each axis; it has Ellipsis, slices, positions or arrays of these."""
    parts = () if key is Ellipsis else key if isinstance(key, tuple) else (key,)
    ranges = []
    for length, part in zip(shape, (*parts, *[slice(None)] * (len(shape) - len(parts))), strict=False):
        if isinstance(part, slice):
            ranges.append(range(*part.indices(length)))
        else:
            places = np.atleast_1d(part)
            ranges.append(range(int(places.min()), int(places.max()) + 1) if places.size else range(0))
    return ranges


def asked_bytes(shape: Sequence[int], key: Any, itemsize: int) -> int:
    """Bytes of the part of an array that a key spans."""
    # The length of a range overflows where lengths do.
    lengths = [max(0, -((part.start - part.stop) // part.step)) for part in ranges_of(shape, key)]
    return n_bytes(lengths, itemsize)


def check_part(what: str, shape: Sequence[int], chunks: Sequence[int], key: Any, itemsize: int) -> None:
    """Raise a MemoryBudgetError where a part of an array, or a chunk, takes more memory than a computation may."""
    needed = max(asked_bytes(shape, key, itemsize), n_bytes(chunks, itemsize))
    check_memory(f"a part of {what}", needed, "write it in smaller chunks, or allow more")


def check_held(what: str, shape: Sequence[int], itemsize: int, held_bytes: int) -> None:
    """Raise an InputError where a header tells of more than its file holds, or of lengths that are no whole numbers."""
    if not all(type(length) is int and length >= 0 for length in shape):
        msg = f"{what} is damaged: its shape is {tuple(shape)!s:.80}, expected whole numbers from 0 on"
        raise InputError(msg)
    expected = n_bytes(shape, max(1, itemsize))  # strings of no length take memory where they are read
    if held_bytes < expected:
        msg = f"{what} is damaged: its header tells of {expected} bytes of entries, there are {held_bytes}"
        raise InputError(msg)


def problem_of(dtype: np.dtype[Any]) -> str:
    """The reason why numbers of a type cannot be a kernel; "" where they can, and for strings."""
    return "complex" if dtype.kind == "c" else "" if dtype.kind in "fiubUS" else "not numbers"


def unreadable(path: Path, name: str, shape: tuple[int, ...], problem: str, message: str, **more: Any) -> FileArray:
    """An array that is listed with its problem; reading it raises an InputError with a message."""

    def refuse() -> Any:
        msg = f"{where(array)} {message}"
        raise InputError(msg)

    array = FileArray(path, name, shape, np.dtype(object), refuse, problem=problem, **more)
    return array


def lines_of(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a text file, refused where one is too long for memory."""
    most = settings.memory_budget_bytes() // 4
    while raw := file.readline(most + 1):
        if len(raw) > _LINE_BYTES:
            cells = 1 + max(raw.count(mark) for mark in (b"\t", b";", b",", b" "))
            needed = 4 * len(raw) + cells * _CELL_BYTES
            check_memory(f"a line of {path}", needed, "save the matrix in a binary format, or allow more")
        yield raw
