"""MK-FDA of many targets with many points each, on kernels that fit the memory of a task: solver "stacked".

Hundreds of unlike targets (permuted labels) fill the space of the training samples, so that a subspace for all of them
would be as large as the kernels are. Where these fit in memory, one pass reads them and writes them to files, as they
are after the steps; each task then takes targets of a training set through some λ of the grid (see `grid_in_memory`).
Results of a task are on disk when it ends, and an interrupted run does not solve them again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.files.arrays import load_arrays, save_arrays
from dmkl.numerics.memory import keep_freed
from dmkl.numerics.tiles import Tiles
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.elements import whole_kernels
from dmkl.passes.execute import machine, shared_folder
from dmkl.passes.view import Lens, covering
from dmkl.solvers.fisher.grid_in_memory import TOGETHER, solve_grid
from dmkl.solvers.fisher.kernels_in_memory import Solved
from dmkl.solvers.fisher.problem import FisherOptions
from dmkl.solvers.fisher.solver import FisherSolver
from dmkl.solvers.jobs import Context, Job, Training
from dmkl.solvers.outcome import Outcome, Status, Step, check_finite
from dmkl.solvers.running import run_tasks
from dmkl.solvers.semidefinite import KernelFacts
from dmkl.solvers.weight_sets.balls import Ball

__all__ = ["SOLVER", "fits"]

_TARGETS = 256
"""Most targets of a task: more share more, and take more memory."""
_TASKS, _WORTH = 4, 64
"""Tasks of a training set that leave hardly a slot idle, and the fewest targets that are worth one of their own."""
_COPIES, _WHITENED = 1.5, 1.5
"""How often a task holds the kernels at most: as they are and packed; and whitened, in double precision beside the
single one that was not enough."""
_MATRICES = 1.5
"""Matrices (m, m) that a task holds of each target that it solves by a factor of its own, together with others."""
_VECTORS = 16
"""Matrices (m, c) that it holds of every target."""
_FINE = 0.5
"""Share of the tolerance to which points are solved, so that weights depend on the problem and not on the way there."""


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Some targets of a training set, and their points."""

    training: Training
    kernels: Index | None
    targets: list[Float]
    points: list[tuple[float, float]]
    numbers: list[dict[tuple[float, float], int]]
    """Of each target the number of the job at each point, also those of other chunks."""

    @property
    def size(self) -> int:
        """What the time that it takes grows with."""
        return len(self.points) * len(self.targets) * self.training.n_train**2


def fits(jobs: Sequence[Job]) -> bool:
    """Whether the weights are in balls, and the kernels of every training set fit a task, one set this process."""
    if not all(isinstance(job.problem.weights, Ball) for job in jobs):
        return False
    where = machine()
    return _task_bytes(jobs) <= where.task_bytes and _stack_bytes(jobs) <= where.total_bytes // 2


def _stack_bytes(jobs: Sequence[Job]) -> int:
    return max(8 * one.n_kernels * one.n_rows * one.n_train for one in _trainings(jobs))


def _task_bytes(jobs: Sequence[Job]) -> float:
    square = max(8 * one.n_train**2 for one in _trainings(jobs))
    targets = max(8 * h.size for h in {id(job.problem.h): job.problem.h for job in jobs}.values())
    own, every = _MATRICES * TOGETHER * square, _VECTORS * _TARGETS * targets
    padding = max(Tiles.padding(one.n_kernels) for one in _trainings(jobs))
    return float((_COPIES + _WHITENED * padding) * _stack_bytes(jobs) + own + every)


def _trainings(jobs: Sequence[Job]) -> list[Training]:
    """Each training set once: hundreds of targets share it."""
    return list({id(job.training): job.training for job in jobs}.values())


def _check(jobs: Sequence[Job]) -> None:
    if not all(isinstance(job.problem.weights, Ball) for job in jobs):
        msg = (
            "solver='stacked' learns weights in the ball of a norm alone; groups of kernels, prices and constraints "
            "take another, such as solver='subspace'"
        )
        raise InputError(msg)
    if not fits(jobs):
        msg = (
            f"solver='stacked' holds all kernels of a training set in a task, {_task_bytes(jobs) / 2**30:.3g} GiB, and "
            f"{machine().task_bytes / 2**30:.3g} GiB are allowed; use solver='subspace', or set dmkl.memory higher"
        )
        raise MemoryBudgetError(msg)


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    chunks = _chunks(jobs)
    outcomes: dict[int, Outcome] = {}
    for some in _together(chunks):
        outcomes |= _solve_some(some, jobs, options, context)
    return [outcomes[number] for number in range(len(jobs))]


def _chunks(jobs: Sequence[Job]) -> list[_Chunk]:
    """The targets of each training set with the same kernels and points, at some λ a chunk; the same in every run."""
    by_target: dict[tuple[int, bytes, int], dict[tuple[float, float], int]] = {}
    for number, job in enumerate(jobs):
        kernels = b"" if job.kernels is None else job.kernels.tobytes()
        key = (id(job.training), kernels, id(job.problem.h))
        by_target.setdefault(key, {})[job.problem.weights.p, job.problem.lam] = number
    same: dict[tuple[int, bytes, tuple[tuple[float, float], ...]], list[dict[tuple[float, float], int]]] = {}
    for (training, kernels, _), numbers in by_target.items():
        same.setdefault((training, kernels, tuple(numbers)), []).append(numbers)
    chunks = []
    for (_, _, points), members in same.items():
        lams = sorted({lam for _, lam in points})
        # A few targets go from λ to λ.
        n_ridges = min(_TASKS, len(lams)) if len(members) >= _WORTH else 1
        n_parts = max(-(-len(members) // _TARGETS), min(_TASKS // n_ridges, len(members) // _WORTH))
        for part in range(n_parts):
            some = members[part * len(members) // n_parts : (part + 1) * len(members) // n_parts]
            mine = [jobs[next(iter(numbers.values()))] for numbers in some]
            for ridge in range(n_ridges):
                # Small λ take more time than large ones.
                at = [point for point in points if point[1] in lams[ridge::n_ridges]]
                targets = [job.problem.h for job in mine]
                chunks.append(_Chunk(mine[0].training, mine[0].kernels, targets, at, some))
    return chunks


def _together(chunks: Sequence[_Chunk]) -> list[list[tuple[int, _Chunk]]]:
    """Chunks by their number, of as many training sets together as half of the memory has room for, one at least."""
    room, together = machine().total_bytes // 2, list[list[tuple[int, _Chunk]]]()
    held: set[int] = set()
    taken = 0
    for number, chunk in enumerate(chunks):
        training = chunk.training
        size = 0 if id(training) in held else 8 * training.n_kernels * training.n_rows * training.n_train
        if not together or taken + size > room:
            together.append([])
            held, taken = set(), 0
        together[-1].append((number, chunk))
        held.add(id(training))
        taken += size
    return together


def _solve_some(
    chunks: Sequence[tuple[int, _Chunk]], jobs: Sequence[Job], options: FisherOptions, context: Context
) -> dict[int, Outcome]:
    """The outcomes of some chunks, by the number of the job; one pass."""
    workspace = context.workspace
    files = {number: None if workspace.temporary else workspace.path / f"outcome-{number}.npz" for number, _ in chunks}
    # Leave-one-out scores do with α in single precision, of which a permutation test holds thousands.
    duals = np.float64 if context.duals else np.float32 if options.leave_one_out else None
    kept = {n: load_arrays(file) for n, file in files.items() if file is not None and file.exists()}
    # Version 0.1 kept the scores alone.
    missing = [(n, chunk) for n, chunk in chunks if n not in kept or (duals is not None and "dual" not in kept[n])]
    # So that no slot begins with much when the others are about to end.
    missing.sort(key=lambda each: -each[1].size)
    with shared_folder("where the kernels of training sets are written") as folder:
        stacks = _read([chunk.training for _, chunk in missing], folder, context)
        threads = blas_threads(min(machine().slots_per_host, max(1, len(missing))))
        steps = max(1, options.max_iter)
        work = [
            partial(
                _solve_chunk,
                stacks[id(chunk.training)],
                chunk.kernels,
                chunk.points,
                (options.tol, steps, threads, duals),
                chunk.training.facts.select(chunk.kernels),
                files[number],
            )
            for number, chunk in missing
        ]
        solved = run_tasks("solve-stacked", work, own=[chunk.targets for _, chunk in missing])
    arrays = kept | dict(zip([number for number, _ in missing], solved, strict=True))
    found: dict[int, Outcome] = {}
    for number, chunk in chunks:
        mine = arrays[number]
        for t, numbers in enumerate(chunk.numbers):
            for g, point in enumerate(chunk.points):
                found[numbers[point]] = _outcome(mine, t, g, jobs[numbers[point]], options)
    return found


def _read(trainings: Sequence[Training], folder: Path, context: Context) -> dict[int, list[Path]]:
    """Write the kernels of each training set to files, (rows, m) after the steps; one pass for all."""
    distinct = list({id(training): training for training in trainings}.values())
    if not distinct:
        return {}
    started, lenses = time.monotonic(), [one.whole for one in distinct]
    n_kernels, bytes_per_pass = distinct[0].n_kernels, covering([lens.view for lens in lenses]).bytes_per_pass
    # Each file has one writer: pages that two machines write to would be lost on a network's file system.
    files = [[folder / f"kernel-{k}-{place}" for place in range(len(distinct))] for k in range(n_kernels)]
    work = [partial(_write, k, mine) for k, mine in enumerate(files)]
    run_tasks("read-pass", work, lenses, task_bytes=bytes_per_pass // n_kernels)
    context.tally.add("load", 1.0, time.monotonic() - started, bytes_per_pass)
    return {id(one): list(mine) for one, mine in zip(distinct, zip(*files, strict=True), strict=True)}


def _write(kernel: int, files: Sequence[Path], lenses: Sequence[Lens]) -> None:
    with pinned_blas(1):
        for file, entries in zip(files, whole_kernels(lenses, kernel), strict=True):
            check_finite(entries)
            # Without a header: CPython 3.11 may fail where two threads parse one.
            np.asarray(entries, dtype=np.float64).tofile(file)


def _solve_chunk(
    files: Sequence[Path],
    kernels: Index | None,
    points: list[tuple[float, float]],
    how: tuple[float, int, int, type[np.floating[Any]] | None],
    facts: KernelFacts,
    file: Path | None,
    targets: list[Float],
) -> dict[str, Array]:
    """Solve some targets at all points; as arrays over (target, point), which are kept in a file where one is named."""
    tol, steps, threads, duals = how
    keep_freed()
    stack: Float = np.stack([np.fromfile(files[k]) for k in (range(len(files)) if kernels is None else kernels)])
    stack = stack.reshape(len(stack), -1, len(targets[0]))
    with pinned_blas(threads):
        solved = solve_grid(
            stack,
            targets,
            points,
            _FINE * tol,
            steps,
            facts,
            duals=duals is not None,
        )
    rows: list[Solved] = [mine[point] for mine in solved for point in points]
    shape = (len(targets), len(points))

    def table(values: Sequence[Array | float]) -> Array:
        stacked = np.array(values)
        return stacked.reshape(*shape, *stacked.shape[1:])

    found = {
        "weights": table([one.beta for one in rows]),
        "objective": table([one.objective for one in rows]),
        "upper": table([one.upper for one in rows]),
        "gap": table([one.gap for one in rows]),
        "left": table([one.left for one in rows]),
        "scores": table([one.scores for one in rows if one.scores is not None]),
    }
    if duals is not None:
        found["dual"] = table([one.alpha.astype(duals) for one in rows if one.alpha is not None])
    if file is not None:
        save_arrays(file, found)
    return found


def _outcome(found: dict[str, Array], t: int, g: int, job: Job, options: FisherOptions) -> Outcome:
    beta = found["weights"][t, g]
    if job.kernels is not None:
        wide = np.zeros(job.training.n_kernels)
        wide[job.kernels] = beta
        beta = wide
    objective, upper, gap = (float(found[name][t, g]) for name in ("objective", "upper", "gap"))
    status = Status.CERTIFIED if found["left"][t, g] <= options.tol else Status.ITERATIONS
    dual = found["dual"][t, g] if "dual" in found else None
    step = Step(beta, {"objective": objective, "upper": upper, "gap": gap})
    return Outcome(status, beta, dual, objective, upper, gap, steps=[step], scores=found["scores"][t, g])


SOLVER = FisherSolver(
    "stacked",
    "whole grids of many targets, which share factors; all kernels in the memory of a task",
    _solve,
    check=_check,
    leaves_out=True,
    files=True,
)
