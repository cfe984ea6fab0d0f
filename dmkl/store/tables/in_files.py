"""Features in files, with what lies beside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dmkl.errors import InputError
from dmkl.store.files.choosing import kernel_names
from dmkl.store.files.labels import Found
from dmkl.store.files.paths import PathLike, known, scan
from dmkl.store.files.source import Part
from dmkl.store.files.text import TEXT_SUFFIXES, Table, read_table
from dmkl.store.files.variables import ROLES, Variable, role_of, vector, where
from dmkl.store.files.zarr_folders import is_zarr
from dmkl.store.tables.blocks import SourceBlock, array_block, sample_names
from dmkl.store.tables.gathered import LABEL_ROLES, Gathered
from dmkl.store.tables.table_files import TABLE_SUFFIXES, LastOpened, table_file

__all__ = ["from_files"]

_ARRAY_SUFFIXES = (".npy", ".npz", ".mat", ".h5", ".hdf5")
_KNOWN = ", ".join((*_ARRAY_SUFFIXES, *TABLE_SUFFIXES)) + " or a Zarr folder"

_REFUSED = {
    "sparse": "is sparse, but blocks of rows are computed with dense; save it dense",
    "complex": "is complex, expected real numbers; save real and imaginary parts as columns of their own",
    "Python objects": "holds Python objects, never unpickled: they can run any code; save numbers",
}


def from_files(paths: PathLike | Sequence[PathLike]) -> Gathered:
    """Features in files, and the labels, splits and names beside them; of arrays nothing but headers is read.

    Raises
    ------
    InputError
        If a file is missing, damaged or of an unknown kind, or there are no features in them.
    """
    gathered = Gathered()
    last = LastOpened()
    files, beside = _sorted_files(paths, gathered.notes)
    # Blocks get their names last: they depend on what else there is.
    parts: list[tuple[SourceBlock, Part]] = []
    for path in files:
        if path.suffix.lower() in TABLE_SUFFIXES and not path.is_dir():
            block, found = table_file(path, last, gathered.notes)
            whole = Variable(path, "", block.shape, block.dtype, partial(np.empty, 0), partial(np.empty, 0))
            parts.append((block, Part(whole, None, block.shape, 1, {})))
            gathered.found += found
        else:
            parts += _array_file(path, last, gathered)
    if not parts:
        msg = (
            f"there are no features in {', '.join(map(str, files)) or 'no files'}: expected matrices (samples, "
            "columns) of numbers; give a column as (samples, 1), or in a mapping from names to arrays"
        )
        raise InputError(msg)
    names = kernel_names([part for _, part in parts], files) or []
    gathered.blocks = [replace(block, name=name) for (block, _), name in zip(parts, names, strict=True)]
    for role, path in beside:
        if role == "samples":
            table = _read(path)
            gathered.samples = sample_names(str(path), table.row_names or np.ravel(table.values).tolist())
        else:
            gathered.found.append(Found(role, str(path), partial(_read, path)))
    return gathered


def _sorted_files(paths: PathLike | Sequence[PathLike], notes: list[str]) -> tuple[list[Path], list[tuple[str, Path]]]:
    """The files with features, and those with labels and such by what they hold."""
    given = [Path(path).expanduser() for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    alone = len(given) == 1 and not _is_plain_folder(given[0])
    files, beside = [], []
    for path in given:
        inside = sorted(entry for entry in path.iterdir() if entry.name[0] != ".") if _is_plain_folder(path) else None
        for entry in [path] if inside is None else inside:
            role = None if alone else ROLES.get(entry.stem.casefold().replace("-", "_"))
            if role == "samples" or role in LABEL_ROLES:
                beside.append((role, entry))
            elif _is_known(entry) and role not in ("diagonal", "train_samples"):
                files.append(entry)
            elif inside is not None or role is not None:
                notes.append(f"left out {entry}; expected {_KNOWN}")
            elif not entry.exists():
                msg = f"there is no file {entry}"
                raise InputError(msg)
            else:
                what = "is a folder without Zarr metadata" if entry.is_dir() else f"has the extension {entry.suffix!r}"
                msg = f"{entry} {what}, expected {_KNOWN}"
                raise InputError(msg)
    return files, beside


def _is_plain_folder(path: Path) -> bool:
    return path.is_dir() and path.suffix != ".zarr" and not is_zarr(path)


def _is_known(path: Path) -> bool:
    return (
        is_zarr(path) if path.is_dir() else path.is_file() and path.suffix.lower() in _ARRAY_SUFFIXES + TABLE_SUFFIXES
    )


def _array_file(path: Path, last: LastOpened, gathered: Gathered) -> list[tuple[SourceBlock, Part]]:
    held = scan(path)
    roles = [None if not variable.name else role_of(variable) for variable in held]
    chosen, left_out = [], []
    named: Variable | None = None
    beside: list[tuple[str, Variable]] = []
    for variable, role in zip(held, roles, strict=True):
        if role == "samples" and named is None and not variable.problem:
            named = variable
        elif role in LABEL_ROLES and not variable.problem:
            beside.append((role, variable))
        elif role is None and _is_block(variable):
            chosen.append(variable)
        elif variable.shape not in ((), (1,), (1, 1)):
            left_out.append(str(variable))
    if left_out:
        gathered.notes.append(f"{path}: left out {', '.join(left_out)}")
    samples = None
    if named is not None:
        samples = sample_names(where(named), np.ravel(vector(named.read(), where(named))).tolist())
    for role, variable in beside:
        gathered.found.append(Found(role, where(variable), partial(_beside, variable, samples)))
    return [
        (
            array_block(
                variable.name or path.stem,
                variable,
                samples=samples,
                open=partial(last.get, (path, variable.name), variable.open),
            ),
            Part(variable, None, (variable.shape[0], variable.shape[1]), 1, {}),
        )
        for variable in chosen
    ]


def _is_block(variable: Variable) -> bool:
    """Whether an array is a block; the one array of a file without names is meant for one, whatever it is."""
    if variable.name and (len(variable.shape) != 2 or variable.is_text):
        return False
    if variable.problem in _REFUSED:
        msg = f"{where(variable)} {_REFUSED[variable.problem]}"
        raise InputError(msg)
    # MATLAB shows vectors, and what is empty, with two dimensions.
    return not variable.problem and not (variable.matlab and min(variable.shape) <= 1)


def _beside(variable: Variable, samples: tuple[str, ...] | None) -> Table:
    return Table(vector(variable.read(), where(variable)), samples)


def _read(path: Path) -> Table:
    """A file of labels, names or splits."""
    path = known(path)
    if path.suffix.lower() in TEXT_SUFFIXES:
        return read_table(path)
    held = scan(path)
    if len(held) != 1:
        msg = f"{path} holds {len(held)} arrays, expected one: {', '.join(map(str, held))}"
        raise InputError(msg)
    return _beside(held[0], None)
