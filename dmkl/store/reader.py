"""Reading a stored kernel set: its names and labels, and its tiles, each checked while the next is fetched."""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import google_crc32c
import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store

from dmkl import settings
from dmkl.arrays import Array, Index, TileKey
from dmkl.errors import (
    CorruptTileError,
    DamagedFileError,
    DmklError,
    IncompleteStoreError,
    StoreError,
    StoreNotFoundError,
    damage,
    one_line,
    refuse,
)
from dmkl.files.arrays import crc32c
from dmkl.files.urls import as_given, as_place, is_url
from dmkl.files.writing import current
from dmkl.store.format import FORMAT, FORMAT_VERSION, Header, check_metadata, kept_as_factors, text_array
from dmkl.store.tiles import FileVersion, chunk_folder, chunk_reader, root_version
from dmkl.store.zarr_groups import CHECKSUM, Location, as_location, check_version, open_group, partial_path


def _refuse_other_set(location: str | Store, before: str, now: str) -> NoReturn:
    what = f"{location} holds another set now ({now}) than when this computation began ({before})"
    refuse(f"{what}, on {socket.gethostname()}; open it again with dmkl.open", kind=StoreError)


def _open_group(location: str | Store) -> Any:
    with damage(f"{location} is not a Zarr group, and so not a kernel set", but=DmklError):
        try:
            return open_group(location)
        except FileNotFoundError as error:
            begun = partial_path(as_place(location)) if isinstance(location, str) else None
            if begun is not None and begun.exists():
                what = f"{location} is not finished: an interrupted import or build of it is at {begun}"
                refuse(f"{what}. Run the same command again to continue it", error, IncompleteStoreError)
            what = f"there is no kernel set at {location}"
            refuse(f"{what}; make one with dmkl.create or `dmkl import`", error, StoreNotFoundError)


def open_root(location: str | Store) -> Any:
    """The group of a kernel set; raises as `StoreReader`."""
    group, where = _open_group(location), str(location)
    attrs = dict(group.attrs)
    if attrs.get("format") != FORMAT:
        reason = f"its attribute 'format' is {attrs.get('format')!r:.80}, expected {FORMAT!r}"
        refuse(f"{where} is a Zarr group but not a kernel set: {reason}", kind=StoreError)
    check_version(attrs, where, FORMAT_VERSION, "kernel set")
    if attrs.get("complete") is not True:
        what = f"{where} is not finished: its import or build was interrupted"
        refuse(f"{what}. Run the same command again to continue it", kind=IncompleteStoreError)
    return group


class StoreReader:
    """A stored kernel set, opened for reading.

    A pickle contains only the location and the content id. The copy opens the set at the first access to an attribute,
    in the task that reads it: if the set cannot be opened, that task fails, and not the unpickling.

    StoreNotFoundError is raised if there is nothing at the location, IncompleteStoreError if the set was never
    finished, FormatVersionError if it was written by a newer dmkl, StoreError if it is not a kernel set.
    """

    reads_per_tile = 1  # stored tiles that are read for one tile
    factors: Any = None
    scratch_bytes: Any = 0  # memory for reading a tile, in addition to the tile

    def __init__(self, location: Location) -> None:
        self.location = as_location(location)
        self.given = "" if isinstance(location, Store) else as_given(location)
        if isinstance(self.location, str) and not is_url(self.location):
            self.location = str(current(Path(self.location)))
        self._version = root_version(self.location)
        self._group = open_root(self.location)
        self.attrs: dict[str, Any] = dict(self._group.attrs)
        self.has_checksum = CHECKSUM in self._group.attrs
        what = f"{self.location} is damaged: its names or labels cannot be read"
        with damage(what, "import or build it again", but=DmklError):
            try:
                self._open(check_metadata(self._group, self.attrs, str(self.location)))
            except KeyError as error:
                what = f"{self.location} is damaged: it has no {error.args[0]!r}"
                refuse(f"{what}; import or build it again", error, StoreError)

    def _check_same_set(self) -> None:
        """Refuse a set in a local folder that was deleted, moved or replaced since it was opened; one `stat`."""
        if self._version is None or self._version == (now := root_version(self.location)):
            return
        try:
            present = str(_open_group(self.location).attrs.get("content_id"))
        except StoreNotFoundError as error:
            what = f"the kernel set at {self.location} is gone from {socket.gethostname()}: it was deleted or moved"
            way_out = "Put it back and run the same again, or import or build it again"
            refuse(f"{what} while it was read. {way_out}", error, StoreNotFoundError)
        if present != self.content_id:
            _refuse_other_set(self.location, self.content_id, present)
        self._version = now

    def _open(self, header: Header) -> None:
        self.symmetric, self.dtype = header.symmetric, np.dtype(header.dtype)
        self.content_id = str(self.attrs["content_id"])
        self.kept = kept_as_factors(self.attrs["kernels"])  # `FactorReader` computes the tiles of these
        self._gram, self.full = self._group[header.node], header.node == "gram"
        self.shape: tuple[int, int, int] = self._gram.shape
        # Tiles below the diagonal of a symmetric set stored in full are never read: they repeat the upper ones.
        self.tiling = replace(header.tiling, upper=self.symmetric)
        self.names: tuple[str, ...] = tuple(str(name) for name in self._group["kernel"][:])
        self.samples: Array = text_array(self._group["sample"][:])
        self.train_samples: Array = (
            text_array(self._group["train_sample"][:]) if "train_sample" in self._group else self.samples
        )
        for node, names in (("kernel", self.names), ("sample", self.samples), ("train_sample", self.train_samples)):
            if len(set(names)) < len(names):  # also where a chunk is missing
                what = f"{self.location} is damaged: the names in {node!r} are not unique"
                refuse(f"{what}; import or build it again", kind=StoreError)
        self.labels = self._optional("label" if "label" in self._group else "target")
        self.tasks, self.splits = self._optional("task"), self._optional("split")
        self.provenance: list[dict[str, Any]] = list(self.attrs["kernels"])  # how each kernel was made
        self._has_diagonal = "diagonal" in self._group
        self._chunks = chunk_reader(self._gram)
        self._chunk_bytes = header.tile**2 * self.dtype.itemsize + 4  # of a tile with its padding and its checksum
        self._verified: dict[TileKey, FileVersion | None] = {}
        self._statistics: dict[str, dict[int, Array]] = {}
        self._table: npt.NDArray[np.uint32] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.location, self.content_id)

    if not TYPE_CHECKING:  # a type checker would accept every name as an attribute

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__"):  # pickle and copy look for such names
                with _OPENING:
                    if "_group" not in self.__dict__:  # a copy at its first access
                        self.__dict__.update(vars(_open_again(self.location, self.content_id)))
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
        return text_array(values) if values.dtype.kind in "TOU" else values

    def diagonal(self, kernels: Index) -> Array | None:
        """k(x, x) of every sample, (kernel, sample) in float64; None where a rectangular set has none."""
        return self._statistic("diagonal", kernels) if self._has_diagonal else None

    def row_sum(self, kernels: Index) -> Array | None:
        """Sum of every row over all columns, (kernel, sample) in float64."""
        return self._statistic("row_sum", kernels)

    def _statistic(self, name: str, kernels: Index) -> Array:
        n_kernels, rows, _ = self.shape
        if n_kernels * rows * 8 > SMALL_BYTES:
            return self._read_statistic(name, kernels)
        # Kept for small sets: Zarr takes some milliseconds to read them, as long as a pass.
        cache = self._statistics.setdefault(name, {})
        new = np.setdiff1d(kernels, list(cache))
        if len(new):
            cache.update(zip(new.tolist(), self._read_statistic(name, new), strict=True))
        return np.array([cache[k] for k in kernels.tolist()]).reshape(len(kernels), rows)

    def _read_statistic(self, name: str, kernels: Index) -> Array:
        node = f"{name!r} of {self.location}"
        with damage(f"{node} is damaged", "import or build the set again"):
            values = np.asarray(self._group[name].oindex[kernels, slice(None)], dtype=np.float64)
        missing = np.flatnonzero(np.isnan(values).any(axis=1))  # an absent chunk reads as the fill value
        if len(missing):
            what = f"{node} is missing for kernel {self.names[kernels[missing[0]]]!r}"
            refuse(f"{what}; import or build the set again", kind=StoreError)
        return values

    def tile_files(self, header: Header) -> str | None:
        """The folder of the files of tiles, if those of a set with this header are of the same form; else None."""
        return chunk_folder(self._gram) if Header.of(self._group) == header else None

    def tile_crc32c(self) -> npt.NDArray[np.uint32]:
        """CRC32C of every tile without its padding, (kernel, tile_row, tile_col)."""
        if self._table is None:
            with damage(f"'tile_crc32c' of {self.location} is damaged", "import or build the set again"):
                self._table = np.asarray(self._group["tile_crc32c"][:], dtype=np.uint32)
        return self._table

    def forget(self) -> None:
        """Discard what was read, so that it is read from the store again."""
        self._verified, self._statistics, self._table = {}, {}, None

    def stream(self, keys: Sequence[TileKey]) -> Iterator[tuple[TileKey, Array]]:
        """Yield each tile, without padding; the next tile is fetched while the caller works on this one.

        An uncompressed local tile is memory-mapped without a copy, and the kernel is asked to read the next one ahead.
        A tile in an object store is fetched in ranges. Zarr reads and decodes other tiles in a second thread.
        """
        if not keys:
            return
        self._check_same_set()
        try:
            upcoming = self._begin(keys[0])
            for position, key in enumerate(keys):
                current = upcoming
                if position + 1 < len(keys):
                    upcoming = self._begin(keys[position + 1])
                yield key, self._finish(key, current)
        except StoreError:
            # If the set was deleted or replaced meanwhile, the error says so instead of naming a damaged tile.
            self._check_same_set()
            raise
        self._check_same_set()

    def verify(self, kernel: int) -> StoreError | None:
        """Read and check every tile of a kernel, also those checked before; returns the first error."""
        self.forget()
        try:
            self._read_again(kernel)
        except StoreError as error:
            return error
        return None

    def _read_again(self, kernel: int) -> None:
        for key, tile in self.stream([(kernel, row, col) for row, col in self.tiling.pairs()]):
            self._compare(key, crc32c(tile))

    def _begin(self, key: TileKey) -> Any:
        if self._chunks is not None:
            with self._errors_of(key):
                return self._chunks(key, self._chunk_bytes)
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
        with self._errors_of(key):
            begun = begun.result() if isinstance(begun, Future) else begun
        if isinstance(begun, int):
            self._refuse(key, f"has {begun} bytes, expected {self._chunk_bytes}")
        mapped, version = begun
        side = self.tiling.tile
        rows, cols = self.tiling.tile_shape(key[1], key[2])
        tile = np.frombuffer(mapped, dtype=self.dtype, count=side * side).reshape(side, side)[:rows, :cols]
        if self._must_verify(key, version):
            view = memoryview(mapped)
            stored = int.from_bytes(view[-4:], "little")
            computed = google_crc32c.value(np.frombuffer(view[:-4], dtype=np.uint8))
            if stored != computed:
                checksums = f"stored {stored:08x}, computed {computed:08x}"
                self._refuse(key, f"fails its checksum: {checksums}. The file was damaged after it was written")
            # The chunk's checksum is part of the file: only the table detects a file that was replaced by another tile.
            self._compare(key, computed if (rows, cols) == (side, side) else crc32c(tile))
            self._verified[key] = version
        return tile

    def _compare(self, key: TileKey, computed: int) -> None:
        expected = int(self.tile_crc32c()[key])
        if computed != expected:
            checksums = f"its checksum is {computed:08x}, and the set's table has {expected:08x}"
            self._refuse(key, f"is not the tile that was written there: {checksums}. The file was replaced")

    def _must_verify(self, key: TileKey, version: FileVersion | None) -> bool:
        rule = settings.get("verify")
        verified = key in self._verified and self._verified[key] == version
        return bool(rule == "always" or (rule == "first" and not verified))

    @contextmanager
    def _errors_of(self, key: TileKey) -> Iterator[None]:
        """Name the tile in errors of reading its bytes."""
        try:
            yield
        except FileNotFoundError as error:
            self._refuse(key, f"is missing ({error.filename})" if error.filename else "is missing", error)
        except DamagedFileError as error:
            refuse(f"{self._name(key)} cannot be read: {error}", error, CorruptTileError)
        except Exception as error:
            if not is_url(self.location):
                raise
            what = f"{self._name(key)} cannot be fetched: {one_line(error)}"
            refuse(f"{what}; run it again when the object store answers", error, StoreError)

    def _decode(self, key: TileKey) -> Array:
        j, row, col = key
        with damage(f"{self._name(key)} cannot be read", kind=CorruptTileError):
            tile = np.asarray(self._gram[j, self.tiling.row_slice(row), self.tiling.col_slice(col)])
        # An absent chunk is read as the fill value NaN, which no stored tile holds.
        if np.isnan(tile.ravel()[0]):
            self._refuse(key, "is missing")
        return tile

    def _name(self, key: TileKey) -> str:
        return f"tile ({key[1]}, {key[2]}) of kernel {self.names[key[0]]!r} in {self.location}"

    def _refuse(self, key: TileKey, problem: str, cause: Exception | None = None) -> NoReturn:
        refuse(f"{self._name(key)} {problem}; import or build this kernel again", cause, CorruptTileError)


SMALL_BYTES = 4 * 2**20
_UNPICKLED: OrderedDict[tuple[type, str, str], StoreReader] = OrderedDict()
_UNPICKLING = threading.Lock()
_OPENING = threading.RLock()


def _unpickle(kind: type[StoreReader], location: str | Store, content_id: str) -> StoreReader:
    """A reader that opens its set later; all tasks of a process share one for each set."""
    reader = kind.__new__(kind)
    reader.location, reader.content_id = location, content_id
    if not isinstance(location, str):
        return reader
    with _UNPICKLING:
        reader = _UNPICKLED.setdefault((kind, location, content_id), reader)
        while len(_UNPICKLED) > 8:
            _UNPICKLED.popitem(last=False)
    return reader


def _open_again(location: str | Store, content_id: str) -> StoreReader:
    """Open a set in a process that received a reader of it."""
    try:
        reader = StoreReader(location)
    except StoreNotFoundError as error:
        what = f"there is no kernel set at {location} on {socket.gethostname()}, where a task is to read it"
        rule = "The path must mean the same folder on every machine"
        way_out = "put the set on a file system that all share, or compute with --cluster threads"
        refuse(f"{what}. {rule}: {way_out}", error, StoreNotFoundError)
    if reader.content_id != content_id:
        _refuse_other_set(location, content_id, reader.content_id)
    return reader
