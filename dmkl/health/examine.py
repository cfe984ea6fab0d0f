"""Figures of one stored kernel: read every entry once, then compute the ends of its spectrum by products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dmkl.arrays import Array, Index
from dmkl.errors import CorruptTileError, StoreError
from dmkl.files.arrays import crc32c
from dmkl.numerics.alignment import centered_probes
from dmkl.numerics.determined import LabelKernel
from dmkl.numerics.spectrum import Extremes, extreme_eigenvalues
from dmkl.numerics.steps import Fitted
from dmkl.passes.sweep import Columns, Want, sweep
from dmkl.passes.view import Lens, TileKey, TileSource, Unit, View

PROBES = 4
"""Random vectors for the comparison of kernels: 10 different numbers for each kernel."""


@dataclass(frozen=True)
class Examination:
    """Settings of an examination."""

    n_steps: int  # products for the ends of the spectrum
    seed: int  # of the random vectors: probes are the same for every kernel, start vectors differ
    hold: bool  # whether a task may keep its kernel in memory, in float64
    tasks_per_machine: int  # concurrent tasks (they share the cores)
    codes: tuple[Index, ...] = ()  # classes of the samples, of each task (`dmkl.numerics.determined.label_codes`)


@dataclass
class Figures:
    """Figures of one kernel; NaN if one does not apply or cannot be computed."""

    n_tiles: int = 0
    damaged: list[str] = field(default_factory=list)
    """A sentence for each tile that is missing or damaged."""
    not_finite: int = 0
    asymmetry: float = 0.0
    """Largest |K_ab − K_ba|."""
    largest: float = 0.0
    frobenius: float = float("nan")
    trace: float = float("nan")
    mean_diagonal: float = float("nan")
    centered_trace: float = float("nan")
    zero_diagonal: int = 0
    is_labels: bool = False
    """Whether its entries depend on the classes only."""
    lowest_diagonal: float = float("nan")
    row_sum_error: float = float("nan")
    """Largest difference between a stored row sum and the sum of its row, relative to the sum of |K_ab|."""
    diagonal_error: float = float("nan")
    extremes: Extremes | None = None
    unit: float = 1.0
    """A power of two near the largest entry: squared figures are of the kernel divided by it."""
    projections: Array = field(default_factory=lambda: np.full((PROBES, PROBES), np.nan))
    """RᵀKR of the probes R, (PROBES, PROBES), divided by `unit`."""


def examine(source: TileSource, kernel: int, plan: Examination) -> Figures:
    """Read one kernel of a source and compute its figures."""
    if hasattr(source, "forget"):
        source.forget()  # read from the disk again
    figures = Figures()
    kept: dict[TileKey, Array] | None = {} if plan.hold and source.symmetric else None
    like_labels = [LabelKernel(codes, source.dtype) for codes in plan.codes if source.symmetric]
    if kernel not in getattr(source, "kept", ()):
        _read_entries(source, kernel, figures, kept, like_labels)
    else:
        try:
            if plan.hold:
                _read_entries(source, kernel, figures, kept, like_labels)
            else:
                _multiply_factors(source, kernel, plan, figures)
        except StoreError as error:
            figures.damaged.append(str(error))
        figures.n_tiles = 0
    figures.is_labels = not figures.damaged and any(candidate.result() for candidate in like_labels)
    if source.symmetric and not figures.damaged and not figures.not_finite:
        _spectrum(source, kernel, plan, figures, kept)
    return figures


# --- every entry once --------------------------------------------------------------------------------------


def _read_entries(
    source: TileSource,
    kernel: int,
    figures: Figures,
    kept: dict[TileKey, Array] | None,
    like_labels: Sequence[LabelKernel],
) -> None:
    tiling = source.tiling
    sums = np.zeros(tiling.rows)
    sizes = np.zeros(tiling.rows)
    diagonal = np.full(tiling.rows, np.nan)
    norm = 0.0
    kept_as_factors = kernel in getattr(source, "kept", ())
    table = source.tile_crc32c()[kernel] if hasattr(source, "tile_crc32c") and not kept_as_factors else None
    above: tuple[int, int, Array] | None = None
    for (_, i, j), tile in _tiles(source, _keys(source, kernel), figures):
        figures.n_tiles += 1
        if table is not None and (checksum := crc32c(tile)) != int(table[i, j]):
            figures.damaged.append(
                f"tile ({i}, {j}) is damaged: its checksum is {checksum:08x}, and {int(table[i, j]):08x} is on record"
            )
            continue
        if tiling.upper and i > j:
            # In a symmetric set stored in full it follows its mirror image, which passes read.
            if above is not None and above[:2] == (j, i):
                figures.asymmetry = max(figures.asymmetry, _largest(tile - above[2].T))
            continue
        bad = tile.size - int(np.count_nonzero(np.isfinite(tile)))
        figures.not_finite += bad
        if bad:
            continue
        block = tile.astype(np.float64)
        above = (i, j, block)
        rows, cols = tiling.row_slice(i), tiling.col_slice(j)
        for candidate in like_labels:
            candidate.take(rows, cols, block)
        magnitude = np.abs(block)
        figures.largest = max(figures.largest, float(magnitude.max()))
        size = _norm(block)
        norm = math.hypot(norm, size)
        sums[rows] += block.sum(axis=1)
        sizes[rows] += magnitude.sum(axis=1)
        if tiling.upper and i == j:
            diagonal[rows] = block.diagonal()
            figures.asymmetry = max(figures.asymmetry, _largest(block - block.T))
        elif tiling.upper:
            sums[cols] += block.sum(axis=0)
            sizes[cols] += magnitude.sum(axis=0)
            norm = math.hypot(norm, size)
        if kept is not None:
            kept[kernel, i, j] = block
    if figures.damaged or figures.not_finite:
        return
    figures.frobenius = norm
    index = np.array([kernel])
    stored = source.row_sum(index)
    if stored is not None:
        figures.row_sum_error = _relative(stored[0] - sums, sizes)
    if source.symmetric:
        _read_diagonal(diagonal, sums, source.diagonal(index), figures)


def _read_diagonal(diagonal: Array, sums: Array, stored: Array | None, figures: Figures) -> None:
    figures.trace = float(diagonal.sum())
    figures.mean_diagonal = float(diagonal.mean())
    figures.centered_trace = figures.trace - float(sums.sum()) / len(sums)
    figures.zero_diagonal = int(np.count_nonzero(diagonal == 0))
    figures.lowest_diagonal = float(diagonal.min())
    if stored is not None:
        figures.diagonal_error = _relative(stored[0] - diagonal, np.abs(diagonal))


def _keys(source: TileSource, kernel: int) -> list[TileKey]:
    """The tiles that passes read, each followed by its mirror image if a symmetric set is stored in full."""
    both = bool(getattr(source, "full", False)) and source.tiling.upper
    keys = []
    for i, j in source.tiling.pairs():
        keys.append((kernel, i, j))
        if both and i != j:
            keys.append((kernel, j, i))
    return keys


def _tiles(source: TileSource, keys: Sequence[TileKey], figures: Figures) -> Iterator[tuple[TileKey, Array]]:
    """The tiles that can be read; the others are recorded as damaged."""
    done = 0
    while done < len(keys):
        try:
            for tile in source.stream(keys[done:]):
                done += 1
                yield tile
        except CorruptTileError:
            # Raised for the next tile or, if it was prefetched, for the one after: read the next tile alone.
            try:
                alone = list(source.stream(keys[done : done + 1]))
            except CorruptTileError as error:
                figures.n_tiles += 1
                figures.damaged.append(str(error))
                alone = []
            done += 1
            yield from alone


def _unit(largest: float) -> float:
    """The power of two near a size: numbers divided by it can be squared without overflow."""
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0


def _norm(block: Array) -> float:
    """‖K‖_F of a block, without overflow."""
    unit = _unit(float(np.abs(block).max(initial=0.0)))
    return float(np.linalg.norm(block / unit)) * unit


def _largest(difference: Array) -> float:
    return float(np.abs(difference).max())


def _relative(difference: Array, size: Array) -> float:
    scale = float(size.max())
    return _largest(difference) / scale if scale > 0 else _largest(difference)


# --- products ----------------------------------------------------------------------------------------------


def _products(
    source: TileSource, kernel: int, plan: Examination, kept: dict[TileKey, Array] | None
) -> Callable[[Array, Want], Array]:
    """A function that multiplies a kernel by vectors (samples, b)."""
    rows = np.arange(source.tiling.rows)
    view = View(source, np.array([kernel]), rows, rows)
    unit = Unit(np.array([0]), () if view.factor_widths is not None else tuple(view.tile_tasks()), first=True)

    def products(vectors: Array, want: Want) -> Array:
        columns = [Columns(vectors, want, None, np.dtype(np.float64))]
        return np.asarray(sweep([Lens(view, Fitted())], unit, columns, plan.tasks_per_machine, kept)[0][0])

    return products


def _multiply_factors(source: TileSource, kernel: int, plan: Examination, figures: Figures) -> None:
    """Figures of K = ZZᵀ, no entry of which is larger than the largest on its diagonal, without its entries."""
    diagonal = source.diagonal(np.array([kernel]))
    assert diagonal is not None
    sums = _products(source, kernel, plan, None)(np.ones((source.tiling.rows, 1)), "each")[:, 0]
    _read_diagonal(diagonal[0], sums, None, figures)
    figures.largest = float(diagonal.max())
    figures.frobenius = figures.trace  # which it does not exceed: the scale of rounding errors


def _spectrum(
    source: TileSource, kernel: int, plan: Examination, figures: Figures, kept: dict[TileKey, Array] | None
) -> None:
    m, scale = source.tiling.rows, _unit(figures.largest)
    figures.unit = scale
    products = _products(source, kernel, plan, kept)
    probes = centered_probes(m, PROBES, np.random.default_rng(plan.seed))
    figures.projections = products(probes, "project") / scale
    rng = np.random.default_rng([plan.seed, kernel + 1])
    figures.extremes = extreme_eigenvalues(
        lambda vector: products(vector[:, None], "each")[:, 0] / scale, m, n_steps=plan.n_steps, rng=rng
    ).scaled(scale)
