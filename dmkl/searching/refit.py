"""Fitting the chosen point anew, on several sets of rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from dmkl.arrays import Float
from dmkl.errors import InputError
from dmkl.estimators.engine import run
from dmkl.estimators.learner import fitted
from dmkl.estimators.plan import Fit, Plan
from dmkl.searching.choice import Rule
from dmkl.searching.fits import Question
from dmkl.searching.result import SearchResult
from dmkl.searching.scoring import evaluate

__all__ = ["OF_TASKS", "refitted"]


OF_TASKS = ("p", "lam", "C")
"""Parameters of which each task of one model may have its own."""


def refitted(question: Question, result: SearchResult, rule: Rule) -> SearchResult:
    """With the model of the chosen point, and its scores on the test rows of the folds."""
    chosen = result.best_params_
    multilabel = question.targets.kind == "multilabel"
    if multilabel:
        by_task = list(chosen.values())
        chosen = {name: _of_all_tasks(name, [point[name] for point in by_task]) for name in question.grid}
    model = clone(question.estimator).set_params(**chosen)
    tested = any(len(fold.test) for fold in question.folds)
    starts = _starts(result, multilabel=multilabel)
    fits = []
    for fold, start in zip(question.folds, starts, strict=True):
        rows = np.union1d(fold.train, fold.validation)
        fits.append(Fit(model, rows, question.targets_of(rows), question.tasks, fold.test, starts=list(start)))
    if not tested:
        rows = np.unique(np.concatenate([fit.train for fit in fits]))
        mean = list(np.mean(starts, axis=0))
        fits = [Fit(model, rows, question.targets_of(rows), question.tasks, starts=mean)]
    answers = run(Plan(question.K, fits))
    models = [fitted(found) for found in answers.fits]
    scores = result.scores
    if tested:
        measured = np.full((len(fits), question.n_tasks), np.nan)
        first = dict([next(iter(question.metrics.items()))])
        for f, (fit, found) in enumerate(zip(fits, answers.fits, strict=True)):
            if len(fit.held_out):
                truth = question.labels[fit.held_out]
                measured[f] = evaluate(first, fit.targets.kind, fit.targets.classes, truth, found.decision)[0]
        dims = ("fold", "task") if multilabel else ("fold",)
        scores = scores.assign(refit_test_score=(dims, measured if multilabel else measured[:, 0]))
    return SearchResult(scores, best=models[0], rule=rule)


def _starts(result: SearchResult, *, multilabel: bool) -> list[Float]:
    """The weights of the chosen point on each fold, (tasks, kernels)."""
    weight, index = result.scores["weight"], result.best_index_
    if multilabel:
        parts = [weight.sel(task=task).isel(at).transpose("fold", "kernel").values for task, at in index.items()]
        return list(np.stack(parts, axis=1))
    return list(weight.isel(index).transpose("fold", "kernel").values[:, None])


def _of_all_tasks(name: str, values: list[Any]) -> Any:
    """The value of all tasks where they agree, or each task's own where the model takes that."""
    if all(value == values[0] for value in values):
        return values[0]
    if name not in OF_TASKS:
        msg = (
            f"the tasks choose different values of {name}, and one model has one for all; search with refit=False and "
            "fit the tasks one by one"
        )
        raise InputError(msg)
    return tuple(values)
