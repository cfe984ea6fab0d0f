"""Positions that an index or names choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmkl.arrays import Index
from dmkl.errors import InputError

__all__ = ["named_positions", "positions"]


def positions(key: Any, length: int, what: str) -> Index:
    """The positions, from 0 to `length` − 1, that an index chooses.

    An index is an integer, a slice, a boolean mask or a vector of integers, of which negative ones count from the end;
    InputError if it is none of these or chooses what is not there. `what` names one of the things, such as "row".
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


def named_positions(asked: Any, names: Sequence[str], what: str) -> Index:
    """The positions of things that have names, in the order asked for.

    Asked for are a name, a position, a slice, a boolean mask, or several names or positions; InputError if one is not
    there. `what` names one of the things, such as "kernel".
    """
    if isinstance(asked, slice):
        return np.arange(len(names))[asked]
    several = [asked] if isinstance(asked, str | int | np.integer) else list(asked)
    if several and all(isinstance(one, bool | np.bool_) for one in several):
        return positions(np.array(several, dtype=bool), len(names), what)
    return np.array([_named_position(one, names, what) for one in several], dtype=np.int64)


def _named_position(asked: Any, names: Sequence[str], what: str) -> int:
    n = len(names)
    if isinstance(asked, int | np.integer):
        if not -n <= asked < n:
            msg = f"there is no {what} {asked}; this set has {n}"
            raise InputError(msg)
        return int(asked) % n
    if asked not in names:
        msg = (
            f"there is no {what} named {asked!r}; the names are "
            f"{', '.join(map(repr, names[:10]))}{', …' if n > 10 else ''}"
        )
        raise InputError(msg)
    return names.index(asked)
