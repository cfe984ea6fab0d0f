"""Fixtures: small kernel sets on disk, all Dask schedulers, an object store, and commands in this process."""

import gc
import json
import math
import os
import signal
import threading
from unittest.mock import patch

# One BLAS thread in each process: matrices are small, and threads of parallel tests would wait for one another.
# Child processes read these variables; this process may have loaded NumPy already, and uses the fixture below.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "DASK_DMKL__BLAS_THREADS": "1"}

import dask
import numpy as np
import pytest
from distributed import Client
from helpers.references import local_cluster, psd
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

import dmkl
from dmkl.cli.main import main
from dmkl.learners.saving import MODELS
from dmkl.learners.saving import models as all_models
from dmkl.progress import ConsoleWatch

# Background processes of a shell ignore Ctrl-C, and their child processes, which tests interrupt, inherit this.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples on every machine, for reproducible results; "random" searches for new examples.
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
    """Exclude loaded objects from garbage collection: each traversal of them takes 0.2 seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Use one thread, which is fastest for small cases; tests of other schedulers set these."""
    with threadpool_limits(1, "blas"), dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def rounds(monkeypatch):
    """Solve small sets in rounds, like large sets."""
    from dmkl.solvers.fisher.subspace import solver

    monkeypatch.setattr(solver, "_WHOLE", 0)


@pytest.fixture(scope="session")
def cluster():
    """Two worker processes on this machine, mostly idle, with rare self-monitoring."""
    watching = {"worker.profile.enabled": False, "admin.tick.interval": "1s", "admin.system-monitor.interval": "1h"}
    with dask.config.set({f"distributed.{key}": value for key, value in watching.items()}), local_cluster(2) as running:
        yield running


@pytest.fixture
def client(cluster):
    """A client of the two processes, which run all computations while it is open."""
    with Client(cluster) as connected:
        yield connected


@pytest.fixture(params=["synchronous", "threads", "processes"])
def scheduler(request):
    """Every scheduler of passes: this thread, threads of this process, processes of a cluster."""
    if request.param == "processes":
        request.getfixturevalue("client")
        yield request.param
        return
    with dask.config.set(scheduler=request.param):
        yield request.param


@pytest.fixture(params=["whole", "apart", "together"])
def cutting(request, monkeypatch):
    """Fix how passes reduce tiles to the selected samples, instead of a choice by cost."""
    costs = {"_GATHER": np.inf} if request.param == "whole" else {"_GATHER": 1e-9, "_ADD": 0.0, "_CALL": 0.0}
    costs["SMALL"] = 0
    if request.param == "apart":
        costs["_MOST_SUBSETS"] = 1
    for name, cost in costs.items():
        monkeypatch.setattr(f"dmkl.passes.sweep.{name}", cost)


@pytest.fixture
def tasks_of_parts(monkeypatch):
    """Use several tasks for each kernel in passes over small sets; the default is one task."""
    monkeypatch.setattr("dmkl.passes.view._SMALLEST", 1)


@pytest.fixture(scope="session")
def dense():
    """The kernels of `stored`: 4 kernels over 23 samples."""
    return psd(4, 23)


@pytest.fixture(scope="session")
def stored(tmp_path_factory, dense):
    """A set with names, labels and splits, in ragged tiles (23 = 4 × 5 + 3)."""
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
    """The learners by name; learners that a test defines are removed afterwards."""
    before = dict(all_models())
    yield MODELS
    MODELS.clear()
    MODELS.update(before)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory):
    """The environment that directs s3:// to a server in this process with one empty bucket, "data"."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    nothing = tmp_path_factory.mktemp("aws") / "none"
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(nothing),
        "AWS_SHARED_CREDENTIALS_FILE": str(nothing),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with patch.dict("os.environ", environment):
        from s3fs import S3FileSystem

        S3FileSystem.clear_instance_cache()  # those that tests before this one made have no credentials
        S3FileSystem(use_listings_cache=False).mkdir("data")
        yield environment
    server.stop()


@pytest.fixture
def bucket(tmp_path):
    """A URL in the memory of this process, different for each test; faster, for tests that suit any store."""
    return f"memory://data/{tmp_path.name}"


# --- the command line ------------------------------------------------------------------------------------------------
M = 45
SET = {"names": ["clear", "fair", "poor", "noise"], "samples": [f"s{i:02}" for i in range(M)], "tile": 16}


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command; return its exit status, standard output and standard error."""
    # No lines of progress on slow machines: they appear after some time.
    monkeypatch.setattr(ConsoleWatch.__init__, "__defaults__", (None, math.inf))

    def call(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def succeed(run):
    """Run a command that succeeds; return its standard output and standard error."""

    def call(*arguments):
        status, out, err = run(*arguments)
        assert status == 0, err
        return out, err

    return call


@pytest.fixture
def output_of(succeed):
    """Run a command that succeeds; return its standard output."""
    return lambda *arguments: succeed(*arguments)[0]


@pytest.fixture
def notes_of(succeed):
    """Run a command that succeeds; return its standard error."""
    return lambda *arguments: succeed(*arguments)[1]


@pytest.fixture
def json_of(output_of):
    """Run a command that succeeds; return its parsed --json output."""
    return lambda *arguments: json.loads(output_of(*arguments, "--json"))


@pytest.fixture
def error_of(run):
    """Run a command that fails; return its error message."""

    def call(*arguments):
        status, out, err = run(*arguments)
        assert (status, out) == (1, ""), out
        assert err.splitlines()[-1].startswith("dmkl: error: ")
        assert "Traceback" not in err
        return err

    return call


@pytest.fixture(scope="module")
def classes():
    return np.array(["apple", "pear", "plum"])[np.arange(M) % 3]


@pytest.fixture(scope="module")
def kernels(classes):
    """Three kernels related to the classes, to different degrees, and one of noise."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((3, 4)) * 2
    kernels = []
    for noise in (0.5, 1.0, 2.0, 50.0):
        features = centers[np.arange(M) % 3] + noise * rng.standard_normal((M, 4))
        distances = ((features[:, None] - features[None]) ** 2).sum(axis=2)
        kernels.append(np.exp(-distances / np.median(distances)))
    return np.array(kernels)


@pytest.fixture(scope="module")
def store(tmp_path_factory, kernels, classes):
    split = np.zeros((2, M), dtype=int)
    split[0, 30:40], split[0, 40:] = 2, 1
    split[1, ::4] = 2
    path = tmp_path_factory.mktemp("cli") / "set.zarr"
    return dmkl.create(path, kernels, labels=classes, splits=split, **SET).view.source.location


@pytest.fixture(scope="module")
def plain(tmp_path_factory, kernels, classes):
    """The kernels of `store` without splits."""
    path = tmp_path_factory.mktemp("cli") / "plain.zarr"
    return dmkl.create(path, kernels, labels=classes, **SET).view.source.location


@pytest.fixture(scope="module")
def model(tmp_path_factory, store):
    """A model of split 0, fitted by `dmkl fit`."""
    path = tmp_path_factory.mktemp("cli") / "model"
    assert main(["fit", store, str(path), "--cluster", "threads", "--p", "1", "--split", "0"]) == 0
    return path
