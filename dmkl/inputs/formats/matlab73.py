"""Arrays in MATLAB files of version 7.3, in parts by HDF5."""

from __future__ import annotations

from copy import copy
from functools import partial
from pathlib import Path

import h5py
import numpy as np

from dmkl.arrays import Array
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as, unreadable
from dmkl.inputs.formats.hdf5 import H5Array, hdf5_array, may_be_read, nodes_of, opened
from dmkl.inputs.formats.matlab import NUMBERS, TEXT, cell_array, items_of
from dmkl.inputs.names import as_text


def variables_of(path: Path) -> list[FileArray]:
    """Return the variables of a MATLAB file of version 7.3."""

    def holds_variables(name: str, group: h5py.Group) -> bool:  # not the targets of cells, nor parts of sparse matrices
        return not name.rpartition("/")[2].startswith("#") and "MATLAB_sparse" not in group.attrs

    with opened(path) as file:
        nodes = nodes_of(file, holds_variables)
        return [array for name, node in nodes if (array := _variable(path, name, node)) is not None]


def _variable(path: Path, name: str, node: h5py.Group | h5py.Dataset | None) -> FileArray | None:
    if node is None:
        return hdf5_array(path, name, None)
    if "MATLAB_sparse" in node.attrs:
        shape = int(node.attrs["MATLAB_sparse"]), len(node["jc"]) - 1 if "jc" in node else 0
        return unreadable(path, name, shape, "sparse", matlab=True)
    if isinstance(node, h5py.Group) or "MATLAB_empty" in node.attrs:
        return None
    array = H5Array(path, name, node, reverse=True)
    kind = as_text(node.attrs.get("MATLAB_class", ""))
    if kind == "char":
        return FileArray(path, name, array.shape[:1], TEXT, lambda: _characters(array))
    if h5py.check_ref_dtype(node.dtype) is h5py.Reference:
        return _cell_array(path, name, node)
    problem = ""
    if array.dtype.kind == "c" or array.dtype.names == ("real", "imag"):
        problem = "complex"
    elif array.dtype.kind not in "fiub" or kind not in ("", *NUMBERS):
        problem = kind or "not numbers"
    return FileArray(path, name, array.shape, array.dtype, partial(copy, array), problem=problem, matlab=True)


def _cell_array(path: Path, name: str, node: h5py.Dataset) -> FileArray:
    # Each part is a separate data set, to which the cell refers; axes are reversed in the cell too.
    targets = [node.file[reference] for reference in np.asarray(node[...]).T.ravel(order="F")]
    if not all(isinstance(target, h5py.Group) or may_be_read(target) for target in targets):
        return hdf5_array(path, name, None)
    data_sets = [target for target in targets if isinstance(target, h5py.Dataset)]
    arrays = [H5Array(path, data_set.name, data_set, reverse=True) for data_set in data_sets]
    # The data set of an empty part, as of '', holds its lengths instead.
    empty = ["MATLAB_empty" in target.attrs for target in targets]

    def strings() -> Array:
        texts = ["" if none else "".join(_characters(part)) for part, none in zip(arrays, empty, strict=True)]
        return np.array(texts, dtype=str)

    if {as_text(target.attrs.get("MATLAB_class", "")) for target in targets} <= {"char"}:
        return FileArray(path, name, (len(targets),), TEXT, strings)
    whole = len(arrays) == len(targets) and not any(empty)
    if whole and all(array.dtype.kind in "fiub" and set(array.shape) == {1} for array in arrays):
        return FileArray(path, name, (len(arrays),), np.dtype(np.float64), partial(items_of, arrays))
    return cell_array(path, name, node.shape[::-1], arrays if whole else [], lambda: list(map(copy, arrays)))


def _characters(array: H5Array) -> Array:
    """Return the strings of a char matrix (rows, length) of UTF-16 codes."""
    with damaged_as(f"{array.what} is no text", Exception):
        rows = np.atleast_2d(np.asarray(array[...], dtype="<u2"))
        return np.array([row.tobytes().decode("utf-16-le").rstrip() for row in rows], dtype=str)
