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
from dmkl.errors import refuse

if TYPE_CHECKING:
    from distributed import Client

_PROCESS_BYTES = 300 * 2**20
"""Memory of a worker process without arrays: the interpreter and the libraries."""


@contextmanager
def threads(workers: int | None) -> Iterator[None]:
    """Compute in `workers` threads, by default `settings.tasks_at_once` of them."""
    import dask.threaded

    # Not the name of the function: Dask would import distributed to look it up.
    with dask.config.set(scheduler=dask.threaded.get, num_workers=_count(workers)):
        yield


@contextmanager
def processes(workers: int | None) -> Iterator[Client]:
    """Compute in `workers` processes of one thread that only this machine can reach.

    By default there are `settings.tasks_at_once` of them.
    """
    import dask
    from distributed import Client, LocalCluster

    n_workers, budget = _count(workers), settings.memory_budget_bytes()
    # A number, so that "auto" is the same number of bytes in all processes.
    with dask.config.set({"dmkl.memory": budget}), quiet():
        with _deferred_interrupts():
            cluster = LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",  # scheduler and workers run any code that reaches them: never on another interface
                dashboard_address="127.0.0.1:0",  # any free port: 8787 may be in use by another command
                memory_limit=budget // n_workers + _PROCESS_BYTES,
                silence_logs=logging.CRITICAL,
            )
        with cluster, Client(cluster) as client:
            yield client


def _count(workers: int | None) -> int:
    if workers is None:
        return settings.tasks_at_once()
    try:
        count = int(workers)
    except ValueError:
        count = 0
    if count < 1:
        refuse(f"workers must be at least 1, got {workers!r}")
    return count


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Dask's logs of abandoned tasks, which an interrupt leaves, and of a lost scheduler.

    dmkl has its own message for a lost scheduler.
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
def _deferred_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach; a Ctrl-C or SIGTERM meanwhile takes effect at the end.

    A terminal sends Ctrl-C to every process of the group: workers would each print a traceback, and a cluster that is
    half started cannot be closed. Processes inherit the blocked signals of the one that starts them.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # its start unblocks the signal, so it must come first
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
