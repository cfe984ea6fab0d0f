"""Opening data files as the source of a kernel set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.errors import InputError
from dmkl.store.files.choosing import as_part, check_shapes, kernel_names, kernels, named
from dmkl.store.files.labels import Found, Frame, assemble
from dmkl.store.files.paths import PathLike, expanded, known, scan
from dmkl.store.files.source import FileSource, Part
from dmkl.store.files.text import TEXT_SUFFIXES, Table, read_table
from dmkl.store.files.variables import Variable, role_of, vector, where
from dmkl.store.ingest import Labels

__all__ = ["open_files", "read_file", "read_vector"]


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
    files, beside = expanded(paths, notes)
    found = [Found(role, str(path), partial(read_file, path)) for role, path in beside]
    parts: list[Part] = []
    for path in files:
        held = scan(path)
        roles = [role_of(variable) for variable in held]
        if variables is None:
            chosen = kernels(path, [v for v, role in zip(held, roles, strict=True) if role is None])
        else:
            chosen = named(path, held, variables)
        rest = [(v, role) for v, role in zip(held, roles, strict=True) if v not in chosen]
        for variable, role in rest:
            if role is not None and not variable.problem:
                found.append(Found(role, where(variable), _reader(variable)))
        left_out = [str(v) for v, role in rest if v.problem or (role is None and max(v.shape, default=1) != 1)]
        if left_out:
            notes.append(f"{path}: left out {', '.join(left_out)}")
        parts += [as_part(variable, kernel_axis, notes) for variable in chosen]
    check_shapes(parts)
    given = {
        "labels": labels,
        "samples": samples,
        "train_samples": train_samples,
        "splits": splits,
        "diagonal": diagonal,
    }
    for role, asked in given.items():
        if asked is not None:
            found = [other for other in found if other.role != role]
            found.append(Found(role, str(asked), partial(read_file, Path(asked))))
    if names is not None:
        found = [other for other in found if other.role != "names"]
    result, own_names = assemble(found, _frame(parts), notes)
    told = kernel_names(parts, files) if names is None else [str(name) for name in names]
    if own_names is not None and told is not None:
        pairs = ", ".join(f"{old} is {new}" for old, new in zip(told[:3], own_names, strict=False))
        more = " …" if len(told) > 3 else ""
        notes.append(f"the kernels were named in the order in which they stand: {pairs}{more}")
    return FileSource(parts, told if own_names is None else own_names, notes), result


def _frame(parts: Sequence[Part]) -> Frame:
    n_kernels, (n_rows, n_cols) = sum(part.n_kernels for part in parts), parts[0].shape
    if n_rows >= 0:
        return Frame(n_kernels, n_rows, n_cols)
    text: Any = parts[0].variable.open()  # of text the lines must be counted
    n_rows, n_cols = text.shape
    return Frame(n_kernels, n_rows, n_cols, text.row_names, text.layout.header)


def read_vector(path: PathLike, variable: str | None = None) -> npt.NDArray[Any]:
    """Labels, names or splits from a file: text (a value a line, a line of values, a table), .npy, container.

    Parameters
    ----------
    path
        The file.
    variable
        Which array of a container (.npz, .mat, .h5, Zarr); needed where it holds several.

    Returns
    -------
    numpy.ndarray
        (rows,), or (rows, columns) for a table; integers, floats or strings. A table's names of rows and
        columns are left out.

    Raises
    ------
    InputError
        If the file is missing, damaged or of an unknown kind, or its lines differ in length.
    """
    return np.asarray(read_file(Path(path), variable).values)


def _reader(variable: Variable) -> Callable[[], Table]:
    return lambda: Table(vector(variable.read(), where(variable)))


def read_file(path: Path, name: str | None = None) -> Table:
    """The values of a file of one array, with the names of its rows and columns where it is a table.

    Raises
    ------
    InputError
        As `read_vector`.
    """
    path = known(path.expanduser())
    if path.suffix.lower() in TEXT_SUFFIXES:
        return read_table(path)
    held = scan(path)
    if name is not None:
        held = [variable for variable in held if variable.name == name]
        if not held:
            msg = f"{path} has no variable {name!r}"
            raise InputError(msg)
    if len(held) != 1:
        msg = f"{path} holds {len(held)} arrays, expected one: {', '.join(map(str, held))}"
        raise InputError(msg)
    return _reader(held[0])()
