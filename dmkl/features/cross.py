"""Kernels of new samples against training samples, from features."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dmkl import stores
from dmkl.arrays import Array, Mask
from dmkl.errors import StoreError, refuse
from dmkl.features.build import (
    Missing,
    check_missing,
    check_present,
    check_values,
    computed_set,
    copy_tables,
    provenances,
)
from dmkl.features.specs import Recipe
from dmkl.features.tasks import fill_absent, write_kernels
from dmkl.features.tiles import FeatureTiles, SampleAxis
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
from dmkl.store.format import Header
from dmkl.store.groups import Location
from dmkl.store.reader import StoreReader
from dmkl.store.saved import Saved
from dmkl.store.writer import writing_set

__all__ = ["TrainingFeatures", "build_cross", "cross_tiles", "row_features", "training_features"]


@dataclass(frozen=True)
class TrainingFeatures:
    """Recipes and features from which kernels of new samples against training samples are computed."""

    recipes: Mapping[str, Recipe]  # by the name of the kernel
    tables: Mapping[str, FeatureTable]  # the features of the training samples, by name
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
        """The recipes and settings that `load` needs in addition to the tables."""
        recipes = [{"name": recipe.name, **recipe.as_json()} for recipe in self.recipes.values()]
        return {"recipes": recipes, "dtype": self.dtype.name, "tile": self.tile}

    def save(self, root: Any) -> None:
        """Write the tables into a Zarr group."""
        for number, table in enumerate(self.tables.values()):
            # Tiles are computed with the center of the whole table, which is not the mean of these rows.
            scanned = replace(scan(table, self.samples), center=table.center)
            write_table(root, number, table, scanned, self.tile)

    @classmethod
    def load(cls, model: Saved, attributes: Mapping[str, Any], samples: Array) -> Self:
        """Load what `save` wrote into the group of a model; `attributes` is the result of `as_json`."""
        tables = read_tables(str(model.path), model.within)
        return cls(
            _recipes(attributes["recipes"]), tables, samples, np.dtype(attributes["dtype"]), int(attributes["tile"])
        )


def row_features(K: KernelSet) -> TrainingFeatures:
    """The features of the row samples of a set that was built from features; raises as `training_features`."""
    return _features(K, 0)


def training_features(K: KernelSet) -> TrainingFeatures:
    """The features of the column samples of a set that was built from features; InputError if it was not."""
    return _features(K, 1)


def _features(K: KernelSet, axis: int) -> TrainingFeatures:
    source = K.view.source
    while isinstance(source, HeldTiles | GeometricMean):
        source = source.origin if isinstance(source, HeldTiles) else source.source
    if K.view.is_transformed:
        refuse(
            "kernels of new samples are computed without steps, but this set was centered or normalized; let the model "
            "do that (steps=)"
        )
    if isinstance(source, FeatureTiles):
        recipes, tables = {recipe.name: recipe for recipe in source.recipes}, dict(source.axes[axis].tables)
    elif isinstance(source, StoreReader):
        recipes = _recipes(source.provenance)
        tables = read_tables(source.location) if recipes else {}
    else:
        recipes, tables = {}, {}
    if not recipes:
        refuse(
            "these kernels were not computed from features by dmkl.build (dmkl build), so kernels of new samples "
            "cannot be computed; give their kernels against the training samples as a rectangular set"
        )
    # Distances have no table: new samples come with their distances to the columns.
    used = {recipe.feature for recipe in recipes.values() if STATISTIC[recipe.function] != "given"}
    tables = {name: table for name, table in tables.items() if name in used}
    at = K.view.final_positions()[axis]
    samples = (K.samples, K.train_samples)[axis]
    if len(at) != len((source.samples, source.train_samples)[axis]) or not np.array_equal(at, np.arange(len(at))):
        tables = {name: TableOfRows.of(table, at) for name, table in tables.items()}
    return TrainingFeatures(recipes, tables, samples, source.dtype, source.tiling.tile)


_NO_RECIPE = ("name", "feature_content", "training_content", "identity", "n_missing")


def _recipes(entries: Iterable[Mapping[str, Any]]) -> dict[str, Recipe]:
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
        The set, or its location. The columns of a view such as ``K[train, train]`` are the training samples.
    features
        Features of the new samples, as in `build`: the same tables with the same columns; other tables are ignored.
    path
        Where to write the rectangular set; by default nothing is written, and tiles are computed whenever a pass needs
        them.
    samples, labels, tasks
        Those of the new samples, as in `dmkl.create`.
    present, join, missing
        As in `build`; means are taken over the training samples that have the table.
    overwrite
        Replace a finished set.

    Returns
    -------
    KernelSet
        (kernels, new samples, training samples).

    Raises
    ------
    InputError
        If the set was not built from features, or a table or a column is missing, renamed or at another position.
    """
    K = store if isinstance(store, KernelSet) else stores.open(store)
    training = training_features(K)
    absent = [name for name in K.names if name not in training.recipes]
    if absent:
        refuse(f"kernel {absent[0]!r} was not computed from features; leave it out with select(), or import its kernel")
    labels_ = given_data(labels=labels, tasks=tasks)
    source, given = cross_tiles(training.select(K.names), features, samples, present, join, missing, labels_)
    n_rows, n_cols = len(source.samples), len(source.train_samples)
    nodes = replace(given, train_samples=K.train_samples).checked(n_rows, n_cols, rectangular=True)
    if path is None:
        return computed_set(source, nodes)
    header = Header(n_rows, n_cols, source.dtype.name, source.tiling.tile, symmetric=False, full=False)
    with writing_set(path, header, len(source.names), overwrite=overwrite) as writer:
        write_kernels(source, writer, provenances(source))
        return stores.open(writer.finish(source.names, nodes))


def cross_tiles(
    training: TrainingFeatures,
    features: Any,
    samples: Sequence[Any] | Array | None,
    present: Mapping[str, npt.ArrayLike] | None,
    join: Join,
    missing: Missing | None,
    labels: Sequence[SideData] = (),
) -> tuple[FeatureTiles, Labels]:
    """Tiles of new samples against training samples, and labels as given or from the files of features."""
    given = as_features(features, samples=samples, present=present, join=join, beside=labels)
    needed = {recipe.feature: recipe.function for recipe in training.recipes.values() if recipe.feature is not None}
    tables = {name: _check_columns(name, function, given.blocks, training) for name, function in needed.items()}
    scans = {name: scan(table, given.samples) for name, table in tables.items()}
    recipes = list(training.recipes.values())
    n_rows = next(iter(given.blocks.values())).shape[0]
    names = np.array([str(i) for i in range(n_rows)] if given.samples is None else given.samples, dtype=object)
    if given.samples is None and any(recipe.feature is None for recipe in recipes):
        refuse(
            "random kernels are functions of the samples' names, and the new samples have none; give them (samples=)"
        )
    check_values(recipes, tables, scans, names)
    absent = {name: scanned.absent for name, scanned in scans.items()}
    check_present(absent, check_missing(missing, join))
    rows = SampleAxis(names, copy_tables(tables, scans))
    cols = SampleAxis(training.samples, {name: table.reopen() for name, table in training.tables.items()})
    tile = min(training.tile, max(n_rows, len(training.samples)))
    source = FeatureTiles(recipes, rows, cols, training.dtype, tile)
    train_absent = {name: _absent(table) for name, table in training.tables.items()}
    present_train = {name: np.flatnonzero(~mask) for name, mask in train_absent.items()}
    given_labels = Labels(names, None, given.labels.labels, given.labels.tasks)
    return fill_absent(source, absent, train_absent, present_train), given_labels


def _check_columns(
    name: str, function: str, given: Mapping[str, FeatureMatrix], training: TrainingFeatures
) -> FeatureMatrix:
    """The new table of this name, checked to have the same columns as in training."""
    if name not in given:
        refuse(
            f"kernels of the training samples were computed from {name!r}, which the new features lack; they have "
            f"{', '.join(map(repr, given)) or 'none'}. Give it under that name"
        )
    if function == "precomputed":
        refuse(
            f"kernels of the training samples were given as {name!r}, so kernels of new samples cannot be computed; "
            "give their kernels against the training samples as a rectangular set"
        )
    new, table = given[name], training.tables.get(name)
    if table is None and function != "distance":
        msg = f"the features {name!r} of the training samples are missing; build their kernels again"
        raise StoreError(msg)
    if table is None:
        new = against(new, list(training.samples))
        if new.shape[1] != len(training.samples):
            refuse(
                f"{name!r} has {new.shape[1]:,} columns, expected the distances to the {len(training.samples):,} "
                "training samples in their order"
            )
        return new
    if new.shape[1] != table.shape[1]:
        refuse(f"{name!r} has {new.shape[1]:,} columns, and had {table.shape[1]:,} in training")
    if new.columns is not None and table.columns is not None and new.columns != table.columns:
        place = next(k for k, (a, b) in enumerate(zip(new.columns, table.columns, strict=True)) if a != b)
        same = "; they are the same in another order" if sorted(new.columns) == sorted(table.columns) else ""
        refuse(
            f"{name!r} has other columns than in training: column {place} is {new.columns[place]!r} and was "
            f"{table.columns[place]!r}{same}"
        )
    return new


def _absent(table: FeatureTable) -> Mask:
    if not table.n_missing:
        return np.zeros(table.shape[0], dtype=bool)
    return np.isnan(table.read(slice(0, table.shape[0]), slice(0, 1))[:, 0])
