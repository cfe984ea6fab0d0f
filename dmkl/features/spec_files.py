"""Reading specifications, and sets of columns, from files, and showing their values in messages."""

from __future__ import annotations

import difflib
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dmkl.errors import InputError
from dmkl.files.documents import read_document

__all__ = ["did_you_mean", "plain", "read_columns", "read_specs", "shown", "some"]


def read_specs(specs: Any) -> list[dict[str, Any]]:
    """Read specifications from a mapping, a list or a file; `plan` checks their content.

    Parameters
    ----------
    specs
        A list of mappings, one mapping, or the path of a .toml file that has one table ``[[kernel]]`` for each. Paths
        in such a file are relative to it.

    Returns
    -------
    list of dict
        One for each specification, in their order.

    Raises
    ------
    InputError
        If there are none, one is no mapping, or the file cannot be read.
    """
    if isinstance(specs, str | os.PathLike):
        return _read_toml(Path(specs))
    listed = [specs] if isinstance(specs, Mapping) else specs
    if not isinstance(listed, Sequence) or not listed:
        msg = (
            "kernels are specified by a mapping such as {'function': 'rbf', 'feature': '*'}, a list of at least one, "
            f"or the path of a .toml file, got {shown(specs)}"
        )
        raise InputError(msg)
    for number, spec in enumerate(listed, 1):
        if not isinstance(spec, Mapping):
            msg = (
                f"spec {number} of {len(listed)} must be a mapping such as {{'function': 'rbf', 'feature': '*'}}, "
                f"got {shown(spec)}"
            )
            raise InputError(msg)
    return [dict(spec) for spec in listed]


def _read_toml(path: Path) -> list[dict[str, Any]]:
    if path.suffix.lower() != ".toml":
        msg = f"a file of kernel specifications ends in .toml, got {path}"
        raise InputError(msg)
    content = read_document(path, "specifications")
    tables = content.pop("kernel", None)
    if not isinstance(tables, list) or not tables or content:
        found = some([*content, *([] if tables is None else [f"kernel = {shown(tables)}"])]) or "an empty file"
        msg = f"{path} must hold one table [[kernel]] for each specification and nothing else, got {found}"
        raise InputError(msg)
    specs = read_specs(tables)
    for spec in specs:
        if isinstance(spec.get("columns"), str):
            spec["columns"] = str(path.parent / spec["columns"])
    return specs


def _parse_gmt(text: str) -> dict[str, list[str]]:
    """Gene sets in the format of MSigDB: name, description and members of one set a line, separated by tabs."""
    sets: dict[str, list[str]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        name, *rest = (field.strip() for field in line.split("\t"))
        if len(rest) < 2 or not name or name in sets:
            found = f"the second set named {name!r}" if name in sets else shown(line)
            msg = f"line {number} must be name, description and members of a new set, separated by tabs, got {found}"
            raise ValueError(msg)
        sets[name] = [member for member in rest[1:] if member]
    return sets


def read_columns(value: Any) -> Any:
    """Replace the path of a file by the mapping that it holds."""
    if not isinstance(value, str | os.PathLike):
        return value
    path = Path(value)
    if path.suffix.lower() not in (".json", ".toml", ".gmt"):
        msg = (
            "columns must be a list, a mapping, or the path of a .json, .toml or .gmt file, "
            f"got {shown(str(value))}; a single column stands in a list too"
        )
        raise ValueError(msg)
    content = read_document(path, "column sets", {".gmt": _parse_gmt})
    if not isinstance(content, dict):
        msg = f"the file of column sets {path} must map names to lists of columns, got {shown(content)}"
        raise InputError(msg)
    return plain(content)


def plain(value: Any) -> Any:
    """Convert to Python's own numbers, and to tuples for lists, ranges and arrays."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return tuple(map(plain, value)) if isinstance(value, list | tuple | range) else value


def shown(value: Any) -> str:
    """A value as messages show it, shortened."""
    return reprlib.repr(list(value) if isinstance(value, tuple) else value)


def some(names: Iterable[Any], count: int = 5) -> str:
    """The first few names, and how many there are."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:count]) + (f", … ({len(listed)} in all)" if len(listed) > count else "")


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """A hint at known words like this one; empty where there is none."""
    known = list(known)
    close = difflib.get_close_matches(str(word), known)
    close = close or [name for name in known if len(name) > 2 and str(word).startswith(name)]
    return f" (did you mean {' or '.join(close)}?)" if close else ""
