"""Weighted sums of all kernels as matrices: factorized in memory (the direct α-step), or kept on disk.

One pass adds up the kernels tile by tile, in tasks that take some tiles each. For a factor one central task assembles
the tiles, centers the sum and factorizes A = ½(I + K(β)/λ). Solvers that need a few columns of a sum at a time read
them from disk.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dask.delayed import Delayed, delayed

from dmkl.arrays import Array, Float, Index
from dmkl.files.arrays import read_array, save_array
from dmkl.numerics.cholesky import Factor, LowerTriangle, RoughFactor
from dmkl.numerics.compiling import SMALL, add_weighted
from dmkl.passes.blas import blas_threads, factor_threads, pinned_blas
from dmkl.passes.execute import active_client, again, execute, machine, send_all
from dmkl.passes.view import Lens, StoreOrder, TileTask, View, bytes_of_task, covering

__all__ = [
    "Combination",
    "FactorHandle",
    "Share",
    "StoredSum",
    "SumColumns",
    "SumPlan",
    "SumTile",
    "add_tiles",
    "combine_pass",
    "diagonals_of_inverses",
    "direct_bytes",
    "factor_pass",
    "for_sums",
    "inverse_diagonals_pass",
    "put_together",
    "solve_by_factors",
    "sum_order",
]

# --- sums of kernels, tile by tile ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Combination:
    """Σ_j w_j K_j through one of the lenses that share a pass, or Σ_j w_j D_j K_j D_j with diagonal matrices D_j."""

    lens: int
    """Which one; of scaled kernels one whose chain is `entrywise`."""
    weights: Float
    """w, (n,)"""
    scales: Float | None = None
    """The diagonals, (n, m)."""


class SumTile(NamedTuple):
    """A tile of a sum: which of its rows and columns, in the order of the store, and the entries there."""

    rows: slice
    cols: slice
    entries: Float


def for_sums(lens: Lens) -> Lens:
    """The lens with the statistics that sums need: those of products where the chain is left to the whole sum."""
    return replace(lens, fitted=lens.fitted.for_products()) if lens.fitted.same_for_all else lens


def sum_order(lens: Lens) -> StoreOrder:
    """The samples of a sum: those before the steps where the chain is left to the whole sum, after them otherwise.

    The sum is put together, centered and factorized in the order of the store, and only vectors are ever permuted:
    taking a shuffled training set costs no scattered copy of a matrix.
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


_BESIDE = 8
"""Kernels whose tiles are added at once, at most: a sum goes through memory once for all of them."""


@dataclass(frozen=True)
class Share:
    """What a task of a sum may take of its machine."""

    tasks_per_machine: int
    """Tasks that run side by side there."""
    beside: int
    """Kernels whose tiles it may hold at once."""


def add_tiles(
    lenses: Sequence[Lens], combinations: Sequence[Combination], tiles: tuple[TileTask, ...], share: Share
) -> Iterator[tuple[TileTask, list[SumTile]]]:
    """Every combination over some tiles, in float64, tile after tile.

    Where the chain is the same for all kernels up to a factor (`Fitted.same_for_all`), raw tiles are added and the
    chain is left to the whole sum; otherwise each tile is transformed entry by entry first. How many tiles are held at
    once changes nothing of the result: they are added one after another.
    """
    source, kernels = lenses[0].view.source, lenses[0].view.kernels
    orders = [sum_order(lens) for lens in lenses]
    used = [k for k in range(len(kernels)) if any(c.weights[k] for c in combinations)]
    stream = source.stream([(int(kernels[k]), tile.i, tile.j) for tile in tiles for k in used])
    stacks = _stacks(lenses, combinations) if source.tiling.rows > SMALL else []
    alone = sorted({*range(len(combinations))} - {number for stack in stacks for number in stack.numbers})
    side = source.tiling.tile
    together = share.beside if stacks else 1
    beside = np.empty((together, side, side) if stacks else 0, source.dtype)
    for tile in tiles:
        with pinned_blas(blas_threads(share.tasks_per_machine)):
            totals = [_empty(orders[c.lens], tile) for c in combinations]
            for stack in stacks:
                stack.begin(orders[stack.lens], tile)
            for some in (used[start : start + together] for start in range(0, len(used), together)):
                for place, k in enumerate(some):
                    _, stored = next(stream)
                    if stacks:
                        beside[place, : stored.shape[0], : stored.shape[1]] = stored
                    parts: dict[int, Array] = {}
                    for number in alone:
                        _add_alone(combinations[number], lenses, orders, totals[number], k, stored, parts)
                for stack in stacks:
                    stack.add(beside[: len(some)], some)
            for stack in stacks:
                for number, entries in zip(stack.numbers, stack.totals, strict=True):
                    totals[number] = totals[number]._replace(entries=entries)
            yield tile, totals


class _Stack:
    """The combinations through one lens, all over raw tiles: added row by row, for several kernels at once.

    Attributes
    ----------
    numbers : list of int
        Which combinations.
    totals : ndarray
        (combinations, rows, columns), of the present tile.
    """

    def __init__(self, lens: int, numbers: list[int], weights: Float) -> None:
        self.lens, self.numbers, self._weights = lens, numbers, weights
        self.totals: Float = np.empty((0, 0, 0))

    def begin(self, order: StoreOrder, tile: TileTask) -> None:
        """Go on to a tile."""
        place = order.run(tile.i), order.run(tile.j)
        self._rows, self._cols = ((order.stored[run] % order.side).astype(np.uint64) for run in place)
        self.totals = np.zeros((len(self.numbers), len(self._rows), len(self._cols)))

    def add(self, tiles: Array, kernels: Sequence[int]) -> None:
        """Add the tiles of some kernels."""
        if self.totals.size:
            weights = np.ascontiguousarray(self._weights[:, kernels])
            add_weighted(tiles, self._rows, self._cols, weights, self.totals)


def _stacks(lenses: Sequence[Lens], combinations: Sequence[Combination]) -> list[_Stack]:
    """Of each lens the combinations that take raw tiles as they are."""
    found = []
    for number, lens in enumerate(lenses):
        mine = [k for k, c in enumerate(combinations) if c.lens == number and c.scales is None]
        if mine and lens.fitted.same_for_all:
            factors = np.array([lens.fitted.factor(k) for k in range(len(lens.view.kernels))])
            found.append(_Stack(number, mine, np.stack([combinations[k].weights for k in mine]) * factors))
    return found


def _add_alone(
    c: Combination,
    lenses: Sequence[Lens],
    orders: Sequence[StoreOrder],
    total: SumTile,
    k: int,
    stored: Array,
    parts: dict[int, Array],
) -> None:
    """Add a kernel's stored tile to one combination; `parts` keeps what each lens makes of it."""
    if not c.weights[k] or not total.entries.size:
        return
    lens, order = lenses[c.lens], orders[c.lens]
    if c.lens not in parts:
        parts[c.lens] = _part(lens, order, total, k, stored)
    weight = c.weights[k] * (lens.fitted.factor(k) if lens.fitted.same_for_all else 1.0)
    if c.scales is None:
        _add(total.entries, parts[c.lens], weight)
    else:
        down, across = (c.scales[k][order.order[run]] for run in (total.rows, total.cols))
        _add(total.entries, parts[c.lens], weight * down[:, None], across)


def _empty(order: StoreOrder, tile: TileTask) -> SumTile:
    rows, cols = order.run(tile.i), order.run(tile.j)
    return SumTile(rows, cols, np.zeros((rows.stop - rows.start, cols.stop - cols.start)))


def _part(lens: Lens, order: StoreOrder, place: SumTile, k: int, stored: Array) -> Array:
    """The entries of one kernel's stored tile that a tile of a sum takes, after steps that differ by kernel."""
    part: Array = stored[order.inside(place.rows)][:, order.inside(place.cols)]
    if lens.fitted.same_for_all:
        return part
    trail = lens.fitted.positions(order.order[place.rows], order.order[place.cols])
    return lens.fitted.elementwise(k, part, trail)


_PANEL = 32
"""Rows added at a time: the scratch array then stays in the cache (0.8 instead of 1.35 ns an entry)."""


def _add(total: Float, part: Array, weight: float | Float, across: Float | None = None) -> None:
    """Add weight · part to total, in float64; the weight is a number, or one for each row, and one for each column."""
    scratch = np.empty((_PANEL, total.shape[1]))
    for start in range(0, len(total), _PANEL):
        rows = slice(start, min(start + _PANEL, len(total)))
        panel = scratch[: rows.stop - start]
        panel[:] = part[rows]
        panel *= weight[rows] if isinstance(weight, np.ndarray) else weight
        if across is not None:
            panel *= across
        total[rows] += panel


_COUNTER = itertools.count(1)


@dataclass(frozen=True)
class SumPlan:
    """How the adding up of some combinations is cut into tasks."""

    lenses: list[Lens]
    """With the statistics that sums need."""
    sent: tuple[Any, Any]
    """The lenses and the combinations, as tasks take them."""
    cuts: list[tuple[str, tuple[TileTask, ...], int]]
    """Of each task its key, its tiles and the bytes it reads."""
    share: Share
    """What a task may take."""
    name: str
    token: str
    """Prefix and end of every key."""

    @classmethod
    def of(cls, lenses: Sequence[Lens], combinations: Sequence[Combination]) -> SumPlan:
        """Cut into tasks by the data alone, as other passes are: workers may come and go."""
        where = machine()
        name, token = f"combine-pass-{next(_COUNTER)}", uuid.uuid4().hex
        through = [for_sums(lens) for lens in lenses]
        sent = send_all({f"{name}-lenses-{token}": through, f"{name}-weights-{token}": list(combinations)})
        view = covering([lens.view for lens in lenses])
        tiles = view.tile_tasks()
        used = int(np.count_nonzero(np.any([c.weights for c in combinations], axis=0)))
        n_bytes = len(tiles) * used * view.bytes_per_tile
        parts = max(1, min(len(tiles), round(n_bytes / bytes_of_task(n_bytes))))
        cuts = np.array_split(np.arange(len(tiles)), parts)
        tasks = [
            (f"{name}-{number}-{token}", tuple(tiles[t] for t in cut), len(cut) * used * view.bytes_per_tile)
            for number, cut in enumerate(cuts)
        ]
        beside = where.task_bytes // 4 // (view.source.tiling.tile**2 * view.source.dtype.itemsize)
        share = Share(where.slots_per_host, max(1, min(_BESIDE, beside)))
        return cls(through, (sent[0], sent[1]), tasks, share, name, token)

    def tasks(self, work: Callable[..., Any], *more: Any) -> list[tuple[Delayed, int]]:
        """For each cut a task, `work(lenses, combinations, tiles, share, *more)`, and the bytes it reads."""
        call = delayed(work, pure=False)
        return [
            (call(*self.sent, tiles, self.share, *more, dask_key_name=key), n_bytes)
            for key, tiles, n_bytes in self.cuts
        ]


# --- combined kernels and their factors ----------------------------------------------------------------------------


_DIAGONAL_COLUMNS = 256
"""Columns whose squares are added up at once."""


# --- factors in memory -------------------------------------------------------------------------------------------


def direct_bytes(view: View, n_systems: int) -> int:
    """Bytes that one process holds at the height of the direct α-step for `n_systems` weightings at once."""
    m, base = view.shape[1], len(view.rows)
    # The matrix, and the tiles of its upper half: a good half of it, diagonal tiles being whole. Where the steps take
    # some of the rows after centering, both its halves are made once more, and what is taken comes on top.
    tiles = 0.5 * base * (base + view.source.tiling.tile)
    taking = 2 * base * base + m * m if view.takes_samples else 0
    return int(8 * n_systems * (tiles + base * base + taking))


@dataclass(eq=False)
class FactorHandle:
    """A factor where it lies: in this process, or, as a future, on the worker that made it.

    A worker that leaves takes its factors along, and Dask has forgotten the pass that led to them: the handle keeps
    what that pass needs, and `held` is then what it makes again.
    """

    held: Any
    lens: Lens
    combination: Combination
    lam: float


def solve_by_factors(factors: Sequence[FactorHandle], blocks: Sequence[Float]) -> list[Float]:
    """A⁻¹B of each factor for its B (m, c)."""
    return _by_factors("solve", Factor.solve, factors, blocks)


def diagonals_of_inverses(factors: Sequence[FactorHandle]) -> list[Float]:
    """The diagonal of A⁻¹ of each factor, (m,)."""
    return _by_factors("diagonal", Factor.inverse_diagonal, factors)


def _by_factors(
    name: str, function: Callable[..., Float], factors: Sequence[FactorHandle], *blocks: Sequence[Float]
) -> list[Float]:
    """What a function of each factor and its blocks returns: on a cluster where the factors lie, all at once."""
    client = active_client()
    if client is None:
        return [_pinned(function, factor.held, *own) for factor, *own in zip(factors, *blocks, strict=True)]

    def run() -> list[Float]:
        lost = [factor for factor in factors if factor.held.status != "finished"]
        for factor, made in zip(lost, _made_again(lost), strict=True):
            factor.held = made.held
        sent = [send_all({f"{name}-{k}": b for k, b in enumerate(some)}, broadcast=False) for some in blocks]
        found = [
            client.submit(_pinned, function, factor.held, *own, pure=False, key=f"alpha-{name}-{uuid.uuid4().hex}")
            for factor, *own in zip(factors, *sent, strict=True)
        ]
        return list(client.gather(found))

    return again(run, f"alpha-{name}")


def _made_again(lost: Sequence[FactorHandle]) -> list[FactorHandle]:
    """Factors that went with their workers, by one more pass for all of them."""
    if not lost:
        return []
    combinations = [replace(factor.combination, lens=number) for number, factor in enumerate(lost)]
    return factor_pass([factor.lens for factor in lost], combinations, [factor.lam for factor in lost])


def _pinned(function: Callable[..., Float], factor: Factor, *blocks: Float) -> Float:
    with pinned_blas(factor_threads(factor.size)):
        return function(factor, *blocks)


def factor_pass(
    lenses: Sequence[Lens], combinations: Sequence[Combination], lams: Sequence[float]
) -> list[FactorHandle]:
    """Factorize A for several weightings at once, each through one of the lenses and with its λ: one pass.

    The lenses are square views of the same kernels. IndefiniteKernelError if one of them is not positive definite.
    """
    made = _of_sums(_factor, "cholesky", lenses, combinations, lams, keep=True)
    return [FactorHandle(held, lenses[c.lens], c, lam) for held, c, lam in zip(made, combinations, lams, strict=True)]


def inverse_diagonals_pass(
    lenses: Sequence[Lens], combinations: Sequence[Combination], lams: Sequence[tuple[float, ...]], *, single: bool
) -> list[Float]:
    """The diagonal of A⁻¹ − 2P at some λ of each combination, (λ, m): one pass, and no factor is kept.

    P is the projection onto the vectors that the steps project out of the kernels (`Fitted.null_vectors`), on which
    A⁻¹ = 2I. In single precision where `single`. Where rounding leaves A indefinite a multiple of the identity is
    added to it.
    """
    function = partial(_inverse_diagonals, np.float32 if single else np.float64)
    return list(_of_sums(function, "inverse-diagonal", lenses, combinations, lams, keep=False))


def _of_sums(
    function: Callable[..., Any],
    name: str,
    lenses: Sequence[Lens],
    combinations: Sequence[Combination],
    arguments: Sequence[Any],
    *,
    keep: bool,
) -> list[Any]:
    """What a function makes of each combination and its argument: one pass, and a central task for each combination."""

    def run() -> list[Any]:
        plan = SumPlan.of(lenses, combinations)
        tasks = plan.tasks(_sum_tiles)
        parts = [part for part, _ in tasks]
        wanted = list(enumerate(zip(combinations, arguments, strict=True)))
        threads = max(factor_threads(plan.lenses[c.lens].view.shape[1]) for c in combinations)
        if active_client() is None and threads > 1:  # one after another, each on all cores
            found = execute(parts, tasks, plan.name)
            return [function(found, number, plan.lenses, c.lens, argument) for number, (c, argument) in wanted]
        task = delayed(function, pure=False)
        results = [
            task(parts, number, plan.sent[0], c.lens, argument, dask_key_name=f"{name}-{number}-{plan.token}")
            for number, (c, argument) in wanted
        ]
        return list(execute(results, tasks, plan.name, keep=keep))

    return list(again(run, "combine"))


def _sum_tiles(
    lenses: Sequence[Lens], combinations: Sequence[Combination], tiles: tuple[TileTask, ...], share: Share
) -> list[list[SumTile]]:
    """For each combination its tiles that one task adds up."""
    found = [totals for _, totals in add_tiles(lenses, combinations, tiles, share)]
    return [[totals[number] for totals in found] for number in range(len(combinations))]


def _factor(parts: list[list[list[SumTile]]], number: int, lenses: Sequence[Lens], lens: int, lam: float) -> Factor:
    """Put the tiles of one combination together and factorize: the one central task of the direct α-step."""
    with pinned_blas(factor_threads(lenses[lens].view.shape[1])):
        total = put_together((tile for part in parts for tile in part[number]), lenses[lens])
        return Factor(total.entries, lam, total.order)


def _inverse_diagonals(
    dtype: npt.DTypeLike,
    parts: list[list[list[SumTile]]],
    number: int,
    lenses: Sequence[Lens],
    lens: int,
    lams: tuple[float, ...],
) -> Float:
    with pinned_blas(factor_threads(lenses[lens].view.shape[1])):
        total = put_together((tile for part in parts for tile in part[number]), lenses[lens], dtype)
        lower, order = total.entries, total.order
        samples = slice(None) if order is None else order
        own = np.empty((2, len(lower)))
        own[:, samples] = np.diagonal(lower), _row_squares(lower)
        size, null, projected = own[0].sum(), lenses[lens].fitted.null_vectors(len(lower)), np.zeros(len(lower))
        if null is not None:
            # Rounding leaves KN = 0 to a few ε‖K‖, which is as large as a small λ. So P is added to K on the scale of
            # K, and 2P/(1 + tr K/λ), which it leaves in the inverse, is subtracted.
            q = np.linalg.qr(null)[0]
            projected = np.einsum("mk,mk->m", q, q)
            lower += size * (q[samples].astype(dtype) @ q[samples].T.astype(dtype))

        def matrix() -> tuple[Array, Index | None]:
            return lower.copy(order="F"), order

        def at(lam: float) -> Float:
            if lower.dtype == np.float32 and lam >= size:
                # 1 − ½(A⁻¹)_ii = K_ii/λ − (K²)_ii/λ² + … is lost in the rounding of A⁻¹; the fraction has these terms.
                return np.asarray(2.0 - 2.0 * projected - 2.0 * own[0] / (lam + own[1] / own[0]))
            inverse = RoughFactor.of(matrix, lam).inverse_diagonal()
            return np.asarray(inverse - 2.0 * projected / (1.0 + size / lam))

        return np.stack([at(lam) for lam in lams])


def _row_squares(lower: Array) -> Float:
    """Σ_k K_ik² of each row of a symmetric matrix whose lower triangle is right, (m,)."""
    squares = np.zeros(len(lower))
    for start in range(0, len(lower), _DIAGONAL_COLUMNS):
        panel = np.tril(lower[start:, start : start + _DIAGONAL_COLUMNS]).astype(np.float64) ** 2
        squares[start:] += panel.sum(axis=1)
        squares[start : start + panel.shape[1]] += panel.sum(axis=0)
    return np.asarray(squares - np.diagonal(lower).astype(np.float64) ** 2)


# --- sums kept on disk -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredSum:
    """A combination that a pass has written to disk, tile by tile: larger together than the memory of a worker."""

    stem: str
    """Of its files: ``<stem>-<tile row>-<tile column>.npy``."""
    tiles: tuple[tuple[int, int], ...]
    """Which tiles there are."""
    lens: Lens
    """What it was seen through."""

    def matrix(self, dtype: npt.DTypeLike = np.float64) -> tuple[Array, Index | None]:
        """K(β), of which the lower triangle is right, and the position of each of its rows among the samples."""
        total = put_together(self.read(), self.lens, dtype)
        return total.entries, total.order

    def whole(self) -> Float:
        """K(β) over the samples of the view in their order, (m, m), both triangles."""
        return put_together(self.read(), self.lens).whole()

    def read(self) -> Iterator[SumTile]:
        """The tiles, before the steps where the chain is left to the whole sum; each is gone when the next is taken."""
        order, entries = sum_order(self.lens), np.empty(0)
        for i, j in self.tiles:
            entries = read_array(_tile_file(self.stem, i, j), entries)
            yield SumTile(order.run(i), order.run(j), entries)


def _tile_file(stem: str, i: int, j: int) -> str:
    return f"{stem}-{i}-{j}.npy"


def combine_pass(lenses: Sequence[Lens], combinations: Sequence[Combination], stems: Sequence[str]) -> list[StoredSum]:
    """Add up several combinations and write them to disk: one pass, and a tile of each in memory.

    The lenses are square views of the same kernels; the stems say where each combination goes, in a folder that all
    workers see (see `StoredSum`).
    """

    def run() -> SumPlan:
        plan = SumPlan.of(lenses, combinations)
        tasks = plan.tasks(_write_tiles, list(stems))
        execute([task for task, _ in tasks], tasks, plan.name)
        return plan

    plan = again(run, "combine")
    tiles = tuple((tile.i, tile.j) for _, some, _ in plan.cuts for tile in some)
    return [StoredSum(stem, tiles, plan.lenses[c.lens]) for c, stem in zip(combinations, stems, strict=True)]


def _write_tiles(
    lenses: Sequence[Lens],
    combinations: Sequence[Combination],
    tiles: tuple[TileTask, ...],
    share: Share,
    stems: Sequence[str],
) -> None:
    for tile, totals in add_tiles(lenses, combinations, tiles, share):
        for stem, total in zip(stems, totals, strict=True):
            save_array(_tile_file(stem, tile.i, tile.j), total.entries)


# --- columns of a combined kernel on disk --------------------------------------------------------------------------


class SumColumns:
    """K(β) of a stored sum, after its chain of steps, as columns and products: `size` samples, m.

    The sum is stored before centering where the chain is the same for all kernels; then K = raw − u1ᵀ − 1uᵀ + c, with u
    and c from products of the raw sum with one vector for each centering. The matrix itself is never in memory.
    """

    def __init__(self, total: StoredSum) -> None:
        self._total = total
        # The raw row of each sample of the view.
        self._chosen = np.argsort(sum_order(total.lens).order)
        n_raw = len(self._chosen)
        self._offset, self._constant = np.zeros(n_raw), 0.0
        self._scale: Float | None = None
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
        found = (diagonal - 2.0 * self._offset + self._constant)[self._chosen]
        return np.asarray(found if self._scale is None else found * self._scale**2)

    def __call__(self, columns: Index) -> Float:
        """K[:, columns], (m, columns): every tile that holds one of them is read, from the page cache at best."""
        wanted = self._chosen[columns]
        raw = np.empty((len(self._offset), len(wanted)))
        for rows, cols, entries in self._total.read():
            for these, others, part in ((cols, rows, entries), (rows, cols, entries.T)):
                mine = np.flatnonzero((wanted >= these.start) & (wanted < these.stop))
                if len(mine):
                    raw[others, mine] = part[:, wanted[mine] - these.start]
                if rows == cols:
                    break
        raw -= self._offset[:, None]
        raw += (self._constant - self._offset[wanted])[None, :]
        found = raw[self._chosen]
        return found if self._scale is None else found * self._scale[:, None] * self._scale[columns]

    def product(self, v: Float) -> Float:
        """K v for v (m,) or (m, c), one reading of the sum."""
        if self._scale is None:
            return self._centered_product(self._spread(v))[self._chosen]
        factor = self._scale.reshape(-1, *(1,) * (v.ndim - 1))
        return factor * self._centered_product(self._spread(factor * v))[self._chosen]

    def center(self, weights: Float | None = None) -> None:
        """Center the matrix over its samples, as a step of the chain."""
        mean = self._spread(np.full(len(self._chosen), 1.0 / len(self._chosen)) if weights is None else weights)
        if self._scale is not None:
            msg = "a sum on disk is centered before it is scaled, not after"
            raise NotImplementedError(msg)
        means = self._centered_product(mean)
        self._offset = self._offset + means
        self._constant += float(means @ mean)

    def scale(self, factor: Float) -> None:
        """Multiply rows and columns by numbers, as the last step of the chain that does so."""
        self._scale = factor if self._scale is None else self._scale * factor

    def take(self, positions: Index) -> None:
        """Keep the samples at these positions, as a step of the chain."""
        self._chosen = self._chosen[positions]
        self._scale = None if self._scale is None else self._scale[positions]

    def _spread(self, v: Float) -> Float:
        """A vector over the samples as one over the raw rows."""
        spread = np.zeros((len(self._offset), *v.shape[1:]))
        np.add.at(spread, self._chosen, v)  # samples may repeat
        return spread

    def _centered_product(self, v: Float) -> Float:
        """The product of the sum, as it is centered so far, with a vector over the raw rows."""
        found = np.zeros(v.shape)
        for rows, cols, entries in self._total.read():
            found[rows] += entries @ v[cols]
            if rows != cols:
                found[cols] += entries.T @ v[rows]
        offset = self._offset.reshape(-1, *(1,) * (v.ndim - 1))
        whole = v.sum(axis=0)
        return np.asarray(found - offset * whole - self._offset @ v + self._constant * whole)
