"""A source of tiles that computes them from features on request; new samples are along its rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Array, Float, Index, Mask, TileKey, Tiling
from dmkl.errors import refuse
from dmkl.features.functions import WORDS
from dmkl.features.recipes import Recipe, single
from dmkl.numerics import functions
from dmkl.numerics.cholesky import mirrored
from dmkl.passes.sweep import Buffers, Workbench
from dmkl.store.features import FeatureTable, strips

FACTORED = ("linear", "cosine")
"""Functions whose kernels are K = ZZᵀ for a matrix Z with the columns of the features."""
_ROWS_BYTES = 128 * 2**20  # rows of a table are kept from one tile to the next if they take at most this many bytes

_STRIP = 64
_STRIP_BYTES = 2**23  # features that are read at a time for diagonals


@dataclass(frozen=True)
class SampleAxis:
    """The samples along the rows or the columns, and their features."""

    samples: Array
    tables: Mapping[str, FeatureTable]  # by name
    at: Index | None = None
    """Positions of the samples among the columns of a matrix of distances; all of them in order where None."""

    def absent(self, name: str) -> Mask:
        """Which samples lack a table: their rows are NaN throughout."""
        if not self.tables[name].n_missing:
            return np.zeros(len(self.samples), dtype=bool)
        return np.isnan(self.tables[name].read(slice(0, len(self.samples)), slice(0, 1))[:, 0])


@dataclass(frozen=True)
class MeanFill:
    """Entries of a kernel for samples that lack its table: the mean over training samples that have it.

    The mean is taken in feature space: centered over those training samples, the row of such a sample is zero.
    """

    rows_absent: Mask  # row samples that lack the table
    cols_absent: Mask  # column samples that lack the table
    row_mean: Float  # mean of k(x, ·) over the training samples that have the table, for every row sample
    col_mean: Float  # the same for every column sample
    mean: float  # mean of k over all pairs of these training samples

    def write_into(self, tile: Array, rows: slice, cols: slice) -> None:
        """Fill the entries in the tile of these rows and columns."""
        down, across = self.rows_absent[rows], self.cols_absent[cols]
        tile[down, :] = self.col_mean[cols][None, :]
        tile[:, across] = self.row_mean[rows][:, None]
        tile[np.ix_(down, across)] = self.mean


@dataclass(frozen=True)
class RandomTable(FeatureTable):
    """A Gaussian vector for each sample, a function of the sample's name and the seed alone."""

    samples: Array
    seed: int

    @classmethod
    def of(cls, samples: Array, seed: int, n_columns: int) -> Self:
        """Vectors of `n_columns` numbers for samples of these names; tables with different seeds are independent."""
        shape, dtype = (len(samples), n_columns), np.dtype(np.float64)
        return cls("", shape, dtype, None, f"random-{seed}", np.zeros(n_columns), 0, samples, seed)

    def read(self, rows: slice | Index, columns: slice | Index | None = None) -> Array:
        vectors = functions.gaussians(functions.sample_keys(self.samples[rows], self.seed), self.shape[1])
        return vectors if columns is None else vectors[:, columns]


def table_of(recipe: Recipe, axis: SampleAxis) -> FeatureTable:
    """The feature table from which a kernel is computed along one axis."""
    if recipe.feature is not None:
        return axis.tables[recipe.feature]
    return RandomTable.of(axis.samples, recipe.parameters["seed"], recipe.parameters["dimensions"])


_BENCH = Workbench()
"""Large arrays of streams that have ended, for the next ones, usually the next tiles of a build: allocating them again
would cost as much as the arithmetic, in page faults."""

_Rows = dict[int, tuple[tuple[str, int], Array]]
"""For each axis, rows of a table that a stream keeps from one tile to the next, and which rows these are."""

_MOST_KEPT = 16  # products ZᵀV that are kept with a table


class FeatureFactors:
    """The features of linear kernels, and of cosine kernels divided by their norms, as `dmkl.passes.view.Factors`."""

    def __init__(
        self,
        recipes: Sequence[Recipe],
        axes: tuple[SampleAxis, SampleAxis],
        dtype: np.dtype[Any],
        kernels: Collection[int],  # positions of those that have factors
    ) -> None:
        self._recipes, self._axes, self._dtype = recipes, axes, dtype
        self.widths: Index = np.full(len(recipes), -1)
        for k in kernels:
            columns = recipes[k].columns
            self.widths[k] = table_of(recipes[k], axes[1]).shape[1] if columns is None else len(columns)

    @cached_property
    def chunk_rows(self) -> int:
        """Those of the table of the widest kernel: opening all tables takes milliseconds for each."""
        recipe = self._recipes[int(np.argmax(self.widths))]
        return table_of(recipe, self._axes[1]).chunk_rows

    def kept(self, kernels: Index, vectors: Sequence[Array], compute: Callable[[], Float]) -> Float:
        """The products are kept with the first table of the column samples."""
        recipes = [self._recipes[k] for k in kernels]
        tables = [table_of(recipe, self._axes[1]) for recipe in recipes]
        digest = hashlib.blake2b(digest_size=16)
        for V in vectors[:1] if all(V is vectors[0] for V in vectors) else vectors:
            digest.update(np.ascontiguousarray(V).data)
        of_kernels = ((t.content, r.function, r.columns) for t, r in zip(tables, recipes, strict=True))
        key, computed = (digest.digest(), vectors[0].shape, vectors[0].dtype.str, *of_kernels), tables[0].computed
        if key not in computed:
            if len(computed) >= _MOST_KEPT:
                computed.clear()
            computed[key] = compute()
        result: Float = computed[key]
        return result

    def read(self, kernels: Index, axis: int, rows: slice) -> Array:
        """The columns of a table that several kernels share are read once."""
        recipes = [self._recipes[k] for k in kernels]
        used: dict[str | None, Index | None] = {}
        for recipe in recipes:
            before = used.get(recipe.feature, np.empty(0, dtype=np.int64))
            columns = None if recipe.columns is None or before is None else np.union1d(before, recipe.columns)
            used[recipe.feature] = columns
        tables = self._axes[axis].tables
        values = {name: tables[str(name)].read(rows, columns) for name, columns in used.items()}
        widths, dtype = self.widths[kernels], np.result_type(*values.values())
        # Features of lower precision stay as they are: half the bytes are copied.
        exact = dtype.kind == "f" and np.can_cast(dtype, self._dtype)
        if not exact or any(recipe.function == "cosine" for recipe in recipes):
            dtype = self._dtype
        result = np.empty((len(next(iter(values.values()))), widths.sum()), dtype)
        for recipe, end, width in zip(recipes, np.cumsum(widths), widths, strict=True):
            block, columns, out = values[recipe.feature], used[recipe.feature], result[:, end - width : end]
            if recipe.columns is not None:
                block = block[:, recipe.columns if columns is None else np.searchsorted(columns, recipe.columns)]
            out[:] = block
            if recipe.function == "cosine":
                norms = np.sqrt(functions.sizes("dot", out))[:, None]
                # A sample of zeros has no direction: its row of the kernel is zero.
                out /= np.where(norms > 0, norms, 1.0).astype(dtype)
        return result


class FeatureTiles:
    """Kernels of features as a source of tiles; without `cols` the set is symmetric."""

    def __init__(
        self,
        recipes: Sequence[Recipe],
        rows: SampleAxis,
        cols: SampleAxis | None,
        dtype: npt.DTypeLike,
        tile: int,
        fills: Mapping[str, MeanFill] | None = None,  # by name, of kernels some of whose samples lack the table
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
        factored = [k for k, r in enumerate(recipes) if r.function in FACTORED and r.name not in self.fills]
        self.factors = FeatureFactors(self.recipes, self.axes, self.dtype, factored) if factored else None

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.content_id, self.dtype.str, self.tiling

    @cached_property
    def content_id(self) -> str:
        used = {recipe.feature for recipe in single(self.recipes) if recipe.feature is not None}
        contents = [
            sorted((name, axis.tables[name].content) for name in used if name in axis.tables) for axis in self.axes
        ]
        content = json.dumps([[r.name, self.identity(r)] for r in self.recipes] + contents, sort_keys=True)
        digest = hashlib.sha256(content.encode())
        for names in (self.samples, self.train_samples):
            digest.update("\0".join(map(str, names)).encode())
        return f"features:{digest.hexdigest()}"

    def identity(self, recipe: Recipe) -> dict[str, Any]:
        """The recipe as JSON, and of the user's own functions also values: their names say nothing of their code."""
        identity, first = recipe.as_json(), slice(0, min(_STRIP, len(self.samples)))
        for part in recipe.parts:
            if part.function == "own":
                X = self._panel(part, 0, first, slice(None), self.dtype, _Rows())
                identity[f"values of {part.name}"] = hashlib.sha256(_own_entries(part, X, X).tobytes()).hexdigest()
        return identity

    @property
    def scratch_bytes(self) -> int:
        """The statistic, a panel of columns of both samples, and rows kept for the next tile."""
        side = self.tiling.tile
        widths = [t.shape[1] for axis in self.axes for t in axis.tables.values()]
        widest = max([*widths, *(int(r.parameters.get("dimensions", 1)) for r in self.recipes)])
        has_own = any(r.function == "own" for r in single(self.recipes))
        panel = 2 * side * (widest if has_own else min(widest, functions.PANEL)) * 3 * 8
        n_tiles = 2 + has_own + any(r.factors for r in self.recipes)
        return n_tiles * side * side * 8 + panel + 2 * min(side * widest * 8, _ROWS_BYTES)

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """Consecutive keys of kernels with the same statistic share its computation."""
        pairs_of: tuple[Any, ...] = ()
        pairs, kept_rows = (np.empty(0), np.empty(0), np.empty(0)), _Rows()
        with _BENCH.buffers() as buffers:
            for k, i, j in keys:
                rows, cols, shape = self.tiling.row_slice(i), self.tiling.col_slice(j), self.tiling.tile_shape(i, j)
                same, tile = self.symmetric and i == j, buffers.take("entries", self.dtype, *shape)
                for number, recipe in enumerate(self.recipes[k].parts):
                    entries = tile if number == 0 else buffers.take("factor", self.dtype, *shape)
                    if pairs_of != (recipe.statistic, i, j):
                        pairs_of = (recipe.statistic, i, j)
                        pairs = self._pairs(recipe, rows, cols, same, buffers, kept_rows)
                    functions.entries(recipe.function, recipe.parameters, *pairs, entries)
                    if recipe.name in self.fills:
                        self.fills[recipe.name].write_into(entries, rows, cols)
                    if number:
                        tile *= entries
                if same:
                    mirrored(tile.T)  # the lower half: sums in another order differ in the last bit
                yield (k, i, j), tile

    def _pairs(
        self, recipe: Recipe, rows: slice, cols: slice, same: bool, buffers: Buffers, kept_rows: _Rows
    ) -> tuple[Array, Float, Float]:
        """The statistic of all pairs of samples, and the sizes of the row samples and of the column samples."""
        statistic = functions.STATISTIC[recipe.function]
        dtype = functions.precision(statistic, self.dtype)
        total = buffers.take("pairs", dtype, rows.stop - rows.start, cols.stop - cols.start)
        pairs = functions.PairSum(statistic, total)
        if statistic == "given":
            total[:] = self._given(recipe, rows, cols)
            return total, pairs.row_sizes, pairs.col_sizes
        for panel in [slice(None)] if statistic == "own" else self._panels(recipe):
            X = self._panel(recipe, 0, rows, panel, dtype, kept_rows)
            Y = X if same else self._panel(recipe, 1, cols, panel, dtype, kept_rows)
            if statistic == "own":
                total[:] = _own_entries(recipe, X, Y)
            else:
                pairs.add(X, Y)
        pairs.finish(same=same)
        return total, pairs.row_sizes, pairs.col_sizes

    def _panels(self, recipe: Recipe) -> Iterator[slice]:
        """Slices of the list of the kernel's columns."""
        n_columns = table_of(recipe, self.axes[1]).shape[1] if recipe.columns is None else len(recipe.columns)
        for start in range(0, n_columns, functions.PANEL):
            yield slice(start, min(start + functions.PANEL, n_columns))

    def _panel(
        self, recipe: Recipe, axis: int, at: slice, panel: slice, dtype: np.dtype[Any], kept_rows: _Rows
    ) -> Array:
        """Some columns of some samples, centered or weighted as the statistic needs; 0 for absent samples."""
        table = table_of(recipe, self.axes[axis])
        columns: slice | Index = panel if recipe.columns is None else np.array(recipe.columns)[panel]
        rows = self._rows(table, axis, at, kept_rows)
        values = np.array(table.read(at, columns) if rows is None else rows[:, columns], dtype=dtype)
        if functions.STATISTIC[recipe.function] == "sqeuclidean":
            # Both axes subtract the center of the training samples: distances do not change, and lose fewer digits.
            values -= table_of(recipe, self.axes[1]).center[columns].astype(dtype)
        if "widths" in recipe.parameters:
            # Σ_k w_k min(x_k, y_k) = Σ_k min(w_k x_k, w_k y_k), with the weight of its level for each column
            weights = np.repeat(np.array(recipe.parameters["weights"], dtype=np.float64), recipe.parameters["widths"])
            values *= weights[panel].astype(dtype)
        if "scale" in recipe.parameters:
            values /= np.array(recipe.parameters["scale"])[panel].astype(dtype)
        if table.n_missing:
            values[np.isnan(values)] = 0
        return values

    def _rows(self, table: FeatureTable, axis: int, at: slice, kept_rows: _Rows) -> Array | None:
        """All columns of some samples, kept for the next kernels and tiles; None if they are too large."""
        if (at.stop - at.start) * table.shape[1] * table.dtype.itemsize > _ROWS_BYTES:
            return None
        key = (f"{table.name} {table.content}", at.start)
        if axis not in kept_rows or kept_rows[axis][0] != key:
            kept_rows[axis] = key, table.read(at)
        return kept_rows[axis][1]

    def _given(self, recipe: Recipe, rows: slice, cols: slice) -> Array:
        table, at = self.axes[0].tables[str(recipe.feature)], self.axes[1].at
        entries = table.read(rows, cols if at is None else at[cols])
        if self.symmetric:
            mirrored = table.read(cols, rows if at is None else at[rows]).T
            difference = np.abs(entries - mirrored)
            if difference.max() > 1e-5 * np.abs(entries).max():
                a, b = np.unravel_index(int(difference.argmax()), difference.shape)
                words = WORDS.get(recipe.function, WORDS["distance"])  # the function may be "mean-given"
                refuse(
                    f"the {words} {recipe.feature!r} are not symmetric: entry ({rows.start + a}, "
                    f"{cols.start + b}) is {entries[a, b]:.8g} and its mirror image {mirrored[a, b]:.8g}; take "
                    "(D + D.T)/2, or D + D.T - np.diag(D.diagonal()) of a triangle beside which all is 0"
                )
        return entries

    def diagonal(self, kernels: Index) -> Array:
        """It exists for new samples too."""
        values = np.ones((len(kernels), len(self.samples)))
        for row, k in zip(values, kernels, strict=True):
            for part in self.recipes[k].parts:
                row *= self._whole_diagonal(part)
        return values

    def _whole_diagonal(self, recipe: Recipe) -> Float:
        values, side = np.empty(len(self.samples)), self.tiling.tile
        if functions.STATISTIC[recipe.function] == "own":
            side = _STRIP
        elif functions.STATISTIC[recipe.function] != "given":
            side = max(side, _STRIP_BYTES // (8 * table_of(recipe, self.axes[0]).shape[1]))
        for start in range(0, len(values), side):
            strip = slice(start, min(start + side, len(values)))
            values[strip] = self._diagonal(recipe, strip)
        if recipe.name in self.fills:
            values[self.fills[recipe.name].rows_absent] = self.fills[recipe.name].mean
        return values

    def _diagonal(self, recipe: Recipe, rows: slice) -> Float:
        statistic, parameters = functions.STATISTIC[recipe.function], recipe.parameters
        sizes = np.zeros(rows.stop - rows.start)
        if statistic == "given" and self.symmetric:
            at = np.arange(rows.start, rows.stop) if self.axes[0].at is None else self.axes[0].at[rows]
            entries = self.axes[0].tables[str(recipe.feature)].read(rows, at).diagonal()[:, None]
            values = np.empty(entries.shape, self.dtype)
            functions.entries(recipe.function, parameters, entries, sizes, sizes, values)
            return values[:, 0].astype(np.float64)
        if statistic == "own":
            X = self._panel(recipe, 0, rows, slice(None), self.dtype, _Rows())
            return _own_entries(recipe, X, X).diagonal().astype(np.float64)
        if recipe.function not in functions.UNIT:
            kept_rows = _Rows()
            for panel in self._panels(recipe):
                sizes += functions.sizes(statistic, self._panel(recipe, 0, rows, panel, self.dtype, kept_rows))
        return functions.diagonal(recipe.function, parameters, sizes)

    def row_sum(self, kernels: Index) -> Array | None:
        """None, since it takes a pass."""
        return None

    def combined_features(self, kernels: Index) -> Array:
        """A random combination of the columns in each set of columns that kernels are made from, (sets, samples)."""
        tables, rng = self.axes[0].tables, np.random.default_rng(0)
        used: dict[str, dict[tuple[int, ...] | None, None]] = {}
        for recipe in (self.recipes[k] for k in kernels):
            if recipe.feature in tables:
                used.setdefault(recipe.feature, {})[recipe.columns] = None
        figures = []
        for name, sets in used.items():
            table = tables[name]
            weights = np.zeros((table.shape[1], len(sets)))
            for k, columns in enumerate(sets):
                at = np.arange(table.shape[1]) if columns is None else np.asarray(columns)
                weights[at, k] = rng.standard_normal(len(at))
            parts = [np.nan_to_num(table.read(strip).astype(np.float64)) @ weights for strip in strips(table)]
            values = np.concatenate(parts).T
            largest = np.abs(values).max(axis=1, keepdims=True)
            figures.append(values / np.where(largest > 0, largest, 1))
        return np.concatenate(figures) if figures else np.empty((0, 0))


def _own_entries(recipe: Recipe, X: Array, Y: Array) -> Array:
    """The checked answer of the user's function for some rows."""
    name = f"kernel {recipe.name!r}: the function {recipe.parameters['path']}"
    if recipe.own is None:
        refuse(f"{name} has to be given again, functions={{{recipe.name!r}: function}}; nothing is imported for a file")
    entries = np.asarray(recipe.own(X, Y))
    if entries.shape != (len(X), len(Y)) or entries.dtype.kind not in "fiub":
        rule = f"must return numbers of shape (n, m) for rows X (n, d) and Y (m, d), here {(len(X), len(Y))}"
        refuse(f"{name} {rule}, got {entries.dtype} of shape {entries.shape}")
    if not np.isfinite(entries).all():
        refuse(f"{name} returned {np.count_nonzero(~np.isfinite(entries))} entries that are NaN or infinite")
    if X is Y and np.abs(entries - entries.T).max() > 1e-5 * np.abs(entries).max():
        refuse(f"{name} is not symmetric, so it is no kernel: k(x, y) must be k(y, x)")
    return entries
