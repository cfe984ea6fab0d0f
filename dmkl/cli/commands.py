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


def command(name: str, arguments: Sequence[str] | None = None) -> Callable[..., None]:
    """Import the function of a command, with the options of its groups, and of the learner that its arguments name."""
    from dmkl.cli.options import add_details, expand_groups

    made = expand_groups(getattr(import_module(f"dmkl.cli.{COMMANDS[name]}"), _function(name)))
    if arguments is not None and name in LEARNING:
        from dmkl.cli.learners import add_options, learner_in

        add_options(learner_in(arguments), made)
    if "--help-all" in (arguments or ()):
        add_details(made)
    return made
