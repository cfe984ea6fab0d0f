"""Using saved models and results: `dmkl predict`, `dmkl transform`, `dmkl export`, `dmkl compact` and `dmkl report`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dmkl
from dmkl.cli import options, parsing
from dmkl.cli.cluster import Resources
from dmkl.cli.learners import import_base
from dmkl.cli.options import Json, Overwrite, Store, flag, option, samples_option
from dmkl.cli.output import command_line, lock_output, lock_pictures, print_json, save_figure, say, say_aside
from dmkl.cli.samples import ROWS, columns_of_model, find_names, open_kernels, select_rows
from dmkl.description import count, number
from dmkl.errors import refuse
from dmkl.files.urls import as_place
from dmkl.progress import ConsoleWatch

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from dmkl.arrays import Array, Index
    from dmkl.kernelset import KernelSet

_anndata_option, _certainty_option = (partial(option, panel=panel) for panel in ("AnnData", "Certainty"))
_NO_CLASSES = {"regression": "numbers", "clusters": "clusters"}  # what models of these kinds predict


def _load_model(path: str) -> Any:
    """The model at a path: that of a fit, or the best one of a search."""
    import_base()
    loaded = dmkl.load(path)
    is_search = getattr(loaded, "FORMAT", "") == "dmkl-search"  # its class takes a while to import
    return loaded.best_ if is_search else loaded


def predict(
    model: options.SavedModel,
    resources: Resources,
    store: Annotated[str | None, typer.Argument(metavar="STORE", help="Kernel set (folder or URL).")] = None,
    features: list[Path] | None = samples_option("Features of new samples; repeatable.", "FILE"),
    labels: options.Labels = None,
    join: options.Join = "exact",
    missing: options.Missing = None,
    missing_features: options.MissingFeatures = "refuse",
    split: int | None = samples_option("Predict a part of this stored split.", "K", min=0),
    part: Literal["test", "validation", "train"] = samples_option(
        'Its "test" (default), "validation" or "train".', "PART", default="test"
    ),
    rows: options.Rows = None,
    records: options.Records = None,
    covariates: options.Covariates = None,
    offset: options.Offset = None,
    strata: options.Strata = None,
    unknown: options.Unknown = None,
    scoring: list[str] | None = option("Measures such as matthews,roc_auc.", "NAME,…"),
    deviations: bool = flag(
        "Standard deviations and reliabilities.", "--std", panel="Certainty", details="Of variance components."
    ),
    times: str | None = _certainty_option("Probabilities to survive these times.", "T,…", details="Of MKCox."),
    probabilities: bool = flag("Calibrated probabilities.", "--probabilities", panel="Certainty"),
    coverage: float | None = _certainty_option("Sets or intervals, as of 0.9.", "P"),
    per_class: bool = flag("Hold the coverage for each class.", "--per-class", panel="Certainty"),
    unassigned_below: float | None = _certainty_option('Predict "unassigned" below this.', "P", min=0.0, max=1.0),
    out: str | None = option("Labels and scores: .csv, .parquet, .zarr.", "FILE"),
    contributions: str | None = option("Shares of kernels; one more pass.", "FILE"),
    kernel_scores: str | None = option("R² by kernel; one more pass.", "FILE"),
    plot: Path | None = option("Draw the confusion matrix.", "FILE.png"),
    report: Path | None = option("Page of scores, calibration and drift.", "FILE.html"),
    anndata: Path | None = _anndata_option("Put predictions into this .h5ad or .h5mu, by name.", "FILE"),
    key: str = _anndata_option("Name of the scores in obsm. [default: dmkl]", "NAME", default="dmkl"),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Predict labels or numbers with a saved model, and score them if the true ones are known.

    Predicts the samples of --split and --part or of --rows, or all samples of STORE that the model was not trained on;
    all rows of a rectangular set (new × training samples); and all samples of --features, whose columns are matched by
    name. Scores do not include samples that the model was trained on, by their names, unless there are no others. True
    labels are those of STORE, of --features or of --labels. With --coverage it writes sets of labels ("a|b"), or ends
    of intervals, and how sure they are.

    Examples
    --------
        dmkl predict model kernels.zarr --split 0 --plot confusion.png
        dmkl predict model kernels.zarr --rows 0,5,10:20 --contributions shares.csv
        dmkl predict model --features new.npz --out predictions.csv --probabilities
        dmkl predict model --features query.h5ad --labels query.h5ad:cell_type
        dmkl predict model kernels.zarr --anndata cells.h5ad
        dmkl predict model new.zarr --out sets.csv --coverage 0.9
        dmkl predict model new.zarr --report prediction.html
    """
    import numpy as np
    import pandas as pd
    import xarray as xr

    from dmkl.arrays import is_known
    from dmkl.numerics.fisher import with_unknown
    from dmkl.outputs import as_frame, check_table, write_table

    for place in [as_place(path) for path in (out, contributions, kernel_scores) if path is not None]:
        check_table(place)
        lock_output(place, overwrite=overwrite, what="file")
    lock_pictures(plot, overwrite=overwrite)
    if report is not None:
        lock_output(report, overwrite=overwrite, what="file")
    changed = {"labels": None if records else labels, "join": join != "exact", "missing": missing}
    _check_source(store, features, rows, records, split, **changed, missing_features=missing_features != "refuse")
    estimator = _load_model(model)
    from dmkl.cli.tables import score_model, show_scores  # after `import_base`
    from dmkl.learners.conformal import holds, mean_size
    from dmkl.learners.predicting import beside_features, training_note

    if probabilities or unassigned_below is not None:
        _check_probabilities(estimator, out or anndata, unassigned=unassigned_below is not None)
    _check_written(estimator, out, deviations=deviations, times=times)
    if strata is not None and times is None:
        refuse("--strata is for curves of survival at some times; give --times too, or leave it out")
    of_times = [] if times is None else parsing.parse_numbers("times", "0.5,1,2", times)
    curves: dict[str, Any] = {"times": of_times, "strata": strata} if of_times else {}
    if coverage is not None and estimator.kind_ == "clusters":
        refuse(f"{type(estimator).__name__} predicts clusters, which have no sets of labels; leave --coverage out")
    if coverage is not None and per_class and estimator.kind_ == "regression":
        refuse("--per-class is for sets of labels, and the model predicts numbers; leave it out")
    if coverage is not None:
        estimator._check_coverage(coverage)
    source: dict[str, Any]
    K: KernelSet | None = None
    where = store or ", ".join(map(str, features or []))
    if store is not None:
        K = open_kernels(store, None, records, labels)
        chosen = _rows_to_predict(K, estimator, split, part, rows)
        source = {"K": K[chosen, columns_of_model(K, estimator, model)]}
        truth = None if K.labels is None else K.labels[chosen]
        new = ~estimator._is_trained_on(K)[chosen]
        has_label = np.ones(len(new), dtype=bool)
    else:
        from dmkl.inputs import as_features
        from dmkl.inputs.columns import counts
        from dmkl.inputs.label_tables import given_data
        from dmkl.inputs.labels import Labels, labels_in

        tables, given_labels = as_features(features or [], join=join), given_data(labels=labels)
        for item in given_labels:
            item.expected = tables.samples
            wanted = tables.samples if item.table.row_names else None  # names of further samples do no harm
            tables = as_features(features or [], samples=wanted, join=join, side_data=given_labels)
        for note in tables.notes:
            say_aside("note", note)
        n_samples = next(iter(tables.blocks.values())).shape[0]
        source = {"features": tables, "join": join, "missing": missing, "missing_features": missing_features}
        given, new = np.asarray(tables.labels.labels), np.ones(n_samples, dtype=bool)
        if tables.samples is not None and not counts(tables.samples):
            new = ~estimator._is_trained_on(tables.samples)
        if note := training_note(~new):
            say_aside("note", note)
        has_label = is_known(given) if given.ndim == 1 else np.ones(n_samples, dtype=bool)
        labeled = given[has_label] if given.ndim and has_label.any() else None
        n_known = int(has_label.sum())
        truth = labels_in(
            Labels(labels=labeled, tasks=tables.labels.tasks).checked(n_known, n_known, rectangular=False)
        )
        if truth is not None and not has_label.all():
            say_aside("note", f"{count(int((~has_label).sum()), 'sample')} without a label: predicted and not scored")
            truth = truth[np.maximum(0, np.cumsum(has_label) - 1)]  # any label for those, which are left out of scores
    if truth is not None and labels is None and estimator.kind_ == "regression" and truth.dtype.kind not in "biuf":
        say_aside("note", f"the labels of {where} are no numbers, which the model predicts: nothing is scored")
        truth = None
    names = source["features"].samples if K is None else parsing.sample_names(K)
    if covariates is not None:
        source["covariates"] = parsing.read_covariates(f"--covariates={covariates}", names)
    if offset is not None:
        value = parsing.parse_value(offset)
        source["offset"] = parsing.read_offset(offset, names) if isinstance(value, str) else value
    if strata is not None:
        curves["strata"] = parsing.read_strata(strata, names)
    measures, regression = parsing.parse_scoring(scoring), estimator.kind_ == "regression"
    for asked, suits, what in (
        (measures, True, "--scoring needs the true labels"),
        (kernel_scores, regression, "--kernel-scores compares predicted numbers with the true ones"),
        (plot, estimator.kind_ not in _NO_CLASSES, "--plot draws true against predicted classes"),
    ):
        if asked is not None and (truth is None or not suits):
            predicts = f"{type(estimator).__name__} predicts {_NO_CLASSES.get(estimator.kind_, 'no numbers')}"
            refuse(f"{what}, and {'they are not known' if truth is None else predicts}; leave it out")
    with ConsoleWatch(), resources.computing(reading=K):
        deviation = None
        if deviations:
            of_training = {}
            if K is not None:
                at = find_names(K.samples, estimator.train_samples_, f"the model {model}")
                of_training["training"] = K[at, columns_of_model(K, estimator, model)]
            scores, deviation = estimator.predict(**source, return_std=True, **of_training)
        else:
            scores = estimator.predict(**source) if regression else estimator.decision_function(**source)
        shares = None if contributions is None and kernel_scores is None else estimator.contributions(**source)
    if truth is not None and not is_known(truth).any():
        truth = None
    predicted = scores.values if regression else estimator.labels_of(scores.values)
    scored = (new if new.any() else ~new) & (True if truth is None else has_label)
    of_covariates, result = None, None
    if regression:
        of_covariates = estimator._covariate_part(scores["sample"].values, **beside_features(source))
    n_trained = int((~new).sum())
    samples = f"{count(int(scored.sum()), 'sample')} of {where}"
    samples += "" if new.any() else ", which the model was trained on: this says nothing about new samples"
    if truth is not None:
        of_scored = None if of_covariates is None else of_covariates[scored]
        result = score_model(estimator, scores.values[scored], truth[scored], measures, unknown, samples, of_scored)
    has_probabilities = getattr(estimator, "calibrated_on_", None) is not None
    calibrated = estimator.probabilities_of(scores) if has_probabilities else None
    facts: dict[str, Any] = {"model": model, "store": store, "samples": len(predicted), "trained_on": n_trained}
    facts |= {"features": None if features is None else list(map(str, features)), "out": out}
    facts |= result.as_data() if result else {"scores" if regression else "accuracy": None}
    facts |= {"calibrated_on": estimator.calibrated_on_} if probabilities else {}
    said, region_lines, regions, parts = list[str](), list[str](), None, None
    if result is not None and new.any() and n_trained:
        said.append(f"{count(n_trained, 'further sample')}, which the model was trained on, are not scored.")
    if coverage is not None:
        of_kind = estimator.intervals_of if regression else partial(estimator.sets_of, per_class=per_class)
        regions, observed = of_kind(scores, coverage), ""
        of_regions = {**regions.attrs, "mean_size": mean_size(regions)}
        if truth is not None:
            share = float(np.nanmean(holds(regions, with_unknown(truth, unknown))[scored]))
            of_regions["observed_coverage"], observed = share, f"; they hold {number(share)} of the true labels"
        size = number(of_regions["mean_size"])
        what = f"Intervals: mean width {size}" if regression else f"Sets: {size} labels on average"
        region_lines = [f"{what}{observed}. They hold the labels of {of_regions['guarantee']}."]
        facts["coverage"] = of_regions
    said += region_lines
    if unassigned_below is not None and calibrated is not None:
        predicted = np.where(calibrated.max("class") < unassigned_below, "unassigned", predicted.astype(str))
    if out is not None:
        listed = calibrated if probabilities else None
        frame, dataset = _tables(scores, predicted, estimator, listed, deviation, of_covariates, curves, regions)
        write_table(as_place(out), frame, dataset, overwrite=overwrite)
        on = f", with probabilities calibrated on {estimator.calibrated_on_}" if probabilities else ""
        said.append(f"Predictions are in {out}{on}.")
    if anndata is not None:
        from dmkl.outputs import into_annotated

        more, obsm = {}, {key: scores}
        if predicted.ndim == 1:
            more["obs/predicted"] = xr.DataArray(predicted, {"sample": scores["sample"]})
        if calibrated is not None and predicted.ndim == 1:
            more["obs/confidence"], obsm[f"{key}_probability"] = calibrated.max("class"), calibrated.drop_vars("class")
            more[f"uns/{key}_classes"] = xr.DataArray(estimator.classes_.astype(str).astype(object))
        into_annotated(anndata, scores=obsm, more=more, overwrite=overwrite)
        entries = [*more, *(f"obsm/{name}" for name in obsm if name != key)]
        also = ", ".join(f"{part}[{name!r}]" for part, _, name in (entry.partition("/") for entry in entries))
        said.append(f"Scores are in obsm[{key!r}]{also and f', and more in {also}'} of {anndata}.")
    elif result is None and out is None and contributions is None:
        said.append("Write them to a file with --out FILE.")
    if contributions is not None and shares is not None:
        write_table(as_place(contributions), as_frame(shares, "kernel"), shares.to_dataset(), overwrite=overwrite)
        said.append(f"Shares of the kernels in the scores are in {contributions}.")
        facts["contributions"] = contributions
    if kernel_scores is not None and shares is not None and truth is not None:
        parts = dmkl.kernel_scores(shares[scored], pd.DataFrame(with_unknown(truth, unknown), scores["sample"])[scored])
        write_table(as_place(kernel_scores), parts.table(), parts.data, overwrite=overwrite)
        said.append(f"R² and correlation by kernel are in {kernel_scores}.")
        facts["kernel_scores"] = kernel_scores
    if result is not None and result.figures:
        save_figure(result.figures["Confusion matrix"].draw, plot)
    if report is not None:
        from dmkl.reports.predictions import describe_prediction

        known = None if truth is None else estimator._truth(None, truth, unknown=unknown)
        if known is not None and not has_label.all():
            known = known.astype(float if regression else object)
            known[~has_label] = np.nan if regression else None
        code = {"Command that repeats this": shlex.join(["dmkl", *command_line.get()])}
        description = describe_prediction(estimator, scores, known, result, where, region_lines, parts, code)
        dmkl.report(description, report)
        said.append(f"The page is {report}; open it in a browser.")
    if as_json:
        print_json(facts)
        return
    if result is None:
        say(f"Predicted {count(len(predicted), 'sample')} of {where}; their labels are not known.")
    else:
        show_scores(result)
    for line in said:
        say(line)


def _check_source(
    store: str | None,
    features: list[Path] | None,
    rows: str | None,
    records: Path | None,
    split: int | None = None,
    **of_features: object,
) -> None:
    """Refuse options of a set with features, and those `of_features` that are given with a set."""
    if bool(store) == bool(features):
        refuse(
            "samples come from either STORE or --features FILE; give one of them (--features again for further files)"
        )
    if features and (split is not None or rows is not None):
        refuse(f"{'--split' if rows is None else '--rows'} is for STORE; all samples of --features are predicted")
    if split is not None and rows is not None:
        refuse("--split and --rows exclude one another; give one of them")
    for name, given in of_features.items():
        if store and given:
            refuse(f"--{name.replace('_', '-')} is for --features; leave it out with {store}")
    if features and records:
        refuse("--records is for STORE, whose samples have several records; give each row in --features")


def _check_probabilities(estimator: Any, out: str | Path | None, *, unassigned: bool) -> None:
    """Refuse probabilities without a file for them, or that the model does not have, before anything is computed."""
    if out is None:
        refuse("--probabilities and --unassigned-below are written with the labels; give the file by --out FILE")
    if estimator.kind_ == "multilabel" and unassigned:
        refuse("--unassigned-below is for one label of each sample, and the model has tasks; leave it out")
    if what := _NO_CLASSES.get(estimator.kind_):
        refuse(f"{type(estimator).__name__} predicts {what}, which have no probabilities; leave them out")
    estimator._check_calibrated()


def _check_written(estimator: Any, out: str | None, *, deviations: bool, times: str | None) -> None:
    """Refuse standard deviations and survival curves that cannot be computed or have no file."""
    asked = {"--std": (deviations, "components_", "variance components")}
    asked["--times"] = (times is not None, "survival_of", "survival (mkcox)")
    for name, (given, attribute, what) in asked.items():
        if given and not hasattr(estimator, attribute):
            refuse(f"{name} is for {what}, and the model is a {type(estimator).__name__}; leave it out")
        if given and out is None:
            refuse(f"{name} is written with the predictions; give the file by --out FILE")


def _rows_to_predict(K: KernelSet, estimator: Any, split: int | None, part: str, text: str | None) -> Index:
    import numpy as np

    new = ~estimator._is_trained_on(K)
    if text is not None:
        return select_rows(K, text)
    if split is None and not K.is_square:
        return np.arange(len(new))
    if split is None:
        if new.any():
            return np.flatnonzero(new)
        refuse(
            f"the model was trained on all {count(len(new), 'sample')} of this set, and there are no others to "
            f"predict; give a set or --features of new samples, or choose samples with --rows {ROWS}"
        )
    if K.splits is None or split >= len(K.splits):
        has = "has no splits" if K.splits is None else f"has {len(K.splits)}, numbered from 0"
        refuse(f"there is no split {split}: this set {has}; leave out --split, or choose samples by --rows {ROWS}")
    rows: Index = getattr(K.split(split), part)
    if not len(rows):
        way_out = f"choose another with --split or --part, or samples with --rows {ROWS}"
        refuse(f"the {part} part of split {split} is empty; {way_out}")
    trained = int((~new[rows]).sum())
    if part != "train" and trained:
        refuse(
            f"the model was trained on {count(trained, 'sample')} of the {len(rows)} in the {part} part of split "
            f"{split}, and a score on them says nothing about new samples; take a model that was not, another --part, "
            f"or choose samples with --rows {ROWS}"
        )
    return rows


def _tables(
    scores: xr.DataArray,
    labels: Array,
    estimator: Any,
    probabilities: xr.DataArray | None,
    deviation: xr.DataArray | None,
    of_covariates: Array | None,
    curves: dict[str, Any],
    regions: Any,
) -> tuple[pd.DataFrame, xr.Dataset]:
    """Predictions as a table with a row for each sample, and as an xarray Dataset."""
    import numpy as np
    import xarray as xr

    from dmkl.outputs import prediction_table
    from dmkl.variables import describe

    dims = scores.dims[: labels.ndim]
    coords = {str(dim): scores[dim] for dim in dims}
    label = {} if estimator.kind_ == "regression" else {"predicted_label": xr.DataArray(labels, coords, dims)}
    dataset = xr.Dataset({**label, str(scores.name): scores})
    if of_covariates is not None:
        parts = {"covariate_prediction": scores.copy(data=of_covariates), "kernel_prediction": scores - of_covariates}
        dataset = dataset.assign({name: describe(values.rename(name)) for name, values in parts.items()})
    if deviation is not None:
        dataset = dataset.assign(standard_deviation=deviation, reliability=deviation["reliability"])
    if regions is not None and estimator.kind_ == "regression":
        dataset = dataset.assign(regions)
    elif regions is not None:
        names = regions["class"].values.astype(str)
        members = np.array(["|".join(names[row]) for row in regions.values.reshape(-1, len(names))])
        listed = regions.isel({"class": 0}, drop=True).copy(data=members.reshape(regions.shape[:-1]))
        dataset = dataset.assign(in_set=regions, prediction_set=describe(listed.rename("prediction_set")))
    if probabilities is not None:
        dataset = dataset.assign(probability=probabilities)
    if curves:
        dataset = dataset.assign(survival=estimator.survival_of(scores, **curves))
    if estimator.kind_ == "binary":
        dataset = dataset.assign_coords({"class": estimator.classes_})
    return prediction_table(dataset), dataset


def transform(
    model: options.SavedModel,
    resources: Resources,
    out: Annotated[str, option("File or URL for the coordinates: .csv, .parquet or .zarr (xarray).", "FILE")],
    store: Annotated[str | None, typer.Argument(metavar="STORE", help="Kernel set (folder or URL).")] = None,
    features: list[Path] | None = samples_option("Features of new samples instead of STORE; repeatable.", "FILE"),
    components: int = option("Number of coordinates.", "N", min=1, default=2),
    of: str | None = option("The class, task or pair whose weights are taken, if each has its own.", "NAME"),
    rows: options.Rows = None,
    records: options.Records = None,
    covariates: options.Covariates = None,
    plot: Path | None = option("Draw the first two coordinates, colored by label (PNG, PDF or SVG).", "FILE.png"),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write coordinates of samples in the principal directions of a model's weighted kernel (kernel PCA).

    The directions are those of the training samples, and other samples are projected on them: all samples of STORE, a
    set with the training samples and any others, or those of --rows; or new samples by --features, whose columns are
    matched by name.

    Examples
    --------
        dmkl transform model kernels.zarr --out coordinates.csv --components 10 --plot samples.png
        dmkl transform model --features new.npz --out coordinates.csv
    """
    import numpy as np
    import pandas as pd

    from dmkl.outputs import as_frame, check_table, write_table

    place = as_place(out)
    check_table(place)
    lock_output(place, overwrite=overwrite, what="file")
    lock_pictures(plot, overwrite=overwrite)
    _check_source(store, features, rows, records)
    estimator = _load_model(model)
    K: KernelSet | None = None
    source: dict[str, Any] = {}
    names: Any
    labels: Any
    shown: Any = slice(None)
    if store is not None:
        K = open_kernels(store, None, records)
        names, labels = parsing.sample_names(K), K.labels
        shown = shown if rows is None else select_rows(K, rows)
    else:
        from dmkl.inputs import as_features

        source["features"] = tables = as_features(features or [])
        names, labels = tables.samples, tables.labels.labels
    removed = None if covariates is None else parsing.read_covariates(f"--covariates={covariates}", names)
    with ConsoleWatch(), resources.computing(reading=K):
        array = estimator.kernel_pca(K, components, covariates=removed, **source)
    array = _select_label(array.isel(sample=shown), of)
    if plot is not None:
        has_labels = labels is not None and np.ndim(labels) == 1
        by_name = pd.Series(np.asarray(labels)[shown], array["sample"].values) if has_labels else None
        save_figure(partial(dmkl.plot_components, array, by_name), plot)
    write_table(place, as_frame(array, "component", "component "), array.to_dataset(), overwrite=overwrite)
    if as_json:
        print_json({"model": model, "store": store, "out": out, "dims": list(array.dims), "shape": list(array.shape)})
        return
    say(f"{count(components, 'coordinate')} of {count(array.sizes['sample'], 'sample')}: {out}.")


def export(
    model: options.SavedModel,
    store: Store,
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="File to write: .npy, .csv, .zarr, .grm.bin, .h5ad or .hsq.")
    ],
    resources: Resources,
    of: str | None = option("The class, task or pair whose weights are taken, if each has its own.", "NAME"),
    rows: options.Rows = None,
    records: options.Records = None,
    covariates: options.Covariates = None,
    weights: bool = flag("Write the weights of the kernels: .csv, .parquet or .zarr.", "--weights"),
    coordinates: int | None = option("The former name of dmkl transform --components.", "N", min=1, hidden=True),
    anndata: Path | None = _anndata_option("Copy the contents of this .h5ad file too.", "FILE"),
    key: str = _anndata_option("Name of the kernel in obsp.", "NAME", default="dmkl"),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write the weighted kernel of a model for other programs.

    The kernel is that of all samples of STORE after the steps of the model, with the statistics of its training
    samples; of a rectangular set, and with --rows, it is that of the rows against the training samples. The ending of
    OUT gives the format: .npy, .csv or .zarr (with names), .grm.bin (for GCTA, with .grm.id and .grm.N.bin),
    .h5ad (AnnData, in obsp), or .hsq (the table of variance components, as GCTA writes it).

    Examples
    --------
        dmkl export model kernels.zarr weighted.npy
        dmkl export model kernels.zarr weighted.grm.bin
        dmkl export model kernels.zarr cells.h5ad --anndata data.h5ad --key weighted
        dmkl export model kernels.zarr height.hsq
        dmkl export model kernels.zarr weights.csv --weights
    """
    from dmkl.outputs import check_kernel_file, check_table, write_kernel, write_table

    if coordinates is not None:
        given: Any = {"of": of, "rows": rows, "records": records, "covariates": covariates}
        options_of_both: Any = {"overwrite": overwrite, "as_json": as_json, "plot": None, "features": None}
        transform(model, resources, out, store, components=coordinates, **given, **options_of_both)
        return
    place, is_hsq = as_place(out), out.lower().endswith(".hsq")
    if weights:
        check_table(place)
    elif not is_hsq:
        check_kernel_file(place, overwrite=overwrite)
    lock_output(place, overwrite=overwrite, what="file")
    facts: dict[str, Any] = {"model": model, "store": store, "out": out}
    if weights:
        of_kernels = _select_label(_load_model(model).weights_, of).reset_coords(drop=True).rename("weight")
        write_table(place, of_kernels.to_dataframe().reset_index(), of_kernels.to_dataset(), overwrite=overwrite)
        if as_json:
            print_json(facts | {"dims": list(of_kernels.dims), "shape": list(of_kernels.shape)})
        else:
            say(f"The weights of the kernels: {out}.")
        return
    if is_hsq:
        from dmkl.files.writing import replacing

        estimator = _load_model(model)
        if not hasattr(estimator, "hsq_table"):
            what = f"{place} holds variance components, and the model is a {type(estimator).__name__}"
            refuse(f"{what}; name another OUT")
        text = estimator.hsq_table(of).to_csv(sep="\t", index=False, float_format="%.7g", na_rep="nan")
        with replacing(place, "w", encoding="utf-8") as file:
            file.write(text.replace("\tnan\n", "\n"))
        if as_json:
            print_json(facts)
        else:
            say(f"Variances, shares and their test, as GCTA writes them: {out}.")
        return
    if anndata is not None and not out.lower().endswith(".h5ad"):
        refuse(f"--anndata is for a kernel in a file that ends in .h5ad, got {out}; leave it out, or name OUT so")
    estimator, K = _load_model(model), open_kernels(store, None, records)
    removed = (
        None if covariates is None else parsing.read_covariates(f"--covariates={covariates}", parsing.sample_names(K))
    )
    with ConsoleWatch(), resources.computing(reading=K):
        if rows is not None:
            K = K[select_rows(K, rows), columns_of_model(K, estimator, model)]
        array = _select_label(estimator.combined_kernel(K, covariates=removed), of)
        annotated: dict[str, Any] = {"key": key, "source": anndata} if out.lower().endswith(".h5ad") else {}
        write_kernel(place, array, overwrite=overwrite, **annotated)
    if as_json:
        print_json(facts | {"dims": list(array.dims), "shape": list(array.shape)})
        return
    *_, n_rows, n_cols = array.shape
    say(f"The weighted kernel of {n_rows:,} × {n_cols:,} samples: {out}.")


def compact(
    model: options.SavedModel,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write, such as model.zip.")],
    overwrite: Overwrite = False,
) -> None:
    """Write a model as one file, with what predictions read alone.

    All commands read it as the model, and its predictions are the same. Kernels without weight and the steps of the fit
    are left out, so that reports and pictures lack them.

    Examples
    --------
        dmkl compact model model.zip
    """
    lock_output(out, overwrite=overwrite)
    _load_model(model).save(out, overwrite=overwrite, compact=True)
    say(f"Saved in {out}.")


def _select_label(array: xr.DataArray, name: str | None) -> xr.DataArray:
    """The part of an array for one class, task, pair or target; all of it for None."""
    if name is None:
        return array
    dim = next((str(dim) for dim in array.dims if dim in ("class", "task", "pair", "target")), None)
    names = [] if dim is None else array[dim].values.astype(str).tolist()
    if name not in names:
        expected = f"one of {', '.join(names)}" if names else "nothing, as this model has one set of weights"
        refuse(f"--of takes {expected}; got {name!r}")
    return array.isel({dim: names.index(name)})


def report(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Models or results, at folders or URLs.")],
    output: Path = option("Where to write the page.", "FILE", "--output", "-o", default=Path("report.html")),
    overwrite: Overwrite = False,
) -> None:
    """Write a report on a model or a result as one HTML page: the answer, its certainty, pictures, code.

    For several results on the same data the page shows the answer of the search or model, then the evidence: the score
    on new samples, permuted labels, stability, importance; and how each was computed, with all parameters. It has code
    that repeats the work, and needs no other file.

    Examples
    --------
        dmkl report result -o result.html
        dmkl report model.zarr
        dmkl report result estimate significance trust added -o report.html
    """
    lock_output(output, overwrite=overwrite)
    results: Any = [dmkl.load(path) for path in paths]
    if len(paths) == 1:
        dmkl.report(results[0], output, source=paths[0])
    else:
        dmkl.report(results, output, source=paths)
    say(f"Saved in {output}; open it in a browser.")
