"""The interface of a solver of MK-FDA: a name, a line of help, checks, and a function that solves problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dmkl.arrays import Float
from dmkl.numerics.fisher import certify
from dmkl.passes.execute import machine
from dmkl.solvers.fisher.newton import Solution
from dmkl.solvers.fisher.problem import ConfiguredSolver, FisherOptions
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome, Status
from dmkl.solvers.requests import EachProduct, Solver

__all__ = ["AUTO", "FisherSolver", "SolverChoice", "SolverName"]

SolverName = Literal["auto", "direct", "cg", "anchored", "subspace", "interleaved", "dual", "stacked"]
"""`AUTO`, and the names in `dmkl.solvers.fisher.registry.SOLVERS`."""
SolverChoice = SolverName | ConfiguredSolver
"""Values of the parameter ``solver``: a name stands for the solver with the defaults of its options."""
AUTO = "auto"
"""The value for which `dmkl.solvers.fisher.registry.choose` chooses the solver."""

Solve = Callable[[Sequence[Job], FisherOptions, Context], list[Outcome]]


def _anything(*_: object) -> None:
    """Accept everything."""


@dataclass(frozen=True)
class FisherSolver:
    """A solver of MK-FDA, available once it is in `dmkl.solvers.fisher.registry.SOLVERS`.

    Parameters
    ----------
    name
        The value of the parameter ``solver``.
    title
        A line of help, for the documentation of learners and commands.
    solve
        Solves jobs whose problems are `FisherProblem`, with options, in a context; returns the outcomes in order.
    check
        Raises an error, such as MemoryBudgetError, for jobs that it cannot solve, before anything is computed.
    check_parameters
        Raises InputError for options and norms p that it does not support, before there are data.
    leaves_out
        Whether leave-one-out scores of its solutions are worth a pass and a factor (`dmkl.solvers.fisher.left_out`);
        not for solvers whose combined kernels do not fit in memory.
    files
        Whether it writes files that all workers must see.
    """

    name: str
    title: str
    solve: Solve
    check: Callable[[Sequence[Job]], None] = _anything
    check_parameters: Callable[[FisherOptions, Sequence[float]], None] = _anything
    leaves_out: bool = False
    files: bool = False

    @classmethod
    def from_arrays(cls, name: str, title: str, function: Callable[..., tuple[Float, Float]]) -> FisherSolver:
        """Make a solver from a function of arrays.

        Parameters
        ----------
        name, title
            As above.
        function
            Takes kernels (n, m, m), targets H (m, c), λ and the set of weights (`dmkl.solvers.weight_sets`), and
            returns α (m, c) and β (n,) of the set. The gap of this pair is computed here.
        """

        def solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
            def solver_of(job: Job) -> Solver[Outcome]:
                problem = job.problem
                kernels = yield EachProduct(np.eye(len(problem.h)))
                alpha, beta = function(kernels, problem.h, problem.lam, problem.weights)
                certificate, _ = certify(alpha, kernels @ alpha, beta, problem.h, problem.lam, problem.weights)
                status = Status.CERTIFIED if certificate.gap <= options.tol else Status.STALLED
                return Solution(alpha, beta, certificate, status).outcome()

            # As many problems share a pass as half of the memory has room for their kernels.
            largest = max(8 * job.n_kernels * job.training.n_train**2 for job in jobs)
            return context.drive(jobs, solver_of, at_once=max(1, machine().total_bytes // 2 // largest))

        return cls(name, title, solve)
