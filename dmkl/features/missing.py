"""Samples that lack a feature table: their kernel entries are the mean over the samples that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dmkl.arrays import Float, Index, Mask
from dmkl.errors import InputError
from dmkl.features.tile_tasks import TileIndex, batches, check_task_memory, run_batch
from dmkl.features.tiles import FeatureTiles, MeanFill

__all__ = ["filled"]


def filled(
    source: FeatureTiles, rows_absent: Mapping[str, Mask], cols_absent: Mapping[str, Mask], present: Mapping[str, Index]
) -> FeatureTiles:
    """Fill the entries of samples that lack a source with the mean over training samples that have it.

    `source` has zeros in the place of features that are absent, and is returned itself where there are none. For each
    source, `rows_absent` and `cols_absent` mask the samples along either axis that lack it, and `present` are the
    training samples, among the columns, that have it, as ascending positions.
    """
    used = {recipe.feature for recipe in source.recipes}
    incomplete = {name for name in cols_absent if name in used and (rows_absent[name].any() or cols_absent[name].any())}
    affected = [k for k, recipe in enumerate(source.recipes) if recipe.feature in incomplete]
    if not affected:
        return source
    recipes, (row_axis, col_axis), tile = source.recipes, source.axes, source.tiling.tile
    square = source if source.symmetric else FeatureTiles(recipes, col_axis, None, source.dtype, tile)
    col_means = _means(square, affected, present)
    row_means = col_means if source.symmetric else _means(source, affected, present)
    fills = {}
    for k in affected:
        feature = str(recipes[k].feature)
        rows, cols = rows_absent[feature], cols_absent[feature]
        mean = float(col_means[k][present[feature]].mean())
        # Among themselves the samples that lack the source have the mean of the means.
        fills[k] = MeanFill(rows, cols, np.where(rows, mean, row_means[k]), np.where(cols, mean, col_means[k]), mean)
    return FeatureTiles(recipes, row_axis, None if source.symmetric else col_axis, source.dtype, tile, fills)


def _means(source: FeatureTiles, kernels: Sequence[int], present: Mapping[str, Index]) -> dict[int, Float]:
    """For each of some kernels the mean of k(x, ·) over the columns that have the source, of every row x, (rows,)."""
    for feature in dict.fromkeys(str(source.recipes[k].feature) for k in kernels):
        if not len(present[feature]):
            msg = f"no training sample has {feature!r}, so nothing stands for it; leave its kernels out"
            raise InputError(msg)
    check_task_memory(source, "the means of kernels whose samples lack a source")
    tiles, found = list(source.tiling.pairs()), dict[int, Float]()
    for batch in batches(source, kernels, len(tiles)):
        parts = run_batch(source, batch, tiles, _sums_of_tile, present, "means")
        for k, of_tiles in parts.items():
            found[k] = _added(source, tiles, of_tiles) / len(present[str(source.recipes[k].feature)])
    return found


def _sums_of_tile(
    source: FeatureTiles, present: Mapping[str, Index], kernels: tuple[int, ...], tile: TileIndex
) -> list[tuple[Float, Float | None]]:
    """Sum a tile's rows, and of a symmetric kernel its mirror image's, over the samples that have the source."""
    i, j = tile
    sums = []
    for (k, _, _), block in source.stream([(k, i, j) for k in kernels]):
        has_source = present[str(source.recipes[k].feature)]
        rows, cols = (_inside(has_source, run) for run in (source.tiling.row_slice(i), source.tiling.col_slice(j)))
        mirrored = block[rows].sum(axis=0, dtype=np.float64) if source.symmetric and i != j else None
        sums.append((block[:, cols].sum(axis=1, dtype=np.float64), mirrored))
    return sums


def _inside(positions: Index, run: slice) -> Index:
    """Places in a tile, whose samples are `run`, of the samples at ascending positions."""
    start, stop = np.searchsorted(positions, (run.start, run.stop))
    return np.asarray(positions[start:stop] - run.start)


def _added(source: FeatureTiles, tiles: Sequence[TileIndex], parts: Sequence[tuple[Float, Float | None]]) -> Float:
    total = np.zeros(source.tiling.rows)
    for (i, j), (sums, mirrored) in zip(tiles, parts, strict=True):
        total[source.tiling.row_slice(i)] += sums
        if mirrored is not None:
            total[source.tiling.row_slice(j)] += mirrored
    return total
