"""Plans, which are tables of fits; the problems of learners that a plan needs; and the outcomes.

A row names the training rows and the held-out rows of the kernels, the targets, the kernels that may have weight, and a
learner with its steps and its point (p, λ; C; …). A single fit is a plan of one row; a search is grid × folds; refits,
nested cross-validation, permuted labels, resampled rows and left-out kernels are plans too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.class_weight import compute_sample_weight

from dmkl.arrays import Array, Float, Index, by_key, is_known, plain_repr
from dmkl.errors import LabelWarning, refuse, warn
from dmkl.inputs.labels import single_samples
from dmkl.kernelset import KernelSet, given_labels
from dmkl.learners.checks import by_name, check_is_learner
from dmkl.numerics.fisher import Targets, encode_targets, with_unknown
from dmkl.numerics.semidefinite import KernelFacts
from dmkl.numerics.steps import FittedStep
from dmkl.progress import Tally
from dmkl.solvers.interface import Outcome
from dmkl.solvers.jobs import Job, Training

if TYPE_CHECKING:
    from dmkl.learners.learner import KernelLearner

# --- problems ---------------------------------------------------------------------------------------------------------


def labeled_targets(
    learner: Any,
    K: KernelSet,
    y: npt.ArrayLike | None,
    purpose: str,
    unknown: Any = None,
    kept: Index | None = None,
) -> tuple[Targets, Array | None]:
    """The targets of a learner on square kernels, and the names of the tasks or targets; `unknown` is a code of labels.

    Those of the rows that are `kept`, of all where None. InputError if `K` is not square, or there are no labels.
    """
    check_is_learner(learner, purpose)
    if not K.is_square:
        _, rows, cols = K.shape
        refuse(f"{purpose} needs the training kernels, K[train, train], got {rows} rows and {cols} columns that differ")
    if not learner.traits.needs_labels:
        if purpose != "fit":
            refuse(f"{type(learner).__name__} learns without labels, which {purpose} compares with; take fit")
        return learner._targets((), K.shape[1] if kept is None else len(kept), None), None
    labels, tasks = given_labels(K, y)
    if labels is None:
        refuse(f"{purpose} needs labels: give y, or store them with the kernels (labels=, --labels)")
    values, samples = with_unknown(labels, unknown), K.samples
    if kept is not None and np.shape(values)[:1] == samples.shape:  # other shapes are refused
        values, samples = np.asarray(values)[kept], samples[kept]
    targets = learner._targets(values, len(samples), tasks)
    single = None if targets.kind == "regression" else single_samples(targets.labels, samples)
    if single is not None:
        warn(f"{purpose}: {single}. Has a line of a file been read as a label by mistake?", LabelWarning)
    return targets, tasks if targets.labels.ndim > 1 else None


def tell_new_classes(truth: Array, classes: Array) -> None:
    """Warn if true labels have classes that the model has not learnt, which it can only get wrong."""
    learnt = set(classes.astype(str).tolist())
    new = Counter(name for name in truth.astype(str).tolist() if name not in learnt)
    if new:
        listed = ", ".join(f"{name!r} ({n})" for name, n in new.most_common(3)) + (" …" if len(new) > 3 else "")
        listed_classes = ", ".join(map(repr, sorted(learnt)[:5])) + (" …" if len(learnt) > 5 else "")
        message = (
            f"{new.total()} of the {len(truth)} samples have a class that the model has not learnt, {listed}, and "
            f"count as wrong; it knows {listed_classes}. Train it on samples of that class, or leave them out"
        )
        warn(message, LabelWarning)


ClassWeight = Mapping[Any, float] | Literal["balanced"] | None


def total_sample_weights(
    targets: Targets, sample_weight: Float | None, class_weight: ClassWeight
) -> list[Float] | None:
    """The weight of each sample times that of its class, (m,), for each task, or once; None if there are neither.

    InputError if `class_weight` is not "balanced", a positive weight for each of some classes, or None.
    """
    class_weight = by_name(class_weight)
    if class_weight is None:
        return None if sample_weight is None else [sample_weight] * (1 if targets.dim is None else len(targets.rows))
    labels = targets.labels if targets.kind == "multilabel" else targets.labels[:, None]
    if isinstance(class_weight, Mapping):
        strange = [label for label in class_weight if label not in targets.classes.tolist()]
        if strange or not all(np.isfinite(w) and w > 0 for w in class_weight.values()):
            problem = (
                f"has weights for {plain_repr(strange)}" if strange else "has weights that are not positive and finite"
            )
            refuse(f"class_weight maps classes, {targets.classes.tolist()}, to positive weights; {problem}")
    elif class_weight != "balanced":
        refuse(f"class_weight must be 'balanced', a weight for each class, or None, got {plain_repr(class_weight)}")
    weight = dict(class_weight) if isinstance(class_weight, Mapping) else class_weight
    weights = np.ones(labels.shape)
    for column, column_weights in zip(labels.T, weights.T, strict=True):
        is_labeled = is_known(column)
        column_weights[is_labeled] = compute_sample_weight(weight, column[is_labeled])
    return list(weights.T if sample_weight is None else weights.T * sample_weight)


Multiclass = Literal["ovr", "ovo"]
Sharing = Literal["classes", "none"]
Loss = Literal["hinge", "square"]


@dataclass(frozen=True, eq=False)
class Problems:
    """Labels as independent problems.

    `names` label the problems along `dim`: "task", "target", "class" (one class against the rest) or "pair" (one class
    against another); None for a single problem. `columns` are the dimension and the labels of the columns of all dual
    variables side by side. `h` are the targets H of each problem, (m, c), or D^{1/2}H if samples have weights; or signs
    1 and −1, (m,). `rows` are the samples of each problem, as positions among its labeled samples; all where None.
    """

    targets: Targets
    dim: str | None
    names: Array
    columns: tuple[str, Array]
    h: tuple[Float, ...]
    rows: tuple[Index | None, ...]

    def __len__(self) -> int:
        return len(self.h)

    @cached_property
    def computed(self) -> dict[Hashable, Any]:
        """Cache of values that learners compute once for all fits of a plan."""
        return {}

    def title(self, number: int) -> str:
        """Name of a problem in messages; empty if there is only one."""
        return "" if self.dim is None else f"{self.names[number]}: "

    @property
    def labeled(self) -> tuple[Index | None, ...]:
        """The samples of each problem whose labels are known; all where None."""
        return (None,) * len(self) if self.targets.all_known else self.targets.rows

    @property
    def weights(self) -> tuple[Float | None, ...]:
        """Weights of the samples of each problem, if its kernels and targets depend on them; one where None."""
        weights = self.targets.weights
        # Classes with weights of their own are several problems on one set of labels.
        return (None,) * len(self) if weights is None else tuple(weights) * (len(self) // len(weights))

    @classmethod
    def of_outputs(cls, targets: Targets, names: Array | None, h: tuple[Float, ...]) -> Self:
        """A problem for each target of a regression or task of a multilabel set, numbered where names are missing."""
        names = np.array([str(name) for name in (range(len(h)) if names is None else names)])
        return cls(targets, targets.dim, names, (targets.dim or "target", names), h, (None,) * len(h))

    @classmethod
    def of_classes(cls, targets: Targets, tasks: Array | None, sharing: Sharing = "classes") -> Self:
        """One problem for all classes or for each class; for a multilabel set one for each task."""
        if targets.kind == "multilabel":
            return cls.of_outputs(targets, tasks, targets.scaled)
        labels = targets.classes if targets.kind == "multiclass" else targets.classes[1:]
        if sharing == "none" and targets.kind == "multiclass":
            columns = tuple(np.split(targets.scaled[0], len(labels), axis=1))
            return cls(targets, "class", labels, ("class", labels), columns, (None,) * len(labels))
        return cls(targets, None, labels[:1], ("class", labels), targets.scaled, (None,))

    @classmethod
    def binary(
        cls, targets: Targets, tasks: Array | None, multiclass: Multiclass = "ovr", sharing: Sharing = "none"
    ) -> Self:
        """Binary problems: each class against the rest ("ovr") or each against each ("ovo"), or each task.

        With sharing="classes" the classes against the rest are the columns of one problem; InputError for tasks.
        """
        if sharing == "classes" and targets.kind == "multilabel":
            refuse(
                "sharing='classes' is for classes; tasks of a multilabel problem have their own weights: take 'none'"
            )
        signs = tuple(np.where(column > 0, 1.0, -1.0) for h in targets.problems for column in h.T)
        everything = (None,) * len(signs)
        if targets.kind == "multilabel":
            return cls.of_outputs(targets, tasks, signs)
        if targets.kind == "binary":
            positive = targets.classes[1:]
            return cls(targets, None, positive, ("class", positive), signs, everything)
        if sharing == "classes":
            shared = (np.stack(signs, axis=1),)
            return cls(targets, None, targets.classes[:1], ("class", targets.classes), shared, (None,))
        if multiclass == "ovr":
            return cls(targets, "class", targets.classes, ("class", targets.classes), signs, everything)
        pairs = list(itertools.combinations(range(len(targets.classes)), 2))
        names = np.array([f"{targets.classes[a]} or {targets.classes[b]}" for a, b in pairs])
        rows = tuple(np.flatnonzero((signs[a] > 0) | (signs[b] > 0)) for a, b in pairs)
        # The first class of a pair is the positive one, as in prediction.
        signs_of_pairs = tuple(signs[a][r] for (a, _), r in zip(pairs, rows, strict=True))
        return cls(targets, "pair", names, ("pair", names), signs_of_pairs, rows)


@dataclass(frozen=True, eq=False)
class ScoreFunction:
    """Weights w, dual variables α and bias b, which give scores Σ_j w_jk Σ_i k_j(x, x_i) α_ik + b_k.

    w are (n, k), or (n, groups, k); α (m, k); and b (k,), or one for each row that is scored, (rows, k). `dim` is the
    dimension of the columns k: "class", "pair" or "task". `sums` are for learners whose scores are sums of several
    columns: the score that each column belongs to.
    """

    weights: Float
    dual: Float
    bias: Float
    dim: str
    sums: Index | None = None

    def of(self, columns: Index, rows: Index | None) -> ScoreFunction:
        """Some of the columns, over some of the training rows."""
        dual = self.dual[:, columns] if rows is None else self.dual[rows][:, columns]
        return replace(self, weights=self.weights[..., columns], dual=dual, bias=self.bias[..., columns])

    def summed(self, columns: Float) -> Float:
        """The scores that columns give, (…, scores)."""
        if self.sums is None:
            return columns
        return np.asarray(np.add.reduceat(columns, np.flatnonzero(np.diff(self.sums, prepend=-1)), axis=-1))


class Statistics(NamedTuple):
    """The learner's steps with statistics of the training samples `rows` (all where None), for `columns` learnt there.

    Rows and columns are positions in the dual variables.
    """

    steps: tuple[FittedStep, ...]
    columns: Index
    rows: Index | None = None


def side_by_side(scores: Sequence[Float], columns: Sequence[Index]) -> Float:
    """Scores of several parts, (rows, columns of the part), in the order of their columns."""
    if len(scores) == 1:
        return scores[0]
    return np.concatenate(scores, axis=1)[:, np.argsort(np.concatenate(columns))]


@dataclass(frozen=True, eq=False)
class Fit:
    """One row of a plan.

    The learner, with the point and the steps, is not changed. `train` and `held_out` are positions of the training rows
    and of the rows to score, and `kernels` of those that may have weight; all where None. Rows with the same targets
    share the object. `title` names the training set in messages, such as a fold.

    For learners that use them: `starts` are initial weights of all kernels, a vector for each problem; `sample_weight`
    (m,) weights of the training rows, equal where None; `nested` the result of the nested rows. `judge` turns
    predictions of the held-out rows, (rows, targets), and the positions of these targets into scores, for learners that
    return them as ``extra["scores"]`` of an outcome and no predictions; see `KernelLearner._judges`.
    `truth` are the values of the held-out rows, (rows, targets), if the plan refines weights over its fits.
    """

    learner: KernelLearner
    train: Index
    targets: Targets
    tasks: Array | None = None
    held_out: Index = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    kernels: Index | None = None
    starts: Sequence[Float] | None = None
    title: str = ""
    sample_weight: Float | None = None
    nested: Any = None
    judge: Callable[[Float, Index], Float] | None = None
    truth: Float | None = None


def held_out_among(fit: Fit, of_fold: Fit) -> Index:
    """Positions of the held-out rows of a fold among the training rows of the fit whose fold it is."""
    order = np.argsort(fit.train)
    return np.asarray(order[np.searchsorted(fit.train, of_fold.held_out, sorter=order)])


def fits_of_folds(fit: Fit, cv: Any) -> list[Fit]:
    """The fit on the training rows of each fold of its training rows, with the test rows held out.

    InputError if a fold has no test samples, or no training samples of a class.
    """
    from sklearn.model_selection import check_cv

    labels, rows = fit.targets.labels, []
    splitter = check_cv(cv, labels, classifier=labels.ndim == 1)
    for number, (train, test) in enumerate(splitter.split(np.zeros(len(labels)), labels)):
        if not len(test):
            refuse(f"fold {number} of cv has no test samples; use fewer folds")
        for column in labels.reshape(len(labels), -1).T:
            missing = np.setdiff1d(column[is_known(column)], column[train]).tolist()
            if missing:
                refuse(
                    f"fold {number} of cv has no training samples of class {missing[0]!r}; use fewer or "
                    "stratified folds, or leave that class out"
                )
        targets = encode_targets(labels[train], len(train), fit.tasks)
        weights = None if fit.sample_weight is None else fit.sample_weight[train]
        of_fold = (fit.learner, fit.train[train], targets, fit.tasks, fit.train[test])
        rows.append(Fit(*of_fold, title=f"fold {number}: ", sample_weight=weights))
    return rows


class Part(NamedTuple):
    """The problems of a fit that have the same samples: `rows` among its training rows, all where None."""

    training: Training
    members: Index
    rows: Index | None


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """The training set of a row of a plan, from which a learner makes jobs.

    `kernels` are K[train, train] and `new` K[held out, train], without the learner's steps; `given` are the names of
    the kernels of the plan, from which they are made. `trainings` are the kernels of each problem after the steps;
    problems with labels of the same samples share the object.
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

    @cached_property
    def parts(self) -> list[Part]:
        """The problems by their samples."""
        labeled = self.problems.labeled
        members = by_key(range(len(self.trainings)), lambda number: id(self.trainings[number]))
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
        names = self.training.names  # not those of `facts`, whose traces may take a pass
        return names if self.fit.kernels is None else tuple(names[k] for k in self.fit.kernels)

    @property
    def positions(self) -> Index:
        """Positions of the kernels that may have weight."""
        return np.arange(self.training.n_kernels) if self.fit.kernels is None else self.fit.kernels

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
        # A search has one start for each task; classes with weights of their own share it.
        start = self.fit.starts[number if len(self.fit.starts) > 1 else 0]
        return start if self.fit.kernels is None else start[self.fit.kernels]


@dataclass(frozen=True, eq=False)
class FitOutcome:
    """The outcome of one row.

    `outcomes` are one for each problem, with dual variables over all training rows, zero where a label is unknown;
    `scores` those of the held-out rows, (rows, classes or tasks), one column for two classes. `prepared` is the result
    of the preparation for each part, if there is one. All rows share the passes; `n_prepared` are those to prepare.
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

    @cached_property
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


def score_function(outcomes: Sequence[Outcome], problems: Problems) -> ScoreFunction:
    """The score function of all problems, side by side."""
    duals = [outcome.dual for outcome in outcomes if outcome.dual is not None]  # all, if the plan ran with duals=True
    widths = [dual.shape[1] for dual in duals]
    weights = [
        outcome.extra.get("column_weights", np.repeat(outcome.weights[..., None], width, axis=-1))
        for outcome, width in zip(outcomes, widths, strict=True)
    ]
    is_summed = any("column_weights" in outcome.extra for outcome in outcomes)
    bias = [
        np.broadcast_to(outcome.bias, (*np.shape(outcome.bias)[:-1], width))
        for outcome, width in zip(outcomes, widths, strict=True)
    ]
    return ScoreFunction(
        np.concatenate(weights, axis=-1),
        np.concatenate(duals, axis=1),
        np.concatenate(bias, axis=-1),
        problems.columns[0],
        np.arange(sum(widths)) // len(outcomes[0].weights) if is_summed else None,  # a column for each kernel
    )
