"""Annotated data: AnnData in .h5ad, MuData in .h5mu, and the Zarr form of both.

Kernels lie in ``obsp``, features in ``X``, ``layers`` and ``obsm``, labels and splits in columns of ``obs``
(https://anndata.readthedocs.io/en/latest/fileformat-prose.html). Matrices are read a block of rows at a time, sparse
ones too; tables of ``obs`` are read by anndata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr

from dmkl.errors import InputError
from dmkl.files.plain import PlainStore
from dmkl.inputs.annotated_objects import are_distances, values_of_column
from dmkl.inputs.columns import ROLES, FrameNumbers, numeric_dtype, plain_title
from dmkl.inputs.formats.compressed import PARTS, sparse_array
from dmkl.inputs.formats.file_arrays import ELSEWHERE, FileArray, damaged_as, vector
from dmkl.inputs.formats.hdf5 import check_stored, hdf5_array, nodes_of, opened
from dmkl.inputs.formats.limits import TEXT_BYTES, check_memory, n_bytes, unreadable
from dmkl.inputs.formats.zarr_folders import check_chunks, nodes_in, zarr_array
from dmkl.inputs.names import LabelTable, as_text

__all__ = ["annotated_arrays", "annotation", "is_annotated", "role_of_column"]

_ENCODINGS = ("anndata", "mudata")


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
        columns = {name: (whole, name) for name in whole.columns}
        for part in modalities:
            for name in part.columns:
                columns.setdefault(f"{part.title[:-1]}:{name}", (part, name))
        if column == "obs_names":
            return LabelTable(np.array(whole.samples, dtype=str), whole.samples)
        if column not in columns:
            problem = f"has no column {column!r} in obs" if column is not None else "describes its samples in columns"
            names = ", ".join(map(repr, columns)) or "none"
            msg = f"{path} {problem}; name one of {names} or 'obs_names', as {path}:NAME"
            raise InputError(msg)
        part, name = columns[column]
        values = values_of_column(_element(path, nodes, f"{part.at}obs/{name}"))
        return LabelTable(vector(values, f"column {column!r} of {path}"), part.samples)


# --- what a file holds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """AnnData: the whole of a file, or a modality of one; of MuData also what its modalities share."""

    path: Path
    nodes: Mapping[str, Any]  # groups and arrays of the file by their names; None for what other files hold
    at: str  # what the names of its nodes begin with
    samples: tuple[str, ...]

    @property
    def title(self) -> str:
        """The beginning of the names of its arrays."""
        return self.at.removeprefix("mod/")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of obs."""
        return _columns(self.nodes[f"{self.at}obs"])

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
    places = ["", *(f"{name}/" for name in nodes if name.startswith("mod/") and name.count("/") == 1)]
    return [_Part(path, nodes, at, _names(path, nodes, f"{at}obs")) for at in places]


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
    # An entry of obsm of MuData that is called as a modality tells which samples that has.
    masks = {f"obsm/{name[4:]}" for name in part.nodes if name.startswith("mod/") and not part.at}
    places: list[tuple[str, Any, tuple[str, ...] | None]] = [
        *((name, "features", variables) for name in ("X", *part.children("layers"))),
        *((name, "features", None) for name in part.children("obsm") if name not in masks),
        *((name, "distances" if are_distances(name) else "kernel", part.samples) for name in part.children("obsp")),
    ]
    for name, holds, columns in places:
        array = _matrix(part, name, columns) if f"{part.at}{name}" in part.nodes else None
        if array is not None:
            yield replace(array, holds=holds)
    # A column called sample or id tells whence a sample comes: many cells have one.
    for name in part.columns if not part.title else ():
        if role_of_column(name) is not None:
            read = partial(_column, part.path, name)
            yield FileArray(part.path, f"obs/{name}", (len(part.samples),), np.dtype("U1"), read, rows=part.samples)


def _column(path: Path, name: str) -> Any:
    return annotation(path, name).values


def role_of_column(name: str) -> str | None:
    """The role of a column of obs by its name: labels, splits, or None."""
    role = ROLES.get(plain_title(name))
    return role if role in ("labels", "splits") else None


def _matrix(part: _Part, name: str, columns: tuple[str, ...] | None) -> FileArray | None:
    """An entry as an array; None where it is there to say that there is none."""
    path, inside = part.path, f"{part.at}{name}"
    node: Any = part.nodes[inside]
    encoding = "" if node is None else str(node.attrs.get("encoding-type", ""))
    if encoding == "null":
        return None
    if not isinstance(node, h5py.Group | zarr.Group):
        array = _plain(path, inside, node)
    elif encoding in ("csr_matrix", "csc_matrix"):
        with damaged_as(f"variable {inside!r} of {path} is no sparse matrix", Exception):
            vectors = {key: _plain(path, f"{inside}/{key}", part.nodes[f"{inside}/{key}"]) for key in PARTS}
            lengths: Any = node.attrs["shape"]
            n_rows, n_cols = map(int, lengths)
        array = sparse_array(path, inside, vectors, (n_rows, n_cols), encoding[:3])
    elif encoding == "dataframe":
        array = _frame(path, inside, part.nodes)
        columns = _columns(node)
    else:
        problem = f"{encoding or 'a group'}, no matrix"
        array = unreadable(path, inside, (), problem, f"is {problem}")
    n = len(part.samples)
    if array.shape and array.shape[0] != n:
        msg = f"{path} is damaged: {part.title}{name} has {array.shape[0]} rows, and obs names {n} samples"
        raise InputError(msg)
    if columns is not None and array.shape[1:] != (len(columns),):
        columns = None
    return replace(array, name=f"{part.title}{name}", rows=part.samples, columns=columns)


def _plain(path: Path, name: str, node: Any) -> FileArray:
    """An array as the formats below have it."""
    return hdf5_array(path, name, node) if isinstance(node, h5py.Dataset | None) else zarr_array(path, name, node)


# --- tables and columns --------------------------------------------------------------------------------------------


def _frame(path: Path, name: str, nodes: Mapping[str, Any]) -> FileArray:
    """A data frame of numbers; its values are read as a whole when they are asked for."""
    frame = _element(path, nodes, name)
    if not all(map(numeric_dtype, frame.dtypes)):
        return unreadable(path, name, frame.shape, "not numbers", "holds columns that are no numbers")
    values = FrameNumbers(f"variable {name!r} of {path}", frame)
    return FileArray(path, name, frame.shape, values.dtype, lambda: values)


def _element(path: Path, nodes: Mapping[str, Any], name: str) -> Any:
    """An element as anndata reads it, after what may do harm is ruled out."""
    inside = {key: node for key, node in nodes.items() if key == name or key.startswith(f"{name}/")}
    if name not in inside or any(node is None for node in inside.values()):
        msg = f"variable {name!r} of {path} {ELSEWHERE[1] if name in inside else 'is not there'}"
        raise InputError(msg)
    arrays = {key: node for key, node in inside.items() if not isinstance(node, h5py.Group | zarr.Group)}
    needed = sum(n_bytes(node.shape, node.dtype.itemsize + TEXT_BYTES) for node in arrays.values())
    check_memory(f"variable {name!r} of {path}", needed, "allow more")
    try:
        from anndata.io import read_elem
    except ImportError as error:
        msg = (
            f"{path}: AnnData and MuData files are read with anndata 0.12 or later, which is not installed; "
            "pip install 'dmkl[anndata]'"
        )
        raise InputError(msg) from error
    with damaged_as(f"variable {name!r} of {path} is damaged", Exception):
        for key, node in arrays.items():
            what = f"variable {key!r} of {path}"
            check_stored(what, node) if isinstance(node, h5py.Dataset) else check_chunks(node, Ellipsis, what)
        return read_elem(nodes[name])
