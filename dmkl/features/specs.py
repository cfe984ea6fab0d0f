"""What kernels to make from which features: specifications are checked and planned into single kernels.

A specification is a mapping. `function` says what is computed (see `FUNCTIONS`), `feature` of which feature tables, all
other keys are the function's parameters:

>>> specs = [{"function": "rbf", "feature": "pixels", "bandwidth": [0.5, 1, 2]}, {"function": "random", "copies": 2}]

`function` and `feature` may be lists, a feature may be a pattern (``dsift*``), and a parameter with a list of values is
a grid. `plan` turns each combination into one kernel with a name of its own.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from dmkl.errors import InputError
from dmkl.features.functions import FUNCTIONS
from dmkl.features.spec_files import did_you_mean, plain, read_specs, shown, some
from dmkl.features.spec_schema import MODELS, NO_GRID, OnColumns, Random, Spec, listed
from dmkl.inputs.features import FeatureMatrix
from dmkl.settings import check_memory

__all__ = ["FUNCTIONS", "Planned", "plan", "read_specs"]


_PLANNED_BYTES = 2048
"""What one kernel of a plan takes with its name and parameters."""


@dataclass(frozen=True)
class Planned:
    """One kernel of a plan."""

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


# --- checking ------------------------------------------------------------------------------------------------------


class _Checked(NamedTuple):
    """One function of one specification."""

    where: str
    function: str
    model: Spec
    axes: dict[str, tuple[Any, ...]]
    """The values of each parameter that can have several; those written come first, in their order."""


def _checked(specs: Sequence[Mapping[str, Any]]) -> list[_Checked]:
    checked: list[_Checked] = []
    problems: list[str] = []
    for number, raw in enumerate(specs, 1):
        # None is what a key that was left out would be.
        spec = {key: plain(value) for key, value in raw.items() if value is not None}
        where = f"spec {number} of {len(specs)} ({_label(spec)})"
        functions = listed(spec.pop("function", ()))
        unknown = [name for name in functions if not isinstance(name, str) or name not in MODELS]
        problems += [
            f"{where}: there is no function {shown(name)}{did_you_mean(name, MODELS)}; "
            f"the functions are {', '.join(MODELS)}"
            for name in unknown
        ]
        if not functions:
            problems.append(f"{where}: function is missing; it is one of {', '.join(MODELS)}, or a list of these")
        for function in functions:
            if function in unknown:
                continue
            try:
                model = MODELS[function].model_validate(spec)
            except ValidationError as error:
                problems += [f"{where}: {text}" for text in _reworded(error, function, several=len(functions) > 1)]
            else:
                checked.append(_Checked(where, function, model, _axes(model, spec)))
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    return checked


def _axes(model: Spec, written: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    keys = [key for key in dict.fromkeys([*written, *type(model).model_fields]) if key not in NO_GRID]
    axes = {key: values for key in keys if (values := getattr(model, key, ()))}
    if isinstance(model, Random) and model.copies > 1:
        axes["seed"] = tuple(range(model.seed[0], model.seed[0] + model.copies))
    return axes


def _reworded(error: ValidationError, function: str, *, several: bool) -> Iterator[str]:
    """One sentence for each key that breaks a rule, from the most specific of pydantic's errors about it."""
    fields = MODELS[function].model_fields
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
                f"{function} takes no {shown(key)}{did_you_mean(key, fields)}; "
                f"its keys are function, {', '.join(fields)}{way_out}"
            )
        elif problem["type"] == "missing":
            yield f"{function} needs {key}: {fields[key].description}"
        else:
            yield f"{key} must be {fields[key].description}, got {shown(problem['input'])}"


def _label(spec: Mapping[str, Any]) -> str:
    text = some(listed(spec.get("name") or spec.get("function") or "no function"))
    return text if text.isprintable() else shown(text)


# --- planning ------------------------------------------------------------------------------------------------------


def plan(specs: Any, tables: Mapping[str, FeatureMatrix]) -> tuple[list[Planned], list[str]]:
    """Expand specifications into single kernels, and check them against the features.

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
    tables
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
        for feature in model.features(tables, where):
            here = where if feature is None else f"{where}, feature {feature!r}"
            table = None if feature is None else tables[feature]
            for subset, columns in _subsets(model, table, here, notes):
                n_columns = 0 if table is None else table.shape[1] if columns is None else len(columns)
                derived = model.derived(n_columns, here)
                maker = {"feature": feature, "function": function, "columns": subset}
                source = {key: value for key, value in maker.items() if value is not None}
                _check_number(here, len(planned) + math.prod(map(len, axes.values())))
                for values in itertools.product(*axes.values()):
                    parameters = dict(zip(axes, values, strict=True)) | derived
                    fields = source | parameters
                    name = _name(model.name or _template(source, axes), fields, where)
                    if name in made:
                        raise InputError(_same_name(name, made[name], (where, fields)))
                    made[name] = (where, fields)
                    planned.append(Planned(name, function, feature, columns, parameters))
        if len(planned) == before:
            assert isinstance(model, OnColumns)  # only sets of columns can be left out
            msg = (
                f"{where}: every set of columns was left out, so there is no kernel to make: a set needs at least "
                f"{model.min_columns} (min_columns) of the feature's columns; "
                "compare the sets' members with the names of the columns"
            )
            raise InputError(msg)
    return planned, list(dict.fromkeys(notes))  # several functions of one spec leave out the same


def _check_number(where: str, n_kernels: int) -> None:
    """Refuse more kernels than can be listed, before they are."""
    check_memory(
        f"{where}: the list of {n_kernels:,} kernels", n_kernels * _PLANNED_BYTES, "ask for fewer, or allow more"
    )


def _subsets(
    model: Spec, table: FeatureMatrix | None, where: str, notes: list[str]
) -> list[tuple[str | None, tuple[int, ...] | None]]:
    """Sets of columns to make kernels of: the name of each and its positions."""
    if table is None or not isinstance(model, OnColumns) or not model.columns:
        return [(None, None)]
    if not isinstance(model.columns, dict):
        bearers = _bearers(model.columns, table, where)
        lacking = [name for name, positions in bearers.items() if not positions]
        if lacking:
            msg = (
                f"{where}: {len(lacking)} of the {len(bearers)} columns are not there: {some(lacking)}"
                f"{did_you_mean(lacking[0], table.columns or ())}; the columns are {some(table.columns or ())}"
            )
            raise InputError(msg)
        chosen = [position for member in model.columns for position in bearers[member]]
        twice = [position for position, count in Counter(chosen).items() if count > 1]
        if twice:
            msg = f"{where}: each column may be listed once, got the columns at {some(twice)} several times"
            raise InputError(msg)
        label = "+".join(map(str, model.columns)) if len(model.columns) <= 3 else f"{len(chosen)}columns"
        return [(label, tuple(chosen))]

    bearers = _bearers(itertools.chain.from_iterable(model.columns.values()), table, where)
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
            f"{some(lacking)}"
        )
    if small:
        notes.append(
            f"{where}: left out {len(small)} of the {len(sets)} column sets, with fewer columns than "
            f"min_columns={model.min_columns}: {some(small)}"
        )
    return [(name, positions) for name, positions in sets.items() if len(positions) >= model.min_columns]


def _bearers(members: Iterable[int | str], table: FeatureMatrix, where: str) -> dict[int | str, list[int]]:
    """Positions of columns that are given by name or position."""
    members = dict.fromkeys(members)
    outside = [member for member in members if isinstance(member, int) and member >= table.shape[1]]
    if outside:
        msg = (
            f"{where}: positions of columns go from 0 to {table.shape[1] - 1}, got {some(outside)}; "
            "a column's name is written as a string"
        )
        raise InputError(msg)
    names = [member for member in members if isinstance(member, str)]
    if names and table.columns is None:
        msg = (
            f"{where}: columns are chosen by name ({some(names)}), but the feature has no column names; "
            "give positions, or a table with names (a DataFrame, a CSV file)"
        )
        raise InputError(msg)
    named: dict[str, list[int]] = {}
    for position, name in enumerate(table.columns or ()):
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
