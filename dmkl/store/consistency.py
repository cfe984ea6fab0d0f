"""Whether the metadata of a set on disk describe one, before anything of it is read or made room for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from dmkl import settings
from dmkl.errors import MemoryBudgetError, StoreError
from dmkl.store.schema import NODES

__all__ = ["check_metadata", "check_node", "check_tables", "check_unique"]

_STRING_BYTES = 64
"""What a string of Python takes, and its place in an array."""
_MOST_CHUNKS = 10_000
"""A node that is read whole has no more chunks than these, or than two for each kernel: each is a file."""
_IN_PARTS = ("gram_upper", "gram", "row_sum", "diagonal")


def check_metadata(group: Any, attrs: Mapping[str, Any], where: str) -> None:
    """Check attributes and arrays of a kernel set against `storage/FORMAT.md`.

    Raises
    ------
    StoreError
        If one has another type or shape than the others ask for.
    MemoryBudgetError
        If names and labels alone take more memory than a computation may.
    """
    _check_attributes(attrs, where)
    gram = group["gram_upper" if "gram_upper" in group else "gram"]
    tile, symmetric = attrs["tile"], attrs["symmetric"]
    if gram.ndim != 3 or 0 in gram.shape or gram.dtype not in (np.float32, np.float64):
        _refuse(
            where,
            f"{gram.basename!r} has the shape {gram.shape} and holds {gram.dtype}",
            "kernels of float32 or float64",
        )
    if symmetric and gram.shape[1] != gram.shape[2]:
        _refuse(where, f"{gram.basename!r} has the shape {gram.shape}", "square kernels, since it calls them symmetric")
    if gram.chunks != (1, tile, tile):
        _refuse(where, f"{gram.basename!r} has chunks {gram.chunks}", f"(1, {tile}, {tile}), the tiles")
    lengths = {"kernel": gram.shape[0], "sample": gram.shape[1], "train_sample": gram.shape[2]}
    lengths |= {"tile_row": -(-gram.shape[1] // tile), "tile_col": -(-gram.shape[2] // tile)}
    if len(attrs["kernels"]) != gram.shape[0]:
        _refuse(
            where, f"its attribute 'kernels' has {len(attrs['kernels'])} entries", f"one for each of {gram.shape[0]}"
        )
    needed_bytes = 0
    for name, node in NODES.items():
        if name in group and name not in ("gram", "gram_upper"):
            array = group[name]
            dims = (*node.dims, "task")[: max(len(node.dims), array.ndim if name in ("label", "target") else 0)]
            _check_shape(name, array, dims, lengths, where)
            needed_bytes += check_node(array, name, where, whole=name not in _IN_PARTS, n_kernels=gram.shape[0])
    _check_memory(needed_bytes, where)


def _check_attributes(attrs: Mapping[str, Any], where: str) -> None:
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "tile": ("an integer from 1 on", lambda value: type(value) is int and value >= 1),
        "symmetric": ("true or false", lambda value: isinstance(value, bool)),
        "content_id": ("a string", lambda value: isinstance(value, str)),
        "kernels": (
            "a list of objects",
            lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value),
        ),
    }
    for key, (rule, holds) in rules.items():
        if not holds(attrs[key]):
            _refuse(where, f"its attribute {key!r} is {attrs[key]!r:.80}", rule)


def _check_shape(name: str, array: Any, dims: Sequence[str], lengths: dict[str, int], where: str) -> None:
    """Compare a shape with the lengths that are known; those of tasks and splits are told by the first one."""
    if array.ndim == len(dims):
        expected = tuple(lengths.setdefault(dim, length) for dim, length in zip(dims, array.shape, strict=True))
        if array.shape == expected:
            return
        _refuse(where, f"{name!r} has the shape {array.shape}", f"{expected}, ({', '.join(dims)})")
    _refuse(where, f"{name!r} has {array.ndim} dimensions", f"({', '.join(dims)})")


def check_node(array: Any, name: str, where: str, *, whole: bool = True, n_kernels: int = 0) -> int:
    """Check that an array of a set holds text or real numbers in not too many chunks; returns the bytes of a whole one.

    Raises
    ------
    StoreError
        If it does not, or if one chunk is larger than memory.
    """
    kind = array.dtype.kind
    text = kind in "TOU"
    if not (text or kind in "fiub") or (text != (name in _TEXTS) and name != "label"):
        _refuse(where, f"{name!r} holds {array.dtype}", "text" if name in _TEXTS else "real numbers")
    itemsize = array.dtype.itemsize if kind in "fiub" else _STRING_BYTES
    chunk_bytes = math.prod(map(int, array.chunks)) * itemsize
    budget_bytes = settings.memory_budget_bytes()
    if chunk_bytes > max(budget_bytes, math.prod(array.shape) * itemsize):
        _refuse(where, f"a chunk of {name!r} takes {chunk_bytes:.3g} bytes", "chunks no larger than the array")
    if not whole:
        return 0
    n_chunks = math.prod(-(-length // chunk) for length, chunk in zip(array.shape, array.chunks, strict=True))
    if n_chunks > max(_MOST_CHUNKS, 2 * n_kernels):
        _refuse(where, f"{name!r} has {n_chunks:,} chunks", f"at most {_MOST_CHUNKS:,}")
    return int(math.prod(array.shape)) * itemsize


_TEXTS = ("kernel", "sample", "train_sample", "task", "column")


def check_tables(values: Any, names: Any, center: Any, where: str) -> None:
    """Check the arrays of a feature table against one another.

    Raises
    ------
    StoreError
        If one has another type or shape than the others ask for.
    """
    if values.ndim != 2 or 0 in values.shape or values.dtype not in (np.float32, np.float64):
        _refuse(
            where, f"'values' has the shape {values.shape} and holds {values.dtype}", "a matrix of float32 or float64"
        )
    needed_bytes = 0
    for name, array in (("column", names), ("center", center)):
        if array is not None:
            if array.shape != values.shape[1:]:
                _refuse(where, f"{name!r} has the shape {array.shape}", f"{values.shape[1:]}, one for each column")
            needed_bytes += check_node(array, name, where)
    check_node(values, "values", where, whole=False)
    _check_memory(needed_bytes, where)


def _check_memory(needed_bytes: int, where: str) -> None:
    budget_bytes = settings.memory_budget_bytes()
    if needed_bytes > budget_bytes:
        msg = (
            f"the names and labels of {where} take {needed_bytes:.3g} bytes of memory, and {budget_bytes:.3g} are "
            "allowed (the setting dmkl.memory); allow more, or look whether its metadata are damaged"
        )
        raise MemoryBudgetError(msg)


def check_unique(names: Iterable[Any], what: str, where: str) -> None:
    """Refuse names that occur twice, as those of a chunk do that is missing."""
    found = list(names)
    if len(set(found)) < len(found):
        _refuse(where, f"the names in {what!r} are not unique", "a name of its own for each")


def _refuse(where: str, found: str, expected: str) -> NoReturn:
    msg = f"{where} is damaged: {found}, expected {expected}; import or build it again"
    raise StoreError(msg)
