"""Writing a kernel set so that it can be killed at any moment: tiles, each kernel's record, `complete` last.

A local set is written beside its place, in `<name>.partial`, and renamed when it is complete: at its own name
there is either a whole set or what was there before. A set at a URL is written at its own name, where it says
that it is not complete; one that replaces another is written beside it as well, and moved (see
`dmkl.store.objects`). A kernel counts as done when its row sums stand; they
are written after all its tiles, so that an interrupted import goes on with the first kernel that has none.
The root attributes come before the arrays, and are what tells an unfinished set from anything else that may
stand there.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore

from dmkl._version import __version__
from dmkl.arrays import Array
from dmkl.errors import InputError, StoreExistsError
from dmkl.files.locks import claim, confirm
from dmkl.files.urls import Place, Url, as_place
from dmkl.files.writing import full_disk
from dmkl.inputs.features import FeatureMatrix
from dmkl.store.chunks import plain_folder
from dmkl.store.features import FEATURES, FeatureTable, Scan, read_tables, write_table
from dmkl.store.layout import (
    Header,
    check_room,
    create_array,
    create_strings,
    header_of,
    is_recoverable,
    provenance_of,
)
from dmkl.store.metadata import SEAL, seal
from dmkl.store.objects import clear, move, remove, root_attributes, zarr_store
from dmkl.store.opening import Location, as_location, partial_path
from dmkl.store.schema import FORMAT, FORMAT_VERSION, NODES, attributes, content_id, gram_node
from dmkl.store.tiles import TileWriter

__all__ = ["StoreWriter", "claim_place"]


# The tiles last: room for a kernel there means room in the others.
_PER_KERNEL = ("row_sum", "tile_crc32c", "diagonal", "gram_upper", "gram")


def claim_place(location: Location) -> AbstractContextManager[None]:
    """Keep the place of a set to this process while it is written; see `dmkl.files.locks`. Not of Zarr stores."""
    place = as_location(location)
    return claim(place) if isinstance(place, str) else nullcontext()


class StoreWriter:
    """A kernel set while it is written.

    Parameters
    ----------
    location
        A folder, a URL or a Zarr store.
    header
        Shape, type and tiles.
    n_kernels
        How many kernels will come; None where that is not known yet.
    overwrite
        Whether a finished set, or an unfinished one with another header, may be replaced. The old set stays
        in its place until the new one is complete (except in stores that cannot rename).

    Raises
    ------
    StoreExistsError
        If a finished set, or anything else, is in the way.
    InputError
        If an unfinished set with another header is in the way.
    """

    def __init__(self, location: Location, header: Header, n_kernels: int | None, *, overwrite: bool = False) -> None:
        self.location = as_location(location)
        self.header = header
        self.tiling = header.tiling
        place = as_place(self.location) if isinstance(self.location, str) else None
        self._url = place if isinstance(place, Url) else None
        self._local = isinstance(place, Path)
        self._target: str | Store = self.location
        if self._url is not None:
            self._target = str(self._beside(self._url, overwrite=overwrite))
        if isinstance(place, Path):
            if place.exists() and not overwrite:
                raise _in_the_way(place)
            check_room(place, header, n_kernels)
            place.parent.mkdir(parents=True, exist_ok=True)
            self._target = str(partial_path(place))
        # Leave to replace a set is no leave to replace what else stands where it is written.
        self._replace = overwrite and place is None
        self._group = self._resume(overwrite)
        self._resumed = self._group is not None
        if self._group is None:
            self._group = self._begin(n_kernels)
        if n_kernels is not None and self.n_kernels != n_kernels:
            self._resize(n_kernels)
        self._provenance = provenance_of(self._group, self.n_kernels)
        self._crc = np.zeros(self.tiling.shape, dtype=np.uint32)
        self._features = False

    @property
    def n_kernels(self) -> int:
        """Kernels that the arrays have room for at present."""
        return int(self._gram.shape[0])

    @property
    def folder(self) -> Path | None:
        """Where the unfinished set stands, if that is a folder of this machine."""
        return Path(str(self._target)) if self._local else None

    @property
    def _node(self) -> str:
        return gram_node(symmetric=self.header.symmetric, full=self.header.full).name

    @cached_property
    def _gram(self) -> Any:
        return self._group[self._node]

    @cached_property
    def tiles(self) -> TileWriter:
        """Writes the tiles, here or where tasks run."""
        return TileWriter(self._target, self._node, self.tiling)

    # --- begin or go on -------------------------------------------------------------------------------------

    @staticmethod
    def _beside(final: Url, *, overwrite: bool) -> Url:
        """Where the set of a URL is written: beside it where one is to be replaced, or this was begun before."""
        there, beside = root_attributes(final), as_place(str(partial_path(final)))
        assert isinstance(beside, Url)
        is_set = there.get("format") == FORMAT
        if is_set and there.get("complete") is True:
            if not overwrite:
                raise _in_the_way(final)
            return beside
        return beside if is_set and root_attributes(beside).get("format") == FORMAT else final

    def _resume(self, overwrite: bool) -> Any:
        """The unfinished set that stands there, if it can be continued."""
        try:
            group: Any = zarr.open_group(zarr_store(self._target), mode="r+", zarr_format=3, use_consolidated=False)
            attrs = dict(group.attrs)
        except (OSError, ValueError, KeyError):
            attrs = {}
        if attrs.get("format") != FORMAT or attrs.get("format_version") != FORMAT_VERSION:
            # Anything else that stands there is not ours to replace unasked; `_begin` refuses it.
            if self._local and _holds_only_strays(Path(str(self._target))):
                shutil.rmtree(str(self._target))
            return None
        complete = attrs.get("complete") is True
        if complete and not self._local and self._url is None:
            return None
        found = header_of(group)
        if found != self.header:
            if found is not None and not overwrite and is_recoverable(group):
                there, here = asdict(found), asdict(self.header)
                differ = ", ".join(
                    f"{key} {there[key]!r} there, {here[key]!r} here" for key in here if there[key] != here[key]
                )
                msg = (
                    f"an unfinished set of another make stands at {self._target} ({differ}); run "
                    "the command that began it, or ask for it to be replaced (overwrite=True, --overwrite)"
                )
                raise InputError(msg)
            self._clear()
            return None
        rooms = [int(group[name].shape[0]) for name in _PER_KERNEL if name in group]
        if len(set(rooms)) > 1:  # killed while the arrays were resized
            self._group = group
            self._resize(min(rooms))
        if complete:  # a local set that was killed when it was whole, just before it got its name
            begun = {key: value for key, value in attrs.items() if key not in ("content_id", "created_by", SEAL)}
            group.attrs.put({**begun, "complete": False})
        return group

    def _clear(self) -> None:
        """Give up an unfinished set of ours."""
        self._replace = True
        if self._url is not None:
            clear(Url(str(self._target)), {"format": FORMAT, "format_version": FORMAT_VERSION})
        elif self._local:
            # The root last: it tells that the rest is ours, should this be killed.
            for entry in Path(str(self._target)).iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry.name != "zarr.json":
                    entry.unlink()

    def _begin(self, n_kernels: int | None) -> Any:
        n, header = n_kernels or 0, self.header
        first = attributes(tile=header.tile, symmetric=header.symmetric, complete=False, kernels=[])
        with self.writing():
            try:
                group = zarr.open_group(
                    zarr_store(self._target), mode="w" if self._replace else "w-", zarr_format=3, attributes=first
                )
            except (FileExistsError, NotADirectoryError) as error:
                way_out = (
                    "move it away"
                    if isinstance(self._target, str)
                    else "ask for it to be replaced (overwrite=True, --overwrite)"
                )
                msg = f"{self._target} holds something already; choose another path, or {way_out}"
                raise StoreExistsError(msg) from error
            node = gram_node(symmetric=header.symmetric, full=header.full)
            create_array(
                group, node.name, (n, header.rows, header.cols), (1, header.tile, header.tile), header.dtype, np.nan
            )
            create_array(group, "row_sum", (n, header.rows), (1, header.rows), "float64", np.nan)
            create_array(group, "tile_crc32c", (n, *self.tiling.shape), (1, *self.tiling.shape), "uint32", 0)
        return group

    def _resize(self, n: int) -> None:
        for name in _PER_KERNEL:
            if name in self._group:
                array = self._group[name]
                array.resize((n, *array.shape[1:]))
        for name in ("_gram", "tiles"):
            self.__dict__.pop(name, None)

    def abandon(self) -> None:
        """Give up after bad input: remove what was begun here, unless a later run can go on from it."""
        if self._resumed or is_recoverable(self._group):
            return
        if self._url is not None:
            remove(Url(str(self._target)))
        elif self._local:
            # Under another name no task finds it that has not heard yet, and would write to it while it is removed.
            aside = Path(f"{self._target}.{uuid.uuid4().hex}")
            with suppress(FileNotFoundError):  # removed by somebody else: what went wrong before is to be told
                Path(str(self._target)).rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    # --- one kernel -----------------------------------------------------------------------------------------

    def is_done(self, j: int, identity: dict[str, Any] | None) -> bool:
        """Whether kernel j stands whole, and was made from the same content."""
        if identity is None or j >= len(self._provenance) or self._provenance[j] is None:
            return False
        recorded = dict(self._provenance[j] or {}).get("identity")
        return recorded == identity and not np.isnan(self._group["row_sum"][j, 0])

    def begin_kernels(self, provenances: Mapping[int, dict[str, Any]]) -> None:
        """Make room for some kernels and note where they come from, with one write of the root.

        What stood there no longer counts as done. Tiles of a kernel that was begun from the same content stay, for a
        task to find (`TileWriter.standing`); those of other content are removed before the record says otherwise.
        """
        with self.writing():
            most = max(provenances) + 1
            if most > self.n_kernels:
                self._resize(most)
            self._provenance += [None] * (most - len(self._provenance))
            for j, provenance in provenances.items():
                before = (self._provenance[j] or {}).get("identity")
                self._group["row_sum"][j, :] = np.full(self.header.rows, np.nan)
                if before is None or before != provenance.get("identity"):
                    self._remove_tiles(j)
                self._provenance[j] = provenance
            self._group.update_attributes({"kernels": self._provenance})
        self._crc[:] = 0

    def _remove_tiles(self, j: int) -> None:
        folder = plain_folder(self._gram)
        if self._url is not None:
            tiles = Url(f"{self._target}/{self._node}/c/{j}")
            tiles.remove(list(tiles.files()))
        elif folder is not None:
            shutil.rmtree(f"{folder}/{j}", ignore_errors=True)

    def write_tile(self, j: int, row: int, col: int, block: Array) -> None:
        """Write one tile of kernel j."""
        with self.writing():
            self._crc[row, col] = self.tiles.write(j, row, col, block)

    def end_kernel(
        self, j: int, row_sum: Array, diagonal: Array | None, checksums: npt.NDArray[np.uint32] | None = None
    ) -> None:
        """Record kernel j as done: its checksums and diagonal, and its row sums last.

        The checksums are those of the tiles written here where they are not given.
        """
        with self.writing():
            if diagonal is not None:
                if "diagonal" not in self._group:
                    shape = (self.n_kernels, self.header.rows)
                    create_array(self._group, "diagonal", shape, (1, self.header.rows), "float64", np.nan)
                self._group["diagonal"][j, :] = diagonal
            elif "diagonal" in self._group:
                # Of an import that had one: no kernel of this import has.
                del self._group["diagonal"]
            self._group["tile_crc32c"][j] = self._crc if checksums is None else checksums
            self._group["row_sum"][j, :] = row_sum

    def note(self, j: int, found: Mapping[str, Any]) -> None:
        """Add to where kernel j comes from what shows only once it has been read."""
        with self.writing():
            self._provenance[j] = {**(self._provenance[j] or {}), **found}
            self._group.update_attributes({"kernels": self._provenance})

    def writing(self) -> AbstractContextManager[None]:
        """Check that the place still belongs to this process, and say what to do where the disk runs full inside.

        Raises
        ------
        LockedError
            If another process has taken the place over.
        """
        if isinstance(self.location, str):
            confirm(self.location)
        return full_disk(self.location)

    # --- features ---------------------------------------------------------------------------------------------

    def write_features(self, tables: Sequence[tuple[FeatureMatrix, Scan]]) -> dict[str, FeatureTable]:
        """Keep the features that the kernels are computed from beside them; returns them as they are stored."""
        with self.writing():
            for number, (table, found) in enumerate(tables):
                write_table(self._group, number, table, found, self.header.tile)
            if FEATURES in self._group:
                for key in list(self._group[FEATURES].group_keys()):
                    if int(key) >= len(tables):
                        del self._group[f"{FEATURES}/{key}"]
        self._features = True
        return read_tables(self._target)

    def forget_features(self, names: Collection[str]) -> None:
        """Remove tables that are not needed once the kernels are written."""
        for key in list(self._group[FEATURES].group_keys()) if names else ():
            if self._group[f"{FEATURES}/{key}"].attrs["name"] in names:
                del self._group[f"{FEATURES}/{key}"]

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self, names: Sequence[str], labels: dict[str, Array | None]) -> str | Store:
        """Write the labels, mark the set complete and move it to its place."""
        with self.writing():
            if self.n_kernels != len(names):  # an earlier import of an unknown number of kernels had got further
                self._resize(len(names))
                del self._provenance[len(names) :]
            for name, values in {"kernel": np.array(names, dtype=object), **labels}.items():
                if values is not None:
                    self._label(name, values)
                elif name in self._group:
                    del self._group[name]
            table = self._group["tile_crc32c"]
            identity = content_id(names, (table[j] for j in range(self.n_kernels)))
            attrs = dict(self._group.attrs)
            attrs |= {"content_id": identity, "created_by": f"dmkl {__version__}", "complete": True}
            attrs["kernels"] = [
                {"name": n} | {key: value for key, value in (p or {}).items() if key != "name"}
                for n, p in zip(names, self._provenance, strict=True)
            ]
            if not self._features and FEATURES in self._group:  # of a build that this import goes on from
                del self._group[FEATURES]
            self._remove_strays()
            # One write of the root makes the set complete, where there is no renaming too.
            seal(self._target, attrs)
        if isinstance(self.location, str):
            confirm(self.location)
        if self._url is not None and str(self._target) != str(self._url):
            move(Url(str(self._target)), self._url, {"format": FORMAT, "format_version": FORMAT_VERSION})
        elif self._local:
            self._move_into_place(Path(str(self._target)), Path(str(self.location)))
        return self.location

    def _remove_strays(self) -> None:
        """Remove temporary files of writes that were killed."""
        root: str | Path | None = None
        if isinstance(self._target, LocalStore):
            root = self._target.root
        elif self._local:
            root = str(self._target)
        if root is not None:
            for stray in Path(root).rglob("*.partial"):
                stray.unlink()

    @staticmethod
    def _move_into_place(written: Path, final: Path) -> None:
        if final.exists():
            final.rename(final.with_name(f"{final.name}.{uuid.uuid4().hex}.replaced"))
        written.rename(final)
        # Also what a run left that was killed just here.
        for entry in final.parent.iterdir():
            if re.fullmatch(re.escape(final.name) + r"\.[0-9a-f]{32}\.replaced", entry.name):
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()

    def _label(self, name: str, values: Array) -> None:
        dims = NODES[name].dims
        if name in ("label", "target") and values.ndim == 2:
            dims = ("sample", "task")
        if values.dtype.kind in "OUST":
            create_strings(self._group, name, values, dims, NODES[name].doc)
        else:
            fill = {"i": -1, "f": np.nan}.get(values.dtype.kind, 0)
            array = create_array(
                self._group, name, values.shape, values.shape, values.dtype.name, fill, dims, overwrite=True
            )
            array[...] = values


def _in_the_way(place: Place) -> StoreExistsError:
    msg = f"{place} exists already; choose another path, or ask for it to be replaced (overwrite=True, --overwrite)"
    return StoreExistsError(msg)


def _holds_only_strays(folder: Path) -> bool:
    """Whether a folder holds nothing but temporary files of a killed first write."""
    return folder.is_dir() and all(entry.name.endswith(".partial") and entry.is_file() for entry in folder.iterdir())
