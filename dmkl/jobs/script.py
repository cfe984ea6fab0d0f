"""The script of a SLURM job that runs scheduler, workers and client of a job file, and sends the next job.

dask-jobqueue's SLURMRunner does not serve here: its workers have no nanny and no processes, its client is a task of
`srun` that gets no warning before the walltime, and it does not say on which addresses to listen.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_bytes

from dmkl.clusters.backends import security_of
from dmkl.clusters.job_options import JobOptions, batch_system
from dmkl.clusters.jobs import OWN_ADDRESS, answer_of
from dmkl.errors import refuse
from dmkl.jobs.job_file import JobFile, cluster_options, notice_seconds

_BODY = """\
set -uo pipefail
folder=$(mktemp -d "$PWD/.dmkl-$SLURM_JOB_ID-XXXXXX") # all nodes see it
client= limit=0 host=
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$folder"' EXIT
trap 'limit=1; [ -z "$client" ] || kill -TERM "$client"' USR1

export DASK_LOGGING__DISTRIBUTED=${{DASK_LOGGING__DISTRIBUTED:-warning}}
{find_host}{python} -m dask scheduler --port 0 {options} {address} --scheduler-file "$folder/scheduler.json" &
scheduler=$!
mkfifo "$folder/end"
srun --export=ALL --cpus-per-task={cores} bash -c {worker} worker "$folder/scheduler.json" "$host" < "$folder/end" &
workers=$!
exec 3> "$folder/end"
until [ -s "$folder/scheduler.json" ]; do
    kill -0 "$scheduler" 2>/dev/null || {{ echo "dmkl: error: the scheduler has not started; see above" >&2; exit 1; }}
    sleep 0.2
done

export DASK_DMKL__WORKERS_TIMEOUT=${{DASK_DMKL__WORKERS_TIMEOUT:-600}}
{python} -m dmkl run {job} --cluster {place} &
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

exec 3>&- # the end of their input is the end of the workers; if srun were killed, it would report an error
for _ in {{1..150}}; do
    kill -0 "$workers" 2>/dev/null || break
    sleep 0.1
done
exit "$status"
"""

_WORKER = """\
{python} -m dask worker --scheduler-file "$1" {options} {address} \\
    --nworkers {processes} --nthreads {threads} --memory-limit {worker_bytes} --death-timeout 300 \\
    --local-directory {local}{more} < /dev/null &
workers=$!
read -r <&0 &
wait -n # for the workers or the end of the input
kill "$workers" $! 2>/dev/null
wait "$workers"
"""
"""The program of each node; its arguments are the file and the host of the scheduler."""

_FIND_HOST = """\
host=127.0.0.1 # on one node: no other machine can reach scheduler and workers
[ "$SLURM_JOB_NUM_NODES" -eq 1 ] || host=$({python} -c {own_address}) || exit
"""
_IP_ADDRESS = "from distributed.utils import get_ip; print(get_ip())"


def batch_script(job: JobFile, copy: Path, script: Path) -> str:
    """Make the text of `script`, which runs `copy`: `job` may be edited while the script waits in the queue.

    dask-jobqueue's configuration has the defaults of options. InputError, with the line of the job file, if an option
    breaks a rule, or cores or memory are missing.
    """
    system = batch_system("slurm")
    assert system is not None
    options = cluster_options(job, system)
    cores, memory = _needed(job, options, "cores"), _needed(job, options, "memory")
    processes = int(_option(options, "processes") or 1)
    if processes > cores:
        msg = f"must be at most the number of cores, {cores}, got {processes}"
        raise job.problem(msg, "cluster", "processes")
    security_of(options.tls_ca, options.tls_cert, options.tls_key)  # refuse missing files now
    python = shlex.quote(str(_option(options, "python") or sys.executable))
    interface = _option(options, "interface")
    if interface:
        find_host, address = "", f"--interface {shlex.quote(str(interface))}"
        worker_address = address
    else:  # neither may listen on every address
        find_host = _FIND_HOST.format(python=python, own_address=shlex.quote(_IP_ADDRESS))
        address, worker_address = '--host "$host"', f'--host "$({python} -c {shlex.quote(OWN_ADDRESS)} "$2")"'
    words, place = ["--dashboard-address", "127.0.0.1:0"], '"$folder/scheduler.json"'
    given = {name: getattr(options, name) for name in ("tls_ca", "tls_cert", "tls_key")}
    if tls := {name: str(Path(file).expanduser().absolute()) for name, file in given.items() if file}:
        words += ["--protocol", "tls", "--tls-ca-file", tls["tls_ca"]]
        words += ["--tls-cert", tls["tls_cert"], "--tls-key", tls["tls_key"]]
        certificates = "".join(f" {name}={shlex.quote(file)}" for name, file in tls.items())
        place = f'"$(printf %q "$folder/scheduler.json")"{shlex.quote(certificates)}'
    local, n_bytes = _option(options, "local_directory"), parse_bytes(memory)
    worker = _WORKER.format(
        python=python,
        options=shlex.join(words),
        address=worker_address,
        processes=processes,
        threads=cores // processes,
        worker_bytes=n_bytes // processes,
        local=shlex.quote(str(local)) if local else '"${TMPDIR:-/tmp}"',
        more="".join(f" {word}" for word in _option(options, "worker_extra_args") or []),
    )
    body = _BODY.format(
        python=python,
        find_host=find_host,
        options=shlex.join(words),
        address=address,
        cores=cores,
        worker=shlex.quote(worker),
        job=shlex.quote(str(copy)),
        script=shlex.quote(str(script)),
        place=place,
    )
    head = list(_head(job, options, cores, n_bytes))
    for line in head:  # a line break would begin a command
        if not line.isprintable():
            msg = f"a directive of the script must be one line of printable characters, got {line!r}"
            raise job.problem(msg, "cluster")
    return "\n".join([*head, *(_option(options, "job_script_prologue") or []), body])


def _head(job: JobFile, options: JobOptions, cores: int, n_bytes: int) -> Iterator[str]:
    yield "#!/bin/bash"
    yield f"# Made by `dmkl submit {job.path.name}`: scheduler, workers and client of that job in one allocation."
    yield "# Some time before the walltime SLURM sends USR1: dmkl then saves its work, and the next job goes on."
    yield "# Not TERM: scancel sends that too, and after it no job must go on."
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
    """The value of an option in the job file, or else in dask-jobqueue's configuration."""
    given = getattr(options, name, None)
    if given is None:
        given = (options.model_extra or {}).get(name)
    return dask.config.get(f"jobqueue.slurm.{name.replace('_', '-')}", None) if given is None else given


def _needed(job: JobFile, options: JobOptions, name: str) -> Any:
    value = _option(options, name)
    if value is None:
        msg = (
            f"needs {name}, of one node: give it here, or under jobqueue.slurm in ~/.config/dask/jobqueue.yaml "
            "(deploy/jobqueue.yaml is one to copy)"
        )
        raise job.problem(msg, "cluster")
    return value


def send(script: Path) -> str:
    """Send a script to SLURM, and return the number of its job; InputError with the message of sbatch."""
    if shutil.which("sbatch") is None:
        refuse(
            "sbatch is not on this machine: submit where it is (a login node), look at the script with --dry-run, or "
            "compute here with dmkl run"
        )
    number, refusal = answer_of("sbatch", "--parsable", str(script), seconds=60)
    if refusal:
        refuse(f"SLURM refuses this job: {refusal}")
    return number.strip().partition(";")[0]
