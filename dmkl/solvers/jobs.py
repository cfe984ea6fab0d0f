"""Problems to solve and who solves them: what lies between a learner and the solvers.

A learner turns a training set into jobs, one for each independent problem, and names the method that solves them. All
jobs of equal methods, whatever fit or fold they belong to, are given to the method together, and share its passes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from dmkl import progress, settings
from dmkl.arrays import Float, Index
from dmkl.passes.view import Lens
from dmkl.solvers.driver import Tally, drive
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import (
    SVM,
    CombinedEntries,
    CombinedFactor,
    CombinedProduct,
    EachProduct,
    GroupClassifier,
    Projection,
    Request,
    Solver,
    Task,
)
from dmkl.solvers.semidefinite import KernelFacts
from dmkl.solvers.workspace import Workspace

__all__ = [
    "Context",
    "Job",
    "Method",
    "SideBySide",
    "Training",
    "best_of",
    "on_kernels",
    "on_rows",
    "over_all_kernels",
    "over_all_rows",
]

Running = Generator[Request | tuple[Request, ...], Any, Outcome]
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Training:
    """The kernels of one training set as solvers see them, with the rows whose scores are wanted.

    Parameters
    ----------
    square
        K[train, train] with its statistics.
    whole
        K[train then held out, train], with the same statistics; `square` where nothing is held out.
    names
        The kernels' names, for messages.
    title
        What it is called in messages: a fold, say.
    """

    square: Lens
    whole: Lens
    names: tuple[str, ...] = ()
    title: str = ""

    @property
    def n_train(self) -> int:
        """Training rows, m."""
        return self.square.view.shape[1]

    @property
    def n_rows(self) -> int:
        """Rows of `whole`."""
        return self.whole.view.shape[1]

    @property
    def n_kernels(self) -> int:
        """Kernels, n."""
        return len(self.square.view.kernels)

    @cached_property
    def facts(self) -> KernelFacts:
        """What solvers know of the kernels beforehand."""
        diagonal = self.square.diagonal()
        if diagonal is None:
            return KernelFacts(self.names)
        traces = np.abs(diagonal).sum(axis=1) + self.n_train * self.square.fitted.removed()
        return KernelFacts(self.names, traces, float(np.finfo(self.square.view.source.dtype).eps))

    @cached_property
    def held_out(self) -> Lens:
        """K[held out, train] with the statistics of the training rows."""
        return self.whole.rows(np.arange(self.n_train, self.n_rows))


@dataclass(frozen=True, eq=False)
class Job:
    """One problem to solve.

    Parameters
    ----------
    training
        What it is learnt from.
    problem
        What its method solves: for `SideBySide` a function that makes a solver.
    kernels
        Positions of the kernels that may have weight; all where None.
    rows
        Positions of the training rows that the problem is about, for solvers that are made for some; all where None.
    """

    training: Training
    problem: Any
    kernels: Index | None = None
    rows: Index | None = None

    def adapted(self, solver: Running) -> Running:
        """A solver of this problem on its kernels and rows, as one on all of them."""
        if self.rows is not None:
            solver = on_rows(solver, self.rows, self.training.n_train)
        if self.kernels is not None:
            solver = on_kernels(solver, self.kernels, self.training.n_kernels)
        return solver

    @property
    def n_kernels(self) -> int:
        """Kernels that may have weight."""
        return self.training.n_kernels if self.kernels is None else len(self.kernels)

    @property
    def facts(self) -> KernelFacts:
        """What is known of the kernels that may have weight."""
        return self.training.facts.select(self.kernels)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return self.facts.names


@dataclass(eq=False)
class Context:
    """What a method works with, beside its jobs.

    Parameters
    ----------
    workspace
        The folder where the state is kept.
    tally
        Counts the passes.
    duals
        Whether dual variables are wanted; scores of held-out rows alone otherwise.
    solver
        What solved the jobs, for people: set by the method.
    """

    workspace: Workspace
    tally: Tally = field(default_factory=Tally)
    duals: bool = True
    solver: str | None = None

    def drive(
        self,
        jobs: Sequence[Job],
        solver_of: Callable[[Job], Solver[Outcome]],
        *,
        at_once: int | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[Outcome]:
        """Run a solver for each job, side by side; what an earlier run of the same plan has finished is read back.

        Of jobs that are some of a method's, `numbers` are the places among all of them.
        """
        numbers = range(len(jobs)) if numbers is None else numbers
        found = [self.workspace.outcome(number) for number in numbers]
        missing = [place for place, outcome in enumerate(found) if outcome is None]
        watch, left = progress.current(), len(missing)

        def keep(position: int, outcome: Outcome) -> None:
            nonlocal left
            left -= 1
            found[missing[position]] = outcome
            self.workspace.keep_outcome(numbers[missing[position]], outcome)
            if len(jobs) > 1:
                watch.note(f"{len(jobs) - left:,} of {len(jobs):,} problems solved")

        running = [(jobs[k].training.square, jobs[k].adapted(solver_of(jobs[k]))) for k in missing]
        drive(running, at_once=at_once, tally=self.tally, done=keep)
        return [outcome for outcome in found if outcome is not None]


class Method(Protocol):
    """Solves jobs together. Methods that compare equal are given their jobs in one call."""

    def check(self, jobs: Sequence[Job]) -> None:
        """Refuse what cannot be solved, before anything long runs.

        Raises
        ------
        InputError, MemoryBudgetError
            Saying what is wrong, and the way out.
        """

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        """The outcomes, one for each job, in order."""

    def needs_folder(self, *, n_points: int) -> bool:
        """Whether it certainly keeps files that all workers must see.

        `n_points` is the largest number of points at which some target is learnt. Where the answer depends on more, a
        solver checks its folder itself.
        """


@dataclass(frozen=True)
class SideBySide:
    """Each problem has a solver of its own; those that run share passes.

    Parameters
    ----------
    width
        Columns of a pass that one running solver takes.
    files
        Whether problems ask for requests that are answered by files: `SVM` and `GroupClassifier`.
    """

    width: int = 1
    files: bool = False

    def check(self, jobs: Sequence[Job]) -> None:
        """Everything is accepted."""

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        """See `Method.solve`."""
        return self._in_passes(jobs, context)

    def needs_folder(self, *, n_points: int) -> bool:
        """See `Method.needs_folder`."""
        return self.files

    def _in_passes(self, jobs: Sequence[Job], context: Context, numbers: Sequence[int] | None = None) -> list[Outcome]:
        # No more of them at once than ride one pass.
        at_once = max(1, settings.block_width() // self.width)
        return context.drive(jobs, lambda job: job.problem(), at_once=at_once, numbers=numbers)


# --- solvers of parts ----------------------------------------------------------------------------------------------


def _spread(values: Float, places: Index, size: int) -> Float:
    """Values at some places as values at all of them, (size, ...), the others being zero."""
    wide = np.zeros((size, *values.shape[1:]))
    wide[places] = values
    return wide


def over_all_rows(found: Outcome, rows: Index, n_samples: int) -> Outcome:
    """The outcome of a problem over some samples as one over all of them."""
    assert found.dual is not None
    return replace(found, dual=_spread(found.dual, rows, n_samples))


def over_all_kernels(found: Outcome, kernels: Index, n_kernels: int) -> Outcome:
    """The outcome of a problem over some of the kernels as one over all: the others have no weight."""
    spread = partial(_spread, places=kernels, size=n_kernels)
    steps = [s if s.weights is None else replace(s, weights=spread(s.weights)) for s in found.steps]
    return replace(found, weights=spread(found.weights), steps=steps)


def on_rows(solver: Running, rows: Index, n_samples: int) -> Running:
    """A solver of a problem over some samples, as one over all: what it asks for is about those alone."""
    answer: Any = None
    while True:
        try:
            request = solver.send(answer)
        except StopIteration as stop:
            return over_all_rows(stop.value, rows, n_samples)
        if isinstance(request, SVM):
            answer = yield replace(request, rows=rows)
        elif isinstance(request, EachProduct):
            answer = (yield EachProduct(_spread(request.block, rows, n_samples)))[:, rows]
        elif isinstance(request, Task):
            answer = yield request
        else:
            msg = f"a problem over some of the samples cannot ask for {type(request).__name__}"
            raise NotImplementedError(msg)


def on_kernels(solver: Running, kernels: Index, n_kernels: int) -> Running:
    """A solver over some of the kernels, as one over all: the others have no weight."""
    spread = partial(_spread, places=kernels, size=n_kernels)

    def over_all(request: Request) -> Request:
        match request:
            case EachProduct(block, None) if len(kernels) == 1:
                # One kernel's products as a sum of one: the others' are not kept.
                return CombinedProduct(block, spread(np.ones(1)), exact=True)
            case CombinedProduct() | CombinedFactor() | CombinedEntries() | SVM() | GroupClassifier():
                return replace(request, weights=spread(request.weights))
        return request

    def of_some(request: Request, asked: Request, answer: Any) -> Any:
        if isinstance(request, EachProduct) and isinstance(asked, CombinedProduct):
            return answer[None]
        return answer[kernels] if isinstance(request, EachProduct | Projection) else answer

    answer: Any = None
    while True:
        try:
            request = solver.send(answer)
        except StopIteration as stop:
            return over_all_kernels(stop.value, kernels, n_kernels)
        if isinstance(request, tuple):
            asked = tuple(map(over_all, request))
            answer = [of_some(*parts) for parts in zip(request, asked, (yield asked), strict=True)]
        else:
            one = over_all(request)
            answer = of_some(request, one, (yield one))


def best_of(solvers: Sequence[Solver[Item]], choose: Callable[[Sequence[Item]], Item]) -> Solver[Item]:
    """Several solvers of one problem, side by side, as one: the result is the one that is chosen of theirs."""
    results: dict[int, Item] = {}
    asked: dict[int, Request] = {}

    def advance(number: int, answer: Any) -> None:
        try:
            asked[number] = cast(Request, solvers[number].send(answer))
        except StopIteration as stop:
            asked.pop(number, None)
            results[number] = stop.value

    for number in range(len(solvers)):
        advance(number, None)
    while asked:
        running = list(asked)
        answers = yield tuple(asked[number] for number in running)
        for number, answer in zip(running, answers, strict=True):
            advance(number, answer)
    return choose([results[number] for number in range(len(solvers))])
