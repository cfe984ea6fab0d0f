"""Parameters of learners as options: from what their constructors and docstrings declare."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from dmkl.cli.declared import Declaration, declarations
from dmkl.cli.options import STEPS_HELP, option
from dmkl.cli.parsing import parse_counts, parse_cv, parse_p, parse_priors, parse_steps, parse_value

__all__ = ["CONSTRAINTS_FORM", "Parameter", "parameters_of"]


class Names(NamedTuple):
    """Names of a set: of its kernels, and of its samples where they have any."""

    kernels: Sequence[str] = ()
    samples: Iterable[str] | None = None


@dataclass(frozen=True)
class _Reader:
    """How an option is read where the signature and the documentation of the parameter do not say it."""

    read: Callable[[str, Names], dict[str, Any]] | None = None
    """Parameters of the constructor, from the text that was given, which may hold names of the set."""
    help: str = ""
    metavar: str | None = None
    options: tuple[str, ...] = ()
    form: str = ""
    """What a file looks like, for help."""


CONSTRAINTS_FORM = """\
File of constraints: a TOML table for each. Σ coefficient × weight is at least, or at most, a number.

    [[constraint]]
    weights = { rbf = 1, chi2 = -2 }  # rbf at least twice chi2
    least = 0

    [[constraint]]
    weights = { noise = 1 }
    most = 0.1"""


# Readers of files are imported when there is one: help does without NumPy and pydantic.


def _prices(text: str, names: Names) -> dict[str, Any]:
    from dmkl.cli.priors import read_prices

    return {"sigma": read_prices(text, names.kernels)}


def _kernel_groups(text: str, names: Names) -> dict[str, Any]:
    from dmkl.cli.priors import read_kernel_groups

    return {"kernel_groups": read_kernel_groups(text, names.kernels)}


def _constraints(file: str, names: Names) -> dict[str, Any]:
    from dmkl.cli.priors import read_constraints

    return dict(zip("Ab", read_constraints(file, names.kernels), strict=True))


_READERS = {
    "p": _Reader(
        lambda text, _: {"p": parse_p(text)},
        "Norm of the weights, from 1 (few kernels) to inf (all alike); 4/3 and 1+2^-6 are understood.",
        "P",
    ),
    "steps": _Reader(
        lambda text, names: {"steps": parse_steps(text, names.samples)},
        STEPS_HELP,
        "STEP,…",
    ),
    "priors": _Reader(
        lambda text, _: {"priors": parse_priors(text)},
        'Prior probabilities of the classes: "empirical" (their shares in training), "uniform", or numbers that sum to '
        "one, in the order of the sorted classes or as class=number.",
        "Q,Q,…",
    ),
    "sigma": _Reader(
        _prices,
        "Price of a unit of weight: a number, or a CSV file with kernel,price in each line.",
        "PRICE|FILE",
    ),
    "kernel_groups": _Reader(
        _kernel_groups,
        "Groups of kernels for a mixed norm: GROUP=PATTERN,… of their names, or a CSV file with kernel,group in each "
        "line.",
        "GROUP=PATTERN,…|FILE",
    ),
    "A": _Reader(
        _constraints,
        "File of linear constraints on the weights, as above; other convex sets of weights are functions in Python.",
        "FILE.toml",
        options=("--constraints",),
        form=CONSTRAINTS_FORM,
    ),
    "cv": _Reader(
        lambda text, _: {"cv": parse_cv(text)}, "Number of folds, or a splitter of scikit-learn.", "N|SPLITTER"
    ),
    "n_groups": _Reader(
        lambda text, _: {"n_groups": parse_counts(text)},
        "Number of groups in each class, or that of each as class=number.",
        "N|CLASS=N,…",
        options=("--groups", "--n-groups"),
    ),
    "n_examples": _Reader(
        help="Number of examples to divide the training samples into.", options=("--examples", "--n-examples")
    ),
}
"""By the name of the parameter."""
_WIDEST = 16
"""Of choices that help shows in the column of types."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a learner's constructor, and the option that stands for it."""

    name: str
    annotation: Any
    default: Any
    description: str

    @property
    def reader(self) -> _Reader:
        """How the option is read."""
        return _READERS.get(self.name, _Reader())

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the option: --max-iter, or --p and -p."""
        short = (f"-{self.name}",) if len(self.name) == 1 else ()
        return self.reader.options or (f"--{self.name.replace('_', '-')}", *short)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that the option takes; none where it takes others."""
        if self.reader.read is not None:
            return ()
        members = (self.annotation, *get_args(self.annotation))
        return sum((get_args(kind) for kind in members if get_origin(kind) is Literal), ())

    @property
    def kind(self) -> Any:
        """The type of what the option takes."""
        if self.choices:
            return Literal[self.choices]
        if self.reader.read is None:
            for kind in (bool, str, float, int):
                if kind in (self.annotation, *get_args(self.annotation)):
                    return kind
        return str

    def read(self, given: Any, names: Names) -> dict[str, Any]:
        """Parameters of the constructor from what an option was given."""
        if self.reader.read is not None:
            return self.reader.read(given, names)
        known = self.kind is not str or str in (self.annotation, *get_args(self.annotation))
        return {self.name: given if known else parse_value(given)}

    def as_option(self, panel: str | None, taken: Collection[str] = ()) -> inspect.Parameter:
        """The option, for a signature that Typer reads; help shows it in `panel`, None hides it.

        Parameters of the command itself, `taken`, keep the names of their options.
        """
        names = [name for name in self.options if name.lstrip("-").replace("-", "_") not in taken]
        if self.kind is bool:
            names = [f"{name}/--no-{name.lstrip('-')}" for name in names]
        told = "|".join(self.choices)
        metavar = self.reader.metavar or ("NAME" if len(told) > _WIDEST else None)
        info = option(self._help(), metavar, *names, panel=panel, hidden=panel is None)
        annotation: Any = Annotated[self.kind | None, info]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def _help(self) -> str:
        """The first sentences of the description, as many as it takes to name every choice; and the default."""
        sentences = [self.reader.help] if self.reader.help else re.split(r"(?<=\.)\s+(?=[A-Z\"`])", self.description)
        several = (sentences[: n + 1] for n in range(len(sentences)))
        told = next((some for some in several if all(choice in " ".join(some) for choice in self.choices)), [])
        if not told:
            told = [sentences[0], f"One of {', '.join(self.choices)}."]
        default = self.default
        if isinstance(default, bool):
            default = self.name if default else f"no-{self.name}"
        elif isinstance(default, float):
            default = "inf" if math.isinf(default) else f"{default:g}"
        if default is not None:
            told.append(f"[default: {default}]")
        return re.sub(r"([\\*_<])", r"\\\1", " ".join(told).replace("`", ""))  # Typer takes it for Markdown


@functools.cache
def parameters_of(learner: Declaration) -> dict[str, Parameter]:
    """The parameters of a learner's constructor that have options, by name."""
    return {
        name: Parameter(name, item.annotation, item.default, _description(learner, name))
        for name, item in learner.parameters.items()
        if name not in ("b", "constraints")  # the option of A sets the one, and the other is a function
    }


def _description(learner: Declaration, name: str) -> str:
    """What is said of a parameter by the learner itself, the one that it refers to, or any that has it."""
    known = declarations()
    several = [text for each in (learner, *known.values()) for text in each.documentation]
    text = next((told[name] for told in map(_documented, several) if name in told), "")
    reference = re.match(r"As in `(\w+)`[.;,\s]*(.*)", text)
    if reference is None:
        return text
    elsewhere = _description(known[reference[1]], name) if reference[1] in known else ""
    return reference[2] if f"`{name}`" in reference[2] else elsewhere


@functools.cache
def _documented(documentation: str) -> dict[str, str]:
    """What the section Parameters of a docstring says of each."""
    lines = documentation.splitlines()
    section, names, found = "", [""], dict[str, str]()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below and set(below) == {"-"}:
            section = line
        elif section == "Parameters" and line.startswith(" "):
            found |= {name: f"{found.get(name, '')} {line.strip()}".strip() for name in names}
        elif section == "Parameters":
            names = line.partition(":")[0].replace(" ", "").split(",")
    return found
