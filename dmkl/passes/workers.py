"""What the workers of a cluster may take of their machines, as they say themselves: the client's may be another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dmkl import limits, settings
from dmkl.errors import SmallWorkerWarning, warn

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Worker", "common", "look_at"]

_BESIDE_ARRAYS = 200 * 2**20
"""What the interpreter with its libraries takes of a worker's limit before the first array."""
_TOO_SMALL = 0.5
"""Workers whose tasks may take less than this share of what is common are left out."""


@dataclass(frozen=True)
class Worker:
    """A worker, as far as a pass has to know."""

    address: str
    place: tuple[str, str]
    """Its host and its job there: workers of one place share their memory."""
    slots: int
    """Tasks that it runs at once."""
    task_bytes: int
    """Memory that each of them may take."""
    total_bytes: int
    """Memory that a task which runs alone may take."""


_LOOKED: WeakKeyDictionary[Client, dict[str, tuple[str, int]]] = WeakKeyDictionary()
"""Of each worker of a client what it said when it was first seen."""


def _look() -> tuple[str, int]:
    """On a worker: the name of its job, and the bytes that arrays may take there."""
    return limits.machine_name(), settings.memory_budget_bytes()


def look_at(client: Client, told: Mapping[str, Any], kept: int = 0) -> list[Worker]:
    """The workers that the scheduler tells of, each with what it may take.

    Where the setting ``dmkl.memory`` is a number, it is that of every host, less the bytes that the client has `kept`,
    which may be on one of them. Otherwise each worker is asked once, when it is first seen; one that gives no answer is
    taken by the limit that Dask gives it.
    """
    known: dict[str, tuple[str, int]] = {}
    if settings.get("memory") == "auto":
        known = _LOOKED.setdefault(client, {})
        if new := [address for address in told if address not in known]:
            answers = client.run(_look, workers=new, on_error="return")
            known |= {address: found for address, found in answers.items() if isinstance(found, tuple)}
    # A look at the limits of this machine takes milliseconds, which are saved where every worker has told its own.
    budget = 0 if known.keys() >= told.keys() else max(1, settings.memory_budget_bytes() - kept)
    places = {address: (worker["host"], known.get(address, ("", 0))[0]) for address, worker in told.items()}
    slots: Counter[tuple[str, str]] = Counter()
    budgets: dict[tuple[str, str], int] = {}
    for address, worker in told.items():
        place = places[address]
        slots[place] += worker["nthreads"]
        # Later ones were asked when arrays of the others had taken some of it.
        own = known.get(address, ("", budget))[1]
        budgets[place] = max(budgets.get(place, 0), own)
    found = []
    for address, worker in told.items():
        place, threads = places[address], worker["nthreads"]
        limit = _usable(worker["memory_limit"]) or budgets[place]
        task = min(limit // threads, budgets[place] // slots[place])
        found.append(Worker(address, place, threads, task, min(limit, budgets[place])))
    return found


def _usable(memory_limit: int) -> int:
    """Bytes of a worker's limit that arrays may take; 0 where there is no limit.

    Dask stops giving a worker tasks at 80 %.
    """
    return max(int(0.8 * memory_limit) - _BESIDE_ARRAYS, 2**20) if memory_limit else 0


def common(workers: Sequence[Worker]) -> list[Worker]:
    """The workers that are given tasks: all but those with far less memory than is common.

    Tasks are of one size, which the smallest of these sets. What is common is the median over all slots. Who is left
    out is told, once.
    """
    by_slot = sorted(worker.task_bytes for worker in workers for _ in range(worker.slots))
    median = by_slot[(len(by_slot) - 1) // 2]
    chosen = [worker for worker in workers if worker.task_bytes >= _TOO_SMALL * median]
    left_out = tuple(worker for worker in workers if worker.task_bytes < _TOO_SMALL * median)
    if (names := tuple(worker.address for worker in left_out)) and names not in _TOLD:
        _TOLD.add(names)
        least = min(worker.task_bytes for worker in left_out) / 2**20
        msg = (
            f"{len(left_out)} of {len(workers)} workers are given no tasks ({', '.join(names[:3])}): a task may take "
            f"{least:.0f} MiB there and {median / 2**20:.0f} MiB on most others. Give them more memory or fewer "
            "threads, or set dmkl.memory to what every machine has"
        )
        warn(msg, SmallWorkerWarning)
    return chosen


_TOLD: set[tuple[str, ...]] = set()
