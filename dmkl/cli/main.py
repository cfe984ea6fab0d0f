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
from dmkl.cli.fitting import fit
from dmkl.cli.learners import command_for, learner_in
from dmkl.cli.output import plain_warnings, say_error
from dmkl.cli.predicting import predict
from dmkl.cli.searching import search
from dmkl.cli.stores import import_, info
from dmkl.errors import DmklError

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
) -> None:
    """Multiple kernel learning on kernel matrices larger than memory: weights with a proven gap.

    Start with `dmkl demo`. Each command has help with examples: `dmkl fit --help`.
    """


def _app(learner: str | None) -> typer.Typer:
    """The program, with the options of the learner that its command line names."""
    app = typer.Typer(
        name="dmkl",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    commands: dict[str, Callable[..., None]] = {
        "demo": demo,
        "import": import_,
        "build": build,
        "info": info,
        "check": check,
        "analyze": analyze,
        "fit": command_for(learner, fit),
        "search": command_for(learner, search),
        "predict": predict,
    }
    for name, command in commands.items():
        app.command(name)(command)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line.

    Parameters
    ----------
    arguments
        Without the program's name; those of the process by default.

    Returns
    -------
    int
        The exit status: 0 well, 1 an error or a failed check, 2 a wrong command line, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        with plain_warnings():
            _app(learner_in(given))(given, prog_name="dmkl")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except (DmklError, OSError) as error:
        if debug:
            traceback.print_exc()
        say_error(str(error) or type(error).__name__)
        return 1
    except Exception as error:  # a bug: said in a line as well, the traceback is for those who ask
        if debug:
            traceback.print_exc()
        more = "" if debug else ". This should not happen; run it again with --debug to see where it arose"
        say_error(f"{type(error).__name__}: {error}{more}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
