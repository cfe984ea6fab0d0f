"""Inner products of all pairs of kernels, and with an inverse: one pass whose tasks read the same tile of every kernel.

    ⟨K_i, K_j⟩ = Σ_ab (K_i)_ab (K_j)_ab

A tile above the diagonal counts twice. Each kernel is centered and scaled entry by entry before the product. The
formula ⟨CK_iC, CK_jC⟩ = ⟨K_i, K_j⟩ − (2/m) r_iᵀr_j + s_is_j/m², with row sums r and grand sums s, would need no means
beforehand, but cancellation leaves no correct digit if the means are large compared with the centered entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.errors import refuse
from dmkl.files.arrays import load_array, save_array
from dmkl.numerics.alignment import alignments, estimated
from dmkl.numerics.cholesky import Factor
from dmkl.numerics.steps import Fitted, Residualizing
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import Machine, check_memory, machine, run_tasks, shared_folder
from dmkl.passes.run import run_pass
from dmkl.passes.sums import FactorHandle, by_factors
from dmkl.passes.sweep import Columns, merge
from dmkl.passes.view import Lens, StoreOrder, TileTask, View

# Entries of each kernel that are transformed and multiplied at a time: a few such arrays fit in a core's cache.
_PANEL_ENTRIES = 2**15
# Largest size of such a panel over all kernels: with many kernels, the panel has fewer entries of each.
_PANEL_BYTES = 2**26


@dataclass(frozen=True)
class _Band:
    """Some rows of one tile of every kernel; `rows` and `cols` are runs of the samples in store order."""

    i: int
    j: int
    rows: slice
    cols: slice
    n_bytes: int  # Share of the bytes of the tiles that the band is cut from.

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.stop - self.rows.start, self.cols.stop - self.cols.start


def _samples_of_tiles(view: View) -> tuple[StoreOrder, list[TileTask]]:
    """The samples of a square view after all steps, in the order of the store, and the tiles that hold them."""
    final = view.final_positions()[0]
    return StoreOrder.of(final, view.source.tiling.tile), replace(view, rows=final, cols=final, steps=()).tile_tasks()


def rounding(lens: Lens) -> Float:
    """Size below which entries of each kernel are rounding error, (n,), proportional to what centering removed."""
    unit = 32.0 * float(np.finfo(lens.view.source.dtype).eps)
    return unit * np.broadcast_to(lens.fitted.removed(), len(lens.view.kernels))


def check_alignable(view: View) -> None:
    """Raise InputError for a view that has no alignment: one that is not square or has no samples."""
    _, n_rows, n_cols = view.shape
    if not view.is_square:
        way_out = "take K[rows, rows] first" if view.source.symmetric else "this set is rectangular"
        refuse(
            f"alignment needs the same samples as rows and columns, got {n_rows} rows and {n_cols} columns; {way_out}"
        )
    if not n_rows:
        refuse("alignment needs samples, and this view has none; is a fold empty?")


def align(lens: Lens, probes: Float | None = None) -> tuple[Float, Float | None]:
    """Alignments of all pairs of kernels of a square view, (n, n), and their standard errors if they are estimates.

    With random probes (m, b) they are estimates (see `dmkl.numerics.alignment.estimated`), otherwise exact.
    """
    floor = lens.view.shape[1] * rounding(lens)
    if probes is None:
        return alignments(gram_pass(lens), floor), None
    (projections,), _ = run_pass([lens], [Columns(probes, "project", None, np.dtype(np.float64))], "project")
    return estimated(projections, lambda gram: alignments(gram, floor))


# Largest number of tasks. It does not depend on the cluster, so that sums are added in the same order and round alike.
_TASKS = 64


def gram_pass(lens: Lens) -> Float:
    """⟨K_i, K_j⟩ for all pairs of kernels of a square view, (n, n), in float64: one pass, run now.

    Every tile is read once. If one tile of every kernel does not fit in the memory of a task, the tiles are read in
    bands of rows, once for each band; from a memory-mapped tile only the rows of the band are touched.
    MemoryBudgetError is raised before anything runs if a row of every kernel's tile exceeds the memory of a task.
    """
    host = machine()
    bands = _bands(lens, host)
    cuts = np.array_split(np.arange(len(bands)), min(len(bands), _TASKS))
    side_by_side = min(host.slots_per_host, len(cuts))
    work = [partial(_add_bands, [bands[b] for b in cut], side_by_side) for cut in cuts]
    task_bytes = sum(band.n_bytes for band in bands) // len(work)
    return np.asarray(run_tasks("alignment-pass", work, lens, task_bytes=task_bytes, add=merge)[0])


def _bands(lens: Lens, host: Machine) -> list[_Band]:
    """The tiles to read, cut into bands of rows that fit the memory of a task."""
    view = lens.view
    n, side, itemsize = len(view.kernels), view.source.tiling.tile, view.source.dtype.itemsize
    tile_bytes = side**2 * itemsize
    # A task holds the tile in use and the next one, which is read meanwhile, a panel of all kernels, and the
    # temporaries of transforming one kernel.
    needed = {
        "tiles": 2 * tile_bytes + view.source.scratch_bytes,
        "statistics": lens.fitted.n_bytes,
        "panel": (n + 4) * _panel_rows(n, side, side) * side * 8,
        "products": 2 * n * n * 8,
    }
    row_bytes = n * side * itemsize
    check_memory(
        "this pass",
        {**needed, "a row of every kernel's tile": row_bytes},
        host.task_bytes,
        "Set dmkl.memory higher, give the workers more memory, select fewer kernels, or store the set with smaller "
        "tiles",
    )
    height = min(side, (host.task_bytes - sum(needed.values())) // row_bytes)
    samples, tiles = _samples_of_tiles(view)
    bands = []
    for tile in tiles:
        # The last band of a tile may be lower than the others; its bytes are counted as an equal share.
        rows, cols = samples.run(tile.i), samples.run(tile.j)
        starts = range(rows.start, rows.stop, height)
        n_bytes = n * view.bytes_per_tile // len(starts)
        bands += [
            _Band(tile.i, tile.j, slice(start, min(start + height, rows.stop)), cols, n_bytes) for start in starts
        ]
    return bands


def _add_bands(bands: Sequence[_Band], tasks_per_machine: int, lens: Lens) -> Float:
    """The inner products over the bands of one task, (n, n)."""
    view = lens.view
    stream = view.source.stream([(int(k), band.i, band.j) for band in bands for k in view.kernels])
    n = len(view.kernels)
    (samples, _), gram = _samples_of_tiles(view), np.zeros((n, n))
    # Two arrays serve all bands of the task: new ones for each band would cost as much in page faults as the products.
    stored = np.empty(n * max(band.shape[0] * band.shape[1] for band in bands), view.source.dtype)
    scratch = np.empty((n, max(_panel_rows(n, *band.shape) * band.shape[1] for band in bands)))
    with pinned_blas(blas_threads(tasks_per_machine)):
        for band in bands:
            raw = stored[: n * band.shape[0] * band.shape[1]].reshape(n, *band.shape)
            rows, cols = samples.inside(band.rows), samples.inside(band.cols)
            for block in raw:
                block[:] = next(stream)[1][rows][:, cols]
            # Only the upper tiles are read. The mirror image of a tile above the diagonal has the same inner products.
            times = 1.0 if band.i == band.j else 2.0
            height = _panel_rows(n, *band.shape)
            for start in range(0, band.shape[0], height):
                part = slice(start, min(start + height, band.shape[0]))
                trail = lens.fitted.positions(samples.order[band.rows][part], samples.order[band.cols])
                panel = scratch[:, : (part.stop - start) * band.shape[1]]
                for k in range(n):
                    panel[k] = lens.fitted.elementwise(k, raw[k, part], trail).reshape(-1)
                gram += times * (panel @ panel.T)
    return gram


def _panel_rows(n: int, n_rows: int, n_cols: int) -> int:
    return min(max(1, min(_PANEL_ENTRIES, _PANEL_BYTES // (8 * n)) // n_cols), n_rows)


# --- inner products with an inverse, and of projected kernels -------------------------------------------------------


_PANEL = 64  # Rows of a tile that are multiplied at once.


def traces_by_factor(factor: FactorHandle) -> Float:
    """Traces of A⁻¹K_j for every kernel, and of A⁻¹ last, (n + 1,), by a factor of A: one pass.

    The process that holds the factor writes A⁻¹ to a file, from which the tasks of the pass read what belongs to their
    tiles.
    """
    lens = factor.combination.lens
    view = lens.view
    order, tiles = _samples_of_tiles(view)
    cuts = np.array_split(np.arange(len(tiles)), min(len(tiles), _TASKS))
    side_by_side = min(machine().slots_per_host, len(cuts))
    task_bytes = len(tiles) * len(view.kernels) * view.bytes_per_tile // len(cuts)
    with shared_folder("where the inverse of a sum of kernels is written") as folder:
        file = str(folder / "inverse.npy")
        (trace,) = by_factors("inverse", _write_inverse, [factor], [file], [order.order])
        work = [partial(_add_tiles, tuple(tiles[t] for t in cut), file, side_by_side) for cut in cuts]
        return np.append(sum(run_tasks("trace-pass", work, lens, task_bytes=task_bytes)), trace)


def _write_inverse(factor: Factor, file: str, order: Index) -> float:
    """Write A⁻¹ in the order of the store; returns its trace."""
    inverse = factor.inverse(order)
    save_array(file, inverse.T)  # symmetric, and row-major this way
    return float(np.trace(inverse))


def _add_tiles(tiles: Sequence[TileTask], file: str, tasks_per_machine: int, lens: Lens) -> Float:
    """The inner products of a matrix in a file and some tiles of each kernel, (n,)."""
    view, (samples, _), matrix = lens.view, _samples_of_tiles(lens.view), load_array(file)
    totals = np.zeros(len(view.kernels))
    stream = view.source.stream([(int(k), tile.i, tile.j) for tile in tiles for k in view.kernels])
    with pinned_blas(blas_threads(tasks_per_machine)):
        for tile in tiles:
            rows, cols = samples.run(tile.i), samples.run(tile.j)
            part = np.ascontiguousarray(matrix[rows, cols])
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
    n = len(diagonal)
    gram = np.empty((n + 1, n + 1))
    gram[:n, :n] = gram_pass(lens)
    gram[n, :n] = gram[:n, n] = diagonal.sum(axis=1)
    gram[n, n] = m - r
    return gram
