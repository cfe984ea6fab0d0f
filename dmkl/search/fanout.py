"""Fits that share no passes, each a task of its own where there is a cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.delayed import delayed

from dmkl import progress
from dmkl.estimators.base import KernelClassifier
from dmkl.kernelset import KernelSet
from dmkl.passes.execute import Machine, active_client, again, computing_here, execute, machine

__all__ = ["Fit", "fit_points"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fit:
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
) -> Iterator[Fit]:
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
            yield _fit(models[g], K, y, *rows[f])
            watch.note(f"{number:,} of {len(fits):,} fits")
        return
    where = machine()
    one = Machine(1, where.slots_per_host, where.task_bytes, where.task_bytes)
    # As many as the cluster has room for at a time, so that progress shows and little is lost with a worker.
    step = 8 * where.slots
    for start in range(0, len(fits), step):
        some = fits[start : start + step]

        def run(some: Sequence[tuple[int, int]] = some) -> list[Fit]:
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


def _fit_here(where: Machine, model: KernelClassifier, K: KernelSet, y: Array, train: Index, held_out: Index) -> Fit:
    with computing_here(where):
        return _fit(model, K, y, train, held_out)


def _fit(model: KernelClassifier, K: KernelSet, y: Array, train: Index, held_out: Index) -> Fit:
    started = time.monotonic()
    model = model.__class__(**model.get_params(deep=False))
    fitted = model.fit(K[train, train], y[train])
    weights = fitted.weights_.values.reshape(fitted.weights_.shape[0], -1)
    names = [str(name) for name in fitted.weights_.kernel.values]
    return Fit(
        [dict(zip(names, column.tolist(), strict=True)) for column in weights.T],
        fitted.decision_function(K[held_out, train]).values,
        np.asarray(fitted.gap_, dtype=np.float64),
        np.asarray(fitted.objective_, dtype=np.float64),
        fitted.kind_,
        fitted.classes_,
        fitted.n_passes_ + fitted.n_prediction_passes_,
        time.monotonic() - started,
    )
