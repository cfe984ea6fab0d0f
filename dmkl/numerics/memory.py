"""Where in memory arrays begin, and what becomes of what they leave."""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array

__all__ = ["aligned", "keep_freed"]

_LINE = 64
"""Bytes of a cache line."""

_TRIM, _PAD, _MAP = -1, -2, -3
"""Numbers that mallopt(3) has for the thresholds below."""
_MAPPED, _KEPT = 2**25, 2**26
"""Bytes from which glibc maps a block by itself, the most that it accepts, and bytes that it keeps when freed."""


def keep_freed() -> None:
    """Have the C library keep the memory that arrays of some megabytes leave, for those that follow.

    Pages that go back to the system come again one fault at a time, filled with zeros: in loops over such arrays that
    may take as long as what is computed in them, and threads wait for one another's. Where the environment sets
    MALLOC_TRIM_THRESHOLD_ or its kin, as Dask does for its worker processes, and elsewhere than in glibc, this does
    nothing.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    set_to = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_to is not None:
        # What a thread takes its memory from goes back as a whole when it is empty, unless as much is to be spare.
        for what, size in ((_MAP, _MAPPED), (_TRIM, _KEPT), (_PAD, _KEPT)):
            set_to(what, size)


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Zeros that begin with a cache line, which NumPy does not promise."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _LINE
    return np.asarray(memory[start : start + size].view(dtype).reshape(shape))
