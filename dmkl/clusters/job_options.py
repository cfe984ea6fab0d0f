"""What may be said of the jobs of a batch system, and reading it from a file."""

from __future__ import annotations

import datetime
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from dask.utils import parse_bytes, parse_timedelta
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dmkl.clusters.batch_systems import SYSTEMS, cluster_class
from dmkl.errors import InputError, did_you_mean, short_repr
from dmkl.files.documents import read_document

__all__ = ["JobOptions", "job_options", "read_description"]

_CLASS = "class"


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _is_one_line(value: Any) -> bool:
    """Whether a value, or each of a list, has no control characters: a line break would begin a line of a script."""
    return all(map(_is_one_line, value)) if isinstance(value, list) else str(value).isprintable()


def _text(value: Any) -> Any:
    """TOML reads 04:00:00 as a time of the day."""
    return value.isoformat() if isinstance(value, datetime.time) else value


def _size(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | int) or parse_bytes(value) <= 0:
        raise ValueError
    return str(value)


def _duration(value: Any) -> float:
    try:
        seconds = float(parse_timedelta(value))
    except (KeyError, TypeError) as error:  # of a unit that there is not
        raise ValueError from error
    if not 0 < seconds < float("inf"):
        raise ValueError
    return seconds


_Count = Annotated[int, Field(ge=1)] | None
_Text = Annotated[str, Field(min_length=1)] | None
_Lines = Annotated[list[str], BeforeValidator(_listed)] | None


class JobOptions(BaseModel):
    """How many jobs, and what each of them is; each field's description completes "KEY must be …".

    Names are those of dask-jobqueue where it has them. What is None is as dask-jobqueue's own configuration says. More
    that a class of dask-jobqueue takes is kept as it is.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    queue: _Text = Field(None, description="the name of a queue (of a partition of SLURM)")
    account: _Text = Field(None, description="the name of an account")
    walltime: Annotated[_Text, BeforeValidator(_text)] = Field(
        None, description='the longest that a job may take, as the batch system writes it, in quotes: "04:00:00"'
    )
    cores: _Count = Field(None, description="the number of cores of a job")
    processes: _Count = Field(None, description="the number of worker processes of a job, among which cores are shared")
    memory: Annotated[str, BeforeValidator(_size)] | None = Field(
        None, description='the memory of a job, such as "64GiB"'
    )
    interface: _Text = Field(None, description="the network interface of the compute nodes, such as ib0")
    scheduler_interface: _Text = Field(
        None, description="the network interface of this machine, where it has another name"
    )
    local_directory: _Text = Field(None, description="a folder on a local disk of each compute node")
    log_directory: _Text = Field(None, description="the folder for what jobs print")
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

    @property
    def of_jobqueue(self) -> dict[str, Any]:
        """What dask-jobqueue is told: the options that are its own, and given."""
        given = {key: value for key, value in self.model_dump().items() if value is not None}
        return {key: value for key, value in given.items() if key not in _OURS}


_OURS = {"scheduler_interface", "jobs", "minimum", "maximum", "wait", "tls_ca", "tls_cert", "tls_key"}

_HIDDEN = {"self", "scheduler", "name", "nanny", "protocol", "security", "project", "extra", "env_extra", "header_skip"}
_HIDDEN |= {"job_extra", "base_class_kwargs", "kwargs"}
"""What dask-jobqueue sets itself, or has other names for by now."""


def job_options(system: str, given: Mapping[str, Any], source: str = "") -> JobOptions:
    """Check what was said of the jobs of a batch system.

    Parameters
    ----------
    system
        A key of `SYSTEMS`.
    given
        The options by name; hyphens stand for underscores.
    source
        A description that it comes from, for messages: the path of a file.

    Raises
    ------
    InputError
        If an option is not one of this batch system, or its value breaks a rule; a message for each, with the line.
    """
    options = {str(key).replace("-", "_"): value for key, value in given.items()}
    known = [*JobOptions.model_fields, *_more_of(system)]
    problems = [
        f"{_place(source, key)}{system} takes no {key!r}{did_you_mean(key, known)}; it takes {', '.join(known)}"
        for key in options
        if key not in known
    ]
    try:
        checked = JobOptions.model_validate(options)
    except ValidationError as error:
        keys = dict.fromkeys(str(problem["loc"][0]) for problem in error.errors(include_url=False))
        fields = JobOptions.model_fields
        problems += [
            f"{_place(source, key)}{key} must be {fields[key].description}, got {short_repr(options[key])}"
            for key in keys
        ]
    problems += [
        f"{_place(source, key)}{key} must be one line of printable characters, got {value!r}"
        for key, value in options.items()
        if key != "job_script_prologue" and not _is_one_line(value)
    ]
    if problems:
        raise InputError("\n".join(problems))
    if checked.jobs is not None and (checked.minimum or checked.maximum):
        msg = f"{_place(source, 'jobs')}give jobs, or minimum and maximum of worker processes, and not both"
        raise InputError(msg)
    if checked.minimum and checked.maximum and checked.minimum > checked.maximum:
        msg = f"{_place(source, 'minimum')}minimum is {checked.minimum}, more than maximum, {checked.maximum}"
        raise InputError(msg)
    return checked


def _more_of(system: str) -> list[str]:
    """Options of dask-jobqueue for this batch system that are its alone, or rare."""
    job = cluster_class(SYSTEMS[system]).job_cls
    taken = [name for cls in job.__mro__ if "__init__" in vars(cls) for name in inspect.signature(cls).parameters]
    cluster = ("scheduler_options", "shared_temp_directory")
    return [name for name in dict.fromkeys([*taken, *cluster]) if name not in _HIDDEN | set(JobOptions.model_fields)]


def _place(source: str, key: str) -> str:
    """Where a key stands in a file, to begin a message with; nothing where there is no file."""
    path = Path(source)
    if not source:
        return ""
    pattern = re.compile(rf"\s*['\"]?{re.escape(key).replace('_', '[-_]')}['\"]?\s*[=:]")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    number = next((number for number, line in enumerate(lines, 1) if pattern.match(line)), None)
    return f"{source}: " if number is None else f"{source}, line {number}: "


def read_description(path: Path) -> tuple[str, dict[str, Any]]:
    """Read which batch system a .toml or .yaml file describes, and its options, unchecked.

    InputError if it cannot be read, is no mapping, or does not say a known ``class``.
    """
    content = read_document(path, "a cluster", {".yaml": _yaml, ".yml": _yaml})
    if not isinstance(content, dict):
        msg = f"{path} must map options of a cluster to values, got {short_repr(content)}"
        raise InputError(msg)
    name = content.pop(_CLASS, None)
    system = str(name).lower().removesuffix("cluster")
    if system not in SYSTEMS:
        msg = (
            f"{_place(str(path), _CLASS)}{_CLASS} must be one of {', '.join(SYSTEMS)}, or the class in dask-jobqueue, "
            f"such as SLURMCluster, got {'nothing' if name is None else short_repr(name)}"
            f"{did_you_mean(system, SYSTEMS)}"
        )
        raise InputError(msg)
    return system, content


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
