"""Which classes are taken for which: confusion matrices, and recall, precision and support of each class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.metrics import confusion_matrix

from dmkl.arrays import Array
from dmkl.unknown import is_known
from dmkl.variables import describe

__all__ = ["class_scores", "confusion"]


def confusion(
    truth: npt.ArrayLike, predicted: npt.ArrayLike, classes: npt.ArrayLike, tasks: Array | None = None
) -> xr.DataArray:
    """Count how often samples of each class are predicted as each.

    Parameters
    ----------
    truth, predicted
        (rows,) labels, or (rows, tasks) of 0 and 1; rows whose true label is unknown do not count.
    classes
        Labels that the matrix has in any case; not used for several tasks.
    tasks
        Names of the tasks.

    Returns
    -------
    DataArray
        Integers over (true, predicted), labeled by the classes, and those that only the truth has; over (task, true,
        predicted), labeled by 0 and 1, for several tasks.
    """
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    if truth.ndim == 2:
        known = is_known(truth)
        columns = zip(truth.T, predicted.T, known.T, strict=True)
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

    With N_kl samples of class k that are predicted as l: recall_k = N_kk / Σ_l N_kl, precision_k = N_kk / Σ_l N_lk,
    support_k = Σ_l N_kl. A recall is NaN where there is no sample of the class, a precision where none is predicted.

    Parameters
    ----------
    counts
        Of `confusion`.

    Returns
    -------
    Dataset
        recall, precision and support over class; for several tasks over task, each of the label 1.
    """
    if "task" in counts.dims:
        right = counts.sel(true=1, predicted=1, drop=True)
        true, found = counts.sel(true=1, drop=True).sum("predicted"), counts.sel(predicted=1, drop=True).sum("true")
    else:
        labels = {"class": counts["true"].values}
        right = xr.DataArray(np.diagonal(counts.transpose("true", "predicted").values), labels)
        true = xr.DataArray(counts.sum("predicted").values, labels)
        found = xr.DataArray(counts.sum("true").values, labels)
    recall, precision = right / true.where(true > 0), right / found.where(found > 0)
    return describe(xr.Dataset({"recall": recall, "precision": precision, "support": true}))
