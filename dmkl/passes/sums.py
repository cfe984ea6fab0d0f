"""Weighted sums of all kernels, added up tile by tile in tasks that take some tiles each."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dask.delayed import Delayed, delayed

from dmkl.arrays import Array, Float
from dmkl.numerics.gather_loops import SMALL, add_weighted
from dmkl.numerics.triangle import LowerTriangle
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import machine
from dmkl.passes.ordering import StoreOrder
from dmkl.passes.sending import send_all
from dmkl.passes.units import bytes_of_task
from dmkl.passes.view import Lens, TileTask, covering

__all__ = ["Combination", "Share", "SumPlan", "SumTile", "add_tiles", "for_sums", "put_together", "sum_order"]


@dataclass(frozen=True)
class Combination:
    """Σ_j w_j K_j through one of the lenses that share a pass, or Σ_j w_j D_j K_j D_j with diagonal matrices D_j."""

    lens: int
    """Which one; of scaled kernels one whose chain is `entrywise`."""
    weights: Float
    """w, (n,)"""
    scales: Float | None = None
    """The diagonals, (n, m)."""


class SumTile(NamedTuple):
    """A tile of a sum: which of its rows and columns, in the order of the store, and the entries there."""

    rows: slice
    cols: slice
    entries: Float


def for_sums(lens: Lens) -> Lens:
    """The lens with the statistics that sums need: those of products where the chain is left to the whole sum."""
    return replace(lens, fitted=lens.fitted.for_products()) if lens.fitted.same_for_all else lens


def sum_order(lens: Lens) -> StoreOrder:
    """The samples of a sum: those before the steps where the chain is left to the whole sum, after them otherwise.

    The sum is put together, centered and factorized in the order of the store, and only vectors are ever permuted:
    taking a shuffled training set costs no scattered copy of a matrix.
    """
    rows = lens.view.rows if lens.fitted.same_for_all else lens.view.final_positions()[0]
    return StoreOrder.of(rows, lens.view.source.tiling.tile)


def put_together(tiles: Iterable[SumTile], lens: Lens, dtype: npt.DTypeLike = np.float64) -> LowerTriangle:
    """The sum as one matrix, after the steps."""
    total = LowerTriangle(sum_order(lens).order, dtype)
    for tile in tiles:
        total.put(*tile)
    if lens.fitted.same_for_all:
        lens.fitted.apply_to(total)
    return total


_BESIDE = 8
"""Kernels whose tiles are added at once, at most: a sum goes through memory once for all of them."""


@dataclass(frozen=True)
class Share:
    """What a task of a sum may take of its machine."""

    tasks_per_machine: int
    """Tasks that run side by side there."""
    beside: int
    """Kernels whose tiles it may hold at once."""


def add_tiles(
    lenses: Sequence[Lens], combinations: Sequence[Combination], tiles: tuple[TileTask, ...], share: Share
) -> Iterator[tuple[TileTask, list[SumTile]]]:
    """Every combination over some tiles, in float64, tile after tile.

    Where the chain is the same for all kernels up to a factor (`Fitted.same_for_all`), raw tiles are added and the
    chain is left to the whole sum; otherwise each tile is transformed entry by entry first. How many tiles are held at
    once changes nothing of the result: they are added one after another.
    """
    source, kernels = lenses[0].view.source, lenses[0].view.kernels
    orders = [sum_order(lens) for lens in lenses]
    used = [k for k in range(len(kernels)) if any(c.weights[k] for c in combinations)]
    stream = source.stream([(int(kernels[k]), tile.i, tile.j) for tile in tiles for k in used])
    stacks = _stacks(lenses, combinations) if source.tiling.rows > SMALL else []
    alone = sorted({*range(len(combinations))} - {number for stack in stacks for number in stack.numbers})
    side = source.tiling.tile
    together = share.beside if stacks else 1
    beside = np.empty((together, side, side) if stacks else 0, source.dtype)
    for tile in tiles:
        with pinned_blas(blas_threads(share.tasks_per_machine)):
            totals = [_empty(orders[c.lens], tile) for c in combinations]
            for stack in stacks:
                stack.begin(orders[stack.lens], tile)
            for some in (used[start : start + together] for start in range(0, len(used), together)):
                for place, k in enumerate(some):
                    _, stored = next(stream)
                    if stacks:
                        beside[place, : stored.shape[0], : stored.shape[1]] = stored
                    parts: dict[int, Array] = {}
                    for number in alone:
                        _add_alone(combinations[number], lenses, orders, totals[number], k, stored, parts)
                for stack in stacks:
                    stack.add(beside[: len(some)], some)
            for stack in stacks:
                for number, entries in zip(stack.numbers, stack.totals, strict=True):
                    totals[number] = totals[number]._replace(entries=entries)
            yield tile, totals


class _Stack:
    """The combinations through one lens, all over raw tiles: added row by row, for several kernels at once.

    Attributes
    ----------
    numbers : list of int
        Which combinations.
    totals : ndarray
        (combinations, rows, columns), of the present tile.
    """

    def __init__(self, lens: int, numbers: list[int], weights: Float) -> None:
        self.lens, self.numbers, self._weights = lens, numbers, weights
        self.totals: Float = np.empty((0, 0, 0))

    def begin(self, order: StoreOrder, tile: TileTask) -> None:
        """Go on to a tile."""
        place = order.run(tile.i), order.run(tile.j)
        self._rows, self._cols = ((order.stored[run] % order.side).astype(np.uint64) for run in place)
        self.totals = np.zeros((len(self.numbers), len(self._rows), len(self._cols)))

    def add(self, tiles: Array, kernels: Sequence[int]) -> None:
        """Add the tiles of some kernels."""
        if self.totals.size:
            weights = np.ascontiguousarray(self._weights[:, kernels])
            add_weighted(tiles, self._rows, self._cols, weights, self.totals)


def _stacks(lenses: Sequence[Lens], combinations: Sequence[Combination]) -> list[_Stack]:
    """Of each lens the combinations that take raw tiles as they are."""
    found = []
    for number, lens in enumerate(lenses):
        mine = [k for k, c in enumerate(combinations) if c.lens == number and c.scales is None]
        if mine and lens.fitted.same_for_all:
            factors = np.array([lens.fitted.factor(k) for k in range(len(lens.view.kernels))])
            found.append(_Stack(number, mine, np.stack([combinations[k].weights for k in mine]) * factors))
    return found


def _add_alone(
    c: Combination,
    lenses: Sequence[Lens],
    orders: Sequence[StoreOrder],
    total: SumTile,
    k: int,
    stored: Array,
    parts: dict[int, Array],
) -> None:
    """Add a kernel's stored tile to one combination; `parts` keeps what each lens makes of it."""
    if not c.weights[k] or not total.entries.size:
        return
    lens, order = lenses[c.lens], orders[c.lens]
    if c.lens not in parts:
        parts[c.lens] = _part(lens, order, total, k, stored)
    weight = c.weights[k] * (lens.fitted.factor(k) if lens.fitted.same_for_all else 1.0)
    if c.scales is None:
        _add(total.entries, parts[c.lens], weight)
    else:
        down, across = (c.scales[k][order.order[run]] for run in (total.rows, total.cols))
        _add(total.entries, parts[c.lens], weight * down[:, None], across)


def _empty(order: StoreOrder, tile: TileTask) -> SumTile:
    rows, cols = order.run(tile.i), order.run(tile.j)
    return SumTile(rows, cols, np.zeros((rows.stop - rows.start, cols.stop - cols.start)))


def _part(lens: Lens, order: StoreOrder, place: SumTile, k: int, stored: Array) -> Array:
    """The entries of one kernel's stored tile that a tile of a sum takes, after steps that differ by kernel."""
    part: Array = stored[order.inside(place.rows)][:, order.inside(place.cols)]
    if lens.fitted.same_for_all:
        return part
    trail = lens.fitted.positions(order.order[place.rows], order.order[place.cols])
    return lens.fitted.elementwise(k, part, trail)


_PANEL = 32
"""Rows added at a time: the scratch array then stays in the cache (0.8 instead of 1.35 ns an entry)."""


def _add(total: Float, part: Array, weight: float | Float, across: Float | None = None) -> None:
    """Add weight · part to total, in float64; the weight is a number, or one for each row, and one for each column."""
    scratch = np.empty((_PANEL, total.shape[1]))
    for start in range(0, len(total), _PANEL):
        rows = slice(start, min(start + _PANEL, len(total)))
        panel = scratch[: rows.stop - start]
        panel[:] = part[rows]
        panel *= weight[rows] if isinstance(weight, np.ndarray) else weight
        if across is not None:
            panel *= across
        total[rows] += panel


_COUNTER = itertools.count(1)


@dataclass(frozen=True)
class SumPlan:
    """How the adding up of some combinations is cut into tasks."""

    lenses: list[Lens]
    """With the statistics that sums need."""
    sent: tuple[Any, Any]
    """The lenses and the combinations, as tasks take them."""
    cuts: list[tuple[str, tuple[TileTask, ...], int]]
    """Of each task its key, its tiles and the bytes it reads."""
    share: Share
    """What a task may take."""
    name: str
    token: str
    """Prefix and end of every key."""

    @classmethod
    def of(cls, lenses: Sequence[Lens], combinations: Sequence[Combination]) -> SumPlan:
        """Cut into tasks by the data alone, as other passes are: workers may come and go."""
        where = machine()
        name, token = f"combine-pass-{next(_COUNTER)}", uuid.uuid4().hex
        through = [for_sums(lens) for lens in lenses]
        sent = send_all({f"{name}-lenses-{token}": through, f"{name}-weights-{token}": list(combinations)})
        view = covering([lens.view for lens in lenses])
        tiles = view.tile_tasks()
        used = int(np.count_nonzero(np.any([c.weights for c in combinations], axis=0)))
        n_bytes = len(tiles) * used * view.bytes_per_tile
        parts = max(1, min(len(tiles), round(n_bytes / bytes_of_task(n_bytes))))
        cuts = np.array_split(np.arange(len(tiles)), parts)
        tasks = [
            (f"{name}-{number}-{token}", tuple(tiles[t] for t in cut), len(cut) * used * view.bytes_per_tile)
            for number, cut in enumerate(cuts)
        ]
        beside = where.task_bytes // 4 // (view.source.tiling.tile**2 * view.source.dtype.itemsize)
        share = Share(where.slots_per_host, max(1, min(_BESIDE, beside)))
        return cls(through, (sent[0], sent[1]), tasks, share, name, token)

    def tasks(self, work: Callable[..., Any], *more: Any) -> list[tuple[Delayed, int]]:
        """For each cut a task, `work(lenses, combinations, tiles, share, *more)`, and the bytes it reads."""
        call = delayed(work, pure=False)
        return [
            (call(*self.sent, tiles, self.share, *more, dask_key_name=key), n_bytes)
            for key, tiles, n_bytes in self.cuts
        ]
