"""The file formats that are read. A new one is a file beside this one, and a line in `FORMATS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from dmkl.errors import InputError
from dmkl.inputs.columns import Columns
from dmkl.inputs.formats.annotated import annotated_arrays, annotation, is_annotated
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.formats.genetics import gcta_arrays, gcta_text_arrays, plink_arrays, plink_text_arrays
from dmkl.inputs.formats.hdf5 import hdf5_arrays
from dmkl.inputs.formats.matlab import matlab_arrays
from dmkl.inputs.formats.matrix_market import mtx_arrays
from dmkl.inputs.formats.numpy_files import npy_arrays, npz_arrays
from dmkl.inputs.formats.parquet import parquet_arrays, parquet_columns
from dmkl.inputs.formats.text import looks_like_text, text_columns
from dmkl.inputs.formats.text_kernels import text_arrays
from dmkl.inputs.formats.zarr_folders import is_zarr, zarr_arrays
from dmkl.inputs.names import LabelTable

__all__ = ["FORMATS", "Format", "arrays_in", "check_file", "expected_files", "format_of", "natural_order"]

_OF_R = (
    '. Files of R are not read, since what lies in them may be code; in R, with K <- readRDS("K.rds"): '
    'write.csv(K, gzfile("K.csv.gz")) keeps the names of rows and columns'
)


@dataclass(frozen=True)
class Format:
    """How the files of one format are recognized and read."""

    suffixes: tuple[str, ...] = ()  # the extensions of its files, in lower case; none where it is a folder
    arrays: Callable[[Path], list[FileArray]] | None = None
    """Lists the arrays of a file, of which nothing but headers is read; None where its files hold no kernels."""
    array_features: bool = True  # whether these arrays may be feature matrices too
    columns: Callable[[Path, Collection[str] | None, str | None], Columns] | None = None
    """Opens a file as a table of columns: features, labels. It gets the names of samples, where they are known, and the
    title of the column that is wanted."""
    labels: Callable[[Path, str | None], LabelTable] | None = None
    """Reads a file of labels, names or splits, or its column of a name; by default it is an array of the file."""
    only_labels: bool = False  # whether its tables are no features
    sorted_by_name: bool = False  # whether arrays are taken by their names, since the file keeps no order of them
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


def format_of(path: Path) -> Format | None:
    """The format of a file or folder, by its name; None where it is unknown."""
    name = path.name.lower()
    for known in FORMATS:
        if known.is_folder(path) if known.is_folder is not None else name.endswith(known.suffixes):
            return known
    return None


def expected_files(takes: Callable[[Format], bool]) -> str:
    """The formats that are taken, as messages list them."""
    suffixes = [suffix for known in FORMATS if takes(known) for suffix in known.suffixes]
    return f"{', '.join(suffixes)} or a Zarr folder"


def check_file(path: Path, takes: Callable[[Format], bool]) -> Format:
    """The format of a file that is meant; a file of text may be called as it likes.

    InputError is raised where the file is not there, or its format is not taken.
    """
    if not path.exists():
        msg = f"there is no file {path}"
        raise InputError(msg)
    found = format_of(path) or (_TEXT if looks_like_text(path) else None)
    if found is None or not takes(found):
        what = "is a folder without Zarr metadata" if path.is_dir() else f"has the extension {path.suffix!r}"
        way_out = _OF_R if path.suffix.lower() in (".rds", ".rdata", ".rda") else ""
        if found is not None and not found.array_features:
            what, way_out = "is a relationship matrix, a kernel", "; dmkl import reads it"
        msg = f"{path} {what}, expected {expected_files(takes)}{way_out}"
        raise InputError(msg)
    return found


def arrays_in(path: Path) -> list[FileArray]:
    """The arrays of a file; nothing but headers is read."""
    found = format_of(path) or (_TEXT if looks_like_text(path) else None)
    if found is None or found.arrays is None:
        return []
    arrays = found.arrays(path)
    if found.sorted_by_name:
        arrays.sort(key=lambda array: natural_order(array.name))
    return arrays


def natural_order(text: str) -> list[tuple[int, int | str]]:
    """Sort by this to have K2 before K10."""
    parts = filter(None, re.split(r"(\d+)", text))
    return [*((0, int(part)) if part.isdecimal() else (1, part.casefold()) for part in parts), (2, text)]
