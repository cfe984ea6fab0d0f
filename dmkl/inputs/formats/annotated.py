"""Annotated data: AnnData and MuData in memory, in .h5ad and .h5mu files, and in the Zarr form of both.

Kernels lie in ``obsp``, features in ``X``, ``raw``, ``layers`` and ``obsm``, labels and splits in columns of ``obs``
(https://anndata.readthedocs.io/en/latest/fileformat-prose.html). Matrices are read a block of rows at a time, also
sparse ones; tables of ``obs`` are read by anndata.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr

from dmkl.arrays import Array, is_instance, n_bytes
from dmkl.errors import damaged_as, needing, refuse
from dmkl.files.plain import TEXT_BYTES, check_chunks
from dmkl.inputs.columns import ROLES, Columns, plain_title
from dmkl.inputs.formats.file_arrays import ELSEWHERE, FileArray, array_of, sparse_array, unreadable, vector
from dmkl.inputs.formats.zarr_folders import is_zarr, nodes_in, open_node, zarr_array
from dmkl.inputs.labels import OF_SAMPLES, LabelTable
from dmkl.inputs.matrices import plain
from dmkl.names import Names, as_text
from dmkl.settings import check_memory

if TYPE_CHECKING:
    import pandas as pd

_OBJECT = Path("the annotated data")  # The name of an object in memory in messages.


def is_annotated(path: Path) -> bool:
    """Whether a folder is AnnData or MuData in Zarr."""
    if not is_zarr(path):
        return False
    with damaged_as(f"{path} cannot be read as Zarr", Exception):
        return str(open_node(path).attrs.get("encoding-type", "")).casefold() in ("anndata", "mudata")


def annotated_arrays(source: Any) -> list[FileArray]:
    """Return the kernels and features of annotated data, and columns of `obs` with a title such as labels or splits.

    Their names are their places: X, raw, layers/counts, obsm/X_pca, obsp/connectivities; in a modality of MuData rna/X.
    Features other than X are taken by name, but layers in any case where there is no X.
    """
    if not isinstance(source, Path):
        return [array for part in _parts_of_object(source) for array in _arrays(_OBJECT, part)]
    with _nodes(source) as nodes:
        return [array for part in _parts(source, nodes) for array in _arrays(source, part)]


def annotation(path: Path, column: str | None) -> LabelTable:
    """Return a column of `obs` (of a modality of MuData as rna:column), or obs_names, with the names of the samples."""
    with _nodes(path) as nodes:
        parts = list(_parts(path, nodes))
        columns = {  # a column of the whole replaces one of a modality with the same name
            part.title.replace("/", ":") + name: (part.samples, read)
            for part in reversed(parts)
            for name, read in part.columns.items()
        }
        if column == "obs_names":
            return LabelTable(np.array(parts[0].samples, dtype=str), parts[0].samples)
        if column not in columns:
            problem = f"has no column {column!r} in obs" if column is not None else "describes its samples in columns"
            names = ", ".join(map(repr, columns)) or "none"
            refuse(f"{path} {problem}; name one of {names} or 'obs_names', as {path}:NAME")
        samples, read = columns[column]
        return LabelTable(vector(_values_of_column(read()), f"column {column!r} of {path}"), samples)


class _Part(NamedTuple):
    """AnnData: the whole of an object or a file, or a modality of one; of MuData also what its modalities share."""

    title: str  # the prefix of the names of its arrays
    samples: tuple[str, ...]
    variables: Names
    raw_variables: Names
    columns: Mapping[str, Callable[[], Any]]  # of obs, while a file is open
    entries: Mapping[str, Callable[[], FileArray | None]]  # the matrices by their places; None for an explicit null


def _arrays(path: Path, part: _Part) -> Iterator[FileArray]:
    has_x = "X" in part.entries and part.entries["X"]() is not None
    for name, open_entry in part.entries.items():
        # scanpy's search for neighbors writes both kernels and distances.
        of_pairs = "distances" if name.replace("/", "_").split("_")[-1] == "distances" else "kernel"
        holds: Any = of_pairs if name.startswith("obsp/") else "features"
        array, n = open_entry(), len(part.samples)
        if array is None:
            continue
        if array.shape and array.shape[0] != n:
            refuse(f"{path} is damaged: {part.title}{name} has {array.shape[0]} rows, and obs names {n} samples")
        columns = part.samples if holds != "features" else part.raw_variables if name == "raw" else part.variables
        columns = array.columns or (None if name.startswith("obsm/") else columns)
        columns = columns if columns is not None and array.shape[1:] == (len(columns),) else None
        named = name == "raw" or name.startswith("obsm/") or (name.startswith("layers/") and has_x)
        yield replace(array, name=f"{part.title}{name}", rows=part.samples, columns=columns, holds=holds, by_name=named)
    # Columns with titles such as sample or id state the origin of a sample, and may repeat.
    for name, read in part.columns.items() if not part.title else ():
        if ROLES.get(plain_title(name)) in OF_SAMPLES:
            of_file = partial(lambda column: annotation(path, column).values, name)
            values = partial(_values_of_column, read()) if path is _OBJECT else of_file
            yield FileArray(path, f"obs/{name}", (len(part.samples),), np.dtype("U1"), values, rows=part.samples)


def _values_of_column(values: Any) -> Array:
    """Return a column of obs as an array: numbers, or words with NaN for missing ones."""
    import pandas as pd

    series = pd.Series(values)
    if pd.api.types.is_bool_dtype(series.dtype) and not series.hasnans:
        return series.to_numpy(np.bool_)
    return series.to_numpy(np.float64 if series.dtype.kind in "biuf" else object, na_value=np.nan)


def _table(path: Path, name: str, frame: pd.DataFrame) -> FileArray:
    table = Columns(f"variable {name!r} of {path}", frame)
    if not all(table.numeric):
        return unreadable(path, name, frame.shape, "not numbers", "holds columns that are no numbers")
    columns = tuple(map(str, frame.columns))
    return replace(array_of(table, range(table.n_columns), None, columns), path=path, name=name)


def _parts_of_object(data: Any) -> Iterator[_Part]:
    modalities = dict(getattr(data, "mod", {}))
    for title, part in [("", data), *((f"{name}/", modality) for name, modality in modalities.items())]:
        matrices = {} if getattr(part, "X", None) is None else {"X": part.X}
        for group in ("layers", "obsm", "obsp"):
            inside = getattr(part, group, None) or {}
            # MuData states in obsm which samples a modality has; X is the layer None since AnnData 0.13.
            names = [name for name in inside if name is not None and (title or name not in modalities)]
            matrices |= {f"{group}/{name}": inside[name] for name in names}
        raw, raw_variables = getattr(part, "raw", None), None
        if raw is not None:
            matrices["raw"], raw_variables = raw.X, tuple(map(str, raw.var_names))
        entries = {name: partial(_array_of_object, name, values) for name, values in matrices.items()}
        columns = {str(name): partial(part.obs.__getitem__, name) for name in part.obs.columns}
        variables = None if hasattr(part, "mod") else tuple(map(str, part.var_names))
        yield _Part(title, tuple(map(str, part.obs_names)), variables, raw_variables, columns, entries)


def _array_of_object(name: str, values: Any) -> FileArray:
    if is_instance(values, "pandas", "DataFrame"):
        return _table(_OBJECT, name, values)
    matrix = plain(values)
    return FileArray(_OBJECT, name, np.shape(matrix), np.dtype(getattr(matrix, "dtype", object)), lambda: matrix)


@contextmanager
def _nodes(path: Path) -> Iterator[dict[str, Any]]:
    """Return the groups and arrays of an open file by their names; the root is ""; None is a link to another file."""
    with needing("anndata", f"{path} is read with"):  # which needs h5py too
        importlib.import_module("anndata.io")
    if path.is_dir():
        with damaged_as(f"{path} cannot be read as Zarr", Exception):
            nodes = {"": open_node(path), **nodes_in(path)}
        yield nodes
        return
    from dmkl.inputs.formats.hdf5 import nodes_of, opened

    with opened(path) as file:
        yield {"": file, **dict(nodes_of(file))}


def _parts(path: Path, nodes: Mapping[str, Any]) -> Iterator[_Part]:
    modalities = [name[4:] for name in nodes if name.startswith("mod/") and name.count("/") == 1]
    for title in ("", *(f"{name}/" for name in modalities)):
        at = f"mod/{title}" if title else ""
        masks = [f"obsm/{name}" for name in modalities if not title]
        groups = [f"{at}{group}" for group in ("layers", "obsm", "obsp")]
        matrices = [name for group in groups for name in sorted(nodes) if name.rpartition("/")[0] == group]
        places = [name for name in (f"{at}X", *matrices) if name in nodes and name not in masks]
        variables = _names(path, nodes, f"{at}var") if f"{at}var" in nodes else None
        samples = _names(path, nodes, f"{at}obs")
        titles = map(as_text, np.asarray(nodes[f"{at}obs"].attrs.get("column-order", ())).tolist())
        columns = {name: partial(_element, path, nodes, f"{at}obs/{name}") for name in titles}
        entries = {name.removeprefix(at): partial(_matrix, path, nodes, name) for name in places}
        raw_variables = _names(path, nodes, f"{at}raw/var") if f"{at}raw/X" in nodes else None
        if raw_variables is not None:
            entries["raw"] = partial(_matrix, path, nodes, f"{at}raw/X")
        yield _Part(title, samples, variables, raw_variables, columns, entries)


def _names(path: Path, nodes: Mapping[str, Any], table: str) -> tuple[str, ...]:
    """Return the index of a table, obs or var."""
    node = nodes.get(table)
    index = None if node is None else node.attrs.get("_index")
    if not isinstance(index, str) or f"{table}/{index}" not in nodes:
        refuse(f"{path} has no table {table!r} with an index, as before AnnData 0.7; write it again with anndata")
    return tuple(map(as_text, np.asarray(_element(path, nodes, f"{table}/{index}"), dtype=object).tolist()))


def _matrix(path: Path, nodes: Mapping[str, Any], name: str) -> FileArray | None:
    """Return an entry as an array; None for an explicit null."""
    node: Any = nodes[name]
    encoding = "" if node is None else str(node.attrs.get("encoding-type", ""))
    if encoding == "null":
        return None
    if not hasattr(node, "keys"):  # no group
        return _plain(path, nodes, name)
    if encoding in ("csr_matrix", "csc_matrix"):
        with damaged_as(f"variable {name!r} of {path} is no sparse matrix", Exception):
            shape = tuple(map(int, node.attrs["shape"]))
            return sparse_array(path, name, lambda key: _plain(path, nodes, f"{name}/{key}"), shape, encoding[:3])
    if encoding == "dataframe":
        return _table(path, name, _element(path, nodes, name))
    return unreadable(path, name, (), f"{encoding or 'a group'}, no matrix")


def _plain(path: Path, nodes: Mapping[str, Any], name: str) -> FileArray:
    if isinstance(nodes[name], zarr.Array):
        return zarr_array(path, name, nodes[name])
    from dmkl.inputs.formats.hdf5 import hdf5_array

    return hdf5_array(path, name, nodes[name])


def _element(path: Path, nodes: Mapping[str, Any], name: str) -> Any:
    """Read an element by anndata, after the checks for hostile files."""
    inside = {key: node for key, node in nodes.items() if key == name or key.startswith(f"{name}/")}
    if name not in inside or any(node is None for node in inside.values()):
        unreadable(path, name, (), ELSEWHERE if name in inside else "missing").refuse("is not there")
    arrays = {key: node for key, node in inside.items() if not hasattr(node, "keys")}
    needed = sum(n_bytes(node.shape, node.dtype.itemsize + TEXT_BYTES) for node in arrays.values())
    check_memory(f"variable {name!r} of {path}", needed, "allow more")
    from anndata.io import read_elem

    from dmkl.inputs.formats.hdf5 import check_stored

    with damaged_as(f"variable {name!r} of {path} is damaged", Exception):
        for key, node in arrays.items():
            what = f"variable {key!r} of {path}"
            check_chunks(node, Ellipsis, what) if isinstance(node, zarr.Array) else check_stored(what, node)
        return read_elem(nodes[name])
