"""Conditions under which an outcome is certified."""

import numpy as np
import pytest

from dmkl.numerics.fisher import relative_gap
from dmkl.solvers.interface import Outcome, Status


def test_bounds_that_contradict_each_other_prove_nothing():
    assert relative_gap(1.0, 0.75, 1.0) == 0.25
    assert relative_gap(-1.0, -1.25, -0.5) == 0.5
    assert relative_gap(1.0, 1.0 + 1e-12, 1.0) == 0.0
    assert relative_gap(1.0, 1.1, 1.0) == np.inf
    assert relative_gap(0.0, 0.0, 0.0) == 0.0
    assert relative_gap(np.nan, 0.0, 1.0) == np.inf


@pytest.mark.parametrize("gap", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("status", [Status.CERTIFIED, Status.FINISHED])
def test_nothing_is_certified_without_a_gap(status, gap):
    with pytest.raises(ValueError, match="certified by a finite gap"):
        Outcome(status, np.ones(1), None, 1.0, 1.0, gap)
