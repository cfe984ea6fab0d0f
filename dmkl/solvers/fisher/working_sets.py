"""Working sets along the tile columns of a kernel set, and what is read for one of them alone.

K_j[:, B]V needs the raw columns B, though centring spreads V over all samples: with C = I − 11ᵀ/m and μ_j = K_j1/m

    C K_j C V = C (K_jV − μ_j 1ᵀV),

where μ_j is among the statistics of the view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.numerics.chain import Fitted, FittedStep
from dmkl.passes.elements import entries, raw_block
from dmkl.passes.execute import check_memory, machine
from dmkl.passes.view import Lens, View
from dmkl.solvers.running import run_tasks

__all__ = ["WorkingSet", "add_blocks", "columns_lens", "finish_columns", "share", "working_sets"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class WorkingSet:
    """Samples that are updated together.

    Parameters
    ----------
    index
        Their positions in the view.
    column_passes, block_passes
        What reading their columns, and the block on them, is of a pass.
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
        columns = columns_lens(lens, index).view
        found.append(WorkingSet(index, share(columns, view), share(_block_view(lens, index), view)))
    return found


def share(part: View, whole: View) -> float:
    """The tiles of a view as a part of those of another."""
    return len(part.tile_tasks()) / len(whole.tile_tasks())


def columns_lens(lens: Lens, index: Index) -> Lens:
    """What the raw columns of some samples are seen through: all rows, and of the steps what scales V.

    Its products with V (b, k) become those of the view by `finish_columns`.
    """
    view, cols = lens.view, index
    scale: Array | None = None
    for step in reversed(lens.fitted.steps):
        if step.take is not None:
            cols = step.take.cols[cols]
        elif step.col_scale is not None:
            mine = step.col_scale[:, cols]
            scale = mine if scale is None else scale * mine
    ones = np.ones((len(view.kernels), len(view.rows)))
    steps = () if scale is None else (FittedStep("cosine", square=False, row_scale=ones, col_scale=scale),)
    return Lens(replace(view, cols=view.cols[cols], steps=()), Fitted(steps))


def finish_columns(lens: Lens, index: Index, block: Float, raw: Float) -> Float:
    """K_j[:, B]V of the view, (n, m, k), from V (b, k) and the products through `columns_lens`, which are used up."""
    sums: list[Array] = []
    v, cols = block[None], index
    for step in reversed(lens.fitted.steps):
        if step.take is not None:
            cols = step.take.cols[cols]
        elif step.kind == "center":
            sums.append(v.sum(axis=1, keepdims=True))
        elif step.col_scale is not None:
            v = v * step.col_scale[:, cols, None]
    for step in lens.fitted.steps:
        if step.take is not None:
            raw = raw[:, step.take.rows]
        elif step.kind == "center":
            assert step.col_mean is not None
            raw -= step.col_mean[:, :, None] * sums.pop()
            raw -= raw.mean(axis=1, keepdims=True)
        elif step.factor is not None:
            raw *= step.factor[:, None, None]
        elif step.row_scale is not None:
            raw *= step.row_scale[:, :, None]
    return raw


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
        for kernels in np.array_split(used, min(len(used), where.slots)):
            work.append(partial(_add, number, weights, kernels, index))
            owners.append(number)
    totals = [np.zeros((len(index), len(index))) for _, _, index in wanted]
    for number, part in zip(owners, run_tasks("block", work, [lens for lens, _, _ in wanted]), strict=True):
        totals[number] += part
    read = sum(
        share(_block_view(lens, index), lens.view) * np.count_nonzero(weights) / len(weights)
        for lens, weights, index in wanted
    )
    return totals, read


def _add(number: int, weights: Float, kernels: Index, index: Index, lenses: Sequence[Lens]) -> Float:
    view, fitted = lenses[number].view, lenses[number].fitted
    total = np.zeros((len(index), len(index)))
    if not fitted.shared:
        for j in kernels:
            total += weights[j] * entries(view, fitted, int(j), index, index)
        return total
    # Centring and scaling make f K_ab + r_a + r_b + c of each raw entry: what they add is known from its first column,
    # and only the raw blocks have to be gone through.
    stored = view.rows[fitted.positions(index, index)[0][0]]
    edge, trail = np.zeros((len(index), 1)), fitted.positions(index, index[:1])
    for j in map(int, kernels):
        total += (weights[j] * fitted.factor(j)) * raw_block(view, int(view.kernels[j]), stored, stored)
        edge += weights[j] * fitted.elementwise(j, np.zeros_like(edge), trail)
    total += edge
    total += edge.T - edge[0]
    return total


def _block_view(lens: Lens, index: Index) -> View:
    """The raw rows and columns of some samples."""
    columns = columns_lens(lens, index).view
    return replace(columns, rows=columns.cols)
