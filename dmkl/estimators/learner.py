"""What all learners share: fitting by plans, prediction, saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import BaseEstimator, clone

from dmkl.arrays import Array, Float, plain_repr
from dmkl.errors import IndefiniteKernelWarning, InputError, warn
from dmkl.estimators.engine import run
from dmkl.estimators.given import features_of, given_labels, labeled_targets
from dmkl.estimators.plan import Fit, FitOutcome, Plan, Preparation, TrainingSet
from dmkl.estimators.predicting import Predicting
from dmkl.estimators.problems import Multiclass, Problems, Statistics
from dmkl.estimators.results import set_results, warn_if_open
from dmkl.estimators.saving import MODELS, decode, encode, models, save_model
from dmkl.estimators.weights import as_sample_weight
from dmkl.kernelset import KernelSet
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.fisher import Targets, with_unknown
from dmkl.numerics.steps import Weighing, as_steps
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.view import Lens
from dmkl.solvers.jobs import Job, Method, SideBySide
from dmkl.stores import Kernels, as_kernel_set
from dmkl.variables import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["KernelLearner", "fitted", "plain_machine"]


class KernelLearner(Predicting, BaseEstimator):  # type: ignore[misc]
    """A learner on a weighted sum of kernels: `KernelClassifier` and `KernelRegressor` say what its scores mean.

    The score of a sample x for column k (a class, a task, a target) is Σ_j β_j Σ_i k_j(x, x_i) α_ik + b_k, with its row
    of kernel values centered and normalized by the statistics of the training samples.

    A learner says which parameters it has and checks them (`_check_parameters`), which jobs a training set makes
    (`_jobs`), who solves them (`_method`), and which attributes it sets beside those of all (`_set_attributes`). The
    rest is here: it can then be fitted, searched, saved and loaded.
    """

    steps: str | Sequence[str]
    multiclass: Multiclass = "ovr"
    history_: xr.Dataset
    status_: str
    n_iter_: int
    _TAKES_UNKNOWN_LABELS = True
    """Whether labels may be unknown for some samples of a task."""
    _DECIDES = False
    """Whether labels follow a decision rule that is learnt from the training rows."""
    _TAKES_WEIGHTS = False
    """Whether samples may have weights."""
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
        """Refuse parameters that break a rule, by InputError."""
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
        """Refuse data that the parameters do not go with, before a pass, by InputError."""
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

    def _check_weights(self) -> None:
        """Refuse weights of samples where the learner has no use for them, by InputError."""
        if not self._TAKES_WEIGHTS:
            msg = f"{type(self).__name__} does not weigh samples; leave sample_weight out"
            raise InputError(msg)

    def _least_lam(self, lens: Lens) -> float:
        """See `Learner._least_lam`."""
        return 0.0

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

    def _permuted(self, labels: Array, order: Array, samples: Array) -> Array:
        """Labels for a permutation test: row i has what row order[i] had."""
        return labels[order]

    def decisions_of(self, scores: Array) -> Float:
        """What predictions are read from, in the shape of the scores: the scores themselves."""
        return scores

    def _set_attributes(self, found: FitOutcome) -> None:
        """Set the attributes that only this learner has, after those of all learners."""

    def _decide(self, found: Sequence[FitOutcome]) -> list[Float]:
        """What predictions for the held-out rows are read from: the scores, where there is no rule."""
        return [each.decision for each in found]

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
        """Draw the kernel weights; see `dmkl.estimators.pictures.plot_weights`."""
        from dmkl.estimators.pictures import plot_weights

        return plot_weights(self)

    def plot_weight_map(self, of: Any = None) -> Figure:
        """Draw the weights of each group, class or task; see `dmkl.estimators.pictures.plot_weight_map`."""
        from dmkl.estimators.pictures import plot_weight_map

        return plot_weight_map(self, of)

    def plot_convergence(self) -> Figure:
        """Draw the proven gap after each step; see `dmkl.estimators.pictures.plot_convergence`."""
        from dmkl.estimators.pictures import plot_convergence

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
        """The kernels with the learner's steps, not measured: D^{1/2}KD^{1/2} where training samples have weights d."""
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
