"""What all learners share: fitting by plans, prediction, saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.estimators.calibration import Calibrated
from dmkl.estimators.decisions import Decider, class_sizes, prior_probabilities
from dmkl.estimators.engine import run
from dmkl.estimators.plan import Fit, FitOutcome, Plan, Preparation, TrainingSet
from dmkl.estimators.problems import DecisionRule, Multiclass, Problems
from dmkl.estimators.results import set_results, warn_if_open
from dmkl.estimators.saving import MODELS, decode, encode, save_model
from dmkl.features.build import Missing
from dmkl.features.cross import TrainingFeatures, cross_tiles, training_features
from dmkl.inputs.joins import Join
from dmkl.inputs.label_objects import matched
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets, encode_targets
from dmkl.numerics.steps import as_steps
from dmkl.passes.statistics import measure_new
from dmkl.passes.view import View
from dmkl.solvers.driver import drive
from dmkl.solvers.jobs import Job, Method, SideBySide
from dmkl.solvers.requests import CombinedProduct, Solver

__all__ = [
    "KernelClassifier",
    "check_kernel_set",
    "decisions_of",
    "features_of",
    "fitted",
    "labeled_targets",
    "labels_of",
]


class KernelClassifier(Calibrated, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier on a weighted sum of kernels.

    The score of a sample x for class k is Σ_j β_j Σ_i k_j(x, x_i) α_ik + b_k, with its row of kernel values centered
    and normalized by the statistics of the training samples.

    A learner says which parameters it has and checks them (`_check_parameters`), which jobs a training set makes
    (`_jobs`), who solves them (`_method`), and which attributes it sets beside those of all (`_set_attributes`). The
    rest is here: it can then be fitted, searched, saved and loaded.
    """

    steps: str | Sequence[str]
    multiclass: Multiclass = "ovr"
    weights_: xr.DataArray
    history_: xr.Dataset
    status_: str
    n_iter_: int
    _prepared: Any = None
    """What `_preparation` found, for learners that predict with it."""
    _HAS_INTERCEPT = False
    """Whether solutions have a bias."""
    _STATE: tuple[str, ...] = ("gap_", "objective_", "status_", "n_iter_", "n_passes_", "solver_", "calibrated_on_")
    """Attributes that are saved as JSON, where they are there."""

    def __init_subclass__(cls, *, abstract: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not abstract:
            MODELS[cls.__name__] = cls

    # --- what a learner says of itself ---------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Refuse parameters that break a rule, by InputError."""
        self._steps()

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        """Refuse data that the parameters do not go with, before a pass, by InputError."""

    def _nested(self, fit: Fit, K: KernelSet) -> Sequence[Fit]:
        """Rows of a plan whose outcomes decide about this fit."""
        return ()

    def _decided(self, fit: Fit, found: Sequence[FitOutcome]) -> Fit:
        """The fit as its nested rows have decided it."""
        return fit

    def _source(self, K: KernelSet) -> KernelSet:
        """The kernels that are learnt from, made of those that are given."""
        return K

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        """The independent problems."""
        return Problems.binary(targets, tasks, self.multiclass)

    def _preparation(self, data: TrainingSet) -> Preparation | None:
        """What fits on this training set have in common, by the parameters that it depends on."""
        return None

    def _method(self) -> Method:
        """Who solves the jobs."""
        return SideBySide()

    def _jobs(self, data: TrainingSet, prepared: Any) -> list[Job]:
        """A job for each problem."""
        raise NotImplementedError

    def _scores(self, rule: DecisionRule, new: KernelSet, prepared: Any) -> Solver[Float]:
        """Scores of new rows, (rows, classes or tasks); one column for two classes."""
        found: Float = (yield CombinedProduct(rule.dual, rule.weights, exact=True)) + rule.bias
        return found

    def _set_attributes(self, found: FitOutcome) -> None:
        """Set the attributes that only this learner has, after those of all learners."""

    # --- fitting -------------------------------------------------------------------------------------------------

    def fit(self, K: KernelSet, y: npt.ArrayLike | None = None) -> Self:
        """Learn the weights and the classifier.

        Parameters
        ----------
        K
            The training kernels, ``K[train, train]``.
        y
            (m,) integers or strings, two classes or more; (m, tasks) of 0 and 1 for independent binary problems that
            share the passes. Where it carries names of samples (the index of a series, a coordinate), each sample of
            `K` gets the label of its name. The labels stored with the kernels where missing.

        Raises
        ------
        InputError
            If a parameter, the labels or the kernels break a rule.
        IndefiniteKernelError
            If a kernel proves not to be positive semidefinite.
        MemoryBudgetError
            If the solver that was asked for does not fit the memory budget.
        """
        return self._fit(K, y)

    def _fit(self, K: KernelSet, y: npt.ArrayLike | None, sample_weight: Float | None = None) -> Self:
        # A fit that fails leaves an estimator that is not fitted, not one of the old weights with new names.
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        targets, tasks = labeled_targets(K, y, "fit")
        row = Fit(self, np.arange(K.shape[1]), targets, tasks, sample_weight=sample_weight)
        self._take(run(Plan(K, [row])).fits[0])
        return self

    def _take(self, found: FitOutcome) -> None:
        """Set the fitted attributes, and warn where a gap is open."""
        data, targets = found.data, found.data.problems.targets
        self.classes_ = targets.classes
        self.kind_ = targets.kind
        self.tasks_ = data.problems.names if targets.kind == "multilabel" else None
        self.kernel_names_ = data.kernels.names
        self.features_ = features_of(data.kernels)
        self.train_samples_ = data.kernels.train_samples.astype(str)
        self.n_features_in_ = data.kernels.shape[1]
        steps = data.training.square.fitted.steps
        self.statistics_ = steps[len(steps) - len(self._steps()) :]
        if found.solver is not None:
            self.solver_ = found.solver
        set_results(self, found)
        self.priors_ = np.array([prior_probabilities(self.priors, sizes) for sizes in class_sizes(targets)])
        self._set_decider(self._decider(found))
        self._set_attributes(found)
        warn_if_open(self, found)

    def _steps(self) -> tuple[str, ...]:
        return as_steps(self.steps)

    def _stepped(self, K: KernelSet) -> KernelSet:
        """The kernels with the learner's steps, not measured."""
        return K.with_steps(self.steps)

    # --- predicting ----------------------------------------------------------------------------------------------

    def decision_function(self, K: KernelSet | None = None, **new: Any) -> xr.DataArray:
        """Scores Σ_j β_j K_j α + b of the row samples, (sample, class); (sample,) for two classes.

        Parameters
        ----------
        K
            ``K[test, train]``, or a rectangular set: new samples against the training samples in their order. Kernels
            are matched by name; those of zero weight are not read.
        **new
            Instead of `K` the `features` of new samples, and `samples`, `present`, `join` and `missing` where they are
            needed (see `dmkl.build_cross`), for a model whose training kernels were built from features. Kernels of
            zero weight are not computed.

        Raises
        ------
        InputError
            If the columns are not the training samples, or a kernel with weight is missing; if features are missing or
            have other columns than in training.
        """
        self._check_fitted()
        if new:
            if K is not None:
                msg = "give kernels or features, not both"
                raise InputError(msg)
            return self.decision_function(self.cross_kernels(**new))
        check_kernel_set(K, "prediction")
        assert K is not None
        chosen, used = self._matching(self._new_source(K))
        rule = self._rule(used)
        found = self._through(chosen, used, self._scores(rule, chosen, self._prepared))
        coords: dict[str, Any] = {"sample": chosen.samples.astype(str)}
        if self.kind_ == "binary":
            return xr.DataArray(found[:, 0], dims=("sample",), coords=coords, name="score")
        dim, labels = ("task", self.tasks_) if self.kind_ == "multilabel" else ("class", self.classes_)
        return xr.DataArray(found, dims=("sample", dim), coords={**coords, dim: labels}, name="score")

    def _through(self, K: KernelSet, used: Index, solver: Solver[Any]) -> Any:
        """What a solver finds through kernels of new rows, with the statistics of training."""
        lens, extra = measure_new(K.view, [step.select(used) for step in self.statistics_])
        (found,), passes = drive([(lens, solver)])
        self.n_prediction_passes_ = passes + extra
        return found

    def _rule(self, used: Index) -> DecisionRule:
        """The decision rule of the fitted attributes, over some of the kernels."""
        dual = np.asarray(self.dual_coef_.values, dtype=np.float64)
        weights = np.asarray(self.weights_.values, dtype=np.float64)[used]
        if "kernel" in self.weights_.dims and self.weights_.ndim == 1:
            weights = weights[:, None]
        if weights.shape[-1] != dual.shape[1]:
            weights = np.repeat(weights, dual.shape[1], axis=-1)
        bias = self.intercept_.values if self._HAS_INTERCEPT else np.zeros(dual.shape[1])
        return DecisionRule(weights, dual, bias, str(self.dual_coef_.dims[1]))

    def _new_source(self, K: KernelSet) -> KernelSet:
        """The kernels of new rows that prediction is made from, of those that are given."""
        return K

    def cross_kernels(
        self,
        features: Any,
        *,
        samples: Sequence[Any] | Array | None = None,
        present: Mapping[str, npt.ArrayLike] | None = None,
        join: Join = "exact",
        missing: Missing | None = None,
    ) -> KernelSet:
        """The kernels of new samples against the training samples that prediction needs, computed as they are read.

        Parameters
        ----------
        features, samples, present, join, missing
            As in `dmkl.build_cross`.

        Raises
        ------
        InputError
            If the training kernels were not built from features, or these features are others than in training.
        """
        self._check_fitted()
        needed = self._kernels_needed()
        if isinstance(self.features_, str):
            raise InputError(self.features_)
        lacking = [name for name in needed if name not in self.features_.recipes]
        if lacking:
            msg = (
                f"the model gives weight to kernel {lacking[0]!r}, which was not computed from features; predict from "
                "kernels instead"
            )
            raise InputError(msg)
        source, _ = cross_tiles(self.features_.select(needed), features, samples, present, join, missing)
        rows, cols = np.arange(len(source.samples)), np.arange(len(source.train_samples))
        return KernelSet(View(source, np.arange(len(source.names)), rows, cols))

    def _kernels_used(self) -> list[str]:
        """The model's kernels that prediction reads."""
        weights = self.weights_.values.reshape(len(self.kernel_names_), -1)
        return [name for name, used in zip(self.kernel_names_, np.any(weights != 0, axis=1), strict=True) if used]

    def _kernels_needed(self) -> list[str]:
        """The kernels of new samples that prediction is made from."""
        return self._kernels_used()

    def predict(self, K: KernelSet | None = None, **new: Any) -> Array:
        """Predict the labels of the row samples, of kernels or of `features` as in `decision_function`.

        Of a machine with margins the class of the largest score, the second of two classes where the score is
        positive, 0 or 1 for each task of a multilabel problem by the sign of its score. Of a Fisher discriminant the
        nearest class mean in the discriminant space, `priors` given: see `MKFDA`.
        """
        return self.labels_of(self.decision_function(K, **new).values)

    def score(
        self,
        K: KernelSet | None = None,
        y: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
        **new: Any,
    ) -> float:
        """Share of the row samples whose labels are predicted (all tasks right, for a multilabel problem).

        Parameters
        ----------
        K, **new
            As in `decision_function`.
        y
            The true labels; those of `K` where missing.
        """
        truth = y if K is None else labels_of(K, y)[0]
        if truth is None:
            msg = "score needs labels: give y, or store them with the kernels"
            raise InputError(msg)
        return float(accuracy_score(truth, self.predict(K, **new), sample_weight=sample_weight))

    def _check_fitted(self) -> None:
        if not hasattr(self, "weights_"):
            msg = f"this {type(self).__name__} is not fitted yet; call fit first"
            raise NotFittedError(msg)

    def _matching(self, K: KernelSet) -> tuple[KernelSet, Index]:
        """The kernels that prediction reads, of the training samples in their order, and their positions."""
        needed = self._kernels_used()
        used = np.array([self.kernel_names_.index(name) for name in needed], dtype=np.int64)
        missing = [name for name in needed if name not in K.names]
        if missing:
            msg = (
                f"the model gives weight to kernel {missing[0]!r}, which this set does not have; its kernels are "
                f"{', '.join(K.names[:10])}"
            )
            raise InputError(msg)
        samples = K.train_samples.astype(str)
        if not np.array_equal(samples, self.train_samples_):
            same = len(samples) == len(self.train_samples_) and set(samples) == set(self.train_samples_)
            found = "the same samples in another order" if same else f"{len(samples)} others"
            msg = (
                f"the columns must be the {len(self.train_samples_)} training samples in the order of training, found "
                f"{found}; take K[test, train] with the train of fit"
            )
            raise InputError(msg)
        return K.select(needed), used

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


def fitted(found: FitOutcome) -> KernelClassifier:
    """The learner of a plan's row, fitted: a copy with what the row has found."""
    model: KernelClassifier = clone(found.data.fit.learner)
    model._take(found)
    return model


def labeled_targets(K: Any, y: npt.ArrayLike | None, what: str) -> tuple[Targets, Array | None]:
    """The targets of square kernels, and the names of the tasks of a multilabel problem.

    Raises
    ------
    InputError
        If `K` is no kernel set or not square, or there are no labels.
    """
    check_kernel_set(K, what)
    if not K.is_square:
        _, rows, cols = K.shape
        msg = f"{what} needs the training kernels, K[train, train], got {rows} rows and {cols} columns that differ"
        raise InputError(msg)
    labels, tasks = labels_of(K, y)
    if labels is None:
        msg = f"{what} needs labels: give y, or store them with the kernels (labels=, --labels)"
        raise InputError(msg)
    return encode_targets(labels, K.shape[1], tasks), tasks


def decisions_of(found: FitOutcome) -> Float:
    """What labels of the held-out rows of a plan's row are read from, as its learner would after that fit."""
    learner: Any = found.data.fit.learner
    decider: Decider | None = learner._decider(found)
    return found.decision if decider is None else decider.decision(found.scores).reshape(found.decision.shape)


def labels_of(K: KernelSet, y: Any) -> tuple[Array | None, Array | None]:
    """Labels of the row samples and names of their tasks: of `y`, by name where it has names, or else the stored ones.

    Raises
    ------
    InputError
        If a sample of `K` has no label among the names.
    """
    if y is None:
        return K.labels, K.tasks
    table = matched("y", y, K.samples, named=K.view.has_names)
    return table.values, None if table.columns is None else np.array(table.columns, dtype=object)


def features_of(K: KernelSet) -> TrainingFeatures | str:
    """What the kernels of new samples can be computed from, or why they cannot."""
    try:
        return training_features(K)
    except InputError as error:
        return str(error)


def check_kernel_set(K: Any, what: str) -> None:
    """Refuse anything but a kernel set, saying how to make one.

    Raises
    ------
    InputError
        If `K` is something else.
    """
    if not isinstance(K, KernelSet):
        msg = (
            f"{what} takes a kernel set, got {type(K).__name__}; store matrices with dmkl.create(path, kernels) and "
            "open them with dmkl.open(path)"
        )
        raise InputError(msg)
