"""The program `dmkl`: its commands, and what it does with errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Annotated

import typer

from dmkl._version import __version__
from dmkl.cli.output import keeping_outputs, plain_warnings, say_aside
from dmkl.errors import DmklError

__all__ = ["COMMANDS", "command", "main"]

COMMANDS = {
    "demo": (
        "demo",
        "Show everything once: kernels of handwritten digits, weights with a proven gap, a picture.",
    ),
    "import": (
        "stores",
        "Import kernel matrices from files into a kernel set.",
    ),
    "build": (
        "building",
        "Compute kernels from feature tables, and keep the features beside them.",
    ),
    "info": (
        "stores",
        "Show what a kernel set, a model, a result or the state of a search is and holds.",
    ),
    "check": (
        "checking",
        "Read all of a kernel set, a model, a result or a search's state, and report damage and problems.",
    ),
    "analyze": (
        "analyzing",
        "Show which kernels are alike, how well each alone fits the labels, and how many dimensions it has.",
    ),
    "fit": (
        "fitting",
        "Train a model on a kernel set and save it.",
    ),
    "search": (
        "searching",
        "Search a grid of parameters by cross-validation, and train a model at the chosen point.",
    ),
    "evaluate": (
        "evaluating",
        "Estimate how good a learner is on new samples, its parameters chosen from a grid, by nested cross-validation.",
    ),
    "predict": (
        "predicting",
        "Predict labels or numbers with a saved model, and score them if the true ones are known.",
    ),
}
"""The module in `dmkl.cli` and the line of help of each, in the order in which help lists them.

A command is imported when it is called: help of all is a matter of these lines.
"""


def command(name: str) -> Callable[..., None]:
    """The function of a command."""
    module, _ = COMMANDS[name]
    found: Callable[..., None] = getattr(import_module(f"dmkl.cli.{module}"), f"{name}_" if iskeyword(name) else name)
    return found


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
    for name, (_, line) in COMMANDS.items():
        app.command(name)(_with_options(name, arguments) if name == asked else _listed(line))
    return app


def _listed(line: str) -> Callable[..., None]:
    def listed() -> None: ...

    listed.__doc__ = line
    return listed


def _with_options(name: str, arguments: Sequence[str]) -> Callable[..., None]:
    if name not in ("fit", "search", "evaluate"):
        return command(name)
    from dmkl.cli.learners import command_for, learner_in

    return command_for(learner_in(arguments), command(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, without the program's name.

    Returns the exit status: 0 well, 1 an error or a failed check, 2 a wrong command line, 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        with plain_warnings(), keeping_outputs():
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
