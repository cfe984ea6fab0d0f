"""`dmkl predict`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
import xarray as xr

import dmkl
from dmkl.arrays import Array, Index
from dmkl.cli.cluster import computing_on
from dmkl.cli.options import SAMPLES, Cluster, Join, Json, Memory, Missing, Overwrite, Workers, option
from dmkl.cli.output import count, print_json, refuse_existing, say, say_aside
from dmkl.cli.samples import positions
from dmkl.errors import InputError
from dmkl.inputs.features import as_features
from dmkl.kernelset import KernelSet
from dmkl.progress import ConsoleWatch

__all__ = ["predict"]


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model that dmkl fit or dmkl search saved.")],
    store: Annotated[str | None, typer.Argument(metavar="STORE", help="Kernel set: a folder or a URL.")] = None,
    features: Annotated[
        list[Path] | None,
        option(
            "Features of new samples instead of STORE, for models of kernels that dmkl build made; repeatable.",
            "FILE",
            panel=SAMPLES,
        ),
    ] = None,
    join: Join = "exact",
    missing: Missing = None,
    split: Annotated[int | None, option("Predict a part of this stored split.", "K", min=0, panel=SAMPLES)] = None,
    part: Annotated[
        Literal["test", "validation", "train"], option("Part of the split to predict.", panel=SAMPLES)
    ] = "test",
    out: Annotated[Path | None, option("CSV file for the predicted labels and scores.", "FILE")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Predict labels with a saved model, and score them if the true ones are known.

    Predicts the samples of --split and --part, or all samples of STORE that the model was not trained on. Of a
    rectangular set (new samples against training samples) it predicts all rows, of --features all samples; only
    kernels with a weight are read or computed.

    Examples
    --------
        dmkl predict model kernels.zarr --split 0
        dmkl predict model new.zarr --out predictions.csv
        dmkl predict model --features new.npz --out predictions.csv
    """
    if out is not None:
        refuse_existing(out, overwrite=overwrite, what="file")
    _check_source(store, features, split, join, missing)
    loaded = dmkl.load(model)
    estimator = loaded.best_ if isinstance(loaded, dmkl.SearchResult) else loaded
    given: dict[str, Any]
    if store is not None:
        K = dmkl.open(store)
        rows = _rows(K, estimator, split, part)
        given = {"K": K[rows, positions(K.train_samples, estimator.train_samples_, f"the model {model}")]}
        truth = None if K.labels is None else K.labels[rows]
    else:
        found = as_features(features or [], join=join)
        for note in found.notes:
            say_aside("note", note)
        n_samples = next(iter(found.blocks.values())).shape[0]
        given = {"features": found, "join": join, "missing": missing}
        truth = found.labels.checked(n_samples, n_samples, rectangular=False)["label"]
    with computing_on(cluster, workers=workers, memory=memory), ConsoleWatch():
        scores = estimator.decision_function(**given)
    labels = estimator.labels_of(scores.values)
    accuracy = None
    if truth is not None:  # the share of samples with the right label, or with all tasks right
        same = truth.astype(str) == labels.astype(str)
        accuracy = float(np.mean(same.reshape(len(same), -1).all(axis=1)))
    if out is not None:
        _write(out, scores, labels, estimator)
    if as_json:
        files = None if features is None else [str(file) for file in features]
        told = {"model": str(model), "store": store, "features": files}
        print_json({**told, "samples": len(labels), "accuracy": accuracy, "out": out and str(out)})
        return
    what = f"{count(len(labels), 'sample')} of {store or ', '.join(map(str, features or []))}"
    if accuracy is None:
        say(f"Predicted {what}, whose labels are not known.")
    else:
        say("Accuracy ", (f"{100 * accuracy:.2f} %", "bold"), f" on {what}.")
    if out is not None:
        say(f"Predictions are in {out}.")
    elif accuracy is None:
        say("Write them to a file with --out FILE.")


def _check_source(
    store: str | None, features: list[Path] | None, split: int | None, join: str, missing: str | None
) -> None:
    if bool(store) == bool(features):
        msg = "samples come from STORE or from --features FILE, one of the two; give --features again for further files"
        raise InputError(msg)
    if features and split is not None:
        msg = "--split is for STORE; of --features all samples are predicted"
        raise InputError(msg)
    for name, given in (("join", join != "exact"), ("missing", missing is not None)):
        if not (store and given):
            continue
        msg = f"--{name} is for --features; leave it out with {store}"
        raise InputError(msg)


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
