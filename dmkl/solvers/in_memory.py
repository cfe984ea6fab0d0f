"""Problems whose kernels fit the memory of a task: read once, each problem solved to its end by a task of its own.

A solver that asks for passes pays for each of them: tasks, sums on disk, answers carried about. Where the kernels of a
training set are small that is nearly all of its time. Here one pass writes them to disk as they are after the steps;
every task maps them into its memory, which all tasks of a machine share, and answers its solver itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.numerics.composite import combined, composite, group_forms
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import Machine, machine, shared_folder
from dmkl.passes.sums import Combination, StoredSum, combine_pass
from dmkl.passes.view import covering
from dmkl.solvers.jobs import Context, Job, SideBySide, Training, over_all_kernels, over_all_rows
from dmkl.solvers.margin.training import train
from dmkl.solvers.outcome import Outcome, check_finite
from dmkl.solvers.requests import SVM, EachProduct, GroupClassifier, Projection, Solver, Task
from dmkl.solvers.running import run_tasks

__all__ = ["InMemory", "answer", "solve_on"]

_SMALL_BYTES = 2**28
"""Going through so much memory takes what a pass takes beside its reading, some 0.1 s."""
_MANY = 8
"""Problems that keep the slots of a machine busy; on machines of other numbers of slots the same way is taken."""
_ROUNDS = 8
"""Problems given to a slot at a time. Outcomes are kept after each round, whose last problem all slots wait for."""


@dataclass(frozen=True)
class InMemory(SideBySide):
    """Each problem is solved by a task that has all kernels in its memory; side by side where they do not fit.

    So they are where there are few problems and the kernels are not small: passes use all slots.
    """

    files: bool = True

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        """See `Method.solve`."""
        where = machine()
        found: dict[int, Outcome] = {}
        groups: dict[int, list[int]] = {}
        for number, job in enumerate(jobs):
            groups.setdefault(id(job.training), []).append(number)
        alone = [members for members in groups.values() if _suits([jobs[k] for k in members], where)]
        for batch in _batches(alone, [_stack_bytes(jobs[members[0]]) for members in alone], where.total_bytes // 2):
            found |= self._solve_batch(jobs, batch, context, where)
        others = [k for k in range(len(jobs)) if k not in found]
        found |= zip(others, self._in_passes([jobs[k] for k in others], context, others), strict=True)
        return [found[k] for k in range(len(jobs))]

    def _solve_batch(
        self, jobs: Sequence[Job], batch: Sequence[list[int]], context: Context, where: Machine
    ) -> dict[int, Outcome]:
        """The outcomes of problems on some training sets, which are read in one pass, by number."""
        numbers = [k for members in batch for k in members]
        missing = [members[0] for members in batch if any(context.workspace.outcome(k) is None for k in members)]
        with shared_folder("where the kernels of training sets are written") as folder:
            trainings = [jobs[k].training for k in missing]
            files = dict(zip(map(id, trainings), _load(trainings, folder, context, where), strict=True))
            threads = blas_threads(min(where.slots_per_host, len(numbers)))
            # What the driver sees are problems over all kernels and rows that ask for one task each.
            whole = [Job(jobs[k].training, partial(_as_task, jobs[k], files, threads)) for k in numbers]
            outcomes = context.drive(whole, lambda job: job.problem(), at_once=_ROUNDS * where.slots, numbers=numbers)
        return dict(zip(numbers, outcomes, strict=True))


def _suits(jobs: Sequence[Job], where: Machine) -> bool:
    """Whether problems on one training set are solved in memory: its kernels, some of their rows, and a sum fit."""
    stack = _stack_bytes(jobs[0])
    of_rows = stack if any(job.rows is not None for job in jobs) else 0
    fits = stack + of_rows + 4 * stack // jobs[0].training.n_kernels <= where.task_bytes
    return fits and (stack <= _SMALL_BYTES or len(jobs) >= _MANY)


def _stack_bytes(job: Job) -> int:
    return 8 * job.training.n_kernels * job.training.n_train**2


def _batches(items: Sequence[list[int]], sizes: Sequence[int], most: int) -> Iterator[list[list[int]]]:
    """The items in order, as many together as take no more than `most`, but one at least."""
    batch: list[list[int]] = []
    taken = 0
    for item, size in zip(items, sizes, strict=True):
        if batch and taken + size > most:
            yield batch
            batch, taken = [], 0
        batch.append(item)
        taken += size
    if batch:
        yield batch


# --- reading -----------------------------------------------------------------------------------------------------


def _load(trainings: Sequence[Training], folder: Path, context: Context, where: Machine) -> list[Path]:
    """Write the kernels of each training set to a file, (n, m, m) float64 after the steps; one pass."""
    if not trainings:
        return []
    started = time.monotonic()
    lenses = [training.square for training in trainings]
    files = [folder / f"kernels-{number}" for number in range(len(lenses))]
    stacks = [(file, _shape(training)) for training, file in zip(trainings, files, strict=True)]
    for stack in stacks:
        _map("w+", *stack)
    n_kernels, side = trainings[0].n_kernels, lenses[0].view.source.tiling.tile
    # A task adds up a tile of each sum at a time.
    width = max(1, where.task_bytes // 4 // (8 * side * side) // len(lenses))
    for start in range(0, n_kernels, width):
        some = range(start, min(start + width, n_kernels))
        single = np.eye(n_kernels)
        with tempfile.TemporaryDirectory(prefix="sums-", dir=folder) as sums:
            combinations = [Combination(place, single[k]) for place in range(len(lenses)) for k in some]
            totals = combine_pass(lenses, combinations, [f"{sums}/{number}" for number in range(len(combinations))])
            # A file has one writer: pages that two machines write to would be lost on a network's file system.
            shares = [totals[first : first + len(some)] for first in range(0, len(totals), len(some))]
            run_tasks("place", [partial(_place, *parts, start) for parts in zip(shares, stacks, strict=True)])
    bytes_per_pass = covering([lens.view for lens in lenses]).bytes_per_pass
    context.tally.add("load", 1.0, time.monotonic() - started, bytes_per_pass)
    return files


def _shape(training: Training) -> tuple[int, int, int]:
    return training.n_kernels, training.n_train, training.n_train


def _map(mode: Literal["r", "r+", "w+"], file: Path, shape: tuple[int, int, int]) -> np.memmap[Any, Any]:
    """Map a stack of matrices. There is no header, since CPython 3.11 may fail where two threads parse literals."""
    return np.memmap(file, np.float64, mode, shape=shape)


def _place(totals: Sequence[StoredSum], stack: tuple[Path, tuple[int, int, int]], first: int) -> None:
    """Write matrices to consecutive positions of a stack, from the position `first` on."""
    mapped = _map("r+", *stack)
    for k, total in enumerate(totals, first):
        mapped[k] = total.whole()
    mapped.flush()


# --- solving -----------------------------------------------------------------------------------------------------


def _as_task(job: Job, files: dict[int, Path], threads: int) -> Solver[Outcome]:
    """A solver that asks for one task, which solves the problem."""
    stack = (files[id(job.training)], _shape(job.training))
    outcome: Outcome = yield Task("solve", _solve, (stack, job.kernels, job.rows, job.problem, threads))
    if job.rows is not None:
        outcome = over_all_rows(outcome, job.rows, job.training.n_train)
    return outcome if job.kernels is None else over_all_kernels(outcome, job.kernels, job.training.n_kernels)


def _solve(
    stack: tuple[Path, tuple[int, int, int]], kernels: Index | None, rows: Index | None, problem: Any, threads: int
) -> Outcome:
    K: Float = np.asarray(_map("r", *stack))
    if rows is not None:
        K = K[np.ix_(np.arange(len(K)) if kernels is None else kernels, rows, rows)]
    elif kernels is not None:
        K = K[kernels]
    check_finite(K)
    with pinned_blas(threads):
        return solve_on(K, problem())


def solve_on(K: Float, solver: Solver[Outcome]) -> Outcome:
    """Run a solver to its end on kernels in memory, (n, m, m)."""
    reply: Any = None
    while True:
        try:
            request = solver.send(reply)
        except StopIteration as stop:
            found: Outcome = stop.value
            return found
        reply = [answer(K, one) for one in request] if isinstance(request, tuple) else answer(K, request)


def answer(K: Float, request: Any) -> Any:
    """What `driver` answers, from kernels in memory, (n, m, m), for the requests of machines."""
    match request:
        case SVM(rows=None):
            return train(combined(K, request.weights), request)
        case GroupClassifier():
            return train(composite(K, request.weights[:, request.groups]), request)
        case EachProduct(columns=None):
            return np.matmul(K, request.block)
        case Projection():
            return group_forms(K, request.block)
        case Task():
            return request.function(*request.arguments)
    msg = f"a problem in memory cannot ask for {type(request).__name__}"
    raise NotImplementedError(msg)
