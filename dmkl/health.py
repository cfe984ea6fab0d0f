"""`dmkl.health.check`: problems of the kernels of a set, by kernel, and damage of what is stored."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from zarr import Array as ZarrArray
from zarr.abc.store import Store

from dmkl.arrays import Array, Float, Index, TileKey
from dmkl.errors import CorruptTileError, DamagedFileError, StoreError, refuse
from dmkl.features.stored import FactorReader
from dmkl.files.arrays import crc32c
from dmkl.files.urls import Place
from dmkl.kernelset import KernelSet, identical_samples
from dmkl.numerics.alignment import proportional_groups
from dmkl.numerics.determined import LabelKernel, label_codes
from dmkl.numerics.semidefinite import Extremes, extreme_eigenvalues
from dmkl.numerics.steps import Fitted
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.execute import check_memory, machine, run_tasks
from dmkl.passes.memory import HeldTiles
from dmkl.passes.sweep import Columns, Want, sweep
from dmkl.passes.view import Lens, TileSource, Unit, View
from dmkl.store.format import FORMAT, PER_KERNEL, kept_as_factors
from dmkl.store.reader import StoreReader
from dmkl.store.zarr_groups import CHECKSUM, differing_metadata, open_group
from dmkl.variables import describe

SEVERITIES = ("error", "warning", "note")
"""In descending order: with an error results are wrong, a warning needs a decision."""
Finding = tuple[str, str, str]
"""The severity of a problem, the kernel, or "" for the set, and the message."""
UNSEALED = (
    "it was written by a dmkl that kept no checksum of metadata; the content of zarr.json files cannot be checked. "
    "Write it again to have one"
)
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
    damaged: list[str] = field(default_factory=list)  # a sentence for each tile that is missing or damaged
    not_finite: int = 0
    asymmetry: float = 0.0  # largest |K_ab − K_ba|
    largest: float = 0.0
    frobenius: float = float("nan")
    trace: float = float("nan")
    mean_diagonal: float = float("nan")
    centered_trace: float = float("nan")
    zero_diagonal: int = 0
    is_labels: bool = False  # whether its entries depend on the classes only
    lowest_diagonal: float = float("nan")
    row_sum_error: float = float("nan")  # largest difference of a stored row sum, relative to the sum of |K_ab|
    diagonal_error: float = float("nan")
    extremes: Extremes | None = None
    unit: float = 1.0  # a power of two near the largest entry: squared figures are of the kernel divided by it
    # RᵀKR of the probes R, (PROBES, PROBES), divided by `unit`.
    projections: Array = field(default_factory=lambda: np.full((PROBES, PROBES), np.nan))

    @property
    def negative_part(self) -> float:
        """|λ_min| of a proven negative eigenvalue, relative to the largest |λ|; 0 if there is none."""
        if self.extremes is None:
            return math.nan
        # A diagonal entry is a Rayleigh quotient too.
        lowest = min(self.extremes.lowest, self.lowest_diagonal)
        return -lowest / max(abs(lowest), abs(self.extremes.highest)) if lowest < 0 else 0.0

    def is_constant(self, resolution: float) -> bool:
        """Whether centering leaves only rounding error."""
        return bool(abs(self.centered_trace) <= resolution * abs(self.trace))


@one_blas_thread
def check(K: KernelSet, *, n_steps: int = 30, seed: int = 0) -> xr.Dataset:
    """Check the stored matrices of a set: read every tile and report problems that break or mislead learning.

    The checks of the set: checksums of its metadata, names, labels, statistics and features. The checks of every
    kernel: whether each tile has its checksum, and is symmetric and finite; largest entry, trace, centered trace tr K −
    1ᵀK1/m; the ends of its spectrum by `n_steps` products of Lanczos' method; whether it repeats another kernel,
    exactly or up to a positive factor; whether its entries depend only on the stored classes of both samples. The
    stored matrices are examined, over all samples, whatever rows, columns and steps `K` has; `K.select(names)` examines
    some of the kernels.

    Parameters
    ----------
    K
        The set.
    n_steps
        Number of products with each kernel for its spectrum. A reported negative eigenvalue is proven; a small one may
        be missed with few products.
    seed
        Seed of the random vectors.

    Returns
    -------
    xarray.Dataset
        Over `kernel`: tiles, damaged_tiles, not_finite, asymmetry, largest_entry, trace, mean_diagonal,
        centered_trace, lowest_eigenvalue and highest_eigenvalue with their residuals (lowest_bound and
        highest_bound), negative_part (|λ_min|/|λ|_max of a proven negative eigenvalue), repeats (name of an
        earlier kernel), factor, and factor_columns and factor_bytes of kernels that are kept as factors (they have no
        tiles; 0 for all others). NaN if a figure does not apply: a rectangular set has no spectrum. Over
        `finding`, the most severe first: severity ("error", "warning", "note"), subject (a kernel's name, or
        empty for the set) and message.

    Raises
    ------
    InputError
        If `n_steps` is not positive.
    MemoryBudgetError
        If a tile and the vectors of the spectrum exceed the budget of one task.
    """
    if n_steps < 1:
        refuse(f"n_steps must be at least 1, got {n_steps}")
    source = K.view.source.origin if isinstance(K.view.source, HeldTiles) else K.view.source
    kernels = K.view.kernels
    labels = getattr(source, "labels", K.labels)
    whole = labels is not None and len(labels) == source.tiling.rows
    codes = tuple(label_codes(labels if whole else None))
    figures = _examine_all(source, kernels, n_steps, seed, codes)
    resolution = 32 * float(np.finfo(source.dtype).eps)  # a smaller relative difference is rounding error
    same, factor = _repetitions(source, kernels, figures)
    findings = [
        (severity, name, message)
        for name, of_kernel in zip(K.names, figures, strict=True)
        for severity, message in _kernel_problems(of_kernel, resolution)
    ]
    findings += _set_problems(K.names, figures, resolution, same, factor)
    sound = not any(of_kernel.damaged for of_kernel in figures)
    pairs, complete = identical_samples(K) if sound else (np.empty((0, 2), dtype=np.int64), True)
    if len(pairs):
        first, second = (str(source.samples[at]) for at in pairs[0])
        count = f"{'' if complete else 'at least '}{len(pairs):,}"
        what = f"{count} pairs of samples are identical in all kernels, such as {first!r} and {second!r}"
        way_out = "keep each group of equal samples in one fold (groups=, --groups), or leave the copies out"
        findings.append(("warning", "", f"{what}: scores on copies of training samples mean nothing; {way_out}"))
    if isinstance(source, StoreReader):
        findings += [("error", "", text) for text in damage(source.location, but=("gram", "gram_upper"))]
        findings += [] if source.has_checksum else [("note", "", UNSEALED)]
    sizes = np.zeros((len(kernels), 2), dtype=np.int64)
    if isinstance(source, FactorReader):
        readable = {k: f for k, f in zip(kernels.tolist(), figures, strict=True) if k in source.kept and not f.damaged}
        of_table = {source.computed.recipes[k].feature: k for k in readable}
        findings += [("error", "", str(e)) for e in map(source.verify, of_table.values()) if e is not None]
        sizes = np.array([source.factor_size(k) for k in kernels.tolist()])
    findings.sort(key=lambda finding: SEVERITIES.index(finding[0]))
    return _to_dataset(K.names, figures, same, factor, sizes, findings)


def _examine_all(
    source: TileSource, kernels: Index, n_steps: int, seed: int, codes: tuple[Index, ...]
) -> list[Figures]:
    host = machine()
    tiling = source.tiling
    view = replace(View.of(source), kernels=kernels[:1])
    n_tiles = len(view.tile_tasks())
    needed = {
        "tiles in double precision": 6 * tiling.tile**2 * 8,
        "vectors": (min(n_steps, tiling.rows) + 8 * PROBES) * tiling.rows * 8,
    }
    check_memory("examining this set", needed, host.task_bytes, "Set dmkl.memory higher, or ask for fewer n_steps")
    whole = n_tiles * tiling.tile**2 * 8
    hold = sum(needed.values()) + whole <= host.task_bytes
    plan = Examination(n_steps, seed, hold, host.slots_per_host, codes)
    passes = 1 if hold or not source.symmetric else 2 + n_steps
    work = [partial(examine, kernel=int(kernel), plan=plan) for kernel in kernels]
    return run_tasks("check", work, source, task_bytes=passes * view.bytes_per_pass)


def _repetitions(source: TileSource, kernels: Index, figures: Sequence[Figures]) -> tuple[Index, Float]:
    """For each kernel the first kernel that it repeats (itself if none) and the factor between them."""
    same, factor = np.arange(len(kernels)), np.ones(len(kernels))
    tiled = np.flatnonzero(~np.isin(kernels, list(getattr(source, "kept", ()))))
    if hasattr(source, "tile_crc32c") and len(tiled):
        tables = source.tile_crc32c()[kernels[tiled]]
        earlier: dict[bytes, int] = {}
        for j, table in zip(tiled.tolist(), tables, strict=True):
            same[j] = earlier.setdefault(table.tobytes(), j)
    projections = np.stack([f.projections for f in figures])
    units = np.array([f.unit for f in figures])
    frobenius = np.array([f.frobenius for f in figures]) / units
    # Below 1e-10 a difference is meaningless whatever the precision: sums over many entries round too.
    noise = PROBES * max(4 * float(np.finfo(source.dtype).eps), 1e-10) * frobenius
    size = np.linalg.norm(projections.reshape(len(kernels), -1), axis=1)
    for group in proportional_groups(projections, noise):
        first = int(same[group[0]])
        for j in group[1:]:
            if same[j] == j:
                same[j], factor[j] = first, size[j] / size[first] * (units[j] / units[first])
    return same, factor


def _to_dataset(
    names: Sequence[str],
    figures: Sequence[Figures],
    same: Index,
    factor: Float,
    sizes: Index,
    findings: Sequence[Finding],
) -> xr.Dataset:
    def of(name: str) -> Array:
        return np.array([getattr(f, name, getattr(f.extremes, name, np.nan)) for f in figures])

    repeated = [names[first] if first != j else "" for j, first in enumerate(same)]
    columns: dict[str, tuple[Any, str]] = {
        "tiles": (of("n_tiles"), "stored tiles"),
        "damaged_tiles": ([len(f.damaged) for f in figures], "tiles that are missing or fail a checksum"),
        "not_finite": (of("not_finite"), "entries that are NaN or infinite"),
        "asymmetry": (of("asymmetry"), "largest |K_ab − K_ba|"),
        "largest_entry": (of("largest"), "largest |K_ab|"),
        "trace": (of("trace"), "tr K"),
        "mean_diagonal": (of("mean_diagonal"), "tr K/m"),
        "centered_trace": (of("centered_trace"), "tr K − 1ᵀK1/m"),
        "lowest_eigenvalue": (of("lowest"), "lowest Ritz value"),
        "lowest_bound": (of("lowest_bound"), "residual of the lowest"),
        "highest_eigenvalue": (of("highest"), "highest Ritz value"),
        "highest_bound": (of("highest_bound"), "residual of the highest"),
        "negative_part": (of("negative_part"), "|λ_min|/|λ|_max where λ_min < 0"),
        "repeats": (repeated, "earlier kernel that this repeats"),
        "factor": (factor, "K = factor · the kernel that it repeats"),
        "factor_columns": (sizes[:, 0], "columns of the features of a kernel that is kept as factors"),
        "factor_bytes": (sizes[:, 1], "bytes of these"),
    }
    report = xr.Dataset(coords={"kernel": np.array(names, dtype=str)})
    for name, (values, about) in columns.items():
        report[name] = "kernel", np.array(values), {"long_name": about}
        if report[name].dtype.kind in "iuf":
            report[name].attrs["units"] = "1"
    for k, name in enumerate(("severity", "subject", "message")):
        report[name] = "finding", np.array([finding[k] for finding in findings], dtype=str)
    return describe(report)


# --- one kernel -------------------------------------------------------------------------------------------------------


def examine(source: TileSource, kernel: int, plan: Examination) -> Figures:
    """Read every entry of a kernel once, compute its figures and, unless entries are damaged, its spectrum."""
    if hasattr(source, "forget"):
        source.forget()  # read from the disk again
    one = _Examined(source, kernel, plan)
    figures = one.figures
    try:
        if plan.hold or not one.is_factors:
            one.read_entries()
        else:  # of K = ZZᵀ no entry is larger than the largest on its diagonal
            diagonal = source.diagonal(one.index)
            assert diagonal is not None
            sums = one.product(np.ones((source.tiling.rows, 1)), "each")[:, 0]
            one.read_diagonal(diagonal[0], sums, None)
            figures.largest = float(diagonal.max())
            figures.frobenius = figures.trace  # which it does not exceed: the scale of rounding errors
    except StoreError as error:
        if not one.is_factors:
            raise
        figures.damaged.append(str(error))
    if one.is_factors:
        figures.n_tiles = 0
    if source.symmetric and not figures.damaged and not figures.not_finite:
        one.compute_spectrum()
    return figures


class _Examined:
    """One kernel of a source, with its figures as far as it has been read."""

    def __init__(self, source: TileSource, kernel: int, plan: Examination) -> None:
        self.source, self.index, self.plan, self.figures = source, np.array([kernel]), plan, Figures()
        self.is_factors = kernel in getattr(source, "kept", ())
        self.kept: dict[TileKey, Array] | None = {} if plan.hold and source.symmetric else None

    def read_entries(self) -> None:
        source, figures, tiling = self.source, self.figures, self.source.tiling
        (kernel,) = self.index.tolist()
        sums, sizes = np.zeros((2, tiling.rows))
        diagonal = np.full(tiling.rows, np.nan)
        norm = 0.0
        like_labels = [LabelKernel(codes, source.dtype) for codes in self.plan.codes if source.symmetric]
        table = source.tile_crc32c()[kernel] if hasattr(source, "tile_crc32c") and not self.is_factors else None
        # The tiles that passes read, each followed by its mirror image if a symmetric set is stored in full.
        both = bool(getattr(source, "full", False)) and tiling.upper
        pairs = ([(i, j), (j, i)] if both and i != j else [(i, j)] for i, j in tiling.pairs())
        above: tuple[int, int, Array] | None = None
        for (_, i, j), tile in self._tiles([(kernel, *at) for pair in pairs for at in pair]):
            figures.n_tiles += 1
            if table is not None and (checksum := crc32c(tile)) != int(table[i, j]):
                on_record = f"its checksum is {checksum:08x}, and {int(table[i, j]):08x} is on record"
                figures.damaged.append(f"tile ({i}, {j}) is damaged: {on_record}")
                continue
            if tiling.upper and i > j:
                # In a symmetric set stored in full it follows its mirror image, which passes read.
                if above is not None and above[:2] == (j, i):
                    figures.asymmetry = max(figures.asymmetry, float(np.abs(tile - above[2].T).max()))
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
            unit = _unit(float(magnitude.max()))
            size = float(np.linalg.norm(block / unit)) * unit  # ‖K‖_F of the tile, without overflow
            norm = math.hypot(norm, size)
            sums[rows] += block.sum(axis=1)
            sizes[rows] += magnitude.sum(axis=1)
            if tiling.upper and i == j:
                diagonal[rows] = block.diagonal()
                figures.asymmetry = max(figures.asymmetry, float(np.abs(block - block.T).max()))
            elif tiling.upper:
                sums[cols] += block.sum(axis=0)
                sizes[cols] += magnitude.sum(axis=0)
                norm = math.hypot(norm, size)
            if self.kept is not None:
                self.kept[kernel, i, j] = block
        figures.is_labels = not figures.damaged and any(candidate.result() for candidate in like_labels)
        if figures.damaged or figures.not_finite:
            return
        figures.frobenius = norm
        if (stored := source.row_sum(self.index)) is not None:
            figures.row_sum_error = _relative(stored[0] - sums, sizes)
        if source.symmetric:
            self.read_diagonal(diagonal, sums, source.diagonal(self.index))

    def read_diagonal(self, diagonal: Array, sums: Array, stored: Array | None) -> None:
        figures = self.figures
        figures.trace = float(diagonal.sum())
        figures.mean_diagonal = float(diagonal.mean())
        figures.centered_trace = figures.trace - float(sums.sum()) / len(sums)
        figures.zero_diagonal = int(np.count_nonzero(diagonal == 0))
        figures.lowest_diagonal = float(diagonal.min())
        if stored is not None:
            figures.diagonal_error = _relative(stored[0] - diagonal, np.abs(diagonal))

    def _tiles(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """The tiles that can be read; the others are recorded as damaged."""
        done = 0
        while done < len(keys):
            try:
                for tile in self.source.stream(keys[done:]):
                    done += 1
                    yield tile
            except CorruptTileError:
                # Raised for the next tile or, if it was prefetched, for the one after: read the next tile alone.
                try:
                    alone = list(self.source.stream(keys[done : done + 1]))
                except CorruptTileError as error:
                    self.figures.n_tiles += 1
                    self.figures.damaged.append(str(error))
                    alone = []
                done += 1
                yield from alone

    def product(self, vectors: Array, want: Want) -> Array:
        """The kernel times vectors (samples, b)."""
        view = replace(View.of(self.source), kernels=self.index)
        unit = Unit(np.array([0]), () if view.factor_widths is not None else tuple(view.tile_tasks()), first=True)
        columns = [Columns(vectors, want, None, np.dtype(np.float64))]
        return np.asarray(sweep([Lens(view, Fitted())], unit, columns, self.plan.tasks_per_machine, self.kept)[0][0])

    def compute_spectrum(self) -> None:
        m, figures, seed = self.source.tiling.rows, self.figures, self.plan.seed
        figures.unit = scale = _unit(figures.largest)
        probes = np.random.default_rng(seed).standard_normal((m, PROBES))
        probes -= probes.mean(axis=0)  # so that RᵀKR equals that of the centered K
        figures.projections = self.product(probes, "project") / scale
        rng = np.random.default_rng([seed, int(self.index[0]) + 1])
        figures.extremes = extreme_eigenvalues(
            lambda vector: self.product(vector[:, None], "each")[:, 0] / scale, m, n_steps=self.plan.n_steps, rng=rng
        ).scaled(scale)


def _unit(largest: float) -> float:
    """The power of two near a size: numbers divided by it can be squared without overflow."""
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0


def _relative(difference: Array, size: Array) -> float:
    return float(np.abs(difference).max()) / (float(size.max()) or 1.0)


# --- problems --------------------------------------------------------------------------------------------------------


def _kernel_problems(figures: Figures, resolution: float) -> Iterator[tuple[str, str]]:
    """Severity and message of each problem of a kernel."""
    if figures.damaged:
        tiles = f"{len(figures.damaged)} of {figures.n_tiles} tiles are damaged or missing"
        what = tiles if figures.n_tiles else "its factors cannot be read"
        yield "error", f"{what}, and any result from this kernel is void: {figures.damaged[0]}"
    if figures.not_finite:
        way_out = "repair the matrix and import it again, or leave the kernel out with select()"
        yield "error", f"{figures.not_finite} entries are NaN or infinite; {way_out}"
    if figures.asymmetry > 0:
        what = f"mirrored entries differ by up to {figures.asymmetry:.3g} (largest entry {figures.largest:.3g})"
        rule = "a symmetric set must repeat them exactly: the program that wrote it broke the format"
        yield "error", f"{what}, and {rule}. Import it again"
    for name, error in (("row sums", figures.row_sum_error), ("diagonal", figures.diagonal_error)):
        if error > max(resolution, 1e-10):
            what = f"the stored {name} are off by {error:.3g} of their size, and centering and normalizing use them"
            yield "error", f"{what}: the program that wrote the set broke the format. Import it again"
    if figures.is_labels:
        what = "it is the labels under another name: its entries depend only on the classes of both samples"
        way_out = "Models that learn from it say nothing about new samples; leave it out with select()"
        yield "warning", f"{what}. {way_out}"
    if figures.extremes is None:
        return
    if (part := figures.negative_part) > resolution:
        lowest = min(figures.extremes.lowest, figures.lowest_diagonal)
        percent = f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.0f} %"
        figure = f"it has an eigenvalue of {lowest:.3g} or less, {percent} of its largest"
        if part <= 1e-6:
            yield "note", f"{figure}: no more than a computation in single precision leaves behind; ignore it"
        else:
            rule = "Learners that need positive semidefinite kernels may refuse it"
            way_out = "import it again with --repair clip, flip or shift (repair= in dmkl.create)"
            yield "warning", f"{figure}. {rule}; {way_out}"
    if figures.is_constant(resolution):
        left = (
            f"of its trace, {figures.trace:.3g}, centering leaves {figures.centered_trace:.3g}, no more than rounding"
        )
        why = "It does not distinguish samples, and normalizing it after centering will fail"
        yield "warning", f"it is constant: {left}. {why}; leave it out with select()"
    if figures.zero_diagonal:
        what = f"{figures.zero_diagonal} samples have k(x, x) = 0, such as samples without any feature"
        yield "note", f"{what}: cosine normalization will refuse them, the others will not"


def _set_problems(
    names: Sequence[str], figures: Sequence[Figures], resolution: float, same: Index, factor: Float
) -> Iterator[Finding]:
    """Problems that several kernels cause together; `same` and `factor` are those of `_repetitions`."""
    for j, first in enumerate(same.tolist()):
        if first == j:
            continue
        kernel = f"kernel {names[first]!r}"
        what = f"the same as {kernel}" if factor[j] == 1.0 else f"{factor[j]:.6g} times {kernel} once both are centered"
        why = "learners divide a weight between such kernels arbitrarily, so that neither weight has a meaning"
        yield "warning", names[j], f"it is {what}: {why}; leave one out with select()"
    scales = np.array([f.centered_trace if f.extremes else np.nan for f in figures])
    usable = np.flatnonzero([s > 0 and not f.is_constant(resolution) for s, f in zip(scales, figures, strict=True)])
    if not usable.size:
        return
    low, high = usable[scales[usable].argmin()], usable[scales[usable].argmax()]
    if scales[high] > 1e3 * scales[low]:
        largest, lowest = (f"{names[at]!r} ({scales[at]:.3g})" for at in (high, low))
        what = f"the trace of {largest} is {scales[high] / scales[low]:.2g} times that of {lowest}"
        way_out = "Learn with a step that normalizes ('trace', 'multiplicative'), or the weights reflect the scales"
        yield "note", "", f"the kernels are of very different scales: once centered, {what}. {way_out}"


# --- damage ----------------------------------------------------------------------------------------------------------


def damage(location: str | Store | Place, but: Collection[str] = ()) -> Iterator[str]:
    """A sentence for each part of a kernel set, a model or a result that is missing or damaged.

    Arrays in `but` are checked by other means. Raises as `dmkl.store.zarr_groups.open_group` if it is not a Zarr group.
    """
    try:
        group = open_group(location)
    except DamagedFileError as error:
        yield str(error)
        return
    if CHECKSUM in group.attrs:
        yield from differing_metadata(group)
    kept = kept_as_factors(group.attrs["kernels"]) if group.attrs.get("format") == FORMAT else frozenset()
    for name, array in sorted(group.members(max_depth=None)):
        if not isinstance(array, ZarrArray) or name in but:
            continue
        without = kept if name in PER_KERNEL else frozenset()  # chunks along the first axis that are not there
        if missing := array.nchunks - len(without) - array.nchunks_initialized:
            yield f"{name} has missing values: {missing} of {array.nchunks} chunks are not there"
        for place in np.ndindex(array.cdata_shape):
            if place and place[0] in without:
                continue
            try:
                array.get_block_selection(place) if place else array[...]
            except (OSError, ValueError, KeyError, IndexError, TypeError, RuntimeError, DamagedFileError) as error:
                yield f"{name} is damaged in chunk {'/'.join(map(str, place)) or 'c'}: {error}"
