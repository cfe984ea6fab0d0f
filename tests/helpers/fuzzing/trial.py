"""One mutated file under watch: what its reader does, and whether it minds its own business."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import struct
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

import dask

from dmkl.errors import DmklError
from helpers.fuzzing.corpora import FORMATS, Files

__all__ = ["Lab"]

MEMORY = "256MiB"
"""The memory budget under which files are read."""


class Lab:
    """A folder in which mutated files of one format are read, one after another.

    Beside it lies the folder `outside`, of which no mutated file may make its reader touch anything.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.format = name, FORMATS[name]
        with warnings.catch_warnings(action="ignore"):  # Zarr warns of what it writes
            self.valid = self.format.make()
        self.inside, self.outside = folder / "inside", folder / "outside"
        self.inside.mkdir()
        self.outside.mkdir()
        _fill(self.outside)
        self._touched = _Touched(self.outside)
        self._watch = _Watch(folder)
        self._logged = _Logged(self._watch.faults)
        logging.getLogger().addHandler(self._logged)
        self._stands: Files = {}

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._logged)
        self._touched.close()

    def trial(self, seed: int) -> str:
        """What is wrong with how a file is read: "" where nothing is."""
        random = Random(f"{self.name} {seed}")
        return self.attempt(self.format.mutated(random, self.valid))

    def attempt(self, files: Files) -> str:
        """The same of given files."""
        self._put(files)
        with dask.config.set({"dmkl.memory": MEMORY, "scheduler": "synchronous"}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._watch.on = True
            try:
                self.format.read(self.inside)
                found = ""
            except BaseException as error:
                found = _fault(error)
            finally:
                self._watch.on = False
        faults = [found, *self._watch.faults, self._touched.since_last()]
        self._watch.faults.clear()
        return "; ".join(filter(None, faults))

    def _put(self, files: Files) -> None:
        """Lay files out in the folder, in place of those that stand there; of many only those that differ."""
        for name in self._stands.keys() - files.keys():
            (self.inside / name).unlink()
        for name, content in files.items():
            if self._stands.get(name) != content:
                path = self.inside / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)  # an earlier content may still be mapped
                path.write_bytes(content)
        if len(files) == 1:
            for path in self.inside.iterdir():
                if path.name not in files:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._stands = files


def _fault(error: BaseException) -> str:
    """What is wrong with an exception of a reader: it must be one of ours, of one line, and not for want of memory."""
    chain, seen = error, []
    while chain is not None:
        seen.append(chain)
        chain = chain.__cause__ or chain.__context__
    if any(type(link) is MemoryError for link in seen):
        return f"memory: {_told(seen[-1])}"
    if not isinstance(error, DmklError):
        return _told(error)
    lines = str(error).split("\n")  # of specifications each rule that is broken has one
    if not all(line and line.isprintable() for line in lines):
        return f"not one line: {str(error)[:300]!r}"
    return f"long: {str(error)[:300]}" if max(map(len, lines)) > 20_000 else ""


def _told(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "/dmkl/" in frame.filename]
    return f"{type(error).__name__}: {str(error)[:160]!r} at {own[-1] if own else '?'}"


def _fill(outside: Path) -> None:
    import h5py
    import numpy as np

    with h5py.File(outside / "other.h5", "w") as file:
        file["K"] = np.eye(6)
    (outside / "other.bin").write_bytes(np.eye(6).tobytes())


class _Logged(logging.Handler):
    """What libraries would print as errors: also what asyncio says, some files later, of tasks that nobody asked."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        """Of Handler."""
        self._faults.append(f"logged: {record.getMessage()[:200]} ({record.exc_info and record.exc_info[1]!r})")


class _Touched:
    """Whether anything of a folder was opened, by whatever library: told by the system, on Linux."""

    def __init__(self, folder: Path) -> None:
        self._events = -1
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            libc.inotify_add_watch(self._events, os.fsencode(folder), 0x0FFF & ~0x0010)  # all but closing unwritten

    def close(self) -> None:
        if self._events >= 0:
            os.close(self._events)

    def since_last(self) -> str:
        try:
            found = b"" if self._events < 0 else os.read(self._events, 65536)
        except BlockingIOError:
            return ""
        names, at = set(), 0
        while at < len(found):
            length = struct.unpack_from("IIII", found, at)[3]
            names.add(os.fsdecode(found[at + 16 : at + 16 + length].rstrip(b"\0")))
            at += 16 + length
        return f"touched outside: {', '.join(sorted(names))}" if found else ""


class _Watch:
    """What Python itself opens, writes, runs and unpickles in this process."""

    def __init__(self, folder: Path) -> None:
        self.on = False
        self.faults: list[str] = []
        own = [folder / "inside", sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *sys.path[1:]]
        self._readable = tuple(os.path.realpath(path) for path in map(str, own) if path)
        self._readable += ("/proc", "/sys", "/dev", "/usr/share/zoneinfo", "/etc/localtime")
        self._inside = os.path.realpath(folder / "inside")
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            self._opened(os.path.realpath(os.fsdecode(arguments[0])), arguments[1], arguments[2])
        elif event in _FORBIDDEN and not (event == "subprocess.Popen" and _is_reader(arguments[1])):
            self.faults.append(f"{event} {str(arguments)[:200]}")

    def _opened(self, path: str, mode: Any, flags: int) -> None:
        writes = any(letter in (mode or "") for letter in "wax+") or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and path != os.devnull:
            self.faults.append(f"wrote {path}")
        elif not path.startswith(self._readable):
            self.faults.append(f"read {path}")


_FORBIDDEN = {
    *("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"),
    *(
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.chmod",
        "os.symlink",
        "os.link",
        "os.truncate",
        "shutil.rmtree",
    ),
}


def _is_reader(command: Any) -> bool:
    """Whether a command starts the process that reads what libraries may die of."""
    return "reader_process" in str(command)
