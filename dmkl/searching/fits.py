"""A question about a grid as a plan of fits, and its answers as arrays and as labeled data over points and folds."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import sklearn
import xarray as xr
from scipy.special import expit, logit
from sklearn.base import clone

from dmkl import progress
from dmkl.arrays import Array, Float, Index, Mask, by_key, is_known, plain_repr
from dmkl.errors import InputError, refuse
from dmkl.files.writing import lock
from dmkl.inputs.label_tables import matched
from dmkl.kernelset import Kernels, KernelSet, as_kernel_set
from dmkl.learners.checks import decode, encode
from dmkl.learners.decisions import LEFT_OUT, HeldOut, class_index, predicted_labels
from dmkl.learners.engine import factored, least_lam, run
from dmkl.learners.learner import KernelClassifier, KernelLearner
from dmkl.learners.plan import Answers, Fit, FitOutcome, labeled_targets
from dmkl.numerics.covariates import Covariates, regress
from dmkl.numerics.fisher import Targets
from dmkl.passes.execute import temporary_files_in
from dmkl.progress import PHASES, Round, Tally
from dmkl.searching.chance import chance
from dmkl.searching.folds import Fold, parts_of
from dmkl.searching.grid import (
    LAM_DENSE,
    LAM_TRACE,
    Choice,
    Rule,
    as_grid,
    choose_each,
    lams_of,
    mean_and_error,
    points,
    shape,
    with_chains,
)
from dmkl.searching.scoring import Metric, OfProbabilities, as_metrics, evaluate, evaluate_each, probabilities
from dmkl.solvers.interface import WORDS, worst
from dmkl.solvers.workspace import Workspace, state_folder
from dmkl.variables import variable

OF_TASKS = ("p", "lam", "C", "n_groups", "candidate")
"""Parameters that may differ between the tasks of one model."""
SOLVED = ("weights", "gap", "objective", "status")
"""Results of the solvers, for each point, fold and task."""
MOST_OUTPUTS = 100
"""Most tasks or targets whose predictions are kept."""
_FEW = 4096
"""With more samples, single precision resolves every λ of the papers, unless a few samples dominate the kernel."""
_POLICY = ("max_iter", "refine")
"""Parameters that decide when a search stops, or follow its fits: they may change when it continues."""
_TOGETHER_BYTES = 2**26  # Bytes of decisions that are scored together: those of all points may exceed the memory.
_BEST = (1, 2, 4, 8, 16)
"""Points of each choice that are scored exactly, round by round, until the chosen one is among them."""
STATUS_FLAGS = {"flag_values": np.arange(len(WORDS), dtype=np.int8), "flag_meanings": " ".join(WORDS)}
"""Attributes of variables that hold statuses."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments that all analyses take, as they were given; see `dmkl.search`."""

    estimator: KernelLearner
    K: Kernels
    y: Any
    grid: Mapping[str, Any] | None
    scoring: Any
    groups: Any
    unknown: Any
    state: str | Path | None


class Part(NamedTuple):
    """Rows that a fold holds out, and their predictions."""

    rows: Index
    targets: Targets  # Those of the training rows.
    scores: Float
    decided: Float  # The scores after the decision rule.
    of_covariates: Float | None = None  # The part of the scores that is the covariates', if it is a regression on some.

    @classmethod
    def of(cls, outcome: FitOutcome) -> Part:
        """The held-out rows of a fit."""
        fit, nothing = outcome.data.fit, np.empty(0)
        of_rows = (outcome.decision, outcome.decided) if len(fit.held_out) else (nothing, nothing)
        return cls(fit.held_out, fit.targets, *of_rows)


@dataclass(eq=False)
class Question:
    """A checked question: an estimator, a grid, kernels, labels, folds and scorers."""

    estimator: KernelLearner
    grid: dict[str, tuple[Any, ...]]
    K: KernelSet
    labels: Array
    tasks: Array | None
    targets: Targets
    folds: Sequence[Fold]
    """The folds that choose; for an evaluation the inner folds of all outer folds, one after the other."""
    metrics: dict[str, Metric]
    groups: Array | None  # The group of each row, which no fold splits.
    arguments: Arguments
    chain_lams: Mapping[Any, tuple[float, ...]] = field(default_factory=dict)
    """The values of λ that are fitted after each chain of steps; chains that are missing have those of the grid."""
    hint: str = ""
    """A sentence if another chain of steps may do better than the default one, and was not tried; see `with_chains`."""

    @cached_property
    def fitted(self) -> npt.NDArray[np.bool_]:
        """(point,): whether a point of the grid is fitted; its λ may belong to other chains of steps only."""
        pairs = [(point.get("lam"), point.get("steps")) for point in points(self.grid)]
        return np.array([lam in self.chain_lams.get(chain, (lam,)) for lam, chain in pairs])

    @cached_property
    def models(self) -> list[KernelLearner]:
        """The estimator at each fitted point of the grid."""
        every = points(self.grid)
        return [clone(self.estimator).set_params(**every[at]) for at in np.flatnonzero(self.fitted)]

    @cached_property
    def by_means(self) -> bool:
        """Whether class means decide at every point, so that decisions are logarithms of probabilities."""
        decisions = [{"decision": decision} for decision in self.grid.get("decision", ())] or [{}]
        models = [clone(self.estimator).set_params(**decision) for decision in decisions]
        return all(isinstance(model, KernelClassifier) and model._decides_by() == "means" for model in models)

    @property
    def n_tasks(self) -> int:
        """Number of outputs with separate choices."""
        return len(self.targets.problems)

    @property
    def task_names(self) -> list[str]:
        """Names of these outputs."""
        return [str(name) for name in (range(self.n_tasks) if self.tasks is None else self.tasks)]

    @property
    def name_ends(self) -> list[str]:
        """Suffixes of the names of scores, one for each scorer: empty for the first, which decides."""
        return ["" if k == 0 else f"_{name}" for k, name in enumerate(self.metrics)]

    @property
    def probabilistic(self) -> bool:
        """Whether a scorer needs probabilities."""
        return any(isinstance(metric, OfProbabilities) for metric in self.metrics.values())

    @property
    def attrs(self) -> dict[str, str]:
        """Attributes of every result: the estimator with its parameters, and the scorer that decides."""
        parameters = {name: encode(value) for name, value in self.estimator.get_params(deep=False).items()}
        scoring = next(iter(self.metrics))
        return {"estimator": type(self.estimator).__name__, "parameters": json.dumps(parameters), "scoring": scoring}

    @cached_property
    def by_class(self) -> list[str]:
        """Parameters of the grid that each class chooses separately, by its own validation scores."""
        allowed = set.intersection(*(set(model._of_classes(self.targets.kind)) for model in self.models))
        return [
            name
            for name, values in self.grid.items()
            if name in allowed and len(values) > 1 and not any(isinstance(value, Mapping) for value in values)
        ]

    def relabel(self, order: Index) -> Question:
        """The same question with the label of row order[i] at row i; see `KernelLearner._permuted`."""
        with_covariates = list(filter(self.covariates_of, self.models))
        labels = (with_covariates or self.models)[0]._permuted(self.labels, order, self.K.samples)
        permuted = copy(self)  # with the same models: a permutation test has tens of thousands
        permuted.labels, permuted.targets = labels, self.estimator._targets(labels, len(labels), self.tasks)
        return permuted

    def targets_of(self, rows: Index) -> Targets:
        """The targets of some rows."""
        targets: Targets = self.estimator._targets(self.labels[rows], len(rows), self.tasks)
        return targets

    def fit_number(
        self, index: Mapping[str, xr.DataArray], fold: int, task: int = 0, of_class: Mapping[str, Any] | None = None
    ) -> int:
        """The number of the fit of a fold at the position that a task chooses, or a class with these values."""
        at = {"fold": fold, str(self.targets.dim): task}
        place = {name: int(index[name].isel({str(dim): at[str(dim)] for dim in index[name].dims})) for name in index}
        place |= {name: self.grid[name].index(value) for name, value in (of_class or {}).items()}
        point = int(np.ravel_multi_index([place[name] for name in self.grid], shape(self.grid))) if self.grid else 0
        return int(np.count_nonzero(self.fitted[:point]))

    def fit_numbers(self, index: Mapping[str, xr.DataArray], fold: int) -> list[int]:
        """The numbers of the fits of a fold at the positions that each task chooses."""
        return [self.fit_number(index, fold, task) for task in range(self.n_tasks)]

    def at_choice(self, numbers: Sequence[int], values: Sequence[Float]) -> Float:
        """Those of the values of the fits of a fold that are of the chosen fit, of each task."""
        if self.targets.dim is None:
            return values[numbers[0]]
        return np.stack([values[number][:, t] for t, number in enumerate(numbers)], axis=1)

    # --- fits and their scores ---------------------------------------------------------------------------------------

    def plan_fits(self, targets: Sequence[Targets] | None = None, kernels: Index | None = None) -> list[Fit]:
        """The rows of a plan: every point of the grid on every fold, fold by fold.

        Rows with the same object of `targets` share subspaces and solutions; `kernels` are those that may have weight.
        """
        targets = [self.targets_of(fold.train) for fold in self.folds] if targets is None else targets
        fits = []
        for fold, of_fold in zip(self.folds, targets, strict=True):
            held_out, judge = np.concatenate([fold.validation, fold.test]), None
            if self.models[0]._judges:
                truth = self.labels[held_out].reshape(len(held_out), -1)
                judge = partial(judge_predictions, self.metrics, truth, len(fold.validation))
            of_rows, judges = (fold.train, of_fold, self.tasks, held_out, kernels), dict[Any, Any]()
            for model in self.models:
                chain = tuple(model._steps())
                if judge is not None and self.on_covariates and chain not in judges:
                    of_covariates = self.covariate_part([model], fold.train, held_out)
                    assert of_covariates is not None
                    judges[chain] = partial(judge, of_covariates=of_covariates.reshape(len(held_out), -1))
                fits.append(Fit(model, *of_rows, title=f"{fold.title}: ", judge=judges.get(chain, judge)))
        return fits

    def run(self, fits: Sequence[Fit], *, duals: bool = True) -> Answers:
        """Run a plan of fits without a checkpoint; temporary files are in the folder of the state."""
        with lock_state(self.arguments.state):
            return run(self.K, fits, duals=duals)

    @contextmanager
    def open_workspace(
        self, properties: Mapping[str, str] | None = None, *, continued: bool = False
    ) -> Iterator[Workspace]:
        """The workspace of this question, locked while it is open; a temporary one without a state.

        `properties` are added to those of `_identity`. A second plan continues from the results of the first if it is
        `continued`, so that these are kept in any case.
        """
        state = self.arguments.state
        kept = TemporaryDirectory(prefix="dmkl-") if continued and state is None else nullcontext()
        with kept as parent, lock_state(state if parent is None else Path(parent) / "state") as folder:
            facts = {} if folder is None else self._identity() | dict(properties or {})
            defaults = type(self.estimator)()._parameter_texts(self.K.names)
            unsaid = {f"parameter {name}": text for name, text in defaults.items()}
            with closing(Workspace(folder, facts, unsaid=unsaid)) as workspace:
                workspace.remove_temporary()
                yield workspace

    def _identity(self) -> dict[str, str]:
        """Properties that distinguish one question from another, in words where people can compare them."""
        model, K, view = self.estimator, self.K, self.K.view
        of_steps = [array for step in view.steps for array in step.arrays().values()]
        folds: list[Array] = [part for fold in self.folds for part in (fold.train, fold.validation, fold.test)]
        folds += [fold.counts for fold in self.folds if fold.counts is not None]
        return {
            "the kernels' content": K.content_id,
            "the kernels chosen": ", ".join(K.names),
            "the samples": digest(*view.final_positions(), view.rows, view.cols, *of_steps),
            "the steps before": repr([step.name for step in view.steps]),
            "the labels": digest(np.array(json.dumps(self.labels.astype(str).tolist()).encode())),
            "the folds": digest(*folds),
            "the grid": json.dumps({name: [repr(value) for value in values] for name, values in self.grid.items()}),
            "the estimator": type(model).__name__,
            **({"the λ of each chain": repr(dict(self.chain_lams))} if self.chain_lams else {}),
        } | {f"parameter {name}": text for name, text in model._parameter_texts(K.names).items() if name not in _POLICY}

    def per_task(self, outcomes: Sequence[FitOutcome]) -> tuple[Array, Array, Array, Array]:
        """The weights (fit, task, kernel), gap, objective and status (fit, task) of `SOLVED`.

        Problems that are not tasks (classes, pairs) are combined into one, since they have one choice.
        """
        # All at once: a permutation test has tens of thousands.
        solutions = [solution for outcome in outcomes for solution in outcome.outcomes]
        weights = np.array([_by_kernel(solution.weights, len(self.K)) for solution in solutions])
        rows = [(solution.gap, solution.objective) for solution in solutions]
        (gap, objective), status = np.array(rows).T, np.array([solution.status.code for solution in solutions])
        counts = [len(outcome.outcomes) for outcome in outcomes]
        if counts == [self.n_tasks] * len(outcomes):
            gap, objective, status = (values.reshape(-1, self.n_tasks) for values in (gap, objective, status))
            return weights.reshape(-1, self.n_tasks, len(self.K)), gap, objective, status
        first = np.cumsum([0, *counts[:-1]])
        places = [start + worst(outcome.outcomes) for start, outcome in zip(first, outcomes, strict=True)]
        mean = np.add.reduceat(weights, first) / np.array(counts)[:, None]
        gaps, sums = np.maximum.reduceat(gap, first), np.add.reduceat(objective, first)
        return mean[:, None], gaps[:, None], sums[:, None], status[places][:, None]

    def score(self, parts: Iterable[Part], metrics: Mapping[str, Metric] | None = None) -> Float:
        """Scores of held-out rows by these metrics, or by all, (metric, part, task); NaN without rows."""
        metrics, parts = self.metrics if metrics is None else metrics, list(parts)
        scores = np.full((len(metrics), len(parts), self.n_tasks), np.nan)
        for k, (rows, targets, _, decided, _) in enumerate(parts):
            if len(rows):
                values = evaluate(metrics, targets.kind, targets.classes, self.labels[rows], decided)
                scores[:, k] = values.reshape(len(values), -1)
        return scores

    def score_variables(self, name: str, scores: Float, dim: str = "fold") -> dict[str, Any]:
        """Scores (metric, `dim`, task) as variables; `name` is that of the first metric."""
        by_end = zip(self.name_ends, scores, strict=True)
        return {f"{name}{end}": self.variable((dim, "task"), values) for end, values in by_end}

    def constant_scores(self, folds: Sequence[Fold]) -> Float:
        """The first score of a decision that is the same for all rows: (fold, task); of test rows if folds have any.

        Without kernels the probabilities of classes are their shares in training, of which a decision has logarithms,
        as `probabilities` takes them, and a regression has the mean.
        """
        parts, no_classes = [], self.targets.kind == "regression"
        rows = "test" if any(len(fold.test) for fold in folds) else "validation"
        for fold in folds:
            targets = self.targets if no_classes else self.targets_of(fold.train)  # numbers are the same in every fold
            labels, kind, classes = self.labels[fold.train], targets.kind, targets.classes
            if kind == "multiclass":
                constant: Any = np.log([np.mean(labels == label) for label in classes])
            else:
                values = labels == classes[1] if kind == "binary" else labels
                means = np.nanmean(values.reshape(len(values), -1).astype(np.float64), axis=0)
                constant = means if no_classes else logit(means)
            held_out = getattr(fold, rows)
            decision = np.broadcast_to(constant, (len(held_out), len(constant)))
            decision = decision[:, 0] if targets.one_column else decision
            parts.append(Part(held_out, targets, decision, decision))
        (scores,) = self.score(parts, dict([next(iter(self.metrics.items()))]))
        return np.asarray(scores)

    # --- covariates --------------------------------------------------------------------------------------------------

    @cached_property
    def on_covariates(self) -> bool:
        """Whether this is a regression on covariates, at some point of the grid, whose labels have residuals."""
        has_residuals = self.targets.kind == "regression" and self.estimator._has_residuals()
        return has_residuals and any(map(self.covariates_of, self.models))

    @staticmethod
    def covariates_of(learner: KernelLearner) -> tuple[Covariates, ...]:
        """The covariates in the steps of a learner."""
        return tuple(step for step in learner._steps() if isinstance(step, Covariates))

    def _regress(self, learners: Sequence[KernelLearner], train: Index, rows: Index) -> tuple[Float, Float] | None:
        """`regress` the targets, ±1 for classes, on all covariates in the steps of the learners; None without any."""
        tables = dict.fromkeys(table for each in learners for table in self.covariates_of(each))
        if not tables:
            return None
        of_train, of_rows = (
            np.column_stack([np.ones(len(at)), *(table.of(self.K.samples[at])[:, 1:] for table in tables)])
            for at in (train, rows)
        )
        targets = self.targets_of(train)
        if targets.kind == "regression":
            labels = targets.labels.reshape(len(train), -1).astype(np.float64)
            predicted, left_out = self.estimator._regress(of_train, labels, of_rows, self.K.samples[train])
            return predicted, left_out
        index = np.stack(class_index(targets.kind, targets.classes, targets.labels), axis=1)
        is_class = index == np.arange(len(targets.classes)) if targets.kind == "multiclass" else index == 1
        return regress(of_train, np.where(index < 0, np.nan, 2.0 * is_class - 1.0), of_rows)

    def covariate_part(self, learners: Sequence[KernelLearner], train: Index, rows: Index) -> Float | None:
        """The least squares fit of y on covariates as predicted for `rows`, in the shape of their labels.

        `learners` are those of each target, or one for all. NaN for targets whose learner has no covariates. None if
        this is no regression, or no point of the grid has covariates.
        """
        if not self.on_covariates:
            return None
        part = np.full((len(rows), self.n_tasks), np.nan)
        of_tasks = [*learners] * (self.n_tasks if len(learners) == 1 else 1)
        for tasks in by_key(range(self.n_tasks), lambda t: tuple(of_tasks[t]._steps())).values():
            if (fit := self._regress([of_tasks[tasks[0]]], train, rows)) is not None:
                part[:, tasks] = fit[0][:, tasks]
        return part.reshape(self.labels[rows].shape)

    def covariates_alone(self, folds: Sequence[Fold]) -> tuple[dict[str, Any], list[Part]]:
        """Scores of a regression on all covariates of the grid alone, and the test rows of all folds.

        The scores of validation and test rows are variables "score" and "test_score" over (fold[, task]); none without
        covariates. Classes are regressed on as ±1; their labels are those of the largest prediction, or of class means
        of leave-one-out predictions where these decide. Folds whose training rows are too few for that have NaN, and
        then there are no rows.
        """
        nothing = Part(np.zeros(0, dtype=np.int64), self.targets, np.empty(0), np.empty(0))
        validation, test = [nothing] * len(folds), [nothing] * len(folds)
        n_fitted = 0
        for f, fold in enumerate(folds):
            n, rows = len(fold.validation), np.concatenate([fold.validation, fold.test])
            with suppress(InputError):  # of several tables that together leave nothing
                if (fit := self._regress(self.models, fold.train, rows)) is None:
                    return {}, []
                targets = self.targets_of(fold.train)
                if (decided := self._decide_by_covariates(targets, *fit)) is not None:
                    predicted, decided = (of[:, 0] if targets.one_column else of for of in (fit[0], decided))
                    validation[f] = Part(fold.validation, targets, predicted[:n], decided[:n])
                    test[f] = Part(fold.test, targets, predicted[n:], decided[n:])
                    n_fitted += 1
        variables = self.score_variables("score", self.score(validation))
        if not any(len(fold.test) for fold in folds):
            return variables, []
        return variables | self.score_variables("test_score", self.score(test)), test if n_fitted == len(folds) else []

    def _decide_by_covariates(self, targets: Targets, scores: Float, left_out: Float) -> Float | None:
        """The decision values of least squares on covariates; None if some class has too few rows to learn a rule."""
        if not self.by_means:
            return scores
        assert isinstance(self.estimator, KernelClassifier)
        index, priors = class_index(targets.kind, targets.classes, targets.labels), self.estimator._priors(targets)
        columns = left_out.T if targets.kind == "multilabel" else [left_out[:, 0]]
        index = [np.where(np.isnan(column), -1, of) for column, of in zip(columns, index, strict=True)]
        held_out = HeldOut(left_out, index)
        if not held_out.enough_for(priors):
            return None
        return held_out.learn_rule(targets.kind, priors, LEFT_OUT).decision(scores)

    # --- labeled data ------------------------------------------------------------------------------------------------

    def variable(self, dims: Sequence[str], values: Array) -> tuple[tuple[str, ...], Array]:
        """Values as a variable. The dimension "task" gets its name, or is dropped if all outputs have one value."""
        dim, axis = self.targets.dim, list(dims).index("task")
        if dim is None or values.shape[axis] != self.n_tasks:
            return (*dims[:axis], *dims[axis + 1 :]), np.take(values, 0, axis=axis)
        return (*dims[:axis], dim, *dims[axis + 1 :]), values

    def task_coords(self) -> dict[str, Array]:
        """The coordinate of the outputs, if there are several."""
        return {} if self.targets.dim is None else {self.targets.dim: np.array(self.task_names, dtype=str)}

    def with_folds(self, data: xr.Dataset, folds: Sequence[Fold], **options: Any) -> xr.Dataset:
        """Add the folds and samples, variables and attributes of `SearchResult.scores` that reproduce a result.

        The attribute asked has the arguments that folds, points and scores depend on, those of `KernelSet.origin`, and
        the labels: the name of `y`, and the number of samples of each class; and further `options` of the call.
        """
        view, given, groups = self.K.view, self.arguments, self.arguments.groups
        scoring = encode(given.scoring)
        arguments = {"y": given.y is not None, "scoring": scoring, "unknown": encode(given.unknown), **self.K.origin}
        arguments |= {"grid": encode(given.grid), "options": {name: encode(value) for name, value in options.items()}}
        arguments["groups"] = None if groups is None else str(getattr(groups, "name", None) or "given")
        arguments["trait"] = str(getattr(given.y, "name", None) or "")
        if self.targets.kind in ("binary", "multiclass"):
            named = zip(*np.unique(self.labels[is_known(self.labels)].astype(str), return_counts=True), strict=True)
            arguments["classes"] = {str(name): int(size) for name, size in named}
        names = np.array(self.K.samples).astype(str)
        variables: dict[str, Any] = {"part": (("fold", "sample"), parts_of(folds, len(names)))}
        if self.groups is not None:
            variables["sample_group"] = ("sample", _plain(self.groups))
        first = scoring[0] if isinstance(scoring, list) else scoring
        if first is None or isinstance(first, str):  # a callable may fail on such decisions
            with warnings.catch_warnings():  # about scores that are undefined for a constant
                warnings.simplefilter("ignore")
                variables["constant_score"] = self.variable(("fold", "task"), self.constant_scores(folds))
        attrs: dict[str, Any] = {"splitter": folds[0].splitter, "asked": json.dumps(arguments)}
        if any(map(self.covariates_of, self.models)) or any(step.name == "residualize" for step in view.steps):
            attrs["covariates"] = 1
        if self.probabilistic and self.targets.dim is None:
            held_out = [rows for fold in folds for rows in (fold.validation, fold.test) if len(rows)]
            n_classes = [len(np.unique(self.labels[rows])) for rows in held_out]
            attrs["folds_without_a_class"] = int(np.sum(np.array(n_classes) < len(self.targets.classes)))
        coords = {"fold": [fold.name for fold in folds], "sample": names}
        return data.assign_coords(coords).assign(variables).assign_attrs(attrs)

    def predictions(self, parts: Iterable[Part]) -> xr.Dataset:
        """`GridResult.predictions` of a part of each fold, by positions in the order of the folds; empty without."""
        targets, columns = self.targets, defaultdict[str, list[Array]](list)
        for fold, (rows, of_fold, scores, decided, of_covariates) in enumerate(parts):
            columns["sample"].append(rows.astype(np.int32))
            columns["sample_fold"].append(np.full(len(rows), fold, dtype=np.int32))
            columns["true_label"].append(self.labels[rows])
            if targets.kind == "regression":
                columns["prediction"].append(scores)
                if of_covariates is not None:
                    columns["covariate_prediction"].append(of_covariates)
                    columns["kernel_prediction"].append(scores - of_covariates)
                continue
            columns["predicted_label"].append(predicted_labels(of_fold.classes, decided))
            columns["score"].append(_in_columns(targets, of_fold, scores, np.nan))
            if self.by_means:
                p = expit(decided) if targets.kind == "multilabel" else probabilities(decided)
                columns["probability"].append(_in_columns(targets, of_fold, p, 0.0))
        joined = {name: _plain(np.concatenate(values)) for name, values in columns.items()}
        coords: dict[str, Any] = {"sample": joined.pop("sample")} if joined else {}
        if "score" in joined and targets.dim is None:
            coords["class"] = _plain(targets.classes)
        if joined and self.groups is not None:
            coords["sample_group"] = ("sample", self.groups[coords["sample"]].astype(str))
        dims = ("sample", targets.dim or "class")
        return xr.Dataset({name: (dims[: of.ndim], of) for name, of in joined.items()}, coords)

    def held_out_variables(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The variables of `GridResult.predictions`, from a part of each fold; of many outputs residual_score alone."""
        predictions = self.predictions(parts if self.n_tasks <= MOST_OUTPUTS else ())
        variables: dict[str, Any] = {
            f"held_out_{str(name).removeprefix('sample_')}": (("held_out", *of.dims[1:]), of.values)
            for name, of in predictions.drop_vars("sample_group", errors="ignore").variables.items()
            if "sample" in of.dims
        }
        if "class" in predictions.coords:
            variables["class"] = predictions["class"].values
        residual_scores = [
            residual_scores_of(self.metrics, self.labels[rows], scores, of_covariates)
            for rows, _, scores, _, of_covariates in parts
            if of_covariates is not None
        ]
        if residual_scores:
            variables |= self.score_variables("residual_score", np.stack(residual_scores, axis=1))
        return variables

    def p_values(
        self, parts: Sequence[Part], compared: Sequence[Sequence[Float]] | None = None, *, by_fold: bool = False
    ) -> dict[str, Any]:
        """p-values of the first score (`chance`), and "residual_p_value": that of the kernels' part given covariates.

        From the decisions about a part of each fold, or of several points that are `compared`. Of a regression
        residuals y − Zb are permuted; rows that are held out several times have the mean of theirs. Classes are
        predicted from the kernels alone, so that it is the p-value of their score where all points have covariates.
        """
        compared = [[part.decided] for part in parts] if compared is None else compared
        variables = self._chance_variables(self.labels, parts, compared, by_fold=by_fold)
        if self.targets.kind != "regression":
            p = variables.get("chance_p_value") if all(map(self.covariates_of, self.models)) else None
            return variables if p is None else variables | {"residual_p_value": p}
        total, times, of_kernels = np.zeros(self.labels.shape), np.zeros(len(self.labels)), []
        for (rows, *_, of_covariates), of_points in zip(parts, compared, strict=True):
            if of_covariates is None:
                return variables
            total[rows] += self.labels[rows].astype(np.float64) - of_covariates
            times[rows] += 1
            of_kernels.append([values - of_covariates for values in of_points])
        residuals = (total.T / np.maximum(times, 1)).T
        p = self._chance_variables(residuals, parts, of_kernels, by_fold=by_fold).get("chance_p_value")
        return variables if p is None else variables | {"residual_p_value": p}

    def _chance_variables(
        self, labels: Array, parts: Sequence[Part], compared: Sequence[Sequence[Float]], *, by_fold: bool
    ) -> dict[str, Any]:
        if not parts or self.n_tasks > MOST_OUTPUTS:
            return {}
        metric, (rows, targets, *_) = next(iter(self.metrics.values())), zip(*parts, strict=True)
        tasks = [None] if self.targets.dim is None else list(range(self.n_tasks))
        with warnings.catch_warnings(), sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
            warnings.simplefilter("ignore")  # of scores that are undefined for some permutation
            arguments = (metric, labels, rows, targets, compared, self.groups)
            by_task = [chance(*arguments, task=task, n_tasks=len(tasks), by_fold=by_fold) for task in tasks]
        names = ("chance_p_value", "chance_score", "chance_permutations")
        return {
            name: self.variable(("task",), np.array(values))
            for name, values in zip(names, zip(*by_task, strict=True), strict=True)
        }


def make_question(
    caller: str,
    arguments: Arguments,
    make_folds: Callable[..., list[Fold]],
    *,
    has_grid: bool = True,
    refit: bool = False,
) -> tuple[Question, list[Fold]]:
    """Check a question, and make its folds by `folds.make_folds` or `folds.nest_folds`.

    `caller` is its name in messages. `has_grid` is False for an estimator with the parameters that it has; `refit`
    tells whether one model is fitted for all tasks at the points that they choose.
    """
    estimator, grid, groups, hint = arguments.estimator, arguments.grid, arguments.groups, ""
    K = as_kernel_set(arguments.K, caller)
    targets, tasks = labeled_targets(estimator, K, arguments.y, caller, arguments.unknown)
    if has_grid:
        grid, note, hint = with_chains(grid, estimator, K, several=targets.dim is not None)
        if grid is not arguments.grid:
            progress.current().note(note)
    values = as_grid(grid, estimator) if has_grid else {}
    of_rows = None if groups is None else matched("groups", groups, K.samples, named=K.view.has_names).values
    if of_rows is not None:
        if 1 < len(of_rows) == len(set(of_rows.tolist())):
            refuse(
                f"{caller} needs groups of several samples, and each of the {len(of_rows)} samples has a different "
                "group: were names taken for groups? Name the column of the groups (FILE:NAME), or leave groups out"
            )
        if estimator.get_params(deep=False).get("kept_together", ...) is None:
            together = dict(zip(K.samples.astype(str).tolist(), of_rows.tolist(), strict=True))
            estimator = clone(estimator).set_params(kept_together=together)
    by = {"classes": targets.kind != "regression", "strata": estimator._strata(targets.labels)}
    folds = make_folds(targets.labels, splits=K.splits, groups=of_rows, samples=K.individuals, **by)
    choosing = [inner for fold in folds for inner in fold.inner or (fold,)]
    of_labels = (targets.labels, tasks, targets, choosing)
    question = Question(clone(estimator), values, K, *of_labels, {}, of_rows, arguments, hint=hint)
    scoring = estimator.traits.scorer if arguments.scoring is None else arguments.scoring
    question.metrics = as_metrics(scoring, targets.kind, probabilistic=question.by_means)
    if has_grid:
        _check_tasks(question, caller, refit=refit)
        default = "lam" in values and (grid is None or grid["lam"] is None)
        question = _with_chain_lams(question, default=default)
    return question, folds


def _check_tasks(question: Question, caller: str, *, refit: bool) -> None:
    """Refuse parameters that tasks cannot choose separately, by InputError."""
    for name in question.estimator.traits.by_problem:
        value = getattr(question.estimator, name, 0.0)
        if np.ndim(value):
            refuse(
                f"{caller} takes an estimator with one {name} for all tasks, got {plain_repr(value)}; give one number"
            )
    shared = [name for name, values in question.grid.items() if name not in OF_TASKS and len(values) > 1]
    if refit and question.targets.dim is not None and shared:
        instead = "search with refit=False, or over p, lam and C" if caller == "search" else "take p, lam and C"
        refuse(
            f"the {question.targets.dim}s of a problem have separate choices, and one model has one "
            f"{', '.join(shared)} for all; {instead}"
        )


def _with_chain_lams(question: Question, *, default: bool) -> Question:
    """The question with the values of λ of each chain of steps: the default values of the chain, if `default`.

    Of the papers' λ for unit trace only those that the stored precision resolves are kept. If samples are few and the
    precision is low, a pass for all chains finds them.
    """
    lams, chains = question.grid.get("lam"), question.grid.get("steps", (question.estimator._steps(),))
    own = "lam" in question.estimator.traits.grid
    if own or (not default and lams != LAM_TRACE):
        return question
    by_chain = {chain: lams_of(chain, question.estimator) if default else LAM_TRACE for chain in chains}
    if {LAM_TRACE, LAM_DENSE} & {*by_chain.values()} and question.K.dtype != np.float64 and question.K.shape[1] <= _FEW:
        first = {name: values[:1] for name, values in question.grid.items() if name == "candidate"}
        of_chains = replace(question, grid=first | {"steps": tuple(chains)})
        of_fits = least_lam(question.K, of_chains.plan_fits())
        for k, chain in enumerate(chains):
            least, lams = max(of_fits[k :: len(chains)]), by_chain[chain]
            by_chain[chain] = tuple(lam for lam in lams if lam >= least)
            if left_out := ", ".join(f"{lam:g}" for lam in lams if lam < least):
                after = f" after {'+'.join(map(str, chain))}" if "steps" in question.grid else ""
                progress.current().note(
                    f"lam {left_out} left out{after}: on {question.K.shape[1]} samples {question.K.dtype} resolves λ "
                    f"from {least:.1e} on"
                )
    every = tuple(sorted({lam for values in by_chain.values() for lam in values}))
    by_chain = {chain: values for chain, values in by_chain.items() if values != every}
    return replace(question, grid=question.grid | {"lam": every}, chain_lams=by_chain)


def residual_scores_of(metrics: Mapping[str, Metric], truth: Array, predicted: Float, of_covariates: Float) -> Float:
    """Scores of predictions without the part of covariates against y without it, (metric, target)."""
    n_targets = 1 if truth.ndim == 1 else truth.shape[1]
    if not len(truth) or not np.isfinite(of_covariates).any():
        return np.full((len(metrics), n_targets), np.nan)
    residuals = truth.astype(np.float64) - of_covariates
    scores = evaluate(metrics, "regression", (), residuals, predicted - of_covariates)
    return np.reshape(scores, (len(metrics), n_targets))


def judge_predictions(
    metrics: Mapping[str, Metric],
    truth: Array,
    n_validation: int,
    predicted: Float,
    columns: Index,
    of_covariates: Float | None = None,
) -> Float:
    """Scores of predictions of some targets on the validation rows and on the test rows, (metric, 2, target).

    With the part of covariates in the predictions of all targets, scores without it follow: (2 · metric, 2, target).
    """
    n = len(metrics)
    scores = np.full((n if of_covariates is None else 2 * n, 2, predicted.shape[1]), np.nan)
    for part, rows in enumerate((slice(n_validation), slice(n_validation, None))):
        if len(truth[rows]):
            of_rows = truth[rows][:, columns], predicted[rows]
            scores[:n, part] = evaluate(metrics, "regression", (), *of_rows)
            if of_covariates is not None:
                scores[n:, part] = residual_scores_of(metrics, *of_rows, of_covariates[rows][:, columns])
    return scores


def run_blocks(K: KernelSet, blocks: Mapping[Hashable, Sequence[Fit]], workspace: Workspace) -> dict[Any, Answers]:
    """The answers to each block of fits by its key, run as one plan: they share the tally, passes and times of all."""
    answers = run(K, [fit for fits in blocks.values() for fit in fits], workspace, duals=False)
    outcomes = iter(answers.fits)
    return {key: replace(answers, fits=list(islice(outcomes, len(fits)))) for key, fits in blocks.items()}


@dataclass
class GridFits:
    """Results of all points of a question as arrays over (point, fold, task), and the costs."""

    question: Question
    solved: dict[str, Array]
    """weights (point, fold, task, kernel), and gap, objective and status, a position in `WORDS`, (point, fold, task).

    NaN, and the status −1, if a point was not fitted.
    """
    decisions: list[list[Float]]
    """Scores of the held-out rows of each fold at each fitted point, (rows,) or (rows, classes or tasks)."""
    decided: list[Sequence[Float]]  # The same after the decision rule of each fit.
    targets: list[Targets]  # The targets of each fold.
    tally: Tally  # The costs of all fits that shared passes with these.
    solver: str  # The name of the solver.
    judged: Float | None = None
    """(point, fold, metric, 2, task), scores on the validation rows and on the test rows, if solvers return them; then
    `decisions` and `decided` are empty, and `solved` is that of all tasks. With covariates the scores of the kernels'
    part follow those of the metrics.
    """
    approximate: Mask | None = None
    """(point, fold, task): whether the decision rule is learnt from interpolated leave-one-out scores; None if none."""

    @classmethod
    def of(cls, question: Question, answers: Answers) -> GridFits:
        """The answers to the rows of `Question.plan_fits`."""
        n_points = len(question.models)
        by_fold = [answers.fits[first : first + n_points] for first in range(0, len(answers.fits), n_points)]
        solved: dict[str, Array] = {}
        for name, values in zip(SOLVED, question.per_task(answers.fits), strict=True):
            by_point = values.reshape(-1, n_points, *values.shape[1:]).swapaxes(0, 1)
            solved[name] = np.full((len(question.fitted), *by_point.shape[1:]), -1 if name == "status" else np.nan)
            solved[name][question.fitted] = by_point
        solved["status"] = solved["status"].astype(np.int8)
        judged = None
        if question.models[0]._judges:
            for name, values in solved.items():
                solved[name] = np.broadcast_to(values, (*values.shape[:2], question.n_tasks, *values.shape[3:]))
            n_scores = len(question.metrics) * (1 + question.on_covariates)
            judged = np.full((*solved["gap"].shape[:2], n_scores, 2, question.n_tasks), np.nan)
            for f, outcomes in enumerate(by_fold):
                judged[question.fitted, f] = [_judged(outcome) for outcome in outcomes]
            by_fold = []
        return cls(
            question,
            solved,
            [[outcome.decision for outcome in outcomes] for outcomes in by_fold],
            [outcomes[0].data.fit.learner._decide(outcomes) for outcomes in by_fold],
            [fit.data.fit.targets for fit in answers.fits[::n_points]],
            answers.tally,
            ", ".join(dict.fromkeys(outcome.solver or "own" for outcome in answers.fits)),
            judged,
            _approximate(question, answers.fits),
        )

    def undecided(self, choosing: Sequence[slice], rule: Rule, n_best: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Fits and tasks with approximate scores that joint choices of folds depend on, with their ranks.

        Of each choice those of the points that `rule` and the largest mean choose, or between which classes choose, and
        of the `n_best` largest means; none if the points that are chosen are exact, or none can be.
        """
        assert self.approximate is not None
        grid, numbers = self.question.grid, np.arange(len(self.question.fitted)).reshape(shape(self.question.grid))
        scores, of_fits = self.scores()[0, 0], np.cumsum(self.question.fitted) - 1
        by_class = [axis for axis, name in enumerate(grid) if name in self.question.by_class]
        for folds, task in product(choosing, range(self.question.n_tasks)):
            means = mean_and_error(scores[:, folds, task])
            mean, error = (values.reshape(numbers.shape) for values in means)
            try:
                both = [tuple(choose_each(mean, error, grid, of)) for of in (rule, "best")] if grid else [()]
            except InputError:  # no point can be chosen
                continue
            chosen = [int(numbers[at]) for at in both]
            for at, axis in product(both, by_class):
                chosen += np.moveaxis(numbers, axis, -1)[at[:axis] + at[axis + 1 :]].tolist()
            if self.approximate[chosen, folds, task].any():
                chosen += np.argsort(-mean.ravel(), kind="stable")[:n_best].tolist()
                for rank, point in enumerate(dict.fromkeys(chosen)):
                    for fold in np.arange(len(self.question.folds))[folds][self.approximate[point, folds, task]]:
                        yield rank, (int(fold * len(self.question.models) + of_fits[point]), task)

    def updated(self, before: Sequence[FitOutcome], after: Sequence[FitOutcome]) -> GridFits:
        """The results after some of the rows of `Question.plan_fits` have exact leave-one-out scores."""
        n, decided = len(self.question.models), [list(of_fold) for of_fold in self.decided]
        changed = defaultdict[int, list[int]](list)
        for number, pair in enumerate(zip(before, after, strict=True)):
            old, new = ([solution.interpolated for solution in outcome.outcomes] for outcome in pair)
            if old != new:
                changed[number // n].append(number)
        for fold, numbers in changed.items():
            outcomes = [after[number] for number in numbers]
            for number, values in zip(numbers, outcomes[0].data.fit.learner._decide(outcomes), strict=True):
                decided[fold][number - fold * n] = values
        return replace(self, decided=[*decided], approximate=_approximate(self.question, after))

    def scores(self) -> Float:
        """Scores on the validation rows and on the test rows, (metric, 2, point, fold, task)."""
        question = self.question
        if self.judged is not None:
            return np.moveaxis(self.judged[:, :, : len(question.metrics)], (2, 3), (0, 1))
        sizes = (len(question.fitted), len(question.folds), question.n_tasks)
        scores = np.full((len(question.metrics), 2, *sizes), np.nan)
        # Scikit-learn's checks of arguments take longer than most scorers, and all arguments here are of one kind.
        with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
            for f, (fold, targets, decided) in enumerate(zip(question.folds, self.targets, self.decided, strict=True)):
                n = len(fold.validation)
                n_together = max(1, _TOGETHER_BYTES // max(1, decided[0].nbytes))
                batches = [decided[start : start + n_together] for start in range(0, len(decided), n_together)]
                for part, rows, of_rows in ((0, fold.validation, slice(n)), (1, fold.test, slice(n, None))):
                    if len(rows):
                        about = (question.metrics, targets.kind, targets.classes, question.labels[rows])
                        values = [evaluate_each(*about, np.stack(batch)[:, of_rows]) for batch in batches]
                        of_points = np.concatenate(values, axis=1)
                        scores[:, part, question.fitted, f] = of_points.reshape(*of_points.shape[:2], -1)
        return scores

    def parts(self, index: Mapping[str, xr.DataArray], *, tested: bool = True) -> Iterator[Part]:
        """The rows that each fold holds out, at the positions that tasks choose: those that are `tested`, if any."""
        question, tested = self.question, tested and any(len(fold.test) for fold in self.question.folds)
        for f, fold in enumerate(question.folds if self.judged is None else ()):
            n, numbers = len(fold.validation), question.fit_numbers(index, f)
            rows, of_rows = (fold.test, slice(n, None)) if tested else (fold.validation, slice(n))
            scores, decided = (question.at_choice(numbers, of[f])[of_rows] for of in (self.decisions, self.decided))
            yield Part(rows, self.targets[f], scores, decided)

    def residual_scores(self, chosen: Mapping[str, xr.DataArray], *, tested: bool) -> Float:
        """Scores of the kernels' part at the `chosen` positions, on test or validation rows, (metric, fold, task)."""
        assert self.judged is not None
        of_parts = self.judged[:, :, len(self.question.metrics) :, int(tested)]
        dim = self.question.targets.dim or "task"
        by_point = of_parts.reshape(*shape(self.question.grid), *of_parts.shape[1:])
        array = xr.DataArray(by_point, dims=[*self.question.grid, "fold", "metric", dim])
        return array.isel(chosen).transpose("metric", "fold", dim).values

    def _class_scores(self) -> Float:
        """Average precision of the score of each class against the rest on validation rows, (point, fold, class)."""
        question, classes = self.question, self.question.targets.classes
        scores = np.full((len(question.fitted), len(question.folds), len(classes)), np.nan)
        metric, fitted = as_metrics("average_precision", "multilabel"), np.flatnonzero(question.fitted)
        for f, (fold, targets, decided) in enumerate(zip(question.folds, self.targets, self.decided, strict=True)):
            decision = np.stack(decided)
            of_classes = np.stack([-decision, decision], axis=-1) if targets.one_column else decision
            truth = (question.labels[fold.validation][:, None] == targets.classes).astype(np.int64)
            (values,) = evaluate_each(metric, "multilabel", [0, 1], truth, of_classes[:, : len(fold.validation)])
            scores[fitted[:, None], f, np.searchsorted(classes, targets.classes)] = values
        return scores

    def to_dataset(self, choice: Choice, seconds: float = 0.0) -> xr.Dataset:
        """All results as one labeled data set; see `dmkl.SearchResult`."""
        question = self.question
        sizes, names = shape(question.grid), list(question.grid)

        def by_point(array: Array, *dims: str) -> tuple[tuple[str, ...], Array]:
            """(point, fold, …) with the dimensions of the grid."""
            return question.variable((*names, "fold", *dims), array.reshape(*sizes, *array.shape[1:]))

        variables: dict[str, Any] = {}
        for end, (validation, test) in zip(question.name_ends, self.scores(), strict=True):
            variables[f"score{end}"] = by_point(validation, "task")
            if any(len(fold.test) for fold in question.folds):
                variables[f"test_score{end}"] = by_point(test, "task")
        coords: dict[str, Any] = {name: as_variable(name, (name,), values) for name, values in question.grid.items()}
        coords |= {"phase": list(PHASES), "kernel": list(question.K.names), **question.task_coords()}
        if question.by_class:
            scores = self._class_scores()
            variables["class_score"] = ((*names, "fold", "class"), scores.reshape(*sizes, *scores.shape[1:]))
            coords["class"] = _plain(question.targets.classes)
        own = slice(None if self.judged is None else 1)  # tasks that share all of this have no axis
        weights, *others = (self.solved[name][:, :, own] for name in SOLVED)
        variables["weight"] = by_point(weights.swapaxes(2, 3), "kernel", "task")
        variables |= {name: by_point(values, "task") for name, values in zip(SOLVED[1:], others, strict=True)}
        variables["status"] = (*variables["status"], STATUS_FLAGS)
        if self.approximate is not None:
            variables["approximate"] = by_point(self.approximate[:, :, own].astype(np.int8), "task")
        for of_round in fields(Round):
            values = np.array([getattr(entry, of_round.name) for entry in self.tally.rounds])
            variables[f"round_{of_round.name.removeprefix('n_')}"] = ("round", values)
        variables["phase_seconds"] = ("phase", np.array([self.tally.phases[phase] for phase in PHASES]))
        source = question.K.view.source  # some bandwidths or landmarks depend on all of its samples
        attrs = {
            **question.attrs,
            "kind": question.targets.kind,
            "choice": choice,
            "parameters_searched": json.dumps(names),
            "parameters_by_class": json.dumps(question.by_class),
            "bandwidths_from_all_samples": sum(
                made.get("training_rows") == len(source.samples) for made in question.K.provenance
            ),
            "n_passes": self.tally.n_passes,
            "seconds": seconds,
            "n_points": len(question.models) * len(question.folds) * question.n_tasks,
            "solver": self.solver,
        }
        return question.with_folds(xr.Dataset(variables, coords, attrs), question.folds)


def with_exact_choices(
    questions: Mapping[Any, Question],
    answers: Mapping[Any, Answers],
    choosing: Sequence[slice],
    rule: Rule,
    workspace: Workspace,
) -> dict[Any, GridFits]:
    """The results of some questions, answered by one plan in the workspace, with exact scores where they choose.

    Each of the slices `choosing` are folds with a joint choice. Where scores are approximate
    (`dmkl.solvers.fisher.registry`), the chosen points and the best others are scored exactly, those of all questions
    in one pass, until the chosen points are exact: no other point then has a larger score, exact or approximate. After
    the rounds of `_BEST`, at some 30 points of a choice, the best of the exact points is chosen (`grid.best_index`).
    Where A of a single point takes too long to factor, all stay approximate; see `GridFits.approximate`.
    """
    fits = {key: GridFits.of(question, answers[key]) for key, question in questions.items()}
    tally, outcomes = next(iter(answers.values())).tally, [outcome for key in fits for outcome in answers[key].fits]
    ends = np.cumsum([len(answers[key].fits) for key in fits]).tolist()
    parts = {key: slice(end - len(answers[key].fits), end) for key, end in zip(fits, ends, strict=True)}
    for n_best in _BEST:
        ranked = []  # rank, fit and problem
        for key, of_key in fits.items():
            if of_key.approximate is not None:
                for rank, (fit, task) in of_key.undecided(choosing, rule, n_best):
                    problems = enumerate(outcomes[parts[key]][fit].outcomes)
                    several = of_key.question.targets.dim is not None
                    own = [k for k, solution in problems if solution.interpolated and (k == task or not several)]
                    ranked += [(rank, parts[key].start + fit, k) for k in own]
        if not ranked:
            break
        K = next(iter(questions.values())).K
        exact = factored(K, outcomes, [(fit, k) for _, fit, k in sorted(ranked)], tally, workspace)
        fits = {key: of_key.updated(outcomes[parts[key]], exact[parts[key]]) for key, of_key in fits.items()}
        outcomes = exact
    return fits


def _approximate(question: Question, outcomes: Sequence[FitOutcome]) -> Mask | None:
    """`GridFits.approximate` of the outcomes of the rows of `Question.plan_fits`."""
    by_problem = [[solution.interpolated for solution in outcome.outcomes] for outcome in outcomes]
    if not any(map(any, by_problem)):
        return None
    by_task = [of if len(of) == question.n_tasks else [any(of)] * question.n_tasks for of in by_problem]
    approximate = np.zeros((len(question.fitted), len(question.folds), question.n_tasks), dtype=bool)
    approximate[question.fitted] = np.reshape(by_task, (len(question.folds), -1, question.n_tasks)).swapaxes(0, 1)
    return approximate


def _judged(outcome: FitOutcome) -> Float:
    """The scores that solvers have returned, (metric, 2, task)."""
    scores = np.concatenate([solution.extra["scores"] for solution in outcome.outcomes], axis=2)
    if len(outcome.outcomes) == 1:
        return scores
    return scores[:, :, np.argsort(np.concatenate([part.members for part in outcome.data.parts]))]


def _by_kernel(weights: Float, n_kernels: int) -> Float:
    """One weight for each kernel: the mean over groups of samples; all kernels share the weight of their product."""
    # Tasks with fewer groups than others have weights of zero for the rest.
    plain = weights.sum(axis=1) / max(1, weights.any(axis=0).sum()) if weights.ndim == 2 else weights
    return plain if len(plain) == n_kernels else np.full(n_kernels, plain[0])


def _plain(labels: Array) -> Array:
    return labels.astype(str) if labels.dtype.kind in "OTUS" else labels


def _in_columns(targets: Targets, of_fold: Targets, values: Float, missing: float) -> Float:
    """Columns of the classes of a fold, which may train without one, as columns of all classes."""
    if targets.kind != "multiclass":
        return values
    columns = np.full((len(values), len(targets.classes)), missing)
    of_classes = np.stack([-values, values], axis=-1) if values.ndim == 1 else values
    columns[:, np.searchsorted(targets.classes, of_fold.classes)] = of_classes
    return columns


@contextmanager
def lock_state(state: str | Path | None) -> Iterator[Path | None]:
    """Lock the folder of a state for this process, and put temporary files into it; nothing if None."""
    folder = None if state is None else state_folder(state)
    with nullcontext() if folder is None else lock(folder), temporary_files_in(folder):
        yield folder


def digest(*arrays: Array) -> str:
    """A short hash of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(repr(array.shape).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def as_variable(name: str, dims: Sequence[str], values: Sequence[Any], shape: Sequence[int] = (-1,)) -> xr.Variable:
    """Values of a parameter as a variable of this shape: numbers as they are, all else as text.

    Values that cannot be read back from their text (None, booleans) are kept in the attribute "values", a JSON list.
    """
    attrs = {} if variable(name) else {"long_name": f"parameter {name} of the estimator"}
    numbers = np.array(values) if all(isinstance(value, int | float | np.number) for value in values) else None
    if numbers is not None and numbers.dtype.kind in "iuf" and not any(isinstance(value, bool) for value in values):
        return xr.Variable(dims, numbers.reshape(shape), attrs | ({"units": "1"} if attrs else {}))
    texts = [value if isinstance(value, str) else repr(value) for value in values]
    for k, value in enumerate(values):
        if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
            texts[k] = "+".join(value) or "none"  # steps, in the notation of the command line
    if not all(isinstance(value, str) for value in values):
        attrs["values"] = json.dumps([encode(value) for value in values])
    return xr.Variable(dims, np.array(texts).reshape(shape), attrs)


def values_of(variable: xr.DataArray) -> list[Any]:
    """The original values of a parameter, in the order of the variable's elements."""
    if "values" in variable.attrs:
        return [decode(value) for value in json.loads(variable.attrs["values"])]
    return [value if variable.dtype.kind in "iuf" else str(value) for value in variable.values.ravel().tolist()]


def with_statuses(scores: xr.Dataset) -> xr.Dataset:
    """The scores with the statuses of this version; older files have others, and name them in an attribute."""
    meanings = str(scores["status"].attrs.get("flag_meanings", STATUS_FLAGS["flag_meanings"])).split()
    codes = np.array([WORDS.index(word) if word in WORDS else len(WORDS) - 1 for word in meanings], dtype=np.int8)
    status = scores["status"].values.astype(np.int64)
    status = np.where(status < 0, -1, codes[status]).astype(np.int8)  # −1: not fitted
    return scores.assign(status=scores["status"].copy(data=status).assign_attrs(STATUS_FLAGS))
