"""The labeled data that results are kept as: values of parameters, what describes the variables, reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from dmkl._version import __version__
from dmkl.arrays import Index
from dmkl.errors import InputError
from dmkl.estimators.saving import decode, encode
from dmkl.searching.folds import TEST, TRAIN, VALIDATION
from dmkl.searching.means import mean_and_error
from dmkl.solvers.outcome import WORDS
from dmkl.store.groups import CHECKSUM
from dmkl.store.saved import Saved
from dmkl.variables import describe, variable

__all__ = [
    "STATUS_FLAGS",
    "as_coordinate",
    "as_variable",
    "by_fold",
    "completed",
    "described",
    "folds_of",
    "nested",
    "read_dataset",
    "values_of",
]

STATUS_FLAGS = {"flag_values": np.arange(len(WORDS), dtype=np.int8), "flag_meanings": " ".join(WORDS)}
"""Attributes of variables that hold statuses."""

_NEEDED = ("score", "weight", "gap", "objective", "status")


def as_coordinate(name: str, values: Sequence[Any]) -> xr.Variable:
    """Values of a parameter as a coordinate of `SearchResult.scores`; see `as_variable`."""
    return as_variable(name, (name,), values)


def as_variable(name: str, dims: Sequence[str], values: Sequence[Any], shape: Sequence[int] = (-1,)) -> xr.Variable:
    """Values of a parameter as a variable of this shape: numbers as they are, all else by their text.

    What the text does not tell (None, truth values) is kept in the attribute "values", a JSON list. Parameters that
    `dmkl.variables` does not describe are described here: a learner may have any.
    """
    attrs = {} if variable(name) else {"long_name": f"parameter {name} of the estimator"}
    numbers = np.array(values) if all(isinstance(value, int | float | np.number) for value in values) else None
    if numbers is not None and numbers.dtype.kind in "iuf" and not any(isinstance(value, bool) for value in values):
        return xr.Variable(dims, numbers.reshape(shape), attrs | ({"units": "1"} if attrs else {}))
    texts = np.array([_text(value) for value in values]).reshape(shape)
    if all(isinstance(value, str) for value in values):
        return xr.Variable(dims, texts, attrs)
    return xr.Variable(dims, texts, attrs | {"values": json.dumps([encode(value) for value in values])})


def _text(value: Any) -> str:
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return "+".join(value) or "none"  # steps, as a command line takes them
    return value if isinstance(value, str) else repr(value)


def values_of(variable: xr.DataArray) -> list[Any]:
    """The values of a parameter as they were, in the order of the variable's elements."""
    if "values" in variable.attrs:
        return [decode(value) for value in json.loads(variable.attrs["values"])]
    return [value if variable.dtype.kind in "iuf" else str(value) for value in variable.values.ravel().tolist()]


def by_fold(scores: xr.Dataset) -> bool:
    """Whether each fold chooses for itself; files of before know of the joint choice alone."""
    return str(scores.attrs.get("choice", "joint")) == "fold"


def folds_of(scores: xr.Dataset) -> dict[str, tuple[Index, ...]]:
    """The rows that each fold trains, validates and tests on, by its name; see `SearchResult.folds`."""
    if "part" not in scores:
        msg = "this result does not know its folds, since an older version of dmkl made it; search or evaluate again"
        raise InputError(msg)
    parts = scores["part"].transpose("fold", "sample").values
    held_out = [part for part in (VALIDATION, TEST) if (parts == part).any()]
    return {
        str(name): tuple(np.flatnonzero(row == part) for part in (TRAIN, *held_out))
        for name, row in zip(scores["fold"].values, parts, strict=True)
    }


def completed(scores: xr.Dataset) -> xr.Dataset:
    """With the means and what describes the variables; the Dataset given stays as it is."""
    missing = [name for name in _NEEDED if name not in scores]
    dims = set(json.loads(scores.attrs.get("parameters_searched", "[]")))
    if missing or not dims or not {*dims, "fold"} <= set(scores["score"].dims):
        msg = (
            f"scores must have {', '.join(_NEEDED)}, the score over 'fold' and the dimensions of the attribute "
            f"'parameters_searched', found {', '.join(map(str, scores.data_vars)) or 'nothing'} with "
            f"{', '.join(map(str, scores.dims)) or 'no dimensions'}; dmkl.search and dmkl.load make such"
        )
        raise InputError(msg)
    scores = scores.copy()
    scores.attrs.setdefault("created_by", f"dmkl {__version__}")
    if not {"mean_score", "standard_error"} <= set(scores.data_vars):
        score = scores["score"]
        # The mean of one fold is its score, without an error.
        mean_error = (
            (score.drop_attrs(), xr.full_like(score.drop_attrs(), np.nan)) if by_fold(scores) else mean_and_error(score)
        )
        scores["mean_score"], scores["standard_error"] = mean_error
    if "round_bytes" in scores:
        # NetCDF 3 has no integers of 64 bits; counts up to 2⁵³ are exact as floats.
        scores["round_bytes"] = scores["round_bytes"].astype(np.float64)
    return described(scores)


def described(scores: xr.Dataset) -> xr.Dataset:
    """With names, units and flags that describe the variables, set in place; statuses of older files by their words."""
    meant = str(scores["status"].attrs.get("flag_meanings", STATUS_FLAGS["flag_meanings"])).split()
    codes = np.array([WORDS.index(word) if word in WORDS else len(WORDS) - 1 for word in meant], dtype=np.int8)
    status = scores["status"].values.astype(np.int64)
    known = np.where(status < 0, -1, codes[status]).astype(np.int8)  # −1: not fitted
    scores["status"] = scores["status"].copy(data=known).assign_attrs(STATUS_FLAGS)
    return describe(scores)


def nested(values: xr.Dataset, by: Sequence[str], tell: Callable[[xr.Dataset], Any]) -> Any:
    """What is told of each label of the dimensions `by`, as dicts in dicts; of all at once where there are none."""
    if not by:
        return tell(values)
    return {str(label): nested(values.isel({by[0]: k}), by[1:], tell) for k, label in enumerate(values[by[0]].values)}


def read_dataset(saved: Saved) -> xr.Dataset:
    """The labeled arrays of a result, with names as NumPy strings.

    Raises
    ------
    ValueError, RuntimeError
        If an array has missing values, or is not what was written.
    """
    stored = saved.dataset().drop_encoding()
    stored.attrs.pop(CHECKSUM, None)
    strings = {
        name: (variable.dims, variable.values.astype(object).astype(str), variable.attrs)
        for name, variable in stored.variables.items()
        if variable.dtype.kind in "OT"
    }
    return stored.assign(strings)
