"""What a search is to do, and what it has found, before it is labelled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.estimators.base import KernelClassifier
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets
from dmkl.searching.folds import Fold
from dmkl.searching.scoring import Metric

__all__ = ["Found", "Plan"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """What is searched, checked."""

    estimator: KernelClassifier
    K: KernelSet
    labels: Array
    tasks: Array | None
    targets: Targets
    grid: dict[str, tuple[Any, ...]]
    folds: list[Fold]
    metrics: dict[str, Metric]

    @property
    def n_tasks(self) -> int:
        """Problems that are independent."""
        return len(self.targets.problems)

    def held_out(self, fold: Fold) -> Index:
        """The rows of a fold whose scores are wanted: those of validation, then those of test."""
        return np.concatenate([fold.validation, fold.test])


@dataclass
class Found:
    """What became of every point: arrays over (point, fold, task), and what it took."""

    weights: Float
    """(point, fold, task, kernel)"""
    gap: Float
    objective: Float
    status: npt.NDArray[np.int8]
    decisions: dict[tuple[int, int], Float]
    """Of (point, fold): scores of the rows held out."""
    classes: list[tuple[str, Array]]
    """Of each fold: kind and classes that its training rows have."""
    n_passes: float
    solver: str
    rounds: list[dict[str, Any]] = field(default_factory=list)
