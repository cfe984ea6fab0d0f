"""Problems and the solvers for them: the layer between learners and solvers.

A learner turns a training set into jobs, one for each independent problem, and names the method that solves them. All
jobs with equal methods, from any fit or fold, are given to the method together and share its passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import numpy as np

from dmkl import progress, settings
from dmkl.arrays import Float, Index, Mask
from dmkl.errors import ConstantKernelWarning, DegenerateKernelError, InputError, MemoryBudgetError, warn
from dmkl.numerics.semidefinite import KernelFacts
from dmkl.passes.view import Lens
from dmkl.progress import Tally
from dmkl.solvers.driver import drive
from dmkl.solvers.interface import Outcome, Request, Solver, Translated, spread
from dmkl.solvers.workspace import Workspace

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Training:
    """The kernels of one training set, with the rows whose scores are wanted."""

    square: Lens  # K[train, train] with its statistics
    whole: Lens  # K[train then held out, train] with the same statistics; `square` if nothing is held out
    names: tuple[str, ...] = ()  # of the kernels, for messages
    title: str = ""  # for messages, for example a fold

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
        """The properties of the kernels that solvers use for their checks."""
        # Centering removed entries of size `removed`; their rounding error remains in the centered kernel, so the
        # trace before centering bounds the error.
        traces = np.abs(self.square.diagonal()).sum(axis=1) + self.n_train * self.square.fitted.removed()
        return KernelFacts(self.names, traces, float(np.finfo(self.square.view.source.dtype).eps))

    @cached_property
    def constant(self) -> Mask:
        """Which kernels are zero after the steps, up to the rounding error of what centering removed, (n,).

        An indefinite kernel with zeros on the diagonal alone is not.
        """
        facts = self.facts
        assert facts.traces is not None
        removed = self.n_train * self.square.fitted.removed()
        return np.asarray(facts.traces - removed <= _RESOLVED * facts.precision * removed)

    @cached_property
    def held_out(self) -> Lens:
        """K[held out, train] with the statistics of the training rows."""
        return self.whole.rows(np.arange(self.n_train, self.n_rows))


_RESOLVED = 32  # Multiple of the stored precision that centered entries must exceed, as for steps that normalize.


def check_constant(training: Training, constant: Mask) -> None:
    """Raise DegenerateKernelError if all kernels of a training set are constant over its samples."""
    if constant.all():
        msg = (
            f"{training.title}all kernels ({len(constant):,}, {training.names[0]!r} first) are constant or zero over "
            "the training samples, or covariates explain them, so that there is nothing to learn from: after the steps "
            "they are zero. Give other kernels or other steps"
        )
        raise DegenerateKernelError(msg)


def tell_constant(constant: Mapping[Training, Mask]) -> None:
    """Warn of kernels that are constant over the samples of training sets, (n,) each."""
    found = Counter(training.names[j] for training, mask in constant.items() for j in np.flatnonzero(mask).tolist())
    if found:
        shown = ", ".join(map(repr, list(found)[:3])) + (" …" if len(found) > 3 else "")
        where = f" of {max(found.values())} of {len(constant)} training sets" if len(constant) > 1 else ""
        msg = (
            f"{len(found):,} of the kernels ({shown}) are constant or zero over the training samples{where}, or "
            "covariates explain them: there they get weight zero. Leave them out with select()"
        )
        warn(msg, ConstantKernelWarning)


@dataclass(frozen=True, eq=False)
class Job:
    """One problem to solve, in the form that its method takes: for `SideBySide`, a function that makes a solver."""

    training: Training
    problem: Any
    kernels: Index | None = None  # positions of those that may have weight; None for all
    rows: Index | None = None  # positions of the training rows of the problem, for solvers that take a subset

    def adapted(self, solver: Solver[Outcome]) -> Solver[Outcome]:
        """A solver of this problem on its kernels and rows, as a solver on all of them, with zeros elsewhere."""
        if self.rows is not None:
            rows, n_samples = self.rows, self.training.n_train
            solver = _translated(solver, lambda request: request.on_rows(rows, n_samples))
        if self.kernels is not None:
            solver = on_kernels(solver, self.kernels, self.training.n_kernels)
        outcome = yield from solver
        if self.rows is not None and outcome.dual is not None:
            outcome = replace(outcome, dual=spread(outcome.dual, self.rows, self.training.n_train))
        return outcome

    def spread(self, weights: Float) -> Float:
        """Weights of its kernels as weights of all, with zeros elsewhere."""
        return weights if self.kernels is None else spread(weights, self.kernels, self.training.n_kernels)

    @property
    def kernels_key(self) -> tuple[int, bytes]:
        """Key of the kernels of a training set that the job has."""
        return id(self.training), b"" if self.kernels is None else self.kernels.tobytes()

    @property
    def n_kernels(self) -> int:
        """Kernels that may have weight."""
        return self.training.n_kernels if self.kernels is None else len(self.kernels)

    @property
    def facts(self) -> KernelFacts:
        """The properties of the kernels that may have weight."""
        return self.training.facts.select(self.kernels)


def can_solve(check: Callable[[Sequence[Job]], None], jobs: Sequence[Job]) -> bool:
    """Whether the check of a solver accepts these jobs."""
    try:
        check(jobs)
    except (InputError, MemoryBudgetError):
        return False
    return True


@dataclass(eq=False)
class Context:
    """The objects that a method works with, in addition to its jobs."""

    workspace: Workspace  # the folder of the checkpoint
    tally: Tally = field(default_factory=Tally)  # counts the passes
    duals: bool = True  # whether dual variables are wanted, and not only scores of held-out rows
    solver: str | None = None  # the name of the solver that was used, which the method sets for reports

    def drive(
        self,
        jobs: Sequence[Job],
        solver_of: Callable[[Job], Solver[Outcome]],
        *,
        at_once: int | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[Outcome]:
        """Run a solver for each job, side by side; outcomes of an earlier run of the same plan are read from disk.

        If the jobs are some of a method's jobs, `numbers` are their positions among all of them.
        """
        numbers = range(len(jobs)) if numbers is None else numbers
        outcomes = [self.workspace.outcome(number) for number in numbers]
        missing = [place for place, outcome in enumerate(outcomes) if outcome is None]
        watch = progress.current()

        def keep(position: int, outcome: Outcome) -> None:
            outcomes[missing[position]] = outcome
            # Written at once, so that an interrupted plan repeats only the problems that were running.
            self.workspace.keep_outcome(numbers[missing[position]], outcome)
            watch.solved(1)

        if len(missing) < len(jobs):
            watch.solved(len(jobs) - len(missing))
        running = [(jobs[k].training.square, jobs[k].adapted(solver_of(jobs[k]))) for k in missing]
        drive(running, at_once=at_once, tally=self.tally, done=keep, after_round=self.workspace.sync)
        return [outcome for outcome in outcomes if outcome is not None]


class Method(Protocol):
    """Solves jobs together. Methods that compare equal are given their jobs in one call."""

    def check(self, jobs: Sequence[Job]) -> None:
        """Reject jobs that cannot be solved, before any long computation, by InputError or MemoryBudgetError."""
        return

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        """The outcomes of the jobs, in order."""

    def factored(
        self, jobs: Sequence[Job], outcomes: Sequence[Outcome], numbers: Sequence[int], context: Context
    ) -> list[Outcome]:
        """The outcomes, those with these numbers with `Outcome.inverse` from a factor, the first ones if many."""
        return list(outcomes)

    def needs_folder(self, *, n_points: int) -> bool:
        """Whether it certainly writes files that all workers must be able to read.

        `n_points` is the largest number of points at which a target is learned. If the answer depends on more than
        that, the solver checks its folder itself.
        """
        return False


@dataclass(frozen=True)
class SideBySide(Method):
    """Each problem has its own solver; the running solvers share passes, of which each uses `width` columns."""

    width: int = 1
    files: bool = False  # Whether requests are answered through files: those of machines

    def solve(self, jobs: Sequence[Job], context: Context) -> list[Outcome]:
        return self._in_passes(jobs, context)

    def needs_folder(self, *, n_points: int) -> bool:
        return self.files

    def _in_passes(self, jobs: Sequence[Job], context: Context, numbers: Sequence[int] | None = None) -> list[Outcome]:
        # At most as many at once as fit in one pass: more would make each round two passes.
        at_once = max(1, settings.block_width() // self.width)
        return context.drive(jobs, lambda job: job.problem(), at_once=at_once, numbers=numbers)


# --- solvers of parts ----------------------------------------------------------------------------------------------


def _translated(solver: Solver[Outcome], translate: Callable[[Request], Translated]) -> Solver[Outcome]:
    """A solver whose requests are replaced by those of `translate`, and whose answers are translated back."""
    answer: Any = None
    while True:
        try:
            request = solver.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if isinstance(request, tuple):
            pairs = list(map(translate, request))
            answers = yield tuple(asked for asked, _ in pairs)
            answer = [back(of_one) for (_, back), of_one in zip(pairs, answers, strict=True)]
        else:
            asked, back = translate(request)
            answer = back((yield asked))


def on_kernels(solver: Solver[Outcome], kernels: Index, n_kernels: int) -> Solver[Outcome]:
    """A solver of a problem on the kernels at some positions, as a solver on all of them, with zeros elsewhere."""
    outcome = yield from _translated(solver, lambda request: request.on_kernels(kernels, n_kernels))
    over_all = partial(spread, places=kernels, size=n_kernels)
    steps = [s if s.weights is None else replace(s, weights=over_all(s.weights)) for s in outcome.steps]
    return replace(outcome, weights=over_all(outcome.weights), steps=steps)


def together(solvers: Sequence[Generator[Any, Any, Item]]) -> Generator[tuple[Any, ...], Any, list[Item]]:
    """Several solvers, run side by side as one solver, which returns their results in order."""
    results: dict[int, Item] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(solvers)))
    while answers:
        requests: dict[int, Any] = {}
        for number, answer in answers.items():
            try:
                requests[number] = solvers[number].send(answer)
            except StopIteration as stop:
                results[number] = stop.value
        # One tuple for all solvers, so that the driver answers them in one pass.
        answers = dict(zip(requests, (yield tuple(requests.values())), strict=True)) if requests else {}
    return [results[number] for number in range(len(solvers))]
