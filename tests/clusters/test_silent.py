"""Workers that the scheduler lists and that give no answer, and warnings of tasks."""

import json
import os
import signal
from contextlib import ExitStack
from functools import partial

import dask
import numpy as np
import pytest
from distributed import Client, Worker
from helpers.references import local_cluster

import dmkl
from dmkl.errors import FeatureWarning, NoWorkersError, SilentWorkerWarning, warn
from dmkl.passes import execute
from dmkl.passes.execute import machine, run_tasks, send_all


@pytest.fixture
def silent(monkeypatch):
    """A cluster of `n` good workers and one whose address nobody can reach; all in this process."""
    monkeypatch.setattr(execute, "_TOLD", set())
    seconds = {"dmkl.workers-timeout": 2, "distributed.comm.timeouts.connect": "0.2s"}
    with ExitStack() as running:
        running.enter_context(dask.config.set(seconds))

        def start(n_good):
            cluster = running.enter_context(local_cluster(n_good, processes=False, protocol="tcp://", silence_logs=50))
            client = running.enter_context(Client(cluster))
            options = {"nthreads": 1, "contact_address": "tcp://127.0.0.1:1"}
            cluster.worker_spec["nowhere"] = {"cls": Worker, "options": options}
            cluster.sync(cluster._correct_state)
            client.wait_for_workers(n_good + 1)
            return client

        yield start


@pytest.mark.slow
@pytest.mark.filterwarnings("always::dmkl.errors.SilentWorkerWarning")
def test_a_worker_that_cannot_be_reached_is_named_and_left_out(run, stored, tmp_path, silent):
    client = silent(1)
    place = [stored.view.source.location, "--cluster", client.scheduler.address]
    grid = ["--cv", "2", "-p", "1", "--lam", "1", "--no-refit"]
    status, _, err = run("search", *place[:1], tmp_path / "found", *place[1:], *grid)
    assert status == 0, err
    assert "dmkl: warning: 1 of 2 workers are given no tasks (tcp://127.0.0.1:1): they give no answer." in err
    assert "--contact-address" in err
    status, out, err = run("preflight", *place, "--json")
    assert status == 1
    good, bad = json.loads(out)["hosts"]
    assert (good["problems"], good["silent"], good["workers"]) == ([], False, 1)
    assert (bad["workers"], bad["silent"], bad["versions"]) == (1, True, {})
    assert bad["problems"][0].startswith("workers on 127.0.0.1 give no answer (tcp://127.0.0.1:1).")


def test_a_cluster_that_cannot_be_reached_is_refused_with_its_addresses(error_of, stored, silent):
    client = silent(0)
    err = error_of("check", stored.view.source.location, "--cluster", client.scheduler.address)
    assert f"the cluster at {client.scheduler.address} gives an answer within 2 s (tcp://127.0.0.1:1)." in err
    with pytest.raises(NoWorkersError, match=r"\(tcp://127\.0\.0\.1:1\).*--contact-address.*dmkl\.workers-timeout"):
        dmkl.MKFDA().fit(stored)


# --- processes that are suspended -----------------------------------------------------------------------------------
@pytest.fixture
def two(monkeypatch, request):
    """The processes of two workers, by address; the scheduler removes one after some time without a message."""
    monkeypatch.setattr(execute, "_TOLD", set())
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": request.param, "dmkl.workers-timeout": 5}),
        local_cluster(2, silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        yield client.run(os.getpid)


@pytest.mark.slow
@pytest.mark.parametrize("two", ["300s"], indirect=True)
@pytest.mark.parametrize("first_seen", [True, False])
def test_a_worker_that_is_suspended_before_a_pass_is_left_out(two, stored, monkeypatch, first_seen):
    (address, pid), (good, _) = two.items()
    if not first_seen:
        machine()
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as soon:
        soon.setattr(execute, "_SECONDS", 0.5)
        soon.setattr(execute, "_NAMED_SECONDS", 1.0)
        with pytest.warns(SilentWorkerWarning) as warned:
            send_all({"one": 1, "two": 2}, broadcast=False)
    assert f"waiting up to 5 s for workers without an answer ({address})" in str(warned[0].message)
    assert f"1 of 2 workers are given no tasks ({address}): they give no answer" in str(warned[-1].message)
    assert machine().workers == (good,)
    model = dmkl.MKFDA(p=2, solver="cg").fit(stored)
    with dask.config.set(scheduler="threads"):
        np.testing.assert_allclose(model.weights_, dmkl.MKFDA(p=2, solver="cg").fit(stored).weights_, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("two", ["5s"], indirect=True)
def test_a_worker_that_is_suspended_in_a_pass_is_named_and_gone_on_without(two, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "_SILENT_SECONDS", 2.0)
    # Text, whose evaluation imports nothing: an import that takes all time of a process is silence too.
    mark, stop = str(tmp_path / "stopped"), "__import__('signal').raise_signal(19)"
    once = f"__import__('os').path.exists({mark!r}) or (open({mark!r}, 'w').close(), {stop})"
    words = r"has sent no message for 2 s.* until 5 s .*scheduler\.worker-ttl"
    with dask.config.set({"dmkl.workers-timeout": 60}), pytest.warns(SilentWorkerWarning, match=words) as warned:
        results = run_tasks("stop", [partial(eval, once), *(partial(int, k) for k in range(2, 6))])
    assert results == [True, 2, 3, 4, 5]
    assert any(address in str(warned[0].message) for address in two)


# --- warnings of tasks ----------------------------------------------------------------------------------------------
def test_warnings_of_tasks_reach_their_client_once(client):
    with Client(client.scheduler.address, set_as_default=False) as other:
        with pytest.warns(FeatureWarning) as warned:
            run_tasks("warn", [partial(warn, "features are odd", FeatureWarning)] * 2)
        other.sync(other.scheduler.identity)
    assert {(str(warning.message), warning.filename) for warning in warned} == {("features are odd", __file__)}


@pytest.mark.slow
def test_no_raw_warning_of_a_process_is_printed(capfd):
    with dmkl.cluster("local", workers=1) as client:
        client.submit(np.log, 0.0).result()
    assert "Warning" not in capfd.readouterr().err
    assert "PYTHONWARNINGS" not in os.environ
