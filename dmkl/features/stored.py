"""A stored set some kernels of which are kept as factors: their tiles are computed from the features in the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from dmkl import settings
from dmkl.arrays import Array, Index, TileKey
from dmkl.errors import StoreError, refuse
from dmkl.features.recipes import Recipe
from dmkl.features.tiles import FACTORED, FeatureFactors, FeatureTiles, SampleAxis, table_of
from dmkl.passes.execute import on_disk
from dmkl.passes.view import READ_BYTES, strips
from dmkl.store.features import content_of, read_tables
from dmkl.store.reader import SMALL_BYTES, StoreReader

_NO_RECIPE = ("name", "feature_content", "training_content", "identity", "n_missing", "storage")


def recipes_of(entries: Iterable[Mapping[str, Any]]) -> dict[str, Recipe]:
    """The recipes in the provenance of kernels, by name.

    Kernels of the function `random`, which dmkl had before its first release, can be read but not computed.
    """
    return {
        entry["name"]: Recipe.from_json(
            entry["name"], {key: value for key, value in entry.items() if key not in _NO_RECIPE}
        )
        for entry in entries
        if entry.get("function") not in (None, "random")
    }


class FactorReader(StoreReader):
    """The set of a reader; what it computes is opened when it is first used, in every process."""

    _kept_diagonal: tuple[bytes, Any] = b"", None  # the positions of some kernels, and their diagonals

    def __init__(self, reader: StoreReader) -> None:
        vars(self).update(vars(reader))

    @cached_property
    def computed(self) -> FeatureTiles:
        """The kernels that are kept as factors, by their positions in the set; the others have no factors here."""
        recipes, tables = recipes_of(self.provenance), read_tables(self.location)
        if len(recipes) < len(self.names):
            what = f"{self.location} is damaged: a kernel has no recipe, and others are kept as factors"
            refuse(f"{what}; build it again", kind=StoreError)
        for k in self.kept:
            recipe, table = recipes[self.names[k]], tables.get(str(recipes[self.names[k]].feature))
            if recipe.factors:
                continue
            columns = () if recipe.columns is None else recipe.columns
            if table is None or table.content != self.provenance[k].get("feature_content"):
                problem = f"the features {recipe.feature!r} that it was built from are missing"
            elif recipe.function not in FACTORED or table.shape[0] != len(self.samples) or table.n_missing:
                problem = f"it is not a linear or cosine kernel of {len(self.samples):,} samples"
            elif not all(c in range(table.shape[1]) for c in columns):
                problem = f"its columns are not among the {table.shape[1]:,} of {recipe.feature!r}"
            else:
                continue
            kernel = f"kernel {self.names[k]!r} is kept as factors"
            refuse(f"{self.location} is damaged: {kernel}, and {problem}; build it again", kind=StoreError)
        axis = SampleAxis(self.samples, tables)
        return FeatureTiles(list(recipes.values()), axis, None, self.dtype, self.tiling.tile)

    @cached_property
    def factors(self) -> FeatureFactors:
        of_features = self.kept - self._products.keys()
        return FeatureFactors(self.computed.recipes, self.computed.axes, self.dtype, of_features)

    @cached_property
    def _products(self) -> dict[int, list[int]]:
        """The positions of the kernels that are multiplied, for each product that has no tiles."""
        at, recipes = {name: k for k, name in enumerate(self.names)}, self.computed.recipes
        return {k: [at[factor.name] for factor in recipes[k].factors] for k in self.kept if recipes[k].factors}

    def factor_size(self, kernel: int) -> tuple[int, int]:
        """Columns and bytes of the features of a kernel that is kept as factors; zeros for another."""
        if kernel not in self.kept or kernel in self._products:
            return 0, 0
        table, width = table_of(self.computed.recipes[kernel], self.computed.axes[0]), int(self.factors.widths[kernel])
        return width, width * table.shape[0] * table.dtype.itemsize

    @cached_property
    def scratch_bytes(self) -> int:
        return self.computed.scratch_bytes

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        parts = [(part, i, j) for k, i, j in keys for part in self._products.get(k, [k])]
        computed = self.computed.stream([key for key in parts if key[0] in self.kept])
        stored = super().stream([key for key in parts if key[0] not in self.kept])
        for key in keys:
            first, *others = self._products.get(key[0], [key[0]])
            tile = next(computed if first in self.kept else stored)[1]
            tile = tile.copy() if others else tile  # its memory is that of the next
            for factor in others:
                tile *= next(computed if factor in self.kept else stored)[1]
            yield key, tile
        yield from stored  # its last check

    def diagonal(self, kernels: Index) -> Array | None:
        """A large one, which takes a pass, is kept in a temporary file."""
        if 8 * len(kernels) * len(self.samples) <= SMALL_BYTES:
            return self._statistic("diagonal", kernels)
        kept = self._kept_diagonal
        if kept[0] != kernels.tobytes():
            kept = self._kept_diagonal = kernels.tobytes(), on_disk(self._statistic("diagonal", kernels))
        return np.asarray(kept[1])

    def _read_statistic(self, name: str, kernels: Index) -> Array:
        values, products = np.empty((len(kernels), len(self.samples))), np.isin(kernels, list(self._products))
        for row in np.flatnonzero(products):
            values[row] = np.prod(self._read_statistic(name, np.array(self._products[int(kernels[row])])), axis=0)
        kept = np.isin(kernels, list(self.kept)) & ~products
        # All kernels of a table at once: its rows are read and unpacked once.
        widths = self.factors.widths[kernels[kept]]
        n_columns, every = int(widths.sum()), slice(0, len(self.samples))

        def add(part: slice) -> None:
            stored = self.factors.read(kernels[kept], 0, part)
            for rows in strips(n_columns, part):
                Z = stored[rows.start - part.start : rows.stop - part.start].astype(np.float64)
                values[kept, rows] = np.add.reduceat(Z * Z, np.cumsum(widths) - widths, axis=1).T

        if kept.any():
            with ThreadPoolExecutor(settings.tasks_at_once()) as pool:
                list(pool.map(add, strips(n_columns, every, READ_BYTES, self.dtype.itemsize, self.factors.chunk_rows)))
        tiled = ~kept & ~products
        if tiled.any():
            values[tiled] = super()._read_statistic(name, kernels[tiled])
        return values

    def row_sum(self, kernels: Index) -> Array | None:
        """None if it takes a pass."""
        return None if np.isin(kernels, list(self.kept)).any() else super().row_sum(kernels)

    def combined_features(self, kernels: Index) -> Array:
        return self.computed.combined_features(kernels)

    def forget(self) -> None:
        super().forget()
        self._kept_diagonal = b"", None
        for table in self.computed.axes[0].tables.values():
            vars(table).pop("_whole", None)

    def _read_again(self, kernel: int) -> None:
        if kernel not in self.kept:
            super()._read_again(kernel)
            return
        if kernel in self._products:
            return  # its factors are read on their own
        table = table_of(self.computed.recipes[kernel], self.computed.axes[0])
        if content_of(table) != table.content:
            what = f"the features {table.name!r} in {self.location} are not what was written: a chunk was replaced"
            refuse(f"{what}; build the kernels again", kind=StoreError)
