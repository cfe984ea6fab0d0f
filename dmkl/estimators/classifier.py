"""What classifiers share beside what all learners do: classes, and what scores mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from dmkl.arrays import Array, Float
from dmkl.estimators.calibration import Calibrated
from dmkl.estimators.decisions import prior_probabilities
from dmkl.estimators.given import tell_new_classes
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.plan import FitOutcome, TrainingSet
from dmkl.estimators.problems import Problems
from dmkl.estimators.weights import ClassWeight, by_class, counts
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets, encode_targets, zero_or_one
from dmkl.passes.blas import one_blas_thread
from dmkl.solvers.margin.machine import Bounds
from dmkl.stores import Kernels
from dmkl.unknown import is_known

__all__ = ["KernelClassifier", "label_accuracy"]


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
