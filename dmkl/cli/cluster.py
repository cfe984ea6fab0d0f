"""What `--cluster` says: a place, and options of its jobs."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dmkl
from dmkl.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["computing_on"]

_SMALL_BYTES = 256 * 2**20
"""What a pass may read where threads are taken by default: it takes less time than starting processes."""


def computing_on(
    where: str | None = None, *, n_bytes: int = 0, workers: int | None = None, memory: str | None = None
) -> AbstractContextManager[Client | None]:
    """Let computations inside this context run at `where`, a place of `dmkl.cluster` and options of its jobs.

    Such as ``slurm queue=short jobs=4``. None is "threads" where a pass reads few bytes, `n_bytes`, else "local".
    """
    if where is None:
        where = "threads" if n_bytes <= _SMALL_BYTES else "local"
    place, options = _parsed(where)
    for name, value in {"workers": workers, "memory": memory}.items():
        if value is not None and name in options:
            msg = f"--{name} {value} and {name}={options[name]} in --cluster say the same; leave one out"
            raise InputError(msg)
        if value is not None:
            options[name] = value
    return dmkl.cluster(place, **options)


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
