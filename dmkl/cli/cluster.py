"""What `--cluster` says: a place, and options of its jobs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dmkl
from dmkl.cli.output import say_aside
from dmkl.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

    from dmkl.kernelset import KernelSet

__all__ = ["computing_on", "stored_at"]

_SMALL_BYTES = 256 * 2**20
"""What a pass may read where threads are taken by default: it takes less time than starting processes."""


@contextmanager
def computing_on(
    where: str | None = None,
    *,
    reading: KernelSet | None = None,
    state: Path | None = None,
    workers: int | None = None,
    memory: str | None = None,
) -> Iterator[Client | None]:
    """Let computations inside this context run at `where`, a place of `dmkl.cluster` and options of its jobs.

    Such as ``slurm queue=short jobs=4``. None is "threads" where a pass reads few bytes of what is read, else "local".
    A host that does not see the kernels that are read, or the folder of the state, is found before anything runs.

    Raises
    ------
    InputError
        If there is such a host, or an option breaks a rule.
    """
    if where is None:
        where = "threads" if reading is None or reading.bytes_per_pass <= _SMALL_BYTES else "local"
    place, options = _parsed(where)
    for name, value in {"workers": workers, "memory": memory}.items():
        if value is not None and name in options:
            msg = f"--{name} {value} and {name}={options[name]} in --cluster say the same; leave one out"
            raise InputError(msg)
        if value is not None:
            options[name] = value
    with dmkl.cluster(place, **options) as client:
        if client is not None:
            from dmkl.clusters.preflight import check_hosts

            for difference in check_hosts(None if reading is None else stored_at(reading), state):
                say_aside("warning", difference)
        yield client


def stored_at(K: KernelSet) -> tuple[str, str] | None:
    """Where a kernel set is stored, and its content id; None where it has no place that other processes could see."""
    location = getattr(K.view.source, "location", None)
    return (location, K.content_id) if isinstance(location, str) else None


def _parsed(where: str) -> tuple[str, dict[str, Any]]:
    if Path(where).exists():  # a path may have spaces
        return where, {}
    try:
        place, *words = shlex.split(where)
    except ValueError as error:
        msg = f"--cluster takes a place and options such as queue=short, got {where!r} ({error})"
        raise InputError(msg) from error
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if not (key and equals and value):
            msg = f"after the place --cluster takes options such as queue=short, got {word!r}"
            raise InputError(msg)
        before = options.get(key)
        options[key] = value if before is None else [*([before] if isinstance(before, str) else before), value]
    return place, options
