"""Printing: results on standard output, everything else on standard error, and all of it in a log."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from dmkl.errors import StoreExistsError, printable, refuse
from dmkl.files.regular import check_regular
from dmkl.progress import LOGGER, PlainConsole, inside

if TYPE_CHECKING:
    from dmkl.description import Cell, Description, Key
    from dmkl.description import Table as LabeledTable
    from dmkl.files.urls import Place

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
command_line: ContextVar[tuple[str, ...]] = ContextVar("command-line", default=())
"""The words of the command that runs, without the program's name."""
learner_files: ContextVar[tuple[Path, ...]] = ContextVar("learner-files", default=())
"""The files of --learners, which other processes need too."""
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}


def console() -> PlainConsole:
    """Standard output; tables as wide as they need where it is no terminal (a file, a pipe)."""
    out = PlainConsole(highlight=False)
    if not out.is_terminal:
        out = PlainConsole(highlight=False, width=max(out.width, 120))
    return out


def table(*texts: str, numbers: Sequence[str] = (), last: Sequence[str] = (), rows: Iterable[Any] = ()) -> Table:
    """Make a table with columns of texts, then of numbers, then `last` ones of texts, which are shown as they are."""
    made = Table(title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for name in (*texts, *numbers, *last):
        made.add_column(Text(name), overflow="fold")
    for column in made.columns[len(texts) : len(texts) + len(numbers)]:
        column.justify = "right"
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def facts_table(facts: Mapping[str, str]) -> Table:
    """Make a table of facts, with their names in bold."""
    made = table("", "", rows=facts.items())
    made.show_header = False
    made.columns[0].style = "bold"
    return made


def show(*tables: Table) -> None:
    """Print tables on standard output, an empty line between them."""
    out = console()
    for number, item in enumerate(tables):
        if number:
            out.print()
        out.print(item)


_MOST_COLUMNS = 14  # Most columns of a table of a result that is printed.


def show_tables(*tables: LabeledTable) -> None:
    """Print the first rows of tables of a result on standard output, an empty line between them."""
    out = console()
    # A confusion matrix of many classes is left out.
    for number, shown in enumerate(made for made in tables if len(made.shown) <= _MOST_COLUMNS):
        columns = shown.shown
        if number:
            out.print()
        n_bars = sum(column.bar is not None for column in columns)
        width = 30 if len(columns) == 2 else 12 if n_bars == 1 else 6
        cells = shown.cells(shown.first_rows)
        broadest = [max(len(cell.text) for cell in of_column) for of_column in zip(*cells, strict=True)]
        rows = ([_with_bar(*cell, width) for cell in zip(row, broadest, strict=True)] for row in cells)
        made = table(*(column.heading for column in columns), rows=rows)
        made.title = shown.title
        for column, drawn in zip(columns, made.columns, strict=True):
            drawn.no_wrap = column.bar is not None
            drawn.justify = "left" if column.is_text or drawn.no_wrap else "right"
        out.print(made)
        for note in shown.notes:
            say(note, style="dim")


def show_description(description: Description, omit: Collection[str] = (), *without: Key) -> None:
    """Print the tables but those to omit, and below them the sentences without those of some keys."""
    show_tables(*(make() for key, make in description.tables.items() if key not in omit))
    if description.tables:
        say()
    for line in description.lines(without=without):
        say(line)


def _with_bar(cell: Cell, broadest: int, width: int) -> Text:
    """The text of a cell, and a bar that fills its share of `width` characters, in eighths."""
    if math.isnan(cell.bar):
        return Text(cell.text)
    whole, rest = divmod(round(8 * width * min(max(cell.bar, 0.0), 1.0)), 8)
    bar = "█" * whole + ("" if rest == 0 else "▏▎▍▌▋▊▉"[rest - 1])
    return Text.assemble(f"{cell.text:{broadest}} ", (bar, "cyan"))


def say(*parts: Any, style: str = "") -> None:
    """Print a sentence as one line on standard output; parts as for `rich.text.Text.assemble`."""
    console().print(Text.assemble(*parts, style=style), soft_wrap=True)


def say_aside(what: Literal["error", "warning", "note"], text: str) -> None:
    """Print a message on standard error and write it to the log."""
    LOGGER.log(_LEVELS[what], "%s", text)
    message = Text.assemble(("dmkl: ", "bold"), (f"{what}: ", STYLES[what]), text)
    PlainConsole(stderr=True, soft_wrap=True, highlight=False).print(message)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as one plain line, each once; those of other libraries with their kind."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        # ConvergenceWarning is scikit-learn's.
        is_own = category.__module__ == "dmkl.errors" or category.__name__ == "ConvergenceWarning"
        text = str(message) if is_own else f"{category.__name__}: {' '.join(str(message).split())}"
        if text not in shown:
            shown.add(text)
            say_aside("warning", text)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


_LOCKS: ContextVar[ExitStack] = ContextVar("locks")


@contextmanager
def locking_outputs() -> Iterator[None]:
    """Release the output locks on exit."""
    with ExitStack() as locks, inside(_LOCKS, locks):
        yield


def lock_output(path: Place, *, overwrite: bool, what: str = "path") -> None:
    """Lock an output until the command ends, before anything is computed; it may exist only with `overwrite`."""
    from dmkl.files.writing import lock, remove_leftovers

    refuse_existing(path, overwrite=overwrite, what=what)
    _LOCKS.get().enter_context(lock(path))
    if isinstance(path, Path):
        remove_leftovers(path)


def lock_pictures(path: Path | None, names: Iterable[str] = (), *, overwrite: bool) -> None:
    """Lock the file of --plot until the command ends, or a folder if there may be pictures of several names."""
    if path is None:
        return
    if names and not path.suffix:
        for name in names:
            refuse_existing(path / name, overwrite=overwrite, what="folder")
        lock_output(path, overwrite=True)
        return
    if path.suffix not in (".png", ".pdf", ".svg"):
        refuse(f"pictures are .png, .pdf or .svg, got --plot {path}")
    lock_output(path, overwrite=overwrite, what="file")


def save_figure(draw: Callable[[], Any], path: Path | None, *, aside: bool = True) -> None:
    """Save the figure of drawn axes in the format that the name says, by writing another file and renaming it."""
    if path is None:
        return
    from dmkl.files.writing import write_whole
    from dmkl.pictures import image_of

    write_whole(path, image_of(draw(), path.suffix[1:], dpi=150))
    if aside:
        say_aside("note", f"the picture is {path}")


def save_pictures(draw: Mapping[str, Callable[[], Any] | None], path: Path | None) -> None:
    """Save the first picture in a file, or all in a folder; a picture that is None is removed there."""
    from dmkl.files.writing import into_folder

    if path is None or path.suffix:
        save_figure(next(filter(None, draw.values())), path)
        return
    with into_folder(path):
        for name, draw_one in draw.items():
            if draw_one is None:  # of a result that this one replaces
                (path / name).unlink(missing_ok=True)
            else:
                save_figure(draw_one, path / name, aside=False)
    say_aside("note", f"the pictures are in {path}: {', '.join(name for name in draw if draw[name])}")


def refuse_existing(path: Place, *, overwrite: bool, what: str = "path") -> None:
    """Raise StoreExistsError if a path exists, unless `overwrite`."""
    if path.exists() and not overwrite:
        from dmkl.files.writing import remove_dead_lock

        remove_dead_lock(path)  # of a process that was killed after the output was complete
        msg = f"{path} exists already; choose another {what}, or replace it with --overwrite"
        raise StoreExistsError(msg)


def print_json(value: Any) -> None:
    """Print a result as JSON: NaN as null, infinity and objects such as covariates as texts."""
    text = json.dumps(_jsonable(value), indent=2, ensure_ascii=False, default=repr)
    # json.dumps escapes the control characters of ASCII only; terminals obey others too.
    text = re.sub(r"[^\n -~]", lambda c: c[0] if c[0].isprintable() else json.dumps(c[0])[1:-1], text)
    sys.stdout.write(f"{text}\n")


def _jsonable(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


# --- log files -----------------------------------------------------------------------------------------------------


class _LogFile(logging.FileHandler):
    def format(self, record: logging.LogRecord) -> str:
        """Replace control characters."""
        return printable(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Go on without the line: a full disk must not end a computation."""


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Append notes, passes, phases, warnings and the error to a file, with times; InputError if that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            check_regular(path, links=False)
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        way_out = "choose a file in a folder that can be written to"
        refuse(f"no log can be written to {path}: {error.strerror}; {way_out}", error)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        LOGGER.setLevel(before)
        LOGGER.removeHandler(handler)
        handler.close()


def files_of(option: str, what: str, arguments: list[str]) -> tuple[list[Path], list[str]]:
    """The files that an option of all commands names, anywhere in a command line, and the other arguments."""
    paths, others, remaining = list[Path](), list[str](), iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name != option:
            others.append(argument)
            continue
        value = value if equals else next(remaining, "")
        if not value or value.startswith("-"):
            refuse(f"{option} takes {what}, got {value or 'nothing'!r}")
        paths.append(Path(value).expanduser())
    return paths, others
