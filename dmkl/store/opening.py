"""Opening the group of a stored kernel set, and seeing later that it is still there and the same."""

from __future__ import annotations

import os
import socket
from typing import Any

from zarr.abc.store import Store

from dmkl.errors import (
    DmklError,
    FormatVersionError,
    IncompleteStoreError,
    StoreError,
    StoreNotFoundError,
    one_line,
)
from dmkl.files.urls import Place, as_place, is_url, resolved
from dmkl.store.metadata import open_group
from dmkl.store.schema import FORMAT, FORMAT_VERSION

__all__ = ["FileMark", "Location", "Root", "as_location", "mark_of", "other_set", "partial_path"]

Location = str | os.PathLike[str] | Store
FileMark = tuple[int, int]
"""Inode and time of the last change of a file, by which it is known again."""


def partial_path(path: Place) -> Place:
    """Where a set is written until it is complete: beside its place, under a name of its own.

    A set at a URL is written at its own, if it replaces none: moving it costs a copy.
    """
    return path.with_name(path.name + ".partial")


def as_location(location: Location) -> str | Store:
    """A local folder as an absolute path, links resolved; anything else (a URL, a Zarr store) as it is."""
    if isinstance(location, Store):
        return location
    return str(resolved(location))


def mark_of(told: os.stat_result) -> FileMark:
    """That of a file, of which the system tells this."""
    return told.st_ino, told.st_mtime_ns


class Root:
    """The root of a set: opened, and looked at again as the set is read."""

    def __init__(self, location: str | Store) -> None:
        self.location = location
        self._mark: FileMark | None = None

    def open(self) -> Any:
        """Open the group.

        Raises
        ------
        StoreNotFoundError, IncompleteStoreError, FormatVersionError, StoreError
            As `StoreReader` does.
        """
        self._mark = self._look()
        group = _open_group(self.location)
        _check_root(dict(group.attrs), str(self.location))
        return group

    def check(self, content_id: str) -> None:
        """See that the set has not been deleted, moved or exchanged since it was opened.

        It takes no more than a look at one file, which only a local folder has.

        Raises
        ------
        StoreNotFoundError
            If it is not there any more.
        StoreError
            If there is another one in its place.
        """
        if self._mark is None or self._mark == (now := self._look()):
            return
        try:
            found = str(_open_group(self.location).attrs.get("content_id"))
        except StoreNotFoundError as error:
            msg = (
                f"the kernel set at {self.location} is not there any more on {socket.gethostname()}: it was "
                "deleted or moved while it was read. Put it back and run the same again, or import or build it again"
            )
            raise StoreNotFoundError(msg) from error
        if found != content_id:
            raise StoreError(other_set(self.location, content_id, found))
        self._mark = now

    def _look(self) -> FileMark | None:
        if isinstance(self.location, Store) or is_url(self.location):
            return None
        try:
            return mark_of(os.stat(os.path.join(self.location, "zarr.json")))
        except OSError:
            return None


def other_set(location: str | Store, before: str, now: str) -> str:
    """What is said of a set whose content id is not the one before."""
    return (
        f"{location} holds another set now ({now}) than when this computation began ({before}), on "
        f"{socket.gethostname()}; open it again with dmkl.open"
    )


def _open_group(location: str | Store) -> Any:
    try:
        return open_group(location)
    except FileNotFoundError as error:
        begun = partial_path(as_place(location)) if isinstance(location, str) else None
        if begun is not None and begun.exists():
            msg = (
                f"{location} is not finished: an interrupted import or build of it stands at {begun}. Run the same "
                "command again and it goes on from there"
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
