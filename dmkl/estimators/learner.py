"""What all learners share: fitting by plans, prediction, saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.estimators.engine import run
from dmkl.estimators.given import features_of, given_labels, labeled_targets
from dmkl.estimators.plan import Fit, FitOutcome, Plan, Preparation, TrainingSet
from dmkl.estimators.problems import DecisionRule, Multiclass, Problems, Statistics, side_by_side
from dmkl.estimators.results import set_results, warn_if_open
from dmkl.estimators.saving import MODELS, decode, encode, save_model
from dmkl.estimators.weights import as_sample_weight
from dmkl.features.build import Missing
from dmkl.features.cross import cross_tiles
from dmkl.inputs.joins import Join
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets, with_unknown
from dmkl.numerics.fitted import Weighing
from dmkl.numerics.steps import as_steps
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.statistics import measure_new
from dmkl.passes.view import View
from dmkl.solvers.driver import drive
from dmkl.solvers.jobs import Job, Method, SideBySide
from dmkl.solvers.requests import CombinedProduct, Solver
from dmkl.stores import Kernels, as_kernel_set

__all__ = ["KernelLearner", "fitted"]


class KernelLearner(BaseEstimator):  # type: ignore[misc]
    """A learner on a weighted sum of kernels: `KernelClassifier` and `KernelRegressor` say what its scores mean.

    The score of a sample x for column k (a class, a task, a target) is Σ_j β_j Σ_i k_j(x, x_i) α_ik + b_k, with its row
    of kernel values centered and normalized by the statistics of the training samples.

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
    statistics_: tuple[Statistics, ...]
    _HAS_INTERCEPT = False
    """Whether solutions have a bias."""
    _TAKES_UNKNOWN_LABELS = True
    """Whether labels may be unknown for some samples of a task."""
    _TAKES_WEIGHTS = False
    """Whether samples may have weights."""
    _STATE: tuple[str, ...] = ("gap_", "objective_", "status_", "n_iter_", "n_passes_", "solver_")
    """Attributes that are saved as JSON, where they are there."""

    def __init_subclass__(cls, *, abstract: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not abstract:
            MODELS[cls.__name__] = cls

    # --- what a learner says of itself ---------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Refuse parameters that break a rule, by InputError."""
        self._steps()

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        """What is to be learned from labels, refused by InputError where they break a rule."""
        raise NotImplementedError

    def _of_classes(self, kind: str) -> tuple[str, ...]:
        """Parameters of which each class may have a value of its own, as a mapping from classes."""
        return ()

    def _check_data(self, K: KernelSet, targets: Targets) -> None:
        """Refuse data that the parameters do not go with, before a pass, by InputError."""
        if not (self._TAKES_UNKNOWN_LABELS or targets.all_known):
            msg = (
                f"{type(self).__name__} needs the labels of all samples, and some labels of tasks are unknown; leave "
                "those samples out, or take a learner such as MKFDA or MKSVM, which trains each task on its own samples"
            )
            raise InputError(msg)

    def _check_weights(self) -> None:
        """Refuse weights of samples where the learner has no use for them, by InputError."""
        if not self._TAKES_WEIGHTS:
            msg = f"{type(self).__name__} does not weigh samples; leave sample_weight out"
            raise InputError(msg)

    def _nested(self, fit: Fit, K: KernelSet) -> Sequence[Fit]:
        """Rows of a plan whose outcomes decide about this fit."""
        return ()

    def _decided(self, fit: Fit, found: Sequence[FitOutcome]) -> Fit:
        """The fit as its nested rows have decided it."""
        return fit

    def _source(self, K: KernelSet) -> KernelSet:
        """The kernels that are learnt from, made of those that are given."""
        return K

    def _weighted(self, targets: Targets, sample_weight: Float | None = None) -> Targets:
        """The targets with what samples count, where statistics and targets depend on it."""
        return targets

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        """The independent problems."""
        raise NotImplementedError

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

    def decisions_of(self, scores: Array) -> Float:
        """What predictions are read from, in the shape of the scores: the scores themselves."""
        return scores

    def _set_attributes(self, found: FitOutcome) -> None:
        """Set the attributes that only this learner has, after those of all learners."""

    def _decisions(self, found: FitOutcome) -> Float:
        """What predictions for the held-out rows of a plan's row are read from, as after that fit."""
        return found.decision

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
        warn_if_open(self, found)

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

    def _steps(self) -> tuple[str, ...]:
        return as_steps(self.steps)

    def _stepped(self, K: KernelSet, weights: Float | None = None) -> KernelSet:
        """The kernels with the learner's steps, not measured: D^{1/2}KD^{1/2} where training samples have weights d."""
        found = K.with_steps(self.steps, weights)
        return found if weights is None else found.weighed(weights)

    # --- predicting ----------------------------------------------------------------------------------------------

    def _decision(self, K: Kernels | None, **new: Any) -> xr.DataArray:
        """See `KernelClassifier.decision_function`."""
        self._check_fitted()
        if new:
            if K is not None:
                msg = "give kernels or features, not both"
                raise InputError(msg)
            return self._decision(self.cross_kernels(**new))
        K = as_kernel_set(K, "prediction", self.train_samples_)
        chosen, used = self._matching(self._new_source(K))
        rule = self._rule(used)
        rules = [rule.of(part.columns, part.rows) for part in self.statistics_]
        scores = self._through(chosen, used, [self._scores(some, chosen, self._prepared) for some in rules])
        found = side_by_side(scores, [part.columns for part in self.statistics_])
        coords: dict[str, Any] = {"sample": chosen.samples.astype(str)}
        dim = self._score_dim()
        if dim is None:
            return xr.DataArray(found[:, 0], dims=("sample",), coords=coords, name="score")
        labels = self.classes_ if dim == "class" else self.tasks_
        return xr.DataArray(found, dims=("sample", dim), coords={**coords, dim: labels}, name="score")

    def _score_dim(self) -> str | None:
        """The dimension of scores beside the sample: "class", "task" or "target"; None where there is one column."""
        if self.tasks_ is not None:
            return "target" if self.kind_ == "regression" else "task"
        return "class" if self.kind_ == "multiclass" else None

    def _through(self, K: KernelSet, used: Index, solvers: Sequence[Solver[Any]]) -> list[Any]:
        """What solvers find through kernels of new rows, each with statistics of training."""
        lenses, extra = [], 0.0
        for part in self.statistics_:
            some = K if part.rows is None else K[np.arange(K.shape[1]), part.rows]
            lens, more = measure_new(some.view, [step.select(used) for step in part.steps])
            lenses.append(lens)
            extra += more
        found, passes = drive(list(zip(lenses, solvers, strict=True)))
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

    def _truth(self, K: Kernels | None, y: npt.ArrayLike | None, what: str = "score", unknown: Any = None) -> Array:
        """The labels that a score compares with: those given, or those of the kernels."""
        truth = given_labels(K, y)[0] if isinstance(K, KernelSet) else y
        if truth is None:
            msg = f"{what} needs labels: give y, or store them with the kernels"
            raise InputError(msg)
        return with_unknown(truth, unknown)

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


def fitted(found: FitOutcome) -> Any:
    """The learner of a plan's row, fitted: a copy with what the row has found."""
    model: KernelLearner = clone(found.data.fit.learner)
    model._take(found)
    return model
