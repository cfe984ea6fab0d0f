"""Check a whole kernel set, one Dask task for each kernel, and report problems by kernel name."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from dask.delayed import delayed

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.health.examine import PROBES, Plan, Portrait, examine
from dmkl.health.findings import SEVERITIES, Finding, findings_of_kernel, findings_of_set, negative_part, resolution_of
from dmkl.health.integrity import UNSEALED, damage
from dmkl.kernelset import KernelSet
from dmkl.numerics.alignment import proportional_groups
from dmkl.numerics.determined import label_codes
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.execute import again, check_memory, execute, machine, send
from dmkl.passes.memory import HeldTiles
from dmkl.passes.view import TileSource, View
from dmkl.store.reader import StoreReader
from dmkl.variables import describe

__all__ = ["SEVERITIES", "check"]


@one_blas_thread
def check(K: KernelSet, *, n_steps: int = 30, seed: int = 0) -> xr.Dataset:
    """Check the stored matrices of a set: read every tile and look for problems that break or mislead learning.

    Of the set: whether its metadata, names, labels, statistics and features are what was written.
    Of every kernel: whether each tile is what was written (checksums), symmetric and finite; largest entry,
    trace, centered trace tr K − 1ᵀK1/m; the ends of its spectrum by `n_steps` products of Lanczos' method;
    whether it repeats another kernel, exactly or up to a positive factor; whether its entries depend on nothing but the
    stored classes of both samples. What is examined are the matrices as they lie in the store, over all samples,
    whatever rows, columns and steps `K` has; `K.select(names)` examines some of the kernels.

    Parameters
    ----------
    K
        The set.
    n_steps
        Products with each kernel for its spectrum. A negative eigenvalue that is reported is proven; a small
        one may stay unseen, the less so the more products.
    seed
        Of the random vectors.

    Returns
    -------
    xarray.Dataset
        Over `kernel`: tiles, damaged_tiles, not_finite, asymmetry, largest_entry, trace, mean_diagonal,
        centered_trace, lowest_eigenvalue and highest_eigenvalue with their residuals (lowest_bound and
        highest_bound), negative_part (|λ_min|/|λ|_max of a proven negative eigenvalue), repeats (name of an
        earlier kernel) and factor. NaN where a figure does not apply: a rectangular set has no spectrum. Over
        `finding`, the gravest first: severity ("error", "warning", "note"), subject (a kernel's name, or
        empty for the set) and message.

    Raises
    ------
    InputError
        If `n_steps` is not positive.
    MemoryBudgetError
        If a tile and the vectors of the spectrum exceed the budget of one task.
    """
    if n_steps < 1:
        msg = f"n_steps must be at least 1, got {n_steps}"
        raise InputError(msg)
    source = K.view.source.origin if isinstance(K.view.source, HeldTiles) else K.view.source
    kernels = K.view.kernels
    labels = source.labels if isinstance(source, StoreReader) else K.labels
    whole = labels is not None and len(labels) == source.tiling.rows
    codes = tuple(label_codes(labels if whole else None))
    portraits = _examine_all(source, kernels, n_steps, seed, codes)
    resolution = resolution_of(source.dtype)
    same, factor = _repetitions(source, kernels, portraits)
    findings = [f for name, p in zip(K.names, portraits, strict=True) for f in findings_of_kernel(name, p, resolution)]
    findings += findings_of_set(K.names, portraits, resolution, same, factor)
    if isinstance(source, StoreReader):
        findings += _findings_beside_tiles(source)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return _dataset(K.names, portraits, same, factor, findings)


def _findings_beside_tiles(source: StoreReader) -> list[Finding]:
    """What is damaged of a store beside its tiles: metadata, names, labels, statistics, features."""
    found = [Finding("error", "", one) for one in damage(source.location, but=("gram", "gram_upper"))]
    return found if source.has_checksum else [*found, Finding("note", "", UNSEALED)]


def _examine_all(
    source: TileSource, kernels: Index, n_steps: int, seed: int, codes: tuple[Index, ...]
) -> list[Portrait]:
    where = machine()
    tiling = source.tiling
    rows = np.arange(tiling.rows)
    view = View(source, kernels[:1], rows, rows if source.symmetric else np.arange(tiling.cols))
    n_tiles = len(view.tile_tasks())
    needed = {
        "tiles in double precision": 6 * tiling.tile**2 * 8,
        "vectors": (min(n_steps, tiling.rows) + 8 * PROBES) * tiling.rows * 8,
    }
    check_memory("examining this set", needed, where.task_bytes, "Set dmkl.memory higher, or ask for fewer n_steps")
    whole = n_tiles * tiling.tile**2 * 8
    hold = sum(needed.values()) + whole <= where.task_bytes
    plan = Plan(n_steps, seed, hold, where.slots_per_host, codes)
    passes = 1 if hold or not source.symmetric else 2 + n_steps
    return again(lambda: _run(source, kernels, plan, passes * view.bytes_per_pass), "check")


def _run(source: TileSource, kernels: Index, plan: Plan, n_bytes: int) -> list[Portrait]:
    token = uuid.uuid4().hex
    shared = send(source, f"check-source-{token}")
    tasks = [
        delayed(examine, pure=False)(shared, int(kernel), plan, dask_key_name=f"check-kernel-{number}-{token}")
        for number, kernel in enumerate(kernels)
    ]
    # Gathered by a task of its own: what is watched as it ends is let go of then.
    report = delayed(list, pure=False)(tasks, dask_key_name=f"check-report-{token}")
    found: list[list[Portrait]] = execute([report], [(task, n_bytes) for task in tasks], "check")
    return found[0]


def _repetitions(source: TileSource, kernels: Index, portraits: Sequence[Portrait]) -> tuple[Index, Float]:
    """For each kernel the first kernel that it repeats (itself if none) and the factor between them."""
    same, factor = np.arange(len(kernels)), np.ones(len(kernels))
    if hasattr(source, "tile_crc32c"):
        tables = source.tile_crc32c()[kernels]
        earlier: dict[bytes, int] = {}
        for j, table in enumerate(tables):
            same[j] = earlier.setdefault(table.tobytes(), j)
    projections = np.stack([p.projections for p in portraits])
    units = np.array([p.unit for p in portraits])
    frobenius = np.array([p.frobenius for p in portraits]) / units
    # Below 1e-10 a difference tells nothing whatever the precision: sums over many entries round too.
    noise = PROBES * max(4 * float(np.finfo(source.dtype).eps), 1e-10) * frobenius
    size = np.linalg.norm(projections.reshape(len(kernels), -1), axis=1)
    for group in proportional_groups(projections, noise):
        first = int(same[group[0]])
        for j in group[1:]:
            if same[j] == j:
                same[j], factor[j] = first, size[j] / size[first] * (units[j] / units[first])
    return same, factor


def _dataset(
    names: Sequence[str],
    portraits: Sequence[Portrait],
    same: Index,
    factor: Float,
    findings: Sequence[Finding],
) -> xr.Dataset:
    def column(values: Sequence[Any] | Array, about: str) -> tuple[str, Array, dict[str, str]]:
        return "kernel", np.array(values), {"long_name": about}

    spectra = [p.extremes for p in portraits]
    missing = float("nan")
    found = xr.Dataset(
        {
            "tiles": column([p.n_tiles for p in portraits], "stored tiles"),
            "damaged_tiles": column([len(p.damaged) for p in portraits], "tiles that are missing or fail a checksum"),
            "not_finite": column([p.not_finite for p in portraits], "entries that are NaN or infinite"),
            "asymmetry": column([p.asymmetry for p in portraits], "largest |K_ab − K_ba|"),
            "largest_entry": column([p.largest for p in portraits], "largest |K_ab|"),
            "trace": column([p.trace for p in portraits], "tr K"),
            "mean_diagonal": column([p.mean_diagonal for p in portraits], "tr K/m"),
            "centered_trace": column([p.centered_trace for p in portraits], "tr K − 1ᵀK1/m"),
            "lowest_eigenvalue": column([e.lowest if e else missing for e in spectra], "lowest Ritz value"),
            "lowest_bound": column([e.lowest_bound if e else missing for e in spectra], "residual of the lowest"),
            "highest_eigenvalue": column([e.highest if e else missing for e in spectra], "highest Ritz value"),
            "highest_bound": column([e.highest_bound if e else missing for e in spectra], "residual of the highest"),
            "negative_part": column(
                [negative_part(p) if p.extremes else missing for p in portraits], "|λ_min|/|λ|_max where λ_min < 0"
            ),
            "repeats": column(
                [names[first] if first != j else "" for j, first in enumerate(same)], "earlier kernel that this repeats"
            ),
            "factor": column(factor, "K = factor · the kernel that it repeats"),
            "severity": ("finding", np.array([f.severity for f in findings], dtype=str)),
            "subject": ("finding", np.array([f.kernel for f in findings], dtype=str)),
            "message": ("finding", np.array([f.message for f in findings], dtype=str)),
        },
        coords={"kernel": np.array(names, dtype=str)},
    )
    for values in found.variables.values():
        if values.dtype.kind in "iuf":
            values.attrs["units"] = "1"
    return describe(found)
