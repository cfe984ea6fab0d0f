"""The weighted sum of all kernels as one matrix in memory, and its Cholesky factor: the direct α-step.

One pass adds up the kernels tile by tile, in strips that are tasks of their own; one central task puts the strips
together, centres the sum and factorises A = ½(I + K(β)/λ).
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
from dask.delayed import delayed

from dmkl import settings
from dmkl.blocks.chain import Fitted, Take
from dmkl.errors import IndefiniteKernelError
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import Machine, active_client, again, execute, machine, share_all
from dmkl.passes.view import TileTask, View

__all__ = ["FactorHandle", "direct_bytes", "factor_pass", "fits_in_memory"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def direct_bytes(view: View, n_systems: int) -> int:
    """Bytes that one process holds at the height of the direct α-step for `n_systems` weightings at once."""
    m, base = view.shape[1], len(view.rows)
    # The matrix, and the strips of its upper half: a good half of it, diagonal tiles being whole. Where the steps take
    # some of the rows after centring, both its halves are made once more, and what is taken comes on top.
    strips = 0.5 * base * (base + view.source.tiling.tile)
    taking = 2 * base * base + m * m if any(isinstance(step, Take) for step in view.steps) else 0
    return int(8 * n_systems * (strips + base * base + taking))


def fits_in_memory(view: View, n_systems: int, where: Machine | None = None) -> bool:
    """Whether the direct α-step fits the budget, or a worker's memory."""
    return direct_bytes(view, n_systems) <= (machine() if where is None else where).total_bytes


@dataclass(frozen=True)
class _Strip:
    """The upper tiles of the sum that one task adds up: runs of rows and columns, a block for each weighting."""

    blocks: list[tuple[slice, slice, list[Float]]]


@dataclass(frozen=True)
class _Order:
    """The samples of the sum in the order of the store, in which those of one tile are neighbors.

    The sum is put together, centred and factorised in this order, and only vectors are ever permuted: taking a shuffled
    training set costs no scattered copy of a matrix.
    """

    order: Index
    """Position in the view of each sample of the sum."""
    stored: Index
    """Position in the source of each sample of the sum, ascending."""

    @classmethod
    def of(cls, view: View, fitted: Fitted) -> _Order:
        """The samples before the steps where the chain is left to the whole sum, after them otherwise."""
        rows = view.rows if fitted.shared else view.final_positions()[0]
        order = np.argsort(rows, kind="stable")
        return cls(order, rows[order])

    def run(self, tile: int, side: int) -> slice:
        """The samples that lie in one row of tiles."""
        start, stop = np.searchsorted(self.stored, (tile * side, (tile + 1) * side))
        return slice(int(start), int(stop))


def _inside(local: Index) -> Any:
    """A slice where the positions are a run: no copy."""
    if len(local) and local[-1] - local[0] == len(local) - 1 and np.all(np.diff(local) == 1):
        return slice(int(local[0]), int(local[-1]) + 1)
    return local


_PANEL = 32
"""Rows added at a time: the scratch array then stays in the cache (0.8 instead of 1.35 ns an entry)."""


def add_strip(
    view: View, fitted: Fitted, tiles: tuple[TileTask, ...], weights: Float, tasks_per_machine: int
) -> _Strip:
    """Σ_j w_jl K_j over some tiles, for every weighting l, in float64.

    Where every kernel's chain is the same up to a factor (`fitted.shared`), raw tiles are added and the chain is left
    to the whole sum; otherwise each tile is transformed entry by entry first.
    """
    side = view.source.tiling.tile
    order = _Order.of(view, fitted)
    used = [k for k in range(len(view.kernels)) if np.any(weights[k])]
    keys = [(int(view.kernels[k]), tile.i, tile.j) for tile in tiles for k in used]
    stream = view.source.stream(keys)
    blocks = []
    with pinned_blas(blas_threads(tasks_per_machine)):
        for tile in tiles:
            rows, cols = order.run(tile.i, side), order.run(tile.j, side)
            local_rows, local_cols = _inside(order.stored[rows] % side), _inside(order.stored[cols] % side)
            trail = fitted.positions(order.order[rows], order.order[cols])
            sums = [np.zeros((rows.stop - rows.start, cols.stop - cols.start)) for _ in range(weights.shape[1])]
            for k in used:
                _, whole = next(stream)
                part = whole[local_rows][:, local_cols]
                factor = fitted.factor(k) if fitted.shared else 1.0
                if not fitted.shared:
                    part = fitted.elementwise(k, part, trail)
                for column, total in enumerate(sums):
                    if weights[k, column]:
                        _add(total, part, weights[k, column] * factor)
            blocks.append((rows, cols, sums))
    return _Strip(blocks)


def _add(total: Float, part: Array, weight: float) -> None:
    """Add weight · part to total, in float64."""
    scratch = np.empty((_PANEL, total.shape[1]))
    for start in range(0, len(total), _PANEL):
        rows = slice(start, min(start + _PANEL, len(total)))
        panel = scratch[: rows.stop - start]
        panel[:] = part[rows]
        panel *= weight
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


def assemble(strips: list[_Strip], column: int, view: View, fitted: Fitted, lam: float) -> Factor:
    """Put the strips of one weighting together and factorise; the one central task of the direct α-step."""
    with pinned_blas(settings.available_cores()):  # it runs alone
        order = _Order.of(view, fitted)
        m = len(order.order)
        # Column-major, as LAPACK wants it. Blocks above the diagonal, row-major, are blocks below it in that order:
        # each is copied as it lies, and the upper triangle is never written nor read.
        combined = np.zeros((m, m), order="F")
        sums = np.zeros(m)
        for strip in strips:
            for rows, cols, blocks in strip.blocks:
                combined.T[rows, cols] = blocks[column]
                sums[rows] += blocks[column].sum(axis=1)
                if rows != cols:
                    sums[cols] += blocks[column].sum(axis=0)
        if not fitted.shared:
            return Factor(combined, lam, order.order)
        return _finish(combined, sums, order.order, fitted, lam)


def _finish(combined: Float, sums: Float, order: Index, fitted: Fitted, lam: float) -> Factor:
    """Centre and take, as the chain says, on the lower triangle of the sum; `sums` are its row sums."""
    places: Index | None = order
    for step in fitted.steps:
        if step.kind == "center":
            means = sums / len(sums)
            grand = means.mean()
            for start in range(0, len(sums), 256):
                panel = combined[start:, start : start + 256]
                panel -= means[start:, None]
                panel -= (means[start : start + 256] - grand)[None, :]
            sums = np.zeros_like(sums)
        elif step.take is not None:
            chosen = step.take.rows
            if places is not None:
                where = np.empty_like(places)
                where[places] = np.arange(len(places))
                chosen = where[chosen]
            lower = np.tril(combined)
            whole = lower + np.tril(lower, -1).T
            combined = np.asfortranarray(whole[np.ix_(chosen, chosen)])
            sums, places = combined.sum(axis=1), None
    return Factor(combined, lam, places)


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


def factor_pass(view: View, fitted: Fitted, weights: Float, lams: list[float]) -> list[FactorHandle]:
    """Factorise A for several weightings at once: one pass over the kernels.

    Parameters
    ----------
    view
        A square view.
    weights
        (kernels, systems)
    lams
        λ of each system.
    """
    return again(lambda: _factor_pass(view, fitted, weights, lams), "combine")


def _factor_pass(view: View, fitted: Fitted, weights: Float, lams: list[float]) -> list[FactorHandle]:
    where = machine()
    name, token = f"combine-pass-{next(_COUNTER)}", uuid.uuid4().hex
    statistics = fitted.for_products() if fitted.shared else fitted
    shared_view, shared_fitted = share_all({f"{name}-view-{token}": view, f"{name}-statistics-{token}": statistics})
    tiles = view.tile_tasks()
    cuts = [cut for cut in np.array_split(np.arange(len(tiles)), 4 * where.slots) if len(cut)]
    tile_bytes = view.source.tiling.tile**2 * view.source.dtype.itemsize * view.source.reads_per_tile
    used = int(np.count_nonzero(np.any(weights, axis=1)))
    strips = [
        (
            delayed(add_strip, pure=False)(
                shared_view,
                shared_fitted,
                tuple(tiles[t] for t in cut),
                weights,
                where.slots_per_host,
                dask_key_name=f"{name}-{number}-{token}",
            ),
            len(cut) * used * tile_bytes,
        )
        for number, cut in enumerate(cuts)
    ]
    client = active_client()
    if client is None:
        found = execute([strip for strip, _ in strips], strips, name)
        return [FactorHandle(assemble(found, k, view, statistics, lam)) for k, lam in enumerate(lams)]
    factors = [
        delayed(assemble, pure=False)(
            [strip for strip, _ in strips],
            k,
            shared_view,
            shared_fitted,
            lam,
            dask_key_name=f"cholesky-{k}-{token}",
        )
        for k, lam in enumerate(lams)
    ]
    return [FactorHandle(held) for held in execute(factors, strips, name, keep=True)]
