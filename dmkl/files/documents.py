"""JSON and TOML: files of users, which are limited in size and nesting, and objects of JSON."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dmkl.errors import DmklError, one_line, refuse
from dmkl.files.regular import check_regular
from dmkl.settings import check_memory

_MOST_DEEP = 32  # Levels of tables in tables and lists in lists, since documents are processed recursively.
_MOST_GROWTH = 40  # Most bytes of memory that a byte of a document takes as Python objects, about.
_SMALL_BYTES = 2**16  # Bytes of documents that are read whatever the budget, which takes longer to ask for.


def read_document(path: Path, what: str, more: Mapping[str, Callable[[str], Any]] | None = None) -> Any:
    """The content of a .toml or .json file, `what` in words; `more` has parsers for other extensions.

    InputError if the file cannot be read, is not of its format, or is nested too deeply; MemoryBudgetError if it is
    too long.
    """
    parsers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads, **(more or {})}
    form = path.suffix[1:].upper()
    name = str(path) if str(path).isprintable() else repr(str(path))  # the path may come from another file
    try:
        check_size(f"the file of {what} {name}", check_regular(path))
        text = path.read_text(encoding="utf-8-sig")
        if form == "TOML" and _longest_key(text) > _MOST_DEEP:  # the parser takes quadratic time for long keys
            raise RecursionError
        content = parsers[path.suffix.lower()](text)
        level = [content]
        for _ in range(_MOST_DEEP):
            parts = [
                part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)
            ]
            level = [value for part in parts for value in part]
        if level:
            raise RecursionError
    except OSError as error:
        refuse(f"the file of {what} {name} cannot be read: {error.strerror}", error)
    except DmklError:
        raise
    except ValueError as error:  # tomllib's, json's, Unicode's and those of `more`
        refuse(f"the file of {what} {name} is not valid {form}: {one_line(error)}", error)
    except RecursionError as error:
        refuse(f"the file of {what} {name} is nested deeper than {_MOST_DEEP} levels, more than dmkl reads", error)
    return content


def check_size(what: str, size_bytes: int) -> None:
    """Raise MemoryBudgetError for a document that would fill the memory as Python objects."""
    if size_bytes > _SMALL_BYTES:
        check_memory(what, _MOST_GROWTH * size_bytes, "write a shorter one, or allow more")


def _longest_key(text: str) -> int:
    """An upper bound of the number of parts of a dotted key of a TOML text."""
    lines = ("".join(line.split()) for line in text.splitlines() if not line.lstrip().startswith("#"))
    keys = (key.split(".") for line in lines if "." in line for key in re.split(r"[=,\[\]{}]", line))
    return max((sum(map(bool, parts)) for parts in keys), default=0)


def parse_json(data: bytes) -> dict[str, Any]:
    """The object of a JSON text; ValueError if it is not JSON or not an object."""
    try:
        content = json.loads(data)
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise ValueError(msg) from error
    if not isinstance(content, dict):
        msg = f"it holds {type(content).__name__}, expected an object"
        raise ValueError(msg)
    return content
