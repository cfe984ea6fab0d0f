"""TOML and JSON files of users: read whole, and refused where they are nested beyond sense."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dmkl.errors import DmklError, InputError, one_line
from dmkl.settings import check_memory

__all__ = ["read_document"]

_MOST_DEEP = 32
"""Tables in tables, lists in lists: what goes through a document calls itself so many times."""
_MOST_GROWN = 40
"""Bytes of memory that a byte of a document takes at most, about, as Python's objects."""


def read_document(path: Path, what: str, more: Mapping[str, Callable[[str], Any]] | None = None) -> Any:
    """The content of a .toml or .json file; `more` are parsers by further extensions, `what` it is of for messages.

    Raises
    ------
    InputError
        If the file cannot be read, is none of its format, or is nested too deep.
    MemoryBudgetError
        If it is too long.
    """
    parsers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads, **(more or {})}
    form = path.suffix[1:].upper()
    where = str(path) if str(path).isprintable() else repr(str(path))  # another file may have named it
    try:
        size_bytes = path.stat().st_size
        check_memory(f"the file of {what} {where}", _MOST_GROWN * size_bytes, "write a shorter one, or allow more")
        text = path.read_text(encoding="utf-8-sig")
        if form == "TOML" and _longest_key(text) > _MOST_DEEP:  # its parser takes the square of that in time
            raise InputError(_too_deep(where, what))
        content = parsers[path.suffix.lower()](text)
    except OSError as error:
        msg = f"the file of {what} {where} cannot be read: {error.strerror}"
        raise InputError(msg) from error
    except DmklError:
        raise
    except ValueError as error:  # tomllib's, json's, Unicode's and those of `more`
        msg = f"the file of {what} {where} is not valid {form}: {one_line(error)}"
        raise InputError(msg) from error
    except RecursionError as error:
        raise InputError(_too_deep(where, what)) from error
    if not _is_shallow(content):
        raise InputError(_too_deep(where, what))
    return content


def _too_deep(where: str, what: str) -> str:
    return f"the file of {what} {where} is nested deeper than {_MOST_DEEP} levels, which none is that dmkl reads"


def _longest_key(text: str) -> int:
    """The most parts that a dotted key of a TOML text can have; of values it may tell more than are there."""
    lines = ("".join(line.split()) for line in text.splitlines() if not line.lstrip().startswith("#"))
    keys = (key.split(".") for line in lines if "." in line for key in re.split(r"[=,\[\]{}]", line))
    return max((sum(map(bool, parts)) for parts in keys), default=0)


def _is_shallow(content: Any) -> bool:
    level = [content]
    for _ in range(_MOST_DEEP):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [value for part in parts for value in part]
        if not level:
            return True
    return False
