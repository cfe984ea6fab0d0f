"""MATLAB files before version 7.3, read in a process of their own: a crafted one ends that process and not this one."""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import InputError, MemoryBudgetError

__all__ = ["SPARSE", "read_variable", "variables_of"]

SPARSE: Final = object()
"""What a sparse variable is read as."""

_PROGRAM = Path(__file__).with_name("mat5_program.py")
_LOCK = threading.Lock()
_RUNNING: dict[int, subprocess.Popen[bytes]] = {}
"""The process that reads, by the process that it reads for: a fork must not talk into its parent's pipe."""


def variables_of(path: Path) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and MATLAB's class of each variable.

    Raises
    ------
    InputError
        If the file is damaged.
    MemoryBudgetError
        If even listing takes more memory than is allowed.
    """
    with _LOCK:
        answer, _ = _asked(path, None)
        return [(str(name), tuple(shape), str(kind)) for name, shape, kind in answer["variables"]]


def read_variable(path: Path, name: str) -> Any:
    """One variable: an array, an array of objects with the parts of a cell array, `SPARSE`, or None for other classes.

    Raises
    ------
    InputError
        If it is damaged.
    MemoryBudgetError
        If it takes more memory than is allowed.
    """
    with _LOCK:
        answer, process = _asked(path, name)
        return _received(answer["variable"], process, path)


def _asked(path: Path, name: str | None) -> tuple[dict[str, Any], subprocess.Popen[bytes]]:
    """The answer of the process, which is started where there is none."""
    process = _RUNNING.get(os.getpid())
    if process is None or process.poll() is not None:
        _end()
        process = _RUNNING[os.getpid()] = _started()
    assert process.stdin is not None
    assert process.stdout is not None
    budget_bytes = settings.memory_budget_bytes()
    request = json.dumps((str(path.absolute()), name, budget_bytes)).encode() + b"\n"
    try:
        process.stdin.write(request)
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = b""
    if not line:
        raise _death(process, path)
    answer: dict[str, Any] = json.loads(line)
    what = str(path) if name is None else f"variable {name!r} of {path}"
    if "memory" in answer:
        msg = (
            f"{what} takes more memory than the {budget_bytes:.3g} bytes that are allowed (the setting dmkl.memory), "
            "or is damaged; save it as version 7.3, which is read in parts, or allow more"
        )
        raise MemoryBudgetError(msg)
    if "error" in answer:
        msg = f"{what} cannot be read as MATLAB's: {' '.join(answer['error'].split())}"
        raise InputError(msg)
    return answer, process


def _started() -> subprocess.Popen[bytes]:
    # -P: the files beside the program are no modules of its own. One thread: it computes nothing.
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )


@atexit.register
def _end() -> None:
    """End the process that reads for this one."""
    process = _RUNNING.pop(os.getpid(), None)
    if process is not None:
        with suppress(BrokenPipeError), process:  # closes its pipes, and waits
            pass


def _death(process: subprocess.Popen[bytes], path: Path) -> InputError:
    status = process.wait()
    _end()
    why = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    msg = (
        f"{path} is damaged, or made to do harm: the process that read it died ({why}). Save the variables anew, as "
        "version 7.3 or .npy, from a file that you trust"
    )
    return InputError(msg)


def _received(told: dict[str, Any], process: subprocess.Popen[bytes], path: Path) -> Any:
    """The arrays that follow an answer."""
    if told["kind"] == "array":
        shape = tuple(told["shape"])
        array = np.empty(shape[::-1] if told["fortran"] else shape, dtype=told["dtype"])
        _fill(array, process, path)
        return array.T if told["fortran"] else array
    if told["kind"] == "cell":
        cells = np.empty(math.prod(told["shape"]), dtype=object)
        for position, part in enumerate(told["cells"]):
            cells[position] = _received(part, process, path)
        return cells.reshape(told["shape"], order="F")
    return SPARSE if told["kind"] == "sparse" else None


def _fill(array: Array, process: subprocess.Popen[bytes], path: Path) -> None:
    assert process.stdout is not None
    rest = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
    while len(rest):
        count = process.stdout.readinto(rest)  # type: ignore[attr-defined]
        if not count:
            raise _death(process, path)
        rest = rest[count:]
