"""The record of a result: the job with all defaults, versions, and identifiers of the contents of its inputs."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dmkl.clusters.preflight import versions_of
from dmkl.errors import DmklError
from dmkl.files.urls import as_place

__all__ = ["as_toml", "contents_of", "differences", "log_path", "record_path", "versions"]

_PACKAGES = ("clarabel", "dask", "distributed", "numpy", "scipy", "scikit-learn", "xarray", "zarr")


def record_path(out: str, job: Path) -> Path:
    """The path of the record: next to the result, or next to the job file if the result is at a URL."""
    return _path(out, job, "job.toml")


def log_path(out: str, job: Path) -> Path:
    """The path of the log of the job, in the same folder as the record."""
    return _path(out, job, "log")


def _path(out: str, job: Path, ending: str) -> Path:
    place = as_place(out)
    folder = place.parent if isinstance(place, Path) else job.parent
    return folder / f"{place.name}.{ending}"


def versions() -> dict[str, str]:
    """Versions of dmkl, Python and the packages that compute."""
    return versions_of(_PACKAGES)


def contents_of(paths: Iterable[str]) -> dict[str, str]:
    """An identifier of the contents of each path: the content id of a kernel set, the SHA-256 of a file.

    Other folders and missing paths have none.
    """
    contents = {}
    for path in paths:
        if "://" not in path and Path(path).is_file():
            with open(path, "rb") as file:
                contents[path] = f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
        else:
            identity = _content_id(path)
            if identity:
                contents[path] = identity
    return contents


def _content_id(path: str) -> str:
    import dmkl

    try:
        return f"kernel set {dmkl.open(path).content_id}"
    except (DmklError, OSError, ValueError):
        return ""


def differences(recorded: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each input whose contents have changed since the record, and for each version that has."""
    before: Mapping[str, str] = recorded.get("contents", {})
    contents = contents_of(before)
    for path, identity in before.items():
        if contents.get(path) != identity:
            yield f"{path} has other contents ({contents.get(path, 'none')}) than in the record ({identity})"
    now = versions()
    for name, version in recorded.get("versions", {}).items():
        if now.get(name) != version:
            yield f"{name} is {now.get(name, 'missing')}, and was {version} when the result was made"


def as_toml(sections: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, Mapping[str, str]], title: str) -> str:
    """The text of a job file with its record."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    lines = [f"# {title}", f"# Written {now}; `dmkl run` on this file repeats the job."]
    tables = {**sections, **{f"recorded.{name}": keys for name, keys in recorded.items()}}
    for name, keys in tables.items():
        if keys:
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, int | float):
        return repr(value)  # inf and nan are TOML's words too
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
