"""Fitting the chosen points anew on other rows, all of them at once, and measuring what they make of test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from dmkl.arrays import Array, Index
from dmkl.errors import InputError
from dmkl.estimators.decisions import HeldOut
from dmkl.estimators.engine import run
from dmkl.estimators.learner import fitted
from dmkl.estimators.plan import Fit, FitOutcome, Plan
from dmkl.searching.fits import OF_TASKS, GridFits, Question, state_claimed
from dmkl.searching.grid import shape
from dmkl.searching.result import SearchResult
from dmkl.searching.scoring import evaluate

__all__ = ["chosen_fit", "of_all_tasks", "refitted", "scored"]


def refitted(question: Question, grid: GridFits, result: SearchResult, state: str | Path | None) -> SearchResult:
    """With the model of the chosen point, and its scores on the test rows of the folds.

    Temporary files of the fits are in the folder `state`, which all workers see; in TMPDIR where None.
    """
    folds = question.folds
    if "fold" in result.choosers or any(len(fold.test) for fold in folds):
        fits = [chosen_fit(question, result, fold.seen, fold.test, fold.name) for fold in folds]
    else:
        fits = [chosen_fit(question, result, np.unique(np.concatenate([fold.seen for fold in folds])))]
    with state_claimed(state):
        found = run(Plan(question.K, fits)).fits
    scores = result.scores
    if any(len(fit.held_out) for fit in fits):
        dim = question.targets.dim
        dims = ("fold",) if dim is None else ("fold", dim)
        scores = scores.assign(
            {f"refit_test_score{end}": (dims, values) for end, values in scored(question, found).items()}
        )
    best = fitted(found[0])
    if question.targets.kind != "regression":
        # A model of the first fold's rows takes that fold's alone: others are tested on there.
        used = range(1 if len(fits) > 1 else len(folds))
        kept = [_chosen_scores(question, grid, result, f) for f in used]
        best._calibrate_on(kept, grid.targets[: len(used)], fits[0].targets)
    return SearchResult(scores, best=best, rule=result.rule)


def _chosen_scores(question: Question, grid: GridFits, result: SearchResult, fold: int) -> HeldOut:
    """Scores of the validation rows of a fold at the chosen point, of each task, or class that chooses, at its own."""
    index, sizes = result.best_index_, shape(question.grid)

    def scores_of(own: Mapping[str, Any] | None = None, **task: int) -> Array:
        at = {"fold": fold, **task}
        place = {name: int(index[name].isel({str(dim): at[str(dim)] for dim in index[name].dims})) for name in index}
        place |= {name: question.grid[name].index(value) for name, value in (own or {}).items()}
        point = int(np.ravel_multi_index([place[name] for name in question.grid], sizes))
        found: Array = grid.decisions[fold][np.count_nonzero(question.fitted[:point])]
        return found

    if question.targets.kind == "multilabel":
        scores = np.stack([scores_of(task=t)[:, t] for t in range(question.n_tasks)], axis=1)
    elif result.by_class:
        params = dict[Any, Any](result.best_params_)
        params = params[question.folds[fold].name] if "fold" in result.choosers else params
        values = {name: list(params[name].values()) for name in result.by_class}
        learnt = np.searchsorted(question.targets.classes, grid.targets[fold].classes)
        columns = [scores_of({name: own[k] for name, own in values.items()}) for k in learnt]
        scores = np.stack([column[:, k] for k, column in enumerate(columns)], axis=1)
    else:
        scores = scores_of()
    return question.held_out(fold, scores, grid.targets[fold])


def chosen_fit(
    question: Question,
    result: SearchResult,
    train: Index,
    test: Index | None = None,
    fold: str | None = None,
    title: str = "",
) -> Fit:
    """The row of a plan that fits what a search has chosen.

    Parameters
    ----------
    train, test
        The rows to learn from, and those to score.
    fold
        The fold of the search whose choice it is, or in which the weights were found that it begins with; the joint
        choice and the mean of its weights where None.
    title
        What it is called in messages.
    """
    weight, params = result.chosen["weight"], dict[Any, Any](result.best_params_)
    weight = weight.mean("fold") if fold is None else weight.sel(fold=fold)
    if "fold" in result.choosers:
        params = params[fold]
    if result.tasks is not None:
        points = list(params.values())
        params = {name: of_all_tasks(name, [point[name] for point in points]) for name in question.grid}
        starts = list(weight.transpose(question.targets.dim, "kernel").values)
    else:
        starts = [weight.values]
    model = clone(question.estimator).set_params(**params)
    held_out = np.zeros(0, dtype=np.int64) if test is None else test
    return Fit(model, train, question.targets_of(train), question.tasks, held_out, starts=starts, title=title)


def scored(question: Question, found: Sequence[FitOutcome]) -> dict[str, Array]:
    """Every measure of the held-out rows of each fit, (fit,) or (fit, task), by the end of the name that it goes by.

    NaN where nothing is held out.
    """
    tasks = () if question.targets.dim is None else (question.n_tasks,)
    values = np.full((len(question.metrics), len(found), *tasks), np.nan)
    for f, one in enumerate(found):
        rows, targets = one.data.fit.held_out, one.data.fit.targets
        if len(rows):
            truth = question.labels[rows]
            values[:, f] = evaluate(question.metrics, targets.kind, targets.classes, truth, one.decided)
    return dict(zip(question.name_ends, values, strict=True))


def of_all_tasks(name: str, values: list[Any]) -> Any:
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
