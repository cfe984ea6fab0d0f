"""Objects in memory as arrays of one form, whatever library made them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dmkl.arrays import is_instance
from dmkl.errors import refuse
from dmkl.inputs.columns import ROLES, axis_names, plain_title
from dmkl.inputs.formats.annotated import annotated_arrays
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.matrices import plain

if TYPE_CHECKING:
    import xarray as xr


def holds_arrays(values: Any) -> bool:
    """Whether an object holds several arrays by name: AnnData, MuData or a Dataset of xarray."""
    libraries = (("anndata", "AnnData"), ("mudata", "MuData"), ("xarray", "Dataset"))
    return any(is_instance(values, *library) for library in libraries)


def recognize(what: str, values: Any) -> list[FileArray]:
    """Return the arrays in an object, with the names of their rows and columns, as readers of files return them.

    AnnData, MuData and a Dataset of xarray hold arrays by name. Anything else is one array without a name, which
    messages call `what`: NumPy, pandas, xarray, SciPy's sparse ones, Dask, Zarr, h5py, PyTorch and what exchanges
    arrays by DLPack, and nested lists. A data frame whose index only counts has these numbers as `FileArray.numbers`.
    """
    if holds_arrays(values):
        is_dataset = is_instance(values, "xarray", "Dataset")
        return _arrays_of_dataset(values) if is_dataset else annotated_arrays(values)
    if is_instance(values, "dask.delayed", "Delayed"):
        refuse(f"{what} is a delayed value of Dask; say its shape: dask.array.from_delayed(value, shape, dtype)")
    try:
        tuple(map(int, getattr(values, "shape", ())))
    except (TypeError, ValueError) as error:
        way_out = "call compute_chunk_sizes() of a Dask array, to_dask_array(lengths=True) of a Dask data frame"
        refuse(f"the number of rows of {what} is unknown; {way_out}", error)
    rows, columns = axis_names(values, 0), axis_names(values, 1)
    is_counted = rows is None and is_instance(values, "pandas", "DataFrame")
    numbers = [tuple(map(str, values.index))] if is_counted else []
    array = plain(values)
    try:
        shape, dtype = tuple(map(int, array.shape)), np.dtype(array.dtype)
    except (AttributeError, TypeError):  # also types of NumPy's own that others call dtype
        try:
            array = np.asarray(array)
        except ValueError as error:
            refuse(f"the rows of {what} are no matrix, {error}; all rows must have the same length", error)
        shape, dtype = array.shape, array.dtype
    return [FileArray(Path(what), "", shape, dtype, lambda: array, rows=rows, columns=columns, numbers=numbers)]


def _arrays_of_dataset(dataset: xr.Dataset) -> list[FileArray]:
    """Return the variables of a dataset as arrays; samples lie along the first dimension of its first matrix."""
    variables = {str(key): dataset[key] for key in dataset.variables if key not in dataset.dims}
    features = [key for key, v in variables.items() if v.ndim == 2 and ROLES.get(plain_title(key)) in (None, "names")]
    arrays, first = [], variables[features[0]].dims[0] if features else ""
    for key, values in variables.items():
        if key in features and values.dims[0] != first:
            refuse(f"features {key!r} have the dimensions {values.dims}, {features[0]!r} begins with {first!r}")
        array = values.transpose(first, ...) if first in values.dims else values
        dtype = np.dtype("U1") if array.dtype.kind in "OSTU" else array.dtype
        rows, columns = (axis_names(array, axis) if first in array.dims else None for axis in (0, 1))
        variable = FileArray(Path("the dataset"), key, array.shape, dtype, partial(plain, array))
        arrays.append(replace(variable, rows=rows, columns=columns))
    return arrays
