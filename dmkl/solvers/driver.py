"""Runs solvers side by side: whatever those that run ask for is answered by one pass over the stored kernels.

`ANSWERS` says who answers which request. A new kind of request is a class in `requests`, and a line here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dmkl.errors import DmklError
from dmkl.passes.execute import again
from dmkl.passes.run import run_pass
from dmkl.passes.sums import Combination, diagonals_of_inverses, factor_pass, inverse_diagonals_pass, solve_by_factors
from dmkl.passes.sweep import Columns, Want
from dmkl.passes.view import Lens, covering
from dmkl.solvers.fisher.working_sets import add_blocks, columns_lens, finish_columns, fraction_of_tiles
from dmkl.solvers.margin.training import train_together
from dmkl.solvers.outcome import Round, check_finite
from dmkl.solvers.requests import (
    SVM,
    CombinedEntries,
    CombinedFactor,
    CombinedProduct,
    EachProduct,
    FactorDiagonal,
    FactorSolve,
    GroupClassifier,
    InverseDiagonals,
    Pass,
    Projection,
    Request,
    Solver,
    Task,
    Tasks,
)
from dmkl.solvers.running import run_tasks

__all__ = ["ANSWERS", "Tally", "drive"]

Result = TypeVar("Result")
Asked = Sequence[tuple[Lens, Any]]
"""Requests of one kind, each with what its solver sees the kernels through."""


class Tally:
    """The passes that some work took, parts of a pass as parts, and what each was for."""

    def __init__(self) -> None:
        self.n_passes = 0.0
        self.rounds: list[Round] = []
        self.phases: dict[str, float] = {}
        """Seconds of each phase of the work (`dmkl.progress.PHASES`), once it is over."""

    def add(self, kind: str, passes: float, seconds: float, bytes_per_pass: int) -> None:
        """Count a step of the work."""
        self.n_passes += passes
        if passes:
            self.rounds.append(Round(kind, seconds, passes * bytes_per_pass))


def drive(
    solvers: Sequence[tuple[Lens, Solver[Result]]],
    *,
    at_once: int | None = None,
    tally: Tally | None = None,
    done: Callable[[int, Result], None] | None = None,
) -> tuple[list[Result], float]:
    """Run solvers to their ends, side by side.

    Parameters
    ----------
    solvers
        One for each independent problem, with what it sees the kernels through. All lenses look at the same kernels
        of one source.
    at_once
        The most that run at once; all where missing. What a running solver holds in memory (a factor) it holds
        until it asks for the next.
    tally
        Is told of every pass.
    done
        Is called with the number of a solver and its result, as soon as it ends.

    Returns
    -------
    tuple
        The solvers' results in order, and the passes over the stored kernels. Where solvers ask for parts of the
        kernels, a pass counts by the share of its tiles that were read.

    Raises
    ------
    DmklError
        Errors of answers; a solver that runs alone is given them first.
    """
    tally = Tally() if tally is None else tally
    before = tally.n_passes
    results: dict[int, Result] = {}
    waiting = list(enumerate(solvers))[::-1]
    running: dict[int, tuple[Lens, Solver[Result], Request | tuple[Request, ...]]] = {}

    def advance(number: int, lens: Lens, solver: Solver[Result], answer: Any) -> None:
        try:
            # A solver may know a way on from an error: products in double precision, say.
            request = solver.throw(answer) if isinstance(answer, DmklError) else solver.send(answer)
            running[number] = (lens, solver, request)
        except StopIteration as stop:
            running.pop(number, None)
            results[number] = stop.value
            if done is not None:
                done(number, stop.value)

    while waiting or running:
        while waiting and (at_once is None or len(running) < at_once):
            number, (lens, solver) = waiting.pop()
            advance(number, lens, solver, None)
        if not running:
            continue
        asked = [(lens, one) for lens, _, request in running.values() for one in _several(request)]
        try:
            answers = _answered(asked, tally)
        except DmklError as error:
            if len(running) > 1:
                raise
            answers = [error]
        # Taken out of the list as they are handed over: an answer may be a factor as large as a kernel, and must not
        # outlive its solver's interest in it.
        answers.reverse()
        for number, (lens, solver, request) in list(running.items()):
            if isinstance(answers[-1], DmklError):
                advance(number, lens, solver, answers.pop())
                continue
            mine = [answers.pop() for _ in _several(request)]
            advance(number, lens, solver, mine if isinstance(request, tuple) else mine.pop())
    return [results[number] for number in range(len(solvers))], tally.n_passes - before


def _several(request: Request | tuple[Request, ...]) -> tuple[Request, ...]:
    return request if isinstance(request, tuple) else (request,)


def _answered(requests: Asked, tally: Tally) -> list[Any]:
    """The answers in order; all requests of a kind go together."""
    answers: list[Any] = [None] * len(requests)
    for kinds, kind, answer in ANSWERS:
        places = [k for k, (_, request) in enumerate(requests) if isinstance(request, kinds)]
        if not places:
            continue
        started = time.monotonic()
        found, passes = answer([requests[k] for k in places])
        lenses = _distinct([requests[k][0] for k in places])
        tally.add(kind, passes, time.monotonic() - started, covering([lens.view for lens in lenses]).bytes_per_pass)
        for k in reversed(places):
            answers[k] = found.pop()
            check_finite(answers[k])
    return answers


def _distinct(lenses: Sequence[Lens]) -> list[Lens]:
    found: list[Lens] = []
    for lens in lenses:
        if not any(lens is known for known in found):
            found.append(lens)
    return found


def _place(lens: Lens, lenses: Sequence[Lens]) -> int:
    return next(k for k, known in enumerate(lenses) if known is lens)


# --- who answers what ----------------------------------------------------------------------------------------------


def _factors(asked: Asked) -> tuple[list[Any], float]:
    lenses = _distinct([lens for lens, _ in asked])
    combinations = [Combination(_place(lens, lenses), request.weights) for lens, request in asked]
    return list(factor_pass(lenses, combinations, [request.lam for _, request in asked])), 1.0


def _solves(asked: Asked) -> tuple[list[Any], float]:
    return list(solve_by_factors([one.factor for _, one in asked], [one.block for _, one in asked])), 0.0


def _diagonals(asked: Asked) -> tuple[list[Any], float]:
    return list(diagonals_of_inverses([one.factor for _, one in asked])), 0.0


def _inverse_diagonals(asked: Asked) -> tuple[list[Any], float]:
    lenses = _distinct([lens for lens, _ in asked])
    combinations = [Combination(_place(lens, lenses), request.weights) for lens, request in asked]
    single = all(request.single for _, request in asked)
    lams = [request.lams for _, request in asked]
    return inverse_diagonals_pass(lenses, combinations, lams, single=single), 1.0


def _classifiers(asked: Asked) -> tuple[list[Any], float]:
    lenses = _distinct([lens for lens, _ in asked])
    found, passes = train_together(lenses, [(_place(lens, lenses), request) for lens, request in asked])
    return found, float(passes)


def _entries(asked: Asked) -> tuple[list[Any], float]:
    # Equal ones, of problems that have a training set in common, are read once; each gets a copy to work in.
    keys = [(id(lens), request.weights.tobytes(), request.index.tobytes()) for lens, request in asked]
    wanted = {key: (lens, one.weights, one.index) for key, (lens, one) in zip(keys, asked, strict=True)}
    found, passes = add_blocks(list(wanted.values()))
    answers = dict(zip(wanted, found, strict=True))
    return [answers[key] if keys.index(key) == place else answers[key].copy() for place, key in enumerate(keys)], passes


def _tasks(asked: Asked) -> tuple[list[Any], float]:
    work = [partial(request.function, *request.arguments) for _, request in asked]
    return run_tasks(asked[0][1].name, work), 0.0


def _batches(asked: Asked) -> tuple[list[Any], float]:
    return [run_tasks(one.name, one.work, *one.shared, own=one.own) for _, one in asked], 0.0


def _passes(asked: Asked) -> tuple[list[Any], float]:
    return [again(one.function, one.name) for _, one in asked], 0.0


def _products(asked: Asked) -> tuple[list[Any], float]:
    lenses = _distinct([lens for lens, _ in asked])
    # All that see the kernels whole through one lens share it; who asks for columns sees them through another.
    parts = [request.columns if isinstance(request, EachProduct) else None for _, request in asked]
    in_parts = all(part is not None for part in parts)
    seen = [] if in_parts else list(lenses)
    columns = []
    for (lens, request), part in zip(asked, parts, strict=True):
        if part is not None:
            seen.append(columns_lens(lens, part))
        columns.append(_columns(lens, _place(lens, lenses) if part is None else len(seen) - 1, request))
    found, passes = run_pass(seen, columns, _verb([request for _, request in asked]))
    answers = [
        answer if part is None else finish_columns(lens, part, request.block, answer)
        for (lens, request), part, answer in zip(asked, parts, found, strict=True)
    ]
    covered = [covering([lens.view for lens in some]) for some in (seen, lenses)]
    return answers, passes * (fraction_of_tiles(*covered) if in_parts else 1.0)


def _columns(lens: Lens, number: int, request: EachProduct | CombinedProduct | Projection) -> Columns:
    double = np.dtype(np.float64)
    if not isinstance(request, CombinedProduct):
        want: Want = "each" if isinstance(request, EachProduct) else "project"
        return Columns(request.block, want, None, double, number)
    weights = request.weights
    if weights.ndim == 1:
        weights = np.repeat(weights[:, None], request.block.shape[1], axis=1)
    return Columns(request.block, "sum", weights, double if request.exact else lens.view.source.dtype, number)


def _verb(requests: Sequence[Request]) -> str:
    """What the pass is called on a dashboard."""
    if not all(isinstance(request, CombinedProduct) for request in requests):
        return "apply"
    return "predict" if any(isinstance(r, CombinedProduct) and r.exact for r in requests) else "cg"


Answer = Callable[[Asked], tuple[list[Any], float]]
ANSWERS: list[tuple[tuple[type, ...], str, Answer]] = [
    ((Task,), "task", _tasks),
    ((Tasks,), "task", _batches),
    ((Pass,), "pass", _passes),
    ((CombinedFactor,), "factor", _factors),
    ((FactorSolve,), "solve", _solves),
    ((FactorDiagonal,), "diagonal", _diagonals),
    ((InverseDiagonals,), "leave-out", _inverse_diagonals),
    ((SVM, GroupClassifier), "train", _classifiers),
    ((CombinedEntries,), "entries", _entries),
    ((EachProduct, CombinedProduct, Projection), "products", _products),
]
"""Kinds of requests, what their passes are for, and what answers them: the answers in order, and the passes."""
