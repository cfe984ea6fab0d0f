"""Tiles kept in memory between passes: in this process, or on the workers of a cluster that read them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dask.delayed import delayed

from dmkl.arrays import Array, TileKey
from dmkl.passes.execute import active_client, check_memory, execute, machine
from dmkl.passes.view import TileSource, Unit, View, units_of


class HeldTiles:
    """A source with some tiles in memory, in the parts in which they were loaded.

    `parts` maps each kernel to pairs of a set of tile positions and a dictionary with these tiles (or a future of it).
    Tiles that are not in this process are read from `origin`, the source of the tiles.
    """

    def __init__(self, origin: TileSource, parts: dict[int, list[tuple[frozenset[tuple[int, int]], Any]]]) -> None:
        self.origin, self.parts = origin, parts
        held = [loaded for of_kernel in parts.values() for _, loaded in of_kernel if isinstance(loaded, dict)]
        self._tiles: dict[TileKey, Array] = {key: tile for loaded in held for key, tile in loaded.items()}
        self.token = uuid.uuid4().hex  # a set that is cut into other parts needs other task keys
        self.names, self.samples, self.train_samples = origin.names, origin.samples, origin.train_samples
        self.individuals = getattr(origin, "individuals", origin.samples)
        self.given = getattr(origin, "given", "")
        self.dtype, self.tiling, self.symmetric = origin.dtype, origin.tiling, origin.symmetric
        self.content_id, self.reads_per_tile = origin.content_id, origin.reads_per_tile
        self.factors = None  # the tiles are in memory
        self.diagonal, self.row_sum = origin.diagonal, origin.row_sum
        if hasattr(origin, "combined_features"):
            self.combined_features = origin.combined_features
        self.scratch_bytes = origin.scratch_bytes

    def __getstate__(self) -> dict[str, Any]:
        # Only the description of the set is sent to workers; the tiles are there already and arrive as arguments.
        return {**self.__dict__, "parts": {}, "_tiles": {}}

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.content_id, self.token

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        if not all(key in self._tiles for key in keys):
            return self.origin.stream(keys)
        return ((key, self._tiles[key]) for key in keys)

    def units(self, view: View) -> list[tuple[Unit, Any]]:
        """The tasks of a pass, cut into the parts that are in memory, each with its tiles.

        Tiles that are not in memory make a task that reads them, for example those among the training samples if only
        the rows of test samples were loaded.
        """
        tasks = view.tile_tasks()
        units: list[tuple[Unit, Any]] = []
        for place, kernel in enumerate(view.kernels):
            parts = [(pairs, tiles) for pairs, tiles in self.parts[int(kernel)] if _usable(tiles)]
            # A tile that was loaded on a worker that has gone is missing, and is read from the source like one never
            # loaded.
            everywhere = frozenset().union(*(pairs for pairs, _ in parts))
            missing = tuple(task for task in tasks if (task.i, task.j) not in everywhere)
            cut = [(tuple(task for task in tasks if (task.i, task.j) in pairs), tiles) for pairs, tiles in parts]
            wanted = [(chosen, tiles) for chosen, tiles in [*cut, (missing, None)] if chosen] or [((), None)]
            units += [
                (Unit(np.array([place]), chosen, first=part == 0, whole=len(wanted) == 1), tiles)
                for part, (chosen, tiles) in enumerate(wanted)
            ]
        return units


def _load(source: TileSource, keys: list[TileKey]) -> dict[TileKey, Array]:
    return {key: np.array(tile) for key, tile in source.stream(keys)}


def _usable(tiles: Any) -> bool:
    """Whether the tiles are still where they were loaded: not on the workers of a cluster that is no longer in use."""
    client = getattr(tiles, "client", None)  # of a future
    return client is None or (client is active_client() and tiles.status != "cancelled")


def persisted(view: View) -> View:
    """Load the tiles that a view needs; MemoryBudgetError if they exceed the memory of all workers together.

    Kernels with factors are left as they are: factors are smaller than tiles, and multiply faster.
    """
    if view.factor_widths is not None:
        return view
    host = machine()
    check_memory(
        "keeping this set in memory",
        {"tiles": view.bytes_per_pass},
        host.task_bytes * host.slots,
        "Leave out persist(), select fewer kernels or add workers",
    )
    # The source is a node of the graph and not scattered: Dask can then reload the tiles of a worker that dies.
    token = uuid.uuid4().hex
    shared = delayed(view.source, name=f"load-source-{token}", traverse=False)
    parts: dict[int, list[tuple[frozenset[tuple[int, int]], Any]]] = {int(k): [] for k in view.kernels}
    side_bytes = view.source.tiling.tile**2 * view.source.dtype.itemsize
    # Tiles are loaded kernel by kernel for any number of workers: a later view may select any of the kernels.
    cuts = [
        (kernel, [(kernel, task.i, task.j) for task in unit.tiles])
        for unit in units_of(view, most=1)
        for kernel in view.kernels[unit.kernels].tolist()
    ]
    load = delayed(_load, pure=False)
    tasks = [load(shared, keys, dask_key_name=f"load-tiles-{k}-{token}") for k, (_, keys) in enumerate(cuts)]
    n_bytes = [len(keys) * side_bytes for _, keys in cuts]
    loaded = execute(tasks, list(zip(tasks, n_bytes, strict=True)), "load-tiles", keep=True)
    for (kernel, keys), tiles in zip(cuts, loaded, strict=True):
        parts[kernel].append((frozenset((i, j) for _, i, j in keys), tiles))
    return replace(view, source=HeldTiles(view.source, parts))
