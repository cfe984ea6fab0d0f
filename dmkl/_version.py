"""The version of the package: the release, and the state of its files."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

RELEASE = "0.2.0"
"""The release that this code becomes, or is; the build reads it from here."""
_DIGITS = 10


@cache
def version() -> str:
    """The version of this code, such as "0.2.0+98ef808eb0": the release, and the first digits of git's name of `dmkl`.

    git names the content of a folder by a digest of it, so that the version changes with each file, also where there is
    no git, and ``git log -t --find-object=98ef808eb0`` finds its commits. Reading the files takes 20 ms, so that it is
    done at the first call. Of processes that run for long this is the version of their first use of a cluster.
    """
    return f"{RELEASE}+{_tree(Path(__file__).parent).hex()[:_DIGITS]}"


def _tree(folder: Path) -> bytes:
    """Name a folder as git does (``git rev-parse HEAD:dmkl``), without hidden files and compiled modules."""
    entries = []
    for entry in os.scandir(folder):
        if entry.name == "__pycache__" or entry.name.startswith("."):
            continue
        if entry.is_dir():
            entries.append((f"{entry.name}/", b"40000", _tree(Path(entry.path))))
        else:
            text = Path(entry.path).read_bytes().replace(b"\r\n", b"\n")  # as git does for files of Windows
            entries.append((entry.name, b"100644", _digest(b"blob", text)))
    return _digest(
        b"tree",
        b"".join(b"%b %b\0%b" % (mode, name.rstrip("/").encode(), digest) for name, mode, digest in sorted(entries)),
    )


def _digest(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha1(b"%b %d\0%b" % (kind, len(content), content), usedforsecurity=False).digest()


def __getattr__(name: str) -> str:
    if name == "__version__":
        return version()
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
