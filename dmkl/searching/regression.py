"""Measures of predicted numbers, larger being better: correlation, and scikit-learn's."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import get_scorer

from dmkl.arrays import Array, plain_repr
from dmkl.errors import InputError

__all__ = ["REGRESSION_METRICS", "correlation", "named_measure", "scored_values"]

Metric = Callable[[Array, Array, Array], float]


def correlation(truth: Array, predicted: Array) -> float:
    """Pearson's correlation Σ(y − ȳ)(f − f̄) / √(Σ(y − ȳ)² Σ(f − f̄)²).

    Returns
    -------
    float
        NaN where the truth is constant, 0 where the prediction is.
    """
    true, found = truth - truth.mean(), predicted - predicted.mean()
    sizes = [float(np.linalg.norm(values)) for values in (true, found)]
    # Of constants, rounding is left.
    flat = [size <= 1e-13 * np.linalg.norm(of) for size, of in zip(sizes, (truth, predicted), strict=True)]
    if flat[0]:
        return float("nan")
    return 0.0 if flat[1] else float(true @ found) / (sizes[0] * sizes[1])


REGRESSION_METRICS: dict[str, Metric] = {"correlation": lambda truth, predicted, _: correlation(truth, predicted)}
"""Measures that are not looked up in scikit-learn, by name."""

_SUITABLE = "r2, neg_mean_squared_error, neg_mean_absolute_error, explained_variance"


class _Predictions(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted regression of samples that are their own predictions."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Array) -> Array:
        return X[:, 0]


def named_measure(name: str) -> Metric:
    """A measure of `REGRESSION_METRICS` or of scikit-learn.

    Raises
    ------
    InputError
        If there is none of that name, or it is for classes.
    """
    if name in REGRESSION_METRICS:
        return REGRESSION_METRICS[name]
    known = f"dmkl has {', '.join(REGRESSION_METRICS)}, and of scikit-learn's these do: {_SUITABLE}"
    try:
        scorer = get_scorer(name)
    except ValueError as error:
        msg = f"there is no scoring {name!r} for a regression; {known}"
        raise InputError(msg) from error
    metric = scored_values(name, scorer)
    truth = np.array([0.25, 0.5, 1.5])
    try:
        metric(truth, truth, np.zeros(0))
    except InputError as error:
        msg = f"scoring {name!r} does not suit a regression; {known}"
        raise InputError(msg) from error
    return metric


def scored_values(name: str, scorer: Any) -> Metric:
    """The measure that a scorer takes of predictions; NaN of fewer than two values."""

    def metric(truth: Array, predicted: Array, classes: Array) -> float:
        if len(truth) < 2:
            return float("nan")
        try:
            value = scorer(_Predictions(), predicted[:, None], truth)
        except (ValueError, AttributeError, TypeError) as error:
            msg = f"scoring {name!r} does not suit these predictions: {error}"
            raise InputError(msg) from error
        if not isinstance(value, numbers.Real):
            msg = f"scoring {name!r} must return one number, and returned {plain_repr(value)}"
            raise InputError(msg)
        return float(value)

    return metric
