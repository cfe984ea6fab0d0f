"""`dmkl predict`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.measuring import measured
from dmkl.cli.options import SAMPLES, Cluster, Join, Json, Memory, Missing, Overwrite, Unknown, Workers, option
from dmkl.cli.output import claim_output, print_json, say, say_aside
from dmkl.cli.parsing import parse_scoring
from dmkl.cli.samples import positions
from dmkl.errors import InputError
from dmkl.progress import ConsoleWatch
from dmkl.searching.texts import count

if TYPE_CHECKING:
    import xarray as xr

    from dmkl.arrays import Array, Index
    from dmkl.kernelset import KernelSet

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
    named: Annotated[
        Path | None, option("Predict the samples named in this file, one a line.", "FILE", "--rows", panel=SAMPLES)
    ] = None,
    unknown: Unknown = None,
    scoring: Annotated[list[str] | None, option("Measures such as matthews,roc_auc.", "NAME,…")] = None,
    probabilities: Annotated[
        bool,
        option("Write calibrated probabilities too, a column for each class or task.", None, "--probabilities"),
    ] = False,
    out: Annotated[Path | None, option("CSV file for the predicted labels and scores.", "FILE")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Predict labels or numbers with a saved model, and score them if the true ones are known.

    Predicts the samples of --split and --part or of --rows, or all samples of STORE that the model was not trained
    on. Of a rectangular set (new samples against training samples) it predicts all rows, of --features all samples;
    only kernels with a weight are read or computed. Samples that the model was trained on are not scored with others.
    Of --probabilities it says on which samples they were calibrated; a model that has none is refused.

    Examples
    --------
        dmkl predict model kernels.zarr --split 0
        dmkl predict model new.zarr --out predictions.csv --probabilities
        dmkl predict model --features new.npz --out predictions.csv
    """
    import numpy as np

    if out is not None:
        claim_output(out, overwrite=overwrite, what="file")
    _check_source(store, features, split, named, join, missing)
    loaded = dmkl.load(model)
    estimator = loaded.best_ if isinstance(loaded, dmkl.SearchResult) else loaded
    if probabilities:
        _check_probabilities(estimator, out)
    given: dict[str, Any]
    n_bytes = 0  # of features, which threads compute kernels of
    if store is not None:
        K = dmkl.open(store)
        n_bytes = K.bytes_per_pass
        rows = _rows(K, estimator, split, part, named)
        given = {"K": K[rows, positions(K.train_samples, estimator.train_samples_, f"the model {model}")]}
        truth = None if K.labels is None else K.labels[rows]
        new = _new(K, estimator)[rows]
    else:
        from dmkl.inputs import as_features
        from dmkl.inputs.labels import labels_in

        found = as_features(features or [], join=join)
        for note in found.notes:
            say_aside("note", note)
        n_samples = next(iter(found.blocks.values())).shape[0]
        given = {"features": found, "join": join, "missing": missing}
        truth = labels_in(found.labels.checked(n_samples, n_samples, rectangular=False))
        new = np.ones(n_samples, dtype=bool)
    wanted = parse_scoring(scoring)
    if truth is None and wanted is not None:
        msg = "--scoring needs the true labels, and they are not known; leave it out"
        raise InputError(msg)
    with ConsoleWatch(), computing_on(cluster, n_bytes=n_bytes, workers=workers, memory=memory):
        regression = estimator.kind_ == "regression"
        scores = estimator.predict(**given) if regression else estimator.decision_function(**given)
    labels = scores.values if regression else estimator.labels_of(scores.values)
    scored = new if new.any() else ~new
    told = None if truth is None else measured(estimator, scores.values[scored], truth[scored], wanted, unknown)
    if out is not None:
        _write(out, scores, labels, estimator, estimator.probabilities_of(scores) if probabilities else None)
    if as_json:
        files = None if features is None else [str(file) for file in features]
        print_json(
            {
                "model": str(model),
                "store": store,
                "features": files,
                "samples": len(labels),
                "trained_on": int((~new).sum()),
                **(told.mapping if told else {"scores" if regression else "accuracy": None}),
                **({"calibrated_on": estimator.calibrated_on_} if probabilities else {}),
                "out": out and str(out),
            }
        )
        return
    what = f"{count(int(scored.sum()), 'sample')} of {store or ', '.join(map(str, features or []))}"
    if told is None:
        say(f"Predicted {what}, whose labels are not known.")
    else:
        told.print(what if new.any() else f"{what}, which the model was trained on: of new ones that says nothing")
        if new.any() and not new.all():
            say(f"{count(int((~new).sum()), 'further sample')}, which the model was trained on, are not scored.")
    if out is not None:
        calibrated = f", with probabilities calibrated on {estimator.calibrated_on_}" if probabilities else ""
        say(f"Predictions are in {out}{calibrated}.")
    elif told is None:
        say("Write them to a file with --out FILE.")


def _check_source(
    store: str | None,
    features: list[Path] | None,
    split: int | None,
    named: Path | None,
    join: str,
    missing: str | None,
) -> None:
    if bool(store) == bool(features):
        msg = "samples come from STORE or from --features FILE, one of the two; give --features again for further files"
        raise InputError(msg)
    if features and (split is not None or named is not None):
        msg = f"{'--split' if named is None else '--rows'} is for STORE; of --features all samples are predicted"
        raise InputError(msg)
    if split is not None and named is not None:
        msg = "--split and --rows exclude one another; give one of them"
        raise InputError(msg)
    for name, given in (("join", join != "exact"), ("missing", missing is not None)):
        if not (store and given):
            continue
        msg = f"--{name} is for --features; leave it out with {store}"
        raise InputError(msg)


def _check_probabilities(estimator: Any, out: Path | None) -> None:
    """Refuse probabilities that have nowhere to go, or that the model does not have, before anything is computed."""
    if out is None:
        msg = "--probabilities are written beside the labels; say where with --out FILE"
        raise InputError(msg)
    if estimator.kind_ == "regression":
        msg = f"{type(estimator).__name__} predicts numbers, which have no probabilities; leave out --probabilities"
        raise InputError(msg)
    estimator._check_calibrated()


def _new(K: KernelSet, estimator: Any) -> Array:
    """Which rows the model was not trained on: all of a rectangular set, whose rows have names of their own."""
    import numpy as np

    if not K.is_square:
        return np.ones(K.shape[1], dtype=bool)
    found: Array = ~np.isin(K.samples.astype(str), estimator.train_samples_)
    return found


def _rows(K: KernelSet, estimator: Any, split: int | None, part: str, named: Path | None) -> Index:
    import numpy as np

    new = _new(K, estimator)
    if named is not None:
        from dmkl.inputs import read_vector

        return positions(K.samples, read_vector(named), str(named))
    if split is None:
        if new.any():
            return np.flatnonzero(new)
        msg = (
            f"the model was trained on all {count(len(new), 'sample')} of this set, and there are no others to "
            "predict; give a set or --features of new samples, or name samples with --rows FILE"
        )
        raise InputError(msg)
    rows: Index = getattr(K.split(split), part)
    if not len(rows):
        msg = f"the {part} part of split {split} is empty; choose another with --split or --part"
        raise InputError(msg)
    trained = int((~new[rows]).sum())
    if part != "train" and trained:
        msg = (
            f"the model was trained on {count(trained, 'sample')} of the {len(rows)} in the {part} part of split "
            f"{split}, and a score on them would say nothing of new ones; take a model that was not, another --part, "
            "or name samples with --rows FILE"
        )
        raise InputError(msg)
    return rows


def _write(path: Path, scores: xr.DataArray, labels: Array, estimator: Any, probabilities: xr.DataArray | None) -> None:
    import numpy as np

    from dmkl.files.writing import replacing

    values = scores.values.reshape(len(scores), -1)
    columns = [""] if scores.ndim == 1 else [str(c) for c in scores.coords[scores.dims[1]].values]
    if estimator.kind_ == "binary":
        columns = [str(estimator.classes_[1])]
    predicted = ["predicted"] if labels.ndim == 1 else [f"predicted {name}" for name in columns]
    if estimator.kind_ == "regression":  # whose scores are the predictions
        values, columns = values[:, :0], []
    titles = [f"score {name}" for name in columns]
    if probabilities is not None:
        values = np.concatenate([values, probabilities.values], axis=1)
        titles += [f"probability {name}" for name in probabilities.coords[probabilities.dims[1]].values]
    with replacing(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["sample", *predicted, *titles])
        for sample, label, row in zip(scores.sample.values, labels.reshape(len(labels), -1), values, strict=True):
            table.writerow([sample, *label, *(f"{value:.9g}" for value in row)])
