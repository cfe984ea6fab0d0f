"""`dmkl.cluster`: one way to say where passes compute."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["cluster"]


@contextmanager
def cluster(
    where: str | os.PathLike[str] = "local", *, workers: int | None = None, memory: str | None = None, **options: Any
) -> Iterator[Client | None]:
    """Let computations inside this context run at a place, and yield its client, None for threads.

    Parameters
    ----------
    where
        - ``"threads"`` of this process, or ``"local"``: processes of this machine, which only it can reach;
        - the address of a running scheduler (``"tcp://host:8786"``, ``"tls://host:8786"``), or the file that it wrote
          (``dask scheduler --scheduler-file``);
        - ``"slurm"``, ``"pbs"``, ``"sge"``, ``"lsf"``, ``"oar"``, ``"moab"`` or ``"htcondor"``: jobs of this batch
          system, submitted now and ended with this context, by dask-jobqueue and as its configuration says
          (``~/.config/dask/jobqueue.yaml``). A job that is lost is replaced;
        - a .toml or .yaml file with a ``class``, one of these batch systems, and options of its jobs.
    workers
        Number of threads or processes, by default one for each core that this process may use; of worker processes in
        jobs, by default those of one job.
    memory
        What arrays may take on one machine, the setting ``dmkl.memory`` by default; for a batch system the memory of
        a job.
    **options
        For a batch system the keywords of its class in dask-jobqueue (``queue``, ``account``, ``walltime``, ``cores``,
        ``processes``, ``interface``, ``local_directory``, ``log_directory``, ``job_extra_directives`` …), which come
        before a file's and before its configuration, and

        - ``jobs``, how many are kept, or ``minimum`` and ``maximum`` of worker processes, between which Dask adapts
          their number to the work;
        - ``scheduler_interface``, where this machine's network interface has another name than the compute nodes';
        - ``wait``, how long to wait for a worker (``"1 h"``).

        For these and for a scheduler ``tls_ca``, ``tls_cert`` and ``tls_key``: files of a certificate authority, a
        certificate and its key; by default what Dask's configuration has under ``distributed.comm.tls``.

    Yields
    ------
    distributed.Client or None
        The client to which computations go, None for threads.

    Raises
    ------
    InputError
        If an option is not one of this place, or breaks a rule.
    NoWorkersError
        If no scheduler answers, or the batch system gives no worker: with what it says.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> with dmkl.cluster("threads", workers=2):
    ...     model = dmkl.MKFDA(p=1).fit(K)

    On SLURM ``with dmkl.cluster("slurm", queue="short", cores=8, memory="32GiB", jobs=4):``.
    """
    with _opened(os.fspath(where), workers, memory, options) as client:
        yield client


def _opened(
    where: str, workers: int | None, memory: str | None, options: Mapping[str, Any]
) -> AbstractContextManager[Client | None]:
    if where in ("threads", "local"):
        from dmkl.clusters.here import processes, threads

        _refuse(options, where, known=())
        return threads(workers, memory) if where == "threads" else processes(workers, memory)
    from dmkl.clusters.batch_systems import SYSTEMS

    if where in SYSTEMS or Path(where).suffix.lower() in _DESCRIPTIONS:
        return _jobs(where, workers, memory, options)
    from dmkl.clusters.schedulers import connected

    if workers is not None:
        msg = f"--workers is for machines and jobs of one's own; the cluster at {where} has the workers that it has"
        raise InputError(msg)
    _refuse(options, f"a scheduler such as {where}", known=_TLS)
    return _with_budget(connected(where, **options), memory)


_DESCRIPTIONS = (".toml", ".yaml", ".yml")
_TLS = ("tls_ca", "tls_cert", "tls_key")


def _refuse(options: Mapping[str, Any], place: str, known: tuple[str, ...]) -> None:
    unknown = [name for name in options if name not in known]
    if unknown:
        takes = f"takes {', '.join(known)}" if known else "takes workers and memory alone"
        msg = f"{place} {takes}, got {', '.join(unknown)}; options of jobs are for batch systems such as slurm"
        raise InputError(msg)


@contextmanager
def _with_budget(place: AbstractContextManager[Client], memory: str | None) -> Iterator[Client]:
    import dask

    from dmkl import settings

    with dask.config.set({} if memory is None else {"dmkl.memory": memory}):
        settings.memory_budget_bytes()  # refused here, before anything runs
        with place as client:
            yield client


def _jobs(
    where: str, workers: int | None, memory: str | None, options: Mapping[str, Any]
) -> AbstractContextManager[Client]:
    from dmkl.clusters.batch_systems import SYSTEMS
    from dmkl.clusters.job_options import job_options, read_description
    from dmkl.clusters.jobs import submitted

    system, described = (where, {}) if where in SYSTEMS else read_description(Path(where))
    given: dict[str, Any] = {} if memory is None else {"memory": memory}
    if workers is not None:
        described = {name: value for name, value in described.items() if name not in ("jobs", "minimum", "maximum")}
        given |= {"minimum": workers, "maximum": workers}
    merged = {**described, **options, **given}
    source = where if described else ""
    section = str(merged.get("config_name") or system)
    return submitted(SYSTEMS[system], section, job_options(system, merged, source))
