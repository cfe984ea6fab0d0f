"""The work of one task of a pass: some kernels, some of their tiles, all the columns that ride the pass.

Each tile is used as soon as it is read and never again. A tile above the diagonal of a symmetric kernel serves twice,

    Y_i += K_ij V_j        Y_j += K_ijᵀ V_i,

and for the small result VᵀKV once, since the mirrored tile contributes the transpose:

    G += M + Mᵀ,   M = V_iᵀ (K_ij V_j).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.numerics.gather_loops import add, gather, take_rows
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.lanes import Block, Lane, lanes_of
from dmkl.passes.loading import Loaded, is_whole, loaded, offsets_of
from dmkl.passes.riders import Columns
from dmkl.passes.units import Unit
from dmkl.passes.view import Lens, TileKey, TileTask

__all__ = ["Buffers", "Last", "Partial", "Rows", "Workbench", "finish", "merge", "merge_partials", "sweep"]

Stream = Iterator[tuple[TileKey, Array]]


class Rows(NamedTuple):
    """Some rows of the raw product of one kernel: those that a part of its tiles reaches."""

    where: Index
    """Their positions among the rows of the view before its steps."""
    products: Array
    """(rows, b)"""


Partial = list[Any]
"""For each Columns: (kernels of the unit, rows, b), (rows, b) or (kernels of the unit, b, b), as arrays; `Rows` in
place of the first where the unit has a part of the tiles."""


def merge(partials: list[Array]) -> Array:
    """Add up the parts of one result."""
    total = partials[0].copy()
    for part in partials[1:]:
        total += part
    return total


def merge_partials(partials: list[Partial]) -> Partial:
    """Add up the parts of all results, of the same kernels or of sums over all kernels."""
    return [
        _merged_rows(same) if isinstance(same[0], Rows) else merge(list(same)) for same in zip(*partials, strict=True)
    ]


def _merged_rows(parts: Sequence[Rows]) -> Rows:
    where = np.unique(np.concatenate([part.where for part in parts]))
    return Rows(where, _added(parts, int(where.max(initial=-1)) + 1)[where].astype(parts[0].products.dtype, copy=False))


def _added(parts: Sequence[Rows], n_rows: int) -> Array:
    """The sum of parts over all rows, in float64."""
    total = np.zeros((n_rows, parts[0].products.shape[1]))
    for part in parts:
        total[part.where] += part.products
    return total


def finish(
    lenses: Sequence[Lens], columns: Sequence[Columns], kernel: int, ready: Loaded | None, partials: list[Partial]
) -> Partial:
    """The results of one kernel from those of all parts of its tiles, the steps applied where that has been left."""
    results: Partial = []
    for position, (c, same) in enumerate(zip(columns, zip(*partials, strict=True), strict=True)):
        if c.want != "each":
            results.append(merge(list(same)))
            continue
        lens = lenses[c.lens]
        offsets = offsets_of(lens, kernel, c) if ready is None else ready.offsets[position]
        product = lens.fitted.left(kernel, _added(same, len(lens.view.rows)), offsets)
        results.append(product.astype(c.dtype, copy=False)[None])
    return results


class Buffers:
    """Arrays that are used again for every tile: fresh pages would take as long as filling them."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Array] = {}

    def take(self, use: Any, dtype: np.dtype[Any], *shape: int) -> Array:
        """An array of this shape that holds anything; good until the next one for the same use."""
        size = math.prod(shape)
        buffer = self._buffers.get((use, dtype))
        if buffer is None or buffer.size < size:
            buffer = self._buffers[use, dtype] = np.empty(size, dtype=dtype)
        return buffer[:size].reshape(shape)


Last = Callable[[Partial, Buffers], Any]
"""What becomes of the results of a task where they are made: they lie in its buffers, which it may use."""


class Workbench:
    """The buffers of a pass in one process: tasks take them over from those that have ended."""

    def __init__(self) -> None:
        self._idle: list[Buffers] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Workbench, ()  # another process has its own

    @contextmanager
    def buffers(self) -> Iterator[Buffers]:
        """Buffers that no other task uses inside this context."""
        with self._lock:
            mine = self._idle.pop() if self._idle else Buffers()
        try:
            yield mine
        finally:
            with self._lock:
                self._idle.append(mine)


def sweep(
    lenses: Sequence[Lens],
    unit: Unit,
    columns: Sequence[Columns],
    tasks_per_machine: int,
    held: dict[TileKey, Array] | None = None,
    *,
    lanes: Sequence[Lane] | None = None,
    ready: Loaded | None = None,
    bench: Workbench | None = None,
    last: Last | None = None,
) -> Any:
    """Go once through the tiles of a unit: those that are `held` in memory, or else as they are read.

    `lanes` are those of the pass (`lanes_of`), where it has found them for all of its units, and `ready` its vectors,
    where they are the same for all kernels. The results come back, or what `last` makes of them: they lie in buffers of
    the bench then, which the next task of it writes to.
    """
    view = lenses[0].view
    keys = [(int(view.kernels[k]), tile.i, tile.j) for k in unit.kernels for tile in unit.tiles]
    stream = view.source.stream(keys) if held is None else ((key, held[key]) for key in keys)
    lanes = lanes_of(lenses, columns) if lanes is None else lanes
    with pinned_blas(blas_threads(tasks_per_machine)), (bench or Workbench()).buffers() as buffers:
        found = _sweep(lenses, unit, columns, lanes, ready, stream, buffers, reused=last is not None)
        return found if last is None else last(found, buffers)


def _sweep(
    lenses: Sequence[Lens],
    unit: Unit,
    columns: Sequence[Columns],
    lanes: Sequence[Lane],
    ready: Loaded | None,
    stream: Stream,
    buffers: Buffers,
    *,
    reused: bool,
) -> Partial:
    seen = [lenses[c.lens] for c in columns]
    results: list[Any] = [
        np.zeros((lens.view.shape[1], c.width))
        if c.want == "sum"
        else (buffers if reused else Buffers()).take(
            ("result", position),
            _out(c),
            len(unit.kernels) if unit.whole or c.want == "project" else 0,
            *_shape(c, lens.view.shape[1]),
        )
        for position, (c, lens) in enumerate(zip(columns, seen, strict=True))
    ]
    vectors = None if ready is None else ready.aligned()
    same_for_all = all(lens.fitted.same_for_all for lens in lenses)
    running = [_Running(number, lane, columns, seen, buffers) for number, lane in enumerate(lanes)]
    for place, k in enumerate(unit.kernels):
        if vectors is None or not same_for_all:
            vectors = loaded(lenses, columns, lanes, int(k))
        for one in running:
            one.clear()
        for task in unit.tiles:
            _, tile = next(stream)
            for one in running:
                one.multiply(task, tile, vectors)
        for one in running:
            for position, total in one.totals():
                c, lens = columns[position], seen[position]
                if c.want == "project":
                    results[position][place] = total * lens.fitted.factor(int(k))
                    continue
                if c.want == "each" and not unit.whole:
                    # The steps, of which centering reaches all rows, wait for the sum of all parts.
                    where = unit.rows(lens.view)
                    results[position] = Rows(where, total[where].astype(c.dtype))
                    continue
                product = lens.fitted.left(int(k), total, vectors.offsets[position], offsets=unit.first)
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


_APART = 32
"""Numbers between the rows of a part that was cut out: rows that lie a power of two apart share lines of the cache, and
products with their transpose take some percent longer."""


class _Running:
    """A lane while one kernel after another goes through it.

    Sums over tiles are in float64: what they add up to then does not depend on which tiles went into which task.
    """

    def __init__(
        self, number: int, lane: Lane, columns: Sequence[Columns], seen: Sequence[Lens], buffers: Buffers
    ) -> None:
        self.lane, self._number, self._buffers = lane, number, buffers
        # Passes over whole tiles do without loops that have to be compiled.
        self._whole = lane.rows.is_whole and lane.cols.is_whole
        self._seen = [seen[position] for position in lane.columns]
        ends = np.cumsum([columns[position].width for position in lane.columns]).tolist()
        self._places = [
            slice(end - columns[position].width, end) for end, position in zip(ends, lane.columns, strict=True)
        ]
        width = ends[-1]
        shape = (width, width) if lane.project else (len(lane.rows.stored), width)
        self._total = buffers.take(("total", number), np.dtype(np.float64), *shape)
        # Which of these are the rows of a view, where they are not all in order.
        self._where = [lane.rows.find(lens.view.rows) for lens in self._seen]

    def clear(self) -> None:
        """Begin with the next kernel."""
        self._total[:] = 0.0

    def multiply(self, task: TileTask, tile: Array, loaded: Loaded) -> None:
        """Add the products of one tile."""
        lane = self.lane
        if not (self._looks_at(task.i, task.j) or (task.transposed and self._looks_at(task.j, task.i))):
            return
        part = self._cut(task, tile)
        for block, (vectors, starts) in zip(lane.blocks, loaded.blocks[self._number], strict=True):
            if lane.project:
                left, right = (vectors[starts[t] : starts[t + 1]] for t in (task.i, task.j))
                self._project(task, left, part, right)
                continue
            if task.forward:
                self._add(block, vectors[starts[task.j] : starts[task.j + 1]], part, task.i, task.j)
            if task.transposed:
                # The tile stands for its mirror image too, where its rows are columns.
                self._add(block, vectors[starts[task.i] : starts[task.i + 1]], part.T, task.j, task.i)

    def totals(self) -> Iterator[tuple[int, Array]]:
        """For each of the columns, by position, its raw product for the rows of its view, or its projection.

        It may be written to, and is good until the next one is asked for.
        """
        for position, where, place in zip(self.lane.columns, self._where, self._places, strict=True):
            if self.lane.project:
                yield position, self._total
                continue
            rows = self._total[:, place]
            if is_whole(where, len(rows)):
                yield position, rows
            elif self._whole:
                yield position, rows[where]
            else:
                chosen = self._buffers.take("rows", rows.dtype, len(where), rows.shape[1])
                take_rows(rows, where.astype(np.uint64), chosen)
                yield position, chosen

    def _looks_at(self, i: int, j: int) -> bool:
        """Whether any of the lane's samples are rows and columns of a tile."""
        rows, cols = self.lane.rows.run(i), self.lane.cols.run(j)
        return bool(rows.stop > rows.start and cols.stop > cols.start)

    def _cut(self, task: TileTask, tile: Array) -> Array:
        """The samples of the lane, in its order and precision."""
        rows, cols, dtype = self.lane.rows, self.lane.cols, self.lane.dtype
        tile = np.require(tile, requirements=["ALIGNED"]).view()
        if self._whole:
            if tile.dtype == dtype:
                return tile
            part = self._buffers.take("tile", dtype, *tile.shape)
            np.copyto(part, tile)
            return part
        down, across = (positions.astype(np.uint64) for positions in (rows.inside(task.i), cols.inside(task.j)))
        part = self._buffers.take("tile", dtype, len(down), len(across) + _APART)
        tile.flags.writeable = False  # one kind of array: each is compiled for anew
        gather(tile, down, across, part)
        return part[:, : len(across)]

    def _project(self, task: TileTask, left: Array, part: Array, right: Array) -> None:
        """Add V_iᵀ (K_ij V_j), of a view whose rows are its columns."""
        product = np.matmul(part, right, out=self._buffers.take("product", self.lane.dtype, len(part), right.shape[1]))
        inner = left.T @ product
        self._total += inner
        if task.transposed:
            self._total += inner.T

    def _add(self, block: Block, vectors: Array, part: Array, i: int, j: int) -> None:
        """Add a block's product of a tile (i, j), or of its mirror image."""
        lane = self.lane
        across, down = lane.cols.segments(j, block.cols, block.cols + 1), lane.rows.segments(i, *block.rows)
        if across.stop == across.start or down.stop == down.start:
            return
        out = self._buffers.take("product", lane.dtype, down.stop - down.start, vectors.shape[1])
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
