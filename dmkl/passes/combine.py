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
from dmkl.blocks.chain import Fitted
from dmkl.errors import IndefiniteKernelError
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import Machine, active_client, again, execute, machine, share
from dmkl.passes.view import TileTask, View

__all__ = ["FactorHandle", "direct_bytes", "factor_pass", "fits_in_memory"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def direct_bytes(view: View, n_systems: int) -> int:
    """Bytes that one process holds at the height of the direct α-step for `n_systems` weightings at once."""
    m, base = view.shape[1], len(view.rows)
    # The matrix, the strips of its upper half (a good half of it, diagonal tiles being whole), and each once more
    # where the steps take some of the rows after centring.
    strips = 0.5 * base * (base + view.source.tiling.tile)
    return int(8 * n_systems * (strips + base * base + (m * m if m != base else 0)))


def fits_in_memory(view: View, n_systems: int, where: Machine | None = None) -> bool:
    """Whether the direct α-step fits the budget, or a worker's memory."""
    return direct_bytes(view, n_systems) <= (machine() if where is None else where).total_bytes


@dataclass(frozen=True)
class _Strip:
    """The upper tiles of the sum that one task adds up: positions of rows and columns, a block for each weighting."""

    blocks: list[tuple[Index, Index, list[Float]]]


def _places(positions: Index, side: int) -> list[Index]:
    """For each row of tiles, which of the positions lie in it."""
    order = np.argsort(positions // side, kind="stable")
    found, starts = np.unique(positions[order] // side, return_index=True)
    groups: list[Index] = [np.array([], dtype=np.int64)] * (int(positions.max()) // side + 1)
    for tile, group in zip(found, np.split(order, starts[1:]), strict=True):
        groups[int(tile)] = group
    return groups


def _inside(local: Index) -> Any:
    """A slice where the positions are a run: no copy."""
    if len(local) and local[-1] - local[0] == len(local) - 1 and np.all(np.diff(local) == 1):
        return slice(int(local[0]), int(local[-1]) + 1)
    return local


def add_strip(
    view: View, fitted: Fitted, tiles: tuple[TileTask, ...], weights: Float, tasks_per_machine: int
) -> _Strip:
    """Σ_j w_jl K_j over some tiles, for every weighting l, in float64.

    Where every kernel's chain is the same up to a factor (`fitted.shared`), raw tiles are added and the chain is left
    to the whole sum; otherwise each tile is transformed entry by entry first.
    """
    side = view.source.tiling.tile
    rows, _ = (view.rows, view.cols) if fitted.shared else view.final_positions()
    places = _places(rows, side)
    used = [k for k in range(len(view.kernels)) if np.any(weights[k])]
    keys = [(int(view.kernels[k]), tile.i, tile.j) for tile in tiles for k in used]
    stream = view.source.stream(keys)
    blocks = []
    with pinned_blas(blas_threads(tasks_per_machine)):
        for tile in tiles:
            at_rows, at_cols = places[tile.i], places[tile.j]
            local_rows, local_cols = _inside(rows[at_rows] % side), _inside(rows[at_cols] % side)
            trail = fitted.positions(at_rows, at_cols)
            sums = [np.zeros((len(at_rows), len(at_cols))) for _ in range(weights.shape[1])]
            scratch = np.empty_like(sums[0])
            for k in used:
                _, whole = next(stream)
                part = whole[local_rows][:, local_cols]
                if fitted.shared:
                    factor = fitted.factor(k)
                else:
                    part, factor = fitted.elementwise(k, part, trail), 1.0
                for column, total in enumerate(sums):
                    if weights[k, column]:
                        np.multiply(part, weights[k, column] * factor, out=scratch)
                        total += scratch
            blocks.append((at_rows, at_cols, sums))
    return _Strip(blocks)


class Factor:
    """The Cholesky factor of A = ½(I + K(β)/λ)."""

    def __init__(self, combined: Float, lam: float) -> None:
        """Factorise in place; `combined` is K(β), (m, m), and is overwritten."""
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
        return scipy.linalg.cho_solve(self._factor, b, check_finite=False)


def assemble(strips: list[_Strip], column: int, view: View, fitted: Fitted, lam: float) -> Factor:
    """Put the strips of one weighting together and factorise; the one central task of the direct α-step."""
    with pinned_blas(settings.available_cores()):  # it runs alone
        base = len(view.rows) if fitted.shared else view.shape[1]
        # Column-major, as LAPACK wants it: the factorisation then needs no copy.
        combined = np.empty((base, base), order="F")
        for strip in strips:
            for rows, cols, blocks in strip.blocks:
                _put(combined, rows, cols, blocks[column])
        return Factor(_finish(combined, fitted) if fitted.shared else combined, lam)


def _put(combined: Float, rows: Index, cols: Index, block: Float) -> None:
    row_run, col_run = _inside(rows), _inside(cols)
    if isinstance(row_run, slice) and isinstance(col_run, slice):
        combined[row_run, col_run] = block
        combined[col_run, row_run] = block.T
    else:
        combined[np.ix_(rows, cols)] = block
        combined[np.ix_(cols, rows)] = block.T


def _finish(combined: Float, fitted: Fitted) -> Float:
    """Centre and take, as the chain says, on the sum itself."""
    for step in fitted.steps:
        if step.kind == "center":
            means = combined.mean(axis=0)
            grand = means.mean()
            # In panels: the whole-matrix expression would make copies of it.
            for start in range(0, combined.shape[1], 256):
                panel = combined[:, start : start + 256]
                panel -= means[:, None]
                panel -= (means[start : start + 256] - grand)[None, :]
        elif step.take is not None:
            combined = np.asfortranarray(combined[np.ix_(step.take.rows, step.take.rows)])
    return combined


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
    shared_view, shared_fitted = (
        share(view, f"{name}-view-{token}"),
        share(statistics, f"{name}-statistics-{token}"),
    )
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
