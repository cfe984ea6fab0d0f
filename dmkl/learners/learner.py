"""Base classes of learners: fitting by plans, saving, and the scores of classifiers and regressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache, partial
from itertools import combinations
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.exceptions import NotFittedError

import dmkl
from dmkl.arrays import Array, Float, Index, Mask, is_known, plain_repr
from dmkl.building import TrainingFeatures, features_of
from dmkl.errors import (
    ConvergenceWarning,
    IndefiniteKernelWarning,
    TrainingRowsWarning,
    UninformativeScoresWarning,
    refuse,
    warn,
)
from dmkl.files.urls import local_path
from dmkl.inputs.label_tables import matched
from dmkl.inputs.labels import in_columns
from dmkl.kernelset import Kernels, KernelSet, as_kernel_set, given_labels
from dmkl.learners import conformal, effects, figures, predicting
from dmkl.learners.checks import WeightRules, check_exponents, check_positive, decode, encode, one_for_each, one_of
from dmkl.learners.decisions import (
    GIVEN,
    IN_FOLDS,
    SEARCHED,
    Decision,
    DecisionRule,
    HeldOut,
    NotCalibratedError,
    Priors,
    class_index,
    class_weights,
    joined,
    predicted_labels,
    prior_probabilities,
)
from dmkl.learners.engine import run
from dmkl.learners.plan import (
    ClassWeight,
    Fit,
    FitOutcome,
    Multiclass,
    Part,
    Problems,
    ScoreFunction,
    Statistics,
    TrainingSet,
    fits_of_folds,
    held_out_among,
    labeled_targets,
    side_by_side,
    tell_new_classes,
    total_sample_weights,
)
from dmkl.learners.saving import FORMAT, MODELS, fitted_attributes, write_compact, write_model
from dmkl.learners.traits import Traits
from dmkl.numerics.covariates import Covariates, of_new, regress
from dmkl.numerics.fisher import Targets, encode_targets, encode_values, target_values, with_unknown, zero_or_one
from dmkl.numerics.steps import FittedStep, Weighing, as_steps
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.view import Lens
from dmkl.solvers.interface import CombinedProduct, EachProduct, Outcome, Solver, Step, worst
from dmkl.solvers.jobs import Job, Method, SideBySide
from dmkl.solvers.margin.svm import Bounds
from dmkl.solvers.weight_sets import WeightSet
from dmkl.solvers.workspace import Prepared
from dmkl.store.saved import replace_group
from dmkl.variables import describe


def _labels(dim: str, names: Array) -> tuple[str, Array]:
    """Names as NumPy strings, as in a loaded file; numbers unchanged."""
    return dim, names.astype(str) if names.dtype.kind in "OU" else names


def by_problem(problems: Problems, values: Sequence[float], name: str) -> Any:
    """A number for a single problem, a labeled array for several."""
    if problems.dim is None:
        return float(values[0])
    return xr.DataArray(np.array(values), [_labels(problems.dim, problems.names)], name=name)


def labeled_weights(outcomes: Sequence[Outcome], problems: Problems, kernels: Array) -> xr.DataArray:
    """Weights over kernel, then over group if groups of samples have weights, and class, pair or task of several."""
    weights = np.stack([outcome.weights for outcome in outcomes], axis=-1)
    grouped = weights.ndim == 3
    if problems.dim is None and not grouped:
        return xr.DataArray(weights[:, 0], [("kernel", kernels)], name="weight")
    columns = _labels(*(problems.columns if problems.dim is None else (problems.dim, problems.names)))
    groups = [("group", np.arange(weights.shape[1]))] if grouped else []
    return xr.DataArray(weights, [("kernel", kernels), *groups, columns], name="weight")


def history(outcomes: Sequence[Outcome], problems: Problems, kernels: Array) -> xr.Dataset:
    """A row for each step; shorter histories end in NaN."""
    dim, missing, longest = problems.dim or "problem", Step(None, {}), max(len(outcome.steps) for outcome in outcomes)
    steps = [[*outcome.steps, *[missing] * (longest - len(outcome.steps))] for outcome in outcomes]
    first = steps[0][0] if longest else missing
    coords: dict[str, Any] = {} if problems.dim is None else {dim: _labels(dim, problems.names)[1]}
    coords["iteration"] = np.arange(1, longest + 1)
    variables: dict[str, Any] = {}
    for name in first.figures:
        values = [[step.figures.get(name, np.nan) for step in of_problem] for of_problem in steps]
        variables[name] = (dim, "iteration"), np.array(values, dtype=np.float64)
    if first.weights is not None:
        unknown, coords["kernel"] = np.full(len(kernels), np.nan), kernels
        weights = [[unknown if step.weights is None else step.weights for step in of_problem] for of_problem in steps]
        variables["weight"] = (dim, "iteration", "kernel"), np.array(weights, dtype=np.float64)
    dataset = xr.Dataset(variables, coords)
    return dataset.isel({dim: 0}, missing_dims="ignore") if problems.dim is None else dataset


class KernelLearner(BaseEstimator):  # type: ignore[misc]
    """A learner on a weighted sum of kernels, either a `KernelClassifier` or a `KernelRegressor`.

    The score of a sample x for column k (a class, a task, a target) is Σ_j β_j Σ_i k_j(x, x_i) α_ik + b_k, with its row
    of kernel values centered and normalized by the statistics of the training samples.

    A new learner defines `__init__`, `traits`, `_problem` or `_jobs`, and if needed `_method`, `_prepare` and
    `_set_attributes`, or other methods with an underscore, which the engine calls. It can then be fitted, searched,
    saved and loaded, as `dmkl.testing.check_learner` checks.
    """

    lam: Any
    tol: float
    class_weight: ClassWeight = None
    steps: str | Sequence[str]
    multiclass: Multiclass = "ovr"  # How several classes become binary problems.
    sharing: Any = "none"  # Which problems have common weights.
    kernel_names_: tuple[str, ...]
    train_samples_: Array
    weights_: xr.DataArray
    dual_coef_: xr.DataArray
    intercept_: xr.DataArray
    statistics_: tuple[Statistics, ...]
    features_: TrainingFeatures | str
    kind_: str
    classes_: Array
    tasks_: Array | None
    n_prediction_passes_: float
    nonconformity_: xr.Dataset
    _prepared: Any = None
    """The results of `_prepare`, one for each part of the columns, for learners that predict with them."""
    history_: xr.Dataset
    status_: str
    n_iter_: int
    traits: ClassVar[Traits] = Traits()

    def __init_subclass__(cls, *, abstract: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not abstract:
            MODELS[cls.__name__] = cls

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        """Names of the parameters, read from the signature once: plans of many fits copy learners by the thousand."""
        return super()._get_param_names()  # type: ignore[no-any-return]

    # --- before the first pass -----------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Refuse parameters that break a rule, by InputError."""
        several = [step for step in self._steps() if isinstance(step, Covariates)]
        if self.traits.covariate_effects and len(several) > 1:
            refuse(
                f"steps of {type(self).__name__} may take covariates out once, since their effects are fitted "
                f"together, and {len(several)} steps do; put all covariates into one table for residualize(Z)"
            )
        for name in self._get_param_names():
            if name in self.traits.rules:
                self.traits.rules[name](name, getattr(self, name))
        if self.traits.weight_set:
            self._weight_rules().check()
            self._exponents()

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        """Refuse kernels and labels that do not go with the parameters, by InputError."""
        if not (self.traits.takes_unknown_labels or targets.all_known):
            others = "MKRidge" if targets.kind == "regression" else "MKFDA or MKSVM"
            refuse(
                f"{type(self).__name__} needs the labels of all samples, and some labels of {targets.dim}s are "
                f"unknown; leave those samples out, or take a learner such as {others}, which trains each "
                f"{targets.dim} on its own samples"
            )
        indefinite = [kernel["name"] for kernel in K.provenance if "indefinite" in kernel]
        if indefinite and "cosine" in self._steps():
            msg = (
                f"{len(indefinite)} kernels have entries |k(x, z)| > √(k(x, x) k(z, z)): {', '.join(indefinite[:3])}"
                f"{' …' if len(indefinite) > 3 else ''}. Inner products never have; 'cosine' divides by these roots "
                "and makes such entries larger than those of kernels whose entries are similarities. Take steps "
                "without 'cosine', or repair the kernels by repair='clip', 'flip' or 'shift'"
            )
            warn(msg, IndefiniteKernelWarning)
        if self.traits.weight_set:
            rules = self._weight_rules()
            for p in self._exponents():
                rules.weights(p, K.names)

    def _check_weights(self) -> None:
        """Refuse weights of samples if the learner has no use for them, by InputError."""
        if not self.traits.takes_sample_weight:
            refuse(f"{type(self).__name__} does not weigh samples; leave sample_weight out")

    def _nested(self, fit: Fit, K: KernelSet) -> Mapping[Any, Fit]:
        """Rows that are fitted first, because this row depends on their outcomes, by keys of the class's choice."""
        return {}

    def _apply_nested(self, fit: Fit, outcomes: Mapping[Any, FitOutcome]) -> Fit:
        """The row that follows from the outcomes of its nested rows, by their keys."""
        return fit

    # --- kernels and problems ------------------------------------------------------------------------------------

    def _source(self, K: KernelSet) -> KernelSet:
        """The kernels that are learnt from, and of new rows those of a fitted learner, made of those that are given."""
        return K

    def _steps(self) -> tuple[str | Covariates, ...]:
        """The preprocessing steps."""
        return as_steps(self.steps)

    def _with_steps(self, K: KernelSet, weights: Float | None = None) -> KernelSet:
        """The kernels with the steps, not measured: D^{1/2}KD^{1/2} if training samples have weights d."""
        stepped = K.with_steps(self.steps, weights)
        return stepped if weights is None else stepped.weighed(weights)

    def _weighted(self, targets: Targets, sample_weight: Float | None = None) -> Targets:
        """The targets with weights of samples, if statistics and targets depend on them."""
        return targets

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        """The targets of labels, refused by InputError if they break a rule."""
        raise NotImplementedError

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        """The independent problems."""
        raise NotImplementedError

    def _least_lam(self, lens: Lens) -> float:
        """The least λ that the stored precision of the kernels resolves; 0 for learners without λ."""
        return 0.0

    def _needs_statistics(self, lens: Lens) -> bool:
        """Whether the solver needs the statistics of the steps, which those of kernels kept as factors may not."""
        return True

    def _covariates(self) -> Covariates | None:
        """The covariates of the step that residualizes, if there is one."""
        return next((step for step in as_steps(self.steps) if isinstance(step, Covariates)), None)

    def _sample_weights(self, data: TrainingSet, number: int) -> Float | None:
        """The weight of each sample of a problem times that of its class; None without weights."""
        problems = data.problems
        weights = total_sample_weights(problems.targets, data.fit.sample_weight, self.class_weight)
        if weights is None:
            return None
        # Several classes are problems on one set of labels.
        sample_weights = weights[number if problems.targets.dim is not None else 0]
        for rows in (problems.labeled[number], problems.rows[number]):
            sample_weights = sample_weights if rows is None else sample_weights[rows]
        return sample_weights

    def _exponents(self) -> list[float]:
        """The norm p of the weights, or one for each problem."""
        return check_exponents("p", getattr(self, "p", np.inf))

    def _weight_rules(self) -> WeightRules:
        """The set of weights that the parameters of the class describe."""
        names = [name for name in ("kernel_groups", "sigma", "constraints") if hasattr(self, name)]
        return WeightRules(**{name: getattr(self, name) for name in names}, given=getattr(self, "weights", None))

    def _of_problems(self, name: str, n_problems: int) -> list[float]:
        """The positive numbers of a parameter, one for each problem."""
        return one_for_each(name, check_positive(name, getattr(self, name)), n_problems)

    def _points(self, data: TrainingSet) -> list[tuple[float, WeightSet, Float | None, str]]:
        """λ, the set of weights, the initial weights if there are any, and the name in messages, of each problem."""
        problems = data.problems  # values of all problems once: a permutation test has tens of thousands of fits
        exponents = one_for_each("p", self._exponents(), len(problems))
        ridges, rules = self._of_problems("lam", len(problems)), self._weight_rules()
        points = []
        for k, (p, lam) in enumerate(zip(exponents, ridges, strict=True)):
            weights, start = rules.weights(p, data.training.names), data.start(k)
            if data.fit.kernels is not None:
                weights = weights.select(data.fit.kernels)
            start = None if start is None else weights.start(data.n_kernels, start)
            points.append((lam, weights, start, f"{data.training.title}{problems.title(k)}"))
        return points

    # --- solving -------------------------------------------------------------------------------------------------

    def _prepare(self, data: TrainingSet, part: Part, files: Prepared) -> Solver[Any]:
        """Prepare one of `TrainingSet.parts` for all fits that share it; `files` keep the result in a checkpoint."""
        raise NotImplementedError

    def _method(self) -> Method:
        """The solver of the jobs. Jobs of equal methods are solved together."""
        return SideBySide()

    def _problem(self, data: TrainingSet, number: int) -> Any:
        """A problem as `_method` solves it: by default a function without arguments that returns a solver."""
        raise NotImplementedError

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        """A job for each problem; `prepared` has the result of the preparation for each part, or is None."""
        return data.jobs(partial(self._problem, data))

    # --- held-out rows -------------------------------------------------------------------------------------------

    def _scores(self, function: ScoreFunction, new: KernelSet, prepared: Any) -> Solver[Float]:
        """Scores of new rows, (rows, classes or tasks); `prepared` is that of the part that the function belongs to."""
        return function.summed((yield CombinedProduct(function.dual, function.weights, exact=True)) + function.bias)

    def _shares(self, function: ScoreFunction, new: KernelSet, prepared: Any) -> Solver[Float]:
        """The share of each kernel in the scores of new rows, (kernels, rows, columns); their sum is the score − b."""
        products = yield EachProduct(function.dual)
        return function.summed(function.weights[:, None, :] * products)

    def _offsets(self, samples: Array, *, covariates: Any = None, **more: Any) -> Float:
        """The part of scores that is neither the kernels' nor the intercept, (1,) or (rows, columns)."""
        return effects.offsets(self, samples, covariates)

    def _response(self, scores: Float, data: TrainingSet | None = None, outcomes: Sequence[Outcome] = ()) -> Float:
        """The scores or predictions that a linear predictor means, Σ_j β_j K_j α + b: itself by default.

        The predictor is that of these outcomes, or of the fitted attributes where there are none.
        """
        return scores

    def _decide(self, outcomes: Sequence[FitOutcome]) -> list[Float]:
        """Decision values of the held-out rows of fits of one class of learners on the same training rows."""
        return [outcome.decision for outcome in outcomes]

    def _set_attributes(self, outcome: FitOutcome) -> None:
        """Set the attributes of this class of learners, after those of all learners."""

    def _set_decisions(self, outcome: FitOutcome) -> None:
        """Learn the decision rule, if there is one."""

    # --- searches ------------------------------------------------------------------------------------------------

    @property
    def _judges(self) -> bool:
        """Whether searches receive scores of the held-out rows (`Fit.judge`), in an outcome for each of the parts."""
        return False

    def _parameter_texts(self, names: Sequence[str]) -> dict[str, str]:
        """Each parameter as text that is the same in every process, by which searches are compared."""
        texts = {name: plain_repr(value) for name, value in sorted(self.get_params(deep=False).items())}
        return texts | self._weight_rules().texts(names) if self.traits.weight_set else texts

    @classmethod
    def _upgrade_parameters(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        """Parameters of this version from those that an earlier version has written."""
        return parameters

    def _of_classes(self, kind: str) -> tuple[str, ...]:
        """Parameters that may have a value for each class, as a mapping from classes."""
        return ()

    def _learns_weights(self) -> bool:
        """Whether the weights are learnt, and depend on p, on λ or C, and on the spectra of the kernels."""
        return self.traits.learns_weights and getattr(self, "weights", None) is None

    def _default_price(self) -> str:
        """A note if λ, or C of a machine, has its default, on which weights depend; empty otherwise."""
        name = "C" if hasattr(self, "C") and getattr(self, "loss", "hinge") == "hinge" else "lam"
        if not self._learns_weights() or repr(getattr(self, name, None)) != repr(getattr(type(self)(), name, "")):
            return ""
        value = getattr(self, name)
        return f"{name} = {value:g} is the default; weights depend on it: choose it by a search (dmkl search)"

    def _of_plain_sum(self, grid: Mapping[str, tuple[Any, ...]]) -> tuple[KernelLearner, dict[str, Any]] | None:
        """The same learner on the sum of all kernels with equal weights, and the parameters of `grid` that concern it.

        None if the learner has no such form. Learners with C whose weights are no parameters are compared with the
        support vector machine on the sum, which shares the parameters of machines alone (`sharing` has other meanings).
        """
        shared: Sequence[str]
        if self.traits.plain_sum:
            learner: KernelLearner = clone(self).set_params(**self.traits.plain_sum)
            shared = [name for name in self._get_param_names() if name not in self.traits.plain_sum]
        elif isinstance(self, KernelClassifier) and hasattr(self, "C") and getattr(self, "loss", "hinge") == "hinge":
            shared = ("C", "multiclass", "class_weight", "decision", "steps")
            learner = dmkl.MKSVM(np.inf, **{name: getattr(self, name) for name in shared})
        else:
            return None
        return learner, {name: values for name, values in grid.items() if name in shared}

    def _own_grid(self) -> dict[str, tuple[Any, ...]]:
        """Values of parameters that every search of this learner searches, in addition to its grid."""
        return {}

    def _strata(self, labels: Array) -> Array | None:
        """Values of which folds have equal shares, in place of classes."""
        return None

    def _has_residuals(self) -> bool:
        """Whether predictions of a regression can be subtracted from its labels."""
        return True

    @classmethod
    def _has_errors(cls) -> bool:
        """Whether predictions and labels have differences; log hazard ratios and times have none."""
        return cls.traits.scorer is None or not issubclass(cls, RegressorMixin)

    def _regress(self, design: Float, labels: Float, new: Float, samples: Array) -> tuple[Float, Float]:
        """The learner on covariates [1, z] alone, (m, 1 + columns), of samples; see `dmkl.numerics.covariates`."""
        return regress(design, labels, new)

    def _permuted(self, labels: Array, order: Array, samples: Array) -> Array:
        """Labels for a permutation test: row i gets the label of row order[i]."""
        return labels[order]

    def decisions_of(self, scores: Array) -> Float:
        """Decision values in the shape of the scores: the scores themselves."""
        return scores

    # --- fitting -------------------------------------------------------------------------------------------------

    @one_blas_thread
    def fit(
        self,
        K: Kernels,
        y: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        *,
        unknown: Any = None,
    ) -> Self:
        """Learn the weights and the dual variables.

        Parameters
        ----------
        K
            The training kernels, ``K[train, train]``, or matrices in memory as `dmkl.create` takes them.
        y
            For a classifier (m,) integers or strings, two classes or more, or (m, tasks) of 0 and 1 (or −1 and 1); for
            a regression (m,) or (m, targets) numbers. Columns are independent problems that share the passes. A label
            that is unknown (NaN, None, an empty string) leaves its sample out of that column's problem alone, and out
            of the statistics of its kernels. Where it carries names of samples (the index of a series, a coordinate),
            each sample of `K` gets the label of its name. The labels stored with the kernels where missing.
        sample_weight
            (m,), the weight d_i ≥ 0 of each sample, matched by name if they have names of samples, times the weight of
            its class if the learner has `class_weight`. A sample of weight 0 is left out: it is none of
            `train_samples_`.

            In least squares (Fisher discriminants, ridge regression) a whole number is the same as so many copies of
            the sample, also in centering, normalizing, priors and class means of scores; leave-one-out scores leave out
            all copies. In a support vector machine it multiplies C, and statistics of the kernels ignore it.
        unknown
            A code of unknown labels: 0 for the "difficult" images of the VOC challenges, whose others are −1 and 1.

        Raises
        ------
        InputError
            If a parameter, the labels, the weights or the kernels break a rule.
        IndefiniteKernelError
            If a kernel proves not to be positive semidefinite.
        MemoryBudgetError
            If the solver that was asked for does not fit the memory budget.
        """
        # A fit that fails leaves an estimator that is not fitted, not one of the old weights with new names.
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        K = as_kernel_set(K, "fit")
        weights = kept = None
        if sample_weight is not None:
            given_weights = matched("sample_weight", sample_weight, K.samples, named=K.view.has_names).values
            weights, shape = given_weights.astype(np.float64), (K.shape[1],)
            if weights.shape != shape or not ((np.isfinite(weights) & (weights >= 0)).all() and weights.any()):
                refuse(
                    f"sample_weight must be 0 or more for each of the {K.shape[1]} samples, got shape {weights.shape}"
                    f"{'' if weights.shape != shape else f' with {weights.min():g} in it'}; samples of weight 0 are "
                    "left out, and at least one must have more"
                )
            kept = None if weights.all() else np.flatnonzero(weights)
        targets, tasks = labeled_targets(self, K, y, "fit", unknown, kept)
        if kept is not None and weights is not None:
            K, weights = K[kept, kept], weights[kept]
        row = Fit(self, np.arange(K.shape[1]), targets, tasks, sample_weight=weights)
        self._take(run(K, [row]).fits[0])
        given = {"y": y, "sample_weight": sample_weight, "unknown": unknown}
        self.history_.attrs["given"] = ",".join(name for name, value in given.items() if value is not None)
        return self

    def _take(self, outcome: FitOutcome) -> None:
        """Set the fitted attributes, and warn if a proven gap is above the tolerance."""
        data, problems, targets = outcome.data, outcome.data.problems, outcome.data.problems.targets
        outcomes, function = outcome.outcomes, outcome.score_function
        self.classes_ = targets.classes
        self.kind_ = targets.kind
        self.tasks_ = None if targets.dim is None else problems.names
        self.kernel_names_ = data.kernels.names
        self.features_ = features_of(data.kernels)
        self.train_samples_ = data.kernels.train_samples.astype(str)
        self.n_features_in_ = data.kernels.shape[1]
        if outcome.solver is not None:
            self.solver_ = outcome.solver
        kernels, columns = np.array(self.kernel_names_, dtype=str), _labels(*problems.columns)
        self.weights_ = labeled_weights(outcomes, problems, kernels)
        # In the memory order of a loaded file, so that a loaded model predicts the same to the last bit.
        dual, samples = np.ascontiguousarray(function.dual), ("sample", self.train_samples_)
        self.dual_coef_ = xr.DataArray(dual, [samples, columns], name="dual_coef")
        has_intercept = any(np.ndim(solution.bias) or solution.bias for solution in outcomes)
        if has_intercept and function.bias.ndim == 1:  # with covariates the class sets it
            self.intercept_ = xr.DataArray(function.bias, [columns], name="intercept")
        self.gap_ = by_problem(problems, [solution.gap for solution in outcomes], "gap")
        self.objective_ = by_problem(problems, [solution.objective for solution in outcomes], "objective")
        errors = [solution.weights_error for solution in outcomes]
        if not np.isnan(errors).all():
            self.weights_error_ = by_problem(problems, errors, "weights_error")
        place = worst(outcomes)
        status = outcomes[place].status
        self.status_ = status.advice
        self.n_iter_ = max(len(solution.steps) for solution in outcomes)
        self.n_passes_ = float(outcome.n_passes)
        self.history_ = history(outcomes, problems, kernels).assign_attrs(
            created_on=date.today().isoformat(), **data.kernels.origin
        )
        self.statistics_ = self._statistics(data)
        self._set_decisions(outcome)
        self._set_attributes(outcome)
        for value in vars(self).values():
            if isinstance(value, xr.DataArray | xr.Dataset):
                describe(value)
        if status.word == "open" and not np.isnan(gap := outcomes[place].gap):
            problem_name = "" if problems.dim is None else f" ({problems.dim} {problems.names[place]})"
            warn(
                f"{type(self).__name__} ended with a relative gap of {gap:.2e}{problem_name}, above "
                f"tol={self.tol:g}. {status.advice}",
                ConvergenceWarning,
            )

    plot_weights = figures.plot_weights
    plot_weight_map = figures.plot_weight_map
    plot_convergence = figures.plot_convergence

    def _statistics(self, data: TrainingSet) -> tuple[Statistics, ...]:
        """The statistics of the training kernels, for each part of the problems."""
        n_steps, every, statistics = len(self._steps()), np.arange(self.dual_coef_.shape[1]), []
        for part in data.parts:
            # Weights of samples are in the dual variables already.
            steps = [step for step in part.training.square.fitted.steps if not isinstance(step, Weighing)]
            columns = every if len(data.parts) == 1 else part.members
            statistics.append(Statistics(tuple(steps[len(steps) - n_steps :]), columns, part.rows))
        return tuple(statistics)

    def _truth(
        self, rows: KernelSet | None, y: npt.ArrayLike | None, purpose: str = "score", unknown: Any = None
    ) -> Array:
        """The labels that a score compares with: those given, matched by the names of `rows`, or those of the kernels.

        Without `rows`, `y` is in their order.
        """
        if purpose == "assess" and not self.traits.needs_labels:
            refuse(f"{type(self).__name__} predicts clusters; compare them with classes by dmkl.cluster_agreement")
        truth, columns = (y, None) if rows is None else given_labels(rows, y)
        if truth is None:
            refuse(f"{purpose} needs labels: give y, or store them with the kernels")
        truth = with_unknown(truth, unknown)
        if rows is not None and len(truth) != rows.shape[1]:
            refuse(f"y has {len(truth)} labels, and there are {rows.shape[1]} samples; give one for each")
        truth = in_columns(truth, columns, getattr(self, "tasks_", None))
        return zero_or_one(truth) if getattr(self, "kind_", None) == "multilabel" else truth

    # --- predicting ----------------------------------------------------------------------------------------------

    contributions = predicting.contributions
    feature_weights = predicting.feature_weights
    combined_kernel = predicting.combined_kernel
    kernel_pca = predicting.kernel_pca
    cross_kernels = predicting.cross_kernels

    def _decision(self, K: Kernels | None, *, response: bool = True, **new: Any) -> xr.DataArray:
        parts, kernels, _ = self._solve_for_new_rows(K, self._scores, **new)
        samples = kernels.samples.astype(str)
        scores = side_by_side(parts, [part.columns for part in self.statistics_])
        scores = scores + self._offsets(samples, **predicting.beside_features(new))
        scores, dim = self._response(scores) if response else scores, self._score_dim()
        labels = [(dim, self.classes_ if dim == "class" else self.tasks_)] if dim else []
        return describe(xr.DataArray(scores if dim else scores[:, 0], [("sample", samples), *labels], name="score"))

    def _solve_for_new_rows(
        self, K: Kernels | None, ask: predicting.Ask, *, covariates: Any = None, **new: Any
    ) -> tuple[list[Float], KernelSet, Index]:
        """Return the results of the solver of each part, made by `ask`, the kernels of new rows and their positions."""
        K = self._rows(K, **new)
        chosen, used = predicting.match_kernels(self, self._source(K))
        function = self._score_function(used)
        prepared = self._prepared or [None] * len(self.statistics_)
        solvers = [
            ask(function.of(part.columns, part.rows), chosen, prepared_part)
            for part, prepared_part in zip(self.statistics_, prepared, strict=True)
        ]
        return predicting.solve_through(self, chosen, used, solvers, covariates), chosen, used

    def _rows(self, K: Kernels | None, **new: Any) -> KernelSet:
        """The kernels of new rows against the training samples: those given, or those of their features."""
        self._check_fitted()
        features = {name: value for name, value in new.items() if name not in self.traits.of_rows}
        if not features:
            return as_kernel_set(K, "prediction", self.train_samples_)
        if K is not None:
            refuse("give kernels or features, not both")
        return self.cross_kernels(**features)

    def _scored_rows(
        self, purpose: str, K: Kernels | None, y: npt.ArrayLike | None, unknown: Any, **new: Any
    ) -> tuple[xr.DataArray, Array, KernelSet]:
        """Scores of rows, their labels in the same order, and their kernels.

        A TrainingRowsWarning tells if the model was trained on some of them; `calibrate` refuses them.
        """
        rows = self._rows(K, **new)
        truth, is_trained = self._truth(rows, y, purpose, unknown), self._is_trained_on(rows)
        trained = rows.samples[is_trained]
        if len(trained) and purpose != "calibrate":
            warn(f"{predicting.training_note(is_trained)}; leave them out of scores", TrainingRowsWarning)
        elif len(trained):
            refuse(
                f"calibrate takes rows that the model was not trained on, and sample {str(trained[0])!r} is one of its "
                f"training samples ({len(trained)} are); leave them out: their scores are fitted to their labels"
            )
        return self._decision(rows, **predicting.beside_features(new)), truth, rows

    def _check_coverage(self, coverage: float) -> None:
        """Refuse prediction sets and intervals of a model that keeps no nonconformity of other rows."""
        self._check_fitted()
        if not 0.0 < coverage < 1.0:
            refuse(f"coverage must lie between 0 and 1, such as 0.9, got {coverage!r}")
        if not hasattr(self, "nonconformity_"):
            refuse(
                f"this {type(self).__name__} keeps no predictions of rows that it was not trained on, from which "
                "sets and intervals of a given coverage follow; choose it by dmkl.search (dmkl search), or call "
                "calibrate(K[held_out, train], y) with rows that were left out"
            )

    def _is_trained_on(self, rows: KernelSet | Sequence[str]) -> Mask:
        """Which rows the model was trained on, by their names; numbers of rows are names in one square set alone."""
        named = not isinstance(rows, KernelSet) or rows.view.has_names or rows.view.source.symmetric
        names = np.asarray(rows.samples if isinstance(rows, KernelSet) else rows)
        return np.asarray(np.isin(names.astype(str), self.train_samples_) & named)

    def _score_dim(self) -> str | None:
        """The second dimension of scores: "class", "task" or "target"; None for a single column."""
        if self.tasks_ is not None:
            return "target" if self.kind_ == "regression" else "task"
        return "class" if self.kind_ == "multiclass" else None

    def _trained_steps(self, part: Statistics, used: Index, samples: Array, covariates: Any) -> list[FittedStep]:
        """The steps of a part with the statistics of training, for rows that are these samples.

        Steps that take covariates out use the `covariates` of the rows, and those of training for missing rows.
        """
        given = [step if isinstance(step, Covariates) else None for step in self._steps()]
        if covariates is not None and not any(given):
            refuse(f"this {type(self).__name__} takes no covariates out; leave them out, or fit with residualize(Z)")
        if covariates is not None:
            given = [None if step is None else of_new(covariates, step, samples) for step in given]
        return [step.select(used).of_samples(samples, table) for step, table in zip(part.steps, given, strict=True)]

    def _score_labels(self) -> tuple[str, Array]:
        """The dimension and the labels of the scores that kernels contribute to, also of a single one."""
        dim = str(self.dual_coef_.dims[1])
        return dim, self.dual_coef_[dim].values

    def _score_function(self, used: Index) -> ScoreFunction:
        """The score function of the fitted attributes, restricted to some of the kernels."""
        dual = np.asarray(self.dual_coef_.values, dtype=np.float64)
        weights = np.asarray(self.weights_.values, dtype=np.float64)[used]
        if weights.ndim == 1:
            weights = weights[:, None]
        if weights.shape[-1] != dual.shape[1]:
            weights = np.repeat(weights, dual.shape[1], axis=-1)
        bias = self.intercept_.values if hasattr(self, "intercept_") else np.zeros(dual.shape[1])
        return ScoreFunction(weights, dual, bias, str(self.dual_coef_.dims[1]))

    def _kernels_used(self) -> list[str]:
        """The kernels of the model that prediction reads: those of weight, and one where none has any."""
        used = np.flatnonzero(self.weights_.values.reshape(len(self.kernel_names_), -1).any(axis=1))
        return [self.kernel_names_[k] for k in used] or [self.kernel_names_[0]]

    def _kernels_needed(self) -> list[str]:
        """The kernels of new samples that prediction needs."""
        return self._kernels_used()

    def _check_fitted(self) -> None:
        if not hasattr(self, "weights_"):
            msg = f"this {type(self).__name__} is not fitted yet; call fit first"
            raise NotFittedError(msg)

    # --- saving --------------------------------------------------------------------------------------------------

    def save(self, path: Any, *, overwrite: bool = False, compact: bool = False) -> None:
        """Write the model as a Zarr group with JSON attributes: no pickle, readable by any Zarr or xarray.

        Parameters
        ----------
        path
            A folder, or a URL.
        overwrite
            Replace a model.
        compact
            Write one file, a ZIP archive of the group, with what predictions read alone: they are the same. Kernels
            without weight and `history_` are left out, so that reports and pictures lack them.

        Raises
        ------
        StoreExistsError
            If something is at `path` and `overwrite` was not given, or it is no model.
        InputError
            If a compact model is to be written at a URL, or in place of a folder.
        """
        self._check_fitted()
        if compact and local_path(path, "a compact model").is_dir():
            refuse(f"{path} is a folder, and a compact model is one file; choose another path, such as {path}.zip")
        write = partial(write_compact if compact else write_model, self)
        replace_group(path, write, FORMAT, "model", overwrite=overwrite)

    def _state(self) -> dict[str, Any]:
        """Fitted attributes that are not labeled arrays, as plain JSON values."""
        return {
            name: encode(value.values if isinstance(value, xr.DataArray) else value)
            for name, value in fitted_attributes(self, "state").items()
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        """Set the attributes of `_state`, after the labeled arrays; InputError for others."""
        for name, written in state.items():
            declared, value = self.traits.fitted.get(name), decode(written)
            if declared is None or declared.kept != "state":
                refuse(f"the state of a {type(self).__name__} has no {name}")
            if name in ("gap_", "objective_", "weights_error_") and np.ndim(value):
                # A problem may have several columns of dual variables: a task of LPBoost with several classes.
                labeled = self.weights_ if self.weights_.ndim > 1 else self.dual_coef_
                dim, values = labeled.dims[-1], np.array(value, dtype=np.float64)
                value = xr.DataArray(values, [(dim, labeled[dim].values)], name=name.rstrip("_"))
            setattr(self, name, value)


def fitted(outcome: FitOutcome) -> Any:
    """A copy of the learner of a row, with the fitted attributes of its outcome."""
    model: KernelLearner = clone(outcome.data.fit.learner)
    model._take(outcome)
    return model


class KernelClassifier(ClassifierMixin, KernelLearner, abstract=True):  # type: ignore[misc]
    """A classifier on a weighted sum of kernels."""

    C: Any
    priors: Priors = None
    decision: Decision | None = None
    traits = KernelLearner.traits.but(rules={"decision": one_of("means", "largest", None)})

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.class_weight is not None:
            self._check_weights()

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        total_sample_weights(targets, None, self.class_weight)

    def _prices(self, data: TrainingSet, number: int) -> Bounds:
        """The price C of each sample of a problem; one number without weights of samples and classes."""
        C = self._of_problems("C", len(data.problems))[number]
        weights = self._sample_weights(data, number)
        return C if weights is None else C * weights

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        return encode_targets(labels, n_samples, tasks)

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.binary(targets, tasks, self.multiclass)

    def _scores(self, function: ScoreFunction, new: KernelSet, prepared: Any) -> Solver[Float]:
        scores: Float = yield from super()._scores(function, new, prepared)
        if function.dim != "pair":
            return scores
        # The votes for each class, plus a fraction of a vote by the sum of its scores, which breaks ties.
        n_classes = (1 + round((1 + 8 * scores.shape[1]) ** 0.5)) // 2
        votes, sums = np.zeros((2, len(scores), n_classes))
        for column, (a, b) in zip(scores.T, combinations(range(n_classes), 2), strict=True):
            votes[:, a] += column > 0
            votes[:, b] += column <= 0
            sums[:, a] += column
            sums[:, b] -= column
        return np.asarray(votes + sums / (3.0 * (np.abs(sums) + 1.0)))

    def _set_decisions(self, outcome: FitOutcome) -> None:
        self.priors_ = np.array(self._priors(outcome.data.problems.targets))
        rule = self._decision_rule(outcome)
        self._set_decision_rule(rule)
        if rule is not None and self._decides_by() == "means" and not rule.sharpness.all():
            msg = (
                "scores of left-out training rows are not higher in the second class than in the first: with these "
                "parameters the kernels do not separate the classes, and predictions follow the prior probabilities. "
                "Try others, such as another λ, or test the kernels with dmkl.permutation_test"
            )
            warn(msg, UninformativeScoresWarning)

    def _priors(self, targets: Targets) -> list[Float]:
        """Prior probabilities of the classes of each problem."""
        return [prior_probabilities(self.priors, targets.classes, sizes) for sizes in targets.sizes]

    @one_blas_thread
    def decision_function(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Scores Σ_j β_j K_j α + b of the row samples, (sample, class); (sample,) for two classes.

        Parameters
        ----------
        K
            ``K[test, train]``, or a rectangular set: new samples against the training samples in their order; or such
            matrices in memory. Kernels are matched by name; those of zero weight are not read.
        **new
            Instead of `K` the `features` of new samples, and `samples`, `present`, `join`, `missing`,
            `missing_features` and `functions` if needed (see `dmkl.build_cross`), for a model whose training kernels
            were built from features. Kernels of zero weight are not computed, and what only they use may be missing.
            Also `covariates` of the rows for a model whose steps take covariates out (`dmkl.residualize`): a DataFrame
            by sample, or an array in the order of the rows. Missing rows are looked up in the covariates of training.

        Raises
        ------
        InputError
            If the columns are not the training samples; if kernels with weight, or what they are made of, are missing.
        """
        return self._decision(K, **new)

    @one_blas_thread
    def predict(
        self,
        K: Kernels | None = None,
        *,
        as_xarray: bool = False,
        coverage: float | None = None,
        per_class: bool = False,
        **new: Any,
    ) -> Any:
        """Predict the labels of the row samples, of kernels or of `features` as in `decision_function`.

        Labels are an array (sample,), or (sample, task), and with `as_xarray` a DataArray with the samples' names.

        By the largest score that is its class, the second of two classes if the score is positive, 0 or 1 for each task
        of a multilabel problem by the sign of its score; by class means of scores the most probable class, with the
        `priors` of a discriminant. See `decision` of `MKFDA`.

        With a `coverage` such as 0.9 the sets of labels that hold the true one with this probability, whether each
        label is in them: a DataArray (sample, class), or (sample, task, class). They are those of `sets_of`.
        """
        scores = self.decision_function(K, **new)
        if coverage is not None:
            return self.sets_of(scores, coverage, per_class=per_class)
        labels = self.labels_of(scores.values)
        return labelled(labels, scores, "predicted_label") if as_xarray else labels

    score = predicting.score

    def _score(self, truth: Array, scores: Array, sample_weight: npt.ArrayLike | None) -> float:
        if self.kind_ != "multilabel":
            tell_new_classes(np.ravel(truth), self.classes_)
        return label_accuracy(truth, self.labels_of(scores), sample_weight)

    # --- decision rule and probabilities -----------------------------------------------------------------------------

    def labels_of(self, scores: Array) -> Array:
        """Labels that scores of `decision_function` mean, (samples,) or (samples, classes or tasks); see `predict`."""
        return predicted_labels(self.classes_, self.decisions_of(scores))

    def decisions_of(self, scores: Array) -> Float:
        """Decision values in the shape of the scores: the class with the largest wins, or the second class by the sign.

        The scores themselves where the largest decides; otherwise log posterior probabilities up to a constant for each
        sample, of two classes their difference.
        """
        if self._decides_by() == "largest" or not hasattr(self, "decider_"):
            return self._comparable_columns(scores)
        return self.decider_.decision(scores.reshape(len(scores), -1)).reshape(scores.shape)

    @one_blas_thread
    def predict_proba(self, K: Any = None, **new: Any) -> xr.DataArray:
        """Calibrated probabilities of the row samples, (sample, class); (sample, task) for a multilabel problem.

        `calibrated_on_` names the rows that they were calibrated on, which were not trained on; see `calibrate`.
        Parameters are those of `decision_function`.

        Raises
        ------
        NotCalibratedError
            If there was nothing to calibrate on: an InputError.
        """
        self._check_calibrated()
        return self.probabilities_of(self.decision_function(K, **new))

    def probabilities_of(self, scores: xr.DataArray) -> xr.DataArray:
        """Calibrated probabilities that scores of `decision_function` mean; see `predict_proba`."""
        self._check_calibrated()
        values = self.decider_.probabilities(scores.values.reshape(len(scores), -1))
        labels = ("task", self.tasks_) if self.kind_ == "multilabel" else ("class", self.classes_)
        return describe(xr.DataArray(values, [("sample", scores.sample.values), labels], name="probability"))

    def sets_of(self, scores: xr.DataArray, coverage: float, *, per_class: bool = False) -> xr.DataArray:
        """Conformal sets of labels that scores of `decision_function` mean.

        A label k is in the set if 1 − P(k | x) is at most the ⌈(m + 1)·coverage⌉-th smallest value of 1 − P(y_i | x_i)
        of m rows that the model was not trained on. A set is empty if all labels are less probable than that, and has
        all labels if there are fewer than coverage/(1 − coverage) rows. Rows of a group that folds keep together count
        as one. The attribute "guarantee" says which rows these are, and what is guaranteed.

        Parameters
        ----------
        scores
            Those of `decision_function`.
        coverage
            The probability, between 0 and 1, that a set holds the true label.
        per_class
            Whether to hold it for the samples of each class, each by its own rows (Mondrian).

        Returns
        -------
        DataArray
            Boolean, (sample, class), or (sample, task, class) of a multilabel problem.

        Raises
        ------
        InputError
            If `coverage` is out of range, or the model keeps no predictions of other rows.
        """
        self._check_coverage(coverage)
        return conformal.sets([self.probabilities_of(scores)], self.nonconformity_, coverage, per_class=per_class)

    @one_blas_thread
    def calibrate(self, K: Any = None, y: npt.ArrayLike | None = None, *, unknown: Any = None, **new: Any) -> Self:
        """Learn probabilities from the scores of rows that the model was not trained on.

        The class means of their scores and the covariance within classes give log densities, as in linear discriminant
        analysis. With these and the scores themselves, both weighted for the least log loss, probabilities follow by
        Bayes' rule. Labels follow from the same, unless the largest score decides (`decision` of `MKFDA`).

        Parameters
        ----------
        K, **new
            As in `decision_function`.
        y
            The true labels, matched by name if they have names of samples; those of `K` where missing.
        unknown
            A code of labels that are unknown, as in `fit`.

        Raises
        ------
        InputError
            If a row was trained on, a label is none of the classes, or a class has fewer than two rows.
        """
        scores, truth, _ = self._scored_rows("calibrate", K, y, unknown, **new)
        index = class_index(self.kind_, self.classes_, truth)
        for k, classes in enumerate(index):
            counts = np.bincount(classes[classes >= 0], minlength=len(self.classes_))
            if counts.min() < 2:
                of_task = f" of task {self.tasks_[k]}" if self.kind_ == "multilabel" and self.tasks_ is not None else ""
                refuse(
                    f"calibration needs two rows of each class, and class {self.classes_.tolist()[counts.argmin()]!r}"
                    f"{of_task} has {counts.min()}; give more rows"
                )
        held_out = HeldOut(scores.values.reshape(len(scores), -1), index)
        self._set_decision_rule(held_out.learn_rule(self.kind_, list(self.priors_), GIVEN))
        return self

    def _decides_by(self) -> Decision:
        """The rule that turns scores into labels."""
        return self.decision or ("means" if self.traits.leaves_one_out else "largest")

    def _comparable_columns(self, scores: Float) -> Float:
        """Scores of which the largest decides."""
        return scores

    def _nested(self, fit: Fit, K: KernelSet) -> Mapping[Any, Fit]:
        # Learners that have no leave-one-out scores learn class means from folds of the training rows.
        if self.traits.leaves_one_out or self.decision != "means":
            return {}
        from sklearn.model_selection import KFold, StratifiedKFold

        labels = fit.targets.labels
        columns = labels.reshape(len(labels), -1).T
        fewest = min(int(np.unique(column[is_known(column)], return_counts=True)[1].min()) for column in columns)
        if fewest < 2:
            refuse(
                "decision='means' leaves training rows out, and a class has one training row; take decision='largest', "
                "or leave that class out"
            )
        splitter = KFold if labels.ndim > 1 else StratifiedKFold
        rows = fits_of_folds(fit, splitter(min(5, fewest), shuffle=True, random_state=0))
        learner = clone(self).set_params(decision="largest")
        return {number: replace(row, learner=learner, kernels=fit.kernels) for number, row in enumerate(rows)}

    def _apply_nested(self, fit: Fit, outcomes: Mapping[Any, FitOutcome]) -> Fit:
        targets, rows = fit.targets, []
        for outcome in outcomes.values():
            labels = targets.labels[held_out_among(fit, outcome.data.fit)]
            rows.append(HeldOut(outcome.scores, class_index(targets.kind, targets.classes, labels)))
        return replace(fit, nested=joined(rows).learn_rule(targets.kind, self._priors(targets), IN_FOLDS))

    def _decide(self, outcomes: Sequence[FitOutcome]) -> list[Float]:
        rules = [self._decision_rule(outcome) for outcome in outcomes]
        return [
            outcome.decision if rule is None else rule.decision(outcome.scores).reshape(outcome.decision.shape)
            for outcome, rule in zip(outcomes, rules, strict=True)
        ]

    def _decision_rule(self, outcome: FitOutcome) -> DecisionRule | None:
        """The decision rule; None if there were no out-of-sample scores to learn it from."""
        rule = outcome.data.fit.nested  # SingleBest and LPBoost keep other results of their folds here
        return rule if isinstance(rule, DecisionRule) else None

    def _units(self, targets: Targets) -> list[Float]:
        """The factors for each problem that make scores comparable between training sets, one for each column."""
        return [np.ones(len(targets.classes) if targets.kind == "multiclass" else 1) for _ in targets.problems]

    def _calibrate_on(self, folds: Sequence[HeldOut], targets: Sequence[Targets], own: Targets) -> None:
        """Learn the rule from the validation rows of a search, if the fit has not and there are enough of them."""
        if any(not np.array_equal(target.classes, own.classes) for target in targets):
            return
        # With scores that are comparable between training sets, and with the weights of training.
        pairs = zip(folds, map(self._weighted, targets), strict=True)
        held_out = joined([fold.scaled(self._units(target), class_weights(target)) for fold, target in pairs])
        if self.calibrated_on_ is None and held_out.enough_for(self.priors_):
            rule = held_out.learn_rule(self.kind_, list(self.priors_), SEARCHED)
            self._set_decision_rule(rule.scaled(self._units(own)))

    def _set_decision_rule(self, decider: DecisionRule | None) -> None:
        if decider is not None:
            self.decider_ = decider
            if decider.nonconformity is not None and decider.learnt_on:
                self.nonconformity_ = decider.nonconformity
        self.calibrated_on_ = (decider.learnt_on or None) if decider is not None else None

    def _check_calibrated(self) -> None:
        self._check_fitted()
        if getattr(self, "calibrated_on_", None) is None:
            msg = (
                f"this {type(self).__name__} has no calibrated probabilities: there are no scores of rows that it was "
                "not trained on. Call calibrate(K[held_out, train], y) with rows that were left out, choose it with "
                "dmkl.search, or fit a Fisher discriminant with solver='direct', which leaves each row out by itself"
            )
            raise NotCalibratedError(msg)


def labelled(labels: Array, scores: xr.DataArray, name: str) -> xr.DataArray:
    """Labels that scores mean, with the coordinates of the scores."""
    dims = scores.dims[: labels.ndim]
    return describe(xr.DataArray(labels, {dim: scores[dim] for dim in dims}, dims, name))


def label_accuracy(truth: Array, predicted: Array, sample_weight: npt.ArrayLike | None = None) -> float:
    """Share of the samples with known labels whose known labels are all predicted correctly."""
    from sklearn.metrics import accuracy_score  # fits and predictions do without

    is_labeled = is_known(truth)
    if truth.ndim == 2 and not is_labeled.all():
        truth = np.where(is_labeled, truth, predicted).astype(predicted.dtype)
        rows = is_labeled.any(axis=1)
        sample_weight = None if sample_weight is None else np.asarray(sample_weight)[rows]
        truth, predicted = truth[rows], predicted[rows]
    return float(accuracy_score(truth, predicted, sample_weight=sample_weight))


class KernelRegressor(MultiOutputMixin, RegressorMixin, KernelLearner, abstract=True):  # type: ignore[misc]
    """A regression on a weighted sum of kernels, of one target or several."""

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        return encode_values(labels, n_samples, tasks)

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.of_outputs(targets, tasks, targets.scaled)

    def _covariate_part(self, samples: Array, **more: Any) -> Float | None:
        """The part of predictions that covariates and the intercept make, in the shape of predictions; None without."""
        if self._covariates() is None or not hasattr(self, "covariate_effects_") or not self._has_residuals():
            return None
        part = np.asarray(self.intercept_.values + self._offsets(samples, **more))
        return part[:, 0] if self.tasks_ is None else part

    def _permuted(self, labels: Array, order: Array, samples: Array) -> Array:
        covariates = self._covariates()
        if covariates is not None and not self._has_residuals():
            refuse(
                f"labels of {type(self).__name__} have no residuals on covariates, which are permuted; compare it with "
                "covariates alone (dmkl.evaluate), or leave covariates out"
            )
        if covariates is None:
            return labels[order]
        # Residuals on the covariates are permuted (Freedman, Lane 1983), each column over its known values.
        design, columns = covariates.of(samples), labels.reshape(len(labels), -1).astype(np.float64)
        predicted, _ = regress(design, columns, design)
        return np.asarray((predicted + (columns - predicted)[order]).reshape(labels.shape))

    @one_blas_thread
    def predict(
        self, K: Kernels | None = None, *, as_xarray: bool | None = None, coverage: float | None = None, **new: Any
    ) -> Any:
        """Predict the targets of the row samples: Σ_j β_j K_j c + b, (sample,), or (sample, target) of several.

        Parameters
        ----------
        K, **new
            As in `KernelClassifier.decision_function`, with its errors.
        as_xarray
            Return a DataArray with the names of samples and targets, or an array. By default an array if `K` is
            matrices in memory, and a DataArray, as all numbers that are predicted, of a kernel set or of features.
        coverage
            Such as 0.9: return a Dataset with the prediction and the ends of its interval; see `intervals_of`.
        """
        prediction = self._decision(K, **new).rename("prediction")
        if coverage is not None:
            return self.intervals_of(prediction, coverage)
        return prediction if is_labelled(K, as_xarray) else prediction.values

    def intervals_of(self, prediction: xr.DataArray, coverage: float) -> xr.Dataset:
        """Conformal intervals of predictions, ŷ ± q, as `prediction`, `lower` and `upper`.

        q is the ⌈(m + 1)·coverage⌉-th smallest absolute error of m rows that the model was not trained on, those that
        the folds of a search held out or those given to `calibrate`; infinite for too few. Groups, the attribute
        "guarantee" and errors are those of `KernelClassifier.sets_of`.

        Parameters
        ----------
        prediction
            Those of `predict`.
        coverage
            The probability, between 0 and 1, that an interval holds the true value.
        """
        self._check_coverage(coverage)
        return conformal.intervals([prediction], self.nonconformity_, coverage)

    @one_blas_thread
    def calibrate(
        self, K: Kernels | None = None, y: npt.ArrayLike | None = None, *, unknown: Any = None, **new: Any
    ) -> Self:
        """Keep the absolute errors of rows that the model was not trained on, from which intervals follow.

        Parameters are those of `score`.

        Raises
        ------
        InputError
            If a row was trained on, or the model predicts hazards, not the values of `y`.
        """
        if not self._has_errors():
            refuse("log hazard ratios have no intervals that hold times; take a loss of numbers, such as 'huber'")
        prediction, truth, _ = self._scored_rows("calibrate", K, y, unknown, **new)
        held_out = xr.Dataset(
            {"prediction": prediction, "true_label": (prediction.dims, truth.reshape(prediction.shape))}
        )
        table = conformal.of_predictions(held_out)
        assert table is not None
        self.nonconformity_ = table.assign_attrs(learnt_on=GIVEN, guaranteed=1)
        return self

    score = predicting.score

    def _score(self, truth: Array, scores: Array, sample_weight: npt.ArrayLike | None) -> float:
        from sklearn.metrics import r2_score  # fits and predictions do without

        weight = np.ones(len(truth)) if sample_weight is None else np.asarray(sample_weight)
        columns = (values.reshape(len(values), -1).T for values in (target_values(truth), scores))
        of_targets = []
        for true, predicted in zip(*columns, strict=True):
            rows = is_known(true)
            of_targets.append(r2_score(true[rows], predicted[rows], sample_weight=weight[rows]))
        return float(np.mean(of_targets))


def is_labelled(K: Kernels | None, as_xarray: bool | None) -> bool:
    """Whether predicted numbers are returned as a DataArray."""
    return (K is None or isinstance(K, KernelSet)) if as_xarray is None else as_xarray
