"""Runs solvers side by side: one pass over the stored kernels answers the requests of all running solvers.

`ANSWERS` maps each kind of request to the function that answers it. A new kind of request needs a class in `interface`
and a line here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from dask.utils import apply

from dmkl.arrays import Float, Index
from dmkl.passes.alignment import projected_inner_products, traces_by_factor
from dmkl.passes.elements import add_blocks, fraction_of_tiles
from dmkl.passes.execute import run_tasks, shared_folder
from dmkl.passes.rows import inverse_diagonals_by_factors
from dmkl.passes.run import run_pass
from dmkl.passes.sums import Combination, by_factors, combine_pass, factor_pass, inverse_diagonals
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens, covering, has_thin_factors
from dmkl.progress import Tally
from dmkl.solvers import interface
from dmkl.solvers.interface import ProductRequest, Request, Result, Solver, check_finite
from dmkl.solvers.margin.svm import train_together

Asked = Sequence[tuple[Lens, Any]]  # Requests of one kind, each with the lens of its solver
Answer = Callable[[Asked], tuple[list[Any], float]]


def drive(
    solvers: Sequence[tuple[Lens, Solver[Result]]],
    *,
    at_once: int | None = None,
    tally: Tally | None = None,
    done: Callable[[int, Result], None] | None = None,
    after_round: Callable[[], None] | None = None,
) -> tuple[list[Result], float]:
    """Run solvers to their ends side by side; return their results in order, and the passes over the stored kernels.

    There is a solver for each independent problem, with the lens through which it uses the kernels; all lenses belong
    to the same kernels of one source. At most `at_once` solvers run at the same time, each of which keeps its objects
    in memory (a factor) until its next request. A request for parts of the kernels counts as the fraction of the tiles
    that were read. `tally` receives every pass, `done` is called with the number of a solver and its result as soon as
    it ends, and `after_round` after each round of answers. Errors of answers end all solvers.
    """
    tally = Tally() if tally is None else tally
    before = tally.n_passes
    results: dict[int, Result] = {}
    waiting = list(enumerate(solvers))[::-1]
    running: dict[int, tuple[Lens, Solver[Result], Request | tuple[Request, ...]]] = {}

    def advance(number: int, lens: Lens, solver: Solver[Result], answer: Any) -> None:
        try:
            running[number] = (lens, solver, solver.send(answer))
        except StopIteration as stop:
            running.pop(number, None)
            results[number] = stop.value
            if done is not None:
                done(number, stop.value)

    # Each turn is one round: all running solvers wait for answers, and all answers are computed together. A solver that
    # ends makes room for a waiting one in the next round.
    while waiting or running:
        while waiting and (at_once is None or len(running) < at_once):
            number, (lens, solver) = waiting.pop()
            advance(number, lens, solver, None)
        if not running:
            continue
        requests = [(lens, item) for lens, _, request in running.values() for item in _several(request)]
        answers = _answered(requests, tally)
        # Answers are removed from the list as they are handed over: an answer may be a factor as large as a kernel, and
        # this list must not keep it alive after its solver has dropped it.
        answers.reverse()
        for number, (lens, solver, request) in list(running.items()):
            replies = [answers.pop() for _ in _several(request)]
            advance(number, lens, solver, replies if isinstance(request, tuple) else replies.pop())
        if after_round is not None:
            after_round()
    return [results[number] for number in range(len(solvers))], tally.n_passes - before


def _several(request: Request | tuple[Request, ...]) -> tuple[Request, ...]:
    return request if isinstance(request, tuple) else (request,)


def _answered(requests: Asked, tally: Tally) -> list[Any]:
    """The answers in order; all requests of one kind are answered together."""
    answers: list[Any] = [None] * len(requests)
    for kind, purpose, answer in ANSWERS:
        # Requests of one kind share a pass, also those of different solvers and training sets.
        places = [k for k, (_, request) in enumerate(requests) if isinstance(request, kind)]
        if not places:
            continue
        started = time.monotonic()
        of_kind = [requests[k] for k in places]
        results, passes = answer(of_kind)
        views = [lens.view for lens in _lenses(of_kind)[0]]
        tally.add(purpose, passes, time.monotonic() - started, covering(views).bytes_per_pass)
        for k in reversed(places):
            answers[k] = results.pop()
            check_finite(answers[k])
    return answers


def _lenses(requests: Asked) -> tuple[list[Lens], list[int]]:
    """The lenses of requests without repetition, and the position among them of the lens of each request."""
    lenses = {id(lens): lens for lens, _ in requests}
    places = {key: place for place, key in enumerate(lenses)}
    return list(lenses.values()), [places[id(lens)] for lens, _ in requests]


# --- answers by kind of request --------------------------------------------------------------------------------------


def _each(answer: Callable[[Lens, Any], Any]) -> Answer:
    """Answers to requests one after another, each of which takes a pass."""
    return lambda requests: ([answer(*asked) for asked in requests], float(len(requests)))


def _sums(requests: Asked) -> list[Combination]:
    return [Combination(lens, request.weights) for lens, request in requests]


def _factors(requests: Asked) -> tuple[list[Any], float]:
    return list(factor_pass(_sums(requests), [request.lam for _, request in requests])), 1.0


def _of_factors(requests: Asked) -> tuple[list[Any], float]:
    answers: dict[int, Any] = {}
    for method in dict.fromkeys(request.method for _, request in requests):
        alike = {k: request for k, (_, request) in enumerate(requests) if request.method is method}
        factors, arguments = zip(*((request.factor, request.arguments) for request in alike.values()), strict=True)
        answers |= zip(alike, by_factors(method.__name__, method, factors, *zip(*arguments, strict=True)), strict=True)
    return [answers[k] for k in range(len(requests))], 0.0


def _inverse_diagonals(requests: Asked) -> tuple[list[Any], float]:
    lams, vectors = [r.lams for _, r in requests], [r.vector for _, r in requests]
    if all(has_thin_factors(lens.view) for lens, _ in requests):
        views = [lens.view for lens, _ in requests]
        return inverse_diagonals_by_factors(views, [r.weights for _, r in requests], lams, vectors)
    return inverse_diagonals(_sums(requests), lams, vectors)


def _entries(requests: Asked) -> tuple[list[Any], float]:
    # Equal requests, of problems with a common training set, are read once; each solver gets a copy that it may change.
    keys = [(id(lens), request.weights.tobytes(), request.index.tobytes()) for lens, request in requests]
    wanted = {key: (lens, request.weights, request.index) for key, (lens, request) in zip(keys, requests, strict=True)}
    blocks, passes = add_blocks(list(wanted.values()))
    answers = dict(zip(wanted, blocks, strict=True))
    return [answers[key] if keys.index(key) == place else answers[key].copy() for place, key in enumerate(keys)], passes


def _kernels(requests: Asked) -> tuple[list[Any], float]:
    # Through files: a task holds a tile of each sum, and one kernel after the other is put together here.
    with shared_folder("where sums of kernels are written") as folder:
        stems = [f"{folder}/sum-{number}" for number in range(len(requests))]
        return [total.whole() for total in combine_pass(_sums(requests), stems)], 1.0


def _tasks(requests: Asked) -> tuple[list[Any], float]:
    tasks = {id(request): request for _, request in requests}
    # The arguments of each task are sent apart from the graph if they are large.
    work = [partial(apply, task.function) for task in tasks.values()]
    results = run_tasks(requests[0][1].name, work, own=[task.arguments for task in tasks.values()])
    by_task = dict(zip(tasks, results, strict=True))
    return [by_task[id(request)] for _, request in requests], 0.0


def _products(requests: Asked) -> tuple[list[Any], float]:
    lenses, places = _lenses(requests)
    # All requests for whole kernels share their solver's lens; each request for columns has its own lens.
    parts = [request.columns for _, request in requests]
    in_parts = all(part is not None for part in parts)
    seen = [] if in_parts else list(lenses)
    columns = []
    for (lens, request), part, place in zip(requests, parts, places, strict=True):
        if part is not None:
            # Columns are finished after the pass (`_finish_columns`): they are then the same to the last bit however
            # the pass is cut into tasks, and no row means are sent to tasks.
            some = lens.columns(part)
            seen.append(Lens(replace(some.view, steps=()), some.fitted.right_alone()))
        weights, dtype = request.weights, np.dtype(np.float64) if request.exact else lens.view.source.dtype
        if weights is not None and weights.ndim == 1:
            weights = np.repeat(weights[:, None], request.block.shape[1], axis=1)
        number = place if part is None else len(seen) - 1
        columns.append(Columns(request.block, request.want, weights, dtype, number))
    # The name of the pass on a dashboard: blocks of every kernel, predictions, or products in conjugate gradients.
    exact = any(request.exact for _, request in requests)
    verb = "apply" if any(c.want != "sum" for c in columns) else "predict" if exact else "cg"
    products, passes = run_pass(seen, columns, verb)
    answers = [
        answer if part is None else _finish_columns(lens, part, request.block, answer)
        for (lens, request), part, answer in zip(requests, parts, products, strict=True)
    ]
    covered = [covering([lens.view for lens in views]) for views in (seen, lenses)]
    # A pass over some columns counts as the fraction of tiles that it reads, unless whole kernels are read with it.
    return answers, passes * (fraction_of_tiles(*covered) if in_parts else 1.0)


def _finish_columns(lens: Lens, index: Index, block: Float, raw: Float) -> Float:
    """Compute K_j[:, B]V of the view, (n, m, k), from V (b, k) and the raw products, which are overwritten."""
    chain, (n, m, _) = lens.columns(index).fitted, lens.view.shape
    products = raw if m == raw.shape[1] else np.empty((n, m, raw.shape[2]))
    for j in range(n):
        _, carried = chain.right(j, block)
        products[j] = chain.left(j, raw[j], carried)
    return products


ANSWERS: list[tuple[type[Request], str, Answer]] = [
    (interface.Task, "task", _tasks),
    (interface.CombinedFactor, "factor", _factors),
    (interface.OfFactor, "solve", _of_factors),
    (interface.FactorTraces, "traces", _each(lambda _, r: traces_by_factor(r.factor))),
    (interface.InnerProducts, "alignment", _each(lambda lens, r: projected_inner_products(lens, r.basis, r.products))),
    (interface.InverseDiagonals, "leave-out", _inverse_diagonals),
    (interface.SVM, "train", train_together),
    (interface.CombinedEntries, "entries", _entries),
    (interface.CombinedKernel, "combine", _kernels),
    (ProductRequest, "products", _products),
]
"""Kinds of requests, the purpose of their passes, and the functions that return answers and numbers of passes."""
