"""Places of computation of commands and programs: threads, processes, running schedulers."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest
from distributed import get_client

import dmkl
from dmkl.cli.cluster import Resources
from dmkl.clusters.backends import _deferred_interrupts
from dmkl.clusters.workers import REUSE_OF_MEMORY
from dmkl.passes.execute import machine


@pytest.mark.slow
def test_a_local_cluster_that_this_machine_alone_can_reach(output_of, tmp_path, store, monkeypatch):
    seen = {}

    def fit(self, *given, whole=dmkl.MKFDA.fit, **named):
        client = get_client()
        seen["workers"] = client.sync(client.scheduler.identity, n_workers=-1)["workers"].values()
        seen["budgets"] = client.run(lambda: __import__("dmkl.settings").settings.memory_budget_bytes())
        seen["reuse"] = client.run(lambda: {name: int(os.environ[name]) for name in REUSE_OF_MEMORY})
        here = psutil.Process()
        processes = (here, *here.children(recursive=True))
        connections = [one for process in processes for one in process.net_connections(kind="tcp")]
        seen["listening"] = [one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN]
        return whole(self, *given, **named)

    monkeypatch.setattr(dmkl.MKFDA, "fit", fit)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")  # as after a LocalCluster of the user in this process
    output_of("fit", store, tmp_path / "model", "--cluster", "local", "--workers", 2, "--memory", "1GiB", "--p", 1)
    assert [worker["nthreads"] for worker in seen["workers"]] == [1, 1]
    assert all(2**29 < worker["memory_limit"] < 2**30 for worker in seen["workers"])
    assert set(seen["budgets"].values()) == {2**30}
    assert list(seen["reuse"].values()) == [REUSE_OF_MEMORY] * 2
    assert len(seen["listening"]) >= 3
    assert set(seen["listening"]) == {"127.0.0.1"}


def test_a_scheduler_that_is_there(run, error_of, tmp_path, store, cluster):
    address = cluster.scheduler_address
    status, out, err = run("check", store, "--cluster", address)
    assert (status, "0 errors" in out) == (0, True)
    assert f"dashboard of the cluster: {cluster.dashboard_link}" in err
    assert ("dask[diagnostics]" in err) == (importlib.util.find_spec("bokeh") is None)
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": address}))
    with Resources(cluster={"where": str(file)}).computing() as client:
        assert client.scheduler.address == address
    assert "--workers is for" in error_of("check", store, "--cluster", address, "--workers", 3)


def test_places_where_nothing_computes(error_of, tmp_path, store, monkeypatch):
    monkeypatch.setattr("dmkl.clusters.backends._CONNECT_SECONDS", 0.5)
    (tmp_path / "scheduler.json").write_text("{}")
    for place, words in (
        ("127.0.0.1:1", "no scheduler answers at 127.0.0.1:1"),
        ("lokal", "--cluster takes 'local'"),
        (tmp_path / "scheduler.json", "not one that a scheduler wrote"),
        ("slurm queue", "options such as queue=short, got 'queue'"),
        ("slurm 'queue=short", "No closing quotation"),
        ("slurm memory=1GiB", "--memory 2GiB and memory=1GiB in --cluster say the same"),
        ("threads queue=short", "threads takes only workers and memory, got queue"),
    ):
        assert words in error_of("check", store, "--cluster", place, "--memory", "2GiB")
    assert "dmkl.memory" in error_of("check", store, "--memory", "plenty")


def test_an_interrupt_waits_until_processes_are_started_and_does_not_reach_them():
    code = "import signal; assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])"
    reached = []

    def start():
        with _deferred_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append(subprocess.run([sys.executable, "-c", code], check=True))

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_threads_are_as_many_as_asked():
    with Resources(cluster={"where": "threads"}, workers=3, memory="1GiB").computing() as client:
        assert client is None
        assert (machine().slots, machine().total_bytes) == (3, 2**30)


@pytest.mark.parametrize(("n_bytes", "place"), [(0, "threads"), (256 * 2**20, "threads"), (256 * 2**20 + 1, "local")])
def test_processes_are_started_for_large_sets_alone(monkeypatch, n_bytes, place):
    started = nullcontext(SimpleNamespace(dashboard_link=""))
    monkeypatch.setattr("dmkl.clusters.backends._processes", lambda workers: started)
    with Resources().computing(SimpleNamespace(bytes_per_pass=n_bytes, view=SimpleNamespace(source=None))) as client:
        assert (client is None) == (place == "threads")
