"""`dmkl.search`: a grid of parameters, cross-validated."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from dmkl.errors import InputError
from dmkl.estimators.base import KernelClassifier, check_kernel_set
from dmkl.estimators.margin import _MarginClassifier
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import encode_targets
from dmkl.searching.choice import Rule, check_rule
from dmkl.searching.fanout import one_by_one, side_by_side
from dmkl.searching.folds import make_folds
from dmkl.searching.grid import as_grid, points
from dmkl.searching.labelled import as_dataset
from dmkl.searching.plan import Found, Plan
from dmkl.searching.refit import refitted
from dmkl.searching.result import SearchResult
from dmkl.searching.scoring import as_metrics
from dmkl.searching.shared import has_subspace, in_subspace

__all__ = ["search"]

Array = npt.NDArray[Any]


def search(
    estimator: KernelClassifier,
    K: KernelSet,
    y: npt.ArrayLike | None = None,
    grid: Mapping[str, Any] | None = None,
    cv: Any = None,
    *,
    scoring: Any = None,
    groups: npt.ArrayLike | None = None,
    refit: bool = True,
    rule: Rule = "best",
    state: str | Path | None = None,
) -> SearchResult:
    """Fit an estimator for every point of a grid and every fold, score the rows held out, and choose.

    For `MKFDA` and `Uniform` all points, folds and tasks are solved in subspaces that grow together: some ten passes
    over the kernels for the whole grid (see `dmkl.solvers.fisher.subspace`). Every point ends with a proven gap. With
    solver="direct" or "cg", and for other estimators, each point is fitted by itself; these fits are tasks of their
    own on a cluster.

    Parameters
    ----------
    estimator
        What to fit; its other parameters hold for all points. It is not changed.
    K
        The kernels of all samples, square.
    y
        (m,) labels, or (m, tasks) of 0 and 1; those stored with the kernels where missing. Each task of a multilabel
        problem has weights and a choice of its own.
    grid
        Values by parameter. The papers' by default: p = 1, 1 + 2⁻⁶ … 1 + 2⁻¹, 2, 3, 4, 8, ∞; ten values of λ, 1e-8 to
        10 for kernels of unit trace, 4⁻⁵ to 4⁴ for cosine normalisation (JMLR 3.3, CVPR 4.1).
    cv
        Folds: the stored splits where they have validation rows, 5 otherwise; an integer, a scikit-learn splitter,
        "splits", an iterable of (train, validation) or (train, validation, test), or one such tuple.
    scoring
        A measure by name or a callable, as scikit-learn takes it; the papers' are "mean_class_accuracy",
        "average_precision_voc", "mean_average_precision", "matthews" and their like (`searching.scoring`). Several in
        a list or a dict; the first decides. Accuracy by default; average precision for multilabel problems.
    groups
        (m,) what must not be split, such as the subject of a scan, for splitters that ask for it.
    refit
        Fit the chosen point anew: on the training and validation rows of each fold where folds have test rows, whose
        scores are then the variable `refit_test_score` and the first of whose models is `best_`; otherwise on all
        rows of the folds.
    rule
        "best", or "one_standard_error": the simplest point within one standard error of the best.
    state
        A folder that all workers see, where the search is kept after every pass; the same call goes on from there
        after a kill, and a folder that holds another search is refused. Temporary where None. For estimators without a
        subspace nothing is kept.

    Returns
    -------
    SearchResult
        Scores of every point and fold, weights, gaps, passes; the choice; the refitted model.

    Raises
    ------
    InputError
        If an argument breaks a rule, or `state` holds another search.
    IndefiniteKernelError
        If a kernel proves not to be positive semidefinite.
    WorkerLostError
        If workers died again and again.
    """
    started = time.monotonic()
    check_kernel_set(K, "search")
    check_rule(rule)
    if not K.is_square:
        msg = (
            f"search needs the kernels of all samples among themselves, got {K.shape[1]} rows and {K.shape[2]} columns"
        )
        raise InputError(msg)
    labels = K.labels if y is None else np.asarray(y)
    if labels is None:
        msg = "search needs labels: give y, or store them with the kernels (labels=, --labels)"
        raise InputError(msg)
    tasks = K.tasks if y is None else None
    everything = encode_targets(labels, K.shape[1], tasks)
    labels = np.asarray(labels)
    values = as_grid(grid, estimator)
    folds = make_folds(cv, labels, splits=K.splits, groups=groups)
    metrics = as_metrics(scoring, everything.kind)
    for name in _OF_TASKS:
        own = getattr(estimator, name, 0.0)
        if np.ndim(own):
            msg = f"search takes an estimator with one {name} for all tasks, got {own!r}; give one number"
            raise InputError(msg)
    if refit and everything.kind == "multilabel" and not set(values) <= set(_OF_TASKS):
        msg = (
            "the tasks of a multilabel problem choose each for themselves, and one model has one "
            f"{', '.join(name for name in values if name not in _OF_TASKS)} for all; search with refit=False, or over "
            "p, lam and C"
        )
        raise InputError(msg)
    plan = Plan(clone(estimator), K, labels, tasks, everything, values, folds, metrics)
    found = _found(plan, state)
    result = SearchResult(as_dataset(plan, found, time.monotonic() - started), rule=rule)
    if not refit:
        return result
    return refitted(plan, result, rule)


def _found(plan: Plan, state: str | Path | None) -> Found:
    """Solve every point: those that differ in p and λ alone together, where their estimator has a subspace for it.

    Machines of all points go through the same passes where they see the same kernels.
    """
    if isinstance(plan.estimator, _MarginClassifier) and not set(plan.grid) & {"center", "normalize"}:
        return side_by_side(plan)
    inner = {name: values for name, values in plan.grid.items() if name in _SHARED}
    others = [name for name in plan.grid if name not in _SHARED]
    if not others:
        return in_subspace(plan, state) if has_subspace(plan.estimator) else one_by_one(plan)
    grid = points(plan.grid)
    parts: list[tuple[list[int], Found]] = []
    for number, fixed in enumerate(points({name: plan.grid[name] for name in others})):
        model = clone(plan.estimator).set_params(**fixed)
        folder = None if state is None else Path(state) / f"combination-{number}"
        here = [g for g, point in enumerate(grid) if all(point[name] is value for name, value in fixed.items())]
        parts.append((here, _found(replace(plan, estimator=model, grid=inner), folder)))
    return _merged(parts, len(grid))


_SHARED = ("p", "lam")
"""Parameters whose points have a subspace in common."""
_OF_TASKS = (*_SHARED, "C")
"""Parameters of which each task of one model may have its own."""


def _merged(parts: list[tuple[list[int], Found]], n_points: int) -> Found:
    """What was found for parts of the grid, each with the places of its points, as one."""

    def together(name: str) -> Array:
        arrays = [getattr(found, name) for _, found in parts]
        whole = np.empty((n_points, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
        for (here, _), array in zip(parts, arrays, strict=True):
            whole[here] = array
        return whole

    return Found(
        together("weights"),
        together("gap"),
        together("objective"),
        together("status"),
        {(here[g], f): scores for here, found in parts for (g, f), scores in found.decisions.items()},
        parts[0][1].classes,
        sum(found.n_passes for _, found in parts),
        ", ".join(dict.fromkeys(found.solver for _, found in parts)),
        [entry for _, found in parts for entry in found.rounds],
    )
