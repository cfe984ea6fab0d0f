"""Running the tasks of a pass on whatever scheduler Dask uses: threads of this process, or a cluster.

Memory and cores are those of the workers, since the client may run on another machine. A value that many tasks need is
a node of their graph, or is sent once to the workers of a cluster.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import dask
import numpy as np
from dask import threaded
from dask.base import get_scheduler, tokenize
from dask.callbacks import Callback
from dask.delayed import Delayed, delayed
from dask.local import get_sync
from dask.sizeof import sizeof

from dmkl import errors, progress, settings
from dmkl._version import version
from dmkl.arrays import Array
from dmkl.errors import (
    MemoryBudgetError,
    NoWorkersError,
    OtherVersionWarning,
    SchedulerLostError,
    SilentWorkerWarning,
    SmallWorkerWarning,
    WorkerLostError,
    first_names,
    one_line,
    refuse,
    size_text,
    warn,
)
from dmkl.files.syncing import sync_tree
from dmkl.files.writing import reporting_full_disk

if TYPE_CHECKING:
    from distributed import Client, Future, as_completed

Result = TypeVar("Result")

# Bytes of a worker's limit that the interpreter and its libraries take before the first array.
_BESIDE_ARRAYS = 200 * 2**20
# Workers whose tasks may take less than this share of the median are left out.
_TOO_SMALL = 0.5


@dataclass(frozen=True)
class Worker:
    """The properties of a worker that a pass needs."""

    address: str
    place: tuple[str, str]  # Its host and its job there: workers of one place share memory.
    slots: int  # Tasks that it runs at once.
    task_bytes: int  # Memory that each of them may take.
    total_bytes: int  # Memory that a task which runs alone may take.


# For each client and worker, the answer that the worker gave when it was first seen.
_LOOKED: WeakKeyDictionary[Client, dict[str, tuple[str, int]]] = WeakKeyDictionary()


def _look() -> tuple[str, int]:
    """On a worker: the name of its job, and the bytes that arrays may take there."""
    return settings.machine_name(), settings.memory_budget_bytes()


# For each client, the version of dmkl at each worker and at the scheduler, which reads all graphs.
_VERSIONS: WeakKeyDictionary[Client, dict[str, str]] = WeakKeyDictionary()
NO_ANSWER = "no answer"
"""Stands for the version of a worker that gives no answer."""
# Text is the same for every Python and dmkl; functions are sent by their names, or as bytecode of one Python.
_VERSION_THERE = "__import__('dmkl').__version__ if __import__('importlib.util').util.find_spec('dmkl') else 'none'"


def workers_of_another_dmkl(client: Client, reports: Mapping[str, Any]) -> dict[str, str]:
    """By address, the version of dmkl of workers in the scheduler's report that run another than this process.

    A worker ends at a message that it cannot read, such as one with a function that its dmkl does not have. Each is
    asked once, when it is first seen; the version of one that does not answer is NO_ANSWER. InputError if the scheduler
    runs another.
    """
    if client not in _VERSIONS:
        if (there := client.run_on_scheduler(eval, _VERSION_THERE)) != version():
            address = client.scheduler_info(n_workers=0)["address"]
            refuse(
                f"the scheduler at {address} runs dmkl {there}, and this process runs dmkl {version()}; install the "
                "same dmkl there, and start it again"
            )
        _VERSIONS[client] = {}
        client.subscribe_topic(errors.WARNINGS, partial(_receive_warning, client))
    versions = _VERSIONS[client]
    # The same dmkl also imports what the next functions need, which takes long where the disk is slow.
    text = f"[v for v in [{_VERSION_THERE}] if v != {version()!r} or __import__({__name__!r})][0]"
    replies = ask(client, eval, text, workers=[address for address in reports if address not in versions])
    versions |= {address: reply for address, reply in replies.items() if isinstance(reply, str)}
    return {address: there for address in reports if (there := versions.get(address, version())) != version()}


def ask(client: Client, function: Callable[..., Any], *arguments: Any, workers: Iterable[str]) -> dict[str, Any]:
    """Call a function on workers, outside tasks: the results or exceptions of those that answer, by address.

    A worker gets no tasks from then on if it cannot be reached, or gives no answer and sends the scheduler no message
    within the setting ``dmkl.workers-timeout``. Dask's `Client.run` for many workers waits for all answers, without
    end. The function runs in a thread of the worker, which sends messages meanwhile.
    """
    run, loop = cast("Any", client.run), cast("Any", client.loop).asyncio_loop
    replies = {
        address: asyncio.run_coroutine_threadsafe(
            run(asyncio.to_thread, function, *arguments, workers=[address], on_error="return", asynchronous=True), loop
        )
        for address in workers
    }
    seconds, named = float(settings.get("workers-timeout")), False
    while late := wait_for(replies.values(), timeout=min(seconds / 4, _LOOK_SECONDS)).not_done:
        listed = workers_of_scheduler(client)
        since, now = _HEARD[client], time.monotonic()
        silent = {a: now - since[a][1] for a, reply in replies.items() if reply in late and a in listed}
        if all(silence > seconds for silence in silent.values()):
            break
        if not named and (names := [a for a, silence in silent.items() if silence > _NAMED_SECONDS]):
            named = True
            warn(
                f"waiting up to {seconds:g} s for workers without an answer ({first_names(names)})", SilentWorkerWarning
            )
    answers = {
        address: TimeoutError() if reply.cancel() else reply.exception() or reply.result()[address]
        for address, reply in replies.items()
    }
    # Errors of connections that Dask raises have no number, and those of files, which the function may raise, have one.
    lost = {address for address, answer in answers.items() if isinstance(answer, OSError) and answer.errno is None}
    if lost:
        listed = workers_of_scheduler(client)
        _VERSIONS.setdefault(client, {}).update({address: NO_ANSWER for address in lost if address in listed})
    return {address: answer for address, answer in answers.items() if address not in lost}


def look_at(client: Client, reports: Mapping[str, Any], kept: int = 0) -> list[Worker]:
    """The workers in the scheduler's report, each with its limits.

    If the setting ``dmkl.memory`` is a number, it is the budget of every host, less the bytes that the client has
    `kept`, which may be on one of these hosts. Otherwise each worker is asked once, when it is first seen; a worker
    that does not answer gets the limit that Dask gives it.
    """
    answers: dict[str, tuple[str, int]] = {}
    if settings.get("memory") == "auto":
        answers = _LOOKED.setdefault(client, {})
        if new := [address for address in reports if address not in answers]:
            replies = ask(client, _look, workers=new)
            answers |= {address: reply for address, reply in replies.items() if isinstance(reply, tuple)}
    # Reading the limits of this machine takes milliseconds; skip it if every worker has reported its own.
    budget = 0 if answers.keys() >= reports.keys() else max(1, settings.memory_budget_bytes() - kept)
    places = {address: (worker["host"], answers.get(address, ("", 0))[0]) for address, worker in reports.items()}
    slots, budgets = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for address, place in places.items():
        slots[place] += reports[address]["nthreads"]
        # Workers of one host share a budget: the largest answer, since later workers were asked when the arrays of
        # earlier ones already took part of it.
        budgets[place] = max(budgets[place], answers.get(address, ("", budget))[1])
    workers = []
    for address, worker in reports.items():
        place, threads = places[address], worker["nthreads"]
        # Dask stops giving a worker tasks at 80 % of its limit, which is 0 if it has none.
        limit = worker["memory_limit"]
        limit = max(int(0.8 * limit) - _BESIDE_ARRAYS, 2**20) if limit else budgets[place]
        # Two bounds: Dask's limit is for one worker process and its threads, the budget for all slots of the host.
        task = min(limit // threads, budgets[place] // slots[place])
        workers.append(Worker(address, place, threads, task, min(limit, budgets[place])))
    return workers


def common(workers: Sequence[Worker]) -> list[Worker]:
    """The workers that are given tasks: all but those with far less memory than the median over all slots.

    All tasks have one size, which the smallest of these workers sets. A warning names the workers left out, once.
    """
    # The lower median: an actual worker's value. Counting slots, not workers, weighs a worker by the tasks that it
    # runs.
    by_slot = sorted(worker.task_bytes for worker in workers for _ in range(worker.slots))
    median = by_slot[(len(by_slot) - 1) // 2]
    chosen = [worker for worker in workers if worker.task_bytes >= _TOO_SMALL * median]
    left_out = [worker for worker in workers if worker.task_bytes < _TOO_SMALL * median]
    if left_out:
        least = min(worker.task_bytes for worker in left_out) / 2**20
        why = (
            f"a task may take {least:.0f} MiB there and {median / 2**20:.0f} MiB on most others. Give them more memory "
            "or fewer threads, or set dmkl.memory to what every machine has"
        )
        _warn_of_left_out([worker.address for worker in left_out], len(workers), why, SmallWorkerWarning)
    return chosen


_TOLD: set[tuple[str, ...]] = set()


def _warn_of_left_out(addresses: Sequence[str], n_workers: int, why: str, category: type[Warning]) -> None:
    """Name workers that are given no tasks, once."""
    if addresses and (key := (category.__name__, *addresses)) not in _TOLD:
        _TOLD.add(key)
        warn(f"{len(addresses)} of {n_workers} workers are given no tasks ({first_names(addresses)}): {why}", category)


# For each client, the messages and categories of warnings that its tasks have sent.
_RECEIVED: WeakKeyDictionary[Client, list[tuple[str, str]]] = WeakKeyDictionary()


def _receive_warning(client: Client, event: tuple[float, tuple[str, str, str]]) -> None:
    _, (key, message, category) = event
    if key in client.futures:  # not of another client
        _RECEIVED.setdefault(client, []).append((message, category))


# --- running tasks -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """The limits of the place where tasks run that a pass needs."""

    slots: int  # Tasks that run at once, everywhere together.
    slots_per_host: int  # The most that run at once on one machine.
    task_bytes: int  # Memory that one task may take.
    total_bytes: int  # Memory that a task which runs alone may take.
    workers: tuple[str, ...] | None = None
    """The addresses of the workers with enough memory and the same dmkl, if there are others: tasks go only there."""


_HERE: ContextVar[Machine | None] = ContextVar("dmkl-here", default=None)


def computing_here(limits_here: Machine) -> AbstractContextManager[Any]:
    """Let passes inside this context run in this thread: for a task, which may take these limits of its machine.

    Dask's own configuration of the scheduler is one for all threads of a process, so tasks cannot set it.
    """
    return progress.inside(_HERE, limits_here)


class Call:
    """A task that runs in this thread when it is needed, for work that takes less time than a graph of Dask."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], key: str) -> None:
        self.key, self._function, self._arguments = key, function, arguments
        self._result: list[Any] = []
        self._uses = 0
        for argument in arguments:
            for item in argument if isinstance(argument, list) else (argument,):
                if isinstance(item, Call):
                    item._uses += 1

    def result(self) -> Any:
        """The result, which is dropped when the last of the tasks that need it has taken it."""
        self._uses -= 1
        if not self._result:
            self._result.append(self._function(*map(_result, self._arguments)))
            self._arguments = ()
        return self._result[0] if self._uses > 0 else self._result.pop()


def _result(argument: Any) -> Any:
    if isinstance(argument, list):
        return [item.result() if isinstance(item, Call) else item for item in argument]
    return argument.result() if isinstance(argument, Call) else argument


Task = Delayed | Call


def task(function: Callable[..., Any], *arguments: Any, key: str, lazy: bool = False) -> Any:
    """A task, whose arguments may be tasks and lists of tasks; `lazy` ones are for graphs that are kept for later."""
    if _HERE.get() is None or lazy:
        return delayed(function, pure=False)(*arguments, dask_key_name=key)
    return Call(function, arguments, key)


_KEPT: ContextVar[int] = ContextVar("dmkl-kept", default=0)


def keeping(n_bytes: int) -> AbstractContextManager[Any]:
    """Reserve bytes of this machine's budget for values that this process itself holds inside this context."""
    return progress.inside(_KEPT, _KEPT.get() + n_bytes)


def scheduler() -> Callable[..., Any]:
    """The function that runs graphs now; Dask itself would import distributed to see that there is no client."""
    if "distributed" not in sys.modules and dask.config.get("scheduler", None) is None:
        return threaded.get
    return get_scheduler() or threaded.get


def active_client() -> Client | None:
    """The `distributed` client that a computation would go to now, if any."""
    # Whoever has a client has imported distributed already; importing it here would take long.
    if _HERE.get() is not None or "distributed" not in sys.modules:
        return None
    from distributed import Client

    owner = getattr(get_scheduler(), "__self__", None)
    return owner if isinstance(owner, Client) else None


def machine() -> Machine:
    """Look at the cluster or at this machine.

    NoWorkersError is raised if a cluster has no worker within the setting ``dmkl.workers-timeout``, SchedulerLostError
    if it is gone, InputError if all its workers run another dmkl.
    """
    if (inside := _HERE.get()) is not None:
        return inside
    client = active_client()
    if client is None:
        slots, budget = _local_slots(), max(1, settings.memory_budget_bytes() - _KEPT.get())
        return Machine(slots, slots, budget // slots, budget)
    if client.status != "running":
        raise _scheduler_lost()
    reports = workers_of(client)
    workers = look_at(client, _of_this_dmkl(client, reports), _KEPT.get())
    chosen = common(workers)
    per_place: Counter[tuple[str, str]] = Counter()
    for worker in chosen:
        per_place[worker.place] += worker.slots
    return Machine(
        per_place.total(),
        max(per_place.values()),
        min(worker.task_bytes for worker in chosen),
        min(worker.total_bytes for worker in chosen),
        None if len(chosen) == len(reports) else tuple(worker.address for worker in chosen),
    )


def _of_this_dmkl(client: Client, reports: Mapping[str, Any]) -> dict[str, Any]:
    """The workers in the scheduler's report that answer and run the same dmkl; warnings name the others, once."""
    others = workers_of_another_dmkl(client, reports)
    silent = [address for address, there in others.items() if there == NO_ANSWER]
    different = {address: there for address, there in others.items() if there != NO_ANSWER}
    seconds = settings.get("workers-timeout")
    if len(silent) == len(reports):
        msg = (
            f"none of the workers of the cluster at {client.scheduler_info(n_workers=0)['address']} gives an answer "
            f"within {seconds} s ({first_names(silent)}). {NO_WAY_THERE}, or allow more time with the setting "
            "dmkl.workers-timeout"
        )
        raise NoWorkersError(msg)
    versions = (
        f"they run dmkl {', '.join(sorted(set(different.values())))}, and this process runs dmkl {version()}; install "
        "the same dmkl there, and start them again"
    )
    if len(others) == len(reports):
        refuse(f"no worker of the cluster can take part ({first_names(different)}): {versions}")
    _warn_of_left_out(list(different), len(reports), versions, OtherVersionWarning)
    _warn_of_left_out(silent, len(reports), f"they give no answer. {NO_WAY_THERE}", SilentWorkerWarning)
    return {address: report for address, report in reports.items() if address not in others}


NO_WAY_THERE = (
    "Their processes are suspended, or the scheduler cannot reach them: start them again, with --host or "
    "--contact-address if their address is wrong, and look at the firewall"
)


def _local_slots() -> int:
    scheduler = dask.config.get("scheduler", None)
    if scheduler in ("sync", "synchronous", "single-threaded"):
        return 1
    number = dask.config.get("num_workers", None)
    return settings.tasks_at_once() if number is None else int(number)


_FREED_BYTES = 2**26  # Freed memory that glibc's allocator may keep for each thread that allocates.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def _return_freed_memory(slots: int) -> None:
    """Set the allocator to return freed memory to the system where it may keep a large part of the budget.

    The options hold until the process ends. `malloc_trim` would leave the end of each thread's heap. Elsewhere arrays
    in memory that is kept need no new pages.
    """
    is_large = 8 * _FREED_BYTES * (slots + 1) > settings.memory_budget_bytes()
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" and is_large else None
    if set_option is not None:  # of glibc alone
        set_option(_MMAP_THRESHOLD, 2**20)
        set_option(_TRIM_THRESHOLD, 2**20)


END_OF_A_WORKER = (
    "A worker ends when it is killed, mostly for want of memory, and when it cannot read a message, such as one with a "
    "function of a module that it does not have: its log says why"
)


def workers_of(client: Client) -> Mapping[str, Any]:
    """The scheduler's report on its workers, by address, once there are any; NoWorkersError after a timeout."""
    deadline = time.monotonic() + float(settings.get("workers-timeout"))
    while not (workers := workers_of_scheduler(client)):
        if time.monotonic() > deadline:
            where, seconds = client.scheduler_info(n_workers=0)["address"], settings.get("workers-timeout")
            msg = (
                f"the cluster at {where} has given no worker within {seconds} s; look at its logs or its queue, or "
                "allow more time with the setting dmkl.workers-timeout"
            )
            if seen := list(_VERSIONS.get(client, ())):
                msg = (
                    f"all workers of the cluster at {where} have ended, the last at {', '.join(seen[-3:])}, and no "
                    f"other has come within {seconds} s. {END_OF_A_WORKER}"
                )
            raise NoWorkersError(msg)
        time.sleep(0.1)
    return workers


def workers_of_scheduler(client: Client) -> Mapping[str, Any]:
    """The scheduler's report on its present workers, by address; SchedulerLostError if the scheduler is gone."""
    if client.scheduler is None:
        raise _scheduler_lost()
    # Not `client.scheduler_info`: it returns a copy that the client's own periodic request, which leaves the workers
    # out, may have replaced in the meantime.
    try:
        workers: Mapping[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
        _name_silent(client, workers)
    except (KeyError, OSError, CancelledError) as error:  # the scheduler went away before its answer came
        raise _scheduler_lost() from error
    return workers


# For each client and worker, when the scheduler last heard of the worker, by its clock, and since when that is known.
_HEARD: WeakKeyDictionary[Client, dict[str, tuple[float, float]]] = WeakKeyDictionary()
_SILENT_SECONDS = 30.0
"""Between messages of a worker, which are usually seconds apart; one that computes without pause may take some time."""


def _name_silent(client: Client, workers: Mapping[str, Any]) -> None:
    """Warn of each worker whose messages to the scheduler have stopped, which Dask goes on without after a time."""
    heard, now, versions = _HEARD.setdefault(client, {}), time.monotonic(), _VERSIONS.get(client, {})
    for address, report in workers.items():
        if heard.get(address, (None,))[0] != report["last_seen"]:
            heard[address] = report["last_seen"], now
        key = (SilentWorkerWarning.__name__, client.id, address)
        if key in _TOLD or versions.get(address) == NO_ANSWER or now - heard[address][1] < _SILENT_SECONDS:
            continue
        _TOLD.add(key)
        seconds = client.run_on_scheduler(_time_to_live)
        ends = f"until {seconds:g} s without a message are over" if seconds else "without end"
        warn(
            f"the worker at {address} has sent no message for {_SILENT_SECONDS:g} s: its process is suspended or busy, "
            f"or its connection is lost. The cluster waits for it {ends} (distributed.scheduler.worker-ttl in the "
            "configuration of its scheduler), and then goes on without it",
            SilentWorkerWarning,
        )


def _time_to_live(dask_scheduler: Any) -> Any:
    """On the scheduler: seconds after which it removes a worker that sends no message; None for never."""
    return dask_scheduler.worker_ttl


_TEMPORARY: ContextVar[Path | None] = ContextVar("dmkl-temporary", default=None)


def temporary_files_in(folder: Path | None) -> AbstractContextManager[Any]:
    """Put temporary files that workers share into `folder` inside this context; into TMPDIR for None.

    The folder of a checkpoint is on a file system that all machines share, and TMPDIR (/tmp) often is not.
    """
    return progress.inside(_TEMPORARY, folder)


def temporary_root() -> Path:
    """The folder for temporary files that workers share: see `temporary_files_in`."""
    return _TEMPORARY.get() or Path(tempfile.gettempdir())


def on_disk(values: Array) -> Array:
    """The values in a temporary file, which stays until the array is gone."""
    if not values.size:
        return values  # NumPy before 2.1 maps no empty file
    with tempfile.TemporaryFile(dir=temporary_root()) as file:
        order: Any = "F" if values.flags.f_contiguous else "C"
        mapped: Array = np.memmap(file, values.dtype, "w+", shape=values.shape, order=order)
    mapped[:] = values
    return mapped


@contextmanager
def shared_folder(what: str) -> Iterator[Path]:
    """Make a temporary folder that every worker can reach, for files that workers write or read: `check_shared`."""
    with tempfile.TemporaryDirectory(prefix="dmkl-", dir=temporary_root()) as name:
        check_shared(Path(name), what)
        yield Path(name)


def workers_without(folder: Path) -> list[str]:
    """The workers of a cluster, if any, that cannot reach this folder."""
    if (client := active_client()) is None:
        return []
    # The test is a new file and not the folder itself, which may exist on every machine's own disk under the same name.
    mark = folder / f"seen-{uuid.uuid4().hex}.partial"
    mark.touch()
    try:
        looked = ask(client, os.path.exists, str(mark), workers=machine().workers or workers_of(client))
        return [worker for worker, sees in looked.items() if not sees]
    finally:
        mark.unlink()


def check_shared(folder: Path, what: str, way_out: str | None = None) -> None:
    """Raise InputError unless every worker of a cluster can reach this folder.

    The message says `what` the folder is for, as in "where the kernels are written", and the way out. By default that
    is another folder for the checkpoint, or another TMPDIR if no checkpoint is kept.
    """
    blind = workers_without(folder)
    if blind:
        if way_out is None:
            setting = "set TMPDIR to" if _TEMPORARY.get() is None else "keep the state (state=, --state) in"
            way_out = f"{setting} a folder on a file system that all machines share"
        refuse(f"the workers {', '.join(blind[:3])} do not see {folder}, {what}; {way_out}")


def sync_on_hosts(folder: Path) -> None:
    """Return when a folder is on the disk, with what this machine and those of workers have written to it.

    A machine that cannot be asked is left out: what it has lost is found as damage. DiskFullError if the disk is full.
    """
    with reporting_full_disk(folder):
        sync_tree(folder)
    client = active_client()
    if client is None:
        return
    import psutil

    here = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    with suppress(SchedulerLostError, OSError):
        elsewhere = {report["host"]: address for address, report in workers_of_scheduler(client).items()}
        ask(client, sync_tree, str(folder), workers=[at for host, at in elsewhere.items() if host not in here])


def check_memory(what: str, needed: dict[str, int], allowed: int, way_out: str, place: str = "in one task") -> None:
    """Raise MemoryBudgetError if the parts of `needed`, in bytes, add up to more than is allowed at one place."""
    total = sum(needed.values())
    if total <= allowed:
        return
    parts = ", ".join(f"{name} {size_text(n)}" for name, n in needed.items())
    msg = (
        f"{what} would take {size_text(total)} of memory {place} ({parts}), and {size_text(allowed)} are allowed. "
        f"{way_out}"
    )
    raise MemoryBudgetError(msg)


def graph_token(host: Machine, *content: Any) -> str:
    """The last part of the keys of a graph: equal for equal work, and only then.

    How work is cut into tasks depends on the machine, so the number of slots is part of the token. On a cluster every
    token is new: `send_all` uses a new key for each value, and tasks with different inputs must not have equal keys.
    """
    if active_client() is not None:
        return uuid.uuid4().hex
    return str(tokenize(content, host.slots, host.slots_per_host))


def again(run: Callable[[], Result], what: str) -> Result:
    """Call `run`, which builds and executes a graph, and call it again if a cluster lost values that were sent to it.

    Dask computes a lost task again elsewhere, but a value that was sent is lost when all workers that hold it die.
    WorkerLostError is raised after as many such losses as Dask allows worker deaths for one task, SchedulerLostError
    if the scheduler itself is gone.
    """
    client = active_client()
    if client is None:
        return run()
    from distributed.comm.core import CommClosedError

    attempts = 1 + int(dask.config.get("distributed.scheduler.allowed-failures"))
    lost: CancelledError | CommClosedError | None = None
    for _ in range(attempts):
        try:
            return run()
        except (CancelledError, OSError) as error:  # CommClosedError is an OSError
            if client.status != "running":
                raise _scheduler_lost(what) from error
            if not isinstance(error, CancelledError | CommClosedError):
                raise
            lost = error
    msg = (
        f"workers died {attempts} times during {what}, each time with data that no other worker had: most often for "
        "want of memory. Give the workers more memory, or set dmkl.memory or dmkl.block-width lower"
    )
    raise WorkerLostError(msg) from lost


def _scheduler_lost(what: str = "the computation") -> SchedulerLostError:
    msg = (
        f"the scheduler of the cluster went away during {what}. Start it again and run the same again: a search whose "
        "state is kept continues after its last pass"
    )
    return SchedulerLostError(msg)


def execute(results: Sequence[Any], units: Sequence[tuple[Any, int]], what: str, *, keep: bool = False) -> list[Any]:
    """Compute `results`; `units` are the tasks among them whose bytes are reported as progress when they end.

    With `keep`, results of a cluster stay on its workers and futures of them are returned. WorkerLostError if workers
    died repeatedly while running one task.
    """
    client, watch = active_client(), progress.current()
    sizes = {unit.key: n_bytes for unit, n_bytes in units}
    watch.begin(what, sum(sizes.values()))
    try:
        with progress.stage(what):
            if client is not None:
                return _on_cluster(client, results, units, keep)
            if results and isinstance(results[0], Call):
                for result in results:
                    result._uses += 1
                values = [result.result() for result in results]
                watch.advance(sum(sizes.values()))
                return values
            schedule = scheduler() if _HERE.get() is None else get_sync
            # Dask's default number of threads may be more than memory, or the grant of a batch system, allows.
            slots = _local_slots()
            # `dask.compute` would first make an expression of the results and hash all arrays.
            layers = {name: layer for result in results for name, layer in result.dask.layers.items()}
            tasks = {key: task for layer in layers.values() for key, task in layer.items()}
            _return_freed_memory(slots)
            with Callback(posttask=lambda key, *_: watch.advance(sizes.get(key, 0))):
                return list(schedule(tasks, [result.key for result in results], num_workers=slots))
    finally:
        watch.end()


def _on_cluster(
    client: Client, results: Sequence[Delayed], units: Sequence[tuple[Delayed, int]], keep: bool
) -> list[Any]:
    from distributed import KilledWorker, as_completed, wait

    allowed, watch = machine().workers, progress.current()
    sizes = {unit.key: n_bytes for unit, n_bytes in units}
    futures = client.compute([*results, *(unit for unit, _ in units)], optimize_graph=False, workers=allowed)
    wanted, watched = futures[: len(results)], futures[len(results) :]
    # Dask keeps a result while a future of it exists. So the lists are dropped here, and each future is dropped as soon
    # as its task has ended: otherwise the results of all tasks would stay on the workers until the pass ends.
    kept = {future.key for future in wanted}
    del futures
    watching = {future.key for future in watched}
    ended = as_completed([*watched, *(future for future in wanted if future.key not in watching)])
    del watched
    try:
        for future in _as_they_end(client, allowed, ended):
            watch.advance(sizes.get(str(future.key), 0))
            if future.status == "error":
                break
            if future.key not in kept:
                future.release()  # its dependents have taken the result in
            del future
        if keep:
            wait(wanted)
            for future in wanted:
                if future.status == "error":
                    future.result()
            return list(wanted)
        return gather(client, wanted)
    except KilledWorker as error:
        msg = (
            f"workers died {error.allowed_failures + 1} times while running {error.task!r}, the last one at "
            f"{error.last_worker.address}. {END_OF_A_WORKER}. Give the workers more memory and the same packages, or "
            "set dmkl.memory or dmkl.block-width lower"
        )
        raise WorkerLostError(msg) from error
    finally:
        for message, category in _RECEIVED.pop(client, ()):
            warn(message, getattr(errors, category))


_LOOK_SECONDS = 2.0
_NAMED_SECONDS = 10.0  # Silence of a worker that is waited for, after which it is named.


def _as_they_end(client: Client, allowed: Sequence[str] | None, ended: as_completed) -> Iterator[Any]:
    """Yield the futures of tasks as they end, while there are workers for them: Dask alone would wait without end.

    NoWorkersError if there has been no worker for as long as the setting allows; CancelledError if workers are left,
    but none that the tasks may run on.
    """
    looked = time.monotonic()
    while not ended.is_empty():
        if ended.has_ready():
            yield next(ended)
            continue
        with ended.thread_condition:
            ended.thread_condition.wait(0.1)
        if time.monotonic() - looked > _LOOK_SECONDS:
            there = workers_of_scheduler(client) or workers_of(client)
            looked = time.monotonic()
            if allowed is not None and not set(allowed) & set(there):
                msg = "the workers with enough memory are gone"
                raise CancelledError(msg)


def gather(client: Client, futures: Sequence[Any]) -> list[Any]:
    """The results of tasks, while there are workers.

    Results die with their workers, and Dask alone would wait without end for workers that compute them again.
    """
    gathering: Any = client.gather(futures, asynchronous=True)
    loop: Any = client.loop
    results = asyncio.run_coroutine_threadsafe(gathering, loop.asyncio_loop)
    try:
        while not wait_for([results], timeout=_LOOK_SECONDS).done:
            workers_of(client)
        return list(results.result())
    finally:
        results.cancel()


# --- sending values to workers -------------------------------------------------------------------------------------


# Time limit for sending: a fixed part, and a second for so many bytes to each worker.
_SECONDS, _BYTES_PER_SECOND = 30.0, 1e6
# Number of workers to which each holder of the values gives them in each round.
_BRANCHING = 4


def send_all(
    values: Mapping[str, Any], *, broadcast: bool = True, lazy: bool = False, small_bytes: int = -1
) -> list[Any]:
    """Make values available to many tasks, by name: nodes of the graph, or sent to a cluster's workers once.

    Without `broadcast` each value goes to one worker: for values that one task takes, too large for the graph itself.
    `lazy` is as in `task`. Values of at most `small_bytes` are in the graph of a cluster too: sending them costs the
    client several messages to the scheduler and to each worker.
    """
    if _HERE.get() is not None and not lazy:
        return list(values.values())
    given, client = list(values.values()), active_client()
    if client is None or sizeof(given) <= small_bytes:
        return [delayed(value, name=name, traverse=False) for name, value in values.items()]
    seconds = _SECONDS + sizeof(given) / _BYTES_PER_SECOND
    for pause_seconds in (0.2, 1.0, 5.0, None):
        allowed = machine().workers  # waits for a worker, and raises if none comes
        try:
            # The timeout also covers the transfer: Dask's own limits only the search for workers, and a worker that
            # never answers would be waited for without end.
            sent = list(client.sync(client.scatter, given, workers=allowed, hash=False, callback_timeout=seconds))
            if broadcast:
                _spread(client, sent, list(allowed or workers_of(client)), sizeof(given))
            return sent
        # A worker died and the scheduler has not noticed yet, has just noticed, or knows no other holder of the
        # values. A broken connection is an OSError, and so is a TimeoutError.
        except (OSError, KeyError, CancelledError) as error:
            if client.status != "running":
                raise
            if isinstance(error, TimeoutError):  # a worker neither answers nor dies: it is left out
                ask(client, _take, workers=allowed or workers_of(client))
                if pause_seconds is None:
                    msg = (
                        f"{size_text(sizeof(given))} could not be sent to the workers of the cluster within "
                        f"{seconds:.0f} s ({one_line(error)}); look at their logs, and start them again"
                    )
                    raise WorkerLostError(msg) from error
            if pause_seconds is None:
                raise
            time.sleep(pause_seconds)
    raise AssertionError


def _spread(client: Client, sent: Sequence[Future[Any]], addresses: Sequence[str], n_bytes: int) -> None:
    """Copy values from the workers that hold them to all others, in rounds; each holder serves some workers per round.

    This only saves time: a task fetches a value that its worker lacks. Without it Dask would prefer the few workers
    that hold the values, and these would then serve all others at once.

    Dask's own `broadcast` retries a dead worker without end while it holds a lock of the scheduler. A task that takes
    the values as arguments needs no lock, and runs elsewhere if its worker dies.
    """
    from distributed import wait

    start, stop = 0, 1 + _BRANCHING
    while start < len(addresses):
        taken = [
            client.submit(
                _take, *sent, workers=[address], allow_other_workers=True, key=f"take-{uuid.uuid4().hex}", pure=False
            )
            for address in addresses[start:stop]
        ]
        try:
            wait(taken, timeout=_SECONDS + len(taken) * n_bytes / _BYTES_PER_SECOND)
        except TimeoutError:  # a worker neither answers nor dies; tasks that need the values will fetch them
            return
        start, stop = stop, stop * (1 + _BRANCHING)


def _take(*_: Any) -> None:
    """Do nothing on a worker; Dask brings the arguments there."""


# --- functions run as tasks -------------------------------------------------------------------------------------------

_COUNTER = itertools.count(1)
_SMALL_BYTES = 2**20


FAN_IN = 8
"""Results that one task adds: few enough to bound its memory, many enough to keep the tree flat."""


def add_in_tree(
    parts: list[Task], name: str, add: Callable[[list[Any]], Any], most: int = 1, *, lazy: bool = False
) -> list[Task]:
    """At most `most` results with the same sum, by tasks that `add` a few each; `name` is the prefix of their keys."""
    while len(parts) > most:
        chunks = [parts[start : start + FAN_IN] for start in range(0, len(parts), FAN_IN)]
        parts = [
            chunk[0] if len(chunk) == 1 else task(add, chunk, key=f"{name}-{chunk[0].key}", lazy=lazy)
            for chunk in chunks
        ]
    return parts


def run_tasks(
    what: str,
    work: Sequence[Callable[..., Any]],
    *shared: Any,
    own: Sequence[Any] | None = None,
    task_bytes: int = 0,
    add: Callable[[list[Any]], Any] | None = None,
    then: Mapping[str, Callable[..., Any]] | None = None,
    keep: bool = False,
) -> list[Any]:
    """Run functions side by side, with shared arguments; returns their results in order, or [their sum] by `add`.

    `what` is the prefix of the tasks' keys. The functions of `work` are sorted by time, the longest first; arguments of
    a single task are bound by `functools.partial`, which Dask does not search for futures. The `shared` arguments are
    sent to a cluster's workers once; `own` has one more argument for each task, which may be large. `task_bytes` are
    the bytes of kernels that each task reads, for the progress report. The functions of `then`, by the prefix of their
    keys, take the list of all results and the shared arguments, each in a task of its own; their results are returned
    instead. `keep` is as in `execute`.
    """
    if not work:
        return []
    name = f"{what}-{next(_COUNTER)}"

    def run() -> list[Any]:
        token = uuid.uuid4().hex
        named = {f"{name}-shared-{k}-{token}": value for k, value in enumerate(shared)}
        shared_values = send_all(named, small_bytes=_SMALL_BYTES)
        own_values: list[tuple[Any, ...]] = [()] * len(work)
        if own is not None:
            named = {f"{name}-own-{k}-{token}": value for k, value in enumerate(own)}
            own_values = [(value,) for value in send_all(named, broadcast=False, small_bytes=_SMALL_BYTES)]
        # Dask starts tasks of equal priority with the last key, so the keys count down: the longest task starts first.
        tasks = [
            task(function, *shared_values, *more, key=f"{name}-{len(work) - k:06d}-{token}")
            for k, (function, more) in enumerate(zip(work, own_values, strict=True))
        ]
        wanted = tasks if add is None else add_in_tree(tasks, f"{name}-add", add)
        if then is not None:
            wanted = [task(last, tasks, *shared_values, key=f"{key}-{token}") for key, last in then.items()]
        return execute(wanted, [(unit, task_bytes) for unit in tasks], name, keep=keep)

    return again(run, name)
