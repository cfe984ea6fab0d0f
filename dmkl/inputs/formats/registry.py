"""The file formats that are read, and the files of a path. A new format is a file here, and a line in `FORMATS`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dmkl.arrays import Matrix
from dmkl.errors import DmklError, refuse
from dmkl.files.regular import check_regular
from dmkl.files.urls import local_path
from dmkl.inputs.columns import ROLES, Columns, plain_title
from dmkl.inputs.formats import text_kernels
from dmkl.inputs.formats.annotated import annotated_arrays, annotation, is_annotated
from dmkl.inputs.formats.compressed import COMPRESSED, content_name, stem, unpacked
from dmkl.inputs.formats.file_arrays import FileArray, natural_order
from dmkl.inputs.formats.genotypes import bed_arrays
from dmkl.inputs.formats.libsvm import is_libsvm, libsvm_arrays, libsvm_labels
from dmkl.inputs.formats.numpy_files import npy_arrays, npz_arrays
from dmkl.inputs.formats.scipy_files import hdf5_arrays, matlab_arrays, netcdf_arrays
from dmkl.inputs.formats.tables import Text, looks_like_text, parquet_columns
from dmkl.inputs.formats.zarr_folders import is_zarr, zarr_arrays
from dmkl.inputs.labels import LabelTable

PathLike = str | os.PathLike[str]
Content = Literal["kernels", "features", "labels"]
_PICKLES = "files of Python objects can run any code and are never read; save arrays by numpy.savez, frames as .parquet"
_BY_PANDAS = "read it by pandas.{} and pass the data frame, or write it with to_csv or to_parquet"
_ADVICE = {
    (".rds", ".rdata", ".rda"): "files of R may contain code; write.csv(K, gzfile('K.csv.gz')) in R keeps all names",
    (".pkl", ".pickle", ".joblib"): _PICKLES,
    (".pt", ".pth"): f"{_PICKLES}, tensors as tensor.numpy(), or pass the tensors",
    (".xlsx", ".xls", ".ods"): f"{_BY_PANDAS.format('read_excel')}; Excel saves a sheet as .csv",
    (".feather", ".arrow"): _BY_PANDAS.format("read_feather"),
    (".dta",): _BY_PANDAS.format("read_stata"),
    (".sav",): _BY_PANDAS.format("read_spss"),
    (".sas7bdat", ".xpt"): _BY_PANDAS.format("read_sas"),
    (".nii", ".nii.gz"): "NiftiMasker(mask).fit_transform(files) of nilearn gives features; save them as .npy",
    (".loom",): "anndata.io.read_loom(file).write_h5ad('x.h5ad') converts it",
    (".vcf", ".vcf.gz", ".bcf", ".bgen", ".pgen"): "plink2 --make-bed converts it to .bed, which is read",
    tuple(f"{name}{end}" for name in (".bed", ".grm.bin", ".rel.bin") for end in COMPRESSED): "unpack it in the "
    "folder of the files that name its individuals",
    (".biom",): "biom convert --to-tsv writes text, which dmkl build --transpose reads",
}
"""Advice on files of other formats."""


def _zip_arrays(path: Path) -> list[FileArray]:
    """Return the arrays of a zipped Zarr folder, which may be the only one inside."""
    folder = unpacked(path)
    inside = list(folder.iterdir())
    folder = folder if is_zarr(folder) or len(inside) != 1 else inside[0]
    if not is_zarr(folder):
        refuse(f"{path} holds no Zarr folder, expected one; unzip it, and give the files inside")
    return [replace(array, path=path) for array in check_file(folder, "kernels").arrays(folder)]


@dataclass(frozen=True)
class Format:
    """A file format: its file names, its readers, and what its files may hold.

    `arrays` lists the arrays of a file, after reading headers only. `columns` opens a file as a table, from its path,
    the names of samples, if they are known, and the title of the requested column. `labels` reads a file of labels,
    names or splits, or its column of a name; by default an array of the file.
    """

    suffixes: tuple[str, ...] = ()  # the extensions of its files, in lower case; none if all are folders
    arrays: Callable[[Path], list[FileArray]] = lambda _: []
    holds: tuple[Content, ...] = ("kernels", "features", "labels")
    columns: Callable[[Path, Collection[str] | None, str | None], Columns] | None = None
    labels: Callable[[Path, str | None], LabelTable] | None = None
    is_folder: Callable[[Path], object] = lambda _: False  # whether a folder is of this format
    streams: bool = False  # whether its readers open compressed files, which are otherwise unpacked

    def of_packed(self) -> Format:
        """Return the format of compressed files of this format."""

        def of_copy(path: Path, read: Callable[..., Any], *more: Any) -> Any:
            """Read the copy of a compressed file, which errors name in its place."""
            copy = unpacked(path)
            try:
                return read(copy, *more)
            except DmklError as error:
                raise type(error)(str(error).replace(str(copy), str(path))) from error

        def arrays(path: Path) -> list[FileArray]:
            def opening(array: FileArray) -> Callable[[], Matrix]:
                return lambda: of_copy(path, lambda _: array.open())

            return [replace(array, path=path, open=opening(array)) for array in of_copy(path, self.arrays)]

        columns, labels = (
            None if read is None else lambda path, *more, read=read: of_copy(path, read, *more)
            for read in (self.columns, self.labels)
        )
        return self if self.streams else replace(self, arrays=arrays, columns=columns, labels=labels)


_TEXT = Format((".txt", ".dat", ".csv", ".tsv", ".tab"), text_kernels.text_arrays, columns=Text, streams=True)
_LIBSVM = Format((".svm", ".libsvm", ".svmlight"), libsvm_arrays, labels=libsvm_labels, streams=True)
FORMATS = (
    Format((".npy",), npy_arrays),
    Format((".npz",), npz_arrays),
    Format((".mat",), matlab_arrays),
    Format((".h5", ".hdf5"), hdf5_arrays),
    Format((".nc", ".nc4", ".cdf"), netcdf_arrays),
    Format((".zip",), _zip_arrays),
    Format((".parquet",), lambda path: [text_kernels.labelled(parquet_columns(path))], columns=parquet_columns),
    Format((".mtx",), text_kernels.mtx_arrays, is_folder=text_kernels.matrix_of_10x, streams=True),
    Format((".grm.bin", ".rel.bin"), text_kernels.binary_arrays, ("kernels",)),
    Format((".grm.gz", ".grm.sp"), text_kernels.gcta_text_arrays, ("kernels",)),
    Format((".rel", ".rel.gz"), text_kernels.plink_text_arrays, ("kernels",)),
    Format((".bed",), bed_arrays),
    Format((".h5ad", ".h5mu"), annotated_arrays, labels=annotation, is_folder=is_annotated),
    Format((), zarr_arrays, is_folder=is_zarr),
    Format((".phen", ".pheno", ".fam", ".covar"), holds=("labels",), columns=Text, streams=True),
    _LIBSVM,
    _TEXT,
)


def format_of(path: Path, *, any_text: bool = False) -> Format | None:
    """Return the format of a file or folder by its name; None if it is unknown, unless it is text with `any_text`."""
    for name in dict.fromkeys((path.name.lower(), content_name(path.name))):
        for file_format in FORMATS:
            if name.endswith(file_format.suffixes) or file_format.is_folder(path):
                return file_format if name == path.name.lower() else file_format.of_packed()
    return _TEXT if any_text and looks_like_text(path) else None


def expected_files(content: Content) -> str:
    """Return the formats of a content, as messages list them."""
    suffixes = [suffix for file_format in FORMATS if content in file_format.holds for suffix in file_format.suffixes]
    return f"{', '.join(suffixes)} (also with {', '.join(COMPRESSED)}) or a Zarr folder"


def check_file(path: Path, content: Content) -> Format:
    """Return the format of a file, after a check that it may hold this content; a text file may have any name."""
    if not path.exists():
        refuse(f"there is no file {path}")
    check_regular(path)
    for ends, advice in _ADVICE.items():
        if path.name.lower().endswith(ends):
            refuse(f"{path} is not read; {advice}")
    file_format = format_of(path, any_text=True)
    if file_format == _TEXT and is_libsvm(path):
        file_format = _LIBSVM
    if file_format is None or content not in file_format.holds:
        what = "is a folder without Zarr metadata" if path.is_dir() else f"has the extension {path.suffix!r}"
        way_out = ""
        if file_format is not None and file_format.holds == ("kernels",):
            what, way_out = "is a relationship matrix, a kernel", "; dmkl import reads it"
        refuse(f"{path} {what}, expected {expected_files(content)}{way_out}")
    return file_format


def find_files(
    paths: PathLike | Sequence[PathLike], content: Content, roles: Collection[str], notes: list[str]
) -> tuple[list[Path], list[tuple[str, Path]]]:
    """Return the files with data of this content, and those with labels and such that have one of these roles.

    A single file holds the data, whatever its name; the files of a folder come in natural order, K2 before K10. A
    prefix stands for the relationship matrix of GCTA or PLINK that begins so, and a text file whose lines are all
    prefixes or relationship matrices (GCTA's --mgrm) for these.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else paths
    local = (local_path(path, "what is imported", "copy it to this machine first").expanduser() for path in paths)
    given = [file for path in local for file in _matrices(path)]
    files, side_files = list[Path](), list[tuple[str, Path]]()
    for path in given:
        left_out = []
        is_folder = path.is_dir() and path.suffix != ".zarr" and format_of(path) is None
        if len(given) == 1 and not is_folder:
            return given, []
        entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")] if is_folder else [path]
        for entry in sorted(entries, key=lambda entry: natural_order(entry.name)):
            name, file_format = plain_title(stem(entry)), format_of(entry)
            # "kernel.npy" is a kernel; its name would be in "names.txt".
            role = None if name in ("kernel", "kernels") else ROLES.get(name)
            may_hold = not is_folder or (file_format is not None and content in file_format.holds)
            if role is not None and role in roles and (file_format is not None or not is_folder):
                side_files.append((role, entry))
            elif role in (None, "names") and may_hold:
                files.append(entry)
            else:
                left_out.append(entry.name)
        if left_out:
            notes.append(f"{path}: left out {', '.join(left_out)}; expected {expected_files(content)}")
    return files, side_files


def _matrices(path: Path) -> list[Path]:
    """Return a path, or the relationship matrices that its prefix or its lines stand for."""
    if not path.exists():
        return [text_kernels.matrix_of_prefix(path) or path]
    if not path.is_file() or path.stat().st_size > 2**20 or format_of(path) not in (None, _TEXT):
        return [path]
    prefixes = list(filter(None, map(str.strip, path.read_bytes().decode(errors="replace").split("\n"))))
    # GCTA searches in the working folder; a list that was moved refers to files in its folder.
    for folder in (Path(), path.parent):
        try:
            matrices = [text_kernels.matrix_of_prefix(folder / prefix) for prefix in prefixes]
        except (OSError, ValueError):  # names of a length, or of bytes, that no file has
            return [path]
        present = [matrix for matrix in matrices if matrix is not None]
        if present and None in matrices:
            lacking = prefixes[matrices.index(None)]
            refuse(f"{path} lists relationship matrices, and there is none of the prefix {lacking}; copy it there")
        if present:
            return present
    return [path]


def names_of_arrays(arrays: Sequence[tuple[Path, str]], files: Sequence[Path], keep: Collection[str] = ()) -> list[str]:
    """Return names of arrays, from their names in files and short unique names of the files.

    An array that is alone in one of several files has the name of the file, unless its own is one to `keep`.
    """
    root = os.path.commonpath([path.absolute().parent for path in files])
    inside = {path: path.absolute().relative_to(root) for path in files}
    stems = {path: stem(path) for path in files}
    if len(set(stems.values())) < len(files):
        stems = {path: str(inside[path].with_name(stem(path))) for path in files}
    if len(set(stems.values())) < len(files):
        stems = {path: str(inside[path]) for path in files}
    n_inside = Counter(path for path, _ in arrays)
    names = []
    for (path, place), name in zip(arrays, short_names(name for _, name in arrays), strict=True):
        file, alone = stems[path], n_inside[path] == 1 and place not in keep
        names.append((name or file) if len(files) == 1 else file if alone else f"{file}/{name}")
    return names


def short_names(names: Iterable[str]) -> list[str]:
    """Return names in a file or object without the folder that all of them share."""
    names = list(names)
    return [name.rpartition("/")[2] for name in names] if len({n.rpartition("/")[0] for n in names}) == 1 else names
