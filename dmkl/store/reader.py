"""Reading a stored kernel set: its labels, and its tiles one after another with the next on its way."""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store

from dmkl import settings
from dmkl.arrays import Array, Index
from dmkl.errors import (
    CorruptTileError,
    DamagedFileError,
    DmklError,
    StoreError,
    StoreNotFoundError,
    one_line,
)
from dmkl.files.checksums import crc32c
from dmkl.files.urls import is_url
from dmkl.numerics.tiling import Tiling
from dmkl.store.chunks import plain_chunks
from dmkl.store.consistency import check_metadata, check_unique
from dmkl.store.metadata import is_sealed
from dmkl.store.opening import FileMark, Location, Root, as_location, other_set

__all__ = ["Location", "StoreReader"]

TileKey = tuple[int, int, int]
"""(kernel, tile row, tile column)"""


class StoreReader:
    """A stored kernel set, opened for reading.

    Cheap to pickle: what travels is its place and its content id. A copy opens the set when it is first asked for
    anything, in the task that reads it: where the set cannot be opened, that task fails, and not what unpickles.

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
        self._root = Root(self.location)
        self._group = self._root.open()
        self.attrs: dict[str, Any] = dict(self._group.attrs)
        self.sealed = is_sealed(self._group)  # whether its metadata carry a checksum
        try:
            check_metadata(self._group, self.attrs, str(self.location))
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
        self._chunks = plain_chunks(self._gram)
        self._verified: dict[TileKey, FileMark | None] = {}
        self._known: dict[str, dict[int, Array]] = {}
        self._table: npt.NDArray[np.uint32] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.location, self.content_id)

    if not TYPE_CHECKING:  # which would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__"):  # pickle and copy look for such names
                with _OPENING:
                    if "_root" not in self.__dict__:  # a copy that nobody has asked before
                        self.__dict__.update(vars(_reopened(self.location, self.content_id)))
                if name in self.__dict__:
                    return self.__dict__[name]
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)

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
        self._verified, self._known, self._table = {}, {}, None

    # --- tiles ----------------------------------------------------------------------------------------------

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """Yield each tile, without padding; the next one is fetched while the caller works on this one.

        An uncompressed local tile is memory-mapped and never copied; the kernel is asked to read the next one
        ahead. One in an object store is fetched in ranges. Any other is read and decoded by Zarr in a second thread.
        """
        if not keys:
            return
        self._root.check(self.content_id)
        try:
            upcoming = self._begin(keys[0])
            for position, key in enumerate(keys):
                current = upcoming
                if position + 1 < len(keys):
                    upcoming = self._begin(keys[position + 1])
                yield key, self._finish(key, current)
        except StoreError:
            # Where the set was deleted or exchanged meanwhile, that is what has to be said, not that a tile is wrong.
            self._root.check(self.content_id)
            raise
        self._root.check(self.content_id)

    def tile(self, key: TileKey) -> Array:
        """One tile, without padding."""
        return self._finish(key, self._begin(key))

    def verify(self, kernel: int) -> StoreError | None:
        """Read every tile of a kernel from the store and check it, whatever was checked before; what is wrong first."""
        self.forget()
        try:
            for key, tile in self.stream([(kernel, row, col) for row, col in self.tiling.pairs()]):
                self._compare(key, crc32c(tile))
        except StoreError as error:
            return error
        return None

    def _begin(self, key: TileKey) -> Any:
        if self._chunks is not None:
            with self._naming(key):
                return self._chunks.begin(key, self._chunk_bytes)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="dmkl-read-ahead")
        return self._pool.submit(self._decode, key)

    def _finish(self, key: TileKey, begun: Any) -> Array:
        if self._chunks is None:
            tile: Array = begun.result()
            if self._must_verify(key, None):
                self._compare(key, crc32c(tile))
                self._verified[key] = None
            return tile
        with self._naming(key):
            begun = self._chunks.finish(begun)
        if isinstance(begun, int):
            msg = (
                f"{self._name(key)} has {begun} bytes, expected {self._chunk_bytes}; import or build this kernel again"
            )
            raise CorruptTileError(msg)
        mapped, mark = begun
        side = self.tiling.tile
        rows, cols = self.tiling.tile_shape(key[1], key[2])
        tile = np.frombuffer(mapped, dtype=self.dtype, count=side * side).reshape(side, side)[:rows, :cols]
        if self._must_verify(key, mark):
            view = memoryview(mapped)
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
            self._verified[key] = mark
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

    def _must_verify(self, key: TileKey, mark: FileMark | None) -> bool:
        rule = settings.get("verify")
        known = key in self._verified and self._verified[key] == mark  # a file that was written since is another
        return bool(rule == "always" or (rule == "first" and not known))

    @property
    def _chunk_bytes(self) -> int:
        """Bytes of a stored tile with its padding and its checksum."""
        return int(self.tiling.tile**2 * self.dtype.itemsize) + 4

    @contextmanager
    def _naming(self, key: TileKey) -> Iterator[None]:
        """Say of which tile it is that its bytes are not there, or do not come."""
        try:
            yield
        except FileNotFoundError as error:
            path = f" ({error.filename})" if error.filename else ""
            msg = f"{self._name(key)} is missing{path}; import or build this kernel again"
            raise CorruptTileError(msg) from error
        except DamagedFileError as error:
            msg = f"{self._name(key)} cannot be read: {error}"
            raise CorruptTileError(msg) from error
        except Exception as error:
            if not is_url(self.location):
                raise
            msg = f"{self._name(key)} cannot be fetched: {one_line(error)}; run it again when the object store answers"
            raise StoreError(msg) from error

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
_ARRIVED: OrderedDict[tuple[str, str], StoreReader] = OrderedDict()
_ARRIVING = threading.Lock()
_OPENING = threading.RLock()


def _arrived(location: str | Store, content_id: str) -> StoreReader:
    """A set in a worker, to be opened, once for all the tasks that read it there."""
    reader = StoreReader.__new__(StoreReader)
    reader.location, reader.content_id = location, content_id
    if not isinstance(location, str):
        return reader
    with _ARRIVING:
        reader = _ARRIVED.setdefault((location, content_id), reader)
        while len(_ARRIVED) > 8:
            _ARRIVED.popitem(last=False)
    return reader


def _reopened(location: str | Store, content_id: str) -> StoreReader:
    """Open a set in a process to which it was sent."""
    try:
        reader = StoreReader(location)
    except StoreNotFoundError as error:
        msg = (
            f"there is no kernel set at {location} on {socket.gethostname()}, where a task is to read it. The path "
            "must mean the same folder on every machine: put the set on a file system that all share, or compute with "
            "--cluster threads"
        )
        raise StoreNotFoundError(msg) from error
    if reader.content_id != content_id:
        raise StoreError(other_set(location, content_id, reader.content_id))
    return reader


def _strings(values: Any) -> Array:
    return np.array([str(value) for value in values], dtype=object) if len(values) else np.array([], dtype=object)
