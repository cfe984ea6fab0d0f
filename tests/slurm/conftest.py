"""A SLURM for all tests of this folder, and jobs on it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from helpers.private_slurm import find_programs, private_slurm

_UNPACKED = Path(__file__).parents[2] / "build" / "slurm"


@pytest.fixture(scope="session")
def _running():
    root = find_programs(_UNPACKED)
    if root is None:
        told = "this machine has no SLURM: `make test-slurm` unpacks one from Debian packages"
        (pytest.fail if os.environ.get("DMKL_REQUIRE_SLURM") else pytest.skip)(told)
    # Not in pytest's own folder, whose path may be too long for a socket.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, private_slurm(root, Path(folder) / "s") as slurm:
        yield slurm


@pytest.fixture
def slurm(_running, monkeypatch, tmp_path):
    """A SLURM whose programs are on PATH, without jobs; what jobs print goes to a folder of the test."""
    monkeypatch.setenv("PATH", str(_running.bin), prepend=os.pathsep)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("dmkl.clusters.replacing._ASK_SECONDS", 0.5)
    yield _running
    assert _running.jobs() == []
