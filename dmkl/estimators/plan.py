"""Plans, which are tables of fits; the hooks of learners that a plan calls; and the outcomes.

A row names the training rows and the held-out rows of the kernels, the targets, the kernels that may have weight, and a
learner with its steps and its point (p, λ; C; …). A single fit is a plan of one row; a search is grid × folds; refits,
nested cross-validation, permuted labels, resampled rows and left-out kernels are plans too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.estimators.problems import Multiclass, Problems, ScoreFunction
from dmkl.kernelset import KernelSet
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.fisher import Targets
from dmkl.passes.view import Lens
from dmkl.solvers.driver import Tally
from dmkl.solvers.jobs import Job, Method, SideBySide, Training
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import CombinedProduct, Solver
from dmkl.solvers.semidefinite import KernelFacts

__all__ = ["Answers", "Fit", "FitOutcome", "Learner", "Part", "Plan", "Preparation", "TrainingSet", "score_function"]


@dataclass(frozen=True, eq=False)
class Fit:
    """One row of a plan.

    Parameters
    ----------
    learner
        The learner to fit, with the point and the steps. It is not changed.
    train
        Positions of the training rows.
    targets
        Their targets. Rows with the same targets share the object.
    tasks
        Names of the tasks of a multilabel problem.
    held_out
        Positions of the rows to score.
    kernels
        Positions of the kernels that may have weight; all where None.
    starts
        Initial weights of all kernels, one vector for each problem, for learners that use them.
    title
        Name of the training set in messages, such as a fold.
    sample_weight
        (m,), weights of the training rows, for learners that use them; equal where None.
    nested
        The result of the nested rows.
    """

    learner: Learner
    train: Index
    targets: Targets
    tasks: Array | None = None
    held_out: Index = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kernels: Index | None = None
    starts: Sequence[Float] | None = None
    title: str = ""
    sample_weight: Float | None = None
    nested: Any = None


@dataclass(frozen=True, eq=False)
class Plan:
    """Fits on the same kernels.

    Parameters
    ----------
    K
        The kernels of all samples among themselves.
    fits
        The rows.
    duals
        Whether dual variables are returned. Without them outcomes take less memory: scores of held-out rows, and the
        values that decision rules are learnt from.
    """

    K: KernelSet
    fits: Sequence[Fit]
    duals: bool = True


class Part(NamedTuple):
    """The problems of a fit that have the same samples.

    Parameters
    ----------
    training
        The kernels over these samples.
    members
        Numbers of the problems.
    rows
        Positions of the samples among the training rows of the fit; all where None.
    """

    training: Training
    members: Index
    rows: Index | None


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """The training set of a row, from which a learner makes jobs.

    Parameters
    ----------
    kernels
        K[train, train], without the learner's steps.
    new
        K[held out, train], without them.
    trainings
        The kernels of each problem after the steps. Problems with labels of the same samples share the object.
    problems
        The problems.
    fit
        The row of the plan.
    given
        Names of the kernels of the plan, from which `kernels` are made.
    """

    kernels: KernelSet
    new: KernelSet
    trainings: tuple[Training, ...]
    problems: Problems
    fit: Fit
    given: tuple[str, ...]

    @property
    def training(self) -> Training:
        """The kernels after the steps, if all problems share them."""
        return self.trainings[0]

    @property
    def parts(self) -> list[Part]:
        """The problems by their samples."""
        labeled = self.problems.labeled
        members: dict[int, list[int]] = {}
        for number, training in enumerate(self.trainings):
            members.setdefault(id(training), []).append(number)
        return [
            Part(self.trainings[numbers[0]], np.array(numbers), labeled[numbers[0]]) for numbers in members.values()
        ]

    @property
    def facts(self) -> KernelFacts:
        """Facts about the kernels that may have weight."""
        return self.training.facts.select(self.fit.kernels)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kernels that may have weight."""
        return self.facts.names

    @property
    def n_kernels(self) -> int:
        """Number of kernels that may have weight."""
        return len(self.names)

    def jobs(self, problem_of: Callable[[int], Any]) -> list[Job]:
        """A job for each problem, which `problem_of` makes from its number."""
        return [
            Job(training, problem_of(k), self.fit.kernels, rows)
            for k, (training, rows) in enumerate(zip(self.trainings, self.problems.rows, strict=True))
        ]

    def start(self, number: int) -> Float | None:
        """Initial weights of a problem, for the kernels that may have weight."""
        if self.fit.starts is None or self.training.names != self.given:
            return None  # the weights belong to other kernels
        start = self.fit.starts[number]
        return start if self.fit.kernels is None else start[self.fit.kernels]


class Preparation(NamedTuple):
    """Work that several fits on one training set share.

    Parameters
    ----------
    key
        The parameters that it depends on: equal keys on equal training sets are done once.
    solver
        Asks for passes, and returns the result.
    """

    key: Hashable
    solver: Solver[Any]


@dataclass(frozen=True, eq=False)
class FitOutcome:
    """The outcome of one row.

    Parameters
    ----------
    data
        The training set.
    outcomes
        One for each problem; dual variables are over all training rows, zero where a label is unknown.
    scores
        Scores of the held-out rows, (rows, classes or tasks); one column for two classes.
    prepared
        The result of the preparation.
    solver
        Name of the solver.
    n_passes
        Passes of the plan, which all rows share.
    n_prepared
        Passes among them for the preparations.
    """

    data: TrainingSet
    outcomes: Sequence[Outcome]
    scores: Float
    prepared: Any
    solver: str | None
    n_passes: float
    n_prepared: float

    @property
    def decision(self) -> Float:
        """The scores as `decision_function` gives them: (rows,) for two classes."""
        return self.scores[:, 0] if self.data.problems.targets.one_column else self.scores

    @property
    def decided(self) -> Float:
        """The decision values of the held-out rows, by the decision rule of the learner after this fit."""
        return self.data.fit.learner._decide([self])[0]

    @property
    def score_function(self) -> ScoreFunction:
        """The score function of all problems, side by side."""
        return score_function(self.outcomes, self.data.problems)


@dataclass(frozen=True, eq=False)
class Answers:
    """The outcomes of a plan, one for each row, and the passes that they took together."""

    fits: Sequence[FitOutcome]
    tally: Tally


class Learner:
    """The hooks that the engine calls, each with the default for learners that do not need it."""

    multiclass: Multiclass = "ovr"
    """How several classes become binary problems."""
    _DECIDES = False
    """Whether labels follow a decision rule that is learnt from the training rows, which takes dual variables."""
    _TAKES_WEIGHTS = False
    """Whether samples may have weights."""

    # --- before the first pass -----------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Refuse parameters that break a rule, by InputError."""

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        """Refuse kernels and labels that do not go with the parameters, by InputError."""

    def _check_weights(self) -> None:
        """Refuse weights of samples if the learner has no use for them, by InputError."""
        if not self._TAKES_WEIGHTS:
            msg = f"{type(self).__name__} does not weigh samples; leave sample_weight out"
            raise InputError(msg)

    def _nested(self, fit: Fit, K: KernelSet) -> Sequence[Fit]:
        """Rows that are fitted first, because this row depends on their outcomes."""
        return ()

    def _apply_nested(self, fit: Fit, outcomes: Sequence[FitOutcome]) -> Fit:
        """The row that follows from the outcomes of its nested rows."""
        return fit

    # --- kernels and problems ------------------------------------------------------------------------------------

    def _source(self, K: KernelSet) -> KernelSet:
        """The kernels that are learnt from, made of those that are given."""
        return K

    def _steps(self) -> tuple[str | Covariates, ...]:
        """The preprocessing steps."""
        raise NotImplementedError

    def _with_steps(self, K: KernelSet, weights: Float | None = None) -> KernelSet:
        """The kernels with the steps, not measured: D^{1/2}KD^{1/2} if training samples have weights d."""
        raise NotImplementedError

    def _weighted(self, targets: Targets, sample_weight: Float | None = None) -> Targets:
        """The targets with weights of samples, if statistics and targets depend on them."""
        return targets

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        """The independent problems."""
        raise NotImplementedError

    def _least_lam(self, lens: Lens) -> float:
        """The least λ that the stored precision of the kernels resolves; 0 for learners without λ."""
        return 0.0

    # --- solving -------------------------------------------------------------------------------------------------

    def _preparation(self, data: TrainingSet) -> Preparation | None:
        """Work that fits on this training set have in common, by the parameters that it depends on."""
        return None

    def _method(self) -> Method:
        """The solver of the jobs. Jobs of equal methods are solved together."""
        return SideBySide()

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        """A job for each problem."""
        raise NotImplementedError

    # --- held-out rows -------------------------------------------------------------------------------------------

    def _scores(self, function: ScoreFunction, new: KernelSet, prepared: Any) -> Solver[Float]:
        """Scores of new rows, (rows, classes or tasks), by products with the kernels of new rows."""
        scores: Float = (yield CombinedProduct(function.dual, function.weights, exact=True)) + function.bias
        return scores

    def _decide(self, outcomes: Sequence[FitOutcome]) -> list[Float]:
        """Decision values of the held-out rows of each fit, in the shape of its scores.

        The fits are of learners of one class, on the same training rows.
        """
        return [outcome.decision for outcome in outcomes]


def score_function(outcomes: Sequence[Outcome], problems: Problems) -> ScoreFunction:
    """The score function of all problems, side by side."""
    widths = [_dual(outcome).shape[1] for outcome in outcomes]
    weights = np.stack([outcome.weights for outcome in outcomes], axis=-1)
    bias = [
        np.broadcast_to(outcome.bias, (*np.shape(outcome.bias)[:-1], width))
        for outcome, width in zip(outcomes, widths, strict=True)
    ]
    return ScoreFunction(
        np.repeat(weights, widths, axis=-1),
        np.concatenate([_dual(outcome) for outcome in outcomes], axis=1),
        np.concatenate(bias, axis=-1),
        problems.columns[0],
    )


def _dual(outcome: Outcome) -> Float:
    if outcome.dual is None:
        msg = "the plan kept scores alone; run it with duals=True for dual variables"
        raise ValueError(msg)
    return outcome.dual
