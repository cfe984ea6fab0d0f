"""Models and their scores on other samples as tables for people, and as mappings for JSON.

It is imported by functions, after a model or a result was made or read: help and imports of kernels do without pandas
and xarray.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import dmkl
from dmkl.arrays import Array, Float
from dmkl.cli.output import say, show_tables
from dmkl.description import Column, Description, Figure, Table, number
from dmkl.learners.learner import label_accuracy
from dmkl.learners.plan import tell_new_classes
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
    columns = [Column("model"), *([] if accuracy is None else [Column("accuracy", form="share")])]
    columns += [Column("gap", "proven gap", form="gap"), Column("passes", form="exact")]
    return Table(pd.DataFrame(rows), [*columns, Column("solver"), Column("seconds")])


# --- scores of a model on other samples ----------------------------------------------------------------------------


def _describe(
    on: str,
    scores: Mapping[str, Any],
    residual_scores: Mapping[str, Any],
    accuracy: float | None = None,
    counts: xr.DataArray | None = None,
) -> Description:
    """Scores by name, numbers or (task,), and those of the kernels' part of a regression on covariates.

    Of a classifier also the share of samples with the right label, or with all tasks right, and the confusion matrix.
    """
    outputs, of_all = ("targets", f" on {on}") if accuracy is None else ("tasks", "")
    of_kernels = " of the kernels' part: the prediction and y without what covariates predict"
    lines = [
        f"{name} {number(float(np.nanmean(value)))}{f', mean over {outputs}' if np.ndim(value) else ''}{of_what}"
        for values, of_what in ((scores, of_all), (residual_scores, of_kernels))
        for name, value in values.items()
    ]
    facts: dict[str, Any] = {"scores": scores} | ({"residual_scores": residual_scores} if residual_scores else {})
    if accuracy is None or counts is None:
        return Description("Scores", on, {"scores": lines}, lambda: facts)
    facts |= {"accuracy": accuracy, **class_facts(counts)}
    figures = {"Confusion matrix": Figure("Samples by class.", lambda: dmkl.plot_confusion(counts))}
    lines.insert(0, f"Accuracy {number(100 * accuracy)} % on {on}.")
    return Description("Scores", on, {"scores": lines}, lambda: facts, class_tables(counts), figures)


def show_scores(scores: Description) -> None:
    """Print the scores of a model, and below them its tables."""
    for line in scores.lines():
        say(line)
    show_tables(*(make() for make in scores.tables.values()))


def score_model(
    estimator: Any,
    decision: Float,
    truth: Array,
    scoring: Any,
    unknown: str | None,
    on: str,
    of_covariates: Float | None = None,
) -> Description:
    """Score the decision scores of a fitted model; `unknown` is the code of unknown labels, `on` describes samples.

    `of_covariates` is the part of these scores that is the covariates'. Labels are compared by their texts: a file may
    store them with another type than those of the training set. Measures other than the accuracy need classes that the
    model has.
    """
    truth = estimator._truth(None, truth, unknown=unknown)
    if estimator.kind_ == "clusters":
        from dmkl.learners.clustering import cluster_agreement

        agreement = cluster_agreement(estimator.labels_of(decision), truth) if truth.ndim == 1 else {}
        return _describe(on, agreement, {})
    if estimator.kind_ == "regression":
        scores, residual_scores = measures_of(estimator, decision, truth, scoring), {}
        if of_covariates is not None:
            without = truth - of_covariates.reshape(truth.shape)
            residual_scores = measures_of(estimator, decision - of_covariates, without, scoring)
        return _describe(on, scores, residual_scores)
    predicted = estimator.labels_of(decision)
    right = truth.astype(str) == predicted.astype(str)
    accuracy = float(right.mean()) if truth.ndim == 1 else label_accuracy(truth, predicted)
    if estimator.kind_ != "multilabel":
        tell_new_classes(truth.reshape(-1), estimator.classes_)
        truth, by_text = truth.reshape(-1), {str(label): label for label in estimator.classes_.tolist()}
        if set(truth.astype(str)) <= set(by_text):  # a new class keeps the type of all
            truth = np.array([by_text[str(label)] for label in truth.tolist()], dtype=estimator.classes_.dtype)
    scores = {} if scoring is None else measures_of(estimator, decision, truth, scoring)
    return _describe(on, scores, {}, accuracy, confusion(truth, predicted, estimator.classes_, estimator.tasks_))
