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

from dmkl.blocks.chain import Fitted
from dmkl.passes.combine import FactorHandle, factor_pass
from dmkl.passes.run import run_pass
from dmkl.passes.sweep import Columns
from dmkl.passes.view import View

__all__ = ["Combined", "Each", "Factorized", "Request", "Solver", "drive"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
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


Request = Each | Combined | Factorized
Solver = Generator[Request, Any, Result]


def drive(
    view: View, fitted: Fitted, solvers: Sequence[Solver[Result]], *, lanes: int | None = None
) -> tuple[list[Result], int]:
    """Run solvers to their ends, side by side.

    Parameters
    ----------
    view, fitted
        The kernels and the statistics of their steps.
    solvers
        One for each independent problem.
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
    running: dict[int, tuple[Solver[Result], Request]] = {}
    n_passes = 0

    def advance(number: int, solver: Solver[Result], answer: Any) -> None:
        try:
            running[number] = (solver, solver.send(answer))
        except StopIteration as stop:
            running.pop(number, None)
            results[number] = stop.value

    while waiting or running:
        while waiting and (lanes is None or len(running) < lanes):
            number, solver = waiting.pop()
            advance(number, solver, None)
        if not running:
            continue
        answers, passes = _answer(view, fitted, [request for _, request in running.values()])
        n_passes += passes
        # Taken out of the list as they are handed over: an answer may be a factor as large as a kernel, and must not
        # outlive its solver's interest in it.
        answers.reverse()
        for number, (solver, _) in list(running.items()):
            advance(number, solver, answers.pop())
    return [results[number] for number in range(len(solvers))], n_passes


def _answer(view: View, fitted: Fitted, requests: list[Request]) -> tuple[list[Any], int]:
    answers: list[Any] = [None] * len(requests)
    n_passes = 0
    factors = [(k, r) for k, r in enumerate(requests) if isinstance(r, Factorized)]
    if factors:
        weights = np.stack([r.weights for _, r in factors], axis=1)
        handles: list[FactorHandle] = factor_pass(view, fitted, weights, [r.lam for _, r in factors])
        n_passes += 1
        for (k, _), handle in zip(factors, handles, strict=True):
            answers[k] = handle
    vectors = [(k, r) for k, r in enumerate(requests) if not isinstance(r, Factorized)]
    if vectors:
        found, passes = run_pass(view, fitted, [_columns(view, r) for _, r in vectors], _verb([r for _, r in vectors]))
        n_passes += passes
        for (k, _), answer in zip(vectors, found, strict=True):
            answers[k] = answer
    return answers, n_passes


def _columns(view: View, request: Each | Combined) -> Columns:
    if isinstance(request, Each):
        return Columns(request.block, "each", None, np.dtype(np.float64))
    weights = np.repeat(request.weights[:, None], request.block.shape[1], axis=1)
    return Columns(request.block, "sum", weights, view.source.dtype)


def _verb(requests: list[Each | Combined]) -> str:
    return "cg" if all(isinstance(request, Combined) for request in requests) else "apply"
