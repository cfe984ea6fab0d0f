"""Ridge regression of many targets on weighted sums of kernels that targets share.

With K(γ) = Σ_j γ_j K_j = UΣUᵀ over the training samples, the dual variables of a target h at λ are

    c = (K(γ) + λI)⁻¹h = U (Σ + λI)⁻¹ Uᵀh,

so that one decomposition serves all λ and all targets. For predictions at many points, the rows K(γ)[new, train] are
multiplied by (K(γ) + λI)⁻¹ first, and the result by the targets: dual variables of thousands of targets are never made.

Dupré la Tour, Eickenberg, Nunez-Elizalde, Gallant: Feature-space selection with banded ridge regression. NeuroImage 264
(2022): candidates γ are random, and every target chooses one of them and λ by cross-validation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from dmkl.arrays import Float, Index, by_key
from dmkl.numerics.cholesky import not_positive_definite
from dmkl.numerics.fisher import relative_gap
from dmkl.passes.blas import blas_threads, pinned_blas
from dmkl.passes.elements import combined_kernels
from dmkl.passes.execute import check_memory, machine, run_tasks
from dmkl.passes.view import Lens, covering
from dmkl.solvers.fisher.registry import check_resolution
from dmkl.solvers.in_memory import batches
from dmkl.solvers.interface import Outcome, Status, Step
from dmkl.solvers.jobs import Context, Job, Method
from dmkl.solvers.refinement import RefinedProblem, refine

_MATRICES = 8
"""Matrices (rows, m) that a task holds with its sums: a kernel before and after its steps, and eigenvectors."""
_TASKS = 4  # Tasks for each slot: after each round of tasks, progress is reported and outcomes are kept
_READING = 100
"""Samples for each kernel from which reading all n m² entries takes less time than the m³ of one decomposition."""
_BLOCK_BYTES = 2**22  # Bytes of predictions or dual variables that are computed together


def candidate_weights(n_kernels: int, n_candidates: int, random_state: int) -> Float:
    """Random weights on the simplex, (candidates, kernels), with the random numbers of the package himalaya.

    The first candidate is uniform, the others are from Dirichlet distributions of concentrations 0.1 and 1 in turn.
    """
    rng, n = np.random.RandomState(random_state), math.ceil(n_candidates / 2)
    drawn = np.stack([rng.dirichlet([value] * n_kernels, n) for value in (0.1, 1.0)], axis=1)
    weights: Float = drawn.reshape(-1, n_kernels)[:n_candidates]
    weights[0] = 1.0 / n_kernels
    return weights


@dataclass(frozen=True, eq=False)
class SharedProblem:
    """Targets with the same weights and the same λ."""

    h: Float  # (m, targets)
    lam: float
    weights: Float  # γ, (n,)
    offset: Float  # the part of predictions that is not the kernels': (targets,), or (held-out rows, targets)
    columns: Index
    judge: Callable[[Float, Index], Float] | None
    """`Fit.judge`, and the positions of the targets for it; None if dual variables are wanted, of one target."""


@dataclass(frozen=True)
class SharedMethod(Method):
    """Solve problems by one decomposition for each training set and its weights."""

    tol: float  # The gap that solutions with dual variables are to prove

    def check(self, jobs: Sequence[Job]) -> None:
        if isinstance(jobs[0].problem, RefinedProblem):
            return  # `check_refinement` runs before the search
        check_resolution(jobs)
        largest = max(map(_sum_bytes, jobs))
        parts = {"the combined kernel": largest, "a kernel and eigenvectors": _MATRICES * largest}
        way_out = "Set dmkl.memory higher, or learn weights of each target by MKRidge without weights='shared'"
        check_memory("a decomposition of combined kernels", parts, machine().task_bytes, way_out)

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        if isinstance(jobs[0].problem, RefinedProblem):
            return refine([(job.training.whole, job.problem) for job in jobs])
        context.solver = "decomposition"
        outcomes = dict(enumerate(map(context.workspace.outcome, range(len(jobs)))))
        missing = [number for number, outcome in outcomes.items() if outcome is None]
        groups = by_key(missing, lambda k: (jobs[k].problem.weights.tobytes(), id(jobs[k].training)))
        # The training sets of a candidate come one after another: a task reads each tile once for all of them.
        tasks, host = _tasks(jobs, [groups[key] for key in sorted(groups, key=lambda key: key[0])]), machine()
        for tasks_of_round in (tasks[start : start + host.slots] for start in range(0, len(tasks), host.slots)):
            started = time.monotonic()
            problems_of_task = [
                [(jobs[of[0]].training.whole, [jobs[k].problem for k in of]) for of in task] for task in tasks_of_round
            ]
            n_bytes = covering([lens.view for lens, _ in problems_of_task[0]]).bytes_per_pass
            threads = blas_threads(min(host.slots_per_host, len(tasks_of_round)))
            work = [partial(_solve_task, self.tol, threads)] * len(tasks_of_round)
            solved = chain(*run_tasks("solve-shared", work, own=problems_of_task, task_bytes=n_bytes))
            context.tally.add("decompositions", float(len(tasks_of_round)), time.monotonic() - started, n_bytes)
            for k, outcome in zip(chain(*chain(*tasks_of_round)), solved, strict=True):
                outcomes[k] = outcome
                context.workspace.keep_outcome(k, outcome)
            context.workspace.sync()
        return [outcome for outcome in outcomes.values() if outcome is not None]


def _sum_bytes(job: Job) -> int:
    return 8 * job.training.n_rows * job.training.n_train


def _tasks(jobs: Sequence[Job], groups: Sequence[list[int]]) -> list[list[list[int]]]:
    """Groups that tasks solve: so many for each that its sums fit in memory and that reading takes little time."""
    if not groups:
        return []
    host, training = machine(), jobs[groups[0][0]].training
    sizes = [_sum_bytes(jobs[of[0]]) for of in groups]
    least = math.ceil(_READING * training.n_kernels / training.n_train)
    together = max(least, math.ceil(len(groups) / (_TASKS * host.slots))) * max(sizes)
    return list(batches(groups, sizes, min(together, host.task_bytes - _MATRICES * max(sizes))))


def _solve_task(tol: float, threads: int, groups: Sequence[tuple[Lens, list[SharedProblem]]]) -> list[Outcome]:
    """The outcomes of the problems of some groups, one after another."""
    with pinned_blas(threads):
        sums = combined_kernels([(lens, problems[0].weights) for lens, problems in groups])
        return [
            outcome for total, (_, of) in zip(sums, groups, strict=True) for outcome in _solve_group(total, of, tol)
        ]


def _solve_group(total: Float, problems: Sequence[SharedProblem], tol: float) -> list[Outcome]:
    """The outcomes of problems on K(γ), given as (training rows then held-out rows, m)."""
    m = total.shape[1]
    square, new = total[:m], total[m:]
    values, vectors = np.linalg.eigh(square)
    least = min(problem.lam for problem in problems)
    if values[0] <= -least:
        raise not_positive_definite(least)
    if problems[0].judge is not None:
        projected = new @ vectors
        return [_judged(projected / (values + problem.lam) @ vectors.T, problem) for problem in problems]
    outcomes: dict[int, Outcome] = {}
    for lam in {problem.lam for problem in problems}:
        numbers = [k for k, problem in enumerate(problems) if problem.lam == lam]
        for chosen in (numbers[block] for block in _blocks(len(numbers), len(total))):
            h = np.hstack([problems[k].h for k in chosen])
            dual = vectors @ (vectors.T @ h / (values + lam)[:, None])
            # R = H − Aα with α = 2λc: see `dmkl.numerics.fisher.Certificate`, of which F = S at given weights.
            residual = h - lam * dual - square @ dual
            objectives = -lam * np.einsum("mt,mt->t", h + residual, dual)
            errors, squares = (np.einsum("mt,mt->t", columns, columns) for columns in (residual, h))
            scores = new @ dual
            for t, k in enumerate(chosen):
                objective, of_new = float(objectives[t]), scores[:, t : t + 1] + problems[k].offset
                lower = objective - float(errors[t])
                part, weights = float(squares[t]) - abs(objective), problems[k].weights
                gap = relative_gap(objective, lower, objective, part)
                outcomes[k] = Outcome(
                    Status.CERTIFIED if gap <= tol else Status.STALLED,
                    weights,
                    dual[:, t : t + 1],
                    *(objective, lower, gap, problems[k].offset),
                    [Step(weights, {"objective": objective, "gap": gap})],
                    of_new if len(new) else None,
                )
    return [outcomes[k] for k in range(len(problems))]


def _judged(smoother: Float, problem: SharedProblem) -> Outcome:
    """The scores of predictions of the held-out rows; `smoother` maps targets to them, (rows, m)."""
    assert problem.judge is not None
    scores = []
    for block in _blocks(problem.h.shape[1], len(smoother)):
        predicted = smoother @ problem.h[:, block]
        predicted += problem.offset[..., block]
        scores.append(problem.judge(predicted, problem.columns[block]))
    extra = {"scores": np.concatenate(scores, axis=-1)}
    return Outcome(Status.CONVERGED, problem.weights, None, np.nan, steps=[Step(problem.weights, {})], extra=extra)


def _blocks(n: int, rows: int) -> Iterator[slice]:
    """Cuts of n columns into blocks."""
    width = max(1, _BLOCK_BYTES // (8 * max(1, rows)))
    return (slice(start, start + width) for start in range(0, n, width))
