"""The program that reads MATLAB files before version 7.3 for `mat5_process`, and dies of those that SciPy dies of.

A request is a line of JSON: the file, the variable (null to list them) and the bytes of memory that it may take. The
answer is a line of JSON and, for a variable, the bytes of its arrays. It knows nothing of dmkl, so that it starts fast.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import IO, Any

import numpy as np
import scipy.io
import scipy.sparse

_ROOM_BYTES = 256 * 2**20
"""Addresses that libraries reserve and hardly use."""


def main() -> None:
    """Answer requests until there are no more."""
    answers = sys.stdout.buffer
    for line in sys.stdin.buffer:
        file, variable, memory_bytes = json.loads(line)
        _limit(memory_bytes)
        parts: list[Any] = []
        answer: dict[str, Any]
        try:
            answer = (
                {"variables": _list(file)}
                if variable is None
                else {"variable": _describe(_load(file, variable), parts)}
            )
        except MemoryError:
            answer = {"memory": True}
        except Exception as error:  # SciPy lets through whatever its parts meet in a damaged file
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        answers.write(json.dumps(answer).encode() + b"\n")
        if "variable" in answer:
            for part in parts:
                _write(part, answers)
        answers.flush()


def _limit(memory_bytes: int) -> None:
    """Let the program take so much memory more than it has now, on systems that can tell."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as status:
            now = int(status.read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = now + memory_bytes + _ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _list(file: str) -> list[tuple[str, list[int], str]]:
    opened: Any
    with open(file, "rb") as opened:
        return [(name, [int(length) for length in shape], kind) for name, shape, kind in scipy.io.whosmat(opened)]


def _load(file: str, variable: str) -> Any:
    opened: Any
    with open(file, "rb") as opened:
        return scipy.io.loadmat(opened, variable_names=[variable])[variable]


def _describe(value: Any, parts: list[Any], *, inside: bool = False) -> dict[str, Any]:
    """Shape, type and order of an array, or of those of a cell array; the arrays go to `parts`."""
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
