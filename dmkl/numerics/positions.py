"""Positions that a NumPy-like index means."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.errors import InputError

__all__ = ["positions"]


def positions(key: Any, length: int, what: str) -> npt.NDArray[np.int64]:
    """The positions, from 0 to `length` − 1, that an index chooses.

    Parameters
    ----------
    key
        An integer, a slice, a boolean mask or a vector of integers; negative ones count from the end.
    length
        How many there are to choose from.
    what
        One of them in messages, such as "row".

    Raises
    ------
    InputError
        If `key` is something else, a mask has another length, or a position is outside.
    """
    if isinstance(key, slice):
        return np.arange(length)[key]
    index = np.asarray(key)
    if index.dtype == bool:
        if index.shape != (length,):
            msg = f"a boolean {what} mask must have shape ({length},), got {index.shape}"
            raise InputError(msg)
        return np.flatnonzero(index)
    if index.size == 0:
        index = index.astype(np.int64)
    if index.dtype.kind not in "iu" or index.ndim > 1:
        msg = f"{what}s are chosen by an integer, a slice, a boolean mask or a vector of integers, got {key!r}"
        raise InputError(msg)
    index = np.atleast_1d(index).astype(np.int64)
    outside = index[(index < -length) | (index >= length)]
    if len(outside):
        msg = f"{what} {outside[0]} is outside the {length} {what}s of this set"
        raise InputError(msg)
    return np.where(index < 0, index + length, index)
