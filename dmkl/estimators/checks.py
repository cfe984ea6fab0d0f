"""Checks of parameters, with messages that state the rule and the value."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dmkl.arrays import plain_repr
from dmkl.errors import InputError

__all__ = ["check_choice", "check_count", "check_numbers", "check_positive", "one_for_each"]


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices.

    Raises
    ------
    InputError
        Naming the choices.
    """
    if value not in choices:
        *others, last = map(repr, choices)
        msg = f"{name} must be {', '.join(others)} or {last}, got {plain_repr(value)}"
        raise InputError(msg)


def check_numbers(name: str, value: Any) -> list[float]:
    """The numbers of a parameter, one or several.

    Raises
    ------
    InputError
        If there are none, or a value is not a number.
    """
    if type(value) is float:  # fast, since a permutation test checks tens of thousands
        return [value]
    try:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"{name} must be a number, or a list of them, got {reprlib.repr(value)}"
        raise InputError(msg) from error
    if values.ndim != 1 or not len(values):
        msg = f"{name} must be a number, or a list of at least one, got {reprlib.repr(value)}"
        raise InputError(msg)
    return [float(item) for item in values]


def check_positive(name: str, value: Any, otherwise: str = "") -> list[float]:
    """The numbers of a parameter, one or several, refused if one of them is not positive and finite.

    Parameters
    ----------
    otherwise
        Another allowed value, for the message.

    Raises
    ------
    InputError
        Naming the parameter and the value.
    """
    values = check_numbers(name, value)
    for item in values:
        if not (np.isfinite(item) and item > 0):
            rule = "positive and finite" + (f", {otherwise}" if otherwise else "")
            msg = f"{name} must be {rule}, got {item!r}"
            raise InputError(msg)
    return values


def check_count(name: str, value: Any, least: int = 1) -> int:
    """A whole number, at least `least`.

    Raises
    ------
    InputError
        If the value is another one.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        msg = f"{name} must be a whole number, at least {least}, got {plain_repr(value)}"
        raise InputError(msg)
    return int(value)


def one_for_each(name: str, values: Sequence[float], n_problems: int) -> list[float]:
    """A list with a value for each problem, from one value for all or one for each.

    Raises
    ------
    InputError
        If there are several, and not one for each problem.
    """
    if len(values) not in (1, n_problems):
        msg = (
            f"{name} has {len(values)} values and there are {n_problems} problems to solve; give one number, or one "
            "for each (for each task of a multilabel set)"
        )
        raise InputError(msg)
    return list(values) * n_problems if len(values) == 1 else list(values)
