"""Opening data files as the source of a kernel set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.errors import InputError
from dmkl.inputs.file_source import FileSource, KernelArray, check_shapes, choose_arrays, kernel_array, kernel_names
from dmkl.inputs.folders import PathLike, find_files
from dmkl.inputs.formats.file_arrays import ROLES, listed, role_of, where
from dmkl.inputs.formats.limits import check_memory
from dmkl.inputs.formats.registry import Format, arrays_in, expected_files
from dmkl.inputs.formats.text import read_array
from dmkl.inputs.joined_kernels import JoinedSource
from dmkl.inputs.joins import Join, left_out, warn_of_positions
from dmkl.inputs.kernel_sources import Axes
from dmkl.inputs.label_files import read_file
from dmkl.inputs.labels import Labels
from dmkl.inputs.side_data import (
    OF_SAMPLES,
    KernelShape,
    SideData,
    gather,
    names_beside,
    of_rows,
    samples_in,
    taken_by_position,
)

__all__ = ["open_files"]


_KERNEL_BYTES = 512
"""What the name and the record of a kernel take."""


def open_files(
    paths: PathLike | Sequence[PathLike],
    *,
    kernel_axis: int | None = None,
    variables: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    labels: PathLike | None = None,
    samples: PathLike | None = None,
    train_samples: PathLike | None = None,
    splits: PathLike | None = None,
    diagonal: PathLike | None = None,
    order: PathLike | None = None,
    join: Join = "exact",
    symmetric: bool | None = None,
) -> tuple[JoinedSource, Labels]:
    """Find the kernels in data files, and what the files say of the samples. No kernel is read yet.

    Understood are NumPy's .npy and .npz, MATLAB's .mat, HDF5 (.h5, .hdf5), text (.txt, .csv, .tsv, .dat),
    Zarr folders, AnnData and MuData (.h5ad, .h5mu and Zarr: what lies in ``obsp``), a folder with one kernel a file
    (in natural order, named as the files), and several such files.

    Of a file with several arrays, one array of three dimensions holds all kernels; else each square matrix is
    one. Arrays called labels, y, samples, ids, train_samples, splits, names, tasks or diagonal are taken for
    what they say, and so are files of these names among several. What was left out, or taken in one of
    several ways, is said in `KernelSource.notes`.

    Text files that name their rows or columns, and arrays with samples beside them in their file, are matched by these
    names (see `dmkl.create`); kernels without names by position.

    In memory are a few tiles for .npy, HDF5 and Zarr; whole rows for text and for arrays whose chunks span
    the rows; one kernel for .npz and for arrays whose chunks span a kernel; one variable for MATLAB files
    before version 7.3; and whole rows where samples are put into another order.

    Parameters
    ----------
    paths
        A file, a folder, or several files.
    kernel_axis
        The axis, 0 to 2, that counts the kernels in arrays of three dimensions, as the software that wrote
        the file counts its axes; found out for square kernels.
    variables
        The arrays to take from each file, by name, in this order; they may be rectangular.
    names
        The kernels' names, in place of those in the files.
    labels, splits, diagonal
        Files to take these from (see `read_vector`), in place of what is found beside the kernels.
    samples, train_samples
        Files of names of the row and column samples. Of kernels that carry names, those that are wanted, in this order.
    order
        A file of the names of the rows of the kernels, as they stand, in place of any that the kernels carry: labels,
        splits and `samples` are matched by these.
    join, symmetric
        As in `dmkl.create`.

    Returns
    -------
    tuple
        The kernels, in the order of the samples, and what is known of these.

    Raises
    ------
    InputError
        If a file is missing, damaged or of an unknown kind; if there is no kernel in it, or it cannot be told
        which arrays are; if kernels differ in shape or in their samples, are sparse or complex, or are no numbers.
    """
    notes: list[str] = []
    files, beside = find_files(paths, Format.holds_kernels, set(ROLES.values()), notes)
    if not files:
        asked = [paths] if isinstance(paths, str | os.PathLike) else paths
        msg = (
            f"there are no kernels in {', '.join(map(str, asked)) or 'no files'}; expected "
            f"{expected_files(Format.holds_kernels)}"
        )
        raise InputError(msg)
    inside = [_open(path, variables, kernel_axis, notes) for path in files]
    parts = [part for file in inside for part in file.parts]
    axes = [own for file in inside for own in file.axes]
    n_kernels = sum(part.n_kernels for part in parts)
    way_out = "name the arrays or the kernel axis that are meant (variables=[…], kernel_axis=)"
    check_memory(f"the list of {n_kernels:,} kernels", n_kernels * _KERNEL_BYTES, way_out)
    if any(own.rows is None for own in axes):  # others may differ: names tell what belongs together
        check_shapes(parts)
    if order is not None:
        axes = _ordered(Path(order), parts, axes)
    told = kernel_names(parts, files) if names is None else [str(name) for name in names]
    given = {"labels": labels, "samples": samples, "train_samples": train_samples, "splits": splits}
    replaced = {role: Path(file) for role, file in {**given, "diagonal": diagonal}.items() if file is not None}
    ignored = {*replaced, *([] if names is None else ["names"])}
    beside = [*((role, path) for role, path in beside if role not in ignored), *replaced.items()]
    separate = [SideData(role, str(path), partial(read_file, path)) for role, path in beside]
    n_rows, n_cols = parts[0].shape
    separate = [item.without_header(n_rows, notes) for item in separate]
    wanted = [_wanted(separate, axis, parts[0], axes, notes) for axis in (0, 1)]
    # What has no names stands in the order of its own file, or else of the first kernels that have names.
    first = wanted[0] or next((own.rows for own in axes if own.rows is not None), None)
    found = [item.held(file.axes[0].rows) for file in inside for item in file.found if item.role not in ignored]
    unnamed = [item.where for item in separate if item.role in OF_SAMPLES and item.read().row_names is None]
    found = of_rows([*found, *(item.held(first) for item in separate)], (n_rows, n_cols), notes)
    named = names_beside(found, join)
    kernels = FileSource(parts, told, axes)
    source = JoinedSource(kernels, join, samples=wanted[0], train_samples=wanted[1], beside=named, symmetric=symmetric)
    if wanted[0] is None:
        warn_of_positions([*source.without, *unnamed], [*source.row_names, *named], source.samples)
    if join == "inner" and wanted[0] is None:
        notes += left_out([*source.row_names, *named], source.samples)
    if source.moved:
        notes.append(f"{', '.join(source.moved)}: put into the order of the samples, by name")
    n_rows = n_rows if source.samples is None else len(source.samples)
    n_cols = n_rows if parts[0].shape[0] == parts[0].shape[1] else n_cols
    frame = KernelShape(sum(part.n_kernels for part in parts), n_rows, n_cols, source.samples, source.train_samples)
    result, own_names = gather(found, frame, notes)
    if result.splits is not None:
        source.train = np.asarray(result.splits)[0] == 0
    if own_names is not None:
        if told is not None:
            pairs = ", ".join(f"{old} is {new}" for old, new in zip(told[:3], own_names, strict=False))
            more = " …" if len(told) > 3 else ""
            notes.append(f"the kernels were named in the order in which they stand: {pairs}{more}")
        source.names = own_names
    source.notes = tuple(notes)
    return source, result


@dataclass(frozen=True)
class _File:
    """What a file holds."""

    parts: list[KernelArray]
    axes: list[Axes]  # of each part, the names of its samples
    found: list[SideData]  # labels and such


def _open(path: Path, variables: Sequence[str] | None, kernel_axis: int | None, notes: list[str]) -> _File:
    """The kernels of a file and what it says of them; of text the lines are counted."""
    held = arrays_in(path)
    roles = [role_of(variable) for variable in held]
    chosen = choose_arrays(path, held, roles, variables)
    rest = [(v, role) for v, role in zip(held, roles, strict=True) if v not in chosen]
    found = [SideData(role, where(v), partial(read_array, v)) for v, role in rest if role is not None and not v.problem]
    left_out = [str(v) for v, role in rest if v.problem or (role is None and max(v.shape, default=1) != 1)]
    if left_out:
        notes.append(f"{path}: left out {listed(left_out)}")
    names = [samples_in(found, role, notes) for role in _OF_AXES]
    parts, axes = [], []
    for part in (kernel_array(variable, kernel_axis, notes) for variable in chosen):
        if part.shape[0] < 0:
            text: Any = part.variable.open()
            parts.append(replace(part, shape=text.shape))
            axes.append(text.axes())
            continue
        rows, cols = (
            _fitting(told, length, axis) for axis, (told, length) in enumerate(zip(names, part.shape, strict=True))
        )
        own = part.variable
        parts.append(part)
        axes.append(Axes(own.rows or rows, own.columns or cols, part.shape[0] == part.shape[1]))
    return _File(parts, axes, [item for item in found if item.role not in _OF_AXES])


_OF_AXES = ("samples", "train_samples")
"""The roles of what names the samples of rows and columns."""


def _fitting(told: tuple[str, tuple[str, ...]] | None, length: int, axis: int) -> tuple[str, ...] | None:
    """Names of samples, checked to be as many as the rows or columns."""
    if told is not None and len(told[1]) != length:
        msg = (
            f"{told[0]} has shape ({len(told[1])},), expected a name for each of the {length} "
            f"{('rows', 'columns')[axis]} of the kernels"
        )
        raise InputError(msg)
    return told and told[1]


def _ordered(path: Path, parts: Sequence[KernelArray], axes: Sequence[Axes]) -> list[Axes]:
    """The names of a file for the rows of all kernels, one after another."""
    told = samples_in([SideData("samples", str(path), partial(read_file, path))], "samples", [])
    rows = [_fitting(told, part.shape[0], 0) for part in parts]
    return [Axes(own, own if old.square else old.cols, old.square) for own, old in zip(rows, axes, strict=True)]


def _wanted(
    separate: Sequence[SideData], axis: int, part: KernelArray, axes: Sequence[Axes], notes: list[str]
) -> tuple[str, ...] | None:
    """The samples that a file of their own names: of kernels without names, they are theirs one after another."""
    told = samples_in(separate, _OF_AXES[axis], notes)
    named = any(own[axis] or (own.square and own[1 - axis]) for own in axes)
    if told is not None and not named:
        _fitting(told, part.shape[axis], axis)
        if axis == 0:
            notes.append(taken_by_position(*told))
    return told and told[1]
