"""Fits that share no passes, each a task of its own where there is a cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.delayed import delayed
from sklearn.base import clone

from dmkl import progress
from dmkl.estimators.base import KernelClassifier
from dmkl.kernelset import KernelSet
from dmkl.passes.execute import Machine, active_client, again, computing_here, execute, machine
from dmkl.search.grid import points
from dmkl.search.plan import Found, Plan

__all__ = ["fit_points", "one_by_one"]

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
    n_passes: int
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
    weights = fitted.weights_.values.reshape(fitted.weights_.shape[0], -1)
    names = [str(name) for name in fitted.weights_.kernel.values]
    return _Fit(
        [dict(zip(names, column.tolist(), strict=True)) for column in weights.T],
        fitted.decision_function(K[held_out, train]).values,
        np.asarray(fitted.gap_, dtype=np.float64),
        np.asarray(fitted.objective_, dtype=np.float64),
        fitted.kind_,
        fitted.classes_,
        fitted.n_passes_ + fitted.n_prediction_passes_,
        time.monotonic() - started,
    )


def one_by_one(plan: Plan) -> Found:
    """Fit every point on every fold by itself."""
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
    models = [clone(plan.estimator).set_params(**point) for point in grid]
    fits = [(g, f) for f in range(len(plan.folds)) for g in range(len(grid))]
    rows = [(fold.train, plan.held_out(fold)) for fold in plan.folds]
    y = plan.labels
    for (g, f), fit in zip(fits, fit_points(models, plan.K, y, rows, fits), strict=True):
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
