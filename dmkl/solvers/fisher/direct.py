"""MK-FDA by the wrapper method with a Cholesky factor of the combined kernel: solver "direct"."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from dmkl.arrays import Array, Float
from dmkl.errors import MemoryBudgetError
from dmkl.passes.execute import machine
from dmkl.passes.sums import FactorHandle, direct_bytes
from dmkl.solvers.fisher.cg import side_by_side
from dmkl.solvers.fisher.full_space import AlphaStep, wrapper
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.solver import FisherSolver
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import CombinedFactor, FactorDiagonal, FactorSolve, Request, Solver
from dmkl.solvers.semidefinite import UNKNOWN, KernelFacts

__all__ = ["SOLVER", "DirectStep", "allowed_bytes", "fits", "needed_bytes"]


class DirectStep(AlphaStep):
    """The α-step by a Cholesky factor of the combined kernel, which one pass adds up."""

    def __init__(self, problem: FisherProblem, facts: KernelFacts = UNKNOWN, *, inverse: bool = False) -> None:
        super().__init__(problem, facts)
        self._factor: FactorHandle | None = None
        self._beta: Float | None = None
        self._inverse = inverse

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.begin`."""
        yield from self._factorize(beta)
        alpha: Float = yield self._solve(self.problem.h)
        return alpha

    def _factorize(self, beta: Float) -> Generator[Request, Any, None]:
        self._factor = None  # frees the memory of the old factor before the new one is requested
        self._factor = yield CombinedFactor(beta, self.problem.lam)
        self._beta = beta
        self.products += 1

    def refine(self, beta: Float, alpha: Float, residual: Float, target: float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.refine`: one step of iterative refinement, without a pass."""
        step: Float = yield self._solve(residual)
        return alpha + step

    def quadratic_forms(self, products: Array) -> Generator[Request, Any, Float]:
        """See `AlphaStep.quadratic_forms`."""
        n, m, c = products.shape
        solved: Float = yield self._solve(side_by_side(products))
        return np.tensordot(products, solved.reshape(m, n, c), axes=((1, 2), (0, 2)))

    def inverse(self, beta: Float) -> Generator[Request, Any, Float | None]:
        """See `AlphaStep.inverse`: it takes no pass if the best weights are the last ones."""
        if not self._inverse:
            return None
        if beta is not self._beta:
            yield from self._factorize(beta)
        diagonal: Float = yield FactorDiagonal(self._factor)
        return diagonal

    def _solve(self, b: Float) -> FactorSolve:
        return FactorSolve(self._factor, b)


def fits(jobs: Sequence[Job]) -> bool:
    """Whether the combined kernel of the largest problem fits the memory budget."""
    return needed_bytes(jobs) <= allowed_bytes()


def needed_bytes(jobs: Sequence[Job]) -> int:
    """Memory that the largest problem takes."""
    return max(direct_bytes(view, 1) for view in {id(j.training): j.training.square.view for j in jobs}.values())


def allowed_bytes() -> int:
    """Memory that it may take."""
    return machine().total_bytes


def _check(jobs: Sequence[Job]) -> None:
    if not fits(jobs):
        msg = (
            f"solver='direct' holds the combined kernel in memory, {needed_bytes(jobs) / 2**30:.3g} GiB, and "
            f"{allowed_bytes() / 2**30:.3g} GiB are allowed; use solver='cg', or set dmkl.memory higher"
        )
        raise MemoryBudgetError(msg)


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    def solver_of(job: Job) -> Solver[Outcome]:
        return wrapper(job.n_kernels, DirectStep(job.problem, job.facts, inverse=options.leave_one_out), options)

    # Each running problem holds a factor: as many at once as fit.
    return context.drive(jobs, solver_of, at_once=max(1, allowed_bytes() // needed_bytes(jobs)))


SOLVER = FisherSolver(
    "direct",
    "wrapper method with the combined kernel in memory, one Cholesky factor for each weighting",
    _solve,
    check=_check,
)
