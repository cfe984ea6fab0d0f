"""Where in memory arrays begin, and what becomes of what they leave."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array

__all__ = ["aligned", "keep_freed"]

_LINE = 64
"""Bytes of a cache line."""

_LARGEST = 2**25 - 2**13
"""Bytes of the largest block that the C library learns from, less what it adds."""


def keep_freed() -> None:
    """Have the C library keep the memory that arrays of some megabytes leave, for those that follow.

    Pages that go back to the system come again one fault at a time, filled with zeros: in loops over such arrays that
    may take as long as what is computed in them. Of the largest mapped block that was freed, up to 32 MiB, glibc learns
    which blocks to map, and twice as much is what it keeps (mallopt(3), M_MMAP_THRESHOLD). So one is freed here, of
    which nothing was ever touched. Elsewhere, and where MALLOC_TRIM_THRESHOLD_ or its kin are set, as Dask does for its
    worker processes, this does nothing.
    """
    np.empty(_LARGEST, dtype=np.uint8)


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Zeros that begin with a cache line, which NumPy does not promise."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE
    return np.asarray(memory[start : start + size].view(dtype).reshape(shape))
