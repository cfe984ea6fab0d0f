"""What the fronts for scikit-learn share: an estimator of dmkl inside, and everything computed in this process."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import dask
import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils.metaestimators import available_if

from dmkl import settings
from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.estimators.classifier import KernelClassifier
from dmkl.estimators.fisher import MKFDA
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.regressor import KernelRegressor
from dmkl.estimators.ridge import MKRidge
from dmkl.kernelset import KernelSet
from dmkl.passes.execute import Machine, active_client, computing_here

__all__ = ["ClassifierFront", "Front", "RegressorFront", "in_this_process"]


class Front(BaseEstimator):  # type: ignore[misc]
    """An estimator of dmkl as one of scikit-learn, that makes kernels of what it is given."""

    estimator: Any
    estimator_: Any
    _DEFAULT: ClassVar[type[KernelLearner]]
    """The estimator where none is given."""
    _KIND: ClassVar[tuple[type[KernelLearner], str]]
    """What an estimator must be, and its name in messages."""

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of the default estimator (``estimator__lam``) too."""
        if self.estimator is None and "estimator" not in params and any(k.startswith("estimator__") for k in params):
            self.estimator = self._DEFAULT()
        super().set_params(**params)
        return self

    def _unfitted(self) -> Any:
        """The estimator to fit; what an earlier fit has left is gone, so that one that fails leaves none."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        estimator: Any = self._DEFAULT() if self.estimator is None else self.estimator
        kind, name = self._KIND
        if not isinstance(estimator, kind):
            msg = f"estimator must be a {name} of dmkl such as {self._DEFAULT.__name__}(), got {estimator!r:.100}"
            raise InputError(msg)
        return clone(estimator)

    def _fit_on(self, estimator: Any, K: KernelSet, y: Any, fit_params: dict[str, Any]) -> None:
        self.estimator_ = estimator.fit(K, y, **fit_params)
        self.weights_ = self.estimator_.weights_
        self.kernel_names_ = K.names
        if hasattr(self.estimator_, "n_iter_"):
            self.n_iter_ = self.estimator_.n_iter_

    def _found(self, method: str, X: Any) -> npt.NDArray[np.float64]:
        """What a method of the estimator says of new samples."""
        raise NotImplementedError


class ClassifierFront(ClassifierMixin, Front):  # type: ignore[misc]
    """A classifier of dmkl as one of scikit-learn."""

    _DEFAULT, _KIND = MKFDA, (KernelClassifier, "classifier")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _fit_on(self, estimator: Any, K: KernelSet, y: Any, fit_params: dict[str, Any]) -> None:
        super()._fit_on(estimator, K, y, fit_params)
        self.classes_ = self.estimator_.classes_

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """What labels are read from: (n,) for two classes, (n, classes), or (n, tasks) of a multilabel problem.

        The second of two classes and a task where it is positive, the largest of several classes; the scores of the
        estimator after its `decisions_of`.

        Parameters
        ----------
        X
            New samples in the form of training: (n, columns) of features, or (n, m, kernels) of kernels between new
            and training samples.

        Raises
        ------
        InputError
            If X breaks a rule.
        """
        scores = self._found("decision_function", X)
        decisions: npt.NDArray[np.float64] = self.estimator_.decisions_of(scores)
        return decisions

    def predict(self, X: Any) -> Array:
        """Labels of new samples, (n,), or (n, tasks) of 0 and 1; see `MKFDA` for the rule and its `priors`."""
        scores = self._found("decision_function", X)
        labels: Array = self.estimator_.labels_of(scores)
        return labels

    @available_if(lambda self: getattr(self.estimator_, "calibrated_on_", None) is not None)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Calibrated probabilities of new samples, (n, classes), or (n, tasks) of a multilabel problem.

        There where the estimator has calibrated ones after fitting, as Fisher discriminants have; see its
        `calibrated_on_`.
        """
        return self._found("predict_proba", X)


class RegressorFront(RegressorMixin, Front):  # type: ignore[misc]
    """A regression of dmkl as one of scikit-learn."""

    _DEFAULT, _KIND = MKRidge, (KernelRegressor, "regression")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Predictions for new samples, (n,), or (n, targets)."""
        return self._found("predict", X)


@contextmanager
def in_this_process() -> Iterator[None]:
    """Let passes run here, on the part of the machine that is this fit's."""
    cores, budget = settings.available_cores(), settings.memory_budget_bytes()
    if threading.current_thread() is not threading.main_thread():
        # Other fits run beside it, in threads of joblib or of a Dask worker. A task that waited for tasks of its own
        # cluster could wait for ever; and Dask's configuration is one for all threads.
        with computing_here(Machine(1, cores, budget, budget)):
            yield
        return
    changes: dict[str, Any] = {}
    if active_client() is not None:
        changes["scheduler"] = "threads"
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if multiprocessing.parent_process() is not None and threads.isdecimal() and 0 < int(threads) < cores:
        # So joblib tells its worker processes their share of the cores.
        share = int(threads)
        changes |= {"num_workers": share, "dmkl.blas-threads": 1, "dmkl.memory": max(1, budget * share // cores)}
    with dask.config.set(changes):
        yield
