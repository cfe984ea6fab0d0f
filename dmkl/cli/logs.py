"""Files that keep what the logger "dmkl" is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dmkl.errors import InputError, printable
from dmkl.progress import LOGGER

__all__ = ["log_asked", "logging_to"]

_FORM = "%(asctime)s %(levelname)s %(message)s"


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """A line that a terminal may show."""
        return printable(super().format(record))


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Go on without the line: a disk that is full of logs is no reason to lose a computation."""


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Append all that happens inside to a file, a line with its time each: notes, passes, phases, warnings, the error.

    InputError is raised where the file cannot be written, before anything is done.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, encoding="utf-8")
    except OSError as error:
        msg = f"no log can be written to {path}: {error.strerror}; choose a file in a folder that can be written to"
        raise InputError(msg) from error
    handler.setFormatter(_Printable(_FORM))
    before = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        LOGGER.setLevel(before)
        LOGGER.removeHandler(handler)
        handler.close()


def log_asked(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """The file that ``--log`` names, wherever in a command line it stands, and the arguments without it."""
    kept: list[str] = []
    found: str | None = None
    given = iter(arguments)
    for argument in given:
        name, equals, value = argument.partition("=")
        if name != "--log":
            kept.append(argument)
        else:
            found = value if equals else next(given, "")
            if not found or found.startswith("-"):
                msg = f"--log takes a file to append to, as --log run.log, got {found or 'nothing'!r}"
                raise InputError(msg)
    return (None if found is None else Path(found).expanduser()), kept
