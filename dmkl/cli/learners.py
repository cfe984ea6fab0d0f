"""Learners on the command line: their options come from the constructors and the docstrings of their classes.

Importing the classes takes seconds (scikit-learn, SciPy, xarray). So the options of dmkl's own learners are kept in a
file, which is made anew when a file of dmkl has changed.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin
from zlib import crc32

import typer

import dmkl
from dmkl._version import version
from dmkl.cli import parsing
from dmkl.cli.options import STEPS_HELP, option
from dmkl.errors import DmklError, refuse

if TYPE_CHECKING:
    from dmkl.kernelset import KernelSet

DEFAULT = "mkfda"
"""The learner that is used when none is named."""
AUTO = "auto"
"""The word for a learner that `dmkl.auto` chooses."""

# --- options whose form the signature does not give ----------------------------------------------------------------


class Names(NamedTuple):
    """Names of the kernels of a set, and of its samples if they have names."""

    kernels: Sequence[str] = ()
    samples: Iterable[str] | None = None


@dataclass(frozen=True)
class _OptionForm:
    """How an option is read, and its help, where the signature and the docstring of the parameter do not give them."""

    read: Callable[[str, Names], Any] | None = None  # makes the value from the text; of A those of A and b
    help: str = ""
    metavar: str | None = None
    options: tuple[str, ...] = ()
    file: str = ""  # an example of the file that the option takes


_FORMS = {
    "solver": _OptionForm(
        lambda text, _: import_module("dmkl.solvers.fisher.problem").parse_solver(text),
        "Solver: auto, direct, cg, anchored, subspace, interleaved, dual, stacked or factors; or one with options: "
        '"subspace(basis=8GiB, finish=report)", "direct(master=taylor)", "cg(master=exact)", "dual(mu=0.1)". For '
        "mkcox, mkglm and mklogistic: auto, memory or subspace.",
        "SOLVER",
    ),
    "p": _OptionForm(
        lambda text, _: parsing.parse_p(text),
        "Norm of the weights, from 1 (few kernels) to inf (all alike); 4/3 and 1+2^-6 are understood.",
        "P",
    ),
    "steps": _OptionForm(lambda text, names: parsing.parse_steps(text, names.samples), STEPS_HELP, "STEP,…"),
    "offset": _OptionForm(
        lambda text, names: parsing.read_offset(text, names.samples),
        "Numbers added to the predictor of each sample: a file, or log(FILE:COLUMN) of exposures such as years.",
        "FILE[:NAME]",
    ),
    "strata": _OptionForm(
        lambda text, names: parsing.read_strata(text, names.samples),
        "Stratum of each sample, such as its center: strata have baseline hazards of their own.",
        "FILE[:NAME]",
    ),
    "priors": _OptionForm(
        lambda text, _: parsing.parse_priors(text),
        'Prior probabilities of the classes: "empirical" (their shares in training), "uniform", or numbers that sum to '
        "one, in the order of the sorted classes or as class=number.",
        "Q,Q,…",
    ),
    "decision": _OptionForm(help='Labels by class "means" of scores (discriminants) or the "largest" (machines).'),
    "sigma": _OptionForm(
        lambda text, names: parsing.read_prices(text, names.kernels),
        "Price of a unit of weight: a number, or a CSV file with kernel,price on each line.",
        "PRICE|FILE",
    ),
    "weights": _OptionForm(
        lambda text, names: text if text == "shared" else parsing.read_weights(text, names.kernels),
        "Given weights, which are not learnt (multiple-kernel-kmeans starts from them): a CSV file with kernel,weight "
        "on each line. For mkridge also shared: random candidates, of which dmkl search chooses one for each target.",
        "FILE",
    ),
    "kernel_groups": _OptionForm(
        lambda text, names: parsing.read_kernel_groups(text, names.kernels),
        "Groups of kernels for a mixed norm: GROUP=PATTERN,… of their names, or a CSV file with kernel,group on each "
        "line.",
        "GROUP=PATTERN,…|FILE",
    ),
    "A": _OptionForm(
        lambda text, names: parsing.read_constraints(text, names.kernels),
        "File of linear constraints on the weights, as above; other convex sets of weights are functions in Python.",
        "FILE.toml",
        options=("--constraints",),
        file=parsing.CONSTRAINTS_FORM,
    ),
    "cv": _OptionForm(
        lambda text, _: parsing.parse_cv(text), "Number of folds, or a splitter of scikit-learn.", "N|SPLITTER"
    ),
    "n_groups": _OptionForm(
        lambda text, _: parsing.parse_counts(text),
        "Number of groups in each class, or that of each as class=number; samples: each sample is a group.",
        "N|CLASS=N,…|samples",
        options=("--groups", "--n-groups"),
    ),
    "lams": _OptionForm(
        lambda text, _: text if text == "auto" else parsing.parse_numbers("lams", "0.01,0.1", text),
        metavar="auto|L,L,…",
    ),
    "n_examples": _OptionForm(
        help="Number of examples to divide the training samples into.", options=("--examples", "--n-examples")
    ),
}
"""By the name of the parameter."""
_WIDEST = 16  # Characters of choices that help shows in the column of types.
_LONG = 12  # Characters of a name of a learner that fit the column of names.
_LIST = "list"
_TYPES: dict[str, Any] = {kind.__name__: kind for kind in (bool, str, float, int)}
"""The types of options; of several that a parameter takes, the first."""

# --- parameters and learners ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """A parameter of a learner's constructor, and the option that sets it."""

    name: str
    type: str  # bool, str, float or int; empty if it takes none of these
    choices: tuple[str, ...]  # the texts that it takes, if it takes no others
    default: Any
    description: str

    @property
    def form(self) -> _OptionForm:
        """How the option is read."""
        return _FORMS.get(self.name, _OptionForm())

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the option: --max-iter, or --p and -p."""
        short = (f"-{self.name}",) if len(self.name) == 1 else ()
        return self.form.options or (f"--{self.name.replace('_', '-')}", *short)

    @property
    def kind(self) -> Any:
        """The type of the option."""
        if self.form.read is not None:
            return str
        if self.choices:
            return Literal[self.choices]
        return _TYPES.get(self.type, str)

    def read(self, given: Any, names: Names) -> dict[str, Any]:
        """Parameters of the constructor, from the value of the option."""
        if self.form.read is None and self.type == _LIST:
            return {self.name: [parsing.parse_value(text) for text in given.split(",")]}
        if self.form.read is None:
            return {self.name: given if self.type or self.choices else parsing.parse_value(given)}
        value = self.form.read(given, names)
        return dict(zip("Ab", value, strict=True)) if self.name == "A" else {self.name: value}

    def as_option(self, panel: str | None, taken: Collection[str] = ()) -> inspect.Parameter:
        """The option as a parameter for Typer, in a panel of help or hidden; other options have the `taken` names."""
        names = [name for name in self.options if name.lstrip("-").replace("-", "_") not in taken]
        if self.kind is bool:
            names = [f"{name}/--no-{name.lstrip('-')}" for name in names]
        metavar = "V,V,…" if self.type == _LIST else "NAME" if len("|".join(self.choices)) > _WIDEST else None
        metavar = self.form.metavar or metavar
        shown, rest = self._help()
        where: Any = {"panel": panel or "Options of learners", "hidden": panel is None}
        info = option(shown, metavar, *names, **where, details=rest)
        annotation: Any = Annotated[self.kind | None, info]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def _help(self) -> tuple[str, str]:
        """The first sentences of the description, as many as name every choice, with the default; and the others."""
        sentences = [self.form.help] if self.form.help else re.split(r"(?<=\.)\s+(?=[A-Z\"`])", self.description)
        choices = () if self.form.read else self.choices
        ends = range(1, len(sentences) + 1)
        end = next((n for n in ends if all(choice in " ".join(sentences[:n]) for choice in choices)), 0)
        shown = sentences[:end] or [sentences[0], f"One of {', '.join(choices)}."]
        default = self.default
        if isinstance(default, bool):
            default = self.name if default else f"no-{self.name}"
        elif isinstance(default, list | tuple):
            default = ",".join(map(str, default))
        elif isinstance(default, float):
            default = "inf" if math.isinf(default) else f"{default:g}"
        if default is not None:
            shown.append(f"[default: {default}]")
        parts = (" ".join(part).replace("`", "") for part in (shown, sentences[end or 1 :]))
        first, rest = (re.sub(r"([\\*_<])", r"\\\1", part) for part in parts)  # Typer reads Markdown
        return first, rest


@dataclass(frozen=True)
class DeclaredLearner:
    """A learner."""

    name: str  # of its class
    title: str  # the first line of its documentation
    parameters: Mapping[str, Parameter]  # those of its constructor that have options, by name
    needs_labels: bool = True

    def make(self, **values: Any) -> Any:
        """An instance of the class, which is imported for it."""
        import_base()
        made: Any = _imported().get(self.name) or getattr(dmkl, self.name)
        return made(**values)


def import_base() -> None:
    """Import scikit-learn's base class without scipy.stats, which it does not use, and which takes a third of a fit.

    A module that passes on to scipy.stats takes its place meanwhile. `importlib.util.LazyLoader` does not serve: the
    second import statement of a module reads its attribute ``__spec__``, which would load it.
    """
    name = "scipy.stats"
    if name in sys.modules or "sklearn.base" in sys.modules:
        return
    stand_in: Any = ModuleType(name)

    def attribute_of_original(attribute: str) -> Any:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        return getattr(import_module(name), attribute)

    stand_in.__getattr__ = attribute_of_original
    sys.modules[name] = stand_in
    import_module("sklearn.base")
    if sys.modules.get(name) is stand_in:
        del sys.modules[name]


def import_file(path: Path) -> None:
    """Import a Python file, which may import others of its folder; its learners register themselves."""
    if path.suffix != ".py" or not path.is_file():
        refuse(f"--learners takes a file of Python that is there, as mine.py, got {path}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # behind libraries, in whose place no neighbor is imported
    import_base()
    try:
        module = import_module(path.stem)
    except Exception as error:
        refuse(f"{path} cannot be imported, {type(error).__name__}: {error}", error)
    if module.__file__ is None or not path.samefile(module.__file__):
        refuse(f"{path} has the name of another module, {module.__file__ or path.stem}; rename it")


def learners() -> dict[str, DeclaredLearner]:
    """All learners by their names on the command line, in alphabetical order."""
    others = [kind for kind in _imported().values() if not kind.__module__.startswith("dmkl.")]
    declared = {**_of_dmkl(), **{kind.__name__: inspect_class(kind) for kind in others}}
    named = {re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower(): learner for name, learner in declared.items()}
    return dict(sorted(named.items()))


def _imported() -> Mapping[str, type]:
    """The classes of learners that this process has imported, by name."""
    saving = sys.modules.get("dmkl.learners.saving")  # where classes register themselves
    return {} if saving is None else saving.MODELS


@cache
def _of_dmkl() -> dict[str, DeclaredLearner]:
    """The learners that dmkl offers, by class: from the file that this version of it has written, or else inspected."""
    made_by = f"{version()} in {sys.prefix}"  # environments that share a checkout may read types differently
    for file in _files():
        with suppress(OSError, ValueError, LookupError, TypeError):
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["version"] == made_by:
                for learner in content["learners"].values():
                    for name, item in learner["parameters"].items():
                        values: list[Any] = [tuple(v) if isinstance(v, list) else v for v in item.values()]
                        learner["parameters"][name] = Parameter(*values)
                return {name: DeclaredLearner(**learner) for name, learner in content["learners"].items()}
    from dmkl.files.writing import write_whole

    read = {name: inspect_class(kind) for name, kind in _public_classes().items()}
    content = {"version": made_by, "learners": {name: asdict(learner) for name, learner in read.items()}}
    for file in _files():
        with suppress(OSError, DmklError, TypeError):  # default values may be no JSON
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(content).encode())
            break
    return read


@cache
def _public_classes() -> dict[str, type]:
    """The classes of learners among the public names of dmkl, by name; all classes that it offers are imported."""
    import_base()
    from dmkl.learners.learner import KernelLearner

    public = {name: getattr(dmkl, name) for name in dir(dmkl) if name[0].isupper()}
    return {name: kind for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, KernelLearner)}


def _files() -> Iterator[Path]:
    """The files that may hold the options: with the compiled modules of dmkl, and in the user's cache folder."""
    if not sys.dont_write_bytecode:
        yield Path(cache_from_source(__file__)).with_name("learners.json")
    with suppress(RuntimeError):  # there is no home folder
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        yield folder / "dmkl" / f"learners-{crc32(os.fsencode(__file__)):08x}.json"  # one for each installation


# The option of A sets b too, --groups sets kept_together, and the others are an array and a function.
_WITHOUT_OPTION = {"b", "candidates", "constraints", "kept_together"}


@cache
def inspect_class(kind: type) -> DeclaredLearner:
    """A learner from its class."""
    from dmkl.learners.checks import parameter_types

    hints, parameters = parameter_types(kind), {}  # without a type, values are read as numbers or texts
    for name, item in inspect.signature(kind).parameters.items():
        if name in _WITHOUT_OPTION:
            continue
        hint = hints.get(name, bool if isinstance(item.default, bool) else None)
        members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices = sum((get_args(member) for member in members if get_origin(member) is Literal), ())
        named = [option for option, member in _TYPES.items() if member in members]
        if len(named) > 1 or (named and choices):  # a value is read as a number if it is one
            named = ["float"] if named == ["float", "int"] else [""]
            choices = ()
        elif not named and all(get_origin(each) in (list, tuple, Sequence) or each is NoneType for each in members):
            named = [_LIST]
        type_name = next(iter(named), "")
        default = None if item.default is item.empty else item.default
        parameters[name] = Parameter(name, type_name, choices, default, _description(kind, name))
    title = (inspect.getdoc(kind) or "").partition("\n")[0].rstrip(".")
    of_class: Any = kind
    return DeclaredLearner(kind.__name__, title, parameters, of_class.traits.needs_labels)


# --- descriptions of parameters, from docstrings -------------------------------------------------------------------


def _description(kind: type, name: str) -> str:
    """The description of a parameter by the learner, by the one that it refers to, or by any learner that has it."""
    bases = [base for other in (kind, *_public_classes().values()) for base in other.__mro__ if base is not object]
    documented = (_documented(inspect.cleandoc(base.__doc__ or "")) for base in bases)
    text = next((descriptions[name] for descriptions in documented if name in descriptions), "")
    reference = re.match(r"As in `(\w+)`[.;,\s]*(.*)", text)
    if reference is None:
        return text
    elsewhere = {**_imported(), **_public_classes()}.get(reference[1])
    return reference[2] if f"`{name}`" in reference[2] or elsewhere is None else _description(elsewhere, name)


@cache
def _documented(documentation: str) -> dict[str, str]:
    """The descriptions in the section Parameters of a docstring, by name."""
    lines = documentation.splitlines() or [""]
    section, names, descriptions = "", [""], dict[str, str]()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below and set(below) == {"-"}:
            section = line
        elif section == "Parameters" and line.startswith(" "):
            descriptions |= {name: f"{descriptions.get(name, '')} {line.strip()}".strip() for name in names}
        elif section == "Parameters":
            names = line.partition(":")[0].replace(" ", "").split(",")
    return descriptions


# --- commands ------------------------------------------------------------------------------------------------------


def make_learner(name: str, given: Mapping[str, Any], K: KernelSet) -> Any:
    """Make a learner from options of `add_options` that are not None; an option of another learner is an InputError."""
    values: dict[str, Any] = {}
    parameters = learners()[name].parameters
    for parameter, value in given.items():
        if value is None:
            continue
        if parameter not in parameters:
            others = [other for other, learner in learners().items() if parameter in learner.parameters]
            flag = learners()[others[0]].parameters[parameter].options[0]
            refuse(f"{flag} is for --model {' or '.join(others)}, and {name} has no such parameter; leave it out")
        values |= parameters[parameter].read(value, Names(K.names, parsing.sample_names(K)))
    return learners()[name].make(**values)


def learner_in(arguments: Sequence[str]) -> str | None:
    """The learner that a command line names, the last one if there are several."""
    name = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = argument.partition("=")
        if flag == "--model":
            name = value if equals else following
    return name if name in learners() else None


def add_options(learner: str | None, command: Callable[..., None]) -> None:
    """Give a command options for the parameters of a learner; None: help lists all learners.

    It takes `model`, and the parameters of learners by ``**parameters``. Options of other learners are hidden, so that
    `make_learner` can say whose they are.
    """
    signature = inspect.signature(command)
    items = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    taken = {item.name for item in items}
    chosen = learners()[learner or DEFAULT].parameters
    others = {name: item for other in learners().values() for name, item in other.parameters.items()}
    panel = None if learner is None else f"Options of {learner}"
    added = [
        item.as_option(panel if name in chosen else None, taken)
        for name, item in {**chosen, **others, **chosen}.items()
        if name not in taken
    ]
    options: list[inspect.Parameter] = []
    for item in items:
        if item.name == "model":
            searches = command.__name__ == "search"
            help = f"Learner, or {AUTO}." if searches else "Learner to train."
            info = typer.Option(metavar="NAME", help=f"{help} [default: {DEFAULT}]", show_default=False)
            names = (*learners(), AUTO) if searches else (*learners(),)
            item = item.replace(annotation=Annotated[Literal[names], info])
        if learner is not None:  # its help shows its own options only
            kind, info = get_args(item.annotation)
            info = copy(info)
            info.hidden = True
            item = item.replace(annotation=Annotated[kind, info])
        options.append(item)
        options += added if item.name == "model" else []

    command.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    command.__doc__ = _help(learner, command)


def _help(learner: str | None, command: Callable[..., None]) -> str:
    """The documentation of a command, with a list of the learners or the description of one."""
    about, name = inspect.cleandoc(command.__doc__ or ""), command.__name__
    if learner is None:
        of_default = ", ".join(item.options[0] for item in learners()[DEFAULT].parameters.values())
        more = f"Options of a learner, such as {of_default} of {DEFAULT}: `dmkl {name} --model NAME --help`"
        return f"{about}\n\nLearners\n--------\n{_list(name)}\n\n{more}"
    forms = [item.form.file for item in learners()[learner].parameters.values() if item.form.file]
    return "\n\n".join([f"{learner}: {learners()[learner].title}", *forms, f"All other options: `dmkl {name} --help`"])


def _list(command: str) -> str:
    """The learners of a command, as wide as a terminal of 80 characters shows them: by `dmkl fit` with their titles."""
    titles = {name: learner.title for name, learner in learners().items()}
    if command != "fit":  # other commands compare with labels, and have more options
        named = ", ".join(name for name, learner in learners().items() if learner.needs_labels)
        text = textwrap.fill(f"{named}; described by dmkl fit --help", 72, break_on_hyphens=False)
        return textwrap.indent(text, "    ")
    width = max(len(name) for name in titles if len(name) <= _LONG) + 2
    lines = []
    for name, title in titles.items():
        shown = re.split(r"[:,] ", title)[0] if len(title) > 72 - width else title
        first = " " * max(width, len(name) + 2)
        text = textwrap.fill(shown, 72, initial_indent=first, subsequent_indent=" " * width)
        lines.append(f"{name}{text[len(name) :]}")
    return textwrap.indent("\n".join(lines), "    ")
