"""`dmkl fit`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dmkl.cli.cluster import computing_on
from dmkl.cli.learners import DEFAULT, make_learner
from dmkl.cli.measuring import measured
from dmkl.cli.options import (
    SAMPLES,
    Cluster,
    DropClasses,
    Every,
    Json,
    Kernels,
    Memory,
    Overwrite,
    Split,
    Store,
    Train,
    Unknown,
    Workers,
    option,
)
from dmkl.cli.output import claim_output, print_json, say, show
from dmkl.cli.parsing import parse_scoring
from dmkl.cli.samples import open_kernels, predict_command, training_samples
from dmkl.cli.tables import ON_WEIGHTS, effects_table, model_as_mapping, summary_table, weights_table
from dmkl.errors import InputError
from dmkl.files.urls import as_place
from dmkl.progress import ConsoleWatch
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from dmkl.arrays import Index
    from dmkl.kernelset import KernelSet

__all__ = ["fit"]


def fit(
    store: Store,
    model_out: Annotated[str, typer.Argument(metavar="MODEL_OUT", help="Folder or URL to save the model at.")],
    model: str = DEFAULT,
    kernels: Kernels = None,
    split: Split = None,
    train: Train = None,
    every: Every = False,
    unknown: Unknown = None,
    drop_classes_below: DropClasses = 0,
    scoring: Annotated[
        list[str] | None,
        option("Measures such as accuracy,matthews, of the samples held out; see above.", "NAME,…", panel=SAMPLES),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
    **parameters: Any,
) -> None:
    """Train a model on a kernel set and save it.

    Trains on the training part of split 0 if the set has splits and on all samples otherwise, unless --split,
    --train or --all say so. Prints the weights with the proven gap: how far they are from the optimum at most. With
    --scoring it measures the model on samples that it was not trained on: the test part of the split (the validation
    part where it has none), or all others.

    Examples
    --------
        dmkl fit kernels.zarr model
        dmkl fit kernels.zarr model -p 1 --lam 1e-3 --split 0
        dmkl fit kernels.zarr model --model uniform --all
        dmkl fit kernels.zarr model --model mksvm -p 1.5 -C 4 --multiclass ovo
        dmkl fit kernels.zarr model --model gmkl --sigma prices.csv
    """
    import numpy as np

    claim_output(as_place(model_out), overwrite=overwrite)
    K = open_kernels(store, kernels)
    estimator = make_learner(model, parameters, K)
    chosen, on = training_samples(K, split, train, every, drop_classes_below)
    measures = parse_scoring(scoring)
    held_out, which = _held_out(K, chosen, None if train or every else split or 0) if measures else (chosen, "")
    if drop_classes_below and K.labels is not None:
        held_out = held_out[np.isin(K.labels[held_out], K.labels[chosen])]
    told = None
    with ConsoleWatch(), computing_on(cluster, reading=K, workers=workers, memory=memory):
        started = time.monotonic()
        estimator.fit(K[chosen, chosen], unknown=unknown)
        seconds = time.monotonic() - started
        if measures and K.labels is not None:  # without labels there would be no fit
            score = estimator.predict if estimator.kind_ == "regression" else estimator.decision_function
            decision = score(K[held_out, chosen]).values
            told = measured(estimator, decision, K.labels[held_out], measures, unknown)
    estimator.save(model_out, overwrite=overwrite)
    if as_json:
        found = model_as_mapping(estimator, model_out, len(chosen), seconds)
        print_json(found if told is None else {**found, "held_out": {"samples": len(held_out), **told.mapping}})
        return
    effects = [effects_table(estimator)] if hasattr(estimator, "covariate_effects_") else []
    weights = weights_table({str(estimator): estimator.weights_})
    show(weights, *effects, summary_table({model: estimator}, {model: seconds}))
    say(ON_WEIGHTS)
    if warning := estimator._default_price():
        say(warning)
    say(f"Trained on {count(len(chosen), 'sample')} ({on}). {estimator.status_}")
    if told is not None:
        told.print(f"{count(len(held_out), 'sample')} ({which})")
    say(f"Saved in {model_out}; use it with: {predict_command(estimator, model_out, K, store)}")


def _held_out(K: KernelSet, chosen: Index, split: int | None) -> tuple[Index, str]:
    """The samples that a model trained on the chosen ones is measured on, and in words which."""
    import numpy as np

    if split is not None and K.splits is not None:
        parts = K.split(split)
        for part, rows in (("test", parts.test), ("validation", parts.validation)):
            if len(rows):
                return rows, f"the {part} part of split {split}"
    rows = np.setdiff1d(np.arange(K.shape[1]), chosen)
    if not len(rows):
        msg = (
            "--scoring measures samples that the model was not trained on, and there are none; train on some with "
            "--split K or --train FILE, or estimate with dmkl evaluate"
        )
        raise InputError(msg)
    return rows, "those that it was not trained on"
