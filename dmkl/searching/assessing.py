"""`dmkl.assess`: measures of a fitted model on samples whose labels are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl.arrays import Array, Float
from dmkl.errors import InputError
from dmkl.estimators.learner import KernelClassifier, KernelRegressor
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.confusion import class_scores, confusion
from dmkl.searching.scoring import as_metrics, evaluate
from dmkl.stores import Kernels
from dmkl.variables import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["assess", "measures_of", "plot_confusion"]


@one_blas_thread
def assess(
    model: KernelClassifier | KernelRegressor,
    K: Kernels | None = None,
    y: npt.ArrayLike | None = None,
    *,
    scoring: Any = None,
    unknown: Any = None,
    **new: Any,
) -> xr.Dataset:
    """Measure what a fitted model makes of samples whose labels are known.

    The samples are the caller's choice: scores of rows that the model, or the choice of its parameters, has seen say
    nothing of new ones. `dmkl.search` and `dmkl.evaluate` keep such rows apart.

    Parameters
    ----------
    model
        Fitted.
    K, **new
        As in `KernelClassifier.decision_function`: ``K[test, train]``, or `features` of new samples.
    y
        (rows,) labels, or (rows, tasks) of 0 and 1; those of `K` where missing.
    scoring, unknown
        As in `dmkl.search`.

    Returns
    -------
    Dataset
        score over measure (and task, or target of a regression); of classes also confusion over true and predicted (and
        task); recall, precision and support over class, or over task for the label 1.

    Raises
    ------
    InputError
        If there are no labels or of another length, a label is none of the classes learnt, or as in
        `decision_function`.
    """
    truth = model._truth(K, y, "assess", unknown)
    regression = isinstance(model, KernelRegressor)
    decision = model._decision(K, **new).values
    if len(truth) != len(decision):
        msg = f"y has {len(truth)} labels, and there are {len(decision)} samples; give one for each"
        raise InputError(msg)
    truth = truth.reshape(len(truth), -1)[:, 0] if model.tasks_ is None else truth
    scores = measures_of(model, decision, truth, scoring)
    tasks = None if model.tasks_ is None else np.array([str(task) for task in model.tasks_])
    dim = "target" if regression else "task"
    coords: dict[str, Any] = {"measure": list(scores)} | ({} if tasks is None else {dim: tasks})
    found = xr.Dataset({"score": xr.DataArray(np.array(list(scores.values())), coords)})
    if regression:
        return describe(found)
    counts = confusion(truth, model.labels_of(decision), model.classes_, tasks)
    return describe(found.assign(confusion=counts).merge(class_scores(counts)))


def plot_confusion(found: xr.Dataset | xr.DataArray) -> Figure:
    """Draw which classes are taken for which, and beside it recall and precision of each class.

    Of several tasks, which have no common matrix, recall and precision of each are drawn.

    Parameters
    ----------
    found
        What `assess` returns for a model of classes, or counts (true, predicted) or (task, true, predicted), as
        `EvaluationResult.confusion` has them.

    Returns
    -------
    Figure
        A matplotlib figure. A class without samples has no recall, one that is never predicted no precision. Of more
        than 20 classes the matrix has colors alone.

    Raises
    ------
    InputError
        If there are no such counts, as of a regression.
    """
    from dmkl.searching.confusion_plot import plot_confusion

    return plot_confusion(found)


def measures_of(model: Any, decision: Float, truth: Array, scoring: Any) -> dict[str, Any]:
    """Measures of what a fitted model decides from its scores, by name: a number each, or (task,)."""
    metrics = as_metrics(scoring, model.kind_)
    decided = model.decisions_of(decision)
    return dict(zip(metrics, evaluate(metrics, model.kind_, model.classes_, truth, decided), strict=True))
