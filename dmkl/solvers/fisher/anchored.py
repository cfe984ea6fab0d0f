"""MK-FDA of many targets on the same kernels, by one factor that all of them share: solver "anchored".

M = ½(I + K(β̄)/λ) for uniform weights β̄, the anchor, is factored once for all targets. M⁻¹H is a target's solution for
these weights; for others M⁻¹R is the error of its α to first order. Each target has a span of its own, of a few such
directions, over which α and β are solved exactly (`descent`): a pass carries one direction of every target, and a few
passes are enough, whatever their number. A basis that hundreds of unlike targets share would be as large as the kernels
are, and a factor for each target and weighting, as in "direct", takes m³/3 for each.

The fewer kernels a solution has, the less the anchor is like it: for p = 1 more passes are needed. The anchor decides
how many passes there are, and nothing of what is proven.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.errors import MemoryBudgetError
from dmkl.passes.execute import machine
from dmkl.passes.sums import FactorHandle, direct_bytes
from dmkl.solvers.driver import drive
from dmkl.solvers.fisher.descent import Place, descend_jobs
from dmkl.solvers.fisher.problem import FisherOptions
from dmkl.solvers.fisher.solver import FisherSolver
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import CombinedFactor, EachProduct, FactorSolve, Request, Solver

__all__ = ["SOLVER", "AnchorSource", "fits"]

Anchor = tuple[int, bytes, float]
"""A training set, the kernels that have weight, and the ridge of their sum."""


class AnchorSource:
    """The residual through the factor of an anchor: one pass.

    Parameters
    ----------
    factor
        Of M.
    n_classes
        c, the columns of H.
    """

    def __init__(self, factor: FactorHandle, n_classes: int) -> None:
        self._factor, self.width = factor, n_classes

    def __call__(self, at: Place) -> Generator[Request, Any, tuple[Float, Float, float]]:
        """See `dmkl.solvers.fisher.descent.DirectionSource`."""
        directions = yield FactorSolve(self._factor, at.residual)
        products = yield EachProduct(directions)
        return directions, products, 1.0


def anchor_of(job: Job) -> Anchor:
    """The anchor of a job: K(β̄) is a mean weight, n^(−1/p), times the sum of its kernels, which goes into the ridge.

    Ridges are rounded to powers of √10: the points of a grid share few anchors, and M is as good.
    """
    scale = float(job.problem.weights.start(job.n_kernels).mean())
    ridge = 10.0 ** (round(2.0 * math.log10(job.problem.lam / scale)) / 2.0)
    return id(job.training), b"" if job.kernels is None else job.kernels.tobytes(), ridge


def fits(jobs: Sequence[Job]) -> bool:
    """Whether the factors of all anchors fit half of the memory budget; the other is for the directions."""
    return _needed_bytes(jobs) <= machine().total_bytes // 2


def _needed_bytes(jobs: Sequence[Job]) -> int:
    largest = max(direct_bytes(view, 1) for view in {id(j.training): j.training.square.view for j in jobs}.values())
    m = max(job.training.n_train for job in jobs)
    return largest + 8 * m * m * (len({anchor_of(job) for job in jobs}) - 1)


def _check(jobs: Sequence[Job]) -> None:
    if not fits(jobs):
        msg = (
            f"solver='anchored' holds combined kernels in memory, {_needed_bytes(jobs) / 2**30:.3g} GiB, and "
            f"{machine().total_bytes / 2**31:.3g} GiB are allowed; use solver='subspace', or set dmkl.memory higher"
        )
        raise MemoryBudgetError(msg)


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    anchors = {anchor_of(job): job for job in jobs}
    lenses = [job.training.square for job in anchors.values()]
    factoring = [_factor(job, ridge) for (_, _, ridge), job in anchors.items()]
    factors, _ = drive(list(zip(lenses, factoring, strict=True)), tally=context.tally)
    held = dict(zip(anchors, factors, strict=True))

    def source_of(job: Job, *_: int) -> AnchorSource:
        return AnchorSource(held[anchor_of(job)], job.problem.h.shape[1])

    return descend_jobs(jobs, options, context, "anchored", 0, source_of)


def _factor(job: Job, ridge: float) -> Solver[FactorHandle]:
    weights = np.zeros(job.training.n_kernels)
    weights[slice(None) if job.kernels is None else job.kernels] = 1.0
    factor: FactorHandle = yield CombinedFactor(weights, ridge)
    return factor


SOLVER = FisherSolver(
    "anchored",
    "one factor for many targets, and a few directions of each; in memory",
    _solve,
    check=_check,
    leaves_out=True,
)
