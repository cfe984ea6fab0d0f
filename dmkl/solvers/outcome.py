"""What a solver returns: one kind of result for every problem, whatever solved it.

An outcome is data. It says how the solver ended (`Status`), the pair that was found (weights and dual variables), its
objective, and what is *proven* of it: `bound`, the other end of an interval that holds the optimum, and `gap`, that
interval relative to the objective. A solver that proves nothing leaves both NaN, and no one else may fill them in.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.errors import DegenerateKernelError

__all__ = ["WORDS", "Outcome", "Round", "Status", "Step", "check_finite", "worst"]


WORDS = ("certified", "finished", "converged", "open")
"""How a fit can end, from the best to the worst; what tables, pictures and files say."""


class Status(enum.Enum):
    """How a solver ended: a word of `WORDS`, and what to do about it."""

    CERTIFIED = ("certified", "The gap is proven to be within the tolerance.")
    FINISHED = ("finished", "The gap is proven to be within the tolerance, by the solver that finish= names.")
    CONVERGED = ("converged", "The solver met its stopping rule; nothing is proven about the distance to the optimum.")
    SMALL_DECREASE = (
        "converged",
        "The objective fell by less than the tolerance over the last five steps, or the line search lowered it no "
        "more. The distance to a minimum is not known: a smaller tol may find a lower objective.",
    )
    ITERATIONS = (
        "open",
        "The iteration cap was reached before the gap: raise max_iter, or accept the gap that is reported.",
    )
    BASIS = (
        "open",
        "The subspace was as large as it was allowed to be before the gap was proven: allow more with basis= or "
        "max_iter=, or let finish= go on with another solver.",
    )
    STALLED = (
        "open",
        "The gap stopped shrinking above the tolerance: the arithmetic resolves no more. Take a larger λ or tol, or "
        "store the kernels in float64.",
    )
    FALLING = (
        "open",
        "The iteration cap was reached while the objective still fell: raise max_iter, or tol.",
    )

    @property
    def word(self) -> str:
        """One of `WORDS`."""
        return self.value[0]

    @property
    def advice(self) -> str:
        """What happened and what to do, for people."""
        return self.value[1]

    @property
    def code(self) -> int:
        """The place of the word in `WORDS`."""
        return WORDS.index(self.word)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a solver, as its history records it.

    Parameters
    ----------
    weights
        (n,), the kernel weights that were tried; None where a history has none.
    figures
        Objective, bounds and counts by name, the same names in every step of a solver.
    """

    weights: Float | None
    figures: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Outcome:
    """One problem, solved as far as the solver came.

    Parameters
    ----------
    status
        How it ended.
    weights
        Kernel weights, (n,), or (n, groups).
    dual
        Dual variables, (m, columns): the score of a sample x is Σ_j weights_j Σ_i k_j(x, x_i) dual_i + bias. None where
        they were not asked for.
    objective
        Of the pair that is returned.
    bound
        A proven bound of the optimum from the other side; NaN where nothing is proven.
    gap
        The proven relative gap; NaN where nothing is proven, infinite where objective and bound contradict each other
        (`dmkl.numerics.fisher.relative_gap`).
    bias
        (columns,)
    steps
        The history, oldest first.
    scores
        Of the held-out rows, (rows, columns), where the solver has them from the same products; None otherwise.
    inverse
        The diagonal of A⁻¹, (m,), A being the system that the dual variables solve, where leave-one-out scores were
        asked for and combined kernels fit in memory (`dmkl.solvers.fisher.left_out`); None otherwise.
    """

    status: Status
    weights: Float
    dual: Float | None
    objective: float
    bound: float = np.nan
    gap: float = np.nan
    bias: Float | float = 0.0
    steps: Sequence[Step] = field(default_factory=tuple)
    scores: Float | None = None
    inverse: Float | None = None

    def __post_init__(self) -> None:
        if self.status in (Status.CERTIFIED, Status.FINISHED) and not 0.0 <= self.gap < np.inf:
            msg = f"an outcome is certified by a finite gap of zero or more, got {self.gap}"
            raise ValueError(msg)

    @property
    def proven(self) -> bool:
        """Whether the optimum is proven to lie between objective and bound."""
        return bool(np.isfinite(self.gap))


@dataclass(frozen=True)
class Round:
    """One pass over the kernels, or the passes of one step, for the history of a plan.

    Parameters
    ----------
    kind
        What it was for.
    seconds
        How long it took.
    n_bytes
        Stored bytes that it read.
    basis
        Vectors of the largest basis, where there is one.
    certified
        Problems that are settled, where that is known.
    worst_gap
        The largest gap of the others.
    """

    kind: str
    seconds: float
    n_bytes: float
    basis: int = 0
    certified: int = 0
    worst_gap: float = np.nan


def worst(outcomes: Sequence[Outcome]) -> int:
    """The place of the outcome that ended worst: by its word, then by its gap."""
    return max(range(len(outcomes)), key=lambda k: (outcomes[k].status.code, np.nan_to_num(outcomes[k].gap), -k))


def check_finite(found: Any) -> None:
    """Refuse products with kernels that are not finite: stored kernels are, so that a damaged tile gives them alone.

    Raises
    ------
    DegenerateKernelError
        If an array, or one of several, holds NaN or infinity.
    """
    for array in found if isinstance(found, list | tuple) else [found]:
        # The sum is finite but for what it is to find; it takes no memory.
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array.sum(dtype=np.float64)):
            msg = (
                "products with the kernels are not finite, though stored kernels are: a tile was damaged, or entries "
                "are too large for their precision; run `dmkl check`"
            )
            raise DegenerateKernelError(msg)
