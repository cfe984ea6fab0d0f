"""Resources of a cluster's workers: the reported slots and memory, and the common task size."""

import warnings
from concurrent.futures import CancelledError
from functools import partial
from unittest.mock import Mock

import dask
import numpy as np
import pytest
from distributed import Client, Worker, get_task_stream
from helpers.references import local_cluster

from dmkl.errors import SmallWorkerWarning
from dmkl.passes import execute
from dmkl.passes.execute import machine, run_tasks
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns

GIB = 2**30


@pytest.mark.parametrize(
    ("sizes", "left_out"),
    [
        ([(8, 1)], []),
        ([(8, 1), (7, 4), (4, 1)], []),
        ([(8, 2), (3, 1)], [3]),
        ([(8, 1), (3, 1)], []),  # as frequent as the other
        ([(100, 1), (8, 2), (7, 2), (1, 4)], [1]),
    ],
)
def test_the_common_worker_sets_the_size(monkeypatch, sizes, left_out):
    monkeypatch.setattr(execute, "_TOLD", set())
    given = [execute.Worker(f"tcp://{size}", ("a", ""), slots, size, size * slots) for size, slots in sizes]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chosen = execute.common(given)
        assert execute.common(given) == chosen
    assert [worker.task_bytes for worker in given if worker not in chosen] == left_out
    assert [str(warning.message).partition(" (")[0] for warning in caught] == [
        f"1 of {len(sizes)} workers are given no tasks" for _ in left_out
    ]


@pytest.fixture
def unequal(monkeypatch):
    """Two workers with more memory and one with little, all in this process."""
    monkeypatch.setattr(execute, "_TOLD", set())
    unmanaged = {f"distributed.worker.memory.{what}": False for what in ("target", "spill", "pause")}
    with (
        dask.config.set(unmanaged),
        local_cluster(2, processes=False, protocol="tcp://", memory_limit="4GiB") as cluster,
        Client(cluster) as client,
    ):
        cluster.worker_spec["small"] = {"cls": Worker, "options": {"nthreads": 1, "memory_limit": "300MiB"}}
        cluster.sync(cluster._correct_state)
        client.wait_for_workers(3)
        yield client


def test_workers_are_asked_and_not_the_client(unequal, monkeypatch):
    monkeypatch.setattr(execute, "_look", lambda: ("job", 3 * GIB))
    monkeypatch.setattr("dmkl.settings.free_bytes", lambda: 1000)  # of the client
    with pytest.warns(SmallWorkerWarning, match=r"1 of 3 workers are given no tasks \(\S+\): a task may take 40 MiB"):
        common = machine()
    assert (common.slots, common.slots_per_host, len(common.workers)) == (2, 2, 2)
    assert (common.task_bytes, common.total_bytes) == (GIB, 3 * GIB)
    with dask.config.set({"dmkl.memory": "30MiB"}):  # settings of the client apply to every machine
        assert machine() == execute.Machine(3, 3, 10 * 2**20, 30 * 2**20)


@pytest.mark.usefixtures("tasks_of_parts")
@pytest.mark.filterwarnings("ignore::dmkl.errors.SmallWorkerWarning")
def test_small_workers_are_given_no_tasks(unequal, stored, dense):
    V = np.ones((23, 2))
    allowed = machine().workers
    with get_task_stream(unequal) as running:
        (product,), _ = run_pass([stored.lens()], [Columns(V, "each", None, np.dtype(np.float64))])
    np.testing.assert_allclose(product, dense @ V)
    assert {task["worker"] for task in running.data} <= set(allowed)


@pytest.mark.usefixtures("unequal")
def test_without_any_of_the_allowed_workers_nothing_waits(monkeypatch):
    gone = execute.Machine(1, 1, GIB, GIB, workers=("tcp://127.0.0.1:1",))
    monkeypatch.setattr(execute, "machine", lambda: gone)
    monkeypatch.setattr(execute, "_LOOK_SECONDS", 0.0)
    task = dask.delayed(len)([1])
    with pytest.raises(CancelledError, match="workers with enough memory are gone"):
        execute.execute([task], [(task, 0)], "count")


def test_workers_of_one_job_share_its_memory(monkeypatch):
    """Two jobs on one host have one grant each; the workers of one job are queried one after the other."""
    replies = {"a": ("7", 4 * GIB), "b": ("7", 3 * GIB), "c": ("8", 2 * GIB)}
    monkeypatch.setattr(execute, "ask", lambda *_, **__: {**replies, "d": ValueError("gone")})
    infos = {name: {"host": "node", "nthreads": 2, "memory_limit": 0} for name in "abcd"}
    monkeypatch.setattr("dmkl.settings.free_bytes", lambda: 10 * GIB)
    workers = {worker.address: worker for worker in execute.look_at(Mock(), infos)}
    assert [workers[name].task_bytes for name in "abcd"] == [GIB, GIB, GIB, 3 * GIB]
    assert [workers[name].total_bytes for name in "abcd"] == [4 * GIB, 4 * GIB, 2 * GIB, 6 * GIB]


# --- functions as tasks ---------------------------------------------------------------------------------------------
def begin(number, begun, more=()):
    begun.append(number)
    return number, len(more)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("own", [None, [[0] * k for k in range(25)]])
def test_the_first_task_begins_first(scheduler, own):
    """On one slot, with more than ten tasks, so that names do not sort like numbers."""
    begun = []
    with dask.config.set(scheduler=scheduler, num_workers=1):
        results = run_tasks("some", [partial(begin, k, begun) for k in range(25)], own=own)
    assert results == [(k, 0 if own is None else k) for k in range(25)]
    assert begun == list(range(25))
