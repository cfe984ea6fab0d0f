"""Annotated data: AnnData in .h5ad, MuData in .h5mu, and the Zarr form of both.

What lies where is said by the file itself: kernels in ``obsp``, features in ``X``, ``layers`` and ``obsm``, and what
is known of the samples in columns of ``obs`` (https://anndata.readthedocs.io/en/latest/fileformat-prose.html). Matrices
are read a block of rows at a time, sparse ones too; tables of ``obs`` by anndata.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.sparse
import zarr

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.files.plain import PlainStore
from dmkl.inputs.annotated_objects import are_distances, values_of_column
from dmkl.inputs.feature_matrices import Numbers, dtype_of, is_number
from dmkl.inputs.formats.file_arrays import ELSEWHERE, ROLES, FileArray, damaged_as, vector
from dmkl.inputs.formats.hdf5 import check_stored, elsewhere, hdf5_array, nodes_of, opened
from dmkl.inputs.formats.limits import check_memory, n_bytes
from dmkl.inputs.formats.zarr_chunks import check_chunks
from dmkl.inputs.formats.zarr_folders import nodes_in, zarr_array
from dmkl.inputs.labels import LabelTable, as_text
from dmkl.inputs.sparse import SparseMatrix

__all__ = ["annotated_arrays", "annotation", "is_annotated", "role_of_column"]

_ENCODINGS = ("anndata", "mudata")
_TEXT_BYTES = 64
"""What a string takes at most beside its characters."""


def is_annotated(path: Path) -> bool:
    """Whether a folder is AnnData or MuData in Zarr."""
    if not any((path / name).is_file() for name in ("zarr.json", ".zgroup")):
        return False
    with damaged_as(f"{path} cannot be read as Zarr", Exception):
        root: Any = zarr.open(PlainStore(path), mode="r")
        return str(root.attrs.get("encoding-type", "")).casefold() in _ENCODINGS


def annotated_arrays(path: Path) -> list[FileArray]:
    """The kernels and features of annotated data, and columns of `obs` that are called labels, splits or the like.

    They are called by their places, as X, layers/counts, obsm/X_pca, obsp/connectivities; of MuData those of a modality
    after it, as rna/X.
    """
    with _nodes(path) as nodes:
        return [array for part in _parts(path, nodes) for array in _arrays(part)]


def annotation(path: Path, column: str | None) -> LabelTable:
    """A column of `obs`, with the names of the samples; obs_names are these names.

    A column of a modality of MuData is rna:column.

    InputError is raised where there is no such column, or none is named.
    """
    with _nodes(path) as nodes:
        whole, *modalities = _parts(path, nodes)
        known = {name: (whole, name) for name in whole.columns}
        for part in modalities:
            for name in part.columns:
                known.setdefault(f"{part.title[:-1]}:{name}", (part, name))
        if column == "obs_names":
            return LabelTable(np.array(whole.samples, dtype=str), whole.samples)
        if column not in known:
            found = f"has no column {column!r} in obs" if column is not None else "describes its samples in columns"
            msg = f"{path} {found}; name one of {', '.join(map(repr, known)) or 'none'} or 'obs_names', as {path}:NAME"
            raise InputError(msg)
        part, name = known[column]
        return LabelTable(vector(part.column(name), f"column {column!r} of {path}"), part.samples)


# --- what a file holds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """AnnData: the whole of a file, or a modality of one; of MuData also what its modalities share."""

    path: Path
    nodes: Mapping[str, Any]  # groups and arrays of the file by their names; None for what other files hold
    at: str  # what the names of its nodes begin with
    title: str  # what the names of its arrays begin with
    hidden: tuple[str, ...]  # entries of obsm that are no features
    samples: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of obs."""
        return _columns(self.nodes[f"{self.at}obs"])

    def column(self, name: str) -> Array:
        """The values of a column of obs."""
        return values_of_column(_element(self.path, self.nodes, f"{self.at}obs/{name}"))

    def children(self, group: str) -> list[str]:
        """The names of what lies in one of its groups."""
        start = f"{self.at}{group}/"
        inside = [name for name in self.nodes if name.startswith(start) and "/" not in name[len(start) :]]
        return sorted(name[len(self.at) :] for name in inside)


@contextmanager
def _nodes(path: Path) -> Iterator[dict[str, Any]]:
    """The groups and arrays of an open file by their names, the root being ""."""
    if path.is_dir():
        with damaged_as(f"{path} cannot be read as Zarr", Exception):
            root: Any = zarr.open_group(PlainStore(path), mode="r")
            nodes = nodes_in(path)
        yield {"": root, **nodes}
        return
    with opened(path) as file:
        yield {"": file, **dict(nodes_of(file))}


def _parts(path: Path, nodes: Mapping[str, Any]) -> list[_Part]:
    modalities = [name for name in nodes if name.startswith("mod/") and name.count("/") == 1]
    hidden = tuple(f"obsm/{name[4:]}" for name in modalities)  # masks of the samples that a modality has
    places = [("", "", hidden), *((f"{name}/", f"{name[4:]}/", ()) for name in modalities)]
    return [_Part(path, nodes, at, title, out, _names(path, nodes, f"{at}obs")) for at, title, out in places]


def _names(path: Path, nodes: Mapping[str, Any], table: str) -> tuple[str, ...]:
    """The index of a table, obs or var."""
    node = nodes.get(table)
    index = None if node is None else node.attrs.get("_index")
    if not isinstance(index, str) or f"{table}/{index}" not in nodes:
        msg = (
            f"{path} has no table {table!r} with an index, which AnnData writes since version 0.7; read it with "
            "anndata and write it again"
        )
        raise InputError(msg)
    return tuple(map(as_text, np.asarray(_element(path, nodes, f"{table}/{index}"), dtype=object).tolist()))


def _columns(table: Any) -> tuple[str, ...]:
    return tuple(map(as_text, np.asarray(table.attrs.get("column-order", ())).tolist()))


def _arrays(part: _Part) -> Iterator[FileArray]:
    variables = _names(part.path, part.nodes, f"{part.at}var") if f"{part.at}X" in part.nodes else None
    for name in ["X", *part.children("layers")]:
        if f"{part.at}{name}" in part.nodes:
            yield from _matrix(part, name, "features", variables)
    for name in part.children("obsm"):
        if name not in part.hidden:
            yield from _matrix(part, name, "features", None)
    for name in part.children("obsp"):
        yield from _matrix(part, name, "distances" if are_distances(name) else "kernel", part.samples)
    # A column called sample or id tells whence a sample comes: many cells have one.
    for name in part.columns if not part.title else ():
        if role_of_column(name) is not None:
            values = partial(_column_again, part.path, name)
            n = len(part.samples)
            yield FileArray(part.path, f"obs/{name}", (n,), np.dtype("U1"), values, values, rows=part.samples)


def _column_again(path: Path, name: str) -> Any:
    return annotation(path, name).values


def role_of_column(name: str) -> str | None:
    """What a column of obs is by its name: labels, splits, or None."""
    role = ROLES.get(name.casefold().replace("-", "_").replace(" ", "_"))
    return role if role in ("labels", "splits") else None


def _matrix(part: _Part, name: str, holds: Any, columns: tuple[str, ...] | None) -> Iterator[FileArray]:
    """An entry as an array; nothing where it is there to say that there is none."""
    path, inside, node = part.path, f"{part.at}{name}", part.nodes[f"{part.at}{name}"]
    encoding = "" if node is None else str(node.attrs.get("encoding-type", ""))
    if encoding == "null":
        return
    if node is None:
        found = elsewhere(path, inside)
    elif not isinstance(node, h5py.Group | zarr.Group):
        found = _plain(path, inside, node)
    elif encoding in ("csr_matrix", "csc_matrix"):
        found = _sparse(path, inside, part.nodes, by_rows=encoding == "csr_matrix")
    elif encoding == "dataframe":
        found = _frame(path, inside, part.nodes)
        columns = _columns(node)
    else:
        found = FileArray(path, inside, (), np.dtype(object), _nothing, _nothing, f"{encoding or 'a group'}, no matrix")
    n = len(part.samples)
    if found.shape and found.shape[0] != n:
        msg = f"{path} is damaged: {part.title}{name} has {found.shape[0]} rows, and obs names {n} samples"
        raise InputError(msg)
    if columns is not None and found.shape[1:] != (len(columns),):
        columns = None
    yield replace(found, name=f"{part.title}{name}", rows=part.samples, columns=columns, holds=holds)


def _plain(path: Path, name: str, node: Any) -> FileArray:
    """An array as the formats below have it."""
    return hdf5_array(path, name, node) if isinstance(node, h5py.Dataset) else zarr_array(path, name, node)


def _nothing() -> Any:
    return np.empty((0, 0))


# --- tables and columns -----------------------------------------------------------------------------------------------


def _frame(path: Path, name: str, nodes: Mapping[str, Any]) -> FileArray:
    """A data frame of numbers; its values are read as a whole when they are asked for."""
    frame = _element(path, nodes, name)
    if not all(map(is_number, frame.dtypes)):
        return FileArray(path, name, frame.shape, np.dtype(object), _nothing, _nothing, "not numbers")
    values = Numbers(frame, dtype_of(name, frame.dtypes))
    return FileArray(path, name, frame.shape, values.dtype, lambda: values, lambda: values[:, :])


def _element(path: Path, nodes: Mapping[str, Any], name: str) -> Any:
    """An element as anndata reads it, after what may do harm is ruled out."""
    inside = {key: node for key, node in nodes.items() if key == name or key.startswith(f"{name}/")}
    if name not in inside or any(node is None for node in inside.values()):
        msg = f"variable {name!r} of {path} {ELSEWHERE[1] if name in inside else 'is not there'}"
        raise InputError(msg)
    arrays = {key: node for key, node in inside.items() if not isinstance(node, h5py.Group | zarr.Group)}
    needed = sum(n_bytes(node.shape, node.dtype.itemsize + _TEXT_BYTES) for node in arrays.values())
    check_memory(f"variable {name!r} of {path}", needed, "allow more")
    library = _library(path)
    with damaged_as(f"variable {name!r} of {path} is damaged", Exception):
        for key, node in arrays.items():
            what = f"variable {key!r} of {path}"
            check_stored(what, node) if isinstance(node, h5py.Dataset) else check_chunks(node, Ellipsis, what)
        return library.read_elem(nodes[name])


def _library(path: Path) -> Any:
    try:
        return importlib.import_module("anndata.io")
    except ImportError as error:
        msg = (
            f"{path}: AnnData and MuData files are read with anndata 0.12 or later, which is not installed; "
            "pip install 'dmkl[anndata]'"
        )
        raise InputError(msg) from error


# --- sparse matrices --------------------------------------------------------------------------------------------------


def _sparse(path: Path, name: str, nodes: Mapping[str, Any], *, by_rows: bool) -> FileArray:
    """A sparse matrix in compressed rows, of which only the rows that are asked for are read, or in columns."""
    with damaged_as(f"variable {name!r} of {path} is no sparse matrix", Exception):
        data, indices, indptr = (_plain(path, f"{name}/{key}", nodes[f"{name}/{key}"]) for key in _SPARSE_PARTS)
        n_rows, n_cols = (int(length) for length in nodes[name].attrs["shape"])
        major = n_rows if by_rows else n_cols
        if min(n_rows, n_cols) < 0 or indptr.shape != (major + 1,) or data.shape != indices.shape:
            msg = f"{n_rows} × {n_cols}, with {indptr.shape} starts of {data.shape} entries at {indices.shape} places"
            raise ValueError(msg)
    kind = data.dtype.kind
    problem = data.problem or indices.problem or indptr.problem
    if {indices.dtype.kind, indptr.dtype.kind} - {"i", "u"} or kind not in "fiub":
        problem = problem or ("complex" if kind == "c" else "not numbers")

    def opened() -> Any:
        rows = _SparseRows(path, name, (data, indices, indptr), (n_rows, n_cols))
        return rows if by_rows else rows.by_columns()

    return FileArray(path, name, (n_rows, n_cols), data.dtype, opened, lambda: opened()[:, :], problem)


_SPARSE_PARTS = ("data", "indices", "indptr")


class _SparseRows:
    """A matrix in compressed rows that is read as a dense one, some rows at a time."""

    def __init__(
        self, path: Path, name: str, parts: tuple[FileArray, FileArray, FileArray], shape: tuple[int, int]
    ) -> None:
        self._what = f"variable {name!r} of {path}"
        self._data, self._indices, self._indptr = (part.open() for part in parts)
        self.shape, self.dtype = shape, np.dtype(parts[0].dtype)
        self.chunks = (1, shape[1])  # rows are read whole

    def __getitem__(self, key: tuple[Any, slice]) -> Array:
        rows, cols = key
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.shape[0])
            wanted: Any = slice(None)
        else:
            start, stop = int(rows[0]), int(rows[-1]) + 1
            wanted = np.asarray(rows) - start
        shape = (max(0, stop - start), self.shape[1])
        matrix = self._compressed(start, start + shape[0], scipy.sparse.csr_array, shape)
        return np.asarray(matrix[wanted][:, cols].toarray())

    def by_columns(self) -> SparseMatrix:
        """All of it, of what is compressed by columns."""
        return SparseMatrix(self._compressed(0, self.shape[1], scipy.sparse.csc_array, self.shape))

    def _compressed(self, start: int, stop: int, kind: Callable[..., Any], shape: tuple[int, int]) -> Any:
        with damaged_as(f"{self._what} is damaged", Exception):
            bounds = np.asarray(self._indptr[start : stop + 1]).astype(np.int64)
            first, last = int(bounds[0]), int(bounds[-1])
            # SciPy looks at the starts of rows only where there are entries, and then writes wherever they say.
            if not 0 <= first <= last <= self._data.shape[0] or (np.diff(bounds) < 0).any():
                msg = f"its rows or columns {start} to {stop} begin at entry {first}, end at {last} or are out of order"
                raise ValueError(msg)
            entries = last - first
            check_memory(f"a part of {self._what}", entries * (self.dtype.itemsize + 8), "allow more")
            data, indices = (np.asarray(part[first:last]) for part in (self._data, self._indices))
            matrix = kind((data, indices.astype(np.int64), bounds - first), shape=shape)
            matrix.check_format(full_check=True)
            return matrix
