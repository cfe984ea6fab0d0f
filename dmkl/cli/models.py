"""Models by the names that commands have for them, made from the options that were given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import dmkl
from dmkl.cli.priors import read_constraints, read_prices
from dmkl.errors import InputError

__all__ = ["MODELS", "make"]

MODELS: dict[str, Any] = {
    "mkfda": dmkl.MKFDA,
    "mksvm": dmkl.MKSVM,
    "gmkl": dmkl.GMKL,
    "gsmkl": dmkl.GSMKL,
    "ncuts": dmkl.NCuts,
    "uniform": dmkl.Uniform,
    "single-best": dmkl.SingleBest,
    "product": dmkl.Product,
}
_PARAMETERS = {"constraints": "A", "groups": "n_groups", "examples": "n_examples"}
"""What estimators call an option, where it is not the same."""


def make(name: str, kernels: Sequence[str], **options: Any) -> Any:
    """Make an estimator that has its own defaults for every option that is None.

    Parameters
    ----------
    name
        One of `MODELS`.
    kernels
        The kernels' names, for prices and constraints that are in a file.
    **options
        By the names of the command line.

    Raises
    ------
    InputError
        If an option is for other models, or a file breaks a rule.
    """
    given = {option: value for option, value in options.items() if value is not None}
    _refuse_foreign(name, given)
    if "normalize" in given:  # where None is a value, the command line has a word for it
        given["normalize"] = None if given["normalize"] == "none" else given["normalize"]
    if "sigma" in given:
        given["sigma"] = read_prices(given["sigma"], kernels)
    if "constraints" in given:
        given["A"], given["b"] = read_constraints(given.pop("constraints"), kernels)
    for option in ("groups", "examples"):
        if option in given:
            given[_PARAMETERS[option]] = given.pop(option)
    return MODELS[name](**given)


def _refuse_foreign(name: str, options: Iterable[str]) -> None:
    known = {model: made().get_params() for model, made in MODELS.items()}
    for option in options:
        parameter = _PARAMETERS.get(option, option)
        if parameter not in known[name]:
            others = [model for model, parameters in known.items() if parameter in parameters]
            msg = (
                f"--{option.replace('_', '-')} is for --model {' or '.join(others)}, and {name} has no such parameter; "
                "leave it out"
            )
            raise InputError(msg)
