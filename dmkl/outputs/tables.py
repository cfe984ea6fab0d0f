"""Tables of labeled data, in the form that the name of the file asks for: CSV, Parquet, or Zarr with its labels."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dmkl._version import __version__
from dmkl.errors import InputError
from dmkl.files.urls import Place
from dmkl.files.writing import replacing

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["FORMAT", "as_frame", "check_table", "write_table"]

FORMAT = "dmkl-table"


def check_table(place: Place) -> None:
    """Refuse a place that a table could not be written to, by InputError: one ending in .parquet without pyarrow."""
    if place.name.lower().endswith(".parquet") and find_spec("pyarrow") is None:
        msg = f"{place}: Parquet files are written with pyarrow, which is not installed; pip install pyarrow"
        raise InputError(msg)


def write_table(place: Place, frame: pd.DataFrame, dataset: xr.Dataset, *, overwrite: bool) -> None:
    """Write the frame as Parquet (.parquet) or CSV (.csv, .csv.gz, any other), or the labeled data as Zarr (.zarr).

    Numbers that are no integers have nine digits in CSV where they are not labels, and all of them elsewhere.

    Raises
    ------
    StoreExistsError
        If there is a Zarr group at `place` that `overwrite` does not allow to replace.
    DiskFullError
        If the disk ran full.
    """
    name = place.name.lower()
    if name.endswith(".zarr"):
        from dmkl.store.saved import put_in_place

        put_in_place(place, lambda written: _write_group(dataset, written), FORMAT, "table", overwrite=overwrite)
        return
    with replacing(place) as file:
        if name.endswith(".parquet"):
            frame.to_parquet(file, index=False)
        else:
            texts = {column: frame[column].map("{:.9g}".format) for column in _measured(frame)}
            frame.assign(**texts).to_csv(file, index=False, compression="gzip" if name.endswith(".gz") else None)


def _measured(frame: pd.DataFrame) -> list[str]:
    names = map(str, frame)
    return [name for name in names if frame[name].dtype.kind == "f" and not name.startswith("predicted")]


def _write_group(dataset: xr.Dataset, path: Path) -> None:
    from dmkl.store.metadata import seal
    from dmkl.store.saved import write_dataset

    attrs = {"format": FORMAT, "format_version": 1, "created_by": f"dmkl {__version__}", **dataset.attrs}
    write_dataset(dataset.assign_attrs(attrs), path, "w-", None)
    seal(path)


def as_frame(array: xr.DataArray, columns: str, prefix: str = "") -> pd.DataFrame:
    """A column for each label of one dimension, a row for each combination of those of the others."""
    import pandas as pd

    plain = array.reset_coords(drop=True).transpose(..., columns)
    others = [str(dim) for dim in plain.dims[:-1]]
    rows = pd.MultiIndex.from_product([plain[dim].values for dim in others], names=others).to_frame(index=False)
    names = [f"{prefix}{label}" for label in plain[columns].values]
    numbers = pd.DataFrame(plain.values.reshape(len(rows), -1), columns=names)
    return pd.concat([rows, numbers], axis=1)
