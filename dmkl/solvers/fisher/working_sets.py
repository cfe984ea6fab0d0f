"""Working sets along the tile columns of a kernel set, and the entries of the combined kernel on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.passes.elements import entries
from dmkl.passes.execute import check_memory, machine, run_tasks
from dmkl.passes.view import Lens, View


@dataclass(frozen=True)
class WorkingSet:
    """Samples that are updated together, and the fractions of a pass that their columns and their block take."""

    index: Index
    column_passes: float
    block_passes: float


_MOST = 16
"""Most sets: with more the number of steps is the same, and more is read."""


def working_sets(lens: Lens, largest: int) -> list[WorkingSet]:
    """Cut the samples of a square view along its tile columns: at most `largest` together, or one column."""
    view = lens.view
    tile = view.final_positions()[1] // view.source.tiling.tile
    used = np.unique(tile)
    # Sets follow tile columns, since a part of a tile costs as much to read as all of it.
    n_sets = min(len(used), max(_MOST, math.ceil(len(tile) / largest)))
    sets = []
    for tiles in np.array_split(used, n_sets):
        index = np.flatnonzero(np.isin(tile, tiles))
        columns, block = lens.columns(index).view, _block(lens, index)
        sets.append(WorkingSet(index, fraction_of_tiles(columns, view), fraction_of_tiles(block, view)))
    return sets


def fraction_of_tiles(part: View, whole: View) -> float:
    """Tiles of a view as a fraction of those of another."""
    return len(part.tile_tasks()) / len(whole.tile_tasks())


def columns_lens(lens: Lens, index: Index) -> Lens:
    """The fitted view of a pass for products with some columns of a square view; see `finish_columns`.

    The products are finished after the pass: they are then the same to the last bit however the pass is cut into tasks,
    and no row means are sent to tasks.
    """
    part = lens.columns(index)
    return Lens(replace(part.view, steps=()), part.fitted.right_alone())


def finish_columns(lens: Lens, index: Index, block: Float, raw: Float) -> Float:
    """Compute K_j[:, B]V of the view, (n, m, k), from V (b, k) and the raw products, which are overwritten."""
    chain, (n, m, _) = lens.columns(index).fitted, lens.view.shape
    products = raw if m == raw.shape[1] else np.empty((n, m, raw.shape[2]))
    for j in range(n):
        _, carried = chain.right(j, block)
        products[j] = chain.left(j, raw[j], carried)
    return products


_PARTS = 16
"""Most tasks of one block, whatever the number of workers, so that sums are added up in the same order."""


def add_blocks(wanted: Sequence[tuple[Lens, Float, Index]]) -> tuple[list[Float], float]:
    """Compute K(β)_BB for several views, weights and sets, (b, b) each; also return the passes that this takes."""
    host = machine()
    largest = max(len(index) for _, _, index in wanted)
    check_memory(
        "the block of a working set",
        {"entries": 4 * 8 * largest**2},
        host.task_bytes,
        "Set dmkl.memory higher, give the workers more memory, store the set with smaller tiles, or take "
        "solver='dual' or 'cg'",
    )
    # Kernels without weight are not read; those that are left are divided among a fixed number of tasks.
    work: list[partial[Float]] = []
    owners: list[int] = []
    for number, (_, weights, index) in enumerate(wanted):
        used = np.flatnonzero(weights)
        for kernels in np.array_split(used, min(len(used), _PARTS)):
            work.append(partial(_add, number, weights, kernels, index))
            owners.append(number)
    totals = [np.zeros((len(index), len(index))) for _, _, index in wanted]
    for number, part in zip(owners, run_tasks("block", work, [lens for lens, _, _ in wanted]), strict=True):
        totals[number] += part
    read = sum(
        fraction_of_tiles(_block(lens, index), lens.view) * np.count_nonzero(weights) / len(weights)
        for lens, weights, index in wanted
    )
    return totals, read


def _add(number: int, weights: Float, kernels: Index, index: Index, lenses: Sequence[Lens]) -> Float:
    view, fitted = lenses[number].view, lenses[number].fitted
    total = np.zeros((len(index), len(index)))
    for j in map(int, kernels):
        total += weights[j] * entries(view, fitted, j, index, index)
    return total


def _block(lens: Lens, index: Index) -> View:
    """The stored rows and columns of some samples of a square view."""
    columns = lens.columns(index).view
    return replace(columns, rows=columns.cols, steps=())
