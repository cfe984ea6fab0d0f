"""Kernels of new samples against training samples, from features."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dmkl import stores
from dmkl.arrays import Array, Mask
from dmkl.errors import InputError, MemoryBudgetError, StoreError
from dmkl.features.build import (
    Missing,
    at_hand,
    check_present,
    check_values,
    computed_set,
    how_missing,
    provenances,
)
from dmkl.features.missing import filled
from dmkl.features.recipes import Recipe
from dmkl.features.tiles import Axis, FeatureTiles
from dmkl.features.writing import write_kernels
from dmkl.inputs.features import FeatureMatrix, against, as_features
from dmkl.inputs.label_tables import given_data
from dmkl.inputs.labels import Labels, SideData
from dmkl.inputs.names import Join
from dmkl.kernelset import KernelSet
from dmkl.numerics.functions import STATISTIC
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.memory import HeldTiles
from dmkl.passes.view import GeometricMean
from dmkl.store.features import FeatureTable, TableOfRows, read_tables, scan, write_table
from dmkl.store.layout import Header
from dmkl.store.opening import Location
from dmkl.store.reader import StoreReader
from dmkl.store.saved import Saved
from dmkl.store.writer import StoreWriter, claim_place

__all__ = ["TrainingFeatures", "build_cross", "cross_tiles", "row_features", "training_features"]


@dataclass(frozen=True)
class TrainingFeatures:
    """Recipes and features from which kernels of new samples against training samples are computed."""

    recipes: Mapping[str, Recipe]  # by the name of the kernel
    tables: Mapping[str, FeatureTable]  # the features of the training samples, by the name of the source
    samples: Array
    dtype: np.dtype[Any]  # precision of the kernels
    tile: int  # side of a tile

    def select(self, names: Collection[str]) -> TrainingFeatures:
        """Keep only some of the kernels and the tables that they need, in the order of the names."""
        recipes = {name: self.recipes[name] for name in names if name in self.recipes}
        used = {recipe.feature for recipe in recipes.values()}
        tables = {name: table for name, table in self.tables.items() if name in used}
        return TrainingFeatures(recipes, tables, self.samples, self.dtype, self.tile)

    def as_json(self) -> dict[str, Any]:
        """The recipes and settings that `load` needs beside the tables."""
        recipes = [{"name": recipe.name, **recipe.as_json()} for recipe in self.recipes.values()]
        return {"recipes": recipes, "dtype": self.dtype.name, "tile": self.tile}

    def save(self, root: Any) -> None:
        """Write the tables into a Zarr group."""
        for number, table in enumerate(self.tables.values()):
            # The center is part of what tiles are computed from to the last bit, and not that of these rows alone.
            found = replace(scan(table, self.samples), center=table.center)
            write_table(root, number, table, found, self.tile)

    @classmethod
    def load(cls, model: Saved, noted: Mapping[str, Any], samples: Array) -> Self:
        """Load what `save` wrote into the group of a model; `noted` is what `as_json` told."""
        recipes = {entry["name"]: _recipe(entry["name"], entry) for entry in noted["recipes"]}
        tables = read_tables(str(model.path), model.within)
        return cls(recipes, tables, samples, np.dtype(noted["dtype"]), int(noted["tile"]))


def row_features(K: KernelSet) -> TrainingFeatures:
    """The features that the kernels of a set were computed from, of its row samples; raises as `training_features`."""
    return _features(K, 0)


def training_features(K: KernelSet) -> TrainingFeatures:
    """The features that the kernels of a set were computed from, of its column samples."""
    return _features(K, 1)


def _features(K: KernelSet, axis: int) -> TrainingFeatures:
    source = K.view.source
    while isinstance(source, HeldTiles | GeometricMean):
        source = source.origin if isinstance(source, HeldTiles) else source.source
    if K.view.is_transformed:
        msg = (
            "kernels of new samples are computed as they were stored, but this set was centered or normalized itself; "
            "let the model do that (steps=)"
        )
        raise InputError(msg)
    if isinstance(source, FeatureTiles):
        recipes, tables = {recipe.name: recipe for recipe in source.recipes}, dict(source.axes[axis].tables)
    elif isinstance(source, StoreReader):
        made = {entry["name"]: entry for entry in source.provenance if "function" in entry}
        recipes, tables = {name: _recipe(name, entry) for name, entry in made.items()}, read_tables(source.location)
    else:
        recipes, tables = {}, {}
    if not recipes:
        msg = (
            "these kernels were not computed from features by dmkl.build (dmkl build), so those of new samples cannot "
            "be; give their kernels against the training samples as a rectangular set"
        )
        raise InputError(msg)
    # Of distances there is no table: new samples bring their own, to the columns.
    used = {recipe.feature for recipe in recipes.values() if STATISTIC[recipe.function] != "given"}
    tables = {name: table for name, table in tables.items() if name in used}
    at = K.view.final_positions()[axis]
    samples = (K.samples, K.train_samples)[axis]
    if len(at) != len((source.samples, source.train_samples)[axis]) or not np.array_equal(at, np.arange(len(at))):
        tables = {name: TableOfRows.of(table, at) for name, table in tables.items()}
    return TrainingFeatures(recipes, tables, samples, source.dtype, source.tiling.tile)


_NOTED = ("name", "feature_content", "training_content", "identity", "n_missing")


def _recipe(name: str, entry: dict[str, Any]) -> Recipe:
    return Recipe.from_json(name, {key: value for key, value in entry.items() if key not in _NOTED})


@one_blas_thread
def build_cross(
    store: Location | KernelSet,
    features: Any,
    path: Location | None = None,
    *,
    samples: Sequence[Any] | Array | None = None,
    labels: Any = None,
    tasks: Sequence[Any] | Array | None = None,
    present: Mapping[str, npt.ArrayLike] | None = None,
    join: Join = "exact",
    missing: Missing | None = None,
    overwrite: bool = False,
) -> KernelSet:
    """Kernels of new samples against the samples of a set that was built from features.

    The functions, their columns and their bandwidths are those of the set.

    Parameters
    ----------
    store
        The set, or where it is. Of a view such as ``K[train, train]``, the columns are the training samples.
    features
        Of the new samples, as in `build`: the same tables with the same columns; other tables are left out.
    path
        Where to write the rectangular set; by default nothing is written, and tiles are computed whenever a pass needs
        them.
    samples, labels, tasks
        Of the new samples, as in `dmkl.create`.
    present, join, missing
        As in `build`; means are those over the training samples that have the source.
    overwrite
        Replace a finished set.

    Returns
    -------
    KernelSet
        (kernels, new samples, training samples).

    Raises
    ------
    InputError
        If the set was not built from features, or a table or a column is missing, renamed or in another place.
    """
    K = store if isinstance(store, KernelSet) else stores.open(store)
    training = training_features(K)
    absent = [name for name in K.names if name not in training.recipes]
    if absent:
        msg = f"kernel {absent[0]!r} was not computed from features; leave it out with select(), or import its kernel"
        raise InputError(msg)
    given = given_data(labels=labels, tasks=tasks)
    source, known = cross_tiles(training.select(K.names), features, samples, present, join, missing, given)
    known = Labels(known.samples, K.train_samples, known.labels, known.tasks)
    n_rows, n_cols = len(source.samples), len(source.train_samples)
    nodes = known.checked(n_rows, n_cols, rectangular=True)
    if path is None:
        return computed_set(source, nodes)
    header = Header(n_rows, n_cols, source.dtype.name, source.tiling.tile, symmetric=False, full=False)
    with claim_place(path):
        writer = StoreWriter(path, header, len(source.names), overwrite=overwrite)
        try:
            write_kernels(source, writer, provenances(source))
        except (InputError, MemoryBudgetError):
            writer.abandon()
            raise
        return stores.open(writer.finish(source.names, nodes))


def cross_tiles(
    training: TrainingFeatures,
    features: Any,
    samples: Sequence[Any] | Array | None,
    present: Mapping[str, npt.ArrayLike] | None,
    join: Join,
    missing: Missing | None,
    given: Sequence[SideData] = (),
) -> tuple[FeatureTiles, Labels]:
    """Tiles of new samples against training samples, and the labels given or found beside the new features."""
    found = as_features(features, samples=samples, present=present, join=join, beside=given)
    needed = {recipe.feature: recipe.function for recipe in training.recipes.values() if recipe.feature is not None}
    tables = {name: _same_columns(name, function, found.blocks, training) for name, function in needed.items()}
    scans = {name: scan(table, found.samples) for name, table in tables.items()}
    recipes = list(training.recipes.values())
    n_rows = next(iter(found.blocks.values())).shape[0]
    names = np.array([str(i) for i in range(n_rows)] if found.samples is None else found.samples, dtype=object)
    if found.samples is None and any(recipe.feature is None for recipe in recipes):
        msg = "random kernels are functions of the samples' names, and the new samples have none; give them (samples=)"
        raise InputError(msg)
    check_values(recipes, tables, scans, names)
    check_present({name: each.absent for name, each in scans.items()}, how_missing(missing, join))
    rows = Axis(names, at_hand(tables, scans))
    cols = Axis(training.samples, {name: table.reopened() for name, table in training.tables.items()})
    tile = min(training.tile, max(n_rows, len(training.samples)))
    source = FeatureTiles(recipes, rows, cols, training.dtype, tile)
    labels = Labels(names, None, found.labels.labels, found.labels.tasks)
    absent = {name: each.absent for name, each in scans.items()}
    lacking = {name: _absent(table) for name, table in training.tables.items()}
    having = {name: np.flatnonzero(~mask) for name, mask in lacking.items()}
    return filled(source, absent, lacking, having), labels


def _same_columns(
    name: str, function: str, given: Mapping[str, FeatureMatrix], training: TrainingFeatures
) -> FeatureMatrix:
    """The new table of this name, checked to have the same columns as in training."""
    if name not in given:
        msg = (
            f"kernels of the training samples were computed from {name!r}, which the new features lack; they have "
            f"{', '.join(map(repr, given)) or 'none'}. Give it under that name"
        )
        raise InputError(msg)
    if function == "precomputed":
        msg = (
            f"kernels of the training samples were taken from {name!r} as they stood, so those of new samples cannot "
            "be computed; give their kernels against the training samples as a rectangular set"
        )
        raise InputError(msg)
    new, table = given[name], training.tables.get(name)
    if table is None and function != "distance":
        msg = f"the features {name!r} of the training samples are not there any more; build their kernels again"
        raise StoreError(msg)
    if table is None:
        new = against(new, list(training.samples))
        if new.shape[1] != len(training.samples):
            msg = (
                f"{name!r} has {new.shape[1]:,} columns, expected the distances to the {len(training.samples):,} "
                "training samples in their order"
            )
            raise InputError(msg)
        return new
    if new.shape[1] != table.shape[1]:
        msg = f"{name!r} has {new.shape[1]:,} columns, and had {table.shape[1]:,} in training"
        raise InputError(msg)
    if new.columns is not None and table.columns is not None and new.columns != table.columns:
        place = next(k for k, (a, b) in enumerate(zip(new.columns, table.columns, strict=True)) if a != b)
        same = "; they are the same in another order" if sorted(new.columns) == sorted(table.columns) else ""
        msg = (
            f"{name!r} has other columns than in training: column {place} is {new.columns[place]!r} and was "
            f"{table.columns[place]!r}{same}"
        )
        raise InputError(msg)
    return new


def _absent(table: FeatureTable) -> Mask:
    if not table.n_missing:
        return np.zeros(table.shape[0], dtype=bool)
    return np.isnan(table.read(slice(0, table.shape[0]), slice(0, 1))[:, 0])
