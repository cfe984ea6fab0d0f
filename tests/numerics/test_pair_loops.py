"""The compiled loops: the same bits wherever they were compiled."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dmkl.numerics import functions
from dmkl.numerics.compiling import compiled


def chi2(x, y):
    with np.errstate(invalid="ignore"):
        return np.where(x == 0, y, (x - y) * (x - y) / (x + y))  # zeros are passed over without a division


STEPS = {"chi2": chi2, "minimum": np.minimum, "l1": lambda x, y: np.abs(x - y)}


def histograms(dtype):
    rng = np.random.default_rng(0)
    found = rng.random((41, 13)) * (rng.random((41, 13)) < 0.7)
    return found.astype(dtype)


def sums(name, dtype):
    X = histograms(dtype)
    total = np.zeros((len(X), len(X)), dtype)
    getattr(functions, f"add_{name}")(X, np.ascontiguousarray(X.T), total)
    return total


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", STEPS)
def test_sums_are_rounded_after_every_operation(name, dtype):
    X, total = histograms(dtype), np.zeros((41, 41), dtype)
    for x in X.T:
        total += STEPS[name](x[:, None], x[None, :])
    np.testing.assert_array_equal(sums(name, dtype), total)


DIGESTS = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from test_pair_loops import digests
print(digests())
"""


def digests():
    return " ".join(hashlib.sha256(sums(name, "f8")).hexdigest() for name in STEPS)


@pytest.mark.slow
def test_the_processor_they_are_compiled_for_does_not_show(tmp_path):
    here = Path(__file__).parent
    found = subprocess.run(
        [sys.executable, "-c", DIGESTS, str(here)],
        env={
            **os.environ,
            "PYTHONPATH": str(here.parents[1]),
            "NUMBA_CPU_NAME": "generic",
            "NUMBA_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == digests().split()


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
