"""What a solver of MK-FDA is to the rest of the library: a name, a line of help, what it refuses, what it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dmkl.solvers.fisher.problem import FisherOptions
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome

__all__ = ["AUTO", "FisherSolver", "SolverName"]

SolverName = Literal["auto", "direct", "cg", "anchored", "subspace", "interleaved", "dual", "stacked"]
"""What the parameter ``solver`` takes: `AUTO`, and the names of `dmkl.solvers.fisher.registry.SOLVERS`."""
AUTO = "auto"
"""The name that leaves the choice to `dmkl.solvers.fisher.registry.choose`."""

Solve = Callable[[Sequence[Job], FisherOptions, Context], list[Outcome]]


def _anything(*_: object) -> None:
    """Everything is accepted."""


@dataclass(frozen=True)
class FisherSolver:
    """A solver of MK-FDA. It becomes available by its entry in `dmkl.solvers.fisher.registry.SOLVERS`.

    Parameters
    ----------
    name
        The value of the parameter ``solver``.
    title
        What it does, in a line: for the documentation of learners and the help of commands.
    solve
        Solves jobs whose problems are `FisherProblem`, with options, in a context; the outcomes in order.
    check
        Refuses jobs that it cannot solve, before it is run: by MemoryBudgetError, mostly.
    check_parameters
        Refuses options and norms p, before there are data: by InputError.
    leaves_out
        Whether leave-one-out scores of its solutions are worth a pass and a factor (`dmkl.solvers.fisher.left_out`).
        The solvers for combined kernels that do not fit in memory do without.
    files
        Whether it keeps files that all workers must see.
    """

    name: str
    title: str
    solve: Solve
    check: Callable[[Sequence[Job]], None] = _anything
    check_parameters: Callable[[FisherOptions, Sequence[float]], None] = _anything
    leaves_out: bool = False
    files: bool = False
