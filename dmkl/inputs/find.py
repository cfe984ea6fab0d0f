"""Data among paths, folders and the arrays of files: kernels or features, with labels and the like."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dmkl.errors import InputError
from dmkl.files.urls import local_path
from dmkl.inputs.columns import ROLES, plain_title
from dmkl.inputs.formats.file_arrays import FileArray, listed, stem
from dmkl.inputs.formats.registry import Format, check_file, expected_files, format_of, natural_order
from dmkl.inputs.formats.text_kernels import matrix_of_prefix
from dmkl.inputs.label_tables import read_array
from dmkl.inputs.labels import OF_SAMPLES, SideData
from dmkl.inputs.names import sample_names

PathLike = str | os.PathLike[str]
_OF_SETS = (*OF_SAMPLES, "tasks", "diagonal", "names", "samples", "train_samples")


def find_files(
    paths: PathLike | Sequence[PathLike], accepts: Callable[[Format], bool], roles: Collection[str], notes: list[str]
) -> tuple[list[Path], list[tuple[str, Path]]]:
    """Return the files with data, and those with labels and such by their roles.

    A single file holds the data, whatever its name; the files of a folder come in natural order, K2 before K10. A
    prefix stands for the relationship matrix of GCTA or PLINK that begins so, and a text file whose lines are all
    prefixes or relationship matrices (GCTA's --mgrm) for these.

    Parameters
    ----------
    accepts
        Whether a format holds the data.
    roles
        The roles (of `ROLES`) of the other files to find.
    notes
        Gets the names of files that are left out.
    """
    given = [
        local_path(path, "what is imported", "copy it to this machine first").expanduser()
        for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)
    ]
    given = [file for path in given for file in _matrices(path)]
    if len(given) == 1 and not _is_plain_folder(given[0]):
        check_file(given[0], accepts)
        return given, []
    files: list[Path] = []
    beside: list[tuple[str, Path]] = []
    for path in given:
        left_out = []
        is_folder = _is_plain_folder(path)
        entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")] if is_folder else [path]
        for entry in sorted(entries, key=lambda entry: natural_order(entry.name)):
            role, file_format = _role(entry), format_of(entry)
            if role is not None and role in roles and (file_format is not None or not is_folder):
                check_file(entry, Format.holds_labels)
                beside.append((role, entry))
            elif role in (None, "names") and (not is_folder or (file_format is not None and accepts(file_format))):
                check_file(entry, accepts)
                files.append(entry)
            else:
                left_out.append(entry.name)
        if left_out:
            notes.append(f"{path}: left out {', '.join(left_out)}; expected {expected_files(accepts)}")
    return files, beside


def _matrices(path: Path) -> list[Path]:
    """Return a path, or the relationship matrices that its prefix or its lines stand for."""
    if not path.exists():
        return [matrix_of_prefix(path) or path]
    if not path.is_file() or path.stat().st_size > 2**20 or format_of(path) not in (None, format_of(Path("list.txt"))):
        return [path]
    lines = path.read_bytes().decode(errors="replace").split("\n")
    prefixes = [line.strip() for line in lines if line.strip()]
    # GCTA searches in the working folder; a list that was moved refers to files in its folder.
    for folder in (Path(), path.parent):
        try:
            matrices = [matrix_of_prefix(folder / prefix) for prefix in prefixes]
        except (OSError, ValueError):  # names of a length, or of bytes, that no file has
            return [path]
        present = [matrix for matrix in matrices if matrix is not None]
        if present and None in matrices:
            lacking = prefixes[matrices.index(None)]
            msg = f"{path} lists relationship matrices, and there is none of the prefix {lacking}; copy it there"
            raise InputError(msg)
        if present:
            return present
    return [path]


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and path.suffix != ".zarr" and format_of(path) is None


def _role(path: Path) -> str | None:
    name = plain_title(stem(path))
    # "kernel.npy" is a kernel; its name would be in "names.txt".
    return None if name in ("kernel", "kernels") else ROLES.get(name)


# --- the arrays of a file ------------------------------------------------------------------------------------------


def sort_arrays(
    path: Path, arrays: Sequence[FileArray], data: Sequence[FileArray], notes: list[str]
) -> tuple[list[FileArray], list[SideData]]:
    """Give the arrays with data the names of samples in their file, and return also labels and such of the file.

    `notes` get the names of arrays that are left out, and the notes of all arrays.
    """
    rest = [(variable, variable.role) for variable in arrays if variable not in data]
    usable = [(variable, role) for variable, role in rest if role in _OF_SETS and not variable.problem]
    left_out = [str(v) for v, role in rest if v.problem or (role is None and max(v.shape, default=1) != 1)]
    if left_out:
        notes.append(f"{path}: left out {listed(left_out)}")
    for variable in arrays:
        notes += variable.notes
    names = {}
    for variable, role in usable:
        if role in ("samples", "train_samples") and role not in names:
            names[role] = sample_names(variable.where, map(str, read_array(variable).values.ravel().tolist()))
    rows, cols = names.get("samples"), names.get("train_samples")
    named = [replace(variable, rows=variable.rows or rows, columns=variable.columns or cols) for variable in data]
    beside = [
        SideData(role, variable.where, _reader(variable, rows if role in OF_SAMPLES else None))
        for variable, role in usable
        if role not in names
    ]
    return named, beside


def _reader(variable: FileArray, rows: tuple[str, ...] | None) -> Callable[..., Any]:
    return lambda _: read_array(variable, rows)


def names_of_arrays(arrays: Sequence[tuple[Path, str]], files: Sequence[Path]) -> list[str]:
    """Return names of arrays, from their files and their names in these."""
    stems, n_inside = _file_names(files), Counter(path for path, _ in arrays)
    names = []
    for (path, _), name in zip(arrays, short_names(name for _, name in arrays), strict=True):
        file = stems[path]
        names.append((name or file) if len(files) == 1 else file if n_inside[path] == 1 else f"{file}/{name}")
    return names


def short_names(names: Iterable[str]) -> list[str]:
    """Return names in a file or object without the folder that all of them share."""
    names = list(names)
    return [name.rpartition("/")[2] for name in names] if len({n.rpartition("/")[0] for n in names}) == 1 else names


def _file_names(files: Sequence[Path]) -> dict[Path, str]:
    """Return short unique names of files: their stems, or their paths below the common folder."""
    root = os.path.commonpath([path.absolute().parent for path in files])
    inside = {path: path.absolute().relative_to(root) for path in files}
    for names in ({path: stem(path) for path in files}, {p: str(inside[p].with_name(stem(p))) for p in files}):
        if len(set(names.values())) == len(files):
            return names
    return {path: str(inside[path]) for path in files}
