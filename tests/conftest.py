"""Fixtures: small kernel sets on disk, and every place where Dask can run."""

from __future__ import annotations

import gc
import os
import signal
import threading
from functools import cache

# One BLAS thread in each process: matrices are small, and threads of tests that run side by side wait for one another.
# Processes that tests start read it here; this one may have loaded NumPy, and has the fixture below.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "DASK_DMKL__BLAS_THREADS": "1"}

import dask
import numpy as np
import pytest
from distributed import Client
from helpers.command_line import (  # noqa: F401
    classes,
    error_of,
    json_of,
    kernels,
    model,
    notes_of,
    output_of,
    plain,
    run,
    store,
)
from helpers.references import local_cluster, psd
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

import dmkl
import dmkl.settings
from dmkl.estimators.saving import MODELS
from dmkl.estimators.saving import models as all_models

# What a shell starts in the background ignores Ctrl-C, and so would all programs that tests start and interrupt.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Every pass asks how much memory is free, and the answer takes a fifth of the time of a small fit.
dmkl.settings.free_bytes = cache(dmkl.settings.free_bytes)

# The same examples on every machine, so that what passes on one passes on the next; "random" looks for others.
settings.register_profile(
    "fast",
    deadline=None,
    max_examples=10,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.register_profile("random", settings.get_profile("fast"), max_examples=1000, derandomize=False)
settings.load_profile("fast")


def pytest_collection_finish():
    """Spare the garbage collector what is loaded by now: going through it takes a fifth of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Fastest for small cases; tests of other schedulers set them."""
    with threadpool_limits(1, "blas"), dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def rounds(monkeypatch):
    """Small sets are solved in rounds, as large ones are."""
    from dmkl.solvers.fisher.subspace import solver

    monkeypatch.setattr(solver, "_WHOLE", 0)


@pytest.fixture(scope="session")
def cluster():
    """Two worker processes on this machine; they wait most of the time, and hardly watch themselves meanwhile."""
    watching = {"worker.profile.enabled": False, "admin.tick.interval": "1s", "admin.system-monitor.interval": "1h"}
    with dask.config.set({f"distributed.{key}": value for key, value in watching.items()}), local_cluster(2) as running:
        yield running


@pytest.fixture
def client(cluster):
    """A client of the two processes; computations go there while it lasts."""
    with Client(cluster) as connected:
        yield connected


@pytest.fixture(params=["synchronous", "threads", "processes"])
def scheduler(request):
    """Every place where a pass can run: this thread, this process's threads, the processes of a cluster."""
    if request.param == "processes":
        request.getfixturevalue("client")
        yield request.param
        return
    with dask.config.set(scheduler=request.param):
        yield request.param


@pytest.fixture(params=["whole", "apart", "together"])
def cutting(request, monkeypatch):
    """How passes cut tiles down to the samples that are looked at; otherwise the cost of each says."""
    costs = {"_GATHER": np.inf} if request.param == "whole" else {"_GATHER": 1e-9, "_ADD": 0.0, "_CALL": 0.0}
    costs["SMALL"] = 0
    if request.param == "apart":
        costs["_MOST_SUBSETS"] = 1
    for name, cost in costs.items():
        monkeypatch.setattr(f"dmkl.passes.sweep.{name}", cost)


@pytest.fixture
def tasks_of_parts(monkeypatch):
    """Passes over sets of any size take some tasks for each kernel; small ones take one otherwise."""
    monkeypatch.setattr("dmkl.passes.view._SMALLEST", 1)


@pytest.fixture(scope="session")
def dense():
    """The kernels of `stored`: 4 kernels over 23 samples."""
    return psd(4, 23)


@pytest.fixture(scope="session")
def stored(tmp_path_factory, dense):
    """A set with every label there is, in ragged tiles (23 = 4 × 5 + 3)."""
    rng = np.random.default_rng(1)
    return dmkl.create(
        tmp_path_factory.mktemp("stored") / "set.zarr",
        dense,
        names=["rbf", "chi2", "linear", "string"],
        samples=[f"s{i:02}" for i in range(23)],
        labels=np.arange(23) % 3,
        splits=rng.integers(-1, 3, (2, 23)),
        tile=5,
    )


@pytest.fixture
def models():
    """The learners that there are by name; those that a test makes are gone after it."""
    before = dict(all_models())
    yield MODELS
    MODELS.clear()
    MODELS.update(before)
