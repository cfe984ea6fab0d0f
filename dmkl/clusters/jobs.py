"""Computing in jobs of a batch system, by dask-jobqueue."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl import progress
from dmkl.clusters.batch_systems import BatchSystem, cluster_class, refusal
from dmkl.clusters.here import quiet
from dmkl.clusters.job_options import JobOptions
from dmkl.clusters.replacing import Replacing, telling
from dmkl.clusters.schedulers import security_of
from dmkl.errors import InputError, NoWorkersError

if TYPE_CHECKING:
    from dask_jobqueue.core import JobQueueCluster
    from distributed import Client

__all__ = ["TOWARDS", "submitted"]

_START_SECONDS = 120.0
"""What a job that runs may take until its workers are there: on a busy file system Python starts slowly."""

_TOGETHER_SECONDS = 5.0
"""How long to wait for more workers once the first is there: work is cut for those that are there when it begins."""


@contextmanager
def submitted(system: BatchSystem, section: str, options: JobOptions) -> Iterator[Client]:
    """Compute in jobs of a batch system, which end with this context; one that is lost is replaced.

    Parameters
    ----------
    system
        What runs the jobs.
    section
        Of dask-jobqueue's configuration, which says what `options` leave open.
    options
        How many jobs, and what each of them is.

    Raises
    ------
    InputError
        If options are missing, or name what this machine has not.
    NoWorkersError
        If the batch system refuses the jobs, no worker comes within ``options.wait``, or all are lost and none comes
        again; with what the batch system says.
    """
    import dask
    from distributed import Client

    if shutil.which(system.submit) is None:
        msg = (
            f"jobs of {system.title} are submitted with {system.submit}, which is not on this machine: work where it "
            "is (a login node), or compute on this machine with --cluster local"
        )
        raise InputError(msg)
    waiting: dict[str, Any] = {
        "dmkl.workers-timeout": options.wait,
        "distributed.scheduler.no-workers-timeout": f"{options.wait} s",
        # Dask's own replacement would cancel, late, what took the place of a lost job.
        "distributed.deploy.lost-worker-timeout": "1000 days",
    }
    heard: list[str] = []
    with dask.config.set(waiting), quiet(), _started(system, section, options, heard) as cluster:
        _check(cluster, system)
        replacing = Replacing(cluster, system, heard)
        _ask_for_workers(cluster, options)
        replacing.start()
        _wait_for_workers(cluster, replacing, system, options)
        with Client(cluster) as client, _saying_why(replacing, system, options):
            yield client


def _started(system: BatchSystem, section: str, options: JobOptions, heard: list[str]) -> JobQueueCluster:
    """A scheduler in this process, without jobs yet."""
    made_by = cluster_class(system)
    arguments = {**options.of_jobqueue, **_defaults(system, section, options)}
    security = security_of(options.tls_ca, options.tls_cert, options.tls_key)
    if security is not None:
        arguments["security"] = security
    try:
        cluster: JobQueueCluster = made_by(
            **arguments, job_cls=telling(made_by.job_cls, heard), silence_logs=logging.CRITICAL
        )
        return cluster
    except (RuntimeError, ValueError) as error:
        msg = f"a scheduler for jobs of {system.title} cannot start here: {error}"
        raise InputError(msg) from error


def _defaults(system: BatchSystem, section: str, options: JobOptions) -> dict[str, Any]:
    """What neither the user nor dask-jobqueue's configuration says, and Dask's own defaults would say wrongly."""
    import dask

    def configured(key: str) -> Any:
        return dask.config.get(f"jobqueue.{section}.{key}", None)

    for key in ("cores", "memory"):
        if getattr(options, key) is None and configured(key) is None:
            msg = (
                f"{system.title} must be told the cores and the memory of a job, and {key} is missing: say "
                f'--cluster "{section} cores=4 memory=16GiB", or set them in ~/.config/dask/jobqueue.yaml'
            )
            raise InputError(msg)
    more, found = options.model_extra or {}, dict[str, Any]()
    if not more.get("job_name") and configured("name") in (None, "dask-worker"):
        found["job_name"] = "dmkl"
    if not (options.log_directory or configured("log-directory")):  # else logs lie in the working directory
        logs = Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")).expanduser() / "dmkl" / "jobs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        found["log_directory"] = str(logs)
    if not (options.local_directory or configured("local-directory")) and system.shell:
        found["local_directory"] = "${TMPDIR:-/tmp}"  # of the node: on a network file system workers are slow
    host, found["scheduler_options"] = _scheduler_options(options, configured)
    workers = list(options.worker_extra_args or configured("worker-extra-args") or [])
    if not any("dashboard" in word for word in workers):
        workers += ["--dashboard-address", "127.0.0.1:0"]  # --no-dashboard alone leaves a server on every interface
    if not (options.interface or configured("interface") or "--host" in workers) and system.shell:
        workers += ["--host", f"$({_python(options, configured)} -c {shlex.quote(TOWARDS)} {host})"]
    found["worker_extra_args"] = workers
    return found


TOWARDS = (
    "import socket as s, sys; o = s.socket(s.AF_INET, s.SOCK_DGRAM); o.connect((sys.argv[1], 9)); "
    "print(o.getsockname()[0])"
)
"""Program that prints the address by which a machine reaches a host: a worker listens there, not on all interfaces."""


def _python(options: JobOptions, configured: Any) -> str:
    return str((options.model_extra or {}).get("python") or configured("python") or sys.executable)


def _scheduler_options(options: JobOptions, configured: Any) -> tuple[str, dict[str, Any]]:
    """The address of this machine where the scheduler listens, and nowhere else, and its options."""
    import psutil
    from distributed.utils import get_ip, get_ip_interface

    given = {**(configured("scheduler-options") or {}), **((options.model_extra or {}).get("scheduler_options") or {})}
    interface = options.scheduler_interface or given.get("interface") or options.interface or configured("interface")
    if "host" in given and not options.scheduler_interface:
        host = str(given["host"])
    elif interface:
        if interface not in psutil.net_if_addrs():
            msg = (
                f"{interface} is no network interface of this machine, which has {', '.join(psutil.net_if_addrs())}; "
                "where it has other names than the compute nodes, say which with scheduler_interface"
            )
            raise InputError(msg)
        given["interface"], host = interface, get_ip_interface(interface)
    else:
        given["host"] = host = get_ip()
    return host, {"dashboard_address": f"{host}:0", **given}


def _check(cluster: JobQueueCluster, system: BatchSystem) -> None:
    """Ask the batch system whether it would take such jobs."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.sh"
        script.write_text(cluster.job_script())
        why_not = refusal(system, script)
    if why_not:
        msg = (
            f"{system.title} refuses these jobs: {why_not}. See {system.look} for what there is, and change queue, "
            "account, walltime, cores or memory"
        )
        raise NoWorkersError(msg)


def _ask_for_workers(cluster: JobQueueCluster, options: JobOptions) -> None:
    if options.minimum is not None and options.minimum == options.maximum:
        cluster.scale(options.minimum)
    elif options.minimum or options.maximum:
        cluster.adapt(minimum=options.minimum or 1, maximum=options.maximum or float("inf"))
    else:
        cluster.scale(jobs=options.jobs or 1)


def _wait_for_workers(cluster: JobQueueCluster, replacing: Replacing, system: BatchSystem, options: JobOptions) -> None:
    watch, told = progress.current(), ""
    watch.begin(f"waiting for jobs of {system.title}", 0)
    began, first = time.monotonic(), None
    try:
        while not (there := replacing.n_workers()) or there < len(cluster.plan):
            now = time.monotonic()
            first = first or (now if there else None)
            if first is not None and now - first > _TOGETHER_SECONDS:
                return
            longest = options.wait + (_START_SECONDS if replacing.some_run() else 0.0)
            if not there and (replacing.gave_up or now - began > longest):
                raise _no_workers(replacing, system, options)
            if (word := replacing.word()) != told:
                watch.note(f"waiting for jobs of {system.title}: {word}")
                told = word
            time.sleep(0.1)
    finally:
        watch.end()


def _no_workers(replacing: Replacing, system: BatchSystem, options: JobOptions) -> NoWorkersError:
    word = replacing.word()
    said = f": {word}" if word else ""
    if replacing.gave_up:
        return NoWorkersError(
            f"jobs of {system.title} end as soon as they begin{said}. See that the compute nodes have this Python and "
            "reach this machine (interface, scheduler_interface), and run the same again"
        )
    return NoWorkersError(
        f"{system.title} has given no worker within {options.wait:g} s{said}. See {system.look}, ask for less (cores, "
        "memory, walltime), for another queue, or allow more time with wait, and run the same again"
    )


@contextmanager
def _saying_why(replacing: Replacing, system: BatchSystem, options: JobOptions) -> Iterator[None]:
    """Say what the batch system says where a computation ends for want of workers."""
    from distributed.scheduler import NoWorkerError

    try:
        yield
    except (NoWorkerError, NoWorkersError) as error:
        raise _no_workers(replacing, system, options) from error
