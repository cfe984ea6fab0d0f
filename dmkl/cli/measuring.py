"""How commands measure a fitted model on samples whose labels are known, and tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dmkl.cli.output import say, show
from dmkl.cli.tables import classes_table, confusion_table, measures_as_mapping

if TYPE_CHECKING:
    import xarray as xr

    from dmkl.arrays import Array, Float

__all__ = ["Measured", "measured"]


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured.

    Parameters
    ----------
    accuracy
        Share of samples with the right label, or with all tasks right; None of a regression.
    scores
        Other measures by name: a number, or (task,).
    counts
        The confusion matrix; None of a regression.
    """

    accuracy: float | None
    scores: dict[str, Any]
    counts: xr.DataArray | None

    @property
    def mapping(self) -> dict[str, Any]:
        """For JSON."""
        from dmkl.searching.confusion import class_scores

        if self.counts is None:
            return {"scores": self.scores}
        found = {"accuracy": self.accuracy, "scores": self.scores}
        return found | measures_as_mapping(class_scores(self.counts), self.counts)

    def print(self, what: str) -> None:
        """Sentences and tables; `what` was predicted."""
        import numpy as np

        from dmkl.searching.confusion import class_scores

        if self.accuracy is not None:
            say("Accuracy ", (f"{100 * self.accuracy:.2f} %", "bold"), f" on {what}.")
        each = "targets" if self.accuracy is None else "tasks"
        for name, value in self.scores.items():
            mean = float(np.nanmean(value))
            where = f" on {what}" if self.accuracy is None else ""
            say(f"{name} ", (f"{mean:.4g}", "bold"), f", mean over {each}" if np.ndim(value) else "", where)
        if self.counts is None:
            return
        matrix = confusion_table(self.counts)
        show(classes_table(class_scores(self.counts)), *([] if matrix is None else [matrix]))


def measured(estimator: Any, decision: Float, truth: Array, scoring: Any, unknown: str | None) -> Measured:
    """Measure decision scores of a fitted model; `unknown` is a code of labels that are unknown.

    Labels are compared by their text: those of a file may be stored otherwise than those that were learnt.

    Raises
    ------
    InputError
        If a measure has no name that is known, or the truth has classes that were not learnt and `scoring` asks for
        more than the accuracy.
    """
    from dmkl.estimators.classifier import label_accuracy
    from dmkl.estimators.given import tell_new_classes
    from dmkl.searching.assessing import measures_of
    from dmkl.searching.confusion import confusion

    truth = estimator._truth(None, truth, unknown=unknown)
    if estimator.kind_ == "regression":
        return Measured(None, measures_of(estimator, decision, truth, scoring), None)
    predicted = estimator.labels_of(decision)
    texts = (truth, predicted) if truth.ndim == 2 else (truth.astype(str), predicted.astype(str))
    accuracy = label_accuracy(*texts)
    if estimator.kind_ != "multilabel":
        tell_new_classes(truth.reshape(-1), estimator.classes_)
        truth = _as_learnt(truth.reshape(-1), estimator.classes_)
    scores = {} if scoring is None else measures_of(estimator, decision, truth, scoring)
    return Measured(accuracy, scores, confusion(truth, predicted, estimator.classes_, estimator.tasks_))


def _as_learnt(truth: Array, classes: Array) -> Array:
    """Labels in the type of those that were learnt, where all of them were; as they are otherwise."""
    import numpy as np

    by_text = {str(label): label for label in classes.tolist()}
    if not set(truth.astype(str)) <= set(by_text):
        return truth
    return np.array([by_text[str(label)] for label in truth.tolist()], dtype=classes.dtype)
