"""A search as a plan of fits, and what became of each of them, as arrays over points, folds and tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from dmkl import progress
from dmkl._version import __version__
from dmkl.arrays import Array, Float, Index, plain_repr
from dmkl.errors import InputError
from dmkl.estimators.decisions import HeldOut, class_index
from dmkl.estimators.engine import least_lam, run
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.plan import Answers, Fit, FitOutcome, Plan
from dmkl.estimators.problems import labeled_targets
from dmkl.files.writing import lock
from dmkl.inputs.label_tables import matched
from dmkl.kernelset import KernelSet
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.fisher import Targets
from dmkl.passes.execute import temporary_files_in
from dmkl.searching.folds import Fold, OuterFold
from dmkl.searching.grid import CHAINS, LAM_TRACE, MOST_VARIATION, as_grid, diagonal_variation, lams_of, points
from dmkl.searching.scoring import Metric, as_metrics
from dmkl.solvers.outcome import Round, worst
from dmkl.solvers.workspace import Workspace, state_folder
from dmkl.stores import Kernels, as_kernel_set

__all__ = [
    "OF_TASKS",
    "GridFits",
    "Question",
    "as_grid_fits",
    "ask",
    "ask_once",
    "digest",
    "fit_grid",
    "fit_grids",
    "grid_fits",
    "per_task",
    "state_claimed",
    "working",
]


Made = TypeVar("Made", bound=Fold | OuterFold)
OF_TASKS = ("p", "lam", "C")
"""Parameters of which each task of one model may have its own."""
_FEW = 4096
"""Samples beyond which single precision resolves every λ of the papers, unless a few are far larger than the rest."""


@dataclass(frozen=True, eq=False)
class Question:
    """What is searched, checked."""

    estimator: KernelLearner
    K: KernelSet
    labels: Array
    tasks: Array | None
    targets: Targets
    grid: dict[str, tuple[Any, ...]]
    folds: list[Fold]
    """Those that choose: of an evaluation the inner ones of all outer folds, one after the other."""
    metrics: dict[str, Metric]
    groups: Array | None
    """The group of each row, which no fold splits."""
    asked: dict[str, Any]
    """Arguments that the folds and scores depend on: whether `y` was given, what groups are called, and the rest."""
    own_lams: Mapping[Any, tuple[float, ...]] = field(default_factory=dict)
    """The values of λ that are fitted after each chain of steps; all of the grid where a chain is not there."""

    @cached_property
    def fitted(self) -> npt.NDArray[np.bool_]:
        """(point,): whether a point of the grid is fitted, and its λ is not one of other chains alone."""
        pairs = [(point.get("lam"), point.get("steps")) for point in self._points]
        asked = [lam in self.own_lams.get(chain, (lam,)) for lam, chain in pairs]
        return np.array(asked)

    @cached_property
    def _points(self) -> list[dict[str, Any]]:
        return points(self.grid)

    @property
    def n_tasks(self) -> int:
        """Problems that choose for themselves."""
        return len(self.targets.problems)

    @property
    def name_ends(self) -> list[str]:
        """What the names of scores end in, one for each measure: nothing for the one that decides."""
        return ["" if k == 0 else f"_{name}" for k, name in enumerate(self.metrics)]

    @property
    def hint(self) -> str:
        """That another chain of steps may do better, where nobody has chosen one and the choice matters; else ""."""
        chain, tasks = self.estimator._steps(), self.targets.dim is not None
        if "steps" in self.grid or "lam" not in self.grid or chain != CHAINS[0] or tasks:
            return ""
        variation, both = diagonal_variation(self.K), ["+".join(each) for each in CHAINS]
        if variation <= MOST_VARIATION:
            return ""
        grid = {"p": None, "lam": None, "steps": both}
        return (
            f"Samples differ in k(x, x), by a coefficient of variation of up to {variation:.2g}: the steps {both[1]} "
            f"may do better; compare by grid={grid}, or --grid steps={','.join(both)}"
        )

    @cached_property
    def models(self) -> list[KernelLearner]:
        """The estimator at each point of the grid that is fitted."""
        return [clone(self.estimator).set_params(**self._points[at]) for at in np.flatnonzero(self.fitted)]

    @cached_property
    def by_class(self) -> list[str]:
        """Parameters of the grid that each class chooses for itself, by its own validation scores."""
        allowed = set.intersection(*(set(model._of_classes(self.targets.kind)) for model in self.models))
        return [
            name
            for name, values in self.grid.items()
            if name in allowed and len(values) > 1 and not any(isinstance(value, Mapping) for value in values)
        ]

    def relabeled(self, order: Index) -> Question:
        """The same question where row i has the label of row order[i]; see `KernelLearner._permuted`.

        It shares the models, whose copies and checks would take longer than all else where there are many.
        """
        with_covariates = [model for model in self.models if any(isinstance(s, Covariates) for s in model._steps())]
        labels = (with_covariates or self.models)[0]._permuted(self.labels, order, self.K.samples)
        found = replace(self, labels=labels, targets=self.estimator._targets(labels, len(labels), self.tasks))
        vars(found)["models"], vars(found)["fitted"] = self.models, self.fitted
        return found

    def targets_of(self, rows: Index) -> Targets:
        """What is learnt from some rows."""
        return self.estimator._targets(self.labels[rows], len(rows), self.tasks)

    def held_out(self, fold: int, scores: Float, targets: Targets) -> HeldOut:
        """The validation rows of a fold, from the scores of its held-out rows, (rows, columns) or (rows,)."""
        rows = self.folds[fold].validation
        index = class_index(targets.kind, targets.classes, self.labels[rows])
        return HeldOut(scores[: len(rows)].reshape(len(rows), -1), index)


def ask(
    what: str,
    estimator: KernelLearner,
    K: Kernels,
    y: Any,
    grid: Mapping[str, Any] | None,
    fold: Callable[..., list[Made]],
    *,
    scoring: Any,
    groups: Any,
    unknown: Any,
    refit: bool,
) -> tuple[Question, list[Made]]:
    """What is asked of a grid, checked, and its folds.

    Parameters
    ----------
    what, estimator, K, y, fold, scoring, groups, unknown
        As in `ask_once`.
    grid
        As in `dmkl.search`.
    refit
        Whether one model is to be fitted for all tasks at the points that they have chosen.

    Raises
    ------
    InputError
        If an argument breaks a rule.
    """

    def grid_of(targets: Targets) -> dict[str, tuple[Any, ...]]:
        return as_grid(grid, estimator, several=targets.dim is not None)

    question, folds = ask_once(
        what, estimator, K, y, fold, scoring=scoring, groups=groups, unknown=unknown, grid_of=grid_of
    )
    _check_tasks(question, what, refit=refit)
    default = "lam" in question.grid and (grid is None or grid["lam"] is None)
    return _with_own_lams(question, default=default), folds


def _with_own_lams(question: Question, *, default: bool) -> Question:
    """The question with the values of λ that each chain of steps has: the default ones of its own, if `default`.

    Of the papers' λ for unit trace those are kept that the stored precision resolves: on few samples it may not be all.
    That is known after a pass for all chains, which is made where samples are few and precision is low.
    """
    lams, chains = question.grid.get("lam"), question.grid.get("steps", (question.estimator._steps(),))
    if not default and lams != LAM_TRACE:
        return question
    own = {chain: lams_of(chain) if default else LAM_TRACE for chain in chains}
    if LAM_TRACE in own.values() and question.K.dtype != np.float64 and question.K.shape[1] <= _FEW:
        one_each = replace(question, grid={"steps": tuple(chains)})
        least = least_lam(Plan(question.K, grid_fits(one_each), duals=False))
        for k, chain in enumerate(chains):
            own[chain] = _resolved(question, chain, own[chain], max(least[k :: len(chains)]))
    every = tuple(sorted({lam for values in own.values() for lam in values}))
    own = {chain: values for chain, values in own.items() if values != every}
    return replace(question, grid=question.grid | {"lam": every}, own_lams=own)


def _resolved(question: Question, chain: Any, lams: tuple[float, ...], least: float) -> tuple[float, ...]:
    """The values of λ that the stored precision resolves."""
    left_out = ", ".join(f"{lam:g}" for lam in lams if lam < least)
    if left_out:
        after = f" after {'+'.join(map(str, chain))}" if "steps" in question.grid else ""
        progress.current().note(
            f"lam {left_out} left out{after}: on {question.K.shape[1]} samples {question.K.dtype} resolves λ from "
            f"{least:.1e} on"
        )
    return tuple(lam for lam in lams if lam >= least)


def ask_once(
    what: str,
    estimator: KernelLearner,
    K: Kernels,
    y: Any,
    fold: Callable[..., list[Made]],
    *,
    scoring: Any,
    groups: Any,
    unknown: Any,
    grid_of: Callable[[Targets], dict[str, tuple[Any, ...]]] | None = None,
) -> tuple[Question, list[Made]]:
    """What is asked of an estimator as it is, without a grid, checked, and its folds.

    Parameters
    ----------
    what
        Who asks, as messages say it.
    estimator, K, y, scoring, groups, unknown
        As in `dmkl.search`.
    fold
        Makes folds of labels and of what is known of the rows: `make_folds` or `nest_folds` with their first arguments.
    grid_of
        The grid for targets; none where None.

    Raises
    ------
    InputError
        If an argument breaks a rule.
    """
    K = as_kernel_set(K, what)
    if not K.is_square:
        _, rows, cols = K.shape
        msg = f"{what} needs the kernels of all samples among themselves, got {rows} rows and {cols} columns"
        raise InputError(msg)
    targets, tasks = labeled_targets(estimator, K, y, what, unknown)
    values = {} if grid_of is None else grid_of(targets)
    metrics = as_metrics(scoring, targets.kind)
    known = None if groups is None else matched("groups", groups, K.samples, named=K.view.has_names).values
    if known is not None and len(known) > 1 and len(set(known.tolist())) == len(known):
        msg = (
            f"{what} needs groups of several samples, and each of the {len(known)} samples has a group of its own: "
            "were names taken for groups? Name the column of the groups (FILE:NAME), or leave groups out"
        )
        raise InputError(msg)
    folds = fold(targets.labels, splits=K.splits, groups=known, samples=K.samples, classes=targets.kind != "regression")
    choosing = [one for each in folds for one in (each.inner if isinstance(each, OuterFold) else [each])]
    asked = {"y": y is not None, "scoring": scoring, "unknown": unknown}
    asked["groups"] = None if groups is None else str(getattr(groups, "name", None) or "given")
    return Question(clone(estimator), K, targets.labels, tasks, targets, values, choosing, metrics, known, asked), folds


def _check_tasks(question: Question, what: str, *, refit: bool) -> None:
    """Refuse what tasks cannot choose each for itself, by InputError."""
    for name in OF_TASKS:
        own = getattr(question.estimator, name, 0.0)
        if np.ndim(own):
            msg = f"{what} takes an estimator with one {name} for all tasks, got {plain_repr(own)}; give one number"
            raise InputError(msg)
    others = [name for name in question.grid if name not in OF_TASKS]
    if refit and question.targets.dim is not None and others:
        instead = "search with refit=False, or over p, lam and C" if what == "search" else "take p, lam and C"
        msg = (
            f"the {question.targets.dim}s of a problem choose each for themselves, and one model has one "
            f"{', '.join(others)} for all; {instead}"
        )
        raise InputError(msg)


@dataclass
class GridFits:
    """What became of every point, as arrays over (point, fold, task), and what it took.

    Parameters
    ----------
    weights
        (point, fold, task, kernel); NaN where a point was not fitted.
    gap, objective, status
        (point, fold, task); `status` is a place in `WORDS`, −1 where a point was not fitted.
    decisions
        Scores of the held-out rows of each fold at each point that was fitted, (rows,) or (rows, classes or tasks).
    decided
        What their labels are read from, by the rule of each fit: for each fold (fitted point, rows) or (fitted point,
        rows, classes or tasks).
    targets
        What each fold has learnt.
    n_passes, rounds, phases, solver
        Passes, what each was for, where the time went (seconds by phase), and who solved.
    """

    weights: Float
    gap: Float
    objective: Float
    status: npt.NDArray[np.int8]
    decisions: list[list[Float]]
    decided: list[Float]
    targets: list[Targets]
    n_passes: float
    rounds: Sequence[Round]
    phases: Mapping[str, float]
    solver: str

    def of_folds(self, first: int, n: int) -> GridFits:
        """What became of every point on some folds, in passes that they may have shared with others."""
        some = slice(first, first + n)
        return replace(
            self,
            weights=self.weights[:, some],
            gap=self.gap[:, some],
            objective=self.objective[:, some],
            status=self.status[:, some],
            decisions=self.decisions[some],
            decided=self.decided[some],
            targets=self.targets[some],
        )


def fit_grid(question: Question, state: str | Path | None) -> GridFits:
    """Fit every point of the grid on every fold, in passes that all of them share.

    Parameters
    ----------
    state
        Where the state is kept; temporary where None.
    """
    with working(question, state) as workspace:
        (found,) = fit_grids([question], workspace)
    return found


def fit_grids(questions: Sequence[Question], workspace: Workspace) -> Iterator[GridFits]:
    """Fit every point of several grids on every fold, of questions on the same kernels that differ in their labels.

    All of them share passes: those of each are those of all. What each has decided is computed when it is asked for.
    """
    rows = [grid_fits(question) for question in questions]
    answers = run(Plan(questions[0].K, [fit for some in rows for fit in some], duals=False), workspace)
    found = iter(answers.fits)
    return (
        as_grid_fits(question, replace(answers, fits=[next(found) for _ in some]))
        for question, some in zip(questions, rows, strict=True)
    )


@contextmanager
def state_claimed(state: str | Path | None) -> Iterator[Path | None]:
    """Keep the folder of a state to this process, and put temporary files into it; nothing where None."""
    folder = None if state is None else state_folder(state)
    with nullcontext() if folder is None else lock(folder), temporary_files_in(folder):
        yield folder


@contextmanager
def working(
    question: Question, state: str | Path | None, asked: Mapping[str, str] | None = None
) -> Iterator[Workspace]:
    """The workspace of what is asked, kept to this process while it is open.

    Parameters
    ----------
    state
        Its folder; temporary where None.
    asked
        What is asked beside the search, in words: with other answers to it, the work is another.
    """
    with state_claimed(state) as folder:
        known = {} if folder is None else identity(question) | dict(asked or {})
        defaults = type(question.estimator)()._parameter_texts(question.K.names)
        unsaid = {f"parameter {name}": text for name, text in defaults.items()}
        workspace = Workspace(folder, known, unsaid=unsaid)
        if folder is not None:
            workspace.remove_temporary()
        try:
            yield workspace
        finally:
            workspace.close()


def grid_fits(question: Question, targets: Sequence[Targets] | None = None, kernels: Index | None = None) -> list[Fit]:
    """The rows of a plan: every point of the grid on every fold, fold by fold.

    Parameters
    ----------
    targets
        What each fold learns, where other rows learn the same: rows that share the object share spaces and solutions.
    kernels
        Positions of the kernels that may have weight; all where None.
    """
    targets = [question.targets_of(fold.train) for fold in question.folds] if targets is None else targets
    fits = []
    for fold, learnt in zip(question.folds, targets, strict=True):
        held_out = np.concatenate([fold.validation, fold.test])
        title = f"{fold.title}: "
        fits += [
            Fit(model, fold.train, learnt, question.tasks, held_out, kernels, title=title) for model in question.models
        ]
    return fits


def as_grid_fits(question: Question, answers: Answers) -> GridFits:
    """The answers to the rows of `grid_fits`, as arrays."""
    n_points = len(question.models)
    of_folds = [answers.fits[first : first + n_points] for first in range(0, len(answers.fits), n_points)]
    told = per_task(answers.fits, len(question.K), question.n_tasks)
    of_points = (each.reshape(-1, n_points, *each.shape[1:]).swapaxes(0, 1) for each in told)
    weights, gap, objective, status = (_at_points(question, each) for each in of_points)
    return GridFits(
        weights,
        gap,
        objective,
        np.where(np.isnan(status), -1, status).astype(np.int8),
        [[one.decision for one in some] for some in of_folds],
        [np.stack(some[0].data.fit.learner._decide(some)) for some in of_folds],
        [some[0].data.fit.targets for some in of_folds],
        answers.tally.n_passes,
        answers.tally.rounds,
        answers.tally.phases,
        ", ".join(dict.fromkeys(found.solver or "own" for found in answers.fits)),
    )


def _at_points(question: Question, values: Array) -> Float:
    """(fitted point, …) as (point, …), NaN where a point was not fitted."""
    found = np.full((len(question.fitted), *values.shape[1:]), np.nan)
    found[question.fitted] = values
    return found


def per_task(found: Sequence[FitOutcome], n_kernels: int, n_tasks: int) -> tuple[Array, Array, Array, Array]:
    """Weights (fit, task, kernel), gap, objective and status (fit, task).

    Problems that are not tasks (classes, pairs) are one point together: they choose together.
    """
    # All at once: a permutation test has tens of thousands.
    outcomes = [outcome for one in found for outcome in one.outcomes]
    weights = np.array([_by_kernel(outcome.weights, n_kernels) for outcome in outcomes])
    gap = np.array([outcome.gap for outcome in outcomes])
    objective = np.array([outcome.objective for outcome in outcomes])
    status = np.array([outcome.status.code for outcome in outcomes])
    counts = [len(one.outcomes) for one in found]
    if counts == [n_tasks] * len(found):
        gap, objective, status = (each.reshape(-1, n_tasks) for each in (gap, objective, status))
        return weights.reshape(-1, n_tasks, n_kernels), gap, objective, status
    first = np.cumsum([0, *counts[:-1]])
    places = [start + worst(one.outcomes) for start, one in zip(first, found, strict=True)]
    mean = np.add.reduceat(weights, first) / np.array(counts)[:, None]
    gaps, sums = np.maximum.reduceat(gap, first), np.add.reduceat(objective, first)
    return mean[:, None], gaps[:, None], sums[:, None], status[places][:, None]


def _by_kernel(weights: Float, n_kernels: int) -> Float:
    """One weight a kernel: the mean over groups of samples; the one of a product of all stands for each."""
    plain = weights.mean(axis=1) if weights.ndim == 2 else weights
    return plain if len(plain) == n_kernels else np.full(n_kernels, plain[0])


# --- what makes a search another one -------------------------------------------------------------------------------

_POLICY = ("max_iter",)
"""Parameters that decide where a search ends, not what it computes: they may change when it goes on."""


def identity(question: Question) -> dict[str, str]:
    """What makes a search another one, in words where people can tell the difference."""
    model, K, view = question.estimator, question.K, question.K.view
    asked = [array for step in view.steps for array in step.arrays().values()]
    folds: list[Array] = [part for fold in question.folds for part in (fold.train, fold.validation, fold.test)]
    folds += [fold.counts for fold in question.folds if fold.counts is not None]
    return {
        "dmkl": __version__,
        "the kernels' content": K.content_id,
        "the kernels chosen": ", ".join(K.names),
        "the samples": digest(*view.final_positions(), view.rows, view.cols, *asked),
        "the steps before": repr([step.name for step in view.steps]),
        "the labels": digest(np.array(json.dumps(question.labels.astype(str).tolist()).encode())),
        "the folds": digest(*folds),
        "the grid": json.dumps({name: [repr(value) for value in values] for name, values in question.grid.items()}),
        "the estimator": type(model).__name__,
        **({"the λ of each chain": repr(dict(question.own_lams))} if question.own_lams else {}),
    } | {f"parameter {name}": text for name, text in model._parameter_texts(K.names).items() if name not in _POLICY}


def digest(*arrays: Array) -> str:
    """What tells arrays from others, in few letters."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(repr(array.shape).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]
