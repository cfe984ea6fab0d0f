"""Weighted sums of all kernels as matrices: factorized in memory (the direct α-step) or kept on disk.

One pass adds up the kernels tile by tile, in tasks of some tiles each. For a factor, one central task assembles the
tiles, centers the sum and factorizes A = ½(I + K(β)/λ). Solvers that need a few columns of a sum at a time read them
from disk.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg

from dmkl.arrays import Array, Float, Index, by_key
from dmkl.files.arrays import read_array, save_array
from dmkl.numerics.cholesky import Factor, LowerTriangle, RoughFactor
from dmkl.numerics.compiling import SMALL, add_weighted
from dmkl.numerics.steps import unpenalized
from dmkl.passes.blas import blas_threads, factor_threads, pinned_blas
from dmkl.passes.execute import (
    active_client,
    again,
    gather,
    machine,
    run_tasks,
    send_all,
    temporary_root,
    workers_without,
)
from dmkl.passes.view import Lens, StoreOrder, TileTask, View, bytes_of_task, covering

# --- sums of kernels, tile by tile ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Combination:
    """Σ_j w_j K_j through a lens; those of a pass are square views of the same kernels."""

    lens: Lens
    weights: Float  # w, (n,)

    def __sizeof__(self) -> int:
        return self.lens.__sizeof__() + self.weights.nbytes  # Dask decides by it how combinations are sent


class SumTile(NamedTuple):
    """A tile of a sum: its rows and columns, in the order of the store, and its entries."""

    rows: slice
    cols: slice
    entries: Float


def for_sums(lens: Lens) -> Lens:
    """The lens with the statistics that sums need: those of products if the steps are applied to the whole sum."""
    return replace(lens, statistics=lens.fitted.for_products()) if lens.fitted.same_for_all else lens


def _lenses(combinations: Sequence[Combination]) -> dict[int, Lens]:
    """The lenses of combinations by their identity; those of one lens share its statistics and its order."""
    return {id(c.lens): c.lens for c in combinations}


def _through_lenses_for_sums(combinations: Sequence[Combination]) -> list[Combination]:
    lenses = {key: for_sums(lens) for key, lens in _lenses(combinations).items()}
    return [replace(c, lens=lenses[id(c.lens)]) for c in combinations]


def sum_order(lens: Lens) -> StoreOrder:
    """The samples of a sum, in the order of the store: those before the steps if these are applied to the whole sum.

    The sum is assembled, centered and factorized in the order of the store, and only vectors are permuted: taking a
    shuffled training set costs no scattered copy of a matrix.
    """
    rows = lens.view.rows if lens.fitted.same_for_all else lens.view.final_positions()[0]
    return StoreOrder.of(rows, lens.view.source.tiling.tile)


def put_together(tiles: Iterable[SumTile], lens: Lens, dtype: npt.DTypeLike = np.float64) -> LowerTriangle:
    """The sum as one matrix, after the steps."""
    total = LowerTriangle(sum_order(lens).order, dtype)
    for tile in tiles:
        total.put(*tile)
    if lens.fitted.same_for_all:
        lens.fitted.apply_to(total)
    return total


# Largest number of kernels whose tiles are added at once: the sum goes through memory once for all of them.
_BESIDE = 8


def _add_tiles(
    tiles: Sequence[TileTask], tasks_per_machine: int, most_beside: int, combinations: Sequence[Combination]
) -> Iterator[tuple[TileTask, list[SumTile]]]:
    """Yield every combination over some tiles, in float64, tile by tile.

    If the steps are the same for all kernels up to a factor (`Fitted.same_for_all`), they are linear in the kernel and
    commute with the sum: raw tiles are added and the steps are applied to the whole sum. Otherwise each tile is
    transformed entry by entry first. `most_beside` tiles may be held at once, which does not change the result: each
    entry receives the kernels one after another, in the same order.
    """
    view = combinations[0].lens.view
    source, kernels, side = view.source, view.kernels, view.source.tiling.tile
    of_lenses = {key: sum_order(lens) for key, lens in _lenses(combinations).items()}
    orders = [of_lenses[id(c.lens)] for c in combinations]
    used = [k for k in range(len(kernels)) if any(c.weights[k] for c in combinations)]
    if view.factor_widths is not None and all(c.lens.fitted.same_for_all for c in combinations):
        for tile in tiles:
            with pinned_blas(blas_threads(tasks_per_machine)):
                totals = [_empty(order, tile) for order in orders]
                _add_by_factors(combinations, orders, tile, used, totals)
                yield tile, totals
        return
    stream = source.stream([(int(kernels[k]), tile.i, tile.j) for tile in tiles for k in used])
    of_lens = list(by_key(range(len(combinations)), lambda number: id(combinations[number].lens)).values())
    # Small sets are added in plain NumPy: loading the compiled loops would take longer than the sums.
    raw = [n for n in of_lens if source.tiling.rows > SMALL and combinations[n[0]].lens.fitted.same_for_all]
    stacks = [(numbers, _weights_of_raw([combinations[number] for number in numbers])) for numbers in raw]
    together = most_beside if stacks else 1
    beside = np.empty((together, side, side) if stacks else 0, source.dtype)
    for tile in tiles:
        with pinned_blas(blas_threads(tasks_per_machine)):
            totals = [_empty(order, tile) for order in orders]
            # The sums of a stack are one array: they are added row by row, for several kernels at once.
            sums, places = [], []
            for numbers, _ in stacks:
                order, total = orders[numbers[0]], totals[numbers[0]]
                places.append([(order.stored[run] % order.side).astype(np.uint64) for run in (total.rows, total.cols)])
                sums.append(np.zeros((len(numbers), *total.entries.shape)))
                for number, entries in zip(numbers, sums[-1], strict=True):
                    totals[number] = total._replace(entries=entries)
            for group in (used[start : start + together] for start in range(0, len(used), together)):
                for place, k in enumerate(group):
                    _, stored = next(stream)
                    if stacks:
                        beside[place, : stored.shape[0], : stored.shape[1]] = stored
                    for numbers in (numbers for numbers in of_lens if numbers not in raw):
                        chosen = [(combinations[number], totals[number]) for number in numbers]
                        _add_alone(chosen, orders[numbers[0]], k, stored)
                for (_, weights), (rows, cols), entries in zip(stacks, places, sums, strict=True):
                    if entries.size:
                        of_group = np.ascontiguousarray(weights[:, group])
                        add_weighted(beside[: len(group)], rows, cols, of_group, entries)
            yield tile, totals


def _weights_of_raw(combinations: Sequence[Combination]) -> Float:
    """The weights of stored kernels, (combinations, n), in combinations through one lens that add raw tiles."""
    fitted = combinations[0].lens.fitted
    return np.stack([c.weights for c in combinations]) * [fitted.factor(k) for k in range(len(combinations[0].weights))]


def _add_alone(chosen: Sequence[tuple[Combination, SumTile]], order: StoreOrder, k: int, stored: Array) -> None:
    """Add a kernel's stored tile to combinations through one lens."""
    rows, cols, entries = chosen[0][1]
    if not entries.size or not any(c.weights[k] for c, _ in chosen):
        return
    fitted, part = chosen[0][0].lens.fitted, stored[order.inside(rows)][:, order.inside(cols)]
    if not fitted.same_for_all:
        part = fitted.elementwise(k, part, fitted.positions(order.order[rows], order.order[cols]))
    factor = fitted.factor(k) if fitted.same_for_all else 1.0
    for c, total in chosen:
        if c.weights[k]:
            total.entries[:] += c.weights[k] * factor * part.astype(np.float64, copy=False)


def _add_by_factors(
    combinations: Sequence[Combination],
    orders: Sequence[StoreOrder],
    tile: TileTask,
    used: Sequence[int],
    totals: Sequence[SumTile],
) -> None:
    """Add Σ_k w_kX_kZ_kᵀ to a tile of each combination, by one product for some kernels side by side."""
    view = combinations[0].lens.view
    factors, tiling = view.factors, view.source.tiling
    scaled = [
        np.array([c.weights[k] * c.lens.fitted.factor(k) if c.weights[k] else 0.0 for k in used]) for c in combinations
    ]
    widths = factors.widths[view.kernels[used]]
    # Products are limited by arithmetic, and adding up one tile for each kernel by memory.
    parts = -(-2 * 8 * tiling.tile * int(widths.sum()) // _SIDES_BYTES)
    for group in np.array_split(np.arange(len(used)), max(1, min(parts, len(used)))):
        kernels = view.kernels[np.asarray(used)[group]]
        X = factors.read(kernels, 0, tiling.row_slice(tile.i)).astype(np.float64)
        Z = factors.read(kernels, 1, tiling.col_slice(tile.j)).astype(np.float64)
        # Triangular factors, as those of pseudo-samples, and indicators are zero in all rows of many tiles.
        used_columns = np.flatnonzero(X.any(axis=0) & Z.any(axis=0))
        X, Z = X[:, used_columns], Z[:, used_columns]
        for order, weights, total in zip(orders, scaled, totals, strict=True):
            rows, cols = order.inside(total.rows), order.inside(total.cols)
            total.entries[:] += X[rows] * np.repeat(weights[group], widths[group])[used_columns] @ Z[cols].T


_SIDES_BYTES = 2**26  # Bytes of factors of both sides of a tile that are multiplied together.


def _empty(order: StoreOrder, tile: TileTask) -> SumTile:
    rows, cols = order.run(tile.i), order.run(tile.j)
    return SumTile(rows, cols, np.zeros((rows.stop - rows.start, cols.stop - cols.start)))


def _over_tiles(
    combinations: Sequence[Combination],
    work: Callable[..., Any],
    then: Mapping[str, Callable[..., Any]] | None = None,
    *,
    keep: bool = False,
) -> list[Any]:
    """One pass: ``work(tiles, tasks per machine, kernels held at once, combinations)`` for some tiles in each task.

    The tiles are cut by the data alone: workers may come and go, and sums must be added in the same order. Results,
    `then` and `keep` are those of `run_tasks`.
    """
    host, view = machine(), covering([lens.view for lens in _lenses(combinations).values()])
    tiles = view.tile_tasks()
    used = int(np.count_nonzero(np.any([c.weights for c in combinations], axis=0)))
    n_bytes = len(tiles) * used * view.bytes_per_tile
    parts = max(1, min(len(tiles), round(n_bytes / bytes_of_task(n_bytes))))
    beside = host.task_bytes // 4 // (view.source.tiling.tile**2 * view.source.dtype.itemsize)
    share = host.slots_per_host, max(1, min(_BESIDE, beside))
    cuts = [partial(work, [tiles[t] for t in cut], *share) for cut in np.array_split(np.arange(len(tiles)), parts)]
    return run_tasks("combine-pass", cuts, list(combinations), task_bytes=n_bytes // parts, then=then, keep=keep)


# --- factors in memory -------------------------------------------------------------------------------------------


def direct_bytes(view: View, n_systems: int) -> int:
    """Peak bytes of the process that factorizes `n_systems` combined kernels at once in the direct α-step."""
    m, base = view.shape[1], len(view.rows)
    # The matrix, and the tiles of its upper half: a little more than half of it, as diagonal tiles are whole. If the
    # steps take rows after centering, both halves are written once more, and the rows taken are a further copy.
    tiles = 0.5 * base * (base + view.source.tiling.tile)
    taking = 2 * base * base + m * m if view.takes_samples else 0
    return int(8 * n_systems * (tiles + base * base + taking))


@dataclass(eq=False)
class FactorHandle:
    """A factor in this process, or a future of it on the worker that made it.

    When a worker leaves, its factors are lost, and Dask has forgotten the pass that led to them. The handle keeps the
    inputs of that pass, and a new pass then replaces `held`.
    """

    held: Any
    combination: Combination
    lam: float


def by_factors(
    name: str, function: Callable[..., Any], factors: Sequence[FactorHandle], *blocks: Sequence[Any]
) -> list[Any]:
    """Apply a function to each factor and its blocks; on a cluster on their workers, all at once."""
    client = active_client()
    if client is None:
        return [
            _pinned(1, function, factor.held, *block_of) for factor, *block_of in zip(factors, *blocks, strict=True)
        ]

    def run() -> list[Any]:
        # Factors of lost workers are made again, by one pass for all of them.
        if lost := [factor for factor in factors if factor.held.status != "finished"]:
            made = factor_pass([factor.combination for factor in lost], [factor.lam for factor in lost])
            for factor, new in zip(lost, made, strict=True):
                factor.held = new.held
        sent = [send_all({f"{name}-{k}": b for k, b in enumerate(block)}, broadcast=False) for block in blocks]
        pinned = partial(_pinned, _factors_per_machine(len(factors)), function)
        futures = [
            client.submit(pinned, factor.held, *block_of, pure=False, key=f"alpha-{name}-{uuid.uuid4().hex}")
            for factor, *block_of in zip(factors, *sent, strict=True)
        ]
        return gather(client, futures)

    return again(run, f"alpha-{name}")


def _pinned(per_machine: int, function: Callable[..., Any], factor: Factor, *blocks: Any) -> Any:
    with pinned_blas(factor_threads(factor.size, per_machine)):
        return function(factor, *blocks)


def _factors_per_machine(n: int) -> int:
    """How many of n factors are at work on one machine at once: threads that wait for busy cores slow all down."""
    host = machine()
    return max(1, min(host.slots_per_host, -(-n * host.slots_per_host // host.slots)))


def factor_pass(combinations: Sequence[Combination], lams: Sequence[float]) -> list[FactorHandle]:
    """Factorize A for several combinations at once, each with its λ: one pass.

    IndefiniteKernelError if one of the sums is not positive definite.
    """
    made = _of_sums(_factor, "cholesky", combinations, lams, keep=True)
    return [FactorHandle(*parts) for parts in zip(made, combinations, lams, strict=True)]


def inverse_diagonals(
    combinations: Sequence[Combination], lams: Sequence[tuple[float, ...]], vectors: Sequence[Float | None]
) -> tuple[list[Float], int]:
    """The diagonal of A⁻¹ − 2P at several λ for each combination, (λ, 1, m), and the passes; no factor is kept.

    P is the projection onto the vectors that the steps project out of the kernels (`unpenalized`), on which
    A⁻¹ = 2I. With a vector v the result is (λ, 2, m), and A⁻¹v its second row. If rounding makes A indefinite, a
    multiple of the identity is added to it.

    In one process the sums are added up in memory, as many in each pass as fit. Workers write them to disk and read
    them there if they share one: sending one another the tiles would take as long as the factors.
    """
    host, views = machine(), [lens.view for lens in _lenses(combinations).values()]
    needed = max(direct_bytes(view, 1) for view in views)
    # Each sum or factor is held while it is used; tiles that are added up take a quarter of the memory.
    at_once = max(1, 3 * host.total_bytes // 4 // needed)
    arguments = list(zip(lams, vectors, strict=True))
    if active_client() is not None:
        with TemporaryDirectory(prefix="dmkl-", dir=temporary_root()) as folder:
            if not workers_without(Path(folder)):
                tile = 8 * max(min(view.source.tiling.tile, len(view.rows)) ** 2 for view in views)
                n_sums = max(1, min(shutil.disk_usage(folder).free // needed, host.task_bytes // tile) // 2)
                n_factors = len(arguments) if needed <= host.task_bytes else at_once
                return _in_parts(partial(_by_files, folder, n_factors), combinations, arguments, n_sums)
    run = partial(_of_sums, _inverse_diagonals, "inverse-diagonal", keep=False)
    return _in_parts(run, combinations, arguments, at_once)


_Wanted = tuple[tuple[float, ...], Float | None]
"""Arguments of a task on a sum: λ, and a vector."""


def _in_parts(
    run: Callable[..., list[Float]], combinations: Sequence[Combination], arguments: Sequence[_Wanted], at_once: int
) -> tuple[list[Float], int]:
    """The answers of a pass for each part of the combinations, and the passes."""
    parts = [slice(start, start + at_once) for start in range(0, len(arguments), at_once)]
    return [answer for part in parts for answer in run(combinations[part], arguments[part])], len(parts)


def _by_files(
    folder: str, at_once: int, combinations: Sequence[Combination], arguments: Sequence[_Wanted]
) -> list[Float]:
    sums = combine_pass(combinations, [f"{folder}/sum-{number}" for number in range(len(combinations))])
    work = [
        partial(_inverse_diagonals, total.assembled, total.lens, argument)
        for total, argument in zip(sums, arguments, strict=True)
    ]
    parts = [work[start : start + at_once] for start in range(0, len(work), at_once)]
    return [answer for part in parts for answer in run_tasks("inverse-diagonal", part, _factors_per_machine(len(part)))]


def _of_sums(
    function: Callable[..., Any],
    name: str,
    combinations: Sequence[Combination],
    arguments: Sequence[Any],
    *,
    keep: bool,
) -> list[Any]:
    """Apply a function to each combination and its argument: one pass, and a central task for each combination."""
    through = _through_lenses_for_sums(combinations)
    threads = max(factor_threads(c.lens.view.shape[1]) for c in through)
    # On this machine the factors are made one after another. Large ones gain from all cores; a small one takes less
    # time than a task of its own.
    here = active_client() is None and (threads > 1 or through[0].lens.view.source.tiling.rows <= SMALL)
    per_machine = 1 if here else _factors_per_machine(len(arguments))
    central = {
        f"{name}-{number}": partial(_of_tiles, function, number, argument, per_machine)
        for number, argument in enumerate(arguments)
    }
    if here:
        parts = _over_tiles(through, _sum_tiles)
        return [of_tiles(parts, through) for of_tiles in central.values()]
    return _over_tiles(through, _sum_tiles, central, keep=keep)


def _sum_tiles(*work: Any) -> list[list[SumTile]]:
    """For each tile of one task, all combinations over it."""
    return [totals for _, totals in _add_tiles(*work)]


def _of_tiles(
    function: Callable[..., Any],
    number: int,
    argument: Any,
    per_machine: int,
    parts: list[list[list[SumTile]]],
    combinations: Sequence[Combination],
) -> Any:
    """Apply a function to one combination, which it assembles from the tiles of all tasks, and its argument."""
    lens = combinations[number].lens
    return function(
        lambda: put_together((totals[number] for part in parts for totals in part), lens), lens, argument, per_machine
    )


def _factor(assembled: Callable[[], LowerTriangle], lens: Lens, lam: float, per_machine: int) -> Factor:
    """The central task of the direct α-step."""
    with pinned_blas(factor_threads(lens.view.shape[1], per_machine)):
        total = assembled()
        return Factor(total.entries, lam, total.order)


def _inverse_diagonals(assembled: Callable[[], LowerTriangle], lens: Lens, wanted: _Wanted, per_machine: int) -> Float:
    lams, vector = wanted
    with pinned_blas(factor_threads(lens.view.shape[1], per_machine)):

        def at(lam: float) -> Float:
            size, projected = 0.0, np.zeros(0)

            def matrix() -> tuple[Array, Index | None]:
                # The matrix is made again for each factor, which overwrites it: a copy would take as much memory.
                nonlocal size, projected
                total = assembled()
                lower, size = total.entries, float(np.trace(total.entries))
                projected = np.zeros(len(lower))
                null = unpenalized(lens.view.steps, len(lower))
                if null is not None:
                    # KN = 0 holds only up to a few ε‖K‖ after rounding, which is as large as a small λ. So tr(K)·P is
                    # added to K, which moves these eigenvalues to the scale of K. The inverse then has 2P/(1 + tr K/λ)
                    # there instead of 2P; it is subtracted below.
                    q = np.linalg.qr(null)[0]
                    projected = np.einsum("mk,mk->m", q, q)
                    add = scipy.linalg.get_blas_funcs("syrk", (lower,))
                    in_order = q if total.order is None else q[total.order]
                    lower = add(size, in_order, beta=1.0, c=lower, lower=1, overwrite_c=1)  # in place
                return lower, total.order

            factor = RoughFactor.of(matrix, lam)
            solved = np.zeros((0, factor.size)) if vector is None else factor.solve(vector[:, None]).T
            # The diagonal overwrites the factor.
            return np.vstack([factor.inverse_diagonal() - 2.0 * projected / (1.0 + size / lam), solved])

        return np.stack([at(lam) for lam in lams])


# --- sums kept on disk -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredSum:
    """A combination that a pass has written to disk, tile by tile, because all of them exceed a worker's memory."""

    stem: str  # The beginning of the file names: ``<stem>-<tile row>-<tile column>.npy``.
    tiles: tuple[tuple[int, int], ...]  # Positions of the tiles.
    lens: Lens  # The lens of the sum.

    def assembled(self, dtype: npt.DTypeLike = np.float64) -> LowerTriangle:
        """K(β), with a correct lower triangle only."""
        return put_together(self.read(), self.lens, dtype)

    def matrix(self, dtype: npt.DTypeLike = np.float64) -> tuple[Array, Index | None]:
        """K(β), with a correct lower triangle only, and the position of each of its rows among the samples."""
        total = self.assembled(dtype)
        return total.entries, total.order

    def whole(self) -> Float:
        """K(β) over the samples of the view in their order, (m, m), both triangles."""
        return self.assembled().whole()

    def read(self) -> Iterator[SumTile]:
        """The tiles, before the steps if these are applied to the whole sum; each is overwritten by the next."""
        order, entries = sum_order(self.lens), np.empty(0)
        for i, j in self.tiles:
            entries = read_array(_tile_file(self.stem, i, j), entries)
            yield SumTile(order.run(i), order.run(j), entries)


def _tile_file(stem: str, i: int, j: int) -> str:
    return f"{stem}-{i}-{j}.npy"


def combine_pass(combinations: Sequence[Combination], stems: Sequence[str]) -> list[StoredSum]:
    """Add up several combinations and write them to disk: one pass, with one tile of each in memory.

    The stems are the paths of the combinations, in a folder that all workers share (see `StoredSum`).
    """
    through = _through_lenses_for_sums(combinations)
    _over_tiles(through, partial(_write_tiles, list(stems)))
    view = covering([lens.view for lens in _lenses(combinations).values()])
    tiles = tuple((tile.i, tile.j) for tile in view.tile_tasks())
    return [StoredSum(stem, tiles, c.lens) for c, stem in zip(through, stems, strict=True)]


def _write_tiles(stems: Sequence[str], *work: Any) -> None:
    for tile, totals in _add_tiles(*work):
        for stem, total in zip(stems, totals, strict=True):
            save_array(_tile_file(stem, tile.i, tile.j), total.entries)


# --- columns of a combined kernel on disk --------------------------------------------------------------------------


class SumColumns:
    """K(β) of a stored sum after its steps, as columns and products over `size` samples.

    If the steps are the same for all kernels, the sum is stored before centering. Then K = raw − u1ᵀ − 1uᵀ + c, where u
    and c come from products of the raw sum with one vector for each centering. The matrix itself is never in memory.
    """

    def __init__(self, total: StoredSum) -> None:
        self._total = total
        # The raw row of each sample of the view: the inverse of the order of the store.
        self._chosen = np.argsort(sum_order(total.lens).order)
        n_raw = len(self._chosen)
        self._offset, self._constant, self._scale = np.zeros(n_raw), 0.0, np.ones(n_raw)
        if total.lens.fitted.same_for_all:
            total.lens.fitted.apply_to(self)
        self.size = len(self._chosen)

    @cached_property
    def diagonal(self) -> Float:
        """k(x, x) of each sample, (m,)."""
        diagonal = np.empty(len(self._offset))
        for tile in self._total.read():
            if tile.rows == tile.cols:
                diagonal[tile.rows] = tile.entries.diagonal()
        return np.asarray((diagonal - 2.0 * self._offset + self._constant)[self._chosen] * self._scale**2)

    def __call__(self, columns: Index) -> Float:
        """K[:, columns], (m, columns), from all tiles that contain one of them (mostly in the page cache)."""
        wanted = self._chosen[columns]
        raw = np.empty((len(self._offset), len(wanted)))
        for rows, cols, entries in self._total.read():
            # An upper tile holds its columns and, transposed, its rows as columns; a diagonal tile holds them once.
            for these, others, part in ((cols, rows, entries), (rows, cols, entries.T)):
                among = np.flatnonzero((wanted >= these.start) & (wanted < these.stop))
                if len(among):
                    raw[others, among] = part[:, wanted[among] - these.start]
                if rows == cols:
                    break
        raw -= self._offset[:, None]
        raw += (self._constant - self._offset[wanted])[None, :]
        return raw[self._chosen] * self._scale[:, None] * self._scale[columns]

    def product(self, v: Float) -> Float:
        """K v for v (m,) or (m, c), by reading the sum once."""
        factor = self._scale.reshape(-1, *(1,) * (v.ndim - 1))
        return factor * self._centered_product(self._spread(factor * v))[self._chosen]

    def center(self, weights: Float | None = None) -> None:
        """Center the matrix over its samples, as a step of the chain does."""
        mean = self._spread(np.full(len(self._chosen), 1.0 / len(self._chosen)) if weights is None else weights)
        # With w the weights (Σw = 1) and the matrix K so far, u = Kw and c = wᵀKw center it. Both come from one
        # product; the raw tiles on disk stay as they are.
        if (self._scale != 1.0).any():
            msg = "a sum on disk is centered before it is scaled, not after"
            raise NotImplementedError(msg)
        means = self._centered_product(mean)
        self._offset = self._offset + means
        self._constant += float(means @ mean)

    def scale(self, factor: Float) -> None:
        """Multiply rows and columns by numbers, after any centering."""
        self._scale = self._scale * factor

    def take(self, positions: Index) -> None:
        """Keep the samples at these positions."""
        self._chosen, self._scale = self._chosen[positions], self._scale[positions]

    def _spread(self, v: Float) -> Float:
        """Scatter a vector over the samples to the raw rows."""
        spread = np.zeros((len(self._offset), *v.shape[1:]))
        np.add.at(spread, self._chosen, v)  # samples may repeat
        return spread

    def _centered_product(self, v: Float) -> Float:
        """The product of the sum, with the centering so far, and a vector over the raw rows."""
        product = np.zeros(v.shape)
        for rows, cols, entries in self._total.read():
            product[rows] += entries @ v[cols]
            if rows != cols:
                product[cols] += entries.T @ v[rows]
        # (raw − u1ᵀ − 1uᵀ + c11ᵀ) v without the matrix: u (1ᵀv), 1 (uᵀv) and c (1ᵀv) are rank-one terms.
        offset = self._offset.reshape(-1, *(1,) * (v.ndim - 1))
        whole = v.sum(axis=0)
        return np.asarray(product - offset * whole - self._offset @ v + self._constant * whole)
