"""CRC-32C of numbers, and of JSON whatever its layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np

from dmkl.arrays import Array

__all__ = ["crc32c", "json_crc32c", "parse_json"]


def crc32c(block: Array) -> int:
    """CRC-32C (Castagnoli) of the numbers of a block, row after row."""
    return int(google_crc32c.value(np.ascontiguousarray(block).view(np.uint8).reshape(-1)))


def json_crc32c(content: Mapping[str, Any]) -> str:
    """CRC-32C, in eight hexadecimal digits, of an object as JSON without spaces, in ASCII, its keys sorted."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(text.encode()):08x}"


def parse_json(data: bytes) -> dict[str, Any]:
    """The object that a JSON text holds.

    Raises
    ------
    ValueError
        If it is no JSON, or no object.
    """
    try:
        found = json.loads(data)
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise ValueError(msg) from error
    if not isinstance(found, dict):
        msg = f"it holds {type(found).__name__}, expected an object"
        raise ValueError(msg)
    return found
