"""What a solver may ask of the data, and the driver that answers many solvers with one pass.

A solver is a generator: it yields a request, is sent the answer, and returns its result. It never touches the kernels,
so that independent problems (the labels of a multilabel set, say) advance side by side: the driver gathers what
all of them ask for, and goes through the stored kernels once for all.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dmkl.passes.combine import Combination, FactorHandle, factor_pass
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns, Want
from dmkl.passes.view import Lens
from dmkl.solvers.svm.training import train_together

__all__ = [
    "Combined",
    "Each",
    "Factorized",
    "Projected",
    "Request",
    "Solver",
    "Trained",
    "TrainedGroups",
    "drive",
]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Each:
    """K_jV for every kernel, in float64; answered by (n, m, b)."""

    block: Float


@dataclass(frozen=True)
class Combined:
    """Σ_j β_j K_j V in the precision of the kernels; answered by (m, b)."""

    block: Float
    weights: Float


@dataclass(frozen=True)
class Factorized:
    """A Cholesky factor of ½(I + K(β)/λ); answered by a `FactorHandle`."""

    weights: Float
    lam: float


@dataclass(frozen=True, eq=False)
class Trained:
    """A support vector machine on K(β); answered by an `SVMSolution`."""

    weights: Float
    """β, (n,)"""
    y: Float
    """(m,), 1 and −1"""
    C: float
    tol: float
    """The relative gap that is asked for; what the arithmetic does not resolve may be left."""
    start: Float | None = None
    """u to begin with, (m,), from other weights"""
    rows: Index | None = None
    """The samples that it is trained on, which y and u are of; all where missing."""


@dataclass(frozen=True, eq=False)
class Projected:
    """BᵀK_jB for every kernel, in float64; answered by (n, b, b) for a block B (m, b)."""

    block: Float


@dataclass(frozen=True, eq=False)
class TrainedGroups:
    """A classifier on the composite kernel Σ_j β_j^{c(i)} β_j^{c(k)} K_j(i, k) of group-sensitive MKL.

    Answered by an `SVMSolution` where C is given, by a `SquareSolution` where lam is.
    """

    weights: Float
    """β, (n, G)"""
    groups: Index
    """c, (m,)"""
    y: Float
    """(m,): 1 and −1, or targets"""
    C: float | None
    tol: float
    """The relative gap that is asked for."""
    start: Float | None = None
    lam: float | None = None


Request = Each | Combined | Factorized | Projected | Trained | TrainedGroups
Solver = Generator[Request, Any, Result]


def drive(solvers: Sequence[tuple[Lens, Solver[Result]]], *, lanes: int | None = None) -> tuple[list[Result], int]:
    """Run solvers to their ends, side by side.

    Parameters
    ----------
    solvers
        One for each independent problem, with what it sees the kernels through. All lenses look at the same kernels
        of one source.
    lanes
        The most that run at once; all where missing. What a running solver holds in memory (a factor) it holds
        until it asks for the next.

    Returns
    -------
    tuple
        The solvers' results in order, and the number of passes over the stored kernels.
    """
    results: dict[int, Result] = {}
    waiting = list(enumerate(solvers))[::-1]
    running: dict[int, tuple[Lens, Solver[Result], Request]] = {}
    n_passes = 0

    def advance(number: int, lens: Lens, solver: Solver[Result], answer: Any) -> None:
        try:
            running[number] = (lens, solver, solver.send(answer))
        except StopIteration as stop:
            running.pop(number, None)
            results[number] = stop.value

    while waiting or running:
        while waiting and (lanes is None or len(running) < lanes):
            number, (lens, solver) = waiting.pop()
            advance(number, lens, solver, None)
        if not running:
            continue
        answers, passes = _answer([(lens, request) for lens, _, request in running.values()])
        n_passes += passes
        # Taken out of the list as they are handed over: an answer may be a factor as large as a kernel, and must not
        # outlive its solver's interest in it.
        answers.reverse()
        for number, (lens, solver, _) in list(running.items()):
            advance(number, lens, solver, answers.pop())
    return [results[number] for number in range(len(solvers))], n_passes


def _answer(requests: list[tuple[Lens, Request]]) -> tuple[list[Any], int]:
    answers: list[Any] = [None] * len(requests)
    n_passes = 0
    lenses: list[Lens] = []
    for lens, _ in requests:
        if not any(lens is known for known in lenses):
            lenses.append(lens)

    def place(lens: Lens) -> int:
        return next(k for k, known in enumerate(lenses) if known is lens)

    factors = [(k, place(lens), r) for k, (lens, r) in enumerate(requests) if isinstance(r, Factorized)]
    if factors:
        combinations = [Combination(seen, r.weights) for _, seen, r in factors]
        handles: list[FactorHandle] = factor_pass(lenses, combinations, [r.lam for _, _, r in factors])
        n_passes += 1
        for (k, _, _), handle in zip(factors, handles, strict=True):
            answers[k] = handle
    machines = [(k, place(lens), r) for k, (lens, r) in enumerate(requests) if isinstance(r, Trained | TrainedGroups)]
    if machines:
        trained, passes = train_together(lenses, [(seen, r) for _, seen, r in machines])
        n_passes += passes
        for (k, _, _), solution in zip(machines, trained, strict=True):
            answers[k] = solution
    vectors = [
        (k, place(lens), r) for k, (lens, r) in enumerate(requests) if isinstance(r, Each | Combined | Projected)
    ]
    if vectors:
        columns = [_columns(lenses[seen], seen, r) for _, seen, r in vectors]
        found, passes = run_pass(lenses, columns, _verb([r for _, _, r in vectors]))
        n_passes += passes
        for (k, _, _), answer in zip(vectors, found, strict=True):
            answers[k] = answer
    return answers, n_passes


def _columns(lens: Lens, number: int, request: Each | Combined | Projected) -> Columns:
    if isinstance(request, Each | Projected):
        want: Want = "each" if isinstance(request, Each) else "project"
        return Columns(request.block, want, None, np.dtype(np.float64), number)
    weights = np.repeat(request.weights[:, None], request.block.shape[1], axis=1)
    return Columns(request.block, "sum", weights, lens.view.source.dtype, number)


def _verb(requests: Sequence[Request]) -> str:
    return "cg" if all(isinstance(request, Combined) for request in requests) else "apply"
