"""Problems whose kernels fit the memory of a task: the kernels are read once, and a task solves each problem.

A solver that requests passes pays for each of them: tasks, sums on disk, transfer of answers. If the kernels of a
training set are small, that is nearly all of its time. Here one pass writes them to disk after the steps; every task
maps them into its memory, which all tasks of a machine share, and answers its solver itself.

`combined` and `composite` add up kernels with one weight for each kernel, or for each kernel and sample.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from dmkl.arrays import Array, Float, Index, by_key
from dmkl.numerics.cholesky import Factor
from dmkl.numerics.compiling import compiled
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.execute import Machine, check_memory, machine, run_tasks, shared_folder
from dmkl.passes.rows import RowFunction, fit_row_maps, row_products
from dmkl.passes.sums import Combination, StoredSum, combine_pass
from dmkl.passes.view import covering, has_thin_factors
from dmkl.solvers import interface
from dmkl.solvers.interface import Outcome, Solver, Task, check_finite, run_with
from dmkl.solvers.jobs import Context, Job, SideBySide, Training, together
from dmkl.solvers.margin.svm import FactoredKernels, train

Item = TypeVar("Item")
_Stack = tuple[Path, tuple[int, ...]]

# Reading so much memory takes as long as the overhead of a pass, some 0.1 s.
_SMALL_BYTES = 2**28
# Number of problems that keeps the slots of a machine busy. It does not depend on the machine, nor do results.
_MANY = 8
# Problems for each slot in a round. Outcomes are kept after each round, and all slots wait for its last problem.
_ROUNDS = 8


@dataclass(frozen=True)
class InMemory(SideBySide):
    """Each problem is solved by a task with all kernels in its memory, or in passes if they do not fit.

    Few problems with large kernels are solved in passes as well: those use all slots.
    """

    files: bool = True
    fixed_weights: bool = False
    """Whether the weights are given: two passes for all problems then cost less than writing large kernels to files."""
    factors: bool = False
    """Whether `FactoredKernels` answers the problems: thin factors are then read in place of kernels."""
    together: int = 1
    """Most chains of problems that a task solves side by side, so that it reads the kernels once for all."""

    def chains(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """The jobs in chains, which a task solves one after another: each problem begins `near` the last outcome."""
        return [[job] for job in jobs]

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        host = machine()
        outcomes: dict[int, Outcome] = {}
        groups = by_key(range(len(jobs)), lambda number: jobs[number].training)
        for thin in (True, False) if self.factors else (False,):
            left = [members for members in groups.values() if members[0] not in outcomes]
            alone = [members for members in left if suits([jobs[k] for k in members], host, self, thin=thin)]
            sizes = [8 * math.prod(_shape(jobs[members[0]].training, thin=thin)) for members in alone]
            for batch in batches(alone, sizes, host.total_bytes // 2):
                outcomes |= self._solve_batch(jobs, batch, context, host, thin=thin)
        others = [k for k in range(len(jobs)) if k not in outcomes]
        outcomes |= zip(others, self._in_passes([jobs[k] for k in others], context, others), strict=True)
        return [outcomes[k] for k in range(len(jobs))]

    def _solve_batch(
        self, jobs: Sequence[Job], batch: Sequence[list[int]], context: Context, host: Machine, *, thin: bool
    ) -> dict[int, Outcome]:
        """The outcomes, by number, of problems on some training sets, whose kernels are read in one pass."""
        numbers = [k for members in batch for k in members]
        # Training sets whose outcomes an earlier run has kept are not read again.
        missing = [k for k in numbers if context.workspace.outcome(k) is None]
        trainings = list(dict.fromkeys(jobs[k].training for k in missing))
        with shared_folder("where the kernels of training sets are written") as folder:
            files = dict(zip(trainings, _load(trainings, folder, context, thin), strict=True)) if trainings else {}
            threads = blas_threads(min(host.slots_per_host, len(numbers)))
            tasks: dict[int, tuple[Task, int]] = {}  # The task of each job, and the position of its outcome
            # Whole chains, whatever an earlier run has kept of them: an outcome depends on where its problem begins.
            for bunch in self._bunches([jobs[k] for k in numbers if jobs[k].training in files], host, thin=thin):
                first, problems = bunch[0][0], [[job.problem for job in chain] for chain in bunch]
                stack = files[first.training], _shape(first.training, thin=thin)
                widths = first.training.square.view.factor_widths if thin else None
                task = Task("solve", _solve, (stack, widths, first.kernels, first.rows, problems, threads))
                tasks |= {id(job): (task, place) for place, job in enumerate(itertools.chain(*bunch))}
            solved: dict[int, list[Outcome]] = {}

            def in_a_task(job: Job) -> Solver[Outcome]:
                task, place = tasks[id(job)]
                if id(task) not in solved:
                    solved[id(task)] = yield task
                return solved[id(task)][place]

            order = {key: place for place, key in enumerate(tasks)}  # jobs of a task are started together
            numbers.sort(key=lambda k: order.get(id(jobs[k]), 0))
            at_once = host.slots * max([_ROUNDS, *(place + 1 for _, place in tasks.values())])
            outcomes = context.drive([jobs[k] for k in numbers], in_a_task, at_once=at_once, numbers=numbers)
        return dict(zip(numbers, outcomes, strict=True))

    def _bunches(self, jobs: Sequence[Job], host: Machine, *, thin: bool) -> Iterator[list[list[Job]]]:
        """The chains that each task solves side by side, on equal kernels and rows."""
        alike = by_key(jobs, lambda job: (job.kernels_key, None if job.rows is None else job.rows.tobytes()))
        chained = [self.chains(members) for members in alike.values()]
        fair = math.ceil(sum(map(len, chained)) / host.slots)  # more would leave slots without work
        for chains in chained:
            # A loss of all samples together has some twelve matrices in memory.
            width = 1 if thin else max(1, min(fair, self.together, _sums_with_room(chains[0], host) // 3))
            count = math.ceil(len(chains) / width)
            yield from (chains[place::count] for place in range(count))


class WithWholeKernels(InMemory):
    """Problems in memory as those of `InMemory`; others in passes, with whole kernels in this process."""

    def passes_bytes(self, job: Job) -> int:
        """Memory of a problem in passes."""
        raise NotImplementedError

    def check_passes(self, jobs: Sequence[Job], what: str, content: str, way_out: str) -> None:
        """Raise MemoryBudgetError, with what has which content in memory, for a problem in passes that does not fit."""
        host = machine()
        sizes = [self.passes_bytes(job) for job in jobs if not suits([job], host, self, thin=True)]
        check_memory(what, {content: max(sizes, default=0)}, host.total_bytes, way_out, "at once")

    def _in_passes(self, jobs: Sequence[Job], context: Context, numbers: Sequence[int] | None = None) -> list[Outcome]:
        at_once = max(1, machine().total_bytes // max(map(self.passes_bytes, jobs), default=1))
        return context.drive(jobs, lambda job: job.problem(), at_once=at_once, numbers=numbers)


def suits(jobs: Sequence[Job], host: Machine, method: InMemory, *, thin: bool) -> bool:
    """Whether problems on one training set are solved in memory: its kernels, a selection of rows, and sums fit."""
    training = jobs[0].training
    stack = 8 * math.prod(_shape(training, thin=thin))
    if thin:  # weighted factors in place of sums, and vectors: products with all kernels, points of the machines
        vectors = 8 * (2 * training.n_kernels + 50) * training.n_train
        return has_thin_factors(training.square.view) and 3 * stack + vectors <= host.task_bytes
    is_small = stack <= _SMALL_BYTES or (len(jobs) >= _MANY and not method.fixed_weights)
    return is_small and _sums_with_room(jobs, host) > 0


def _sums_with_room(jobs: Sequence[Job], host: Machine) -> int:
    """Problems for which a task has memory in addition to the kernels and a selection of rows: for four sums each."""
    stack = 8 * math.prod(_shape(jobs[0].training, thin=False))
    of_rows = stack if any(job.rows is not None for job in jobs) else 0
    return (host.task_bytes - stack - of_rows) // (4 * stack // jobs[0].training.n_kernels)


def batches(items: Sequence[Item], sizes: Sequence[int], most: int) -> Iterator[list[Item]]:
    """The items in order, in batches of total size at most `most`, with at least one item each."""
    batch: list[Item] = []
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


def _load(trainings: Sequence[Training], folder: Path, context: Context, thin: bool) -> list[Path]:
    """Write the kernels of each training set, or their factors, to a file in float64 after the steps; one pass."""
    started, lenses = time.monotonic(), [training.square for training in trainings]
    files, views = [folder / f"kernels-{number}" for number in range(len(lenses))], [lens.view for lens in lenses]
    if thin:
        maps, n_passes = fit_row_maps(views)
        rows = [(m, 1, np.arange(m.view.shape[1]), np.asarray, len(m.kernel_of)) for m in maps]
        _, n_more = row_products([RowFunction(*row, file) for row, file in zip(rows, files, strict=True)])
        n_passes += n_more
    else:
        n_passes = 1.0
        stacks = [(file, _shape(training, thin=False)) for training, file in zip(trainings, files, strict=True)]
        # Files are made here, before tasks open them, so that no task has to know whether it is the first. They have no
        # header: parsing one in two threads can fail in CPython 3.11.
        for path, shape in stacks:
            np.memmap(path, np.float64, "w+", shape=shape)
        n_kernels, side = trainings[0].n_kernels, views[0].source.tiling.tile
        # A task holds one tile of each sum at a time.
        width = max(1, machine().task_bytes // 4 // (8 * side * side) // len(lenses))
        for first in range(0, n_kernels, width):
            group = np.eye(n_kernels)[first : first + width]
            with tempfile.TemporaryDirectory(prefix="sums-", dir=folder) as sums:
                combinations = [Combination(lens, single) for lens in lenses for single in group]
                totals = combine_pass(combinations, [f"{sums}/{number}" for number in range(len(combinations))])
                # Each file has one writer: on a network file system, pages that two machines write to would be lost.
                shares = [totals[k : k + len(group)] for k in range(0, len(totals), len(group))]
                run_tasks("place", [partial(_place, *parts, first) for parts in zip(shares, stacks, strict=True)])
    context.tally.add("load", n_passes, time.monotonic() - started, covering(views).bytes_per_pass)
    return files


def _shape(training: Training, *, thin: bool) -> tuple[int, ...]:
    """The shape of all kernels in memory, or of their factors, transposed."""
    widths = training.square.view.factor_widths if thin else None
    n, m = training.n_kernels, training.n_train
    return (n, m, m) if widths is None else (int(widths.sum()), m)


def _place(totals: Sequence[StoredSum], stack: _Stack, first: int) -> None:
    """Write matrices to consecutive positions of a stack, from position `first` on."""
    mapped = np.memmap(stack[0], np.float64, "r+", shape=stack[1])
    for k, total in enumerate(totals, first):
        mapped[k] = total.whole()
    mapped.flush()


# --- solving -----------------------------------------------------------------------------------------------------


def _solve(
    stack: _Stack, widths: Index | None, kernels: Index | None, rows: Index | None, chains: Sequence[Any], threads: int
) -> list[Outcome]:
    K: Float = np.asarray(np.memmap(stack[0], np.float64, "r", shape=stack[1]))
    # Indexing copies the part that is needed; without a selection all tasks of a machine share the mapped pages.
    if widths is None and rows is not None:
        K = K[np.ix_(np.arange(len(K)) if kernels is None else kernels, rows, rows)]
    elif widths is None and kernels is not None:
        K = K[kernels]
    check_finite(K)
    # Several tasks share a machine, so each gets its share of the cores for BLAS.
    with pinned_blas(threads):
        by = partial(answer, K) if widths is None else FactoredKernels.of(K.T, widths, kernels, rows).answer
        solvers = [_one_after_another(chain) for chain in chains]
        if len(solvers) > 1:
            return [*itertools.chain(*run_with(together(solvers), by, partial(_answers, K)))]
        return run_with(solvers[0], by)


def _one_after_another(problems: Sequence[Any]) -> Solver[list[Outcome]]:
    """Solve the problems of a chain."""
    outcomes: list[Outcome] = []
    for problem in problems:
        outcomes.append((yield from (problem.near(outcomes[-1]) if outcomes else problem)()))
    return outcomes


def _answers(K: Float, requests: Sequence[Any]) -> list[Any]:
    """Answers to requests of several problems: one product with the kernels for all sums, and one for all products."""
    weights = [request.weights for request in requests if isinstance(request, interface.CombinedKernel)]
    blocks = [request.block for request in requests if isinstance(request, interface.EachProduct)]
    sums = iter(combined(K, np.stack(weights)) if weights else ())
    ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
    products = iter(np.split(K @ np.hstack(blocks), ends, axis=2) if blocks else ())
    answers = {interface.CombinedKernel: partial(next, sums), interface.EachProduct: partial(next, products)}
    return [answers.get(type(request), partial(answer, K, request))() for request in requests]


def answer(K: Float, request: Any) -> Any:
    """The answer of `driver` to requests of SVM-type solvers, from kernels in memory, (n, m, m)."""
    match request:
        case interface.SVM(rows=None, groups=None):
            return train(combined(K, request.weights), request)
        case interface.SVM(rows=None):
            return train(composite(K, request.weights[:, request.groups]), request)
        case interface.EachProduct(columns=None):
            return np.matmul(K, request.block)
        case interface.Projection():
            return group_forms(K, request.block)
        case interface.CombinedEntries():
            return combined(K, request.weights)[np.ix_(request.index, request.index)]
        case interface.CombinedKernel():
            return combined(K, request.weights)
        case interface.CombinedProduct(weights=weights) if weights.ndim == 1:
            return combined(K, weights) @ request.block
        case interface.CombinedFactor():
            return Factor(combined(K, request.weights).T, request.lam)  # symmetric, and column-major this way
        case interface.OfFactor():
            return request.method(request.factor, *request.arguments)
        case interface.FactorTraces():
            inverse = request.factor.inverse()
            return np.append(np.tensordot(K, inverse, axes=2), np.trace(inverse))
        case interface.InnerProducts(basis=Q):
            halves = [kernel - Q @ (Q.T @ kernel) for kernel in K]
            projected = [half - (half @ Q) @ Q.T for half in halves]
            flat = np.stack([*projected, np.eye(K.shape[1]) - Q @ Q.T]).reshape(len(K) + 1, -1)
            return np.asarray(flat @ flat.T)
        case Task():
            return request.function(*request.arguments)
    msg = f"a problem in memory cannot ask for {type(request).__name__}"
    raise NotImplementedError(msg)


# --- combined kernels -------------------------------------------------------------------------------------------------


def combined(K: Float, weights: Float) -> Float:
    """Σ_j w_j K_j for w (n,), (m, m); for each row of w (rows, n), (rows, m, m)."""
    used = np.flatnonzero(np.atleast_2d(weights).any(axis=0))
    # Copying the used kernels pays off only if most have no weight; otherwise one product reads all of them in place.
    if 2 * len(used) < len(K):
        K, weights = K[used], weights[..., used]
    return np.asarray(np.tensordot(weights, K, axes=1))


@compiled({"contract", "nsz"})
def composite(K: Array, weights: Array) -> Float:
    """Σ_k w_ki w_kj K_k(i, j) for w (n, m), (m, m)."""
    total = np.zeros(K.shape[1:])
    for i in range(len(total)):
        row = total[i]
        for k in range(len(K)):
            weight, entries, across = weights[k, i], K[k, i], weights[k]
            if weight != 0:
                # The sum is symmetric: the lower triangle is added and copied, half the operations.
                for j in range(i + 1):
                    row[j] += weight * across[j] * entries[j]
        for j in range(i):
            total[j, i] = row[j]
    return total


def group_forms(K: Float, block: Float) -> Float:
    """BᵀK_jB for a block B (m, b), (n, b, b)."""
    if (np.count_nonzero(block, axis=1) > 1).any():
        return np.asarray(block.T @ (K @ block))
    # Vectors with disjoint samples, such as groups: as a sparse matrix they take one multiplication for each entry.
    left = sp.csr_array(block.T)
    return np.stack([left @ (left @ kernel).T for kernel in K])
