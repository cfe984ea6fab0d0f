"""MK-FDA by the wrapper method with blocked conjugate gradients, out of core: solver "cg"."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from dmkl import settings
from dmkl.arrays import Array, Float
from dmkl.solvers.fisher.block_cg import InverseModel, block_cg, side_by_side
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.solver import FisherSolver
from dmkl.solvers.fisher.wrapper import wrapper
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import CombinedProduct, Request, Solver

__all__ = ["SOLVER", "CGStep"]


_COMPANIONS = 54


class CGStep:
    """The α-step by blocked conjugate gradients: a pass for each product, and no matrix in memory."""

    def __init__(self, problem: FisherProblem, tol: float, max_products: int = 500) -> None:
        self._problem, self._tol, self._max = problem, tol, max_products
        self._directions = InverseModel()
        self._scale = float(np.sum(problem.h**2))
        self._companions = np.zeros((len(problem.h), 0))
        self.products = 0

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.begin`."""
        # Always from zero: the directions of a warm start would span too little to model A⁻¹ for the master.
        self._directions = InverseModel()
        # |S| = ½ tr(Hᵀα) at the solution, and is not known yet: this residual is small for λ that are not tiny, and
        # the certificate asks for more where it must.
        h = self._problem.h
        # Directions in which the model of A⁻¹ failed the master last time ride along: below some 64 columns a pass
        # costs little more for them, and the common space grows by what the master needs.
        size = np.sqrt(self._scale / h.shape[1])
        together = np.concatenate([h, size * self._companions], axis=1)
        x = yield from self._iterate(beta, together, 0.01 * self._tol * self._scale)
        return x[:, : h.shape[1]]

    def refine(self, beta: Float, alpha: Float, residual: Float, target: float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.refine`."""
        return alpha + (yield from self._iterate(beta, residual, target))

    def _iterate(self, beta: Float, b: Float, target: float) -> Generator[Request, Any, Float]:
        solver = block_cg(b, target, self._max, self._directions, self._problem.h.shape[1])
        answer: Any = None
        while True:
            try:
                block = solver.send(answer)
            except StopIteration as stop:
                x, done = stop.value
                self.products += done
                return x  # type: ignore[no-any-return]
            answer = self._system(block, (yield CombinedProduct(block, beta)))

    def curvature(self, beta: Float, products: Array) -> Generator[Request, Any, Float]:
        """See `AlphaStep.curvature`."""
        missing = self._directions.outside(side_by_side(products), _COMPANIONS)
        if missing.shape[1]:
            self._directions.add(missing, self._system(missing, (yield CombinedProduct(missing, beta))))
        self._companions = missing
        return self._directions.curvature(products)

    def inverse(self, beta: Float) -> Generator[Request, Any, Float | None]:
        """See `AlphaStep.inverse`: there is no factor."""
        yield from ()
        return None

    def _system(self, block: Float, product: Array) -> Float:
        """A S from S and K(β)S."""
        return 0.5 * block + product.astype(np.float64, copy=False) / (2.0 * self._problem.lam)


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    def solver_of(job: Job) -> Solver[Outcome]:
        return wrapper(job.problem, job.n_kernels, CGStep(job.problem, options.tol), options, job.facts)

    # A problem keeps the directions that it has gone through: no more problems at once than ride one pass.
    widest = max(job.problem.h.shape[1] for job in jobs)
    return context.drive(jobs, solver_of, at_once=max(1, settings.block_width() // widest))


SOLVER = FisherSolver("cg", "wrapper method with blocked conjugate gradients, out of core", _solve)
