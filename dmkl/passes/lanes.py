"""How the columns that ride a pass share the products of each tile.

Lenses that see other samples of the same kernels (the folds of a cross-validation) cut the samples into *segments*:
those that the same lenses have as rows, and the same as columns. A tile is permuted once so that segments are
contiguous, and each is multiplied once, with the columns of all lenses that have it, side by side. That takes the
operations of the floor, 2·rows·cols·b for every lens, one gathering of the tile for all of them, and wide products.

Where segments are many and small, adding up their products costs more than that saves: then some lenses are cut out
together and others apart, or tiles are multiplied whole, with zeros where a lens has no sample. `lanes_of` takes what
costs least by the time of each operation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.numerics.gather_loops import SMALL
from dmkl.passes.view import Lens, TileSource

if TYPE_CHECKING:
    from dmkl.passes.riders import Columns

__all__ = ["Axis", "Block", "Lane", "lanes_of"]

_MULTIPLY = {4: 0.03, 8: 0.06}
"""Nanoseconds of one multiplication and addition on one core, by the bytes of a number."""
_GATHER, _CAST, _ADD, _CALL = 1.5, 1.0, 1.0, 10_000.0
"""Nanoseconds of taking an entry out of a tile, of casting one where it is, of adding one to a sum, of one product."""
_MOST_SEATS = 16
"""Lenses that are cut out together: more make segments too small to be worth it, and take long to find."""
_BITS = 32
"""Of the number that says which seats have a sample as a row, and as many which have it as a column."""


@dataclass(frozen=True, eq=False)
class Axis:
    """The samples along one axis that a lane looks at, sorted by tile, and by segment within a tile."""

    stored: Index
    """Position of each in the source."""
    bounds: Index
    """(tiles, segments + 1): where each segment of each tile begins, and the last one ends."""
    side: int
    """Of a tile, in samples."""
    is_whole: bool
    """Whether these are all samples of the source as they lie there: nothing has to be taken out of a tile."""

    def run(self, tile: int) -> slice:
        """The samples that lie in one row (or column) of tiles."""
        return slice(int(self.bounds[tile, 0]), int(self.bounds[tile, -1]))

    def inside(self, tile: int) -> Index:
        """Where in their tile the samples of a run lie."""
        return self.stored[self.run(tile)] - tile * self.side

    def segments(self, tile: int, first: int, last: int) -> slice:
        """Consecutive segments within the samples of a tile."""
        bounds = self.bounds[tile]
        return slice(int(bounds[first] - bounds[0]), int(bounds[last] - bounds[0]))

    def of_segment(self, segment: int) -> tuple[Index, Index]:
        """The samples of one segment in all tiles, and where those of each tile begin, (tiles + 1,)."""
        sizes = self.bounds[:, segment + 1] - self.bounds[:, segment]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        chosen = np.concatenate([np.arange(*bounds[segment : segment + 2]) for bounds in self.bounds])
        return self.stored[chosen], starts

    def find(self, positions: Index) -> Index:
        """Where samples, given by their positions in the source, are among these."""
        places = np.zeros(int(self.stored.max(initial=-1)) + 1, dtype=np.int64)
        places[self.stored] = np.arange(len(self.stored))
        return places[positions]


@dataclass(frozen=True)
class Block:
    """One product of a tile: a segment of columns, consecutive ones of rows, and the vectors that go through."""

    cols: int
    """The segment."""
    rows: tuple[int, int]
    """The first segment, and the one after the last."""
    vectors: tuple[slice, ...]
    """Of the lane's vectors, where they stand side by side."""


@dataclass(frozen=True, eq=False)
class Lane:
    """Columns that go through each tile together, and how it is cut for them."""

    columns: tuple[int, ...]
    """Positions among the columns of the pass."""
    dtype: np.dtype[Any]
    """Of the products."""
    project: bool
    """Whether VᵀKV is wanted, of a single one of the columns."""
    rows: Axis
    cols: Axis
    """Of a symmetric source the same."""
    blocks: tuple[Block, ...]
    """The products of a tile. A mirrored tile has the same ones: its rows are columns."""


# --- which lenses are cut out together -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Seat:
    """Samples that some of the columns look at, as rows and as columns."""

    rows: Array
    cols: Array
    """Masks over the samples of the source."""
    columns: list[int]
    """Positions among the columns of the pass."""
    width: int
    """Vectors of all these."""


@dataclass(frozen=True, eq=False)
class _Group:
    """Seats that are cut out of a tile together."""

    seats: tuple[_Seat, ...]
    row_bits: Index
    col_bits: Index
    """For each sample of an axis the seats that have it, as a number with a bit for each."""
    symmetric: bool

    def joined(self, seat: _Seat) -> _Group:
        """With one more seat."""
        bit = 1 << len(self.seats)
        return _Group(
            (*self.seats, seat), self.row_bits + bit * seat.rows, self.col_bits + bit * seat.cols, self.symmetric
        )

    @cached_property
    def segments(self) -> tuple[tuple[Array, Index], tuple[Array, Index]]:
        """For rows and columns what the seats of each segment have, (segments, 2), and the segment of each sample."""
        if self.symmetric:
            both = self.row_bits << _BITS | self.col_bits
            found = _segments(both)
            return found, found
        return _segments(self.row_bits << _BITS), _segments(self.col_bits)

    @cached_property
    def blocks(self) -> list[tuple[int, tuple[int, int], int]]:
        """Each a segment of the columns, a run of segments of the rows, and the seats that have both."""
        (rows, _), (cols, _) = self.segments
        found: list[tuple[int, tuple[int, int], int]] = []
        for b, (_, there) in enumerate(cols):
            wanted = rows[:, 0] & there
            cuts = [0, *(np.flatnonzero(np.diff(wanted)) + 1).tolist(), len(wanted)]
            for first, last in itertools.pairwise(cuts):
                if wanted[first]:
                    found.append((b, (first, last), int(wanted[first])))
        return found

    def width(self, bits: int) -> int:
        """Vectors of some seats."""
        return sum(seat.width for k, seat in enumerate(self.seats) if bits >> k & 1)

    def nanoseconds(self, side: int, itemsize: int) -> float:
        """What cutting and multiplying all tiles takes one core."""
        (rows, row_segment), (cols, col_segment) = self.segments
        n_rows, n_cols = _sizes(rows, row_segment), _sizes(cols, col_segment)
        tiles = -(-len(col_segment) // side)
        calls = -(-len(row_segment) // side) * tiles * len(self.blocks)
        multiplied = sum(
            float(n_rows[first:last].sum()) * self.width(bits) * (n_cols[b] * _MULTIPLY[itemsize] + tiles * _ADD)
            for b, (first, last), bits in self.blocks
        )
        gathered = float(n_rows.sum() * n_cols.sum()) * (0.5 if self.symmetric else 1.0)
        return float(multiplied + calls * _CALL + _GATHER * gathered)


def _segments(bits: Index) -> tuple[Array, Index]:
    """The distinct numbers as what rows and columns have, and which of them each sample has; −1 where it has none."""
    values, segment = np.unique(bits, return_inverse=True)
    if len(values) and values[0] == 0:
        values, segment = values[1:], segment - 1
    return np.stack([values >> _BITS, values & ((1 << _BITS) - 1)], axis=1), segment


def _sizes(segments: Array, segment: Index) -> Index:
    return np.bincount(segment[segment >= 0], minlength=len(segments))


def lanes_of(lenses: Sequence[Lens], columns: Sequence[Columns]) -> list[Lane]:
    """The lanes of a pass: how its columns share the products of each tile at the least cost."""
    source = lenses[0].view.source
    tiling = source.tiling
    masks = [_masks(lens) for lens in lenses]
    alike: dict[Any, dict[Any, list[int]]] = {}
    for position, c in enumerate(columns):
        # A projection is of the product of its own block alone.
        kind = (c.dtype, position if c.want == "project" else -1)
        rows, cols = masks[c.lens]
        alike.setdefault(kind, {}).setdefault((rows.tobytes(), cols.tobytes()), []).append(position)
    lanes = []
    for (dtype, projected), members in alike.items():
        seats = [
            _Seat(*masks[columns[some[0]].lens], some, sum(columns[k].width for k in some)) for some in members.values()
        ]
        groups, cost = _grouped(seats, tiling.tile, dtype.itemsize, symmetric=tiling.upper)
        if max(tiling.rows, tiling.cols) <= SMALL or _whole_nanoseconds(seats, source, dtype) <= cost:
            rows, cols = (np.ones(length, dtype=bool) for length in (tiling.rows, tiling.cols))
            own = [k for seat in seats for k in seat.columns]
            everything = _Seat(rows, cols, own, sum(seat.width for seat in seats))
            groups = [_group(everything, symmetric=tiling.upper)]
        lanes += [_lane(group, columns, dtype, tiling.tile, project=projected >= 0) for group in groups]
    return lanes


def _whole_nanoseconds(seats: Sequence[_Seat], source: TileSource, dtype: np.dtype[Any]) -> float:
    """What multiplying whole tiles takes one core, with zeros where a lens has no sample."""
    tiling, width = source.tiling, sum(seat.width for seat in seats)
    down, across = tiling.shape
    cast = 0.0 if dtype == source.dtype else _CAST * (0.5 if tiling.upper else 1.0)
    multiplied = width * (tiling.cols * _MULTIPLY[dtype.itemsize] + across * _ADD)
    return tiling.rows * (multiplied + tiling.cols * cast) + _CALL * down * across


def _masks(lens: Lens) -> tuple[Array, Array]:
    tiling, view = lens.view.source.tiling, lens.view
    rows, cols = np.zeros(tiling.rows, dtype=bool), np.zeros(tiling.cols, dtype=bool)
    rows[view.rows], cols[view.cols] = True, True
    return rows, cols


def _group(seat: _Seat, *, symmetric: bool) -> _Group:
    empty = _Group((), np.zeros(len(seat.rows), dtype=np.int64), np.zeros(len(seat.cols), dtype=np.int64), symmetric)
    return empty.joined(seat)


def _grouped(seats: Sequence[_Seat], side: int, itemsize: int, *, symmetric: bool) -> tuple[list[_Group], float]:
    """Seats next to one another cut out together as long as that costs less than apart; and the cost of all."""
    groups: list[_Group] = []
    costs: list[float] = []
    for seat in seats:
        alone = _group(seat, symmetric=symmetric)
        cost = alone.nanoseconds(side, itemsize)
        if groups and len(groups[-1].seats) < _MOST_SEATS:
            together = groups[-1].joined(seat)
            cost_together = together.nanoseconds(side, itemsize)
            if cost_together < costs[-1] + cost:
                groups[-1], costs[-1] = together, cost_together
                continue
        groups.append(alone)
        costs.append(cost)
    return groups, sum(costs)


def _lane(group: _Group, columns: Sequence[Columns], dtype: np.dtype[Any], side: int, *, project: bool) -> Lane:
    (row_segments, row_segment), (col_segments, col_segment) = group.segments
    rows = _axis(row_segment, len(row_segments), side)
    cols = rows if group.symmetric else _axis(col_segment, len(col_segments), side)
    ends = np.cumsum([seat.width for seat in group.seats]).tolist()
    places = [slice(end - seat.width, end) for end, seat in zip(ends, group.seats, strict=True)]
    blocks = tuple(
        Block(b, run, _merged([place for k, place in enumerate(places) if bits >> k & 1]))
        for b, run, bits in group.blocks
    )
    return Lane(tuple(k for seat in group.seats for k in seat.columns), dtype, project, rows, cols, blocks)


def _axis(segment: Index, n_segments: int, side: int) -> Axis:
    tile = np.arange(len(segment)) // side
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
    """Neighbors as one."""
    found: list[slice] = []
    for one in slices:
        if found and found[-1].stop == one.start:
            found[-1] = slice(found[-1].start, one.stop)
        else:
            found.append(one)
    return tuple(found)
