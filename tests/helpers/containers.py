"""Files of several named arrays; words are written as each format has them."""

import h5py
import zarr

from helpers.matlab import write_v5


def write_hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values.tolist() if values.dtype.kind == "U" else values


def write_mat(path, **arrays):
    write_v5(path, **{name: values.tolist() if values.dtype.kind == "U" else values for name, values in arrays.items()})


def write_zarr(path, **arrays):
    group = zarr.open_group(path, mode="w", zarr_format=2)
    for name, values in arrays.items():
        group.create_array(name, data=values)
