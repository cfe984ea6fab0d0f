"""A source of tiles that are computed from features when they are asked for.

It stands wherever a stored set does: a pass over it multiplies kernels that nobody has written, `dmkl.build` writes its
tiles, and the kernels of new samples against training samples are such a source with other samples along its rows.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index, Mask
from dmkl.errors import InputError
from dmkl.features.functions import WORDS
from dmkl.features.recipes import Recipe
from dmkl.numerics import functions
from dmkl.numerics.tiling import Tiling
from dmkl.passes.view import TileKey
from dmkl.store.features import FeatureTable

__all__ = ["Axis", "FeatureTiles", "MeanFill", "RandomTable", "table_of"]

_ROWS_BYTES = 128 * 2**20
"""Rows of a table that are kept from one tile to the next, if they take no more."""

_STRIP = 64


@dataclass(frozen=True)
class Axis:
    """The samples along the rows or the columns, and their features."""

    samples: Array
    tables: Mapping[str, FeatureTable]  # by the name of the source
    at: Index | None = None
    """Where the samples stand among the columns of a matrix of distances; as they come where missing."""


@dataclass(frozen=True)
class MeanFill:
    """Entries of a kernel for samples that lack its source: the mean over training samples that have it.

    The mean is that in feature space: centered over those training samples, the row of such a sample is zero.
    """

    rows_absent: Mask  # which samples lack it
    cols_absent: Mask  # which samples lack it
    row_mean: Float  # mean of k(x, ·) over the training samples that have the source, for every sample of an axis
    col_mean: Float  # mean of k(x, ·) over the training samples that have the source, for every sample of an axis
    mean: float  # mean of k over all pairs of them

    def into(self, tile: Array, rows: slice, cols: slice) -> None:
        """Write it into a tile."""
        down, across = self.rows_absent[rows], self.cols_absent[cols]
        tile[down, :] = self.col_mean[cols][None, :]
        tile[:, across] = self.row_mean[rows][:, None]
        tile[np.ix_(down, across)] = self.mean


@dataclass(frozen=True)
class RandomTable(FeatureTable):
    """A Gaussian vector for each sample, from its name: the same whatever set the sample is in."""

    samples: Array
    seed: int

    @classmethod
    def of(cls, samples: Array, seed: int, n_columns: int) -> Self:
        """Vectors of a length for samples of these names; `seed` tells tables apart."""
        shape, dtype = (len(samples), n_columns), np.dtype(np.float64)
        return cls("", shape, dtype, None, f"random-{seed}", np.zeros(n_columns), 0, samples, seed)

    def read(self, rows: slice | Index, columns: slice | Index | None = None) -> Array:
        """See `FeatureTable`."""
        found = functions.gaussians(functions.sample_keys(self.samples[rows], self.seed), self.shape[1])
        return found if columns is None else found[:, columns]


def table_of(recipe: Recipe, axis: Axis) -> FeatureTable:
    """The feature table from which a kernel is computed along one axis."""
    if recipe.feature is not None:
        return axis.tables[recipe.feature]
    return RandomTable.of(axis.samples, recipe.parameters["seed"], int(recipe.parameters.get("dimensions", 1)))


_IDLE = threading.local()


@dataclass
class _Scratch:
    """Arrays that one stream keeps between tiles.

    Large arrays outlive it, for the next stream of the thread, which most often is the next tile of a build: making
    them anew would cost as much as the arithmetic, in fresh pages.
    """

    pairs_of: tuple[Any, ...] | None = None
    pairs: Array | None = None
    row_sizes: Float = field(default_factory=lambda: np.zeros(0))
    col_sizes: Float = field(default_factory=lambda: np.zeros(0))
    buffers: dict[str, Array] = field(default_factory=dict)
    rows: dict[int, tuple[tuple[str, int], Array]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.buffers = getattr(_IDLE, "buffers", {})
        _IDLE.buffers = {}  # a stream that begins before this one has ended makes its own
        return self

    def __exit__(self, *_: object) -> None:
        _IDLE.buffers = self.buffers

    def buffer(self, what: str, shape: tuple[int, int], dtype: np.dtype[Any], side: int) -> Array:
        """An array of this shape; what was in it is lost."""
        key = f"{what} {dtype}"
        if key not in self.buffers or len(self.buffers[key]) < side * side:
            self.buffers[key] = np.empty(side * side, dtype)
        return self.buffers[key][: shape[0] * shape[1]].reshape(shape)


class FeatureTiles:
    """Kernels of features as a source of tiles; without `cols` the set is symmetric.

    `fills` are for kernels (by position) some of whose samples lack their source.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe],
        rows: Axis,
        cols: Axis | None,
        dtype: npt.DTypeLike,
        tile: int,
        fills: Mapping[int, MeanFill] | None = None,
    ) -> None:
        self.recipes = tuple(recipes)
        self.symmetric = cols is None
        self.axes = (rows, rows if cols is None else cols)
        self.names: tuple[str, ...] = tuple(recipe.name for recipe in recipes)
        self.samples, self.train_samples = self.axes[0].samples, self.axes[1].samples
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.tiling = Tiling(len(self.samples), len(self.train_samples), tile, upper=self.symmetric)
        self.fills = dict(fills or {})
        self.reads_per_tile = 1

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.content_id, self.dtype.str, self.tiling

    @cached_property
    def content_id(self) -> str:
        """See `TileSource`."""
        used = {recipe.feature for recipe in self.recipes if recipe.feature is not None}
        contents = [
            sorted((name, axis.tables[name].content) for name in used if name in axis.tables) for axis in self.axes
        ]
        content = json.dumps([[r.name, r.as_json()] for r in self.recipes] + contents, sort_keys=True)
        digest = hashlib.sha256(content.encode())
        for names in (self.samples, self.train_samples):
            digest.update("\0".join(map(str, names)).encode())
        return f"features:{digest.hexdigest()}"

    @property
    def scratch_bytes(self) -> int:
        """See `TileSource`: the statistic, a panel of columns of both samples, and rows kept for the next tile."""
        side = self.tiling.tile
        widths = [t.shape[1] for axis in self.axes for t in axis.tables.values()]
        widest = max([*widths, *(int(r.parameters.get("dimensions", 1)) for r in self.recipes)])
        panel = 2 * side * min(widest, functions.PANEL) * 3 * 8
        return 2 * side * side * 8 + panel + 2 * min(side * widest * 8, _ROWS_BYTES)

    # --- tiles ------------------------------------------------------------------------------------------------

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """See `TileSource`. Kernels that share a statistic share its computation where one follows the other."""
        with _Scratch() as scratch:
            for key in keys:
                yield key, self._tile(key, scratch)

    def _tile(self, key: TileKey, scratch: _Scratch) -> Array:
        k, i, j = key
        recipe = self.recipes[k]
        shape = self.tiling.tile_shape(i, j)
        if scratch.pairs_of != (recipe.statistic, i, j):
            scratch.pairs_of = None
            self._pairs(recipe, i, j, scratch)
            scratch.pairs_of = (recipe.statistic, i, j)
        assert scratch.pairs is not None
        tile = scratch.buffer("entries", shape, self.dtype, self.tiling.tile)
        functions.entries(recipe.function, recipe.parameters, scratch.pairs, scratch.row_sizes, scratch.col_sizes, tile)
        if k in self.fills:
            self.fills[k].into(tile, self.tiling.row_slice(i), self.tiling.col_slice(j))
        if self.symmetric and i == j:
            _mirror(tile)
        return tile

    def _pairs(self, recipe: Recipe, i: int, j: int, scratch: _Scratch) -> None:
        """Compute the statistic of a tile."""
        statistic = functions.STATISTIC[recipe.function]
        dtype = functions.precision(statistic, self.dtype)
        total = scratch.buffer("pairs", self.tiling.tile_shape(i, j), dtype, self.tiling.tile)
        same = self.symmetric and i == j
        scratch.pairs = total
        if statistic == "noise":
            keys = [
                functions.sample_keys(self._samples(axis, at), recipe.parameters["seed"])
                for axis, at in ((0, i), (1, j))
            ]
            functions.noise(keys[0], keys[1], total)
        elif statistic == "given":
            total[:] = self._given(recipe, i, j)
        else:
            pairs = functions.PairSum(statistic, total)
            for panel in self._panels(recipe):
                X = self._panel(recipe, 0, i, panel, dtype, scratch)
                Y = X if same else self._panel(recipe, 1, j, panel, dtype, scratch)
                pairs.add(X, Y)
            pairs.finish(same=same)
            scratch.row_sizes, scratch.col_sizes = pairs.row_sizes, pairs.col_sizes

    def _slice(self, axis: int, at: int) -> slice:
        return self.tiling.row_slice(at) if axis == 0 else self.tiling.col_slice(at)

    def _samples(self, axis: int, at: int) -> Array:
        names: Array = self.axes[axis].samples[self._slice(axis, at)]
        return names

    def _panels(self, recipe: Recipe) -> Iterator[slice]:
        """Places in the list of the kernel's columns."""
        n_columns = table_of(recipe, self.axes[1]).shape[1] if recipe.columns is None else len(recipe.columns)
        for start in range(0, n_columns, functions.PANEL):
            yield slice(start, min(start + functions.PANEL, n_columns))

    def _panel(
        self, recipe: Recipe, axis: int, at: int, panel: slice, dtype: np.dtype[Any], scratch: _Scratch
    ) -> Array:
        """Some columns of the samples of a tile, as their statistic takes them; zeros where there are none."""
        table = table_of(recipe, self.axes[axis])
        columns: slice | Index = panel if recipe.columns is None else np.array(recipe.columns)[panel]
        rows = self._rows(table, axis, at, scratch)
        found = table.read(self._slice(axis, at), columns) if rows is None else rows[:, columns]
        values = np.array(found, dtype=dtype)
        if functions.STATISTIC[recipe.function] == "sqeuclidean":
            # The center of the training samples for both axes: distances do not change, and cancel less.
            values -= table_of(recipe, self.axes[1]).center[columns].astype(dtype)
        weights = _column_weights(recipe)
        if weights is not None:
            values *= weights[panel].astype(dtype)
        if table.n_missing:
            values[np.isnan(values)] = 0
        return values

    def _rows(self, table: FeatureTable, axis: int, at: int, scratch: _Scratch) -> Array | None:
        """All columns of the samples of a tile, kept for the kernels and tiles that need them one after another."""
        if self.tiling.tile * table.shape[1] * table.dtype.itemsize > _ROWS_BYTES:
            return None
        key = (f"{table.name} {table.content}", at)
        if axis not in scratch.rows or scratch.rows[axis][0] != key:
            scratch.rows[axis] = key, table.read(self._slice(axis, at))
        return scratch.rows[axis][1]

    def _given(self, recipe: Recipe, i: int, j: int) -> Array:
        assert recipe.feature is not None
        rows, cols = self._slice(0, i), self._slice(1, j)
        table, at = self.axes[0].tables[recipe.feature], self.axes[1].at
        found = table.read(rows, cols if at is None else at[cols])
        if self.symmetric:
            mirrored = table.read(cols, rows if at is None else at[rows]).T
            apart = np.abs(found - mirrored)
            if apart.max() > 1e-5 * np.abs(found).max():
                a, b = np.unravel_index(int(apart.argmax()), apart.shape)
                words = WORDS.get(recipe.function, WORDS["distance"])  # of distances the mean is taken too
                msg = (
                    f"the {words} {recipe.feature!r} are not symmetric: entry ({rows.start + a}, "
                    f"{cols.start + b}) is {found[a, b]:.8g} and its mirror image {mirrored[a, b]:.8g}; symmetrize "
                    "them, (D + D.T)/2"
                )
                raise InputError(msg)
        return found

    # --- statistics -------------------------------------------------------------------------------------------

    def diagonal(self, kernels: Index) -> Array | None:
        """See `TileSource`: known for new samples too."""
        found = np.empty((len(kernels), len(self.samples)))
        for place, k in enumerate(kernels):
            for i in range(self.tiling.shape[0]):
                rows = self._slice(0, i)
                found[place, rows] = self._diagonal(self.recipes[k], i)
            if k in self.fills:
                found[place, self.fills[k].rows_absent] = self.fills[k].mean
        return found

    def _diagonal(self, recipe: Recipe, i: int) -> Float:
        statistic = functions.STATISTIC[recipe.function]
        rows, parameters = self._slice(0, i), recipe.parameters
        size = rows.stop - rows.start
        if statistic == "noise":
            keys = functions.sample_keys(self._samples(0, i), parameters["seed"])
            pairs = np.empty((size, 1), self.dtype)
            for place, key in enumerate(keys):
                functions.noise(key[None], key[None], pairs[place : place + 1])
            functions.entries(recipe.function, parameters, pairs, np.zeros(0), np.zeros(0), pairs)
            return pairs[:, 0].astype(np.float64)
        if statistic == "given" and self.symmetric:
            assert recipe.feature is not None
            at = np.arange(rows.start, rows.stop) if self.axes[0].at is None else self.axes[0].at[rows]
            own = self.axes[0].tables[recipe.feature].read(rows, at).diagonal()[:, None]
            pairs = np.empty((size, 1), self.dtype)
            functions.entries(recipe.function, parameters, own, np.zeros(0), np.zeros(0), pairs)
            return pairs[:, 0].astype(np.float64)
        sizes = np.zeros(size)
        if recipe.function not in functions.BANDED:
            scratch = _Scratch()
            for panel in self._panels(recipe):
                sizes += functions.sizes(statistic, self._panel(recipe, 0, i, panel, self.dtype, scratch))
        return functions.diagonal(recipe.function, parameters, sizes)

    def row_sum(self, kernels: Index) -> Array | None:
        """See `TileSource`: not known without a pass."""
        return None


def _mirror(tile: Array) -> None:
    """Copy the upper half into the lower one: what is computed in another order differs in its last bit."""
    for start in range(0, len(tile), _STRIP):
        strip = slice(start, start + _STRIP)
        tile[strip, :start] = tile[:start, strip].T
        corner = tile[strip, strip]
        corner[:] = np.triu(corner) + np.triu(corner, 1).T


def _column_weights(recipe: Recipe) -> Float | None:
    """The weight of each of the kernel's columns in Σ_k w_k min(x_k, y_k) = Σ_k min(w_k x_k, w_k y_k)."""
    if "widths" not in recipe.parameters:
        return None
    return np.repeat(np.array(recipe.parameters["weights"], dtype=np.float64), recipe.parameters["widths"])
