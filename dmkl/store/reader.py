"""Reading a stored kernel set: its labels, and its tiles one after another with the next on its way."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store

from dmkl import settings
from dmkl.arrays import Array, Index
from dmkl.errors import (
    CorruptTileError,
    DmklError,
    FormatVersionError,
    IncompleteStoreError,
    StoreError,
    StoreNotFoundError,
    one_line,
)
from dmkl.files.checksums import crc32c
from dmkl.numerics.tiling import Tiling
from dmkl.store.consistency import check_metadata, check_unique
from dmkl.store.metadata import is_sealed, open_group
from dmkl.store.schema import FORMAT, FORMAT_VERSION
from dmkl.store.tiles import plain_folder

__all__ = ["Location", "StoreReader", "partial_path"]

Location = str | os.PathLike[str] | Store
TileKey = tuple[int, int, int]
"""(kernel, tile row, tile column)"""


def partial_path(path: Path) -> Path:
    """Where a local set is written until it is complete: beside its place, under a name of its own."""
    return path.with_name(path.name + ".partial")


def as_location(location: Location) -> str | Store:
    """A local folder as an absolute path, anything else (a URL, a Zarr store) as it is."""
    if isinstance(location, Store):
        return location
    text = os.fspath(location)
    return text if "://" in text else str(Path(text).expanduser().absolute())


class StoreReader:
    """A stored kernel set, opened for reading. Cheap to pickle: a copy opens the set again where it arrives.

    Parameters
    ----------
    location
        A folder, a URL or a Zarr store.

    Raises
    ------
    StoreNotFoundError
        If there is nothing at `location`.
    IncompleteStoreError
        If the set was never finished.
    FormatVersionError
        If it was written by a newer dmkl.
    StoreError
        If it is not a kernel set.
    """

    reads_per_tile = 1  # stored tiles that one tile costs to read
    scratch_bytes = 0  # memory that reading a tile takes beside the tile

    def __init__(self, location: Location) -> None:
        self.location = as_location(location)
        self._group = _open_group(self.location)
        attrs = dict(self._group.attrs)
        _check_root(attrs, str(self.location))
        self.attrs: dict[str, Any] = attrs
        self.sealed = is_sealed(self._group)  # whether its metadata carry a checksum
        try:
            check_metadata(self._group, attrs, str(self.location))
            self._open()
        except DmklError:
            raise
        except KeyError as error:
            msg = f"{self.location} is damaged: it has no {error.args[0]!r}; import or build it again"
            raise StoreError(msg) from error
        except Exception as error:  # what Zarr raises for damaged metadata, names or labels is of many kinds
            told = one_line(error)
            msg = f"{self.location} is damaged: its names or labels cannot be read ({told}); import or build it again"
            raise StoreError(msg) from error

    def _open(self) -> None:
        attrs = self.attrs
        self.symmetric = bool(attrs["symmetric"])
        self.content_id = str(attrs["content_id"])
        self._gram = self._group["gram_upper" if "gram_upper" in self._group else "gram"]
        self.full = self._gram.basename == "gram"
        self.dtype = np.dtype(self._gram.dtype)
        n_kernels, rows, cols = self._gram.shape
        self.shape: tuple[int, int, int] = (n_kernels, rows, cols)
        # Of a symmetric set stored in full the tiles below the diagonal are never read: they repeat the upper
        # ones.
        self.tiling = Tiling(rows, cols, int(attrs["tile"]), upper=self.symmetric)
        self.names: tuple[str, ...] = tuple(str(name) for name in self._group["kernel"][:])
        self.samples: Array = _strings(self._group["sample"][:])
        self.train_samples: Array = (
            _strings(self._group["train_sample"][:]) if "train_sample" in self._group else self.samples
        )
        for what, names in (("kernel", self.names), ("sample", self.samples), ("train_sample", self.train_samples)):
            check_unique(names, what, str(self.location))
        self.labels: Array | None = self._optional("label")
        if self.labels is None:
            self.labels = self._optional("target")
        self.tasks: Array | None = self._optional("task")
        self.splits: Array | None = self._optional("split")
        self._files = plain_folder(self._gram)
        self._verified: set[TileKey] = set()
        self._known: dict[str, dict[int, Array]] = {}
        self._table: npt.NDArray[np.uint32] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.location, self.content_id)

    def __dask_tokenize__(self) -> tuple[str, str, str]:
        return type(self).__name__, str(self.location), self.content_id

    def _optional(self, name: str) -> Array | None:
        if name not in self._group:
            return None
        values = np.asarray(self._group[name][:])
        return _strings(values) if values.dtype.kind in "TOU" else values

    @property
    def provenance(self) -> list[dict[str, Any]]:
        """How each kernel was made, one mapping a kernel."""
        return list(self.attrs.get("kernels", []))

    def diagonal(self, kernels: Index) -> Array | None:
        """k(x, x) of every sample, (kernel, sample) in float64; None where a rectangular set has none."""
        return self._statistic("diagonal", kernels) if self._has_diagonal else None

    @cached_property
    def _has_diagonal(self) -> bool:
        return "diagonal" in self._group

    def row_sum(self, kernels: Index) -> Array:
        """Sum of every row over all columns, (kernel, sample) in float64."""
        return self._statistic("row_sum", kernels)

    def _statistic(self, name: str, kernels: Index) -> Array:
        n_kernels, rows, _ = self.shape
        if n_kernels * rows * 8 > _SMALL_BYTES:
            return self._read_statistic(name, kernels)
        # Those of a small set are kept: Zarr takes some milliseconds for them, which is as long as a pass.
        known = self._known.setdefault(name, {})
        new = np.setdiff1d(kernels, list(known))
        if len(new):
            known.update(zip(new.tolist(), self._read_statistic(name, new), strict=True))
        return np.array([known[k] for k in kernels.tolist()]).reshape(len(kernels), rows)

    def _read_statistic(self, name: str, kernels: Index) -> Array:
        where = f"{name!r} of {self.location}"
        try:
            values = np.asarray(self._group[name].oindex[kernels, slice(None)], dtype=np.float64)
        except Exception as error:
            msg = f"{where} is damaged: {one_line(error)}; import or build the set again"
            raise StoreError(msg) from error
        missing = np.flatnonzero(np.isnan(values).any(axis=1))  # an absent chunk reads as the fill value
        if len(missing):
            msg = f"{where} is missing for kernel {self.names[kernels[missing[0]]]!r}; import or build the set again"
            raise StoreError(msg)
        return values

    def tile_crc32c(self) -> npt.NDArray[np.uint32]:
        """CRC32C of every tile without its padding, (kernel, tile_row, tile_col)."""
        table = self._table
        if table is None:
            try:
                table = self._table = np.asarray(self._group["tile_crc32c"][:], dtype=np.uint32)
            except Exception as error:
                msg = f"'tile_crc32c' of {self.location} is damaged: {one_line(error)}; import or build the set again"
                raise StoreError(msg) from error
        return table

    def forget(self) -> None:
        """Read everything from the store again that has been read before."""
        self._verified, self._known, self._table = set(), {}, None

    # --- tiles ----------------------------------------------------------------------------------------------

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """Yield each tile, without padding; the next one is fetched while the caller works on this one.

        An uncompressed local tile is memory-mapped and never copied; the kernel is asked to read the next one
        ahead. Any other is read and decoded by Zarr in a second thread.
        """
        if not keys:
            return
        upcoming = self._begin(keys[0])
        for position, key in enumerate(keys):
            current = upcoming
            if position + 1 < len(keys):
                upcoming = self._begin(keys[position + 1])
            yield key, self._finish(key, current)

    def tile(self, key: TileKey) -> Array:
        """One tile, without padding."""
        return self._finish(key, self._begin(key))

    def verify(self, kernel: int) -> CorruptTileError | None:
        """Read every tile of a kernel from the store and check it, whatever was checked before; what is wrong first."""
        self.forget()
        try:
            for key, tile in self.stream([(kernel, row, col) for row, col in self.tiling.pairs()]):
                self._compare(key, crc32c(tile))
        except CorruptTileError as error:
            return error
        return None

    def _begin(self, key: TileKey) -> Any:
        if self._files is not None:
            return self._map(key)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="dmkl-read-ahead")
        return self._pool.submit(self._decode, key)

    def _finish(self, key: TileKey, begun: Any) -> Array:
        if self._files is None:
            tile: Array = begun.result()
            if self._must_verify(key):
                self._compare(key, crc32c(tile))
                self._verified.add(key)
            return tile
        side = self.tiling.tile
        rows, cols = self.tiling.tile_shape(key[1], key[2])
        tile = np.frombuffer(begun, dtype=self.dtype, count=side * side).reshape(side, side)[:rows, :cols]
        if self._must_verify(key):
            view = memoryview(begun)
            stored = int.from_bytes(view[-4:], "little")
            found = google_crc32c.value(np.frombuffer(view[:-4], dtype=np.uint8))
            if stored != found:
                msg = (
                    f"{self._name(key)} fails its checksum: stored {stored:08x}, computed {found:08x}. The "
                    "file was damaged after it was written; import or build this kernel again"
                )
                raise CorruptTileError(msg)
            # The chunk's own checksum goes with the file: only the table knows a tile that was exchanged for
            # another.
            self._compare(key, found if (rows, cols) == (side, side) else crc32c(tile))
            self._verified.add(key)
        return tile

    def _compare(self, key: TileKey, found: int) -> None:
        expected = int(self.tile_crc32c()[key])
        if found != expected:
            msg = (
                f"{self._name(key)} is not the tile that was written there: its checksum is {found:08x}, the "
                f"set's table says {expected:08x}. It was exchanged or replaced; import or build this kernel "
                "again"
            )
            raise CorruptTileError(msg)

    def _must_verify(self, key: TileKey) -> bool:
        rule = settings.get("verify")
        return bool(rule == "always" or (rule == "first" and key not in self._verified))

    def _map(self, key: TileKey) -> mmap.mmap:
        assert self._files is not None
        path = f"{self._files}/{key[0]}/{key[1]}/{key[2]}"
        expected = self.tiling.tile**2 * self.dtype.itemsize + 4
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                size = os.fstat(descriptor).st_size
                if size != expected:
                    msg = f"{self._name(key)} has {size} bytes, expected {expected}; import or build this kernel again"
                    raise CorruptTileError(msg)
                mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            msg = f"{self._name(key)} is missing ({path}); import or build this kernel again"
            raise CorruptTileError(msg) from error
        if hasattr(mmap, "MADV_WILLNEED"):
            mapped.madvise(mmap.MADV_WILLNEED)
        return mapped

    def _decode(self, key: TileKey) -> Array:
        j, row, col = key
        try:
            tile = np.asarray(self._gram[j, self.tiling.row_slice(row), self.tiling.col_slice(col)])
        except Exception as error:  # what Zarr's codecs raise for a damaged chunk
            msg = f"{self._name(key)} cannot be read: {one_line(error)}"
            raise CorruptTileError(msg) from error
        # An absent chunk reads as the fill value, NaN, which no stored tile holds.
        if np.isnan(tile.ravel()[0]):
            msg = f"{self._name(key)} is missing; import or build this kernel again"
            raise CorruptTileError(msg)
        return tile

    def _name(self, key: TileKey) -> str:
        return f"tile ({key[1]}, {key[2]}) of kernel {self.names[key[0]]!r} in {self.location}"


_SMALL_BYTES = 4 * 2**20
_OPENED: OrderedDict[tuple[str, str], StoreReader] = OrderedDict()
_OPENED_LOCK = threading.Lock()


def _reopen(location: str | Store, content_id: str) -> StoreReader:
    """Open a set in a worker, once for all the tasks that read it there."""
    if not isinstance(location, str):
        return StoreReader(location)
    key = (location, content_id)
    with _OPENED_LOCK:
        if key not in _OPENED:
            reader = StoreReader(location)
            if reader.content_id != content_id:
                msg = (
                    f"{location} holds another set now ({reader.content_id}) than when this computation "
                    f"began ({content_id}); open it again with dmkl.open"
                )
                raise StoreError(msg)
            _OPENED[key] = reader
            while len(_OPENED) > 8:
                _OPENED.popitem(last=False)
        return _OPENED[key]


def _strings(values: Any) -> Array:
    return np.array([str(value) for value in values], dtype=object) if len(values) else np.array([], dtype=object)


def _open_group(location: str | Store) -> Any:
    try:
        return open_group(location)
    except FileNotFoundError as error:
        if isinstance(location, str) and "://" not in location and partial_path(Path(location)).exists():
            msg = (
                f"{location} is not finished: an interrupted import or build of it stands at "
                f"{partial_path(Path(location))}. Run the same command again and it goes on from there"
            )
            raise IncompleteStoreError(msg) from error
        msg = f"there is no kernel set at {location}; make one with dmkl.create or `dmkl import`"
        raise StoreNotFoundError(msg) from error
    except DmklError:
        raise
    except Exception as error:  # a Zarr array, or metadata that cannot be read
        msg = f"{location} is no Zarr group, so no kernel set: {one_line(error)}"
        raise StoreError(msg) from error


def _check_root(attrs: dict[str, Any], where: str) -> None:
    if attrs.get("format") != FORMAT:
        msg = (
            f"{where} is a Zarr group but not a kernel set: its attribute 'format' is "
            f"{attrs.get('format')!r:.80}, expected {FORMAT!r}"
        )
        raise StoreError(msg)
    version = attrs.get("format_version")
    if not isinstance(version, int) or version < 1:
        msg = f"{where} has format_version {version!r}, expected an integer from 1 to {FORMAT_VERSION}"
        raise StoreError(msg)
    if version > FORMAT_VERSION:
        msg = (
            f"{where} has format version {version}, and this dmkl reads up to {FORMAT_VERSION}; install a "
            "newer dmkl (pip install --upgrade dmkl)"
        )
        raise FormatVersionError(msg)
    if attrs.get("complete") is not True:
        msg = f"{where} is not finished: its import or build was interrupted. Run the same command again and it goes on"
        raise IncompleteStoreError(msg)
