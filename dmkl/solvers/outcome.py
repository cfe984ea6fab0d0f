"""The result of a solver: one class for every problem and every solver.

An outcome is data: how the solver ended (`Status`), the pair that it returns (weights and dual variables), its
objective, and what is *proven* about it: `bound`, the other end of an interval that contains the optimum, and `gap`,
the length of that interval relative to the objective. A solver without a proof leaves both NaN.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dmkl.arrays import Float
from dmkl.errors import DegenerateKernelError

WORDS = ("certified", "finished", "converged", "open")
"""The ways in which a fit can end, from the best to the worst, as written in tables, figures and files."""


class Status(enum.Enum):
    """How a solver ended: a word of `WORDS`, and advice."""

    CERTIFIED = ("certified", "The gap is proven to be within the tolerance.")
    FINISHED = ("finished", "The gap is proven to be within the tolerance, by the solver that finishes open problems.")
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
        "The subspace was as large as it was allowed to be before the gap was proven: allow more with "
        'solver=dmkl.Subspace(basis=...) or max_iter=, or let another solver finish, as Subspace(finish="auto").',
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
        """A sentence on what happened and what to do."""
        return self.value[1]

    @property
    def code(self) -> int:
        """The position of the word in `WORDS`."""
        return WORDS.index(self.word)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a solver, for its history: kernel weights (n,), if it has them, and figures by name.

    The figures are objective, bounds and counts; every step of a solver has the same names.
    """

    weights: Float | None
    figures: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The solution of one problem, as far as the solver came.

    The kernel weights are (n,), or (n, groups). With dual variables, (m, columns), and the bias, (columns,), the score
    of a sample x is Σ_j weights_j Σ_i k_j(x, x_i) dual_i + bias; they are None if not requested. `objective` is that of
    the returned pair, `bound` a proven bound of the optimum from the other side, and `gap` the proven relative gap:
    both are NaN without a proof, and the gap is infinite if objective and bound contradict each other
    (`dmkl.numerics.fisher.relative_gap`). `steps` is the history, oldest first.

    `scores` of the held-out rows, (rows, columns), are there if the solver has them from the same products. `inverse`
    is the diagonal of A⁻¹, (m,), where A is the system that the dual variables solve, if leave-one-out scores were
    requested and combined kernels fit in memory (`dmkl.solvers.fisher.registry`). `extra` are further arrays of the
    solver, by name.
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
    extra: Mapping[str, Float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # No solver can claim a proof without a number: NaN and infinity fail this test as well.
        if self.status in (Status.CERTIFIED, Status.FINISHED) and not 0.0 <= self.gap < np.inf:
            msg = f"an outcome is certified by a finite gap of zero or more, got {self.gap}"
            raise ValueError(msg)


@dataclass(frozen=True)
class Round:
    """One pass over the kernels, or the passes of one step, for the history of a plan.

    `kind` is its purpose, and `n_bytes` are the stored bytes that were read. `basis` counts the vectors of the largest
    basis, if there is one, and `certified` the problems that are certified, if known; `worst_gap` is the largest gap of
    the others.
    """

    kind: str
    seconds: float
    n_bytes: float
    basis: int = 0
    certified: int = 0
    worst_gap: float = np.nan


def worst(outcomes: Sequence[Outcome]) -> int:
    """The position of the outcome that ended worst: by its word, then by its gap."""
    # The first of equals, so that the answer does not depend on more than the outcomes.
    return max(range(len(outcomes)), key=lambda k: (outcomes[k].status.code, np.nan_to_num(outcomes[k].gap), -k))


def check_finite(answer: Any) -> None:
    """Raise DegenerateKernelError if an array, or one in a list, contains NaN or infinity."""
    for array in answer if isinstance(answer, list | tuple) else [answer]:
        # A finite sum proves finite entries, and unlike a mask it takes no memory. Float64 keeps a sum of finite
        # float32 entries from overflowing.
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array.sum(dtype=np.float64)):
            msg = (
                "products with the kernels are not finite, though stored kernels are: a tile was damaged, or entries "
                "are too large for their precision; run `dmkl check`"
            )
            raise DegenerateKernelError(msg)
