"""`dmkl fit`."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.learners import DEFAULT, make_learner
from dmkl.cli.options import Cluster, Every, Json, Memory, Overwrite, Split, Store, Train, Workers
from dmkl.cli.output import count, print_json, refuse_existing, say, show
from dmkl.cli.samples import training_samples
from dmkl.cli.tables import model_as_mapping, summary_table, weights_table
from dmkl.progress import ConsoleWatch

__all__ = ["fit"]


def fit(
    store: Store,
    model_out: Annotated[Path, typer.Argument(metavar="MODEL_OUT", help="Folder to save the model in.")],
    model: str = DEFAULT,
    split: Split = None,
    train: Train = None,
    every: Every = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory: Memory = None,
    **parameters: Any,
) -> None:
    """Train a model on a kernel set and save it.

    Trains on the training part of split 0 if the set has splits and on all samples otherwise, unless --split,
    --train or --all say so. Prints the weights with the proven gap: how far they are from the optimum at most.

    Examples
    --------
        dmkl fit kernels.zarr model
        dmkl fit kernels.zarr model -p 1 --lam 1e-3 --split 0
        dmkl fit kernels.zarr model --model uniform --all
        dmkl fit kernels.zarr model --model mksvm -p 1.5 -C 4 --multiclass ovo
        dmkl fit kernels.zarr model --model gmkl --sigma prices.csv
    """
    refuse_existing(model_out, overwrite=overwrite)
    K = dmkl.open(store)
    estimator = make_learner(model, parameters, K.names)
    chosen, on = training_samples(K, split, train, every)
    with computing_on(cluster, workers=workers, memory=memory), ConsoleWatch():
        started = time.monotonic()
        estimator.fit(K[chosen, chosen])
        seconds = time.monotonic() - started
    estimator.save(model_out, overwrite=overwrite)
    if as_json:
        print_json(model_as_mapping(estimator, model_out, len(chosen), seconds))
        return
    show(weights_table({str(estimator): estimator.weights_}), summary_table({model: estimator}, {model: seconds}))
    say(f"Trained on {count(len(chosen), 'sample')} ({on}). {estimator.status_}")
    say(f"Saved in {model_out}; use it with: {shlex.join(['dmkl', 'predict', str(model_out), store])}")
