"""One kernel matrix in the formats of those who go on with it: NumPy, Zarr, GCTA, AnnData.

The matrix may be lazy and larger than memory: its blocks are computed once, into a Zarr array beside the output, from
which the file is written some rows at a time. AnnData alone holds its matrices in memory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from dmkl._version import __version__
from dmkl.arrays import Array
from dmkl.errors import InputError, StoreExistsError
from dmkl.files.locks import confirm
from dmkl.files.urls import Place, Url, resolved
from dmkl.files.writing import beside, full_disk, replacing
from dmkl.outputs.annotated import new_annotated, write_into
from dmkl.store.metadata import seal
from dmkl.store.saved import put_in_place, write_dataset

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["FORMAT", "check_kernel_file", "write_kernel"]

FORMAT = "dmkl-combined-kernel"
_GRM = ".grm.bin"
_ROWS_BYTES = 2**26
"""Rows that are taken from disk at a time."""


def check_kernel_file(place: Place, kernel_dims: tuple[str, ...] | None = None, *, overwrite: bool = False) -> None:
    """Refuse a place that the kernel could not be written to, before it is computed.

    Raises
    ------
    InputError
        If its name ends in none of the formats, or AnnData is not installed, or the format takes other dimensions.
    StoreExistsError
        If one of its files is there, and `overwrite` is not given.
    """
    write = _writer(place)
    if write is _write_anndata and _anndata_missing():
        msg = f"{place}: .h5ad files are written with anndata, which is not installed; pip install anndata"
        raise InputError(msg)
    if isinstance(place, Url) and write in (_write_grm, _write_anndata):
        msg = f"{place} has to be a file of this machine; write .npy or .zarr there"
        raise InputError(msg)
    for file in [place] if write is not _write_grm else _grm_files(Path(str(place))):
        if file.exists() and not overwrite:
            msg = f"{file} exists already; choose another path, or replace it (overwrite=True, --overwrite)"
            raise StoreExistsError(msg)
    if kernel_dims is None or write is _write_zarr:
        return
    if len(kernel_dims) > 2:
        msg = (
            f"{place.name} holds one matrix, and there is one for each {kernel_dims[0]}; choose one (--of), or write "
            "all of them to .zarr"
        )
        raise InputError(msg)
    if kernel_dims[1] != "sample_2" and write is not _write_npy:
        msg = (
            f"{place.name} holds a square matrix, and these are rows against training samples; take a square set with "
            "the training samples in it, or write .npy or .zarr"
        )
        raise InputError(msg)


def write_kernel(place: Place, kernel: xr.DataArray, *, overwrite: bool = False, **more: Any) -> None:
    """Write a kernel matrix, (sample, sample_2) or (sample, train_sample), in the format that its name ends in.

    ``.npy``: the numbers alone, float64. ``.zarr``: with the names, and with all weightings where there are several;
    xarray opens it. ``.grm.bin``: for GCTA, the lower triangle in single precision, the names as family and individual
    in ``.grm.id`` and, as no variants were counted, ones in ``.grm.N.bin``. ``.h5ad``: in ``obsp``, see
    `dmkl.outputs.annotated.into_annotated`.

    Parameters
    ----------
    place
        Where; ``.npy`` and ``.zarr`` may be URLs.
    kernel
        As `KernelLearner.combined_kernel` gives it.
    overwrite
        Replace what is there.
    **more
        Of ``.h5ad`` the `key` in ``obsp``, and `source`, the .h5ad file whose contents are taken along.

    Raises
    ------
    InputError, StoreExistsError
        As `check_kernel_file`; if names cannot be written in this format, or entries are NaN.
    DiskFullError
        If the disk ran full.
    """
    check_kernel_file(place, tuple(map(str, kernel.dims)), overwrite=overwrite)
    _writer(place)(place, kernel, overwrite, **more)


def _writer(place: Place) -> Callable[..., None]:
    for suffix, write in _WRITERS.items():
        if place.name.lower().endswith(suffix):
            return write
    msg = f"a kernel is written to {', '.join(_WRITERS)}, told by the end of the name, got {place.name!r}"
    raise InputError(msg)


def _write_zarr(place: Place, kernel: xr.DataArray, overwrite: bool) -> None:
    def write(path: Path) -> None:
        attrs = {"format": FORMAT, "format_version": 1, "created_by": f"dmkl {__version__}"}
        lazy = kernel.chunk() if kernel.chunks is None else kernel.copy(data=kernel.data.rechunk(kernel.data.chunksize))
        write_dataset(lazy.to_dataset(name=str(kernel.name)).assign_attrs(attrs), path, "w-", None)
        seal(path)

    put_in_place(place, write, FORMAT, "weighted kernel", overwrite=overwrite)


@contextmanager
def _rows(place: Place, kernel: xr.DataArray) -> Iterator[Iterator[tuple[int, Array]]]:
    """The matrix some rows at a time, each with the number of the first; computed once, into a folder beside."""
    if kernel.chunks is None:
        yield iter([(0, kernel.values)])
        return
    path = beside(place if isinstance(place, Path) else Path(place.name))
    try:
        with full_disk(path, "Free some space, or choose another place, and export it again"):
            kernel.data.rechunk(kernel.data.chunksize).to_zarr(str(path), zarr_format=3)
        stored: Any = zarr.open_array(path, mode="r")
        side = max(1, _ROWS_BYTES // (8 * max(1, kernel.shape[1])))
        yield ((start, stored[start : start + side]) for start in range(0, kernel.shape[0], side))
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _write_npy(place: Place, kernel: xr.DataArray, overwrite: bool) -> None:
    with _rows(place, kernel) as strips, replacing(place) as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": kernel.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _, strip in strips:
            file.write(np.ascontiguousarray(strip, dtype="<f8").tobytes())


def _grm_files(place: Path) -> list[Path]:
    stem = place.name[: -len(_GRM)]
    return [place.with_name(f"{stem}.grm{end}") for end in (".id", ".N.bin", ".bin")]


def _write_grm(place: Path, kernel: xr.DataArray, overwrite: bool) -> None:
    names = kernel["sample"].values.astype(str).tolist()
    bad = next((name for name in names if not name or name.startswith("#") or name.split() != [name]), None)
    if bad is not None:
        msg = f"{place.name} names individuals by words, and one sample is called {bad!r}; give it another name"
        raise InputError(msg)
    ids, counts, matrix = _grm_files(place)
    with _rows(place, kernel) as strips, replacing(matrix) as file:
        for start, strip in strips:
            _refuse_nan(place, strip)
            for i, row in enumerate(strip, start):
                file.write(row[: i + 1].astype("<f4").tobytes())
        confirm(place)  # the three files are one output: its claim is that of the matrix
        with replacing(counts) as file_of_counts:
            for i in range(len(names)):
                file_of_counts.write(np.ones(i + 1, dtype="<f4").tobytes())
        with replacing(ids, "w", encoding="utf-8") as file_of_names:
            file_of_names.writelines(f"{name}\t{name}\n" for name in names)


def _refuse_nan(place: Place, entries: Array) -> None:
    if np.isnan(entries).any():
        msg = f"{place.name} cannot hold the unknown entries (NaN) of this kernel; write .zarr or .npy"
        raise InputError(msg)


# --- AnnData -------------------------------------------------------------------------------------------------------


def _anndata_missing() -> bool:
    from importlib.util import find_spec

    return find_spec("anndata") is None


def _write_anndata(
    place: Path, kernel: xr.DataArray, overwrite: bool, *, key: str = "dmkl", source: Path | None = None
) -> None:
    partial = beside(place)
    try:
        with full_disk(place, "Free some space, or choose another place, and export it again"):
            if source is None:
                new_annotated(partial, kernel["sample"].values.astype(str).tolist())
            else:
                shutil.copyfile(source, partial)
            write_into(partial, {f"obsp/{key}": kernel}, overwrite=True)
        confirm(place)
        os.replace(partial, resolved(place))
    finally:
        partial.unlink(missing_ok=True)


_WRITERS: dict[str, Callable[..., None]] = {
    ".npy": _write_npy,
    ".zarr": _write_zarr,
    _GRM: _write_grm,
    ".h5ad": _write_anndata,
}
