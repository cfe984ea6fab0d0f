"""Writers of files for other programs: tables, kernel matrices, and annotated data.

Tables are CSV, Parquet or Zarr; kernel matrices are NumPy, Zarr, GCTA or AnnData; kernels and scores are written into
AnnData or MuData, in memory or in files. A kernel matrix may be lazy and larger than memory: its blocks are computed
once, into a temporary Zarr array in the folder of the output, and written some rows at a time. Only AnnData needs it in
memory.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr

from dmkl.arrays import Array
from dmkl.errors import StoreExistsError, needing, refuse
from dmkl.files.urls import Place, Url
from dmkl.files.writing import replacing, replacing_files, replacing_path, reporting_full_disk, temporary_name
from dmkl.store.saved import save_dataset

KERNEL_FORMAT = "dmkl-combined-kernel"
TABLE_FORMAT = "dmkl-table"
_GRM = ".grm.bin"
_ROWS_BYTES = 2**26  # Rows that are read from disk at a time.
_ANOTHER_PLACE = "Free some space, or choose another path, and export it again"


# --- tables --------------------------------------------------------------------------------------------------------


def check_table(place: Place) -> None:
    """Raise InputError if a table cannot be written to this place: it ends in .parquet, and pyarrow is missing."""
    if place.name.lower().endswith(".parquet"):
        with needing("pyarrow", f"{place} is written with"):
            importlib.import_module("pyarrow")


def write_table(place: Place, frame: pd.DataFrame, dataset: xr.Dataset, *, overwrite: bool) -> None:
    """Write the frame as Parquet (.parquet) or CSV (.csv, .csv.gz, any other), or the labeled data as Zarr (.zarr).

    In CSV, floating-point numbers other than labels have nine digits; everything else has all digits. Only a Zarr group
    needs `overwrite` to be replaced.
    """
    name = place.name.lower()
    if name.endswith(".zarr"):
        save_dataset(place, dataset, TABLE_FORMAT, "table", overwrite=overwrite)
        return
    with replacing(place) as file:
        if name.endswith(".parquet"):
            frame.to_parquet(file, index=False)
        else:
            numbers = [name for name in map(str, frame) if frame[name].dtype.kind == "f"]
            measured = [name for name in numbers if not name.startswith(("predicted", "true"))]
            texts = {name: frame[name].map("{:.9g}".format) for name in measured}
            frame.assign(**texts).to_csv(file, index=False, compression="gzip" if name.endswith(".gz") else None)


def as_frame(array: xr.DataArray, columns: str, prefix: str = "") -> pd.DataFrame:
    """A column for each label of the dimension `columns`, a row for each combination of the other labels."""
    plain = array.reset_coords(drop=True).transpose(..., columns)
    others = [str(dim) for dim in plain.dims[:-1]]
    rows = pd.MultiIndex.from_product([plain[dim].values for dim in others], names=others).to_frame(index=False)
    names = [f"{prefix}{label}" for label in plain[columns].values]
    numbers = pd.DataFrame(plain.values.reshape(len(rows), -1), columns=names)
    return pd.concat([rows, numbers], axis=1)


_TITLES = dict(sample_fold="fold", sample_group="group", true_label="true", predicted_label="predicted")
_TITLES |= dict(prediction="predicted", score="score", standard_deviation="standard deviation")
_TITLES |= dict(reliability="reliability", lower="lower", upper="upper", prediction_set="set")
_TITLES |= dict(covariate_prediction="by covariates", kernel_prediction="by kernels", probability="probability")
_TITLES |= dict(survival="survival")
"""Titles of the columns of predictions, by their variable, in this order."""


def prediction_table(predictions: xr.Dataset) -> pd.DataFrame:
    """Predictions (`EvaluationResult.predictions`) as a table with a row for each sample, such as ``.to_csv`` writes.

    Its columns are sample, fold, group, true, predicted, score, by covariates, by kernels, probability, survival, of
    prediction sets and intervals set, lower and upper, as far as there are such, with the class, task or target in the
    title if there are several: "score CLASS". That of two classes is of the second. "by covariates" and "by kernels"
    are the two parts of the predictions of a regression on covariates.
    """
    positive = predictions["class"].values[-1] if "class" in predictions.coords else ""
    columns: dict[str, Any] = {"sample": predictions["sample"].values}
    for name, title in _TITLES.items():
        values = predictions.get(name)
        if values is not None and values.ndim == 2:
            columns |= {
                f"{title} {label}": values.values[:, k] for k, label in enumerate(values[values.dims[1]].values)
            }
        elif values is not None:
            columns[f"score {positive}" if name == "score" else title] = values.values
    return pd.DataFrame(columns)


# --- kernel matrices -----------------------------------------------------------------------------------------------


def check_kernel_file(place: Place, kernel_dims: tuple[str, ...] | None = None, *, overwrite: bool = False) -> None:
    """Refuse a place that the kernel cannot be written to, before it is computed.

    InputError if its name has none of the suffixes, AnnData is not installed, or the format needs other dimensions;
    StoreExistsError if one of its files exists, and `overwrite` is not given.
    """
    write = _writer(place)
    if write is _write_anndata:
        with needing("anndata", f"{place} is written with"):
            importlib.import_module("anndata")
    is_square = write in (_write_grm, _write_anndata)
    if isinstance(place, Url) and is_square:
        refuse(f"{place} has to be a file of this machine; write .npy or .zarr there")
    for file in [place] if write is not _write_grm else _grm_files(Path(str(place))):
        if file.exists() and not overwrite:
            msg = f"{file} exists already; choose another path, or replace it (overwrite=True, --overwrite)"
            raise StoreExistsError(msg)
    if kernel_dims is not None and len(kernel_dims) > 2 and write is not _write_zarr:
        what = f"{place.name} holds one matrix, and there is one for each {kernel_dims[0]}"
        refuse(f"{what}; choose one (--of), or write all of them to .zarr")
    if kernel_dims is not None and is_square and kernel_dims[1] != "sample_2":
        what = f"{place.name} holds a square matrix, and these are rows against training samples"
        refuse(f"{what}; take a square set with the training samples in it, or write .npy or .zarr")


def write_kernel(place: Place, kernel: xr.DataArray, *, overwrite: bool = False, **more: Any) -> None:
    """Write a kernel matrix, (sample, sample_2) or (sample, train_sample), in the format of the place's suffix.

    ``.npy``: the numbers alone, float64. ``.csv``: with the names of rows and columns. ``.zarr``: with the names, and
    with all weights if there are several; xarray opens it. ``.grm.bin``: for GCTA, the lower triangle in single
    precision, the names as family and individual in ``.grm.id`` and, since no variants were counted, ones in
    ``.grm.N.bin``. ``.h5ad``: in ``obsp``, see `into_annotated`.

    Only ``.npy``, ``.csv`` and ``.zarr`` may be URLs. `more` has for ``.h5ad`` the `key` in ``obsp``, and `source`, an
    .h5ad file whose contents are copied. InputError as `check_kernel_file`; if names cannot be written in this format,
    or entries are NaN.
    """
    check_kernel_file(place, tuple(map(str, kernel.dims)), overwrite=overwrite)
    _writer(place)(place, kernel, overwrite, **more)


def _writer(place: Place) -> Callable[..., None]:
    for suffix, write in _WRITERS.items():
        if place.name.lower().endswith(suffix):
            return write
    refuse(f"a kernel is written to a file with one of the suffixes {', '.join(_WRITERS)}, got {place.name!r}")


def _write_zarr(place: Place, kernel: xr.DataArray, overwrite: bool) -> None:
    lazy = kernel.chunk() if kernel.chunks is None else kernel.copy(data=kernel.data.rechunk(kernel.data.chunksize))
    dataset = lazy.to_dataset(name=str(kernel.name))
    save_dataset(place, dataset, KERNEL_FORMAT, "weighted kernel", overwrite=overwrite)


@contextmanager
def _rows(place: Place, kernel: xr.DataArray) -> Iterator[Iterator[tuple[int, Array]]]:
    """The matrix some rows at a time, with the number of the first row; computed once, into a temporary folder."""
    if kernel.chunks is None:
        yield iter([(0, kernel.values)])
        return
    path = temporary_name(place if isinstance(place, Path) else Path(place.name))
    try:
        with reporting_full_disk(path, _ANOTHER_PLACE):
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


def _write_csv(place: Place, kernel: xr.DataArray, overwrite: bool) -> None:
    names, columns = (kernel[dim].values.astype(str) for dim in kernel.dims)
    with _rows(place, kernel) as strips, replacing(place, "w", encoding="utf-8", newline="") as file:
        for start, strip in strips:
            frame = pd.DataFrame(strip, names[start : start + len(strip)], columns)
            frame.to_csv(file, index_label="sample", header=start == 0)


def _grm_files(place: Path) -> list[Path]:
    stem = place.name[: -len(_GRM)]
    return [place.with_name(f"{stem}.grm{end}") for end in (".id", ".N.bin", ".bin")]


def _write_grm(place: Path, kernel: xr.DataArray, overwrite: bool) -> None:
    names = kernel["sample"].values.astype(str).tolist()
    bad = next((name for name in names if not name or name.startswith("#") or name.split() != [name]), None)
    if bad is not None:
        refuse(f"{place.name} names individuals by words, and one sample is called {bad!r}; give it another name")
    ids, counts, matrix = _grm_files(place)
    # The three files are one output, which has the lock of the matrix.
    with _rows(place, kernel) as strips, replacing_files(matrix, counts, ids) as (matrix, counts, ids):
        with open(matrix, "wb") as file:
            for start, strip in strips:
                if np.isnan(strip).any():
                    refuse(f"{place.name} cannot hold the unknown entries (NaN) of this kernel; write .zarr or .npy")
                for i, row in enumerate(strip, start):
                    file.write(row[: i + 1].astype("<f4").tobytes())
        with open(counts, "wb") as file:
            for i in range(len(names)):
                file.write(np.ones(i + 1, dtype="<f4").tobytes())
        ids.write_text("".join(f"{name}\t{name}\n" for name in names), encoding="utf-8")


def _write_anndata(
    place: Path, kernel: xr.DataArray, overwrite: bool, *, key: str = "dmkl", source: Path | None = None
) -> None:
    with replacing_path(place, _ANOTHER_PLACE) as partial:
        if source is None:
            with _anndata() as library:  # observations of these names, and nothing else
                names = kernel["sample"].values.astype(str).tolist()
                library.AnnData(obs=pd.DataFrame(index=names)).write_h5ad(partial)
        else:
            shutil.copyfile(source, partial)
        _write_into(partial, {f"obsp/{key}": kernel}, overwrite=True)


_WRITERS: dict[str, Callable[..., None]] = {
    ".npy": _write_npy,
    ".csv": _write_csv,
    ".zarr": _write_zarr,
    _GRM: _write_grm,
    ".h5ad": _write_anndata,
}


# --- annotated data ------------------------------------------------------------------------------------------------


Arrays = Mapping[str, xr.DataArray]
_GROUPS = ("obsp", "obsm", "obs", "uns")


def into_annotated(
    target: Any,
    *,
    kernels: Arrays | None = None,
    scores: Arrays | None = None,
    more: Arrays | None = None,
    overwrite: bool = False,
) -> None:
    """Put kernels into ``obsp`` and scores into ``obsm`` of AnnData, MuData or a file of them, by names of samples.

    For a file, a copy is changed and replaces the file when it is complete. `kernels`, (samples, samples), and
    `scores`, (samples,) or (samples, columns), are by name, with the names of samples and columns as coordinates;
    entries of other samples are NaN. Columns keep their names unless one has a slash, which is a path in such files.
    `more` is by place: "obs/NAME" has labels or numbers (samples,), "uns/NAME" an array as it is.

    InputError if a sample is not among ``obs_names`` or occurs twice, an array has no names or other dimensions, an
    entry exists already (unless `overwrite`), the file cannot be opened, or anndata is not installed.
    """
    entries = {f"obsp/{name}": array for name, array in (kernels or {}).items()}
    entries |= {f"obsm/{name}": array for name, array in (scores or {}).items()}
    entries |= more or {}
    if not isinstance(target, str | os.PathLike):
        samples = pd.Index(target.obs_names).astype(str)
        existing = {f"{group}/{name}" for group in _GROUPS for name in getattr(target, group)}
        for entry, values in _in_order(entries, samples, existing, overwrite).items():
            group, name = entry.split("/", 1)
            getattr(target, group)[name] = values
        return
    path = Path(target)
    if not path.exists():
        refuse(f"there is no file {path}")
    with replacing_path(path, "Free some space and run it again; the file is unchanged") as copy:
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=True)
        else:
            shutil.copyfile(path, copy)
        _write_into(copy, entries, overwrite=overwrite)


def _write_into(path: Path, entries: Arrays, *, overwrite: bool = False) -> None:
    """Write entries such as ``obsp/weighted`` into a file in place."""
    with _anndata() as library, _open_annotated(path) as root:
        index = root["obs"].attrs["_index"]
        names = pd.Index(np.asarray(library.io.read_elem(root["obs"][index]), dtype=object)).astype(str)
        existing = {f"{group}/{name}" for group in _GROUPS if group in root for name in root[group]}
        for entry, values in _in_order(entries, names, existing, overwrite).items():
            group, name = entry.split("/", 1)
            if group not in root:
                library.io.write_elem(root, group, {})
            library.io.write_elem(root[group], name, values)  # a name with a slash is refused since AnnData 0.13
            if entry.startswith("obs/"):
                order = [column for column in root["obs"].attrs["column-order"] if column != name]
                root["obs"].attrs["column-order"] = [*order, name]


@contextmanager
def _anndata() -> Iterator[Any]:
    """The library, which writes the strings of pandas 3 in this context."""
    with needing("anndata", "AnnData and MuData files are written with"):
        library: Any = importlib.import_module("anndata")
        importlib.import_module("anndata.io")
    with library.settings.override(allow_write_nullable_strings=True):
        yield library


@contextmanager
def _open_annotated(path: Path) -> Iterator[Any]:
    if path.is_dir():
        root: Any = zarr.open_group(str(path), mode="r+", use_consolidated=False)
        yield root
        zarr.consolidate_metadata(root.store)
        return
    import h5py

    try:
        file = h5py.File(path, "r+")
    except OSError as error:
        refuse(f"{path} cannot be opened as HDF5: {error}", error)
    with file:
        yield file


def _in_order(entries: Arrays, names: pd.Index[Any], existing: set[str], overwrite: bool) -> dict[str, Any]:
    """The values of all entries in the order of the names; all are checked before any is written."""
    for entry in entries:
        if entry.count("/") > 1:
            refuse(f"names in AnnData have no slash, got {entry.split('/', 1)[1]!r}; choose another name")
        if entry in existing and not overwrite:
            refuse(f"{entry} exists already; choose another name, or overwrite it (overwrite=True, --overwrite)")
    return {entry: _values_in_order(entry, array, names) for entry, array in entries.items()}


def _values_in_order(entry: str, array: xr.DataArray, names: pd.Index[Any]) -> Any:
    if entry.startswith("uns/"):
        return array.to_numpy()
    square = entry.startswith("obsp/")
    if array.ndim not in ((2,) if square else (1,) if entry.startswith("obs/") else (1, 2)):
        expected = "two of samples" if square else "samples, columns"
        refuse(f"{entry} has the dimensions {array.dims}, expected {expected}")
    samples = [_sample_names(entry, array, axis, names) for axis in range(1 + square)]
    values = array.to_numpy()
    if entry.startswith("obs/"):
        is_label = values.dtype.kind != "f"
        column = pd.Series(values.astype(str) if is_label else values, samples[0]).reindex(names)
        return pd.Categorical(column) if is_label else column.to_numpy()
    values = values.astype(np.result_type(values.dtype, np.float32), copy=False)
    if square:
        return pd.DataFrame(values, samples[0], samples[1]).reindex(names, columns=names).to_numpy()
    titled = array.ndim == 2 and array.dims[1] in array.coords
    titles = list(map(str, array.coords[array.dims[1]].to_numpy().tolist())) if titled else None
    table = pd.DataFrame(values, samples[0], titles).reindex(names)
    return table.to_numpy() if not titles or any("/" in title for title in titles) else table


def _sample_names(entry: str, array: xr.DataArray, axis: int, names: pd.Index[Any]) -> pd.Index[Any]:
    """The names of samples along an axis, each of which must be one of `names`."""
    dimension = array.dims[axis]
    if dimension not in array.coords:
        refuse(f"{entry}: dimension {dimension!r} has no names of samples; give them as its coordinate")
    samples: pd.Index[Any] = pd.Index(array.coords[dimension].to_numpy()).astype(str)
    lacking = samples[~samples.isin(names)] if names.is_unique else samples
    if len(lacking) or not samples.is_unique:
        why = f"{len(lacking)} are no obs_names, the first {lacking[0]!r}" if len(lacking) else "some occur twice"
        refuse(f"{entry}: of the {len(samples)} samples {why}; every sample must be one of obs_names, and occur once")
    return samples
