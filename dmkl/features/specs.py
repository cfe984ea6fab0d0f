"""Specifications of kernels: read from mappings and files, checked, and expanded into one recipe for each kernel.

A specification is a mapping. `function` is the kernel function (see `FUNCTIONS`), `feature` the feature tables, and all
other keys are parameters of the function:

>>> specs = [{"function": "rbf", "feature": "pixels", "bandwidth": [0.5, 1]}, {"function": "random_rbf", "copies": 2}]

`function` and `feature` may be lists, a feature may be a pattern (``dsift*``), and a parameter with a list of values is
a grid. `plan` turns each combination into a recipe with a unique name.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from dmkl.arrays import by_key
from dmkl.errors import InputError, StoreError, did_you_mean, first_names, refuse, short_repr
from dmkl.features.functions import FUNCTIONS, WORDS, import_path
from dmkl.features.recipes import GENETIC, IMPUTING, LOW_RANK, OWN, Recipe
from dmkl.files.documents import read_document
from dmkl.inputs.features import FeatureMatrix
from dmkl.settings import check_memory

_RECIPE_BYTES = 2048  # memory of one recipe with its name and parameters

# --- reading -------------------------------------------------------------------------------------------------------


def read_specs(specs: Any) -> list[dict[str, Any]]:
    """Read specifications, in their order; `plan` checks their content.

    They are a list of mappings, one mapping, or the path of a .toml file with one table ``[[kernel]]`` for each. Paths
    in such a file are relative to it. InputError if there are none, one is no mapping, or the file cannot be read.
    """
    path, listed = None, [specs] if isinstance(specs, Mapping) else specs
    if isinstance(specs, str | os.PathLike):
        path = Path(specs)
        if path.suffix.lower() != ".toml":
            refuse(f"a file of kernel specifications ends in .toml, got {path}")
        content = read_document(path, "specifications")
        listed = content.pop("kernel", None)
        if not isinstance(listed, list) or not listed or content:
            keys = [*content, *([] if listed is None else [f"kernel = {short_repr(listed)}"])]
            rule = f"{path} must hold one table [[kernel]] for each specification and nothing else"
            refuse(f"{rule}, got {first_names(keys) or 'an empty file'}")
    if not isinstance(listed, Sequence) or not listed:
        refuse(
            "kernels are specified by a mapping such as {'function': 'rbf', 'feature': '*'}, a list of at least one, "
            f"or the path of a .toml file, got {short_repr(specs)}"
        )
    for number, spec in enumerate(listed, 1):
        if not isinstance(spec, Mapping):
            rule = f"spec {number} of {len(listed)} must be a mapping such as {{'function': 'rbf', 'feature': '*'}}"
            refuse(f"{rule}, got {short_repr(spec)}")
    read = [dict(spec) for spec in listed]
    for spec in read:
        if path is not None and isinstance(spec.get("columns"), str):
            spec["columns"] = str(path.parent / spec["columns"])
    return read


def _parse_gmt(text: str) -> dict[str, list[str]]:
    """Gene sets in the format of MSigDB: name, description and members of one set a line, separated by tabs."""
    sets: dict[str, list[str]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        name, *rest = (text.strip() for text in line.split("\t"))
        if len(rest) < 2 or not name or name in sets:
            got = f"the second set named {name!r}" if name in sets else short_repr(line)
            msg = f"line {number} must be name, description and members of a new set, separated by tabs, got {got}"
            raise ValueError(msg)
        sets[name] = [member for member in rest[1:] if member]
    return sets


def _parse_bim(text: str) -> dict[str, list[str]]:
    """The variants of each chromosome, by their ids: PLINK's .bim has chromosome, id, cM, position, A1 and A2."""
    sets: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split()
        if len(cells) != 6:
            msg = f"line {number} must be chromosome, id, cM, position and both alleles, got {short_repr(line)}"
            raise ValueError(msg)
        sets.setdefault(f"chr{cells[0].removeprefix('chr')}", []).append(cells[1])
    return sets


def _read_columns(value: Any) -> Any:
    """Replace the path of a file by the mapping that it holds."""
    if not isinstance(value, str | os.PathLike):
        return value
    path = Path(value)
    if path.suffix.lower() not in (".json", ".toml", ".gmt", ".bim"):
        rule = "columns must be a list, a mapping, or the path of a .json, .toml, .gmt or .bim file"
        refuse(f"{rule}, got {short_repr(str(value))}; write a single column as a list too")
    content = read_document(path, "column sets", {".gmt": _parse_gmt, ".bim": _parse_bim})
    if not isinstance(content, dict):
        refuse(f"the file of column sets {path} must map names to lists of columns, got {short_repr(content)}")
    return _to_python(content)


def _to_python(value: Any) -> Any:
    """Convert NumPy's numbers to Python's, and lists, ranges and arrays to tuples."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _to_python(item) for key, item in value.items()}
    return tuple(map(_to_python, value)) if isinstance(value, list | tuple | range) else value


# --- the keys of each function -------------------------------------------------------------------------------------


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def _check_nu(nu: float) -> float:
    if nu not in (0.5, 1.5, 2.5):
        refuse(f"nu must be 0.5, 1.5, 2.5 or a list of these, got {nu}; the limit of a large one is rbf")
    return nu


def _check_weights(weights: tuple[float, ...]) -> tuple[float, ...]:
    if not any(weights):
        refuse(f"weights must hold at least one number > 0, got {list(weights)}")
    return weights


_MOST_COPIES = 1_000_000  # random kernels of one specification, each a matrix
_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1)]
_Natural = Annotated[int, Field(ge=0)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Column = _Natural | str
_OF = Annotated[tuple[_Text, ...], Field(min_length=2)]
_Columns = Annotated[tuple[_Column, ...], Field(min_length=1)]
_Sets = Annotated[dict[_Text, tuple[_Column, ...]], Field(min_length=1)]
_Widths = Annotated[tuple[_Count, ...], Field(min_length=1)]
_Scale = Annotated[tuple[_Positive, ...], Field(min_length=1)]
_Weights = Annotated[tuple[_NonNegative, ...], Field(min_length=1), AfterValidator(_check_weights)]


def _key(kind: Any, description: str, default: Any = ...) -> tuple[Any, Any]:
    """The type and the field of a key; the description completes "KEY must be …"."""
    return kind, Field(default=default, description=description)


def _grid(kind: Any, description: str, default: tuple[Any, ...] = ()) -> tuple[Any, Any]:
    """The same for a key of one value or a list of values."""
    return _key(Annotated[tuple[kind, ...], BeforeValidator(_as_tuple), Field(min_length=1)], description, default)


_KEYS: dict[str, Any] = {
    "name": _key(_Text, "a name or a template of names", ""),
    "feature": _grid(_Text, "the name of a feature, a pattern such as 'dsift*', or a list of them"),
    "columns": _key(
        Annotated[_Columns | _Sets, BeforeValidator(_read_columns)],
        "a list of column names or positions ≥ 0, a mapping from names to such lists, or the path of a .json, .toml, "
        ".gmt or .bim file that holds such a mapping",
        (),
    ),
    "min_columns": _key(_Count, "an integer ≥ 1", 0),
    "transform": _grid(
        Literal["impute", "size-factor", "log1p", "tfidf", "grm", "grm=vanraden", "none"],
        "'impute', 'size-factor', 'log1p', 'tfidf' or a list of these in their order, 'grm', 'grm=vanraden' or 'none'",
    ),
    "degree": _grid(_Count, "an integer ≥ 1 or a list of them", (3,)),
    "gamma": _grid(_Positive, "a number > 0 or a list of them"),
    "bandwidth": _grid(_Positive, "a number > 0 or a list of them"),
    "of": _key(_OF, "a list of the names of two or more kernels"),
    "coef0": _grid(
        _NonNegative,
        "a number ≥ 0 or a list of them (a negative one makes kernels that are not positive semidefinite)",
        (1.0,),
    ),
    "nu": _grid(Annotated[float, AfterValidator(_check_nu)], "0.5, 1.5, 2.5 or a list of these", (1.5,)),
    "scale": _key(_Scale, "a list of numbers > 0, one for each column", ()),
    "levels": _key(
        Annotated[int, Field(ge=1, le=20)] | _Widths,
        "a number of levels from 1 to 20, or the list of the levels' numbers of columns, coarse to fine",
    ),
    "scales": _key(_Count | _Widths, "a number of scales ≥ 1, or the list of the scales' numbers of columns"),
    "weights": _key(_Weights, "a list of numbers ≥ 0, one for each level or scale", ()),
    "seed": _grid(_Natural, "an integer ≥ 0 or a list of them", (0,)),
    "copies": _key(Annotated[int, Field(ge=1, le=_MOST_COPIES)], f"an integer from 1 to {_MOST_COPIES:,}", 1),
    "dimensions": _grid(_Count, "an integer ≥ 1 or a list of them", (16,)),
    "rank": _grid(_Count | Literal["auto"], "an integer ≥ 1, 'auto', or a list of these"),
    "approximation": _key(Literal["nystroem", "fourier"], "'nystroem' or 'fourier'", "nystroem"),
    "landmarks": _key(Literal["kmeans", "uniform"], "'kmeans' or 'uniform'", "kmeans"),
    "share": _key(Annotated[float, Field(gt=0, lt=1)], "a number between 0 and 1", 0.99),
    "random_state": _key(_Natural, "an integer ≥ 0", 0),
}
_TABLE = ("name", "feature", "columns", "min_columns", "transform", *LOW_RANK)
_SINGLE = {*_TABLE, "of", "scale", "levels", "scales", "weights", "copies"} - {"rank"}
_PARTS = {"pyramid": ("levels", 4), "proximity": ("scales", 1)}
"""Functions of consecutive parts of the columns: the key of the parts, and how many times as many columns as the part
before a part has where only the number of parts is given."""


class _Spec(BaseModel):
    """A specification of one function, with the keys of `_KEYS_OF`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        keys = dict(self)
        gamma, bandwidth, seed = (keys.get(key, ()) for key in ("gamma", "bandwidth", "seed"))
        if gamma and bandwidth:
            refuse(
                f"gamma and bandwidth exclude each other, got gamma={short_repr(gamma)} and "
                f"bandwidth={short_repr(bandwidth)}; bandwidth b means gamma = 1/(b · mean distance): leave out one"
            )
        alone = set(keys.get("transform", ())).intersection((*GENETIC, "none"))
        if alone and len(keys["transform"]) > 1:
            refuse(f"transform {min(alone)!r} is taken alone, got {', '.join(keys['transform'])}; leave the others out")
        rank, given = keys.get("rank", ()), self.model_fields_set.intersection(LOW_RANK)
        if (given and not rank) or ("share" in given and "auto" not in rank):
            refuse(f"{', '.join(LOW_RANK[1:])} belong to a rank, and share to rank='auto'; give that too")
        if len(seed) > 1 and keys["copies"] > 1:
            way_out = "give one seed, or a list of seeds without copies"
            refuse(f"copies={keys['copies']} counts up from one seed, got seed={short_repr(seed)}; {way_out}")
        for key, _ in _PARTS.values():
            parts, weights = keys.get(key, ()), keys.get("weights", ())
            count = parts if isinstance(parts, int) else len(parts)
            if count and weights and len(weights) != count:
                rule = f"weights must hold one number for each of the {count} {key}"
                refuse(f"{rule}, got {len(weights)}: {short_repr(weights)}")
        return self


_KEYS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("linear", "cosine", "tanimoto", "jaccard", "intersection", "own"), _TABLE),
    **dict.fromkeys(("rbf", "laplacian"), (*_TABLE, "gamma", "bandwidth", "scale")),
    "polynomial": (*_TABLE, "degree", "gamma", "coef0"),
    "matern": (*_TABLE, "nu", "gamma", "bandwidth", "scale"),
    "chi2": (*_TABLE, "gamma", "bandwidth"),
    "distance": ("name", "feature", "gamma", "bandwidth"),
    "precomputed": ("name", "feature"),
    "pyramid": (*_TABLE, "levels", "weights"),
    "proximity": (*_TABLE, "scales", "weights"),
    "product": ("name", "of"),
    "random_rbf": ("name", "seed", "copies", "gamma", "bandwidth", "dimensions"),
}
_MODELS: dict[str, type[_Spec]] = {
    function: create_model(function, __base__=_Spec, **{key: _KEYS[key] for key in keys})
    for function, keys in _KEYS_OF.items()
}


class _Step(BaseModel):
    """A step of a stored transform; `target` and `factors` are what it has learned."""

    step: Literal["impute", "size-factor", "log1p", "tfidf", "grm", "grm=vanraden"]
    target: float | None = None
    factors: str | None = None


class _Transform(BaseModel):
    of: str
    steps: Annotated[tuple[_Step, ...], Field(min_length=1)]


class _Approximation(BaseModel):
    of: dict[str, Any]
    method: Literal["nystroem", "fourier"]
    rank: _Natural
    points: str
    map: str


class _Stored(BaseModel):
    """A recipe in the provenance of a kernel set or a model, whose `parameters` are those of one function."""

    columns: _Columns | None = None
    approximation: _Approximation | None = None
    transform: _Transform | None = None


_Factors = Annotated[tuple[dict[str, Any], ...], Field(min_length=2)]
_PARAMETERS: dict[str, Any] = {"coef0": _NonNegative, "scale": _Scale, "seed": _Natural}
_PARAMETERS |= dict.fromkeys(("gamma", "nu"), _Positive) | dict.fromkeys(("degree", "dimensions"), _Count)


def _stored(function: str, keys: Sequence[str]) -> type[_Stored]:
    """The form of the stored recipes of a function."""
    needed: dict[str, Any] = {
        key: (_PARAMETERS[key], None if key == "scale" else ...) for key in keys if key in _PARAMETERS
    }
    if function in _PARTS:
        needed = {"widths": (_Widths, ...), "weights": (_Weights, ...)}
    more: dict[str, dict[str, Any]] = {"own": {"path": (str, ...)}, "product": {"of": (_OF, ...)}}
    needed |= more.get(function, {})
    factors: Any = {"factors": (_Factors, ...)} if function == "product" else {}
    parameters: Any = create_model("parameters", **needed)
    feature: Any = (str, ...) if "feature" in keys else (NoneType, None)
    return create_model(function, __base__=_Stored, feature=feature, parameters=(parameters, ...), **factors)


_STORED = {function: _stored(function, keys) for function, keys in _KEYS_OF.items()}


def check_stored(name: str, recipe: Mapping[str, Any]) -> None:
    """Refuse the stored recipe of a kernel as `Recipe.from_json` does."""
    function = recipe.get("function")
    if not isinstance(function, str) or function not in _STORED:
        what = f"kernel {name!r} was computed by the function {function!r:.80}, which this dmkl does not have"
        refuse(f"{what}; install the version of dmkl that wrote it, or leave the kernel out", kind=StoreError)
    try:
        _STORED[function].model_validate(_to_python(recipe), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        refuse(f"the recipe of kernel {name!r} is damaged: {key}: {problem['msg']}; build it again", error, StoreError)


def _check_specs(
    specs: Sequence[Mapping[str, Any]],
) -> list[tuple[str, Any, dict[str, Any], dict[str, tuple[Any, ...]]]]:
    """For each function of each specification: its place, it, its keys, and the lists of parameter values."""
    checked = []
    problems: list[str] = []
    for number, raw in enumerate(specs, 1):
        # None stands for a key that was left out.
        spec = {key: _to_python(value) for key, value in raw.items() if value is not None}
        made_by = _as_tuple(spec.get("name") or spec.get("function") or "no function")
        label = first_names(import_path(item) if callable(item) else item for item in made_by)
        where = f"spec {number} of {len(specs)} ({label if label.isprintable() else short_repr(label)})"
        functions = _as_tuple(spec.pop("function", ()))
        if not functions:
            problems.append(f"{where}: function is missing; it is one of {', '.join(FUNCTIONS)}, or a list of these")
        for function in functions:
            if function == "sigmoid":
                what = "tanh(gamma x·y + coef0) is not positive semidefinite, so it is no kernel"
                problems.append(f"{where}: {what}; take rbf or polynomial, or precomputed with repair='clip'")
                continue
            if not callable(function) and (not isinstance(function, str) or function not in FUNCTIONS):
                what = f"there is no function {short_repr(function)}{did_you_mean(function, FUNCTIONS)}"
                problems.append(f"{where}: {what}; the functions are {', '.join(FUNCTIONS)}")
                continue
            kind = "own" if callable(function) else function
            try:
                keys = dict(_MODELS[kind].model_validate(spec))
            except ValidationError as error:
                problems += [f"{where}: {text}" for text in _reword(error, kind, several=len(functions) > 1)]
            else:
                # First those that were written, in their order.
                axes = {key: keys[key] for key in dict.fromkeys([*spec, *keys]) if key not in _SINGLE and keys[key]}
                if keys.get("copies", 1) > 1:
                    axes["seed"] = tuple(range(keys["seed"][0], keys["seed"][0] + keys["copies"]))
                checked.append((where, function, keys, axes))
    if problems:
        raise InputError("\n".join(dict.fromkeys(problems)))
    return checked


def _reword(error: ValidationError, function: str, *, several: bool) -> Iterator[str]:
    """One sentence for each key that breaks a rule, from the most specific of pydantic's errors about it."""
    fields = _MODELS[function].model_fields
    worst: dict[Any, Any] = {}
    for problem in error.errors(include_url=False):
        key = problem["loc"][0] if problem["loc"] else None
        if key not in worst or len(problem["loc"]) > len(worst[key]["loc"]):
            worst[key] = problem
    for key, problem in worst.items():
        if problem["type"] == "value_error":  # raised by a validator of this file
            yield str(problem["ctx"]["error"])
        elif key not in fields:
            way_out = f"; give {function} a spec of its own" if several else ""
            rule = f"its keys are function, {', '.join(fields)}"
            yield f"{function} takes no {short_repr(key)}{did_you_mean(key, fields)}; {rule}{way_out}"
        elif problem["type"] == "missing":
            yield f"{function} needs {key}: {fields[key].description}"
        else:
            yield f"{key} must be {fields[key].description}, got {short_repr(problem['input'])}"


# --- planning ------------------------------------------------------------------------------------------------------


def plan(specs: Any, tables: Mapping[str, FeatureMatrix]) -> tuple[list[Recipe], list[str]]:
    """Expand specifications into recipes of single kernels, and check them against the features.

    There is one kernel for each function, feature, set of columns and combination of listed parameters, in this order,
    the last running fastest; parameters vary in the order in which they are written.

    Parameters
    ----------
    specs
        As `read_specs` takes or returns them. The keys of each, besides the parameters of `FUNCTIONS`:

        function
            A key of `FUNCTIONS`, a function of one's own, or a list of them. It takes rows X (n, d) and Y (m, d) of the
            table, in several threads at once, and returns their kernel (n, m), symmetric and positive semidefinite.
        feature
            The name of a feature, a pattern (``*``, ``dsift*``), or a list of these; where it is missing, every feature
            (of annotated data, X), for ``distance`` every square one.
        columns
            A list of column names or positions, a mapping from names to such lists with one kernel for each, or a file
            with such a mapping. A string is always a name, and means every column of that name. Names that the feature
            lacks are refused in a list, and left out in a mapping.
        min_columns
            Sets of a mapping with fewer columns in the feature are left out. By default a set without any is refused.
        transform, rank, approximation, landmarks, share, random_state
            See `dmkl.features.transforms` and `dmkl.features.approximation`.
        copies
            The number of random kernels, whose seeds count up from `seed`.
        name
            The kernel's name, in which ``{feature}``, ``{function}``, ``{columns}`` and ``{PARAMETER}`` are filled in.
            By default feature, function, the name of the set of columns and each parameter that has several values,
            joined by dashes: ``fou-rbf-bandwidth0.1``.

        `levels`, `scales` and `weights` are one value even if they are lists; any other list is a grid.
    tables
        The feature tables by name.

    Returns the kernels, and messages on what was left out. InputError if a specification breaks a rule, means no kernel
    or an unknown feature or column, does not fit a table's number of columns, or two kernels would have the same name.
    """
    recipes: list[Recipe] = []
    notes: list[str] = []
    named: dict[str, tuple[str, dict[str, Any]]] = {}
    for where, asked, keys, axes in sorted(_check_specs(read_specs(specs)), key=lambda spec: spec[1] == "product"):
        if asked == "product":
            recipes.append(_product(where, keys, {recipe.name: recipe for recipe in recipes}))
            continue
        function, own, path = (asked, None, "") if isinstance(asked, str) else ("own", asked, import_path(asked))
        if ":" in path:
            OWN[path] = asked
        before, subsets = len(recipes), set[str | None]()
        for feature in _features(function, keys, tables, where, notes):
            here = where if feature is None else f"{where}, feature {feature!r}"
            table = None if feature is None else tables[feature]
            for subset, columns in _subsets(keys, table, here, notes):
                subsets.add(subset)
                n_columns = 0 if table is None else table.shape[1] if columns is None else len(columns)
                derived = _derived_parameters(function, keys, n_columns, here) | ({"path": path} if path else {})
                called = path.rpartition(":")[2].rpartition(".")[2].strip("<>") or function
                maker = {"feature": feature, "function": called, "columns": subset}
                source = {key: value for key, value in maker.items() if value is not None}
                n_kernels = len(recipes) + math.prod(map(len, axes.values()))
                what = f"{here}: the list of {n_kernels:,} kernels"
                check_memory(what, n_kernels * _RECIPE_BYTES, "ask for fewer, or allow more")
                for values in itertools.product(*axes.values()):
                    parameters = dict(zip(axes, values, strict=True)) | derived
                    fields = source | parameters
                    name = _fill_in(keys["name"] or _template(source, axes), fields, where)
                    if name in named:
                        raise InputError(_same_name(name, named[name], (where, fields)))
                    named[name] = (where, fields)
                    steps = _steps(keys.get("transform", ()), function, table)
                    made = {"transform": {"of": feature, "steps": [{"step": step} for step in steps]}} if steps else {}
                    recipes.append(Recipe(name, function, feature, columns, parameters, made, own))
        sets = keys.get("columns", ())
        empty = [name for name in sets if name not in subsets] if isinstance(sets, dict) else []
        if empty and not keys["min_columns"]:
            refuse(
                f"{where}: {len(empty)} of the {len(sets)} column sets have no column of the features: "
                f"{first_names(empty)}. Compare their members with the names of the columns, leave these sets out, or "
                "let min_columns=1 (--min-columns 1) leave them out"
            )
        if len(recipes) == before:  # only sets of columns can be left out
            refuse(
                f"{where}: every set of columns was left out, so there is no kernel to make: a set needs at least "
                f"{keys['min_columns']} (min_columns) of the feature's columns; "
                "compare the sets' members with the names of the columns"
            )
    return recipes, list(dict.fromkeys(notes))  # several functions of one spec leave out the same sets


def _product(where: str, keys: Mapping[str, Any], planned: Mapping[str, Recipe]) -> Recipe:
    """The product of kernels that other specifications make; it follows these."""
    of_table = by_key(planned, lambda name: planned[name].feature)
    # The name of a table means its kernel, if it has one.
    of = [f if f in planned or len(of_table.get(f, ())) != 1 else of_table[f][0] for f in keys["of"]]
    lacking, name = [factor for factor in of if factor not in planned], keys["name"] or ":".join(keys["of"])
    if lacking:
        way_out = "make it by another specification, or give it that name (name=)"
        names = f"{did_you_mean(lacking[0], planned)}; the kernels are {first_names(planned)}"
        refuse(f"{where}: there is no kernel {lacking[0]!r}{names}; {way_out}")
    if name in planned:
        refuse(f"{where}: there is a kernel {name!r} already; give the product another name (name=)")
    factors = [part for factor in of for part in planned[factor].parts]
    return Recipe(name, "product", None, None, {"of": tuple(f.name for f in factors)}, factors=tuple(factors))


def _steps(asked: Sequence[str], function: str, table: FeatureMatrix | None) -> Sequence[str]:
    """The steps of a transform; those of genotypes, some of which are usually missing, begin with one that imputes."""
    genotypes = table is not None and table.genotypes
    steps = [step for step in asked if step != "none"]
    if genotypes and not asked and function == "linear":
        steps = ["grm"]
    elif genotypes and (not steps or steps[0] not in IMPUTING):
        steps = ["impute", *steps]
    return steps


def _features(
    function: str, keys: Mapping[str, Any], tables: Mapping[str, FeatureMatrix], where: str, notes: list[str]
) -> Sequence[str | None]:
    """Names of the feature tables that a specification means; ``[None]`` for kernels without one."""
    if "feature" not in keys:
        return [None]
    if function in WORDS:
        return _square_features(function, keys["feature"], tables, where)
    if keys["feature"] or not tables:
        return _matching_features(keys["feature"] or ("*",), tables, where)
    names = [name for name, table in tables.items() if not table.holds and not table.by_name]
    left_out = [name for name, table in tables.items() if table.by_name]
    if names and left_out:
        notes.append(f"left out {first_names(left_out)}; name all tables that you want (feature=, --feature)")
    if not names:
        way_out = "name one (feature=, --feature); the function precomputed takes kernels, and distance takes distances"
        refuse(f"{where}: there are no tables of features, but {first_names(tables)}; {way_out}")
    return names


def _matching_features(patterns: Sequence[str], tables: Mapping[str, FeatureMatrix], where: str) -> list[str]:
    names: dict[str, None] = {}
    for pattern in patterns:
        matching = [pattern] if pattern in tables else [name for name in tables if fnmatchcase(name, pattern)]
        if not matching:
            way_out = f"the features are: {first_names(tables) or 'none'}"
            refuse(f"{where}: no feature is named {pattern!r}{did_you_mean(pattern, tables)}; {way_out}")
        names.update(dict.fromkeys(matching))
    return list(names)


def _square_features(
    function: str, patterns: Sequence[str], tables: Mapping[str, FeatureMatrix], where: str
) -> list[str]:
    """Square matrices for `distance` or `precomputed`; by default those that are known to be meant for it, or all."""
    square = {name: table for name, table in tables.items() if table.shape[0] == table.shape[1]}
    rule = f"{where}: {function} needs a square matrix of {WORDS[function]} (samples × samples)"
    if not patterns:
        content = "distances" if function == "distance" else "kernel"
        names = [name for name, table in square.items() if table.holds in ("", content)]
        if not names:
            shapes = first_names(f"{name} {table.shape}" for name, table in tables.items())
            refuse(f"{rule}, got {shapes or 'none'}")
        return [name for name in names if square[name].holds] or names
    names = _matching_features(patterns, tables, where)
    for name in names:
        if name not in square:
            way_out = "for a table of columns take rbf, laplacian or chi2"
            refuse(f"{rule}, but feature {name!r} has the shape {tables[name].shape}; {way_out}")
    return names


def _subsets(
    keys: Mapping[str, Any], table: FeatureMatrix | None, where: str, notes: list[str]
) -> list[tuple[str | None, tuple[int, ...] | None]]:
    """Sets of columns to make kernels of: the name of each and its positions."""
    columns = keys.get("columns", ())
    if table is None or not columns:
        return [(None, None)]
    if not isinstance(columns, dict):
        positions = _positions(columns, table, where)
        lacking = [column for column in positions if not positions[column]]
        if lacking:
            refuse(
                f"{where}: {len(lacking)} of the {len(positions)} columns are not there: {first_names(lacking)}"
                f"{did_you_mean(lacking[0], table.columns or ())}; the columns are {first_names(table.columns or ())}"
            )
        chosen = [position for column in columns for position in positions[column]]
        twice = [position for position, count in Counter(chosen).items() if count > 1]
        if twice:
            refuse(f"{where}: each column may be listed once, got the columns at {first_names(twice)} several times")
        label = "+".join(map(str, columns)) if len(columns) <= 3 else f"{len(chosen)}columns"
        return [(label, tuple(chosen))]

    positions = _positions(itertools.chain.from_iterable(columns.values()), table, where)
    # A set has each column once, in the order of its members.
    sets = {
        name: tuple(dict.fromkeys(itertools.chain.from_iterable(positions[member] for member in members)))
        for name, members in columns.items()
    }
    lacking = [member for member in positions if not positions[member]]
    least = keys["min_columns"] or 1
    small = [name for name in sets if len(sets[name]) < least]
    if lacking:
        what = f"ignored {len(lacking)} of the {len(positions)} members of the column sets, which are no columns"
        notes.append(f"{where}: {what}: {first_names(lacking)}")
    if small:
        what = f"left out {len(small)} of the {len(sets)} column sets, with fewer columns than min_columns={least}"
        notes.append(f"{where}: {what}: {first_names(small)}")
    return [(name, sets[name]) for name in sets if name not in small]


def _positions(members: Iterable[int | str], table: FeatureMatrix, where: str) -> dict[int | str, list[int]]:
    """Positions of columns that are given by name or position; several columns may have the same name."""
    members = dict.fromkeys(members)
    outside = [member for member in members if isinstance(member, int) and member >= table.shape[1]]
    if outside:
        rule = f"{where}: positions of columns go from 0 to {table.shape[1] - 1}"
        refuse(f"{rule}, got {first_names(outside)}; a column's name is written as a string")
    names = [member for member in members if isinstance(member, str)]
    if names and table.columns is None:
        refuse(
            f"{where}: columns are chosen by name ({first_names(names)}), but the feature has no column names; "
            "give positions, a table with names (a DataFrame, a CSV file), or choose another (feature=, --feature)"
        )
    columns = table.columns or ()
    by_name = by_key(range(len(columns)), lambda position: columns[position])
    return {member: [member] if isinstance(member, int) else by_name.get(member, []) for member in members}


def _derived_parameters(function: str, keys: Mapping[str, Any], n_columns: int, where: str) -> dict[str, Any]:
    """Parameters that follow from other keys or from the number of columns."""
    low_rank = {key: keys[key] for key in LOW_RANK[1:]} if keys.get("rank") else {}
    scale = keys.get("scale", ())
    if low_rank.get("approximation") == "fourier" and (function != "rbf" or "auto" in keys["rank"] or scale):
        refuse(f"{where}: Fourier features are for rbf and a rank that is a number; leave approximation out")
    if scale and len(scale) != n_columns:
        refuse(f"{where}: scale must hold one number for each of the {n_columns} columns, got {len(scale)}")
    low_rank |= {"scale": scale} if scale else {}
    if function in _PARTS:
        return low_rank | _widths_and_weights(function, keys, n_columns, where)
    if keys.get("gamma", True) or keys.get("bandwidth"):
        return low_rank
    return low_rank | ({"gamma": 1 / n_columns} if function == "polynomial" else {"bandwidth": 1.0})


def _widths_and_weights(function: str, keys: Mapping[str, Any], n_columns: int, where: str) -> dict[str, Any]:
    """Numbers of columns and weights of the levels of a pyramid or the scales of neighborhoods."""
    key, growth = _PARTS[function]
    parts, weights = keys[key], keys["weights"]
    if isinstance(parts, int):
        total = parts if growth == 1 else (growth**parts - 1) // (growth - 1)
        share, rest = divmod(n_columns, total)
        if not share or rest:
            way_out = f"list the number of columns of each part, {key}=[…], or give another number"
            refuse(f"{where}: {key}={parts} needs a multiple of {total} columns, got {n_columns}; {way_out}")
        parts = tuple(share * growth**part for part in range(parts))
    elif sum(parts) != n_columns:
        refuse(f"{where}: {key}={short_repr(parts)} must add up to the {n_columns} columns, got {sum(parts)}")
    if not weights:
        count = len(parts)
        weights = tuple(1.0 if growth == 1 else 2.0 ** (max(part, 1) - count) for part in range(count))
    return {"widths": parts, "weights": weights}


class _ShortFloat(float):
    """A float that templates write without needless digits."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec or "g")


def _template(source: Mapping[str, str], axes: Mapping[str, Sequence[Any]]) -> str:
    # The seed is always part of the name, so that names stay when copies are added.
    varying = [key for key, values in axes.items() if len(values) > 1 or key == "seed"]
    return "-".join([*(f"{{{key}}}" for key in source), *(f"{key}{{{key}}}" for key in varying)])


def _fill_in(template: str, fields: Mapping[str, Any], where: str) -> str:
    short = {key: _ShortFloat(value) if isinstance(value, float) else value for key, value in fields.items()}
    try:
        return template.format_map(short)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        way_out = f"it may hold {', '.join(f'{{{key}}}' for key in fields)}, and a literal brace is written twice"
        refuse(f"{where}: the name {template!r} cannot be filled in ({error!r}); {way_out}", error)


def _same_name(name: str, first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]]) -> str:
    (where, fields), (where_too, fields_too) = first, second
    differ = [key for key in fields_too if fields_too[key] != fields.get(key)]
    if where == where_too and not differ:
        return f"{where} makes the kernel {name!r} twice; a list of values holds each once"
    if where == where_too:
        # All digits: the default name writes six.
        holes = " or ".join(f"{{{key}:.17g}}" if isinstance(fields[key], float) else f"{{{key}}}" for key in differ)
        return f"{where} makes two kernels named {name!r}; tell them apart by name=, a template that holds {holes}"
    holes = ", ".join(f"{{{key}}}" for key in fields_too)
    what = f"{where} and {where_too} both make a kernel named {name!r}"
    return f"{what}; give one of them another name=, a template that may hold {holes}"
