"""Zarr groups in an object store, where nothing can be renamed: the root is written last, and says what is whole.

What is being written, replaced or removed has a root that says ``"complete": false`` all the while. So a reader never
takes a part for the whole, and whoever goes on after a kill knows that the rest is dmkl's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from zarr.abc.store import Store
from zarr.storage import FsspecStore

from dmkl.files.plain import PlainStore
from dmkl.files.urls import Url, as_place, is_url, storage_options

__all__ = ["ROOT", "clear", "move", "remove", "root_attributes", "upload", "zarr_store"]

ROOT = "zarr.json"


def zarr_store(location: str | Path | Url | Store) -> Store:
    """What Zarr opens a location by: of a URL the same store for all of a process, which shares its connections."""
    if isinstance(location, Store):
        return location
    if not is_url(location):
        return PlainStore(str(location))
    return _opened(
        str(as_place(str(location))), json.dumps(storage_options(), sort_keys=True, default=str), os.getpid()
    )


@lru_cache(maxsize=32)
def _opened(url: str, options: str, pid: int) -> FsspecStore:
    del options, pid  # others have a store of their own
    return FsspecStore.from_url(url, storage_options=storage_options())


def root_attributes(url: Url) -> dict[str, Any]:
    """Attributes of a group's root, as far as they can be read; none where there is no group."""
    try:
        attrs = json.loads((url / ROOT).read_bytes())["attributes"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return attrs if isinstance(attrs, dict) else {}


def clear(url: Url, attrs: Mapping[str, Any]) -> None:
    """Remove all of a group but its root, which has these attributes from now on, and is not complete."""
    root = {"zarr_format": 3, "node_type": "group", "attributes": {**attrs, "complete": False}}
    (url / ROOT).write_bytes(json.dumps(root).encode())
    url.remove([name for name in url.files() if name != ROOT])


def remove(url: Url) -> None:
    """Remove a group, its root last."""
    clear(url, root_attributes(url))
    (url / ROOT).unlink(missing_ok=True)


def upload(folder: Path, url: Url, attrs: Mapping[str, Any]) -> None:
    """Put a group that lies whole in a folder at a URL, its root last; what was there before is removed.

    Parameters
    ----------
    attrs
        What the root says until then.
    """
    clear(url, attrs)
    names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*")) if file.is_file()]
    url.upload(folder, [name for name in names if name != ROOT])
    (url / ROOT).write_bytes((folder / ROOT).read_bytes())


def move(source: Url, url: Url, attrs: Mapping[str, Any]) -> None:
    """Put a whole group at another URL of the same store, copied where it lies; see `upload`."""
    clear(url, attrs)
    url.copy_from(source, [name for name in source.files() if name != ROOT])
    (url / ROOT).write_bytes((source / ROOT).read_bytes())
    remove(source)
