"""Positions selected by an index or by names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmkl.arrays import Index
from dmkl.errors import InputError

__all__ = ["named_positions", "positions"]


def positions(key: Any, length: int, what: str) -> Index:
    """The positions, from 0 to `length` − 1, that an index selects.

    An index is an integer, a slice, a boolean mask or a vector of integers, where negative integers count from the end;
    InputError for any other index, and for positions out of range. `what` is the noun for messages, such as "row".
    """
    if isinstance(key, slice):
        return np.arange(length)[key]
    index = np.asarray(key)
    if index.dtype == bool:
        if index.shape != (length,):
            msg = f"a boolean {what} mask must have shape ({length},), got {index.shape}"
            raise InputError(msg)
        return np.flatnonzero(index)
    # An empty list becomes a float array, which would be rejected below.
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


def named_positions(wanted: Any, names: Sequence[str], what: str) -> Index:
    """The positions of named items, in the order requested.

    The request is a name, a position, a slice, a boolean mask, or several names or positions; InputError if an item
    does not exist. `what` is the noun for messages, such as "kernel".
    """
    if isinstance(wanted, slice):
        return np.arange(len(names))[wanted]
    several = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
    # Booleans are integers in Python, so a mask has to be recognized before positions.
    if several and all(isinstance(item, bool | np.bool_) for item in several):
        return positions(np.array(several, dtype=bool), len(names), what)
    return np.array([_named_position(item, names, what) for item in several], dtype=np.int64)


def _named_position(wanted: Any, names: Sequence[str], what: str) -> int:
    n = len(names)
    if isinstance(wanted, int | np.integer):
        if not -n <= wanted < n:
            msg = f"there is no {what} {wanted}; this set has {n}"
            raise InputError(msg)
        return int(wanted) % n
    if wanted not in names:
        msg = (
            f"there is no {what} named {wanted!r}; the names are "
            f"{', '.join(map(repr, names[:10]))}{', …' if n > 10 else ''}"
        )
        raise InputError(msg)
    return names.index(wanted)
