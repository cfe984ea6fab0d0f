"""Finding the files with kernels or features among paths and folders, and the files with labels beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from dmkl.errors import InputError
from dmkl.files.urls import local_path
from dmkl.inputs.formats.file_arrays import ROLES, stem
from dmkl.inputs.formats.registry import Format, expected_files, format_of, natural_order

__all__ = ["PathLike", "check_file", "find_files"]

PathLike = str | os.PathLike[str]

_OF_R = (
    '. Files of R are not read, since what lies in them may be code; in R, with K <- readRDS("K.rds"): '
    'write.csv(K, gzfile("K.csv.gz")) keeps the names of rows and columns'
)


def find_files(
    paths: PathLike | Sequence[PathLike], takes: Callable[[Format], bool], roles: Collection[str], notes: list[str]
) -> tuple[list[Path], list[tuple[str, Path]]]:
    """Find the files with data, and those with labels and such by what they hold.

    A single file holds the data, whatever it is called; the files of a folder come in natural order, K2 before K10.
    `takes` says which formats hold the data, `roles` (of `ROLES`) what is looked for beside them; `notes` get what was
    left out.
    """
    given = [
        local_path(path, "what is imported", "copy it to this machine first").expanduser()
        for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)
    ]
    if len(given) == 1 and not _is_plain_folder(given[0]):
        return [check_file(given[0], takes)], []
    files: list[Path] = []
    beside: list[tuple[str, Path]] = []
    for path in given:
        left_out = []
        inside = _entries(path) if _is_plain_folder(path) else None
        for entry in [path] if inside is None else inside:
            role, found = _role(entry), format_of(entry)
            if role is not None and role in roles and (found is not None or inside is None):
                beside.append((role, check_file(entry, Format.holds_labels)))
            elif role in (None, "names") and (inside is None or (found is not None and takes(found))):
                files.append(check_file(entry, takes))
            else:
                left_out.append(entry.name)
        if left_out:
            notes.append(f"{path}: left out {', '.join(left_out)}; expected {expected_files(takes)}")
    return files, beside


def check_file(path: Path, takes: Callable[[Format], bool]) -> Path:
    """Check that a file is there and of a format that is taken; return it."""
    if not path.exists():
        msg = f"there is no file {path}"
        raise InputError(msg)
    found = format_of(path)
    if found is None or not takes(found):
        what = "is a folder without Zarr metadata" if path.is_dir() else f"has the extension {path.suffix!r}"
        way_out = _OF_R if path.suffix.lower() in (".rds", ".rdata", ".rda") else ""
        msg = f"{path} {what}, expected {expected_files(takes)}{way_out}"
        raise InputError(msg)
    return path


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and path.suffix != ".zarr" and format_of(path) is None


def _entries(folder: Path) -> list[Path]:
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return sorted(entries, key=lambda entry: natural_order(entry.name))


def _role(path: Path) -> str | None:
    name = stem(path).casefold().replace("-", "_")
    # "kernel.npy" is a kernel; its name would be in "names.txt".
    return None if name in ("kernel", "kernels") else ROLES.get(name)
