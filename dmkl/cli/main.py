"""The program `dmkl`: its commands and its errors."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from dmkl import _version
from dmkl.cli.commands import COMMANDS, command, line_of_help
from dmkl.cli.interruption import Ended, orderly_end
from dmkl.cli.output import (
    command_line,
    files_of,
    learner_files,
    locking_outputs,
    logging_to,
    plain_warnings,
    say_aside,
)
from dmkl.errors import DmklError
from dmkl.progress import LOGGER, inside


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dmkl {_version.version()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (works after the command too).")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Append passes, phases and notes to FILE (after the command too)."),
    ] = None,
    learners: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py", help="Import a file with learners of your own, for --model (after the command too)."
        ),
    ] = None,
) -> None:
    """Multiple kernel learning on kernel matrices larger than memory, with a proven gap for convex problems.

    Start with `dmkl demo`. `dmkl fit --help` shows the options of a command and examples, `--help-all` all details.
    """


def _app(arguments: Sequence[str]) -> typer.Typer:
    """The program, with the options of the command that its arguments name alone, since making others takes time."""
    if not arguments and "_DMKL_COMPLETE" in os.environ:  # a shell asks for completions of this command line
        line = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS", ""))
        arguments = line.split()[1:]
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    app = typer.Typer(
        name="dmkl",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help", "--help-all"]},
    )
    app.callback()(_root)
    listed = next(iter(arguments), "") not in COMMANDS  # help or completion may list them
    for name in COMMANDS:
        if name == named:
            app.command(name)(command(name, arguments))
        else:
            app.command(name, help=line_of_help(name) if listed else "")(lambda: None)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, without the program's name.

    Returns the exit status: 0 for success, 1 for an error or a failed check, 2 for a wrong command line, 130 after
    Ctrl-C, 143 after SIGTERM (the same command resumes).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    with ExitStack() as logged:
        # Commands print their messages: a handler that another library gives the root would print them again.
        logged.callback(setattr, LOGGER, "propagate", LOGGER.propagate)
        LOGGER.propagate = False
        status = _run([argument for argument in given if argument != "--debug"], logged, debug=debug)
        LOGGER.info("ended with status %d", status)
    if arguments is None and status > 128:
        # The process is about to end: coroutines that it began are not awaited.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    return status


def _run(given: list[str], logged: ExitStack, *, debug: bool) -> int:
    """Run a command line without ``--debug``, and return the exit status; the log stays open until `logged` ends."""
    try:
        logs, given = files_of("--log", "a file to append to, as --log run.log", given)
        for path in logs[-1:]:
            logged.enter_context(logging_to(path))
        LOGGER.info("dmkl %s: %s", _version.version(), shlex.join(["dmkl", *given]))
        with orderly_end(), plain_warnings(), locking_outputs(), inside(command_line, tuple(given)):
            _import_and_run(given)
    except SystemExit as stop:
        if isinstance(stop, Ended):
            say_aside("error", stop.message)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
        message = str(error) or type(error).__name__
        if not isinstance(error, DmklError | OSError):  # a bug
            more = "" if debug else ". This should not happen; run it again with --debug to see where it arose"
            message = f"{type(error).__name__}: {error}{more}"
        say_aside("error", message)
        return 1
    return 0


def _import_and_run(given: list[str]) -> None:
    """Import the files of --learners, and run the command line without them."""
    own, given = files_of("--learners", "a file of Python with learners, as --learners mine.py", given)
    with inside(learner_files, tuple(path.absolute() for path in own)) as files:
        for path in files:
            from dmkl.cli.learners import import_file

            import_file(path)
        _app(given)(given, prog_name="dmkl")
