"""Multiple kernel learning on kernel matrices in memory, as one scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.estimators.classifier import KernelClassifier
from dmkl.estimators.front import ClassifierFront, in_this_process
from dmkl.stores import create

__all__ = ["PrecomputedMKLClassifier"]


class PrecomputedMKLClassifier(ClassifierFront):
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.three_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, **fit_params: Any) -> Self:
        """Learn the weights of the kernels.

        Parameters
        ----------
        X
            (m, m, kernels): the training samples among themselves.
        y
            (m,) integers or strings, two classes or more; (m, tasks) of 0 and 1 for independent binary problems.
        **fit_params
            For the `fit` of the estimator, such as its `sample_weight` and `unknown`.

        Raises
        ------
        InputError
            If X, y or a parameter breaks a rule.
        """
        estimator = self._unfitted()
        kernels = _kernels_first(X)
        with in_this_process():
            K = create(None, kernels, names=self.names, symmetric=True)
            self._fit_on(estimator, K, np.asarray(y), fit_params)
        self.n_features_in_ = K.shape[1]
        return self

    def _found(self, method: str, X: npt.ArrayLike) -> npt.NDArray[np.float64]:
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
