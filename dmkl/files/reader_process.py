"""A child process for functions that may crash or never end on a damaged file.

`concurrent.futures.ProcessPoolExecutor` does not serve here: its processes import the user's script, which fails
without a `__main__` guard, daemonic processes may not start one, and their answers are pickles.
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
from dmkl.errors import MemoryBudgetError, one_line, refuse

_SECONDS, _BYTES_PER_SECOND, _UNPACKED_PER_SECOND = 5.0, 2e6, 1e8
"""CPU time of a call: a constant, plus a second for so many bytes of a file or of its content."""
_ROOM_BYTES = 256 * 2**20  # Addresses that libraries reserve and hardly use.
_PROGRAM = "import sys; sys.path[:] = {path!r}; import {module} as module; module.answer_requests()"
_LOCKS: dict[int, threading.Lock] = {}
_PROCESSES: dict[int, subprocess.Popen[bytes]] = {}
"""Lock and child process by the process that they serve: a fork must not write into the pipe of its parent."""

_Answer = tuple[Any, list[Array]]  # A value that JSON can hold, and arrays.


def run(function: Callable[..., _Answer], what: str, path: Path, *details: Any, unpacked_bytes: int = 0) -> _Answer:
    """Call a function of a module with a path and details in the child process; returns its value and arrays.

    JSON can hold the details and the value, and the arrays hold no objects. Messages call what the function reads
    `what`. The function has more time for a file whose content unpacks to `unpacked_bytes`.
    """
    seconds = _SECONDS + path.stat().st_size / _BYTES_PER_SECOND + unpacked_bytes / _UNPACKED_PER_SECOND
    budget_bytes = settings.memory_budget_bytes()
    request = (function.__module__, function.__name__, budget_bytes, seconds, str(path.absolute()), *details)
    with _LOCKS.setdefault(os.getpid(), threading.Lock()):
        process = _started()
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
            how = f"died ({signal.Signals(-process.returncode).name if process.returncode < 0 else process.returncode})"
            if process.returncode == -signal.SIGPROF:
                how = "took more CPU time than a file of its size should, and was ended"
            what = f"{path} is damaged, or made to do harm: the process that read it {how}"
            refuse(f"{what}. Write the file anew, or as .npy, from a source that you trust", error)
        except BaseException:  # the rest of its answer would be taken for the next one
            process.kill()
            _end()
            raise
    if problem == "MemoryError":
        allowed = f"the {budget_bytes:.3g} bytes that are allowed (the setting dmkl.memory)"
        way_out = "save it in a format that is read in parts, as .npy or MATLAB's version 7.3, or allow more"
        refuse(f"{what} takes more memory than {allowed} or is damaged; {way_out}", kind=MemoryBudgetError)
    if problem:
        refuse(f"{what} cannot be read: {problem}")
    return value, arrays


def _started() -> subprocess.Popen[bytes]:
    process = _PROCESSES.get(os.getpid())
    if process is None or process.poll() is not None:
        _end()
        process = _PROCESSES[os.getpid()] = subprocess.Popen(
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
    if process := _PROCESSES.pop(os.getpid(), None):
        with suppress(BrokenPipeError), process:
            pass


def answer_requests() -> None:
    """Answer each request on standard input by a line of JSON (problem, value, number of arrays), and .npy files."""
    answers = SimpleNamespace(write=sys.stdout.buffer.write)
    for line in sys.stdin.buffer:
        module, name, memory_bytes, seconds, *arguments = json.loads(line)
        function = getattr(importlib.import_module(module), name)
        problem, value, arrays = "", None, list[Array]()
        with suppress(AttributeError):  # Windows has no such signal
            signal.setitimer(signal.ITIMER_PROF, seconds)  # which ends this process also inside a library
        with suppress(AttributeError, OSError, ValueError):  # only Linux can limit the memory
            process = psutil.Process()
            _, most = process.rlimit(psutil.RLIMIT_AS)
            process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + memory_bytes + _ROOM_BYTES, most))
        try:
            value, arrays = function(*arguments)
        except MemoryError:
            problem = "MemoryError"
        except Exception as error:  # libraries raise anything on damaged files
            problem = f"{type(error).__name__}: {one_line(error)}"
        with suppress(AttributeError):
            signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps((problem, value, len(arrays))).encode() + b"\n")
        for array in arrays:
            np.lib.format.write_array(answers, array, allow_pickle=False)
        sys.stdout.buffer.flush()
