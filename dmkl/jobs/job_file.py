"""Job files: their tables, with the line of each key for messages, the table [cluster], and the records of results."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dask.utils import parse_timedelta

from dmkl.clusters.job_options import BatchSystem, JobOptions, batch_system, job_options
from dmkl.clusters.preflight import versions_of
from dmkl.errors import DmklError, InputError, did_you_mean, refuse, short_repr
from dmkl.files.documents import read_document
from dmkl.files.urls import as_place

_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"""\s*(?:([\w-]+)\s*\.\s*)?["']?([\w-]+)["']?\s*=""")


@dataclass(frozen=True)
class JobFile:
    """The tables of a job file."""

    path: Path
    """The absolute path of the file; paths inside are relative to its folder."""
    sections: Mapping[str, Mapping[str, Any]]
    """The keys, with underscores, and the values of each table."""
    lines: Mapping[tuple[str, ...], int]
    """The line of each table, ``(name,)``, and of each key, ``(name, key)``, for messages."""

    def problem(self, text: str, section: str, key: str = "") -> InputError:
        """An error that begins with the file, the line and the key."""
        place = (section, key) if key else (section,)
        line = self.lines.get(place, self.lines.get((section,)))
        at = f"{self.path.name}, line {line}" if line else self.path.name
        return InputError(f"{at}, {'.'.join(place)}: {text}")

    def unknown(self, section: str, key: str, allowed: Iterable[str]) -> InputError:
        """The error of a key that a table does not take."""
        allowed = list(allowed)
        takes = f"; [{section}] takes {', '.join(allowed)}" if allowed else ""
        return self.problem(f"no such key{did_you_mean(key, allowed)}{takes}", section, key)


def read_job(path: Path, tables: Iterable[str]) -> JobFile:
    """Read a job file that has only these `tables`, of plain values; InputError, with the line, for any other."""
    if path.suffix.lower() != ".toml":
        refuse(f"a job file ends in .toml, got {path}")
    content = read_document(path, "a job")
    lines = dict(_lines(path.read_text(encoding="utf-8-sig")))
    sections = {
        name: {key.replace("-", "_"): value for key, value in keys.items()} if isinstance(keys, dict) else keys
        for name, keys in content.items()
    }
    job = JobFile(path.absolute(), sections, lines)
    tables = list(tables)
    for name, keys in sections.items():
        if name not in tables:
            msg = f"no such table{did_you_mean(name, tables)}; a job file has {', '.join(tables)}"
            raise job.problem(msg, name)
        if not isinstance(keys, dict):
            msg = f"must be a table, [{name}] and a line for each key, got {short_repr(keys)}"
            raise job.problem(msg, name)
        for key, value in keys.items():
            if name != "recorded" and not _is_plain(value):
                msg = f"must be a text, a number, true, false or a list, got {short_repr(value)}"
                raise job.problem(msg, name, key)
    return job


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, str | int | float | bool | datetime.time)


def _lines(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = header[1]
            yield (section,), number
        elif key := _KEY.match(line):
            table = key[1] or section
            yield ((table, key[2].replace("-", "_")) if table else (key[2],)), number


# --- the table [cluster] -------------------------------------------------------------------------------------------

_SECTION = "cluster"
_OURS = ("place", "notice")
_RESOURCES = ("workers", "memory")
_NOTICE_SECONDS = 120


def cluster_option(job: JobFile) -> str | None:
    """The value of --cluster that stands for the table; None if it names no place."""
    options = dict(job.sections.get(_SECTION, {}))
    place = options.pop("place", None)
    if place is None and not set(options) - {*_RESOURCES, *_OURS}:
        return None
    if place is None:
        msg = 'needs place: "local", "threads", "slurm" or another backend that --cluster takes'
        raise job.problem(msg, _SECTION)
    notice_seconds(job)
    place = str(place)
    if place not in ("threads", "local") and place.isidentifier() and (system := batch_system(place)) is not None:
        cluster_options(job, system)
    file = job.path.parent / place
    words = [shlex.quote(str(file) if file.is_file() else place)]
    for key, value in options.items():
        if key not in (*_OURS, *_RESOURCES):
            if place in ("threads", "local"):
                raise job.unknown(_SECTION, key, ("place", *_RESOURCES))
            words += [shlex.quote(f"{key}={item}") for item in (value if isinstance(value, list) else [value])]
    return " ".join(words)


def cluster_options(job: JobFile, system: BatchSystem) -> JobOptions:
    """The options of jobs of a batch system; InputError, with the line, if one breaks a rule."""
    table: Mapping[str, Any] = job.sections.get(_SECTION, {})
    given = {key: value for key, value in table.items() if key not in (*_OURS, "workers")}
    return job_options(system, given, str(job.path))


def notice_seconds(job: JobFile) -> int:
    """How long before its walltime a job gets the signal to end."""
    given = job.sections.get(_SECTION, {}).get("notice", _NOTICE_SECONDS)
    try:
        seconds = int(parse_timedelta(given))
    except (KeyError, TypeError, ValueError):
        seconds = 0
    if not 1 <= seconds <= 65535:  # the range of sbatch
        msg = f'must be a time from 1 s to 18 h, such as "2 m", got {given!r}'
        raise job.problem(msg, _SECTION, "notice")
    return seconds


# --- records of results --------------------------------------------------------------------------------------------

PACKAGES = ("clarabel", "dask", "distributed", "numpy", "scipy", "scikit-learn", "xarray", "zarr")


def path_beside(out: str, job: Path, ending: str) -> Path:
    """A path next to a result, or next to the job file if the result is at a URL."""
    place = as_place(out)
    folder = place.parent if isinstance(place, Path) else job.parent
    return folder / f"{place.name}.{ending}"


def contents_of(paths: Iterable[str]) -> dict[str, str]:
    """The content id of each kernel set, and the SHA-256 of each file; other folders and missing paths have none."""
    import dmkl

    contents = {}
    for path in paths:
        if "://" not in path and Path(path).is_file():
            with open(path, "rb") as file:
                contents[path] = f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
        else:
            with suppress(DmklError, OSError, ValueError):
                contents[path] = f"kernel set {dmkl.open(path).content_id}"
    return contents


def differences(recorded: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each input whose contents have changed since the record, and for each version that has."""
    before: Mapping[str, str] = recorded.get("contents", {})
    contents = contents_of(before)
    for path, identity in before.items():
        if contents.get(path) != identity:
            yield f"{path} has other contents ({contents.get(path, 'none')}) than in the record ({identity})"
    now = versions_of(PACKAGES)
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
