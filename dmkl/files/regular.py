"""Regular files: all that dmkl opens.

Reading a pipe waits for a writer, reading a device never ends, and a symbolic link in a folder that was copied from
another machine may lead to any file of this one, whose text a message would show, or which would be written to.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dmkl.errors import DamagedFileError, refuse

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: str | Path, *, links: bool = True) -> int:
    """The number of bytes of a file that is about to be opened; without `links` for one whose name dmkl has made.

    OSError if there is none, InputError if it is a pipe, a socket or a device, or a symbolic link without `links`.
    """
    status = os.stat(path, follow_symlinks=links)
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        way_out = "copy its content into a file" if links else "remove it, or choose another path"
        refuse(f"{path} is {kind}, and only regular files are opened; {way_out}")
    return status.st_size


def check_plain(root: str | Path, name: str) -> int:
    """The number of bytes of a file in a folder of unknown origin; 0 if there is none.

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
            what = f"{path} is {kind}, and only regular files are read there: it may lead to any file of this machine"
            way_out = "If the targets of links are trusted, copy the folder with them (cp -rL)"
            refuse(f"{what}. {way_out}", kind=DamagedFileError)
    return size
