"""Trials of readers on mutated files: their errors, and their access to other files and processes."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import sysconfig
import tempfile
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

import dask

from dmkl.errors import DmklError
from helpers.fuzzing.corpora import FORMATS, Files

MEMORY = "256MiB"
"""The memory budget of the readers."""


class Lab(logging.Handler):
    """A folder in which mutated files of one format are read, one after another.

    The reader may open no files outside of this folder, and may only read.
    Errors logged by libraries are faults too, including those of asyncio about unawaited tasks of earlier files.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(logging.ERROR)
        self.name, self.format = name, FORMATS[name]
        with warnings.catch_warnings(action="ignore"):  # Zarr warns about its writes
            self.valid = self.format.make()
        self.inside = folder / "inside"
        self.inside.mkdir()
        self._faults: list[str] = []
        self._reading = False
        own = [self.inside, sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *sys.path[1:]]
        system = ("/proc", "/sys", "/dev", "/usr/share/zoneinfo", "/etc/localtime")
        self._readable = (*(os.path.realpath(path) for path in own if path), *system)
        sys.addaudithook(self._audit)
        logging.getLogger().addHandler(self)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def trial(self, seed: int) -> str:
        """Read files with a random mutation; return the faults, "" if there are none."""
        random = Random(f"{self.name} {seed}")
        return self.attempt(self.format.mutated(random, self.valid))

    def attempt(self, files: Files) -> str:
        """Read these files; return the faults, "" if there are none."""
        self._put(files)
        with dask.config.set({"dmkl.memory": MEMORY}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._reading = True
            try:
                self.format.read(self.inside)
            except BaseException as error:
                self._faults.append(_fault(error))
            finally:
                self._reading = False
        faults = "; ".join(filter(None, self._faults))
        self._faults.clear()
        return faults

    def _put(self, files: Files) -> None:
        """Replace the files of the folder, of which the previous ones may still be mapped."""
        shutil.rmtree(self.inside)
        for name, content in files.items():
            path = self.inside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def emit(self, record: logging.LogRecord) -> None:
        """Record a log message as a fault."""
        self._faults.append(f"logged: {record.getMessage()[:200]} ({record.exc_info and record.exc_info[1]!r})")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record forbidden operations of Python in this process: files, processes, pickles."""
        place = str(next(iter(arguments), ""))
        if event in ("os.remove", "os.rmdir") and arguments[-1] >= 0:  # a name in an open folder
            place = os.readlink(f"/proc/self/fd/{arguments[-1]}")
        if not self._reading or place.startswith(_COPIES):
            return
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path, mode, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[1] or "", arguments[2]
            writes = set(mode) & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and path != os.devnull:
                self._faults.append(f"wrote {path}")
            elif not path.startswith(self._readable):
                self._faults.append(f"read {path}")
        elif event in _FORBIDDEN and "reader_process" not in str(arguments[1:2]):
            self._faults.append(f"{event} {str(arguments)[:200]}")


_COPIES = os.path.join(tempfile.gettempdir(), "dmkl-unpacked-")
"""How the paths of copies of compressed files begin."""
_FORBIDDEN = {
    *("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.symlink", "os.link", "os.truncate"),
    "shutil.rmtree",
}
"""Events that readers must not cause, except the start of the process that reads files unsafe for libraries."""


def _fault(error: BaseException) -> str:
    """The fault of an exception, "" for a one-line DmklError that is not caused by lack of memory."""
    chain, causes = error, []
    while chain is not None:
        causes.append(chain)
        chain = chain.__cause__ or chain.__context__
    memory = any(type(cause) is MemoryError for cause in causes)
    if memory or not isinstance(error, DmklError):
        frames = traceback.extract_tb(causes[-1].__traceback__)
        own = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "/dmkl/" in frame.filename]
        return f"{causes[-1]!r:.200} at {own[-1] if own else '?'}"
    lines = str(error).split("\n")  # specifications have one line for each violated rule
    if not all(line and line.isprintable() for line in lines):
        return f"not one line: {str(error)[:300]!r}"
    return f"long: {str(error)[:300]}" if max(map(len, lines)) > 20_000 else ""
