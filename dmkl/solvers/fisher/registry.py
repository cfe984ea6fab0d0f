"""The solvers of MK-FDA by name, the choice between them, and the method that solves the problems of learners.

To add a solver, write a file with a `FisherSolver`, add its module to `SOLVERS` (which the check of the parameter
``solver`` and the documentation of learners use) and its name to `SolverName`. If it has options, add a
`ConfiguredSolver` with the same name to `dmkl.solvers.fisher.problem`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmkl.arrays import plain_repr
from dmkl.errors import InputError
from dmkl.passes.execute import machine
from dmkl.passes.view import Lens
from dmkl.solvers.fisher import cg, direct, many
from dmkl.solvers.fisher.descent import ANCHORED, DUAL, INTERLEAVED, anchored_fits
from dmkl.solvers.fisher.left_out import with_inverse_diagonals
from dmkl.solvers.fisher.problem import ConfiguredSolver, FisherOptions
from dmkl.solvers.fisher.solver import AUTO, FisherSolver
from dmkl.solvers.fisher.subspace import solver as subspace
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome

__all__ = ["SOLVERS", "FisherMethod", "check_solver", "choose", "least_lam", "name_of"]

SOLVERS: dict[str, FisherSolver] = {
    solver.name: solver
    for solver in (direct.SOLVER, cg.SOLVER, ANCHORED, subspace.SOLVER, INTERLEAVED, DUAL, many.SOLVER)
}


def name_of(solver: Any) -> str:
    """The name of a solver, which is `AUTO`, one of `SOLVERS` or a `ConfiguredSolver`.

    Raises
    ------
    InputError
        If it is none of these.
    """
    if isinstance(solver, ConfiguredSolver):
        return solver.name
    if not isinstance(solver, str) or (solver != AUTO and solver not in SOLVERS):
        *others, last = map(repr, (AUTO, *SOLVERS))
        msg = (
            f"solver must be {', '.join(others)} or {last}, got {plain_repr(solver)}; to set its options, give an "
            "object such as dmkl.Subspace(basis='8GiB')"
        )
        raise InputError(msg)
    return solver


def check_solver(name: str, options: FisherOptions, exponents: Sequence[float], beyond: str = "") -> None:
    """Refuse parameters that a solver cannot take.

    Parameters
    ----------
    beyond
        The parameter that makes the set of weights more than a ball of some norm; empty where there is none.

    Raises
    ------
    InputError
        Naming the parameters that exclude one another.
    """
    if name != AUTO:
        SOLVERS[name].check_parameters(options, exponents)
    if beyond and name == DUAL.name:
        msg = (
            f"solver='dual' follows the gradient of the dual, which {beyond} leave without one; take "
            "solver='interleaved', 'subspace', 'anchored', 'cg' or 'direct'"
        )
        raise InputError(msg)
    if beyond and options.master == "taylor":
        msg = f"master='taylor' is a form of the norm ‖β‖_p alone, and there are {beyond}; take 'newton' or 'exact'"
        raise InputError(msg)


@dataclass(frozen=True)
class FisherMethod:
    """Solve MK-FDA problems, by a solver of `SOLVERS` or the one that `choose` finds."""

    solver: str
    options: FisherOptions

    def check(self, jobs: Sequence[Job]) -> None:
        """See `Method.check`."""
        smallest: dict[int, tuple[Lens, float]] = {}
        for job in jobs:
            lens = job.training.square
            _, lam = smallest.get(id(lens), (lens, np.inf))
            smallest[id(lens)] = (lens, min(lam, job.problem.lam))
        for lens, lam in smallest.values():
            check_resolution(lens, lam)
        self._solver(jobs).check(jobs)

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        """See `Method.solve`."""
        solver = self._solver(jobs)
        context.solver = solver.name
        outcomes = solver.solve(jobs, self.options, context)
        wanted = self.options.leave_one_out and solver.leaves_out
        return with_inverse_diagonals(jobs, outcomes, context) if wanted else outcomes

    def needs_folder(self, *, n_points: int) -> bool:
        """See `Method.needs_folder`; "auto" takes a solver that keeps files where a target has three points or more."""
        return n_points > _PAIR if self.solver == AUTO else SOLVERS[self.solver].files

    def _solver(self, jobs: Sequence[Job]) -> FisherSolver:
        return SOLVERS[choose(jobs) if self.solver == AUTO else self.solver]


_AMPLE = 1e-3
"""λ/tr K(β) from which descent on the dual takes as many passes as the subspace solver, and half of its time."""
_ROOM = 100
"""Directions for which descent needs room."""
_MANY, _DIRECTIONS = 32, 5
"""Targets from which one factor for all may be better than one for each, and the directions that a column needs."""
_PAIR = 2
"""Points of a target up to which each is solved by its own factors: a search of one point, with the plain sum as a
baseline, then solves that point exactly as `fit` does."""
_SOME = 8
"""Targets from which a subspace for all may be as large as the kernels."""


def choose(jobs: Sequence[Job]) -> str:
    """The solver for some jobs, as `pipelines/compare_solvers.py` has measured them.

    For many targets with several points (p, λ) each, or some whose columns fill the space of the training samples, the
    stacked solver, where all kernels of a training set fit the memory of a task; the anchored one for many targets
    where factors fit, unless they have several points and all of them a subspace smaller than the kernels are. The
    subspace solver where a target has several points with weights to learn, whose subspace is one; the direct one where
    combined kernels fit in memory; otherwise descent for a single problem of ample λ, and the subspace solver.
    """
    points = Counter((id(job.training), id(job.problem.h)) for job in jobs if job.n_kernels > 1)
    several = max(points.values(), default=0) > _PAIR
    if several and (_are_many(jobs, several=False) or _fill(jobs)) and many.fits(jobs):
        return many.SOLVER.name
    if _are_many(jobs, several=several) and anchored_fits(jobs):
        return ANCHORED.name
    if several:
        return subspace.SOLVER.name
    if direct.fits(jobs):
        return direct.SOLVER.name
    if len(jobs) > 1:
        return subspace.SOLVER.name  # one for all problems, where descent keeps directions for each
    (job,) = jobs
    lens, problem = job.training.square, job.problem
    n, m, _ = lens.view.shape
    diagonal = lens.diagonal()
    if diagonal is None or 8 * (n + 1) * m * _ROOM > machine().total_bytes // 2:
        return subspace.SOLVER.name
    trace = float(np.median(diagonal.sum(axis=1)))
    if problem.lam < _AMPLE * trace * float(problem.weights.start(n).sum()):
        return subspace.SOLVER.name
    return DUAL.name if problem.weights.smooth else INTERLEAVED.name


def _are_many(jobs: Sequence[Job], *, several: bool) -> bool:
    """Whether a training set has many targets, which fill its space where they have several points each."""
    targets = {(id(job.training), id(job.problem.h)): job for job in jobs if job.n_kernels > 1}
    counts = Counter(training for training, _ in targets)
    sizes = {id(job.training): job.training.n_train for job in jobs}
    least = {training: sizes[training] / _DIRECTIONS if several else _MANY for training in counts}
    return any(count >= max(_MANY, least[training]) for training, count in counts.items())


def _fill(jobs: Sequence[Job]) -> bool:
    """Whether a subspace for all targets of a training set would be all of its space."""
    targets = {(id(job.training), id(job.problem.h)): job for job in jobs if job.n_kernels > 1}
    counts = Counter(training for training, _ in targets)
    return any(
        counts[training] >= _SOME and counts[training] * job.problem.h.shape[1] * _DIRECTIONS >= job.training.n_train
        for (training, _), job in targets.items()
    )


def least_lam(lens: Lens) -> float:
    """The least λ that does not drown in the rounding of the stored kernels; 0 where that cannot be told.

    Entries rounded to u relative add a random symmetric matrix whose norm is about u √m times their size: below that,
    I + K/λ may have negative eigenvalues that no kernel has.
    """
    view, fitted = lens.view, lens.fitted
    diagonal = view.source.diagonal(view.kernels)
    if diagonal is None:
        return 0.0
    unit = 0.5 * float(np.finfo(view.source.dtype).eps)
    # Where the chain differs from kernel to kernel, it has brought the samples to unit norm.
    factors = np.array([fitted.factor(j) for j in range(len(view.kernels))])
    size = float(np.median(np.abs(diagonal).max(axis=1) * factors)) if fitted.same_for_all else 1.0
    # Of D^{1/2}ED^{1/2} the norm is that of its largest row, about √(d_i Σd).
    counts = fitted.counts(view.shape[1])
    return float(unit * np.sqrt(counts.max() * counts.sum()) * size)


def check_resolution(lens: Lens, lam: float) -> None:
    """Refuse a λ that drowns in the rounding of the stored kernels.

    Raises
    ------
    InputError
        If λ is less than `least_lam`.
    """
    noise = least_lam(lens)
    if lam < noise:
        dtype = lens.view.source.dtype
        msg = (
            f"lam={lam:g} is below what the stored precision resolves: rounding to {dtype} alone perturbs these "
            f"kernels by about {noise:.1e}. Take a larger lam, or store the kernels in float64"
        )
        raise InputError(msg)
