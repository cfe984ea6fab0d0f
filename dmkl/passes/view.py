"""What a pass reads: some kernels, rows and columns of a source of tiles, and the steps around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.numerics.chain import Fitted, Step, restricted
from dmkl.numerics.fitted import Take
from dmkl.numerics.tiling import Tiling

__all__ = ["Lens", "TileKey", "TileSource", "TileTask", "View", "covering"]

TileKey = tuple[int, int, int]
"""(kernel, tile row, tile column)"""


class TileSource(Protocol):
    """Where tiles come from: a store, memory, or a function of another source's tiles."""

    names: tuple[str, ...]
    samples: Array
    train_samples: Array
    dtype: np.dtype[Any]
    tiling: Tiling
    symmetric: bool

    @property
    def content_id(self) -> str:
        """Changes whenever a bit of the kernels does."""

    @property
    def reads_per_tile(self) -> int:
        """Stored tiles that one tile costs to read."""

    @property
    def scratch_bytes(self) -> int:
        """Memory that making a tile takes beside the tile, in one task."""

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """Yield the tiles (kernel, tile row, tile column) in this order; each is good until the next is asked for."""

    def diagonal(self, kernels: Index) -> Array | None:
        """k(x, x) of every sample, where known."""

    def row_sum(self, kernels: Index) -> Array | None:
        """Sum of every row over all columns, where known without a pass."""


@dataclass(frozen=True)
class TileTask:
    """One tile of a pass and the products that it serves: K_ij V_j into rows i, K_ijᵀ V_i into rows j, or both."""

    i: int
    j: int
    forward: bool
    transposed: bool


@dataclass(frozen=True)
class View:
    """Kernels, rows and columns of a source, then steps (see `dmkl.numerics.steps`) in order."""

    source: TileSource
    """Where tiles come from."""
    kernels: Index
    """Positions of the kernels in the source."""
    rows: Index
    cols: Index
    """Positions of the samples in the source, before any step; they may repeat and come in any order."""
    steps: tuple[Step, ...] = ()
    """Centering, normalizing and further taking of rows and columns."""

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
            n_rows, n_cols = step.shape(n_rows, n_cols)
        return len(self.kernels), n_rows, n_cols

    def final_positions(self) -> tuple[Index, Index]:
        """Positions in the source of the rows and columns after all steps."""
        rows, cols = self.rows, self.cols
        for step in self.steps:
            rows, cols = step.taken(rows, cols)
        return rows, cols

    @property
    def has_names(self) -> bool:
        """Whether the samples of the source have names; where they have none, numbers from 0 stand for them."""
        return any(str(name) != str(number) for number, name in enumerate(self.source.samples))

    @property
    def is_transformed(self) -> bool:
        """Whether a step changes entries of the kernels."""
        return any(step.changes_entries for step in self.steps)

    @property
    def takes_samples(self) -> bool:
        """Whether a step takes some of the rows and columns that the steps before it had."""
        return any(not step.changes_entries for step in self.steps)

    def taking(self, row_positions: Index, col_positions: Index) -> View:
        """These rows and columns of the view."""
        if not self.steps:
            square = self.base_is_square and np.array_equal(row_positions, col_positions)
            rows = self.rows[row_positions]
            return replace(self, rows=rows, cols=rows if square else self.cols[col_positions])
        _, n_rows, n_cols = self.shape
        return replace(self, steps=(*self.steps, Take(row_positions, col_positions, np.array([n_rows, n_cols]))))

    def training(self) -> View:
        """The square view of the column samples, in which the steps take their statistics."""
        return replace(self, rows=self.cols, steps=tuple(step.training() for step in self.steps))

    def tile_tasks(self) -> list[TileTask]:
        """The tiles that this view needs, row by row."""
        tiling = self.source.tiling
        side = tiling.tile
        has_rows = np.bincount(self.rows // side, minlength=tiling.shape[0]) > 0
        has_cols = np.bincount(self.cols // side, minlength=tiling.shape[1]) > 0
        tasks = []
        for i, j in tiling.pairs():
            forward = bool(has_rows[i] and has_cols[j])
            transposed = bool(tiling.upper and i != j and has_rows[j] and has_cols[i])
            if forward or transposed:
                tasks.append(TileTask(i, j, forward, transposed))
        return tasks

    @property
    def bytes_per_tile(self) -> int:
        """Bytes of stored tiles that one tile of a kernel costs to read."""
        return self.source.tiling.tile**2 * self.source.dtype.itemsize * self.source.reads_per_tile

    @property
    def bytes_per_pass(self) -> int:
        """Bytes of stored tiles that one pass over this view reads."""
        return len(self.kernels) * len(self.tile_tasks()) * self.bytes_per_tile


@dataclass(frozen=True)
class Lens:
    """A view and the statistics of its steps: what a block of vectors needs to go through the stored kernels.

    Several lenses share a pass where they look at the same kernels of the same source: the folds of a
    cross-validation, each with rows, columns and means of its own.
    """

    view: View
    fitted: Fitted = field(default_factory=Fitted)

    def training(self) -> Lens:
        """The square lens of the column samples, in which the steps took their statistics."""
        return Lens(self.view.training(), self.fitted.training())

    def rows(self, positions: Index) -> Lens:
        """The lens of some of the rows of the view: a pass through it reads and multiplies the tiles of these alone.

        They keep the statistics that they had among all rows, and the columns theirs: it is K[test, train] of a fold
        whose training samples are the columns.
        """
        steps, rows = restricted(self.view.steps, positions, rows=True)
        fitted, _ = restricted(self.fitted.steps, positions, rows=True)
        return Lens(replace(self.view, rows=self.view.rows[rows], steps=steps), replace(self.fitted, steps=fitted))

    def columns(self, positions: Index) -> Lens:
        """The lens of some of the columns of a square view: a pass through it reads the tiles of these alone.

        Products through it are K_j[:, positions] V, centered over all columns; its view cannot be measured anew.
        """
        steps, cols = restricted(self.view.steps, positions, rows=False)
        fitted, _ = restricted(self.fitted.steps, positions, rows=False)
        return Lens(replace(self.view, cols=self.view.cols[cols], steps=steps), replace(self.fitted, steps=fitted))

    def diagonal(self) -> Array | None:
        """The diagonals of the kernels after all steps, (n, m), of a square view; None where the source has none."""
        raw = self.view.source.diagonal(self.view.kernels)
        return None if raw is None else self.fitted.diagonal(raw[:, self.view.rows])


def covering(views: Sequence[View]) -> View:
    """The view, without steps, that has every row and column of some views of the same kernels."""
    if len(views) == 1:
        return views[0]
    rows = np.unique(np.concatenate([view.rows for view in views]))
    cols = np.unique(np.concatenate([view.cols for view in views]))
    return replace(views[0], rows=rows, cols=cols, steps=())
