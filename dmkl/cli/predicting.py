"""`dmkl predict`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import typer
import xarray as xr

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.options import Cluster, Json, Memory, Overwrite, Store, Workers
from dmkl.cli.output import count, print_json, say
from dmkl.cli.samples import positions
from dmkl.errors import InputError, StoreExistsError
from dmkl.kernelset import KernelSet
from dmkl.progress import ConsoleWatch

__all__ = ["predict"]

Index = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
_SAMPLES = "Which samples"


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model that dmkl fit saved.")],
    store: Store,
    split: Annotated[
        int | None,
        typer.Option(min=0, metavar="K", help="Predict a part of this stored split.", rich_help_panel=_SAMPLES),
    ] = None,
    part: Annotated[
        Literal["test", "validation", "train"],
        typer.Option(help="Which part of the split.", rich_help_panel=_SAMPLES),
    ] = "test",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write sample, predicted label and scores as CSV.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Predict the labels of samples with a saved model, and score it where their labels are known.

    Of the set that the model was trained on, or one like it: the samples of --split and --part, or all that
    the model was not trained on. Of a rectangular set (new samples against training samples): all its rows.

    Examples
    --------
        dmkl predict model kernels.zarr --split 0
        dmkl predict model new.zarr --out predictions.csv
    """
    if out is not None and out.exists() and not overwrite:
        msg = f"{out} exists already; choose another file, or replace it with --overwrite"
        raise StoreExistsError(msg)
    loaded = dmkl.load(model)
    estimator = loaded.best_ if isinstance(loaded, dmkl.SearchResult) else loaded
    K = dmkl.open(store)
    rows = _rows(K, estimator, split, part)
    cols = positions(K.train_samples, estimator.train_samples_, f"the model {model}")
    with computing_on(cluster, workers=workers, memory=memory), ConsoleWatch():
        scores = estimator.decision_function(K[rows, cols])
    labels = estimator.labels_of(scores.values)
    truth = None if K.labels is None else K.labels[rows]
    accuracy = None if truth is None else _accuracy(truth, labels)
    if out is not None:
        _write(out, scores, labels, estimator)
    if as_json:
        print_json(
            {
                "model": str(model),
                "store": store,
                "samples": len(rows),
                "accuracy": accuracy,
                "out": out and str(out),
            }
        )
        return
    what = f"{count(len(rows), 'sample')} of {store}"
    if accuracy is None:
        say(f"Predicted {what}, whose labels are not known.")
    else:
        say("Accuracy ", (f"{100 * accuracy:.2f} %", "bold"), f" on {what}.")
    if out is not None:
        say(f"Predictions are in {out}.")
    elif accuracy is None:
        say("Write them to a file with --out FILE.")


def _rows(K: KernelSet, estimator: Any, split: int | None, part: str) -> Index:
    if split is not None:
        rows: Index = getattr(K.split(split), part)
        if not len(rows):
            msg = f"the {part} part of split {split} is empty; choose another with --split or --part"
            raise InputError(msg)
        return rows
    if not K.is_square:
        return np.arange(K.shape[1])
    rows = np.flatnonzero(~np.isin(K.samples.astype(str), estimator.train_samples_))
    if not len(rows):
        msg = "the model was trained on all samples of this set; give a set of new samples, or --split K --part train"
        raise InputError(msg)
    return rows


def _accuracy(truth: Array, labels: Array) -> float:
    """Share of samples with the right label, or with all tasks right."""
    same = truth.astype(str) == labels.astype(str)
    return float(np.mean(same if same.ndim == 1 else same.all(axis=1)))


def _write(path: Path, scores: xr.DataArray, labels: Array, estimator: Any) -> None:
    values = scores.values.reshape(len(scores), -1)
    columns = (
        [str(estimator.classes_[1])] if scores.ndim == 1 else [str(c) for c in scores.coords[scores.dims[1]].values]
    )
    predicted = ["predicted"] if labels.ndim == 1 else [f"predicted {name}" for name in columns]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["sample", *predicted, *(f"score {name}" for name in columns)])
        for sample, label, row in zip(scores.sample.values, labels.reshape(len(labels), -1), values, strict=True):
            table.writerow([sample, *label, *(f"{value:.9g}" for value in row)])
