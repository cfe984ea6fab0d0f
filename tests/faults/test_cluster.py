"""Faults on a cluster: processes of the cluster or the command itself are killed during a command."""

import os
import re
import shutil
import signal

import dask
import psutil
import pytest
from helpers.faults import PHASES, Processes, child, disturbed, left, revived_workers, tasks_before, told

pytestmark = pytest.mark.slow

ON_CLUSTERS = [name for name in PHASES if name != "import"]


@pytest.mark.parametrize(
    ("victims", "phase"),
    [*(("one", phase) for phase in ON_CLUSTERS), *(("all", phase) for phase in ("build", "fit cg", "search"))],
)
def test_killed_workers_that_come_again_cost_their_share(goes_on, phase, victims):
    with revived_workers() as client:
        client.wait_for_workers(2, timeout=120)
        pids = list(client.run(os.getpid).values())[: 1 if victims == "one" else 2]

        def kill():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

        with disturbed(kill, tasks_before(phase)) as acted:
            goes_on(phase, client.scheduler.address)
        assert acted


@pytest.fixture
def processes(tmp_path):
    running = Processes(tmp_path)
    yield running
    running.kill(*running.workers, running.scheduler)


@pytest.mark.parametrize("phase", ["build", "fit direct", "search"])
def test_without_any_worker_a_line_says_so_and_the_same_command_goes_on(disturb, goes_on, places, processes, phase):
    cluster = str(processes.file)
    with dask.config.set({"dmkl.workers-timeout": 2}):
        status, (error,), notes = disturb(phase, lambda: processes.kill(*processes.workers), cluster=cluster)
    assert status == 1
    assert re.search(
        r"all workers of the cluster at \S+ have ended, the last at tcp://.* no other has come within 2 s", error
    )
    assert bool(notes) == left(places[1], phase) == PHASES[phase].state
    processes.add_workers()
    goes_on(phase, cluster)


def disturbed_child(name, phase, places, *more, cluster="threads", victim=0, moment=None):
    """Run a command in a child process that signals itself or `victim`; return its status, errors and notes."""
    command = [*PHASES[phase].command(*places, cluster), *more]
    process = child(command, name, moment or tasks_before(phase), victim)
    _, err = process.communicate()
    return process.returncode, *told(err)


@pytest.mark.parametrize(
    ("phase", "moment"),
    [
        *((phase, None) for phase in PHASES if phase not in ("fit cg", "fit subspace", "fit machines")),
        *((phase, 60) for phase in ("search", "permute", "stability", "importance")),
    ],
)
def test_a_killed_command_leaves_nothing_in_the_way(places, goes_on, phase, moment):
    """Of a command that is killed after some passes the same command goes on from them."""
    own, out = places
    assert disturbed_child("SIGKILL", phase, places, moment=moment) == (-signal.SIGKILL, [], [])
    kept = {"out.partial", "out.partial.lock"} if PHASES[phase].state else set()
    assert {entry.name for entry in out.parent.iterdir()} <= {"out.lock", *kept}
    for folder in (own.parent / "scratch").glob("dmkl-*"):  # left by the killed process
        shutil.rmtree(folder)
    err = goes_on(phase)
    assert not moment or int(re.findall(r"going on after pass (\d+)", err)[0]) >= 2


@pytest.mark.parametrize("phase", ["build", "fit direct", "search"])
def test_a_killed_scheduler_is_told_in_a_line(places, goes_on, processes, phase):
    victim, place = processes.scheduler.pid, str(processes.file)
    status, (error,), notes = disturbed_child("SIGKILL", phase, places, cluster=place, victim=victim)
    assert (status, processes.scheduler.wait()) == (1, -signal.SIGKILL)
    assert "the scheduler of the cluster went away during" in error
    assert "Start it again and run the same again" in error
    assert bool(notes) == left(places[1], phase) == PHASES[phase].state
    goes_on(phase)


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_processes_of_this_machine_end_with_a_command_that_is_ended(places, goes_on, name, status):
    before = set(psutil.pids())
    ended, errors, notes = disturbed_child(name, "search", places, "--workers", "2", cluster="local")
    assert ended == status, errors
    assert len(errors) == (name == "SIGTERM")
    assert "the same command continues after pass" in notes[0]
    workers = [pid for pid in set(psutil.pids()) - before if str(places[1].parents[1]) in _environment(pid)]
    assert not workers
    goes_on("search")


def _environment(pid):
    try:
        return psutil.Process(pid).environ().get("TMPDIR", "")
    except psutil.Error:
        return ""
