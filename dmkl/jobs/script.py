"""The script of a SLURM job in which scheduler, workers and client of a job file run, and which sends the next one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_bytes

from dmkl.clusters.job_options import JobOptions
from dmkl.clusters.schedulers import security_of
from dmkl.errors import InputError
from dmkl.jobs.cluster import notice_seconds, options_of
from dmkl.jobs.job_file import JobFile

__all__ = ["batch_script"]

_BODY = """\
set -uo pipefail
folder=$(mktemp -d "$PWD/.dmkl-$SLURM_JOB_ID-XXXXXX") # all nodes see it
client= limit=0
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$folder"' EXIT
trap 'limit=1; [ -z "$client" ] || kill -TERM "$client"' USR1

export DASK_LOGGING__DISTRIBUTED=${{DASK_LOGGING__DISTRIBUTED:-warning}}
{python} -m dask scheduler --port 0 {listen} --scheduler-file "$folder/scheduler.json" &
scheduler=$!
srun --export=ALL {python} -m dask worker --scheduler-file "$folder/scheduler.json" {listen} \\
    --nworkers {processes} --nthreads {threads} --memory-limit {worker_bytes} --death-timeout 300 \\
    --local-directory {local}{more} &
until [ -s "$folder/scheduler.json" ]; do
    kill -0 "$scheduler" 2>/dev/null || {{ echo "dmkl: error: the scheduler has not started; see above" >&2; exit 1; }}
    sleep 0.2
done

export DASK_DMKL__WORKERS_TIMEOUT=${{DASK_DMKL__WORKERS_TIMEOUT:-600}}
{python} -m dmkl run {job} --cluster "$folder/scheduler.json{tls}" &
client=$!
[ "$limit" -eq 0 ] || kill -TERM "$client" # the signal came before there was a client
wait "$client"
status=$?
while kill -0 "$client" 2>/dev/null; do # a signal ends wait, not the client
    wait "$client"
    status=$?
done

if [ "$status" -eq 143 ] && [ "$limit" -eq 1 ]; then
    echo "dmkl: error: the time was over before it had done anything; give it a longer walltime" >&2
fi
if [ "$status" -eq 75 ] && [ "$limit" -eq 1 ]; then
    if next=$(sbatch --parsable --dependency="afterany:$SLURM_JOB_ID" {script}); then
        echo "dmkl: the time of job $SLURM_JOB_ID is over; job $next goes on" >&2
    elif scontrol requeue "$SLURM_JOB_ID"; then
        echo "dmkl: the time of job $SLURM_JOB_ID is over; it goes on when it is started again" >&2
    else
        echo "dmkl: error: the time is over, and no job can be sent from here; go on with: sbatch" {script} >&2
    fi
fi
exit "$status"
"""


def batch_script(job: JobFile, script: Path) -> str:
    """The script of a job file, which will lie at `script`.

    What the table [cluster] does not say is as dask-jobqueue's configuration has it. InputError, with the line, if an
    option breaks a rule or cores or memory are missing.
    """
    options = options_of(job, "slurm")
    cores, memory = _needed(job, options, "cores"), _needed(job, options, "memory")
    processes = int(_option(options, "processes") or 1)
    if processes > cores:
        msg = f"must be at most the number of cores, {cores}, got {processes}"
        raise job.problem(msg, "cluster", "processes")
    security_of(options.tls_ca, options.tls_cert, options.tls_key)  # files that are missing are told now
    interface = _option(options, "interface")
    listen = ["--dashboard-address", "127.0.0.1:0", *(["--interface", str(interface)] if interface else [])]
    if options.tls_ca:
        files = {"--tls-ca-file": options.tls_ca, "--tls-cert": options.tls_cert, "--tls-key": options.tls_key}
        listen += ["--protocol", "tls", *(word for name, file in files.items() for word in (name, str(file)))]
    n_bytes = parse_bytes(memory)
    head = _head(job, options, cores, n_bytes)
    prologue = _option(options, "job_script_prologue") or []
    body = _BODY.format(
        python=shlex.quote(str(_option(options, "python") or sys.executable)),
        listen=shlex.join(listen),
        processes=processes,
        threads=cores // processes,
        worker_bytes=n_bytes // processes,
        local=shlex.quote(str(_option(options, "local_directory")))
        if _option(options, "local_directory")
        else '"${TMPDIR:-/tmp}"',
        more="".join(f" {words}" for words in _option(options, "worker_extra_args") or []),
        job=shlex.quote(str(job.path)),
        script=shlex.quote(str(script)),
        tls="".join(f" {name}={file}" for name, file in _tls(options)),
    )
    return "\n".join([*head, *prologue, body])


def _head(job: JobFile, options: JobOptions, cores: int, n_bytes: int) -> Iterator[str]:
    yield "#!/bin/bash"
    yield f"# Made by `dmkl submit {job.path.name}`: scheduler, workers and client of that job in one allocation."
    yield "# Some time before the walltime SLURM sends USR1: dmkl then keeps what it has, and the next job goes on."
    yield "# Not TERM, which scancel sends too, and after that nothing is to go on."
    logs = Path(options.log_directory or job.path.parent).expanduser()
    directives: dict[str, Any] = {
        "job-name": f"dmkl-{job.path.stem}",
        "partition": _option(options, "queue"),
        "account": _option(options, "account"),
        "nodes": options.jobs or 1,
        "ntasks-per-node": 1,
        "cpus-per-task": cores,
        "mem": f"{-(-n_bytes // 2**20)}M",
        "time": _option(options, "walltime"),
        "signal": f"B:USR1@{notice_seconds(job)}",
        "chdir": job.path.parent,
        "output": logs / f"{job.path.stem}-%j.out",
    }
    for name, value in directives.items():
        if value is not None:
            yield f"#SBATCH --{name}={shlex.quote(str(value))}"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue"
    yield from (f"#SBATCH {line}" for line in _option(options, "job_extra_directives") or [])


def _option(options: JobOptions, name: str) -> Any:
    """What the job says, or else dask-jobqueue's configuration."""
    given = getattr(options, name, None)
    if given is None:
        given = (options.model_extra or {}).get(name)
    return dask.config.get(f"jobqueue.slurm.{name.replace('_', '-')}", None) if given is None else given


def _needed(job: JobFile, options: JobOptions, name: str) -> Any:
    found = _option(options, name)
    if found is None:
        msg = (
            f"needs {name}, of one node: say it here, or under jobqueue.slurm in ~/.config/dask/jobqueue.yaml "
            "(deploy/jobqueue.yaml is one to copy)"
        )
        raise job.problem(msg, "cluster")
    return found


def _tls(options: JobOptions) -> Iterator[tuple[str, str]]:
    for name in ("tls_ca", "tls_cert", "tls_key"):
        file = getattr(options, name)
        if file and " " in str(file):
            msg = f"{name} must be a path without spaces, got {file!r}"
            raise InputError(msg)
        if file:
            yield name, str(Path(file).expanduser().absolute())
