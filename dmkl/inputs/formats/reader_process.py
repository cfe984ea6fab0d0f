"""A process that reads what libraries written in C may crash or never end on: it dies then, and not this one."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import InputError

__all__ = ["Reader", "asked"]

_PROGRAM = Path(__file__).with_name("reader_program.py")
_SECONDS, _BYTES_PER_SECOND, _UNPACKED_PER_SECOND = 5.0, 2e6, 1e8
"""Processor time that reading may take: so much, and a second for so many bytes of a file, or of what comes of it."""
_LOCK = threading.Lock()
_RUNNING: dict[int, subprocess.Popen[bytes]] = {}
"""The process that reads, by the process that it reads for: a fork must not talk into its parent's pipe."""


class Reader:
    """The process, while it answers a request about one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        running = _RUNNING.get(os.getpid())
        if running is None or running.poll() is not None:
            _end()
            running = _RUNNING[os.getpid()] = _started()
        self._process = running

    def ask(self, work: str, *details: Any, unpacked_bytes: int = 0) -> dict[str, Any]:
        """The answer; the bytes of arrays may follow it, so many at most where they are `unpacked_bytes`."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        seconds = _SECONDS + self._path.stat().st_size / _BYTES_PER_SECOND + unpacked_bytes / _UNPACKED_PER_SECOND
        request = (work, str(self._path.absolute()), settings.memory_budget_bytes(), seconds, details)
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise self._death()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def fill(self, array: Array) -> None:
        """Take the bytes of an array."""
        assert self._process.stdout is not None
        rest = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
        while len(rest):
            count = self._process.stdout.readinto(rest)  # type: ignore[attr-defined]
            if not count:
                raise self._death()
            rest = rest[count:]

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        _end()

    def _death(self) -> InputError:
        status = self._process.wait()
        _end()
        if status == -signal.SIGPROF:
            why = "took more processor time than a file of its size should, and was ended"
        else:
            why = f"died ({signal.Signals(-status).name if status < 0 else f'exit status {status}'})"
        msg = (
            f"{self._path} is damaged, or made to do harm: the process that read it {why}. Write the file anew, or as "
            ".npy, from a source that you trust"
        )
        return InputError(msg)


@contextmanager
def asked(path: Path) -> Iterator[Reader]:
    """The process for a request about a file. It serves one at a time, and is started where there is none.

    Raises
    ------
    InputError
        If the process dies of it, or takes much longer than it should.
    """
    with _LOCK:
        reader = Reader(path)
        try:
            yield reader
        except BaseException as error:
            if not isinstance(error, Exception):  # interrupted: its answer would be taken for that to the next request
                reader.kill()
            raise


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
