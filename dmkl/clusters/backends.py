"""`dmkl.cluster`: threads, processes of this machine, a running scheduler, or jobs of a batch system."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl import settings
from dmkl.clusters.workers import REUSE_OF_MEMORY, quiet, security_of
from dmkl.errors import NoWorkersError, refuse
from dmkl.files.documents import check_size

if TYPE_CHECKING:
    from distributed import Client

_PROCESS_BYTES = 300 * 2**20  # Memory of a worker process without arrays: the interpreter and the libraries.
_CONNECT_SECONDS = 10


@contextmanager
def cluster(
    where: str | os.PathLike[str] = "local", *, workers: int | None = None, memory: str | None = None, **options: Any
) -> Iterator[Client | None]:
    """Let computations inside this context run on a backend, and yield its client, None for threads.

    Parameters
    ----------
    where
        - ``"threads"`` of this process, or ``"local"``: processes of this machine, which no other machine can reach;
        - the address of a running scheduler (``"tcp://host:8786"``, ``"tls://host:8786"``), or the file that it wrote
          (``dask scheduler --scheduler-file``);
        - ``"slurm"``, ``"pbs"`` or another batch system for which dask-jobqueue has a class (``"sge"`` or
          ``"SGECluster"``): jobs of this system, which begin and end with this context. The configuration of
          dask-jobqueue (``~/.config/dask/jobqueue.yaml``) has the defaults. A lost job is replaced;
        - a .toml or .yaml file with a ``class``, such as ``"slurm"``, and options of its jobs.
    workers
        Number of threads or processes, by default one for each core that this process may use; for a batch system the
        number of worker processes, by default those of one job.
    memory
        Memory for arrays on one machine, the setting ``dmkl.memory`` by default; for a batch system the memory of a
        job.
    **options
        For a batch system the keywords of its class in dask-jobqueue (``queue``, ``account``, ``walltime``, ``cores``,
        ``processes``, ``interface``, ``local_directory``, ``log_directory``, ``job_extra_directives`` …), which
        override those of a file and of the configuration, and

        - ``jobs``, the number of jobs, or ``minimum`` and ``maximum``, between which Dask adapts the number of worker
          processes to the work;
        - ``scheduler_interface``, the network interface of this machine if it has another name than that of the compute
          nodes;
        - ``wait``, how long to wait for a worker (``"1 h"``).

        For these and for a scheduler ``tls_ca``, ``tls_cert`` and ``tls_key``: files of a certificate authority, a
        certificate and its key; by default those of Dask's configuration, ``distributed.comm.tls``.

    Yields
    ------
    distributed.Client or None
        The client that computes, None for threads.

    Raises
    ------
    InputError
        If the backend does not take an option, or an option breaks a rule.
    NoWorkersError
        If no scheduler answers, or the batch system gives no worker: with its message.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> with dmkl.cluster("threads", workers=2):
    ...     model = dmkl.MKFDA(p=1).fit(K)

    On SLURM ``with dmkl.cluster("slurm", queue="short", cores=8, memory="32GiB", jobs=4):``.
    """
    import dask

    where = os.fspath(where)
    if _is_of_jobs(where):
        with _jobs(where, workers, memory, options) as client:
            yield client
        return
    with dask.config.set({} if memory is None else {"dmkl.memory": memory}):
        settings.memory_budget_bytes()  # refuse a wrong value before anything runs
        here, allowed = where in ("threads", "local"), options_of(where) or ()
        if not here and workers is not None:
            rule = "--workers is for processes and jobs that dmkl starts"
            refuse(f"{rule}; the workers of the cluster at {where} run already")
        if others := [name for name in options if name not in allowed]:
            refuse(
                f"{where if here else f'a scheduler such as {where}'} takes "
                f"{', '.join(allowed) or 'only workers and memory'}, got {', '.join(others)}; options of jobs are for "
                "batch systems such as slurm"
            )
        if here:
            backend = _threads(workers) if where == "threads" else _processes(workers)
        else:
            backend = _connected(where, **options)
        with backend as client:
            yield client


def options_of(where: str) -> tuple[str, ...] | None:
    """The options of a backend besides `workers` and `memory`; None for jobs, whose options `JobOptions` has."""
    if _is_of_jobs(where):
        return None
    return () if where in ("threads", "local") else ("tls_ca", "tls_cert", "tls_key")


def _is_of_jobs(where: str) -> bool:
    """Whether this is a batch system, or a file that describes its jobs."""
    if Path(where).suffix.lower() in (".toml", ".yaml", ".yml"):
        return True
    # A file of this name is that of a scheduler; a folder is not.
    if where in ("threads", "local") or not where.isidentifier() or Path(where).is_file():
        return False
    from dmkl.clusters.job_options import batch_system

    return batch_system(where) is not None


def _jobs(
    where: str, workers: int | None, memory: str | None, options: Mapping[str, Any]
) -> AbstractContextManager[Client]:
    from dmkl.clusters.batch_jobs import jobs_of
    from dmkl.clusters.job_options import batch_system, job_options, read_description

    system = batch_system(where)
    system, described = (system, {}) if system is not None else read_description(Path(where))
    given: dict[str, Any] = {} if memory is None else {"memory": memory}
    if workers is not None:
        described = {name: value for name, value in described.items() if name not in ("jobs", "minimum", "maximum")}
        given |= {"minimum": workers, "maximum": workers}
    merged = {**described, **options, **given}
    source = where if described else ""
    section = str(merged.get("config_name") or system.section)
    return jobs_of(system, section, job_options(system, merged, source))


# --- this machine ----------------------------------------------------------------------------------------------------


@contextmanager
def _threads(workers: int | None) -> Iterator[None]:
    """Compute in `workers` threads, by default `settings.tasks_at_once` of them."""
    import dask.threaded

    # Not the name of the function: Dask would import distributed to look it up.
    with dask.config.set(scheduler=dask.threaded.get, num_workers=count_of(workers)):
        yield


@contextmanager
def _processes(workers: int | None) -> Iterator[Client]:
    """Compute in `workers` processes of one thread that only this machine can reach, by default as in `_threads`."""
    import dask
    from distributed import Client, LocalCluster

    n_workers, budget = count_of(workers), settings.memory_budget_bytes()
    defaults = dask.config.get("distributed.nanny.pre-spawn-environ")
    for name in REUSE_OF_MEMORY:
        # Dask leaves its default in the environment when it starts processes, and then prefers it to the configuration.
        if os.environ.get(name) == str(defaults.get(name)):
            del os.environ[name]
    # dmkl sends its own warnings to the client, and no others are printed in between.
    variables = {**REUSE_OF_MEMORY, "PYTHONWARNINGS": "ignore"}
    environment = {f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in variables.items()}
    with ExitStack() as stack:
        if "PYTHONWARNINGS" not in os.environ:  # Dask leaves it there
            stack.callback(os.environ.pop, "PYTHONWARNINGS", None)
        # A number, so that "auto" is the same number of bytes in all processes.
        stack.enter_context(dask.config.set({"dmkl.memory": budget, **environment}))
        stack.enter_context(quiet())
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


def count_of(workers: int | None) -> int:
    """The number of workers of this machine; InputError if it is no positive number."""
    if workers is None:
        return settings.tasks_at_once()
    with suppress(ValueError):
        if (count := int(workers)) >= 1:
            return count
    refuse(f"workers must be at least 1, got {workers!r}")


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


# --- a running scheduler ---------------------------------------------------------------------------------------------


@contextmanager
def _connected(
    where: str, *, tls_ca: str | None = None, tls_cert: str | None = None, tls_key: str | None = None
) -> Iterator[Client]:
    """Compute on the workers of the scheduler at the address, or in the scheduler file, `where`."""
    from distributed import Client

    address = _address(where)
    security = security_of(tls_ca, tls_cert, tls_key)
    if address.startswith("tls://") and security is None:
        refuse(
            f"the scheduler at {address} needs certificates, and there are none: give tls_ca, tls_cert and "
            "tls_key (files in PEM format), or set them in Dask's configuration under distributed.comm.tls"
        )
    try:
        client = Client(address, timeout=f"{_CONNECT_SECONDS}s", security=security)
    except (OSError, ValueError) as error:
        first: BaseException = error
        while first.__cause__ is not None:  # a refused certificate causes a timeout
            first = first.__cause__
        msg = (
            f"no scheduler answers at {address} within {_CONNECT_SECONDS} s ({str(first) or type(first).__name__}). "
            "Start one with `dask scheduler`, check its address and the firewall, or compute on this machine with "
            "--cluster local"
        )
        raise NoWorkersError(msg) from error
    with quiet(), client:
        yield client


def _address(where: str) -> str:
    if Path(where).is_file():
        check_size(f"the file of a scheduler {where}", Path(where).stat().st_size)
        try:
            return str(json.loads(Path(where).read_text())["address"])
        except (ValueError, KeyError, TypeError) as error:
            refuse(
                f"--cluster {where}: this file is not one that a scheduler wrote (dask scheduler --scheduler-file)",
                error,
            )
    _, colon, port = where.rpartition(":")
    if not colon or not port.isdigit():
        refuse(
            "--cluster takes 'local', 'threads', 'slurm' or another batch system, a .toml or .yaml file that describes "
            f"its jobs, the address of a scheduler such as tcp://host:8786, or the file that it wrote, got {where!r}"
        )
    return where
