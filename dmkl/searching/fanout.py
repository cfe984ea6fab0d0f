"""Fits without a subspace: side by side in shared passes, or each a task of its own where there is a cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.delayed import delayed
from sklearn.base import clone

from dmkl import progress
from dmkl.estimators.base import KernelClassifier
from dmkl.estimators.margin import fit_side_by_side
from dmkl.kernelset import KernelSet
from dmkl.passes.execute import Machine, active_client, again, computing_here, execute, machine
from dmkl.searching.grid import points
from dmkl.searching.plan import Found, Plan

__all__ = ["fit_points", "one_by_one", "side_by_side"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Fit:
    """One fit, as far as a search wants to know."""

    weights: list[dict[str, float]]
    """Of each task, by kernel."""
    decision: Float
    gap: Any
    objective: Any
    kind: str
    classes: Array
    n_passes: float
    seconds: float


def fit_points(
    models: Sequence[KernelClassifier],
    K: KernelSet,
    y: Array,
    rows: Sequence[tuple[Index, Index]],
    fits: Sequence[tuple[int, int]],
) -> Iterator[_Fit]:
    """Fit models on folds: on a cluster a task each, otherwise one after another with every core.

    Parameters
    ----------
    models
        Not fitted; not changed.
    rows
        Of each fold the training rows, and those whose scores are wanted.
    fits
        (model, fold) of each fit wanted, in the order of the results.
    """
    watch = progress.current()
    if active_client() is None:
        for number, (g, f) in enumerate(fits, start=1):
            with progress.watching(progress.Watch()):  # what a single fit has to tell would hide how many are done
                fit = _fit(models[g], K, y, *rows[f])
            yield fit
            watch.note(f"{number:,} of {len(fits):,} fits")
        return
    where = machine()
    one = Machine(1, where.slots_per_host, where.task_bytes, where.task_bytes)
    # As many as the cluster has room for at a time, so that progress shows and little is lost with a worker.
    step = 8 * where.slots
    for start in range(0, len(fits), step):
        some = fits[start : start + step]

        def run(some: Sequence[tuple[int, int]] = some) -> list[_Fit]:
            token = uuid.uuid4().hex
            tasks = [
                delayed(partial(_fit_here, one, models[g], K, y, *rows[f]), pure=False)(
                    dask_key_name=f"fit-{g}-{f}-{token}"
                )
                for g, f in some
            ]
            return execute(tasks, [(task, 0) for task in tasks], "fit")

        yield from again(run, "fit")
        watch.note(f"{start + len(some):,} of {len(fits):,} fits")


def _fit_here(where: Machine, model: KernelClassifier, K: KernelSet, y: Array, train: Index, held_out: Index) -> _Fit:
    with computing_here(where):
        return _fit(model, K, y, train, held_out)


def _fit(model: KernelClassifier, K: KernelSet, y: Array, train: Index, held_out: Index) -> _Fit:
    started = time.monotonic()
    model = model.__class__(**model.get_params(deep=False))
    fitted = model.fit(K[train, train], y[train])
    return _found(fitted, K, train, held_out, fitted.n_passes_, started)


def _found(fitted: Any, K: KernelSet, train: Index, held_out: Index, n_passes: int, started: float) -> _Fit:
    """What a search wants to know of a fitted model."""
    labelled = fitted.weights_.mean("group") if "group" in fitted.weights_.dims else fitted.weights_
    weights = labelled.values.reshape(len(labelled), -1)
    gap, objective = (np.asarray(value, dtype=np.float64) for value in (fitted.gap_, fitted.objective_))
    if fitted.kind_ != "multilabel":
        # Machines of several classes, each with weights of its own, are one point of a search.
        weights, gap, objective = weights.mean(axis=1, keepdims=True), gap.max(), objective.sum()
    names = [str(name) for name in fitted.weights_.kernel.values]
    decision = fitted.decision_function(K[held_out, train]).values
    return _Fit(
        [dict(zip(names, column.tolist(), strict=True)) for column in weights.T],
        decision,
        gap,
        objective,
        fitted.kind_,
        fitted.classes_,
        n_passes + fitted.n_prediction_passes_,
        time.monotonic() - started,
    )


def one_by_one(plan: Plan) -> Found:
    """Fit every point on every fold by itself."""
    models, fits = _wanted(plan)
    rows = [(fold.train, plan.held_out(fold)) for fold in plan.folds]
    return _together(plan, fits, fit_points(models, plan.K, plan.labels, rows, fits))


def side_by_side(plan: Plan) -> Found:
    """Fit every point on every fold, all of them in the same passes."""
    models, fits = _wanted(plan)
    fitted = [clone(models[g]) for g, _ in fits]
    sets, labels = [], []
    for _, f in fits:
        train = plan.folds[f].train
        sets.append(plan.K[train, train])
        # Labels that are stored with the kernels bring the names of their tasks along.
        labels.append(None if plan.tasks is not None else plan.labels[train])
    started = time.monotonic()
    passes = fit_side_by_side(fitted, sets, labels)

    def found() -> Iterator[_Fit]:
        for number, (model, (_, f)) in enumerate(zip(fitted, fits, strict=True)):
            fold = plan.folds[f]
            # The fits' passes, most of them shared, count once.
            yield _found(model, plan.K, fold.train, plan.held_out(fold), 0 if number else passes, started)

    return _together(plan, fits, found())


def _wanted(plan: Plan) -> tuple[list[KernelClassifier], list[tuple[int, int]]]:
    """A model for each point of the grid, and (point, fold) of every fit."""
    grid = points(plan.grid)
    models = [clone(plan.estimator).set_params(**point) for point in grid]
    return models, [(g, f) for f in range(len(plan.folds)) for g in range(len(grid))]


def _together(plan: Plan, fits: Sequence[tuple[int, int]], done: Iterable[_Fit]) -> Found:
    grid = points(plan.grid)
    n, sizes = len(plan.K), (len(grid), len(plan.folds), plan.n_tasks)
    found = Found(
        np.full((*sizes, n), np.nan),
        np.full(sizes, np.nan),
        np.full(sizes, np.nan),
        np.full(sizes, 3, dtype=np.int8),
        {},
        [],
        0,
        str(getattr(plan.estimator, "solver", "own")),
    )
    for (g, f), fit in zip(fits, done, strict=True):
        for t in range(plan.n_tasks):
            found.weights[g, f, t] = _over(plan.K.names, fit.weights[t])
        found.gap[g, f], found.objective[g, f] = fit.gap, fit.objective
        found.status[g, f] = np.where(np.asarray(fit.gap) <= getattr(plan.estimator, "tol", np.inf), 0, 2)
        found.decisions[g, f] = fit.decision
        found.n_passes += fit.n_passes
        found.rounds.append({"kind": "fit", "seconds": fit.seconds, "n_bytes": 0, "worst_gap": float(np.max(fit.gap))})
        if len(found.classes) <= f:
            found.classes.append((fit.kind, fit.classes))
    return found


def _over(names: Sequence[str], weights: Mapping[str, float]) -> Float:
    """Weights of all kernels: a model of their product has one of its own, which stands for all."""
    if set(weights) <= set(names):
        return np.array([weights.get(name, 0.0) for name in names])
    return np.full(len(names), float(next(iter(weights.values()))))
