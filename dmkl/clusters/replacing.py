"""Jobs that end before they should: noticed, told of, and replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl.clusters.batch_systems import BatchSystem, States, one_line

if TYPE_CHECKING:
    from dask_jobqueue.core import Job, JobQueueCluster

__all__ = ["Replacing", "telling"]

_LOOK_SECONDS = 0.5
"""Between looks at which workers are there, which costs nothing."""

_ASK_SECONDS = 5.0
"""Between questions to the batch system, which many users share; asked only while workers are missing."""

_LOST_SECONDS = 15.0
"""How long a job may be without its workers, once it had them: their nanny starts those anew that have died."""

_MOST_FAILURES = 3
"""Jobs that may end one after another without a worker of theirs having been seen."""


def telling(job_class: type[Job], heard: list[str]) -> type[Job]:
    """A class of jobs that keeps what the batch system said when it refused one: dask-jobqueue only logs it."""
    from distributed.core import Status

    class Telling(job_class):  # type: ignore[misc, valid-type]
        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, OSError, ValueError) as error:
                text = str(error)
                heard.append(one_line(text.partition("stderr:\n")[2] or text))
                raise

        async def close(self) -> None:
            await super().close()
            self.status = Status.closed  # dask-jobqueue leaves it, and a cluster that closes looks at it

    return Telling


class Replacing:
    """Looks after the jobs of a cluster, on its event loop, for as long as the cluster runs.

    Dask's own replacement waits for workers that were there, and of jobs with several of them for ever. This one asks
    the batch system too, so that a job which ended while it waited is seen as well.

    Parameters
    ----------
    cluster, system
        The cluster, and what runs its jobs.
    heard
        What the batch system said when it refused jobs; see `telling`.
    """

    def __init__(self, cluster: JobQueueCluster, system: BatchSystem, heard: list[str]) -> None:
        self._cluster = cluster
        self._scheduler: Any = cluster.scheduler
        self._system = system
        self._heard = heard
        self._seen: set[str] = set()
        self._missing_since: dict[str, float] = {}
        self._asked = -_ASK_SECONDS
        self._failures = 0
        self._last_words = ""
        self._states: States = {}
        self.gave_up = False
        """Whether jobs end again and again before a worker of theirs was seen, and no worker is left."""

    def start(self) -> None:
        """Begin, on the event loop of the cluster."""
        loop: Any = self._cluster.loop
        loop.add_callback(self._run)

    def n_workers(self) -> int:
        """How many workers there are now."""
        return len(self._scheduler.workers)

    def some_run(self) -> bool:
        """Whether jobs run whose workers are still missing."""
        missing = self._missing(dict(self._cluster.workers)).values()
        return any(self._states.get(str(job.job_id), "").startswith("RUNNING") for job in missing)

    def word(self) -> str:
        """What the batch system says of the jobs whose workers are missing, in one line; may be empty."""
        jobs = [job.job_id for job in self._missing(dict(self._cluster.workers)).values() if job.job_id]
        told = [f"job {job}: {self._states[job]}" for job in jobs if job in self._states]
        more = f" and {len(told) - 3} more" if len(told) > 3 else ""
        return "; ".join(filter(None, [", ".join(told[:3]) + more, self._last_words]))

    async def _run(self) -> None:
        from distributed.core import Status

        while self._cluster.status is Status.running:
            with suppress(RuntimeError, OSError, ValueError):  # a job was refused: heard, and tried again
                await self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> None:
        jobs = dict(self._cluster.workers)
        missing = self._missing(jobs)
        self._seen |= {job.job_id for name, job in jobs.items() if name not in missing}
        now = time.monotonic()
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        if not missing:
            self._failures, self._last_words = 0, ""
            return
        if now - self._asked < _ASK_SECONDS * 2 ** min(max(self._failures - _MOST_FAILURES, 0), 5):
            return
        self._asked = now
        states = None if self._system.states is None else await self._system.states()
        self._states = {} if states is None else states
        ended = {name: job for name, job in missing.items() if self._has_ended(name, job, states, now)}
        if ended:
            await self._replace(ended)

    def _missing(self, jobs: dict[Any, Job]) -> dict[Any, Job]:
        """Jobs none of whose workers are known to the scheduler."""
        here = {str(worker.name) for worker in self._scheduler.workers.values()}
        return {name: job for name, job in jobs.items() if not here & set(self._names(name))}

    def _names(self, name: Any) -> Iterable[str]:
        """The names of the workers of a job."""
        group = self._cluster.worker_spec.get(name, {}).get("group", [""])
        return (f"{name}{suffix}" for suffix in group)

    def _has_ended(self, name: Any, job: Job, states: States | None, now: float) -> bool:
        if job.job_id is None:  # refused
            return True
        if states is not None and job.job_id not in states:
            return True
        return job.job_id in self._seen and now - self._missing_since[name] > _LOST_SECONDS

    async def _replace(self, ended: dict[Any, Job]) -> None:
        if any(job.job_id not in self._seen for job in ended.values()):
            self._failures += 1
            self._last_words = self._why(list(ended.values())[-1])
        if self._failures >= _MOST_FAILURES and not self._scheduler.workers:
            self.gave_up = True
            self._scheduler.no_workers_timeout = _LOOK_SECONDS  # what waits for workers ends now
            return
        for name, job in ended.items():
            await job.close()
            self._cluster.workers.pop(name, None)
        await self._cluster  # submits what is missing

    def _why(self, job: Job) -> str:
        """The last that is known of a job: what it printed last, or what was said when it was refused."""
        if job.job_id is None:
            return f"{self._system.submit} says: {self._heard[-1]}" if self._heard else ""
        logs = sorted(Path(job.log_directory or ".").glob(f"*{job.job_id}.err"))
        printed = logs[-1].read_text(errors="replace").strip().splitlines() if logs else []
        said = f": {printed[-1].strip()[:300]} ({logs[-1]})" if printed else ""
        return f"job {job.job_id} ended before its workers came{said}"
