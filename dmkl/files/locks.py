"""An output belongs to one process at a time: a lock beside it says to which, and since when.

The lock of PATH is the file PATH.lock, made by one atomic operation, with no need of `flock`; of a URL it is an object,
written where there is none. Of a holder on this machine it is known whether it lives; one on another machine touches
its lock every `_BEAT` seconds, and one that has not for four times as long is taken for gone.

A holder that was suspended for longer loses its lock without noticing. So what it writes gets its name only after
`confirm` has found its own token in the lock. Two processes are told apart by the boot of their machine and the clock
ticks from that boot to their start: neither changes where the wall clock is set.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dmkl.errors import InputError, LockedError, StoreError
from dmkl.files.urls import Place, Url, resolved

__all__ = ["claim", "confirm", "lock_of"]

_BEAT = 15.0
_END = ".lock"
_HELD: dict[Place, tuple[str, int]] = {}
"""The token of each lock that this process holds, and how often it was claimed."""
_GUARD = threading.RLock()
_BEATING = threading.Event()


@dataclass(frozen=True)
class _Holder:
    """Who holds a lock."""

    host: str
    machine: str  # its boot, and the namespace of process numbers: containers of one machine have their own
    pid: int
    started: float | None  # clock ticks from boot to the start of the process: a later one of its number has others
    since: str
    token: str


def lock_of(path: str | os.PathLike[str] | Url) -> Place:
    """The file, or the object, that is the lock of a path."""
    place = resolved(path)
    return place.with_name(f"{place.name}{_END}")


@contextmanager
def claim(path: str | os.PathLike[str] | Url) -> Iterator[None]:
    """Keep an output to this process for a while; what it holds already it may claim again.

    Since the lock lies beside the output, a place where nothing can be written is found here, before any work.

    Raises
    ------
    LockedError
        If another process writes there.
    InputError
        If nothing can be written there.
    StoreError
        If an object store does not answer, or writes no object only where there is none.
    DiskFullError
        If the disk is full.
    """
    from dmkl.files.writing import full_disk  # which confirms claims itself

    lock = lock_of(path)
    with _GUARD:
        token, count = _HELD.get(lock, ("", 0))
        if count:
            confirm(path)
        else:
            try:
                with full_disk(path, "Free some space, or choose another place"):
                    if isinstance(lock, Path):
                        lock.parent.mkdir(parents=True, exist_ok=True)
                    token = _acquire(lock)
            except StoreError:
                raise
            except OSError as error:
                msg = f"{path} cannot be written: {error.strerror or error} ({lock.parent}); choose another place"
                raise InputError(msg) from error
        _HELD[lock] = (token, count + 1)
    if not _BEATING.is_set():
        _BEATING.set()
        threading.Thread(target=_beat, name="dmkl-locks", daemon=True).start()
    try:
        yield
    finally:
        with _GUARD:
            token, count = _HELD.pop(lock)
            if count > 1:
                _HELD[lock] = (token, count - 1)
            elif (holder := _read(lock)) is not None and holder.token == token:
                with suppress(OSError, StoreError):
                    lock.unlink()


def confirm(path: str | os.PathLike[str] | Url) -> None:
    """Check that this process still holds its claims to a path and to the folders around it.

    Called before anything gets its final name. Paths that this process has not claimed pass: a task on a worker writes
    for the client that holds the claim.

    Raises
    ------
    LockedError
        If another process has taken a claim over, or its lock was removed.
    """
    place = str(resolved(path))
    for lock, (token, _) in list(_HELD.items()):
        claimed = str(lock).removesuffix(_END)
        if place != claimed and not place.startswith(f"{claimed}/"):
            continue
        holder = _read(lock)
        if holder is None:  # another process that tried to take over an older lock may just be putting this one back
            time.sleep(_BEAT / 15)
            holder = _read(lock)
        if holder is None or holder.token != token:
            by = "its lock cannot be read, or was removed" if holder is None else f"{_named(holder)} has taken it over"
            msg = (
                f"{claimed} does not belong to this process any more: {by}, as after a process that was suspended for "
                f"more than {4 * _BEAT:.0f} seconds. Nothing more is written there; run it again when nothing else "
                "writes there"
            )
            raise LockedError(msg)


def _acquire(lock: Place) -> str:
    """Make the lock; LockedError if somebody else has it."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    own = _Holder(socket.gethostname(), _machine(), os.getpid(), _started(os.getpid()), now, uuid.uuid4().hex)
    while not _make(lock, own):
        before = _read(lock)
        if not _is_gone(lock, before):
            msg = (
                f"{str(lock).removesuffix(_END)} is being written by {_named(before)}; wait until it is done, or "
                f"choose another path. Its lock is {lock}: remove it where that process is gone"
            )
            raise LockedError(msg)
        _remove(lock, before)
    return own.token


def _named(holder: _Holder | None) -> str:
    return "another process" if holder is None else f"process {holder.pid} on {holder.host} since {holder.since}"


def _make(lock: Place, holder: _Holder) -> bool:
    """Make a lock with what it says in one step; False if there is one."""
    text = json.dumps(asdict(holder)).encode()
    if isinstance(lock, Url):
        try:
            lock.write_bytes(text, new=True)
        except FileExistsError:
            return False
        return True
    written = lock.with_name(f"{lock.name}.{holder.token}")
    try:
        written.write_bytes(text)
        try:
            os.link(written, lock)
        except OSError as error:
            if error.errno == errno.EEXIST:
                return False
            # A file system without hard links: for a moment the lock says nothing, which counts as held.
            with suppress(FileExistsError), open(lock, "xb") as file:
                file.write(text)
                return True
            return False
    finally:
        written.unlink(missing_ok=True)
    return True


def _read(lock: Place) -> _Holder | None:
    """What a lock says; None where it cannot be read."""
    try:
        return _Holder(**json.loads(lock.read_bytes()))
    except (OSError, ValueError, TypeError, StoreError):
        return None


def _is_gone(lock: Place, holder: _Holder | None) -> bool:
    """Whether the process that made a lock is there no more."""
    if holder is not None and holder.machine == _machine():
        return _started(holder.pid) not in (holder.started, _HIDDEN)
    try:
        last = _touched(lock)
        deadline = time.monotonic() + 4 * _BEAT
        while time.monotonic() < deadline:
            time.sleep(_BEAT / 15)
            if _touched(lock) != last:
                return False
    except FileNotFoundError:
        pass
    return True


def _touched(lock: Place) -> Any:
    """When a lock was last touched; FileNotFoundError if there is none."""
    return lock.modified() if isinstance(lock, Url) else lock.stat().st_mtime_ns


def _touch(lock: Place, token: str) -> None:
    holder = _read(lock)
    if holder is None or holder.token != token:  # taken over: its new holder alone shows that it lives
        return
    if isinstance(lock, Path):
        os.utime(lock)
    else:
        lock.write_bytes(json.dumps(asdict(holder)).encode())


def _remove(lock: Place, holder: _Holder | None) -> None:
    """Remove the lock of a process that is gone, and put it back where another has made one meanwhile."""
    if isinstance(lock, Url):
        if _read(lock) == holder:
            lock.unlink(missing_ok=True)
        return
    aside = lock.with_name(f"{lock.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        lock.rename(aside)
        if _read(aside) != holder:
            with suppress(OSError):
                os.link(aside, lock)
        aside.unlink()


def _machine() -> str:
    """The boot of this machine, or its name where the system does not identify boots, and the process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = socket.gethostname()
    try:
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return boot


_HIDDEN = -1.0
"""The start of a process of which the system says only that it is there."""


def _started(pid: int) -> float | None:
    """When a process of this machine began, as `_Holder.started` has it; None where there is none of this number."""
    import psutil

    try:
        # The name of the program, in parentheses, may hold spaces: the fields are counted from its end.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return float(fields[19])
    except OSError:
        pass
    if psutil.LINUX:  # without such a file, or with one that others may not read
        return _HIDDEN if psutil.pid_exists(pid) else None
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return _HIDDEN


def _beat() -> None:
    """Touch what this process holds, as long as it lives."""
    while True:
        time.sleep(_BEAT)
        for lock, (token, _) in list(_HELD.items()):
            with suppress(OSError, StoreError):
                _touch(lock, token)
