"""What kernels to make from which features: specifications are checked and planned into single kernels.

A specification is a mapping. `function` says what is computed (see `FUNCTIONS`), `feature` of which feature tables, all
other keys are the function's parameters:

>>> specs = [{"function": "rbf", "feature": "pixels", "bandwidth": [0.5, 1, 2]}, {"function": "random", "copies": 2}]

`function` and `feature` may be lists, a feature may be a pattern (``dsift*``), and a parameter with a list of values is
a grid. `plan` turns each combination into one kernel with a name of its own.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import reprlib
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dmkl.errors import InputError

__all__ = ["FUNCTIONS", "BlockInfo", "Planned", "plan", "read_specs"]

FUNCTIONS: dict[str, str] = {
    "linear": "x·y",
    "polynomial": "(gamma x·y + coef0)^degree; degree=3, gamma=1/columns, coef0=1",
    "cosine": "x·y / (‖x‖‖y‖), 0 where a norm is 0",
    "rbf": "exp(−gamma ‖x − y‖²); gamma or bandwidth=1",
    "laplacian": "exp(−gamma ‖x − y‖₁); gamma or bandwidth=1",
    "chi2": "exp(−gamma Σ (x − y)² / (x + y)) for x, y ≥ 0; gamma or bandwidth=1",
    "distance": "exp(−gamma D(x, y)) of a square matrix D of distances; gamma or bandwidth=1",
    "intersection": "Σ min(x, y) for x, y ≥ 0",
    "pyramid": "Σ_l w_l Σ min(x, y) over the columns of level l, coarse to fine, for x, y ≥ 0; levels, "
    "weights=(2^−L, then 2^(l−L−1)) (Lazebnik, Schmid, Ponce 2006)",
    "proximity": "Σ_s w_s Σ min(x, y) over the columns of scale s, for x, y ≥ 0; scales, weights=1 (Ling, Soatto 2007)",
    "random_rbf": "rbf of Gaussian random vectors, no feature; seed=0, copies=1, dimensions=16, gamma or bandwidth=1",
    "random": "uniform noise on [0, 2 mean], symmetric, indefinite, no feature; seed=0, copies=1, mean=0.5",
}
"""Every function: k(x, y) of two rows of a feature table, and its parameters with their defaults.

bandwidth b stands for gamma = 1/(b · mean distance over pairs of training rows), the distance being what gamma
multiplies.
"""


class BlockInfo(Protocol):
    """What planning needs to know of a feature table."""

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, columns)."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns; None where they have none."""


@dataclass(frozen=True)
class Planned:
    """One kernel that is to be made."""

    name: str
    """Unique among all that are planned together."""
    function: str
    """A key of `FUNCTIONS`."""
    feature: str | None
    """The feature table; None for random kernels, which need none."""
    columns: tuple[int, ...] | None
    """Positions of the columns that the function sees, in their order; None for all."""
    parameters: dict[str, Any]
    """The function's parameters, defaults filled in, each an int, a float or a tuple of these."""


# --- reading ---------------------------------------------------------------------------------------------------------


def read_specs(specs: Any) -> list[dict[str, Any]]:
    """Take in specifications however they are given; what they say is checked by `plan`.

    Parameters
    ----------
    specs
        A list of mappings, one mapping, or the path of a .toml file that has one table ``[[kernel]]`` for each. Paths
        in such a file are relative to it.

    Returns
    -------
    list of dict
        One for each specification, in their order.

    Raises
    ------
    InputError
        If there are none, one is no mapping, or the file cannot be read.
    """
    if isinstance(specs, str | os.PathLike):
        return _read_toml(Path(specs))
    listed = [specs] if isinstance(specs, Mapping) else specs
    if not isinstance(listed, Sequence) or not listed:
        msg = (
            "kernels are specified by a mapping such as {'function': 'rbf', 'feature': '*'}, a list of at least one, "
            f"or the path of a .toml file, got {_shown(specs)}"
        )
        raise InputError(msg)
    for number, spec in enumerate(listed, 1):
        if not isinstance(spec, Mapping):
            msg = (
                f"spec {number} of {len(listed)} must be a mapping such as {{'function': 'rbf', 'feature': '*'}}, "
                f"got {_shown(spec)}"
            )
            raise InputError(msg)
    return [dict(spec) for spec in listed]


def _read_toml(path: Path) -> list[dict[str, Any]]:
    if path.suffix.lower() != ".toml":
        msg = f"a file of kernel specifications ends in .toml, got {path}"
        raise InputError(msg)
    content = _load(path, "specifications")
    tables = content.pop("kernel", None)
    if not isinstance(tables, list) or not tables or content:
        found = _some([*content, *([] if tables is None else [f"kernel = {_shown(tables)}"])]) or "an empty file"
        msg = f"{path} must hold one table [[kernel]] for each specification and nothing else, got {found}"
        raise InputError(msg)
    specs = read_specs(tables)
    for spec in specs:
        if isinstance(spec.get("columns"), str):
            spec["columns"] = str(path.parent / spec["columns"])
    return specs


def _load(path: Path, what: str) -> Any:
    """The content of a .toml, .json or .gmt file."""
    parsers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": json.loads, ".gmt": _parse_gmt}
    try:
        return parsers[path.suffix.lower()](path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        msg = f"the file of {what} {path} cannot be read: {error.strerror}"
        raise InputError(msg) from error
    except ValueError as error:  # tomllib's, json's, Unicode's and our own
        msg = f"the file of {what} {path} is not valid {path.suffix[1:].upper()}: {error}"
        raise InputError(msg) from error


def _parse_gmt(text: str) -> dict[str, list[str]]:
    """Gene sets in the format of MSigDB: name, description and members of one set a line, separated by tabs."""
    sets: dict[str, list[str]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        name, *rest = (field.strip() for field in line.split("\t"))
        if len(rest) < 2 or not name or name in sets:
            found = f"the second set named {name!r}" if name in sets else _shown(line)
            msg = f"line {number} must be name, description and members of a new set, separated by tabs, got {found}"
            raise ValueError(msg)
        sets[name] = [member for member in rest[1:] if member]
    return sets


def _read_columns(value: Any) -> Any:
    """Replace the path of a file by the mapping that it holds."""
    if not isinstance(value, str | os.PathLike):
        return value
    path = Path(value)
    if path.suffix.lower() not in (".json", ".toml", ".gmt"):
        msg = (
            "columns must be a list, a mapping, or the path of a .json, .toml or .gmt file, "
            f"got {_shown(str(value))}; a single column stands in a list too"
        )
        raise ValueError(msg)
    content = _load(path, "column sets")
    if not isinstance(content, dict):
        msg = f"the file of column sets {path} must map names to lists of columns, got {_shown(content)}"
        raise InputError(msg)
    return _plain(content)


# --- the models, one for each set of parameters ----------------------------------------------------------------------


def _listed(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def _not_all_zero(weights: tuple[float, ...]) -> tuple[float, ...]:
    if any(weights):
        return weights
    msg = f"weights must hold at least one number > 0, got {list(weights)}"
    raise ValueError(msg)


_Count = Annotated[int, Field(ge=1)]
_Column = Annotated[int, Field(ge=0)] | str
_Sets = dict[Annotated[str, Field(min_length=1)], tuple[_Column, ...]]
_Grid = (BeforeValidator(_listed), Field(min_length=1))
_Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], *_Grid]
_Counts = Annotated[tuple[_Count, ...], *_Grid]
_Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], *_Grid]
_Positive = Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], *_Grid]
_NonNegative = Annotated[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], *_Grid]
_Levels = Annotated[int, Field(ge=1, le=20)] | Annotated[tuple[_Count, ...], Field(min_length=1)]
_Scales = _Count | Annotated[tuple[_Count, ...], Field(min_length=1)]
_Weights = Annotated[
    tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], Field(min_length=1), AfterValidator(_not_all_zero)
]


class _Spec(BaseModel):
    """The keys of all functions; each field's description completes "KEY must be …"."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(min_length=1)] = Field(default="", description="a name or a template of names")

    def features(self, blocks: Mapping[str, BlockInfo], where: str) -> Sequence[str | None]:
        """Names of the feature tables that are meant; ``[None]`` for kernels without one."""
        return [None]

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        """Parameters that follow from others or from the number of columns."""
        return {}


class _OnFeatures(_Spec):
    feature: _Names = Field(
        default=(), description="the name of a feature, a pattern such as 'dsift*', or a list of them"
    )

    def features(self, blocks: Mapping[str, BlockInfo], where: str) -> Sequence[str | None]:
        found: dict[str, None] = {}
        for asked in self.feature or ("*",):
            matching = [asked] if asked in blocks else [name for name in blocks if fnmatchcase(name, asked)]
            if not matching:
                msg = (
                    f"{where}: no feature is named {asked!r}{_did_you_mean(asked, blocks)}; "
                    f"the features are: {_some(blocks) or 'none'}"
                )
                raise InputError(msg)
            found.update(dict.fromkeys(matching))
        return list(found)


class _OnColumns(_OnFeatures):
    columns: Annotated[
        Annotated[tuple[_Column, ...], Field(min_length=1)] | Annotated[_Sets, Field(min_length=1)],
        BeforeValidator(_read_columns),
    ] = Field(
        default=(),
        description="a list of column names or positions ≥ 0, a mapping from names to such lists, or the path of a "
        ".json, .toml or .gmt file that holds such a mapping",
    )
    min_columns: _Count = Field(default=1, description="an integer ≥ 1")


class _Polynomial(_OnColumns):
    degree: _Counts = Field(default=(3,), description="an integer ≥ 1 or a list of them")
    gamma: _Positive = Field(default=(), description="a number > 0 or a list of them")
    coef0: _NonNegative = Field(
        default=(1.0,),
        description="a number ≥ 0 or a list of them (a negative one makes kernels that are not positive semidefinite)",
    )

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        return {} if self.gamma else {"gamma": 1 / n_columns}


class _Exponential(_Spec):
    gamma: _Positive = Field(default=(), description="a number > 0 or a list of them")
    bandwidth: _Positive = Field(default=(), description="a number > 0 or a list of them")

    @model_validator(mode="after")
    def _one_scale(self) -> _Exponential:
        if self.gamma and self.bandwidth:
            msg = (
                f"gamma and bandwidth exclude each other, got gamma={_shown(self.gamma)} and "
                f"bandwidth={_shown(self.bandwidth)}; bandwidth b means gamma = 1/(b · mean distance): leave out one"
            )
            raise ValueError(msg)
        return self

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        return {} if self.gamma or self.bandwidth else {"bandwidth": 1.0}


class _ExponentialOnColumns(_Exponential, _OnColumns):
    pass


class _Distance(_Exponential, _OnFeatures):
    def features(self, blocks: Mapping[str, BlockInfo], where: str) -> Sequence[str | None]:
        square = {name: block for name, block in blocks.items() if block.shape[0] == block.shape[1]}
        if not self.feature and not square:
            shapes = _some(f"{name} {block.shape}" for name, block in blocks.items())
            msg = f"{where}: distance needs a square matrix of distances (samples × samples), got {shapes or 'none'}"
            raise InputError(msg)
        found = super().features(blocks if self.feature else square, where)
        for name in found:
            if name not in square:
                msg = (
                    f"{where}: distance needs a square matrix of distances (samples × samples), but feature {name!r} "
                    f"has the shape {blocks[str(name)].shape}; for a table of columns take rbf, laplacian or chi2"
                )
                raise InputError(msg)
        return found


class _Pyramid(_OnColumns):
    levels: _Levels = Field(
        description="a number of levels from 1 to 20, or the list of the levels' numbers of columns, coarse to fine"
    )
    weights: _Weights = Field(default=(), description="a list of numbers ≥ 0, one for each level")

    @model_validator(mode="after")
    def _lengths(self) -> _Pyramid:
        _check_lengths("levels", self.levels, self.weights)
        return self

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        count = self.levels if isinstance(self.levels, int) else len(self.levels)
        widths = _widths("levels", self.levels, 4, n_columns, where)
        weights = self.weights or tuple(2.0 ** (max(level, 1) - count) for level in range(count))
        return {"widths": widths, "weights": weights}


class _Proximity(_OnColumns):
    scales: _Scales = Field(description="a number of scales ≥ 1, or the list of the scales' numbers of columns")
    weights: _Weights = Field(default=(), description="a list of numbers ≥ 0, one for each scale")

    @model_validator(mode="after")
    def _lengths(self) -> _Proximity:
        _check_lengths("scales", self.scales, self.weights)
        return self

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        count = self.scales if isinstance(self.scales, int) else len(self.scales)
        widths = _widths("scales", self.scales, 1, n_columns, where)
        return {"widths": widths, "weights": self.weights or (1.0,) * count}


class _Random(_Spec):
    seed: _Seeds = Field(default=(0,), description="an integer ≥ 0 or a list of them")
    copies: _Count = Field(default=1, description="an integer ≥ 1")

    @model_validator(mode="after")
    def _one_seed(self) -> _Random:
        if self.copies > 1 and len(self.seed) > 1:
            msg = (
                f"copies={self.copies} counts up from one seed, got seed={_shown(self.seed)}; "
                "give one seed, or a list of seeds without copies"
            )
            raise ValueError(msg)
        return self


class _Noise(_Random):
    mean: _Positive = Field(default=(0.5,), description="a number > 0 or a list of them")


class _RandomRBF(_Exponential, _Random):
    dimensions: _Counts = Field(default=(16,), description="an integer ≥ 1 or a list of them")


_MODELS: dict[str, type[_Spec]] = {
    "linear": _OnColumns,
    "polynomial": _Polynomial,
    "cosine": _OnColumns,
    "rbf": _ExponentialOnColumns,
    "laplacian": _ExponentialOnColumns,
    "chi2": _ExponentialOnColumns,
    "distance": _Distance,
    "intersection": _OnColumns,
    "pyramid": _Pyramid,
    "proximity": _Proximity,
    "random_rbf": _RandomRBF,
    "random": _Noise,
}
# A list of these is no grid: `derived` and `plan` know what they mean.
_NO_GRID = {"name", "feature", "columns", "min_columns", "levels", "scales", "weights", "copies"}


# --- checking --------------------------------------------------------------------------------------------------------


class _Checked(NamedTuple):
    """One function of one specification."""

    where: str
    function: str
    model: _Spec
    axes: dict[str, tuple[Any, ...]]
    """The values of each parameter that can have several; those written come first, in their order."""


def _checked(specs: Sequence[Mapping[str, Any]]) -> list[_Checked]:
    checked: list[_Checked] = []
    problems: list[str] = []
    for number, raw in enumerate(specs, 1):
        # None is what a key that was left out would be.
        spec = {key: _plain(value) for key, value in raw.items() if value is not None}
        where = f"spec {number} of {len(specs)} ({_label(spec)})"
        functions = _listed(spec.pop("function", ()))
        unknown = [name for name in functions if not isinstance(name, str) or name not in _MODELS]
        problems += [
            f"{where}: there is no function {_shown(name)}{_did_you_mean(name, _MODELS)}; "
            f"the functions are {', '.join(_MODELS)}"
            for name in unknown
        ]
        if not functions:
            problems.append(f"{where}: function is missing; it is one of {', '.join(_MODELS)}, or a list of these")
        for function in functions:
            if function in unknown:
                continue
            try:
                model = _MODELS[function].model_validate(spec)
            except ValidationError as error:
                problems += [f"{where}: {text}" for text in _reworded(error, function, several=len(functions) > 1)]
            else:
                checked.append(_Checked(where, function, model, _axes(model, spec)))
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    return checked


def _axes(model: _Spec, written: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    keys = [key for key in dict.fromkeys([*written, *type(model).model_fields]) if key not in _NO_GRID]
    axes = {key: values for key in keys if (values := getattr(model, key, ()))}
    if isinstance(model, _Random) and model.copies > 1:
        axes["seed"] = tuple(range(model.seed[0], model.seed[0] + model.copies))
    return axes


def _reworded(error: ValidationError, function: str, *, several: bool) -> Iterator[str]:
    """One sentence for each key that breaks a rule, from the most specific of pydantic's errors about it."""
    fields = _MODELS[function].model_fields
    worst: dict[Any, Any] = {}
    for problem in error.errors(include_url=False):
        key = problem["loc"][0] if problem["loc"] else None
        if key not in worst or len(problem["loc"]) > len(worst[key]["loc"]):
            worst[key] = problem
    for key, problem in worst.items():
        if problem["type"] == "value_error":  # our own validators say it all
            yield str(problem["ctx"]["error"])
        elif key not in fields:
            way_out = f"; give {function} a spec of its own" if several else ""
            yield (
                f"{function} takes no {_shown(key)}{_did_you_mean(key, fields)}; "
                f"its keys are function, {', '.join(fields)}{way_out}"
            )
        elif problem["type"] == "missing":
            yield f"{function} needs {key}: {fields[key].description}"
        else:
            yield f"{key} must be {fields[key].description}, got {_shown(problem['input'])}"


def _plain(value: Any) -> Any:
    """Python's own numbers, and tuples for lists, ranges and arrays."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, list | tuple | range) else value


def _label(spec: Mapping[str, Any]) -> str:
    return _some(_listed(spec.get("name") or spec.get("function") or "no function"))


def _shown(value: Any) -> str:
    return reprlib.repr(list(value) if isinstance(value, tuple) else value)


def _some(names: Iterable[Any], count: int = 5) -> str:
    """The first few names, and how many there are."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:count]) + (f", … ({len(listed)} in all)" if len(listed) > count else "")


def _did_you_mean(word: Any, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(known))
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def _check_lengths(key: str, parts: int | tuple[int, ...], weights: tuple[float, ...]) -> None:
    count = parts if isinstance(parts, int) else len(parts)
    if weights and len(weights) != count:
        msg = f"weights must hold one number for each of the {count} {key}, got {len(weights)}: {_shown(weights)}"
        raise ValueError(msg)


def _widths(key: str, parts: int | tuple[int, ...], growth: int, n_columns: int, where: str) -> tuple[int, ...]:
    """Numbers of columns of the parts: as listed, or each `growth` times as many as the part before."""
    if isinstance(parts, int):
        total = parts if growth == 1 else (growth**parts - 1) // (growth - 1)
        share, rest = divmod(n_columns, total)
        if share and not rest:
            return tuple(share * growth**part for part in range(parts))
        msg = (
            f"{where}: {key}={parts} needs a multiple of {total} columns, got {n_columns}; "
            f"list the number of columns of each part, {key}=[…], or give another number"
        )
        raise InputError(msg)
    if sum(parts) != n_columns:
        msg = f"{where}: {key}={_shown(parts)} must add up to the {n_columns} columns, got {sum(parts)}"
        raise InputError(msg)
    return parts


# --- planning --------------------------------------------------------------------------------------------------------


def plan(specs: Any, blocks: Mapping[str, BlockInfo]) -> tuple[list[Planned], list[str]]:
    """Turn specifications into the kernels that they mean.

    There is one kernel for each function, feature, set of columns and combination of listed parameters, in this order,
    the last running fastest; among parameters the order is that in which they are written.

    Parameters
    ----------
    specs
        What `read_specs` takes or gives. The keys of each:

        function
            A key of `FUNCTIONS`, or a list of them.
        feature
            The name of a feature, a pattern (``*``, ``dsift*``), or a list of these; every feature where it is missing,
            for ``distance`` every square one.
        columns
            A list of column names or positions: the function sees these only. A mapping from names to such lists: one
            kernel for each. The path of a .json or .toml file with such a mapping, or of a .gmt file of gene sets.
            A string is always a name, and means every column that bears it. Names that the feature lacks are refused
            in a list, and left out in a mapping.
        min_columns
            Sets of a mapping that have fewer columns than this in the feature are left out; 1 by default.
        copies
            So many random kernels, their seeds counting up from `seed`.
        name
            The kernel's name, in which ``{feature}``, ``{function}``, ``{columns}`` and ``{PARAMETER}`` are filled in.
            By default feature, function, the name of the set of columns and each parameter that has several values,
            joined by dashes: ``fou-rbf-bandwidth0.1``.

        All others are parameters. `levels`, `scales` and `weights` are one value even if they are lists; any other
        list is a grid.
    blocks
        The feature tables by name.

    Returns
    -------
    planned : list of Planned
        The kernels.
    notes : list of str
        What was left out, for the user to see.

    Raises
    ------
    InputError
        If a specification breaks a rule, means no kernel or an unknown feature or column, does not fit a table's number
        of columns, or two kernels would have the same name.
    """
    planned: list[Planned] = []
    notes: list[str] = []
    made: dict[str, tuple[str, dict[str, Any]]] = {}
    for where, function, model, axes in _checked(read_specs(specs)):
        before = len(planned)
        for feature in model.features(blocks, where):
            here = where if feature is None else f"{where}, feature {feature!r}"
            block = None if feature is None else blocks[feature]
            for subset, columns in _subsets(model, block, here, notes):
                n_columns = 0 if block is None else block.shape[1] if columns is None else len(columns)
                derived = model.derived(n_columns, here)
                maker = {"feature": feature, "function": function, "columns": subset}
                source = {key: value for key, value in maker.items() if value is not None}
                for values in itertools.product(*axes.values()):
                    parameters = dict(zip(axes, values, strict=True)) | derived
                    fields = source | parameters
                    name = _name(model.name or _template(source, axes), fields, where)
                    if name in made:
                        raise InputError(_same_name(name, made[name], (where, fields)))
                    made[name] = (where, fields)
                    planned.append(Planned(name, function, feature, columns, parameters))
        if len(planned) == before:
            assert isinstance(model, _OnColumns)  # only sets of columns can be left out
            msg = (
                f"{where}: every set of columns was left out, so there is no kernel to make: a set needs at least "
                f"{model.min_columns} (min_columns) of the feature's columns; "
                "compare the sets' members with the names of the columns"
            )
            raise InputError(msg)
    return planned, list(dict.fromkeys(notes))  # several functions of one spec leave out the same


def _subsets(
    model: _Spec, block: BlockInfo | None, where: str, notes: list[str]
) -> list[tuple[str | None, tuple[int, ...] | None]]:
    """The sets of columns to make kernels of: what to call each, and its positions."""
    if block is None or not isinstance(model, _OnColumns) or not model.columns:
        return [(None, None)]
    if not isinstance(model.columns, dict):
        bearers = _bearers(model.columns, block, where)
        lacking = [name for name, positions in bearers.items() if not positions]
        if lacking:
            msg = (
                f"{where}: {len(lacking)} of the {len(bearers)} columns are not there: {_some(lacking)}"
                f"{_did_you_mean(lacking[0], block.columns or ())}; the columns are {_some(block.columns or ())}"
            )
            raise InputError(msg)
        chosen = [position for member in model.columns for position in bearers[member]]
        twice = [position for position, count in Counter(chosen).items() if count > 1]
        if twice:
            msg = f"{where}: each column may be listed once, got the columns at {_some(twice)} several times"
            raise InputError(msg)
        label = "+".join(map(str, model.columns)) if len(model.columns) <= 3 else f"{len(chosen)}columns"
        return [(label, tuple(chosen))]

    bearers = _bearers(itertools.chain.from_iterable(model.columns.values()), block, where)
    # A set has each column once, in the order of its members.
    sets = {
        name: tuple(dict.fromkeys(itertools.chain.from_iterable(bearers[member] for member in members)))
        for name, members in model.columns.items()
    }
    lacking = [member for member, positions in bearers.items() if not positions]
    small = [name for name, positions in sets.items() if len(positions) < model.min_columns]
    if lacking:
        notes.append(
            f"{where}: ignored {len(lacking)} of the {len(bearers)} members of the column sets, which are no columns: "
            f"{_some(lacking)}"
        )
    if small:
        notes.append(
            f"{where}: left out {len(small)} of the {len(sets)} column sets, with fewer columns than "
            f"min_columns={model.min_columns}: {_some(small)}"
        )
    return [(name, positions) for name, positions in sets.items() if len(positions) >= model.min_columns]


def _bearers(members: Iterable[int | str], block: BlockInfo, where: str) -> dict[int | str, list[int]]:
    """The positions of the columns that each name or position means."""
    members = dict.fromkeys(members)
    outside = [member for member in members if isinstance(member, int) and member >= block.shape[1]]
    if outside:
        msg = (
            f"{where}: positions of columns go from 0 to {block.shape[1] - 1}, got {_some(outside)}; "
            "a column's name is written as a string"
        )
        raise InputError(msg)
    names = [member for member in members if isinstance(member, str)]
    if names and block.columns is None:
        msg = (
            f"{where}: columns are chosen by name ({_some(names)}), but the feature has no column names; "
            "give positions, or a table with names (a DataFrame, a CSV file)"
        )
        raise InputError(msg)
    named: dict[str, list[int]] = {}
    for position, name in enumerate(block.columns or ()):
        named.setdefault(name, []).append(position)
    return {member: [member] if isinstance(member, int) else named.get(member, []) for member in members}


class _Short(float):
    """A float that templates write without needless digits."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec or "g")


def _template(source: Mapping[str, str], axes: Mapping[str, Sequence[Any]]) -> str:
    # The seed is always told, so that names stay when copies are added.
    told = [key for key, values in axes.items() if len(values) > 1 or key == "seed"]
    return "-".join([*(f"{{{key}}}" for key in source), *(f"{key}{{{key}}}" for key in told)])


def _name(template: str, fields: Mapping[str, Any], where: str) -> str:
    short = {key: _Short(value) if isinstance(value, float) else value for key, value in fields.items()}
    try:
        return template.format_map(short)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        msg = (
            f"{where}: the name {template!r} cannot be filled in ({error!r}); it may hold "
            f"{', '.join(f'{{{key}}}' for key in fields)}, and a brace of its own is written twice"
        )
        raise InputError(msg) from error


def _same_name(name: str, first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]]) -> str:
    (where, fields), (where_too, fields_too) = first, second
    differ = [key for key in fields_too if fields_too[key] != fields.get(key)]
    if where == where_too and not differ:
        return f"{where} makes the kernel {name!r} twice; a list of values holds each once"
    if where == where_too:
        # In full: the default name writes six digits.
        told = " or ".join(f"{{{key}:.17g}}" if isinstance(fields[key], float) else f"{{{key}}}" for key in differ)
        return f"{where} makes two kernels named {name!r}; tell them apart by name=, a template that holds {told}"
    told = ", ".join(f"{{{key}}}" for key in fields_too)
    return (
        f"{where} and {where_too} both make a kernel named {name!r}; give one of them another name=, "
        f"a template that may hold {told}"
    )
