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
WRONG = {
    **dict.fromkeys(NUMBERS, (np.inf, np.nan, -1, "much", [[1.0]], 10**400)),
    **dict.fromkeys(COUNTS, (np.inf, np.nan, -1, 1.5, "many", True)),
    "p": (0.5, np.nan, "high", [[1.0]], 10**400),
}
K = dmkl.create(None, [np.eye(8) + 1, np.diag(np.arange(8) + 1.0)], labels=np.arange(8) % 2)
CASES = [
    (model, name)
    for model in models().values()
    for name in inspect.signature(model).parameters
    if name in WRONG and not (model is dmkl.GSMKL and name == "lam")  # of the square loss alone
]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_numbers_that_break_a_rule(model, name):
    for value in WRONG[name]:
        with pytest.raises(InputError, match=rf"\b{name}\b"):
            model(**{name: value}).fit(K)
