"""Progress of long work: the pass, bytes per second, the certified gap so far, and the seconds of each phase.

A `Watch` shows progress, and the logger "dmkl" records it: notes at level INFO, the begin of each pass and the seconds
of each phase at DEBUG. The logger is silent unless a program adds a handler.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.segment import Segment
from rich.text import Text

from dmkl.errors import printable

__all__ = [
    "LOGGER",
    "PHASES",
    "ConsoleWatch",
    "PlainConsole",
    "Watch",
    "current",
    "spending",
    "spent",
    "stage",
    "watching",
]

LOGGER = logging.getLogger("dmkl")
LOGGER.addHandler(logging.NullHandler())

PHASES = {
    "passes": "reading the stored tiles and multiplying by them",
    "residuals": "residuals from stored products",
    "reduced": "restricted problems in subspaces",
    "directions": "new directions of subspaces, and updates of the restricted problems",
    "anchors": "factors of combined kernels as preconditioners",
    "scores": "scores of held-out rows from stored products",
    "training": "support vector machines and other work on single problems",
    "between": "other work of this process, and waiting",
}
"""The phases of a plan."""

_PHASE_OF = {
    "restricted-master": "reduced",
    "residuals": "residuals",
    "bound-rounding": "residuals",
    "choose-directions": "directions",
    "widen-basis": "directions",
    "project": "directions",
    "precondition": "anchors",
    "scores": "scores",
    "place": "passes",
}


class Watch:
    """Receives the progress of work. This base class only logs it."""

    def begin(self, title: str, total_bytes: int) -> None:
        """A stage begins that reads `total_bytes` of kernels."""
        if total_bytes:
            LOGGER.debug("%s begins, %.3g MiB of kernels to read", title, total_bytes / 2**20)

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more of the stage are done."""

    def end(self) -> None:
        """The stage has ended, successfully or not."""

    def note(self, text: str) -> None:
        """A line about the whole work, such as the certified gap so far."""
        LOGGER.info("%s", text)


class PlainConsole(Console):
    """A console that escapes control characters in texts; its colors are sent unchanged."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments for the terminal."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


_SILENT = Watch()
_CURRENT: ContextVar[Watch] = ContextVar("dmkl-watch", default=_SILENT)


def current() -> Watch:
    """The watch of the current context."""
    return _CURRENT.get()


@contextmanager
def watching(watch: Watch) -> Iterator[Watch]:
    """Report the work inside this context to `watch`."""
    token = _CURRENT.set(watch)
    try:
        yield watch
    finally:
        _CURRENT.reset(token)


# --- seconds by phase ----------------------------------------------------------------------------------------------

_SPENT: ContextVar[dict[str, float] | None] = ContextVar("dmkl-spent", default=None)


@contextmanager
def spending() -> Iterator[dict[str, float]]:
    """Sum the seconds of each phase inside this context; the sums are complete at its end."""
    outside, started = _SPENT.get(), time.monotonic()
    seconds = dict.fromkeys(PHASES, 0.0)
    token = _SPENT.set(seconds)
    try:
        yield seconds
    finally:
        _SPENT.reset(token)
        seconds["between"] = time.monotonic() - started - sum(seconds.values())
        if outside is not None:
            for phase, added in seconds.items():
                outside[phase] += added


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Add the time inside to the phase of the tasks with this name, such as ``extend-pass-3``."""
    kind = name.rstrip("0123456789").rstrip("-")
    phase = _PHASE_OF.get(kind, "passes" if kind.endswith("-pass") else "training")
    started = time.monotonic()
    try:
        yield
    finally:
        taken, seconds = time.monotonic() - started, _SPENT.get()
        LOGGER.debug("%s took %.3g s (%s)", name, taken, phase)
        if seconds is not None:
            seconds[phase] += taken


def spent() -> str:
    """The phases that took most so far, in a few words; empty if nothing is counted."""
    seconds = _SPENT.get() or {}
    total = sum(seconds.values())
    leading = sorted(seconds, key=lambda phase: -seconds[phase])[:2]
    return ", ".join(f"{seconds[phase] / total:.0%} {phase}" for phase in leading if seconds[phase] > 0.05 * total)


class _OfBytes(ProgressColumn):
    """A column that is empty for stages that read no kernels."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__(column.get_table_column())
        self._column = column

    def render(self, task: Task) -> RenderableType:
        return self._column.render(task) if task.total else Text()


class _Lines(Progress):
    """The note above the stage; in one line they would not fit a terminal."""

    note = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.note:
            yield Text(self.note, no_wrap=True, overflow="ellipsis")
        yield self.make_tasks_table(self.tasks)


class ConsoleWatch(Watch):
    """Two lines on the terminal for work that takes longer than two seconds.

    Parameters
    ----------
    console
        The console; standard error by default, so that tables on standard output can be piped.
    delay_seconds
        Shorter work shows nothing. Without a terminal, notes have at least this distance.
    """

    def __init__(self, console: Console | None = None, delay_seconds: float = 2.0) -> None:
        self.console = PlainConsole(stderr=True) if console is None else console
        self.delay_seconds = delay_seconds
        self._started = self._last_note = time.monotonic()
        self._task: TaskID | None = None
        self._progress = _Lines(
            TextColumn("{task.description}"),
            *map(_OfBytes, (BarColumn(20), DownloadColumn(binary_units=True), TransferSpeedColumn())),
            _OfBytes(TimeRemainingColumn()),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._token = _CURRENT.set(self)
        self._started = self._last_note = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _CURRENT.reset(self._token)
        if self._progress.live.is_started:
            self._progress.stop()

    def begin(self, title: str, total_bytes: int) -> None:
        """See `Watch.begin`."""
        super().begin(title, total_bytes)
        self.end()
        self._task = self._progress.add_task(title, total=total_bytes)
        self._show_late()

    def advance(self, n_bytes: int) -> None:
        """See `Watch.advance`."""
        if self._task is not None:
            self._progress.advance(self._task, n_bytes)
            self._show_late()

    def end(self) -> None:
        """See `Watch.end`."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def note(self, text: str) -> None:
        """See `Watch.note`."""
        super().note(text)
        self._progress.note = text
        # A terminal redraws its line; a log file gets notes line by line.
        if not self.console.is_terminal and time.monotonic() - self._last_note > self.delay_seconds:
            self._last_note = time.monotonic()
            self.console.print(Text(text), soft_wrap=True)

    def _show_late(self) -> None:
        if time.monotonic() - self._started >= self.delay_seconds:
            self._progress.start()
