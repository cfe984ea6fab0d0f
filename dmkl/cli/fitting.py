"""`dmkl fit`."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import typer

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.models import make
from dmkl.cli.options import (
    SAMPLES,
    SOLVING,
    Center,
    Cluster,
    Constraints,
    Examples,
    Grouping,
    Groups,
    Json,
    Loss,
    Memory,
    Model,
    Multiclass,
    Normalize,
    Overwrite,
    Sharing,
    Sigma,
    Store,
    Tol,
    Workers,
)
from dmkl.cli.output import console, count, print_json, say
from dmkl.cli.samples import positions
from dmkl.cli.tables import by_column, summary_table, weights_table
from dmkl.errors import InputError, StoreExistsError
from dmkl.inputs import read_vector
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import as_exponent
from dmkl.progress import ConsoleWatch

__all__ = ["fit", "parse_p"]

Index = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


def parse_p(text: str) -> float:
    """A norm as people write it: 1, 1.5, 4/3, 1+2^-6, inf.

    Raises
    ------
    InputError
        If it is none of these, or below 1.
    """
    plain = text.strip().lower().replace("**", "^").replace(" ", "")
    if plain in ("inf", "infinity", "∞"):
        return float("inf")
    number = r"(\d+(?:\.\d*)?)"
    found = re.fullmatch(rf"{number}(?:/{number}|\+{number}\^(-?\d+))?", plain)
    if found is None or (found[2] and float(found[2]) == 0):
        msg = f"--p takes a number from 1 to inf, such as 1, 1.5, 4/3, 1+2^-6 or inf, got {text!r}"
        raise InputError(msg)
    base = float(found[1])
    if found[2]:
        base /= float(found[2])
    elif found[3]:
        base += float(found[3]) ** int(found[4])
    return as_exponent(base)


def fit(
    store: Store,
    model_out: Annotated[Path, typer.Argument(metavar="MODEL_OUT", help="The folder to save the model in.")],
    model: Model = "mkfda",
    p: Annotated[
        str | None,
        typer.Option(
            "--p",
            "-p",
            metavar="P",
            help="Of mkfda and mksvm: norm of the weights, 1 (few kernels) to inf (all alike); 4/3 and 1+2^-6 are "
            "understood. [default: 2]",
        ),
    ] = None,
    lam: Annotated[
        float | None,
        typer.Option(
            "--lam",
            metavar="λ",
            help="Ridge, positive, of mkfda, the square loss and the baselines. [default: 0.01; 1 for ncuts]",
        ),
    ] = None,
    C: Annotated[
        float | None,
        typer.Option(
            "--C",
            "-C",
            help="Price of a unit of hinge loss, positive, of mksvm, gmkl, gsmkl and ncuts. [default: 1; 10 for ncuts]",
        ),
    ] = None,
    multiclass: Multiclass = None,
    sigma: Sigma = None,
    constraints: Constraints = None,
    groups: Groups = None,
    grouping: Grouping = None,
    loss: Loss = None,
    examples: Examples = None,
    sharing: Sharing = None,
    center: Center = None,
    normalize: Normalize = None,
    split: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="Train on the training part of this stored split.",
            rich_help_panel=SAMPLES,
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Train on the samples named in this file, a name a line.",
            rich_help_panel=SAMPLES,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Train on all samples.", rich_help_panel=SAMPLES)] = False,
    solver: Annotated[
        Literal["auto", "direct", "cg", "subspace", "interleaved", "dual"] | None,
        typer.Option(
            help="Of mkfda and the baselines. direct: the combined kernel in memory; cg, subspace: out of core; "
            "interleaved: some tile columns at a time; dual: by gradients, p above 1; auto: direct where it fits, "
            "out of core otherwise. [default: auto]",
            rich_help_panel=SOLVING,
        ),
    ] = None,
    mu: Annotated[
        float | None,
        typer.Option(
            metavar="μ",
            help="Of mkfda with --solver dual: price μ of the squared norm of the weights, positive, instead of the "
            "norm one.",
            rich_help_panel=SOLVING,
        ),
    ] = None,
    master: Annotated[
        Literal["newton", "taylor", "exact"] | None,
        typer.Option(help="How the weights of mkfda are found. [default: newton]", rich_help_panel=SOLVING),
    ] = None,
    tol: Tol = None,
    max_iter: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most weightings tried; of ncuts, steps of its solver. [default: 200; 100 for mksvm and gmkl]",
            rich_help_panel=SOLVING,
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Learn a model on a kernel set and save it.

    Trains on the training part of split 0 where the set has splits, on all samples otherwise, or as --split,
    --train or --all say. The weights are printed with the proven gap: how far they are at most from the best.

    Examples
    --------
        dmkl fit kernels.zarr model
        dmkl fit kernels.zarr sparse --p 1 --lam 1e-3 --split 0
        dmkl fit kernels.zarr baseline --model uniform --all
        dmkl fit kernels.zarr machine --model mksvm --p 1.5 --C 4 --multiclass ovo
        dmkl fit kernels.zarr cut --model ncuts --examples 5 --C 10
        dmkl fit kernels.zarr priced --model gmkl --C 10 --sigma prices.csv --constraints rules.toml

    Constraints of gmkl: a table for each in a TOML file, Σ coefficient × weight at least, or at most, a number.

        [[constraint]]
        weights = { rbf = 1, chi2 = -2 }  # rbf at least twice chi2
        least = 0

        [[constraint]]
        weights = { noise = 1 }
        most = 0.1
    """
    if model_out.exists() and not overwrite:
        msg = f"{model_out} exists already; choose another path, or replace it with --overwrite"
        raise StoreExistsError(msg)
    K = dmkl.open(store)
    estimator = make(
        model,
        K.names,
        p=None if p is None else parse_p(p),
        lam=lam,
        C=C,
        multiclass=multiclass,
        sigma=sigma,
        constraints=constraints,
        groups=groups,
        grouping=grouping,
        loss=loss,
        examples=examples,
        sharing=sharing,
        center=center,
        normalize=normalize,
        solver=solver,
        mu=mu,
        master=master,
        tol=tol,
        max_iter=max_iter,
    )
    chosen, on = _training_samples(K, split, train, every)
    with computing_on(cluster, workers=workers, memory=memory), ConsoleWatch():
        started = time.monotonic()
        estimator.fit(K[chosen, chosen])
        seconds = time.monotonic() - started
    estimator.save(model_out, overwrite=overwrite)
    if as_json:
        print_json(_as_mapping(estimator, model_out, len(chosen), seconds))
        return
    screen = console()
    screen.print(weights_table({str(estimator): estimator.weights_}))
    screen.print()
    screen.print(summary_table({model: estimator}, {model: seconds}))
    say(f"Trained on {count(len(chosen), 'sample')} ({on}). {estimator.status_}")
    say(f"Saved in {model_out}; use it with: {shlex.join(['dmkl', 'predict', str(model_out), store])}")


def _training_samples(K: KernelSet, split: int | None, train: Path | None, every: bool) -> tuple[Index, str]:
    """Positions of the samples to train on, and in words which."""
    if sum((split is not None, train is not None, every)) > 1:
        msg = "--split, --train and --all exclude one another; give one of them"
        raise InputError(msg)
    if train is not None:
        return positions(K.samples, read_vector(train), str(train)), f"those in {train}"
    if every or (split is None and K.splits is None):
        return np.arange(K.shape[1]), "all"
    chosen = K.split(split or 0).train
    if not len(chosen):
        msg = f"split {split or 0} has no training samples; choose another with --split, or give --train or --all"
        raise InputError(msg)
    return chosen, f"the training part of split {split or 0}"


def _as_mapping(estimator: Any, path: Path, n_samples: int, seconds: float) -> dict[str, Any]:
    weights = by_column(estimator.weights_)
    rows: list[Any] = weights.values.tolist()
    if weights.ndim == 2:  # over classes, pairs or tasks
        labels = [str(label) for label in weights[weights.dims[1]].values]
        rows = [dict(zip(labels, row, strict=True)) for row in rows]
    by_kernel = {str(name): row for name, row in zip(weights.kernel.values, rows, strict=True)}
    return {
        "model": type(estimator).__name__,
        "parameters": estimator.get_params(deep=False),
        "path": str(path),
        "training_samples": n_samples,
        "weights": by_kernel,
        "gap": np.asarray(estimator.gap_).tolist(),
        "objective": np.asarray(estimator.objective_).tolist(),
        "passes": estimator.n_passes_,
        "solver": getattr(estimator, "solver_", None),  # machines have one alone
        "status": estimator.status_,
        "seconds": seconds,
    }
