"""Dask tasks over computed tiles: writing kernels, mean distances for bandwidths, and means for absent samples.

A task computes one tile of some kernels and returns a part of the result for each kernel, such as sums of rows. The
caller adds the parts in the order of the tiles, and BLAS has one thread inside tasks, so that results are the same to
the last bit whatever the number of tasks, threads or workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from dmkl import progress
from dmkl.arrays import Array, Float, Index, Mask, by_key
from dmkl.errors import refuse
from dmkl.features.recipes import Recipe, single
from dmkl.features.tiles import FeatureTiles, MeanFill, SampleAxis, table_of
from dmkl.files.arrays import crc32c
from dmkl.passes.blas import pinned_blas
from dmkl.passes.execute import check_memory, check_shared, machine, run_tasks, sync_on_hosts
from dmkl.store.features import FeatureTable, TableOfRows
from dmkl.store.format import kept_as_factors
from dmkl.store.tiles import TileWriter
from dmkl.store.writer import StoreWriter

Part = TypeVar("Part")
TileIndex = tuple[int, int]
"""(tile row, tile column)"""
TileFunction = Callable[[tuple[int, ...], TileIndex, FeatureTiles, Any], list[Part]]
"""The work of a task, from some kernels, a tile, a source and data shared by all tasks: a part for each kernel.

It runs on one BLAS thread, since products round differently with more.
"""

_PARTS_BYTES = 256 * 2**20  # most memory of row sums of single tiles that wait for the last tile of their kernel


def check_task_memory(source: FeatureTiles, what: str) -> None:
    """Check that computing a tile fits the memory of a task; MemoryBudgetError if not."""
    check_memory(
        what,
        {"tiles": 2 * source.tiling.tile**2 * source.dtype.itemsize, "features and distances": source.scratch_bytes},
        machine().task_bytes,
        "Set dmkl.memory higher, give the workers more memory, or build with a smaller tile",
    )


def _batches(source: FeatureTiles, kernels: Sequence[int], n_tiles: int) -> list[list[tuple[int, ...]]]:
    """Cut the work on some kernels, `n_tiles` of each, into batches of groups that keep every worker busy.

    One task computes the tiles of a group, which has kernels of one table, those with the same statistic together, and
    reads its rows once. Large groups make few tasks and hold sums of many tiles, so their size is limited by both.
    """
    slots, groups = machine().slots, list[tuple[int, ...]]()
    most = max(1, _PARTS_BYTES // (n_tiles * source.tiling.tile * 16))
    for of_table in by_key(kernels, lambda k: source.recipes[k].feature).values():
        sharing = list(by_key(of_table, lambda k: source.recipes[k].statistic).values())
        for part in np.array_split(np.arange(len(sharing)), min(len(sharing), -(-4 * slots // n_tiles))):
            group = tuple(k for number in part for k in sharing[number])
            groups += [group[start : start + most] for start in range(0, len(group), most)]
    size = -(-16 * slots // n_tiles)
    return [groups[start : start + size] for start in range(0, len(groups), size)]


def run_batch(
    source: FeatureTiles,
    batch: Sequence[tuple[int, ...]],
    tiles: Sequence[TileIndex],
    of_tile: TileFunction[Part],
    shared: Any,
    verb: str,
) -> dict[int, list[Part]]:
    """Run the tasks of one batch, a task for each group and tile; returns the parts of each kernel in tile order."""
    work = [(group, tile) for group in batch for tile in tiles]
    tasks = [partial(of_tile, group, tile) for group, tile in work]
    n_bytes = sum(len(group) for group, _ in work) * source.tiling.tile**2 * source.dtype.itemsize
    results = run_tasks(verb, tasks, source, shared, task_bytes=n_bytes // len(work))
    parts: dict[int, list[Part]] = {k: [] for group in batch for k in group}
    for (group, _), of_group in zip(work, results, strict=True):
        for k, part in zip(group, of_group, strict=True):
            parts[k].append(part)
    return parts


_Sums = tuple[Float, Float | None, Float | None]
"""Of a tile: sums of its rows; of its columns, which are rows of its mirror image, if it has one; and its diagonal."""


def write_kernels(source: FeatureTiles, writer: StoreWriter, provenances: Sequence[dict[str, Any]]) -> None:
    """Write all kernels of a source that are not written yet, nor kept as factors.

    Tiles that an interrupted run has written are read for their sums, and not computed again. InputError is raised if
    an entry overflows the stored precision, MemoryBudgetError, before anything is written, if a task would take more
    than its share of the memory, and DiskFullError if the disk is full; the same build continues from there.
    """
    n_kernels, kept = len(source.recipes), kept_as_factors(provenances)
    todo = [k for k in range(n_kernels) if k not in kept and not writer.is_done(k, provenances[k]["identity"])]
    if not todo:
        return
    check_task_memory(source, "building these kernels")
    if writer.folder is not None:
        way_out = "write to a file system that all machines share, or compute on this machine"
        check_shared(writer.folder, "where the kernels are written", way_out)
    tiling = source.tiling
    tiles, tile_bytes = list(tiling.pairs()), tiling.tile**2 * source.dtype.itemsize
    watch, started, done = progress.current(), time.monotonic(), 0
    for batch in _batches(source, todo, len(tiles)):
        chosen = [k for group in batch for k in group]
        writer.begin_kernels({k: provenances[k] for k in chosen})
        with writer.writing():
            parts = run_batch(source, batch, tiles, _write_tile, writer.tiles, "build")
        for k in chosen:
            sums, checksums = zip(*parts[k], strict=True)
            diagonal = np.zeros(tiling.rows) if source.symmetric else source.diagonal(np.array([k]))[0]
            table = np.zeros(tiling.shape, dtype=np.uint32)
            for (i, j), (_, _, of_tile), checksum in zip(tiles, sums, checksums, strict=True):
                table[i, j] = checksum
                if of_tile is not None:
                    diagonal[tiling.row_slice(i)] = of_tile
            writer.end_kernel(k, _add_sums(source, [each[:2] for each in sums]), diagonal, table)
        done += len(chosen)
        rate = done * len(tiles) * tile_bytes / (time.monotonic() - started)
        watch.expect((len(todo) - done) / len(chosen))
        built = f"{done + n_kernels - len(todo):,} of {n_kernels:,} kernels built"
        watch.note(f"{built}, {done * len(tiles):,} tiles at {rate / 1e9:.2f} GB/s")
    if writer.folder is not None:
        sync_on_hosts(writer.folder)


@pinned_blas(1)
def _write_tile(
    kernels: tuple[int, ...], tile: TileIndex, source: FeatureTiles, tiles: TileWriter
) -> list[tuple[_Sums, int]]:
    """Write a tile of some kernels; returns its sums and its checksum for each."""
    i, j = tile
    parts: dict[int, tuple[_Sums, int]] = {}
    for k in kernels:
        written = tiles.read_written(k, i, j)
        if written is not None:
            parts[k] = _sums(source, k, tile, written), crc32c(written)
    with np.errstate(over="ignore", invalid="ignore"):  # `_sums` reports overflow
        for (k, _, _), block in source.stream([(k, i, j) for k in kernels if k not in parts]):
            parts[k] = _sums(source, k, tile, block), tiles.write(k, i, j, block)  # checked before it is written
    return [parts[k] for k in kernels]


def _sums(source: FeatureTiles, k: int, tile: TileIndex, block: Array) -> _Sums:
    i, j = tile
    row_sum = block.sum(axis=1, dtype=np.float64)
    if not np.isfinite(row_sum).all():
        a, b = np.argwhere(~np.isfinite(block))[0]
        refuse_overflow(source, k, source.tiling.row_slice(i).start + int(a), source.tiling.col_slice(j).start + int(b))
    col_sum = block.sum(axis=0, dtype=np.float64) if source.symmetric and i != j else None
    return row_sum, col_sum, block.diagonal().astype(np.float64) if source.symmetric and i == j else None


def refuse_overflow(source: FeatureTiles, k: int, row: int, col: int) -> NoReturn:
    """Raise InputError for an entry of a kernel that exceeds the precision of the kernels."""
    refuse(
        f"kernel {source.names[k]!r}: the entry of samples {str(source.samples[row])!r} and "
        f"{str(source.train_samples[col])!r} overflows {source.dtype}; scale the features, take another function, or "
        "store the kernels as float64"
    )


def _add_sums(source: FeatureTiles, sums: Sequence[tuple[Float, Float | None]]) -> Float:
    """Add sums of rows, and of columns for the mirror images of tiles of symmetric kernels."""
    total = np.zeros(source.tiling.rows)
    for (i, j), (of_rows, of_cols) in zip(source.tiling.pairs(), sums, strict=True):
        total[source.tiling.row_slice(i)] += of_rows
        if of_cols is not None:
            total[source.tiling.row_slice(j)] += of_cols
    return total


def fill_absent(source: FeatureTiles, train: Index | None = None) -> FeatureTiles:
    """Fill the entries of samples that lack a table with the mean over training samples that have it.

    The source has zeros for absent features, and is returned unchanged if there are none. `train` are positions of the
    training samples among the column samples; all of them if None.
    """
    recipes, (row_axis, col_axis), tile = single(source.recipes), source.axes, source.tiling.tile
    used = {str(recipe.feature) for recipe in recipes if recipe.feature in col_axis.tables}
    absent = {name: (row_axis.absent(name), col_axis.absent(name)) for name in used}
    incomplete = {name for name, masks in absent.items() if any(map(np.any, masks))}
    affected = [k for k, recipe in enumerate(recipes) if recipe.feature in incomplete]
    if not affected:
        return source
    trained = np.isin(np.arange(len(col_axis.samples)), train) if train is not None else True
    present = {name: trained & ~lacking for name, (_, lacking) in absent.items()}
    across = None if source.symmetric else col_axis
    col_means = _row_means(FeatureTiles(recipes, col_axis, None, source.dtype, tile), affected, present)
    rectangular = FeatureTiles(recipes, row_axis, across, source.dtype, tile)
    row_means = col_means if across is None else _row_means(rectangular, affected, present)
    fills = {}
    for k in affected:
        feature = str(recipes[k].feature)
        rows, cols = absent[feature]
        mean = float(col_means[k][present[feature]].mean())
        # An entry of two samples that both lack the table is the mean of the means.
        means = np.where(rows, mean, row_means[k]), np.where(cols, mean, col_means[k])
        fills[recipes[k].name] = MeanFill(rows, cols, *means, mean)
    return FeatureTiles(source.recipes, row_axis, across, source.dtype, tile, fills)


def _row_means(source: FeatureTiles, kernels: Sequence[int], present: Mapping[str, Mask]) -> dict[int, Float]:
    """For some kernels, the mean of k(x, ·) over the columns that have the table, for every row x, (rows,)."""
    for feature in dict.fromkeys(str(source.recipes[k].feature) for k in kernels):
        if not present[feature].any():
            refuse(f"no training sample has {feature!r}, so its entries cannot be filled in; leave its kernels out")
    check_task_memory(source, "the means of kernels whose samples lack a table")
    tiles, means = list(source.tiling.pairs()), dict[int, Float]()
    for batch in _batches(source, kernels, len(tiles)):
        for k, sums in run_batch(source, batch, tiles, _sum_present, present, "means").items():
            means[k] = _add_sums(source, sums) / np.count_nonzero(present[str(source.recipes[k].feature)])
    return means


@pinned_blas(1)
def _sum_present(
    kernels: tuple[int, ...], tile: TileIndex, source: FeatureTiles, present: Mapping[str, Mask]
) -> list[tuple[Float, Float | None]]:
    """Sum a tile's rows, and those of its mirror image if it is symmetric, over the samples that have the table."""
    i, j = tile
    sums = []
    for (k, _, _), block in source.stream([(k, i, j) for k in kernels]):
        there = present[str(source.recipes[k].feature)]
        mirrored = None
        if source.symmetric and i != j:
            mirrored = block[there[source.tiling.row_slice(i)]].sum(axis=0, dtype=np.float64)
        sums.append((block[:, there[source.tiling.col_slice(j)]].sum(axis=1, dtype=np.float64), mirrored))
    return sums


_STRIP = 4096


def resolve_bandwidths(
    planned: Sequence[Recipe], axis: SampleAxis, train: Index, dtype: npt.DTypeLike, tile: int
) -> list[Recipe]:
    """Replace every bandwidth b by γ = 1/(b · D̄).

    D̄ is the mean over all pairs of different training samples that have the table, of the distance that γ multiplies:
    exact, in closed form for ‖x − y‖² and from computed tiles for the others. `train` are positions of the training
    samples. InputError if all of those that have the table are equal.
    """
    measured = {recipe.statistic: recipe for recipe in planned if "bandwidth" in recipe.parameters}
    groups = by_key(measured, lambda key: (*key[:2], key[3]))  # all but the columns
    means, results = dict[tuple[Any, ...], float](), list(planned)
    for group in groups.values():
        means |= zip(group, _mean_distances([measured[key] for key in group], axis, train, dtype, tile), strict=True)
    for k, recipe in enumerate(planned):
        parameters = dict(recipe.parameters)
        bandwidth = parameters.pop("bandwidth", None)
        if bandwidth is None:
            continue
        mean = means[recipe.statistic]
        if not mean > 0 or not np.isfinite(1.0 / (bandwidth * mean)):
            columns = f"the columns of {recipe.feature!r} that it takes" if recipe.columns else repr(recipe.feature)
            fault = f"all of them are equal in {columns}" if mean == 0 else f"that of {columns} is out of range"
            way_out = "Leave the kernel out, or give gamma as a number" if mean == 0 else "Scale these features"
            refuse(
                f"kernel {recipe.name!r}: the bandwidth is a multiple of the mean distance between training samples, "
                f"but {fault} (mean distance {mean:g}). {way_out}"
            )
        parameters["gamma"] = 1.0 / (bandwidth * mean)
        made = {"bandwidth": bandwidth, "mean_distance": mean, "training_rows": len(train)}
        results[k] = replace(recipe, parameters=parameters, made=recipe.made | made)
    return results


def _mean_distances(
    planned: Sequence[Recipe], axis: SampleAxis, train: Index, dtype: npt.DTypeLike, tile: int
) -> Iterable[float]:
    """The mean distances of one statistic of one table, over several sets of its columns."""
    statistic, feature, *_ = planned[0].statistic
    rows = train if feature is None else train[~axis.absent(feature)[train]]
    if len(rows) < 2:
        rule = "a bandwidth is a multiple of the mean distance between training samples"
        refuse(f"{rule}, but {len(rows)} training samples have {feature!r}; give gamma as a number")
    if statistic in ("sqeuclidean", "differences"):
        return _mean_squared_distances(planned, table_of(planned[0], axis), rows)
    tables = {feature: TableOfRows.of(axis.tables[feature], rows)}
    rows_axis = SampleAxis(axis.samples[rows], tables, rows if statistic == "given" else None)
    scale = {key: value for key, value in planned[0].parameters.items() if key == "scale"}
    recipes = [Recipe(str(k), f"mean-{statistic}", feature, r.columns, scale) for k, r in enumerate(planned)]
    source = FeatureTiles(recipes, rows_axis, None, dtype, tile)
    check_task_memory(source, "the mean distances of these bandwidths")
    pairs, sums = list(source.tiling.pairs()), np.zeros(len(recipes))
    for batch in _batches(source, range(len(recipes)), len(pairs)):
        for k, parts in run_batch(source, batch, pairs, _sum_entries, None, "distances").items():
            sums[k] = sum(parts)
    diagonals = source.diagonal(np.arange(len(recipes)))
    means: list[float] = ((sums - diagonals.sum(axis=1)) / (len(rows) * (len(rows) - 1.0))).tolist()
    return means


@pinned_blas(1)
def _sum_entries(kernels: tuple[int, ...], tile: TileIndex, source: FeatureTiles, _: None) -> list[float]:
    """The sum of a tile's entries, and of its mirror image's, for each kernel."""
    i, j = tile
    times = 1.0 if i == j else 2.0
    return [times * float(block.sum(dtype=np.float64)) for _, block in source.stream([(k, i, j) for k in kernels])]


def _mean_squared_distances(planned: Sequence[Recipe], table: FeatureTable, rows: Index) -> list[float]:
    """2/(m−1) · Σ_k Σ_i (x_ik − x̄_k)², the mean of ‖x_i − x_j‖² over i ≠ j."""
    total, squares = np.zeros(table.shape[1]), np.zeros(table.shape[1])
    # Relative to one of the rows, so that the difference below loses few digits and is exactly zero for equal rows.
    first = table.read(rows[:1]).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # `resolve_bandwidths` refuses means that are no numbers
        for start in range(0, len(rows), _STRIP):
            values = table.read(rows[start : start + _STRIP]).astype(np.float64) - first
            total += values.sum(axis=0)
            squares += np.einsum("ik,ik->k", values, values)
        by_column = 2.0 / (len(rows) - 1.0) * (squares - total**2 / len(rows))
    parts = [by_column if recipe.columns is None else by_column[list(recipe.columns)] for recipe in planned]
    scales = [np.square(recipe.parameters.get("scale", 1.0)) for recipe in planned]
    return [float((part / scale).sum()) for part, scale in zip(parts, scales, strict=True)]
