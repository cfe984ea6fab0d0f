"""Job files: their tables, the records of their results, and the script of the SLURM job that runs one.

The script runs scheduler, workers and client, and sends the next job. dask-jobqueue's SLURMRunner does not serve here:
its workers have no nanny and no processes, its client is a task of `srun` that gets no warning before the walltime, and
it does not say on which addresses to listen.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dask.utils import parse_bytes, parse_timedelta

from dmkl import settings
from dmkl.clusters.backends import count_of, options_of
from dmkl.clusters.batch_jobs import OWN_ADDRESS, answer_of
from dmkl.clusters.job_options import BatchSystem, JobOptions, batch_system, job_options
from dmkl.clusters.preflight import versions_of
from dmkl.clusters.workers import security_of
from dmkl.errors import DmklError, did_you_mean, refuse, short_repr
from dmkl.files.documents import read_document
from dmkl.files.urls import as_place

_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"""\s*(?:([\w-]+)\s*\.\s*)?["']?([\w-]+)["']?\s*=""")


@dataclass(frozen=True)
class JobFile:
    """The tables of a job file."""

    path: Path  # absolute; paths inside are relative to its folder
    sections: Mapping[str, Mapping[str, Any]]  # the keys, with underscores, and the values of each table
    lines: Mapping[tuple[str, ...], int]  # of each table, (name,), and of each key, (name, key), for messages

    def refuse(self, text: str, section: str, key: str = "", cause: BaseException | None = None) -> NoReturn:
        """Raise an InputError that begins with the file, the line and the key."""
        place = (section, key) if key else (section,)
        line = self.lines.get(place, self.lines.get((section,)))
        at = f"{self.path.name}, line {line}" if line else self.path.name
        refuse(f"{at}, {'.'.join(place)}: {text}", cause)

    @contextmanager
    def blaming(self, section: str, key: str) -> Iterator[None]:
        """Begin the message of an error with the file, the line and the key."""
        try:
            yield
        except DmklError as error:
            self.refuse(str(error), section, key, error)

    def refuse_unknown(self, section: str, key: str, allowed: Iterable[str]) -> NoReturn:
        """Refuse a key that a table does not take."""
        allowed = list(allowed)
        takes = f"; [{section}] takes {', '.join(allowed)}" if allowed else ""
        self.refuse(f"no such key{did_you_mean(key, allowed)}{takes}", section, key)


def read_job(path: Path, tables: Iterable[str]) -> JobFile:
    """Read a job file that has only these `tables`, of plain values; InputError, with the line, for any other."""
    if path.suffix.lower() != ".toml":
        refuse(f"a job file ends in .toml, got {path}")
    content = read_document(path, "a job")
    lines = dict(_lines(path.read_text(encoding="utf-8-sig")))
    sections = {
        name: {key.replace("-", "_"): value for key, value in keys.items()} if isinstance(keys, dict) else keys
        for name, keys in content.items()
    }
    job = JobFile(path.absolute(), sections, lines)
    tables = list(tables)
    for name, keys in sections.items():
        if name not in tables:
            job.refuse(f"no such table{did_you_mean(name, tables)}; a job file has {', '.join(tables)}", name)
        if not isinstance(keys, dict):
            job.refuse(f"must be a table, [{name}] and a line for each key, got {short_repr(keys)}", name)
        for key, value in keys.items():
            if name != "recorded" and not _is_plain(value):
                words = "a text, a number, true, false, a list, or a table of these"
                job.refuse(f"must be {words}, got {short_repr(value)}", name, key)
    return job


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | dict):
        items = value if isinstance(value, list) else value.values()
        return all(_is_plain(item) and not isinstance(item, dict) for item in items)
    return isinstance(value, str | int | float | bool | datetime.time)


def _lines(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = header[1]
            yield (section,), number
        elif key := _KEY.match(line):
            table = key[1] or section
            yield ((table, key[2].replace("-", "_")) if table else (key[2],)), number


# --- the table [cluster] -------------------------------------------------------------------------------------------

_SECTION = "cluster"
_RESOURCES = {"workers": count_of, "memory": settings.size_in_bytes}
_NOTICE_SECONDS = 120


def cluster_keywords(job: JobFile) -> dict[str, Any]:
    """The keywords of `dmkl.cluster` that the table has, checked, "where" only if it names a place."""
    table = {key: value for key, value in job.sections.get(_SECTION, {}).items() if key != "notice"}
    for key in set(_RESOURCES).intersection(table):
        with job.blaming(_SECTION, key):
            _RESOURCES[key](table[key])
    place = table.pop("place", None)
    if place is None:
        if set(table).difference(_RESOURCES):
            job.refuse('needs place: "local", "threads", "slurm" or another backend that --cluster takes', _SECTION)
        return table
    notice_seconds(job)
    file = job.path.parent / str(place)
    where = str(file if file.is_file() else place)
    allowed = options_of(where)
    if allowed is None and (system := batch_system(where)) is not None:
        cluster_options(job, system)
    for key in table:
        if allowed is not None and key not in (*_RESOURCES, *allowed):
            job.refuse_unknown(_SECTION, key, ("place", *_RESOURCES, *allowed))
    return {"where": where, **table}


def cluster_options(job: JobFile, system: BatchSystem) -> JobOptions:
    """The options of jobs of a batch system; InputError, with the line, if one breaks a rule."""
    table: Mapping[str, Any] = job.sections.get(_SECTION, {})
    given = {key: value for key, value in table.items() if key not in ("place", "notice", "workers")}
    return job_options(system, given, str(job.path))


def notice_seconds(job: JobFile) -> int:
    """How long before its walltime a job gets the signal to end."""
    given = job.sections.get(_SECTION, {}).get("notice", _NOTICE_SECONDS)
    try:
        seconds = int(parse_timedelta(given))
    except (KeyError, TypeError, ValueError):
        seconds = 0
    if not 1 <= seconds <= 65535:  # the range of sbatch
        job.refuse(f'must be a time from 1 s to 18 h, such as "2 m", got {given!r}', _SECTION, "notice")
    return seconds


# --- records of results --------------------------------------------------------------------------------------------

PACKAGES = ("clarabel", "dask", "distributed", "numpy", "scipy", "scikit-learn", "xarray", "zarr")


def path_beside(out: str, job: Path, ending: str) -> Path:
    """A path next to a result, or next to the job file if the result is at a URL."""
    place = as_place(out)
    folder = place.parent if isinstance(place, Path) else job.parent
    return folder / f"{place.name}.{ending}"


def contents_of(paths: Iterable[str]) -> dict[str, str]:
    """The content id of each kernel set, and the SHA-256 of each file; other folders and missing paths have none."""
    import dmkl

    contents = {}
    for path in paths:
        if "://" not in path and Path(path).is_file():
            with open(path, "rb") as file:
                contents[path] = f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"
        else:
            with suppress(DmklError, OSError, ValueError):
                contents[path] = f"kernel set {dmkl.open(path).content_id}"
    return contents


def differences(recorded: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each input whose contents have changed since the record, and for each version that has."""
    before: Mapping[str, str] = recorded.get("contents", {})
    contents = contents_of(before)
    for path, identity in before.items():
        if contents.get(path) != identity:
            yield f"{path} has other contents ({contents.get(path, 'none')}) than in the record ({identity})"
    now = versions_of(PACKAGES)
    for name, version in recorded.get("versions", {}).items():
        if now.get(name) != version:
            yield f"{name} is {now.get(name, 'missing')}, and was {version} when the result was made"


def as_toml(sections: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, Mapping[str, str]], title: str) -> str:
    """The text of a job file with its record."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    lines = [f"# {title}", f"# Written {now}; `dmkl run` on this file repeats the job."]
    tables = {**sections, **{f"recorded.{name}": keys for name, keys in recorded.items()}}
    for name, keys in tables.items():
        if keys:
            lines += ["", f"[{name}]"]
        for key, value in keys.items():
            is_bare = key.replace("_", "").isalnum() and key.isascii()
            lines.append(f"{key if is_bare else _value(key)} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_value(key)} = {_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, int | float):
        return repr(value)  # inf and nan are TOML's words too
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


# --- the batch script -------------------------------------------------------------------------------------------------


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
{python} -m dmkl run {job}{learners} --cluster {place} &
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


def batch_script(job: JobFile, copy: Path, script: Path, learners: Iterable[Path] = ()) -> str:
    """Make the text of `script`, which runs `copy`: `job` may be edited while the script waits in the queue.

    `learners` are the files of --learners.
    """
    system = batch_system("slurm")
    assert system is not None
    options = cluster_options(job, system)
    cores, memory = _needed(job, options, "cores"), _needed(job, options, "memory")
    processes = int(options.chosen("slurm", "processes") or 1)
    if processes > cores:
        job.refuse(f"must be at most the number of cores, {cores}, got {processes}", "cluster", "processes")
    security_of(options.tls_ca, options.tls_cert, options.tls_key)  # refuse missing files now
    python = shlex.quote(str(options.chosen("slurm", "python") or sys.executable))
    interface = options.chosen("slurm", "interface")
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
    local, n_bytes = options.chosen("slurm", "local_directory"), parse_bytes(memory)
    worker = _WORKER.format(
        python=python,
        options=shlex.join(words),
        address=worker_address,
        processes=processes,
        threads=cores // processes,
        worker_bytes=n_bytes // processes,
        local=shlex.quote(str(local)) if local else '"${TMPDIR:-/tmp}"',
        more="".join(f" {word}" for word in options.chosen("slurm", "worker_extra_args") or []),
    )
    body = _BODY.format(
        python=python,
        find_host=find_host,
        options=shlex.join(words),
        address=address,
        cores=cores,
        worker=shlex.quote(worker),
        job=shlex.quote(str(copy)),
        learners="".join(f" --learners {shlex.quote(str(path))}" for path in learners),
        script=shlex.quote(str(script)),
        place=place,
    )
    head = list(_head(job, options, cores, n_bytes))
    for line in head:  # a line break would begin a command
        if not line.isprintable():
            job.refuse(f"a directive of the script must be one line of printable characters, got {line!r}", "cluster")
    return "\n".join([*head, *(options.chosen("slurm", "job_script_prologue") or []), body])


def _head(job: JobFile, options: JobOptions, cores: int, n_bytes: int) -> Iterator[str]:
    yield "#!/bin/bash"
    yield f"# Made by `dmkl submit {job.path.name}`: scheduler, workers and client of that job in one allocation."
    yield "# Some time before the walltime SLURM sends USR1: dmkl then saves its work, and the next job goes on."
    yield "# Not TERM: scancel sends that too, and after it no job must go on."
    logs = Path(options.log_directory or job.path.parent).expanduser()
    directives: dict[str, Any] = {
        "job-name": f"dmkl-{job.path.stem}",
        "partition": options.chosen("slurm", "queue"),
        "account": options.chosen("slurm", "account"),
        "nodes": options.jobs or 1,
        "ntasks-per-node": 1,
        "cpus-per-task": cores,
        "mem": f"{-(-n_bytes // 2**20)}M",
        "time": options.chosen("slurm", "walltime"),
        "signal": f"B:USR1@{notice_seconds(job)}",
        "chdir": job.path.parent,
        "output": logs / f"{job.path.stem}-%j.out",
    }
    for name, value in directives.items():
        if value is not None:
            yield f"#SBATCH --{name}={shlex.quote(str(value))}"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue"
    yield from (f"#SBATCH {line}" for line in options.chosen("slurm", "job_extra_directives") or [])


def _needed(job: JobFile, options: JobOptions, name: str) -> Any:
    value = options.chosen("slurm", name)
    if value is None:
        job.refuse(
            f"needs {name}, of one node: give it here, or under jobqueue.slurm in ~/.config/dask/jobqueue.yaml "
            "(deploy/jobqueue.yaml is one to copy)",
            "cluster",
        )
    return value


def send(script: Path) -> str:
    """Send a script to SLURM, and return the number of its job; InputError with the message of sbatch."""
    if shutil.which("sbatch") is None:
        what = "sbatch is not on this machine: submit where it is (a login node), look at the script with --dry-run"
        refuse(f"{what}, or compute here with dmkl run")
    number, refusal = answer_of("sbatch", "--parsable", str(script), seconds=60)
    if refusal:
        refuse(f"SLURM refuses this job: {refusal}")
    return number.strip().partition(";")[0]
