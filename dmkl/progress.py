"""Progress of long work: problems solved, the certified gap so far, passes, times, and the seconds of each phase.

A `Watch` shows progress, and the logger "dmkl" records it: notes at level INFO, the begin of each pass and the seconds
of each phase at DEBUG. The logger is silent unless a program adds a handler. A `Tally` adds up what a plan
of fits costs.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing import current_process
from typing import Any, Self, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from dmkl.errors import printable

Value = TypeVar("Value")

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
    """Receives the progress of work. This base class only logs it, `ConsoleWatch` shows it too.

    The number of problems that are solved never falls; that of the planned ones grows with each further plan.
    """

    n_solved = n_planned = 0
    _n_bytes = _total_bytes = 0  # of the stage
    _n_passes = 0
    _n_expected: float | None = None  # passes that have ended, and those to come
    _part = _note = _remark = _title = ""

    def begin(self, title: str, total_bytes: int) -> None:
        """A stage begins that reads `total_bytes` of kernels."""
        if total_bytes:
            LOGGER.debug("%s begins, %.3g MiB of kernels to read", title, total_bytes / 2**20)
        self._title, self._n_bytes, self._total_bytes = title.replace("-", " ").rstrip("0123456789 "), 0, total_bytes
        self._show()

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more of the stage are done."""
        self._n_bytes += n_bytes
        self._show()

    def end(self) -> None:
        """The stage has ended, successfully or not."""
        self._n_passes += self._total_bytes > 0
        self._n_bytes = self._total_bytes = 0

    def expect(self, n_passes: float) -> None:
        """So many more stages that read kernels are expected."""
        self._n_expected = self._n_passes + n_passes

    def part(self, title: str) -> None:
        """A part of the work begins, such as a model of a comparison, which later notes are about."""
        LOGGER.info("%s", title)
        self._part, self._note, self._remark = title, "", ""

    def plan(self, n_problems: int) -> None:
        """So many more problems are to be solved; all earlier ones count as solved."""
        self.n_solved, self.n_planned = self.n_planned, self.n_planned + n_problems
        self._note, self._remark, self._n_expected = "", "", None

    def solved(self, n_problems: int) -> None:
        """So many more problems are solved."""
        self.n_solved = min(self.n_solved + n_problems, self.n_planned)
        if self.n_planned > 1:
            LOGGER.info("%d of %d problems solved", self.n_solved, self.n_planned)
        self._n_expected = None if self.n_solved == self.n_planned else self._n_expected
        self._tell()

    def note(self, text: str, remark: str = "") -> None:
        """A line about the whole work, such as the certified gap so far, and a remark at its end."""
        LOGGER.info("%s", "; ".join(filter(None, (text, remark))))
        self._note, self._remark = text, remark
        self._tell()

    def _show(self) -> None:
        """Redraw a line that shows how far the stage is."""

    def _tell(self) -> None:
        """Write a line where none is redrawn."""


def error_text(gap: float) -> str:
    """A proven relative gap in words."""
    return f"error ≤ {100 * gap:.2g} %" if gap < 1 else "error > 100 %"


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
def inside(variable: ContextVar[Value], value: Value) -> Iterator[Value]:
    """Set a variable inside this context."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def watching(watch: Watch) -> AbstractContextManager[Any]:
    """Report the work inside this context to `watch`."""
    return inside(_CURRENT, watch)


# --- seconds by phase ----------------------------------------------------------------------------------------------

_SPENT: ContextVar[dict[str, float] | None] = ContextVar("dmkl-spent", default=None)


@contextmanager
def spending() -> Iterator[dict[str, float]]:
    """Sum the seconds of each phase inside this context; the sums are complete at its end."""
    outside, started = _SPENT.get(), time.monotonic()
    seconds = dict.fromkeys(PHASES, 0.0)
    try:
        with inside(_SPENT, seconds):
            yield seconds
    finally:
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


# --- the line on a terminal or in a notebook --------------------------------------------------------------------------


def _setting() -> Any:
    import dask  # help and `import dmkl` do without

    return dask.config.get("dmkl.progress", "auto")


class ConsoleWatch(Watch):
    """A line for work that takes longer than two seconds: what is done, the time, and the time that is left.

    It begins with the numbers of solved problems and of passes, which only rise; what follows is about the part that
    runs now. Work shorter than `delay_seconds` shows nothing; without a terminal, notes have at least this distance.
    """

    def __init__(self, console: Console | None = None, delay_seconds: float = 2.0) -> None:
        # A notebook shows what is written over a line, but rich's own display there needs ipywidgets.
        notebook: Any = {"force_terminal": True, "force_jupyter": False, "width": 80} if _in_notebook() else {}
        self.console = PlainConsole(stderr=True, **notebook) if console is None else console
        self.delay_seconds = delay_seconds if _setting() else math.inf
        self._started = self._last_note = time.monotonic()
        self._live = Live(console=self.console, transient=True, get_renderable=self._renderable)

    def __enter__(self) -> Self:
        self._token = _CURRENT.set(self)
        self._started = self._last_note = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)
        self._live.stop()

    def _tell(self) -> None:
        # A terminal redraws its line; a log file gets notes line by line.
        if not self.console.is_terminal and time.monotonic() - self._last_note > self.delay_seconds:
            self._last_note = time.monotonic()
            self.console.print(Text(self._line()), soft_wrap=True)

    def _show(self) -> None:
        if self.console.is_terminal and time.monotonic() - self._started >= self.delay_seconds:
            self._live.start()

    def _renderable(self) -> Text:
        # Notebooks do not erase the rest of a longer line.
        return Text(self._line().ljust(min(79, self.console.width)), no_wrap=True, overflow="ellipsis")

    def _line(self) -> str:
        seconds, share = time.monotonic() - self._started, min(1.0, self._n_bytes / max(1, self._total_bytes))
        text, expected, n_passes = self._note, self._n_expected, self._n_passes + share
        counts = [f"{self.n_solved:,} of {self.n_planned:,} solved"] if self.n_planned > 1 else []
        if self.n_planned or (self._n_passes and not text):
            counts.append(f"{n_passes:.1f} passes")
        elif not text:
            text, expected = f"{self._title} ({share:.0%})" if share else self._title, 1
        words, after = ": ".join(filter(None, (self._part, text or self._title))), f"after {_duration(seconds)}"
        line = f"{', '.join(counts)} {after}: {words}" if counts else f"{words} {after}"
        if expected is not None and 0 < n_passes < expected:
            line += f", {_duration(seconds / n_passes * (expected - n_passes))} left"
        return "; ".join(filter(None, (line, self._remark)))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


@contextmanager
def shown() -> Iterator[None]:
    """Show the progress of the work inside this context, as the setting ``dmkl.progress`` says, if nothing else does.

    Threads and processes that compute side by side would write over one another's lines, and show nothing.
    """
    side_by_side = threading.current_thread() is not threading.main_thread() or current_process().name != "MainProcess"
    setting = _setting()
    attached = _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    wanted = not side_by_side and (attached if setting == "auto" else setting)
    with nullcontext() if current() is not _SILENT else ConsoleWatch() if wanted else watching(Watch()):
        yield


# --- costs of plans --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """One pass over the kernels, or the passes of one step, for the history of a plan.

    `kind` is its purpose, and `n_bytes` are the stored bytes that were read. `basis` counts the vectors of the largest
    basis, if there is one, and `certified` the problems that are certified, if known; `worst_gap` is the largest gap of
    the others.
    """

    kind: str
    seconds: float
    n_bytes: float
    basis: int = 0
    certified: int = 0
    worst_gap: float = math.nan


class Tally:
    """The passes that a piece of work took (a part of a pass counts as a fraction), and the purpose of each."""

    def __init__(self, n_passes: float = 0.0) -> None:
        self.n_passes = n_passes
        self.rounds: list[Round] = []
        self.phases = dict.fromkeys(PHASES, 0.0)
        """Seconds of each phase of the work, set at its end."""

    def add(self, kind: str, passes: float, seconds: float, bytes_per_pass: int) -> None:
        """Add a step of the work."""
        self.n_passes += passes
        if passes:
            self.rounds.append(Round(kind, seconds, passes * bytes_per_pass))

    def include(self, other: Tally) -> None:
        """Add the costs of other work."""
        self.n_passes += other.n_passes
        self.rounds += other.rounds
        self.phases = {name: seconds + other.phases[name] for name, seconds in self.phases.items()}
