"""The program `dmkl`: its commands, and what it does with errors."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from dmkl._version import __version__
from dmkl.cli.commands import COMMANDS, with_options
from dmkl.cli.ending import Ended, orderly_end
from dmkl.cli.logs import log_asked, logging_to
from dmkl.cli.output import keeping_outputs, plain_warnings, say_aside
from dmkl.errors import DmklError
from dmkl.files.urls import local_path
from dmkl.progress import LOGGER

__all__ = ["main"]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dmkl {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (works after the command too).")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Append passes, phases and notes to FILE (after the command too)."),
    ] = None,
) -> None:
    """Multiple kernel learning on kernel matrices larger than memory, with a proven gap for convex problems.

    Start with `dmkl demo`. Each command has help with examples: `dmkl fit --help`.
    """


def _app(arguments: Sequence[str]) -> typer.Typer:
    """The program, with the options of the command that its arguments name, and of the learner.

    Of other commands help shows a line, and their options would take time to make.
    """
    arguments = arguments or _arguments_to_complete()
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    app = typer.Typer(
        name="dmkl",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, (_, line) in COMMANDS.items():
        app.command(name)(_with_local_paths(with_options(name, arguments)) if name == asked else _listed(line))
    return app


def _arguments_to_complete() -> list[str]:
    """What a shell that asks for completions has on its line so far, after the program's name."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS", ""))
    return line.split()[1:] if "_DMKL_COMPLETE" in os.environ else []


def _listed(line: str) -> Callable[..., None]:
    def listed() -> None: ...

    listed.__doc__ = line
    return listed


def _with_local_paths(function: Callable[..., None]) -> Callable[..., None]:
    """The same command, whose paths must be of this machine; what may be a URL, commands take as text."""

    @wraps(function)
    def checked(**given: Any) -> None:
        for value in given.values():
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, Path):
                    local_path(path, "what stands there")
        function(**given)

    return checked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, without the program's name.

    Returns the exit status: 0 well, 1 an error or a failed check, 2 a wrong command line, 130 interrupted,
    143 ended by SIGTERM (the same command goes on from there).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    with ExitStack() as logged:
        status = _run([argument for argument in given if argument != "--debug"], logged, debug=debug)
        LOGGER.info("ended with status %d", status)
    if arguments is None and status > 128:
        # The process is this program, cut short and about to end: what it began on event loops is not awaited.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    return status


def _run(given: list[str], logged: ExitStack, *, debug: bool) -> int:
    """Run a command line without ``--debug``, and return the exit status; the log stays open until `logged` ends."""
    try:
        path, given = log_asked(given)
        if path is not None:
            logged.enter_context(logging_to(path))
        LOGGER.info("dmkl %s: %s", __version__, shlex.join(["dmkl", *given]))
        with orderly_end(), plain_warnings(), keeping_outputs():
            _app(given)(given, prog_name="dmkl")
    except SystemExit as stop:
        if isinstance(stop, Ended):
            say_aside("error", stop.told)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
        told = str(error) or type(error).__name__
        if not isinstance(error, DmklError | OSError):  # a bug: the traceback is for those who ask
            more = "" if debug else ". This should not happen; run it again with --debug to see where it arose"
            told = f"{type(error).__name__}: {error}{more}"
        say_aside("error", told)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
