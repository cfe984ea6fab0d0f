"""Keeping BLAS threads × tasks within the cores of a machine.

BLAS starts a thread for each core, whoever calls it, and threads that have nothing left to do spin for a while instead
of sleeping: between the small products of one fit they take all cores and do nothing, and where other programs want
these cores, each product waits for a thread that is not running. So work of one thread is what every entry of this
package begins with (`one_blas_thread`), and what gains from more asks for them while it lasts (`pinned_blas`).
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

from dmkl import settings

__all__ = ["blas_threads", "factor_threads", "one_blas_thread", "pinned_blas"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_SMALL_ORDER = 4096
"""Of order 1,088 a Cholesky factor takes 15 ms with one thread and no less with two, of order 4,096 0.6 s and 0.4.
Where other programs have the cores, threads that wait for one another make it a hundred times that."""


def blas_threads(tasks_per_machine: int) -> int:
    """BLAS threads for one of the tasks that run side by side on this machine."""
    asked = settings.get("blas-threads")
    return max(1, settings.available_cores() // max(1, tasks_per_machine)) if asked == "auto" else int(asked)


def factor_threads(order: int) -> int:
    """BLAS threads for the Cholesky factor of a matrix of this order, in a task that runs alone on its machine."""
    return 1 if order <= _SMALL_ORDER else settings.available_cores()


@contextmanager
def pinned_blas(threads: int) -> Iterator[None]:
    """Limit BLAS to `threads` threads inside this context.

    The limit is a setting of the whole process, which tasks in several threads share: it is the most that any of those
    inside asks for, and the last one out puts back what was there before the first. Setting and resetting it in each
    task would let one task's exit lift the limit under another.
    """
    _LIMIT.enter(threads)
    try:
        yield
    finally:
        _LIMIT.leave(threads)


def one_blas_thread(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function run with one BLAS thread, but for the parts of it that ask for more."""

    @functools.wraps(function)
    def pinned(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with pinned_blas(1):
            return function(*args, **kwargs)

    return pinned


class _Limit:
    """The limit of this process, by what those inside ask for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: Counter[int] = Counter()
        self._set: int | None = None
        self._before: list[tuple[Any, int]] = []

    def enter(self, threads: int) -> None:
        with self._lock:
            if not self._asked:
                self._before = [(library, library.get_num_threads()) for library in _libraries()]
            self._asked[threads] += 1
            self._adjust()

    def leave(self, threads: int) -> None:
        with self._lock:
            self._asked -= Counter([threads])
            self._adjust()

    def _adjust(self) -> None:
        wanted = max(self._asked, default=None)
        if wanted == self._set:
            return
        self._set = wanted
        for library, before in self._before:
            _free_control()
            library.set_num_threads(before if wanted is None else wanted)
        _free_control()


_LIMIT = _Limit()


@functools.cache
def _libraries() -> list[Any]:
    """What has threads of BLAS in this process; looking through all loaded libraries takes some milliseconds."""
    import scipy.linalg  # noqa: F401  # its BLAS is another than NumPy's, and must be there when they are looked for

    return [found for found in ThreadpoolController().lib_controllers if found.user_api == "blas"]


def _free_control() -> None:
    """Let this thread set the limit.

    From 3.8 on threadpoolctl gives OpenBLAS to the first thread that sets a limit and silently ignores all others,
    while here the first one in and the last one out may be two.
    """
    clear = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
