"""Numbers of learners: finite, in their range, whole where they count, and told with the rule where they are not."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import dmkl
from dmkl.errors import InputError
from dmkl.estimators.saving import models

NUMBERS = ("lam", "C", "tol", "sigma")
COUNTS = ("max_iter", "restarts", "n_examples", "n_groups", "random_state")
CASES = [
    (model, name, value)
    for model in models().values()
    for name in inspect.signature(model).parameters
    for value in {
        **dict.fromkeys(NUMBERS, (np.inf, np.nan, -1, "much", [[1.0]], 10**400)),
        **dict.fromkeys(COUNTS, (np.inf, np.nan, -1, 1.5, "many", True)),
        "p": (0.5, np.nan, "high", [[1.0]], 10**400),
    }.get(name, ())
    if not (model is dmkl.GSMKL and name == "lam")  # of the square loss alone
]


@pytest.fixture(scope="module")
def K():
    return dmkl.create(None, [np.eye(8) + 1, np.diag(np.arange(8) + 1.0)], labels=np.arange(8) % 2)


@pytest.mark.parametrize(("model", "name", "value"), CASES)
def test_numbers_that_break_a_rule(K, model, name, value):
    with pytest.raises(InputError, match=rf"\b{name}\b"):
        model(**{name: value}).fit(K)
