"""Arrays in data files of any format, the roles that their names give them, and limits on their sizes."""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dmkl.arrays import Array, Lazy, Matrix
from dmkl.errors import damaged_as, refuse
from dmkl.files.plain import ranges_of
from dmkl.inputs.columns import ROLES, Columns, plain_title
from dmkl.inputs.matrices import dense_rows
from dmkl.names import Names, as_text
from dmkl.settings import check_memory

ELSEWHERE, OBJECTS, PACKED = "kept in other files", "Python objects", "packed"
PROBLEMS = {
    "sparse": "is sparse, but kernels are stored dense; save full({name})",
    "complex": "is complex, expected real numbers; save real({name}) if the imaginary part is rounding, or both parts "
    "as variables of their own",
    OBJECTS: "holds Python objects, never unpickled: they can run any code; save numbers, or strings as "
    "np.array(names, dtype=str)",
    PACKED: "is packed by NetCDF's scale_factor and add_offset, which are not applied; write it unpacked by xarray: "
    "xarray.open_dataset(file).drop_encoding().to_zarr(folder)",
    ELSEWHERE: "keeps its values in other files, which are not read by default: a file may name any file of this "
    "machine. Set dmkl.external-files to true if you trust it (DASK_DMKL__EXTERNAL_FILES=true)",
}
"""Why an array is not read, and the message."""


@dataclass(frozen=True)
class FileArray:
    """One array of a file; its entries are not read yet."""

    path: Path
    name: str  # its name in the file; empty if the file holds a single array
    shape: tuple[int, ...]  # its axes in the order in which the software that wrote the file shows them
    dtype: np.dtype[Any]  # type of its entries; "U" for strings
    open: Callable[[], Matrix]  # returns the array to read parts of, which holds what is in memory
    problem: str = ""  # why it cannot be a kernel, whatever its shape; by default what its type shows
    matlab: bool = False  # whether its axes are in MATLAB's order, with kernels along the last one
    views: tuple[FileArray, ...] = ()  # the matrices of a cell array, (samples, columns) or all (columns, samples)
    cell: bool = False  # whether it is a cell array of matrices, which `open` shows with the kernels along axis 0
    rows: Names = None  # names of its rows
    notes: tuple[str, ...] = ()  # choices that could have been otherwise
    columns: Names = None  # names of its columns
    numbers: Sequence[tuple[str, ...]] = ()  # numbers in its file that name the rows if another source has these names
    holds: Literal["", "kernel", "distances", "features"] = ""  # by its place; "" if name and shape determine it
    by_name: bool = False  # whether it is features that are taken only if they are named
    genotypes: bool = False  # whether it is dosages of variants

    def __post_init__(self) -> None:
        problem = "complex" if self.dtype.kind == "c" else "" if self.dtype.kind in "fiubUST" else "not numbers"
        object.__setattr__(self, "problem", self.problem or problem)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"variable {self.name!r} of {self.path}" if self.name else str(self.path)

    @property
    def is_text(self) -> bool:
        """Whether it holds strings."""
        return self.dtype.kind in "UST"

    @property
    def looks_like_kernels(self) -> bool:
        """Whether its place, or else its shape, is that of a kernel, or of several."""
        is_square = len(self.shape) == 2 and self.shape[0] == self.shape[1] > 1
        return self.holds == "kernel" if self.holds else is_square or (len(self.shape) == 3 and min(self.shape) > 0)

    @property
    def role(self) -> str | None:
        """Its role by its name: labels, samples …; None for anything else."""
        role = ROLES.get(plain_title(self.name.rsplit("/", 1)[-1]))
        # Kernels are often called "kernels"; only strings of that name are names.
        return None if self.holds or (role == "names" and not self.is_text) else role

    def read(self) -> Array:
        """Read the whole array, for vectors."""
        array = self.open()
        return array if isinstance(array, np.ndarray) else np.asarray(array[(slice(None),) * len(self.shape)])

    def refuse(self, otherwise: str = "") -> None:
        """Raise an InputError with the message of its problem, or with `otherwise`; nothing without a message."""
        message = PROBLEMS[self.problem].format(name=self.name or "it") if self.problem in PROBLEMS else otherwise
        if message:
            refuse(f"{self.where} {message}")

    def __str__(self) -> str:
        kind, problem = "strings" if self.is_text else str(self.dtype), f", {self.problem}" if self.problem else ""
        name = self.name or self.path.name
        shown = name if name.isprintable() and len(name) < 100 else reprlib.repr(name)
        return f"{shown} ({shape_text(self.shape) or 'one'} {kind}{problem})"


def array_of(table: Columns, columns: Sequence[int], rows: Names, titles: Names, **more: Any) -> FileArray:
    """Return some columns of numbers of a table as an array, with the names of its rows and their titles."""
    values, more = table.numbers(columns), {**more, "rows": rows, "columns": titles}
    return FileArray(Path(table.where), "", values.shape, values.dtype, lambda: values, **more)


def unreadable(
    path: Path, name: str, shape: tuple[int, ...], problem: str, message: str = "", **more: Any
) -> FileArray:
    """Return an array that is listed with its problem, and whose reading raises an InputError."""

    def refuse() -> Any:
        array.refuse(message or f"is {problem}")

    array = FileArray(path, name, shape, np.dtype(object), refuse, problem=problem, **more)
    return array


def packed(attributes: Mapping[str, Any]) -> str:
    """Return the problem of numbers that stand for others, by the conventions of NetCDF that xarray applies."""
    return PACKED if "scale_factor" in attributes or "add_offset" in attributes else ""


def natural_order(text: str) -> list[tuple[int, int | str]]:
    """Return a sort key that puts K2 before K10."""
    parts = filter(None, re.split(r"(\d+)", text))
    return [*((0, int(part)) if part.isdecimal() else (1, part.casefold()) for part in parts), (2, text)]


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as messages write it."""
    return " × ".join(map(str, shape))


def vector(values: Any, source: str) -> Array:
    """Return values as labels and names need them: vectors with one dimension, whole numbers as integers."""
    array = np.asarray(values)
    if array.ndim > 8:  # some of NumPy's functions take no more than 32
        refuse(f"{source} has {array.ndim} dimensions, expected one or two")
    if array.dtype.kind in "OSTU":
        with damaged_as(f"{source} is damaged: it holds what is no text in Unicode", UnicodeDecodeError):
            if array.dtype.kind == "U":  # of four bytes a character, which may be none
                array.astype(array.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
            array = np.array([as_text(value) for value in array.ravel().tolist()], dtype=str).reshape(array.shape)
    if array.dtype.kind not in "fiubU":
        refuse(f"{source} holds {array.dtype}, expected real numbers or strings")
    if array.ndim != 1 and max(array.shape, default=1) == array.size:
        array = array.reshape(-1)
    if array.dtype.kind == "f" and array.size and np.array_equal(array, np.round(array)):
        array = array.astype(np.int64)
    return array


def stamp(path: Path) -> dict[str, Any]:
    """Identify the content of a file or folder by its size and modification time."""
    inside = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    status = [os.stat(file) for file in (inside if path.is_dir() else [path])]
    changed = max((file.st_mtime_ns for file in status), default=0)
    return {"path": str(path.absolute()), "bytes": sum(file.st_size for file in status), "mtime_ns": changed}


def check_part(what: str, shape: Sequence[int], chunks: Sequence[int], key: Any, itemsize: int) -> int:
    """Refuse a part of an array, or a chunk, that takes more memory than is allowed; returns its number of entries."""
    # The length of a range overflows if lengths do.
    n_entries = math.prod(max(0, -((part.start - part.stop) // part.step)) for part in ranges_of(shape, key))
    needed = itemsize * max(n_entries, math.prod(chunks))
    check_memory(f"a part of {what}", needed, "write it in smaller chunks, or allow more")
    return n_entries


def sparse_array(
    path: Path, name: str, part: Callable[[str], FileArray], shape: tuple[int, ...], form: str
) -> FileArray:
    """Return the matrix of three vectors; of rows (`form` csr) the requested ones are read, of columns (csc) all.

    `part` returns a vector by its name, as SciPy and AnnData write it: data, indices or indptr.
    """
    data, indices, indptr = vectors = [part(key) for key in ("data", "indices", "indptr")]
    what = f"variable {name!r} of {path}" if name else str(path)
    if len(shape) != 2 or min(shape) < 0 or indptr.shape != (shape[form == "csc"] + 1,) or data.shape != indices.shape:
        sizes = f"{shape} with {indptr.shape} starts of {data.shape} entries at {indices.shape} places"
        refuse(f"{what} is no sparse matrix: {sizes}")
    problem = next(filter(None, (vector.problem for vector in vectors)), "")
    if data.dtype.kind not in "fiub" or {indices.dtype.kind, indptr.dtype.kind} - {"i", "u"}:
        problem = problem or "not numbers"

    def opened() -> Any:
        import scipy.sparse

        entries, places, starts = (vector.open() for vector in vectors)

        def compressed(start: int, stop: int, shape: tuple[int, int]) -> Any:  # rows, or columns, as SciPy's matrix
            with damaged_as(f"{what} is damaged", Exception):
                bounds = np.asarray(starts[start : stop + 1]).astype(np.int64)
                first, last = int(bounds[0]), int(bounds[-1])
                # SciPy checks the starts of rows only if there are entries, and then writes wherever they point.
                if not 0 <= first <= last <= entries.shape[0] or (np.diff(bounds) < 0).any():
                    begins = f"rows or columns {start} to {stop} begin at entry {first}, end at {last}"
                    refuse(f"{what} is damaged: {begins} or are out of order")
                check_memory(f"a part of {what}", (last - first) * (data.dtype.itemsize + 8), "allow more")
                read, at = (np.asarray(vector[first:last]) for vector in (entries, places))
                kind = scipy.sparse.csr_array if form == "csr" else scipy.sparse.csc_array
                matrix = kind((read, at.astype(np.int64), bounds - first), shape=shape)
                matrix.check_format(full_check=True)
                return matrix

        def rows_of(key: tuple[Any, slice]) -> Array:
            wanted = np.arange(shape[0])[key[0]]
            start, stop = (int(wanted.min()), int(wanted.max()) + 1) if len(wanted) else (0, 0)
            matrix = compressed(start, stop, (stop - start, shape[1]))
            return np.asarray(matrix[wanted - start][:, key[1]].toarray())

        if form == "csc":
            return dense_rows(compressed(0, shape[1], shape))
        return Lazy(shape, data.dtype, rows_of, (1, shape[1]))  # rows are read whole

    return FileArray(path, name, shape, data.dtype, opened, problem=problem)
