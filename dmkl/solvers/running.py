"""Functions run as Dask tasks."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from dask.delayed import delayed
from dask.sizeof import sizeof

from dmkl.passes.execute import again, execute, send_all

__all__ = ["run_tasks"]

_COUNTER = itertools.count(1)
_SMALL_BYTES = 2**20


def run_tasks(
    what: str, work: Sequence[Callable[..., Any]], *shared: Any, own: Sequence[Any] | None = None, task_bytes: int = 0
) -> list[Any]:
    """Run functions side by side, with shared arguments; returns their results in order.

    Parameters
    ----------
    what
        Prefix of the tasks' keys.
    work
        The functions that the tasks call, the longest first; arguments of a single task are bound by
        `functools.partial`, which Dask does not search for futures.
    shared
        Arguments of all tasks, sent to a cluster's workers once.
    own
        One more argument for each task, after the shared ones, which may be large.
    task_bytes
        Bytes of kernels that each task reads, for the progress report.
    """
    if not work:
        return []
    name = f"{what}-{next(_COUNTER)}"

    def run() -> list[Any]:
        token = uuid.uuid4().hex
        shared_values = _sent({f"{name}-shared-{k}-{token}": value for k, value in enumerate(shared)}, broadcast=True)
        own_values: list[tuple[Any, ...]] = [()] * len(work)
        if own is not None:
            sent = _sent({f"{name}-own-{k}-{token}": value for k, value in enumerate(own)}, broadcast=False)
            own_values = [(value,) for value in sent]
        # Dask starts tasks of equal priority with the last key, so the keys count down: the longest task starts first.
        tasks = [
            delayed(function, pure=False)(*shared_values, *more, dask_key_name=f"{name}-{len(work) - k:06d}-{token}")
            for k, (function, more) in enumerate(zip(work, own_values, strict=True))
        ]
        return execute(tasks, [(task, task_bytes) for task in tasks], name)

    return again(run, name)


def _sent(values: dict[str, Any], *, broadcast: bool) -> list[Any]:
    """Make values available to tasks, by name: in the graph itself if they are small.

    Sending them separately costs the client several messages to the scheduler and to each worker.
    """
    if sizeof(list(values.values())) > _SMALL_BYTES:
        return send_all(values, broadcast=broadcast)
    return [delayed(value, name=name, traverse=False) for name, value in values.items()]
