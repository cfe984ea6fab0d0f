"""The commands, each imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.resources import files
from keyword import iskeyword

LEARNING = ("fit", "search", "evaluate", "importance", "stability", "permute")
"""Commands that have the options of the learner that is named by --model."""

_MODULES = {
    "demo": ("demo",),
    "creating": ("import", "build", "combine"),
    "inspecting": ("info", "check"),
    "cluster": ("preflight",),
    "analyzing": ("analyze", "associate"),
    "learning": (*LEARNING, "compare"),
    "predicting": ("predict", "transform", "export", "compact", "report"),
    "running": ("run", "submit"),
}
COMMANDS = {name: module for module, names in _MODULES.items() for name in names}
"""The module in `dmkl.cli` of each command, in the order in which help lists them."""


def line_of_help(name: str) -> str:
    """The first line of the documentation of a command, from its source file, so that a list imports no command."""
    source = (files("dmkl.cli") / f"{COMMANDS[name]}.py").read_text(encoding="utf-8")
    return source.partition(f"\ndef {_function(name)}(")[2].split('"""')[1].partition("\n")[0]


def _function(name: str) -> str:
    return f"{name}_" if iskeyword(name) else name


def command(name: str) -> Callable[..., None]:
    """Import the function of a command, with the options of its groups."""
    from dmkl.cli.options import expand_groups

    return expand_groups(getattr(import_module(f"dmkl.cli.{COMMANDS[name]}"), _function(name)))


def with_options(name: str, arguments: Sequence[str]) -> Callable[..., None]:
    """Import the function of a command, with the options of the learner that its arguments name."""
    made = command(name)
    if name in LEARNING:
        from dmkl.cli.learners import command_for, learner_in

        made = command_for(learner_in(arguments), made)
    if "--help-all" not in arguments:
        return made
    from dmkl.cli.options import with_details

    return with_details(made)
