"""`dmkl search`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import zarr

import dmkl
from dmkl.arrays import Index
from dmkl.cli.cluster import computing_on
from dmkl.cli.learners import DEFAULT, make_learner
from dmkl.cli.options import Cluster, Every, Json, Memory, Overwrite, Split, Store, Train, Workers, option
from dmkl.cli.output import console, count, print_json, refuse_existing, say, say_aside
from dmkl.cli.parsing import parse_cv, parse_grid
from dmkl.cli.samples import read_groups, training_samples
from dmkl.cli.tables import model_as_mapping, points_table, search_as_mapping, weights_table
from dmkl.errors import InputError, StoreExistsError
from dmkl.kernelset import KernelSet
from dmkl.progress import ConsoleWatch
from dmkl.searching.grid import as_grid
from dmkl.searching.result import BEST, FORMAT, SearchResult
from dmkl.searching.state import is_empty, read_state, remove_state

__all__ = ["search"]

_GRID = "Grid"
_FOLDS = "Folds and choice"
_PICTURES = ("scores.png", "weights.png")


def search(
    store: Store,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to save the scores and the model in.")],
    model: str = DEFAULT,
    p: Annotated[
        str | None,
        option(
            "Norms of the weights, such as 1,4/3,1+2^-6,inf. [default: 12 from 1 to inf]",
            "P,P,…",
            "--p",
            "-p",
            panel=_GRID,
        ),
    ] = None,
    lam: Annotated[str | None, option("Ridges. [default: 10 powers of 10 or 4]", "λ,λ,…", panel=_GRID)] = None,
    C: Annotated[
        str | None,
        option("SVM penalties on margin violations. [default: 2^-2 to 2^7]", "C,C,…", "--C", "-C", panel=_GRID),
    ] = None,
    grid: Annotated[
        list[str] | None,
        option("Values of another parameter, such as steps=center+trace,none; repeatable.", "NAME=V,V,…", panel=_GRID),
    ] = None,
    cv: Annotated[
        str | None,
        option(
            'Number of folds, "splits" (the stored ones), or a splitter of scikit-learn such as '
            '"StratifiedKFold(5, shuffle=True)". [default: splits with validation samples, or else 5]',
            "FOLDS",
            panel=_FOLDS,
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        option("Group of each sample, for splitters that need it: one a line, or sample,group.", "FILE", panel=_FOLDS),
    ] = None,
    scoring: Annotated[
        list[str] | None,
        option("Score to choose by, such as balanced_accuracy; further ones are only computed.", "NAME", panel=_FOLDS),
    ] = None,
    rule: Annotated[
        Literal["best", "one-standard-error"],
        option(
            'Choose the "best" point, or the simplest one within "one-standard-error" of it. [default: best]',
            "RULE",
            show_default=False,
            panel=_FOLDS,
        ),
    ] = "best",
    refit: Annotated[
        bool, option("Train a model at the chosen point.", None, "--refit/--no-refit", panel=_FOLDS)
    ] = True,
    split: Split = None,
    train: Train = None,
    every: Every = False,
    plot: Annotated[Path | None, option(f"Draw {' and '.join(_PICTURES)} here.", "DIR")] = None,
    restart: Annotated[bool, option("Discard what an interrupted search has kept.", None, "--restart")] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory: Memory = None,
    **parameters: Any,
) -> None:
    """Search a grid of parameters by cross-validation, and train a model at the chosen point.

    Saves the scores in OUT and the model in OUT/best. After an interruption the same command goes on where it
    stopped, with what it keeps in OUT.partial. With stored splits as folds all samples take part, and test samples
    are scored only. Otherwise the search uses the training part of split 0 if the set has splits and all samples
    if not, unless --split, --train or --all say so.

    Examples
    --------
        dmkl search kernels.zarr found
        dmkl search kernels.zarr found -p 1,4/3,2 --lam 1e-3,0.1 --rule one-standard-error
        dmkl search kernels.zarr found --cv "GroupKFold(5)" --groups subjects.txt
        dmkl search kernels.zarr found --model uniform --grid steps=center+trace,cosine+center
        dmkl search kernels.zarr found --model mksvm -p 1,2 -C 0.25,1,4 --multiclass ovo
    """
    out = out.expanduser()
    state = out.absolute().with_name(f"{out.name}.partial")
    _check_places(out, plot, overwrite=overwrite)
    K = dmkl.open(store)
    estimator = make_learner(model, parameters, K.names)
    named = [f"{name}={texts}" for name, texts in (("p", p), ("lam", lam), ("C", C)) if texts is not None]
    values = {**as_grid(None, estimator), **parse_grid([*named, *(grid or ())])}
    chosen, on, folds = _samples(K, cv, split, train, every)
    known_groups = None if groups is None else read_groups(groups, K.samples, chosen)
    if restart:
        remove_state(state)
    with _resuming(state), computing_on(cluster, workers=workers, memory=memory):
        started = time.monotonic()
        result = dmkl.search(
            estimator,
            K[chosen, chosen],
            None,
            values,
            folds,
            scoring=None if not scoring else scoring[0] if len(scoring) == 1 else scoring,
            groups=known_groups,
            refit=refit,
            rule="best" if rule == "best" else "one_standard_error",
            state=state,
        )
        seconds = time.monotonic() - started
        result.save(out, overwrite=overwrite)
    remove_state(state)
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)
        for name, figure in zip(_PICTURES, (result.plot_scores(), result.plot_weights()), strict=True):
            figure.savefig(plot / name, dpi=150)
    if as_json:
        model_seconds = seconds - result.scores.attrs["seconds"]
        told = {"path": str(out), "samples": len(chosen), **search_as_mapping(result)}
        if best := getattr(result, "best_", None):
            told["model"] = model_as_mapping(best, out / BEST, len(best.train_samples_), model_seconds)
        print_json(told)
        return
    _print(result, K, store, out, f"{count(len(chosen), 'sample')} ({on})")
    if plot is not None:
        say(f"Pictures are in {plot}: {', '.join(_PICTURES)}.")


def _check_places(out: Path, plot: Path | None, *, overwrite: bool) -> None:
    """Refuse what is in the way before anything runs, not after hours."""
    refuse_existing(out, overwrite=overwrite)
    if out.exists() and not _is_search(out):
        msg = f"{out} is not a search, and nothing else is replaced; choose another path, or move it away"
        raise StoreExistsError(msg)
    if plot is not None:
        for name in _PICTURES:
            refuse_existing(plot / name, overwrite=overwrite, what="folder")


def _is_search(path: Path) -> bool:
    try:
        return bool(zarr.open_group(path, mode="r", zarr_format=3).attrs.get("format") == FORMAT)
    except (OSError, ValueError, KeyError):
        return False


def _samples(
    K: KernelSet, cv: str | None, split: int | None, train: Path | None, every: bool
) -> tuple[Index, str, Any]:
    """Positions of the samples that the search may see, in words which, and the folds."""
    folds = None if cv is None else parse_cv(cv)
    if folds is None and K.splits is not None and (split is not None or train is not None):
        folds = 5  # the splits are of the whole set, not of a part of it
    by_splits = folds == "splits" or (folds is None and K.splits is not None and bool((K.splits == 1).any()))
    chosen, on = training_samples(K, split, train, every or (by_splits and split is None and train is None))
    return chosen, on, folds


def _print(result: SearchResult, K: KernelSet, store: str, out: Path, on: str) -> None:
    screen = console()
    first, *more = result.summary().splitlines()
    say(f"{first}, on {on}", style="bold")
    screen.print()
    screen.print(points_table(result))
    screen.print()
    # The table has a row for each task already.
    for line in more if result.tasks is None else more[-2:]:
        say(line)
    if not hasattr(result, "best_"):
        say(f"Saved in {out}, without a model; dmkl.load reads it.")
        return
    model, tested = result.best_, "refit_test_score" in result.scores
    screen.print()
    screen.print(weights_table({str(model): model.weights_}))
    screen.print()
    which = f"training and validation rows of fold {result.scores.fold.values[0]}" if tested else "all of the folds"
    say(f"Refitted on {count(len(model.train_samples_), 'sample')} ({which}). {model.status_}")
    others = set(K.samples.astype(str)) - set(model.train_samples_)
    command = shlex.join(["dmkl", "predict", str(out), store if others else "NEW_SAMPLES"])
    say(f"Saved in {out}; use it with: {command}")


# --- going on with a search that broke off ----------------------------------------------------------------------------


class _Watch(ConsoleWatch):
    """Progress that says first from where the search goes on."""

    def __init__(self, n_passes: int) -> None:
        super().__init__()
        self._n_passes = n_passes

    def begin(self, what: str, total_bytes: int) -> None:
        """See `dmkl.progress.Watch.begin`; by now the state is known to be that of this search."""
        if self._n_passes:
            say_aside("note", f"going on after pass {self._n_passes}")
            self._n_passes = 0
        super().begin(what, total_bytes)


@contextmanager
def _resuming(folder: Path) -> Iterator[None]:
    """Show the progress of a search that keeps its state in `folder`.

    Where it breaks off, it is said what is kept; where the state belongs to another search, what to do about it.
    """
    before = read_state(folder)
    try:
        with _Watch(before.n_passes):
            yield
    except BaseException as error:
        wrong, after = isinstance(error, InputError), read_state(folder)
        if wrong and before and str(folder) in str(error):
            msg = f"{error}; --restart throws it away"
            raise InputError(msg) from error
        if is_empty(folder) or (wrong and not before and after and not after.has_solutions):
            remove_state(folder)  # an argument is to be changed, and that makes it another search
        elif after and (after != before or not wrong):
            say_aside(
                "note", f"what was done is kept in {folder}; the same command goes on after pass {after.n_passes}"
            )
        raise
