"""Writing kernels and scores into annotated data: AnnData or MuData in memory, in .h5ad and .h5mu, and in Zarr."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.files.locks import confirm
from dmkl.files.urls import resolved
from dmkl.files.writing import beside, full_disk

__all__ = ["into_annotated", "new_annotated", "write_into"]

Arrays = Mapping[str, xr.DataArray]


def into_annotated(
    target: Any, *, kernels: Arrays | None = None, scores: Arrays | None = None, overwrite: bool = False
) -> None:
    """Put kernels into ``obsp`` and scores into ``obsm``, by the names of samples.

    Of a file a copy is written beside it, which takes its place when it is complete.

    Parameters
    ----------
    target
        AnnData, MuData, or the path of an .h5ad, an .h5mu or their Zarr form.
    kernels
        By name, (samples, samples) with the names of the samples as coordinates of both dimensions. Where a pair is not
        among them stands NaN.
    scores
        By name, (samples,) or (samples, columns), the names of the samples as coordinate of the first dimension and
        those of the columns, such as classes, as that of the second. Rows of other samples are NaN.
    overwrite
        Replace entries of these names.

    Raises
    ------
    InputError
        If a sample is not among ``obs_names`` or is there twice, an array has no names or other dimensions, an entry of
        a name is there already, the file cannot be opened, or anndata is not installed.
    """
    entries = {f"obsp/{name}": array for name, array in (kernels or {}).items()}
    entries |= {f"obsm/{name}": array for name, array in (scores or {}).items()}
    if not isinstance(target, str | os.PathLike):
        names = pd.Index(target.obs_names).astype(str)
        held = {f"{group}/{name}" for group in ("obsp", "obsm") for name in getattr(target, group)}
        for entry, values in _checked(entries, names, held, overwrite).items():
            group, name = entry.split("/", 1)
            getattr(target, group)[name] = values
        return
    with _copy_of(Path(target)) as copy:
        write_into(copy, entries, overwrite=overwrite)


def new_annotated(path: Path, names: Sequence[str]) -> None:
    """Write an .h5ad file that has observations of these names, and nothing else."""
    _library()
    anndata = importlib.import_module("anndata")
    with _strings_as_they_are():
        anndata.AnnData(obs=pd.DataFrame(index=list(names))).write_h5ad(path)


def write_into(path: Path, entries: Arrays, *, overwrite: bool = False) -> None:
    """Write entries such as ``obsp/weighted`` into a file as it stands; see `into_annotated`, which spares the file."""
    with _opened(path) as root:
        library = _library()
        index = root["obs"].attrs["_index"]
        names = pd.Index(np.asarray(library.read_elem(root["obs"][index]), dtype=object)).astype(str)
        held = {f"{group}/{name}" for group in ("obsp", "obsm") if group in root for name in root[group]}
        for entry, values in _checked(entries, names, held, overwrite).items():
            with _strings_as_they_are():
                library.write_elem(root, entry, values)


def _library() -> Any:
    try:
        return importlib.import_module("anndata.io")
    except ImportError as error:
        msg = "AnnData and MuData files are written with anndata, which is not installed; pip install 'dmkl[anndata]'"
        raise InputError(msg) from error


@contextmanager
def _strings_as_they_are() -> Iterator[None]:
    """Pandas 3 has a type of strings of its own, which anndata writes where it is asked to."""
    settings: Any = importlib.import_module("anndata").settings
    with settings.override(allow_write_nullable_strings=True):
        yield


@contextmanager
def _copy_of(path: Path) -> Iterator[Path]:
    """A copy that takes the place of the file if all goes well."""
    if not path.exists():
        msg = f"there is no file {path}"
        raise InputError(msg)
    path = resolved(path)
    copy, before = beside(path), beside(path, "replaced")
    try:
        with full_disk(path, "Free some space and run it again; what was there before is as it was"):
            if path.is_dir():
                shutil.copytree(path, copy, symlinks=True)
            else:
                shutil.copyfile(path, copy)
            yield copy
        confirm(path)
        if path.is_dir():  # which no folder with something in it can replace
            path.rename(before)
        copy.rename(path)
        shutil.rmtree(before, ignore_errors=True)
    except BaseException:
        if copy.is_dir():
            shutil.rmtree(copy)
        copy.unlink(missing_ok=True)
        raise


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if path.is_dir():
        import zarr

        root: Any = zarr.open_group(str(path), mode="r+", use_consolidated=False)
        yield root
        zarr.consolidate_metadata(root.store)
        return
    import h5py

    try:
        file = h5py.File(path, "r+")
    except OSError as error:
        msg = f"{path} cannot be opened as HDF5: {error}"
        raise InputError(msg) from error
    with file:
        yield file


def _checked(entries: Arrays, names: pd.Index[Any], held: set[str], overwrite: bool) -> dict[str, Any]:
    """The values of all entries in the order of the names, before any is written."""
    for entry in entries:
        if entry in held and not overwrite:
            msg = f"{entry} is there already; choose another name, or overwrite it (overwrite=True, --overwrite)"
            raise InputError(msg)
    return {entry: _in_order(entry, array, names) for entry, array in entries.items()}


def _in_order(entry: str, array: xr.DataArray, names: pd.Index[Any]) -> Any:
    square = entry.startswith("obsp/")
    if array.ndim not in ((2,) if square else (1, 2)):
        msg = f"{entry} has the dimensions {array.dims}, expected {'two of samples' if square else 'samples, columns'}"
        raise InputError(msg)
    rows = _places(entry, array, 0, names)
    values = array.to_numpy()
    if square:
        found = np.full((len(names), len(names)), np.nan, dtype=np.result_type(values.dtype, np.float32))
        found[np.ix_(rows, _places(entry, array, 1, names))] = values
        return found
    table = np.full((len(names), *values.shape[1:]), np.nan, dtype=np.result_type(values.dtype, np.float32))
    table[rows] = values
    titled = array.ndim == 2 and array.dims[1] in array.coords
    titles = list(map(str, array.coords[array.dims[1]].to_numpy().tolist())) if titled else None
    return pd.DataFrame(table, names, titles) if titles else table.reshape(len(names), -1)


def _places(entry: str, array: xr.DataArray, axis: int, names: pd.Index[Any]) -> Array:
    """Where the samples of an axis stand among the names."""
    dimension = array.dims[axis]
    if dimension not in array.coords:
        msg = f"{entry}: dimension {dimension!r} has no names of samples; give them as its coordinate"
        raise InputError(msg)
    own = pd.Index(array.coords[dimension].to_numpy()).astype(str)
    places = np.asarray(names.get_indexer(own)) if names.is_unique else np.full(len(own), -1)
    lacking = own[places < 0]
    if len(lacking) or not own.is_unique:
        why = f"{len(lacking)} are no obs_names, the first {lacking[0]!r}" if len(lacking) else "some are there twice"
        msg = f"{entry}: of the {len(own)} samples {why}; every sample has to be one of obs_names, and once"
        raise InputError(msg)
    return places
