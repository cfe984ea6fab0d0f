"""Functions as tasks, wherever Dask runs them."""

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
    """Run functions side by side, with arguments that all of them take; their results in order.

    Parameters
    ----------
    what
        Prefix of the tasks' keys.
    work
        What each task calls, what takes longest first; arguments of its own are bound by `functools.partial`, in which
        Dask does not look for futures.
    shared
        Sent to a cluster's workers once.
    own
        For each task one more argument, after the shared ones, that may be large.
    task_bytes
        Bytes of kernels that each task reads, for the progress.
    """
    if not work:
        return []
    name = f"{what}-{next(_COUNTER)}"

    def run() -> list[Any]:
        token = uuid.uuid4().hex
        held = _sent({f"{name}-shared-{k}-{token}": value for k, value in enumerate(shared)}, broadcast=True)
        mine: list[tuple[Any, ...]] = [()] * len(work)
        if own is not None:
            sent = _sent({f"{name}-own-{k}-{token}": value for k, value in enumerate(own)}, broadcast=False)
            mine = [(value,) for value in sent]
        # Of tasks that nothing sets apart Dask begins with the one whose key is the last.
        tasks = [
            delayed(function, pure=False)(*held, *more, dask_key_name=f"{name}-{len(work) - k:06d}-{token}")
            for k, (function, more) in enumerate(zip(work, mine, strict=True))
        ]
        return execute(tasks, [(task, task_bytes) for task in tasks], name)

    return again(run, name)


def _sent(values: dict[str, Any], *, broadcast: bool) -> list[Any]:
    """Values that tasks take, by name: in the graph itself where they are small.

    Sending them ahead takes the client several messages to the scheduler and to each worker.
    """
    if sizeof(list(values.values())) > _SMALL_BYTES:
        return send_all(values, broadcast=broadcast)
    return [delayed(value, name=name, traverse=False) for name, value in values.items()]
