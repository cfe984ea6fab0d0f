"""Keeping BLAS threads × tasks within the cores of a machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import threadpoolctl
from threadpoolctl import ThreadpoolController

from dmkl import settings

__all__ = ["blas_threads", "factor_threads", "pinned_blas"]

_SMALL_ORDER = 4096
"""Of order 1,088 a Cholesky factor takes 15 ms with one thread and no less with two, of order 4,096 0.6 s and 0.4.
Where other programs have the cores, threads that wait for one another make it a hundred times that."""

_LOCK = threading.Lock()
_INSIDE = 0
_LIMIT: Any = None
_CONTROLLER: ThreadpoolController | None = None


def blas_threads(tasks_per_machine: int) -> int:
    """BLAS threads for one of the tasks that run side by side on this machine."""
    asked = settings.get("blas-threads")
    return max(1, settings.available_cores() // max(1, tasks_per_machine)) if asked == "auto" else int(asked)


def factor_threads(order: int) -> int:
    """BLAS threads for the Cholesky factor of a matrix of this order, in a task that runs alone on its machine."""
    return 1 if order <= _SMALL_ORDER else settings.available_cores()


@contextmanager
def pinned_blas(threads: int) -> Iterator[None]:
    """Limit BLAS to `threads` threads while any task of this process is inside.

    The limit is a setting of the whole process, so tasks in several threads share it: the first one in sets it, the
    last one out puts back what was there. Setting and resetting it in each task would let one task's exit lift the
    limit under another.
    """
    global _INSIDE, _LIMIT, _CONTROLLER
    with _LOCK:
        if _INSIDE == 0:
            if _CONTROLLER is None:
                _CONTROLLER = ThreadpoolController()  # looks through the loaded libraries once: some milliseconds
            _free_control()
            _LIMIT = _CONTROLLER.limit(limits=threads, user_api="blas")
        _INSIDE += 1
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE -= 1
            if _INSIDE == 0:
                _free_control()
                _LIMIT.restore_original_limits()
                _free_control()
                _LIMIT = None


def _free_control() -> None:
    """Let this thread set the limit.

    From 3.8 on threadpoolctl gives OpenBLAS to the first thread that sets a limit and silently ignores all others,
    while here the first one in and the last one out may be two.
    """
    clear = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
