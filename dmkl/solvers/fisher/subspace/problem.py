"""Problems of the subspace solver (points), and their present solutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from dmkl.arrays import Float, Index
from dmkl.solvers.jobs import Training
from dmkl.solvers.outcome import Outcome, Status, Step
from dmkl.solvers.weight_sets.base import WeightSet

__all__ = ["Point", "Progress", "SubspaceOptions", "TargetSet", "of_space"]

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class TargetSet:
    """One training set and its targets, which share a subspace.

    Parameters
    ----------
    training
        The kernels.
    targets
        H of each independent problem, (m, c).
    """

    training: Training
    targets: tuple[Float, ...]


@dataclass(frozen=True, eq=False)
class Point:
    """One problem: a training set, one of its targets, a ridge, a set of weights, and kernels.

    Parameters
    ----------
    space
        Number of the training set, and of its subspace.
    target
        Number of the target.
    weights, lam
        The set of weights of `kernels`, and the ridge.
    kernels
        Positions of the kernels that may have weight; all if None.
    """

    space: int
    target: int
    weights: WeightSet
    lam: float
    kernels: Index | None = None

    def support(self, q: Float) -> float:
        """The maximum of βᵀq over the set of weights, from q of all kernels."""
        return self.weights.support(q if self.kernels is None else q[self.kernels])


@dataclass
class Progress:
    """The present solution of a point.

    Parameters
    ----------
    beta
        Kernel weights, (n,).
    gap, objective, upper
        The proven relative gap, S(α, β) and F(α).
    settled
        Whether the point is certified.
    scores
        Σ_j β_j K_j α on the held-out rows, (rows, c), of a settled point.
    alpha
        (m, c), of a settled point, if it is wanted.
    steps
        The history, if `alpha` is wanted.
    """

    beta: Float | None = None
    gap: float = np.inf
    objective: float = np.nan
    upper: float = np.nan
    settled: bool = False
    scores: Float | None = None
    alpha: Float | None = None
    steps: list[Step] = field(default_factory=list)

    def outcome(self) -> Outcome:
        """Convert to the result of a solver."""
        assert self.beta is not None
        status = Status.CERTIFIED if self.settled else Status.BASIS
        return Outcome(
            status,
            self.beta,
            self.alpha,
            self.objective,
            self.upper,
            self.gap,
            steps=self.steps,
            scores=self.scores,
        )


@dataclass(frozen=True)
class SubspaceOptions:
    """Tolerance and limits of the subspace solver.

    Parameters
    ----------
    tol
        The relative gap to prove.
    block
        New basis vectors of each training set and pass; chosen by the number of training sets if None.
    basis_bytes
        Most bytes of all bases and products on disk; half of the free space if None.
    max_passes
        Most passes; points that are open then stay open.
    use_preconditioners
        Whether to use preconditioners; decided by memory if None.
    alphas
        Whether α of every point is wanted.
    """

    tol: float = 1e-4
    block: int | None = None
    basis_bytes: int | None = None
    max_passes: float = 200
    use_preconditioners: bool | None = None
    alphas: bool = False


def of_space(points: Sequence[Point], values: Mapping[int, Item], space: int) -> dict[int, Item]:
    """The values that belong to points of one space, by the number of the point."""
    return {k: value for k, value in values.items() if points[k].space == space}
