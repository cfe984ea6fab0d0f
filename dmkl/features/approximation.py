"""Kernels of low rank, K̃ = ZZᵀ, that approximate kernels of features. Z becomes a feature table, its kernel is linear.

Nyström (Williams and Seeger, NIPS 2001). For landmarks L among the training samples and the eigenvalues of K_LL = UDUᵀ
above rounding error,

    Z = K_·L U D^(−1/2),    K̃ = K_·L K_LL⁺ K_L·.

K − K̃ is positive semidefinite, so that its trace Σ_i k(x_i, x_i) − ‖z_i‖² measures what is lost. Landmarks are the
samples nearest to the centers of k-means (Zhang, Tsang, Kwok, ICML 2008), since a center need not be a sample (a mean
of binary features is not); kernels of one table and rank share them. A rank "auto" doubles their number until K̃ keeps
the share of the trace over training samples, or they are half of these; then it keeps as few leading eigenvectors V of
ZᵀZ as have this share, ZVVᵀZᵀ ⪯ K̃ ⪯ K.

Random Fourier features (Rahimi and Recht, NIPS 2007) of exp(−γ‖x − y‖²), with Gaussian g_k and b_k uniform in [0, 2π):

    Z_ik = √(2/r) cos(√(2γ) x_i·g_k + b_k),    E ZZᵀ = K.

The set stores Z, the *points* (landmarks, or g) with all columns of the features, and the *map* (U D^(−1/2), or b). So
Z of new samples needs no other training sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl import settings
from dmkl.arrays import Array, Float, Index
from dmkl.errors import ApproximationWarning, refuse, warn
from dmkl.features.recipes import LOW_RANK, Recipe
from dmkl.features.tasks import TileIndex, check_task_memory, run_batch
from dmkl.features.tiles import FeatureTiles, SampleAxis
from dmkl.features.transforms import Scale
from dmkl.passes.blas import pinned_blas
from dmkl.store.features import ArrayTable, FeatureTable, TableOfRows, scan, table_in_memory

_SAMPLE, _SAMPLE_BYTES = 10_000, 2**28
"""Most training samples that are clustered, and the bytes that they may take."""


def approximate(
    recipes: Sequence[Recipe],
    axis: SampleAxis,
    train: Index,
    dtype: npt.DTypeLike,
    tile: int,
    keep: Callable[[ArrayTable], FeatureTable],
) -> tuple[list[Recipe], dict[str, FeatureTable]]:
    """Replace recipes that have a rank by linear ones of new tables; returns all recipes and the tables they need.

    `train` are positions of the training samples, all of which have the features; `keep` stores a table and returns the
    stored one. The factors have the precision `dtype`. ApproximationWarning is issued if more than 10 % of the trace is
    lost (Fourier features: of the norm), or rank="auto" cannot keep the share.
    """
    tables, results = dict(axis.tables), list(recipes)
    for k, recipe in enumerate(recipes):
        if "rank" in recipe.parameters:
            results[k], new = _approximate(recipe, SampleAxis(axis.samples, tables), train, dtype, tile)
            tables |= {table.name: keep(table) for table in new}
    used = {name for recipe in results for name in recipe.tables}
    return results, {name: table for name, table in tables.items() if name in used}


def _approximate(
    recipe: Recipe, axis: SampleAxis, train: Index, dtype: npt.DTypeLike, tile: int
) -> tuple[Recipe, list[ArrayTable]]:
    """The linear recipe, and the tables that are new."""
    asked, method, how, share, seed = (recipe.parameters[key] for key in LOW_RANK)
    table, most, kept = axis.tables[str(recipe.feature)], max(1, len(train) // 2), np.ones(1)
    scale = {} if "transform" in recipe.made else {"scale": asdict(Scale.of(table, np.sort(train)))}
    exact_parameters = {k: v for k, v in recipe.parameters.items() if k not in LOW_RANK}
    exact = replace(recipe, parameters=exact_parameters, made={**recipe.made, **scale})
    count = min(64, most) if asked == "auto" else asked
    while True:
        needed_bytes = 8 * count * (len(axis.samples) + 4 * count)
        settings.check_memory(f"the factor of kernel {recipe.name!r}", needed_bytes, "take a lower rank, or allow more")
        points = _points(table, train, count, "frequencies" if method == "fourier" else how, seed, axis.tables)
        shifts = np.random.default_rng([seed, 1]).uniform(0, 2 * np.pi, (1, count))
        matrix = shifts if method == "fourier" else _inverse_root(exact, points, tile)
        if asked != "auto":
            break
        some = SampleAxis(axis.samples[train], {table.name: TableOfRows.of(table, train)})
        Z = _factor(exact, method, some, points, matrix, np.float64, tile)
        values, vectors = np.linalg.eigh(Z.T @ Z)
        kept = np.cumsum(values[::-1]) / _trace(exact, some, tile)
        if kept[-1] >= share or count == most:
            matrix = matrix @ vectors[:, ::-1][:, : 1 + int(np.searchsorted(kept, share))]
            break
        count = min(2 * count, most)
    factor = table_in_memory(f"{recipe.name}: factor", _factor(exact, method, axis, points, matrix, dtype, tile))
    made: dict[str, Any] = {"of": exact.as_json(), "method": method, "rank": matrix.shape[1], "random_state": seed}
    if method == "fourier":
        error = made["frobenius_error"] = _sampled_error(exact, axis, table, factor.values, tile, seed)
    else:
        squares = float(np.einsum("ik,ik->", factor.values, factor.values, dtype=np.float64))
        error = made["trace_lost"] = max(0.0, 1 - squares / _trace(exact, axis, tile))
        made |= {"landmarks": how} | ({"share": share} if asked == "auto" else {})
    if error > 0.1 or kept[-1] < share:
        part = "trace" if method == "nystroem" else "norm"
        more = f" (half of the training samples do not keep {share:g})" if kept[-1] < share else ""
        text = f"the approximation of kernel {recipe.name!r} by rank {matrix.shape[1]} lacks {error:.1%} of its {part}"
        warn(f"{text}{more}; take a higher rank, or the kernel itself", ApproximationWarning)
    coefficients = table_in_memory(f"{recipe.name}: map", matrix)
    made |= {"points": points.name, "map": coefficients.name}
    training = {"training_rows": len(train)} if method == "nystroem" or "training_rows" in exact.made else {}
    linear = Recipe(recipe.name, "linear", factor.name, None, {}, {"approximation": made, **training})
    return linear, [coefficients, factor, *([points] if isinstance(points, ArrayTable) else [])]


def tables_of_new(
    recipes: Sequence[Recipe],
    exact_recipes: Mapping[str, Recipe],
    rows: SampleAxis,
    tables: Mapping[str, FeatureTable],
    dtype: npt.DTypeLike,
    tile: int,
) -> dict[str, FeatureTable]:
    """The factors of new samples, whose features are those of `rows`; NaN for samples that lack the features."""
    factors: dict[str, FeatureTable] = {}
    for recipe in recipes:
        if "approximation" in recipe.made:
            exact, made = exact_recipes[recipe.name], recipe.made["approximation"]
            points, matrix = tables[made["points"]], tables[made["map"]].read(slice(None))
            Z = _factor(exact, made["method"], rows, points, matrix, dtype, tile)
            Z[rows.absent(str(exact.feature))] = np.nan
            factors[str(recipe.feature)] = table_in_memory(str(recipe.feature), Z)
    return factors


def _points(
    table: FeatureTable, train: Index, count: int, how: str, seed: int, tables: Mapping[str, FeatureTable]
) -> FeatureTable:
    """The landmarks, or the Gaussian vectors of Fourier features, with the mean of the training samples as center."""
    name = f"{table.name}: {count} {how} {seed}"
    if name in tables:
        return tables[name]
    rng = np.random.default_rng(seed)
    if how == "frequencies":
        values = rng.standard_normal((count, table.shape[1]))
    elif how == "uniform":
        values = table.read(np.sort(rng.choice(train, count, replace=False)))
    else:
        values = table.read(_nearest_to_centers(table, train, count, seed))
    return table_in_memory(name, values, table.columns, scan(TableOfRows.of(table, train), None).center)


def _nearest_to_centers(table: FeatureTable, train: Index, count: int, seed: int) -> Index:
    """Of each cluster of some rows, the one nearest to its center; fewer than `count` only if rows are equal."""
    from sklearn.cluster import KMeans  # takes a second to import

    n_rows = min(len(train), max(count, min(_SAMPLE, _SAMPLE_BYTES // (8 * table.shape[1]))))
    rows = np.sort(np.random.default_rng(seed).choice(train, n_rows, replace=False))
    if count == n_rows:
        return rows
    X = table.read(rows).astype(np.promote_types(table.dtype, np.float32))
    with warnings.catch_warnings(action="ignore"):  # fewer different rows than clusters
        means = KMeans(count, n_init=1, max_iter=20, random_state=seed).fit(X)
    distances = np.square(X - means.cluster_centers_[means.labels_]).sum(axis=1)
    least = np.full(count, np.inf)
    np.minimum.at(least, means.labels_, distances)
    # Two samples of a cluster are equally far from its center, up to rounding: the first is taken, on every machine.
    nearest = np.flatnonzero(distances <= (1 + np.sqrt(np.finfo(X.dtype).eps)) * least[means.labels_])
    return np.sort(rows[nearest[np.unique(means.labels_[nearest], return_index=True)[1]]])


def _inverse_root(exact: Recipe, points: FeatureTable, tile: int) -> Float:
    """U D^(−1/2) of the eigenvalues D > 0 of K_LL, (landmarks, rank)."""
    count = points.shape[0]
    landmarks = SampleAxis(np.arange(count), {str(exact.feature): points})
    values, vectors = np.linalg.eigh(_factor(exact, "nystroem", landmarks, points, np.eye(count), np.float64, tile))
    rank = int(np.count_nonzero(values > max(values[-1], 0) * count * np.finfo(np.float64).eps))
    if not rank:
        refuse(f"kernel {exact.name!r} is zero at all its landmarks, so it has no approximation; leave it out")
    return np.asarray(vectors[:, -rank:] / np.sqrt(values[-rank:]))


def _factor(
    exact: Recipe, method: str, rows: SampleAxis, points: FeatureTable, matrix: Float, dtype: npt.DTypeLike, tile: int
) -> Array:
    """Z of the samples of `rows`, a strip of rows in each task; the kernel's values are in float64."""
    gamma = exact.parameters["gamma"] if method == "fourier" else None
    cols = SampleAxis(np.arange(points.shape[0]), {str(exact.feature): points})
    source = FeatureTiles([exact if gamma is None else replace(exact, function="linear")], rows, cols, np.float64, tile)
    check_task_memory(source, f"the factor of kernel {exact.name!r}")
    strips = [(i, 0) for i in range(source.tiling.shape[0])]
    return np.concatenate(run_batch(source, [(0,)], strips, _strip, (matrix, gamma, np.dtype(dtype)), "factors")[0])


@pinned_blas(1)
def _strip(
    kernels: tuple[int, ...], tile: TileIndex, source: FeatureTiles, shared: tuple[Float, float | None, np.dtype[Any]]
) -> list[Array]:
    (matrix, gamma, dtype), (i, _), tiling = shared, tile, source.tiling
    Z = np.zeros((tiling.tile_shape(i, 0)[0], matrix.shape[1]))
    for (_, _, j), block in source.stream([(0, i, j) for j in range(tiling.shape[1])]):
        cols = tiling.col_slice(j)
        if gamma is None:
            Z += block @ matrix[cols]
        else:
            Z[:, cols] = np.sqrt(2 / matrix.shape[1]) * np.cos(np.sqrt(2 * gamma) * block + matrix[0, cols])
    with np.errstate(over="ignore"):  # `table_in_memory` refuses overflow
        return [Z.astype(dtype)]


def _trace(exact: Recipe, axis: SampleAxis, tile: int) -> float:
    return float(FeatureTiles([exact], axis, None, np.float64, tile).diagonal(np.arange(1)).sum())


def _sampled_error(exact: Recipe, axis: SampleAxis, table: FeatureTable, Z: Array, tile: int, seed: int) -> float:
    """‖K − ZZᵀ‖/‖K‖ in the Frobenius norm, from the entries of at most 1024 rows and as many columns."""
    rng, m = np.random.default_rng([seed, 2]), len(Z)
    rows, cols = (np.sort(rng.choice(m, min(m, 1024), replace=False)) for _ in range(2))
    some = SampleAxis(axis.samples[rows], {table.name: TableOfRows.of(table, rows)})
    K = _factor(exact, "nystroem", some, TableOfRows.of(table, cols), np.eye(len(cols)), np.float64, tile)
    return float(np.linalg.norm(K - Z[rows].astype(np.float64) @ Z[cols].T) / np.linalg.norm(K))
