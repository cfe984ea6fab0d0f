"""Base classes of learners: fitting by plans, saving, and the scores of classifiers and regressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.metrics import accuracy_score, r2_score

from dmkl.arrays import Array, Float, plain_repr
from dmkl.errors import ConvergenceWarning, IndefiniteKernelWarning, InputError, warn
from dmkl.estimators.decisions import Calibrated, prior_probabilities
from dmkl.estimators.engine import run
from dmkl.estimators.plan import Fit, FitOutcome, Plan, TrainingSet
from dmkl.estimators.predicting import Predicting
from dmkl.estimators.problems import (
    ClassWeight,
    Problems,
    Statistics,
    as_sample_weight,
    by_class,
    counts,
    features_of,
    given_labels,
    labeled_targets,
    tell_new_classes,
)
from dmkl.estimators.saving import MODELS, decode, encode, models, save_model
from dmkl.kernelset import KernelSet
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.fisher import Targets, encode_targets, encode_values, with_unknown, zero_or_one
from dmkl.numerics.fitted import Weighing
from dmkl.numerics.steps import as_steps
from dmkl.passes.blas import one_blas_thread
from dmkl.solvers.margin.machine import Bounds
from dmkl.solvers.outcome import Outcome, worst
from dmkl.stores import Kernels, as_kernel_set
from dmkl.unknown import is_known
from dmkl.variables import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "KernelClassifier",
    "KernelLearner",
    "KernelRegressor",
    "fitted",
    "label_accuracy",
    "mean_r2",
    "plain_machine",
    "set_results",
    "warn_if_open",
]


def set_results(model: Any, found: FitOutcome) -> None:
    """Set what a fit has found on a learner, labeled by kernel, sample, and class, pair or task."""
    problems, outcomes, rule = found.data.problems, found.outcomes, found.rule
    kernels, samples = np.array(model.kernel_names_, dtype=str), model.train_samples_
    dim, labels = _labels(*problems.columns)
    model.weights_ = labeled_weights(outcomes, problems, kernels)
    # In the order that a file gives back, so that a loaded model predicts the same to the last bit.
    model.dual_coef_ = xr.DataArray(
        np.ascontiguousarray(rule.dual), dims=("sample", dim), coords={"sample": samples, dim: labels}, name="dual_coef"
    )
    if model._HAS_INTERCEPT and rule.bias.ndim == 1:  # of covariates the learner makes it
        model.intercept_ = xr.DataArray(rule.bias, dims=(dim,), coords={dim: labels}, name="intercept")
    model.gap_ = by_problem(problems, [outcome.gap for outcome in outcomes], "gap")
    model.objective_ = by_problem(problems, [outcome.objective for outcome in outcomes], "objective")
    model.status_ = outcomes[worst(outcomes)].status.advice
    model.n_iter_ = max(len(outcome.steps) for outcome in outcomes)
    model.n_passes_ = float(found.n_passes)
    model.history_ = history(outcomes, problems, kernels)


def _labels(dim: str, names: Array) -> tuple[str, Array]:
    """Names as NumPy strings, as a file gives them back; numbers as they are."""
    return dim, names.astype(str) if names.dtype.kind in "OU" else names


def by_problem(problems: Problems, values: Sequence[float], name: str) -> Any:
    """A number where there is one problem, a labeled array otherwise."""
    if problems.dim is None:
        return float(values[0])
    dim, labels = _labels(problems.dim, problems.names)
    return xr.DataArray(np.array(values), dims=(dim,), coords={dim: labels}, name=name)


def labeled_weights(outcomes: Sequence[Outcome], problems: Problems, kernels: Array) -> xr.DataArray:
    """Weights over kernel; over kernel and class, pair or task for several problems.

    Weights of groups of samples are over kernel, group, and class or task, of a single problem too.
    """
    weights = np.stack([outcome.weights for outcome in outcomes], axis=-1)
    grouped = weights.ndim == 3
    if problems.dim is None and not grouped:
        return xr.DataArray(weights[:, 0], dims=("kernel",), coords={"kernel": kernels}, name="weight")
    dim, labels = _labels(*(problems.columns if problems.dim is None else (problems.dim, problems.names)))
    groups = {"group": np.arange(weights.shape[1])} if grouped else {}
    coords = {"kernel": kernels, **groups, dim: labels}
    return xr.DataArray(weights, dims=tuple(coords), coords=coords, name="weight")


def history(outcomes: Sequence[Outcome], problems: Problems, kernels: Array) -> xr.Dataset:
    """One row a step; shorter histories of several problems end in NaN."""
    length = max(len(outcome.steps) for outcome in outcomes)
    names = list(outcomes[0].steps[0].figures)
    dim = problems.dim or "problem"
    table = {name: np.full((len(outcomes), length), np.nan) for name in names}
    weights = np.full((len(outcomes), length, len(kernels)), np.nan)
    for k, outcome in enumerate(outcomes):
        for r, step in enumerate(outcome.steps):
            for name, values in table.items():
                values[k, r] = step.figures.get(name, np.nan)
            if step.weights is not None:
                weights[k, r] = step.weights
    found = xr.Dataset(
        {name: ((dim, "iteration"), values) for name, values in table.items()},
        coords={"iteration": np.arange(1, length + 1)},
    )
    if outcomes[0].steps[0].weights is not None:
        found = found.assign(weight=((dim, "iteration", "kernel"), weights)).assign_coords(kernel=kernels)
    return found.isel({dim: 0}) if problems.dim is None else found.assign_coords({dim: _labels(dim, problems.names)[1]})


def warn_if_open(model: Any, found: FitOutcome) -> None:
    """Tell of a gap that is proven to be above the tolerance, on the user's line."""
    problems, outcomes = found.data.problems, found.outcomes
    place = worst(outcomes)
    outcome = outcomes[place]
    if outcome.status.word != "open" or np.isnan(outcome.gap):
        return
    where = "" if problems.dim is None else f" ({problems.dim} {problems.names[place]})"
    warn(
        f"{type(model).__name__} ended with a relative gap of {outcome.gap:.2e}{where}, above tol={model.tol:g}. "
        f"{outcome.status.advice}",
        ConvergenceWarning,
    )


class KernelLearner(Predicting, BaseEstimator):  # type: ignore[misc]
    """A learner on a weighted sum of kernels: `KernelClassifier` and `KernelRegressor` say what its scores mean.

    The score of a sample x for column k (a class, a task, a target) is Σ_j β_j Σ_i k_j(x, x_i) α_ik + b_k, with its row
    of kernel values centered and normalized by the statistics of the training samples.

    A learner says which parameters it has and checks them (`_check_parameters`), which jobs a training set makes
    (`_jobs`), who solves them (`_method`), and which attributes it sets beside those of all (`_set_attributes`). The
    rest is here: it can then be fitted, searched, saved and loaded.
    """

    steps: str | Sequence[str]
    history_: xr.Dataset
    status_: str
    n_iter_: int
    _TAKES_UNKNOWN_LABELS = True
    """Whether labels may be unknown for some samples of a task."""
    _TAKES_KERNELS = True
    """Whether it can be learnt with some of the kernels alone having weight."""
    _OF_WEIGHTS: ClassVar[Mapping[str, Any]] = {}
    """Parameters that say which weights there may be, each with the value at which a plain sum has no use for it."""
    _STATE: tuple[str, ...] = ("gap_", "objective_", "status_", "n_iter_", "n_passes_", "solver_")
    """Attributes that are saved as JSON, where they are there."""

    def __init_subclass__(cls, *, abstract: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not abstract:
            MODELS[cls.__name__] = cls

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        """Names of the parameters, read from the signature once: plans of many fits copy learners by the thousand."""
        names: list[str] = super()._get_param_names()
        return names

    # --- what a learner says of itself ---------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        self._steps()

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        """What is to be learned from labels, refused by InputError where they break a rule."""
        raise NotImplementedError

    def _parameter_texts(self, names: Sequence[str]) -> dict[str, str]:
        """Each parameter in words that are the same in every process: what tells a search from another."""
        return {name: plain_repr(value) for name, value in sorted(self.get_params(deep=False).items())}

    @classmethod
    def _upgrade_parameters(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        """Parameters of this version from those that an earlier version has written."""
        return parameters

    def _of_classes(self, kind: str) -> tuple[str, ...]:
        """Parameters of which each class may have a value of its own, as a mapping from classes."""
        return ()

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        if not (self._TAKES_UNKNOWN_LABELS or targets.all_known):
            msg = (
                f"{type(self).__name__} needs the labels of all samples, and some labels of tasks are unknown; leave "
                "those samples out, or take a learner such as MKFDA or MKSVM, which trains each task on its own samples"
            )
            raise InputError(msg)
        if "cosine" in self._steps() and (named := [one["name"] for one in K.provenance if "indefinite" in one]):
            msg = (
                f"{len(named)} kernels have entries |k(x, z)| > √(k(x, x) k(z, z)): {', '.join(named[:3])}"
                f"{' …' if len(named) > 3 else ''}. No inner products have; 'cosine' divides by these roots and makes "
                "such entries larger than those of kernels whose entries are similarities. Take steps without "
                "'cosine', or mend the kernels by repair='clip', 'flip' or 'shift'"
            )
            warn(msg, IndefiniteKernelWarning)

    def _default_price(self) -> str:
        """A sentence where λ, or C of a machine, is the default one, on which weights depend; empty otherwise."""
        name = "C" if hasattr(self, "C") and getattr(self, "loss", "hinge") == "hinge" else "lam"
        if repr(getattr(self, name, None)) != repr(getattr(type(self)(), name, "")):
            return ""
        value = getattr(self, name)
        return f"{name} = {value:g} is the default; weights depend on it: choose it by a search (dmkl search)"

    def _of_plain_sum(self) -> KernelLearner | None:
        """The same learner on the sum of all kernels, of which none weighs more; None where there is no such."""
        if not (self._TAKES_KERNELS and self._OF_WEIGHTS and set(self._OF_WEIGHTS) <= set(self.get_params(deep=False))):
            return None
        found: KernelLearner = clone(self).set_params(**self._OF_WEIGHTS)
        return found

    def _machine_on_sum(self, C: float) -> KernelLearner | None:
        """The support vector machine on the sum of all kernels, where it is another learner than `_of_plain_sum`."""
        return None

    def _check_kernels(self) -> None:
        """Refuse to leave kernels out where the learner takes all of them, by InputError."""
        if not self._TAKES_KERNELS:
            msg = (
                f"{type(self).__name__} does not weigh kernels, so that none can be left out of it; take a learner "
                "that does, such as MKFDA or MKSVM"
            )
            raise InputError(msg)

    def _permuted(self, labels: Array, order: Array, samples: Array) -> Array:
        """Labels for a permutation test: row i has what row order[i] had."""
        return labels[order]

    def decisions_of(self, scores: Array) -> Float:
        """What predictions are read from, in the shape of the scores: the scores themselves."""
        return scores

    def _set_attributes(self, found: FitOutcome) -> None:
        """Set the attributes that only this learner has, after those of all learners."""

    def _set_decisions(self, found: FitOutcome) -> None:
        """Learn what scores mean, where that is more than the scores themselves."""

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
            (m,), d_i > 0: what sample i counts, times the weight of its class where the learner has `class_weight`.

            A whole number counts like as many equal samples: in least squares (Fisher discriminants, ridge
            regression) everywhere, in centering, normalizing, priors and class means of scores too, but where a sample
            is left out: of scores and of decision rules, with all its weight. In a machine with margins it multiplies
            C, and statistics of the kernels count each sample once.
        unknown
            A code that stands for an unknown label too: 0 for the "difficult" images of the VOC challenges, whose other
            labels are −1 and 1.

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
        targets, tasks = labeled_targets(self, K, y, "fit", unknown)
        weights = None if sample_weight is None else as_sample_weight(sample_weight, K.shape[1])
        row = Fit(self, np.arange(K.shape[1]), targets, tasks, sample_weight=weights)
        self._take(run(Plan(K, [row])).fits[0])
        return self

    def _take(self, found: FitOutcome) -> None:
        """Set the fitted attributes, and warn where a gap is open."""
        data, targets = found.data, found.data.problems.targets
        self.classes_ = targets.classes
        self.kind_ = targets.kind
        self.tasks_ = None if targets.dim is None else data.problems.names
        self.kernel_names_ = data.kernels.names
        self.features_ = features_of(data.kernels)
        self.train_samples_ = data.kernels.train_samples.astype(str)
        self.n_features_in_ = data.kernels.shape[1]
        if found.solver is not None:
            self.solver_ = found.solver
        set_results(self, found)
        self.statistics_ = self._statistics(data)
        self._set_decisions(found)
        self._set_attributes(found)
        for value in vars(self).values():
            if isinstance(value, xr.DataArray | xr.Dataset):
                describe(value)
        warn_if_open(self, found)

    def plot_weights(self) -> Figure:
        """Draw the kernel weights; see `dmkl.estimators.figures.plot_weights`."""
        from dmkl.estimators.figures import plot_weights

        return plot_weights(self)

    def plot_weight_map(self, of: Any = None) -> Figure:
        """Draw the weights of each group, class or task; see `dmkl.estimators.figures.plot_weight_map`."""
        from dmkl.estimators.figures import plot_weight_map

        return plot_weight_map(self, of)

    def plot_convergence(self) -> Figure:
        """Draw the proven gap after each step; see `dmkl.estimators.figures.plot_convergence`."""
        from dmkl.estimators.figures import plot_convergence

        return plot_convergence(self)

    def _statistics(self, data: TrainingSet) -> tuple[Statistics, ...]:
        """What prediction needs of the training kernels; of several parts, the columns are the problems."""
        parts, own = data.parts, len(self._steps())
        every = np.arange(self.dual_coef_.shape[1])
        found = []
        for part in parts:
            # Of weights the dual variables tell.
            steps = [step for step in part.training.square.fitted.steps if not isinstance(step, Weighing)]
            found.append(
                Statistics(tuple(steps[len(steps) - own :]), every if len(parts) == 1 else part.members, part.rows)
            )
        return tuple(found)

    def _steps(self) -> tuple[str | Covariates, ...]:
        return as_steps(self.steps)

    def _stepped(self, K: KernelSet, weights: Float | None = None) -> KernelSet:
        found = K.with_steps(self.steps, weights)
        return found if weights is None else found.weighed(weights)

    def _truth(self, K: Kernels | None, y: npt.ArrayLike | None, what: str = "score", unknown: Any = None) -> Array:
        """The labels that a score compares with: those given, or those of the kernels."""
        truth = given_labels(K, y)[0] if isinstance(K, KernelSet) else y
        if truth is None:
            msg = f"{what} needs labels: give y, or store them with the kernels"
            raise InputError(msg)
        return with_unknown(truth, unknown)

    # --- saving --------------------------------------------------------------------------------------------------

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the model as a Zarr group with JSON attributes: no pickle, readable by any Zarr or xarray.

        Raises
        ------
        StoreExistsError
            If something is at `path` and `overwrite` was not given, or it is no model.
        """
        self._check_fitted()
        save_model(self, path, overwrite=overwrite)

    def _state(self) -> dict[str, Any]:
        """Fitted attributes beside the labeled arrays, as plain JSON values."""
        return {name: encode(_plain(getattr(self, name))) for name in self._STATE if hasattr(self, name)}

    def _set_state(self, state: dict[str, Any]) -> None:
        """Set what `_state` told; the labeled arrays are there."""
        for name, written in state.items():
            value = decode(written)
            labeled = name in ("gap_", "objective_") and np.ndim(value)
            setattr(self, name, self._by_problem(value, name.rstrip("_")) if labeled else value)

    def _by_problem(self, values: Sequence[float], name: str) -> xr.DataArray:
        dim = self.dual_coef_.dims[1]
        return xr.DataArray(
            np.array(values, dtype=np.float64), dims=(dim,), coords={dim: self.dual_coef_[dim].values}, name=name
        )


def _plain(value: Any) -> Any:
    return value.values.tolist() if isinstance(value, xr.DataArray) else value


def fitted(found: FitOutcome) -> Any:
    """The learner of a plan's row, fitted: a copy with what the row has found."""
    model: KernelLearner = clone(found.data.fit.learner)
    model._take(found)
    return model


def plain_machine(learner: Any) -> KernelLearner | None:
    """The support vector machine on the sum of all kernels that a learner is compared with; None without hinge loss."""
    if getattr(learner, "loss", "hinge") != "hinge":
        return None
    shared = ("C", "multiclass", "class_weight", "steps")
    found: KernelLearner = models()["MKSVM"](np.inf, **{name: getattr(learner, name) for name in shared})
    return found


class KernelClassifier(ClassifierMixin, Calibrated, KernelLearner, abstract=True):  # type: ignore[misc]
    """A classifier on a weighted sum of kernels."""

    class_weight: ClassWeight = None
    _STATE = (*KernelLearner._STATE, "calibrated_on_")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.class_weight is not None:
            self._check_weights()

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        super()._check_data(K, targets)
        by_class(self.class_weight, targets)

    def _prices(self, data: TrainingSet, number: int, C: float) -> Bounds:
        """The price of a violation of the margin for each sample of a problem; one number where all count once."""
        problems = data.problems
        weights = counts(problems.targets, data.fit.sample_weight, self.class_weight)
        if weights is None:
            return C
        own = weights[number if problems.targets.kind == "multilabel" else 0]
        for rows in (problems.labeled[number], problems.rows[number]):
            own = own if rows is None else own[rows]
        return C * own

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        return encode_targets(labels, n_samples, tasks)

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.binary(targets, tasks, self.multiclass)

    def _set_decisions(self, found: FitOutcome) -> None:
        self.priors_ = np.array(self._priors(found.data.problems.targets))
        self._set_decider(self._decider(found))

    def _priors(self, targets: Targets) -> list[Float]:
        """Prior probabilities of the classes of each problem."""
        return [prior_probabilities(self.priors, targets.classes, sizes) for sizes in targets.sizes]

    def _truth(self, K: Kernels | None, y: npt.ArrayLike | None, what: str = "score", unknown: Any = None) -> Array:
        found = super()._truth(K, y, what, unknown)
        return zero_or_one(found) if getattr(self, "kind_", None) == "multilabel" else found

    @one_blas_thread
    def decision_function(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Scores Σ_j β_j K_j α + b of the row samples, (sample, class); (sample,) for two classes.

        Parameters
        ----------
        K
            ``K[test, train]``, or a rectangular set: new samples against the training samples in their order; or such
            matrices in memory. Kernels are matched by name; those of zero weight are not read.
        **new
            Instead of `K` the `features` of new samples, and `samples`, `present`, `join` and `missing` where they are
            needed (see `dmkl.build_cross`), for a model whose training kernels were built from features. Kernels of
            zero weight are not computed. With either, `covariates` of the rows for a model whose steps take some out
            (`dmkl.residualize`): a DataFrame by sample, or an array in the order of the rows. Rows that it lacks are
            looked up in the covariates that the model was trained with.

        Raises
        ------
        InputError
            If the columns are not the training samples, or a kernel with weight is missing; if features are missing or
            have other columns than in training.
        """
        return self._decision(K, **new)

    @one_blas_thread
    def predict(self, K: Kernels | None = None, **new: Any) -> Array:
        """Predict the labels of the row samples, of kernels or of `features` as in `decision_function`.

        Of a machine with margins the class of the largest score, the second of two classes where the score is
        positive, 0 or 1 for each task of a multilabel problem by the sign of its score. Of a Fisher discriminant the
        most probable class, `priors` given: see `MKFDA`.
        """
        return self.labels_of(self.decision_function(K, **new).values)

    @one_blas_thread
    def score(
        self,
        K: Kernels | None = None,
        y: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        *,
        unknown: Any = None,
        **new: Any,
    ) -> float:
        """Share of the row samples whose labels are predicted: of a multilabel problem, all those that are known.

        Parameters
        ----------
        K, **new
            As in `decision_function`.
        y
            The true labels; those of `K` where missing.
        unknown
            A code of labels that are unknown, as in `fit`.
        """
        truth = self._truth(K, y, unknown=unknown)
        if self.kind_ != "multilabel":
            tell_new_classes(np.ravel(truth), self.classes_)
        return label_accuracy(truth, self.predict(K, **new), sample_weight)


def label_accuracy(truth: Array, predicted: Array, sample_weight: npt.ArrayLike | None = None) -> float:
    """Share of the samples whose labels are right: all those that are known, of several tasks.

    Samples of which no label is known do not count.
    """
    known = is_known(truth)
    if truth.ndim == 2 and not known.all():
        truth = np.where(known, truth, predicted).astype(predicted.dtype)
        some = known.any(axis=1)
        sample_weight = None if sample_weight is None else np.asarray(sample_weight)[some]
        truth, predicted = truth[some], predicted[some]
    return float(accuracy_score(truth, predicted, sample_weight=sample_weight))


class KernelRegressor(RegressorMixin, KernelLearner, abstract=True):  # type: ignore[misc]
    """A regression on a weighted sum of kernels, of one target or several."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        return encode_values(labels, n_samples, tasks)

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.of_targets(targets, tasks)

    @one_blas_thread
    def predict(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Predict the targets of the row samples: Σ_j β_j K_j c + b, (sample,), or (sample, target) of several.

        Parameters
        ----------
        K, **new
            As in `KernelClassifier.decision_function`.

        Raises
        ------
        InputError
            As there.
        """
        return self._decision(K, **new).rename("prediction")

    @one_blas_thread
    def score(
        self,
        K: Kernels | None = None,
        y: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        *,
        unknown: Any = None,
        **new: Any,
    ) -> float:
        """R² of the predictions, 1 − Σ(y − f)²/Σ(y − ȳ)²; the mean over the targets, each on its known values.

        Parameters
        ----------
        K, **new
            As in `predict`.
        y
            The true values; the labels of `K` where missing.
        unknown
            A code of values that are unknown, as in `fit`.
        """
        return mean_r2(self._truth(K, y, unknown=unknown), self.predict(K, **new).values, sample_weight)


def mean_r2(truth: Array, predicted: Array, sample_weight: npt.ArrayLike | None = None) -> float:
    """R² = 1 − Σ(y − f)²/Σ(y − ȳ)² of (samples,), or its mean over (samples, targets), each on its known values."""
    weight = np.ones(len(truth)) if sample_weight is None else np.asarray(sample_weight)
    scores = []
    for true, found in zip(truth.reshape(len(truth), -1).T, predicted.reshape(len(truth), -1).T, strict=True):
        known = is_known(true)
        scores.append(r2_score(true[known].astype(np.float64), found[known], sample_weight=weight[known]))
    return float(np.mean(scores))
