"""The program that reads damaged files for `reader_process`, and dies of those that the libraries for them die of.

A request is a line of JSON: what to do, the file, the bytes of memory and the seconds of processor time that it may
take, and more. The answer is a line of JSON and, for a variable, the bytes of its arrays. It knows nothing of dmkl, and
imports only the library that it needs, so that it starts fast.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from typing import IO, Any

import numpy as np

_ROOM_BYTES = 256 * 2**20
"""Addresses that libraries reserve and hardly use."""
_TEXT_BYTES = 64
"""What a string takes at most beside its characters."""
_STEP = 65_536
"""Strings that are read at once."""


def main() -> None:
    """Answer requests until there are no more."""
    answers = sys.stdout.buffer
    for line in sys.stdin.buffer:
        work, file, memory_bytes, seconds, details = json.loads(line)
        parts: list[Any] = []
        answer: dict[str, Any]
        _limit(memory_bytes, seconds)
        try:
            if work == "hdf5 look":
                answer = _look(file, memory_bytes)
            elif work == "mat5 list":
                answer = {"variables": _list(file)}
            else:
                answer = {"variable": _describe(_load(file, *details), parts)}
        except MemoryError:
            answer = {"memory": True}
        except Exception as error:  # libraries let through whatever their parts meet in a damaged file
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        _limit_seconds(0)
        answers.write(json.dumps(answer).encode() + b"\n")
        if "variable" in answer:
            for part in parts:
                _write(part, answers)
        answers.flush()


def _limit(memory_bytes: int, seconds: float) -> None:
    """Let the program take so much memory more than it has now, and so much time, on systems that can tell."""
    _limit_seconds(seconds)
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as status:
            now = int(status.read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = now + memory_bytes + _ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _limit_seconds(seconds: float) -> None:
    """End the program after so much processor time, 0 for no limit; also inside a library."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


# --- HDF5 -------------------------------------------------------------------------------------------------------------


def _look(file: str, memory_bytes: int) -> dict[str, Any]:
    """Go through all that an HDF5 file holds but numbers: groups, attributes, how data lie, strings.

    Whatever is raised is raised again where the file is read; what counts is to come through.
    """
    import h5py

    with h5py.File(file, "r", locking="best-effort") as opened:
        waiting, seen = [opened["/"]], set()
        while waiting:
            group = waiting.pop()
            _read_attributes(group)
            keys: list[str] = []
            with suppress(Exception):  # of one group; the others are read all the same
                keys += group
            for key in keys:
                with suppress(Exception):
                    if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                        continue
                    node = group[key]
                    if isinstance(node, h5py.Datatype) or (place := h5py.h5o.get_info(node.id).addr) in seen:
                        continue
                    seen.add(place)
                    if isinstance(node, h5py.Group):
                        waiting.append(node)
                        continue
                    _read_attributes(node)
                    _read_strings(node, memory_bytes)
    return {}


def _read_attributes(node: Any) -> None:
    with suppress(Exception):
        for name in node.attrs:
            with suppress(Exception):
                node.attrs[name]


def _read_strings(node: Any, memory_bytes: int) -> None:
    """Where a data set lies, and its strings, of which each may lie anywhere in the file."""
    import h5py

    if node.is_virtual or node.external or not node.size or not node.id.get_storage_size():
        return
    if node.chunks is not None:
        node.id.chunk_iter(lambda _: None)
    kind = h5py.check_string_dtype(node.dtype)
    if kind is None or kind.length is not None or node.size * (node.dtype.itemsize + _TEXT_BYTES) > memory_bytes:
        return
    if not node.shape:
        node[()]
        return
    step = max(1, _STEP * node.shape[0] // node.size)
    for start in range(0, node.shape[0], step):
        node[start : start + step]


# --- MATLAB before version 7.3 ----------------------------------------------------------------------------------------


def _list(file: str) -> list[tuple[str, list[int], str]]:
    import scipy.io

    opened: Any
    with open(file, "rb") as opened:
        return [(name, [int(length) for length in shape], kind) for name, shape, kind in scipy.io.whosmat(opened)]


def _load(file: str, variable: str) -> Any:
    import scipy.io

    opened: Any
    with open(file, "rb") as opened:
        return scipy.io.loadmat(opened, variable_names=[variable])[variable]


def _describe(value: Any, parts: list[Any], *, inside: bool = False) -> dict[str, Any]:
    """Shape, type and order of an array, or of those of a cell array; the arrays go to `parts`."""
    import scipy.sparse

    if scipy.sparse.issparse(value):
        return {"kind": "sparse"}
    array = np.asarray(value)
    if array.dtype.kind == "O" and not inside:
        cells = [_describe(part, parts, inside=True) for part in array.ravel(order="F")]
        return {"kind": "cell", "shape": array.shape, "cells": cells}
    if array.dtype.kind not in "fiubcU":
        return {"kind": "other"}
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    parts.append(array.T if fortran else array)
    return {"kind": "array", "shape": array.shape, "dtype": array.dtype.str, "fortran": fortran}


def _write(array: Any, answers: IO[bytes]) -> None:
    if array.dtype.kind == "U" or not array.size:
        answers.write(array.tobytes())
    else:
        answers.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


if __name__ == "__main__":
    main()
