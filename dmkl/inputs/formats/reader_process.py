"""A process that runs functions which may crash or never end on a damaged file: it dies then, and not this one.

A pool of `multiprocessing` cannot serve here: it imports the user's script, which fails without a `__main__` guard, and
daemonic processes may not start one.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import InputError, MemoryBudgetError, one_line

__all__ = ["answer_requests", "run"]

_SECONDS, _BYTES_PER_SECOND, _UNPACKED_PER_SECOND = 5.0, 2e6, 1e8
"""Processor time that a function may take: this much, and a second for so many bytes of a file or of its content."""
_ROOM_BYTES = 256 * 2**20
"""Addresses that libraries reserve and hardly use."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; import {module} as module; module.answer_requests()"
_LOCKS: dict[int, threading.Lock] = {}
_RUNNING: dict[int, subprocess.Popen[bytes]] = {}
"""The lock and the process, by the process that they serve: a fork must not write into the pipe of its parent."""

_Answer = tuple[Any, list[Array]]
"""A value that JSON can hold, and arrays."""


def run(function: Callable[..., _Answer], what: str, path: Path, *details: Any, unpacked_bytes: int = 0) -> _Answer:
    """Call a function of a module with a path and details in the other process, and give its value and arrays.

    JSON can hold the details and the value, and the arrays hold no objects. Messages name `what` the function reads. It
    has more time for a file whose content is unpacked to as many as `unpacked_bytes`.

    InputError is raised where the function raises an exception, kills the process, or takes much longer than it should,
    MemoryBudgetError where it takes more memory than is allowed.
    """
    seconds = _SECONDS + path.stat().st_size / _BYTES_PER_SECOND + unpacked_bytes / _UNPACKED_PER_SECOND
    budget_bytes = settings.memory_budget_bytes()
    request = (function.__module__, function.__name__, budget_bytes, seconds, str(path.absolute()), *details)
    with _LOCKS.setdefault(os.getpid(), threading.Lock()):
        process = _running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            problem, value, n_arrays = json.loads(process.stdout.readline())
            pipe = SimpleNamespace(read=process.stdout.read)  # NumPy asks files for their position, pipes have none
            arrays = [np.lib.format.read_array(pipe, allow_pickle=False) for _ in range(n_arrays)]
        except (BrokenPipeError, ValueError) as error:  # its answer ends too early
            _end()
            raise _death(path, process.returncode) from error
        except BaseException:  # the rest of its answer would be taken for that to the next request
            process.kill()
            _end()
            raise
    if problem == "MemoryError":
        msg = (
            f"{what} takes more memory than the {budget_bytes:.3g} bytes that are allowed (the setting dmkl.memory), "
            "or is damaged; save it in a format that is read in parts, as .npy or MATLAB's version 7.3, or allow more"
        )
        raise MemoryBudgetError(msg)
    if problem:
        msg = f"{what} cannot be read: {problem}"
        raise InputError(msg)
    return value, arrays


def _running() -> subprocess.Popen[bytes]:
    """The process, started where there is none."""
    process = _RUNNING.get(os.getpid())
    if process is None or process.poll() is not None:
        _end()
        process = _RUNNING[os.getpid()] = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM.format(path=[*map(str, sys.path)], module=__name__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # it computes nothing
        )
    return process


@atexit.register
def _end() -> None:
    """Close the pipes of the process, which ends it, and wait for its end."""
    process = _RUNNING.pop(os.getpid(), None)
    if process is not None:
        with suppress(BrokenPipeError), process:
            pass


def _death(path: Path, status: int) -> InputError:
    why = f"died ({signal.Signals(-status).name if status < 0 else f'exit status {status}'})"
    if status == -signal.SIGPROF:
        why = "took more processor time than a file of its size should, and was ended"
    msg = (
        f"{path} is damaged, or made to do harm: the process that read it {why}. Write the file anew, or as .npy, from "
        "a source that you trust"
    )
    return InputError(msg)


# --- in the other process ------------------------------------------------------------------------------------------


def answer_requests() -> None:
    """Answer the requests on standard input until there are no more.

    An answer is a line of JSON (the problem, the value, the number of arrays), and the arrays, each as an .npy file.
    """
    answers = SimpleNamespace(write=sys.stdout.buffer.write)
    for line in sys.stdin.buffer:
        module, name, memory_bytes, seconds, *arguments = json.loads(line)
        function = getattr(importlib.import_module(module), name)
        problem, value, arrays = "", None, list[Array]()
        _limit(memory_bytes, seconds)
        try:
            value, arrays = function(*arguments)
        except MemoryError:
            problem = "MemoryError"
        except Exception as error:  # libraries let through whatever their parts meet in a damaged file
            problem = f"{type(error).__name__}: {one_line(error)}"
        _limit_seconds(0)
        answers.write(json.dumps((problem, value, len(arrays))).encode() + b"\n")
        for array in arrays:
            np.lib.format.write_array(answers, array, allow_pickle=False)
        sys.stdout.buffer.flush()


def _limit(memory_bytes: int, seconds: float) -> None:
    """Let this process take so much more memory than it has, and so much time, on systems that can limit them."""
    _limit_seconds(seconds)
    with suppress(AttributeError, OSError, ValueError):  # on Linux alone
        process = psutil.Process()
        _, most = process.rlimit(psutil.RLIMIT_AS)
        process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + memory_bytes + _ROOM_BYTES, most))


def _limit_seconds(seconds: float) -> None:
    """End this process after so much processor time, 0 for no limit; also inside a library."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
