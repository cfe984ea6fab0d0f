"""Folders of unknown origin, in which only regular files are read.

A symbolic link in a folder that was copied from another machine may lead to any file of this one, whose text a message
would show; reading a device never ends, and reading a pipe waits for a writer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zarr.storage import LocalStore

from dmkl import settings
from dmkl.errors import DamagedFileError

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_plain(root: str | Path, name: str) -> int:
    """The number of bytes of a file in a folder; 0 if there is none.

    DamagedFileError if the file, or a folder in between, is a symbolic link, a device or a pipe.
    """
    path, size = os.fspath(root), 0
    for part in name.split("/"):
        path = f"{path}/{part}"
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return 0
        kind, size = _KINDS.get(stat.S_IFMT(status.st_mode)), status.st_size
        if kind is not None:
            msg = f"{path} is {kind}, and only regular files are read there: it may lead to any file of this machine. "
            msg += "If the targets of links are trusted, copy the folder with them (cp -rL)"
            raise DamagedFileError(msg)
    return size


_SMALL_BYTES = 2**24
"""Bytes of files that every computation may hold in memory."""


class PlainStore(LocalStore):
    """A Zarr store in a folder, which reads only regular files that fit the memory budget."""

    def _check(self, key: str, byte_range: Any) -> None:
        size = check_plain(self.root, key)
        # Asking for the budget reads the limits of the machine, which takes longer than a small file.
        if byte_range is None and size > _SMALL_BYTES and size > (budget := settings.memory_budget_bytes()):
            most = f"more than a computation may hold in memory (the setting dmkl.memory, {budget:.3g} bytes)"
            msg = f"{self.root}/{key} has {size:.3g} bytes, {most}; it is damaged, or allow more"
            raise DamagedFileError(msg)

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """A file, or a part of it; None if there is none."""
        self._check(key, byte_range)
        return await super().get(key, prototype, byte_range)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """A file, or a part of it; None if there is none."""
        self._check(key, byte_range)
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> Any:
        """Parts of files."""
        parts = list(key_ranges)
        for key, byte_range in parts:
            self._check(key, byte_range)
        return await super().get_partial_values(prototype, parts)
