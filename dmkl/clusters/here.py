"""Computing on this machine: in threads of this process, or in worker processes."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

from dmkl import settings
from dmkl.errors import InputError

if TYPE_CHECKING:
    import dask
    from distributed import Client

__all__ = ["processes", "quiet", "threads"]

_PROCESS_BYTES = 300 * 2**20
"""What a worker process takes before it holds any array: the interpreter and the libraries."""


@contextmanager
def threads(workers: int | None, memory: str | None) -> Iterator[None]:
    """Compute in `workers` threads, by default as many as `settings.tasks_at_once` says."""
    import dask.threaded

    with _budget(memory):
        settings.memory_budget_bytes()  # refused here, before anything runs
        # The function and not its name: a name would make Dask import distributed to look for it there.
        with dask.config.set(scheduler=dask.threaded.get, num_workers=_count(workers)):
            yield


@contextmanager
def processes(workers: int | None, memory: str | None) -> Iterator[Client]:
    """Compute in `workers` processes of one thread, which can be reached from this machine alone.

    By default these are as many as `settings.tasks_at_once` says.
    """
    import dask
    from distributed import Client, LocalCluster

    with _budget(memory):
        n_workers, budget = _count(workers), settings.memory_budget_bytes()
    # Fixed here, so that all processes mean the same bytes by "auto".
    with dask.config.set({"dmkl.memory": budget}), quiet():
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
        with cluster, Client(cluster) as client:
            yield client


def _budget(memory: str | None) -> dask.config.set:
    import dask

    return dask.config.set({} if memory is None else {"dmkl.memory": memory})


def _count(workers: int | None) -> int:
    if workers is None:
        return settings.tasks_at_once()
    try:
        count = int(workers)
    except ValueError:
        count = 0
    if count < 1:
        msg = f"workers must be at least 1, got {workers!r}"
        raise InputError(msg)
    return count


@contextmanager
def quiet() -> Iterator[None]:
    """Say nothing of exceptions of tasks that nobody waits for any more, nor of a scheduler that is gone.

    An interrupt leaves such tasks, and whoever loses the scheduler is told in a line of dmkl's own.
    """
    loggers = [logging.getLogger(name) for name in ("asyncio", "distributed.client")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, and act on it, or on SIGTERM, only afterwards.

    A terminal sends it to every process of the group. Workers would each print a traceback; a cluster that is
    half started cannot be closed. Processes inherit the signals that are blocked where they are started.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # it unblocks the signal when it is started, so not in between
    seen: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: seen.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if seen:
        signal.raise_signal(seen[0])
