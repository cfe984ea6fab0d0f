"""How commands measure a fitted model on samples whose labels are known, and tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from dmkl.arrays import Array, Float
from dmkl.cli.output import say, show
from dmkl.cli.tables import classes_table, confusion_table, measures_as_mapping
from dmkl.searching.assessing import measures_of
from dmkl.searching.confusion import class_scores, confusion

__all__ = ["Measured", "measured"]


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured.

    Parameters
    ----------
    accuracy
        Share of samples with the right label, or with all tasks right.
    scores
        Other measures by name: a number, or (task,).
    counts
        The confusion matrix.
    """

    accuracy: float
    scores: dict[str, Any]
    counts: xr.DataArray

    @property
    def mapping(self) -> dict[str, Any]:
        """For JSON."""
        found = {"accuracy": self.accuracy, "scores": self.scores}
        return found | measures_as_mapping(class_scores(self.counts), self.counts)

    def print(self, what: str) -> None:
        """Sentences and tables; `what` was predicted."""
        say("Accuracy ", (f"{100 * self.accuracy:.2f} %", "bold"), f" on {what}.")
        for name, value in self.scores.items():
            mean = float(np.nanmean(value))
            say(f"{name} ", (f"{mean:.4g}", "bold"), ", mean over tasks" if np.ndim(value) else "")
        matrix = confusion_table(self.counts)
        show(classes_table(class_scores(self.counts)), *([] if matrix is None else [matrix]))


def measured(estimator: Any, decision: Float, truth: Array, scoring: Any) -> Measured:
    """Measure decision scores of a fitted model.

    Labels are compared by their text: those of a file may be stored otherwise than those that were learnt.

    Raises
    ------
    InputError
        If a measure has no name that is known, or the truth has classes that were not learnt and `scoring` asks for
        more than the accuracy.
    """
    predicted = estimator.labels_of(decision)
    same = truth.astype(str) == predicted.astype(str)
    accuracy = float(np.mean(same.reshape(len(same), -1).all(axis=1)))
    if estimator.kind_ != "multilabel":
        truth = _as_learnt(truth.reshape(-1), estimator.classes_)
    scores = {} if scoring is None else measures_of(estimator, decision, truth, scoring)
    return Measured(accuracy, scores, confusion(truth, predicted, estimator.classes_, estimator.tasks_))


def _as_learnt(truth: Array, classes: Array) -> Array:
    """Labels in the type of those that were learnt, where all of them were; as they are otherwise."""
    by_text = {str(label): label for label in classes.tolist()}
    if not set(truth.astype(str)) <= set(by_text):
        return truth
    return np.array([by_text[str(label)] for label in truth.tolist()], dtype=classes.dtype)
