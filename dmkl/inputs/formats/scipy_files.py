"""Arrays in MATLAB and NetCDF files: the new versions are HDF5, those before are read by SciPy in a child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl import settings
from dmkl.arrays import Array, Lazy, n_bytes
from dmkl.errors import damaged_as, needing, refuse
from dmkl.files.reader_process import run
from dmkl.inputs.formats.file_arrays import PROBLEMS, FileArray, unreadable
from dmkl.settings import check_memory

TEXT = np.dtype("U1")
NUMBERS = {
    "double": "f8",
    "single": "f4",
    "logical": "u1",
    **{f"{kind}int{bits}": f"{code}{bits // 8}" for kind, code in (("", "i"), ("u", "u")) for bits in (8, 16, 32, 64)},
}
OBJECT = "an object whose values only MATLAB reads: save cellstr(x) of a string array x, its parts of any other"
_WAY_OUT = "save it as version 7.3, which is read in parts, or allow more"
_OTHER = "is neither numbers nor text, nor a cell array of either; save its parts as variables of their own"
_HDF5, _MATLAB_HEADER = b"\x89HDF\r\n\x1a\n", 512
"""The signature of HDF5, at the start of a file or after the bytes of MATLAB's header."""


def hdf5_arrays(path: Path) -> list[FileArray]:
    """Return the data sets of an HDF5 file."""
    with needing("h5py", f"{path} is read with"):
        from dmkl.inputs.formats.hdf5 import hdf5_arrays as arrays
    return arrays(path)


# --- MATLAB -----------------------------------------------------------------------------------------------------------


def matlab_arrays(path: Path) -> list[FileArray]:
    """Return the variables of a MATLAB file of version 7.3 (HDF5) or earlier."""
    # The readers of both versions raise any exception on a damaged file.
    with damaged_as(f"{path} is not a whole MATLAB file", Exception):
        with path.open("rb") as file:
            start = file.read(_MATLAB_HEADER + len(_HDF5))
        if _HDF5 in (start[: len(_HDF5)], start[_MATLAB_HEADER:]):
            with needing("h5py", f"{path} of version 7.3 is read with"):
                from dmkl.inputs.formats.hdf5 import variables_of
            return variables_of(path)
        variables, _ = run(_v5_variables, str(path), path, unpacked_bytes=settings.memory_budget_bytes())
        return [_v5_array(path, name, tuple(shape), kind) for name, shape, kind in variables if name[:2] != "__"]


def _v5_array(path: Path, name: str, shape: tuple[int, ...], kind: str) -> FileArray:
    """Return a variable, which can only be read as a whole, by its class."""
    is_cell, what = kind == "cell", f"variable {name!r} of {path}"
    if is_cell:  # its content determines its kind
        content, parts = _read_v5(path, name)
        if content not in ("numbers", "strings"):
            return cell_array(path, name, shape, parts, lambda: _read_v5(path, name)[1])
        kind, shape = "double" if content == "numbers" else "char", parts[0].shape
    if kind not in (*NUMBERS, "char"):
        problem = {"struct": "a struct: save its fields as variables of their own", "opaque": OBJECT}.get(kind, kind)
        return unreadable(path, name, shape, problem, "" if kind == "opaque" else _OTHER, matlab=True)
    dtype = np.dtype(NUMBERS.get(kind, TEXT))

    def read() -> Array:
        check_memory(what, n_bytes(shape, dtype.itemsize), _WAY_OUT)
        content, arrays = _read_v5(path, name)
        if content != ("strings" if dtype == TEXT else "numbers"):
            # Logical sparse matrices have the class of dense ones, and complex numbers that of real ones.
            refuse(f"{what} {PROBLEMS.get(content, _OTHER).format(name=name)}")
        # MATLAB packs doubles that are small whole numbers into bytes.
        return arrays[0] if dtype == TEXT else np.asarray(arrays[0], dtype)

    whole = shape[:1] if kind == "char" else shape
    return FileArray(path, name, whole, dtype, read, matlab=kind != "char" and not is_cell)


def _read_v5(path: Path, name: str) -> tuple[str, list[Array]]:
    what, unpacked_bytes = f"variable {name!r} of {path}", settings.memory_budget_bytes()
    return run(_v5_variable, what, path, name, unpacked_bytes=unpacked_bytes)


def _v5_variables(file: str) -> tuple[list[tuple[str, list[int], str]], list[Array]]:
    """Return name, shape and MATLAB's class of each variable (in the child process)."""
    import scipy.io

    try:
        listed = scipy.io.whosmat(file, appendmat=False)
    except TypeError:  # SciPy lists no file with an object, such as a string array; before 1.18 objects have no names
        try:
            from scipy.io.matlab import varmats_from_mat
        except ImportError:  # of an older SciPy, where it was not public
            from scipy.io.matlab._mio5 import varmats_from_mat
        listed = []
        with open(file, "rb") as stream:
            parts: Any = varmats_from_mat(stream)
        for name, part in parts:
            try:
                listed += scipy.io.whosmat(part)
            except TypeError:
                listed.append(("an object" if name == "None" else name, (), "opaque"))
    return [(name, list(map(int, shape)), kind) for name, shape, kind in listed], []


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
        return ("numbers", [items_of(parts)]) if all(part.size == 1 for part in parts) else ("cell", parts)
    return "other", []


def cell_array(
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


def items_of(parts: Sequence[Any]) -> Array:
    """Return the numbers of a cell array of single numbers."""
    return np.array([part[...].item() for part in parts])


def _stack(parts: Sequence[Any]) -> Lazy:
    """Return matrices of one shape as one array with the kernels along axis 0."""

    def read(key: tuple[Any, ...]) -> Any:
        if isinstance(key[0], slice):
            return np.array([part[key[1:]] for part in parts[key[0]]])
        return parts[key[0]][key[1:]]

    return Lazy((len(parts), *parts[0].shape), np.result_type(*(part.dtype for part in parts)), read)


# --- NetCDF -----------------------------------------------------------------------------------------------------------


def netcdf_arrays(path: Path) -> list[FileArray]:
    """Return the variables of a NetCDF file."""
    with path.open("rb") as file:
        if file.read(3) != b"CDF":
            return hdf5_arrays(path)
    variables, _ = run(_netcdf_variables, str(path), path)

    def values_of(name: str) -> Array:
        return run(_netcdf_variables, f"variable {name!r} of {path}", path, name)[1][0]

    return [FileArray(path, name, tuple(v[0]), np.dtype(v[1]), partial(values_of, name)) for name, *v in variables]


def _netcdf_variables(file: str, *wanted: str) -> tuple[list[Any], list[Array]]:
    """Return names, shapes and types, and the wanted values, NaN for missing ones (in the child process)."""
    import xarray as xr

    with xr.open_dataset(file, engine="scipy", decode_times=False) as dataset:
        types = {name: "U1" if v.dtype.kind in "OSTU" else v.dtype.str for name, v in dataset.variables.items()}
        values = [dataset.variables[name].to_numpy() for name in wanted]
        entries = [own.astype(str) if own.dtype.kind in "OST" else own.copy() for own in values]
        return [(str(name), dataset.variables[name].shape, kind) for name, kind in types.items()], entries
