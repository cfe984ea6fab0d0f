"""Traces of products with an inverse, tr A⁻¹K_j, and inner products of projected kernels: one pass each."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from dask.delayed import delayed

from dmkl.arrays import Float, Index
from dmkl.files.arrays import load_array, save_array
from dmkl.numerics.cholesky import Factor
from dmkl.numerics.steps import Fitted, Residualizing
from dmkl.passes.alignment import gram_pass
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import again, execute, machine, send_all, shared_folder
from dmkl.passes.run import add_in_tree
from dmkl.passes.sums import FactorHandle, by_factors
from dmkl.passes.view import Lens, StoreOrder, TileTask

__all__ = ["projected_inner_products", "traces_by_factor"]

_COUNTER = itertools.count(1)
_TASKS = 64
"""Largest number of tasks; it does not depend on the cluster, so that sums are added in the same order everywhere."""
_PANEL = 64
"""Rows of a tile that are multiplied at once."""


def traces_by_factor(factor: FactorHandle) -> Float:
    """Traces of A⁻¹K_j for every kernel, and of A⁻¹ last, (n + 1,), by a factor of A: one pass.

    The process that holds the factor writes A⁻¹ to a file, from which the tasks of the pass read what belongs to their
    tiles.
    """
    lens = factor.lens
    order = _samples(lens).order
    with shared_folder("where the inverse of a sum of kernels is written") as folder:
        file = folder / "inverse.npy"

        def run() -> Float:
            (trace,) = by_factors("inverse", _write_inverse, [factor], [str(file)], [order])
            return np.append(_pass(lens, file), trace)

        return np.asarray(again(run, "traces"))


def _samples(lens: Lens) -> StoreOrder:
    """The samples after all steps, in the order of the store."""
    return StoreOrder.of(lens.view.final_positions()[0], lens.view.source.tiling.tile)


def _write_inverse(factor: Factor, file: str, order: Index) -> float:
    """Write A⁻¹ in the order of the store; returns its trace."""
    inverse = factor.inverse(order)
    save_array(file, inverse.T)  # symmetric, and row-major this way
    return float(np.trace(inverse))


def _pass(lens: Lens, file: Path) -> Float:
    host, name, token = machine(), f"trace-pass-{next(_COUNTER)}", uuid.uuid4().hex
    view = lens.view
    final = view.final_positions()[0]
    tiles = replace(view, rows=final, cols=final, steps=()).tile_tasks()
    # A fixed number of partial sums, added in a fixed tree: the result does not depend on the number of workers.
    cuts = np.array_split(np.arange(len(tiles)), min(len(tiles), _TASKS))
    (shared,) = send_all({f"{name}-lens-{token}": lens})
    side_by_side = min(host.slots_per_host, len(cuts))
    tasks = [
        (
            delayed(_add_tiles, pure=False)(
                shared, tuple(tiles[t] for t in cut), str(file), side_by_side, dask_key_name=f"{name}-{number}-{token}"
            ),
            len(cut) * len(view.kernels) * view.bytes_per_tile,
        )
        for number, cut in enumerate(cuts)
    ]
    return np.asarray(execute([add_in_tree([task for task, _ in tasks], f"{name}-add-{token}")], tasks, name)[0])


def _add_tiles(lens: Lens, tiles: Sequence[TileTask], file: str, tasks_per_machine: int) -> Float:
    """The inner products of a matrix in a file and some tiles of each kernel, (n,)."""
    view, samples, matrix = lens.view, _samples(lens), load_array(file)
    totals = np.zeros(len(view.kernels))
    stream = view.source.stream([(int(k), tile.i, tile.j) for tile in tiles for k in view.kernels])
    with pinned_blas(blas_threads(tasks_per_machine)):
        for tile in tiles:
            rows, cols = samples.run(tile.i), samples.run(tile.j)
            part = np.ascontiguousarray(matrix[rows, cols])
            # Only the upper tiles are read; the mirror image of a tile above the diagonal has the same inner product.
            times = 1.0 if tile.i == tile.j else 2.0
            for k in range(len(totals)):
                _, stored = next(stream)
                raw = stored[samples.inside(rows)][:, samples.inside(cols)]
                # Panels stay in the cache while they are centered, widened and multiplied.
                for start in range(0, len(part), _PANEL):
                    panel = raw[start : start + _PANEL]
                    if lens.fitted.steps:
                        positions = samples.order[rows][start : start + _PANEL], samples.order[cols]
                        panel = lens.fitted.elementwise(k, panel, lens.fitted.positions(*positions))
                    numbers = np.ascontiguousarray(panel, dtype=np.float64)
                    totals[k] += times * np.vdot(part[start : start + _PANEL], numbers)
    return totals


def projected_inner_products(lens: Lens, basis: Float, products: Float) -> Float:
    """⟨PK_iP, PK_jP⟩ and ⟨PK_iP, P⟩ for P = I − QQᵀ, (n + 1, n + 1), with P as the last matrix: one pass.

    Q is the basis, (m, r), with orthonormal columns, and the products are K_jQ, (n, m, r).
    """
    m, r = basis.shape
    if r:
        # Projecting is a step without new statistics: residualizing with Q as covariates, whose products are given.
        nothing = np.zeros((0, r)), np.zeros(0, dtype=str), np.zeros((0, 0))
        projecting = Residualizing(basis, basis, products, *nothing, basis, products)
        lens = replace(lens, statistics=Fitted((*lens.fitted.steps, projecting)))
    diagonal = lens.diagonal()
    assert diagonal is not None  # square kernels have one
    n = len(diagonal)
    gram = np.empty((n + 1, n + 1))
    gram[:n, :n] = gram_pass(lens)
    gram[n, :n] = gram[:n, n] = diagonal.sum(axis=1)
    gram[n, n] = m - r
    return gram
