"""Working sets along the tile columns of a kernel set, and the entries of the combined kernel on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Float
from dmkl.passes.elements import entries, raw_block
from dmkl.passes.execute import check_memory, machine
from dmkl.passes.view import Lens, View
from dmkl.solvers.running import run_tasks

__all__ = ["WorkingSet", "add_blocks", "columns_lens", "finish_columns", "fraction_of_tiles", "working_sets"]

Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class WorkingSet:
    """Samples that are updated together.

    Parameters
    ----------
    index
        Their positions in the view.
    column_passes, block_passes
        Fractions of a pass that reading their columns takes, and reading the block of rows and columns on them.
    """

    index: Index
    column_passes: float
    block_passes: float


_MOST = 16
"""More sets than this converge no better in steps, and worse in what is read."""


def working_sets(lens: Lens, largest: int) -> list[WorkingSet]:
    """Cut the samples of a square view along its tile columns.

    Parameters
    ----------
    largest
        Samples that a set may have, unless a single tile column has more.
    """
    view = lens.view
    tile = view.final_positions()[1] // view.source.tiling.tile
    used = np.unique(tile)
    n_sets = min(len(used), max(_MOST, math.ceil(len(tile) / largest)))
    found = []
    for tiles in np.array_split(used, n_sets):
        index = np.flatnonzero(np.isin(tile, tiles))
        columns, block = lens.columns(index).view, _block(lens, index)
        found.append(WorkingSet(index, fraction_of_tiles(columns, view), fraction_of_tiles(block, view)))
    return found


def fraction_of_tiles(part: View, whole: View) -> float:
    """Tiles of a view as a fraction of those of another."""
    return len(part.tile_tasks()) / len(whole.tile_tasks())


def columns_lens(lens: Lens, index: Index) -> Lens:
    """What a pass goes through for products with some columns of a square view; see `finish_columns`.

    Finished after the pass, they are the same to the last bit however it was cut into tasks, and no means travel.
    """
    part = lens.columns(index)
    return Lens(replace(part.view, steps=()), part.fitted.right_alone())


def finish_columns(lens: Lens, index: Index, block: Float, raw: Float) -> Float:
    """K_j[:, B]V of the view, (n, m, k), from V (b, k) and the products through `columns_lens`, which are used up."""
    chain, (n, m, _) = lens.columns(index).fitted, lens.view.shape
    found = raw if m == raw.shape[1] else np.empty((n, m, raw.shape[2]))
    for j in range(n):
        _, carried = chain.right(j, block)
        found[j] = chain.left(j, raw[j], carried)
    return found


_PARTS = 16
"""Tasks of one block at most, wherever it runs: sums are then added up in the same order."""


def add_blocks(wanted: Sequence[tuple[Lens, Float, Index]]) -> tuple[list[Float], float]:
    """K(β)_BB of several views, weights and sets, (b, b) each; and the passes' worth of tiles that were read."""
    where = machine()
    largest = max(len(index) for _, _, index in wanted)
    check_memory(
        "the block of a working set",
        {"entries": 4 * 8 * largest**2},
        where.task_bytes,
        "Set dmkl.memory higher, give the workers more memory, store the set with smaller tiles, or take "
        "solver='dual' or 'cg'",
    )
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
    if not fitted.same_for_all:
        for j in kernels:
            total += weights[j] * entries(view, fitted, int(j), index, index)
        return total
    # Centering and scaling make s_a s_b (f K_ab + r_a + r_b + c) of each raw entry, s being one unless samples have
    # weights: what they add is known from its first column, and only the raw blocks have to be gone through.
    stored = view.rows[fitted.positions(index, index)[0][0]]
    edge, trail = np.zeros((len(index), 1)), fitted.positions(index, index[:1])
    for j in map(int, kernels):
        total += (weights[j] * fitted.factor(j)) * raw_block(view, int(view.kernels[j]), stored, stored)
        edge += weights[j] * fitted.elementwise(j, np.zeros_like(edge), trail)
    scale = np.sqrt(fitted.counts(view.shape[1])[index])[:, None]
    edge /= scale * scale[0]
    total += edge
    total += edge.T - edge[0]
    total *= scale
    total *= scale.T
    return total


def _block(lens: Lens, index: Index) -> View:
    """The stored rows and columns of some samples of a square view."""
    columns = lens.columns(index).view
    return replace(columns, rows=columns.cols, steps=())
