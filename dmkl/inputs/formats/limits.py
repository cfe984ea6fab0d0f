"""What a file may make its reader take into memory: no more than the budget, nor than the file holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from dmkl import settings
from dmkl.errors import InputError, MemoryBudgetError

__all__ = ["asked_bytes", "check_held", "check_memory", "lines_of", "n_bytes", "ranges_of"]

_LINE_BYTES = 2**20
"""Lines up to this length are cut into cells without a thought of memory."""
_CELL_BYTES = 128
"""What a cell of a line takes at most as a string of Python and in lists, beside its characters."""


def n_bytes(shape: Sequence[int], itemsize: int) -> int:
    """Bytes of an array; of Python's integers, which do not overflow."""
    return math.prod(map(int, shape)) * int(itemsize)


def ranges_of(shape: Sequence[int], key: Any) -> list[range]:
    """What a key spans along each axis: Ellipsis, slices, positions or arrays of these."""
    parts = () if key is Ellipsis else key if isinstance(key, tuple) else (key,)
    found = []
    for length, part in zip(shape, (*parts, *[slice(None)] * (len(shape) - len(parts))), strict=False):
        if isinstance(part, slice):
            found.append(range(*part.indices(length)))
        else:
            places = np.atleast_1d(part)
            found.append(range(int(places.min()), int(places.max()) + 1) if places.size else range(0))
    return found


def asked_bytes(shape: Sequence[int], key: Any, itemsize: int) -> int:
    """Bytes of the part of an array that a key spans."""
    return n_bytes([_length(part) for part in ranges_of(shape, key)], itemsize)


def _length(part: range) -> int:
    """len(part), which overflows where lengths do."""
    return max(0, -((part.start - part.stop) // part.step))


def check_memory(what: str, needed_bytes: int, way_out: str) -> None:
    """Refuse to read what takes more memory than a computation may.

    Raises
    ------
    MemoryBudgetError
        If it does.
    """
    budget_bytes = settings.memory_budget_bytes()
    if needed_bytes > budget_bytes:
        msg = (
            f"{what} takes {needed_bytes:.3g} bytes of memory, and {budget_bytes:.3g} are allowed (the setting "
            f"dmkl.memory); {way_out}"
        )
        raise MemoryBudgetError(msg)


def check_held(what: str, shape: Sequence[int], itemsize: int, held_bytes: int) -> None:
    """Refuse an array whose header tells of more than its file holds.

    Raises
    ------
    InputError
        If it does, or its lengths are no whole numbers from 0 on.
    """
    if not all(type(length) is int and length >= 0 for length in shape):
        msg = f"{what} is damaged: its shape is {tuple(shape)!s:.80}, expected whole numbers from 0 on"
        raise InputError(msg)
    expected = n_bytes(shape, max(1, itemsize))  # strings of no length take memory where they are read
    if held_bytes < expected:
        msg = f"{what} is damaged: its header tells of {expected} bytes of entries, there are {held_bytes}"
        raise InputError(msg)


def lines_of(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a text file, refused where one is too long for memory."""
    most = settings.memory_budget_bytes() // 4
    while raw := file.readline(most + 1):
        if len(raw) > _LINE_BYTES:
            cells = 1 + max(raw.count(mark) for mark in (b"\t", b";", b",", b" "))
            needed = 4 * len(raw) + cells * _CELL_BYTES
            check_memory(f"a line of {path}", needed, "save the matrix in a binary format, or allow more")
        yield raw
