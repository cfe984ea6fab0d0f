"""How a pass is cut into tasks."""

from __future__ import annotations

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


_LEAST, _LARGEST = 32, 16
"""Tasks of a pass at least, where there are tiles enough, and tiles of a task at most. More tasks cost more in
scheduling and in partial results than they gain in balance."""


def units_of(view: View, most: int | None = None, beside: int = 0) -> list[Unit]:
    """Cut a pass into tasks: some whole kernels each, at most `most`, or a part of one.

    The data alone decide, and not where the pass runs: in another order sums would round otherwise, and weights be
    others in the last digits. `beside` counts further kernels of the pass, which are cut by themselves.
    """
    tiles = view.tile_tasks()
    n = len(view.kernels)
    wanted = -(-_LEAST // (n + beside))
    parts = max(1, min(len(tiles), max(wanted, -(-len(tiles) // _LARGEST))))
    if parts == 1:
        together = max(1, min(_LARGEST // max(1, len(tiles)), n // _LEAST, n if most is None else most))
        groups = np.array_split(np.arange(n), -(-n // together))
        return [Unit(group, tuple(tiles), first=True) for group in groups]
    cuts = np.array_split(np.arange(len(tiles)), parts)
    return [
        Unit(np.array([j]), tuple(tiles[t] for t in cut), first=position == 0)
        for j in range(n)
        for position, cut in enumerate(cuts)
    ]
