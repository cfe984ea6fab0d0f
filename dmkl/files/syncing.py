"""Write files through to the disk, so that they survive a power cut.

A system writes files to the disk up to half a minute after they are closed. If the power fails before, a file may be
empty although its name, or the name of its folder, has reached the disk. So whatever a rename makes current is synced
before it, and the folder with the new name after it.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF)
"""Errors of file systems that cannot sync a folder."""


def sync(path: str | os.PathLike[str]) -> None:
    """Return when a file, or the names in a folder, are on the disk; OSError if they cannot be written there."""
    is_folder = os.path.isdir(path)
    if is_folder and os.name == "nt":  # which opens no folders, and keeps their names in a journal
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (is_folder and error.errno in _UNSUPPORTED):
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: str | os.PathLike[str]) -> None:
    """Return when a folder is on the disk with all that is in it; OSError as `sync`.

    On Linux this is one call for its whole file system: there may be thousands of files.
    """
    if sys.platform == "linux" and _syncfs(folder):
        return
    for entry in Path(folder).rglob("*"):
        if not entry.is_symlink():
            sync(entry)
    sync(folder)


def _syncfs(folder: str | os.PathLike[str]) -> bool:
    """Sync the file system of a folder; False if it cannot do so."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if library.syncfs(descriptor) == 0:
            return True
        number = ctypes.get_errno()
    finally:
        os.close(descriptor)
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), os.fspath(folder))
