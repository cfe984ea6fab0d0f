"""Signals by which batch systems, administrators and lost connections end a program: as orderly as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Ended", "orderly_end"]

_SIGNALS = {
    "SIGTERM": "as walltimes, scancel and kill do it",
    "SIGHUP": "as a terminal or a connection that closes does",
}


class Ended(SystemExit):
    """The program was asked to end, by a signal other than Ctrl-C's."""

    def __init__(self, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(128 + number)
        self.told = f"ended by {name}, {_SIGNALS[name]}; the same command may be run again"


@contextmanager
def orderly_end() -> Iterator[None]:
    """Let these signals raise `Ended` inside: work keeps what is done and says so, workers and jobs end, locks go.

    What whoever started the program wants ignored, or has a handler for, stays so.
    """

    def end(number: int, _: FrameType | None) -> None:
        for other in changed:
            signal.signal(other, signal.SIG_IGN)  # the end itself is not to be cut short by a second one
        raise Ended(number)

    changed: list[int] = []
    if threading.current_thread() is threading.main_thread():
        known = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        changed = [number for number in known if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)
