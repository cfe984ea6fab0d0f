"""Loops that numba compiles on their first call; importing numba is slow, and most programs need no compiled loop.

The loops take rows and columns out of tiles, and cast on the way. NumPy's `take` along both axes takes nearly twice as
long, its fancy indexing four times, and makes a new array for every tile.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Set
from typing import Any, TypeVar

import numpy as np

from dmkl.arrays import Array

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(fastmath: Set[str] = frozenset()) -> Callable[[Loop], Loop]:
    """Compile a function with numba, for each type of its arguments, and keep the result on disk.

    The cache is in the folder of the source file or, if that is read-only, in the user's cache folder (set by numba's
    NUMBA_CACHE_DIR); without a writable folder each process compiles again. The function runs without the interpreter's
    lock, and divides as NumPy does: a division by zero raises no exception. It calls no other compiled functions.
    `fastmath` has assumptions of the compiler beyond IEEE 754, by the names of LLVM's flags.
    """

    def decorate(loop: Loop) -> Loop:
        lock, made = threading.Lock(), list[Any]()

        @functools.wraps(loop)
        def call(*arguments: Any) -> Any:
            if not made:
                with lock:  # threads that arrive at the same time wait for one compilation
                    if not made:
                        made.append(_compile(loop, fastmath))
            return made[0](*arguments)

        return call  # type: ignore[return-value]

    return decorate


def _compile(loop: Callable[..., Any], fastmath: Set[str]) -> Any:
    import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(fastmath)}
    try:
        return numba.njit(cache=True, **options)(loop)
    except RuntimeError:  # numba found no folder that it can write to
        return numba.njit(**options)(loop)


SMALL = 500
"""Sets of at most so many samples are processed without compiled loops: loading them would cost more than it saves."""


@compiled()
def gather(matrix: Array, rows: Array, cols: Array, out: Array) -> None:
    """Write matrix[rows][:, cols], positions unsigned, to the first columns of out, in the precision of out."""
    # Four rows at a time share one look-up of each position.
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
def add_weighted(tiles: Array, rows: Array, cols: Array, weights: Array, totals: Array) -> None:
    """Add weights @ tiles[:, rows][:, :, cols] to totals, in double precision; positions are unsigned.

    Weights are (sums, tiles). A row of each tile is gathered once for all sums, and a row of a sum goes through memory
    once for all tiles.
    """
    # One gathered row of every tile is small enough to stay in the cache while all sums use it.
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
                # Skipping zeros also keeps NaN and infinity of an unused kernel out of the sum.
                if weight == 0.0:
                    continue
                target = taken[k]
                for j in range(len(cols)):
                    total[j] += weight * target[j]
