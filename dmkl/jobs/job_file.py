"""Reading a job file, with the line of each key for messages."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dmkl.errors import InputError, did_you_mean, short_repr
from dmkl.files.documents import read_document

__all__ = ["JobFile", "read_job"]

_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"""\s*(?:([\w-]+)\s*\.\s*)?["']?([\w-]+)["']?\s*=""")


@dataclass(frozen=True)
class JobFile:
    """The tables of a job file.

    Parameters
    ----------
    path
        Of the file, absolute; paths inside are relative to its folder.
    sections
        By the name of the table its keys, with underscores, and their values.
    lines
        The line, from one, of each table (``(name,)``) and of each key (``(name, key)``).
    """

    path: Path
    sections: Mapping[str, Mapping[str, Any]]
    lines: Mapping[tuple[str, ...], int]

    def problem(self, text: str, section: str, key: str = "") -> InputError:
        """An error that begins with the file, the line and the key."""
        place = (section, key) if key else (section,)
        line = self.lines.get(place, self.lines.get((section,)))
        at = f"{self.path.name}, line {line}" if line else self.path.name
        return InputError(f"{at}, {'.'.join(place)}: {text}")

    def unknown(self, section: str, key: str, known: Iterable[str]) -> InputError:
        """The error of a key that a table has not."""
        known = list(known)
        takes = f"; [{section}] takes {', '.join(known)}" if known else ""
        return self.problem(f"no such key{did_you_mean(key, known)}{takes}", section, key)


def read_job(path: Path, known: Iterable[str]) -> JobFile:
    """Read a job file whose tables are among the `known`.

    Raises
    ------
    InputError
        If it cannot be read, is no .toml file, or has another table, a table within a table, or a value that is no
        text, number, truth value or list of them.
    """
    if path.suffix.lower() != ".toml":
        msg = f"a job file ends in .toml, got {path}"
        raise InputError(msg)
    content = read_document(path, "a job")
    lines = dict(_lines(path.read_text(encoding="utf-8-sig")))
    sections = {name: _underscored(keys) if isinstance(keys, dict) else keys for name, keys in content.items()}
    job = JobFile(path.absolute(), sections, lines)
    known = list(known)
    for name, keys in sections.items():
        if name not in known:
            msg = f"no such table{did_you_mean(name, known)}; a job file has {', '.join(known)}"
            raise job.problem(msg, name)
        if not isinstance(keys, dict):
            msg = f"must be a table, [{name}] and a line for each key, got {short_repr(keys)}"
            raise job.problem(msg, name)
        for key, value in keys.items():
            if name != "recorded" and not _is_plain(value):
                msg = f"must be a text, a number, true, false or a list, got {short_repr(value)}"
                raise job.problem(msg, name, key)
    return job


def _underscored(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in keys.items()}


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
