"""Where a command computes: processes of this machine, threads of this process, or a running cluster."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING

from dmkl.errors import InputError, NoWorkersError

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["computing_on"]

_PROCESS_BYTES = 300 * 2**20
"""What a worker process takes before it holds any array: the interpreter and the libraries."""

_SMALL_BYTES = 256 * 2**20
"""What a pass may read where threads are taken by default: it takes less time than starting processes."""

_CONNECT_SECONDS = 10


@contextmanager
def computing_on(
    where: str | None = None, *, n_bytes: int = 0, workers: int | None = None, memory: str | None = None
) -> Iterator[Client | None]:
    """Let computations inside this context run at `where`, and yield the client, None for threads.

    `where` is "local" (worker processes on this machine, which can be reached from this machine alone), "threads" of
    this process, the address of a running scheduler ("tcp://host:8786", "host:8786"), or the file that it wrote
    (``dask scheduler --scheduler-file``); None is "threads" where a pass reads few bytes, `n_bytes`, and otherwise
    "local". `workers` is the number of processes or threads, one for each core that this process may use by default;
    `memory` what arrays may take on one machine, the setting ``dmkl.memory`` by default.
    """
    import dask.threaded

    from dmkl import settings

    if where is None:
        where = "threads" if n_bytes <= _SMALL_BYTES else "local"
    if workers is not None and workers < 1:
        msg = f"--workers must be at least 1, got {workers}"
        raise InputError(msg)
    with dask.config.set({} if memory is None else {"dmkl.memory": memory}):
        budget = settings.memory_budget_bytes()
        n_workers = settings.available_cores() if workers is None else workers
        if where == "threads":
            # The function and not its name: a name would make Dask import distributed to look for it there.
            with dask.config.set(scheduler=dask.threaded.get, num_workers=n_workers):
                yield None
        elif where == "local":
            # Fixed here, so that all processes mean the same bytes by "auto".
            with dask.config.set({"dmkl.memory": budget}), _local(n_workers, budget) as client:
                yield client
        else:
            if workers is not None:
                msg = (
                    f"--workers is for --cluster local and threads; the cluster at {where} has the workers that it has"
                )
                raise InputError(msg)
            with _connected(where) as client:
                yield client


@contextmanager
def _local(n_workers: int, budget: int) -> Iterator[Client]:
    from distributed import Client, LocalCluster

    with _interrupts_held_back():
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",  # scheduler and workers run whatever they are sent: never on another interface
            dashboard_address="127.0.0.1:0",  # any free port: a second command must not fail for want of 8787
            memory_limit=budget // n_workers + _PROCESS_BYTES,
            silence_logs=logging.CRITICAL,
        )
    tasks = logging.getLogger("asyncio")
    before = tasks.level
    tasks.setLevel(logging.CRITICAL)  # an interrupt leaves it with exceptions of tasks that nobody waits for any more
    try:
        with cluster, Client(cluster) as client:
            yield client
    finally:
        tasks.setLevel(before)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, and act on a Ctrl-C only afterwards.

    A terminal sends it to every process of the group. Workers would each print a traceback; a cluster that is
    half started cannot be closed. Processes inherit the signals that are blocked where they are started.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # it unblocks the signal when it is started, so not in between
    seen: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if seen:
        raise KeyboardInterrupt


@contextmanager
def _connected(where: str) -> Iterator[Client]:
    from distributed import Client

    address = _address(where)
    try:
        client = Client(address, timeout=f"{_CONNECT_SECONDS}s")
    except (OSError, ValueError) as error:
        msg = (
            f"no scheduler answers at {address} within {_CONNECT_SECONDS} s ({error}). Start one with `dask "
            "scheduler`, mind its address and the firewall, or compute on this machine with --cluster local"
        )
        raise NoWorkersError(msg) from error
    with client:
        yield client


def _address(where: str) -> str:
    if Path(where).is_file():
        try:
            return str(json.loads(Path(where).read_text())["address"])
        except (ValueError, KeyError, TypeError) as error:
            msg = f"--cluster {where}: this file is not one that a scheduler wrote (dask scheduler --scheduler-file)"
            raise InputError(msg) from error
    _, colon, port = where.rpartition(":")
    if not colon or not port.isdigit():
        msg = (
            "--cluster takes 'local', 'threads', the address of a scheduler such as tcp://host:8786, or the "
            f"file that it wrote, got {where!r}"
        )
        raise InputError(msg)
    return where
