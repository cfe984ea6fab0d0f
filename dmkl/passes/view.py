"""A view of stored kernels, and the tasks of a pass over it: some kernels, and some of their tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index, TileKey, Tiling
from dmkl.numerics.steps import STEPS, Fitted, Residualize, Step, Take, Weighing, restricted, unpenalized
from dmkl.passes.execute import machine

# --- views ---------------------------------------------------------------------------------------------------------


class Factors(Protocol):
    """Factors of kernels K_j = X_jZ_jᵀ, of the row samples and of the column samples (the same for a square set)."""

    widths: Index  # Their columns, d_j, for each kernel of the source; −1 for a kernel without factors.

    @property
    def chunk_rows(self) -> int:
        """Rows that are read and unpacked together."""

    def read(self, kernels: Index, axis: int, rows: slice) -> Array:
        """Some rows of X_j for axis 0, or of Z_j for axis 1, side by side for some kernels, (rows, Σ d_j).

        In the precision of the source, or in a lower one that represents all values exactly.
        """

    def kept(self, kernels: Index, vectors: Sequence[Array], compute: Callable[[], Float]) -> Float:
        """The products Z_jᵀV_j of some kernels with these vectors, computed once: a model's primal weights."""


class TileSource(Protocol):
    """The origin of tiles: a store, memory, or a function of another source's tiles."""

    names: tuple[str, ...]
    samples: Array
    train_samples: Array
    dtype: np.dtype[Any]
    tiling: Tiling
    symmetric: bool

    @property
    def content_id(self) -> str:
        """An identifier that changes with every bit of the kernels."""

    @property
    def reads_per_tile(self) -> int:
        """Stored tiles that are read to make one tile."""

    @property
    def scratch_bytes(self) -> int:
        """Memory in one task, in addition to the tile, that making a tile takes."""

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """Yield the tiles (kernel, tile row, tile column) in this order; each may be overwritten by the next."""

    @property
    def factors(self) -> Factors | None:
        """The factors of the kernels, if any has some: a pass over kernels with factors multiplies by these."""

    def diagonal(self, kernels: Index) -> Array | None:
        """k(x, x) of every sample, if the source has it."""

    def row_sum(self, kernels: Index) -> Array | None:
        """Sum of every row over all columns, if the source has it without a pass."""


@dataclass(frozen=True)
class TileTask:
    """One tile of a pass and the products that it serves: K_ij V_j into rows i, K_ijᵀ V_i into rows j, or both."""

    i: int
    j: int
    forward: bool
    transposed: bool


@dataclass(frozen=True)
class View:
    """Kernels, rows and columns of a source, and the steps (see `dmkl.numerics.steps`) applied to them in order."""

    source: TileSource  # The origin of the tiles.
    kernels: Index  # Positions of the kernels in the source.
    rows: Index
    cols: Index  # Positions of the samples in the source, before any step; they may repeat and may be in any order.
    steps: tuple[Step, ...] = ()  # Centering, normalizing, and the selection of rows and columns after either.

    @classmethod
    def of(cls, source: TileSource) -> Self:
        """The view of all kernels and samples of a source."""
        rows = np.arange(source.tiling.rows)
        cols = rows if source.symmetric else np.arange(source.tiling.cols)
        return cls(source, np.arange(len(source.names)), rows, cols)

    @cached_property
    def base_is_square(self) -> bool:
        """Whether rows and columns are the same samples in the same order, before the steps."""
        return self.source.symmetric and (self.rows is self.cols or np.array_equal(self.rows, self.cols))

    @cached_property
    def is_square(self) -> bool:
        """Whether rows and columns are the same samples in the same order, after all steps."""
        return self.base_is_square and all(step.keeps_square for step in self.steps)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(kernels, rows, columns) after all steps."""
        n_rows, n_cols = len(self.rows), len(self.cols)
        for step in self.steps:
            n_rows, n_cols = (len(step.rows), len(step.cols)) if isinstance(step, Take) else (n_rows, n_cols)
        return len(self.kernels), n_rows, n_cols

    def final_positions(self) -> tuple[Index, Index]:
        """Positions in the source of the rows and columns after all steps."""
        rows, cols = self.rows, self.cols
        for step in self.steps:
            rows, cols = (rows[step.rows], cols[step.cols]) if isinstance(step, Take) else (rows, cols)
        return rows, cols

    @property
    def has_names(self) -> bool:
        """Whether the samples of the source have names; without names they are numbered from 0."""
        return any(str(name) != str(number) for number, name in enumerate(self.source.samples))

    @property
    def is_transformed(self) -> bool:
        """Whether a step changes entries of the kernels."""
        return any(step.changes_entries for step in self.steps)

    @property
    def takes_samples(self) -> bool:
        """Whether a step selects some of the rows and columns that the steps before it had."""
        return any(not step.changes_entries for step in self.steps)

    def taking(self, row_positions: Index, col_positions: Index) -> View:
        """The view of these rows and columns."""
        if not self.steps:
            square = self.base_is_square and np.array_equal(row_positions, col_positions)
            rows = self.rows[row_positions]
            return replace(self, rows=rows, cols=rows if square else self.cols[col_positions])
        _, n_rows, n_cols = self.shape
        return replace(self, steps=(*self.steps, Take(row_positions, col_positions, np.array([n_rows, n_cols]))))

    def training(self) -> View:
        """The square view of the column samples, over which the steps compute their statistics."""
        return replace(self, rows=self.cols, steps=tuple(step.training() for step in self.steps))

    def tile_tasks(self) -> list[TileTask]:
        """The tiles that this view needs, row by row."""
        tiling = self.source.tiling
        side = tiling.tile
        has_rows = np.bincount(self.rows // side, minlength=tiling.shape[0]) > 0
        has_cols = np.bincount(self.cols // side, minlength=tiling.shape[1]) > 0
        tasks = []
        # Tile (i, j) of a symmetric set also serves as tile (j, i), so it is read if either of them is needed.
        for i, j in tiling.pairs():
            forward = bool(has_rows[i] and has_cols[j])
            transposed = bool(tiling.upper and i != j and has_rows[j] and has_cols[i])
            if forward or transposed:
                tasks.append(TileTask(i, j, forward, transposed))
        return tasks

    @property
    def factor_widths(self) -> Index | None:
        """Columns of the factors of these kernels, if all of them have some: a pass then multiplies by the factors."""
        factors = self.source.factors
        widths = None if factors is None else factors.widths[self.kernels]
        return None if widths is None or (widths < 0).any() else widths

    @property
    def factors(self) -> Factors:
        """The factors of the source, which has some."""
        assert self.source.factors is not None
        return self.source.factors

    def bytes_of(self, unit: Unit) -> int:
        """Bytes that the task of a unit reads."""
        if self.factor_widths is None:
            return len(unit.kernels) * len(unit.tiles) * self.bytes_per_tile
        tiling = self.source.tiling
        n_rows = tiling.cols if self.source.symmetric else tiling.rows + tiling.cols
        return int(self.factor_widths[unit.kernels].sum()) * n_rows * self.source.dtype.itemsize

    @property
    def bytes_per_tile(self) -> int:
        """Bytes of stored tiles that are read to make one tile of a kernel."""
        return self.source.tiling.tile**2 * self.source.dtype.itemsize * self.source.reads_per_tile

    @property
    def bytes_per_pass(self) -> int:
        """Bytes of stored tiles or factors that one pass over this view reads."""
        if self.factor_widths is not None:
            return self.bytes_of(Unit(np.arange(len(self.kernels)), (), first=True))
        return len(self.kernels) * len(self.tile_tasks()) * self.bytes_per_tile


@dataclass(frozen=True)
class Lens:
    """A view with the statistics of its steps; several, such as the folds of a cross-validation, share a pass."""

    view: View
    statistics: Fitted | Callable[[], Fitted] = field(default_factory=Fitted)
    """The steps with their statistics, or a function that computes them: solvers that multiply by factors need none."""

    @property
    def fitted(self) -> Fitted:
        """The steps with their statistics."""
        # Not a cached property: in Python 3.11 these share a lock between objects, and tasks of the pass that computes
        # the statistics read the property of other lenses.
        if callable(self.statistics):
            object.__setattr__(self, "statistics", self.statistics())
        assert isinstance(self.statistics, Fitted)
        return self.statistics

    def __reduce__(self) -> tuple[Any, ...]:
        return Lens, (self.view, self.fitted)

    def __sizeof__(self) -> int:
        # Dask and `run_tasks` choose by it how to send a lens; it computes no statistics, which may not be needed.
        return self.statistics.n_bytes if isinstance(self.statistics, Fitted) else 0

    def null_vectors(self) -> Array | None:
        """Vectors N (m, k) with K_jN = 0 for every kernel of a square view: see `dmkl.numerics.steps.unpenalized`."""
        return unpenalized(self.view.steps, self.view.shape[2])

    def unit_vector(self) -> Array | None:
        """D^{1/2}1, (m,), of D^{1/2}KD^{1/2}; None if the steps project out some vectors (`null_vectors`)."""
        steps: Any = self.view.steps  # weights of samples are a step without statistics
        return None if self.null_vectors() is not None else np.sqrt(Fitted(steps).counts(self.view.shape[2]))

    def training(self) -> Lens:
        """The square lens of the column samples, over which the steps computed their statistics."""
        return Lens(self.view.training(), lambda: self.fitted.training())

    def rows(self, positions: Index) -> Lens:
        """The lens of some of the rows of the view: a pass through it reads and multiplies only their tiles.

        Rows and columns keep the statistics that they have in the whole view: for a fold with the training samples as
        columns, this is K[test, train].
        """
        return self._restricted(positions, "rows")

    def columns(self, positions: Index) -> Lens:
        """The lens of some of the columns of a square view: a pass through it reads only their tiles.

        Products through it are K_j[:, positions] V, centered over all columns. Its steps cannot be fitted again.
        """
        return self._restricted(positions, "cols")

    def _restricted(self, positions: Index, axis: str) -> Lens:
        steps, before = restricted(self.view.steps, positions, rows=axis == "rows")
        fitted, _ = restricted(self.fitted.steps, positions, rows=axis == "rows")
        view = replace(self.view, steps=steps, **{axis: getattr(self.view, axis)[before]})
        return Lens(view, replace(self.fitted, steps=fitted))

    def diagonal(self) -> Array:
        """The diagonals of the kernels of a square view after all steps, (n, m)."""
        raw = self.view.source.diagonal(self.view.kernels)
        assert raw is not None  # symmetric sources have one
        return self.fitted.diagonal(raw[:, self.view.rows])


def covering(views: Sequence[View]) -> View:
    """A view without steps that has every row and column of several views of the same kernels."""
    if len(views) == 1:
        return views[0]
    # Sorted and without repetition: a pass reads each tile once for all views.
    rows = np.unique(np.concatenate([view.rows for view in views]))
    cols = np.unique(np.concatenate([view.cols for view in views]))
    return replace(views[0], rows=rows, cols=cols, steps=())


# --- order of rows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoreOrder:
    """Samples sorted by their place in the source."""

    order: Index  # Position of each sample among the samples as they were given.
    stored: Index  # Position of each sample in the source, ascending.
    side: int  # Samples along the side of a tile.

    @classmethod
    def of(cls, positions: Index, side: int) -> StoreOrder:
        """Sort samples, given by their positions in the source."""
        # Stable, so that a sample that occurs several times keeps the order of its copies.
        order = np.argsort(positions, kind="stable")
        return cls(order, positions[order], side)

    def run(self, tile: int) -> slice:
        """The samples that lie in one row (or column) of tiles."""
        start, stop = np.searchsorted(self.stored, (tile * self.side, (tile + 1) * self.side))
        return slice(int(start), int(stop))

    def inside(self, run: slice) -> Any:
        """Positions of the samples of a run in their tile: a slice if they are consecutive, since it costs no copy."""
        local = self.stored[run] % self.side
        if len(local) and np.all(np.diff(local) == 1):
            return slice(int(local[0]), int(local[-1]) + 1)
        return local


# --- tasks of a pass -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """One task: these kernels (positions in the view), these tiles of each."""

    kernels: npt.NDArray[np.int64]
    tiles: tuple[TileTask, ...]
    first: bool  # Whether this unit adds the parts of the result that are not sums over tiles.
    whole: bool = True  # Whether these are all tiles of the kernels.

    def rows(self, view: View) -> Index:
        """Positions, among the rows of a view before its steps, of the rows that the products of this unit reach."""
        there = np.zeros(view.source.tiling.shape[0], dtype=bool)
        there[[tile.i for tile in self.tiles if tile.forward]] = True
        there[[tile.j for tile in self.tiles if tile.transposed]] = True
        return np.flatnonzero(there[view.rows // view.source.tiling.tile])


# Tasks of a pass, as far as their size allows: several for each core, so that no core waits long for another.
_TASKS = 16
# Bytes of tiles of a task. Smaller tasks take less time than Dask needs to schedule them and to add up their results;
# larger ones report progress too rarely, and too much is lost when a worker dies.
_SMALLEST, _LARGEST = 2**24, 2**28
# Kernels of up to so many tasks' bytes stay whole: eight kernels make eight tasks.
_WHOLE = 2.5
# Approximate number of tasks of a pass over a set of terabytes: a scheduler starts some hundreds in a second.
_MOST = 2**12


def bytes_of_task(total_bytes: float) -> float:
    """Bytes of tiles for each task of a pass over so many bytes."""
    return min(max(total_bytes / _TASKS, _SMALLEST), max(_LARGEST, total_bytes / _MOST))


def units_of(view: View, most: int | None = None) -> list[Unit]:
    """Cut a pass into tasks: some whole kernels each, at most `most`, or a part of one kernel.

    The cut depends on the data alone and not on the machine: sums in another order would round differently and change
    the last digits of weights.
    """
    n = len(view.kernels)
    if view.factor_widths is not None:
        # A task multiplies by whole factors: those of one kernel, or of some small ones. Few tasks, since each of them
        # unpacks the tables that its kernels share with others.
        together = max(1, min(int(bytes_of_task(4.0 * view.bytes_per_pass) * n / view.bytes_per_pass), most or n))
        return [Unit(group, (), first=True) for group in np.array_split(np.arange(n), -(-n // together))]
    tiles = view.tile_tasks()
    kernel_bytes = max(1, len(tiles) * view.bytes_per_tile)
    task_bytes = bytes_of_task(n * kernel_bytes)
    # A kernel larger than a task is split; its parts return sums over some tiles, and the unit with `first` adds the
    # terms that are not sums over tiles, so that they count once. Halves of small kernels are no gain: adding up their
    # products, most of which move to another process first, takes longer than a core waits for the last task.
    if kernel_bytes > min(_WHOLE * task_bytes, max(task_bytes, _LARGEST)) and len(tiles) > 1:
        cuts = _cut(tiles, min(len(tiles), max(2, round(kernel_bytes / task_bytes))))
        return [
            Unit(np.array([j]), cut, first=position == 0, whole=False)
            for j in range(n)
            for position, cut in enumerate(cuts)
        ]
    # Small kernels share a task; the groups differ by at most one kernel, so that tasks end at about the same time.
    together = max(1, min(int(task_bytes / kernel_bytes), n if most is None else most))
    return [Unit(group, tuple(tiles), first=True) for group in np.array_split(np.arange(n), -(-n // together))]


# Smallest number of tile rows in a band of samples: with fewer, tasks would be of unequal sizes.
_BROAD = 4


def _cut(tiles: Sequence[TileTask], parts: int) -> list[tuple[TileTask, ...]]:
    """Cut the tiles of a kernel into about `parts` parts that reach few rows each: the rows reached have to be moved.

    With the samples in g bands, each pair of bands is a part of the upper tiles of a symmetric kernel: the tiles
    between the two, and within a band those of its pair with the next band. All g(g − 1)/2 pairs together reach g − 1,
    about √(2 parts), times the rows. Strips of tiles reach some 2/3 of the parts times the rows; they are used for few
    tiles, or without mirrored tiles.
    """
    sides = sorted({tile.i for tile in tiles} | {tile.j for tile in tiles})
    n_bands = min(int((1 + math.sqrt(1 + 8 * parts)) / 2), len(sides) // _BROAD)
    strips_of_pair = max(1, round(2 * parts / max(1, n_bands * (n_bands - 1))))
    if n_bands < 3 or (n_bands - 1) * strips_of_pair >= 2 * parts / 3 or not any(tile.transposed for tile in tiles):
        return _split(tiles, parts)
    band = {side: number * n_bands // len(sides) for number, side in enumerate(sides)}
    by_pair: dict[tuple[int, ...], list[TileTask]] = {}
    for tile in sorted(tiles, key=lambda tile: (band[tile.i], band[tile.j])):
        a, b = band[tile.i], band[tile.j]
        pair = (a, b) if a != b else tuple(sorted((a, (a + 1) % n_bands)))
        by_pair.setdefault(pair, []).append(tile)
    return [part for pair in by_pair.values() for part in _split(pair, strips_of_pair)]


def _split(tiles: Sequence[TileTask], parts: int) -> list[tuple[TileTask, ...]]:
    """Split a list of tiles into consecutive parts of about equal length."""
    return [tuple(tiles[t] for t in cut) for cut in np.array_split(np.arange(len(tiles)), parts)]


# --- factors ----------------------------------------------------------------------------------------------------------


_STRIP_BYTES = 2**25  # Bytes of a factor that are read and multiplied together.
READ_BYTES = 2**27
"""Bytes of stored factors that are read at a time."""


def strips(
    width: int, rows: slice, n_bytes: int = _STRIP_BYTES, itemsize: int = 8, multiple: int = 1
) -> Iterator[slice]:
    """Rows of a factor of so many columns that are read or multiplied together.

    They begin at multiples of `multiple`, the rows of a chunk, unless chunks are larger than a strip: parts of chunks
    would be unpacked several times.
    """
    side = max(1, n_bytes // (itemsize * max(width, 1)))
    multiple = multiple if 2 * side >= multiple else 1
    side = max(1, side // multiple) * multiple
    first = rows.start - rows.start % multiple
    return (slice(max(start, rows.start), min(start + side, rows.stop)) for start in range(first, rows.stop, side))


_SMALL_BYTES = 2**27  # Bytes of (D, D) matrices that are no question of memory.
# Steps that were fitted elsewhere, as those of a model, have statistics of other samples and are not among these.
_ON_ROWS = (*map(type, STEPS.values()), Residualize, Weighing, Take)


def has_thin_factors(view: View) -> bool:
    """Whether the kernels of a square view have factors of fewer columns than samples, with sums that fit in memory."""
    widths = view.factor_widths
    if widths is None or not view.is_square or not all(isinstance(step, _ON_ROWS) for step in view.steps):
        return False
    n_columns = int(widths.sum())
    needed_bytes = 8 * 8 * n_columns**2
    # Looking at the machine takes milliseconds, and this is asked for each of many training sets.
    return n_columns < view.shape[1] and (needed_bytes < _SMALL_BYTES or needed_bytes <= machine().total_bytes)
