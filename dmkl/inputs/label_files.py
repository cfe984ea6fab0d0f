"""Labels, names and splits in files of their own, or in arrays beside kernels and features."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.folders import PathLike, check_file
from dmkl.inputs.formats.file_arrays import listed
from dmkl.inputs.formats.registry import Format, arrays_in, format_of
from dmkl.inputs.formats.text import read_array
from dmkl.inputs.labels import LabelTable

__all__ = ["read_file", "read_vector"]


def read_vector(path: PathLike, variable: str | None = None) -> Array:
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


def read_file(path: Path, name: str | None = None) -> LabelTable:
    """The values of a file of one array, with the names of its rows and columns where it is a table.

    Of a file of several arrays or columns one is taken: `name`, or what FILE:NAME names.
    """
    path, name = _with_entry(path.expanduser(), name)
    check_file(path, Format.holds_labels)
    found = format_of(path)
    if found is not None and found.labels is not None:
        return found.labels(path, name)
    held = arrays_in(path)
    if name is not None:
        held = [variable for variable in held if variable.name == name]
        if not held:
            msg = f"{path} has no variable {name!r}; it has {listed(arrays_in(path)) or 'none'}"
            raise InputError(msg)
    if len(held) != 1:
        msg = f"{path} holds {len(held)} arrays, expected one: {listed(held)}; say which, as {path}:NAME"
        raise InputError(msg)
    return read_array(held[0])


def _with_entry(path: Path, name: str | None) -> tuple[Path, str | None]:
    """A file and what is meant of it; FILE:NAME is parted where there is no file of that whole name."""
    text = str(path)
    at = text.find(":")
    while name is None and at > 0 and not path.exists():
        if Path(text[:at]).exists():
            return Path(text[:at]), text[at + 1 :]
        at = text.find(":", at + 1)
    return path, name
