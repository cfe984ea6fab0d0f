"""How a pass is cut into tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dmkl.passes.view import TileTask, View

__all__ = ["Unit", "units_of"]


@dataclass(frozen=True)
class Unit:
    """One task: these kernels (positions in the view), these tiles of each."""

    kernels: npt.NDArray[np.int64]
    tiles: tuple[TileTask, ...]
    first: bool
    """Whether this unit adds the parts of the result that are not sums over tiles."""


def units_of(view: View, slots: int, most: int | None = None) -> list[Unit]:
    """Cut a pass into tasks: whole kernels, at most `most`, or parts of one, at least some four for each slot.

    Many more tasks than that cost more in scheduling and in partial results than they gain in balance.
    """
    tiles = view.tile_tasks()
    n, wanted = len(view.kernels), 4 * slots
    if n >= wanted:
        groups = max(min(n, 4 * wanted), 1 if most is None else math.ceil(n / most))
        return [Unit(group, tuple(tiles), first=True) for group in np.array_split(np.arange(n), groups)]
    parts = min(math.ceil(wanted / n), max(1, len(tiles)))
    cuts = np.array_split(np.arange(len(tiles)), parts)
    return [
        Unit(np.array([j]), tuple(tiles[t] for t in cut), first=position == 0)
        for j in range(n)
        for position, cut in enumerate(cuts)
    ]
