"""What is asked of a batch system itself: whether it takes a job, and what it says of jobs that wait."""

from __future__ import annotations

import asyncio
import getpass
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask

from dmkl.errors import InputError

__all__ = ["SYSTEMS", "BatchSystem", "cluster_class", "one_line", "refusal"]

_ANSWER_SECONDS = 30
"""squeue without a controller waits for as long as its configuration says, which may be minutes."""

States = Mapping[str, str]
"""By the number of a job its state, in the words of the batch system."""


@dataclass(frozen=True)
class BatchSystem:
    """A batch system, as far as dask-jobqueue does not know it."""

    title: str
    cluster_class: str
    """In `dask_jobqueue`."""
    submit: str
    """The program that takes jobs."""
    check: tuple[str, ...] = ()
    """Options with which it only says whether it would take a job; none if it cannot."""
    states: Callable[[], Awaitable[States | None]] | None = None
    """The jobs of this user that wait or run; None where the system does not answer."""
    look: str = "its queue"
    """Where a user sees what it has to offer."""
    shell: bool = True
    """Whether a shell reads the command that a job runs."""


async def _slurm_states() -> States | None:
    # All jobs of the user: for the numbers of jobs that have ended squeue answers with an error.
    command = ("squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%A|%T|%r")
    try:
        running = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    try:
        out, _ = await asyncio.wait_for(running.communicate(), _ANSWER_SECONDS)
    except TimeoutError:
        running.kill()
        await running.wait()
        return None
    if running.returncode != 0:
        return None
    rows = [line.split("|", 2) for line in out.decode(errors="replace").splitlines() if line.count("|") >= 2]
    return {job: state if reason == "None" else f"{state} ({reason})" for job, state, reason in rows}


SYSTEMS: dict[str, BatchSystem] = {
    "slurm": BatchSystem("SLURM", "SLURMCluster", "sbatch", ("--test-only",), _slurm_states, "sinfo and squeue"),
    "pbs": BatchSystem("PBS", "PBSCluster", "qsub", look="qstat"),
    "sge": BatchSystem("Grid Engine", "SGECluster", "qsub", look="qstat"),
    "lsf": BatchSystem("LSF", "LSFCluster", "bsub", look="bqueues and bjobs"),
    "oar": BatchSystem("OAR", "OARCluster", "oarsub", look="oarstat"),
    "moab": BatchSystem("Moab", "MoabCluster", "msub", look="showq"),
    "htcondor": BatchSystem("HTCondor", "HTCondorCluster", "condor_submit", look="condor_q", shell=False),
}
"""By the name of their section in dask-jobqueue's configuration."""


def cluster_class(system: BatchSystem) -> Any:
    """The class of dask-jobqueue for a batch system. InputError if dask-jobqueue is not installed."""
    main = threading.current_thread() is threading.main_thread()
    if "dask_jobqueue" not in sys.modules and not main:
        msg = "dask-jobqueue can be imported by the main thread alone: import dask_jobqueue there first"
        raise InputError(msg)
    handler = signal.getsignal(signal.SIGINT)
    try:
        import dask_jobqueue
    except ImportError as error:
        msg = f"jobs of {system.title} are made by dask-jobqueue, which is not installed; pip install 'dmkl[slurm]'"
        raise InputError(msg) from error
    finally:
        if main:  # importing it lets Ctrl-C end the process without a word
            signal.signal(signal.SIGINT, handler)
    if "jobqueue" not in dask.config.config:
        # Imported inside a `dask.config.set` of its keys, it lost its defaults at the end of that context.
        dask_jobqueue.config.reconfigure()
    return getattr(dask_jobqueue, system.cluster_class)


def refusal(system: BatchSystem, script: Path) -> str:
    """What the system has against the job of a script, in one line; empty if nothing, or if it cannot tell."""
    if not system.check:
        return ""
    try:
        asked = subprocess.run(
            [system.submit, *system.check, str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"{system.submit} does not answer within {_ANSWER_SECONDS} s"
    return "" if asked.returncode == 0 else one_line(asked.stderr) or f"exit status {asked.returncode}"


def one_line(text: str) -> str:
    """The lines of a program's message, in one."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
