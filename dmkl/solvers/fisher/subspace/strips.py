"""Matrices with a row for each sample, on their way from the tasks that make them to the tasks that take them.

The process that runs the solver holds none of them: it knows where their rows lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.files.arrays import load_array, save_array

__all__ = ["Strips", "keep", "numbered"]


def keep(array: Float, path: str | None) -> Float | str:
    """Write an array to a file that all workers see, and return its path; the array itself where there is no path."""
    if path is None:
        return array
    save_array(path, array)
    return path


def numbered(kept: str | None, number: int) -> str | None:
    """The file of one of several parts of what is kept, where it is kept."""
    return None if kept is None else f"{kept}-{number}.npy"


@dataclass(frozen=True, eq=False)
class Strips:
    """Some columns of a matrix, in strips of rows: arrays of this process, or files where tasks run in others.

    Parameters
    ----------
    parts
        The strips from the first row to the last, each (rows, k) or a file that holds it.
    rows
        How many all strips have.
    columns
        The first column, and the one after the last.
    """

    parts: tuple[Array | str, ...]
    rows: int
    columns: tuple[int, int]

    @classmethod
    def of(cls, array: Array) -> Strips:
        """All of an array (rows, columns)."""
        return cls((array,), len(array), (0, array.shape[1]))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.columns[1] - self.columns[0]

    @property
    def width(self) -> int:
        """Columns."""
        return self.shape[1]

    @property
    def held_bytes(self) -> int:
        """What the strips take of the memory of this process."""
        return sum(part.nbytes for part in self.parts if not isinstance(part, str))

    def __sizeof__(self) -> int:
        return self.held_bytes

    def part(self, first: int, last: int) -> Strips:
        """Some of the columns, counted from the first of these."""
        return replace(self, columns=(self.columns[0] + first, self.columns[0] + last))

    def array(self) -> Float:
        """The columns themselves, (rows, columns): not to be written to."""
        chosen = slice(*self.columns)
        found = [(load_array(part) if isinstance(part, str) else part)[:, chosen] for part in self.parts]
        return found[0] if len(found) == 1 else np.concatenate(found)
