"""Preconditioners: factors of ½(I + K(β̄)/ρ) at reference weights β̄, and what they prove about weights near β̄.

For a point (β, λ) let γ = min_j β_j/β̄_j over the support of β̄. Then K(β) ⪰ γK(β̄), hence A(β, λ) = ½(I + K(β)/λ) ⪰
½(I + K(β̄)/ρ) =: M with the ridge ρ = λ/γ, and for the residual R of any α

    S(α, β) − J(β) = ½ tr(RᵀA⁻¹R) ≤ ½ tr(RᵀM⁻¹R) ≤ ‖R‖².

The bound in the middle stays sharp as λ → 0, where ‖R‖² is too large by a factor of the order of κ/λ. The same M⁻¹R is
the first-order error of α, and so the direction that the basis needs.

Ridges are rounded up by powers of one step, so that few factorizations serve all points; rounding up keeps the bound.
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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.files.arrays import load_array, read_array, save_array
from dmkl.numerics.cholesky import Cholesky, RoughFactor

__all__ = [
    "Closeness",
    "choose_anchors",
    "choose_kept",
    "closeness",
    "conditions",
    "factor_bytes",
    "factor_stem",
    "grid_step",
    "is_kept",
    "kept_bytes",
    "make_room",
    "read_factor",
    "ridge",
    "rough_ridge",
    "save_factor",
]

# --- choosing reference weights ------------------------------------------------------------------------------------


_FAR = 1e9
_USEFUL = 30.0
"""A γ this many times below the mean ratio makes a bound of no use, and a poor preconditioner."""


class Closeness:
    """How an anchor lies to a weighting.

    Parameters
    ----------
    lowest, mean, highest
        Of the ratios β_j/β̄_j over the anchor's support.
    total
        The ratio of the sums, Σβ_j/Σβ̄_j, over the support.
    """

    def __init__(self, lowest: float, mean: float, highest: float, total: float) -> None:
        self.bounds = lowest * _USEFUL >= mean > 0
        """Whether M bounds A from below to any use."""
        self.condition = float(_condition(np.array(lowest), np.array(highest)))
        """Bound of the condition number of K(β̄)⁻¹K(β)."""
        # Not the mean ratio: a kernel that the anchor all but lacks would make it astronomical, and the ridge λ/scale
        # smaller than what the kernels' own rounding leaves positive definite.
        self.scale = lowest if self.bounds else max(total, 1e-12)
        """K(β) is like this many times K(β̄); at least as large, where M bounds."""


def _condition(lowest: Float, highest: Float) -> Float:
    usable = (highest > 0) & (highest < np.inf)
    highest = np.where(usable, highest, 1.0)
    return np.where(usable, np.minimum(highest / np.maximum(lowest, highest / _FAR), _FAR), _FAR)


def conditions(betas: Float, anchor: Float) -> Float:
    """`Closeness.condition` of many weightings (k, n) to one anchor (n,), which costs hardly more than that of one."""
    support = anchor > 0
    ratios = betas[:, support] / anchor[support]
    outside = betas[:, ~support].sum(axis=1) > 1e-9 * betas.sum(axis=1)
    return _condition(ratios.min(axis=1), np.where(outside, np.inf, ratios.max(axis=1)))


def closeness(beta: Float, anchor: Float) -> Closeness:
    """Compare a weighting with an anchor's, both (n,)."""
    support = anchor > 0
    ratios = beta[support] / anchor[support]
    # Weight on kernels that the anchor lacks: nothing bounds the condition number.
    outside = float(beta[~support].sum()) > 1e-9 * float(beta.sum())
    total = float(beta[support].sum() / anchor[support].sum())
    return Closeness(float(ratios.min()), float(ratios.mean()), np.inf if outside else float(ratios.max()), total)


def grid_step(lams: Sequence[float]) -> float:
    """The factor by which ridges are rounded: that of neighboring λ, so that the ridges of one λ serve the next."""
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

    For the first directions, which prove nothing: solutions at λ from a grid twice as coarse span those between them.
    """
    power = math.ceil(0.5 * math.log(lam / scale) / math.log(step) - 1e-9)
    return float(f"{step ** (2 * power):.12g}")


def choose_anchors(
    betas: Sequence[Float], gaps: Sequence[float], anchors: Sequence[Float], most: int, far: float = 3.0
) -> list[Float]:
    """New anchors among the weightings of points, each the one worst served by those before (farthest first).

    Parameters
    ----------
    betas, gaps
        Of the open points.
    anchors
        Those at hand.
    most
        How many may be added.
    far
        Points whose condition number is below this are served well enough.
    """
    if not betas:
        return []
    points = np.array(betas)
    lowest = np.min([np.full(len(points), _FAR), *(conditions(points, anchor) for anchor in anchors)], axis=0)
    chosen: list[Float] = []
    while len(chosen) < most:
        worst = max(range(len(betas)), key=lambda k: (lowest[k], gaps[k]))
        if lowest[worst] <= far:
            break
        chosen.append(betas[worst])
        lowest = np.minimum(lowest, conditions(points, betas[worst]))
    return chosen


# --- factors on disk -----------------------------------------------------------------------------------------------


_PANEL = 1024
_MARK = "-factor-"


def factor_stem(folder: Path, anchor: int, ridge: float) -> str:
    """The beginning of the names of the files of a factor; they begin as those of its anchor's sum do."""
    return str(folder / f"anchor-{anchor}{_MARK}{ridge!r}")


def factor_bytes(m: int) -> int:
    """Bytes on disk of a factor of order m: panels of its lower triangle in single precision."""
    return 4 * m * (m + _PANEL) // 2 + 8 * m


def is_kept(stem: str) -> bool:
    """Whether a factor is there, and whole."""
    return Path(f"{stem}-order.npy").exists()


def save_factor(stem: str, factor: RoughFactor) -> None:
    """Keep a factor."""
    lower = factor.factor.lower
    for start in range(0, len(lower), _PANEL):
        save_array(f"{stem}-{start}.npy", lower.T[start : start + _PANEL, start:])
    save_array(f"{stem}-order.npy", np.empty(0, np.int64) if factor.order is None else factor.order)


def read_factor(stem: str, scratch: Array) -> RoughFactor:
    """A factor that is kept, in the memory of `scratch`, (m, m) in single precision and column-major."""
    panel = np.empty(0, np.float32)
    for start in range(0, len(scratch), _PANEL):
        panel = read_array(f"{stem}-{start}.npy", panel)
        scratch.T[start : start + _PANEL, start:] = panel
    order = np.array(load_array(f"{stem}-order.npy"))
    os.utime(f"{stem}-order.npy")
    return RoughFactor(Cholesky(scratch), order if len(order) else None)


# --- room ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    used: float
    """When it was read last, or made."""
    stem: str
    files: list[Path]
    size: int

    def forget(self) -> None:
        # What marks it as whole goes first.
        for path in [Path(f"{self.stem}-order.npy"), *self.files]:
            path.unlink(missing_ok=True)


def kept_bytes(folders: Iterable[Path]) -> int:
    """What the factors in some folders take of the disk."""
    return sum(one.size for one in _all_kept(folders))


def make_room(folders: Iterable[Path], needed: int) -> None:
    """Forget factors until so many bytes are free on the disk, or none is left; those that were used last stay."""
    folders = list(folders)
    short = needed - shutil.disk_usage(folders[0]).free
    for one in _all_kept(folders):
        if short <= 0:
            break
        one.forget()
        short -= one.size


def choose_kept(folders: Iterable[Path], wanted: dict[str, int]) -> set[str]:
    """Which new factors are to be kept, of some stems and sizes in bytes: all that find room.

    All that are kept take no more of the disk than they leave free; those that were used before the wanted ones, of
    which some may be there already, give way to them.
    """
    folders = list(folders)
    others = [one for one in _all_kept(folders) if one.stem not in wanted]
    new = {stem: size for stem, size in wanted.items() if not is_kept(stem)}
    free, held, chosen = shutil.disk_usage(folders[0]).free, kept_bytes(folders), set[str]()
    for stem, size in new.items():
        while held + size > free - size and others:
            oldest = others.pop(0)
            oldest.forget()
            held, free = held - oldest.size, free + oldest.size
        if held + size > free - size:
            break
        chosen.add(stem)
        held, free = held + size, free - size
    return chosen


def _all_kept(folders: Iterable[Path]) -> list[_Kept]:
    """The factors in some folders, those first that have not been used for longest."""
    files: dict[str, list[Path]] = {}
    for folder in folders:
        for path in folder.glob(f"anchor-*{_MARK}*.npy"):
            files.setdefault(str(folder / path.stem.rpartition("-")[0]), []).append(path)
    found = []
    for stem, mine in files.items():
        there = [path.stat() for path in mine]
        found.append(_Kept(max(stat.st_mtime for stat in there), stem, mine, sum(stat.st_size for stat in there)))
    return sorted(found, key=lambda one: one.used)
