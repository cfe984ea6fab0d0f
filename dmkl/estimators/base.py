"""What all learners share: the training statistics they carry, prediction, saving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score

from dmkl.errors import InputError
from dmkl.estimators.persistence import MODELS, save_model
from dmkl.features.build import Missing
from dmkl.features.cross import TrainingFeatures, cross_tiles, training_features
from dmkl.kernelset import KernelSet, measure
from dmkl.numerics.chain import FittedStep
from dmkl.numerics.fisher import Targets, encode_targets
from dmkl.passes.run import run_pass
from dmkl.passes.statistics import measure_new
from dmkl.passes.sweep import Columns
from dmkl.passes.view import Lens, View

__all__ = ["KernelClassifier", "TrainingSet", "check_kernel_set"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrainingSet:
    """Training kernels with the model's own steps applied and measured, and what is to be learnt from them."""

    kernels: KernelSet
    targets: Targets
    own: tuple[FittedStep, ...]
    """The statistics of the steps that the model added: they go with the model."""
    n_passes: float


class KernelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier on a weighted sum of kernels.

    Subclasses set `weights_`, `dual_coef_` and what else they learn in `fit`; prediction needs these two and the
    training statistics. The score of a sample x for class k is Σ_j β_j Σ_i k_j(x, x_i) α_ik, with its row of kernel
    values centred and normalised by the statistics of the training samples.
    """

    center: bool
    normalize: str | None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not cls.__name__.startswith("_"):
            MODELS[cls.__name__] = cls

    # --- fitting -------------------------------------------------------------------------------------------------

    def _steps(self) -> tuple[str, ...]:
        how = self.normalize
        if how not in (None, "trace", "cosine", "multiplicative"):
            msg = f"normalize must be 'trace', 'cosine', 'multiplicative' or None, got {how!r}"
            raise InputError(msg)
        return (*(("center",) if self.center else ()), *((how,) if how is not None else ()))

    def _prepared(self, K: KernelSet) -> KernelSet:
        """The kernels with the model's own steps, not measured."""
        for step in self._steps():
            K = K.center() if step == "center" else K.normalize(step)
        return K

    def _training(self, K: KernelSet, y: npt.ArrayLike | None) -> TrainingSet:
        """Check the input, add the model's steps and measure them."""
        return self._trainings([self], [K], [y])[0]

    @staticmethod
    def _trainings(
        models: Sequence[KernelClassifier], sets: Sequence[KernelSet], labels: Sequence[npt.ArrayLike | None]
    ) -> list[TrainingSet]:
        """`_training` of several models on the same kernels, which share the pass that their statistics take."""
        targets = [model._begin(K, y) for model, K, y in zip(models, sets, labels, strict=True)]
        prepared = [model._prepared(K) for model, K in zip(models, sets, strict=True)]
        prepared, n_passes = measure(prepared)
        found = []
        for model, K, target in zip(models, prepared, targets, strict=True):
            steps = K.lens().fitted.steps
            model.statistics_ = steps[len(steps) - len(model._steps()) :]
            found.append(TrainingSet(K, target, model.statistics_, n_passes))
        return found

    def _begin(self, K: KernelSet, y: npt.ArrayLike | None) -> Targets:
        """Check the input of `fit` and remember what the model is fitted on."""
        check_kernel_set(K, "fit")
        # A fit that fails leaves an estimator that is not fitted, not one of the old weights with new names.
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        if not K.is_square:
            _, rows, cols = K.shape
            msg = f"fit needs the training kernels, K[train, train], got {rows} rows and {cols} columns that differ"
            raise InputError(msg)
        labels = K.labels if y is None else y
        if labels is None:
            msg = "fit needs labels: give y, or store them with the kernels (labels=, --labels)"
            raise InputError(msg)
        tasks = K.tasks if y is None else None
        targets = encode_targets(labels, K.shape[1], tasks)
        self.classes_ = targets.classes
        self.kernel_names_ = K.names
        self.features_ = _features_of(K)
        self.train_samples_ = K.train_samples.astype(str)
        self.n_features_in_ = K.shape[1]
        self.kind_ = targets.kind
        self.tasks_ = (
            None
            if targets.kind != "multilabel"
            else np.array([str(t) for t in (range(len(targets.problems)) if tasks is None else tasks)])
        )
        return targets

    def _label_results(self, alphas: list[Float], betas: list[Float]) -> None:
        """Set `weights_` and `dual_coef_` from one pair for each problem."""
        names = np.array(self.kernel_names_, dtype=str)
        samples = self.train_samples_
        # In the order that a file gives back, so that a loaded model predicts the same to the last bit.
        alphas = [np.ascontiguousarray(alpha) for alpha in alphas]
        if self.kind_ == "multilabel":
            assert self.tasks_ is not None
            self.weights_ = xr.DataArray(
                np.stack(betas, axis=1),
                dims=("kernel", "task"),
                coords={"kernel": names, "task": self.tasks_},
                name="weight",
            )
            self.dual_coef_ = xr.DataArray(
                np.concatenate(alphas, axis=1),
                dims=("sample", "task"),
                coords={"sample": samples, "task": self.tasks_},
                name="dual_coef",
            )
            return
        self.weights_ = xr.DataArray(betas[0], dims=("kernel",), coords={"kernel": names}, name="weight")
        columns = self.classes_ if self.kind_ == "multiclass" else self.classes_[1:]
        self.dual_coef_ = xr.DataArray(
            alphas[0],
            dims=("sample", "class"),
            coords={"sample": samples, "class": columns},
            name="dual_coef",
        )

    # --- predicting ----------------------------------------------------------------------------------------------

    def decision_function(self, K: KernelSet | None = None, **new: Any) -> xr.DataArray:
        """Scores Σ_j β_j K_j α of the row samples, (sample, class); (sample,) for two classes.

        Parameters
        ----------
        K
            ``K[test, train]``, or a rectangular set: new samples against the training samples in their order. Kernels
            are matched by name; those of zero weight are not read.
        **new
            Instead of `K` the `features` of new samples, and `samples`, `present` and `missing` where they are needed
            (see `dmkl.build_cross`), for a model whose training kernels were built from features. Kernels of zero
            weight are not computed.

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
        weights = self.weights_.values.reshape(len(self.kernel_names_), -1)
        used = np.flatnonzero(np.any(weights != 0, axis=1))
        chosen = self._matching(K, used)
        alpha = np.asarray(self.dual_coef_.values, dtype=np.float64)
        columns = np.repeat(weights, alpha.shape[1], axis=1) if weights.shape[1] == 1 else weights
        lens, extra = self._prediction_lens(chosen, used)
        precision = chosen.compute_dtype(np.float64)
        (scores,), passes = run_pass([lens], [Columns(alpha, "sum", columns[used], precision)], "predict")
        self.n_prediction_passes_ = passes + extra
        if hasattr(self, "intercept_"):
            scores = scores + self.intercept_.values
        coords: dict[str, Any] = {"sample": chosen.samples.astype(str)}
        dim = self.dual_coef_.dims[1]
        if self.kind_ == "binary":
            return xr.DataArray(scores[:, 0], dims=("sample",), coords=coords, name="score")
        coords[str(dim)] = self.dual_coef_.coords[dim].values
        return self._class_scores(xr.DataArray(scores, dims=("sample", dim), coords=coords, name="score"))

    def _class_scores(self, scores: xr.DataArray) -> xr.DataArray:
        """Scores of classes or tasks, from what the machines say."""
        return scores

    def cross_kernels(
        self,
        features: Any,
        *,
        samples: Sequence[Any] | Array | None = None,
        present: Mapping[str, npt.ArrayLike] | None = None,
        missing: Missing = "refuse",
    ) -> KernelSet:
        """The kernels of new samples against the training samples that prediction needs, computed as they are read.

        Parameters
        ----------
        features, samples, present, missing
            As in `dmkl.build_cross`.

        Raises
        ------
        InputError
            If the training kernels were not built from features, or these features are others than in training.
        """
        self._check_fitted()
        needed = self._kernels_used()
        if isinstance(self.features_, str):
            raise InputError(self.features_)
        lacking = [name for name in needed if name not in self.features_.recipes]
        if lacking:
            msg = (
                f"the model gives weight to kernel {lacking[0]!r}, which was not computed from features; predict from "
                "kernels instead"
            )
            raise InputError(msg)
        source, _ = cross_tiles(self.features_.select(needed), features, samples, present, missing)
        rows, cols = np.arange(len(source.samples)), np.arange(len(source.train_samples))
        return KernelSet(View(source, np.arange(len(source.names)), rows, cols))

    def _kernels_used(self) -> list[str]:
        """The kernels that prediction reads."""
        weights = self.weights_.values.reshape(len(self.kernel_names_), -1)
        return [name for name, used in zip(self.kernel_names_, np.any(weights != 0, axis=1), strict=True) if used]

    def predict(self, K: KernelSet | None = None, **new: Any) -> Array:
        """Predict the labels of the row samples, of kernels or of `features` as in `decision_function`.

        The class of the largest score; the second class where a binary score is positive; 0 or 1 for each task of a
        multilabel problem, by the sign of its score. A binary score is zero where the estimated probability of the
        second class equals its share in training: rare classes are found rather than missed. For another balance, put
        a threshold of your own on `decision_function`.
        """
        return self.labels_of(self.decision_function(K, **new).values)

    def labels_of(self, scores: Array) -> Array:
        """Labels that scores of `decision_function` mean, (samples,) or (samples, classes or tasks); see `predict`."""
        if self.kind_ == "multilabel":
            return (scores > 0).astype(np.int64)
        index = (scores > 0).astype(np.int64) if self.kind_ == "binary" else np.argmax(scores, axis=1)
        return cast(Array, self.classes_[index])

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
        truth = K.labels if y is None and K is not None else y
        if truth is None:
            msg = "score needs labels: give y, or store them with the kernels"
            raise InputError(msg)
        return float(accuracy_score(truth, self.predict(K, **new), sample_weight=sample_weight))

    def _check_fitted(self) -> None:
        if not hasattr(self, "weights_"):
            msg = f"this {type(self).__name__} is not fitted yet; call fit first"
            raise NotFittedError(msg)

    def _matching(self, K: KernelSet, used: npt.NDArray[np.int64]) -> KernelSet:
        needed = [self.kernel_names_[j] for j in used]
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
        return K.select(needed)

    def _prediction_lens(self, K: KernelSet, used: npt.NDArray[np.int64]) -> tuple[Lens, float]:
        """What new samples are seen through: the set's own steps, then the model's with the statistics of training."""
        return measure_new(K.view, [step.select(used) for step in self.statistics_])

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

    def _more_state(self) -> dict[str, Any]:
        """Fitted attributes beyond those that every classifier has, as plain JSON values."""
        return {}

    def _set_more_state(self, state: dict[str, Any]) -> Self:
        for name, value in state.items():
            setattr(self, name, value)
        return self


def _features_of(K: KernelSet) -> TrainingFeatures | str:
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
