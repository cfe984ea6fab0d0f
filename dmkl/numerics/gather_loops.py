"""Compiled loops that take rows and columns out of a tile, and add what comes of it to a sum, casting on the way.

NumPy's fancy indexing takes ten times as long and makes a new array for every tile; its addition of single precision to
double takes twice as long.
"""

from __future__ import annotations

from dmkl.arrays import Array
from dmkl.numerics.compiling import compiled

__all__ = ["add", "gather", "take_rows"]


@compiled()
def gather(matrix: Array, rows: Array, cols: Array, out: Array) -> None:
    """Write matrix[rows][:, cols] to out, in the precision of out; positions are unsigned, which saves a comparison."""
    for i in range(len(rows)):
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
