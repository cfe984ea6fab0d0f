"""`dmkl predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.measuring import measured
from dmkl.cli.options import (
    SAMPLES,
    Cluster,
    Join,
    Json,
    Memory,
    Missing,
    NewCovariates,
    Overwrite,
    Rows,
    Unknown,
    Workers,
    option,
)
from dmkl.cli.output import claim_output, print_json, save_figure, say, say_aside
from dmkl.cli.parsing import known_names, parse_scoring, read_covariates
from dmkl.cli.samples import ROWS, chosen_rows, columns_of_model, stored_split
from dmkl.errors import InputError
from dmkl.files.urls import as_place
from dmkl.progress import ConsoleWatch
from dmkl.searching.texts import count

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from dmkl.arrays import Array, Index
    from dmkl.kernelset import KernelSet

__all__ = ["predict"]


def predict(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model that dmkl fit or dmkl search saved: a folder or a URL.")
    ],
    store: Annotated[str | None, typer.Argument(metavar="STORE", help="Kernel set (folder or URL).")] = None,
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
    rows: Rows = None,
    covariates: NewCovariates = None,
    unknown: Unknown = None,
    scoring: Annotated[list[str] | None, option("Measures such as matthews,roc_auc.", "NAME,…")] = None,
    probabilities: Annotated[
        bool,
        option("Write calibrated probabilities too, a column for each class or task.", None, "--probabilities"),
    ] = False,
    out: Annotated[
        str | None,
        option("File, or URL, for the predicted labels and scores: .csv, .parquet, or .zarr for xarray.", "FILE"),
    ] = None,
    contributions: Annotated[
        str | None,
        option("The same for what each kernel adds to the scores; one more pass.", "FILE", "--contributions"),
    ] = None,
    plot: Annotated[
        Path | None,
        option("Draw which classes are taken for which here, with recall and precision of each, as PNG.", "FILE"),
    ] = None,
    anndata: Annotated[
        Path | None,
        option("Put the scores into obsm of this .h5ad or .h5mu, by the names of samples.", "FILE", panel="AnnData"),
    ] = None,
    key: Annotated[str, option("Their name in obsm.", "NAME", panel="AnnData")] = "dmkl",
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
        dmkl predict model kernels.zarr --split 0 --plot confusion.png
        dmkl predict model new.zarr --out predictions.csv --probabilities
        dmkl predict model kernels.zarr --rows 0,5,10:20 --contributions shares.csv
        dmkl predict model --features new.npz --out predictions.csv
        dmkl predict model kernels.zarr --anndata cells.h5ad
    """
    import numpy as np

    from dmkl.outputs import as_frame, check_table, write_table

    for place in [as_place(path) for path in (out, contributions) if path is not None]:
        check_table(place)
        claim_output(place, overwrite=overwrite, what="file")
    if plot is not None:
        claim_output(plot, overwrite=overwrite, what="file")
    _check_source(store, features, split, rows, join, missing)
    loaded = dmkl.load(model)
    estimator = loaded.best_ if isinstance(loaded, dmkl.SearchResult) else loaded
    if probabilities:
        _check_probabilities(estimator, out)
    given: dict[str, Any]
    reading: KernelSet | None = None
    if store is not None:
        K = dmkl.open(store)
        reading = K
        chosen = _rows(K, estimator, split, part, rows)
        given = {"K": K[chosen, columns_of_model(K, estimator, model)]}
        truth = None if K.labels is None else K.labels[chosen]
        new = _new(K, estimator)[chosen]
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
    if covariates is not None:
        names = known_names(reading) if reading is not None else given["features"].samples
        given["covariates"] = read_covariates(f"--covariates={covariates}", names)
    wanted = parse_scoring(scoring)
    if truth is None and wanted is not None:
        msg = "--scoring needs the true labels, and they are not known; leave it out"
        raise InputError(msg)
    if plot is not None and (truth is None or estimator.kind_ == "regression"):
        why = "they are not known" if truth is None else f"{type(estimator).__name__} predicts numbers"
        msg = f"--plot draws which true class is taken for which, and {why}; leave it out"
        raise InputError(msg)
    with ConsoleWatch(), computing_on(cluster, reading=reading, workers=workers, memory=memory):
        regression = estimator.kind_ == "regression"
        scores = estimator.predict(**given) if regression else estimator.decision_function(**given)
        shares = None if contributions is None else estimator.contributions(**given)
    labels = scores.values if regression else estimator.labels_of(scores.values)
    scored = new if new.any() else ~new
    told = None if truth is None else measured(estimator, scores.values[scored], truth[scored], wanted, unknown)
    if out is not None:
        calibrated_ones = estimator.probabilities_of(scores) if probabilities else None
        frame, dataset = _tables(scores, labels, estimator, calibrated_ones)
        write_table(as_place(out), frame, dataset, overwrite=overwrite)
    if anndata is not None:
        from dmkl.outputs import into_annotated

        into_annotated(anndata, scores={key: scores}, overwrite=overwrite)
    if contributions is not None and shares is not None:
        frame = as_frame(shares, "kernel")
        write_table(as_place(contributions), frame, shares.to_dataset(), overwrite=overwrite)
    if plot is not None and told is not None and told.counts is not None:
        save_figure(dmkl.plot_confusion(told.counts), plot, dpi=150)
    if as_json:
        files = None if features is None else [str(file) for file in features]
        print_json(
            {
                "model": model,
                "store": store,
                "features": files,
                "samples": len(labels),
                "trained_on": int((~new).sum()),
                **(told.mapping if told else {"scores" if regression else "accuracy": None}),
                **({"calibrated_on": estimator.calibrated_on_} if probabilities else {}),
                "out": out,
                **({} if contributions is None else {"contributions": contributions}),
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
    if plot is not None:
        say(f"The picture is {plot}.")
    if out is not None:
        calibrated = f", with probabilities calibrated on {estimator.calibrated_on_}" if probabilities else ""
        say(f"Predictions are in {out}{calibrated}.")
    if anndata is not None:
        say(f"Scores are in obsm[{key!r}] of {anndata}.")
    elif told is None and out is None and contributions is None:
        say("Write them to a file with --out FILE.")
    if contributions is not None:
        say(f"What each kernel adds to the scores is in {contributions}.")


def _check_source(
    store: str | None,
    features: list[Path] | None,
    split: int | None,
    rows: str | None,
    join: str,
    missing: str | None,
) -> None:
    if bool(store) == bool(features):
        msg = "samples come from STORE or from --features FILE, one of the two; give --features again for further files"
        raise InputError(msg)
    if features and (split is not None or rows is not None):
        msg = f"{'--split' if rows is None else '--rows'} is for STORE; of --features all samples are predicted"
        raise InputError(msg)
    if split is not None and rows is not None:
        msg = "--split and --rows exclude one another; give one of them"
        raise InputError(msg)
    for name, given in (("join", join != "exact"), ("missing", missing is not None)):
        if not (store and given):
            continue
        msg = f"--{name} is for --features; leave it out with {store}"
        raise InputError(msg)


def _check_probabilities(estimator: Any, out: str | None) -> None:
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


def _rows(K: KernelSet, estimator: Any, split: int | None, part: str, asked: str | None) -> Index:
    import numpy as np

    new = _new(K, estimator)
    if asked is not None:
        return chosen_rows(K, asked)
    if split is None:
        if new.any():
            return np.flatnonzero(new)
        msg = (
            f"the model was trained on all {count(len(new), 'sample')} of this set, and there are no others to "
            f"predict; give a set or --features of new samples, or choose samples with --rows {ROWS}"
        )
        raise InputError(msg)
    rows: Index = getattr(stored_split(K, split), part)
    if not len(rows):
        msg = (
            f"the {part} part of split {split} is empty; choose another with --split or --part, or samples with --rows "
            f"{ROWS}"
        )
        raise InputError(msg)
    trained = int((~new[rows]).sum())
    if part != "train" and trained:
        msg = (
            f"the model was trained on {count(trained, 'sample')} of the {len(rows)} in the {part} part of split "
            f"{split}, and a score on them would say nothing of new ones; take a model that was not, another --part, "
            f"or choose samples with --rows {ROWS}"
        )
        raise InputError(msg)
    return rows


def _tables(
    scores: xr.DataArray, labels: Array, estimator: Any, probabilities: xr.DataArray | None
) -> tuple[pd.DataFrame, xr.Dataset]:
    """Predictions as a table with a row for each sample, and as labeled data."""
    import numpy as np
    import pandas as pd
    import xarray as xr

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
    names = pd.Series(scores["sample"].values, name="sample")
    told = pd.DataFrame(labels.reshape(len(labels), -1), columns=predicted)
    frame = pd.concat([names, told, pd.DataFrame(values, columns=titles)], axis=1)
    dims = scores.dims[: labels.ndim]
    coords = {str(dim): scores[dim] for dim in dims}
    parts = {"predicted_label": xr.DataArray(labels, coords, dims)} if estimator.kind_ != "regression" else {}
    dataset = xr.Dataset({**parts, str(scores.name): scores})
    return frame, dataset if probabilities is None else dataset.assign(probability=probabilities)
