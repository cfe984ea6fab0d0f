"""Parameters of learners: numbers in their range, integers for counts, and valid words."""

import inspect

import numpy as np
import pytest

import dmkl
from dmkl.errors import InputError
from dmkl.learners.saving import models

NUMBERS = ("lam", "C", "nu", "tol", "sigma", "spread", "eigengap_weight")
COUNTS = ("max_iter", "restarts", "n_examples", "n_groups", "n_clusters", "n_probes", "random_state", "refine")
WORDS = ("decision", "grouping", "loss", "method", "multiclass", "shares", "sharing", "traces", "weighting")
WRONG = {
    **dict.fromkeys(NUMBERS, (np.inf, np.nan, -1, "much", [[1.0]], 10**400)),
    **dict.fromkeys(COUNTS, (np.inf, np.nan, -1, 1.5, "many", True)),
    **dict.fromkeys(WORDS, ("nothing", 0)),
    "p": (0.5, np.nan, "high", [[1.0]], 10**400),
}
K = dmkl.create(None, [np.eye(8) + 1, np.diag(np.arange(8) + 1.0)], labels=np.arange(8) % 2)
CASES = [(model, name) for model in models().values() for name in inspect.signature(model).parameters if name in WRONG]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_values_that_break_a_rule(model, name):
    for value in WRONG[name]:
        with pytest.raises(InputError, match=rf"\b{name}\b"):
            model(**{name: value}).fit(K)
