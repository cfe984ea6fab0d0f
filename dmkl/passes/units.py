"""How a pass is cut into tasks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Index
from dmkl.passes.view import TileTask, View

__all__ = ["Unit", "bytes_of_task", "units_of"]


@dataclass(frozen=True)
class Unit:
    """One task: these kernels (positions in the view), these tiles of each."""

    kernels: npt.NDArray[np.int64]
    tiles: tuple[TileTask, ...]
    first: bool
    """Whether this unit adds the parts of the result that are not sums over tiles."""
    whole: bool = True
    """Whether these are all tiles of its kernels."""

    def rows(self, view: View) -> Index:
        """Positions among the rows of a view, before its steps, of those that its products reach."""
        there = np.zeros(view.source.tiling.shape[0], dtype=bool)
        there[[tile.i for tile in self.tiles if tile.forward]] = True
        there[[tile.j for tile in self.tiles if tile.transposed]] = True
        return np.flatnonzero(there[view.rows // view.source.tiling.tile])


_TASKS = 16
"""Tasks of a pass, as far as their size allows: some for each core of a machine, so that none waits long for others."""
_SMALLEST, _LARGEST = 2**24, 2**28
"""Bytes of tiles of a task. Smaller ones take less time than Dask does to schedule them and to add up their results;
larger ones tell too late how far the pass is, and lose too much when a worker dies."""
_MOST = 2**12
"""Tasks of a pass over a set of terabytes, about: a scheduler starts some hundred in a second."""


def bytes_of_task(total_bytes: float) -> float:
    """Bytes of tiles that each task of a pass over so many should go through."""
    return min(max(total_bytes / _TASKS, _SMALLEST), max(_LARGEST, total_bytes / _MOST))


def units_of(view: View, most: int | None = None, beside: int = 0) -> list[Unit]:
    """Cut a pass into tasks: some whole kernels each, at most `most`, or a part of one.

    The data alone decide, and not where the pass runs: in another order sums would round otherwise, and weights be
    others in the last digits. `beside` counts further kernels of the pass, which are cut by themselves.
    """
    tiles = view.tile_tasks()
    n = len(view.kernels)
    kernel_bytes = max(1, len(tiles) * view.bytes_per_tile)
    task_bytes = bytes_of_task((n + beside) * kernel_bytes)
    parts = min(len(tiles), round(kernel_bytes / task_bytes))
    if parts > 1:
        cuts = _cut(tiles, parts)
        return [
            Unit(np.array([j]), cut, first=position == 0, whole=False)
            for j in range(n)
            for position, cut in enumerate(cuts)
        ]
    together = max(1, min(int(task_bytes / kernel_bytes), n if most is None else most))
    return [Unit(group, tuple(tiles), first=True) for group in np.array_split(np.arange(n), -(-n // together))]


_LINES = {3: (0, 1), 7: (0, 1, 3), 13: (0, 1, 3, 9), 21: (0, 1, 4, 14, 16), 31: (0, 1, 3, 8, 12, 18)}
"""Perfect difference sets: among their differences modulo P, every number but 0 is there once (Singer, Trans. AMS 43,
1938)."""
_BROAD = 4
"""Rows of tiles in each of P parts of the samples, at least: with fewer, tasks would be of too different sizes."""


def _cut(tiles: Sequence[TileTask], parts: int) -> list[tuple[TileTask, ...]]:
    """Cut the tiles of a kernel into about so many parts that reach few rows each, as what they reach has to be moved.

    The upper tiles of a symmetric kernel are cut by the lines of a projective plane: with the samples in P bands, line
    u has the q + 1 bands u + d modulo P, and any two bands are on one line together. So the tiles between the bands of
    a line reach (q + 1)/P of the rows, and all lines together q + 1, about √P, times the rows. Strips of tiles reach
    some 2P/3 times the rows: they are taken where there are few tiles, or none that stand for a mirror image.
    """
    sides = sorted({tile.i for tile in tiles} | {tile.j for tile in tiles})
    costs = {
        n_lines: len(line) * max(1, round(parts / n_lines))
        for n_lines, line in _LINES.items()
        if n_lines <= parts and _BROAD * n_lines <= len(sides)
    }
    n_lines = min(costs, key=lambda one: costs[one], default=0)
    if not n_lines or costs[n_lines] >= 2 * parts / 3 or not any(tile.transposed for tile in tiles):
        return _split(tiles, parts)
    band = {side: number * n_lines // len(sides) for number, side in enumerate(sides)}
    found: list[list[TileTask]] = [[] for _ in range(n_lines)]
    line_of = {
        ((u + a) % n_lines, (u + b) % n_lines): u
        for u, a, b in itertools.product(range(n_lines), _LINES[n_lines], _LINES[n_lines])
        if a != b or a == 0
    }
    for tile in sorted(tiles, key=lambda tile: (band[tile.i], band[tile.j])):
        found[line_of[band[tile.i], band[tile.j]]].append(tile)
    return [part for line in found for part in _split(line, max(1, round(parts / n_lines)))]


def _split(tiles: Sequence[TileTask], parts: int) -> list[tuple[TileTask, ...]]:
    """Some tiles after one another."""
    return [tuple(tiles[t] for t in cut) for cut in np.array_split(np.arange(len(tiles)), parts)]
