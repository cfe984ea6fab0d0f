"""One task of a pass: some kernels, some of their tiles, and all blocks of right-hand sides.

Each tile is used as soon as it is read and never again. A tile above the diagonal of a symmetric kernel serves twice,

    Y_i += K_ij V_j        Y_j += K_ijᵀ V_i,

and once for the small result VᵀKV, since the mirrored tile contributes the transpose:

    G += M + Mᵀ,   M = V_iᵀ (K_ij V_j).

Views of the same kernels over different samples (the folds of a cross-validation) share the products. The samples are
cut into segments: samples that the same views have as rows, and the same views as columns. A tile is permuted once so
that segments are contiguous, and each segment is multiplied once, with the right-hand sides of all views that contain
it side by side. This needs the fewest operations, 2·rows·cols·b for every view, one permutation of the tile for all
views, and wide products.

With many small segments, adding up their products costs more than the sharing saves. Then some views are cut together
and others alone, or tiles are multiplied whole, with zeros where a view lacks a sample. `lanes_of` chooses the cheapest
of these by the measured time of each operation.

The steps are applied to right-hand sides before a tile is multiplied. If the preprocessing differs between kernels by
a scalar only, this is done once per pass, and tasks receive the result; otherwise each task does it for each kernel.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from dmkl.arrays import Array, Float, Index, TileKey, Tiling
from dmkl.numerics.compiling import SMALL, gather
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.view import Lens, TileSource, TileTask, Unit, strips

# --- blocks of right-hand sides ------------------------------------------------------------------------------------


Want = Literal["each", "sum", "project"]


@dataclass(frozen=True)
class Columns:
    """A block of right-hand sides in a pass."""

    block: Array  # V, (cols, b), over the columns of its view.
    want: Want
    """K_j V for every kernel ("each"), Σ_j K_j V diag(w_j) ("sum"), or VᵀK_jV for every kernel ("project")."""
    weights: Array | None  # w, (kernels, b), for "sum".
    dtype: np.dtype[Any]
    """The precision of the products: that of the kernels, or float64 to use all digits of a float32 set's entries."""
    lens: int = 0  # Position of its lens among the lenses of the pass.

    @property
    def width(self) -> int:
        """Columns of the block."""
        return int(self.block.shape[1])

    def without_vectors(self) -> Columns:
        """The same with a block of no rows, for tasks that receive the vectors in another way."""
        return replace(self, block=self.block[:0].copy())


# --- sharing the products of a tile --------------------------------------------------------------------------------


# Nanoseconds of one multiplication and addition on one core, by the bytes of a number (measured).
_MULTIPLY = {4: 0.03, 8: 0.06}
# Nanoseconds to copy an entry out of a tile, to cast an entry, to add an entry to a sum, and to call a product.
_GATHER, _CAST, _ADD, _CALL = 1.5, 1.0, 1.0, 10_000.0
# Largest number of lenses that are cut together: more make segments too small, and take long to search.
_MOST_SUBSETS = 16
# Bits that mark the subsets with a sample as a row; the next bits mark the subsets with it as a column.
_BITS = 32


@dataclass(frozen=True, eq=False)
class Axis:
    """The samples of a lane along one axis, sorted by tile, and by segment within a tile."""

    stored: Index  # Position of each sample in the source.
    bounds: Index  # (tiles, segments + 1): the start of each segment of each tile, and the end of the last one.
    side: int  # Samples along the side of a tile.
    is_whole: bool
    """Whether these are all samples of the source in their order: nothing has to be copied out of a tile."""

    def run(self, tile: int) -> slice:
        """The samples in one row (or column) of tiles."""
        return slice(int(self.bounds[tile, 0]), int(self.bounds[tile, -1]))

    def inside(self, tile: int) -> Index:
        """Positions of the samples of a run in their tile."""
        return self.stored[self.run(tile)] - tile * self.side

    def segments(self, tile: int, first: int, last: int) -> slice:
        """Consecutive segments among the samples of a tile."""
        bounds = self.bounds[tile]
        return slice(int(bounds[first] - bounds[0]), int(bounds[last] - bounds[0]))

    def of_segment(self, segment: int) -> tuple[Index, Index]:
        """The samples of one segment in all tiles, and the start of those of each tile, (tiles + 1,)."""
        sizes = self.bounds[:, segment + 1] - self.bounds[:, segment]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        chosen = np.concatenate([np.arange(*bounds[segment : segment + 2]) for bounds in self.bounds])
        return self.stored[chosen], starts

    def find(self, positions: Index) -> Index:
        """Positions among these samples of samples given by their positions in the source."""
        places = np.zeros(int(self.stored.max(initial=-1)) + 1, dtype=np.int64)
        places[self.stored] = np.arange(len(self.stored))
        return places[positions]


@dataclass(frozen=True)
class Block:
    """One product of a tile: a segment of columns, consecutive segments of rows, and their right-hand sides."""

    cols: int  # The segment of columns.
    rows: tuple[int, int]  # The first segment of rows, and the end of the last.
    vectors: tuple[slice, ...]  # The columns of the lane's right-hand sides, as slices that are put side by side.


@dataclass(frozen=True, eq=False)
class Lane:
    """Columns that are multiplied by each tile together, and the cut of a tile for them."""

    columns: tuple[int, ...]  # Positions among the columns of the pass.
    dtype: np.dtype[Any]  # Precision of the products.
    project: bool  # Whether the result is VᵀKV, of the single one of the columns.
    rows: Axis
    cols: Axis  # The same as the rows for a symmetric source.
    blocks: tuple[Block, ...]
    """The products of a tile. A mirrored tile has the same products, with its rows as columns."""


# --- which lenses are cut out together -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Subset:
    """The samples that some of the columns share, as rows and as columns of the source."""

    rows: Array
    cols: Array  # Masks over the samples of the source.
    columns: list[int]  # Positions among the columns of the pass.
    width: int  # Number of right-hand sides of all these columns.


@dataclass(frozen=True, eq=False)
class _Group:
    """Subsets that are cut out of a tile together."""

    subsets: tuple[_Subset, ...]
    tiling: Tiling
    dtype: np.dtype[Any]

    @cached_property
    def segments(self) -> tuple[tuple[Array, Index], tuple[Array, Index]]:
        """For rows and columns, the subsets of each segment, (segments, 2), and the segment of each sample."""
        # Each sample of an axis has a number with one bit for each subset that has it.
        rows, cols = (
            np.sum([mask.astype(np.int64) << bit for bit, mask in enumerate(masks)], axis=0)
            for masks in ([subset.rows for subset in self.subsets], [subset.cols for subset in self.subsets])
        )
        if not self.tiling.upper:
            return _segments(rows << _BITS), _segments(cols)
        # On a symmetric source rows and columns share one cut, so that a mirrored tile needs no second copy. Its
        # segments must then agree in both roles of a sample.
        segments = _segments(rows << _BITS | cols)
        return segments, segments

    @cached_property
    def blocks(self) -> list[tuple[int, tuple[int, int], int]]:
        """For each product a segment of columns, a run of segments of rows, and the subsets that have both."""
        (rows, _), (cols, _) = self.segments
        blocks: list[tuple[int, tuple[int, int], int]] = []
        for b, (_, there) in enumerate(cols):
            wanted = rows[:, 0] & there
            # Neighboring row segments with the same subsets for these columns become one product.
            cuts = [0, *(np.flatnonzero(np.diff(wanted)) + 1).tolist(), len(wanted)]
            for first, last in itertools.pairwise(cuts):
                if wanted[first]:
                    blocks.append((b, (first, last), int(wanted[first])))
        return blocks

    def width(self, bits: int) -> int:
        """Number of right-hand sides of the subsets in `bits`."""
        return sum(subset.width for k, subset in enumerate(self.subsets) if bits >> k & 1)

    @cached_property
    def nanoseconds(self) -> float:
        """Estimated time to cut and multiply all tiles on one core."""
        n_rows, n_cols = (np.bincount(segment[segment >= 0], minlength=len(sets)) for sets, segment in self.segments)
        down, across = self.tiling.shape
        multiply = _MULTIPLY[self.dtype.itemsize]
        multiplied = sum(
            float(n_rows[first:last].sum()) * self.width(bits) * (n_cols[b] * multiply + across * _ADD)
            for b, (first, last), bits in self.blocks
        )
        # A tile above the diagonal is cut once for both of its products.
        gathered = float(n_rows.sum() * n_cols.sum()) * (0.5 if self.tiling.upper else 1.0)
        return float(multiplied + down * across * len(self.blocks) * _CALL + _GATHER * gathered)


def _segments(bits: Index) -> tuple[Array, Index]:
    """The distinct numbers as pairs (row bits, column bits), and the index of each sample's pair; −1 for no bits."""
    values, segment = np.unique(bits, return_inverse=True)
    if len(values) and values[0] == 0:
        values, segment = values[1:], segment - 1
    return np.stack([values >> _BITS, values & ((1 << _BITS) - 1)], axis=1), segment


def lanes_of(lenses: Sequence[Lens], columns: Sequence[Columns]) -> list[Lane]:
    """The lanes of a pass: the cheapest way for its columns to share the products of each tile."""
    source = lenses[0].view.source
    tiling = source.tiling
    masks = []
    for lens in lenses:
        rows, cols = np.zeros(tiling.rows, dtype=bool), np.zeros(tiling.cols, dtype=bool)
        rows[lens.view.rows], cols[lens.view.cols] = True, True
        masks.append((rows, cols))
    alike: dict[Any, dict[Any, list[int]]] = {}
    for position, c in enumerate(columns):
        # A projection multiplies the product of its own block by that block alone, so it has its own lane.
        kind = (c.dtype, position if c.want == "project" else -1)
        rows, cols = masks[c.lens]
        alike.setdefault(kind, {}).setdefault((rows.tobytes(), cols.tobytes()), []).append(position)
    lanes = []
    for (dtype, projected), members in alike.items():
        groups: list[_Group] = []
        for positions in members.values():
            width = sum(columns[k].width for k in positions)
            subset = _Subset(*masks[columns[positions[0]].lens], positions, width)
            groups.append(_Group((subset,), tiling, dtype))
            # Neighboring subsets are joined while this costs less than cutting them apart.
            if len(groups) > 1 and len(groups[-2].subsets) < _MOST_SUBSETS:
                together = _Group((*groups[-2].subsets, subset), tiling, dtype)
                if together.nanoseconds < groups[-2].nanoseconds + groups[-1].nanoseconds:
                    groups[-2:] = [together]
        everyone = [k for positions in members.values() for k in positions]
        width = sum(columns[k].width for k in everyone)
        # Small sets are multiplied whole too: loading the compiled loops would take longer than the pass.
        cut_ns = sum(group.nanoseconds for group in groups)
        if max(tiling.rows, tiling.cols) <= SMALL or _whole_nanoseconds(width, source, dtype) <= cut_ns:
            rows, cols = (np.ones(length, dtype=bool) for length in (tiling.rows, tiling.cols))
            groups = [_Group((_Subset(rows, cols, everyone, width),), tiling, dtype)]
        lanes += [_lane(group, project=projected >= 0) for group in groups]
    return lanes


def _whole_nanoseconds(width: int, source: TileSource, dtype: np.dtype[Any]) -> float:
    """Estimated time to multiply whole tiles on one core, with zeros for samples that a lens lacks."""
    tiling = source.tiling
    down, across = tiling.shape
    cast = 0.0 if dtype == source.dtype else _CAST * (0.5 if tiling.upper else 1.0)
    multiplied = width * (tiling.cols * _MULTIPLY[dtype.itemsize] + across * _ADD)
    return tiling.rows * (multiplied + tiling.cols * cast) + _CALL * down * across


def _lane(group: _Group, *, project: bool) -> Lane:
    (row_sets, row_segment), (col_sets, col_segment) = group.segments
    rows = _axis(row_segment, len(row_sets), group.tiling.tile)
    cols = rows if group.tiling.upper else _axis(col_segment, len(col_sets), group.tiling.tile)
    # The right-hand sides of all subsets stand side by side; a product takes the columns of the subsets that have its
    # samples.
    ends = np.cumsum([subset.width for subset in group.subsets]).tolist()
    places = [slice(end - subset.width, end) for end, subset in zip(ends, group.subsets, strict=True)]
    blocks = tuple(
        Block(b, run, _merged([place for k, place in enumerate(places) if bits >> k & 1]))
        for b, run, bits in group.blocks
    )
    return Lane(tuple(k for subset in group.subsets for k in subset.columns), group.dtype, project, rows, cols, blocks)


def _axis(segment: Index, n_segments: int, side: int) -> Axis:
    tile = np.arange(len(segment)) // side
    # Sorted by tile and then by segment, so that the samples of a tile are one run. Samples without a subset have the
    # segment −1 and are dropped.
    order = np.lexsort((segment, tile))
    stored = order[segment[order] >= 0]
    n_tiles = -(-len(segment) // side)
    sizes = np.zeros((n_tiles, n_segments), dtype=np.int64)
    np.add.at(sizes, (tile[stored], segment[stored]), 1)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return Axis(
        stored,
        starts[np.arange(n_tiles)[:, None] * n_segments + np.arange(n_segments + 1)],
        side,
        n_segments == 1 and len(stored) == len(segment),
    )


def _merged(slices: Sequence[slice]) -> tuple[slice, ...]:
    merged: list[slice] = []
    for piece in slices:
        if merged and merged[-1].stop == piece.start:
            merged[-1] = slice(merged[-1].start, piece.stop)
        else:
            merged.append(piece)
    return tuple(merged)


# --- right-hand sides of a task ------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """The right-hand sides of all columns of a pass, for kernels with the same steps."""

    blocks: list[list[tuple[Array, Index]]]
    """For each lane and block, the vectors over the samples of its segment, and the start of those of each tile."""
    offsets: list[list[Array | None]]
    """For each of the columns, the values that the steps subtract or add after the product (see `Fitted.left`)."""


def loaded(lenses: Sequence[Lens], columns: Sequence[Columns], lanes: Sequence[Lane], kernel: int) -> Loaded:
    """Prepare the right-hand sides of a pass for the kernel at this position."""
    carried = [_carried(lenses[c.lens], kernel, c) for c in columns]
    blocks = [_cut(lane, [carried[position][0] for position in lane.columns]) for lane in lanes]
    return Loaded(blocks, [offsets for _, offsets in carried])


def _carried(lens: Lens, kernel: int, c: Columns) -> tuple[Array, list[Array | None]]:
    """V over all columns of the source, zero for samples outside the view, and the values needed after the product."""
    view = lens.view
    carried, offsets = lens.fitted.right(kernel, aligned(c.block))
    n_cols = view.source.tiling.cols
    if is_whole(view.cols, n_cols):
        return np.ascontiguousarray(carried, dtype=c.dtype), offsets
    # A sample that the view holds several times gets the sum of its rows of V. The sum is taken in float64 and rounded
    # once.
    once = np.bincount(view.cols, minlength=n_cols).max() <= 1
    wide = np.zeros((n_cols, c.width), dtype=c.dtype if once else np.float64)
    if once:
        wide[view.cols] = carried
    else:
        np.add.at(wide, view.cols, carried)
    return np.ascontiguousarray(wide, dtype=c.dtype), offsets


def _cut(lane: Lane, wides: Sequence[Array]) -> list[tuple[Array, Index]]:
    wide = wides[0] if len(wides) == 1 else np.concatenate(wides, axis=1)
    chosen_vectors = []
    for block in lane.blocks:
        stored, starts = lane.cols.of_segment(block.cols)
        chosen = wide if len(stored) == len(wide) else wide[stored]
        if sum(part.stop - part.start for part in block.vectors) < wide.shape[1]:
            chosen = np.concatenate([chosen[:, part] for part in block.vectors], axis=1)
        chosen_vectors.append((chosen, starts))
    return chosen_vectors


def aligned(array: Array) -> Array:
    """The array, copied if it is not aligned in memory, as arrays from another process may be.

    NumPy would copy it for each product into another layout, for which BLAS uses another kernel with other rounding.
    """
    return np.require(array, requirements=["ALIGNED"])


def is_whole(positions: Index, length: int) -> bool:
    """Whether the positions are 0, 1, …, length − 1 in order: nothing has to be moved then."""
    return len(positions) == length and bool(np.all(positions == np.arange(length)))


# --- the work of a task --------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Some rows of the raw product of one kernel: the rows that a part of its tiles reaches."""

    positions: Index  # Their positions among the rows of the view before its steps.
    products: Array  # (rows, b)


Partial = list[Any]
"""For each Columns: (kernels of the unit, rows, b), (rows, b) or (kernels of the unit, b, b), as arrays; `Rows` instead
of the first if the unit has only a part of the tiles."""


def merge(partials: list[Array]) -> Array:
    """Add up the parts of one result."""
    # The parts are added in the order of their tasks, whichever ended first: the rounding of a sum is then
    # reproducible.
    total = partials[0].copy()
    for part in partials[1:]:
        total += part
    return total


def merge_partials(partials: list[Partial]) -> Partial:
    """Add up the parts of all results, of the same kernels or of sums over all kernels."""
    merged: Partial = []
    for same in zip(*partials, strict=True):
        if not isinstance(same[0], Rows):
            merged.append(merge(list(same)))
            continue
        reached = np.unique(np.concatenate([part.positions for part in same]))
        total = add_rows(same, int(reached.max(initial=-1)) + 1)[reached]
        merged.append(Rows(reached, total.astype(same[0].products.dtype, copy=False)))
    return merged


def add_rows(parts: Sequence[Rows], n_rows: int) -> Array:
    """The sum of the parts over all rows, in float64."""
    total = np.zeros((n_rows, parts[0].products.shape[1]))
    for part in parts:
        total[part.positions] += part.products
    return total


class Buffers:
    """Arrays that are reused for every tile: page faults of new arrays would take as long as filling them."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Array] = {}

    def take(self, use: Any, dtype: np.dtype[Any], *shape: int) -> Array:
        """An uninitialized array of this shape; valid until the next one for the same use."""
        size = math.prod(shape)
        buffer = self._buffers.get((use, dtype))
        if buffer is None or buffer.size < size:
            buffer = self._buffers[use, dtype] = np.empty(size, dtype=dtype)
        return buffer[:size].reshape(shape)


Last = Callable[[Partial, Buffers], Any]
"""A function of the results of a task, called where they are made; the results are in its buffers, which it may use."""


class Workbench:
    """The buffers of a pass in one process: tasks reuse the buffers of tasks that have ended."""

    def __init__(self) -> None:
        self._idle: deque[Buffers] = deque()  # whose operations are atomic

    def __reduce__(self) -> tuple[Any, ...]:
        return Workbench, ()  # another process makes its own buffers

    @contextmanager
    def buffers(self) -> Iterator[Buffers]:
        """Buffers for the exclusive use of one task inside this context."""
        try:
            buffers = self._idle.pop()
        except IndexError:
            buffers = Buffers()
        try:
            yield buffers
        finally:
            self._idle.append(buffers)


def sweep(
    lenses: Sequence[Lens],
    unit: Unit,
    columns: Sequence[Columns],
    tasks_per_machine: int,
    in_memory: dict[TileKey, Array] | None = None,
    *,
    lanes: Sequence[Lane] | None = None,
    vectors: Loaded | None = None,
    bench: Workbench | None = None,
    last: Last | None = None,
) -> Any:
    """Multiply all tiles of a unit once: those in `in_memory`, or else as they are read.

    `lanes` are those of the pass (`lanes_of`), if they were computed for all units, and `vectors` its right-hand sides,
    if they are the same for all kernels. Returns the results, or the value of `last` for them: the results are then in
    buffers of the bench, which the next task overwrites.
    """
    lanes = lanes_of(lenses, columns) if lanes is None else lanes
    with pinned_blas(blas_threads(tasks_per_machine)), (bench or Workbench()).buffers() as buffers:
        results: list[Any] = [
            np.zeros((lenses[c.lens].view.shape[1], c.width))
            if c.want == "sum"
            # The blocks K_jV are the one large result: they are in the precision of the products.
            else (Buffers() if last is None else buffers).take(
                ("result", position),
                c.dtype if c.want == "each" else np.dtype(np.float64),
                len(unit.kernels) if unit.whole or c.want == "project" else 0,
                c.width if c.want == "project" else lenses[c.lens].view.shape[1],
                c.width,
            )
            for position, c in enumerate(columns)
        ]
        if lenses[0].view.factor_widths is not None:
            products = _by_factors(lenses, unit, columns)
        else:
            products = _by_tiles(lenses, unit, columns, in_memory, lanes, vectors, buffers)
        for place, (k, (totals, offsets)) in enumerate(zip(unit.kernels, products, strict=True)):
            for position, total in totals:
                c, lens = columns[position], lenses[columns[position].lens]
                if c.want == "project":
                    results[position][place] = total * lens.fitted.factor(int(k))
                elif c.want == "each" and not unit.whole:
                    # Centering involves all rows of a product, so the steps wait for the sum of all parts.
                    reached = unit.rows(lens.view)
                    results[position] = Rows(reached, total[reached])
                else:
                    # Exactly one unit of a sum over kernels adds the offsets, which are not sums over tiles.
                    product = lens.fitted.left(int(k), total, offsets[position], offsets=unit.first)
                    if c.want == "sum":
                        assert c.weights is not None
                        results[position] += product * c.weights[k]
                    else:
                        results[position][place] = product
        return results if last is None else last(results, buffers)


_RawProducts = Iterator[tuple[Iterable[tuple[int, Array]], Sequence[Any]]]
"""For each kernel of a unit, the raw product or projection of each of the columns, by position, and the offsets of the
columns (see `Loaded`)."""


def _by_tiles(
    lenses: Sequence[Lens],
    unit: Unit,
    columns: Sequence[Columns],
    in_memory: dict[TileKey, Array] | None,
    lanes: Sequence[Lane],
    vectors: Loaded | None,
    buffers: Buffers,
) -> _RawProducts:
    view = lenses[0].view
    keys = [(int(view.kernels[k]), tile.i, tile.j) for k in unit.kernels for tile in unit.tiles]
    stream = view.source.stream(keys) if in_memory is None else ((key, in_memory[key]) for key in keys)
    same_for_all = all(lens.fitted.same_for_all for lens in lenses)
    running = [_Running(number, lane, lenses, columns, buffers) for number, lane in enumerate(lanes)]
    # The loop goes kernel by kernel and tile by tile within a kernel, in the order of `keys`: the stream reads the next
    # tile while this one is multiplied.
    for k in unit.kernels:
        if vectors is None or not same_for_all:
            vectors = loaded(lenses, columns, lanes, int(k))
        for lane_run in running:
            lane_run.clear()
        for task in unit.tiles:
            _, tile = next(stream)
            for lane_run in running:
                lane_run.multiply(task, tile, vectors)
        yield itertools.chain.from_iterable(lane_run.totals() for lane_run in running), vectors.offsets


_PRODUCT_BYTES = 2**26
"""Bytes of products of kernels whose factors are read together, from a table that these may have in common."""


def _by_factors(lenses: Sequence[Lens], unit: Unit, columns: Sequence[Columns]) -> _RawProducts:
    """X(ZᵀV) for the rows of the view, or (ZᵀV)ᵀ(ZᵀV). ZᵀV is a sum in float64 over strips in the precision of V."""
    view = lenses[0].view
    factors, tiling = view.factors, view.source.tiling
    ends_of_columns = np.cumsum([c.width for c in columns]).tolist()
    together = max(1, _PRODUCT_BYTES // (8 * max(tiling.rows, tiling.cols) * max(1, ends_of_columns[-1])))

    def inner_products(stored: Index, ends: Index, vectors: Sequence[Array]) -> Float:
        inner = np.zeros((ends[-1], ends_of_columns[-1]))
        blocks = np.split(inner, ends[:-1])
        for strip in strips(len(inner), slice(0, tiling.cols)):
            Z = factors.read(stored, 1, strip).astype(vectors[0].dtype, copy=False)
            for block, part, V in zip(blocks, np.split(Z, ends[:-1], axis=1), vectors, strict=True):
                block += part.T @ V[strip]
        return inner

    def carried(k: int) -> tuple[Array, Sequence[Any]]:
        blocks, offsets = zip(*(_carried(lenses[c.lens], k, c) for c in columns), strict=True)
        return np.concatenate(blocks, axis=1), offsets

    of_all = carried(int(unit.kernels[0])) if all(lens.fitted.same_for_all for lens in lenses) else None
    for group in (unit.kernels[start : start + together] for start in range(0, len(unit.kernels), together)):
        stored, vectors = view.kernels[group], [of_all or carried(int(k)) for k in group]
        ends, dtype = np.cumsum(factors.widths[stored]), vectors[0][0].dtype
        carried_blocks = [V for V, _ in vectors]
        compute = partial(inner_products, stored, ends, carried_blocks)
        # Vectors of a square set change with every iteration of a fit.
        inner = compute() if view.source.symmetric else factors.kept(stored, carried_blocks, compute)
        blocks = np.split(inner, ends[:-1])
        products = [np.empty((0, 0))] * len(group)
        if any(c.want != "project" for c in columns):
            products = [np.empty((tiling.rows, ends_of_columns[-1])) for _ in group]
            coefficients = [block.astype(dtype, copy=False) for block in blocks]
            for strip in strips(len(inner), slice(0, tiling.rows)):
                X = factors.read(stored, 0, strip).astype(dtype, copy=False)
                for product, part, block in zip(products, np.split(X, ends[:-1], axis=1), coefficients, strict=True):
                    product[strip] = part @ block
        for block, product, (_, offsets) in zip(blocks, products, vectors, strict=True):
            totals = []
            for c, end in zip(columns, ends_of_columns, strict=True):
                place = slice(end - c.width, end)
                projection = c.want == "project"
                rows = lenses[c.lens].view.rows
                totals.append(block[:, place].T @ block[:, place] if projection else product[rows][:, place])
            yield enumerate(totals), offsets


# Extra columns between the rows of a part that was cut out: rows whose distance is a power of two compete for the same
# lines of the cache, and products with their transpose take some percent longer.
_APART = 32


class _Running:
    """The running sums of a lane while one kernel after another goes through it.

    They are in the precision of the products, which saves a third of the bytes that adding moves: a row of tiles has
    few products, whose sum adds less rounding than there is in each of them. Sums of several tasks are in float64.
    """

    def __init__(
        self, number: int, lane: Lane, lenses: Sequence[Lens], columns: Sequence[Columns], buffers: Buffers
    ) -> None:
        self.lane, self._number, self._buffers = lane, number, buffers
        # Whole tiles need no compiled loops for taking rows and columns.
        self._whole = lane.rows.is_whole and lane.cols.is_whole
        of_lane = [columns[position] for position in lane.columns]
        ends = np.cumsum([c.width for c in of_lane]).tolist()
        self._places = [slice(end - c.width, end) for end, c in zip(ends, of_lane, strict=True)]
        width = ends[-1]
        shape = (width, width) if lane.project else (len(lane.rows.stored), width)
        dtype = np.dtype(np.float64) if lane.project else lane.dtype
        self._total = buffers.take(("total", number), dtype, *shape)
        # Positions of a view's rows among those of the lane; all rows in order need no copy.
        self._where = [lane.rows.find(lenses[c.lens].view.rows) for c in of_lane]

    def clear(self) -> None:
        """Set the sums to zero for the next kernel."""
        self._total[:] = 0.0

    def multiply(self, task: TileTask, tile: Array, loaded: Loaded) -> None:
        """Add the products of one tile."""
        lane = self.lane
        rows, cols = lane.rows.run(task.i), lane.cols.run(task.j)
        if rows.start == rows.stop or cols.start == cols.stop:
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
                # The mirror image of the tile, whose rows are columns.
                self._add(block, vectors[starts[task.i] : starts[task.i + 1]], part.T, task.j, task.i)

    def totals(self) -> Iterator[tuple[int, Array]]:
        """For each of the columns, by position, its raw product for the rows of its view, or its projection.

        It may be overwritten, and is valid until the next one is requested.
        """
        for position, rows_of_view, place in zip(self.lane.columns, self._where, self._places, strict=True):
            if self.lane.project:
                yield position, self._total
                continue
            rows = self._total[:, place]
            if is_whole(rows_of_view, len(rows)):
                yield position, rows
                continue
            chosen = self._buffers.take("rows", rows.dtype, len(rows_of_view), rows.shape[1])
            # With mode="raise" NumPy would make a copy of the result first.
            yield position, np.take(rows, rows_of_view, axis=0, out=chosen, mode="clip")

    def _cut(self, task: TileTask, tile: Array) -> Array:
        """The entries of a tile at the samples of the lane, in its order and precision."""
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
        tile.flags.writeable = False  # numba compiles again for each kind of array: make all tiles read-only
        gather(tile, down, across, part)
        return part[:, : len(across)]

    def _project(self, task: TileTask, left: Array, part: Array, right: Array) -> None:
        """Add V_iᵀ (K_ij V_j) for a view whose rows are its columns."""
        product = np.matmul(part, right, out=self._buffers.take("product", self.lane.dtype, len(part), right.shape[1]))
        inner = left.T @ product
        self._total += inner
        # VᵀKV is symmetric: the tile (j, i) contributes the transpose, without another product.
        if task.transposed:
            self._total += inner.T

    def _add(self, block: Block, vectors: Array, part: Array, i: int, j: int) -> None:
        """Add a block's product of the tile (i, j), or of its mirror image."""
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
            self._total[rows, place] += product[:, start:stop]
            start = stop
