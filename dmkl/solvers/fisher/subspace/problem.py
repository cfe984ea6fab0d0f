"""What the subspace solver is given, and what it tells of each point."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from dmkl.passes.view import Lens
from dmkl.solvers.fisher.wrapper import Step

__all__ = ["CERTIFIED", "FINISHED", "OPEN", "Finish", "Point", "PointResult", "Round", "SubspaceOptions", "Training"]

Float = npt.NDArray[np.float64]
Finish = Literal["auto", "direct", "cg", "report"]

CERTIFIED, FINISHED, OPEN = 0, 1, 2
"""How a point ended: in the subspace, by another solver, or with a gap above the tolerance."""


@dataclass(frozen=True)
class Training:
    """The kernels of one fold and what is to be learnt from them.

    Parameters
    ----------
    name
        For messages.
    square
        K[train, train] with its statistics.
    whole
        K[train then others, train]: the same kernels with the rows whose scores are wanted below. `square` where
        there are none.
    targets
        H of each independent problem, (m, c).
    """

    name: str
    square: Lens
    whole: Lens
    targets: tuple[Float, ...]

    @property
    def n_train(self) -> int:
        """Training rows, m."""
        return self.square.view.shape[1]

    @property
    def n_rows(self) -> int:
        """Rows of `whole`."""
        return self.whole.view.shape[1]


@dataclass(frozen=True)
class Point:
    """One problem to solve: a fold, one of its targets, a norm and a ridge."""

    fold: int
    problem: int
    p: float
    lam: float


@dataclass
class PointResult:
    """How far a point has come.

    Parameters
    ----------
    beta
        Its weights, (n,).
    gap, objective, upper
        The proven relative gap, S(α, β) and F(α).
    status
        0 certified in the subspace, 1 finished by another solver, 2 open: the gap is true, and above the tolerance.
    scores
        Σ_j β_j K_j α on the rows of `Training.whole` beyond the training rows, (rows, c), once it is settled.
    alpha
        (m, c), once it is settled, where it was asked for.
    """

    beta: Float | None = None
    gap: float = np.inf
    objective: float = np.nan
    status: int = OPEN
    scores: Float | None = None
    alpha: Float | None = None
    upper: float = np.nan
    steps: list[Step] = field(default_factory=list)
    """Each round of solving, where `alpha` was asked for."""


@dataclass(frozen=True)
class Round:
    """One pass of the search, for its history."""

    kind: str
    seconds: float
    n_bytes: int
    basis: int
    certified: int
    worst_gap: float


@dataclass(frozen=True)
class SubspaceOptions:
    """How the solver goes about it.

    Parameters
    ----------
    tol
        The relative gap to prove.
    block
        New basis vectors of each fold and pass; by the number of folds where None.
    basis_bytes
        Most bytes that bases and products of all folds may take on disk; half of what is free where None.
    max_passes
        Passes after which the rest is finished by the policy.
    finish
        What becomes of points that are still open then: "direct" or "cg", each by the wrapper method, "auto" the first
        of these that fits, "report" leaves them with their true gap.
    use_anchors
        Whether combined kernels may be held; by memory where None.
    alphas
        Whether α of every point is kept.
    """

    tol: float = 1e-4
    block: int | None = None
    basis_bytes: int | None = None
    max_passes: int = 60
    finish: Finish = "auto"
    use_anchors: bool | None = None
    alphas: bool = False
