"""The file formats that are read. A new one is a file beside this one, and a line in `FORMATS`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dmkl.inputs.feature_matrices import SourceMatrix
from dmkl.inputs.formats.annotated import annotated_arrays, annotation, is_annotated
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.formats.genetics import gcta_arrays, plink_arrays, plink_text_arrays
from dmkl.inputs.formats.hdf5 import hdf5_arrays
from dmkl.inputs.formats.matlab import matlab_arrays
from dmkl.inputs.formats.matrix_market import mtx_arrays
from dmkl.inputs.formats.numpy_files import npy_arrays, npz_arrays
from dmkl.inputs.formats.tables import LastOpened, csv_table, parquet_arrays, parquet_labels, parquet_table
from dmkl.inputs.formats.text import read_table, text_arrays
from dmkl.inputs.formats.zarr_folders import is_zarr, zarr_arrays
from dmkl.inputs.labels import LabelTable
from dmkl.inputs.side_data import SideData

__all__ = ["FORMATS", "Format", "arrays_in", "expected_files", "format_of", "natural_order"]


@dataclass(frozen=True)
class Format:
    """How the files of one format are told and read."""

    suffixes: tuple[str, ...] = ()  # the extensions of its files, in lower case; none where it is a folder
    arrays: Callable[[Path], list[FileArray]] | None = None
    """Lists the arrays of a file, of which nothing but headers is read; None where its files hold no kernels."""
    array_features: bool = True  # whether these arrays may be feature matrices too
    table: Callable[[Path, LastOpened, list[str]], tuple[SourceMatrix, list[SideData]]] | None = None
    """Reads a file as one feature matrix, with the side data among its columns; notes go into the last argument."""
    labels: Callable[[Path, str | None], LabelTable] | None = None
    """Reads a file of labels, names or splits, or its column of a name; by default it is an array of the file."""
    sorted_by_name: bool = False  # whether arrays are taken by their names, since the file keeps no order of them
    is_folder: Callable[[Path], bool] | None = None  # tells whether a folder is of this format

    def holds_kernels(self) -> bool:
        """Whether its files may hold kernels."""
        return self.arrays is not None

    def holds_labels(self) -> bool:
        """Whether its files may hold labels, names or splits."""
        return self.labels is not None or self.arrays is not None

    def holds_features(self) -> bool:
        """Whether its files may hold features."""
        return self.table is not None or (self.arrays is not None and self.array_features)


FORMATS = (
    Format((".npy",), npy_arrays),
    Format((".npz",), npz_arrays),
    Format((".mat",), matlab_arrays),
    Format((".h5", ".hdf5"), hdf5_arrays, sorted_by_name=True),
    Format((".txt", ".dat", ".txt.gz"), text_arrays, array_features=False, labels=read_table),
    Format((".csv", ".tsv", ".csv.gz", ".tsv.gz"), text_arrays, table=csv_table, labels=read_table),
    Format((".parquet",), parquet_arrays, table=parquet_table, labels=parquet_labels),
    Format((".mtx",), mtx_arrays),
    Format((".grm.bin",), gcta_arrays, array_features=False),
    Format((".rel.bin",), plink_arrays, array_features=False),
    Format((".rel",), plink_text_arrays, array_features=False),
    Format((".phen", ".pheno", ".fam"), labels=read_table),
    Format((".h5ad", ".h5mu"), annotated_arrays, labels=annotation),
    Format((), annotated_arrays, labels=annotation, is_folder=is_annotated),
    Format((), zarr_arrays, sorted_by_name=True, is_folder=is_zarr),
)


def format_of(path: Path) -> Format | None:
    """The format of a file or folder; None where it is unknown."""
    name = path.name.lower()
    for known in FORMATS:
        if known.is_folder(path) if known.is_folder is not None else name.endswith(known.suffixes):
            return known
    return None


def expected_files(takes: Callable[[Format], bool]) -> str:
    """The formats that are taken, as messages list them."""
    suffixes = [suffix for known in FORMATS if takes(known) for suffix in known.suffixes]
    return f"{', '.join(suffixes)} or a Zarr folder"


def arrays_in(path: Path) -> list[FileArray]:
    """The arrays of a file of a known format; nothing but headers is read."""
    found = format_of(path)
    if found is None or found.arrays is None:
        return []
    arrays = found.arrays(path)
    if found.sorted_by_name:
        arrays.sort(key=lambda array: natural_order(array.name))
    return arrays


def natural_order(text: str) -> list[tuple[int, int | str]]:
    """Sort by this to have K2 before K10."""
    parts = re.split(r"(\d+)", text)
    key: list[tuple[int, int | str]] = [
        (0, int(part)) if part.isdecimal() else (1, part.casefold()) for part in parts if part
    ]
    return [*key, (2, text)]
