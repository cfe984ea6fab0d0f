"""Going through computed tiles in Dask tasks: each computes one tile of some kernels and returns what it makes of it.

What the tasks return is put together by their caller, tile after tile in the order of the tiles, and BLAS has one
thread inside them: no bit of a result tells how many tasks, threads or workers there were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from dask.delayed import delayed

from dmkl.features.tiles import FeatureTiles
from dmkl.passes.blas import pinned_blas
from dmkl.passes.execute import again, check_memory, execute, graph_token, machine, send_all

__all__ = ["TileIndex", "batches", "check_task_memory", "run_batch"]

Part = TypeVar("Part")
TileIndex = tuple[int, int]
"""(tile row, tile column)"""
OfTile = Callable[[FeatureTiles, Any, tuple[int, ...], TileIndex], list[Part]]
"""What a task does with a source, what all tasks share, some kernels and a tile: a part for each kernel."""

_PARTS_BYTES = 256 * 2**20
"""Row sums of single tiles that are held until a kernel is whole."""


def check_task_memory(source: FeatureTiles, what: str) -> None:
    """Check that computing a tile fits the memory of a task (MemoryBudgetError); `what` is done, as messages say."""
    check_memory(
        what,
        {"tiles": 2 * source.tiling.tile**2 * source.dtype.itemsize, "features and distances": source.scratch_bytes},
        machine().task_bytes,
        "Set dmkl.memory higher, give the workers more memory, or build with a smaller tile",
    )


def batches(source: FeatureTiles, kernels: Sequence[int], n_tiles: int) -> Iterator[list[tuple[int, ...]]]:
    """Cut the work on some kernels, `n_tiles` of each, into batches that keep every worker busy.

    Each batch is a list of groups for `run_batch`.
    """
    slots = machine().slots
    batch: list[tuple[int, ...]] = []
    for group in _groups(source, kernels, n_tiles, slots):
        batch.append(group)
        if len(batch) * n_tiles >= 16 * slots:
            yield batch
            batch = []
    if batch:
        yield batch


def _groups(source: FeatureTiles, kernels: Sequence[int], n_tiles: int, slots: int) -> Iterator[tuple[int, ...]]:
    """Kernels of one table, whose tiles one task computes; those that share a statistic are neighbors.

    Together they read their rows once; but there must be tasks for all, and sums of tiles are held until the end.
    """
    order = sorted(kernels, key=lambda k: (str(source.recipes[k].feature), str(source.recipes[k].statistic), k))
    held = max(1, _PARTS_BYTES // (n_tiles * source.tiling.tile * 16))
    for _, same_table in groupby(order, key=lambda k: source.recipes[k].feature):
        mine = list(same_table)
        # Kernels that share a statistic are not taken apart while other cuts make enough tasks.
        runs = [list(run) for _, run in groupby(mine, key=lambda k: source.recipes[k].statistic)]
        wanted = max(-(-len(mine) // held), min(len(runs), -(-4 * slots // n_tiles)))
        longest = -(-len(mine) // wanted)
        group: list[int] = []
        for run in runs:
            if group and len(group) + len(run) > longest:
                yield tuple(group)
                group = []
            group += run
            while len(group) > held:
                yield tuple(group[:held])
                group = group[held:]
        if group:
            yield tuple(group)


def run_batch(
    source: FeatureTiles,
    batch: Sequence[tuple[int, ...]],
    tiles: Sequence[TileIndex],
    of_tile: OfTile[Part],
    shared: Any,
    verb: str,
) -> dict[int, list[Part]]:
    """Run the tasks of one batch; returns for each kernel its parts, in the order of `tiles`.

    A task takes one group of the batch and one tile. What is `shared` is sent to every worker once; `verb` names the
    tasks where progress is shown.
    """
    work = [(group, tile) for group in batch for tile in tiles]
    found = again(partial(_run, source, work, of_tile, shared, verb), verb)
    parts: dict[int, list[Part]] = {k: [] for group in batch for k in group}
    for (group, _), of_group in zip(work, found, strict=True):
        for k, part in zip(group, of_group, strict=True):
            parts[k].append(part)
    return parts


def _run(
    source: FeatureTiles,
    work: Sequence[tuple[tuple[int, ...], TileIndex]],
    of_tile: OfTile[Part],
    shared: Any,
    verb: str,
) -> list[list[Part]]:
    token = graph_token(machine(), source, work)
    tiles_of, more = send_all({f"{verb}-features-{token}": source, f"{verb}-shared-{token}": shared})
    tasks = [
        delayed(_on_one_thread, pure=False)(
            of_tile, tiles_of, more, group, tile, dask_key_name=f"{verb}-tile-{number}-{token}"
        )
        for number, (group, tile) in enumerate(work)
    ]
    tile_bytes = source.tiling.tile**2 * source.dtype.itemsize
    sizes = [len(group) * tile_bytes for group, _ in work]
    return execute(tasks, list(zip(tasks, sizes, strict=True)), verb)


def _on_one_thread(
    of_tile: OfTile[Part], source: FeatureTiles, shared: Any, group: tuple[int, ...], tile: TileIndex
) -> list[Part]:
    with pinned_blas(1):  # with more of them products round otherwise
        return of_tile(source, shared, group, tile)
