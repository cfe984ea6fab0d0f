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
from dmkl.passes.view import Lens, View, covering
from dmkl.solvers.svm.training import train_together
from dmkl.solvers.working_sets import add_blocks, columns_lens, finish_columns, share

__all__ = [
    "Block",
    "Combined",
    "Each",
    "Factorized",
    "Projected",
    "Request",
    "Solver",
    "Trained",
    "TrainedGroups",
    "drive",
    "drive_in_parts",
]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Each:
    """K_jV for every kernel, in float64; answered by (n, m, b)."""

    block: Float
    columns: Index | None = None
    """The samples that the rows of the block are, all others being zero: only tiles with their columns are read."""


@dataclass(frozen=True)
class Block:
    """K(β) over some samples, in float64; answered by (b, b)."""

    weights: Float
    index: Index


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


Request = Block | Each | Combined | Factorized | Projected | Trained | TrainedGroups
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
    results, n_passes = drive_in_parts(solvers, lanes=lanes)
    return results, round(n_passes)


def drive_in_parts(
    solvers: Sequence[tuple[Lens, Solver[Result]]], *, lanes: int | None = None
) -> tuple[list[Result], float]:
    """`drive` for solvers that ask for parts of the kernels: the passes are tiles read by the tiles of a pass."""
    results: dict[int, Result] = {}
    waiting = list(enumerate(solvers))[::-1]
    running: dict[int, tuple[Lens, Solver[Result], Request]] = {}
    n_passes = 0.0

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
    return [results[number] for number in range(len(solvers))], float(n_passes)


def _answer(requests: list[tuple[Lens, Request]]) -> tuple[list[Any], float]:
    answers: list[Any] = [None] * len(requests)
    n_passes = 0.0
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
    blocks = [(k, lens, r) for k, (lens, r) in enumerate(requests) if isinstance(r, Block)]
    if blocks:
        sums, read = add_blocks([(lens, r.weights, r.index) for _, lens, r in blocks])
        n_passes += read
        for (k, _, _), total in zip(blocks, sums, strict=True):
            answers[k] = total
    vectors = [(k, lens, r) for k, (lens, r) in enumerate(requests) if isinstance(r, Each | Combined | Projected)]
    if vectors:
        # All that see the kernels whole through one lens share it; who asks for columns sees them through another.
        parts = [r.columns if isinstance(r, Each) else None for _, _, r in vectors]
        in_parts = all(part is not None for part in parts)
        seen = [] if in_parts else lenses
        columns = []
        for (_, lens, r), part in zip(vectors, parts, strict=True):
            if part is not None:
                seen = [*seen, columns_lens(lens, part)]
            columns.append(_columns(lens, place(lens) if part is None else len(seen) - 1, r))
        found, passes = run_pass(seen, columns, _verb([r for _, _, r in vectors]))
        n_passes += passes * (share(_covered(seen), _covered(lenses)) if in_parts else 1)
        for (k, lens, r), part, answer in zip(vectors, parts, found, strict=True):
            answers[k] = answer if part is None else finish_columns(lens, part, r.block, answer)
    return answers, n_passes


def _covered(lenses: Sequence[Lens]) -> View:
    return covering([lens.view for lens in lenses])


def _columns(lens: Lens, number: int, request: Each | Combined | Projected) -> Columns:
    if isinstance(request, Each | Projected):
        want: Want = "each" if isinstance(request, Each) else "project"
        return Columns(request.block, want, None, np.dtype(np.float64), number)
    weights = np.repeat(request.weights[:, None], request.block.shape[1], axis=1)
    return Columns(request.block, "sum", weights, lens.view.source.dtype, number)


def _verb(requests: Sequence[Request]) -> str:
    return "cg" if all(isinstance(request, Combined) for request in requests) else "apply"
