"""Workers of another dmkl, and workers that end at a message that they cannot read."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager

import dask
import numpy as np
import pytest
from distributed import Client, get_task_stream
from helpers.references import local_cluster

import dmkl
from dmkl import progress
from dmkl.errors import InputError, NoWorkersError, OtherVersionWarning
from dmkl.passes.execute import run_tasks


@contextmanager
def worker_of_another_dmkl(client, folder):
    """Add a worker whose dmkl has a version, 0.0.9, and nothing else."""
    (folder / "dmkl").mkdir()
    (folder / "dmkl" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    before = len(client.nthreads())
    command = [sys.executable, "-m", "distributed.cli.dask_worker", client.scheduler.address, "--no-nanny"]
    command += ["--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as worker:
        try:
            client.wait_for_workers(before + 1, timeout=60)
            yield
        finally:
            worker.kill()


def test_workers_of_another_dmkl_are_given_no_tasks(run, client, tmp_path, stored):
    place = ["--cluster", client.scheduler.address]
    versions = f"dmkl 0.0.9, and this process runs dmkl {dmkl.__version__}"
    with worker_of_another_dmkl(client, tmp_path):
        with get_task_stream(client) as running, pytest.warns(OtherVersionWarning, match=re.escape(versions)) as warned:
            model = dmkl.MKFDA(p=2, solver="cg").fit(stored)
        assert "1 of 3 workers are given no tasks (tcp://127.0.0.1:" in str(warned[0].message)
        assert len({task["worker"] for task in running.data}) == 2
        status, _, err = run("fit", stored.view.source.location, tmp_path / "model", *place)
        assert (status, err.splitlines()[-1].partition(";")[0]) == (1, f"dmkl: error: 127.0.0.1 runs {versions}")
        status, out, _ = run("preflight", stored.view.source.location, *place, "--json")
        assert status == 1
        same, other = json.loads(out)["hosts"]
        assert (other["versions"], other["workers"], len(other["problems"])) == ({"dmkl": "0.0.9"}, 1, 1)
        assert (same["versions"]["dmkl"], same["workers"], same["problems"]) == (dmkl.__version__, 2, [])
    with dask.config.set(scheduler="threads"):
        expected = dmkl.MKFDA(p=2, solver="cg").fit(stored)
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-6)


def test_a_cluster_of_another_dmkl_is_refused_before_the_first_pass(tmp_path, stored, monkeypatch):
    begun = []
    monkeypatch.setattr(progress.Watch, "begin", lambda self, what, total: begun.append(what))
    with (
        local_cluster(0) as empty,
        Client(empty) as client,
        worker_of_another_dmkl(client, tmp_path),
        progress.watching(progress.Watch()),
        pytest.raises(InputError, match=rf"they run dmkl 0\.0\.9, .* dmkl {re.escape(dmkl.__version__)}; install"),
    ):
        dmkl.MKFDA(p=2, solver="cg").fit(stored)
    assert not begun


def test_a_scheduler_of_another_dmkl_is_refused(client, stored, monkeypatch):
    """It reads every graph before it sends tasks on."""
    monkeypatch.setattr(client, "run_on_scheduler", lambda function, text: "none")
    with pytest.raises(
        InputError, match=rf"the scheduler at tcp://\S+ runs dmkl none, .* {re.escape(dmkl.__version__)};"
    ):
        dmkl.MKFDA(p=2, solver="cg").fit(stored)


READ = []


def read_once():
    READ.append(1)
    if len(READ) > 1:
        raise ModuleNotFoundError
    return ReadOnce()


class ReadOnce:
    """What the scheduler reads, which passes it on, and no worker."""

    def __reduce__(self):
        return read_once, ()


@pytest.mark.slow
def test_workers_that_end_at_a_message_are_told_from_no_workers():
    with (
        dask.config.set({"dmkl.workers-timeout": 1}),
        local_cluster(1, processes=False, protocol="tcp://", silence_logs=50) as cluster,
        Client(cluster),
        pytest.raises(NoWorkersError, match=r"all workers of the cluster at \S+ have ended, .*cannot read a message"),
    ):
        run_tasks("read", [len], [ReadOnce()])
