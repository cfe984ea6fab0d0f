"""Learners by the names that commands have for them, and commands with the options of a learner."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from dmkl.cli.declared import Declaration, declarations
from dmkl.cli.parameters import Names, parameters_of
from dmkl.cli.parsing import known_names
from dmkl.errors import InputError

if TYPE_CHECKING:
    from dmkl.kernelset import KernelSet

__all__ = ["DEFAULT", "command_for", "learner_in", "learners", "make_learner"]

DEFAULT = "mkfda"
"""The learner where none is named."""


def learners() -> dict[str, Declaration]:
    """All learners by name, in alphabetical order."""
    named = {re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower(): learner for name, learner in declarations().items()}
    return dict(sorted(named.items()))


def make_learner(name: str, given: Mapping[str, Any], K: KernelSet) -> Any:
    """Make one of `learners` from what the options of `command_for` say, by parameter: None is the learner's default.

    Files among the options may name the kernels and the samples of `K`. An option of another learner is an InputError.
    """
    values: dict[str, Any] = {}
    own = parameters_of(learners()[name])
    for parameter, value in given.items():
        if value is None:
            continue
        if parameter not in own:
            others = [other for other, learner in learners().items() if parameter in parameters_of(learner)]
            option = parameters_of(learners()[others[0]])[parameter].options[0]
            msg = f"{option} is for --model {' or '.join(others)}, and {name} has no such parameter; leave it out"
            raise InputError(msg)
        values |= own[parameter].read(value, Names(K.names, known_names(K)))
    return learners()[name].make(**values)


def learner_in(arguments: Sequence[str]) -> str | None:
    """The learner that a command line names, the last one if there are several."""
    found = None
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        option, equals, value = argument.partition("=")
        if option == "--model":
            found = value if equals else after
    return found if found in learners() else None


def command_for(learner: str | None, command: Callable[..., None]) -> Callable[..., None]:
    """A command with options for the parameters of a learner, which its help shows; None: help lists all learners.

    The command has a parameter `model`, and takes the parameters that are not its own by ``**parameters``. Options of
    learners other than the one named are taken too, for `make_learner` to say whose they are.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    taken = {item.name for item in own}
    chosen = parameters_of(learners()[learner or DEFAULT])
    others = {name: item for other in learners().values() for name, item in parameters_of(other).items()}
    panel = None if learner is None else f"Options of {learner}"
    added = [
        item.as_option(panel if name in chosen else None, taken)
        for name, item in {**chosen, **others, **chosen}.items()
        if name not in taken
    ]
    items: list[inspect.Parameter] = []
    for item in own:
        if item.name == "model":
            choice = typer.Option(metavar="NAME", help="Learner to train, one of the list above.")
            item = item.replace(annotation=Annotated[Literal[tuple(learners())], choice])
        items.append(item if learner is None else _hidden(item))
        items += added if item.name == "model" else []

    def run(**given: Any) -> None:
        command(**given)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[item.replace(kind=item.KEYWORD_ONLY) for item in items]
    )
    run.__doc__ = _help(learner, command)
    return run


def _hidden(item: inspect.Parameter) -> inspect.Parameter:
    """A parameter of a command that its help does not show."""
    kind, info = get_args(item.annotation)
    info = copy(info)
    info.hidden = True
    return item.replace(annotation=Annotated[kind, info])


def _help(learner: str | None, command: Callable[..., None]) -> str:
    """The documentation of a command, with the learners that there are or what there is to know of one."""
    about, name = inspect.cleandoc(command.__doc__ or ""), command.__name__
    if learner is None:
        return f"{about}\n\nLearners\n--------\n{_list()}\n\nOptions of a learner: `dmkl {name} --model NAME --help`"
    forms = [item.reader.form for item in parameters_of(learners()[learner]).values() if item.reader.form]
    known = f"All other options: `dmkl {name} --help`"
    return "\n\n".join([f"{learner}: {learners()[learner].title}", *forms, known])


def _list() -> str:
    """A table of learners as wide as a terminal of 80 characters shows it."""
    width = max(map(len, learners())) + 2
    lines = []
    for name, learner in learners().items():
        title = learner.title
        if len(title) > 72 - width:
            title = re.split(r"[:,] ", title)[0]
        told = textwrap.fill(title, 72, initial_indent=" " * width, subsequent_indent=" " * width)
        lines.append(f"{name}{told[len(name) :]}")
    return textwrap.indent("\n".join(lines), "    ")
