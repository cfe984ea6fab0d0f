"""Values and names as messages about specifications show them."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["did_you_mean", "plain", "shown", "some"]


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
    close = difflib.get_close_matches(str(word), list(known))
    return f" (did you mean {' or '.join(close)}?)" if close else ""
