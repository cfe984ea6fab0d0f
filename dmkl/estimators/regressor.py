"""What regressions share beside what all learners do: targets that are numbers, and what scores mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from dmkl.arrays import Array
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.problems import Problems
from dmkl.numerics.fisher import Targets, encode_values
from dmkl.passes.blas import one_blas_thread
from dmkl.stores import Kernels
from dmkl.unknown import is_known

__all__ = ["KernelRegressor", "mean_r2"]


class KernelRegressor(RegressorMixin, KernelLearner, abstract=True):  # type: ignore[misc]
    """A regression on a weighted sum of kernels, of one target or several."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _targets(self, labels: npt.ArrayLike, n_samples: int, tasks: Array | None) -> Targets:
        return encode_values(labels, n_samples, tasks)

    def _problems(self, targets: Targets, tasks: Array | None) -> Problems:
        return Problems.of_targets(targets, tasks)

    @one_blas_thread
    def predict(self, K: Kernels | None = None, **new: Any) -> xr.DataArray:
        """Predict the targets of the row samples: Σ_j β_j K_j c + b, (sample,), or (sample, target) of several.

        Parameters
        ----------
        K, **new
            As in `KernelClassifier.decision_function`.

        Raises
        ------
        InputError
            As there.
        """
        return self._decision(K, **new).rename("prediction")

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
        """R² of the predictions, 1 − Σ(y − f)²/Σ(y − ȳ)²; the mean over the targets, each on its known values.

        Parameters
        ----------
        K, **new
            As in `predict`.
        y
            The true values; the labels of `K` where missing.
        unknown
            A code of values that are unknown, as in `fit`.
        """
        return mean_r2(self._truth(K, y, unknown=unknown), self.predict(K, **new).values, sample_weight)


def mean_r2(truth: Array, predicted: Array, sample_weight: npt.ArrayLike | None = None) -> float:
    """R² = 1 − Σ(y − f)²/Σ(y − ȳ)² of (samples,), or its mean over (samples, targets), each on its known values."""
    weight = np.ones(len(truth)) if sample_weight is None else np.asarray(sample_weight)
    scores = []
    for true, found in zip(truth.reshape(len(truth), -1).T, predicted.reshape(len(truth), -1).T, strict=True):
        known = is_known(true)
        scores.append(r2_score(true[known].astype(np.float64), found[known], sample_weight=weight[known]))
    return float(np.mean(scores))
