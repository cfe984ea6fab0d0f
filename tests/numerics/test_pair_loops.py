"""The compiled loops: the same bits as NumPy's, operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

from dmkl.numerics import functions
from dmkl.numerics.compiling import compiled


def chi2(x, y):
    with np.errstate(invalid="ignore"):
        return np.where(x == 0, y, (x - y) * (x - y) / (x + y))  # zeros are passed over without a division


STEPS = {"chi2": chi2, "minimum": np.minimum, "l1": lambda x, y: np.abs(x - y)}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", STEPS)
def test_sums_are_rounded_after_every_operation(name, dtype):
    rng = np.random.default_rng(0)
    X = (rng.random((41, 13)) * (rng.random((41, 13)) < 0.7)).astype(dtype)
    sums, expected = np.zeros((2, 41, 41), dtype)
    getattr(functions, f"add_{name}")(X, np.ascontiguousarray(X.T), sums)
    for x in X.T:
        expected += STEPS[name](x[:, None], x[None, :])
    np.testing.assert_array_equal(sums, expected)


def test_loops_run_where_nothing_compiled_can_be_kept(monkeypatch):
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])

    @compiled()
    def add_one(out):
        for i in range(len(out)):
            out[i] += 1

    out = np.zeros(3)
    add_one(out)
    np.testing.assert_array_equal(out, 1)
    assert add_one.__name__ == "add_one"
