"""Progress of long work: the pass, bytes per second, the gap that is certified so far, and where the time goes.

What a `Watch` shows while work runs, the logger "dmkl" keeps: notes on how far it is at level INFO, the beginning of
each pass and the seconds of each phase at DEBUG. It is silent unless a program gives it a handler.
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
    "passes": "going through the stored tiles, with the products kept where they are made",
    "residuals": "products that were kept, read again",
    "reduced": "small problems in subspaces",
    "directions": "new directions of bases, and what they change of the small problems",
    "anchors": "factors of combined kernels, and what is solved by them",
    "scores": "scores of held-out rows from products that were kept",
    "training": "machines and other work on single problems",
    "between": "what this process does between them, and waiting",
}
"""Where the time of a plan goes."""

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
    """Receives the progress of work; this base class shows nothing, and logs it."""

    def begin(self, what: str, total_bytes: int) -> None:
        """A stage begins that will go through `total_bytes` of kernels."""
        if total_bytes:
            LOGGER.debug("%s begins, through %.3g MiB of kernels", what, total_bytes / 2**20)

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more of the stage are done."""

    def end(self) -> None:
        """The stage is over, well or not."""

    def note(self, text: str) -> None:
        """A line on how far the whole work has come, such as the gap certified so far."""
        LOGGER.info("%s", text)


class PlainConsole(Console):
    """A console that shows control characters in what it prints escaped; its own colors it sends as they are."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """What is sent to the terminal."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


_SILENT = Watch()
_CURRENT: ContextVar[Watch] = ContextVar("dmkl-watch", default=_SILENT)


def current() -> Watch:
    """The watch that work in this context reports to."""
    return _CURRENT.get()


@contextmanager
def watching(watch: Watch) -> Iterator[Watch]:
    """Let the work inside this context report to `watch`."""
    token = _CURRENT.set(watch)
    try:
        yield watch
    finally:
        _CURRENT.reset(token)


# --- where the time goes -------------------------------------------------------------------------------------------

_SPENT: ContextVar[dict[str, float] | None] = ContextVar("dmkl-spent", default=None)


@contextmanager
def spending() -> Iterator[dict[str, float]]:
    """Add up the seconds of each phase of the work inside this context; they are all there when it is left."""
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
    """Count the time inside as that of the phase to which tasks of this name belong, such as ``extend-pass-3``."""
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
    """The phases that took most so far, in a few words; empty where nothing is counted or all of it is passes."""
    seconds = _SPENT.get() or {}
    total = sum(seconds.values())
    leading = sorted(seconds, key=lambda phase: -seconds[phase])[:2]
    return ", ".join(f"{seconds[phase] / total:.0%} {phase}" for phase in leading if seconds[phase] > 0.05 * total)


class _OfBytes(ProgressColumn):
    """A column that stays empty for stages that go through no kernels."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__(column.get_table_column())
        self._column = column

    def render(self, task: Task) -> RenderableType:
        return self._column.render(task) if task.total else Text()


class _Lines(Progress):
    """The note above the stage: side by side they would not fit a terminal."""

    note = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.note:
            yield Text(self.note, no_wrap=True, overflow="ellipsis")
        yield self.make_tasks_table(self.tasks)


class ConsoleWatch(Watch):
    """Two lines on the terminal for work that takes longer than two seconds; silent before that.

    Parameters
    ----------
    console
        Where to draw; standard error by default, so that tables on standard output can be piped.
    delay_seconds
        Work shorter than this shows nothing, and where there is no terminal notes are at least so far apart.
    """

    def __init__(self, console: Console | None = None, delay_seconds: float = 2.0) -> None:
        self.console = PlainConsole(stderr=True) if console is None else console
        self.delay_seconds = delay_seconds
        self._started = self._told = time.monotonic()
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
        self._started = self._told = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _CURRENT.reset(self._token)
        if self._progress.live.is_started:
            self._progress.stop()

    def begin(self, what: str, total_bytes: int) -> None:
        """See `Watch.begin`."""
        super().begin(what, total_bytes)
        self.end()
        self._task = self._progress.add_task(what, total=total_bytes)
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
        # A terminal redraws its line; a log file gets notes one under another instead.
        if not self.console.is_terminal and time.monotonic() - self._told > self.delay_seconds:
            self._told = time.monotonic()
            self.console.print(Text(text), soft_wrap=True)

    def _show_late(self) -> None:
        if time.monotonic() - self._started >= self.delay_seconds:
            self._progress.start()
