"""Fitting the chosen point anew, on several sets of rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from dmkl.estimators.base import KernelClassifier
from dmkl.estimators.mkfda import MKFDA, Uniform, fit_together
from dmkl.kernelset import KernelSet

__all__ = ["refit_models"]

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]


def refit_models(
    model: KernelClassifier, K: KernelSet, y: Array, sets: Sequence[Index], starts: Sequence[Array] | None = None
) -> list[KernelClassifier]:
    """The model fitted on each of some sets of rows; with passes that serve all of them, where it has a way to.

    Parameters
    ----------
    starts
        β to begin with, one for every problem of every set in turn.
    """
    models = [clone(model) for _ in sets]
    kernels = [K[rows, rows] for rows in sets]
    if type(model) in (MKFDA, Uniform):
        fit_together(models, kernels, [y[rows] for rows in sets], starts)
        return models
    return [fresh.fit(part, y[rows]) for fresh, part, rows in zip(models, kernels, sets, strict=True)]
