"""The weighted sum of all kernels as one matrix in memory, and its Cholesky factor: the direct α-step.

One pass adds up the kernels tile by tile, in strips that are tasks of their own; one central task puts the strips
together, centres the sum and factorises A = ½(I + K(β)/λ).
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.linalg
from dask.delayed import delayed

from dmkl import settings
from dmkl.errors import IndefiniteKernelError
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import Machine, active_client, again, execute, machine, share_all
from dmkl.passes.ordering import StoreOrder
from dmkl.passes.view import Lens, TileTask, View, covering

__all__ = [
    "Combination",
    "Factor",
    "FactorHandle",
    "StoredSum",
    "combine_pass",
    "direct_bytes",
    "factor_pass",
    "fits_in_memory",
    "for_sums",
]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def direct_bytes(view: View, n_systems: int) -> int:
    """Bytes that one process holds at the height of the direct α-step for `n_systems` weightings at once."""
    m, base = view.shape[1], len(view.rows)
    # The matrix, and the strips of its upper half: a good half of it, diagonal tiles being whole. Where the steps take
    # some of the rows after centring, both its halves are made once more, and what is taken comes on top.
    strips = 0.5 * base * (base + view.source.tiling.tile)
    taking = 2 * base * base + m * m if view.takes_samples else 0
    return int(8 * n_systems * (strips + base * base + taking))


def fits_in_memory(view: View, n_systems: int, where: Machine | None = None) -> bool:
    """Whether the direct α-step fits the budget, or a worker's memory."""
    return direct_bytes(view, n_systems) <= (machine() if where is None else where).total_bytes


@dataclass(frozen=True)
class Combination:
    """Σ_j w_j K_j through one of the lenses that share a pass, or Σ_j w_j D_j K_j D_j with diagonal matrices D_j.

    Parameters
    ----------
    lens
        Which one; of scaled kernels one whose chain is `entrywise`.
    weights
        w, (n,)
    scales
        The diagonals, (n, m).
    """

    lens: int
    weights: Float
    scales: Float | None = None


Block = tuple[slice, slice, Float]
"""A run of rows, a run of columns, and the entries there."""
_Strip = list[list[Block]]
"""The upper tiles of the sums that one task adds up: for each combination its blocks."""


def _order(lens: Lens) -> StoreOrder:
    """The samples of the sum: those before the steps where the chain is left to the whole sum, after them otherwise.

    The sum is put together, centred and factorised in the order of the store, and only vectors are ever permuted:
    taking a shuffled training set costs no scattered copy of a matrix.
    """
    rows = lens.view.rows if lens.fitted.same_for_all else lens.view.final_positions()[0]
    return StoreOrder.of(rows, lens.view.source.tiling.tile)


_PANEL = 32
"""Rows added at a time: the scratch array then stays in the cache (0.8 instead of 1.35 ns an entry)."""


def add_strip(
    lenses: Sequence[Lens], combinations: Sequence[Combination], tiles: tuple[TileTask, ...], tasks_per_machine: int
) -> Iterator[tuple[TileTask, list[Block]]]:
    """Every combination over some tiles, in float64, tile after tile.

    Where the chain is the same for all kernels up to a factor (`Fitted.same_for_all`), raw tiles are added and the
    chain is left to the whole sum; otherwise each tile is transformed entry by entry first.
    """
    source, kernels = lenses[0].view.source, lenses[0].view.kernels
    orders = [_order(lens) for lens in lenses]
    used = [k for k in range(len(kernels)) if any(c.weights[k] for c in combinations)]
    stream = source.stream([(int(kernels[k]), tile.i, tile.j) for tile in tiles for k in used])
    for tile in tiles:
        with pinned_blas(blas_threads(tasks_per_machine)):
            runs = [(order.run(tile.i), order.run(tile.j)) for order in orders]
            totals = [np.zeros([part.stop - part.start for part in runs[c.lens]]) for c in combinations]
            for k in used:
                _, whole = next(stream)
                for number, (lens, order, (rows, cols)) in enumerate(zip(lenses, orders, runs, strict=True)):
                    mine = [
                        (total, c.weights[k], c.scales)
                        for c, total in zip(combinations, totals, strict=True)
                        if c.lens == number and c.weights[k]
                    ]
                    if not mine or rows.start == rows.stop or cols.start == cols.stop:
                        continue
                    part = whole[order.inside(rows)][:, order.inside(cols)]
                    factor = lens.fitted.factor(k) if lens.fitted.same_for_all else 1.0
                    if not lens.fitted.same_for_all:
                        trail = lens.fitted.positions(order.order[rows], order.order[cols])
                        part = lens.fitted.elementwise(k, part, trail)
                    for total, weight, scales in mine:
                        if scales is None:
                            _add(total, part, weight * factor)
                        else:
                            down, across = (scales[k][order.order[run]] for run in (rows, cols))
                            _add(total, part, weight * factor * down[:, None], across)
            yield tile, [(*runs[c.lens], total) for c, total in zip(combinations, totals, strict=True)]


def _strip(
    lenses: Sequence[Lens], combinations: Sequence[Combination], tiles: tuple[TileTask, ...], tasks_per_machine: int
) -> _Strip:
    blocks: _Strip = [[] for _ in combinations]
    for _, found in add_strip(lenses, combinations, tiles, tasks_per_machine):
        for mine, block in zip(blocks, found, strict=True):
            mine.append(block)
    return blocks


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


class Factor:
    """The Cholesky factor of A = ½(I + K(β)/λ).

    Parameters
    ----------
    combined
        K(β), (m, m); of it the lower triangle is read, and it is overwritten.
    lam
        λ
    order
        The position of each row of `combined` among the samples; as they are where missing.
    """

    def __init__(self, combined: Float, lam: float, order: Index | None = None) -> None:
        self._order = order
        combined *= 0.5 / lam
        combined[np.diag_indices_from(combined)] += 0.5
        try:
            self._factor = scipy.linalg.cho_factor(combined, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError as error:
            msg = (
                f"I + K(β)/λ is not positive definite at λ = {lam:g}: a kernel has an eigenvalue below −λ over these "
                "samples. Run `dmkl check`; mend such kernels with repair='clip', 'flip' or 'shift', leave them out "
                "with select(), or take a larger λ"
            )
            raise IndefiniteKernelError(msg) from error

    def solve(self, b: Array) -> Float:
        """A⁻¹B for B (m, c)."""
        if self._order is None:
            return np.asarray(scipy.linalg.cho_solve(self._factor, b, check_finite=False))
        solved = np.empty(b.shape)
        solved[self._order] = scipy.linalg.cho_solve(self._factor, b[self._order], check_finite=False)
        return solved


def _whole(blocks: Iterable[Block], lens: Lens) -> tuple[Float, Index | None]:
    """K(β) of which the lower triangle is right, (m, m), and the position of each of its rows among the samples."""
    order = _order(lens)
    m = len(order.order)
    # Column-major, as LAPACK wants it. Blocks above the diagonal, row-major, are blocks below it in that order: each
    # is copied as it lies, and the upper triangle is never written nor read.
    combined = np.zeros((m, m), order="F")
    sums = np.zeros(m)
    for rows, cols, block in blocks:
        combined.T[rows, cols] = block
        sums[rows] += block.sum(axis=1)
        if rows != cols:
            sums[cols] += block.sum(axis=0)
    total = _LowerTriangle(combined, sums, order.order)
    if lens.fitted.same_for_all:
        lens.fitted.apply_to(total)
    return total.entries, total.order


def assemble(strips: list[_Strip], number: int, lens: Lens, lam: float) -> Factor:
    """Put the strips of one combination together and factorise; the one central task of the direct α-step."""
    with pinned_blas(settings.available_cores()):  # it runs alone
        whole, order = _whole((block for strip in strips for block in strip[number]), lens)
        return Factor(whole, lam, order)


@dataclass
class _LowerTriangle:
    """A sum of kernels of which the lower triangle is right.

    Parameters
    ----------
    entries
        (m, m)
    sums
        Of its rows, as if both triangles were right, (m,).
    order
        Position of each row among the samples; None where they are as they should be.
    """

    entries: Float
    sums: Float
    order: Index | None

    def center(self) -> None:
        """Center over the samples."""
        means = self.sums / len(self.sums)
        grand = means.mean()
        for start in range(0, len(means), 256):
            panel = self.entries[start:, start : start + 256]
            panel -= means[start:, None]
            panel -= (means[start : start + 256] - grand)[None, :]
        self.sums = np.zeros_like(self.sums)

    def take(self, positions: Index) -> None:
        """Keep the samples at these positions; both triangles are right then."""
        if self.order is not None:
            where = np.empty_like(self.order)
            where[self.order] = np.arange(len(self.order))
            positions = where[positions]
        lower = np.tril(self.entries)
        whole = lower + np.tril(lower, -1).T
        self.entries = np.asfortranarray(whole[np.ix_(positions, positions)])
        self.sums, self.order = self.entries.sum(axis=1), None


class FactorHandle:
    """A factor where it lies: in this process, or on the worker that made it."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def solve(self, b: Float) -> Float:
        """A⁻¹B for B (m, c)."""
        client = active_client()
        if client is None or isinstance(self._held, Factor):
            return np.asarray(self._held.solve(b))
        sent = client.scatter([b], hash=False)[0]
        solved = client.submit(_solve, self._held, sent, pure=False, key=f"alpha-solve-{uuid.uuid4().hex}")
        return np.asarray(solved.result())


def _solve(factor: Factor, b: Float) -> Float:
    with pinned_blas(settings.available_cores()):
        return factor.solve(b)


_COUNTER = itertools.count(1)


def factor_pass(
    lenses: Sequence[Lens], combinations: Sequence[Combination], lams: Sequence[float]
) -> list[FactorHandle]:
    """Factorise A for several weightings at once: one pass over the kernels.

    Parameters
    ----------
    lenses
        Square views of the same kernels, with their statistics.
    combinations
        The weightings, each through one of the lenses.
    lams
        λ of each.
    """
    return again(lambda: _factor_pass(lenses, combinations, lams), "combine")


def _factor_pass(
    lenses: Sequence[Lens], combinations: Sequence[Combination], lams: Sequence[float]
) -> list[FactorHandle]:
    plan = _Plan.of(lenses, combinations, "combine-pass")
    strips = [
        (delayed(_strip, pure=False)(*plan.shared, tiles, plan.slots_per_host, dask_key_name=key), n_bytes)
        for key, tiles, n_bytes in plan.tasks
    ]
    if active_client() is None:
        found = execute([strip for strip, _ in strips], strips, plan.name)
        return [
            FactorHandle(assemble(found, number, plan.lenses[c.lens], lam))
            for number, (c, lam) in enumerate(zip(combinations, lams, strict=True))
        ]
    factors = [
        delayed(_assemble_shared, pure=False)(
            [strip for strip, _ in strips],
            number,
            plan.shared[0],
            c.lens,
            lam,
            dask_key_name=f"cholesky-{number}-{plan.token}",
        )
        for number, (c, lam) in enumerate(zip(combinations, lams, strict=True))
    ]
    return [FactorHandle(held) for held in execute(factors, strips, plan.name, keep=True)]


def _assemble_shared(strips: list[_Strip], number: int, lenses: list[Lens], lens: int, lam: float) -> Factor:
    return assemble(strips, number, lenses[lens], lam)


def for_sums(lens: Lens) -> Lens:
    """The lens with the statistics that sums need: of a shared chain those of products, otherwise all."""
    return replace(lens, fitted=lens.fitted.for_products()) if lens.fitted.same_for_all else lens


@dataclass(frozen=True)
class _Plan:
    """How the adding up of some combinations is cut into tasks."""

    lenses: list[Lens]
    shared: tuple[Any, Any]
    """The lenses and the combinations, as tasks take them."""
    tasks: list[tuple[str, tuple[TileTask, ...], int]]
    """Of each task: its key, its tiles, the bytes it reads."""
    slots_per_host: int
    name: str
    token: str

    @classmethod
    def of(cls, lenses: Sequence[Lens], combinations: Sequence[Combination], verb: str) -> _Plan:
        where = machine()
        name, token = f"{verb}-{next(_COUNTER)}", uuid.uuid4().hex
        products = [for_sums(lens) for lens in lenses]
        held = share_all({f"{name}-lenses-{token}": products, f"{name}-weights-{token}": list(combinations)})
        view = covering([lens.view for lens in lenses])
        tiles = view.tile_tasks()
        tile_bytes = view.source.tiling.tile**2 * view.source.dtype.itemsize * view.source.reads_per_tile
        used = int(np.count_nonzero(np.any([c.weights for c in combinations], axis=0)))
        cuts = [cut for cut in np.array_split(np.arange(len(tiles)), 4 * where.slots) if len(cut)]
        tasks = [
            (f"{name}-{number}-{token}", tuple(tiles[t] for t in cut), len(cut) * used * tile_bytes)
            for number, cut in enumerate(cuts)
        ]
        return cls(products, (held[0], held[1]), tasks, where.slots_per_host, name, token)


# --- sums kept on disk -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredSum:
    """A combination that a pass has written to disk, tile by tile: larger together than the memory of a worker.

    Parameters
    ----------
    stem
        Of its files: ``<stem>-<tile row>-<tile column>.npy``.
    tiles
        Which tiles there are.
    lens
        What it was seen through.
    """

    stem: str
    tiles: tuple[tuple[int, int], ...]
    lens: Lens

    def matrix(self) -> tuple[Float, Index | None]:
        """K(β), of which the lower triangle is right, and the position of each of its rows among the samples."""
        return _whole(self.blocks(), self.lens)

    def blocks(self, mmap_mode: Literal["r"] | None = None) -> Iterator[Block]:
        """The tiles: runs of rows and columns of the sum, and the entries there."""
        order = _order(self.lens)
        for i, j in self.tiles:
            yield order.run(i), order.run(j), np.load(_tile_file(self.stem, i, j), mmap_mode=mmap_mode)

    def places(self) -> tuple[Index, int]:
        """The position among the view's samples of each row of the sum, and how many rows there are."""
        order = _order(self.lens).order
        return order, len(order)

    def whole(self) -> Float:
        """K(β) over the samples of the view in their order, (m, m), both triangles."""
        lower, places = self.matrix()
        for start in range(0, len(lower), _MIRRORED):
            stop = min(start + _MIRRORED, len(lower))
            lower[:start, start:stop] = lower[start:stop, :start].T
            corner = np.tril(lower[start:stop, start:stop])
            lower[start:stop, start:stop] = corner + np.tril(corner, -1).T
        if places is None or np.array_equal(places, np.arange(len(places))):
            return lower.T  # symmetric, and row-major this way
        back = np.argsort(places)
        return np.ascontiguousarray(lower.T[np.ix_(back, back)])

    def remove(self) -> None:
        """Delete its files."""
        for i, j in self.tiles:
            Path(_tile_file(self.stem, i, j)).unlink(missing_ok=True)


_MIRRORED = 512


def _tile_file(stem: str, i: int, j: int) -> str:
    return f"{stem}-{i}-{j}.npy"


def combine_pass(lenses: Sequence[Lens], combinations: Sequence[Combination], stems: Sequence[str]) -> list[StoredSum]:
    """Add up several combinations and write them to disk: one pass, and a tile of each in memory.

    Parameters
    ----------
    lenses
        Square views of the same kernels, with their statistics.
    combinations
        Each through one of the lenses.
    stems
        Where each goes, in a folder that all workers see (see `StoredSum`).
    """
    plan = again(lambda: _combine_pass(lenses, combinations, stems), "combine")
    tiles = tuple((tile.i, tile.j) for _, some, _ in plan.tasks for tile in some)
    return [StoredSum(stem, tiles, plan.lenses[c.lens]) for c, stem in zip(combinations, stems, strict=True)]


def _combine_pass(lenses: Sequence[Lens], combinations: Sequence[Combination], stems: Sequence[str]) -> _Plan:
    plan = _Plan.of(lenses, combinations, "combine-pass")
    strips = [
        (
            delayed(_write_strip, pure=False)(*plan.shared, tiles, plan.slots_per_host, list(stems), dask_key_name=key),
            n_bytes,
        )
        for key, tiles, n_bytes in plan.tasks
    ]
    execute([strip for strip, _ in strips], strips, plan.name)
    return plan


def _write_strip(
    lenses: list[Lens],
    combinations: list[Combination],
    tiles: tuple[TileTask, ...],
    tasks_per_machine: int,
    stems: list[str],
) -> None:
    for tile, blocks in add_strip(lenses, combinations, tiles, tasks_per_machine):
        for stem, (_, _, block) in zip(stems, blocks, strict=True):
            np.save(_tile_file(stem, tile.i, tile.j), block)
