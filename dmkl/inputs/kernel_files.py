"""Opening data files as the source of a kernel set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dmkl.errors import InputError
from dmkl.inputs.file_source import FileSource, KernelArray, check_shapes, choose_arrays, kernel_array, kernel_names
from dmkl.inputs.folders import PathLike, find_files
from dmkl.inputs.formats.file_arrays import ROLES, role_of, where
from dmkl.inputs.formats.registry import Format, arrays_in, expected_files
from dmkl.inputs.formats.text import read_array
from dmkl.inputs.label_files import read_file
from dmkl.inputs.labels import Labels
from dmkl.inputs.side_data import KernelShape, SideData, gather

__all__ = ["open_files"]


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
) -> tuple[FileSource, Labels]:
    """Find the kernels in data files, and what the files say of the samples. No kernel is read yet.

    Understood are NumPy's .npy and .npz, MATLAB's .mat, HDF5 (.h5, .hdf5), text (.txt, .csv, .tsv, .dat),
    Zarr folders, a folder with one kernel a file (in natural order, named as the files), and several such
    files.

    Of a file with several arrays, one array of three dimensions holds all kernels; else each square matrix is
    one. Arrays called labels, y, samples, ids, train_samples, splits, names, tasks or diagonal are taken for
    what they say, and so are files of these names among several. What was left out, or taken in one of
    several ways, is said in `FileSource.notes`.

    In memory are a few tiles for .npy, HDF5 and Zarr; whole rows for text and for arrays whose chunks span
    the rows; one kernel for .npz and for arrays whose chunks span a kernel; one variable for MATLAB files
    before version 7.3.

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
    labels, samples, train_samples, splits, diagonal
        Files to take these from (see `read_vector`), in place of what is found beside the kernels. Rows that
        carry the names of samples are put into the order of the kernels.

    Returns
    -------
    tuple
        The kernels, and what is known of the samples.

    Raises
    ------
    InputError
        If a file is missing, damaged or of an unknown kind; if there is no kernel in it, or it cannot be told
        which arrays are; if kernels differ in shape, are sparse or complex, or are no numbers.
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
    found = [SideData(role, str(path), partial(read_file, path)) for role, path in beside]
    parts: list[KernelArray] = []
    for path in files:
        held = arrays_in(path)
        roles = [role_of(variable) for variable in held]
        chosen = choose_arrays(path, held, roles, variables)
        rest = [(v, role) for v, role in zip(held, roles, strict=True) if v not in chosen]
        for variable, role in rest:
            if role is not None and not variable.problem:
                found.append(SideData(role, where(variable), partial(read_array, variable)))
        left_out = [str(v) for v, role in rest if v.problem or (role is None and max(v.shape, default=1) != 1)]
        if left_out:
            notes.append(f"{path}: left out {', '.join(left_out)}")
        parts += [kernel_array(variable, kernel_axis, notes) for variable in chosen]
    check_shapes(parts)
    roles_asked = ("labels", "samples", "train_samples", "splits", "diagonal")
    for role, file in zip(roles_asked, (labels, samples, train_samples, splits, diagonal), strict=True):
        if file is not None:
            found = [other for other in found if other.role != role]
            found.append(SideData(role, str(file), partial(read_file, Path(file))))
    if names is not None:
        found = [other for other in found if other.role != "names"]
    result, own_names = gather(found, _frame(parts), notes)
    told = kernel_names(parts, files) if names is None else [str(name) for name in names]
    if own_names is not None and told is not None:
        pairs = ", ".join(f"{old} is {new}" for old, new in zip(told[:3], own_names, strict=False))
        more = " …" if len(told) > 3 else ""
        notes.append(f"the kernels were named in the order in which they stand: {pairs}{more}")
    return FileSource(parts, told if own_names is None else own_names, notes), result


def _frame(parts: Sequence[KernelArray]) -> KernelShape:
    n_kernels, (n_rows, n_cols) = sum(part.n_kernels for part in parts), parts[0].shape
    if n_rows >= 0:
        return KernelShape(n_kernels, n_rows, n_cols)
    text: Any = parts[0].variable.open()  # of text the lines must be counted
    n_rows, n_cols = text.shape
    return KernelShape(n_kernels, n_rows, n_cols, text.row_names, text.layout.header)
