"""Loops that numba compiles when they are first called; importing numba takes a while, and most programs need none.

The loops take rows and columns out of tiles, and add products to sums, casting on the way. NumPy's fancy indexing takes
ten times as long and makes a new array for every tile; its addition of single precision to double takes twice as long.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Set
from typing import Any, TypeVar

import numpy as np

from dmkl.arrays import Array

__all__ = ["SMALL", "add", "add_weighted", "compiled", "gather", "take_rows"]

# --- compiling -----------------------------------------------------------------------------------------------------


Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(fastmath: Set[str] = frozenset()) -> Callable[[Loop], Loop]:
    """Compile a function with numba, for each type of its arguments, and keep the result on disk.

    Compiled functions that it names are compiled before it, and called without the interpreter. They are of the same
    file: what is kept is compiled anew when that file changes, and no other.

    It is kept beside the source file, or where that cannot be written in the user's folder for caches (numba's
    NUMBA_CACHE_DIR names another); where nothing can be written it is compiled anew in each process. The function runs
    without the interpreter's lock, and divides as NumPy does: a division by zero is no exception.

    Parameters
    ----------
    fastmath
        What the compiler may assume beyond IEEE 754, by the names of LLVM's flags.
    """

    def decorate(loop: Loop) -> Loop:
        lock, made = threading.Lock(), list[Any]()

        def dispatcher() -> Any:
            if not made:
                with lock:  # threads that come at once wait for one
                    if not made:
                        made.append(_compile(loop, fastmath))
            return made[0]

        @functools.wraps(loop)
        def call(*arguments: Any) -> Any:
            return dispatcher()(*arguments)

        call.dispatcher = dispatcher  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _compile(loop: Callable[..., Any], fastmath: Set[str]) -> Any:
    import numba

    known = {name: loop.__globals__[name] for name in loop.__code__.co_names if name in loop.__globals__}
    if others := {name: value.dispatcher() for name, value in known.items() if hasattr(value, "dispatcher")}:
        # numba calls what the names of a function stand for, which are wrappers otherwise.
        loop = functools.wraps(loop)(types.FunctionType(loop.__code__, loop.__globals__ | others, loop.__name__))
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}
    try:
        return numba.njit(cache=True, **options)(loop)
    except RuntimeError:  # numba's, where it finds no folder to write to
        return numba.njit(**options)(loop)


# --- gathering rows and columns ------------------------------------------------------------------------------------


SMALL = 500
"""Sets of no more samples do without compiled loops: loading these would take longer than that saves."""


@compiled()
def gather(matrix: Array, rows: Array, cols: Array, out: Array) -> None:
    """Write matrix[rows][:, cols] to the first columns of out, in the precision of out.

    Positions are unsigned, which saves a comparison.
    """
    # Four rows at a time: a position is looked up once for all of them.
    fours = len(rows) - len(rows) % 4
    for i in range(0, fours, 4):
        first, second, third, fourth = matrix[rows[i]], matrix[rows[i + 1]], matrix[rows[i + 2]], matrix[rows[i + 3]]
        for j in range(len(cols)):
            col = cols[j]
            out[i, j] = first[col]
            out[i + 1, j] = second[col]
            out[i + 2, j] = third[col]
            out[i + 3, j] = fourth[col]
    for i in range(fours, len(rows)):
        source = matrix[rows[i]]
        target = out[i]
        for j in range(len(cols)):
            target[j] = source[cols[j]]


@compiled()
def add(total: Array, part: Array) -> None:
    """Add part to total, in the precision of total."""
    for i in range(part.shape[0]):
        source = part[i]
        target = total[i]
        for j in range(len(source)):
            target[j] += source[j]


@compiled()
def take_rows(matrix: Array, rows: Array, out: Array) -> None:
    """Write matrix[rows] to out; positions are unsigned."""
    for i in range(len(rows)):
        source = matrix[rows[i]]
        target = out[i]
        for j in range(len(source)):
            target[j] = source[j]


@compiled()
def add_weighted(tiles: Array, rows: Array, cols: Array, weights: Array, totals: Array) -> None:
    """Add weights @ tiles[:, rows][:, :, cols] to totals, in double precision; positions are unsigned.

    Weights are (sums, tiles). A row of each tile is taken once for all sums, and a row of a sum goes through memory
    once for all tiles.
    """
    taken = np.empty((len(tiles), len(cols)))
    for i in range(len(rows)):
        for k in range(len(tiles)):
            source = tiles[k, rows[i]]
            target = taken[k]
            for j in range(len(cols)):
                target[j] = source[cols[j]]
        for s in range(len(weights)):
            total = totals[s, i]
            for k in range(len(tiles)):
                weight = weights[s, k]
                if weight == 0.0:
                    continue
                target = taken[k]
                for j in range(len(cols)):
                    total[j] += weight * target[j]
