"""ℓp MK-FDA with minimal subsets of α and the weights updated in turn (JMLR Section 2.3.1).

A working set B is all samples of one or a few tile columns. For fixed weights the best change of α on it is
δ = A_BB⁻¹R_B with A_BB = ½I + K(β)_BB/2λ, which takes the tiles on B alone; what it does to all residuals, K_j[:, B]δ,
takes the tile columns of B. The most violating set, the one with the largest ‖R_B‖, goes first. Then the weights
follow, from products at hand. No combined kernel ever exists but on one working set.

Sweeps of such steps alone (block Gauss-Seidel, and SMO where a set is one sample) converge slowly for small λ: all sets
share the leading eigenvectors of the kernels, and correct them over and over. So a step is a direction rather than an
update: α and β become the exact solution over the span of α, the latest steps and the new one
(`span`), which needs no reading. A factor of A_BB for other weights then does as well, and one is kept
for each set.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.cholesky import Factor
from dmkl.solvers.fisher.cg import InverseModel, side_by_side
from dmkl.solvers.fisher.descent import Place, descend_jobs
from dmkl.solvers.fisher.problem import FisherOptions
from dmkl.solvers.fisher.solver import FisherSolver
from dmkl.solvers.fisher.working_sets import WorkingSet, working_sets
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import CombinedEntries, EachProduct, Request

__all__ = ["COMPANIONS", "SOLVER", "WorkingSetSource"]


COMPANIONS = 2
"""Directions that ride along with the step: how it would change with the weights, which saves a sixth of the passes."""


class WorkingSetSource:
    """The step on the most violating working set: its tile columns, and the tiles on it when it is first chosen.

    Parameters
    ----------
    sets
        Disjoint, all samples together.
    lam
        λ
    n_classes
        c, the columns of H.
    n_factors
        Factors that are kept, at least one; the oldest is let go for another.
    """

    def __init__(self, sets: Sequence[WorkingSet], lam: float, n_classes: int, n_factors: int) -> None:
        self.width = n_classes + COMPANIONS
        self._sets, self._lam, self._most = sets, lam, n_factors
        self._factors: dict[int, Factor] = {}

    def __call__(self, at: Place) -> Generator[Request, Any, tuple[Float, Float, float]]:
        """See `dmkl.solvers.fisher.descent.DirectionSource`."""
        violation = [float(np.sum(at.residual[one.index] ** 2)) for one in self._sets]
        number = int(np.argmax(violation))
        chosen = self._sets[number]
        read = chosen.column_passes
        if number not in self._factors:
            if len(self._factors) == self._most:
                del self._factors[next(iter(self._factors))]
            self._factors[number] = Factor((yield CombinedEntries(at.beta, chosen.index)), self._lam)
            read += chosen.block_passes * float(np.mean(at.beta != 0))
        right = at.residual[chosen.index]
        if at.products is not None:
            # The step is A_BB⁻¹R_B, and R depends on β_j by −K_jα/2λ.
            change = side_by_side(at.products[:, chosen.index])
            right = np.concatenate([right, InverseModel().outside(change, COMPANIONS)], axis=1)
        step = self._factors[number].solve(right)
        products = yield EachProduct(step, chosen.index)
        directions = np.zeros((len(at.residual), step.shape[1]))
        directions[chosen.index] = step
        return directions, products, read


def _source(job: Job, at_once: int, budget: int) -> WorkingSetSource:
    sets = working_sets(job.training.square, largest=int(np.sqrt(budget / 256)))
    # A quarter of the memory is for factors.
    factor_bytes = 8 * max(len(one.index) for one in sets) ** 2
    n_factors = max(1, budget // 4 // at_once // factor_bytes)
    return WorkingSetSource(sets, job.problem.lam, job.problem.h.shape[1], n_factors)


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    return descend_jobs(jobs, options, context, "interleaved", COMPANIONS, _source)


SOLVER = FisherSolver(
    "interleaved", "subsets of α and the weights updated in turn, a few tile columns at a time, out of core", _solve
)
