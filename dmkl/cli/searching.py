"""`dmkl search`."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import sklearn.model_selection
import typer

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.fitting import _as_mapping as model_as_mapping
from dmkl.cli.fitting import _training_samples, parse_p
from dmkl.cli.models import make
from dmkl.cli.options import (
    SAMPLES,
    SOLVING,
    Center,
    Cluster,
    Grouping,
    Json,
    Memory,
    Model,
    Multiclass,
    Normalize,
    Overwrite,
    Sigma,
    Store,
    Tol,
    Workers,
)
from dmkl.cli.output import console, count, print_json, say, say_note
from dmkl.cli.samples import positions
from dmkl.cli.tables import points_table, weights_table
from dmkl.errors import InputError, StoreExistsError
from dmkl.estimators.saving import has_format as _has_format
from dmkl.inputs import read_file
from dmkl.kernelset import KernelSet
from dmkl.progress import ConsoleWatch
from dmkl.searching.grid import as_grid
from dmkl.searching.result import BEST, FORMAT, SearchResult
from dmkl.solvers.outcome import WORDS as STATUSES
from dmkl.solvers.workspace import FORMAT as STATE_FORMAT

__all__ = ["parse_cv", "parse_grid", "search"]

Index = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
_GRID = "The grid"
_FOLDS = "Folds and the choice"
_PICTURES = ("scores.png", "weights.png")


def search(
    store: Store,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to save the result and the model in.")],
    model: Model = "mkfda",
    p: Annotated[
        str | None,
        typer.Option(
            "--p",
            "-p",
            metavar="P,P,…",
            help="Norms of the weights, 1 to inf, such as 1,4/3,1+2^-6,inf; the papers' twelve by default.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    lam: Annotated[
        str | None,
        typer.Option(
            "--lam", metavar="λ,λ,…", help="Ridges, positive; the papers' ten by default.", rich_help_panel=_GRID
        ),
    ] = None,
    C: Annotated[
        str | None,
        typer.Option(
            "--C",
            "-C",
            metavar="C,C,…",
            help="Of mksvm, gmkl, gsmkl and ncuts: prices of hinge loss, positive; the papers' ten by default.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V,V,…",
            help="Values of another parameter, such as normalize=trace,cosine; may be given again.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    cv: Annotated[
        str | None,
        typer.Option(
            metavar="N|splits|SPLITTER",
            help="Folds: a number, the stored splits, or a splitter of scikit-learn such as "
            '"StratifiedKFold(5, shuffle=True, random_state=1)". By default the stored splits where they have '
            "validation samples, 5 otherwise. A random_state that is not given is 0.",
            rich_help_panel=_FOLDS,
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Group of each sample that a splitter must not part: a line a sample, or sample name and group.",
            rich_help_panel=_FOLDS,
        ),
    ] = None,
    scoring: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure, scikit-learn's or the papers': mean_class_accuracy, average_precision_voc …; may be given "
            "again, the first decides.",
            rich_help_panel=_FOLDS,
        ),
    ] = None,
    rule: Annotated[
        Literal["best", "one-standard-error"],
        typer.Option(
            help="Take the best point, or the simplest within one standard error of it.", rich_help_panel=_FOLDS
        ),
    ] = "best",
    refit: Annotated[
        bool, typer.Option("--refit/--no-refit", help="Fit the chosen point anew.", rich_help_panel=_FOLDS)
    ] = True,
    split: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="Search on the training part of this stored split.",
            rich_help_panel=SAMPLES,
        ),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Search on the samples named in this file, a name a line.",
            rich_help_panel=SAMPLES,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Search on all samples.", rich_help_panel=SAMPLES)] = False,
    multiclass: Multiclass = None,
    sigma: Sigma = None,
    grouping: Grouping = None,
    constraints: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Of gmkl: linear constraints on the weights, see dmkl fit --help."),
    ] = None,
    center: Center = None,
    normalize: Normalize = None,
    solver: Annotated[
        Literal["auto", "subspace", "direct", "cg", "interleaved", "dual"] | None,
        typer.Option(
            help="subspace: all points of mkfda and uniform together, in some ten passes; all others: each point by "
            "itself; auto: subspace where the model has it. mksvm and gmkl have none of them: their points share "
            "passes always. [default: auto]",
            rich_help_panel=SOLVING,
        ),
    ] = None,
    finish: Annotated[
        Literal["auto", "direct", "cg", "report"] | None,
        typer.Option(
            help="What becomes of points that the subspace leaves open; report: nothing, their true gap is told.",
            rich_help_panel=SOLVING,
        ),
    ] = None,
    basis: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Disk that the subspace may take beside OUT, such as 8GiB; half of what is free by default.",
            rich_help_panel=SOLVING,
        ),
    ] = None,
    tol: Tol = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write scores.png and weights.png into this folder."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what an interrupted search has left in OUT.partial.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = "local",
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Search a grid of parameters with cross-validation, and save the scores and the model of the chosen point.

    Interrupted, the same command goes on after the last pass (of mkfda and uniform), which OUT.partial keeps.
    With stored splits as folds all samples take part: the test samples of a split are scored, never chosen by.
    With other folds the search sees the training part of split 0 where the set has splits, all samples
    otherwise, or what --split, --train or --all say. The model of the chosen point is in OUT/best.

    Examples
    --------
        dmkl search kernels.zarr found
        dmkl search kernels.zarr found --p 1,4/3,2,inf --lam 1e-3,1e-2,0.1 --cv 3 --rule one-standard-error
        dmkl search kernels.zarr found --cv "GroupKFold(5)" --groups subjects.txt --scoring roc_auc
        dmkl search kernels.zarr found --model uniform --grid normalize=trace,cosine --plot pictures
        dmkl search kernels.zarr found --model mksvm --p 1,2 --C 0.25,1,4,16 --multiclass ovo
    """
    out = out.expanduser()
    state = out.absolute().with_name(f"{out.name}.partial")
    _check_places(out, plot, overwrite=overwrite)
    K = dmkl.open(store)
    estimator = make(
        model,
        K.names,
        multiclass=multiclass,
        sigma=sigma,
        constraints=constraints,
        grouping=grouping,
        center=center,
        normalize=normalize,
        solver=solver,
        finish=finish,
        basis=basis,
        tol=tol,
    )
    named = [f"{name}={texts}" for name, texts in (("p", p), ("lam", lam), ("C", C)) if texts is not None]
    values = {**as_grid(None, estimator), **parse_grid([*named, *(grid or ())])}
    chosen, on, folds = _samples(K, cv, split, train, every)
    known_groups = None if groups is None else _read_groups(groups, K.samples, chosen)
    if restart:
        _throw_away(state)
    with _state_told(state), computing_on(cluster, workers=workers, memory=memory), _Watch(_passes(_states(state))):
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
    if "subspace" in result.scores.attrs["solver"]:  # the others keep no state, and do not touch one that is there
        shutil.rmtree(state)
    if as_json:
        print_json(_as_mapping(result, out, len(chosen), seconds))
    else:
        _print(result, K, store, out, f"{count(len(chosen), 'sample')} ({on})")
    if plot is not None:
        _draw(result, plot)
        if not as_json:
            say(f"Pictures are in {plot}: {', '.join(_PICTURES)}.")


def _check_places(out: Path, plot: Path | None, *, overwrite: bool) -> None:
    """Refuse what is in the way before anything runs, not after hours."""
    if out.exists():
        if not overwrite:
            msg = f"{out} exists already; choose another path, or replace it with --overwrite"
            raise StoreExistsError(msg)
        if not _has_format(out, FORMAT):
            msg = f"{out} is not a search, and nothing else is replaced; choose another path, or move it away"
            raise StoreExistsError(msg)
    for file in () if plot is None else (plot / name for name in _PICTURES):
        if file.exists() and not overwrite:
            msg = f"{file} exists already; choose another folder, or replace it with --overwrite"
            raise StoreExistsError(msg)


# --- the grid --------------------------------------------------------------------------------------------------------


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Values by parameter from texts such as "p=1,4/3,inf", "lam=1e-3,0.1", "normalize=trace,none".

    Norms are read by `parse_p`, ridges and C as numbers; of other parameters none, true, false and numbers are what
    they say and everything else is text.

    Raises
    ------
    InputError
        If a text is none of these, or names a parameter that another has named.
    """
    parsers: dict[str, Callable[[str], Any]] = {
        "p": parse_p,
        "lam": partial(_number, "lam", "1e-3,0.1"),
        "C": partial(_number, "C", "0.25,4"),
    }
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not (name and equals and values):
            msg = f"--grid takes a parameter and its values, such as normalize=trace,cosine, got {text!r}"
            raise InputError(msg)
        if name in found:
            msg = f"the values of {name} are given twice; give all of them at once, parted by commas"
            raise InputError(msg)
        found[name] = [parsers.get(name, _plain)(value) for value in values.split(",")]
    return found


def _number(option: str, such_as: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        msg = f"--{option} takes positive numbers such as {such_as}, got {text!r}"
        raise InputError(msg) from error


def _plain(text: str) -> Any:
    word = text.strip()
    if word.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


# --- folds and samples -----------------------------------------------------------------------------------------------


def _splitters() -> dict[str, Any]:
    """Scikit-learn's splitters by name."""
    classes = inspect.getmembers(sklearn.model_selection, inspect.isclass)
    return {name: found for name, found in classes if hasattr(found, "split") and not name.startswith("Base")}


def parse_cv(text: str) -> Any:
    """Folds as people write them: 5, splits, or a splitter of scikit-learn with its arguments, as in Python.

    The text is parsed, never evaluated: a name of ``sklearn.model_selection`` with literal arguments. A splitter that
    shuffles without a random_state gets 0, so that the same text always means the same folds.

    Raises
    ------
    InputError
        If it is none of these, or the splitter refuses its arguments.
    """
    word = text.strip()
    if word == "splits":
        return word
    try:
        return int(word)
    except ValueError:
        pass
    splitters = _splitters()
    name, positional, named = _call(word)
    if name not in splitters:
        msg = (
            "--cv takes a number of folds, splits, or a splitter of scikit-learn with plain values as arguments, such "
            f'as "StratifiedKFold(5, shuffle=True)", got {text!r}; the splitters are {", ".join(splitters)}'
        )
        raise InputError(msg)
    try:
        splitter = splitters[name](*positional, **named)
    except (ValueError, TypeError) as error:
        msg = f"--cv {text}: {error}"
        raise InputError(msg) from error
    if getattr(splitter, "random_state", 0) is None and getattr(splitter, "shuffle", True):
        splitter.random_state = 0
    return splitter


def _call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, positional and named arguments of a call with literals alone, as text; no name where it is none."""
    try:
        found = ast.parse(text, mode="eval").body
        call = found if isinstance(found, ast.Call) else ast.Call(found, [], [])
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        positional = [ast.literal_eval(value) for value in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return "", [], {}
    return name, positional, named


def _samples(
    K: KernelSet, cv: str | None, split: int | None, train: Path | None, every: bool
) -> tuple[Index, str, Any]:
    """Positions of the samples that the search may see, in words which, and the folds."""
    folds = None if cv is None else parse_cv(cv)
    if folds is None and K.splits is not None and (split is not None or train is not None):
        folds = 5  # the splits are of the whole set, not of a part of it
    by_splits = folds == "splits" or (folds is None and K.splits is not None and bool((K.splits == 1).any()))
    chosen, on = _training_samples(K, split, train, every or (by_splits and split is None and train is None))
    return chosen, on, folds


def _read_groups(file: Path, samples: Array, chosen: Index) -> Array:
    """The group of each chosen sample, from a vector in the order of the set or a table with the samples' names."""
    table = read_file(file)
    values: Array = table.values
    names = table.row_names
    if names is None and values.ndim == 2 and values.shape[1] == 2:
        names, values = tuple(values[:, 0].astype(str)), values[:, 1]
    n = len(samples)
    if values.ndim != 1 or (names is None and len(values) != n):
        msg = (
            f"{file} has shape {values.shape}, expected ({n},), a group for each sample of the set in its order, or a "
            "table of sample names and groups"
        )
        raise InputError(msg)
    row = np.arange(n) if names is None else np.full(n, -1)
    if names is not None:
        row[positions(samples, np.array(names), str(file))] = np.arange(len(names))
    missing = samples[chosen[row[chosen] < 0]]
    if len(missing):
        msg = f"{file} has no group for {count(len(missing), 'sample')} of the set, the first is {str(missing[0])!r}"
        raise InputError(msg)
    found: Array = values[row[chosen]]
    return found


# --- going on --------------------------------------------------------------------------------------------------------


class _Watch(ConsoleWatch):
    """Progress that says first from where the search goes on."""

    def __init__(self, passes: int) -> None:
        super().__init__()
        self._passes = passes

    def begin(self, what: str, total_bytes: int) -> None:
        """See `dmkl.progress.Watch.begin`; by now the state is known to be that of this search."""
        if self._passes:
            say_note(f"going on after pass {self._passes}")
            self._passes = 0
        super().begin(what, total_bytes)


def _states(folder: Path) -> list[dict[str, Any]]:
    """What a search has left in a folder: a state, or one for each combination of the grid's other parameters."""
    found = []
    for file in (folder / "state.json", *sorted(folder.glob("combination-*/state.json"))):
        try:
            kept = json.loads(file.read_text())
            if kept["format"] == STATE_FORMAT:
                found.append(kept["state"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _passes(states: Sequence[dict[str, Any]]) -> int:
    """Passes that need not be done again."""
    return sum(int((state.get("solver") or state["statistics"])["n_passes"]) for state in states)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and all(entry.is_dir() for entry in folder.rglob("*"))


def _throw_away(folder: Path) -> None:
    if not folder.exists():
        return
    if not (_states(folder) or _is_empty(folder)):
        msg = (
            f"--restart throws away the state of a search, and {folder} holds something else; move it away, or choose "
            "another OUT"
        )
        raise InputError(msg)
    shutil.rmtree(folder)


@contextmanager
def _state_told(folder: Path) -> Iterator[None]:
    """Say what is kept where a search breaks off, and what to do about a state that belongs to another."""
    before = _states(folder)
    try:
        yield
    except BaseException as error:
        wrong, after = isinstance(error, InputError), _states(folder)
        if wrong and before and str(folder) in str(error):
            msg = f"{error}; --restart throws it away"
            raise InputError(msg) from error
        if _is_empty(folder) or (wrong and not before and after and not any("solver" in state for state in after)):
            # An argument is to be changed, and that makes it another search.
            shutil.rmtree(folder)
        elif after and (after != before or not wrong):
            done = _passes(after)
            say_note(f"what was done is kept in {folder}; the same command goes on after pass {done}")
        raise


# --- what is told ----------------------------------------------------------------------------------------------------


def _draw(result: SearchResult, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in zip(_PICTURES, (result.plot_scores(), result.plot_weights()), strict=True):
        figure.savefig(folder / name, dpi=150)


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


def _chosen(result: SearchResult, attribute: str) -> Any:
    """What is known of the choice; None where no point has a score."""
    try:
        return getattr(result, attribute)
    except InputError:
        return None


def _as_mapping(result: SearchResult, out: Path, n_samples: int, seconds: float) -> dict[str, Any]:
    scores, attrs = result.scores, result.scores.attrs
    model = getattr(result, "best_", None)
    statuses = np.bincount(scores["status"].values.ravel(), minlength=len(STATUSES))
    mapping: dict[str, Any] = {
        "estimator": attrs["estimator"],
        "path": str(out),
        "samples": n_samples,
        "grid": result.grid,
        "folds": scores.sizes["fold"],
        "scoring": attrs["scoring"],
        "rule": result.rule,
        "best": _chosen(result, "best_params_"),
        "best_score": _chosen(result, "best_score_"),
        "points": result.table().to_dict("records"),
        "fits": dict(zip(STATUSES, statuses.tolist(), strict=True)),
        "largest_gap": float(scores["gap"].max()),
        "passes": result.n_passes_,
        "solver": attrs["solver"],
        "seconds": attrs["seconds"],
    }
    if "refit_test_score" in scores:
        mapping["refit_test_score"] = scores["refit_test_score"].values
    if model is not None:
        refitted = seconds - attrs["seconds"]
        mapping["model"] = model_as_mapping(model, out / BEST, len(model.train_samples_), refitted)
    return mapping
