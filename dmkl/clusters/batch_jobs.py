"""Jobs of a batch system, by dask-jobqueue: submitted, watched, and replaced if they are lost.

Dask's own replacement (`Cluster.adapt` with equal bounds, too) waits for workers that were there: it does not see a job
that ends in the queue, and never replaces a job with several worker processes, whose names are not that of the job. So
`_JobWatch` asks the batch system; its answers are also the message of a command that gets no worker.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmkl import progress
from dmkl.clusters.job_options import BatchSystem, JobOptions
from dmkl.clusters.workers import REUSE_OF_MEMORY, quiet, security_of
from dmkl.errors import NoWorkersError, refuse
from dmkl.passes.execute import END_OF_A_WORKER

if TYPE_CHECKING:
    from dask_jobqueue.core import Job, JobQueueCluster
    from distributed import Client

_START_SECONDS = 120.0
"""How long workers of a running job may take to start: Python starts slowly on a busy file system."""
_TOGETHER_SECONDS = 5.0
"""How long to wait for more workers after the first: work is divided among those that are there when it begins."""
_LOOK_SECONDS = 0.5  # Between comparisons of jobs and workers, which cost nothing.
_ASK_SECONDS = 5.0
"""Between questions to the batch system, which many users share; asked only while workers are missing."""
_ANSWER_SECONDS = 30  # For an answer of the batch system: squeue without a controller may wait for minutes.
_LOST_SECONDS = 15.0
"""How long a job may be without its workers, once it had them: their nanny restarts those that have died."""
_MOST_FAILURES = 3  # Jobs in a row that may end before their workers have started.


@contextmanager
def jobs_of(system: BatchSystem, section: str, options: JobOptions) -> Iterator[Client]:
    """Compute in jobs of a batch system, which end with this context; a lost job is replaced.

    `section` of dask-jobqueue's configuration has the defaults of `options`. NoWorkersError, with the message of the
    batch system, if it refuses the jobs, no worker comes within ``options.wait``, or all are lost and none comes again.
    """
    import dask
    from distributed import Client
    from distributed.scheduler import NoWorkerError

    if shutil.which(system.submit) is None:
        what = f"jobs of {system.title} are submitted with {system.submit}, which is not on this machine"
        refuse(f"{what}: work where it is (a login node), or compute on this machine with --cluster local")
    waiting: dict[str, Any] = {
        "dmkl.workers-timeout": options.wait,
        "distributed.scheduler.no-workers-timeout": f"{options.wait} s",
        # Dask's own replacement would cancel, too late, the job that replaced a lost one.
        "distributed.deploy.lost-worker-timeout": "1000 days",
    }
    refusals: list[str] = []
    with dask.config.set(waiting), quiet(), _start_scheduler(system, section, options, refusals) as cluster:
        if system.section == "slurm":  # other batch systems cannot say whether they would take such jobs
            with tempfile.TemporaryDirectory() as folder:
                script = Path(folder) / "job.sh"
                script.write_text(cluster.job_script())
                _, refusal = answer_of(system.submit, "--test-only", str(script))
            if refusal:
                way_out = f"See {system.look} for what there is, and change queue, account, walltime, cores or memory"
                msg = f"{system.title} refuses these jobs: {refusal}. {way_out}"
                raise NoWorkersError(msg)
        watch = _JobWatch(cluster, system, refusals)
        if options.minimum is not None and options.minimum == options.maximum:
            cluster.scale(options.minimum)
        elif options.minimum or options.maximum:
            cluster.adapt(minimum=options.minimum or 1, maximum=options.maximum or float("inf"))
        else:
            cluster.scale(jobs=options.jobs or 1)
        loop: Any = cluster.loop
        loop.add_callback(watch.run)
        _wait_for_workers(cluster, watch, system, options)
        with Client(cluster) as client:
            try:
                yield client
            except (NoWorkerError, NoWorkersError) as error:  # of a computation that has no workers left
                raise _no_workers(watch, system, options) from error


def _start_scheduler(system: BatchSystem, section: str, options: JobOptions, refusals: list[str]) -> JobQueueCluster:
    """Start a scheduler in this process, without jobs."""
    kind = system.cluster_class
    own = {"scheduler_interface", "jobs", "minimum", "maximum", "wait", "tls_ca", "tls_cert", "tls_key"}
    arguments = options.model_dump(exclude=own, exclude_none=True) | _defaults(system, section, options)
    security = security_of(options.tls_ca, options.tls_cert, options.tls_key)
    if security is not None:
        arguments["security"] = security
    arguments |= {"job_cls": _recording(kind.job_cls, refusals), "silence_logs": logging.CRITICAL}
    try:
        cluster: JobQueueCluster = kind(**arguments)
    except (RuntimeError, ValueError) as error:
        refuse(f"a scheduler for jobs of {system.title} cannot start here: {error}", error)
    return cluster


def _defaults(system: BatchSystem, section: str, options: JobOptions) -> dict[str, Any]:
    """Options that neither the user nor the configuration gives, and for which Dask has unsuitable defaults."""
    chosen = partial(options.chosen, section)
    for key in ("cores", "memory"):
        if chosen(key) is None:
            refuse(
                f"{system.title} needs the cores and the memory of a job, and {key} is missing: say "
                f'--cluster "{section} cores=4 memory=16GiB", or set them in ~/.config/dask/jobqueue.yaml'
            )
    defaults: dict[str, Any] = {}
    if not chosen("job_name") and chosen("name") in (None, "dask-worker"):
        defaults["job_name"] = "dmkl"
    if not chosen("log_directory"):  # else logs lie in the working directory
        logs = Path(os.environ.get("XDG_STATE_HOME", "~/.local/state")).expanduser() / "dmkl" / "jobs"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        defaults["log_directory"] = str(logs)
    if not chosen("local_directory") and system.runs_shell:
        defaults["local_directory"] = "${TMPDIR:-/tmp}"  # of the node: workers are slow on a network file system
    if system.runs_shell:
        # The commands of the user come last, so that they override this.
        exported = " ".join(f"{name}={value}" for name, value in REUSE_OF_MEMORY.items())
        defaults["job_script_prologue"] = [f"export {exported}", *(chosen("job_script_prologue") or [])]
    host, defaults["scheduler_options"] = _scheduler_options(options, section)
    worker_args = list(chosen("worker_extra_args") or [])
    if not any("dashboard" in word for word in worker_args):
        worker_args += ["--dashboard-address", "127.0.0.1:0"]  # with --no-dashboard a server listens on all interfaces
    if not (chosen("interface") or "--host" in worker_args) and system.runs_shell:
        python = chosen("python") or sys.executable
        worker_args += ["--host", f"$({python} -c {shlex.quote(OWN_ADDRESS)} {host})"]
    defaults["worker_extra_args"] = worker_args
    return defaults


OWN_ADDRESS = (
    "import socket as s, sys; o = s.socket(s.AF_INET, s.SOCK_DGRAM); o.connect((sys.argv[1], 9)); "
    "print(o.getsockname()[0])"
)
"""Program that prints the address by which a machine reaches a host: a worker listens there, not on all interfaces."""


def _scheduler_options(options: JobOptions, section: str) -> tuple[str, dict[str, Any]]:
    """The address of this machine on which the scheduler listens, and its options."""
    import dask
    import psutil
    from distributed.utils import get_ip, get_ip_interface

    given = dict(dask.config.get(f"jobqueue.{section}.scheduler-options", None) or {})
    given |= (options.model_extra or {}).get("scheduler_options") or {}
    interface = options.scheduler_interface or given.get("interface") or options.chosen(section, "interface")
    if "host" in given and not options.scheduler_interface:
        host = str(given["host"])
    elif interface:
        if interface not in psutil.net_if_addrs():
            refuse(
                f"{interface} is no network interface of this machine, which has {', '.join(psutil.net_if_addrs())}; "
                "if its interface has another name than those of the compute nodes, give it as scheduler_interface"
            )
        given["interface"], host = interface, get_ip_interface(interface)
    else:
        given["host"] = host = get_ip()
    return host, {"dashboard_address": f"{host}:0", **given}


def answer_of(*command: str, seconds: float = _ANSWER_SECONDS) -> tuple[str, str]:
    """The output of a program of the batch system, and its refusal, which is empty if it takes the command."""
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} does not answer within {seconds:g} s; squeue shows whether it took a job"
    return answer.stdout, _one_line(answer.stderr) or f"exit status {answer.returncode}" if answer.returncode else ""


def _one_line(text: str) -> str:
    """The lines of a program's message, joined."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def _wait_for_workers(cluster: JobQueueCluster, jobs: _JobWatch, system: BatchSystem, options: JobOptions) -> None:
    watch, shown = progress.current(), ""
    scheduler: Any = cluster.scheduler
    watch.begin(f"waiting for jobs of {system.title}", 0)
    began, first = time.monotonic(), None
    try:
        while not (n_workers := len(scheduler.workers)) or n_workers < len(cluster.plan):
            now = time.monotonic()
            first = first or (now if n_workers else None)
            if first is not None and now - first > _TOGETHER_SECONDS:
                return
            longest = options.wait + (_START_SECONDS if jobs.some_run else 0.0)
            if not n_workers and (jobs.gave_up or now - began > longest):
                raise _no_workers(jobs, system, options)
            if (reason := jobs.reason()) != shown:
                watch.note(f"waiting for jobs of {system.title}: {reason}")
                shown = reason
            time.sleep(0.1)
    finally:
        watch.end()


def _no_workers(jobs: _JobWatch, system: BatchSystem, options: JobOptions) -> NoWorkersError:
    reason = f": {reason}" if (reason := jobs.reason()) else ""
    if jobs.gave_up:
        return NoWorkersError(
            f"jobs of {system.title} end as soon as they begin{reason}. Check that the compute nodes have this Python "
            "and reach this machine (interface, scheduler_interface), and run the same again"
        )
    if jobs.started:
        return NoWorkersError(
            f"all workers of the jobs have ended, and {system.title} has given no other within {options.wait:g} s"
            f"{reason}. {END_OF_A_WORKER}. Run the same again"
        )
    return NoWorkersError(
        f"{system.title} has given no worker within {options.wait:g} s{reason}. See {system.look}, ask for less "
        "(cores, memory, walltime), for another queue, or allow more time with wait, and run the same again"
    )


# --- lost jobs -----------------------------------------------------------------------------------------------------


async def _states_of_jobs(system: BatchSystem) -> dict[str, str] | None:
    """By number, the states of the jobs of this user; None if the batch system does not answer, or is not SLURM."""
    if system.section != "slurm":
        return None
    # All jobs of the user: for the numbers of jobs that have ended squeue answers with an error.
    command = ("squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%A|%T|%r")
    try:
        squeue = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    try:
        out, _ = await asyncio.wait_for(squeue.communicate(), _ANSWER_SECONDS)
    except TimeoutError:
        squeue.kill()
        await squeue.wait()
        return None
    if squeue.returncode != 0:
        return None
    rows = [line.split("|", 2) for line in out.decode(errors="replace").splitlines() if line.count("|") >= 2]
    return {job: state if reason == "None" else f"{state} ({reason})" for job, state, reason in rows}


def _recording(job_class: type[Job], refusals: list[str]) -> type[Job]:
    """A class of jobs that appends the message of a refused job to `refusals`: dask-jobqueue only logs it."""
    from distributed.core import Status

    class Recording(job_class):  # type: ignore[misc, valid-type]
        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, OSError, ValueError) as error:
                text = str(error)
                refusals.append(_one_line(text.partition("stderr:\n")[2] or text))
                raise

        async def close(self) -> None:
            await super().close()
            self.status = Status.closed  # dask-jobqueue does not set it, and a closing cluster reads it

    return Recording


class _JobWatch:
    """Replaces the lost jobs of a cluster, on its event loop; `refusals` are those of `_recording`."""

    def __init__(self, cluster: JobQueueCluster, system: BatchSystem, refusals: list[str]) -> None:
        self._cluster = cluster
        self._scheduler: Any = cluster.scheduler
        self._system = system
        self._refusals = refusals
        self.started: set[str] = set()  # jobs that have had their workers
        self._missing_since: dict[str, float] = {}
        self._asked = -_ASK_SECONDS
        self._failures = 0
        self._last_failure = ""
        self._states: dict[str, str] = {}
        self.gave_up = False
        """Whether job after job ended before its workers had started, and no worker is left."""

    @property
    def some_run(self) -> bool:
        """Whether a job runs whose workers are still missing."""
        missing = self._missing(dict(self._cluster.workers)).values()
        return any(self._states.get(str(job.job_id), "").startswith("RUNNING") for job in missing)

    def reason(self) -> str:
        """The states of the jobs whose workers are missing, and the last failure, in one line; may be empty."""
        jobs = [job.job_id for job in self._missing(dict(self._cluster.workers)).values() if job.job_id]
        states = [f"job {job}: {self._states[job]}" for job in jobs if job in self._states]
        more = f" and {len(states) - 3} more" if len(states) > 3 else ""
        return "; ".join(filter(None, [", ".join(states[:3]) + more, self._last_failure]))

    async def run(self) -> None:
        """Watch as long as the cluster runs."""
        from distributed.core import Status

        while self._cluster.status is Status.running:
            with suppress(RuntimeError, OSError, ValueError):  # a refused job: recorded, and tried again
                await self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> None:
        jobs = dict(self._cluster.workers)
        missing = self._missing(jobs)
        self.started |= {job.job_id for name, job in jobs.items() if name not in missing}
        now = time.monotonic()
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        if not missing:
            self._failures, self._last_failure = 0, ""
            return
        if now - self._asked < _ASK_SECONDS * 2 ** min(max(self._failures - _MOST_FAILURES, 0), 5):
            return
        self._asked = now
        states = await _states_of_jobs(self._system)
        self._states = {} if states is None else states
        ended = {
            name: job
            for name, job in missing.items()
            if job.job_id is None  # refused
            or (states is not None and job.job_id not in states)
            or (job.job_id in self.started and now - self._missing_since[name] > _LOST_SECONDS)
        }
        if ended:
            await self._replace(ended)

    def _missing(self, jobs: dict[Any, Job]) -> dict[Any, Job]:
        """Jobs without a worker that the scheduler knows."""
        present = {str(worker.name) for worker in self._scheduler.workers.values()}
        groups = {name: self._cluster.worker_spec.get(name, {}).get("group", [""]) for name in jobs}
        return {name: job for name, job in jobs.items() if not present & {f"{name}{end}" for end in groups[name]}}

    async def _replace(self, ended: dict[Any, Job]) -> None:
        if any(job.job_id not in self.started for job in ended.values()):
            self._failures += 1
            self._last_failure = self._failure(list(ended.values())[-1])
        if self._failures >= _MOST_FAILURES and not self._scheduler.workers:
            self.gave_up = True
            self._scheduler.no_workers_timeout = _LOOK_SECONDS  # computations that wait for workers end now
            return
        for name, job in ended.items():
            await job.close()
            self._cluster.workers.pop(name, None)
        await self._cluster  # submits what is missing

    def _failure(self, job: Job) -> str:
        """Why a job ended before its workers came: the last line that it printed, or the message of its refusal."""
        if job.job_id is None:
            return f"{self._system.submit} says: {self._refusals[-1]}" if self._refusals else ""
        logs = sorted(Path(job.log_directory or ".").glob(f"*{job.job_id}.err"))
        lines = logs[-1].read_text(errors="replace").strip().splitlines() if logs else []
        last = f": {lines[-1].strip()[:300]} ({logs[-1]})" if lines else ""
        return f"job {job.job_id} ended before its workers came{last}"
