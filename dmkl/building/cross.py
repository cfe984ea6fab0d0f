"""Kernels of new samples against training samples, from features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from dmkl import stores
from dmkl.arrays import Array, Index
from dmkl.building.build import (
    Missing,
    check_missing,
    check_present,
    check_values,
    computed_set,
    copy_tables,
    provenances,
)
from dmkl.errors import FeatureWarning, StoreError, first_names, refuse, warn
from dmkl.features.approximation import table_in_memory, tables_of_new
from dmkl.features.specs import Recipe
from dmkl.features.stored import recipes_of
from dmkl.features.tasks import fill_absent, write_kernels
from dmkl.features.tiles import FeatureTiles, SampleAxis
from dmkl.features.transforms import Transform
from dmkl.inputs.columns import counts
from dmkl.inputs.features import FeatureMatrix, Features, against, as_features
from dmkl.inputs.label_tables import given_data
from dmkl.inputs.labels import Labels, SideData
from dmkl.inputs.matrices import Lazy
from dmkl.inputs.names import Join, listed_names
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

MissingFeatures = Literal["refuse", "zero", "mean"]
_PART = 1024
"""Columns whose means are computed together."""


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
        used = {name for recipe in recipes.values() for name in recipe.tables}
        tables = {name: table for name, table in self.tables.items() if name in used}
        return TrainingFeatures(recipes, tables, self.samples, self.dtype, self.tile)

    def exact(self) -> TrainingFeatures:
        """The kernels that those of low rank approximate; the tables of these have one row, the mean in training."""
        tables = dict(self.tables)
        for recipe in self.recipes.values():
            if recipe.exact is not recipe:
                if not self.tables.keys() >= set(recipe.tables):
                    msg = f"the landmarks of kernel {recipe.name!r}, or what maps to them, are missing; build it again"
                    raise StoreError(msg)
                points = self.tables[recipe.made["approximation"]["points"]]
                name, center = str(recipe.exact.feature), points.center
                tables.setdefault(name, table_in_memory(name, center[None], points.columns, center))
        return replace(self, recipes={name: recipe.exact for name, recipe in self.recipes.items()}, tables=tables)

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
            recipes_of(attributes["recipes"]), tables, samples, np.dtype(attributes["dtype"]), int(attributes["tile"])
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
        recipes = recipes_of(source.provenance)
        tables = read_tables(source.location) if recipes else {}
    else:
        recipes, tables = {}, {}
    if not recipes:
        refuse(
            "these kernels were not computed from features by dmkl.build (dmkl build), so kernels of new samples "
            "cannot be computed; give their kernels against the training samples as a rectangular set"
        )
    # Distances have no table: new samples come with their distances to the columns.
    of_samples = {str(recipe.feature) for recipe in recipes.values() if STATISTIC[recipe.function] != "given"}
    used = of_samples.union(*(recipe.tables[1:] for recipe in recipes.values()))
    tables = {name: table for name, table in tables.items() if name in used}
    at = K.view.final_positions()[axis]
    samples = (K.samples, K.train_samples)[axis]
    if len(at) != len((source.samples, source.train_samples)[axis]) or not np.array_equal(at, np.arange(len(at))):
        tables |= {name: TableOfRows.of(tables[name], at) for name in of_samples & set(tables)}
    return TrainingFeatures(recipes, tables, samples, source.dtype, source.tiling.tile)


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
    missing_features: MissingFeatures = "refuse",
    overwrite: bool = False,
) -> KernelSet:
    """Kernels of new samples against the samples of a set that was built from features.

    The functions, their columns and their bandwidths are those of the set. Columns are matched by name, in any order,
    if both tables name them; otherwise by position, and both have equally many.

    Parameters
    ----------
    store
        The set, or its location. The columns of a view such as ``K[train, train]`` are the training samples.
    features
        Features of the new samples, as in `build`: the same tables, with the columns that kernels of the set use. Other
        tables and other named columns are ignored. A table is matched by its name, or by its place in a file: ``X`` for
        ``cells/X``; a single text or Parquet file by the names of its columns.
    path
        Where to write the rectangular set; by default nothing is written, and tiles are computed whenever a pass needs
        them.
    samples, labels, tasks
        Those of the new samples, as in `dmkl.create`.
    present, join, missing
        As in `build`; means are taken over the training samples that have the table.
    missing_features
        Named columns that kernels use and the new table lacks: "refuse" them, or fill in 0 ("zero") or the mean over
        the training samples that have the table ("mean").
    overwrite
        Replace a finished set.

    Returns
    -------
    KernelSet
        (kernels, new samples, training samples).

    Raises
    ------
    InputError
        If the set was not built from features, a table or a column that kernels use is missing, names of these columns
        repeat, or tables without names of columns have other numbers of columns.

    Warns
    -----
    FeatureWarning
        If columns are filled in, if they are matched by position because one table has no names, or if a table is
        matched that has another name.
    """
    K = store if isinstance(store, KernelSet) else stores.open(store)
    training = training_features(K)
    absent = [name for name in K.names if name not in training.recipes]
    if absent:
        refuse(f"kernel {absent[0]!r} was not computed from features; leave it out with select(), or import its kernel")
    labels_ = given_data(labels=labels, tasks=tasks)
    source, given = cross_tiles(
        training.select(K.names), features, samples, present, join, missing, missing_features, labels_
    )
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
    missing_features: MissingFeatures = "refuse",
    labels: Sequence[SideData] = (),
) -> tuple[FeatureTiles, Labels]:
    """Tiles of new samples against training samples, and labels as given or from the files of features."""
    if missing_features not in get_args(MissingFeatures):
        refuse(f"missing_features must be 'refuse', 'zero' or 'mean', got {missing_features!r}")
    given = as_features(features, samples=samples, present=present, join=join, beside=labels)
    exact, recipes = training.exact(), list(training.recipes.values())
    needed = {recipe.feature: recipe.function for recipe in exact.recipes.values() if recipe.feature is not None}
    tables = {name: _new_table(name, function, given, exact, missing_features) for name, function in needed.items()}
    scans = {name: scan(table, given.samples) for name, table in tables.items()}
    n_rows = next(iter(given.blocks.values())).shape[0]
    names = np.array([str(i) for i in range(n_rows)] if given.samples is None else given.samples, dtype=object)
    if given.samples is None and any(recipe.feature is None for recipe in recipes):
        refuse(
            "random kernels are functions of the samples' names, and the new samples have none; give them (samples=)"
        )
    check_values(list(exact.recipes.values()), tables, scans, names)
    absent = {name: scanned.absent for name, scanned in scans.items()}
    absent |= {
        str(recipe.feature): absent[str(recipe.exact.feature)] for recipe in recipes if recipe.exact is not recipe
    }
    check_present(absent, check_missing(missing, join))
    rows = SampleAxis(names, copy_tables(tables, scans))
    cols = SampleAxis(training.samples, {name: table.reopen() for name, table in training.tables.items()})
    tile = min(training.tile, max(n_rows, len(training.samples)))
    factors = tables_of_new(recipes, rows, cols.tables, training.dtype, tile)
    rows = SampleAxis(names, {**rows.tables, **factors})
    source = FeatureTiles(recipes, rows, cols, training.dtype, tile)
    train_absent = {
        name: np.isnan(table.read(slice(0, table.shape[0]), slice(0, 1))[:, 0])
        if table.n_missing
        else np.zeros(table.shape[0], dtype=bool)
        for name, table in training.tables.items()
    }
    present_train = {name: np.flatnonzero(~mask) for name, mask in train_absent.items()}
    given_labels = Labels(names, None, given.labels.labels, given.labels.tasks)
    return fill_absent(source, absent, train_absent, present_train), given_labels


def _new_table(
    name: str,
    function: str,
    given: Features,
    training: TrainingFeatures,
    missing_features: MissingFeatures,
) -> FeatureMatrix:
    """The new table for a table of training, with its columns where training had them."""
    if function == "precomputed":
        refuse(
            f"kernels of the training samples were given as {name!r}, so kernels of new samples cannot be computed; "
            "give their kernels against the training samples as a rectangular set"
        )
    table, recipes = training.tables.get(name), [r for r in training.recipes.values() if r.feature == name]
    if table is not None:
        transform = Transform.of(recipes[0], training.tables)
        whole = "size-factor" in dict(transform.steps) or any(recipe.columns is None for recipe in recipes)
        used = np.unique(np.arange(table.shape[1]) if whole else np.concatenate([r.columns for r in recipes]))
        wanted = () if table.columns is None else tuple(table.columns[k] for k in used)
        new = _find(str(recipes[0].source), wanted, given.blocks, training)
        return _by_columns(new, table, used, recipes, missing_features, transform, given.samples)
    if function != "distance":
        msg = f"the features {name!r} of the training samples are missing; build their kernels again"
        raise StoreError(msg)
    new = against(_find(name, (), given.blocks, training), list(training.samples))
    if new.shape[1] != len(training.samples):
        refuse(
            f"{name!r} has {new.shape[1]:,} columns, expected the distances to the {len(training.samples):,} "
            "training samples in their order"
        )
    return new


def _find(
    name: str, wanted: tuple[str, ...], given: Mapping[str, FeatureMatrix], training: TrainingFeatures
) -> FeatureMatrix:
    """The new table for a table of training, of which kernels use the `wanted` columns, if these have names."""
    if name in given:
        return given[name]
    # A name depends on what else is in the file, and on the other files: X_pca, obsm/X_pca, cells/obsm/X_pca.
    place = name.rpartition("/")[2]
    sources = {str(recipe.source) for recipe in training.recipes.values()}
    rivals = [old for old in sources if old.rpartition("/")[2] == place]
    same = [
        key
        for key, new in given.items()
        if f"/{key}".endswith(f"/{name}")
        or f"/{name}".endswith(f"/{key}")
        or (wanted and new.columns and key.rpartition("/")[2] == place)
    ]
    if wanted and len(given) == 1:  # a text file gives its table its own name
        same = same or [key for key, new in given.items() if new.is_table and set(wanted) <= set(new.columns or ())]
    if len(same) != 1 or len(rivals) > 1 or same[0] in sources:
        refuse(
            f"kernels of the training samples were computed from {name!r}, which the new features lack; they have "
            f"{', '.join(map(repr, given)) or 'none'}. Give it under that name; a table has the "
            "name of its file if there are several"
        )
    warn(f"features {same[0]!r} are taken for {name!r} of training", FeatureWarning)
    return replace(given[same[0]], name=name)


def _by_columns(
    new: FeatureMatrix,
    table: FeatureTable,
    used: Index,
    recipes: Sequence[Recipe],
    missing_features: MissingFeatures,
    transform: Transform,
    samples: Sequence[str] | None,
) -> FeatureMatrix:
    """The new table, transformed, with the used columns at their positions in training; the others are 0."""
    what, width = f"features {new.name!r}", table.shape[1]
    names, old = new.columns, table.columns
    wanted, at = [] if old is None else [old[k] for k in used], used
    if names is None or old is None or (counts(names) and counts(old)):
        if new.shape[1] != width:
            refuse(
                f"{what} have {new.shape[1]:,} columns, and had {width:,} in training; columns without names are "
                "matched by position, so give the same, or names in both (a data frame, a line of titles)"
            )
        if (names is None or counts(names)) != (old is None or counts(old)):
            nameless = "the new table has no names of columns" if old is not None else "training had no names"
            warn(f"columns of {what} are matched by position, since {nameless}", FeatureWarning)
    elif names != old:
        times = Counter(names) | Counter(old)  # the larger count
        twice = [name for name in dict.fromkeys(wanted) if times[name] > 1]
        if twice:
            refuse(
                f"{what}: names of columns must be unique, here and in training, but these repeat: {first_names(twice)}"
            )
        places = {name: k for k, name in enumerate(names)}
        at = np.array([places.get(name, -1) for name in wanted])
        if (at < 0).all():
            refuse(
                f"{what} have none of the {len(wanted):,} columns that kernels use: their names begin with "
                f"{listed_names(names)}, and in training with {listed_names(wanted)}; use the same names"
            )
    present, lacking, lost = used[at >= 0], used[at < 0], [wanted[k] for k in np.flatnonzero(at < 0)]
    at, fill = at[at >= 0], np.zeros(len(lacking))
    if len(lacking):
        whole = "size-factor" in dict(transform.steps)
        kernels = [r.name for r in recipes if whole or r.columns is None or not set(lacking).isdisjoint(r.columns)]
        count = f"{len(lacking):,} of the {len(used):,} columns of {new.name!r}"
        listed = f"{first_names(lost)}; used by {first_names(kernels)}"
        if missing_features == "refuse":
            refuse(
                f"the new features lack {count} that kernels use: {listed}. Give them, or fill in 0 or the mean in "
                "training by missing_features='zero' or 'mean' (--missing-features)"
            )
        if missing_features == "mean":
            rows, parts = slice(0, table.shape[0]), np.split(lacking, range(_PART, len(lacking), _PART))
            fill = np.concatenate([np.nanmean(table.read(rows, part), axis=0, dtype=np.float64) for part in parts])
        value = "0" if missing_features == "zero" else "their means in training"
        warn(f"{count} are missing and filled in by {value}: {listed}", FeatureWarning)
    if new.shape[1] == width and np.array_equal(at, np.arange(width)) and not transform.steps:
        return new

    def read(key: Any) -> Array:
        values = new.read(key[0])[:, at]
        result = np.zeros((len(values), width), dtype=values.dtype)
        result[:, present], absent = values, np.isnan(values).all(axis=1)  # samples that lack the table
        result[absent] = np.nan
        if transform.steps:
            transform(result, new.name, key[0].start or 0, samples, old)
        result[np.ix_(~absent, lacking)] = fill
        return result

    reordered = Lazy((new.shape[0], width), new.dtype, read)
    return FeatureMatrix(new.name, (new.shape[0], width), new.dtype, old, None, lambda: reordered, new.holds)
