"""Keeping BLAS threads × tasks within the cores of a machine.

BLAS starts a thread for each core in every process, and its idle threads spin for a while before they sleep. Between
the small products of one fit they occupy all cores without doing anything, and on a shared machine every product waits
for a thread that is not running. Every public entry of this package therefore starts with one BLAS thread
(`one_blas_thread`); the parts that gain from more threads request them for their own duration (`pinned_blas`).
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import threadpoolctl
from threadpoolctl import ThreadpoolController

from dmkl import progress, settings

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# A Cholesky factor of order 1,088 takes 15 ms with one thread or two; one of order 4,096 takes 0.6 s and 0.4 s. On a
# machine whose cores are busy with other programs, waiting threads make it a hundred times slower.
_SMALL_ORDER = 4096


def blas_threads(tasks_per_machine: int) -> int:
    """BLAS threads for one of the tasks that run side by side on this machine."""
    setting = settings.get("blas-threads")
    return max(1, settings.available_cores() // max(1, tasks_per_machine)) if setting == "auto" else int(setting)


def factor_threads(order: int, tasks_per_machine: int = 1) -> int:
    """BLAS threads for the Cholesky factor of a matrix of this order, of so many side by side on this machine."""
    return 1 if order <= _SMALL_ORDER else max(1, settings.available_cores() // max(1, tasks_per_machine))


@contextmanager
def pinned_blas(threads: int) -> Iterator[None]:
    """Limit BLAS to `threads` threads inside this context.

    The limit is a setting of the whole process, and tasks in several threads share it: it is the largest limit that an
    active context requests, and the last context to end restores the values from before the first. If each task set
    and reset the limit itself, the exit of one task would lift it for another.
    """
    _LIMIT.request(threads, 1)
    try:
        yield
    finally:
        _LIMIT.request(threads, -1)


def one_blas_thread(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function run with one BLAS thread, except for the parts that request more, and show its progress."""

    @functools.wraps(function)
    def pinned(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with pinned_blas(1), progress.shown():
            return function(*args, **kwargs)

    return pinned


class _Limit:
    """The BLAS limit of this process: the largest of the limits that active contexts request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: Counter[int] = Counter()
        self._set: int | None = None
        self._before: list[tuple[Any, int]] = []

    def request(self, threads: int, contexts: int) -> None:
        """Add some contexts with this limit, or take them away."""
        with self._lock:
            if not self._asked:
                self._before = [(library, library.get_num_threads()) for library in _libraries()]
            self._asked[threads] += contexts
            self._asked = +self._asked  # without limits that no context requests
            wanted = max(self._asked, default=None)
            if wanted == self._set:
                return
            self._set = wanted
            for library, before in self._before:
                # The library object was made when no context was active, so its thread count is the user's.
                _free_control()
                library.set_num_threads(before if wanted is None else wanted)
            _free_control()


_LIMIT = _Limit()


@functools.cache
def _libraries() -> list[Any]:
    """The BLAS libraries in this process; the search through all loaded libraries takes some milliseconds."""
    import scipy.linalg  # noqa: F401  # SciPy has a BLAS of its own, which must be loaded before the search

    return [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]


def _free_control() -> None:
    """Let this thread set the limit.

    Since version 3.8 threadpoolctl lets only the first thread that sets a limit control OpenBLAS and silently ignores
    the others, but here the first context and the last one may belong to different threads.
    """
    clear = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
