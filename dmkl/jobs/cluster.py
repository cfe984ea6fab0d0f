"""The table [cluster] of a job file: where it computes, and what a job of a batch system is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from dask.utils import parse_timedelta

from dmkl.clusters.batch_systems import SYSTEMS
from dmkl.clusters.job_options import JobOptions, job_options
from dmkl.jobs.job_file import JobFile

__all__ = ["cluster_text", "notice_seconds", "options_of"]

_SECTION = "cluster"
_OURS = ("place", "notice")
_RESOURCES = ("workers", "memory")
_NOTICE_SECONDS = 120


def cluster_text(job: JobFile) -> str | None:
    """What --cluster is given, as it is written on a command line; None where the job says no place.

    InputError, with the line, if an option is not one of the place.
    """
    given = dict(job.sections.get(_SECTION, {}))
    place = given.pop("place", None)
    if place is None and not set(given) - {*_RESOURCES, *_OURS}:
        return None
    if place is None:
        msg = 'needs place: "local", "threads", "slurm" or another place that --cluster takes'
        raise job.problem(msg, _SECTION)
    notice_seconds(job)
    place = str(place)
    if place in SYSTEMS:
        options_of(job, place)
    beside = job.path.parent / place
    words = [shlex.quote(str(beside) if beside.is_file() else place)]
    for key, value in given.items():
        if key not in (*_OURS, *_RESOURCES):
            if place in ("threads", "local"):
                raise job.unknown(_SECTION, key, ("place", *_RESOURCES))
            each = value if isinstance(value, list) else [value]
            words += [shlex.quote(f"{key}={one}") for one in each]
    return " ".join(words)


def options_of(job: JobFile, system: str) -> JobOptions:
    """The options of jobs of a batch system; InputError, with the line, if one breaks a rule."""
    given: Mapping[str, Any] = job.sections.get(_SECTION, {})
    own = {key: value for key, value in given.items() if key not in (*_OURS, "workers")}
    return job_options(system, own, str(job.path))


def notice_seconds(job: JobFile) -> int:
    """How long before its walltime a job is told to end."""
    given = job.sections.get(_SECTION, {}).get("notice", _NOTICE_SECONDS)
    try:
        seconds = int(parse_timedelta(given))
    except (KeyError, TypeError, ValueError):
        seconds = 0
    if not 1 <= seconds <= 65535:  # what sbatch takes
        msg = f'must be a time from 1 s to 18 h, such as "2 m", got {given!r}'
        raise job.problem(msg, _SECTION, "notice")
    return seconds
