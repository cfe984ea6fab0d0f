"""Kernel sets from features: `dmkl.build` for all samples, `dmkl.build_cross` for new ones."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from dmkl import kernelset, settings
from dmkl.arrays import Array, Index, Lazy, note_of_code
from dmkl.errors import FeatureWarning, StoreError, damage, first_names, refuse, warn
from dmkl.features.approximation import approximate, tables_of_new
from dmkl.features.functions import WORDS
from dmkl.features.recipes import Recipe, single
from dmkl.features.stored import recipes_of
from dmkl.features.tasks import fill_absent, refuse_overflow, resolve_bandwidths, write_kernels
from dmkl.features.tiles import FACTORED, FeatureTiles, SampleAxis
from dmkl.features.transforms import Transform, transform_tables, warn_of_scale
from dmkl.inputs.columns import counts
from dmkl.inputs.features import FeatureMatrix, Features, as_features
from dmkl.inputs.kernels import as_source
from dmkl.inputs.label_tables import given_data, is_labelled_mask, matched
from dmkl.inputs.labels import Labels, SideData, labels_in
from dmkl.kernelset import KernelSet
from dmkl.names import Join, listed_names, places
from dmkl.numerics.determined import label_columns
from dmkl.numerics.functions import NONNEGATIVE, STATISTIC
from dmkl.numerics.semidefinite import Repair
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.composed import Composed, GeometricMean
from dmkl.passes.memory import HeldTiles
from dmkl.passes.view import View
from dmkl.store.features import (
    ArrayTable,
    FeatureTable,
    Scan,
    TableOfRows,
    read_tables,
    scan,
    strips,
    table_in_memory,
    write_table,
)
from dmkl.store.format import Header, check_dtype
from dmkl.store.ingest import ingest
from dmkl.store.reader import StoreReader
from dmkl.store.saved import Saved
from dmkl.store.writer import writing_set
from dmkl.store.zarr_groups import Location

Missing = Literal["refuse", "zero"]
Storage = Literal["auto", "factors", "tiles"]


@one_blas_thread
def build(
    path: Location | None,
    features: Any,
    specs: Any,
    *,
    train: npt.ArrayLike | None = None,
    samples: Sequence[Any] | Array | None = None,
    labels: Any = None,
    splits: Any = None,
    tasks: Sequence[Any] | Array | None = None,
    present: Mapping[str, npt.ArrayLike] | None = None,
    join: Join = "exact",
    missing: Missing | None = None,
    transpose: bool = False,
    repair: Repair | None = None,
    storage: Storage = "auto",
    tile: int | None = None,
    dtype: npt.DTypeLike | None = None,
    overwrite: bool = False,
) -> KernelSet:
    """Compute kernels from features, a tile at a time in Dask tasks, and store them as a kernel set.

    After an interruption the same call continues: complete kernels and complete tiles are kept. The features are stored
    with the kernels: `build_cross` and fitted models compute kernels of new samples from them.

    Parameters
    ----------
    path
        Where to write: a folder, a URL or a Zarr store. None writes nothing: the set computes its tiles whenever a pass
        needs them (`KernelSet.persist` keeps them in memory).
    features
        Tables (samples, columns) by name: a mapping, one array or DataFrame, an xarray Dataset, or files: ``.npz``,
        ``.npy``, HDF5, Zarr, MATLAB (every two-dimensional variable is a table), CSV and Parquet (a table a file).
    specs
        The kernels: a mapping or a list of mappings with `function`, `feature` and the function's parameters, or a TOML
        file with a table ``[[kernel]]`` for each. `dmkl.features.functions.FUNCTIONS` lists the functions. A list of
        values for a parameter is a grid, a pattern such as ``"*"`` for the feature means all that match, `columns`
        takes some columns, or one kernel for each entry of a mapping from names to columns, such as a ``.gmt`` file of
        gene sets.
        The key `transform` transforms counts or genotypes, or imputes missing values (`dmkl.features.transforms`).
        ``{"function": "product", "of": ["G", "E"]}`` multiplies kernels of other mappings, or of tables with a single
        kernel, entry by entry; its tiles are computed when they are read, unless storage="tiles". A function may also
        be one of your own, from rows X (n, d) and Y (m, d) to (n, m), as `pairwise_kernels` of scikit-learn takes it.
        The key `rank` keeps a kernel as a factor Z of so many columns, K ≈ ZZᵀ, or with "auto" as one of as few as
        keep 99 % of its trace (`dmkl.features.approximation`). The set stores Z instead of the features, and its
        provenance what is lost.
    train
        The training samples, positions or mask: bandwidths are multiples of mean distances between them, landmarks are
        some of them, and transforms learn from them. By default the training part of the first split, or all samples.
    samples, labels, splits, tasks
        As in `dmkl.create`; by default those that the files hold. Rows of tables with names are matched by these.
    present
        For each table, a mask of the samples that it has; rows of NaN are absent in any case.
    join
        "exact": all tables, labels and splits with names have the same samples, in any order. "inner": keep the samples
        that all have. "outer": keep the samples that any table has.
    missing
        "refuse" samples that lack a table, or, with "zero", give them the mean of the training samples that have it, in
        the kernel's feature space. In a kernel centered over the training samples their row is zero: such a sample is
        predicted from its other tables. By default "zero" if join="outer", else "refuse".
    transpose
        Columns of the tables are samples, and rows are features.
    repair
        "clip", "flip" or "shift" negative eigenvalues of each kernel; only for kernels of given distances, since
        kernels of features are positive semidefinite, and kernels of new samples could not be repaired in the same way.
    storage
        How kernels with a rank, and linear and cosine kernels of features that all samples have, are stored: as
        "tiles", or as "factors", which are their features alone. Passes multiply by these, and compute a tile where one
        is needed. Other kernels are stored as tiles. "auto" takes factors for kernels with a rank; for others if all
        kernels can be kept as factors, and each of these has fewer columns than half the samples.
    tile, dtype, overwrite
        As in `dmkl.create`; the default precision is that of the features. If all kernels are kept as factors,
        "float16" rounds the features (the Z of kernels with a rank), and their kernels are computed in float32.

    Returns
    -------
    KernelSet
        The stored set, opened; or the computed one.

    Raises
    ------
    InputError
        If features, specs or labels do not fit, a value is not finite or overflows float16, no kernel can be kept as
        factors with storage="factors", or a kernel would be computed from a column that equals the labels up to
        renaming. `path` is unchanged.
    StoreExistsError
        If there is a finished set at `path` and `overwrite` was not given.
    MemoryBudgetError
        If a task would take more than its share of memory.
    DiskFullError
        If the disk is full; the same call continues from there.

    Warns
    -----
    ApproximationWarning
        If an approximation lacks more than 10 % of the trace of its kernel (Fourier features: of its norm).
    FeatureWarning
        If sets of columns have members that are no columns, or are left out, or if most values that `transform` takes
        as counts are not whole numbers.
    """
    missing = check_missing(missing, join)
    more = given_data(labels=labels, splits=splits, tasks=tasks)
    given = as_features(features, samples=samples, present=present, join=join, side_data=more, transpose=transpose)
    from dmkl.features.specs import plan, read_specs  # pydantic, which models of given kernels do without

    wanted, notes = plan(read_specs(specs), given.blocks)
    for note in notes:
        warn(note, FeatureWarning)
    n_samples = next(iter(given.blocks.values())).shape[0]
    named = replace(given.labels, samples=given.samples)
    nodes = named.checked(n_samples, n_samples, rectangular=False)
    if is_labelled_mask(train) and nodes["sample"] is not None:
        train = matched("train", train, nodes["sample"], named=given.samples is not None).values
    rows = _training_rows(train, nodes["split"], n_samples)
    planned, blocks, learned = transform_tables(single(wanted), given.blocks, given.samples, rows)
    used = {recipe.feature for recipe in planned if recipe.feature is not None}
    square = {recipe.feature for recipe in planned if recipe.feature and STATISTIC[recipe.function] == "given"}
    tables = {
        name: _against(table, given.samples) if name in square else table
        for name, table in blocks.items()
        if name in used
    }
    half = dtype is not None and np.dtype(dtype) == np.float16 and path is not None and storage != "tiles"
    if half and all(recipe.function in FACTORED or "rank" in recipe.parameters for recipe in planned):
        own = {str(recipe.feature) for recipe in planned if "rank" not in recipe.parameters}
        tables |= {name: replace(tables[name], dtype=np.dtype(np.float16)) for name in own & set(tables)}
    labels_ = labels_in(nodes)
    watching = {name: label_columns(labels_, table.shape[1]) for name, table in tables.items()}
    with ThreadPoolExecutor(settings.available_cores()) as pool:
        scanned = pool.map(lambda name: scan(tables[name], given.samples, watching[name]), tables)
        scans = dict(zip(tables, scanned, strict=True))
    check_values(planned, scans, given.samples)
    for name, table in tables.items():
        column = scans[name].lowest[2]
        if not f"{scans[name].lowest[0]:.0f}".strip("-9"):  # as codes of missing values are written: -999
            values = np.concatenate([table.read(strip)[:, column] for strip in strips(table)])
            title = column if table.columns is None else repr(table.columns[column])
            if note := note_of_code(f"features {name!r}, column {title}", values):
                warn(note, FeatureWarning)
        _refuse_labels(planned, table, {int(k) for columns in watching[name] for k in columns.result()})
    check_present(scans, missing)
    _check_recipes(planned, square, scans, len(rows), repair)
    kept = _kept(planned, scans, storage)
    unwritten = kept + [k for k, recipe in enumerate(wanted) if recipe.factors and storage != "tiles"]
    # There are no tables if all kernels are random.
    widest = np.result_type(np.float32, *(table.dtype for table in tables.values()))
    half &= len(kept) == len(planned)
    stored = check_dtype(np.float32 if half else widest if dtype is None else dtype)
    header = Header(n_samples, n_samples, stored.name, settings.tile_size(n_samples, tile), symmetric=True, full=False)
    samples_ = nodes["sample"]
    assert samples_ is not None
    if path is None or repair is not None:
        copies = copy_tables(scans)
        source = _source(wanted, planned, copies, learned, samples_, rows, header, stored)
        computed = computed_set(source, nodes)
        if repair is None:
            return computed
        kernels = as_source(computed.to_dask(), computed.names)
        written = ingest(path, kernels, named, tile=tile, dtype=stored, repair=repair, overwrite=overwrite)
        return kernelset.set_of(written)
    with writing_set(path, header, len(wanted), kept=len(unwritten), overwrite=overwrite) as writer:
        stored_tables = {name: writer.add_features(scanned) for name, scanned in scans.items()}

        def keep(table: FeatureTable) -> FeatureTable:
            scans[table.name] = replace(scan(table, None), center=table.center)
            return writer.add_features(scans[table.name])

        factor_dtype = np.dtype(np.float16) if half else stored
        source = _source(wanted, planned, stored_tables, learned, samples_, rows, header, factor_dtype, keep)
        _check_norms(source, kept, scans)
        records = provenances(source, rows)
        for k in unwritten:
            records[k]["storage"] = "factors"
        writer.keep_factors({k: records[k] for k in unwritten})
        write_kernels(source, writer, records)
        writer.forget_features(square | used.difference(source.axes[0].tables))
        return kernelset.open(writer.finish(source.names, nodes))


def _kept(planned: Sequence[Recipe], scans: Mapping[str, Scan], storage: Storage) -> list[int]:
    """Positions of the kernels that are kept as factors."""
    if storage not in ("auto", "factors", "tiles"):
        refuse(f"storage must be 'auto', 'factors' or 'tiles', got {storage!r}")
    why_not, thin = [], True
    for recipe in planned:
        if "rank" in recipe.parameters or recipe.function not in FACTORED:
            why_not.append("" if "rank" in recipe.parameters else f"its function is {recipe.function}")
            continue
        scanned = scans[str(recipe.feature)]
        m, width = scanned.table.shape
        thin &= 2 * (width if recipe.columns is None else len(recipe.columns)) < m
        why_not.append(f"samples lack {recipe.feature!r}" if scanned.absent.any() else "")
    if storage == "tiles" or (storage == "auto" and (any(why_not) or not thin)):
        return [k for k, recipe in enumerate(planned) if storage == "auto" and "rank" in recipe.parameters]
    if all(why_not):
        rule = "storage='factors' is for linear and cosine kernels of features that all samples have"
        refuse(f"{rule}, and here is none: of the first, {planned[0].name!r}, {why_not[0]}; leave storage out")
    return [k for k, reason in enumerate(why_not) if not reason]


def _check_norms(source: FeatureTiles, kept: Sequence[int], scans: Mapping[str, Scan]) -> None:
    """Refuse factors whose products overflow: the largest are the squared norms of the samples."""
    most = float(np.finfo(source.dtype).max)
    for k in kept:
        recipe, axis = source.recipes[k], source.axes[0]
        table = axis.tables[str(recipe.feature)]
        if max(-scans[table.name].lowest[0], scans[table.name].highest) <= np.sqrt(most / table.shape[1]):
            continue
        linear = FeatureTiles([replace(recipe, function="linear")], axis, None, np.float64, source.tiling.tile)
        squares = linear.diagonal(np.arange(1))
        if squares.max() > most:
            row = int(squares.argmax())
            refuse_overflow(source, k, row, row)


def _check_recipes(
    planned: Sequence[Recipe], square: Collection[str], scans: Mapping[str, Scan], n_train: int, repair: Repair | None
) -> None:
    """Check the ranks of approximations, and the use of matrices of distances and of given kernels."""
    for recipe in planned:
        rank = recipe.parameters.get("rank")
        lacks = recipe.feature is not None and scans[recipe.feature].absent.any()
        if rank is not None and (1 if rank == "auto" else rank) > n_train:
            refuse(f"kernel {recipe.name!r}: rank must be at most the {n_train:,} training samples, got {rank}")
        if rank is not None and lacks:
            refuse(f"kernel {recipe.name!r} has a rank, but samples lack {recipe.feature!r}; leave rank or these out")
        if STATISTIC[recipe.function] == "given":
            if lacks:
                refuse(f"the {WORDS[recipe.function]} {recipe.feature!r} lack samples; leave those out (join='inner')")
        elif recipe.feature in square:
            what = f"{recipe.feature!r} is taken as a matrix of distances or as a kernel and, by kernel {recipe.name!r}"
            refuse(f"{what}, as a table of features; name the features of each spec (feature=)")
        elif repair is not None:
            what = f"{recipe.name!r} is computed from features, whose kernels are positive semidefinite"
            refuse(f"repair is for kernels of given distances, and {what}; leave repair out, or build the others alone")


def _refuse_labels(planned: Sequence[Recipe], table: FeatureMatrix, columns: Collection[int]) -> None:
    """Refuse kernels of columns that are the labels under another name: their scores would mean nothing."""
    for recipe in planned:
        seen = columns if recipe.columns is None else set(recipe.columns) & set(columns)
        if recipe.feature == table.name and seen:
            first = min(seen)
            name = repr(table.columns[first]) if table.columns is not None else f"number {first}"
            which = "they are" if len(seen) == table.shape[1] else f"column {name} is"
            refuse(
                f"kernel {recipe.name!r} would be computed from the labels: of features {table.name!r}, {which} equal "
                "to the labels up to renaming. Leave that out: name the intended features (feature=, --feature), or "
                "their columns (columns=). If it is intended, build without labels, and give them to `fit` (y)"
            )


def check_missing(missing: Missing | None, join: Join) -> Missing:
    """Check the parameter `missing`, and fill in its default."""
    if missing not in (None, "refuse", "zero"):
        refuse(f"missing must be 'refuse' or 'zero', got {missing!r}")
    return missing or ("zero" if join == "outer" else "refuse")


def computed_set(source: FeatureTiles, nodes: Mapping[str, Array | None]) -> KernelSet:
    """A kernel set that computes its tiles whenever a pass needs them."""
    view, recipes = View.of(source), [{"name": r.name, **r.as_json()} for r in source.recipes]
    return KernelSet(view, labels=labels_in(nodes), tasks=nodes["task"], splits=nodes["split"], provenance=recipes)


def _training_rows(train: npt.ArrayLike | None, splits: Array | None, n_samples: int) -> Index:
    if train is None:
        return np.arange(n_samples) if splits is None else np.flatnonzero(splits[0] == 0)
    rows = np.asarray(train)
    if rows.dtype == bool and rows.shape == (n_samples,):
        return np.flatnonzero(rows)
    inside = rows.ndim == 1 and rows.dtype.kind in "iu" and len(rows) and 0 <= rows.min() <= rows.max() < n_samples
    if not inside or len(np.unique(rows)) != len(rows):
        rule = f"train must be different positions among the {n_samples} samples, or a mask of them"
        refuse(f"{rule}, got {train!r:.100}")
    return np.sort(rows.astype(np.int64))


def check_values(recipes: Iterable[Recipe], scans: Mapping[str, Scan], samples: Sequence[str] | Array | None) -> None:
    """Refuse negative values for functions of histograms."""
    for recipe in recipes:
        if recipe.feature is None or STATISTIC[recipe.function] not in NONNEGATIVE:
            continue
        lowest, row, column = scans[recipe.feature].lowest
        if lowest < 0:
            names = scans[recipe.feature].table.columns
            sample = int(row) if samples is None else str(samples[row])
            refuse(
                f"{recipe.function} is for histograms, with no negative values, but {recipe.feature!r} has {lowest:g} "
                f"at sample {sample!r}, column {column if names is None else names[column]!r}; take another "
                "function, or shift or clip the features"
            )


def check_present(scans: Mapping[str, Scan], missing: Missing) -> None:
    """Refuse samples that lack a feature table, unless `missing` says otherwise."""
    absent = {name: scanned.absent for name, scanned in scans.items() if scanned.absent.any()}
    if absent and missing == "refuse":
        listed = ", ".join(f"{name!r} is missing for {mask.sum():,} of {len(mask):,}" for name, mask in absent.items())
        zeros = "give them a row of zeros in the centered kernels of that source"
        refuse(f"samples lack features: {listed}. Drop or impute them, or let missing='zero' (--missing zero) {zeros}")


def copy_tables(scans: Mapping[str, Scan]) -> dict[str, FeatureTable]:
    """Copies of the tables in memory, for kernels that are computed on demand: the caller may change its arrays."""
    values = {name: np.array(each.table.read(slice(0, len(each.absent)))) for name, each in scans.items()}
    return {name: ArrayTable.of(name, values[name], scanned) for name, scanned in scans.items()}


def _source(
    wanted: Sequence[Recipe],
    planned: Sequence[Recipe],
    tables: Mapping[str, FeatureTable],
    learned: Sequence[FeatureTable],
    samples: Array,
    train: Index,
    header: Header,
    factor_dtype: np.dtype[Any],
    keep: Callable[[FeatureTable], FeatureTable] = lambda table: table,
) -> FeatureTiles:
    axis = SampleAxis(samples, tables)
    recipes = resolve_bandwidths(planned, axis, train, header.dtype, header.tile)
    recipes, needed = approximate(recipes, axis, train, factor_dtype, header.tile, keep)
    needed |= {table.name: keep(table) for table in learned}
    of_name = {recipe.name: recipe for recipe in recipes}
    recipes = [recipe.of_parts(of_name) for recipe in wanted]
    return fill_absent(FeatureTiles(recipes, SampleAxis(samples, needed), None, header.dtype, header.tile), train)


def provenances(source: FeatureTiles, train: Index | None = None) -> list[dict[str, Any]]:
    """Provenance of each kernel for the store; `train` are the training rows of a symmetric set."""
    rows = None if train is None else hashlib.blake2b(train.astype("<i8").tobytes(), digest_size=16).hexdigest()
    axes = source.axes[: 1 if source.symmetric else 2]
    # Random kernels are functions of the samples' names.
    names = [hashlib.blake2b("\0".join(map(str, axis.samples)).encode(), digest_size=16).hexdigest() for axis in axes]
    records = []
    for recipe in source.recipes:
        # Distances to training samples have no table of the training samples.
        used = recipe.tables if recipe.factors else recipe.tables[:1]
        of_axes = [[axis.tables.get(name) for name in used] for axis in axes]
        contents = ["".join("" if t is None else t.content for t in tables) for tables in of_axes] if used else names
        identity: dict[str, Any] = {"recipe": source.identity(recipe), "content": contents}
        filled = [source.fills[part.name] for part in recipe.parts if part.name in source.fills]
        if filled:
            identity["means"] = rows or "columns"
        record = {"name": recipe.name, **recipe.as_json(), "identity": identity}
        if filled:
            record["n_missing"] = int(np.any([fill.rows_absent for fill in filled], axis=0).sum())
        if recipe.feature is not None:
            record["feature_content"] = contents[0]
        if rows is not None:
            record["training_content"] = rows
        records.append(record)
    return records


# --- kernels of new samples -------------------------------------------------------------------------------------------


MissingFeatures = Literal["refuse", "zero", "mean"]
_NO_NEW_SAMPLES = (
    "kernels of new samples cannot be computed; give their kernels against the training samples as a rectangular set"
)
_PART = 1024  # Columns whose means are computed together.


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

    def side_by_side(self) -> Array:
        """The tables that the kernels are of, side by side: (samples, columns)."""
        used = {recipe.feature for recipe in self.recipes.values()}
        tables = [table for name, table in self.tables.items() if name in used]
        return np.concatenate([t.read(slice(0, t.shape[0])).astype(np.float64) for t in tables], axis=1)

    def exact(self) -> TrainingFeatures:
        """The kernels that those of low rank approximate; the tables of these have one row, the mean in training."""
        tables = dict(self.tables)
        for recipe in single(self.recipes.values()):
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
            write_table(root, number, scanned, self.tile)

    @classmethod
    def load(cls, model: Saved, attributes: Mapping[str, Any], samples: Array) -> Self:
        """Load what `save` wrote into the group of a model; `attributes` is the result of `as_json`."""
        tables = read_tables(str(model.path), model.within)
        with damage(f"{model.place} is damaged", "fit and save it again"):
            recipes = recipes_of(attributes["recipes"])
        if len(recipes) < sum(entry.get("function") != "random" for entry in attributes["recipes"]):
            refuse("it has several recipes of one kernel, or one without a function")
        of_samples = [recipe for recipe in single(recipes.values()) if STATISTIC[recipe.function] != "given"]
        if lacking := {name for recipe in of_samples for name in recipe.tables} - tables.keys():
            refuse(f"its recipes are of {first_names(sorted(lacking))}, and it has no such tables")
        if not isinstance(attributes["dtype"], str):
            refuse(f"the precision of its kernels must be a text, got {attributes['dtype']!r:.60}")
        return cls(recipes, tables, samples, np.dtype(attributes["dtype"]), int(attributes["tile"]))


def training_features(K: KernelSet, axis: int = 1) -> TrainingFeatures:
    """The features as in `features_of`; InputError if there are none."""
    features = features_of(K, axis)
    return refuse(features) if isinstance(features, str) else features


def features_of(K: KernelSet, axis: int = 1) -> TrainingFeatures | str:
    """The features of the column samples (axis 1), from which kernels of new samples can be computed.

    axis=0: those of the row samples. If there are none, the reason.
    """
    source = K.view.source
    while isinstance(source, HeldTiles | GeometricMean):
        source = source.origin if isinstance(source, HeldTiles) else source.source
    if K.view.is_transformed:
        what = "kernels of new samples are computed without steps, but this set was centered or normalized"
        return f"{what}; let the model do that (steps=)"
    if isinstance(source, Composed):
        terms = _features_of_terms(source)
        if isinstance(terms, str):
            return terms
        recipes, tables = terms
    elif isinstance(source, FeatureTiles):
        recipes, tables = {recipe.name: recipe for recipe in source.recipes}, dict(source.axes[axis].tables)
    elif isinstance(source, StoreReader):
        recipes = recipes_of(source.provenance)
        tables = read_tables(source.location) if recipes else {}
    else:
        recipes, tables = {}, {}
    if not recipes:
        what = "these kernels were not computed from features by dmkl.build (dmkl build)"
        return f"{what}, so {_NO_NEW_SAMPLES}"
    # Distances have no table: new samples come with their distances to the columns.
    parts = single(recipes.values())
    of_samples = {str(recipe.feature) for recipe in parts if STATISTIC[recipe.function] != "given"}
    used = of_samples.union(*(recipe.tables[1:] for recipe in parts))
    tables = {name: table for name, table in tables.items() if name in used}
    at = K.view.final_positions()[axis]
    samples = (K.samples, K.train_samples)[axis]
    if len(at) != len((source.samples, source.train_samples)[axis]) or not np.array_equal(at, np.arange(len(at))):
        tables |= {name: TableOfRows.of(tables[name], at) for name in of_samples & set(tables)}
    return TrainingFeatures(recipes, tables, samples, source.dtype, source.tiling.tile)


def _features_of_terms(source: Composed) -> tuple[dict[str, Recipe], dict[str, FeatureTable]] | str:
    """The recipes of joined sets and of products of their kernels, and all tables; or why there are none."""
    of_views = [features_of(KernelSet(view)) for view in source.views]
    reasons = [features for features in of_views if isinstance(features, str)]
    if len(reasons) == len(of_views):
        return reasons[0]
    single_recipes: list[Recipe | None] = []
    tables: dict[str, FeatureTable] = {}
    for view, features in zip(source.views, of_views, strict=True):
        given = {} if isinstance(features, str) else features.recipes
        single_recipes += [given.get(view.source.names[k]) for k in view.kernels]
        for name, table in () if isinstance(features, str) else features.tables.items():
            if tables.setdefault(name, table).content != table.content:
                return f"two joined sets have features {name!r} that differ, so {_NO_NEW_SAMPLES}"
    recipes: dict[str, Recipe] = {}
    for name, term in zip(source.names, source.terms, strict=True):
        parts = [recipe for k in term if (recipe := single_recipes[k]) is not None]
        factors = tuple(factor for part in parts for factor in part.parts)
        of = {"of": tuple(factor.name for factor in factors)}
        if len(parts) == len(term):
            recipes[name] = parts[0] if len(term) == 1 else Recipe(name, "product", None, None, of, factors=factors)
    return recipes, tables


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
    functions: Mapping[str, Callable[[Any, Any], Any]] | None = None,
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
    functions
        Your own functions by name of kernel, or by the import path that the set records. Those given to `build` in this
        process are known by their path; nothing is imported because a file names it, since that would run what
        whoever wrote the file chose. Lambdas and functions of scripts have no path.
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
        If columns are filled in, if they are matched by position because one table has no names, if a table is
        matched that has another name, or if its values are plainly on another scale than in training.
    """
    K = store if isinstance(store, KernelSet) else kernelset.open(store)
    training = training_features(K)
    absent = [name for name in K.names if name not in training.recipes]
    if absent:
        refuse(f"kernel {absent[0]!r} was not computed from features; leave it out with select(), or import its kernel")
    labels_ = given_data(labels=labels, tasks=tasks)
    source, given = cross_tiles(
        training.select(K.names), features, samples, present, join, missing, missing_features, functions, labels_
    )
    n_rows, n_cols = len(source.samples), len(source.train_samples)
    nodes = replace(given, train_samples=K.train_samples).checked(n_rows, n_cols, rectangular=True)
    if path is None:
        return computed_set(source, nodes)
    header = Header(n_rows, n_cols, source.dtype.name, source.tiling.tile, symmetric=False, full=False)
    with writing_set(path, header, len(source.names), overwrite=overwrite) as writer:
        write_kernels(source, writer, provenances(source))
        return kernelset.open(writer.finish(source.names, nodes))


def cross_tiles(
    training: TrainingFeatures,
    features: Any,
    samples: Sequence[Any] | Array | None,
    present: Mapping[str, npt.ArrayLike] | None,
    join: Join,
    missing: Missing | None,
    missing_features: MissingFeatures = "refuse",
    functions: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    labels: Sequence[SideData] = (),
) -> tuple[FeatureTiles, Labels]:
    """Tiles of new samples against training samples, and labels as given or from the files of features."""
    if missing_features not in get_args(MissingFeatures):
        refuse(f"missing_features must be 'refuse', 'zero' or 'mean', got {missing_features!r}")
    given = as_features(features, samples=samples, present=present, join=join, side_data=labels)
    recipes, whole = single(training.recipes.values()), training.recipes.values()
    training = replace(training, recipes={recipe.name: recipe for recipe in recipes})
    exact = training.exact()
    exact = replace(exact, recipes=_with_functions(exact.recipes, functions or {}))
    needed = {recipe.feature: recipe.function for recipe in exact.recipes.values() if recipe.feature is not None}
    tables = {name: _new_table(name, function, given, exact, missing_features) for name, function in needed.items()}
    scans = {name: scan(table, given.samples) for name, table in tables.items()}
    n_rows = next(iter(given.blocks.values())).shape[0]
    names = np.array([str(i) for i in range(n_rows)] if given.samples is None else given.samples, dtype=object)
    if given.samples is None and any(recipe.feature is None for recipe in recipes):
        rule = "random kernels are functions of the samples' names"
        refuse(f"{rule}, and the new samples have none; give them (samples=)")
    check_values(exact.recipes.values(), scans, names)
    check_present(scans, check_missing(missing, join))
    rows = SampleAxis(names, copy_tables(scans))
    cols = SampleAxis(training.samples, {name: table.reopen() for name, table in training.tables.items()})
    tile = min(training.tile, max(n_rows, len(training.samples)))
    factors = tables_of_new(recipes, exact.recipes, rows, cols.tables, training.dtype, tile)
    rows = SampleAxis(names, {**rows.tables, **factors})
    of_name = {recipe.name: exact.recipes[recipe.name] if recipe.exact is recipe else recipe for recipe in recipes}
    computed = [recipe.of_parts(of_name) for recipe in whole]
    source = fill_absent(FeatureTiles(computed, rows, cols, training.dtype, tile))
    return source, Labels(names, None, given.labels.labels, given.labels.tasks)


def _with_functions(
    recipes: Mapping[str, Recipe], functions: Mapping[str, Callable[[Any, Any], Any]]
) -> dict[str, Recipe]:
    """The recipes, those of the user's own functions with these."""
    paths = {name: recipe.parameters["path"] for name, recipe in recipes.items() if recipe.function == "own"}
    if unknown := functions.keys() - paths.keys() - set(paths.values()):
        those = f"the kernels of such functions are {first_names(paths) or 'none'}"
        refuse(f"functions= has {first_names(sorted(unknown))}, by which no kernel is computed; {those}")
    given = {name: functions.get(name, functions.get(path)) for name, path in paths.items()}
    if lacking := [name for name in paths if given[name] is None and recipes[name].own is None]:
        what = f"kernel {lacking[0]!r} is computed by a function of your own, {paths[lacking[0]]}"
        way_out = f"give it, functions={{{lacking[0]!r}: function}}"
        refuse(f"{what}, and nothing is imported because a file names it; {way_out}")
    return {name: replace(r, own=given[name]) if given.get(name) else r for name, r in recipes.items()}


def _new_table(
    name: str, function: str, given: Features, training: TrainingFeatures, missing_features: MissingFeatures
) -> FeatureMatrix:
    """The new table for a table of training, with its columns where training had them."""
    if function == "precomputed":
        refuse(f"kernels of the training samples were given as {name!r}, so {_NO_NEW_SAMPLES}")
    if name in training.tables:
        return _by_columns(name, given, training, missing_features)
    if function != "distance":
        refuse(f"the features {name!r} of the training samples are missing; build their kernels again", kind=StoreError)
    new = _against(_find(name, (), given.blocks, training), list(training.samples))
    if new.shape[1] != len(training.samples):
        expected = f"the distances to the {len(training.samples):,} training samples in their order"
        refuse(f"{name!r} has {new.shape[1]:,} columns, expected {expected}")
    return new


def _against(matrix: FeatureMatrix, samples: Sequence[str] | None) -> FeatureMatrix:
    """Return a matrix of distances with its columns in the order of samples, by name; unchanged with other names."""
    columns, names = matrix.columns, tuple(map(str, samples or ()))
    if columns is None or not names or columns == names:
        return matrix
    at = places(columns, names)
    if (at < 0).any() or len(set(columns)) < len(columns):
        return matrix
    shape = (matrix.shape[0], len(names))
    reordered = Lazy(shape, matrix.dtype, lambda key: matrix.read(key[0])[:, at])
    return FeatureMatrix(matrix.name, shape, matrix.dtype, names, None, lambda: reordered, matrix.holds)


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
        what = f"kernels of the training samples were computed from {name!r}, which the new features lack"
        way_out = "Give it under that name; a table has the name of its file if there are several"
        refuse(f"{what}; they have {', '.join(map(repr, given)) or 'none'}. {way_out}")
    warn(f"features {same[0]!r} are taken for {name!r} of training", FeatureWarning)
    return replace(given[same[0]], name=name)


def _by_columns(
    name: str, given: Features, training: TrainingFeatures, missing_features: MissingFeatures
) -> FeatureMatrix:
    """The new table, transformed, with the columns that kernels use at their positions in training; others are 0."""
    table, recipes = training.tables[name], [r for r in training.recipes.values() if r.feature == name]
    old, width, transform = table.columns, table.shape[1], Transform.of(recipes[0], training.tables)
    sized = "size-factor" in dict(transform.steps)  # by the sum of all columns
    whole = sized or any(recipe.columns is None for recipe in recipes)
    used = np.unique(np.arange(width) if whole else np.concatenate([r.columns for r in recipes]))
    wanted, at = () if old is None else tuple(old[k] for k in used), used
    new = _find(str(recipes[0].source), wanted, given.blocks, training)
    what, names, samples = f"features {new.name!r}", new.columns, given.samples
    if new.holds:
        found = "a vector or a matrix of pairs" if new.holds == "distances" else "a kernel"
        way_out = "one sample as values.reshape(1, -1)" if width > 1 else "one column as values.reshape(-1, 1)"
        refuse(f"{what} are {found}, expected (samples, columns); give {way_out}")
    if names is None or old is None or (counts(names) and counts(old)):
        if new.shape[1] != width:
            rule = "columns without names are matched by position"
            way_out = "give the same, or names in both (a data frame, a line of titles)"
            refuse(f"{what} have {new.shape[1]:,} columns, and had {width:,} in training; {rule}, so {way_out}")
        if (names is None or counts(names)) != (old is None or counts(old)):
            nameless = "the new table has no names of columns" if old is not None else "training had no names"
            warn(f"columns of {what} are matched by position, since {nameless}", FeatureWarning)
    elif names != old:
        times = Counter(names) | Counter(old)  # the larger count
        twice = [name for name in dict.fromkeys(wanted) if times[name] > 1]
        if twice:
            rule = "names of columns must be unique, here and in training"
            refuse(f"{what}: {rule}, but these repeat: {first_names(twice)}")
        at = places(names, wanted)
        if (at < 0).all():
            begins = f"their names begin with {listed_names(names)}, and in training with {listed_names(wanted)}"
            refuse(f"{what} have none of the {len(wanted):,} columns that kernels use: {begins}; use the same names")
    present, lacking, lost = used[at >= 0], used[at < 0], [wanted[k] for k in np.flatnonzero(at < 0)]
    at, fill = at[at >= 0], np.zeros(len(lacking))
    if len(lacking):
        kernels = [r.name for r in recipes if sized or r.columns is None or not set(lacking).isdisjoint(r.columns)]
        count = f"{len(lacking):,} of the {len(used):,} columns of {new.name!r}"
        listed = f"{first_names(lost)}; used by {first_names(kernels)}"
        if missing_features == "refuse":
            way_out = "fill in 0 or the mean in training by missing_features='zero' or 'mean' (--missing-features)"
            refuse(f"the new features lack {count} that kernels use: {listed}. Give them, or {way_out}")
        if missing_features == "mean":
            rows, parts = slice(0, table.shape[0]), np.split(lacking, range(_PART, len(lacking), _PART))
            fill = np.concatenate([np.nanmean(table.read(rows, part), axis=0, dtype=np.float64) for part in parts])
        value = "0" if missing_features == "zero" else "their means in training"
        warn(f"{count} are missing and filled in by {value}: {listed}", FeatureWarning)
    warn_of_scale(recipes[0], table, new, present, at)
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
