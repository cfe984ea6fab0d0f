"""Arrays in HDF5 files, read in parts, and variables of MATLAB 7.3: such arrays, with their axes in reverse order."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dmkl import settings
from dmkl.arrays import Array, n_bytes
from dmkl.errors import damaged_as, refuse
from dmkl.files.plain import TEXT_BYTES
from dmkl.files.reader_process import run
from dmkl.inputs.formats.file_arrays import (
    ELSEWHERE,
    FileArray,
    check_part,
    natural_order,
    packed,
    sparse_array,
    unreadable,
)
from dmkl.inputs.formats.scipy_files import NUMBERS, OBJECT, TEXT, cell_array, items_of
from dmkl.inputs.formats.text_kernels import of_10x
from dmkl.names import as_text
from dmkl.settings import check_memory

_CACHE_BYTES = 32 * 2**20  # Decoded chunks that HDF5 keeps: neighboring tiles share those on their border.
_MOST_INFLATED = 1032  # The number of bytes that one byte of deflated data can stand for at most.


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file; InputError if the library cannot read all of its structures."""
    # h5py raises any exception on a damaged file.
    with damaged_as(f"{path} is not a whole HDF5 file", Exception):
        if h5py.is_hdf5(path):
            status = path.stat()
            _check_once(path, status.st_ino, status.st_mtime_ns, status.st_size)
        # Without a lock, which a parallel file system may not grant.
        with h5py.File(path, "r", locking="best-effort") as file:
            yield file


@cache
def _check_once(path: Path, *_: int) -> None:
    """Read a file in the child process first: the library crashes on some damaged files, or never ends."""
    run(_read_structures, str(path), path)


def _read_structures(file: str) -> tuple[None, list[Array]]:
    """Read everything in an HDF5 file except numbers; exceptions are raised again when the part is read."""
    with h5py.File(file, "r", locking="best-effort") as opened_file:
        for name, node in [("/", opened_file), *nodes_of(opened_file)]:
            with suppress(Exception):
                dict(() if node is None else node.attrs)
            with suppress(Exception):
                if isinstance(node, h5py.Dataset):
                    array = hdf5_array(Path(file), name, node)
                    # Strings of variable length may lie anywhere in the file.
                    array.read() if array.is_text and node.dtype.hasobject else check_stored(name, node)
    return None, []


def hdf5_arrays(path: Path) -> list[FileArray]:
    """Return the data sets of an HDF5 file, including those in groups, by their names, since files keep no order."""
    with opened(path) as file:
        nodes = sorted(nodes_of(file), key=lambda pair: natural_order(pair[0]))
        arrays = {name: hdf5_array(path, name, node) for name, node in nodes if not isinstance(node, h5py.Group)}
    groups = [name.rpartition("/")[0] for name in arrays if name.endswith("/barcodes")]
    return [_counts_of_10x(path, group, arrays) for group in groups] or list(arrays.values())


def _counts_of_10x(path: Path, group: str, arrays: dict[str, FileArray]) -> FileArray:
    """Return the counts of a file of CellRanger, whose columns of genes are compressed rows of cells."""
    with damaged_as(f"{path} holds no counts of CellRanger in {group!r}", Exception):
        n_genes, n_cells = map(int, arrays[f"{group}/shape"].read())
        lists = [f"{group}/{name}" for name in ("features/name", "gene_names", "features/id", "genes", "barcodes")]
        *genes, cells = (tuple(arrays[name].read().tolist()) for name in lists if name in arrays)
        if n_cells != len(cells) or {len(names) for names in genes} - {n_genes}:
            refuse(f"{path} is damaged: it states {n_genes} genes × {n_cells} cells, and names others")
        array = sparse_array(path, group, lambda part: arrays[f"{group}/{part}"], (n_cells, n_genes), "csr")
    return of_10x(array, (n_cells, n_genes), cells, genes)


def hdf5_array(path: Path, name: str, node: h5py.Dataset | None) -> FileArray:
    """Return a data set as an array; None stands for one in another file."""
    if node is None:
        return unreadable(path, name, (), ELSEWHERE)
    array = H5Array(path, name, node)
    if h5py.check_string_dtype(node.dtype) is not None:
        return FileArray(path, name, array.shape, np.dtype("U1"), lambda: copy(array).strings())
    return FileArray(path, name, array.shape, array.dtype, partial(copy, array), problem=packed(node.attrs))


def nodes_of(
    file: h5py.File, enter: Callable[[str, h5py.Group], bool] = lambda _, __: True
) -> Iterator[tuple[str, h5py.Group | h5py.Dataset | None]]:
    """Return the groups and data sets of a file by their names, each once, also inside groups that `enter` accepts.

    None stands for those in other files, unless ``dmkl.external-files`` is true: they may be any of this machine.
    """
    follow = bool(settings.get("external-files"))
    waiting: list[tuple[str, h5py.Group]] = [("", file)]
    seen = {_address(file)}
    while waiting:
        prefix, group = waiting.pop()
        inside: list[tuple[str, h5py.Group]] = []
        for key in group:
            name, link = f"{prefix}{key}", group.get(key, getlink=True)
            if isinstance(link, h5py.SoftLink):
                continue
            if isinstance(link, h5py.ExternalLink) and not follow:
                yield name, None
                continue
            node = group[key]
            if isinstance(node, h5py.Datatype) or _address(node) in seen:
                continue
            seen.add(_address(node))
            if isinstance(node, h5py.Group):
                yield name, node
                if enter(name, node):
                    inside.append((f"{name}/", node))
            elif not may_be_read(node):
                yield name, None
            elif node.shape is not None:
                yield name, node
        waiting += reversed(inside)


def _address(node: h5py.Group | h5py.Dataset) -> tuple[int, int]:
    info = h5py.h5o.get_info(node.id)
    return info.fileno, info.addr


def may_be_read(node: h5py.Dataset) -> bool:
    """Whether the values of a data set lie in its own file, or may lie elsewhere. If not, its shape is not read."""
    if settings.get("external-files"):
        return True
    return all(source.file_name == "." for source in node.virtual_sources()) if node.is_virtual else not node.external


class H5Array:
    """A data set that is opened when a part of it, or of a copy, is read; `reverse` is for MATLAB's order of axes."""

    def __init__(self, path: Path, name: str, node: h5py.Dataset, *, reverse: bool = False) -> None:
        self._path, self._name, self._reverse = path, name, reverse
        self.what = f"variable {name!r} of {path}"
        self._node: Any = None
        step = -1 if reverse else 1
        self.shape: tuple[int, ...] = tuple(node.shape[::step])
        self.chunks: tuple[int, ...] | None = None if node.chunks is None else tuple(node.chunks[::step])
        self.dtype: np.dtype[Any] = node.dtype

    def __getitem__(self, key: Any) -> Array:
        check_part(self.what, self.shape, self.chunks or (), key, self.dtype.itemsize)
        with damaged_as(f"{self.what} is damaged", Exception):
            part = np.asarray(self._opened()[key if not self._reverse or key is Ellipsis else key[::-1]])
        # Reversing the remaining axes restores their order, whichever axis an integer has removed.
        return part.T if self._reverse else part

    def strings(self) -> Array:
        """Read all of it as strings."""
        check_memory(self.what, n_bytes(self.shape, self.dtype.itemsize + TEXT_BYTES), "allow more")
        with damaged_as(f"{self.what} is damaged", Exception):
            return np.asarray(self._opened().asstr()[...])

    def _opened(self) -> h5py.Dataset:
        if self._node is None:
            file = h5py.File(self._path, "r", locking="best-effort", rdcc_nbytes=_CACHE_BYTES)
            check_stored(self.what, file[self._name])
            self._node = file[self._name]
        return self._node


def check_stored(what: str, node: h5py.Dataset) -> None:
    """Refuse data sets that were never written, and chunks larger than the file or than they should be."""
    if node.size and not node.is_virtual and not node.external and not node.id.get_storage_size():
        refuse(f"{what} has the shape {node.shape}, but none of its values was ever written")
    if node.chunks is None or not node.size:
        return
    most, file_bytes = n_bytes(node.chunks, node.dtype.itemsize), node.file.id.get_filesize()
    large: list[tuple[tuple[int, ...], int]] = []
    least = settings.memory_budget_bytes() // _MOST_INFLATED
    node.id.chunk_iter(lambda chunk: large.append((chunk.chunk_offset, chunk.size)) if chunk.size > least else None)
    for offset, size in large:
        if size > file_bytes:
            refuse(f"{what} is damaged: its chunk at {offset} has {size} bytes, the whole file {file_bytes}")
        # HDF5 inflates a chunk to its end, whatever its length.
        deflated = node.id.read_direct_chunk(offset)[1] if node.compression == "gzip" else b""
        if len(zlib.decompressobj().decompress(deflated, most + 1)) > most:
            refuse(f"{what} is damaged: its chunk at {offset} inflates to more than the {most} bytes of a chunk")


# --- MATLAB 7.3 -------------------------------------------------------------------------------------------------------


def variables_of(path: Path) -> list[FileArray]:
    """Return the variables of a MATLAB file of version 7.3."""

    def holds_variables(name: str, group: h5py.Group) -> bool:  # not the targets of cells, nor parts of sparse matrices
        return not name.rpartition("/")[2].startswith("#") and "MATLAB_sparse" not in group.attrs

    with opened(path) as file:
        nodes = nodes_of(file, holds_variables)
        return [array for name, node in nodes if (array := _variable(path, name, node)) is not None]


def _variable(path: Path, name: str, node: h5py.Group | h5py.Dataset | None) -> FileArray | None:
    if node is None:
        return hdf5_array(path, name, None)
    if "MATLAB_sparse" in node.attrs:
        shape = int(node.attrs["MATLAB_sparse"]), len(node["jc"]) - 1 if "jc" in node else 0
        return unreadable(path, name, shape, "sparse", matlab=True)
    if isinstance(node, h5py.Group) or "MATLAB_empty" in node.attrs:
        return None
    array = H5Array(path, name, node, reverse=True)
    kind = as_text(node.attrs.get("MATLAB_class", ""))
    if kind == "char":
        return FileArray(path, name, array.shape[:1], TEXT, lambda: _characters(array))
    if h5py.check_ref_dtype(node.dtype) is h5py.Reference:
        return _cell_array(path, name, node)
    is_complex = array.dtype.kind == "c" or array.dtype.names == ("real", "imag")
    if kind not in ("", *NUMBERS) and not is_complex:  # its data set tells where the values are
        return unreadable(path, name, array.shape, f"a {kind}, {OBJECT}", matlab=True)
    problem = "complex" if is_complex else "" if array.dtype.kind in "fiub" else "not numbers"
    return FileArray(path, name, array.shape, array.dtype, partial(copy, array), problem=problem, matlab=True)


def _cell_array(path: Path, name: str, node: h5py.Dataset) -> FileArray:
    # Each part is a separate data set, to which the cell refers; axes are reversed in the cell too.
    targets = [node.file[reference] for reference in np.asarray(node[...]).T.ravel(order="F")]
    if not all(isinstance(target, h5py.Group) or may_be_read(target) for target in targets):
        return hdf5_array(path, name, None)
    data_sets = [target for target in targets if isinstance(target, h5py.Dataset)]
    arrays = [H5Array(path, data_set.name, data_set, reverse=True) for data_set in data_sets]
    # The data set of an empty part, as of '', holds its lengths instead.
    empty = ["MATLAB_empty" in target.attrs for target in targets]

    def strings() -> Array:
        texts = ["" if none else "".join(_characters(part)) for part, none in zip(arrays, empty, strict=True)]
        return np.array(texts, dtype=str)

    classes = {as_text(target.attrs.get("MATLAB_class", "")) for target in targets}
    if objects := classes - {"", "char", "cell", "struct", *NUMBERS}:
        return unreadable(path, name, node.shape[::-1], f"a cell array of {min(objects)}, {OBJECT}", matlab=True)
    if classes <= {"char"}:
        return FileArray(path, name, (len(targets),), TEXT, strings)
    whole = len(arrays) == len(targets) and not any(empty)
    if whole and all(array.dtype.kind in "fiub" and set(array.shape) == {1} for array in arrays):
        return FileArray(path, name, (len(arrays),), np.dtype(np.float64), partial(items_of, arrays))
    return cell_array(path, name, node.shape[::-1], arrays if whole else [], lambda: list(map(copy, arrays)))


def _characters(array: H5Array) -> Array:
    """Return the strings of a char matrix (rows, length) of UTF-16 codes."""
    with damaged_as(f"{array.what} is no text", Exception):
        rows = np.atleast_2d(np.asarray(array[...], dtype="<u2"))
        return np.array([row.tobytes().decode("utf-16-le").rstrip() for row in rows], dtype=str)
