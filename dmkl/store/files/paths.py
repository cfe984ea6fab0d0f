"""Which files there are, and what arrays they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from dmkl.errors import InputError
from dmkl.store.files.hdf5 import hdf5_variables
from dmkl.store.files.matlab import matlab_variables
from dmkl.store.files.numpy_files import npy_variables, npz_variables
from dmkl.store.files.text import TEXT_SUFFIXES, text_variables
from dmkl.store.files.variables import ROLES, Variable
from dmkl.store.files.zarr_folders import is_zarr, zarr_variables

__all__ = ["PathLike", "expanded", "known", "scan"]

PathLike = str | os.PathLike[str]

_HDF5_SUFFIXES = (".h5", ".hdf5")
_FORMATS: dict[str, Callable[[Path], list[Variable]]] = {
    ".npy": npy_variables,
    ".npz": npz_variables,
    ".mat": matlab_variables,
    **dict.fromkeys(_HDF5_SUFFIXES, hdf5_variables),
    **dict.fromkeys(TEXT_SUFFIXES, text_variables),
}
_KNOWN = ", ".join(_FORMATS) + " or a Zarr folder"


def expanded(paths: PathLike | Sequence[PathLike], notes: list[str]) -> tuple[list[Path], list[tuple[str, Path]]]:
    """The files with kernels, and the files with labels and such by what they hold.

    Raises
    ------
    InputError
        If a file is missing or of an unknown kind, or there is none with kernels.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if len(given) == 1 and not _is_plain_folder(single := Path(given[0]).expanduser()):
        return [known(single)], []  # the one file holds the kernels, whatever it is called
    entries: list[Path] = []
    for path in (Path(entry).expanduser() for entry in given):
        entries += _folder(path, notes) if _is_plain_folder(path) else [known(path)]
    roles = [_role(entry) for entry in entries]
    data = [entry for entry, role in zip(entries, roles, strict=True) if role is None]
    if not data:
        msg = f"there are no kernels in {', '.join(map(str, given)) or 'no files'}; expected {_KNOWN}"
        raise InputError(msg)
    return data, [(role, entry) for entry, role in zip(entries, roles, strict=True) if role is not None]


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and path.suffix != ".zarr" and not is_zarr(path)


def _folder(path: Path, notes: list[str]) -> list[Path]:
    """The known files of a folder, K2 before K10."""
    entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    entries.sort(key=lambda entry: _natural(entry.name))
    unknown = [entry.name for entry in entries if not _is_known(entry)]
    if unknown:
        notes.append(f"{path}: left out {', '.join(unknown)}; expected {_KNOWN}")
    return [entry for entry in entries if _is_known(entry)]


def _role(path: Path) -> str | None:
    stem = path.stem.casefold().replace("-", "_")
    # "kernel.npy" is a kernel; its name would be in "names.txt".
    return None if stem in ("kernel", "kernels") else ROLES.get(stem)


def _is_known(path: Path) -> bool:
    return is_zarr(path) if path.is_dir() else path.suffix.lower() in _FORMATS


def known(path: Path) -> Path:
    """A file that is there and of a known kind.

    Raises
    ------
    InputError
        If it is not.
    """
    if not path.exists():
        msg = f"there is no file {path}"
        raise InputError(msg)
    if not _is_known(path):
        what = "is a folder without Zarr metadata" if path.is_dir() else f"has the extension {path.suffix!r}"
        msg = f"{path} {what}, expected {_KNOWN}"
        raise InputError(msg)
    return path


def scan(path: Path) -> list[Variable]:
    """The arrays of one file; nothing but headers is read."""
    held = zarr_variables(path) if path.is_dir() else _FORMATS[path.suffix.lower()](path)
    if path.is_dir() or path.suffix.lower() in _HDF5_SUFFIXES:
        # These have no order of their own; .npz and MATLAB files have that in which they were saved, which
        # counts.
        held.sort(key=lambda variable: _natural(variable.name))
    return held


def _natural(text: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"(\d+)", text)
    key: list[tuple[int, int | str]] = [
        (0, int(part)) if part.isdecimal() else (1, part.casefold()) for part in parts if part
    ]
    return [*key, (2, text)]
