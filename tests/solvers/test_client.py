"""On a cluster the client solves no master and factorizes no matrix: its workers do."""

from unittest.mock import Mock

import clarabel
import pytest
from dask.distributed import Client
from helpers.margin import made
from helpers.references import in_memory, local_cluster

import dmkl
from dmkl.numerics.cholesky import Cholesky
from dmkl.solvers import in_memory as small_kernels
from dmkl.solvers import masters

N = 101
"""Kernels, from which on the curvature of MK-FDA is kept as a factor."""


@pytest.fixture(scope="module")
def kernels():
    """More kernels than samples, labels, and a worker in another process."""
    kernels, y = made(N, 40, seed=3)
    with local_cluster(1) as cluster, Client(cluster):
        yield in_memory(kernels, 25), y


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(dmkl.GMKL(1.0, 100.0), marks=pytest.mark.slow),  # its worker compiles first
        dmkl.MKSVM(1.0, 1.0),
        dmkl.MKFDA(1.0, 0.1, solver="direct"),
        dmkl.MKFDA(1.5, 0.1, solver="direct"),
        dmkl.MKFDA(1.5, 0.1, solver="cg"),
        dmkl.MKFDA(1.5, 0.1, solver="subspace"),
    ],
    ids=repr,
)
def test_masters_and_factors_are_those_of_workers(kernels, model, monkeypatch):
    """The functions that compute them raise in this process; those of the worker are unchanged."""
    K, y = kernels
    monkeypatch.setattr(small_kernels, "suits", lambda *_, **__: False)  # kernels that do not fit a task
    for owner, name in ((clarabel, "DefaultSolver"), (Cholesky, "of"), (masters, "newton_master")):
        monkeypatch.setattr(owner, name, Mock(side_effect=AssertionError("the client computes what a worker should")))
    model.fit(K, y.astype(int))
    assert model.gap_ <= model.tol
    assert model.n_passes_ > 2
