"""Variables of NetCDF files: version 4 is HDF5, the versions before are read by xarray in a child process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array
from dmkl.errors import needing
from dmkl.files.reader_process import run
from dmkl.inputs.formats.file_arrays import FileArray


def hdf5_arrays(path: Path) -> list[FileArray]:
    """Return the data sets of an HDF5 file."""
    with needing("h5py", f"{path} is read with"):
        from dmkl.inputs.formats.hdf5 import hdf5_arrays as arrays
    return arrays(path)


def netcdf_arrays(path: Path) -> list[FileArray]:
    """Return the variables of a NetCDF file."""
    with path.open("rb") as file:
        if file.read(3) != b"CDF":
            return hdf5_arrays(path)
    variables, _ = run(_variables, str(path), path)

    def values_of(name: str) -> Array:
        return run(_values, f"variable {name!r} of {path}", path, name)[1][0]

    return [FileArray(path, name, tuple(v[0]), np.dtype(v[1]), partial(values_of, name)) for name, *v in variables]


def _variables(file: str) -> tuple[list[Any], list[Array]]:
    """Return names, shapes and types (in the child process)."""
    import xarray as xr

    with xr.open_dataset(file, engine="scipy", decode_times=False) as dataset:
        variables = dataset.variables.items()
        return [(str(name), v.shape, "U1" if v.dtype.kind in "OSTU" else v.dtype.str) for name, v in variables], []


def _values(file: str, name: str) -> tuple[None, list[Array]]:
    """Return the values of a variable, unpacked and with NaN for missing ones (in the child process)."""
    import xarray as xr

    with xr.open_dataset(file, engine="scipy", decode_times=False) as dataset:
        values = dataset.variables[name].to_numpy()
        return None, [values.astype(str) if values.dtype.kind in "OST" else values.copy()]
