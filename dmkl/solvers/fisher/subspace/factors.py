"""Factors of anchors on disk: rounds ask for the same ones again, and to read one takes a tenth of making it.

Of each the lower triangle is kept in panels of columns, ``<stem>-<first column>.npy``, and then the order of its rows,
``<stem>-order.npy``: where that is, the factor is whole. They take what the disk has to spare, and give way to bases
and sums: those that have not been used for longest first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dmkl.arrays import Array
from dmkl.files.arrays import load_array, read_array, save_array
from dmkl.numerics.cholesky import Cholesky, RoughFactor

__all__ = [
    "choose_kept",
    "factor_bytes",
    "factor_stem",
    "is_kept",
    "kept_bytes",
    "make_room",
    "read_factor",
    "save_factor",
]

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
