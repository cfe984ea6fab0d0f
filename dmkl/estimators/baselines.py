"""The baselines of the papers: the single best kernel, and the product of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from sklearn.metrics import accuracy_score
from sklearn.model_selection import check_cv

from dmkl.arrays import Array, Float, Index
from dmkl.errors import InputError
from dmkl.estimators.decisions import Priors, predicted_labels
from dmkl.estimators.fisher import MKFDA, FisherClassifier, Uniform
from dmkl.estimators.plan import Fit, FitOutcome
from dmkl.estimators.weights import ClassWeight
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import encode_targets
from dmkl.solvers.fisher.solver import SolverChoice

__all__ = ["Product", "SingleBest"]

Fold = tuple[Index, Index]


class SingleBest(FisherClassifier):
    """Fisher discriminant on the kernel with the best CV accuracy.

    Parameters
    ----------
    lam
        Ridge λ > 0.
    priors, class_weight, steps, solver, tol, max_iter
        As in `MKFDA`.
    cv
        Number of folds (stratified where the labels are classes), or a scikit-learn splitter.

    Attributes
    ----------
    best_ : str
        Name of the chosen kernel, the first of those that tie.
    scores_ : DataArray
        Accuracy of every kernel on every fold.
    weights_, dual_coef_, gap_, ...
        As in `MKFDA`; the weight of the chosen kernel is one, all others are zero. `n_passes_` counts what the choice
        cost too.
    """

    _STATE = (*FisherClassifier._STATE, "best_")
    _TAKES_UNKNOWN_LABELS = False
    _TAKES_KERNELS = False
    p = 1.0

    def __init__(
        self,
        lam: float = 1e-2,
        *,
        priors: Priors = None,
        class_weight: ClassWeight = None,
        steps: str | Sequence[str] = ("center", "trace"),
        solver: SolverChoice = "auto",
        tol: float = 1e-4,
        max_iter: int = 200,
        cv: Any = 3,
    ) -> None:
        super().__init__(
            lam, priors=priors, class_weight=class_weight, steps=steps, solver=solver, tol=tol, max_iter=max_iter
        )
        self.cv = cv

    def _nested(self, fit: Fit, K: KernelSet) -> Sequence[Fit]:
        """Each kernel alone, on each fold of the training rows."""
        learner = MKFDA(1.0, **{name: getattr(self, name) for name in Uniform().get_params()})
        rows = []
        for number, (train, test) in enumerate(self._folds(fit)):
            labels = fit.targets.labels[train]
            targets = encode_targets(labels, len(train), fit.tasks)
            weights = None if fit.sample_weight is None else fit.sample_weight[train]
            title = f"fold {number}: "
            some = Fit(
                learner, fit.train[train], targets, fit.tasks, fit.train[test], title=title, sample_weight=weights
            )
            rows += [replace(some, kernels=np.array([j])) for j in range(len(K))]
        return rows

    def _folds(self, fit: Fit) -> list[Fold]:
        labels = fit.targets.labels
        splitter = check_cv(self.cv, labels, classifier=labels.ndim == 1)
        folds = list(splitter.split(np.zeros(len(labels)), labels))
        for number, (train, test) in enumerate(folds):
            _check_fold(number, labels, train, test)
        return folds

    def _decided(self, fit: Fit, found: Sequence[FitOutcome]) -> Fit:
        """The kernel with the highest mean accuracy, the first of those that tie."""
        scores = np.array(self._accuracies(self._folds(fit), found, fit))
        best = int(np.argmax(scores.mean(axis=1)))
        return replace(fit, kernels=np.array([best]), nested=scores)

    def _accuracies(self, folds: Sequence[Fold], found: Sequence[FitOutcome], fit: Fit) -> list[list[float]]:
        """Of each kernel on each fold, decided as in a search; samples count as in training."""
        labels = fit.targets.labels
        n = len(found) // len(folds)
        weights = np.ones(len(labels)) if fit.sample_weight is None else fit.sample_weight
        targets = found[0].data.problems.targets
        decided = [self._decide(found[first : first + n]) for first in range(0, len(found), n)]

        def accuracy(test: Index, decision: Float) -> float:
            predicted = predicted_labels(targets.kind, targets.classes, decision)
            return float(accuracy_score(labels[test], predicted, sample_weight=weights[test]))

        return [
            [accuracy(test, of_fold[k]) for (_, test), of_fold in zip(folds, decided, strict=True)] for k in range(n)
        ]

    def _set_attributes(self, found: FitOutcome) -> None:
        scores = found.data.fit.nested
        assert found.data.fit.kernels is not None
        (best,) = found.data.fit.kernels
        self.best_ = self.kernel_names_[best]
        coords = {"kernel": np.array(self.kernel_names_, dtype=str), "fold": np.arange(scores.shape[1])}
        self.scores_ = xr.DataArray(scores, dims=("kernel", "fold"), coords=coords, name="accuracy")


def _check_fold(number: int, labels: Array, train: Index, test: Index) -> None:
    """Refuse a fold that cannot be learnt from, before anything runs."""
    if not len(test):
        msg = f"fold {number} of cv has no test samples; use fewer folds"
        raise InputError(msg)
    for column in labels.reshape(len(labels), -1).T:
        missing = np.setdiff1d(column, column[train]).tolist()
        if missing:
            msg = (
                f"fold {number} of cv has no training samples of class {missing[0]!r}; use fewer or stratified folds, "
                "or leave that class out"
            )
            raise InputError(msg)


class Product(FisherClassifier):
    """Fisher discriminant on the geometric mean of all kernels.

    The mean is entrywise, (∏_j K_j)^(1/n).

    The kernels must have no negative entries (RBF, χ², histogram intersection …), and must not be centered or
    normalized before. The product is computed tile by tile in each pass and never stored.

    Parameters
    ----------
    lam
        Ridge λ > 0.
    priors, class_weight
        As in `MKFDA`.
    steps, solver, tol, max_iter
        As in `MKFDA`, applied to the product.

    Attributes
    ----------
    factors_ : tuple of str
        The kernels that were multiplied.
    weights_, dual_coef_, gap_, ...
        As in `MKFDA`, for a single kernel named "product".
    """

    _STATE = (*FisherClassifier._STATE, "factors_")
    _TAKES_KERNELS = False

    def _source(self, K: KernelSet) -> KernelSet:
        return K.product()

    def _set_attributes(self, found: FitOutcome) -> None:
        self.factors_ = found.data.given

    def _new_source(self, K: KernelSet) -> KernelSet:
        if K.names == ("product",):
            return K
        missing = [name for name in self.factors_ if name not in K.names]
        if missing:
            msg = f"the product was learnt with kernel {missing[0]!r}, which this set does not have"
            raise InputError(msg)
        return K.select(self.factors_).product()

    def _kernels_needed(self) -> list[str]:
        return list(self.factors_)
