"""Parameters of learners: checks, their form in JSON, and the set of feasible weights that some of them describe."""

from __future__ import annotations

import fnmatch
import numbers
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import xarray as xr

from dmkl.arrays import Float, by_key, check_choice, is_instance, plain_repr
from dmkl.errors import refuse
from dmkl.inputs.columns import axis_names
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.fisher import as_exponent
from dmkl.numerics.losses import LOSSES
from dmkl.solvers.fisher.problem import CONFIGURABLE, ConfiguredSolver
from dmkl.solvers.weight_sets import Ball, GivenWeights, Priced, UnboundedSetError, WeightSet, grouped


def one_of(*choices: str | None) -> Callable[[str, Any], None]:
    """The check that a value is among the choices."""
    return partial(check_choice, choices=choices)


def check_numbers(name: str, value: Any) -> list[float]:
    """The numbers of a parameter, one or several; InputError if there are none, or a value is not a number."""
    if type(value) is float:  # fast, since a permutation test checks tens of thousands
        return [value]
    try:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError, OverflowError) as error:
        refuse(f"{name} must be a number, or a list of them, got {reprlib.repr(value)}", error)
    if values.ndim != 1 or not len(values):
        refuse(f"{name} must be a number, or a list of at least one, got {reprlib.repr(value)}")
    return [float(item) for item in values]


def check_positive(name: str, value: Any) -> list[float]:
    """The numbers of a parameter, one or several, refused by InputError if one is not positive and finite."""
    values = check_numbers(name, value)
    for item in values:
        if not (np.isfinite(item) and item > 0):
            refuse(f"{name} must be positive and finite, got {item!r}")
    return values


def check_exponents(name: str, value: Any) -> list[float]:
    """Norms, one or several, refused by InputError if one is less than 1."""
    return [as_exponent(item) for item in check_numbers(name, value)]


def check_share(name: str, value: Any) -> None:
    """Refuse numbers, one or several, that are not between 0 and 1, by InputError."""
    if not all(item < 1.0 for item in check_positive(name, value)):
        refuse(f"{name} must lie between 0 and 1, both excluded, got {value!r}")


def check_is_learner(learner: Any, purpose: str) -> None:
    """Refuse what is no learner, such as a class or an estimator of scikit-learn, by an InputError."""
    if isinstance(learner, type) or not hasattr(learner, "traits"):
        found = f"the class {learner.__name__}" if isinstance(learner, type) else f"a {type(learner).__name__}"
        refuse(f"{purpose} takes a learner of dmkl, such as dmkl.MKFDA(), got {found}")


def check_count(name: str, value: Any, least: int = 1) -> int:
    """A whole number, at least `least`; InputError if the value is another one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        refuse(f"{name} must be a whole number, at least {least}, got {plain_repr(value)}")
    return int(value)


RULES: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("C", "lam", "tol"), check_positive),
    "max_iter": check_count,
    "random_state": partial(check_count, least=0),
}
"""Checks of parameters that most learners have."""


@cache
def parameter_types(kind: Any) -> Mapping[str, Any]:
    """The annotated types of a learner's parameters, by name; none if only type checkers import one of them."""
    # The constructor that a dataclass makes names the types of inherited fields, which its module need not import.
    typed: Any = kind if "__dataclass_fields__" in vars(kind) else kind.__init__
    try:
        return get_type_hints(typed)
    except NameError:
        return {}


def is_of_type(value: Any, annotated: Any) -> bool:
    """Whether a value of a parameter that JSON had is of the annotated type.

    Null also stands for an integer that is left out, such as a seed. Names within another value may be numbers.
    """
    of, within = get_origin(annotated), get_args(annotated)
    if annotated is Any or not isinstance(value, str | int | float | tuple | dict | None):
        return True
    if of in (Union, UnionType):
        return any(is_of_type(value, member) for member in within)
    if of is Literal:
        return value in within
    if value is None:
        return annotated in (NoneType, int)
    plain = of or annotated
    if isinstance(value, dict):
        return plain in (Mapping, dict) and all(is_of_type(item, within[1]) for item in value.values() if within)
    if isinstance(value, tuple):
        if plain in (Sequence, list, tuple):
            return all(is_of_type(item, within[0]) for item in value if within and within[0] is not str)
        return plain not in (Mapping, dict, Callable, xr.DataArray, str, int, float, bool, NoneType)
    if isinstance(value, bool):
        return annotated is bool
    return annotated is str if isinstance(value, str) else annotated is float or annotated is type(value)


Item = TypeVar("Item")


def by_name(values: Any) -> Any:
    """A series of pandas as a mapping from its names, unless its index only counts; anything else as it is."""
    is_named = is_instance(values, "pandas", "Series") and axis_names(values, 0) is not None
    return values.to_dict() if is_named else values


def one_for_each(name: str, values: Sequence[Item], n_problems: int) -> list[Item]:
    """A value for each problem, from one for all or one for each; InputError for another number of values."""
    if len(values) not in (1, n_problems):
        refuse(
            f"{name} has {len(values)} values and there are {n_problems} problems to solve; give one number, or one "
            "for each (for each task of a multilabel set)"
        )
    return list(values) * n_problems if len(values) == 1 else list(values)


# --- sets of weights --------------------------------------------------------------------------------------------------

KernelGroups = Mapping[str, str | Sequence[str]] | Sequence[str] | None
"""Names of kernels, or a pattern of names, by group; or the group of each kernel."""
Prices = float | Sequence[float] | Mapping[str, float]
Given = Sequence[float] | Mapping[str, float] | xr.DataArray | None
"""Weights of all kernels, in their order or by name."""
Constraints = Callable[[Any], Any] | None


@dataclass(frozen=True, eq=False)
class WeightRules:
    """Parameters of the set of feasible weights that are not the norm p, as in `MKFDA`; `given` are its `weights`."""

    kernel_groups: Any = None
    sigma: Any = 1.0
    constraints: Any = None
    given: Given = None

    @property
    def beyond(self) -> str:
        """The parameter that makes the set more than a ball with prices; empty if there is none."""
        return "constraints" if self.constraints is not None else "" if self.kernel_groups is None else "kernel_groups"

    def check(self) -> None:
        """Refuse values that are wrong for any kernels, by InputError."""
        sigma = by_name(self.sigma)
        check_positive("sigma", list(sigma.values()) if isinstance(sigma, Mapping) else sigma)
        if self.given is not None and (self.kernel_groups is not None or self.constraints is not None):
            refuse("weights are given, so that kernel_groups and constraints have nothing to restrict; leave them out")
        if isinstance(self.constraints, str):
            refuse(
                f"constraints is {self.constraints}, the text that a saved model keeps of a function; to fit, give the "
                "function again (prediction needs only the weights)"
            )
        if not (self.constraints is None or callable(self.constraints)):
            refuse(
                "constraints must be a function of the weights d that returns constraints of cvxpy, such as "
                f"lambda d: [d['rna'] >= d['noise']], got {self.constraints!r}"
            )

    def weights(self, p: float, names: Sequence[str]) -> WeightSet:
        """The set of weights of these kernels for a norm p; InputError for unknown kernels or contradictions."""
        if self.given is not None:
            return GivenWeights(tuple(given_weights(self.given, names).tolist()))
        unpriced = isinstance(self.sigma, float | int) and self.sigma == 1
        if self.constraints is None and self.kernel_groups is None and unpriced:
            return Ball(p)  # fast, since a permutation test makes tens of thousands
        groups, sigma = self._groups(names), self._prices(names)
        if self.constraints is None:
            ball = Ball(p) if self.kernel_groups is None else grouped(p, groups)
            return ball if all(price == 1 for price in sigma) else Priced(ball, sigma)
        from dmkl.solvers.knowledge import conic_set, norm_constraints

        try:
            feasible = conic_set(self.constraints, names)
        except UnboundedSetError:
            norm = partial(norm_constraints, p=p, groups=groups, sigma=sigma)
            return conic_set(self.constraints, names, norm)
        if self.kernel_groups is not None or any(price != 1 for price in sigma):
            refuse(
                "kernel_groups and sigma belong to the norm, which constraints that bound all weights replace; leave "
                "them out, or write the norm as a constraint"
            )
        return feasible

    def texts(self, names: Sequence[str]) -> dict[str, str]:
        """The constraints and the given weights as text that is the same in every process."""
        given = None if self.given is None else given_weights(self.given, names).tolist()
        if self.constraints is None:
            return {"constraints": "None"} | ({} if given is None else {"weights": repr(given)})
        from dmkl.solvers.knowledge import digest

        return {"constraints": digest(self.constraints, names)}

    def _groups(self, names: Sequence[str]) -> list[list[int]]:
        """Positions of the kernels of each group; a kernel without group is a group of its own."""
        given = self.kernel_groups
        if given is None:
            return [list(range(len(names)))]
        if isinstance(by_name(given), Mapping) and not isinstance(given, Mapping):
            way_out = "{group: list(names) for group, names in series.groupby(series).groups.items()}"
            refuse(f"kernel_groups maps groups to names of kernels, and a series has the other order; give {way_out}")
        if isinstance(given, Mapping):
            label = _labels(given, names)
        else:
            label = np.asarray(given).astype(str).tolist()
            if np.ndim(given) != 1 or len(label) != len(names):
                refuse(
                    f"kernel_groups must map groups to names of kernels, or name the group of each of the {len(names)} "
                    f"kernels; got shape {np.shape(given)}"
                )
        groups = by_key(range(len(label)), lambda k: (k,) if label[k] is None else label[k])
        return list(groups.values())

    def _prices(self, names: Sequence[str]) -> tuple[float, ...]:
        """σ of each kernel; 1 for kernels that a mapping does not name."""
        sigma = by_name(self.sigma)
        if isinstance(sigma, Mapping):
            for name in sigma:
                _check_name(name, names, "sigma has a price for")
            return tuple(float(sigma.get(name, 1.0)) for name in names)
        prices = check_positive("sigma", sigma)
        if np.ndim(sigma) == 0:
            return (prices[0],) * len(names)
        if len(prices) != len(names):
            refuse(f"sigma has {len(prices)} prices, expected one number, or one for each of the {len(names)} kernels")
        return tuple(prices)


def given_weights(given: Given, names: Sequence[str]) -> Float:
    """Weights that a user gives, as (n,) numbers: one for each of these kernels, 0 or more, not all zero."""
    if isinstance(given, str):
        refuse(f"weights must be numbers, one for each kernel, got {given!r}; weights='shared' is for MKRidge")
    given = by_name(given)
    has_names = isinstance(given, Mapping | xr.DataArray)
    if isinstance(given, xr.DataArray):
        if given.dims != ("kernel",) or "kernel" not in given.coords:
            refuse(f"weights must be over the dimension 'kernel', with the names of kernels, got {given.dims}")
        given = dict(zip(given["kernel"].values.tolist(), given.values.tolist(), strict=True))
    if isinstance(given, Mapping):
        for name in given:
            _check_name(name, names, "weights has a weight for")
        missing = [name for name in names if name not in given]
        if missing:
            refuse(f"weights lacks the kernel {missing[0]!r}; give one for each kernel, 0 to leave it out")
        given = [given[name] for name in names]
    weights = np.asarray(given, dtype=np.float64)
    if weights.shape != (len(names),) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
        values = f"shape {weights.shape}" if weights.shape != (len(names),) else plain_repr(weights)
        refuse(
            f"weights must be {len(names)} finite numbers, one for each kernel{' by name' if has_names else ''}, none "
            f"negative and not all zero; got {values}"
        )
    return weights


def _labels(groups: Mapping[str, str | Sequence[str]], names: Sequence[str]) -> list[str | None]:
    """The group of each kernel, or None."""
    label: dict[str, str] = {}
    for group, pattern in groups.items():
        members = list(pattern) if not isinstance(pattern, str) else fnmatch.filter(names, pattern)
        if not members:
            refuse(
                f"kernel_groups: no kernel is in the group {group!r} ({pattern!r}); its kernels are names, or a pattern"
            )
        for name in members:
            _check_name(name, names, f"the group {group!r} of kernel_groups has")
            if label.setdefault(name, group) != group:
                refuse(f"kernel_groups has {name!r} in the groups {label[name]!r} and {group!r}, expected one of them")
    return [label.get(name) for name in names]


def _check_name(name: str, names: Sequence[str], context: str) -> None:
    if name not in names:
        listed = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        refuse(f"{context} kernel {name!r}, which this set does not have; its kernels are {listed}")


# --- parameters as JSON -----------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """A value as JSON: infinity and NaN as text, since JSON lacks them, and a splitter object by its `repr`."""
    if type(value) in LOSSES.values():
        options = {name: encode(option) for name, option in vars(value).items()}
        return {"loss": {"name": next(name for name, kind in LOSSES.items() if kind is type(value))} | options}
    if isinstance(value, ConfiguredSolver):
        return {"solver": {"name": value.name} | {name: encode(option) for name, option in vars(value).items()}}
    if isinstance(value, float | np.floating) and not np.isfinite(value):
        return {"float": str(float(value))}
    if isinstance(value, list | tuple | np.ndarray):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if is_instance(value, "pandas", "DataFrame"):
        value = xr.DataArray(value, dims=("kernel", "target"))
    if isinstance(value, xr.DataArray):  # weights over kernel (and target), read back as a mapping
        value = value.transpose("kernel", ...)
        value = dict(zip(value["kernel"].values.tolist(), value.values.tolist(), strict=True))
    if hasattr(value, "items"):  # a mapping, or a series
        return {"mapping": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, Covariates):
        return {"covariates": [list(value.samples), list(value.columns), value.design.tolist()]}
    return value if isinstance(value, str | int | float | bool | type(None)) else {"text": repr(value)}


def decode(value: Any) -> Any:
    """The value that `encode` has written; lists become tuples."""
    if isinstance(value, dict):
        if "mapping" in value:
            return {decode(key): decode(item) for key, item in value["mapping"]}
        if "covariates" in value:
            samples, columns, design = value["covariates"]
            return Covariates(tuple(samples), tuple(columns), np.array(design).reshape(len(samples), len(columns)))
        for key, kinds in (("solver", CONFIGURABLE), ("loss", LOSSES)):
            if key in value:
                options = {name: decode(option) for name, option in value[key].items()}
                return kinds[options.pop("name")](**options)
        return float(value["float"]) if "float" in value else value["text"]
    return tuple(decode(item) for item in value) if isinstance(value, list) else value
