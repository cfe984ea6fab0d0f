"""Writing a kernel set so that the writer can be killed at any time.

A local set is written to `<name>.partial` and renamed when it is complete: `<name>` is either a complete set or what
was there before. A set at a URL is written in place with the attribute ``"complete": false``; a set that replaces
another is written to `<name>.partial` too, and moved (see `dmkl.store.zarr_groups`). Row sums of a kernel are written
after all its tiles and mark it as done, so that an interrupted import continues with the first kernel without them. The
attributes of the root are written before the arrays, and identify an unfinished set.
"""

from __future__ import annotations

import math
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync as wait_for
from zarr.storage import LocalStore

from dmkl._version import version
from dmkl.arrays import Array
from dmkl.errors import InputError, MemoryBudgetError, StoreExistsError, refuse
from dmkl.files.regular import check_plain
from dmkl.files.syncing import sync, sync_tree
from dmkl.files.urls import Place, Url, as_place
from dmkl.files.writing import check_lock, lock, refuse_existing, remove_leftovers, replace_folder, reporting_full_disk
from dmkl.store import zarr_groups
from dmkl.store.features import FEATURES, FeatureTable, Scan, StoredTable, write_table
from dmkl.store.format import FORMAT, FORMAT_VERSION, PER_KERNEL, Header, content_id, kept_as_factors, write_array
from dmkl.store.reader import StoreReader
from dmkl.store.tiles import TileWriter, chunk_folder
from dmkl.store.zarr_groups import CHECKSUM, ROOT, Location, zarr_store

_UNRECORDED, _SECONDS = 50, 1.0
"""The root is written again once it lacks the provenance of one in so many kernels, at most once in so many seconds."""


class StoreWriter:
    """A kernel set while it is written.

    `n_kernels` is None if it is not known yet; `kept` of the kernels are kept as factors. With `overwrite` a finished
    set, or an unfinished one with another header, is replaced; the old set stays until the new one is complete (except
    in stores that cannot rename). Otherwise StoreExistsError is raised if there is a finished set, or anything else, at
    the location, and InputError if there is an unfinished set with another header.
    """

    def __init__(
        self, location: Location, header: Header, n_kernels: int | None, *, kept: int = 0, overwrite: bool = False
    ) -> None:
        self.location = zarr_groups.as_location(location)
        self.header = header
        self.tiling = header.tiling
        final = as_place(self.location) if isinstance(self.location, str) else None
        self._final: Place | None = final
        self._place: Place | None = None  # where the set is written until it is complete; None for a Zarr store
        if isinstance(final, Url):
            self._place = self._partial_url(final, overwrite=overwrite)
        elif final is not None:
            if final.exists() and not overwrite:
                refuse_existing(final)
            _check_room(final, header, None if n_kernels is None else n_kernels - kept)
            final.parent.mkdir(parents=True, exist_ok=True)
            self._place = zarr_groups.partial_path(final)
        self.folder = self._place if isinstance(self._place, Path) else None  # that of the unfinished set
        self._target: str | Store = self.location if self._place is None else str(self._place)
        self._nodes: dict[str, Any] = {}  # arrays that are open, and the writer of tiles
        self._crc = np.zeros(self.tiling.shape, dtype=np.uint32)  # checksums of the tiles that this object writes
        # `overwrite` refers to the set, not to other content of the folder that the set is written to.
        self._replace = overwrite and final is None
        self._group = self._resume(overwrite)
        self._resumed = self._group is not None
        if self._group is None:
            self._group = self._begin(n_kernels)
        if n_kernels is not None and self.n_kernels != n_kernels:
            self._resize(n_kernels)
        self._provenance = _provenance_of(self._group, self.n_kernels)
        self._unrecorded = 0  # kernels whose provenance the root lacks
        self._recorded = -math.inf  # when it was written last
        self._n_tables, self._tiled = 0, n_kernels is None or kept < n_kernels  # whether kernels have tiles

    @property
    def n_kernels(self) -> int:
        """Number of kernels that the arrays have room for."""
        return int(self._gram.shape[0])

    @property
    def _gram(self) -> Any:
        return self._node(self.header.node)

    def _node(self, name: str) -> Any:
        """An array of the set, which is opened once: for small kernels that takes as long as writing a tile."""
        if name not in self._nodes:
            self._nodes[name] = self._group[name]
        return self._nodes[name]

    @property
    def tiles(self) -> TileWriter:
        """Writes the tiles, here or in tasks."""
        if "tiles" not in self._nodes:
            self._nodes["tiles"] = TileWriter(self._target, self.header.node, self.tiling)
        return self._nodes["tiles"]  # type: ignore[no-any-return]

    # --- begin or continue ------------------------------------------------------------------------------------

    @staticmethod
    def _partial_url(final: Url, *, overwrite: bool) -> Url:
        """The URL to write to: `<name>.partial` if a set is to be replaced, or if this was begun before."""
        attrs, partial = zarr_groups.root_attributes(final), as_place(str(zarr_groups.partial_path(final)))
        assert isinstance(partial, Url)
        is_set = attrs.get("format") == FORMAT
        if is_set and attrs.get("complete") is True:
            if not overwrite:
                refuse_existing(final)
            return partial
        return partial if is_set and zarr_groups.root_attributes(partial).get("format") == FORMAT else final

    def _resume(self, overwrite: bool) -> Any:
        """The unfinished set at the target, if it can be continued."""
        try:
            group: Any = zarr.open_group(zarr_store(self._target), mode="r+", zarr_format=3, use_consolidated=False)
            attrs = dict(group.attrs)
        except (OSError, ValueError, KeyError):
            attrs = {}
        if self.folder is not None and (root := self.folder / ROOT).is_file() and not root.stat().st_size:
            self._clear()  # after a power cut
            return None
        if attrs.get("format") != FORMAT or attrs.get("format_version") not in range(1, FORMAT_VERSION + 1):
            # `_begin` refuses to replace anything but temporary files of a killed first write.
            if self.folder is not None and self.folder.is_dir():
                if all(entry.name.endswith(".partial") and entry.is_file() for entry in self.folder.iterdir()):
                    shutil.rmtree(self.folder)
            return None
        complete = attrs.get("complete") is True
        if complete and self._place is None:
            return None
        try:
            header = Header.of(group) if "row_sum" in group and "tile_crc32c" in group else None
            lengths = [int(group[name].shape[0]) for name in PER_KERNEL if name in group]
        except ValueError:  # metadata that a power cut has emptied
            header = None
        if header != self.header:
            # A message asks to store what overflows in a wider type.
            as_before = replace(self.header, dtype="float32") == header and self.header.dtype == "float64"
            if header is not None and not as_before and _is_recoverable(group) and not overwrite:
                old, new = asdict(header), asdict(self.header)
                differ = [f"{key} {old[key]!r} there, {new[key]!r} here" for key in new if old[key] != new[key]]
                way_out = "run the command that began it, or ask for it to be replaced (overwrite=True, --overwrite)"
                what = f"there is an unfinished set of another kind at {self._target}"
                refuse(f"{what} ({', '.join(differ)}); {way_out}")
            self._clear()
            return None
        if len(set(lengths)) > 1:  # killed while the arrays were resized
            self._group = group
            self._resize(min(lengths))
        if complete:  # a local set whose writer was killed just before it was renamed
            begun = {key: value for key, value in attrs.items() if key not in ("content_id", "created_by", CHECKSUM)}
            group.attrs.put({**begun, "format_version": 1, "complete": False})
        return group

    def _clear(self) -> None:
        """Remove an unfinished set of dmkl."""
        self._replace = True
        if isinstance(self._place, Url):
            zarr_groups.clear(self._place, {"format": FORMAT, "format_version": FORMAT_VERSION})
        elif self._place is not None:
            # The root is kept: if this is killed, it identifies the rest as an unfinished set.
            for entry in self._place.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry.name != ROOT:
                    entry.unlink()

    def _begin(self, n_kernels: int | None) -> Any:
        header = {"tile": self.header.tile, "symmetric": self.header.symmetric}
        attrs: dict[str, Any] = {"format": FORMAT, "format_version": 1, **header, "complete": False, "kernels": []}
        with self.writing():
            try:
                group = zarr.open_group(
                    zarr_store(self._target), mode="w" if self._replace else "w-", zarr_format=3, attributes=attrs
                )
            except (FileExistsError, NotADirectoryError) as error:
                replacing = "ask for it to be replaced (overwrite=True, --overwrite)"
                way_out = "move it away" if isinstance(self._target, str) else replacing
                what = f"{self._target} holds something already; choose another path"
                refuse(f"{what}, or {way_out}", error, StoreExistsError)
            for name in (self.header.node, "row_sum", "tile_crc32c"):
                self.header.create_node(group, name, n_kernels or 0)
            if self.folder is not None:
                sync_tree(self.folder)
        return group

    def _resize(self, n: int) -> None:
        for name in PER_KERNEL:
            if name in self._group:
                array = self._group[name]
                array.resize((n, *array.shape[1:]))
        self._nodes.clear()

    def abandon(self) -> None:
        """Remove the set after bad input, unless a later run can continue it."""
        self.keep()
        if self._resumed or _is_recoverable(self._group):
            return
        if isinstance(self._place, Url):
            zarr_groups.remove(self._place)
        elif self._place is not None:
            # Renamed first, so that tasks that still run cannot write to it while it is removed.
            aside = self._place.with_name(f"{self._place.name}.{uuid.uuid4().hex}")
            with suppress(FileNotFoundError):  # removed by another process: the error before is more important
                self._place.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    def keep(self) -> None:
        """Record what was written, for a later run to continue."""
        if self._unrecorded and (self.folder is None or (self.folder / ROOT).exists()):
            with self.writing():
                self._record()

    # --- one kernel -----------------------------------------------------------------------------------------

    def is_done(self, j: int, identity: dict[str, Any] | None) -> bool:
        """Whether kernel j is complete, and was computed from the same content."""
        recorded = (self._provenance[j] or {}).get("identity") if j < len(self._provenance) else None
        return identity is not None and recorded == identity and self._is_whole(j)

    def _is_whole(self, j: int) -> bool:
        """Whether kernel j has row sums, which are written last, and no file of it is short, as after a power cut."""
        try:
            row_sum, *_ = [self._node(name)[j] for name in PER_KERNEL[:3] if name in self._group]
        except (ValueError, RuntimeError):  # a checksum fails
            return False
        return not np.isnan(row_sum[0]) and all(self.tiles.has(j, row, col) for row, col in self.tiling.pairs())

    def _record(self) -> None:
        """Write the provenance of all kernels to the root, without which no kernel is found again."""
        self._group.update_attributes({"kernels": self._provenance})
        if self.folder is not None:
            sync(self.folder / ROOT)
        self._unrecorded, self._recorded = 0, time.monotonic()

    def begin_kernels(self, provenances: Mapping[int, dict[str, Any]]) -> None:
        """Make room for some kernels and record their provenance.

        The root lists all kernels and is written anew only if a fiftieth of them is missing or one is replaced, so that
        an import takes time linear in the kernels, and once in a second. A missing kernel does not count as done.

        These kernels no longer count as done. Tiles of the same content stay, for tasks to find
        (`TileWriter.read_written`); tiles of other content are removed before the record changes.
        """
        with self.writing():
            most = max(provenances) + 1
            if most > self.n_kernels:
                self._resize(most)
            self._provenance += [None] * (most - len(self._provenance))
            for j, provenance in provenances.items():
                replaced, before = self._provenance[j] is not None, (self._provenance[j] or {}).get("identity")
                if self._resumed or replaced:
                    self._node("row_sum")[j, :] = np.full(self.header.rows, np.nan)
                if before is None or before != provenance.get("identity"):
                    self._remove_tiles(j)
                self._provenance[j] = provenance
                self._unrecorded += self.n_kernels if replaced else 1
            is_due = time.monotonic() - self._recorded >= _SECONDS and _UNRECORDED * self._unrecorded >= most
            if is_due or self._unrecorded >= self.n_kernels:
                self._record()
        self._crc[:] = 0

    def keep_factors(self, provenances: Mapping[int, dict[str, Any]]) -> None:
        """Record the provenance of kernels that are kept as factors; tiles of an interrupted run are removed."""
        if not provenances:
            return
        before = kept_as_factors(self._provenance)
        with self.writing():
            for j, provenance in provenances.items():
                for name in () if self._provenance[j] is None or j in before else PER_KERNEL:
                    if name in self._group:  # row sums first: without them the kernel is not complete
                        wait_for(self._group.store.delete_dir(f"{self._group[name].path}/c/{j}"))
                self._provenance[j] = provenance
            self._record()

    def _remove_tiles(self, j: int) -> None:
        folder = chunk_folder(self._gram)
        if isinstance(self._place, Url):
            tiles = self._place / f"{self.header.node}/c/{j}"
            tiles.remove(list(tiles.files()))
        elif folder is not None:
            shutil.rmtree(f"{folder}/{j}", ignore_errors=True)

    def write_tile(self, j: int, row: int, col: int, block: Array) -> None:
        """Write one tile of kernel j."""
        with self.writing():
            self._crc[row, col] = self.tiles.write(j, row, col, block)

    def read_tile(self, j: int, row: int, col: int) -> Array:
        """A tile that was written."""
        return self.tiles.read(j, row, col)

    def end_kernel(
        self, j: int, row_sum: Array, diagonal: Array | None, checksums: npt.NDArray[np.uint32] | None = None
    ) -> None:
        """Record kernel j as done: its checksums (by default of `write_tile`) and diagonal, and its row sums last."""
        with self.writing():
            if diagonal is not None:
                if "diagonal" not in self._nodes and "diagonal" not in self._group:
                    self.header.create_node(self._group, "diagonal", self.n_kernels)
                    if self.folder is not None:
                        sync(self.folder / "diagonal" / ROOT)
                self._node("diagonal")[j, :] = diagonal
            elif "diagonal" in self._group:  # from an interrupted import with diagonals
                del self._group["diagonal"]
            self._node("tile_crc32c")[j] = self._crc if checksums is None else checksums
            self._node("row_sum")[j, :] = row_sum

    def link_kernel(
        self, j: int, provenance: dict[str, Any], reader: StoreReader, kernel: int, diagonal: Array | None
    ) -> bool:
        """Write kernel j by hard links to the tiles of a stored set, or copies of their files on another disk.

        `diagonal` is k(x, x) of new samples. False if tiles of the set are no files, missing, or of another form.
        """
        source, target = reader.tile_files(self.header), chunk_folder(self._gram)
        tiles = [f"{row}/{col}" for row, col in self.tiling.pairs()]
        size = self.header.tile**2 * np.dtype(self.header.dtype).itemsize + 4  # and its checksum
        if source is None or target is None or any(check_plain(source, f"{kernel}/{tile}") != size for tile in tiles):
            return False
        self.begin_kernels({j: provenance})
        self._remove_tiles(j)
        with self.writing():
            for tile in tiles:
                linked = Path(target, str(j), tile)
                linked.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(f"{source}/{kernel}/{tile}", linked)
                except OSError:
                    shutil.copyfile(f"{source}/{kernel}/{tile}", linked)
        place = np.array([kernel])
        row_sum, own = reader.row_sum(place), reader.diagonal(place) if self.header.symmetric else None
        assert row_sum is not None
        self.end_kernel(j, row_sum[0], diagonal if own is None else own[0], reader.tile_crc32c()[kernel])
        return True

    def add_provenance(self, j: int, more: Mapping[str, Any]) -> None:
        """Add facts about kernel j that are known once it has been read."""
        with self.writing():
            self._provenance[j] = {**(self._provenance[j] or {}), **more}
            self._record()

    def writing(self) -> AbstractContextManager[None]:
        """Check that this process still holds the lock (LockedError), and explain a full disk inside this context."""
        if self._final is not None:
            check_lock(self._final)
        return reporting_full_disk(self.location)

    # --- features ---------------------------------------------------------------------------------------------

    def add_features(self, scanned: Scan) -> FeatureTable:
        """Store one more table, unless an earlier run has written it there; returns it as a stored table."""
        number, self._n_tables = self._n_tables, self._n_tables + 1
        with self.writing():
            write_table(self._group, number, scanned, self.header.tile if self._tiled else None)
        return StoredTable.open(self._target, f"{FEATURES}/{number}")

    def copy_features(self, tables: Sequence[StoredTable]) -> None:
        """Store tables of other sets, in place of those of an earlier run, by copies of their files."""
        if tables:
            with self.writing():
                wait_for(self._group.store.delete_dir(FEATURES))
                self._group.require_group(FEATURES)
                for number, table in enumerate(tables):
                    wait_for(_copy(zarr_store(table.location), table.path, self._group.store, f"{FEATURES}/{number}"))
            self._n_tables = len(tables)

    def forget_features(self, names: Collection[str]) -> None:
        """Remove tables that are not needed once the kernels are written."""
        for key in list(self._group[FEATURES].group_keys()) if names else ():
            if self._group[f"{FEATURES}/{key}"].attrs.get("name") in names:
                del self._group[f"{FEATURES}/{key}"]

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self, names: Sequence[str], labels: dict[str, Array | None]) -> str | Store:
        """Write the labels, mark the set complete and rename or move it; returns its location."""
        with self.writing():
            if self.n_kernels != len(names):  # an interrupted import had more kernels
                self._resize(len(names))
                del self._provenance[len(names) :]
            for name, values in {"kernel": np.array(names, dtype=object), **labels}.items():
                if values is not None:
                    write_array(self._group, name, values)
                elif name in self._group:
                    del self._group[name]
            content = content_id(names, self._group["tile_crc32c"][:], self._provenance, self.header.dtype)
            form = FORMAT_VERSION if kept_as_factors(self._provenance) else 1
            attrs = {**self._group.attrs, "format_version": form, "complete": True, "content_id": content}
            attrs["created_by"] = f"dmkl {version()}"
            attrs["kernels"] = [
                {"name": n} | {key: value for key, value in (p or {}).items() if key != "name"}
                for n, p in zip(names, self._provenance, strict=True)
            ]
            for key in list(self._group[FEATURES].group_keys()) if FEATURES in self._group else ():
                if int(key) >= self._n_tables:  # from an interrupted build
                    del self._group[f"{FEATURES}/{key}"]
            if not self._n_tables and FEATURES in self._group:
                del self._group[FEATURES]
            folder = self._target.root if isinstance(self._target, LocalStore) else self.folder
            for stray in () if folder is None else Path(folder).rglob("*.partial"):
                stray.unlink()  # a temporary file of a write that was killed
            # One write of the root completes the set, also at a URL.
            zarr_groups.consolidate(self._target, attrs)
            self._unrecorded = 0  # the old set may be in this place from now on
        if self._final is not None:
            check_lock(self._final)
        if isinstance(self._place, Path) and isinstance(self._final, Path):
            with self.writing():
                replace_folder(self._place, self._final)
            remove_leftovers(self._final)  # of a run that was killed between the renames
        elif isinstance(self._place, Url) and isinstance(self._final, Url) and self._place != self._final:
            zarr_groups.put(self._place, self._final, {"format": FORMAT, "format_version": FORMAT_VERSION})
        return self.location


def _check_room(path: Path, header: Header, n_kernels: int | None) -> None:
    """Refuse a set whose `n_kernels` kernels with tiles are larger than its disk (InputError)."""
    disk = shutil.disk_usage(next(folder for folder in path.parents if folder.exists()))
    rows, cols = header.tiling.shape
    n_tiles = rows * (rows + 1) // 2 if header.tiling.upper else rows * cols
    needed_bytes = (1 if n_kernels is None else n_kernels) * n_tiles * header.tile**2 * np.dtype(header.dtype).itemsize
    if needed_bytes > disk.total:
        what = f"{header.describe(n_kernels)} takes {needed_bytes:.3g} bytes"
        way_out = "write it to another disk, or take fewer kernels"
        refuse(f"{what}, and the whole disk of {path} has {disk.total:.3g}; {way_out}")


def _provenance_of(group: Any, n_kernels: int) -> list[dict[str, Any] | None]:
    """Provenance of each kernel of an unfinished set; None for those that were never begun."""
    known = group.attrs["kernels"][:n_kernels]
    entries = [entry and {key: value for key, value in entry.items() if key != "name"} for entry in known]
    return entries + [None] * (n_kernels - len(entries))


def _is_recoverable(group: Any) -> bool:
    """Whether an unfinished set holds a complete kernel that a later import can recognize."""
    with suppress(ValueError, RuntimeError):  # row sums that a power cut has emptied
        return any(
            entry is not None and entry.get("identity") is not None and not np.isnan(group["row_sum"][j, 0])
            for j, entry in enumerate(_provenance_of(group, int(group["row_sum"].shape[0])))
        )
    return False


async def _copy(source: Store, old: str, target: Store, new: str) -> None:
    """Copy all keys below a path of a Zarr store."""
    async for key in source.list_prefix(f"{old}/"):
        content = await source.get(key, default_buffer_prototype())
        await target.set(f"{new}{key[len(old) :]}", content)  # type: ignore[arg-type]


@contextmanager
def writing_set(
    location: Location, header: Header, n_kernels: int | None, *, kept: int = 0, overwrite: bool = False
) -> Iterator[StoreWriter]:
    """Write a kernel set, and lock it if it is in a folder; bad input removes it unless a later run can continue it."""
    place = zarr_groups.as_location(location)
    with lock(place) if isinstance(place, str) else nullcontext():
        writer = StoreWriter(place, header, n_kernels, kept=kept, overwrite=overwrite)
        try:
            yield writer
        except (InputError, MemoryBudgetError):
            writer.abandon()
            raise
        except BaseException:
            with suppress(Exception):  # a full disk, or a lock that was lost
                writer.keep()
            raise
