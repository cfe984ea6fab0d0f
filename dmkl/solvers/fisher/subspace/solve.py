"""The subspace solver as a solver of jobs, and another solver for the points that it leaves open: solver "subspace"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from dmkl.arrays import Float
from dmkl.errors import MemoryBudgetError
from dmkl.solvers.fisher import cg, direct
from dmkl.solvers.fisher.problem import Finish, FisherOptions, FisherProblem
from dmkl.solvers.fisher.solver import FisherSolver
from dmkl.solvers.fisher.subspace.engine import SubspaceSolver, block_width
from dmkl.solvers.fisher.subspace.problem import Point, SubspaceOptions, TargetSet
from dmkl.solvers.fisher.subspace.room import check_room
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome, Status

__all__ = ["SOLVER", "finish_open", "points_of"]

_FINISHERS = {module.SOLVER.name: module.SOLVER for module in (direct, cg)}


def points_of(jobs: Sequence[Job]) -> tuple[list[TargetSet], list[Point]]:
    """The jobs as points: those of one training set share a subspace, those of one target its projection."""
    trainings = {id(job.training): job.training for job in jobs}
    targets: dict[int, dict[int, Float]] = {}
    for job in jobs:
        targets.setdefault(id(job.training), {})[id(job.problem.h)] = job.problem.h
    place = {key: number for number, key in enumerate(trainings)}
    learnt = [TargetSet(training, tuple(targets[key].values())) for key, training in trainings.items()]
    points = []
    for job in jobs:
        key, problem = id(job.training), cast(FisherProblem, job.problem)
        target = list(targets[key]).index(id(problem.h))
        points.append(Point(place[key], target, problem.weights, problem.lam, job.kernels))
    return learnt, points


def _check(jobs: Sequence[Job]) -> None:
    check_room(jobs, block_width(len({id(job.training) for job in jobs})))


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    learnt, points = points_of(jobs)
    how = SubspaceOptions(
        tol=options.tol,
        basis_bytes=options.basis_bytes,
        max_passes=options.max_iter,
        alphas=context.duals or options.leave_one_out,
    )
    engine = SubspaceSolver(learnt, points, context.workspace, how, context.tally.n_passes)
    outcomes = engine.run()
    context.tally.n_passes = engine.n_passes
    context.tally.rounds += engine.history
    return finish_open(jobs, outcomes, options, context)


def finish_open(
    jobs: Sequence[Job], outcomes: Sequence[Outcome], options: FisherOptions, context: Context
) -> list[Outcome]:
    """Go on with the open points by another solver, each from the weights that the subspace has found.

    Raises
    ------
    MemoryBudgetError
        If "direct" was asked for and does not fit.
    """
    outcomes = list(outcomes)
    left = [k for k, outcome in enumerate(outcomes) if outcome.status.word == "open"]
    finish = _finisher(options.finish, [jobs[k] for k in left]) if left else "report"
    if finish == "report":
        return outcomes
    rest = [replace(jobs[k], problem=replace(jobs[k].problem, start=_start(jobs[k], outcomes[k]))) for k in left]
    apart = replace(context, workspace=context.workspace.part("finish"), duals=True)
    for k, found in zip(left, _FINISHERS[finish].solve(rest, options, apart), strict=True):
        certified = found.status is Status.CERTIFIED
        steps = [*outcomes[k].steps, *found.steps]
        outcomes[k] = replace(found, status=Status.FINISHED if certified else found.status, steps=steps)
    return outcomes


def _start(job: Job, outcome: Outcome) -> Float:
    return outcome.weights if job.kernels is None else outcome.weights[job.kernels]


def _finisher(how: Finish, jobs: Sequence[Job]) -> str:
    """The solver that goes on with open points."""
    if how == "auto":
        return direct.SOLVER.name if direct.fits(jobs) else cg.SOLVER.name
    if how == direct.SOLVER.name and not direct.fits(jobs):
        msg = (
            f"finish='direct' holds a combined kernel in memory, {direct.needed_bytes(jobs) / 2**30:.3g} GiB, and "
            f"{direct.allowed_bytes() / 2**30:.3g} GiB are allowed; use finish='cg' or 'report', or set dmkl.memory "
            "higher"
        )
        raise MemoryBudgetError(msg)
    return how


SOLVER = FisherSolver(
    "subspace",
    "a basis that all problems share, certified problem by problem, out of core",
    _solve,
    check=_check,
    leaves_out=True,
    files=True,
)
