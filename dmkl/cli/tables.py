"""Models and their scores on other samples as tables for people, and as mappings for JSON.

It is imported by functions, after a model or a result was made or read: help and imports of kernels do without pandas
and xarray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import Array, Float
from dmkl.cli.output import say, show_tables
from dmkl.description import Column, Table
from dmkl.estimators.learner import label_accuracy
from dmkl.estimators.plan import tell_new_classes
from dmkl.searching.assessing import class_facts, class_tables, confusion, measures_of

MOST_COLUMNS = 4
"""Columns of weights that fit a terminal of 80 characters."""


def models_table(
    models: Mapping[str, Any], seconds: Mapping[str, float], accuracy: Mapping[str, float] | None = None
) -> Table:
    """A row for each model: accuracy if given, proven gap, passes, solver, time."""
    rows = [
        {
            "model": name,
            "gap": float(np.max(np.asarray(model.gap_))),
            "passes": model.n_passes_,
            "solver": getattr(model, "solver_", ""),  # some learners have one solver only
            "seconds": seconds[name],
            **({} if accuracy is None else {"accuracy": accuracy[name]}),
        }
        for name, model in models.items()
    ]
    measured = [] if accuracy is None else [Column("accuracy", form="share")]
    columns = [Column("gap", "proven gap", form="gap"), Column("passes"), Column("solver"), Column("seconds")]
    return Table(pd.DataFrame(rows), [Column("model"), *measured, *columns])


# --- scores of a model on other samples ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModelScores:
    """The scores of a fitted model on samples whose labels are known."""

    accuracy: float | None
    """Share of samples with the right label, or with all tasks right; None for a regression."""
    scores: dict[str, Any]
    """Other measures by name: a number, or (task,)."""
    counts: xr.DataArray | None
    """The confusion matrix; None for a regression."""
    residual_scores: dict[str, Any] = field(default_factory=dict)
    """Those of the kernels' part of a regression on covariates."""

    @property
    def mapping(self) -> dict[str, Any]:
        """The scores for JSON."""
        if self.counts is None:
            return {"scores": self.scores} | ({"residual_scores": self.residual_scores} if self.residual_scores else {})
        scores = {"accuracy": self.accuracy, "scores": self.scores}
        return scores | class_facts(self.counts)

    def print(self, samples: str) -> None:
        """Print sentences and tables; `samples` describes the samples."""
        if self.accuracy is not None:
            say("Accuracy ", (f"{100 * self.accuracy:.2f} %", "bold"), f" on {samples}.")
        outputs = "targets" if self.accuracy is None else "tasks"
        of_kernels = " of the kernels' part: the prediction and y without what covariates predict"
        on = f" on {samples}" if self.accuracy is None else ""
        for scores, of_what in ((self.scores, on), (self.residual_scores, of_kernels)):
            for name, value in scores.items():
                mean = float(np.nanmean(value))
                say(f"{name} ", (f"{mean:.4g}", "bold"), f", mean over {outputs}" if np.ndim(value) else "", of_what)
        if self.counts is not None:
            show_tables(*(make() for make in class_tables(self.counts).values()))


def score_model(
    estimator: Any,
    decision: Float,
    truth: Array,
    scoring: Any,
    unknown: str | None,
    of_covariates: Float | None = None,
) -> ModelScores:
    """Score the decision scores of a fitted model; `unknown` is the code of unknown labels.

    `of_covariates` is the part of these scores that is the covariates'.
    Labels are compared by their texts: a file may store them with another type than those of the training set. Measures
    other than the accuracy need truths of classes that the model has.
    """
    truth = estimator._truth(None, truth, unknown=unknown)
    if estimator.kind_ == "clusters":
        from dmkl.estimators.clustering import cluster_agreement

        agreement = cluster_agreement(estimator.labels_of(decision), truth) if truth.ndim == 1 else {}
        return ModelScores(None, agreement, None)
    if estimator.kind_ == "regression":
        scores, residual_scores = measures_of(estimator, decision, truth, scoring), {}
        if of_covariates is not None:
            without = truth - of_covariates.reshape(truth.shape)
            residual_scores = measures_of(estimator, decision - of_covariates, without, scoring)
        return ModelScores(None, scores, None, residual_scores)
    predicted = estimator.labels_of(decision)
    right = truth.astype(str) == predicted.astype(str)
    accuracy = float(right.mean()) if truth.ndim == 1 else label_accuracy(truth, predicted)
    if estimator.kind_ != "multilabel":
        tell_new_classes(truth.reshape(-1), estimator.classes_)
        truth, by_text = truth.reshape(-1), {str(label): label for label in estimator.classes_.tolist()}
        if set(truth.astype(str)) <= set(by_text):  # a new class keeps the type of all
            truth = np.array([by_text[str(label)] for label in truth.tolist()], dtype=estimator.classes_.dtype)
    scores = {} if scoring is None else measures_of(estimator, decision, truth, scoring)
    return ModelScores(accuracy, scores, confusion(truth, predicted, estimator.classes_, estimator.tasks_))
