"""Writing beside and renaming: at a name there is the whole old file or the whole new one; a full disk is told."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dmkl.errors import DiskFullError
from dmkl.files.locks import confirm
from dmkl.files.urls import Url, is_url, resolved

__all__ = ["KEPT", "beside", "clear_beside", "full_disk", "into_folder", "replacing", "write_whole"]

KEPT = "What was written is kept: free some space and run the same command again, and it goes on from there"
"""What becomes of an import, a build or a search whose disk is full."""
_ANEW = "Free some space, or choose another place, and run it again; what was there before is as it was"


def beside(path: str | os.PathLike[str], end: str = "partial") -> Path:
    """A new name beside a path, for what is not whole yet or not wanted any more."""
    path = Path(path)
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.{end}")


def clear_beside(path: Path) -> None:
    """Remove what killed processes have left beside a path under names of `beside`; this process must have claimed it.

    A folder that was moved aside, when the process was killed before the new one had its name, gets its name back.
    """
    for left in path.parent.glob(f"{glob.escape(path.name)}.*"):
        end = re.fullmatch(r"\.[0-9a-f]{32}\.(partial|replaced)", left.name[len(path.name) :])
        if end is None:
            continue
        if end[1] == "replaced" and not path.exists():
            left.rename(path)
        elif left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


@contextmanager
def replacing(path: str | os.PathLike[str] | Url, mode: str = "wb", **options: Any) -> Iterator[IO[Any]]:
    """Open a file that gets its name when it is whole; a failure leaves what was there before.

    What goes to a URL is written to a temporary file first. A file that this process has claimed, or that lies in a
    folder that it has claimed, gets its name only while the claim holds (`dmkl.files.locks.confirm`).

    Parameters
    ----------
    mode, options
        As `open` takes them.

    Raises
    ------
    DiskFullError
        If the disk ran full.
    LockedError
        If this process has lost its claim to the path.
    """
    if isinstance(path, Url):
        with tempfile.TemporaryDirectory(prefix="dmkl-") as folder:
            written = Path(folder) / "written"
            with full_disk(folder, _ANEW), open(written, mode, **options) as file:
                yield file
            confirm(path)
            path.write_bytes(written.read_bytes())
        return
    path = resolved(Path(path))
    partial = beside(path)
    try:
        with full_disk(path, _ANEW):
            with open(partial, mode, **options) as file:
                yield file
            confirm(path)
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_whole(path: str | os.PathLike[str] | Url, data: bytes) -> None:
    """Write a file that gets its name when it is whole; see `replacing`."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def into_folder(path: Path) -> Iterator[None]:
    """Make a folder for the files that are written inside; a failure leaves none that is empty."""
    resolved(path).mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            path.rmdir()
        raise


@contextmanager
def full_disk(location: Any, way_out: str = KEPT) -> Iterator[None]:
    """Say what to do where work inside this context finds the disk full.

    Raises
    ------
    DiskFullError
        If it does.
    """
    try:
        yield
    except DiskFullError:  # told by whoever wrote the file
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        msg = f"no space left while writing {location}{_free(location)}. {way_out}"
        raise DiskFullError(msg) from error


def _free(location: Any) -> str:
    """How much is free where a file goes; nothing where that cannot be known."""
    if is_url(location):
        return ""
    folder = Path(str(location)).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        n_bytes = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f" ({n_bytes / 2**20:,.1f} MiB free on its disk)"
