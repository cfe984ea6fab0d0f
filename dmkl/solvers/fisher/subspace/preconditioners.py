"""Preconditioners: factors of ½(I + K(β̄)/ρ) at reference weights β̄, and what they prove about weights near β̄.

For a point (β, λ) let γ = min_j β_j/β̄_j over the support of β̄. Then K(β) ⪰ γK(β̄), hence A(β, λ) = ½(I + K(β)/λ) ⪰
½(I + K(β̄)/ρ) =: M with the ridge ρ = λ/γ, and for the residual R of any α

    S(α, β) − J(β) = ½ tr(RᵀA⁻¹R) ≤ ½ tr(RᵀM⁻¹R) ≤ ‖R‖².

The bound in the middle stays sharp as λ → 0, where ‖R‖² is too large by a factor of the order of κ/λ. The same M⁻¹R is
the first-order error of α, and so the direction that the basis needs.

Ridges are rounded up by powers of one step, so that few factorizations serve all points; rounding up keeps the bound.
For large sets a factor serves several ridges, by conjugate gradients (`dmkl.numerics.cholesky.refined_and_bounded`).
Factors are kept on disk, since later rounds need the same ones and reading takes a tenth of the time of factorizing. Of
each the lower triangle is kept in panels of columns, ``<stem>-<first column>.npy``, and then the order of its rows,
``<stem>-order.npy``, which marks the factor as complete. They take what the disk has to spare: the least recently used
are deleted when bases and sums need the room.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dmkl.arrays import Array, Float, by_key
from dmkl.files.arrays import load_array, read_array, save_array
from dmkl.numerics.cholesky import Cholesky, RoughFactor

# --- choosing reference weights ------------------------------------------------------------------------------------


_FAR, _NEAR = 1e9, 3.0  # Condition numbers
_USEFUL = 30.0  # If γ is this many times below the mean ratio, the bound is useless and the preconditioner is poor.


class Closeness(NamedTuple):
    """How weights β compare with the reference weights β̄ of a preconditioner, by the ratios β_j/β̄_j on its support."""

    bounds: bool  # Whether M ⪯ A gives a useful bound
    condition: float  # Upper bound of the condition number of K(β̄)⁻¹K(β)
    scale: float  # K(β) ≈ scale · K(β̄), and K(β) ⪰ scale · K(β̄) if `bounds`


def conditions(betas: Float, preconditioner: Float) -> Float:
    """`Closeness.condition` of many weights (k, n) relative to reference weights (n,)."""
    support = preconditioner > 0
    # K(β) ⪯ (max_j β_j/β̄_j)K(β̄) and ⪰ (min_j β_j/β̄_j)K(β̄) on the support of β̄: the ratio bounds the condition
    # number. With weight outside the support nothing bounds it.
    ratios = betas[:, support] / preconditioner[support]
    outside = betas[:, ~support].sum(axis=1) > 1e-9 * betas.sum(axis=1)
    lowest, highest = ratios.min(axis=1), np.where(outside, np.inf, ratios.max(axis=1))
    usable = (highest > 0) & (highest < np.inf)
    highest = np.where(usable, highest, 1.0)
    numbers = np.where(usable, np.minimum(highest / np.maximum(lowest, highest / _FAR), _FAR), _FAR)
    return np.where(betas.any(axis=1), numbers, 1.0)  # without weight A = ½I, which any M approximates at a large ridge


def closeness(beta: Float, preconditioner: Float) -> Closeness:
    """Compare weights with reference weights, both (n,)."""
    support = preconditioner > 0
    ratios = beta[support] / preconditioner[support]
    lowest, mean = float(ratios.min()), float(ratios.mean())
    bounds = lowest * _USEFUL >= mean > 0
    # Not the mean ratio but that of the sums: a kernel with a tiny weight in β̄ would make the mean huge, and the ridge
    # λ/scale so small that the rounding of the stored kernels leaves M indefinite.
    total = float(beta[support].sum() / preconditioner[support].sum())
    return Closeness(bounds, float(conditions(beta[None], preconditioner)[0]), lowest if bounds else max(total, 1e-12))


def grid_step(lams: Sequence[float]) -> float:
    """The factor by which ridges are rounded: the ratio of neighboring λ, so that neighbors share ridges."""
    values = np.unique(lams)
    if len(values) < 2:
        return 10.0
    return float(np.clip(np.median(values[1:] / values[:-1]), 3.0, 10.0))


def ridge(lam: float, scale: float, step: float) -> float:
    """The smallest λ·stepᵏ that is at least λ/scale, to twelve digits."""
    power = math.ceil(-math.log(scale) / math.log(step) - 1e-9)
    return float(f"{lam * step**power:.12g}")


def rough_ridge(lam: float, scale: float, step: float) -> float:
    """The smallest power of step² that is at least λ/scale, to twelve digits: few factors for many λ.

    It is for the first directions, which prove nothing: solutions on a grid of λ twice as coarse span those between.
    """
    return ridge(1.0, scale / lam, step**2)


_SHARED, _NEGLIGIBLE = 50, 200.0
"""Rows for each column of a ridge from which another factor serves it: two or three steps of refinement take some 15m²
operations a column, counted in single precision, and a factor of its own m³/3. The second is tr K over the least ridge
at which M is near enough to ½I: at most so many eigenvalues of K are above this ridge."""


def factor_ridge(rho: float, trace: float, n_columns: int, m: int) -> float:
    """The ridge of the factor that serves so many columns at a ridge: within a factor of ten of it, or infinite."""
    if n_columns * _SHARED > m:
        return rho
    return np.inf if rho * _NEGLIGIBLE >= trace else rough_ridge(rho, 10.0, 10.0)


def choose_reference_weights(
    betas: Sequence[Float], gaps: Sequence[float], preconditioners: Sequence[Float], most: int
) -> list[Float]:
    """Choose at most `most` new reference weights among the weights of open points, farthest first.

    Each is the one with the highest condition number relative to all reference weights so far; of equal ones the point
    with the larger gap. Points whose condition number is at most `_NEAR` need no new preconditioner.
    """
    if not betas:
        return []
    points = np.array(betas)
    lowest = np.min([np.full(len(points), _FAR), *(conditions(points, beta) for beta in preconditioners)], axis=0)
    chosen: list[Float] = []
    while len(chosen) < most:
        worst = max(range(len(betas)), key=lambda k: (lowest[k], gaps[k]))
        if lowest[worst] <= _NEAR:
            break
        chosen.append(betas[worst])
        lowest = np.minimum(lowest, conditions(points, betas[worst]))
    return chosen


# --- factors on disk -----------------------------------------------------------------------------------------------


_PANEL = 1024
_MARK = "-factor-"


def factor_stem(folder: Path, preconditioner: int, ridge: float) -> str:
    """The prefix of the files of a factor, which begins as that of the combined kernel."""
    return str(folder / f"anchor-{preconditioner}{_MARK}{ridge!r}")


def factor_bytes(m: int) -> int:
    """Bytes on disk of a factor of order m: panels of its lower triangle in single precision."""
    return 4 * m * (m + _PANEL) // 2 + 8 * m


def is_kept(stem: str) -> bool:
    """Whether a factor is on disk and complete."""
    return Path(f"{stem}-order.npy").exists()


def save_factor(stem: str, factor: RoughFactor) -> None:
    """Write a factor to disk."""
    lower = factor.factor.lower
    # Panels of columns from the diagonal down: the upper triangle is neither written nor read.
    for start in range(0, len(lower), _PANEL):
        save_array(f"{stem}-{start}.npy", lower.T[start : start + _PANEL, start:])
    save_array(f"{stem}-order.npy", np.empty(0, np.int64) if factor.order is None else factor.order)


def read_factor(stem: str, scratch: Array) -> RoughFactor:
    """Read a factor into the memory of `scratch`, (m, m) in single precision and column-major."""
    panel = np.empty(0, np.float32)
    for start in range(0, len(scratch), _PANEL):
        panel = read_array(f"{stem}-{start}.npy", panel)
        scratch.T[start : start + _PANEL, start:] = panel
    order = np.array(load_array(f"{stem}-order.npy"))
    os.utime(f"{stem}-order.npy")
    return RoughFactor(Cholesky(scratch), order if len(order) else None)


# --- room ----------------------------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    used: float  # The time of its last use
    stem: str
    files: list[Path]
    size: int

    def delete(self) -> None:
        # The file that marks the factor as complete is deleted first.
        for path in [Path(f"{self.stem}-order.npy"), *self.files]:
            path.unlink(missing_ok=True)


def kept_bytes(folders: Iterable[Path]) -> int:
    """Bytes on disk of the factors in some folders."""
    return sum(factor.size for factor in _all_kept(folders))


def make_room(folders: Iterable[Path], needed: int) -> None:
    """Delete the least recently used factors until so many bytes are free on the disk, or none is left."""
    folders = list(folders)
    short = needed - shutil.disk_usage(folders[0]).free
    for factor in _all_kept(folders):
        if short <= 0:
            break
        factor.delete()
        short -= factor.size


def choose_kept(folders: Iterable[Path], wanted: dict[str, int]) -> set[str]:
    """Choose which new factors, by prefix and size in bytes, to write to disk; the oldest others are deleted."""
    folders = list(folders)
    others, chosen = [factor for factor in _all_kept(folders) if factor.stem not in wanted], set[str]()
    # All factors together may take as much as they leave free, so that bases and sums find room.
    spare = (shutil.disk_usage(folders[0]).free - kept_bytes(folders)) / 2
    for stem, size in wanted.items():
        if is_kept(stem):
            continue
        while size > spare and others:
            oldest = others.pop(0)
            oldest.delete()
            spare += oldest.size
        if size > spare:
            break
        chosen.add(stem)
        spare -= size
    return chosen


def _all_kept(folders: Iterable[Path]) -> list[_Kept]:
    """The factors in some folders, the least recently used first."""
    paths_of_all = (path for folder in folders for path in folder.glob(f"anchor-*{_MARK}*.npy"))
    files, factors = by_key(paths_of_all, lambda path: str(path.parent / path.stem.rpartition("-")[0])), []
    for stem, paths in files.items():
        stats = [path.stat() for path in paths]
        factors.append(_Kept(max(stat.st_mtime for stat in stats), stem, paths, sum(stat.st_size for stat in stats)))
    return sorted(factors)
