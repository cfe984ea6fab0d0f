"""Multiple kernel learning on kernel matrices in memory, as one scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.estimators.classifier import KernelClassifier
from dmkl.estimators.fisher import MKFDA
from dmkl.estimators.front import in_this_process
from dmkl.stores import create

__all__ = ["PrecomputedMKLClassifier"]


class PrecomputedMKLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Multiple kernel learning on kernel matrices in memory, for `cross_val_score` and searches of scikit-learn.

    scikit-learn cuts the rows and the columns of X, as of ``SVC(kernel="precomputed")``; the kernels are its third
    dimension: ``X = np.stack([K_1, K_2], axis=2)``. For sets that do not fit in memory there are `dmkl.search` and
    `dmkl.evaluate`.

    Parameters
    ----------
    estimator
        Any classifier of dmkl, `dmkl.MKFDA()` by default. Its parameters are set as ``estimator__p``,
        ``estimator__lam`` …
    names
        The kernels' names; ``kernel_0``, ``kernel_1`` … by default.

    Attributes
    ----------
    estimator_ : KernelClassifier
        The fitted estimator.
    weights_ : DataArray
        β, over kernel; over kernel and task for a multilabel problem.
    classes_ : ndarray
        The labels, sorted; 0 and 1 for a multilabel problem.
    n_features_in_ : int
        Training samples.

    Examples
    --------
    >>> import dmkl
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
    >>> from sklearn.model_selection import cross_val_score
    >>> X, y = load_iris(return_X_y=True)
    >>> kernels = np.stack([linear_kernel(X), rbf_kernel(X)], axis=2)
    >>> bool(cross_val_score(dmkl.PrecomputedMKLClassifier(), kernels, y, cv=3).mean() > 0.9)
    True
    """

    def __init__(self, estimator: KernelClassifier | None = None, names: Sequence[str] | None = None) -> None:
        self.estimator = estimator
        self.names = names

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of the default estimator (``estimator__lam``) too."""
        if self.estimator is None and "estimator" not in params and any(k.startswith("estimator__") for k in params):
            self.estimator = MKFDA()
        super().set_params(**params)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.input_tags.pairwise = True
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn the weights of the kernels.

        Parameters
        ----------
        X
            (m, m, kernels): the training samples among themselves.
        y
            (m,) integers or strings, two classes or more; (m, tasks) of 0 and 1 for independent binary problems.

        Raises
        ------
        InputError
            If X, y or a parameter breaks a rule.
        """
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # a fit that fails leaves no older one
        estimator: Any = MKFDA() if self.estimator is None else self.estimator
        if not isinstance(estimator, KernelClassifier):
            msg = f"estimator must be a classifier of dmkl such as MKFDA(), got {estimator!r:.100}"
            raise InputError(msg)
        kernels = _kernels_first(X)
        with in_this_process():
            K = create(None, kernels, names=self.names, symmetric=True)
            self.estimator_ = clone(estimator).fit(K, np.asarray(y))
        self.n_features_in_ = K.shape[1]
        self.classes_ = self.estimator_.classes_
        self.weights_ = self.estimator_.weights_
        return self

    def decision_function(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """What labels are read from: (n,) for two classes, (n, classes), or (n, tasks) of a multilabel problem.

        The second of two classes and a task where it is positive, the largest of several classes; the scores of the
        estimator after its `decisions_of`.

        Parameters
        ----------
        X
            (n, m, kernels): new samples against the training samples.

        Raises
        ------
        InputError
            If X has another number of training samples or kernels.
        """
        scores = self._found("decision_function", X)
        decisions: npt.NDArray[np.float64] = self.estimator_.decisions_of(scores)
        return decisions

    def predict(self, X: npt.ArrayLike) -> Array:
        """Labels of new samples, (n,), or (n, tasks) of 0 and 1."""
        scores = self._found("decision_function", X)
        labels: Array = self.estimator_.labels_of(scores)
        return labels

    @available_if(lambda self: getattr(self.estimator_, "calibrated_on_", None) is not None)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Calibrated probabilities of new samples, as those of `dmkl.MKLClassifier`."""
        return self._found("predict_proba", X)

    def _found(self, method: str, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """What a method of the estimator says of new samples."""
        check_is_fitted(self, "estimator_")
        kernels = _kernels_first(X)
        m, n = self.n_features_in_, len(self.estimator_.kernel_names_)
        if kernels.shape[::2] != (n, m):
            msg = (
                f"X has shape {np.shape(X)}, expected (samples, {m}, {n}): training samples and kernels as in training"
            )
            raise InputError(msg)
        with in_this_process():
            K = create(None, kernels, names=self.estimator_.kernel_names_, symmetric=False)
            found: npt.NDArray[np.float64] = getattr(self.estimator_, method)(K).values
        return found


def _kernels_first(X: npt.ArrayLike) -> Array:
    """X as (kernels, samples, training samples)."""
    array = np.asarray(X)
    if array.ndim != 3:
        msg = (
            f"X has {array.ndim} dimensions, expected 3: samples, training samples, kernels, such as "
            "np.stack([K_1, K_2], axis=2)"
        )
        raise InputError(msg)
    return np.moveaxis(array, 2, 0)
