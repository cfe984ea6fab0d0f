"""What the subspace solver is given, and how far each point has come."""

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
    """The kernels of one training set, and the targets that are learnt from them in one subspace.

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
    """One problem to solve: a training set, one of its targets, a ridge, and the weights and kernels that may be.

    Parameters
    ----------
    space
        Number of the training set, and of the subspace that its points share.
    target
        Number of the target.
    weights, lam
        The weights that may be, of `kernels`, and the ridge.
    kernels
        Positions of the kernels that may have weight; all where None.
    """

    space: int
    target: int
    weights: WeightSet
    lam: float
    kernels: Index | None = None

    def support(self, q: Float) -> float:
        """The maximum of βᵀq over the weights that may be, of all kernels' q."""
        return self.weights.support(q if self.kernels is None else q[self.kernels])


@dataclass
class Progress:
    """How far a point has come.

    Parameters
    ----------
    beta
        Its weights, (n,).
    gap, objective, upper
        The proven relative gap, S(α, β) and F(α).
    settled
        Whether it is certified.
    scores
        Σ_j β_j K_j α on the held-out rows, (rows, c), once it is settled.
    alpha
        (m, c), once it is settled, where it was asked for.
    steps
        Each round of solving, where `alpha` was asked for.
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
        """As what a solver returns."""
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
    """How the solver goes about it.

    Parameters
    ----------
    tol
        The relative gap to prove.
    block
        New basis vectors of each training set and pass; by the number of training sets where None.
    basis_bytes
        Most bytes that all bases and products may take on disk; half of what is free where None.
    max_passes
        Passes after which the rest is left open.
    use_anchors
        Whether combined kernels may be held; by memory where None.
    alphas
        Whether α of every point is kept.
    """

    tol: float = 1e-4
    block: int | None = None
    basis_bytes: int | None = None
    max_passes: float = 200
    use_anchors: bool | None = None
    alphas: bool = False


def of_space(points: Sequence[Point], found: Mapping[int, Item], space: int) -> dict[int, Item]:
    """What was found for the points of one space, by the point's number."""
    return {k: value for k, value in found.items() if points[k].space == space}
