"""What pytest needs outside of `tests`: the number of its processes, and a place for the examples of docstrings."""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For ``-n auto`` as many as this process has cores, and not the physical cores of the machine."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # xdist reads it
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def pytest_configure(config: pytest.Config) -> None:
    """Give processes that run tests side by side one thread of BLAS each: more would wait for one another."""
    if getattr(config.option, "numprocesses", None):
        for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(variable, "1")  # the processes inherit it


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory):
    """A folder with ``kernels.zarr``: three kernels of the irises, with labels and a split."""
    import numpy as np
    from sklearn.datasets import load_iris
    from sklearn.metrics.pairwise import rbf_kernel

    import dmkl

    folder = tmp_path_factory.mktemp("examples")
    X, y = load_iris(return_X_y=True)
    kernels = {"sepals": rbf_kernel(X[:, :2]), "petals": rbf_kernel(X[:, 2:]), "all": rbf_kernel(X)}
    dmkl.create(folder / "kernels.zarr", kernels, labels=y, splits=np.where(np.arange(len(y)) % 3, 0, 2))
    return folder


@pytest.fixture(autouse=True)
def _in_example_folder(request):
    """Examples of docstrings run beside their kernels, and leave nothing in the source tree."""
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("example_folder"))
