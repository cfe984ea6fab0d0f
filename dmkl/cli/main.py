"""The program `dmkl`: its commands, and what it does with errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from dmkl._version import __version__
from dmkl.cli.analyzing import analyze
from dmkl.cli.building import build
from dmkl.cli.checking import check
from dmkl.cli.demo import demo
from dmkl.cli.evaluating import evaluate
from dmkl.cli.fitting import fit
from dmkl.cli.learners import command_for, learner_in
from dmkl.cli.output import plain_warnings, say_aside
from dmkl.cli.predicting import predict
from dmkl.cli.searching import search
from dmkl.cli.stores import import_, info
from dmkl.errors import DmklError

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    command.__name__.rstrip("_"): command
    for command in (demo, import_, build, info, check, analyze, fit, search, evaluate, predict)
}
"""By their names, in the order in which help lists them."""


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
) -> None:
    """Multiple kernel learning on kernel matrices larger than memory: weights with a proven gap.

    Start with `dmkl demo`. Each command has help with examples: `dmkl fit --help`.
    """


def _app(arguments: Sequence[str]) -> typer.Typer:
    """The program, with the options of the command that its arguments name, and of the learner.

    Of other commands help shows a line, and their options would take time to make.
    """
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    app = typer.Typer(
        name="dmkl",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, command in COMMANDS.items():
        if name != asked:
            shown = _without_options(command)
        elif command in (fit, search, evaluate):
            shown = command_for(learner_in(arguments), command)
        else:
            shown = command
        app.command(name)(shown)
    return app


def _without_options(command: Callable[..., None]) -> Callable[..., None]:
    def listed() -> None: ...

    listed.__doc__ = command.__doc__
    return listed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, without the program's name.

    Returns the exit status: 0 well, 1 an error or a failed check, 2 a wrong command line, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        with plain_warnings():
            _app(given)(given, prog_name="dmkl")
    except SystemExit as stop:
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
