"""Arrays in MATLAB files: v5 a whole variable at a time by SciPy in a child process, v7.3 in parts by HDF5."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import refuse
from dmkl.inputs.formats.file_arrays import PROBLEMS, FileArray, damaged_as, n_bytes, unreadable
from dmkl.inputs.formats.hdf5 import H5Array, hdf5_array, may_be_read, nodes_of, opened
from dmkl.inputs.formats.reader_process import run
from dmkl.inputs.matrices import Lazy
from dmkl.inputs.names import as_text
from dmkl.settings import check_memory

_NUMBERS = {
    "double": "f8",
    "single": "f4",
    "logical": "u1",
    **{f"{kind}int{bits}": f"{code}{bits // 8}" for kind, code in (("", "i"), ("u", "u")) for bits in (8, 16, 32, 64)},
}
_WAY_OUT = "save it as version 7.3, which is read in parts, or allow more"
_OTHER = "is neither numbers nor text, nor a cell array of either; save its parts as variables of their own"
_TEXT, _NUMBER = np.dtype("U1"), np.dtype(np.float64)


def matlab_arrays(path: Path) -> list[FileArray]:
    """Return the variables of a MATLAB file of version 7.3 (HDF5) or earlier."""
    # The readers of both versions raise any exception on a damaged file.
    with damaged_as(f"{path} is not a whole MATLAB file", Exception):
        if h5py.is_hdf5(path):
            return _v73(path)
        variables, _ = run(_v5_variables, str(path), path, unpacked_bytes=settings.memory_budget_bytes())
        return [_v5_array(path, name, tuple(shape), kind) for name, shape, kind in variables if name[:2] != "__"]


def _v5_array(path: Path, name: str, shape: tuple[int, ...], kind: str) -> FileArray:
    """Return a variable, which can only be read as a whole, by its class."""
    is_cell, what = kind == "cell", f"variable {name!r} of {path}"
    if is_cell:  # its content determines its kind
        content, parts = _read_v5(path, name)
        if content not in ("numbers", "strings"):
            return _cell(path, name, shape, parts, lambda: _read_v5(path, name)[1])
        kind, shape = "double" if content == "numbers" else "char", parts[0].shape
    if kind not in (*_NUMBERS, "char"):
        problem = "a struct: save its fields as variables of their own" if kind == "struct" else kind
        return unreadable(path, name, shape, problem, _OTHER, matlab=True)
    dtype = np.dtype(_NUMBERS.get(kind, _TEXT))

    def read() -> Array:
        check_memory(what, n_bytes(shape, dtype.itemsize), _WAY_OUT)
        content, arrays = _read_v5(path, name)
        if content != ("strings" if dtype == _TEXT else "numbers"):
            # Logical sparse matrices have the class of dense ones, and complex numbers that of real ones.
            refuse(f"{what} {PROBLEMS.get(content, _OTHER).format(name=name)}")
        # MATLAB packs doubles that are small whole numbers into bytes.
        return arrays[0] if dtype == _TEXT else np.asarray(arrays[0], dtype)

    whole = shape[:1] if kind == "char" else shape
    return FileArray(path, name, whole, dtype, read, matlab=kind != "char" and not is_cell)


def _read_v5(path: Path, name: str) -> tuple[str, list[Array]]:
    what, unpacked_bytes = f"variable {name!r} of {path}", settings.memory_budget_bytes()
    return run(_v5_variable, what, path, name, unpacked_bytes=unpacked_bytes)


def _v5_variables(file: str) -> tuple[list[tuple[str, list[int], str]], list[Array]]:
    """Return name, shape and MATLAB's class of each variable (in the child process)."""
    import scipy.io

    return [(name, list(map(int, shape)), kind) for name, shape, kind in scipy.io.whosmat(file, appendmat=False)], []


def _v5_variable(file: str, name: str) -> tuple[str, list[Array]]:
    """Return the kind of a variable, and its numbers, strings or parts of a cell array (in the child process)."""
    import scipy.io
    import scipy.sparse

    value = scipy.io.loadmat(file, appendmat=False, variable_names=[name])[name]
    if scipy.sparse.issparse(value):
        return "sparse", []
    if value.dtype.kind not in "OU":
        kind = "numbers" if value.dtype.kind in "fiub" else "complex" if value.dtype.kind == "c" else "other"
        return kind, [value] if kind == "numbers" else []
    parts = [np.asarray(None if scipy.sparse.issparse(part) else part) for part in np.ravel(value, order="F")]
    kinds = {part.dtype.kind for part in parts}
    if kinds <= {"U"}:
        # A cell holds each string as an array of one row of characters, and '' as an empty array; a char matrix pads
        # its rows with blanks.
        return "strings", [np.array([str(part.item()).rstrip() if part.size == 1 else "" for part in parts], dtype=str)]
    if kinds <= set("fiub"):
        return ("numbers", [_items(parts)]) if all(part.size == 1 for part in parts) else ("cell", parts)
    return "other", []


def _v73(path: Path) -> list[FileArray]:
    def holds_variables(name: str, group: h5py.Group) -> bool:  # not the targets of cells, nor parts of sparse matrices
        return not name.rpartition("/")[2].startswith("#") and "MATLAB_sparse" not in group.attrs

    with opened(path) as file:
        nodes = nodes_of(file, holds_variables)
        return [array for name, node in nodes if (array := _v73_variable(path, name, node)) is not None]


def _v73_variable(path: Path, name: str, node: h5py.Group | h5py.Dataset | None) -> FileArray | None:
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
        return FileArray(path, name, array.shape[:1], _TEXT, lambda: _characters(array))
    if h5py.check_ref_dtype(node.dtype) is h5py.Reference:
        return _v73_cell(path, name, node)
    problem = ""
    if array.dtype.kind == "c" or array.dtype.names == ("real", "imag"):
        problem = "complex"
    elif array.dtype.kind not in "fiub" or kind not in ("", *_NUMBERS):
        problem = kind or "not numbers"
    return FileArray(path, name, array.shape, array.dtype, partial(copy, array), problem=problem, matlab=True)


def _v73_cell(path: Path, name: str, node: h5py.Dataset) -> FileArray:
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
        return FileArray(path, name, (len(targets),), _TEXT, strings)
    whole = len(arrays) == len(targets) and not any(empty)
    if whole and all(array.dtype.kind in "fiub" and set(array.shape) == {1} for array in arrays):
        return FileArray(path, name, (len(arrays),), _NUMBER, partial(_items, arrays))
    return _cell(path, name, node.shape[::-1], arrays if whole else [], lambda: list(map(copy, arrays)))


def _characters(array: H5Array) -> Array:
    """Return the strings of a char matrix (rows, length) of UTF-16 codes."""
    with damaged_as(f"{array.what} is no text", Exception):
        rows = np.atleast_2d(np.asarray(array[...], dtype="<u2"))
        return np.array([row.tobytes().decode("utf-16-le").rstrip() for row in rows], dtype=str)


def _cell(
    path: Path, name: str, shape: tuple[int, ...], parts: Sequence[Any], open_parts: Callable[[], Sequence[Any]]
) -> FileArray:
    """Return a cell array of matrices as one array if their shapes are equal, and as views; `open_parts` reads them."""
    shapes = [tuple(part.shape) for part in parts]
    matrices = bool(parts) and all(len(part.shape) == 2 and part.dtype.kind in "fiub" for part in parts)
    views = tuple(
        FileArray(path, f"{name}_{k}", shapes[k], part.dtype, partial(lambda position: open_parts()[position], k))
        for k, part in enumerate(parts if matrices and min(map(min, shapes)) > 0 else ())
    )
    if not matrices or len(set(shapes)) > 1:
        return unreadable(path, name, shape, "a cell array of unlike parts", _OTHER, views=views)
    stack = _stack(parts)
    return FileArray(path, name, stack.shape, stack.dtype, lambda: _stack(open_parts()), views=views, cell=True)


def _items(parts: Sequence[Any]) -> Array:
    """Return the numbers of a cell array of single numbers."""
    return np.array([part[...].item() for part in parts])


def _stack(parts: Sequence[Any]) -> Lazy:
    """Return matrices of one shape as one array with the kernels along axis 0."""

    def read(key: tuple[Any, ...]) -> Any:
        if isinstance(key[0], slice):
            return np.array([part[key[1:]] for part in parts[key[0]]])
        return parts[key[0]][key[1:]]

    return Lazy((len(parts), *parts[0].shape), np.result_type(*(part.dtype for part in parts)), read)
