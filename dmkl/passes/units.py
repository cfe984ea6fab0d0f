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


_TASKS = 16
"""Tasks of a pass, as far as their size allows: some for each core of a machine, so that none waits long for others."""
_SMALLEST, _LARGEST = 2**24, 2**28
"""Bytes of tiles of a task. Smaller ones take less time than Dask does to schedule them and to add up their results;
larger ones tell too late how far the pass is, and lose too much when a worker dies."""


def units_of(view: View, most: int | None = None, beside: int = 0) -> list[Unit]:
    """Cut a pass into tasks: some whole kernels each, at most `most`, or a part of one.

    The data alone decide, and not where the pass runs: in another order sums would round otherwise, and weights be
    others in the last digits. `beside` counts further kernels of the pass, which are cut by themselves.
    """
    tiles = view.tile_tasks()
    n = len(view.kernels)
    kernel_bytes = max(1, len(tiles) * view.bytes_per_tile)
    task_bytes = min(max((n + beside) * kernel_bytes / _TASKS, _SMALLEST), _LARGEST)
    parts = min(len(tiles), round(kernel_bytes / task_bytes))
    if parts > 1:
        cuts = np.array_split(np.arange(len(tiles)), parts)
        return [
            Unit(np.array([j]), tuple(tiles[t] for t in cut), first=position == 0)
            for j in range(n)
            for position, cut in enumerate(cuts)
        ]
    together = max(1, min(int(task_bytes / kernel_bytes), n if most is None else most))
    return [Unit(group, tuple(tiles), first=True) for group in np.array_split(np.arange(n), -(-n // together))]
