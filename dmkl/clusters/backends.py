"""`dmkl.cluster`: the choice of a backend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl.errors import refuse

if TYPE_CHECKING:
    from distributed import Client


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

    from dmkl import settings

    where = os.fspath(where)
    if _is_of_jobs(where):
        with _jobs(where, workers, memory, options) as client:
            yield client
        return
    with dask.config.set({} if memory is None else {"dmkl.memory": memory}):
        settings.memory_budget_bytes()  # refuse a wrong value before anything runs
        with _running(where, workers, options) as client:
            yield client


def _is_of_jobs(where: str) -> bool:
    """Whether this is a batch system, or a file that describes its jobs."""
    if Path(where).suffix.lower() in (".toml", ".yaml", ".yml"):
        return True
    # A file of this name is that of a scheduler; a folder is not.
    if where in ("threads", "local") or not where.isidentifier() or Path(where).is_file():
        return False
    from dmkl.clusters.job_options import batch_system

    return batch_system(where) is not None


def _running(where: str, workers: int | None, options: Mapping[str, Any]) -> AbstractContextManager[Client | None]:
    if where in ("threads", "local"):
        from dmkl.clusters.local import processes, threads

        _refuse_others(options, where, allowed=())
        return threads(workers) if where == "threads" else processes(workers)
    from dmkl.clusters.schedulers import connected

    if workers is not None:
        refuse(
            f"--workers is for processes and jobs that dmkl starts; the workers of the cluster at {where} run already"
        )
    _refuse_others(options, f"a scheduler such as {where}", allowed=("tls_ca", "tls_cert", "tls_key"))
    return connected(where, **options)


def _refuse_others(options: Mapping[str, Any], backend: str, allowed: tuple[str, ...]) -> None:
    others = [name for name in options if name not in allowed]
    if others:
        expected = ", ".join(allowed) or "only workers and memory"
        refuse(
            f"{backend} takes {expected}, got {', '.join(others)}; options of jobs are for batch systems such as slurm"
        )


def _jobs(
    where: str, workers: int | None, memory: str | None, options: Mapping[str, Any]
) -> AbstractContextManager[Client]:
    from dmkl.clusters.job_options import batch_system, job_options, read_description
    from dmkl.clusters.jobs import jobs_of

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
