"""Names, dimensions and attributes of a stored kernel set: one declaration for writing, reading and labels.

The format itself is described normatively in storage/FORMAT.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["FORMAT", "FORMAT_VERSION", "NODES", "Node", "content_id", "gram_node"]

FORMAT: Final = "dmkl-kernel-set"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True)
class Node:
    """One array of the group."""

    name: str
    dims: tuple[str, ...]
    doc: str


NODES: Final = {
    node.name: node
    for node in (
        Node("gram_upper", ("kernel", "sample", "sample_2"), "symmetric kernels, tiles on and above the diagonal"),
        Node("gram", ("kernel", "sample", "train_sample"), "kernels in full: samples against training samples"),
        Node("kernel", ("kernel",), "names of the kernels, unique"),
        Node("sample", ("sample",), "names of the samples, unique"),
        Node("train_sample", ("train_sample",), "names of the training samples, unique"),
        Node("label", ("sample",), "classes, or 0/1 for each task (sample, task)"),
        Node("target", ("sample",), "numbers, or one for each task (sample, task); NaN is unknown"),
        Node("task", ("task",), "names of the columns of labels or targets"),
        Node("split", ("split", "sample"), "0 train, 1 validation, 2 test, -1 in no part"),
        Node("diagonal", ("kernel", "sample"), "k(x, x) of every sample"),
        Node("row_sum", ("kernel", "sample"), "sum over all (training) samples of every row"),
        Node("tile_crc32c", ("kernel", "tile_row", "tile_col"), "CRC32C of each stored tile without padding"),
    )
}


def gram_node(*, symmetric: bool, full: bool) -> Node:
    """The node that holds the matrices of such a set."""
    return NODES["gram_upper" if symmetric and not full else "gram"]


def content_id(names: Iterable[str], tile_crc32c: Iterable[npt.NDArray[np.uint32]]) -> str:
    """Identify the kernels' content.

    SHA-256 over, for each kernel in order: its name in UTF-8, a zero byte, and its table of tile checksums as
    little-endian 32-bit integers in row-major order.
    """
    digest = hashlib.sha256()
    for name, table in zip(names, tile_crc32c, strict=True):
        digest.update(name.encode() + b"\0")
        digest.update(np.ascontiguousarray(table, dtype="<u4").tobytes())
    return f"sha256:{digest.hexdigest()}"


def attributes(**values: Any) -> dict[str, Any]:
    """The attributes that every kernel set carries on its root group."""
    return {"format": FORMAT, "format_version": FORMAT_VERSION, **values}
