"""Fixtures: a SLURM for all tests of this folder, and a watcher of its jobs."""

import os
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from helpers.private_slurm import find_programs, private_slurm

_UNPACKED = Path(__file__).parents[2] / "build" / "slurm"


@contextmanager
def _started(**options):
    root = find_programs(_UNPACKED)
    if root is None:
        told = "this machine has no SLURM: `make test-slurm` unpacks one from Debian packages"
        (pytest.fail if os.environ.get("DMKL_REQUIRE_SLURM") else pytest.skip)(told)
    # The path of pytest's own folder may be too long for a socket.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        private_slurm(root, Path(folder) / "s", **options) as slurm,
    ):
        yield slurm


@pytest.fixture(scope="session")
def _running():
    with _started() as slurm:
        yield slurm


@pytest.fixture
def slurm(_running, monkeypatch, tmp_path):
    """A SLURM without jobs, with its programs on PATH; output of jobs goes to a folder of the test."""
    monkeypatch.setenv("PATH", str(_running.bin), prepend=os.pathsep)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("dmkl.clusters.batch_jobs._ASK_SECONDS", 0.5)
    yield _running
    assert _running.jobs() == []


@pytest.fixture
def binding(monkeypatch):
    """A SLURM with two cores that binds tasks of steps to cores."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core has nothing to bind")
    with _started(cpus=2, bind=True) as slurm:
        monkeypatch.setenv("PATH", str(slurm.bin), prepend=os.pathsep)
        yield slurm


@pytest.fixture
def watched():
    """Watch schedulers and workers until all jobs end; return listening addresses and numbers of cores of workers."""

    def watch(slurm):
        addresses, cores = set(), set()
        while slurm.jobs("PENDING,RUNNING,COMPLETING"):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    if "SLURM_JOB_ID" not in process.environ():
                        continue
                    found = process.net_connections(kind="tcp")
                    addresses |= {one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN}
                    if "worker" in process.cmdline():
                        cores.add(len(process.cpu_affinity()))
            time.sleep(0.1)
        return addresses, cores

    return watch
