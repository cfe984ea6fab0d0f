"""The work of one task of a pass: some kernels, some of their tiles, all the columns that ride the pass.

Each tile is used as soon as it is read and never again. A tile above the diagonal of a symmetric kernel serves twice,

    Y_i += K_ij V_j        Y_j += K_ijᵀ V_i,

and for the small result VᵀKV once, since the mirrored tile contributes the transpose:

    G += M + Mᵀ,   M = V_iᵀ (K_ij V_j).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.numerics.tiling import Tiling
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.ordering import StoreOrder
from dmkl.passes.units import Unit
from dmkl.passes.view import Lens, TileKey

__all__ = ["Columns", "Partial", "Want", "merge", "sweep"]

Want = Literal["each", "sum", "project"]
Stream = Iterator[tuple[TileKey, Array]]


@dataclass(frozen=True)
class Columns:
    """A block of vectors that rides a pass."""

    block: Array
    """V, (cols, b), over the columns of its view."""
    want: Want
    """K_j V for every kernel ("each"), Σ_j K_j V diag(w_j) ("sum"), or VᵀK_jV for every kernel ("project")."""
    weights: Array | None
    """w, (kernels, b), for "sum"."""
    dtype: np.dtype[Any]
    """The precision of the products: that of the kernels, or float64 to lose nothing of a float32 set's entries."""
    lens: int = 0
    """Which of the lenses that share the pass it goes through."""

    @property
    def width(self) -> int:
        """Columns of the block."""
        return int(self.block.shape[1])


Partial = list[Array]
"""For each Columns: (kernels of the unit, rows, b), (rows, b) or (kernels of the unit, b, b)."""


def merge(partials: list[Array]) -> Array:
    """Add up the parts of one result."""
    total = partials[0].copy()
    for part in partials[1:]:
        total += part
    return total


def sweep(
    lenses: Sequence[Lens],
    unit: Unit,
    columns: list[Columns],
    tasks_per_machine: int,
    held: dict[TileKey, Array] | None = None,
) -> Partial:
    """Go once through the tiles of a unit: those that are `held` in memory, or else as they are read."""
    # What has come from another process may lie unaligned: NumPy then copies it for each product, into another layout,
    # for which BLAS takes another kernel that rounds otherwise.
    columns = [replace(c, block=np.require(c.block, requirements=["ALIGNED"])) for c in columns]
    view = lenses[0].view
    keys = [(int(view.kernels[k]), tile.i, tile.j) for k in unit.kernels for tile in unit.tiles]
    stream = view.source.stream(keys) if held is None else ((key, held[key]) for key in keys)
    with pinned_blas(blas_threads(tasks_per_machine)):
        return _sweep(lenses, unit, columns, stream)


def _sweep(lenses: Sequence[Lens], unit: Unit, columns: list[Columns], stream: Stream) -> Partial:
    tiling = lenses[0].view.source.tiling
    seen = [lenses[c.lens] for c in columns]
    results: list[Any] = [
        np.zeros((lens.view.shape[1], c.width))
        if c.want == "sum"
        else np.empty((len(unit.kernels), *_shape(c, lens.view.shape[1])), _out(c))
        for c, lens in zip(columns, seen, strict=True)
    ]
    needed = _needed(tiling, lenses, columns)
    carried: list[tuple[Array, list[Array | None]]] = []
    for place, k in enumerate(unit.kernels):
        if not carried or not all(lens.fitted.same_for_all for lens in lenses):
            carried = [_carry(lens, int(k), c) for c, lens in zip(columns, seen, strict=True)]
        sums = _through_tiles(unit, lenses, needed, columns, [wide for wide, _ in carried], stream)
        for position, (c, lens, total, (_, kept)) in enumerate(zip(columns, seen, sums, carried, strict=True)):
            if c.want == "project":
                results[position][place] = total * lens.fitted.factor(int(k))
                continue
            product = lens.fitted.left(int(k), total, kept, offsets=unit.first)
            if c.want == "sum":
                assert c.weights is not None
                results[position] += product * c.weights[k]
            else:
                results[position][place] = product
    return results


def _shape(c: Columns, n_rows: int) -> tuple[int, int]:
    return (c.width, c.width) if c.want == "project" else (n_rows, c.width)


def _out(c: Columns) -> np.dtype[Any]:
    # The blocks K_j V are the one large result: kept in the precision of the products, not of the sums.
    return c.dtype if c.want == "each" else np.dtype(np.float64)


def _carry(lens: Lens, k: int, c: Columns) -> tuple[Array, list[Array | None]]:
    """V over all columns of the source, zero where the view has no sample; and what the offsets need of it."""
    view = lens.view
    carried, kept = lens.fitted.right(k, c.block)
    n_cols = view.source.tiling.cols
    if is_whole(view.cols, n_cols):
        wide = carried
    else:
        wide = np.zeros((n_cols, c.width), dtype=np.float64)
        np.add.at(wide, view.cols, carried)  # samples may repeat
    return np.ascontiguousarray(wide, dtype=c.dtype), kept


def is_whole(positions: Index, length: int) -> bool:
    """Whether the positions are all there are, in order: nothing has to be moved then."""
    return len(positions) == length and bool(np.all(positions == np.arange(length)))


@dataclass
class _Lane:
    """Columns that go through each tile in one product: many narrow products would run far below the machine's rate."""

    wide: Array
    total: Array
    scratch: Array
    project: bool
    rows: StoreOrder
    cols: StoreOrder


_WORTH = 45
"""A tile is cut down to a fraction s of its entries if at least this many columns times s / (1 − s) go through it.

Picking an entry costs some 1.3 ns, multiplying it by a column 0.03 ns.
"""


def _needed(tiling: Tiling, lenses: Sequence[Lens], columns: Sequence[Columns]) -> list[tuple[StoreOrder, StoreOrder]]:
    """For each lens the rows and columns that tiles are cut down to where that is worth it, otherwise all there are."""
    whole = tuple(StoreOrder.of(np.arange(length), tiling.tile) for length in (tiling.rows, tiling.cols))
    found = []
    for number, lens in enumerate(lenses):
        view, width = lens.view, sum(c.width for c in columns if c.lens == number)
        rows, cols = (StoreOrder.of(np.unique(positions), tiling.tile) for positions in (view.rows, view.cols))
        fraction = len(rows.stored) * len(cols.stored) / (tiling.rows * tiling.cols)
        found.append((rows, cols) if width * (1.0 - fraction) > _WORTH * fraction else (whole[0], whole[1]))
    return found


def _lanes(
    tile: int, needed: Sequence[tuple[StoreOrder, StoreOrder]], columns: list[Columns], wides: list[Array]
) -> tuple[list[_Lane], list[tuple[_Lane, slice]]]:
    """One lane for all columns of one precision, one for each projection; and where each of the columns ends up."""
    lanes: list[_Lane] = []
    places: dict[int, tuple[_Lane, slice]] = {}
    groups: dict[Any, list[int]] = {}
    for position, c in enumerate(columns):
        groups.setdefault((c.dtype, position if c.want == "project" else -1, needed[c.lens]), []).append(position)
    for (dtype, projected, (rows, cols)), members in groups.items():
        wide = wides[members[0]] if len(members) == 1 else np.concatenate([wides[k] for k in members], axis=1)
        wide = wide if len(cols.stored) == len(wide) else wide[cols.stored]
        width, project = wide.shape[1], projected >= 0
        total = np.zeros((width, width)) if project else np.zeros((len(rows.stored), width), dtype=dtype)
        lanes.append(_Lane(wide, total, np.empty((tile, width), dtype=dtype), project, rows, cols))
        starts = np.cumsum([0, *(columns[k].width for k in members)])
        for k, start, stop in zip(members, starts[:-1], starts[1:], strict=True):
            places[k] = lanes[-1], slice(int(start), int(stop))
    return lanes, [places[k] for k in range(len(columns))]


class _TileParts:
    """The parts of one tile that lanes multiply, each cut out and cast once."""

    def __init__(self, tile: Array, i: int, j: int) -> None:
        self._tile, self._i, self._j = tile, i, j
        self._made: dict[Any, Array] = {}

    def of(self, lane: _Lane, rows: StoreOrder, cols: StoreOrder) -> Array:
        """Some rows and columns of it, in the precision of a lane."""
        key = (lane.wide.dtype, rows, cols)
        if key not in self._made:
            part = self._tile[rows.inside(rows.run(self._i))][:, cols.inside(cols.run(self._j))]
            self._made[key] = np.require(part, lane.wide.dtype, ["ALIGNED"])
        return self._made[key]


def _through_tiles(
    unit: Unit,
    lenses: Sequence[Lens],
    needed: Sequence[tuple[StoreOrder, StoreOrder]],
    columns: list[Columns],
    wides: list[Array],
    stream: Stream,
) -> list[Array]:
    """The raw products of one kernel, for the rows of the views.

    Sums over tiles are in the precision of the products: a tile's own sums are, and they are the longer ones.
    """
    lanes, places = _lanes(lenses[0].view.source.tiling.tile, needed, columns, wides)
    for task in unit.tiles:
        _, tile = next(stream)
        parts = _TileParts(tile, task.i, task.j)
        for lane in lanes:
            rows, cols = lane.rows, lane.cols
            if task.forward:
                part = parts.of(lane, rows, cols)
                product = np.matmul(part, lane.wide[cols.run(task.j)], out=lane.scratch[: part.shape[0]])
                if lane.project:
                    inner = lane.wide[rows.run(task.i)].T @ product
                    lane.total += inner
                    if task.transposed:
                        lane.total += inner.T
                    continue
                lane.total[rows.run(task.i)] += product
            if task.transposed:
                # The tile stands for its mirror image too, where its rows are columns.
                part = parts.of(lane, cols, rows).T
                product = np.matmul(part, lane.wide[cols.run(task.i)], out=lane.scratch[: part.shape[0]])
                lane.total[rows.run(task.j)] += product
    return [
        lane.total if lane.project else _picked(lane, lenses[c.lens].view.rows, part)
        for c, (lane, part) in zip(columns, places, strict=True)
    ]


def _picked(lane: _Lane, positions: Index, part: slice) -> Array:
    """The rows at some positions of the source, of some of a lane's columns."""
    where = np.searchsorted(lane.rows.stored, positions)
    return lane.total[:, part] if is_whole(where, len(lane.total)) else lane.total[where, part]
