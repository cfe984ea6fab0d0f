"""Finding data among paths, folders and the arrays of files: kernels or features, and labels and such beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dmkl.errors import InputError
from dmkl.files.urls import local_path
from dmkl.inputs.columns import ROLES, plain_title
from dmkl.inputs.formats.file_arrays import FileArray, listed, role_of, stem, where
from dmkl.inputs.formats.genetics import matrix_of_prefix
from dmkl.inputs.formats.registry import Format, check_file, expected_files, format_of, natural_order
from dmkl.inputs.label_tables import read_array
from dmkl.inputs.names import sample_names
from dmkl.inputs.side_data import OF_SAMPLES, SideData

__all__ = ["Arrays", "PathLike", "find_files", "names_of_arrays", "short_names", "sort_arrays"]

PathLike = str | os.PathLike[str]
_OF_SETS = (*OF_SAMPLES, "tasks", "diagonal", "names", "samples", "train_samples")


def find_files(
    paths: PathLike | Sequence[PathLike], takes: Callable[[Format], bool], roles: Collection[str], notes: list[str]
) -> tuple[list[Path], list[tuple[str, Path]]]:
    """Find the files with data, and those with labels and such by their roles.

    A single file holds the data, whatever its name; the files of a folder come in natural order, K2 before K10. A
    prefix stands for the relationship matrix of GCTA or PLINK that begins so, and a text file whose lines are all
    prefixes or relationship matrices (GCTA's --mgrm) for these.
    `takes` says which formats hold the data, `roles` (of `ROLES`) what is looked for beside them; `notes` get what was
    left out.
    """
    given = [
        local_path(path, "what is imported", "copy it to this machine first").expanduser()
        for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)
    ]
    given = [file for path in given for file in _matrices(path)]
    if len(given) == 1 and not _is_plain_folder(given[0]):
        check_file(given[0], takes)
        return given, []
    files: list[Path] = []
    beside: list[tuple[str, Path]] = []
    for path in given:
        left_out = []
        is_folder = _is_plain_folder(path)
        entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")] if is_folder else [path]
        for entry in sorted(entries, key=lambda entry: natural_order(entry.name)):
            role, found = _role(entry), format_of(entry)
            if role is not None and role in roles and (found is not None or not is_folder):
                check_file(entry, Format.holds_labels)
                beside.append((role, entry))
            elif role in (None, "names") and (not is_folder or (found is not None and takes(found))):
                check_file(entry, takes)
                files.append(entry)
            else:
                left_out.append(entry.name)
        if left_out:
            notes.append(f"{path}: left out {', '.join(left_out)}; expected {expected_files(takes)}")
    return files, beside


def _matrices(path: Path) -> list[Path]:
    """A path, or the relationship matrices that its prefix or its lines stand for."""
    if not path.exists():
        return [matrix_of_prefix(path) or path]
    if not path.is_file() or path.stat().st_size > 2**20 or format_of(path) not in (None, format_of(Path("list.txt"))):
        return [path]
    lines = path.read_bytes().decode(errors="replace").split("\n")
    names = [line.strip() for line in lines if line.strip()]
    # GCTA looks from where it is run; a list that was moved is meant beside its files.
    for folder in (Path(), path.parent):
        try:
            found = [matrix_of_prefix(folder / name) for name in names]
        except (OSError, ValueError):  # names of a length, or of bytes, that no file has
            return [path]
        whole = [matrix for matrix in found if matrix is not None]
        if whole and None in found:
            lacking = names[found.index(None)]
            msg = f"{path} lists relationship matrices, and there is none of the prefix {lacking}; copy it there"
            raise InputError(msg)
        if whole:
            return whole
    return [path]


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and path.suffix != ".zarr" and format_of(path) is None


def _role(path: Path) -> str | None:
    name = plain_title(stem(path))
    # "kernel.npy" is a kernel; its name would be in "names.txt".
    return None if name in ("kernel", "kernels") else ROLES.get(name)


# --- the arrays of a file ------------------------------------------------------------------------------------------


@dataclass
class Arrays:
    """The arrays of a file."""

    data: list[FileArray] = field(default_factory=list)  # kernels or features, with the names of their rows
    beside: list[SideData] = field(default_factory=list)  # labels and such


def sort_arrays(path: Path, held: Sequence[FileArray], data: Sequence[FileArray], notes: list[str]) -> Arrays:
    """Give the arrays that hold data the names of samples in their file, and find labels and such among the others.

    `notes` get what was left out, and what was taken for what.
    """
    rest = [(variable, role_of(variable)) for variable in held if variable not in data]
    usable = [(v, role) for v, role in rest if role in _OF_SETS and not v.problem]
    left_out = [str(v) for v, role in rest if v.problem or (role is None and max(v.shape, default=1) != 1)]
    if left_out:
        notes.append(f"{path}: left out {listed(left_out)}")
    for variable in held:
        notes += variable.notes
    names = {}
    for role in ("samples", "train_samples"):
        variables = [variable for variable, own in usable if own == role]
        if variables:
            names[role] = sample_names(where(variables[0]), map(str, read_array(variables[0]).values.ravel().tolist()))
    rows, cols = names.get("samples"), names.get("train_samples")
    named = [replace(v, rows=v.rows or rows, columns=v.columns or cols) for v in data]
    beside = [
        SideData(role, where(v), partial(read_array, v, rows if role in OF_SAMPLES else None))
        for v, role in usable
        if role not in names
    ]
    return Arrays(named, beside)


def names_of_arrays(arrays: Sequence[tuple[FileArray, int | None]], files: Sequence[Path]) -> list[str] | None:
    """Names from files and variables, of arrays and the number of kernels of each (None for a single matrix).

    None for one array of several kernels, which gives them no names.
    """
    if len(arrays) == 1 and arrays[0][1] is not None:
        return None
    stems = _file_names(files)
    inner = short_names([variable.name for variable, _ in arrays])
    n_inside = Counter(variable.path for variable, _ in arrays)
    names = []
    for (variable, n), name in zip(arrays, inner, strict=True):
        stem = stems[variable.path]
        base = (name or stem) if len(files) == 1 else stem if n_inside[variable.path] == 1 else f"{stem}/{name}"
        names += [base] if n is None else [f"{base}_{j}" for j in range(n)]
    return names


def short_names(names: Iterable[str]) -> list[str]:
    """Names in a file or object without the folder that all of them lie in."""
    names = list(names)
    return [name.rpartition("/")[2] for name in names] if len({n.rpartition("/")[0] for n in names}) == 1 else names


def _file_names(files: Sequence[Path]) -> dict[Path, str]:
    """Short names that tell the files apart: their stems, or their paths below the common folder."""
    root = os.path.commonpath([path.absolute().parent for path in files])
    inside = {path: path.absolute().relative_to(root) for path in files}
    for names in ({path: stem(path) for path in files}, {p: str(inside[p].with_name(stem(p))) for p in files}):
        if len(set(names.values())) == len(files):
            return names
    return {path: str(inside[path]) for path in files}
