"""The file formats that are read. A new format is a file in this folder, and a line in `FORMATS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from dmkl.errors import InputError
from dmkl.inputs.columns import Columns
from dmkl.inputs.formats.annotated import annotated_arrays, annotation, is_annotated
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.formats.hdf5 import hdf5_arrays
from dmkl.inputs.formats.matlab import matlab_arrays
from dmkl.inputs.formats.matrix_market import mtx_arrays
from dmkl.inputs.formats.numpy_files import npy_arrays, npz_arrays
from dmkl.inputs.formats.tables import looks_like_text, parquet_arrays, parquet_columns, text_columns
from dmkl.inputs.formats.text_kernels import (
    gcta_arrays,
    gcta_text_arrays,
    plink_arrays,
    plink_text_arrays,
    text_arrays,
)
from dmkl.inputs.formats.zarr_folders import is_zarr, zarr_arrays
from dmkl.inputs.labels import LabelTable

_OF_R = (
    '. Files of R are not read, since what lies in them may be code; in R, with K <- readRDS("K.rds"): '
    'write.csv(K, gzfile("K.csv.gz")) keeps the names of rows and columns'
)


@dataclass(frozen=True)
class Format:
    """A file format: its file names, and its readers."""

    suffixes: tuple[str, ...] = ()  # the extensions of its files, in lower case; none if it is a folder
    arrays: Callable[[Path], list[FileArray]] | None = None
    """Lists the arrays of a file, after reading headers only; None if its files hold no kernels."""
    array_features: bool = True  # whether these arrays may also be feature matrices
    columns: Callable[[Path, Collection[str] | None, str | None], Columns] | None = None
    """Opens a file as a table of columns: features, labels. Its arguments are the path, the names of samples, if they
    are known, and the title of the requested column."""
    labels: Callable[[Path, str | None], LabelTable] | None = None
    """Reads a file of labels, names or splits, or its column of a name; by default an array of the file."""
    only_labels: bool = False  # whether its tables are no features
    sorted_by_name: bool = False  # whether arrays are sorted by their names, since the file keeps no order of them
    is_folder: Callable[[Path], bool] | None = None  # whether a folder is of this format

    def holds_kernels(self) -> bool:
        """Whether its files may hold kernels."""
        return self.arrays is not None

    def holds_labels(self) -> bool:
        """Whether its files may hold labels, names or splits."""
        return self.array_features

    def holds_features(self) -> bool:
        """Whether its files may hold features."""
        return (self.columns is not None and not self.only_labels) or (self.arrays is not None and self.array_features)


_PLAIN = (".txt", ".dat", ".csv", ".tsv", ".tab")
_TEXT = Format((*_PLAIN, *(f"{suffix}.gz" for suffix in _PLAIN)), text_arrays, columns=text_columns)
FORMATS = (
    Format((".npy",), npy_arrays),
    Format((".npz",), npz_arrays),
    Format((".mat",), matlab_arrays),
    Format((".h5", ".hdf5"), hdf5_arrays, sorted_by_name=True),
    Format((".parquet",), parquet_arrays, columns=parquet_columns),
    Format((".mtx",), mtx_arrays),
    Format((".grm.bin",), gcta_arrays, array_features=False),
    Format((".grm.gz",), gcta_text_arrays, array_features=False),
    Format((".rel.bin",), plink_arrays, array_features=False),
    Format((".rel", ".rel.gz"), plink_text_arrays, array_features=False),
    Format((".h5ad", ".h5mu"), annotated_arrays, labels=annotation),
    Format((), annotated_arrays, labels=annotation, is_folder=is_annotated),
    Format((), zarr_arrays, sorted_by_name=True, is_folder=is_zarr),
    Format((".phen", ".pheno", ".fam"), columns=text_columns, only_labels=True),
    _TEXT,
)


def format_of(path: Path, *, any_text: bool = False) -> Format | None:
    """Return the format of a file or folder by its name; None if it is unknown, unless it is text with `any_text`."""
    name = path.name.lower()
    for file_format in FORMATS:
        if name.endswith(file_format.suffixes) if file_format.is_folder is None else file_format.is_folder(path):
            return file_format
    return _TEXT if any_text and looks_like_text(path) else None


def expected_files(accepts: Callable[[Format], bool]) -> str:
    """Return the accepted formats, as messages list them."""
    suffixes = [suffix for file_format in FORMATS if accepts(file_format) for suffix in file_format.suffixes]
    return f"{', '.join(suffixes)} or a Zarr folder"


def check_file(path: Path, accepts: Callable[[Format], bool]) -> Format:
    """Return the format of a file; a text file may have any name.

    InputError is raised if the file is missing, or its format is not accepted.
    """
    if not path.exists():
        msg = f"there is no file {path}"
        raise InputError(msg)
    file_format = format_of(path, any_text=True)
    if file_format is None or not accepts(file_format):
        what = "is a folder without Zarr metadata" if path.is_dir() else f"has the extension {path.suffix!r}"
        way_out = _OF_R if path.suffix.lower() in (".rds", ".rdata", ".rda") else ""
        if file_format is not None and not file_format.array_features:
            what, way_out = "is a relationship matrix, a kernel", "; dmkl import reads it"
        msg = f"{path} {what}, expected {expected_files(accepts)}{way_out}"
        raise InputError(msg)
    return file_format


def arrays_in(path: Path) -> list[FileArray]:
    """Return the arrays of a file, after reading headers only."""
    file_format = format_of(path, any_text=True)
    arrays = [] if file_format is None or file_format.arrays is None else file_format.arrays(path)
    if file_format is not None and file_format.sorted_by_name:
        arrays.sort(key=lambda array: natural_order(array.name))
    return arrays


def natural_order(text: str) -> list[tuple[int, int | str]]:
    """Return a sort key that puts K2 before K10."""
    parts = filter(None, re.split(r"(\d+)", text))
    return [*((0, int(part)) if part.isdecimal() else (1, part.casefold()) for part in parts), (2, text)]
