"""Zarr groups in folders and object stores: opened with a check of their metadata, and put in place.

Zarr keeps the metadata of each array in a separate file, and can gather ("consolidate") them at the root. dmkl reads
them only there, and the root carries a checksum of itself as its attribute `metadata_crc32c`. Together with a CRC32C
codec at the end of each array's codecs, every bit that is read is checked.

A group can also be one file, an archive (`pack`): a ZIP file of the group's files, not compressed again. Whatever opens
groups of folders for reading opens it.

An object store cannot rename. There the root is written last: while a group is written, replaced or removed, its root
has the attribute ``"complete": false``. So no reader takes an incomplete group for a complete one, and after a kill the
next writer knows that the objects are dmkl's.
"""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.errors import ZarrUserWarning
from zarr.storage import FsspecStore, StorePath, ZipStore

from dmkl.errors import DamagedFileError, DmklError, FormatVersionError, StoreError, damage, refuse
from dmkl.files.arrays import json_crc32c
from dmkl.files.documents import check_size, parse_json
from dmkl.files.plain import PlainStore
from dmkl.files.regular import check_plain
from dmkl.files.urls import Place, Url, as_place, files_in, is_url, resolved, storage_options

Location = str | os.PathLike[str] | Store
ROOT = "zarr.json"
CHECKSUM = "metadata_crc32c"
"""Attribute of the root with the checksum of its metadata."""


def as_location(location: Location) -> str | Store:
    """A local folder as an absolute path, links resolved; a URL or a Zarr store unchanged."""
    if isinstance(location, Store):
        return location
    return str(resolved(location))


def partial_path(path: Place) -> Place:
    """Where a set is written until it is complete; at a URL only if it replaces one, since moving it costs a copy."""
    return path.with_name(path.name + ".partial")


def zarr_store(location: str | Path | Url | Store) -> Store:
    """The Zarr store of a location; a process shares one store, and its connections, for each URL."""
    if isinstance(location, Store):
        return location
    if not is_url(location):
        return _Archive(location, mode="r") if _is_archive(location) else PlainStore(str(location))  # type: ignore[arg-type]
    options = json.dumps(storage_options(), sort_keys=True, default=str)
    return _url_store(str(as_place(str(location))), options, os.getpid())


class _Archive(ZipStore):
    """An archive that lists what is in a folder; the base class also lists `term_2` for `term`."""

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """See `zarr.abc.store.Store.list_prefix`."""
        folder = prefix.rstrip("/") + "/"
        async for key in super().list_prefix(prefix):
            if folder == "/" or key == prefix or key.startswith(folder):
                yield key


@lru_cache(maxsize=32)
def _url_store(url: str, options: str, pid: int) -> FsspecStore:
    del options, pid  # only keys of the cache
    return FsspecStore.from_url(url, storage_options=storage_options())


def consolidate(location: str | Store | Path | Url, attrs: Mapping[str, Any] | None = None) -> None:
    """Gather the metadata of all arrays of a group at its root, and write them with their checksum in one write.

    `attrs` are the attributes of the root; those that it has if None.
    """
    # Zarr warns that consolidated metadata are not part of the specification of v3; xarray warns without them.
    with warnings.catch_warnings(action="ignore", category=ZarrUserWarning):
        group: Any = zarr.consolidate_metadata(zarr_store(location), zarr_format=3)
    attrs = {key: value for key, value in (group.attrs if attrs is None else attrs).items() if key != CHECKSUM}
    written = replace(group.metadata, attributes=attrs).to_buffer_dict(default_buffer_prototype())[ROOT]
    group.attrs.put({**attrs, CHECKSUM: json_crc32c(parse_json(written.to_bytes()))})


def open_group(location: str | Store | Path | Url) -> Any:
    """Open a Zarr group for reading; its metadata are checked if they carry a checksum.

    DamagedFileError is raised if they differ from what was written, StoreError if an object store does not answer, and
    FileNotFoundError, ValueError, TypeError or KeyError, by Zarr, if it is not a Zarr group.
    """
    # For a relative folder Zarr would strip the folder's name from the names of arrays too.
    place = location if isinstance(location, Store | Url) else as_place(location)
    # The checksum is verified before Zarr parses the metadata.
    data = (_read(StorePath(place)) or None) if isinstance(place, Store) else _root(place)
    checked = False
    if data is not None:
        with damage(f"{place}/{ROOT} is damaged, or no metadata of Zarr", kind=DamagedFileError):
            metadata = parse_json(data)
        checked = _check(metadata, place)
    # Groups that were written without checksums have no consolidated metadata.
    return zarr.open_group(zarr_store(place), mode="r", zarr_format=3, use_consolidated=checked)


def check_version(attrs: Mapping[str, Any], place: Any, newest: int, what: str) -> None:
    """Raise FormatVersionError if the attribute "format_version" is above `newest`, StoreError if it is no version."""
    written = attrs.get("format_version")
    if not isinstance(written, int) or isinstance(written, bool) or written < 1:
        problem = f"its format version is {written!r:.60}, expected 1 to {newest}"
        refuse(f"the {what} at {place} is damaged: {problem}; make it again", kind=StoreError)
    if written > newest:
        rule = f"{place} has {what} format version {written}, and this dmkl reads up to {newest}"
        refuse(f"{rule}; install a newer dmkl", kind=FormatVersionError)


def _root(place: Place) -> bytes | None:
    """The metadata of the root of a group in a folder, in an archive or at a URL; None if there is none."""
    if isinstance(place, Path) and _is_archive(place):
        with damage(f"{place} is damaged", kind=DamagedFileError), zipfile.ZipFile(place) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                refuse("its files must not be compressed in the archive, so that they are as large as they say")
            return archive.read(ROOT)
    if isinstance(place, Path):
        check_size(f"{place}/{ROOT}", check_plain(place, ROOT))
    return (place / ROOT).read_bytes() if (place / ROOT).is_file() else None


def _read(place: StorePath) -> bytes:
    buffer = sync((place / ROOT).get())
    return b"" if buffer is None else buffer.to_bytes()


def _check(metadata: dict[str, Any], where: Any) -> bool:
    """Whether the metadata of a root carry a checksum; DamagedFileError if it is wrong."""
    attrs = metadata.get("attributes")
    if not isinstance(attrs, dict) or CHECKSUM not in attrs:
        return False
    computed = json_crc32c({**metadata, "attributes": {key: value for key, value in attrs.items() if key != CHECKSUM}})
    if attrs[CHECKSUM] != computed:
        what = f"{where}/{ROOT} is damaged: its checksum is {computed}, {attrs[CHECKSUM]!r} was written"
        way_out = f"if it was changed on purpose, remove its attribute {CHECKSUM!r}"
        refuse(f"{what}; {way_out}", kind=DamagedFileError)
    return True


def differing_metadata(group: Any) -> Iterator[str]:
    """One sentence for each array or group whose own metadata differ from the copy at the root, which dmkl reads."""
    copies = parse_json(_read(group.store_path))["consolidated_metadata"]["metadata"]
    for name, copy in sorted(copies.items()):
        try:
            metadata = parse_json(_read(group.store_path / name))
        except (ValueError, DamagedFileError) as error:
            yield f"{name}/{ROOT} is damaged: {error}"
            continue
        if _without_copies(metadata) != _without_copies(copy):
            yield f"{name}/{ROOT} is not what was written: the root has other metadata of it"
        else:
            try:
                _check(metadata, name)  # a group within the group may carry a checksum too
            except DamagedFileError as error:
                yield str(error)


def _without_copies(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != "consolidated_metadata"}


def _is_archive(place: str | os.PathLike[str]) -> bool:
    return os.path.isfile(place) and zipfile.is_zipfile(place)


def pack(folder: Path, path: Path) -> None:
    """Write the group in a folder as an archive at `path`, the same bytes for the same group."""
    with zipfile.ZipFile(path, "x") as archive:
        for name in sorted(files_in(folder)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, (folder / name).read_bytes())


def root_attributes(place: Place) -> dict[str, Any]:
    """Attributes of a group's root; empty if there is no group or its root cannot be read."""
    try:
        attrs = json.loads(_root(place) or b"")["attributes"]
    except (OSError, DmklError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return attrs if isinstance(attrs, dict) else {}


def clear(url: Url, attrs: Mapping[str, Any]) -> None:
    """Remove all of a group but its root, which gets these attributes and ``"complete": false``."""
    root = {"zarr_format": 3, "node_type": "group", "attributes": {**attrs, "complete": False}}
    (url / ROOT).write_bytes(json.dumps(root).encode())
    url.remove([name for name in url.files() if name != ROOT])


def remove(url: Url) -> None:
    """Remove a group, its root last."""
    clear(url, root_attributes(url))
    (url / ROOT).unlink(missing_ok=True)


def put(folder: Place, url: Url, attrs: Mapping[str, Any]) -> None:
    """Replace the content of a URL by a complete group, its root last, which has `attrs` until then.

    The group is that of a local folder, or it is moved from another URL of the same store, by copies within the store.
    """
    clear(url, attrs)
    url.copy_from(folder, [name for name in sorted(files_in(folder)) if name != ROOT])
    (url / ROOT).write_bytes((folder / ROOT).read_bytes())
    if isinstance(folder, Url):
        remove(folder)
