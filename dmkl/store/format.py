"""The format of a stored kernel set: its arrays and attributes, their creation, and checks before they are read.

storage/FORMAT.md describes the format normatively.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, Self

import numpy as np
import numpy.typing as npt
from zarr.codecs import Crc32cCodec, ZstdCodec

from dmkl.arrays import Array, Tiling
from dmkl.errors import StoreError, refuse
from dmkl.files.plain import check_chunks
from dmkl.inputs.formats.zarr_folders import KERNEL_SET
from dmkl.settings import check_memory, memory_budget_bytes

FORMAT: Final = KERNEL_SET
FORMAT_VERSION: Final = 2
"""The newest version; sets in which every kernel has tiles are of version 1."""

_STRING_BYTES = 64  # memory of a Python string, and of the reference to it in an array
_MOST_CHUNKS = 10_000
"""A node that is read as a whole has at most this many chunks, or two for each kernel: each is a file."""


class Node(NamedTuple):
    """One array of the group."""

    dims: tuple[str, ...]
    doc: str


NODES: Final = {
    "gram_upper": Node(("kernel", "sample", "sample_2"), "symmetric kernels, tiles on and above the diagonal"),
    "gram": Node(("kernel", "sample", "train_sample"), "kernels in full: samples against training samples"),
    "kernel": Node(("kernel",), "names of the kernels, unique"),
    "sample": Node(("sample",), "names of the samples, unique"),
    "train_sample": Node(("train_sample",), "names of the training samples, unique"),
    "label": Node(("sample",), "classes, or 0/1 for each task (sample, task)"),
    "target": Node(("sample",), "numbers, or one for each task (sample, task); NaN is unknown"),
    "task": Node(("task",), "names of the columns of labels or targets"),
    "split": Node(("split", "sample"), "0 train, 1 validation, 2 test, -1 in no part"),
    "diagonal": Node(("kernel", "sample"), "k(x, x) of every sample"),
    "row_sum": Node(("kernel", "sample"), "sum over all (training) samples of every row"),
    "tile_crc32c": Node(("kernel", "tile_row", "tile_col"), "CRC32C of each stored tile without padding"),
}
_NUMBERS = {"diagonal": ("float64", np.nan), "row_sum": ("float64", np.nan), "tile_crc32c": ("uint32", 0)}
"""Type and fill value of arrays with one chunk for each kernel."""
PER_KERNEL: Final = ("row_sum", "tile_crc32c", "diagonal", "gram_upper", "gram")
"""Arrays with chunks of each kernel, the tiles last: if they have room for a kernel, the others have it too."""
_TEXTS = ("kernel", "sample", "train_sample", "task", "column")
_READ_IN_PARTS = ("gram_upper", "gram", "row_sum", "diagonal")


@dataclass(frozen=True)
class Header:
    """Shape, type and tiles, which all kernels of a set have in common; a resumed import must have the same."""

    rows: int
    cols: int
    dtype: str
    tile: int
    symmetric: bool
    full: bool  # symmetric kernels are stored with both halves

    @classmethod
    def of(cls, group: Any) -> Self | None:
        """Header of a group; None if it has no array of kernels."""
        node = next((name for name in ("gram_upper", "gram") if name in group), None)
        if node is None:
            return None
        _, rows, cols = group[node].shape
        symmetric = bool(group.attrs["symmetric"])
        full = symmetric and node == "gram"
        return cls(rows, cols, group[node].dtype.name, int(group.attrs["tile"]), symmetric, full)

    @property
    def tiling(self) -> Tiling:
        """The tiles of one kernel that are stored."""
        return Tiling(self.rows, self.cols, self.tile, upper=self.symmetric and not self.full)

    @property
    def node(self) -> str:
        """Name of the array of the kernels."""
        return "gram_upper" if self.symmetric and not self.full else "gram"

    def lengths(self, n_kernels: int) -> dict[str, int]:
        """Lengths of the dimensions of `NODES` that are determined by the header and the number of kernels."""
        tile_rows, tile_cols = self.tiling.shape
        lengths = {"kernel": n_kernels, "sample": self.rows, "sample_2": self.cols, "train_sample": self.cols}
        return lengths | {"tile_row": tile_rows, "tile_col": tile_cols}

    def describe(self, n_kernels: int | None) -> str:
        """The set in words, for messages."""
        return f"a set of {n_kernels or 1:,} kernels of {self.rows:,} × {self.cols:,}"

    def create_node(self, group: Any, name: str, n_kernels: int) -> None:
        """Create the array of the kernels, or one of their statistics."""
        lengths = self.lengths(n_kernels)
        shape = tuple(lengths[dim] for dim in NODES[name].dims)
        if name == self.node:
            create_array(group, name, shape, (1, self.tile, self.tile), self.dtype, np.nan)
        else:
            create_array(group, name, shape, (1, *shape[1:]), *_NUMBERS[name])


def check_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The precision of stored kernels; InputError if it is not float32 or float64."""
    stored = np.dtype(dtype)
    if stored not in (np.dtype(np.float32), np.dtype(np.float64)):
        refuse(f"kernels are stored as float32 or float64, not {stored}")
    return stored


def content_id(
    names: Iterable[str], table: Array, provenance: Sequence[Mapping[str, Any] | None] = (), dtype: str = ""
) -> str:
    """Identify the kernels' content.

    SHA-256 over, for each kernel in order: its name in UTF-8, a zero byte, and its part of the table of tile checksums
    as little-endian 32-bit integers in row-major order; of a kernel kept as factors JSON of the recipe and the features
    that determine its entries, and of `dtype`.
    """
    digest, kept = hashlib.sha256(), kept_as_factors(provenance)
    for j, (name, checksums) in enumerate(zip(names, table, strict=True)):
        content = np.ascontiguousarray(checksums, dtype="<u4").tobytes()
        if j in kept:
            keys = ("columns", "feature_content", "function", "parameters")
            recipe = {key: (provenance[j] or {}).get(key) for key in keys} | {"dtype": dtype}
            content = json.dumps(recipe, sort_keys=True, separators=(",", ":")).encode()
        digest.update(name.encode() + b"\0" + content)
    return f"sha256:{digest.hexdigest()}"


def kept_as_factors(provenance: Iterable[Mapping[str, Any] | None]) -> frozenset[int]:
    """Positions of the kernels that are kept as factors: these have features and a recipe, and no tiles."""
    return frozenset(j for j, entry in enumerate(provenance) if (entry or {}).get("storage") == "factors")


# --- writing -------------------------------------------------------------------------------------------------------


def check_names(header: Header, n_kernels: int | None) -> None:
    """Refuse a set whose names alone take more memory than a computation may (MemoryBudgetError)."""
    needed_bytes = (header.rows + header.cols + (n_kernels or 1)) * _STRING_BYTES
    way_out = "allow more, or check whether the source is damaged"
    check_memory(f"a list of the names in {header.describe(n_kernels)}", needed_bytes, way_out)


def create_array(
    group: Any,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: Any,
    fill: float | str,
    dims: tuple[str, ...] | None = None,
    *,
    meaning: str | None = None,
    compressed: bool = False,
    overwrite: bool = False,
) -> Any:
    """Create an array of numbers or strings, by default with the dimensions and the description of `NODES`."""
    units = {} if dtype is str else {"units": "1"}
    return group.create_array(
        name,
        shape=shape,
        chunks=tuple(max(1, length) for length in chunks),
        dtype=dtype,
        fill_value=fill,
        dimension_names=NODES[name].dims if dims is None else dims,
        filters=None,
        # Kernel matrices hardly compress. An uncompressed local tile can be memory-mapped instead of decoded.
        compressors=[ZstdCodec(level=1), Crc32cCodec()] if compressed else [Crc32cCodec()],
        # A tile of zeros is written like any other: a tile that is absent was never written.
        config={"write_empty_chunks": True},
        attributes={"long_name": NODES[name].doc if meaning is None else meaning, **units},
        overwrite=overwrite,
    )


def write_array(
    group: Any, name: str, values: Array, dims: tuple[str, ...] | None = None, meaning: str | None = None
) -> None:
    """Write an array of numbers or strings, in one chunk; labels of several tasks have a dimension more."""
    dims = (*NODES[name].dims, "task")[: values.ndim] if dims is None else dims
    dtype: Any = values.dtype.name
    fill: Any = {"i": -1, "f": np.nan}.get(values.dtype.kind, 0)
    if values.dtype.kind in "OUST":
        dtype, fill, values = str, "", text_array(values.ravel()).reshape(values.shape)
    array = create_array(group, name, values.shape, values.shape, dtype, fill, dims, meaning=meaning, overwrite=True)
    array[...] = values


def text_array(values: Any) -> Array:
    """Names or labels as an array of texts, in memory as they are read."""
    return np.array([str(value) for value in values], dtype=object)


# --- checks of what is read ----------------------------------------------------------------------------------------

_ATTRIBUTES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "tile": ("an integer from 1 on", lambda value: type(value) is int and value >= 1),
    "symmetric": ("true or false", lambda value: isinstance(value, bool)),
    "content_id": ("a string", lambda value: isinstance(value, str)),
    "kernels": ("a list of objects", lambda value: isinstance(value, list) and all(isinstance(e, dict) for e in value)),
}


def check_metadata(group: Any, attrs: Mapping[str, Any], where: str) -> Header:
    """Check attributes and arrays of a kernel set against `storage/FORMAT.md`, and return its header.

    StoreError is raised if the type or the shape of one does not fit the others, MemoryBudgetError if names and labels
    alone take more memory than a computation may.
    """
    for key, (rule, holds) in _ATTRIBUTES.items():
        if not holds(attrs[key]):
            _refuse(where, f"its attribute {key!r} is {attrs[key]!r:.80}", rule)
    gram = group["gram_upper" if "gram_upper" in group else "gram"]
    if gram.ndim != 3 or 0 in gram.shape or gram.dtype not in (np.float32, np.float64):
        got = f"{gram.basename!r} has the shape {gram.shape} and holds {gram.dtype}"
        _refuse(where, got, "kernels of float32 or float64")
    header = Header.of(group)
    assert header is not None
    n_kernels, tile = gram.shape[0], header.tile
    if header.symmetric and header.rows != header.cols:
        got = f"{gram.basename!r} has the shape {gram.shape}"
        _refuse(where, got, "square kernels, since its attribute 'symmetric' is true")
    if gram.chunks != (1, tile, tile):
        _refuse(where, f"{gram.basename!r} has chunks {gram.chunks}", f"(1, {tile}, {tile}), the tiles")
    if len(attrs["kernels"]) != n_kernels:
        got = f"its attribute 'kernels' has {len(attrs['kernels'])} entries"
        _refuse(where, got, f"one for each of {n_kernels} kernels")
    kept = kept_as_factors(attrs["kernels"])
    if kept and gram.basename == "gram":
        _refuse(where, "kernels of 'gram' are kept as factors", "those of 'gram_upper' only")
    lengths, needed_bytes = header.lengths(n_kernels), 0
    for name, node in NODES.items():
        if name in group and name not in ("gram", "gram_upper"):
            array = group[name]
            dims = (*node.dims, "task")[: max(len(node.dims), array.ndim if name in ("label", "target") else 0)]
            if array.ndim != len(dims):
                _refuse(where, f"{name!r} has {array.ndim} dimensions", f"({', '.join(dims)})")
            # The first array with tasks or splits defines their number.
            expected = tuple(lengths.setdefault(dim, length) for dim, length in zip(dims, array.shape, strict=True))
            if array.shape != expected:
                _refuse(where, f"{name!r} has the shape {array.shape}", f"{expected}, ({', '.join(dims)})")
            # The table of checksums is not read if no kernel has tiles.
            whole = name not in _READ_IN_PARTS and not (name == "tile_crc32c" and len(kept) == n_kernels)
            needed_bytes += _check_node(array, name, where, whole=whole, n_kernels=n_kernels)
    _check_names_memory(needed_bytes, where)
    return header


def check_tables(values: Any, names: Any, center: Any, where: str) -> None:
    """Check the arrays of a feature table against one another; raises as `check_metadata`."""
    if values.ndim != 2 or 0 in values.shape or values.dtype not in (np.float16, np.float32, np.float64):
        got = f"'values' has the shape {values.shape} and holds {values.dtype}"
        _refuse(where, got, "a matrix of float16, float32 or float64")
    needed_bytes = 0
    for name, array in (("column", names), ("center", center)):
        if array is not None:
            if array.shape != values.shape[1:]:
                _refuse(where, f"{name!r} has the shape {array.shape}", f"{values.shape[1:]}, one for each column")
            needed_bytes += _check_node(array, name, where)
    _check_node(values, "values", where, whole=False)
    _check_names_memory(needed_bytes, where)


def _check_node(array: Any, name: str, where: str, *, whole: bool = True, n_kernels: int = 0) -> int:
    """Check type and chunks of an array; returns its bytes if it is read as a whole, else 0."""
    kind = array.dtype.kind
    text = kind in "TOU"
    if not (text or kind in "fiub") or (text != (name in _TEXTS) and name != "label"):
        _refuse(where, f"{name!r} holds {array.dtype}", "text" if name in _TEXTS else "real numbers")
    itemsize = _STRING_BYTES if text else array.dtype.itemsize
    chunk_bytes, n_bytes = (math.prod(map(int, lengths)) * itemsize for lengths in (array.chunks, array.shape))
    if chunk_bytes > max(memory_budget_bytes(), n_bytes):
        _refuse(where, f"a chunk of {name!r} takes {chunk_bytes:.3g} bytes", "chunks no larger than the array")
    if not whole:
        return 0
    if text:
        check_chunks(array, (slice(None),) * array.ndim, f"{name!r} of {where}")
    n_chunks = math.prod(-(-length // chunk) for length, chunk in zip(array.shape, array.chunks, strict=True))
    if n_chunks > max(_MOST_CHUNKS, 2 * n_kernels):
        _refuse(where, f"{name!r} has {n_chunks:,} chunks", f"at most {_MOST_CHUNKS:,}")
    return n_bytes


def _check_names_memory(needed_bytes: int, where: str) -> None:
    way_out = "allow more, or check whether its metadata are damaged"
    check_memory(f"a list of the names and labels of {where}", needed_bytes, way_out)


def _refuse(where: str, got: str, expected: str) -> NoReturn:
    refuse(f"{where} is damaged: {got}, expected {expected}; import or build it again", kind=StoreError)
