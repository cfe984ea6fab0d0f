"""Annotated data: AnnData and MuData in memory, in .h5ad and .h5mu files, and in the Zarr form of both.

Kernels lie in ``obsp``, features in ``X``, ``layers`` and ``obsm``, labels and splits in columns of ``obs``
(https://anndata.readthedocs.io/en/latest/fileformat-prose.html). Matrices are read a block of rows at a time, also
sparse ones; tables of ``obs`` are read by anndata.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import h5py
import numpy as np
import pandas as pd
import zarr

from dmkl.arrays import Array
from dmkl.errors import refuse
from dmkl.files.plain import PlainStore
from dmkl.inputs.columns import ROLES, frame_numbers, numeric_dtype, plain_title
from dmkl.inputs.formats.file_arrays import (
    ELSEWHERE,
    SPARSE_PARTS,
    TEXT_BYTES,
    FileArray,
    damaged_as,
    n_bytes,
    sparse_array,
    unreadable,
    vector,
)
from dmkl.inputs.formats.hdf5 import check_stored, hdf5_array, nodes_of, opened
from dmkl.inputs.formats.zarr_folders import check_chunks, nodes_in, zarr_array
from dmkl.inputs.labels import LabelTable
from dmkl.inputs.names import Names, as_text
from dmkl.settings import check_memory


def _content_of(name: str) -> Literal["kernel", "distances", "features"]:
    """Return the content of an entry by its place: scanpy's search for neighbors writes both kernels and distances."""
    if not name.startswith("obsp/"):
        return "features"
    return "distances" if name.replace("/", "_").split("_")[-1] == "distances" else "kernel"


def _role_of_column(name: str) -> str | None:
    """Return the role of a column of obs by its name: labels, splits, or None."""
    role = ROLES.get(plain_title(name))
    return role if role in ("labels", "splits") else None


def _values_of_column(values: Any) -> Array:
    """Return a column of obs as an array: numbers, or words with NaN for missing ones."""
    series = pd.Series(values)
    if pd.api.types.is_bool_dtype(series.dtype) and not series.hasnans:
        return series.to_numpy(np.bool_)
    if numeric_dtype(series.dtype):
        return series.to_numpy(np.float64, na_value=np.nan)
    return series.astype(object).where(series.notna(), np.nan).to_numpy(object)


# --- objects in memory ---------------------------------------------------------------------------------------------


def is_annotated_object(values: Any) -> bool:
    """Whether this is AnnData or MuData, whose library is imported then."""
    return any(
        isinstance(values, getattr(sys.modules.get(library), kind, ()))
        for library, kind in (("anndata", "AnnData"), ("mudata", "MuData"))
    )


class Entry(NamedTuple):
    """A matrix of an annotated object."""

    name: str  # as in a file: X, layers/counts, rna/obsm/X_pca
    values: Any
    samples: tuple[str, ...]
    columns: Names
    holds: str  # see `FileArray`


def entries_of(data: Any) -> Iterator[Entry]:
    """Return the matrices of AnnData, or of MuData and its modalities."""
    modalities = dict(getattr(data, "mod", {}))
    for title, part in [("", data), *((f"{name}/", modality) for name, modality in modalities.items())]:
        samples = tuple(map(str, part.obs_names))
        variables = None if hasattr(part, "mod") else tuple(map(str, part.var_names))
        matrices = {} if getattr(part, "X", None) is None else {"X": part.X}
        for group in ("layers", "obsm", "obsp"):
            matrices |= {f"{group}/{name}": values for name, values in (getattr(part, group, None) or {}).items()}
        for name, values in matrices.items():
            if part is data and name in _masks(modalities):
                continue
            holds = _content_of(name)
            columns = variables if np.shape(values)[1:] == (len(variables or ()),) else None
            yield Entry(f"{title}{name}", values, samples, columns if holds == "features" else samples, holds)


def _masks(modalities: Any) -> set[str]:
    """Return the entries of obsm of MuData that state which samples a modality has."""
    return {f"obsm/{name}" for name in modalities}


def labels_of(data: Any) -> Iterator[tuple[str, str, LabelTable]]:
    """Return the labels and splits among the columns of obs of an annotated object, by their names and roles."""
    names = tuple(map(str, data.obs_names))
    for name in map(str, data.obs.columns):
        role = _role_of_column(name)
        if role is not None:
            yield name, role, LabelTable(_values_of_column(data.obs[name]), names)


# --- files ---------------------------------------------------------------------------------------------------------


def is_annotated(path: Path) -> bool:
    """Whether a folder is AnnData or MuData in Zarr."""
    if not any((path / name).is_file() for name in ("zarr.json", ".zgroup")):
        return False
    with damaged_as(f"{path} cannot be read as Zarr", Exception):
        root: Any = zarr.open(PlainStore(path), mode="r")
        return str(root.attrs.get("encoding-type", "")).casefold() in ("anndata", "mudata")


def annotated_arrays(path: Path) -> list[FileArray]:
    """Return the kernels and features of annotated data, and columns of `obs` with a title such as labels or splits.

    Their names are their places: X, layers/counts, obsm/X_pca, obsp/connectivities; in a modality of MuData rna/X.
    """
    with _nodes(path) as nodes:
        return [array for part in _parts(path, nodes) for array in _arrays(part)]


def annotation(path: Path, column: str | None) -> LabelTable:
    """Return a column of `obs`, with the names of the samples; obs_names are these names.

    A column of a modality of MuData is rna:column.

    InputError is raised if there is no such column, or none is named.
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
            refuse(f"{path} {problem}; name one of {names} or 'obs_names', as {path}:NAME")
        part, name = columns[column]
        values = _values_of_column(_element(path, nodes, f"{part.at}obs/{name}"))
        return LabelTable(vector(values, f"column {column!r} of {path}"), part.samples)


class _Part(NamedTuple):
    """AnnData: the whole of a file, or a modality of one; of MuData also what its modalities share."""

    path: Path
    nodes: Mapping[str, Any]  # groups and arrays of the file by their names; None for those in other files
    at: str  # the prefix of the names of its nodes
    title: str  # the prefix of the names of its arrays
    samples: tuple[str, ...]
    columns: tuple[str, ...]  # of obs


@contextmanager
def _nodes(path: Path) -> Iterator[dict[str, Any]]:
    """Return the groups and arrays of an open file by their names; the root is ""."""
    if path.is_dir():
        with damaged_as(f"{path} cannot be read as Zarr", Exception):
            root: Any = zarr.open_group(PlainStore(path), mode="r")
            nodes = nodes_in(path)
        yield {"": root, **nodes}
        return
    with opened(path) as file:
        yield {"": file, **dict(nodes_of(file))}


def _parts(path: Path, nodes: Mapping[str, Any]) -> list[_Part]:
    parts = []
    for at in ("", *(f"{name}/" for name in nodes if name.startswith("mod/") and name.count("/") == 1)):
        samples = _names(path, nodes, f"{at}obs")
        parts.append(_Part(path, nodes, at, at.removeprefix("mod/"), samples, _columns(nodes[f"{at}obs"])))
    return parts


def _names(path: Path, nodes: Mapping[str, Any], table: str) -> tuple[str, ...]:
    """Return the index of a table, obs or var."""
    node = nodes.get(table)
    index = None if node is None else node.attrs.get("_index")
    if not isinstance(index, str) or f"{table}/{index}" not in nodes:
        refuse(f"{path} has no table {table!r} with an index, as before AnnData 0.7; write it again with anndata")
    return tuple(map(as_text, np.asarray(_element(path, nodes, f"{table}/{index}"), dtype=object).tolist()))


def _columns(table: Any) -> tuple[str, ...]:
    return tuple(map(as_text, np.asarray(table.attrs.get("column-order", ())).tolist()))


def _arrays(part: _Part) -> Iterator[FileArray]:
    variables = _names(part.path, part.nodes, f"{part.at}var") if f"{part.at}var" in part.nodes else None
    modalities = [name[4:] for name in part.nodes if name.startswith("mod/") and not part.at]
    inside = [name.removeprefix(part.at) for name in part.nodes if name.startswith(part.at)]
    names = [name for group in ("layers", "obsm", "obsp") for name in sorted(inside) if name.startswith(f"{group}/")]
    for name in ["X", *(name for name in names if name.count("/") == 1 and name not in _masks(modalities))]:
        holds = _content_of(name)
        columns = part.samples if holds != "features" else None if name.startswith("obsm/") else variables
        array = _matrix(part, name, columns) if f"{part.at}{name}" in part.nodes else None
        if array is not None:
            yield replace(array, holds=holds)
    # Columns with titles such as sample or id state the origin of a sample, and may repeat.
    for name in part.columns if not part.title else ():
        if _role_of_column(name) is not None:
            read = partial(lambda column: annotation(part.path, column).values, name)
            yield FileArray(part.path, f"obs/{name}", (len(part.samples),), np.dtype("U1"), read, rows=part.samples)


def _matrix(part: _Part, name: str, columns: Names) -> FileArray | None:
    """Return an entry as an array; None for an explicit null."""
    path, inside = part.path, f"{part.at}{name}"
    node: Any = part.nodes[inside]
    encoding = "" if node is None else str(node.attrs.get("encoding-type", ""))
    if encoding == "null":
        return None
    if not isinstance(node, h5py.Group | zarr.Group):
        array = _plain(path, inside, node)
    elif encoding in ("csr_matrix", "csc_matrix"):
        with damaged_as(f"variable {inside!r} of {path} is no sparse matrix", Exception):
            vectors = {key: _plain(path, f"{inside}/{key}", part.nodes[f"{inside}/{key}"]) for key in SPARSE_PARTS}
            lengths: Any = node.attrs["shape"]
            n_rows, n_cols = map(int, lengths)
        array = sparse_array(path, inside, vectors, (n_rows, n_cols), encoding[:3])
    elif encoding == "dataframe":
        frame, columns = _element(path, part.nodes, inside), _columns(node)
        array = unreadable(path, inside, frame.shape, "not numbers", "holds columns that are no numbers")
        if all(map(numeric_dtype, frame.dtypes)):
            values = frame_numbers(f"variable {inside!r} of {path}", frame)
            array = FileArray(path, inside, frame.shape, values.dtype, lambda: values)
    else:
        array = unreadable(path, inside, (), f"{encoding or 'a group'}, no matrix")
    n = len(part.samples)
    if array.shape and array.shape[0] != n:
        refuse(f"{path} is damaged: {part.title}{name} has {array.shape[0]} rows, and obs names {n} samples")
    if columns is not None and array.shape[1:] != (len(columns),):
        columns = None
    return replace(array, name=f"{part.title}{name}", rows=part.samples, columns=columns)


def _plain(path: Path, name: str, node: Any) -> FileArray:
    """Return a plain array of HDF5 or Zarr."""
    return hdf5_array(path, name, node) if isinstance(node, h5py.Dataset | None) else zarr_array(path, name, node)


def _element(path: Path, nodes: Mapping[str, Any], name: str) -> Any:
    """Read an element by anndata, after the checks for hostile files."""
    inside = {key: node for key, node in nodes.items() if key == name or key.startswith(f"{name}/")}
    if name not in inside or any(node is None for node in inside.values()):
        unreadable(path, name, (), ELSEWHERE if name in inside else "missing").refuse("is not there")
    arrays = {key: node for key, node in inside.items() if not isinstance(node, h5py.Group | zarr.Group)}
    needed = sum(n_bytes(node.shape, node.dtype.itemsize + TEXT_BYTES) for node in arrays.values())
    check_memory(f"variable {name!r} of {path}", needed, "allow more")
    try:
        from anndata.io import read_elem
    except ImportError as error:
        refuse(f"{path} is read with anndata 0.12 or later, which is not installed; pip install 'dmkl[anndata]'", error)
    with damaged_as(f"variable {name!r} of {path} is damaged", Exception):
        for key, node in arrays.items():
            what = f"variable {key!r} of {path}"
            check_stored(what, node) if isinstance(node, h5py.Dataset) else check_chunks(node, Ellipsis, what)
        return read_elem(nodes[name])
