"""What an unfinished kernel set consists of: its header, its arrays and its record of kernels."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from zarr.codecs import Crc32cCodec

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.numerics.tiling import Tiling
from dmkl.store.schema import NODES

__all__ = [
    "Header",
    "check_names",
    "check_room",
    "create_array",
    "create_strings",
    "header_of",
    "is_recoverable",
    "provenance_of",
]


_NAME_BYTES = 64
"""What a name takes as a string of Python, and its place in an array."""


@dataclass(frozen=True)
class Header:
    """Shape, type and tiles, which all kernels of a set share; a resumed import must have the same."""

    rows: int
    cols: int
    dtype: str
    tile: int
    symmetric: bool
    full: bool

    @property
    def tiling(self) -> Tiling:
        """The tiles of one kernel."""
        return Tiling(self.rows, self.cols, self.tile, upper=self.symmetric and not self.full)


def check_names(header: Header, n_kernels: int | None) -> None:
    """Refuse a set whose names alone take more memory than a computation may, before they are made.

    Raises
    ------
    MemoryBudgetError
        If they do.
    """
    budget_bytes = settings.memory_budget_bytes()
    needed_bytes = (header.rows + header.cols + (n_kernels or 1)) * _NAME_BYTES
    if needed_bytes > budget_bytes:
        msg = (
            f"the names in {_told(header, n_kernels)} take {needed_bytes:.3g} bytes of memory, and {budget_bytes:.3g} "
            "are allowed (the setting dmkl.memory); allow more, or look whether the source is damaged"
        )
        raise MemoryBudgetError(msg)


def check_room(path: Path, header: Header, n_kernels: int | None) -> None:
    """Refuse a set that is larger than the whole disk that it would lie on, before anything of it is written.

    Raises
    ------
    InputError
        If it is.
    """
    disk = shutil.disk_usage(next(folder for folder in path.parents if folder.exists()))
    rows, cols = header.tiling.shape
    n_tiles = rows * (rows + 1) // 2 if header.tiling.upper else rows * cols
    needed_bytes = (n_kernels or 1) * n_tiles * header.tile**2 * np.dtype(header.dtype).itemsize
    if needed_bytes > disk.total:
        msg = (
            f"{_told(header, n_kernels)} takes {needed_bytes:.3g} bytes, and the whole disk of {path} has "
            f"{disk.total:.3g}; write it to another disk, or take fewer kernels"
        )
        raise InputError(msg)


def _told(header: Header, n_kernels: int | None) -> str:
    return f"a set of {n_kernels or 1:,} kernels of {header.rows:,} × {header.cols:,}"


def header_of(group: Any) -> Header | None:
    """Header of an unfinished set; None where it was killed before it could hold a kernel."""
    node = next((name for name in ("gram_upper", "gram") if name in group), None)
    if node is None or "row_sum" not in group or "tile_crc32c" not in group:
        return None
    _, rows, cols = group[node].shape
    symmetric = bool(group.attrs["symmetric"])
    full = symmetric and node == "gram"
    return Header(rows, cols, group[node].dtype.name, int(group.attrs["tile"]), symmetric, full)


def provenance_of(group: Any, n_kernels: int) -> list[dict[str, Any] | None]:
    """Provenance of each kernel of an unfinished set; None for those that were never begun."""
    found = [None if entry is None else dict(entry) for entry in group.attrs["kernels"][:n_kernels]]
    for entry in found:
        if entry is not None:
            entry.pop("name", None)
    return found + [None] * (n_kernels - len(found))


def is_recoverable(group: Any) -> bool:
    """Whether an unfinished set holds a whole kernel that a later import can recognize."""
    return any(
        entry is not None and entry.get("identity") is not None and not np.isnan(group["row_sum"][j, 0])
        for j, entry in enumerate(provenance_of(group, int(group["row_sum"].shape[0])))
    )


def create_array(
    group: Any,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str,
    fill: float,
    dims: tuple[str, ...] | None = None,
    *,
    overwrite: bool = False,
) -> Any:
    """Create an array of numbers; dimensions and meaning are those of `NODES`."""
    return group.create_array(
        name,
        shape=shape,
        chunks=tuple(max(1, length) for length in chunks),
        dtype=dtype,
        fill_value=fill,
        dimension_names=NODES[name].dims if dims is None else dims,
        # Kernel matrices hardly compress; stored as they are, a local tile can be memory-mapped instead of
        # decoded.
        filters=None,
        compressors=[Crc32cCodec()],
        # A tile of zeros is written like any other: a tile that is absent was never written.
        config={"write_empty_chunks": True},
        attributes={"long_name": NODES[name].doc, "units": "1"},
        overwrite=overwrite,
    )


def create_strings(group: Any, name: str, values: Array, dims: tuple[str, ...], meaning: str) -> None:
    """Write an array of strings, in one chunk."""
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=values.shape,
        dtype=str,
        dimension_names=dims,
        filters=None,
        compressors=[Crc32cCodec()],
        attributes={"long_name": meaning},
        overwrite=True,
    )
    array[...] = np.array([str(value) for value in values.ravel()], dtype=object).reshape(values.shape)
