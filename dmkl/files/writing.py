"""Outputs are written completely or not at all, and by one process at a time.

A file or a folder is written under a temporary name, synced to the disk (`dmkl.files.syncing`) and renamed. The lock of
PATH is the file PATH.lock, made by one atomic operation without `flock`, which network file systems may lack. A process
of this machine that holds a lock is known to live or not; a process on another machine touches its lock every `_BEAT`
seconds, and counts as dead after four times as long without. A process that was suspended for longer loses its lock
without noticing: so it renames what it wrote only after `check_lock` has found its token in the lock. A process is
identified by the boot of its machine and the clock ticks from that boot to its start, which do not change when the wall
clock is set.

`filelock.SoftFileLease` does nearly the same, but it identifies machines by name: it takes over the lock of a living
process on another machine with the same name.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from dmkl.errors import DiskFullError, LockedError, StoreExistsError, refuse
from dmkl.files.regular import check_regular
from dmkl.files.syncing import sync, sync_tree
from dmkl.files.urls import Url, is_url, resolved

KEPT = "What was written is kept: free some space and run the same command again to continue"
"""Way out of a full disk for imports, builds and searches."""
_ANEW = "Free some space, or choose another path, and run it again; the previous output is unchanged"


# --- whole files ---------------------------------------------------------------------------------------------------


def temporary_name(path: str | os.PathLike[str], end: str = "partial") -> Path:
    """A new name in the folder of a path, for content that is not complete yet or no longer needed."""
    path = Path(path)
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.{end}")


def remove_leftovers(path: Path) -> None:
    """Remove files with names of `temporary_name` that killed processes have left; this process must hold the lock.

    What was set aside by a process that was killed before the new output was renamed gets its name back, and so do its
    companions (`replacing_files`).
    """
    for left in path.parent.glob(f"{glob.escape(path.name)}.*"):
        end = _TEMPORARY.fullmatch(left.name[len(path.name) :])
        if end is None:
            continue
        is_wanted = end[1] == "replaced" and not path.exists()
        # The output itself last: with it, its companions are taken as whole.
        for file in sorted(path.parent.glob(f"*{end[0]}"), key=lambda file: file == left):
            if is_wanted:
                os.replace(file, str(file).removesuffix(end[0]))
            else:
                _remove_all(file)


_ENDS = ("partial", "replaced")
_TEMPORARY = re.compile(rf"\.[0-9a-f]{{32}}\.({'|'.join(_ENDS)})")


def _remove_all(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink(missing_ok=True)


def current(path: Path) -> Path:
    """The path of an output, or of the old one, set aside, if its writer was killed before it put the new one there."""
    deadline = time.monotonic() + _GAP_SECONDS
    while not path.exists():
        names = {file: file.name[len(path.name) :] for file in path.parent.glob(f"{glob.escape(path.name)}.*.replaced")}
        aside = [file for file, end in names.items() if _TEMPORARY.fullmatch(end)]
        if not aside:
            break
        if time.monotonic() > deadline:
            return aside[0]
        time.sleep(0.01)
    return path


_GAP_SECONDS = 0.2  # A writer that lives takes less between two renames.


def replace_folder(written: Path, path: Path) -> None:
    """Rename a folder to `path`, and remove what was there before.

    On Linux the names of both are exchanged in one step. File systems that cannot do so, such as NFS, leave a moment
    in which the old folder has the name of `temporary_name` alone: see `current`.
    """
    sync_tree(written)
    replaced = temporary_name(path, "replaced")
    if path.exists() and _exchange(written, path):
        written.rename(replaced)
    else:
        if path.exists():
            path.rename(replaced)
        written.rename(path)
    sync(path.parent)  # before the old folder is lost
    _remove_all(replaced)


_HERE, _RENAME_EXCHANGE = -100, 2
"""Constants of Linux's `renameat2`."""


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; False if the system or their file system cannot."""
    if sys.platform != "linux":
        return False
    import ctypes

    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and call(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _RENAME_EXCHANGE) == 0


@contextmanager
def replacing(
    path: str | os.PathLike[str] | Url, mode: str = "wb", *, synced: bool = True, **options: Any
) -> Iterator[IO[Any]]:
    """Open a file that is renamed to `path` when it is complete; a failure leaves the previous file.

    An output at a URL is written to a temporary file first. A file that this process has locked, or a file in a folder
    that it has locked, is renamed only while the lock holds (`check_lock`). A file that is not `synced` may be empty
    after a power cut; it is one of many that are synced together later. `mode` and `options` are those of `open`.
    """
    if isinstance(path, Url):
        with tempfile.TemporaryDirectory(prefix="dmkl-") as folder:
            written = Path(folder) / "written"
            with reporting_full_disk(folder, _ANEW), open(written, mode, **options) as file:
                yield file
            path.write_bytes(written.read_bytes())
        return
    with replacing_path(Path(path), synced=synced) as partial, open(partial, mode, **options) as file:
        yield file


@contextmanager
def replacing_path(path: Path, way_out: str = _ANEW, *, synced: bool = True) -> Iterator[Path]:
    """A temporary path; what is written there, a file or a folder, replaces `path` in the end. See `replacing`."""
    path = resolved(path)
    partial = temporary_name(path)
    try:
        with reporting_full_disk(path, way_out):
            yield partial
            check_lock(path)
            if partial.is_dir():
                replace_folder(partial, path)
                return
            if synced:
                sync(partial)
            os.replace(partial, path)
            if synced:
                sync(path.parent)
    except BaseException:
        _remove_all(partial)
        raise


@contextmanager
def replacing_files(path: Path, *companions: Path) -> Iterator[list[Path]]:
    """Temporary paths of a file and its companions in the same folder, which replace these in the end.

    `path` is there only with its own companions: it is set aside first and comes in its place last. Of a process that
    is killed in between, `remove_leftovers` puts back what was set aside.
    """
    files, token, placed = [path, *companions], uuid.uuid4().hex, list[Path]()
    partial, aside = ([file.with_name(f"{file.name}.{token}.{end}") for file in files] for end in _ENDS)
    try:
        with reporting_full_disk(path, _ANEW):
            yield partial
            check_lock(path)
            for file in partial:
                sync(file)
            for file, before in zip(files, aside, strict=True):
                if file.exists():
                    os.replace(file, before)
            for file, written in reversed(list(zip(files, partial, strict=True))):
                os.replace(written, file)
                placed.append(file)
            sync(path.parent)
    except BaseException:
        for file in [*partial, *placed]:
            file.unlink(missing_ok=True)
        for file, before in reversed(list(zip(files, aside, strict=True))):
            if before.exists():
                os.replace(before, file)
        raise
    for file in aside:
        file.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str] | Url, data: bytes) -> None:
    """Write a file completely or not at all; see `replacing`."""
    with replacing(path) as file:
        file.write(data)


def refuse_existing(place: Any, wanted: str = "") -> NoReturn:
    """Raise StoreExistsError for a place that holds something, with `wanted` for something else than that."""
    problem, way_out = "exists already", "ask for it to be replaced (overwrite=True, --overwrite)"
    if wanted:
        problem, way_out = f"is not a {wanted}, and nothing else is replaced", "move it away"
    refuse(f"{place} {problem}; choose another path, or {way_out}", kind=StoreExistsError)


@contextmanager
def into_folder(path: Path) -> Iterator[None]:
    """Make a folder for files that are written inside; it is removed after a failure if it is empty."""
    resolved(path).mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            path.rmdir()
        raise


@contextmanager
def reporting_full_disk(location: Any, way_out: str = KEPT) -> Iterator[None]:
    """Raise DiskFullError with a way out if the disk is full inside this context."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # a DiskFullError has no number
            raise
        path, free = Path(str(location)).absolute(), ""
        with suppress(OSError):
            if not is_url(location):
                folder = next(place for place in (path, *path.parents) if place.exists())
                free = f" ({shutil.disk_usage(folder).free / 2**20:,.1f} MiB free on its disk)"
        refuse(f"no space left while writing {location}{free}. {way_out}", error, DiskFullError)


# --- locks ---------------------------------------------------------------------------------------------------------

_BEAT = 15.0
_END = ".lock"
_MOST_BYTES = 2**16  # Size of a lock file that is read; those of dmkl have some hundred bytes.
_HELD: dict[Path, tuple[str, int]] = {}
"""The token of each lock that this process holds, and how often it was locked."""
_GUARD = threading.RLock()
_BEATING = threading.Event()


@dataclass(frozen=True)
class _Holder:
    host: str
    machine: str  # its boot and namespace of process numbers: containers of a machine have different namespaces
    pid: int
    started: float | None  # clock ticks from boot to the start of the process, since numbers are used again
    since: str
    token: str


def lock_path(path: str | os.PathLike[str]) -> Path:
    """The lock file of a path of this machine."""
    place = resolved(path)
    assert isinstance(place, Path)
    return place.with_name(f"{place.name}{_END}")


@contextmanager
def lock(path: str | os.PathLike[str] | Url) -> Iterator[None]:
    """Hold the lock of an output; a process may lock again what it holds. URLs have no locks.

    Since the lock lies in the folder of the output, a folder that cannot be written to is found before any work.
    LockedError if another process holds it, InputError if nothing can be written there.
    """
    if isinstance(path, Url) or is_url(path):
        yield
        return
    file = lock_path(os.fspath(path))
    with _GUARD:
        token, count = _HELD.get(file, ("", 0))
        if count:
            check_lock(path)
        else:
            try:
                with reporting_full_disk(path, "Free some space, or choose another path"):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    token = _acquire(file)
            except DiskFullError:
                raise
            except OSError as error:
                what = f"{path} cannot be written: {error.strerror or error} ({file.parent})"
                refuse(f"{what}; choose another path", error)
        _HELD[file] = (token, count + 1)
    if not _BEATING.is_set():
        _BEATING.set()
        threading.Thread(target=_beat, name="dmkl-locks", daemon=True).start()
    try:
        yield
    finally:
        with _GUARD:
            token, count = _HELD.pop(file)
            if count > 1:
                _HELD[file] = (token, count - 1)
            elif (holder := _read(file)) is not None and holder.token == token:
                with suppress(OSError):
                    file.unlink()


def remove_dead_lock(path: str | os.PathLike[str] | Url) -> None:
    """Remove the lock of an output that a process of this machine left when it was killed."""
    if isinstance(path, Url):
        return
    file = lock_path(path)
    holder = _read(file)
    if holder is not None and holder.machine == _machine() and _is_dead(file, holder):
        _remove(file, holder)


def check_lock(path: str | os.PathLike[str] | Url) -> None:
    """Check that this process still holds its locks of a path and of the folders around it.

    Called before an output is renamed. Paths that this process has not locked pass: a task on a worker writes for the
    client that holds the lock. LockedError if another process has taken a lock over, or the lock file was removed.
    """
    place = str(resolved(path))
    for file, (token, _) in list(_HELD.items()):
        locked = str(file).removesuffix(_END)
        if place != locked and not place.startswith(f"{locked}/"):
            continue
        holder = _read(file)
        if holder is None:  # a process that tries to take over an older lock may be restoring this one
            time.sleep(_BEAT / 15)
            holder = _read(file)
        if holder is None or holder.token != token:
            reason = "its lock is gone or unreadable" if holder is None else f"{_describe(holder)} has taken it over"
            reason += f", as after a process that was suspended for more than {4 * _BEAT:.0f} seconds"
            way_out = "Nothing more is written there; run it again when nothing else writes there"
            refuse(f"{locked} does not belong to this process any more: {reason}. {way_out}", kind=LockedError)


def _acquire(file: Path) -> str:
    """Make the lock file and return its token; LockedError if another process holds it."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = _Holder(socket.gethostname(), _machine(), os.getpid(), _start(os.getpid()), now, uuid.uuid4().hex)
    while not _make(file, holder):
        with suppress(FileNotFoundError):
            check_regular(file, links=False)
        before = _read(file)
        if not _is_dead(file, before):
            what = f"{str(file).removesuffix(_END)} is being written by {_describe(before)}"
            way_out = f"wait until it is done, or choose another path. Its lock is {file}"
            refuse(f"{what}; {way_out}: remove it if that process is dead", kind=LockedError)
        _remove(file, before)
    return holder.token


def _describe(holder: _Holder | None) -> str:
    return "another process" if holder is None else f"process {holder.pid} on {holder.host} since {holder.since}"


def _make(lock: Path, holder: _Holder) -> bool:
    """Make a lock file with its content in one step; False if there is one."""
    text = json.dumps(asdict(holder)).encode()
    written = lock.with_name(f"{lock.name}.{holder.token}")
    try:
        written.write_bytes(text)
        try:
            os.link(written, lock)
        except OSError as error:
            if error.errno == errno.EEXIST:  # NFS repeats a call whose answer was lost
                return (made := _read(lock)) is not None and made.token == holder.token
            # A file system without hard links: for a moment the lock is empty, which counts as held.
            with suppress(FileExistsError), open(lock, "xb") as file:
                file.write(text)
                return True
            return False
    finally:
        written.unlink(missing_ok=True)
    return True


def _read(lock: Path) -> _Holder | None:
    """The holder of a lock; None if the file cannot be read, or is none that dmkl has written."""
    try:
        if check_regular(lock, links=False) > _MOST_BYTES:
            return None
        return _Holder(**json.loads(lock.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _is_dead(lock: Path, holder: _Holder | None) -> bool:
    if holder is not None and holder.machine == _machine():
        return _start(holder.pid) not in (holder.started, _HIDDEN)
    try:
        last = lock.stat().st_mtime_ns
        deadline = time.monotonic() + 4 * _BEAT
        while time.monotonic() < deadline:
            time.sleep(_BEAT / 15)
            if lock.stat().st_mtime_ns != last:
                return False
    except FileNotFoundError:
        pass
    return True


def _remove(lock: Path, holder: _Holder | None) -> None:
    """Remove the lock of a dead process, and restore it if another process has made one meanwhile."""
    aside = lock.with_name(f"{lock.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        lock.rename(aside)
        if _read(aside) != holder:
            with suppress(OSError):
                os.link(aside, lock)
        aside.unlink()


def _machine() -> str:
    """The boot of this machine, or its name if the system does not identify boots, and the process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = socket.gethostname()
    try:
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return boot


_HIDDEN = -1.0  # The start of a process that exists, but whose start the system does not show.


def _start(pid: int) -> float | None:
    """The start of a process of this machine, as in `_Holder.started`; None if there is no such process."""
    import psutil

    try:
        # The name of the program, in parentheses, may contain spaces: fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return float(fields[19])
    except OSError:
        if not psutil.pid_exists(pid):
            return None
    try:  # there is no such file, or it is not readable
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return _HIDDEN


def _beat() -> None:
    """Touch the locks of this process, unless they were taken over, as long as it lives."""
    while True:
        time.sleep(_BEAT)
        for file, (token, _) in list(_HELD.items()):
            holder = _read(file)
            if holder is not None and holder.token == token:
                with suppress(OSError):
                    os.utime(file)
