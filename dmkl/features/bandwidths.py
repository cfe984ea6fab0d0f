"""Bandwidths as multiples of the mean distance between training samples, turned into numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.arrays import Index
from dmkl.errors import InputError
from dmkl.features.recipes import Recipe
from dmkl.features.specs import Planned
from dmkl.features.tile_tasks import TileIndex, batches, check_task_memory, run_batch
from dmkl.features.tiles import Axis, FeatureTiles, RandomTable
from dmkl.numerics.functions import STATISTIC
from dmkl.store.features import FeatureTable, TableOfRows

__all__ = ["resolve"]

_Key = tuple[str, str | None, tuple[int, ...] | None, tuple[int, int] | None]
"""Statistic, source, columns, seed and dimensions."""

_STRIP = 4096


def resolve(
    planned: Sequence[Planned], axis: Axis, present: Mapping[str, Index], train: Index, dtype: npt.DTypeLike, tile: int
) -> list[Recipe]:
    """Turn every bandwidth b into γ = 1/(b · D̄), and planned kernels into recipes.

    D̄ is the mean over all pairs of different training samples that have the source, of the distance that γ multiplies:
    exact, in closed form for ‖x − y‖² and by going once through computed tiles for the others. `train` are positions of
    the training samples, `present` those that have a source. InputError if none of them are at different places.
    """
    wanted = list(dict.fromkeys(_key(item) for item in planned if "bandwidth" in item.parameters))
    means = {
        key: mean for group in _by_source(wanted) for key, mean in _means(group, axis, present, train, dtype, tile)
    }
    return [_resolved(item, means, len(train)) for item in planned]


def _key(item: Planned) -> _Key:
    random = (item.parameters["seed"], item.parameters["dimensions"]) if item.feature is None else None
    return STATISTIC[item.function], item.feature, item.columns, random


def _by_source(keys: Iterable[_Key]) -> list[list[_Key]]:
    groups: dict[Any, list[_Key]] = {}
    for key in keys:
        groups.setdefault((key[0], key[1], key[3]), []).append(key)
    return list(groups.values())


def _resolved(item: Planned, means: Mapping[_Key, float], n_train: int) -> Recipe:
    parameters, made = dict(item.parameters), dict[str, Any]()
    if "bandwidth" in parameters:
        bandwidth, mean = parameters.pop("bandwidth"), means[_key(item)]
        if not mean > 0 or not np.isfinite(1.0 / (bandwidth * mean)):
            source = f"the columns of {item.feature!r} that it takes" if item.columns else repr(item.feature)
            msg = (
                f"kernel {item.name!r}: the bandwidth is a multiple of the mean distance between training samples, but "
                f"{source} put all of them at one place (mean distance {mean:g}). Leave the kernel out, or give gamma "
                "as a number"
            )
            raise InputError(msg)
        parameters["gamma"] = 1.0 / (bandwidth * mean)
        made = {"bandwidth": bandwidth, "mean_distance": mean, "training_rows": n_train}
    return Recipe(item.name, item.function, item.feature, item.columns, parameters, made)


def _means(
    keys: Sequence[_Key], axis: Axis, present: Mapping[str, Index], train: Index, dtype: npt.DTypeLike, tile: int
) -> list[tuple[_Key, float]]:
    """The mean distances of one statistic of one source, over several sets of its columns."""
    statistic, source, _, random = keys[0]
    rows = train if source is None else present[source]
    if len(rows) < 2:
        msg = (
            f"a bandwidth is a multiple of the mean distance between training samples, but {len(rows)} training "
            f"samples have {source!r}; give gamma as a number"
        )
        raise InputError(msg)
    if statistic == "sqeuclidean":
        table = RandomTable.of(axis.samples, *random) if random is not None else axis.tables[str(source)]
        return list(zip(keys, _squared(keys, table, rows), strict=True))
    assert source is not None
    table = TableOfRows.of(axis.tables[source], rows)
    some = Axis(axis.samples[rows], {source: table}, rows if statistic == "given" else None)
    recipes = [Recipe(str(k), f"mean-{statistic}", source, key[2], {}) for k, key in enumerate(keys)]
    tiles = FeatureTiles(recipes, some, None, dtype, tile)
    check_task_memory(tiles, "the mean distances of these bandwidths")
    pairs, sums = list(tiles.tiling.pairs()), np.zeros(len(keys))
    for batch in batches(tiles, range(len(keys)), len(pairs)):
        for k, parts in run_batch(tiles, batch, pairs, _sum_of_tile, None, "distances").items():
            sums[k] = sum(parts)
    diagonal = tiles.diagonal(np.arange(len(keys)))
    assert diagonal is not None
    return list(zip(keys, (sums - diagonal.sum(axis=1)) / (len(rows) * (len(rows) - 1.0)), strict=True))


def _sum_of_tile(source: FeatureTiles, _: None, kernels: tuple[int, ...], tile: TileIndex) -> list[float]:
    """The sum of a tile's entries, and of its mirror image's, for each kernel."""
    i, j = tile
    times = 1.0 if i == j else 2.0
    return [times * float(block.sum(dtype=np.float64)) for _, block in source.stream([(k, i, j) for k in kernels])]


def _squared(keys: Sequence[_Key], table: FeatureTable, rows: Index) -> list[float]:
    """2/(m−1) · Σ_k Σ_i (x_ik − x̄_k)², the mean of ‖x_i − x_j‖² over i ≠ j."""
    center, n_columns = table.center, table.shape[1]
    total, squares = np.zeros(n_columns), np.zeros(n_columns)
    for start in range(0, len(rows), _STRIP):
        values = table.read(rows[start : start + _STRIP]).astype(np.float64)
        values -= center
        total += values.sum(axis=0)
        squares += np.einsum("ik,ik->k", values, values)
    # About a center near the mean, so that little cancels.
    by_column = 2.0 / (len(rows) - 1.0) * (squares - total**2 / len(rows))
    return [float(by_column.sum() if c is None else by_column[list(c)].sum()) for _, _, c, _ in keys]
