"""Interrupted work: signals that end the program, checkpoints, and resuming."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dmkl.cli.output import lock_output, say_aside
from dmkl.errors import InputError, NoWorkersError, SchedulerLostError, StoreExistsError, WorkerLostError, refuse
from dmkl.files.urls import Place, Url, resolved
from dmkl.progress import ConsoleWatch

_SIGNALS = {
    "SIGTERM": "which a walltime, scancel or kill sends",
    "SIGHUP": "which is sent when a terminal or a connection closes",
}


class Ended(SystemExit):
    """A signal other than Ctrl-C's asked the program to end."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(128 + number)
        self.message = f"ended by {name}, {_SIGNALS[name]}; the same command may be run again"


@contextmanager
def orderly_end() -> Iterator[None]:
    """Let signals with their default handler raise `Ended` inside: commands keep their work, close workers and jobs."""

    def end(number: int, _: FrameType | None) -> None:
        for other in changed:
            signal.signal(other, signal.SIG_IGN)  # a second signal must not cut the orderly end short
        raise Ended(number)

    changed: list[int] = []
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        changed = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


class _ResumingWatch(ConsoleWatch):
    """Progress that first says after which pass the work goes on."""

    def __init__(self, passes_before: int) -> None:
        super().__init__()
        self._passes_before = passes_before

    def begin(self, title: str, total_bytes: int) -> None:
        """See `dmkl.progress.Watch.begin`; the checkpoint has been compared with the search before the first pass."""
        if self._passes_before:
            say_aside("note", f"going on after pass {self._passes_before}")
            self._passes_before = 0
        super().begin(title, total_bytes)


def checkpoint_folder(out: Place, what: str, format_name: str, given: Path | None, *, overwrite: bool) -> Path:
    """Lock `out`, which may replace a result of the same format only, and return the folder of its checkpoint."""
    from dmkl.store.saved import has_format

    if given is None and isinstance(out, Url):
        refuse(
            f"{out} is a URL, and the checkpoint of an interrupted run needs a folder that all workers see; say which "
            "with --state FOLDER"
        )
    lock_output(out, overwrite=overwrite)
    if out.exists() and not has_format(out, format_name):
        msg = f"{out} is not {what}, and nothing else is replaced; choose another path, or move it away"
        raise StoreExistsError(msg)
    if given is not None:
        return given.expanduser().absolute()
    assert isinstance(out, Path)
    return out.with_name(f"{out.name}.partial")


@contextmanager
def keeping_kernels(out: str) -> Iterator[None]:
    """Say that a part of a kernel set is kept when its import or build is interrupted."""
    from dmkl.store.zarr_groups import partial_path

    try:
        yield
    except (KeyboardInterrupt, Ended, NoWorkersError, SchedulerLostError, WorkerLostError):
        place = resolved(out)
        if partial_path(place).exists() or isinstance(place, Url):
            say_aside("note", f"the finished part is kept next to {out}; the same command resumes from there")
        raise


@contextmanager
def resuming(folder: Path) -> Iterator[None]:
    """Show the progress of work whose checkpoint is in `folder`; say what is kept, or how to discard another's."""
    from dmkl.solvers.workspace import is_empty, read_state, remove_state

    before = read_state(folder)
    try:
        with _ResumingWatch(before.n_passes):
            yield
    except BaseException as error:
        wrong, after = isinstance(error, InputError), read_state(folder)
        if wrong and before and str(folder) in str(error):
            refuse(f"{error}; --restart discards it", error)
        if is_empty(folder) or (wrong and not before and after and not after.has_solutions):
            remove_state(folder)  # the user will change an argument, and that makes it another search
        elif after and (after != before or not wrong):
            say_aside(
                "note", f"what was done is kept in {folder}; the same command continues after pass {after.n_passes}"
            )
        elif folder.exists() and not (after or wrong):  # states of several models
            say_aside("note", f"what was done is kept in {folder}; the same command continues")
        raise
