"""What is noted beside a result: the job with all defaults, versions, and what its inputs contained."""

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
    """Where the job that made a result is noted: beside it; beside the job file where the result is at a URL."""
    return _beside(out, job, "job.toml")


def log_path(out: str, job: Path) -> Path:
    """Where the log of what made a result is kept: beside it, as what `record_path` tells."""
    return _beside(out, job, "log")


def _beside(out: str, job: Path, ending: str) -> Path:
    place = as_place(out)
    folder = place.parent if isinstance(place, Path) else job.parent
    return folder / f"{place.name}.{ending}"


def versions() -> dict[str, str]:
    """Of dmkl, Python and the packages that compute."""
    return versions_of(_PACKAGES)


def contents_of(paths: Iterable[str]) -> dict[str, str]:
    """What identifies the contents of each path: the content id of a kernel set, the SHA-256 of a file.

    Folders that are no kernel sets, and what is not there, have none.
    """
    found = {}
    for path in paths:
        if "://" not in path and Path(path).is_file():
            with open(path, "rb") as file:
                found[path] = f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
        else:
            identity = _content_id(path)
            if identity:
                found[path] = identity
    return found


def _content_id(path: str) -> str:
    import dmkl

    try:
        return f"kernel set {dmkl.open(path).content_id}"
    except (DmklError, OSError, ValueError):
        return ""


def differences(recorded: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each input whose contents, and each version that, is not as it was noted."""
    noted: Mapping[str, str] = recorded.get("contents", {})
    there = contents_of(noted)
    for path, identity in noted.items():
        if there.get(path) != identity:
            yield f"{path} holds something else ({there.get(path, 'nothing')}) than when it was noted ({identity})"
    now = versions()
    for name, before in recorded.get("versions", {}).items():
        if now.get(name) != before:
            yield f"{name} is {now.get(name, 'missing')}, and was {before} when the result was made"


def as_toml(sections: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, Mapping[str, str]], what: str) -> str:
    """The text of a job file with what was recorded of it."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    lines = [f"# {what}", f"# Written {now}; `dmkl run` on this file does the same again."]
    for name, keys in sections.items():
        if keys:
            lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in keys.items())]
    for name, keys in recorded.items():
        if keys:
            lines += ["", f"[recorded.{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in keys.items())]
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
