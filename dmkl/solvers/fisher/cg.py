"""MK-FDA by the wrapper method with blocked conjugate gradients, out of core: solver "cg"."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmkl import settings
from dmkl.arrays import Array, Float
from dmkl.passes.execute import check_memory, keeping, machine
from dmkl.solvers.fisher.block_cg import InverseModel, block_cg, side_by_side
from dmkl.solvers.fisher.full_space import AlphaStep, wrapper
from dmkl.solvers.fisher.problem import FisherOptions, FisherProblem
from dmkl.solvers.fisher.solver import FisherSolver
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import CombinedProduct, Request, Solver
from dmkl.solvers.semidefinite import UNKNOWN, KernelFacts

__all__ = ["SOLVER", "CGStep"]


_COMPANIONS = 54
_BLOCKS = 4
"""Blocks that the model of A⁻¹ of each problem should have room for, where several run side by side."""
_WORKING, _OF_PRODUCTS, _OF_MODEL = 14, 6, 9
"""Blocks of the width of an iteration, of the products with each kernel, and of the directions that are kept (S and A S
twice, their QR factorization and the images of its basis), which a step holds at its height."""


@dataclass(frozen=True)
class _Room:
    """How many columns a step may hold: of the directions that are kept, and of those that ride along."""

    directions: int
    companions: int
    n_bytes: int
    """What the step takes with them at its height, the products of the wrapper method included."""

    @classmethod
    def within(cls, n_bytes: int, m: int, c: int, n: int) -> _Room:
        """The room in so many bytes, for targets (m, c) and n kernels: at most a quarter for the iteration's blocks.

        `bytes_of` without companions is the least.
        """
        columns = n_bytes // (8 * m) - _OF_PRODUCTS * n * c
        companions = min(_COMPANIONS, max(0, columns // 4 // _WORKING - c))
        # m columns span everything.
        directions = min(m + companions, (columns - _WORKING * (c + companions)) // _OF_MODEL)
        held = _WORKING * (c + companions) + _OF_PRODUCTS * n * c + _OF_MODEL * directions
        return cls(directions, companions, 8 * m * held)

    @staticmethod
    def bytes_of(m: int, c: int, n: int, companions: int = 0, blocks: int = 1) -> int:
        """Bytes for so many companions, and for so many blocks of the iteration among the directions."""
        return 8 * m * ((_WORKING + _OF_MODEL * blocks) * (c + companions) + _OF_PRODUCTS * n * c)


_AMPLE = _Room(2**62, _COMPANIONS, 0)


class CGStep(AlphaStep):
    """The α-step by blocked conjugate gradients: a pass for each product, and no matrix in memory.

    `room` bounds the directions that are kept for the master's model of A⁻¹.
    """

    def __init__(
        self,
        problem: FisherProblem,
        tol: float,
        facts: KernelFacts = UNKNOWN,
        *,
        max_products: int = 500,
        room: _Room = _AMPLE,
    ) -> None:
        super().__init__(problem, facts)
        self._tol, self._max, self._room = tol, max_products, room
        self._directions = InverseModel()
        self._scale = float(np.sum(problem.h**2))
        self._beta: Float = np.empty(0)
        self._companions = np.zeros((len(problem.h), 0))

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        """See `AlphaStep.begin`."""
        self._beta = beta
        # Always from zero: the directions of a warm start would span too little to model A⁻¹ for the master. Room is
        # left for those that the master will find missing.
        self._directions = InverseModel(capacity=self._room.directions - self._room.companions)
        # |S| = ½ tr(Hᵀα) at the solution, and is not known yet: this residual is small for λ that are not tiny, and
        # the certificate asks for more where it must.
        h = self.problem.h
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
        solver = block_cg(b, target, self._max, self._directions, self.problem.h.shape[1])
        answer: Any = None
        while True:
            try:
                block = solver.send(answer)
            except StopIteration as stop:
                x, done = stop.value
                self.products += done
                return x  # type: ignore[no-any-return]
            answer = self._system(block, (yield CombinedProduct(block, beta)))

    def quadratic_forms(self, products: Array) -> Generator[Request, Any, Float]:
        """See `AlphaStep.quadratic_forms`."""
        missing = self._directions.outside(side_by_side(products), self._room.companions)
        self._directions.capacity = self._room.directions
        if missing.shape[1]:
            self._directions.add(missing, self._system(missing, (yield CombinedProduct(missing, self._beta))))
        self._companions = missing
        return self._directions.curvature(products)

    def inverse(self, beta: Float) -> Generator[Request, Any, Float | None]:
        """See `AlphaStep.inverse`: there is no factor."""
        yield from ()
        return None

    def _system(self, block: Float, product: Array) -> Float:
        """A S from S and K(β)S."""
        return 0.5 * block + product.astype(np.float64, copy=False) / (2.0 * self.problem.lam)


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    # Half of the memory budget is for the problems that run, no more at once than ride one pass; passes have the rest.
    widest = max((job.problem.h for job in jobs), key=lambda h: h.size)
    (m, c), n, budget = widest.shape, max(job.n_kernels for job in jobs), machine().total_bytes // 2
    least_bytes = _Room.bytes_of(m, c, n)
    way_out = "Set dmkl.memory higher, or take solver='subspace', which keeps its vectors on disk"
    check_memory("solver='cg'", {"the least number of vectors": least_bytes}, budget, way_out, "at once")
    # Fewer side by side rather than models of too few directions: those would cost each problem more steps.
    ample_bytes = _Room.bytes_of(m, c, n, _COMPANIONS, _BLOCKS)
    at_once = max(1, min(len(jobs), settings.block_width() // c, budget // ample_bytes))
    room = _Room.within(budget // at_once, m, c, n)

    def solver_of(job: Job) -> Solver[Outcome]:
        return wrapper(job.n_kernels, CGStep(job.problem, options.tol, job.facts, room=room), options)

    with keeping(at_once * room.n_bytes):
        return context.drive(jobs, solver_of, at_once=at_once)


SOLVER = FisherSolver("cg", "wrapper method with blocked conjugate gradients, out of core", _solve)
