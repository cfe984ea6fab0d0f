"""Compiled loops that take rows and columns out of tiles, and add what comes of it to sums, casting on the way.

NumPy's fancy indexing takes ten times as long and makes a new array for every tile; its addition of single precision to
double takes twice as long.
"""

from __future__ import annotations

import numpy as np

from dmkl.arrays import Array
from dmkl.numerics.compiling import compiled

__all__ = ["SMALL", "add", "add_weighted", "gather", "take_rows"]

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
