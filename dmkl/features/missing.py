"""Samples that lack a feature table: their kernel entries are the mean over the samples that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dmkl.errors import InputError
from dmkl.features.tile_tasks import TileIndex, batches, check_task_memory, run_batch
from dmkl.features.tiles import FeatureTiles, MeanFill

__all__ = ["fill_of", "filled", "means"]

Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def filled(source: FeatureTiles, absent: Mapping[str, Mask], present: Mapping[str, Index]) -> FeatureTiles:
    """Fill the entries of samples that lack a source with the mean over training samples that have it.

    Parameters
    ----------
    source
        Symmetric kernels, zeros in the place of features that are absent.
    absent
        For each source the samples that lack it, (samples,).
    present
        For each source the training samples that have it, as positions.

    Returns
    -------
    FeatureTiles
        The source itself where nothing is absent.

    Raises
    ------
    InputError
        If no training sample has a source.
    """
    affected = [k for k, recipe in enumerate(source.recipes) if recipe.feature and absent[recipe.feature].any()]
    fills = {}
    for k, mean in means(source, affected, present).items():
        feature = str(source.recipes[k].feature)
        mask = absent[feature]
        fills[k] = fill_of(mask, mask, mean, mean, float(mean[present[feature]].mean()))
    return (
        source
        if not fills
        else FeatureTiles(source.recipes, source.axes[0], None, source.dtype, source.tiling.tile, fills)
    )


def means(source: FeatureTiles, kernels: Sequence[int], present: Mapping[str, Index]) -> dict[int, Float]:
    """Mean of k(x, ·) over the column samples that have the source, for every row sample x.

    Parameters
    ----------
    source
        Kernels, zeros in the place of features that are absent.
    kernels
        Which of them.
    present
        For each source the column samples that have it, as ascending positions.

    Returns
    -------
    dict
        (rows,) for each kernel.

    Raises
    ------
    InputError
        If no sample has a source.
    """
    for feature in dict.fromkeys(str(source.recipes[k].feature) for k in kernels):
        if not len(present[feature]):
            msg = f"no training sample has {feature!r}, so nothing stands for it; leave its kernels out"
            raise InputError(msg)
    if not kernels:
        return {}
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


def fill_of(rows: Mask, cols: Mask, row_mean: Float, col_mean: Float, mean: float) -> MeanFill:
    """Entries for missing samples; among themselves they have the mean of the means."""
    return MeanFill(rows, cols, np.where(rows, mean, row_mean), np.where(cols, mean, col_mean), mean)
