"""Fitting the chosen point anew, on several sets of rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from dmkl.errors import InputError
from dmkl.estimators.base import KernelClassifier
from dmkl.estimators.fisher import fit_together
from dmkl.estimators.margin import _MarginClassifier, fit_side_by_side
from dmkl.estimators.mkfda import MKFDA, Uniform
from dmkl.numerics.fisher import as_exponent, onto_sphere
from dmkl.searching.choice import Rule
from dmkl.searching.plan import Plan
from dmkl.searching.result import SearchResult
from dmkl.searching.scoring import evaluate

__all__ = ["refitted"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


def refitted(plan: Plan, result: SearchResult, rule: Rule) -> SearchResult:
    """With the model of the chosen point, and its scores on test rows that no choice has seen."""
    chosen = result.best_params_
    if plan.targets.kind == "multilabel":
        by_task = list(chosen.values())
        chosen = {name: _together(name, [point[name] for point in by_task]) for name in plan.grid}
    model = clone(plan.estimator).set_params(**chosen)
    tested = any(len(fold.test) for fold in plan.folds)
    sets = [np.union1d(fold.train, fold.validation) for fold in plan.folds]
    if not tested:
        rows = sets[0]
        for more in sets[1:]:
            rows = np.union1d(rows, more)
        sets = [rows]
    models = _models(model, plan, sets, _starts(plan, result, tested))
    scores = result.scores
    if tested:
        found = np.full((len(plan.folds), plan.n_tasks), np.nan)
        first = {next(iter(plan.metrics)): next(iter(plan.metrics.values()))}
        for f, (fold, fitted, rows) in enumerate(zip(plan.folds, models, sets, strict=True)):
            if len(fold.test):
                decision = fitted.decision_function(plan.K[fold.test, rows]).values
                found[f] = evaluate(first, fitted.kind_, fitted.classes_, plan.labels[fold.test], decision)[0]
        multilabel = plan.targets.kind == "multilabel"
        dims = ("fold", "task") if multilabel else ("fold",)
        scores = scores.assign(refit_test_score=(dims, found if multilabel else found[:, 0]))
    return SearchResult(scores, best=models[0], rule=rule)


def _starts(plan: Plan, result: SearchResult, tested: bool) -> list[Float]:
    """The weights of the chosen point: of each fold, or where one model is fitted on all rows, of all together."""
    weight, index = result.scores["weight"], result.best_index_
    if plan.targets.kind == "multilabel":
        parts = [weight.sel(task=task).isel(at).transpose("fold", "kernel").values for task, at in index.items()]
        by_fold = np.stack(parts, axis=1)
    else:
        by_fold = weight.isel(index).transpose("fold", "kernel").values[:, None]
    chosen = by_fold if tested else by_fold.mean(axis=0, keepdims=True)
    p = result.best_params_
    norms = [_norm(plan, point) for point in (p.values() if plan.targets.kind == "multilabel" else [p])]
    return [onto_sphere(beta, norm) for part in chosen for beta, norm in zip(part, norms, strict=True)]


def _norm(plan: Plan, point: Mapping[str, Any]) -> float:
    if "p" in point:
        return float(point["p"])
    return as_exponent(cast(float, plan.estimator.p)) if isinstance(plan.estimator, MKFDA) else np.inf


def _together(name: str, values: list[Any]) -> Any:
    """The value of all tasks where they agree, or each task's own where the model takes that."""
    if all(value == values[0] for value in values):
        return values[0]
    if name not in ("p", "lam", "C"):
        msg = (
            f"the tasks choose different values of {name}, and one model has one for all; search with refit=False and "
            "fit the tasks one by one"
        )
        raise InputError(msg)
    return tuple(values)


def _models(
    model: KernelClassifier, plan: Plan, sets: Sequence[Index], starts: Sequence[Float]
) -> list[KernelClassifier]:
    """The model fitted on each of some sets of rows; with passes that serve all of them, where it has a way to.

    Parameters
    ----------
    starts
        β to begin with, one for every problem of every set in turn.
    """
    models = [clone(model) for _ in sets]
    kernels = [plan.K[rows, rows] for rows in sets]
    # Labels that are stored with the kernels bring the names of their tasks along.
    labels = [None if plan.tasks is not None else plan.labels[rows] for rows in sets]
    if type(model) in (MKFDA, Uniform):
        fit_together(models, kernels, labels, starts)
        return models
    if isinstance(model, _MarginClassifier):
        fit_side_by_side(models, kernels, labels)
        return models
    return [fresh.fit(part, y) for fresh, part, y in zip(models, kernels, labels, strict=True)]
