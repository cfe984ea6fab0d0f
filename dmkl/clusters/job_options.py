"""Batch systems, and the options of their jobs."""

from __future__ import annotations

import inspect
import re
import signal
import sys
import threading
from collections.abc import Mapping
from datetime import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import dask
from dask.utils import parse_bytes, parse_timedelta
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dmkl.errors import InputError, did_you_mean, needing, refuse, short_repr
from dmkl.files.documents import read_document


class BatchSystem(NamedTuple):
    """A batch system, as dask-jobqueue knows it."""

    section: str  # in the configuration of dask-jobqueue: "slurm"
    cluster_class: Any

    @property
    def title(self) -> str:
        """Its name in messages: "SLURM"."""
        return str(self.cluster_class.__name__.removesuffix("Cluster"))

    @property
    def submit(self) -> str:
        """The program that takes jobs: "sbatch"."""
        return str(self.cluster_class.job_cls.submit_command)

    @property
    def look(self) -> str:
        """The programs that show a user its queues."""
        return {"slurm": "sinfo and squeue", "pbs": "qstat"}.get(self.section, "its queue")

    @property
    def runs_shell(self) -> bool:
        """Whether a shell reads the command of a job."""
        return self.section != "htcondor"


def batch_system(name: str) -> BatchSystem | None:
    """The batch system of a name such as "slurm" or "SLURMCluster"; None if dask-jobqueue has no such class."""
    systems = {system.section: system for system in _batch_systems()}
    return systems.get(name.lower().removesuffix("cluster"))


def _batch_systems() -> list[BatchSystem]:
    main = threading.current_thread() is threading.main_thread()
    if "dask_jobqueue" not in sys.modules and not main:
        refuse("dask-jobqueue can be imported by the main thread only: import dask_jobqueue there first")
    handler = signal.getsignal(signal.SIGINT)
    try:
        with needing("dask-jobqueue", "batch systems such as slurm need"):
            import dask_jobqueue
    finally:
        if main:  # the import makes Ctrl-C end the process without a message
            signal.signal(signal.SIGINT, handler)
    if "jobqueue" not in dask.config.config:
        # An import inside a `dask.config.set` of its keys loses its defaults at the end of that context.
        dask_jobqueue.config.reconfigure()
    kinds = [kind for kind in vars(dask_jobqueue).values() if getattr(kind, "job_cls", None) is not None]
    return [BatchSystem(str(kind.job_cls.config_name), kind) for kind in kinds]


# --- options -------------------------------------------------------------------------------------------------------


def _is_one_line(value: Any) -> bool:
    """Whether a value, or all of a list, has no control characters: a line break would begin a line of a script."""
    return all(map(_is_one_line, value)) if isinstance(value, list) else str(value).isprintable()


def _size(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | int) or parse_bytes(value) <= 0:
        raise ValueError
    return str(value)


def _duration(value: Any) -> float:
    try:
        seconds = float(parse_timedelta(value))
    except (KeyError, TypeError) as error:  # an unknown unit
        raise ValueError from error
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


_Count = Annotated[int, Field(ge=1)] | None
_Text = Annotated[str, Field(min_length=1)] | None
# TOML reads 04:00:00 as a time of the day.
_Time = Annotated[_Text, BeforeValidator(lambda value: value.isoformat() if isinstance(value, time) else value)]
_Lines = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] | None


class JobOptions(BaseModel):
    """The number of jobs and their resources; the description of a field completes "KEY must be …".

    Names are those of dask-jobqueue where it has them. The configuration of dask-jobqueue has the defaults of fields
    that are None. Other options of its classes are passed on unchanged.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    queue: _Text = Field(None, description="the name of a queue (of a partition of SLURM)")
    account: _Text = Field(None, description="the name of an account")
    walltime: _Time = Field(
        None, description='the time limit of a job, as the batch system writes it, in quotes: "04:00:00"'
    )
    cores: _Count = Field(None, description="the number of cores of a job")
    processes: _Count = Field(None, description="the number of worker processes of a job, among which cores are shared")
    memory: Annotated[str, BeforeValidator(_size)] | None = Field(
        None, description='the memory of a job, such as "64GiB"'
    )
    interface: _Text = Field(None, description="the network interface of the compute nodes, such as ib0")
    scheduler_interface: _Text = Field(
        None, description="the network interface of this machine, if it has another name"
    )
    local_directory: _Text = Field(None, description="a folder on a local disk of each compute node")
    log_directory: _Text = Field(None, description="the folder for the output of jobs")
    job_extra_directives: _Lines = Field(None, description="a list of directives of the batch system")
    job_script_prologue: _Lines = Field(None, description="a list of shell commands that a job begins with")
    job_directives_skip: _Lines = Field(None, description="a list of directives to leave out")
    worker_extra_args: _Lines = Field(None, description="a list of options of dask worker")
    jobs: _Count = Field(None, description="the number of jobs")
    minimum: _Count = Field(None, description="the least number of worker processes, a positive number")
    maximum: _Count = Field(None, description="the largest number of worker processes, a positive number")
    wait: Annotated[float, BeforeValidator(_duration)] = Field(
        3600.0, description='how long to wait for a worker, such as "10 m"'
    )
    tls_ca: _Text = Field(None, description="a file in PEM format")
    tls_cert: _Text = Field(None, description="a file in PEM format")
    tls_key: _Text = Field(None, description="a file in PEM format")

    def chosen(self, section: str, name: str) -> Any:
        """The value of an option, or else that in a section of dask-jobqueue's configuration; None if there is none."""
        given = getattr(self, name, None)
        return dask.config.get(f"jobqueue.{section}.{name.replace('_', '-')}", None) if given is None else given


_HIDDEN = {"self", "scheduler", "name", "nanny", "protocol", "security", "project", "extra", "env_extra", "header_skip"}
_HIDDEN |= {"job_extra", "base_class_kwargs", "kwargs"}
"""Options that dask-jobqueue sets itself, and old names."""


def job_options(system: BatchSystem, given: Mapping[str, Any], source: str = "") -> JobOptions:
    """Check the options of jobs, in whose names hyphens stand for underscores; `source` is the path of their file."""
    options = {str(key).replace("-", "_"): value for key, value in given.items()}
    classes = [kind for kind in system.cluster_class.job_cls.__mro__ if "__init__" in vars(kind)]
    names = [name for kind in classes for name in inspect.signature(kind).parameters if name not in _HIDDEN]
    allowed = list(dict.fromkeys([*JobOptions.model_fields, *names, "scheduler_options", "shared_temp_directory"]))
    problems = [
        f"{_line(source, key)}{system.section} takes no {key!r}{did_you_mean(key, allowed)}; it takes "
        f"{', '.join(allowed)}"
        for key in options
        if key not in allowed
    ]
    try:
        checked = JobOptions.model_validate(options)
    except ValidationError as error:
        keys = dict.fromkeys(str(problem["loc"][0]) for problem in error.errors(include_url=False))
        fields = JobOptions.model_fields
        problems += [
            f"{_line(source, key)}{key} must be {fields[key].description}, got {short_repr(options[key])}"
            for key in keys
        ]
    problems += [
        f"{_line(source, key)}{key} must be one line of printable characters, got {value!r}"
        for key, value in options.items()
        if key != "job_script_prologue" and not _is_one_line(value)
    ]
    if problems:
        raise InputError("\n".join(problems))
    if checked.jobs is not None and (checked.minimum or checked.maximum):
        refuse(f"{_line(source, 'jobs')}give jobs, or minimum and maximum of worker processes, and not both")
    if checked.minimum and checked.maximum and checked.minimum > checked.maximum:
        refuse(f"{_line(source, 'minimum')}minimum is {checked.minimum}, more than maximum, {checked.maximum}")
    return checked


def _line(source: str, key: str) -> str:
    """The file and the line of a key, which begin a message; empty if there is no file."""
    path = Path(source)
    if not source:
        return ""
    pattern = re.compile(rf"\s*['\"]?{re.escape(key).replace('_', '[-_]')}['\"]?\s*[=:]")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    number = next((number for number, line in enumerate(lines, 1) if pattern.match(line)), None)
    return f"{source}: " if number is None else f"{source}, line {number}: "


def read_description(path: Path) -> tuple[BatchSystem, dict[str, Any]]:
    """Read the batch system, ``class``, and the unchecked options of its jobs from a .toml or .yaml file."""
    content = read_document(path, "a cluster", {".yaml": _yaml, ".yml": _yaml})
    if not isinstance(content, dict):
        refuse(f"{path} must map options of a cluster to values, got {short_repr(content)}")
    name = content.pop("class", None)
    system = batch_system(str(name))
    if system is None:
        names = [item.section for item in _batch_systems()]
        similar = did_you_mean(str(name).lower(), names)
        what = f"{_line(str(path), 'class')}class must be one of {', '.join(names)}, or the class in dask-jobqueue"
        refuse(f"{what}, such as SLURMCluster, got {'nothing' if name is None else short_repr(name)}{similar}")
    return system, content


def _yaml(text: str) -> Any:
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            # A few lines of aliases of aliases stand for more values than any memory has.
            msg = "it has aliases (*name), which are not read; write each value where it belongs"
            raise ValueError(msg)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
