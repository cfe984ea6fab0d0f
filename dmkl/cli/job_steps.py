"""The tables of a job file as command lines: what a key means is what the option of its command means."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import typer

from dmkl.cli.commands import LEARNING, command, with_options
from dmkl.cli.learners import DEFAULT, learners
from dmkl.cli.parameters import Names, parameters_of
from dmkl.cli.parsing import parse_cv, parse_grid, parse_names, parse_scoring
from dmkl.errors import DmklError, InputError
from dmkl.jobs.job_file import JobFile

__all__ = ["SECTIONS", "Step", "steps_of"]

SECTIONS = (
    "data",
    "model",
    "grid",
    "folds",
    "importance",
    "stability",
    "permute",
    "predict",
    "cluster",
    "outputs",
    "recorded",
)
"""The tables of a job file, in the order in which they are written."""

Place = tuple[str, str]
"""A table and a key in it."""


@dataclass(frozen=True)
class _Form:
    """A command that a job may ask for.

    Parameters
    ----------
    asked
        The key that asks for it.
    places
        Where the value of a parameter stands, the first of them that is given.
    section
        The table of its other options.
    """

    command: str
    asked: Place
    places: Mapping[str, tuple[Place, ...]]
    section: str

    @property
    def learns(self) -> bool:
        """Whether it has the options of a learner."""
        return self.command in LEARNING

    @property
    def asks(self) -> bool:
        """Whether it asks a question about a learner, in a table of its own: what that leaves open [folds] says."""
        return self.learns and self.section == self.command


_STORE, _SEARCH, _MODEL = ("data", "store"), ("outputs", "search"), ("outputs", "model")
_EVALUATION, _PREDICTIONS = ("outputs", "evaluation"), ("outputs", "predictions")
_FORMS = (
    _Form("import", ("data", "inputs"), {"out": (_STORE,)}, "data"),
    _Form("build", ("data", "features"), {"out": (_STORE,)}, "data"),
    _Form("evaluate", _EVALUATION, {"store": (_STORE,), "out": (_EVALUATION,)}, "folds"),
    _Form(
        "search",
        _SEARCH,
        {"store": (_STORE,), "out": (_SEARCH,), "plot": (("outputs", "pictures"),)},
        "folds",
    ),
    _Form("fit", _MODEL, {"store": (_STORE,), "model_out": (_MODEL,)}, "folds"),
    *(
        _Form(name, ("outputs", name), {"store": (_STORE,), "out": (("outputs", name),)}, name)
        for name in ("importance", "stability", "permute")
    ),
    _Form("predict", _PREDICTIONS, {"model": (_SEARCH, _MODEL), "out": (_PREDICTIONS,)}, "predict"),
)
"""In the order in which they run."""

_GRID = ("p", "lam", "C", "grid")
_FOLDS = (
    "cv",
    "groups",
    "scoring",
    "rule",
    "choice",
    "split",
    "train",
    "every",
    "unknown",
    "drop_classes_below",
)
"""Options that say which samples, folds and measures are meant, alike in all commands."""
_APART = ("overwrite", "as_json", "restart", "cluster", "workers", "memory")
"""Options that a job file says for all commands, or leaves to who runs it."""
_PARSED: dict[str, Callable[[Any], Any]] = {"cv": parse_cv, "outer": parse_cv, "inner": parse_cv}
_PARSED |= {"scoring": parse_scoring}

_USAGE: Any = typer.BadParameter.__mro__[1]  # what is wrong with a command line, in whichever click Typer has


@dataclass(frozen=True)
class Step:
    """A command of a job, with its command line."""

    name: str
    out: str
    """Where its result goes: a path, or the URL of a kernel set."""
    arguments: tuple[str, ...]
    values: Mapping[str, Any]
    """Of all its parameters, defaults too."""
    places: Mapping[str, Place]
    """Where each parameter that a job file may give stands."""

    def run(self, *more: str) -> None:
        """Do it, with further options."""
        made = _made(self.name, self.arguments)
        made.invoke(made.make_context(f"dmkl {self.name}", [*more, *self.arguments]))


def _made(name: str, arguments: tuple[str, ...]) -> Any:
    """The command of Typer."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(with_options(name, arguments))
    return typer.main.get_command(app)


def steps_of(job: JobFile) -> list[Step]:
    """The commands that a job asks for, in their order, checked as far as that needs no work.

    Raises
    ------
    InputError
        With file, line and key: if a table or a key is not known, a value is none that its option takes, a file is
        missing, or nothing is asked for.
    """
    forms = [form for form in _FORMS if form.asked[1] in job.sections.get(form.asked[0], {})]
    if not forms:
        asked = ", ".join(".".join(form.asked) for form in _FORMS)
        msg = f"{job.path.name} asks for nothing: it takes one of {asked}"
        raise InputError(msg)
    readings = [_Reading(job, form) for form in forms]
    known: dict[str, dict[str, None]] = {"outputs": {form.asked[1]: None for form in _FORMS if "outputs" in form.asked}}
    for reading in readings:
        for section, key in reading.keys():
            known.setdefault(section, {})[key] = None
    for section in [name for name in SECTIONS if name not in ("cluster", "recorded")]:
        for key in job.sections.get(section, {}):
            if not known.get(section):
                asked = ", ".join(form.command for form in forms)
                msg = f"nothing that this job asks for takes [{section}]; it asks for {asked}"
                raise job.problem(msg, section)
            if key not in known[section]:
                raise job.unknown(section, key, known[section])
    return [reading.step(made_before=forms[0].section == "data") for reading in readings]


class _Reading:
    """One command of a job file being read."""

    def __init__(self, job: JobFile, form: _Form) -> None:
        self.job, self.form = job, form
        self.learner = str(job.sections.get("model", {}).get("name", DEFAULT))
        if form.learns and self.learner not in learners():
            msg = f"must be one of {', '.join(learners())}, got {self.learner!r}"
            raise job.problem(msg, "model", "name")
        self.own = inspect.signature(command(form.command), eval_str=True).parameters
        self.command = _made(form.command, ("--model", self.learner) if form.learns else ())
        self.places = {item.name: self._places(item) for item in self.command.params}

    def keys(self) -> Iterator[Place]:
        """What the job file may say to this command."""
        for places in self.places.values():
            yield from places
        if "grid" in self.places:
            yield from (("grid", key) for key in parameters_of(learners()[self.learner]))

    def _places(self, item: Any) -> tuple[Place, ...]:
        """Where the value of a parameter may stand, the first place before the others."""
        key = max(item.opts, key=len).lstrip("-").replace("-", "_")
        if item.name in self.form.places:
            return self.form.places[item.name]
        if item.name in _APART or item.name in ("help", "grid"):
            return ()
        if self.form.command == "fit" and key == "scoring" and self._is_scored_elsewhere():
            return ()
        if self.form.command == "evaluate" and key == "baselines":  # a search's own, which may be others
            return ()
        if self.form.learns and item.name == "model":
            return (("model", "name"),)
        if self.form.learns and item.name not in self.own:
            return (("model", key),) if item.name in parameters_of(learners()[self.learner]) else ()
        if self.form.learns and item.name in _GRID:
            has = item.name in parameters_of(learners()[self.learner])
            return (("grid", key), ("model", key)) if has else ()
        if self.form.learns and item.name == "kernels":
            return (("model", key),)
        if self.form.asks and item.name in _FOLDS:
            return ((self.form.section, key), ("folds", key))
        if self.form.command == "predict" and key == "store":
            features = "features" in self.job.sections.get("predict", {})
            return (("predict", "store"),) if features else (("predict", "store"), _STORE)
        return ((self.form.section, key),)

    def step(self, *, made_before: bool) -> Step:
        """The command line, parsed and checked; `made_before`: whether the job makes its kernel set."""
        options, named, at = list[str](), dict[str, list[str]](), dict[str, Place]()
        for item in self.command.params:
            place = next((place for place in self.places.get(item.name, ()) if self._given(place)), None)
            if place is None:
                continue
            at[item.name] = place
            texts = self._texts(item, place)
            if item.param_type_name == "argument":
                named[item.name] = texts
            else:
                options += texts
        options += list(self._grid())
        words = [text for item in self.command.params for text in named.get(item.name, ())]
        arguments = (*options, "--", *words)
        values = self._parsed(arguments, at)
        self._check(values, at, made_before=made_before)
        out = next(values[name] for name in ("model_out", "out") if name in values)
        places = {name: places[0] for name, places in self.places.items() if places}
        return Step(self.form.command, str(out), arguments, values, {**places, **at})

    def _is_scored_elsewhere(self) -> bool:
        """Whether the measures are those of a search; a model that is trained on all samples has none of its own."""
        return any(self._given(place) for place in (_SEARCH, _EVALUATION))

    def _given(self, place: Place) -> bool:
        return place[1] in self.job.sections.get(place[0], {})

    def _texts(self, item: Any, place: Place) -> list[str]:
        value = self.job.sections[place[0]][place[1]]
        if getattr(item, "is_flag", False):
            if not isinstance(value, bool):
                msg = f"must be true or false, got {value!r}"
                raise self.job.problem(msg, *place)
            return [item.opts[0]] if value else item.secondary_opts[:1]
        if isinstance(value, bool):
            msg = f"takes a value, got {str(value).lower()}"
            raise self.job.problem(msg, *place)
        each = value if isinstance(value, list) else [value]
        if place[0] == "outputs" or self._is_path(item):
            each = [self._located(str(text), place, item.name) for text in each]
        elif any(word in (getattr(item, "metavar", "") or "") for word in ("FILE", "STORE")):
            beside = self.job.path.parent
            each = [str(beside / text) if isinstance(text, str) and (beside / text).exists() else text for text in each]
        texts = [_text(one) for one in each]
        if item.param_type_name == "argument":
            return texts
        texts = texts if getattr(item, "multiple", False) else [",".join(texts)]
        return [f"{max(item.opts, key=len)}={text}" for text in texts]

    def _is_path(self, item: Any) -> bool:
        own = self.own.get(item.name)
        return (
            item.name in ("store", "out", "model_out")  # which may be URLs, and so are texts
            or (own is not None and "Path" in str(get_args(own.annotation)[:1]))
        )

    def _located(self, text: str, place: Place, name: str) -> str:
        """A path as the command sees it; of what is read it is said now if it is missing."""
        if "://" in text:
            return text
        path = self.job.path.parent / Path(text).expanduser()
        written = place[0] == "outputs" or place == _STORE or name in ("state", "plot")
        if not written and not path.exists():
            msg = f"{path} is not there; paths are relative to the folder of the job file"
            raise self.job.problem(msg, *place)
        return str(path)

    def _grid(self) -> Iterator[str]:
        """Values of other parameters than those that have options of their own."""
        if "grid" not in self.places:
            return
        apart = {place[1] for places in self.places.values() for place in places if place[0] == "grid"}
        for key, value in self.job.sections.get("grid", {}).items():
            if key not in apart:
                each = value if isinstance(value, list) else [value]
                yield f"--grid={key}={','.join(map(_text, each))}"

    def _parsed(self, arguments: tuple[str, ...], at: Mapping[str, Place]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.command.make_context(f"dmkl {self.form.command}", list(arguments)).params
        except _USAGE as error:
            name = str(getattr(getattr(error, "param", None), "name", None))
            place = at.get(name) or next(iter(self.places.get(name, ())), self.form.asked)
            told = " ".join(str(error.message).split()) if name in at else f"dmkl {self.form.command} needs it"
            raise self.job.problem(told, *place) from error
        return found

    def _check(self, values: Mapping[str, Any], at: Mapping[str, Place], *, made_before: bool) -> None:
        """What the command itself would refuse only when it runs."""
        import dmkl

        names: list[str] | None = None
        if "store" in at and not (made_before and at["store"] == _STORE):
            reading = "store"
            try:
                K = dmkl.open(values["store"])
                if "kernels" in at:
                    reading = "kernels"
                    K = K.select(parse_names(values["kernels"]) or [])
            except DmklError as error:
                raise self.job.problem(str(error), *at[reading]) from error
            names = list(K.names)
        own = parameters_of(learners()[self.learner]) if self.form.learns else {}
        for name, place in at.items():
            try:
                if name in _PARSED:
                    _PARSED[name](values[name])
                elif name in _GRID and "grid" in values:
                    parse_grid([f"{name}={values[name]}"])
                elif name in own and name not in self.own and (names or name not in ("sigma", "A")):
                    own[name].read(values[name], Names(names or ()))
            except InputError as error:
                raise self.job.problem(str(error), *place) from error
        for line in values.get("grid", ()):
            key = line.partition("=")[0]
            try:
                parse_grid([line])
            except InputError as error:
                raise self.job.problem(str(error), "grid", key) from error


def _text(value: Any) -> str:
    """A value as it stands on a command line; the steps of a grid with + between them."""
    if isinstance(value, list):
        return "+".join(map(_text, value))
    return repr(value) if isinstance(value, float) else str(value)
