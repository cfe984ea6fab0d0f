"""Entries of the kernels after all steps: of some samples, block by block, or sums of whole kernels in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.delayed import Delayed, delayed

from dmkl.arrays import Array, Float, Index
from dmkl.errors import refuse
from dmkl.numerics.steps import Centering, ChainState, Fitted, Scaling
from dmkl.passes.execute import check_memory, graph_token, machine, run_tasks, send_all
from dmkl.passes.view import Lens, View

if TYPE_CHECKING:
    import dask.array as da


def raw_block(view: View, k: int, rows: Index, cols: Index) -> Array:
    """Entries of stored kernel k (its position in the source) at these positions of the source."""
    source, tiling = view.source, view.source.tiling
    side = tiling.tile
    block = np.empty((len(rows), len(cols)), dtype=source.dtype)
    # Positions are grouped by tile, so that each tile is read once for any order of rows and columns.
    tile_rows, tile_cols = rows // side, cols // side
    wanted: dict[tuple[int, int], list[tuple[Index, Index, bool]]] = {}
    for i in np.unique(tile_rows):
        for j in np.unique(tile_cols):
            swap = bool(tiling.upper and i > j)
            key = (int(j), int(i)) if swap else (int(i), int(j))
            wanted.setdefault(key, []).append((np.flatnonzero(tile_rows == i), np.flatnonzero(tile_cols == j), swap))
    keys = [(k, i, j) for i, j in wanted]
    for (_, i, j), tile in source.stream(keys):
        # A set that stores the upper tiles has no tile (i, j) with i > j: it is the transpose of tile (j, i).
        for at_rows, at_cols, swap in wanted[i, j]:
            whole = tile.T if swap else tile
            inside = np.ix_(rows[at_rows] % side, cols[at_cols] % side)
            block[np.ix_(at_rows, at_cols)] = whole[inside]
    return block


def entries(view: View, fitted: Fitted, kernel: int, rows: Index, cols: Index) -> Array:
    """A block of the view's kernel at position `kernel`, after all steps."""
    trail = fitted.positions(rows, cols)
    base_rows, base_cols = trail[0]
    raw = raw_block(view, int(view.kernels[kernel]), view.rows[base_rows], view.cols[base_cols])
    return fitted.elementwise(kernel, raw, trail) if fitted.steps else raw


def combined_kernels(combinations: Sequence[tuple[Lens, Float]]) -> list[Float]:
    """Σ_j w_j K_j after all steps in memory, (rows, columns), for pairs of a lens and weights w, (n,).

    The first rows of each view are its columns. Tiles are read once for all lenses.
    """
    lenses = list({id(lens): lens for lens, _ in combinations}.values())
    totals = [np.zeros(lens.view.shape[1:]) for lens, _ in combinations]
    # Centering and factors are applied to the whole sum, other steps to each kernel, by a product.
    linear = {id(lens): all(isinstance(step, Centering | Scaling) for step in lens.fitted.steps) for lens in lenses}
    views = [lens.view for lens in lenses]
    rows, cols = np.unique(np.concatenate([v.rows for v in views])), np.unique(np.concatenate([v.cols for v in views]))
    for k in map(int, np.flatnonzero(np.any([weights for _, weights in combinations], axis=0))):
        # The union of all rows and columns is read once, and each view cuts its part from it.
        raw = raw_block(views[0], int(views[0].kernels[k]), rows, cols)
        for lens, view in zip(lenses, views, strict=True):
            part = raw[np.ix_(np.searchsorted(rows, view.rows), np.searchsorted(cols, view.cols))]
            if linear[id(lens)]:
                entries, factor = part.astype(np.float64), lens.fitted.factor(k)
            else:  # as a product with the identity: single entries would need means of rows outside the view, a pass
                right, carried = lens.fitted.right(k, np.eye(view.shape[2]))
                entries, factor = lens.fitted.left(k, np.matmul(part, right, dtype=np.float64), carried), 1.0
            scratch = np.empty(entries.shape)
            for total, (lens_of_sum, weights) in zip(totals, combinations, strict=True):
                if lens_of_sum is lens and weights[k]:
                    total += np.multiply(entries, factor * weights[k], out=scratch)
    for total, (lens, _) in zip(totals, combinations, strict=True):
        for step in lens.fitted.steps if linear[id(lens)] else ():
            if isinstance(step, Centering):
                m = total.shape[1]
                w = np.full(m, 1.0 / m) if step.weights is None else step.weights
                means = total @ w
                total += means[:m] @ w - means[:m]
                total -= means[:, None]
    return totals


# --- the combined kernel over some samples ----------------------------------------------------------------------------


def samples_view(lens: Lens, index: Index) -> View:
    """The stored rows and columns of some samples of a square view."""
    columns = lens.columns(index).view
    return replace(columns, rows=columns.cols, steps=())


def fraction_of_tiles(part: View, whole: View) -> float:
    """Tiles of a view as a fraction of those of another."""
    return len(part.tile_tasks()) / len(whole.tile_tasks())


_PARTS = 16  # Most tasks of one block, whatever the number of workers, so that sums are added up in the same order.


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
            part = np.where(np.isin(np.arange(len(weights)), kernels), weights, 0.0)
            work.append(partial(_add, number, part, index))
            owners.append(number)
    totals = [np.zeros((len(index), len(index))) for _, _, index in wanted]
    for number, part in zip(owners, run_tasks("block", work, [lens for lens, _, _ in wanted]), strict=True):
        totals[number] += part
    read = math.fsum(
        fraction_of_tiles(samples_view(lens, index), lens.view) * np.count_nonzero(weights) / len(weights)
        for lens, weights, index in wanted
    )
    return totals, read


def _add(number: int, weights: Float, index: Index, lenses: Sequence[Lens]) -> Float:
    return np.asarray(_weighted((lenses[number], weights[None]), index, index)[0])


# --- lazy arrays ------------------------------------------------------------------------------------------------------


def _side(view: View, chunk: int | None) -> int:
    """Side of a chunk in samples, by default that of a tile; InputError if it is no positive whole number."""
    side: Any = view.source.tiling.tile if chunk is None else chunk
    if not isinstance(side, int | np.integer) or side < 1:
        refuse(f"chunk must be a positive whole number of samples, got {chunk!r}")
    return int(side)


def view_blocks(view: View, state: ChainState | Delayed, chunk: int | None) -> da.Array:
    """The whole view as a lazy array, one task for each block."""
    import dask.array as da

    side = _side(view, chunk)
    dtype = np.dtype(np.float64) if view.steps else view.source.dtype
    token = graph_token(machine(), view, side)
    (shared,) = send_all({f"block-view-{token}": view}, lazy=True)
    statistics: Any = state
    if isinstance(state, ChainState):
        (statistics,) = send_all({f"block-statistics-{token}": state}, lazy=True)
    block = delayed(_block, pure=False)

    def task(j: int, a: int, b: int, rows: Index, cols: Index) -> Any:
        return block(shared, statistics, j, rows, cols, dask_key_name=f"block-{j}-{a}-{b}-{token}")

    shape = (1, *view.shape[1:])
    whole: da.Array = da.concatenate([_of_blocks(partial(task, j), shape, side, dtype) for j in range(view.shape[0])])
    return whole


def _of_blocks(
    task: Callable[[int, int, Index, Index], Any], shape: tuple[int, int, int], side: int, dtype: np.dtype[Any]
) -> da.Array:
    """A lazy array of blocks (shape[0], rows, columns), each made by a task with these numbers and positions."""
    import dask.array as da

    if 0 in shape:
        nothing: da.Array = da.zeros(shape, dtype=dtype)
        return nothing
    rows, cols = ([np.arange(start, min(start + side, n)) for start in range(0, n, side)] for n in shape[1:])
    layers = [
        [da.from_delayed(task(a, b, r, c), (shape[0], len(r), len(c)), dtype=dtype) for b, c in enumerate(cols)]
        for a, r in enumerate(rows)
    ]
    whole: da.Array = da.block(layers)
    return whole


def _block(view: View, state: ChainState, kernel: int, rows: Index, cols: Index) -> Array:
    return entries(view, state.fitted, kernel, rows, cols)[None]


def weighted_blocks(lens: Lens, weights: Float, chunk: int | None = None) -> da.Array:
    """Σ_j w_j K_j after all steps for each row of `weights`, (sets, rows, columns), as a lazy array of blocks.

    A block holds all sets of weights, so that its tiles are read once.
    """
    view, side = lens.view, _side(lens.view, chunk)
    token = graph_token(machine(), lens, weights, side)
    (shared,) = send_all({f"weighted-lens-{token}": (lens, weights)}, lazy=True)
    block, turned = delayed(_weighted, pure=False), delayed(np.transpose, pure=False)
    made: dict[tuple[int, int], Delayed] = {}

    def task(a: int, b: int, rows: Index, cols: Index) -> Any:
        key = f"weighted-{a}-{b}-{token}"
        # Row a is built after all rows b < a, so the block above the diagonal exists already.
        if view.is_square and b < a:
            return turned(made[b, a], (0, 2, 1), dask_key_name=key)
        made[a, b] = block(shared, rows, cols, dask_key_name=key)
        return made[a, b]

    return _of_blocks(task, (len(weights), *view.shape[1:]), side, np.dtype(np.float64))


def _weighted(shared: tuple[Lens, Float], rows: Index, cols: Index) -> Float:
    lens, weights = shared
    total = np.zeros((len(weights), len(rows), len(cols)))
    for kernel in np.flatnonzero(weights.any(axis=0)):
        part = entries(lens.view, lens.fitted, int(kernel), rows, cols)
        for sum_, weight in zip(total, weights[:, kernel], strict=True):
            if weight:
                sum_ += weight * part
    return total
