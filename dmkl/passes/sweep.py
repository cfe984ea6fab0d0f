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
from dmkl.numerics.gather_loops import add, gather
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.lanes import Block, Lane, lanes_of
from dmkl.passes.units import Unit
from dmkl.passes.view import Lens, TileKey, TileTask

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
    lanes: Sequence[Lane] | None = None,
) -> Partial:
    """Go once through the tiles of a unit: those that are `held` in memory, or else as they are read.

    `lanes` are those of the pass (`lanes_of`), where it has found them for all of its units.
    """
    # What has come from another process may lie unaligned: NumPy then copies it for each product, into another layout,
    # for which BLAS takes another kernel that rounds otherwise.
    columns = [replace(c, block=np.require(c.block, requirements=["ALIGNED"])) for c in columns]
    view = lenses[0].view
    keys = [(int(view.kernels[k]), tile.i, tile.j) for k in unit.kernels for tile in unit.tiles]
    stream = view.source.stream(keys) if held is None else ((key, held[key]) for key in keys)
    with pinned_blas(blas_threads(tasks_per_machine)):
        return _sweep(lenses, unit, columns, lanes_of(lenses, columns) if lanes is None else lanes, stream)


def _sweep(
    lenses: Sequence[Lens], unit: Unit, columns: list[Columns], lanes: Sequence[Lane], stream: Stream
) -> Partial:
    seen = [lenses[c.lens] for c in columns]
    results: list[Any] = [
        np.zeros((lens.view.shape[1], c.width))
        if c.want == "sum"
        else np.empty((len(unit.kernels), *_shape(c, lens.view.shape[1])), _out(c))
        for c, lens in zip(columns, seen, strict=True)
    ]
    running = [_Running(lane, columns, seen) for lane in lanes]
    scratch = _Scratch()
    kept: list[list[Array | None]] = []
    for place, k in enumerate(unit.kernels):
        if not kept or not all(lens.fitted.same_for_all for lens in lenses):
            carried = [_carry(lens, int(k), c) for c, lens in zip(columns, seen, strict=True)]
            kept = [offset for _, offset in carried]
            for one in running:
                one.load([carried[position][0] for position in one.lane.columns])
            del carried
        for one in running:
            one.clear()
        for task in unit.tiles:
            _, tile = next(stream)
            for one in running:
                one.multiply(task, tile, scratch)
        for one in running:
            for position, total in one.totals():
                c, lens = columns[position], seen[position]
                if c.want == "project":
                    results[position][place] = total * lens.fitted.factor(int(k))
                    continue
                product = lens.fitted.left(int(k), total, kept[position], offsets=unit.first)
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
        return np.ascontiguousarray(carried, dtype=c.dtype), kept
    once = len(np.unique(view.cols)) == len(view.cols)
    wide = np.zeros((n_cols, c.width), dtype=c.dtype if once else np.float64)
    if once:
        wide[view.cols] = carried
    else:
        np.add.at(wide, view.cols, carried)
    return np.ascontiguousarray(wide, dtype=c.dtype), kept


def is_whole(positions: Index, length: int) -> bool:
    """Whether the positions are all there are, in order: nothing has to be moved then."""
    return len(positions) == length and bool(np.all(positions == np.arange(length)))


class _Scratch:
    """Arrays that are used again for every tile: fresh pages would take as long as filling them."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Array] = {}

    def take(self, use: str, dtype: np.dtype[Any], rows: int, cols: int) -> Array:
        """An array of this shape, (rows, cols), that holds anything; good until the next one for the same use."""
        buffer = self._buffers.get((use, dtype))
        if buffer is None or buffer.size < rows * cols:
            buffer = self._buffers[use, dtype] = np.empty(rows * cols, dtype=dtype)
        return buffer[: rows * cols].reshape(rows, cols)


class _Running:
    """A lane while one kernel after another goes through it.

    Sums over tiles are in float64: what they add up to then does not depend on which tiles went into which task.
    """

    def __init__(self, lane: Lane, columns: Sequence[Columns], seen: Sequence[Lens]) -> None:
        self.lane = lane
        # Passes over whole tiles do without loops that have to be compiled.
        self._whole = lane.rows.is_whole and lane.cols.is_whole
        self._seen = [seen[position] for position in lane.columns]
        ends = np.cumsum([columns[position].width for position in lane.columns]).tolist()
        self._places = [
            slice(end - columns[position].width, end) for end, position in zip(ends, lane.columns, strict=True)
        ]
        width = ends[-1]
        self._total = np.zeros((width, width) if lane.project else (len(lane.rows.stored), width))
        self._vectors: list[tuple[Array, Index]] = []
        """For each block its vectors over the samples of its segment, and where those of each tile begin."""

    def load(self, wides: Sequence[Array]) -> None:
        """Take in the vectors of the next kernels, over all columns of the source."""
        wide = wides[0] if len(wides) == 1 else np.concatenate(wides, axis=1)
        self._vectors = []
        for block in self.lane.blocks:
            stored, starts = self.lane.cols.of_segment(block.cols)
            chosen = wide if len(stored) == len(wide) else wide[stored]
            if sum(part.stop - part.start for part in block.vectors) < wide.shape[1]:
                chosen = np.concatenate([chosen[:, part] for part in block.vectors], axis=1)
            self._vectors.append((chosen, starts))

    def clear(self) -> None:
        """Begin with the next kernel."""
        self._total[:] = 0.0

    def multiply(self, task: TileTask, tile: Array, scratch: _Scratch) -> None:
        """Add the products of one tile."""
        lane = self.lane
        if not (self._looks_at(task.i, task.j) or (task.transposed and self._looks_at(task.j, task.i))):
            return
        part = self._cut(task, tile, scratch)
        for block, (vectors, starts) in zip(lane.blocks, self._vectors, strict=True):
            if lane.project:
                left, right = (vectors[starts[t] : starts[t + 1]] for t in (task.i, task.j))
                self._project(task, left, part, right, scratch)
                continue
            if task.forward:
                self._add(block, vectors[starts[task.j] : starts[task.j + 1]], part, task.i, task.j, scratch)
            if task.transposed:
                # The tile stands for its mirror image too, where its rows are columns.
                self._add(block, vectors[starts[task.i] : starts[task.i + 1]], part.T, task.j, task.i, scratch)

    def totals(self) -> Iterator[tuple[int, Array]]:
        """For each of the columns, by position, its raw product for the rows of its view, or its projection."""
        for position, lens, place in zip(self.lane.columns, self._seen, self._places, strict=True):
            if self.lane.project:
                yield position, self._total
                continue
            where = self.lane.rows.find(lens.view.rows)
            yield position, self._total[:, place] if is_whole(where, len(self._total)) else self._total[where, place]

    def _looks_at(self, i: int, j: int) -> bool:
        """Whether any of the lane's samples are rows and columns of a tile."""
        rows, cols = self.lane.rows.run(i), self.lane.cols.run(j)
        return bool(rows.stop > rows.start and cols.stop > cols.start)

    def _cut(self, task: TileTask, tile: Array, scratch: _Scratch) -> Array:
        """The samples of the lane, in its order and precision."""
        rows, cols, dtype = self.lane.rows, self.lane.cols, self.lane.dtype
        tile = np.require(tile, requirements=["ALIGNED"]).view()
        if self._whole:
            if tile.dtype == dtype:
                return tile
            part = scratch.take("tile", dtype, *tile.shape)
            np.copyto(part, tile)
            return part
        down, across = (positions.astype(np.uint64) for positions in (rows.inside(task.i), cols.inside(task.j)))
        part = scratch.take("tile", dtype, len(down), len(across))
        tile.flags.writeable = False  # one kind of array: each is compiled for anew
        gather(tile, down, across, part)
        return part

    def _project(self, task: TileTask, left: Array, part: Array, right: Array, scratch: _Scratch) -> None:
        """Add V_iᵀ (K_ij V_j), of a view whose rows are its columns."""
        product = np.matmul(part, right, out=scratch.take("product", self.lane.dtype, len(part), right.shape[1]))
        inner = left.T @ product
        self._total += inner
        if task.transposed:
            self._total += inner.T

    def _add(self, block: Block, vectors: Array, part: Array, i: int, j: int, scratch: _Scratch) -> None:
        """Add a block's product of a tile (i, j), or of its mirror image."""
        lane = self.lane
        across, down = lane.cols.segments(j, block.cols, block.cols + 1), lane.rows.segments(i, *block.rows)
        if across.stop == across.start or down.stop == down.start:
            return
        out = scratch.take("product", lane.dtype, down.stop - down.start, vectors.shape[1])
        product = np.matmul(part[down, across], vectors, out=out)
        begin = lane.rows.run(i).start
        rows, start = slice(begin + down.start, begin + down.stop), 0
        for place in block.vectors:
            stop = start + place.stop - place.start
            if self._whole:
                self._total[rows, place] += product[:, start:stop]
            else:
                add(self._total[rows, place], product[:, start:stop])
            start = stop
