"""`dmkl fit` and `dmkl predict`."""

from __future__ import annotations

import csv
import re
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import typer
import xarray as xr

import dmkl
from dmkl.blocks.fisher import as_exponent
from dmkl.cli.cluster import computing_on
from dmkl.cli.options import Cluster, Json, Memory, Overwrite, Store, Workers
from dmkl.cli.output import console, count, print_json, say
from dmkl.cli.tables import summary_table, weights_table
from dmkl.errors import InputError, StoreExistsError
from dmkl.kernelset import KernelSet
from dmkl.progress import ConsoleWatch
from dmkl.store.files import read_vector

__all__ = ["fit", "parse_p", "predict"]

Index = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
_SAMPLES = "Which samples"
_SOLVING = "How it is solved"


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
    model: Annotated[
        Literal["mkfda", "uniform", "single-best", "product"],
        typer.Option(help="ℓp MK-FDA, which learns weights, or a baseline."),
    ] = "mkfda",
    p: Annotated[
        str,
        typer.Option(
            "--p",
            metavar="P",
            help="Norm of the weights, 1 (few kernels) to inf (all alike); 4/3 and 1+2^-6 are understood.",
        ),
    ] = "2",
    lam: Annotated[float, typer.Option("--lam", metavar="λ", help="Ridge, positive.")] = 1e-2,
    center: Annotated[bool, typer.Option("--center/--no-center", help="Centre kernels in feature space.")] = True,
    normalize: Annotated[
        Literal["trace", "cosine", "multiplicative", "none"],
        typer.Option(help="How kernels are brought to one scale."),
    ] = "trace",
    split: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="Train on the training part of this stored split.",
            rich_help_panel=_SAMPLES,
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Train on the samples named in this file, a name a line.",
            rich_help_panel=_SAMPLES,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Train on all samples.", rich_help_panel=_SAMPLES)] = False,
    solver: Annotated[
        Literal["auto", "direct", "cg"],
        typer.Option(
            help="direct: the combined kernel in memory; cg: out of core; auto: direct where it fits.",
            rich_help_panel=_SOLVING,
        ),
    ] = "auto",
    master: Annotated[
        Literal["newton", "taylor", "exact"],
        typer.Option(help="How MK-FDA's weights are found.", rich_help_panel=_SOLVING),
    ] = "newton",
    tol: Annotated[float, typer.Option(help="Relative gap to prove.", rich_help_panel=_SOLVING)] = 1e-4,
    max_iter: Annotated[int, typer.Option(min=1, help="Most weightings tried.", rich_help_panel=_SOLVING)] = 200,
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
    """
    if model_out.exists() and not overwrite:
        msg = f"{model_out} exists already; choose another path, or replace it with --overwrite"
        raise StoreExistsError(msg)
    estimator = _estimator(
        model,
        parse_p(p),
        master,
        lam=lam,
        center=center,
        normalize=None if normalize == "none" else normalize,
        solver=solver,
        tol=tol,
        max_iter=max_iter,
    )
    K = dmkl.open(store)
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
    say(f"Saved in {model_out}; use it with: dmkl predict {model_out} {store}")


def _estimator(name: str, p: float, master: str, **shared: Any) -> Any:
    if name == "mkfda":
        return dmkl.MKFDA(p, master=master, **shared)  # type: ignore[arg-type]
    return {"uniform": dmkl.Uniform, "single-best": dmkl.SingleBest, "product": dmkl.Product}[name](**shared)


def _training_samples(K: KernelSet, split: int | None, train: Path | None, every: bool) -> tuple[Index, str]:
    """Positions of the samples to train on, and in words which."""
    if sum((split is not None, train is not None, every)) > 1:
        msg = "--split, --train and --all exclude one another; give one of them"
        raise InputError(msg)
    if train is not None:
        return _positions(K.samples, read_vector(train), str(train)), f"those in {train}"
    if every or (split is None and K.splits is None):
        return np.arange(K.shape[1]), "all"
    chosen = K.split(split or 0).train
    if not len(chosen):
        msg = f"split {split or 0} has no training samples; choose another with --split, or give --train or --all"
        raise InputError(msg)
    return chosen, f"the training part of split {split or 0}"


def _positions(samples: Array, names: Array, where: str) -> Index:
    place = {str(name): position for position, name in enumerate(samples)}
    wanted = [str(name) for name in np.ravel(names)]
    missing = [name for name in wanted if name not in place]
    if missing:
        msg = (
            f"{where} has {count(len(missing), 'name')} that no sample of the set bears, the first is "
            f"{missing[0]!r}; the samples are called {', '.join(map(repr, list(place)[:3]))} …"
        )
        raise InputError(msg)
    if len(set(wanted)) != len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        msg = f"{where} names sample {twice!r} more than once"
        raise InputError(msg)
    return np.array([place[name] for name in wanted], dtype=np.int64)


def _as_mapping(estimator: Any, path: Path, n_samples: int, seconds: float) -> dict[str, Any]:
    weights: xr.DataArray = estimator.weights_
    by_kernel = (
        {str(name): weights.sel(kernel=name).item() for name in weights.kernel.values}
        if weights.ndim == 1
        else {
            str(name): {str(task): weights.sel(kernel=name, task=task).item() for task in weights.task.values}
            for name in weights.kernel.values
        }
    )
    return {
        "model": type(estimator).__name__,
        "parameters": estimator.get_params(deep=False),
        "path": str(path),
        "training_samples": n_samples,
        "weights": by_kernel,
        "gap": np.asarray(estimator.gap_).tolist(),
        "objective": np.asarray(estimator.objective_).tolist(),
        "passes": estimator.n_passes_,
        "solver": estimator.solver_,
        "status": estimator.status_,
        "seconds": seconds,
    }


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
    estimator = dmkl.load(model)
    K = dmkl.open(store)
    rows = _rows(K, estimator, split, part)
    cols = _positions(K.train_samples, estimator.train_samples_, f"the model {model}")
    with computing_on(cluster, workers=workers, memory=memory), ConsoleWatch():
        scores = estimator.decision_function(K[rows, cols])
    labels = labels_of(estimator, scores)
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
    screen = console()
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


def labels_of(estimator: Any, scores: xr.DataArray) -> Array:
    """The labels that scores mean: what `predict` would return, without another pass."""
    values = scores.values
    if estimator.kind_ == "multilabel":
        return np.asarray(values > 0, dtype=np.int64)
    index = (values > 0).astype(np.int64) if values.ndim == 1 else values.argmax(axis=1)
    return np.asarray(estimator.classes_[index])


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
