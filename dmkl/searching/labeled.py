"""Parameters and statuses as labeled variables, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from dmkl.estimators.saving import decode, encode
from dmkl.solvers.outcome import WORDS
from dmkl.variables import variable

__all__ = ["STATUS_FLAGS", "as_variable", "values_of", "with_statuses"]

STATUS_FLAGS = {"flag_values": np.arange(len(WORDS), dtype=np.int8), "flag_meanings": " ".join(WORDS)}
"""Attributes of variables that hold statuses."""


def as_variable(name: str, dims: Sequence[str], values: Sequence[Any], shape: Sequence[int] = (-1,)) -> xr.Variable:
    """Values of a parameter as a variable of this shape: numbers as they are, all else as text.

    Values that cannot be read back from their text (None, booleans) are kept in the attribute "values", a JSON list.
    Parameters that `dmkl.variables` does not describe are described here: a learner may have any.
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
        return "+".join(value) or "none"  # steps, in the notation of the command line
    return value if isinstance(value, str) else repr(value)


def values_of(variable: xr.DataArray) -> list[Any]:
    """The original values of a parameter, in the order of the variable's elements."""
    if "values" in variable.attrs:
        return [decode(value) for value in json.loads(variable.attrs["values"])]
    return [value if variable.dtype.kind in "iuf" else str(value) for value in variable.values.ravel().tolist()]


def with_statuses(scores: xr.Dataset) -> xr.Dataset:
    """The scores with the statuses of this version; older files have others, and name them in an attribute."""
    meanings = str(scores["status"].attrs.get("flag_meanings", STATUS_FLAGS["flag_meanings"])).split()
    codes = np.array([WORDS.index(word) if word in WORDS else len(WORDS) - 1 for word in meanings], dtype=np.int8)
    status = scores["status"].values.astype(np.int64)
    status = np.where(status < 0, -1, codes[status]).astype(np.int8)  # −1: not fitted
    return scores.assign(status=scores["status"].copy(data=status).assign_attrs(STATUS_FLAGS))
