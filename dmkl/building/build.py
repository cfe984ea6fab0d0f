"""Kernel sets from features: `dmkl.build` for all samples, `dmkl.build_cross` for new ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dmkl import settings, stores
from dmkl.arrays import Array, Index, Mask
from dmkl.errors import FeatureWarning, refuse, warn
from dmkl.features.approximation import approximate
from dmkl.features.functions import WORDS
from dmkl.features.specs import Recipe, plan, read_specs
from dmkl.features.tasks import fill_absent, refuse_overflow, resolve_bandwidths, write_kernels
from dmkl.features.tiles import FACTORED, FeatureTiles, SampleAxis
from dmkl.features.transforms import transform_tables
from dmkl.inputs.features import FeatureMatrix, against, as_features
from dmkl.inputs.label_tables import given_data
from dmkl.inputs.labels import labels_in
from dmkl.inputs.names import Join
from dmkl.kernelset import KernelSet
from dmkl.numerics.determined import label_columns
from dmkl.numerics.functions import NONNEGATIVE, STATISTIC
from dmkl.numerics.spectrum import Repair
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.view import View
from dmkl.store.features import ArrayTable, FeatureTable, Scan, scan
from dmkl.store.format import Header, check_dtype
from dmkl.store.groups import Location
from dmkl.store.writer import writing_set

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
        The key `transform` transforms counts first (`dmkl.features.transforms`).
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
        If sets of columns have members that are no columns, or are left out.
    """
    missing = check_missing(missing, join)
    more = given_data(labels=labels, splits=splits, tasks=tasks)
    given = as_features(features, samples=samples, present=present, join=join, beside=more, transpose=transpose)
    planned, notes = plan(read_specs(specs), given.blocks)
    for note in notes:
        warn(note, FeatureWarning)
    n_samples = next(iter(given.blocks.values())).shape[0]
    nodes = replace(given.labels, samples=given.samples).checked(n_samples, n_samples, rectangular=False)
    rows = _training_rows(train, nodes["split"], n_samples)
    planned, blocks, learned = transform_tables(planned, given.blocks, given.samples, rows)
    used = {recipe.feature for recipe in planned if recipe.feature is not None}
    square = {recipe.feature for recipe in planned if recipe.feature and STATISTIC[recipe.function] == "given"}
    tables = {
        name: against(table, given.samples) if name in square else table
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
    check_values(planned, tables, scans, given.samples)
    for name, table in tables.items():
        _refuse_labels(planned, table, {int(k) for columns in watching[name] for k in columns.result()})
    check_present({name: table.absent for name, table in scans.items()}, missing)
    _check_ranks(planned, scans, len(rows))
    _check_square(planned, square, scans, repair)
    kept = _kept(planned, tables, scans, storage)
    # There are no tables if all kernels are random.
    widest = np.result_type(np.float32, *(table.dtype for table in tables.values()))
    half &= len(kept) == len(planned)
    stored = check_dtype(np.float32 if half else widest if dtype is None else dtype)
    header = Header(n_samples, n_samples, stored.name, settings.tile_size(n_samples, tile), symmetric=True, full=False)
    samples_ = nodes["sample"]
    assert samples_ is not None
    if path is None or repair is not None:
        source = _source(planned, copy_tables(tables, scans), learned, samples_, scans, rows, header, stored)
        computed = computed_set(source, nodes)
        if repair is None:
            return computed
        return stores.create(
            path,
            computed.to_dask(),
            names=computed.names,
            samples=samples_ if given.samples is not None else None,
            labels=labels_,
            tasks=nodes["task"],
            splits=nodes["split"],
            repair=repair,
            tile=tile,
            dtype=stored,
            overwrite=overwrite,
        )
    with writing_set(path, header, len(planned), kept=len(kept), overwrite=overwrite) as writer:
        stored_tables = writer.write_features([(table, scans[name]) for name, table in tables.items()])

        def keep(table: FeatureTable) -> FeatureTable:
            scans[table.name] = replace(scan(table, None), center=table.center)
            return writer.add_features(table, scans[table.name])

        factor_dtype = np.dtype(np.float16) if half else stored
        source = _source(planned, stored_tables, learned, samples_, scans, rows, header, factor_dtype, keep)
        _check_norms(source, kept, scans)
        records = provenances(source, rows)
        for k in kept:
            records[k]["storage"] = "factors"
        writer.keep_factors({k: records[k] for k in kept})
        write_kernels(source, writer, records)
        writer.forget_features(square | used.difference(source.axes[0].tables))
        return stores.open(writer.finish(source.names, nodes))


def _kept(
    planned: Sequence[Recipe], tables: Mapping[str, FeatureMatrix], scans: Mapping[str, Scan], storage: Storage
) -> list[int]:
    """Positions of the kernels that are kept as factors."""
    if storage not in ("auto", "factors", "tiles"):
        refuse(f"storage must be 'auto', 'factors' or 'tiles', got {storage!r}")
    why_not, thin = [], True
    for recipe in planned:
        if "rank" in recipe.parameters or recipe.function not in FACTORED:
            why_not.append("" if "rank" in recipe.parameters else f"its function is {recipe.function}")
            continue
        m, width = tables[str(recipe.feature)].shape
        thin &= 2 * (width if recipe.columns is None else len(recipe.columns)) < m
        why_not.append(f"samples lack {recipe.feature!r}" if scans[str(recipe.feature)].absent.any() else "")
    if storage == "tiles" or (storage == "auto" and (any(why_not) or not thin)):
        return [k for k, recipe in enumerate(planned) if storage == "auto" and "rank" in recipe.parameters]
    if all(why_not):
        refuse(
            "storage='factors' is for linear and cosine kernels of features that all samples have, and here is none: "
            f"of the first, {planned[0].name!r}, {why_not[0]}; leave storage out"
        )
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
        if squares is not None and squares.max() > most:
            row = int(squares.argmax())
            refuse_overflow(source, k, row, row)


def _check_ranks(planned: Sequence[Recipe], scans: Mapping[str, Scan], n_train: int) -> None:
    """Refuse approximations of more columns than training samples, and of features that samples lack."""
    for recipe in planned:
        rank = recipe.parameters.get("rank")
        if rank is not None and (1 if rank == "auto" else rank) > n_train:
            refuse(f"kernel {recipe.name!r}: rank must be at most the {n_train:,} training samples, got {rank}")
        if rank is not None and scans[str(recipe.feature)].absent.any():
            refuse(f"kernel {recipe.name!r} has a rank, but samples lack {recipe.feature!r}; leave rank or these out")


def _check_square(
    planned: Sequence[Recipe], square: Collection[str], scans: Mapping[str, Scan], repair: Repair | None
) -> None:
    """Check the use of matrices of distances and of given kernels."""
    for recipe in planned:
        if STATISTIC[recipe.function] == "given":
            if scans[str(recipe.feature)].absent.any():
                refuse(f"the {WORDS[recipe.function]} {recipe.feature!r} lack samples; leave those out (join='inner')")
        elif recipe.feature in square:
            refuse(
                f"{recipe.feature!r} is taken as a matrix of distances or as a kernel and, by kernel {recipe.name!r}, "
                "as a table of features; name the features of each spec (feature=)"
            )
        elif repair is not None:
            refuse(
                f"repair is for kernels of given distances, and {recipe.name!r} is computed from features, whose "
                "kernels are positive semidefinite; leave repair out, or build the others alone"
            )


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
    rows = np.arange(len(source.samples))
    cols = rows if source.symmetric else np.arange(len(source.train_samples))
    return KernelSet(
        View(source, np.arange(len(source.names)), rows, cols),
        labels=labels_in(nodes),
        tasks=nodes["task"],
        splits=nodes["split"],
        provenance=[{"name": r.name, **r.as_json()} for r in source.recipes],
    )


def _training_rows(train: npt.ArrayLike | None, splits: Array | None, n_samples: int) -> Index:
    if train is None:
        return np.arange(n_samples) if splits is None else np.flatnonzero(splits[0] == 0)
    rows = np.asarray(train)
    if rows.dtype == bool and rows.shape == (n_samples,):
        return np.flatnonzero(rows)
    inside = rows.ndim == 1 and rows.dtype.kind in "iu" and len(rows) and 0 <= rows.min() <= rows.max() < n_samples
    if not inside or len(np.unique(rows)) != len(rows):
        refuse(
            f"train must be different positions among the {n_samples} samples, or a mask of them, got {train!r:.100}"
        )
    return np.sort(rows.astype(np.int64))


def check_values(
    recipes: Sequence[Recipe],
    tables: Mapping[str, FeatureMatrix],
    scans: Mapping[str, Scan],
    samples: Sequence[str] | Array | None,
) -> None:
    """Refuse negative values for functions of histograms."""
    for recipe in recipes:
        if recipe.feature is None or STATISTIC[recipe.function] not in NONNEGATIVE:
            continue
        lowest, row, column = scans[recipe.feature].lowest
        if lowest < 0:
            names = tables[recipe.feature].columns
            sample = int(row) if samples is None else str(samples[row])
            refuse(
                f"{recipe.function} is for histograms, with no negative values, but {recipe.feature!r} has {lowest:g} "
                f"at sample {sample!r}, column {column if names is None else names[column]!r}; take another "
                "function, or shift or clip the features"
            )


def check_present(absent: Mapping[str, Mask], missing: Missing) -> None:
    """Refuse samples that lack a feature table, unless `missing` says otherwise."""
    counts = {name: int(mask.sum()) for name, mask in absent.items() if mask.any()}
    if counts and missing == "refuse":
        listed = ", ".join(f"{name!r} is missing for {n:,} of {len(absent[name]):,}" for name, n in counts.items())
        refuse(
            f"samples lack features: {listed}. Drop or impute them, or let missing='zero' (--missing zero) give them "
            "a row of zeros in the centered kernels of that source"
        )


def copy_tables(tables: Mapping[str, FeatureMatrix], scans: Mapping[str, Scan]) -> dict[str, FeatureTable]:
    """Copies of the tables in memory, for kernels that are computed on demand."""
    # The caller may change its arrays.
    values = {name: np.array(table.read(slice(0, table.shape[0]))) for name, table in tables.items()}
    return {name: ArrayTable.of(name, values[name], table.columns, scans[name]) for name, table in tables.items()}


def _source(
    planned: Sequence[Recipe],
    tables: Mapping[str, FeatureTable],
    learned: Sequence[FeatureTable],
    samples: Array,
    scans: Mapping[str, Scan],
    train: Index,
    header: Header,
    factor_dtype: np.dtype[Any],
    keep: Callable[[FeatureTable], FeatureTable] = lambda table: table,
) -> FeatureTiles:
    axis = SampleAxis(samples, tables)
    present = {name: train[~scans[name].absent[train]] for name in tables}
    recipes = resolve_bandwidths(planned, axis, present, train, header.dtype, header.tile)
    recipes, needed = approximate(recipes, axis, train, factor_dtype, header.tile, keep)
    needed |= {table.name: keep(table) for table in learned}
    source = FeatureTiles(recipes, SampleAxis(samples, needed), None, header.dtype, header.tile)
    absent = {name: table.absent for name, table in scans.items()}
    return fill_absent(source, absent, absent, present)


def provenances(source: FeatureTiles, train: Index | None = None) -> list[dict[str, Any]]:
    """Provenance of each kernel for the store; `train` are the training rows of a symmetric set."""
    rows = None if train is None else hashlib.blake2b(train.astype("<i8").tobytes(), digest_size=16).hexdigest()
    axes = source.axes[: 1 if source.symmetric else 2]
    # Random kernels are functions of the samples' names.
    names = [hashlib.blake2b("\0".join(map(str, axis.samples)).encode(), digest_size=16).hexdigest() for axis in axes]
    records = []
    for k, recipe in enumerate(source.recipes):
        # Distances to training samples have no table of the training samples.
        of_axes = [axis.tables.get(str(recipe.feature)) for axis in axes]
        contents = names if recipe.feature is None else ["" if table is None else table.content for table in of_axes]
        identity: dict[str, Any] = {"recipe": recipe.as_json(), "content": contents}
        if k in source.fills:
            identity["means"] = rows or "columns"
        record = {"name": recipe.name, **recipe.as_json(), "identity": identity}
        if k in source.fills:
            record["n_missing"] = int(source.fills[k].rows_absent.sum())
        if recipe.feature is not None:
            record["feature_content"] = contents[0]
        if rows is not None:
            record["training_content"] = rows
        records.append(record)
    return records
