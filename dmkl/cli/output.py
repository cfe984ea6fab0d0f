"""How commands speak: results on standard output, everything else on standard error."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from dmkl.errors import (
    IndefiniteKernelWarning,
    LabelWarning,
    SampleOrderWarning,
    SmallWorkerWarning,
    StoreExistsError,
    UninformativeScoresWarning,
)
from dmkl.progress import LOGGER, PlainConsole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dmkl.files.urls import Place

__all__ = [
    "STYLES",
    "bar",
    "claim_output",
    "console",
    "keeping_outputs",
    "number",
    "plain_warnings",
    "print_json",
    "refuse_existing",
    "save_figure",
    "say",
    "say_aside",
    "show",
    "size",
    "table",
]

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}


def console() -> PlainConsole:
    """Standard output; tables as wide as they need where it is no terminal (a file, a pipe)."""
    out = PlainConsole(highlight=False)
    if not out.is_terminal:
        out = PlainConsole(highlight=False, width=max(out.width, 120))
    return out


def table(*texts: str, numbers: Sequence[str] = (), title: str | None = None) -> Table:
    """A table in the style of all commands, with columns of texts and, right of them, of numbers."""
    found = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for name in texts:
        found.add_column(name, overflow="fold")
    for name in numbers:
        found.add_column(name, justify="right", overflow="fold")
    return found


def show(*tables: Table) -> None:
    """Tables on standard output, an empty line between them."""
    out = console()
    for number, each in enumerate(tables):
        if number:
            out.print()
        out.print(each)


def say(*parts: Any, style: str = "") -> None:
    """A sentence on standard output, in one line however long; parts as `rich.text.Text.assemble` takes them."""
    console().print(Text.assemble(*parts, style=style), soft_wrap=True)


def say_aside(what: Literal["error", "warning", "note"], text: str) -> None:
    """One message on standard error and in the log, whatever characters it has."""
    LOGGER.log(_LEVELS[what], "%s", text)
    message = Text.assemble(("dmkl: ", "bold"), (f"{what}: ", STYLES[what]), text)
    PlainConsole(stderr=True, soft_wrap=True, highlight=False).print(message)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show dmkl's own warnings as one plain line, each once; those of others as Python does."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        from dmkl.errors import ConvergenceWarning  # scikit-learn's

        ours = (
            ConvergenceWarning,
            IndefiniteKernelWarning,
            LabelWarning,
            SampleOrderWarning,
            SmallWorkerWarning,
            UninformativeScoresWarning,
        )
        if not issubclass(category, ours):
            before(message, category, *place, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            say_aside("warning", str(message))

    with warnings.catch_warnings():
        before, warnings.showwarning = warnings.showwarning, show
        yield


_CLAIMED: ContextVar[ExitStack] = ContextVar("claimed")


@contextmanager
def keeping_outputs() -> Iterator[None]:
    """What is claimed inside is let go of in the end."""
    with ExitStack() as claimed:
        before = _CLAIMED.set(claimed)
        try:
            yield
        finally:
            _CLAIMED.reset(before)


def claim_output(path: Place, *, overwrite: bool, what: str = "path") -> None:
    """Keep an output to this command until it ends; refused before anything is computed is what would fail after it.

    That is, with StoreExistsError something that exists, with LockedError what another process writes, and with OSError
    a place where nothing can be written.
    """
    from dmkl.files.writing import lock, remove_leftovers

    refuse_existing(path, overwrite=overwrite, what=what)
    _CLAIMED.get().enter_context(lock(path))
    if isinstance(path, Path):
        remove_leftovers(path)


def save_figure(figure: Figure, path: Path, **options: Any) -> None:
    """Save a figure as PNG, so that a file of that name is always whole."""
    from dmkl.files.writing import write_whole

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", **options)
    write_whole(path, drawn.getvalue())


def refuse_existing(path: Place, *, overwrite: bool, what: str = "path") -> None:
    """Refuse with StoreExistsError to write where something is, before anything is computed."""
    if path.exists() and not overwrite:
        msg = f"{path} exists already; choose another {what}, or replace it with --overwrite"
        raise StoreExistsError(msg)


def print_json(value: Any) -> None:
    """A result for other programs; what JSON lacks as null (NaN) and as text (infinity, objects such as covariates)."""
    text = json.dumps(_jsonable(value), indent=2, ensure_ascii=False, default=repr)
    # JSON escapes control characters of ASCII alone; terminals obey others.
    text = re.sub(r"[^\n -~]", lambda c: c[0] if c[0].isprintable() else json.dumps(c[0])[1:-1], text)
    sys.stdout.write(f"{text}\n")


def _jsonable(value: Any) -> Any:
    import numpy as np

    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def size(n_bytes: float) -> str:
    """Bytes as people read them."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while n_bytes >= 1024 and len(units) > 1:
        n_bytes, units = n_bytes / 1024, units[1:]
    return f"{n_bytes:.{0 if units[0] == 'B' or n_bytes >= 100 else 1}f} {units[0]}"


def number(value: float) -> str:
    """Three digits of a number; a dash where there is none."""
    import numpy as np

    return "–" if np.isnan(value) else f"{value:.3g}"


def bar(part: float, width: int = 20) -> str:
    """A bar that fills `part` of `width` characters, in eighths."""
    eighths = round(8 * width * min(max(part, 0.0), 1.0))
    whole, rest = divmod(eighths, 8)
    return "█" * whole + ("" if rest == 0 else "▏▎▍▌▋▊▉"[rest - 1])
