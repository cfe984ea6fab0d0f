"""Tiles kept in memory between passes: this process's, or the workers' of a cluster, each part where it was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.delayed import delayed

from dmkl.passes.execute import active_client, check_memory, execute, machine, share
from dmkl.passes.units import Unit, units_of
from dmkl.passes.view import TileKey, TileSource, View

__all__ = ["HeldTiles", "persisted"]

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]


class HeldTiles:
    """A source of which some tiles are held in memory, in the parts in which they were loaded.

    Parameters
    ----------
    origin
        The source they come from; single entries are still read there.
    parts
        For each kernel its parts: which tiles, and a mapping of them (or a future of one).
    """

    def __init__(self, origin: TileSource, parts: dict[int, list[tuple[frozenset[tuple[int, int]], Any]]]) -> None:
        self.origin, self.parts = origin, parts
        self.names, self.samples, self.train_samples = origin.names, origin.samples, origin.train_samples
        self.dtype, self.tiling, self.symmetric = origin.dtype, origin.tiling, origin.symmetric

    def __getstate__(self) -> dict[str, Any]:
        # What travels to a worker describes the set; the tiles are there already and come as arguments.
        return {**self.__dict__, "parts": {}}

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.content_id

    @property
    def content_id(self) -> str:
        """See `TileSource`."""
        return self.origin.content_id

    @property
    def reads_per_tile(self) -> int:
        """See `TileSource`."""
        return self.origin.reads_per_tile

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """See `TileSource`."""
        return self.origin.stream(keys)

    def diagonal(self, kernels: Index) -> Array | None:
        """See `TileSource`."""
        return self.origin.diagonal(kernels)

    def row_sum(self, kernels: Index) -> Array | None:
        """See `TileSource`."""
        return self.origin.row_sum(kernels)

    def units(self, view: View) -> list[tuple[Unit, Any]]:
        """The tasks of a pass, cut as the tiles lie in memory, each with its tiles."""
        tasks = view.tile_tasks()
        found = []
        for place, kernel in enumerate(view.kernels):
            first = True
            for pairs, held in self.parts[int(kernel)]:
                chosen = tuple(task for task in tasks if (task.i, task.j) in pairs)
                if chosen or first:
                    found.append((Unit(np.array([place]), chosen, first), held))
                    first = False
        return found


def _load(source: TileSource, keys: list[TileKey]) -> dict[TileKey, Array]:
    return {key: np.array(tile) for key, tile in source.stream(keys)}


def persisted(view: View) -> View:
    """Load the tiles that a view needs.

    Raises
    ------
    MemoryBudgetError
        If they do not fit the memory of all workers together.
    """
    where = machine()
    check_memory(
        "keeping this set in memory",
        {"tiles": view.bytes_per_pass},
        where.task_bytes * where.slots,
        "Leave out persist(), select fewer kernels or add workers",
    )
    client = active_client()
    shared = share(view.source, f"load-source-{id(view)}")
    parts: dict[int, list[tuple[frozenset[tuple[int, int]], Any]]] = {int(k): [] for k in view.kernels}
    tasks, owners = [], []
    side_bytes = view.source.tiling.tile**2 * view.source.dtype.itemsize
    for kernel in view.kernels:
        # Kernel by kernel, whatever the number of workers: a later view may select any of them.
        for unit in units_of(replace(view, kernels=np.array([kernel])), max(1, where.slots // len(view.kernels))):
            keys = [(int(kernel), task.i, task.j) for task in unit.tiles]
            tasks.append((delayed(_load, pure=False)(shared, keys), len(keys) * side_bytes))
            owners.append((int(kernel), frozenset((task.i, task.j) for task in unit.tiles)))
    if client is None:
        loaded = execute([task for task, _ in tasks], tasks, "load-tiles")
    else:
        loaded = client.compute([task for task, _ in tasks])
    for (kernel, pairs), held in zip(owners, loaded, strict=True):
        parts[kernel].append((pairs, held))
    return replace(view, source=HeldTiles(view.source, parts))
