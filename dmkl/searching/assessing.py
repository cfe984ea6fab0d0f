"""`dmkl.assess`: scores of a fitted model on labeled samples, confusion matrices, and recall and precision by class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.metrics import confusion_matrix

from dmkl.arrays import Array, Float
from dmkl.errors import refuse
from dmkl.estimators.learner import KernelClassifier, KernelRegressor
from dmkl.passes.blas import one_blas_thread
from dmkl.searching.scoring import as_metrics, evaluate
from dmkl.stores import Kernels
from dmkl.unknown import is_known
from dmkl.variables import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["assess", "class_scores", "confusion", "measures_of", "plot_confusion"]


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
    """Score a fitted model on samples whose labels are known.

    The caller chooses the samples: scores of rows that trained the model, or that its parameters were chosen on, do not
    estimate the performance on new rows. `dmkl.search` and `dmkl.evaluate` keep such rows apart.

    Parameters
    ----------
    model
        A fitted model.
    K, **new
        As in `KernelClassifier.decision_function`: ``K[test, train]``, or `features` of new samples.
    y
        (rows,) labels, or (rows, tasks) of 0 and 1; by default those of `K`.
    scoring, unknown
        As in `dmkl.search`.

    Returns
    -------
    Dataset
        score over measure (and task, or target of a regression). For classes also confusion over true and predicted
        (and task), and recall, precision and support over class, or over task for the label 1.

    Raises
    ------
    InputError
        If there are no labels, their number is wrong, a label is not one of the learnt classes, or as in
        `decision_function`.
    """
    truth = model._truth(K, y, "assess", unknown)
    regression = isinstance(model, KernelRegressor)
    decision = model._decision(K, **new).values
    if len(truth) != len(decision):
        refuse(f"y has {len(truth)} labels, and there are {len(decision)} samples; give one for each")
    truth = truth.reshape(len(truth), -1)[:, 0] if model.tasks_ is None else truth
    scores = measures_of(model, decision, truth, scoring)
    tasks = None if model.tasks_ is None else np.array([str(task) for task in model.tasks_])
    dim = "target" if regression else "task"
    coords: dict[str, Any] = {"measure": list(scores)} | ({} if tasks is None else {dim: tasks})
    assessed = xr.Dataset({"score": xr.DataArray(np.array(list(scores.values())), coords)})
    if regression:
        return describe(assessed)
    counts = confusion(truth, model.labels_of(decision), model.classes_, tasks)
    return describe(assessed.assign(confusion=counts).merge(class_scores(counts)))


def measures_of(model: Any, decision: Float, truth: Array, scoring: Any) -> dict[str, Any]:
    """Scores of a fitted model's decisions by the name of the scorer: a number, or (task,)."""
    metrics = as_metrics(scoring, model.kind_)
    decisions = model.decisions_of(decision)
    return dict(zip(metrics, evaluate(metrics, model.kind_, model.classes_, truth, decisions), strict=True))


def confusion(
    truth: npt.ArrayLike, predicted: npt.ArrayLike, classes: npt.ArrayLike, tasks: Array | None = None
) -> xr.DataArray:
    """Count how often samples of each class are predicted as each.

    Parameters
    ----------
    truth, predicted
        (rows,) labels, or (rows, tasks) of 0 and 1; rows with an unknown true label do not count.
    classes
        Labels that are always in the matrix; unused for several tasks.
    tasks
        Names of the tasks.

    Returns
    -------
    DataArray
        Integers over (true, predicted), labeled by the classes and by further labels of the truth; over (task, true,
        predicted), labeled by 0 and 1, for several tasks.
    """
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    if truth.ndim == 2:
        labeled = is_known(truth)
        columns = zip(truth.T, predicted.T, labeled.T, strict=True)
        counts = [
            confusion_matrix(t[rows].astype(np.int64), p[rows], labels=[0, 1]) if rows.any() else np.zeros((2, 2), int)
            for t, p, rows in columns
        ]
        names = np.arange(truth.shape[1]) if tasks is None else tasks
        coords = {"task": names.astype(str), "true": [0, 1], "predicted": [0, 1]}
        return xr.DataArray(np.stack(counts), coords, name="confusion")
    labels = np.union1d(classes, truth)
    numbers = [np.searchsorted(labels, values.astype(labels.dtype)) for values in (truth, predicted)]
    counts = confusion_matrix(*numbers, labels=np.arange(len(labels)))
    labels = labels.astype(str) if labels.dtype.kind in "OTU" else labels
    return xr.DataArray(counts, {"true": labels, "predicted": labels}, name="confusion")


def class_scores(counts: xr.DataArray) -> xr.Dataset:
    """Recall, precision and support of each class.

    N_kl samples of class k are predicted as l: recall_k = N_kk / Σ_l N_kl, precision_k = N_kk / Σ_l N_lk, support_k =
    Σ_l N_kl. The recall of a class without samples is NaN, and so is the precision of one that is never predicted.

    Parameters
    ----------
    counts
        From `confusion`.

    Returns
    -------
    Dataset
        recall, precision and support over class; for several tasks over task, of the label 1.
    """
    if "task" in counts.dims:
        right = counts.sel(true=1, predicted=1, drop=True)
        support, called = counts.sel(true=1, drop=True).sum("predicted"), counts.sel(predicted=1, drop=True).sum("true")
    else:
        labels = {"class": counts["true"].values}
        right = xr.DataArray(np.diagonal(counts.transpose("true", "predicted").values), labels)
        support = xr.DataArray(counts.sum("predicted").values, labels)
        called = xr.DataArray(counts.sum("true").values, labels)
    recall, precision = right / support.where(support > 0), right / called.where(called > 0)
    return describe(xr.Dataset({"recall": recall, "precision": precision, "support": support}))


def plot_confusion(counts: xr.Dataset | xr.DataArray) -> Figure:
    """Draw a confusion matrix, with the recall and precision of each class.

    Several tasks have no common matrix: the recall and precision of each are drawn.

    Parameters
    ----------
    counts
        The result of `assess` for classes, or counts (true, predicted) or (task, true, predicted), such as
        `EvaluationResult.confusion`.

    Returns
    -------
    Figure
        A matplotlib figure. A class without samples has no recall, one that is never predicted no precision. The
        matrix of more than 20 classes has colors only.

    Raises
    ------
    InputError
        If there are no such counts, as for a regression.
    """
    from dmkl.searching.figures import plot_confusion

    return plot_confusion(counts)
