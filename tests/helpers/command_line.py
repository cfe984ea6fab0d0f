"""Fixtures of command line tests: a set, a model, and functions that run a command in this process."""

import json
import math

import numpy as np
import pytest

import dmkl
from dmkl.cli.main import main
from dmkl.progress import ConsoleWatch

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
