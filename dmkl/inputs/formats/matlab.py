"""Kernels in MATLAB's files: v5 one variable at a time through a process with SciPy, v7.3 in parts through HDF5."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.formats.file_arrays import FileArray, damaged_as
from dmkl.inputs.formats.hdf5 import H5Array, elsewhere, nodes_of, opened
from dmkl.inputs.formats.limits import check_memory, n_bytes
from dmkl.inputs.formats.mat5 import SPARSE, read_variable, variables_of
from dmkl.inputs.kernel_sources import Matrix

__all__ = ["matlab_arrays"]

_NUMBERS = {
    "double": "f8",
    "single": "f4",
    "logical": "u1",
    **{f"{kind}int{bits}": f"{code}{bits // 8}" for kind, code in (("", "i"), ("u", "u")) for bits in (8, 16, 32, 64)},
}
_UNLIKE = "a cell array of unlike parts"
_TEXT, _OBJECT = np.dtype("U1"), np.dtype(object)


def matlab_arrays(path: Path) -> list[FileArray]:
    """The variables of a MATLAB file of version 7.3 (HDF5) or earlier."""
    # The readers of both versions let through whatever their parts meet in a damaged file.
    with damaged_as(f"{path} is not a whole MATLAB file", Exception):
        return _v73(path) if h5py.is_hdf5(path) else _v5(path)


# --- version 5 (and 4) --------------------------------------------------------------------------------------


def _v5(path: Path) -> list[FileArray]:
    found = []
    for name, shape, kind in variables_of(path):
        if name.startswith("__"):
            continue
        if kind in _NUMBERS:
            lazy = _V5Array(path, name, shape, np.dtype(_NUMBERS[kind]))
            found.append(FileArray(path, name, shape, lazy.dtype, lazy.fresh, lazy.values, matlab=True))
        elif kind == "char":
            text = _V5Array(path, name, shape, _TEXT)
            found.append(FileArray(path, name, shape[:1], _TEXT, text.fresh, text.strings))
        elif kind == "cell":
            found.append(_v5_cell(path, name, shape))
        else:
            problem = {"sparse": "sparse", "struct": "a struct: save its fields as variables of their own"}.get(
                kind, kind
            )
            unread = _V5Array(path, name, shape, _OBJECT)
            found.append(FileArray(path, name, shape, _OBJECT, unread.fresh, unread.values, problem, matlab=True))
    return found


def _v5_cell(path: Path, name: str, shape: tuple[int, ...]) -> FileArray:
    """A cell array: of strings, of kernels, or of neither; only its content tells."""
    lazy = _V5Array(path, name, shape, _OBJECT)
    parts = lazy.parts()
    if all(part.dtype.kind == "U" for part in parts):
        return FileArray(path, name, (len(parts),), _TEXT, lazy.fresh, lazy.strings)
    if all(part.dtype.kind in "fiub" and part.size == 1 for part in parts):
        return FileArray(path, name, (len(parts),), np.dtype(np.float64), lazy.fresh, lambda: _scalars(parts))
    views = _views(path, name, parts, lambda k: lazy.fresh().parts()[k])
    stack = _stack(parts)
    if stack is None:
        return FileArray(path, name, shape, _OBJECT, lazy.fresh, lazy.values, _UNLIKE, views=views)

    def again() -> Matrix:
        return _Stack(lazy.fresh().parts())

    return FileArray(path, name, stack.shape, stack.dtype, again, lazy.values, cell=True, views=views)


class _V5Array:
    """A variable of a version 5 file: the format can only be read a whole variable at a time."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._path, self._name = path, name
        self.shape, self.dtype = shape, dtype
        self._values: Array | None = None

    def fresh(self) -> _V5Array:
        """The same variable with nothing in memory."""
        return _V5Array(self._path, self._name, self.shape, self.dtype)

    def __getitem__(self, key: Any) -> Array:
        if self._values is None:
            self._values = self.values()
        return np.asarray(self._values[key])

    def values(self) -> Array:
        """All of the variable."""
        if self.dtype.kind in "fiu":
            way_out = "save it as version 7.3, which is read in parts, or allow more"
            what = f"variable {self._name!r} of {self._path}"
            check_memory(what, n_bytes(self.shape, self.dtype.itemsize), way_out)
        found = read_variable(self._path, self._name)
        if found is SPARSE:  # logical ones are told from dense ones only here
            msg = (
                f"variable {self._name!r} of {self._path} is sparse, but kernels are stored dense; save "
                f"full({self._name})"
            )
            raise InputError(msg)
        found = np.asarray(found)
        if found.dtype.kind == "c":
            msg = (
                f"variable {self._name!r} of {self._path} is complex, expected real numbers; save "
                f"real({self._name}) if the imaginary part is rounding"
            )
            raise InputError(msg)
        # MATLAB packs doubles that are small whole numbers into bytes.
        return np.asarray(found, dtype=self.dtype if self.dtype.kind in "fiu" else None)

    def parts(self) -> list[Array]:
        """The arrays of a cell array; of a char matrix its rows. What is neither numbers nor text is an object."""
        return [np.asarray(part) for part in np.asarray(self.values()).ravel(order="F")]

    def strings(self) -> Array:
        """A char matrix or a cell array as its strings; a char matrix pads them with blanks."""
        parts = self.parts()
        # A cell holds each string as an array of one row of characters, and '' as an array of none.
        return np.array([str(part.item()).rstrip() if part.size == 1 else "" for part in parts], dtype=str)


# --- version 7.3 --------------------------------------------------------------------------------------------


def _v73(path: Path) -> list[FileArray]:
    found: list[FileArray] = []
    with opened(path) as file:
        for name, node in nodes_of(file, _holds_variables):
            if node is None:
                found.append(elsewhere(path, name))
            elif not isinstance(node, h5py.Group):
                if "MATLAB_empty" not in node.attrs:
                    found.append(_v73_variable(path, name, node))
            elif "MATLAB_sparse" in node.attrs:
                found.append(_v73_sparse(path, name, node))
    return found


def _holds_variables(name: str, group: h5py.Group) -> bool:
    """Whether a group is none of MATLAB's own, where it keeps what cells refer to, or the parts of a sparse matrix."""
    return not name.rpartition("/")[2].startswith("#") and "MATLAB_sparse" not in group.attrs


def _v73_variable(path: Path, name: str, node: h5py.Dataset) -> FileArray:
    array = H5Array(path, name, reverse=True)
    kind = node.attrs.get("MATLAB_class", b"")
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    if kind == "char":
        return FileArray(path, name, array.shape[:1], _TEXT, lambda: array, lambda: _characters(array[...]))
    if h5py.check_ref_dtype(node.dtype) is h5py.Reference:
        return _v73_cell(path, name, node)
    problem = ""
    if array.dtype.kind == "c" or array.dtype.names == ("real", "imag"):
        problem = "complex"
    elif array.dtype.kind not in "fiub" or kind not in ("", *_NUMBERS):
        problem = kind or "not numbers"
    return FileArray(path, name, array.shape, array.dtype, array.fresh, lambda: array[...], problem, matlab=True)


def _v73_sparse(path: Path, name: str, group: h5py.Group) -> FileArray:
    n_rows = int(group.attrs["MATLAB_sparse"])
    n_cols = len(group["jc"]) - 1 if "jc" in group else 0
    array = H5Array(path, name + "/jc", reverse=True)
    return FileArray(path, name, (n_rows, n_cols), _OBJECT, array.fresh, array.fresh, "sparse", matlab=True)


def _v73_cell(path: Path, name: str, node: h5py.Dataset) -> FileArray:
    # Each part is a data set of its own, which the cell refers to; axes are reversed in the cell too.
    targets = [node.file[reference] for reference in np.asarray(node[...]).T.ravel(order="F")]
    kinds = {bytes(target.attrs.get("MATLAB_class", b"")).decode() for target in targets}
    arrays = [H5Array(path, target.name, reverse=True) for target in targets if isinstance(target, h5py.Dataset)]
    # The data set of an empty part holds its lengths instead, and '' in a cell is such a part.
    empty = ["MATLAB_empty" in target.attrs for target in targets]

    def strings() -> Array:
        texts = ["" if none else "".join(_characters(part[...])) for part, none in zip(arrays, empty, strict=True)]
        return np.array(texts, dtype=str)

    if kinds <= {"char"}:
        return FileArray(path, name, (len(targets),), _TEXT, lambda: arrays[0], strings)
    whole = len(arrays) == len(targets) and not any(empty)
    if whole and all(array.dtype.kind in "fiub" and set(array.shape) == {1} for array in arrays):
        number = np.dtype(np.float64)
        read = partial(_scalars, arrays)
        return FileArray(path, name, (len(arrays),), number, lambda: arrays[0], read)
    stack = _stack(arrays) if whole else None
    views = _views(path, name, arrays, lambda k: arrays[k].fresh()) if whole else ()
    if stack is None:
        cell = H5Array(path, name, reverse=True)
        return FileArray(path, name, cell.shape, _OBJECT, cell.fresh, cell.fresh, _UNLIKE, views=views)

    def again() -> Matrix:
        return _Stack([array.fresh() for array in arrays])

    return FileArray(path, name, stack.shape, stack.dtype, again, strings, cell=True, views=views)


def _characters(codes: Array) -> Array:
    """A char matrix (rows, length) of UTF-16 codes as its strings."""
    rows = np.atleast_2d(np.asarray(codes, dtype="<u2"))
    return np.array([row.tobytes().decode("utf-16-le").rstrip() for row in rows], dtype=str)


# --- both ---------------------------------------------------------------------------------------------------


class _Stack:
    """A cell array of like matrices, seen as one array with the kernels along axis 0."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self.shape: tuple[int, ...] = (len(parts), *parts[0].shape)
        self.dtype: np.dtype[Any] = np.result_type(*(part.dtype for part in parts))

    def __getitem__(self, key: tuple[int, slice, slice]) -> Any:
        return self._parts[key[0]][key[1:]]


def _scalars(parts: list[Any]) -> Array:
    return np.array([np.asarray(part[...]).item() for part in parts])


def _views(path: Path, name: str, parts: list[Any], part: Callable[[int], Any]) -> tuple[FileArray, ...]:
    """The parts of a cell array as arrays of their own, where all are matrices of real numbers."""
    if not all(len(each.shape) == 2 and min(each.shape) > 0 and each.dtype.kind in "fiub" for each in parts):
        return ()
    return tuple(
        FileArray(path, f"{name}_{k}", tuple(each.shape), each.dtype, partial(part, k), partial(part, k))
        for k, each in enumerate(parts)
    )


def _stack(parts: list[Any]) -> _Stack | None:
    alike = parts and len({tuple(part.shape) for part in parts}) == 1 and len(parts[0].shape) == 2
    return _Stack(parts) if alike and all(part.dtype.kind in "fiub" for part in parts) else None
