"""`dmkl search`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.grids import (
    FOLDS,
    ChoiceName,
    Costs,
    Folds,
    Grid,
    Groups,
    Norms,
    Ridges,
    RuleName,
    Scoring,
    chains_to_try,
    grid_values,
    rule_of,
)
from dmkl.cli.learners import DEFAULT, make_learner
from dmkl.cli.options import (
    Cluster,
    DropClasses,
    Every,
    Json,
    Kernels,
    Memory,
    Overwrite,
    Restart,
    Split,
    State,
    Store,
    Train,
    Unknown,
    Workers,
    option,
)
from dmkl.cli.output import claim_output, console, print_json, refuse_existing, save_figure, say, say_aside
from dmkl.cli.parsing import parse_cv, parse_scoring
from dmkl.cli.resuming import resuming, state_of
from dmkl.cli.samples import open_kernels, predict_command, read_groups, training_samples
from dmkl.cli.tables import (
    ON_WEIGHTS,
    effects_table,
    model_as_mapping,
    points_table,
    search_as_mapping,
    weights_table,
)
from dmkl.files.urls import as_place
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from dmkl.arrays import Index
    from dmkl.kernelset import KernelSet
    from dmkl.searching.result import SearchResult

__all__ = ["samples_and_folds", "search"]

_PICTURES = ("scores.png", "weights.png")
_OVER_P = "weights_over_p.png"


def search(
    store: Store,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder or URL for scores and model.")],
    model: str = DEFAULT,
    kernels: Kernels = None,
    p: Norms = None,
    lam: Ridges = None,
    C: Costs = None,
    grid: Grid = None,
    cv: Folds = None,
    groups: Groups = None,
    scoring: Scoring = None,
    rule: RuleName = "best",
    choice: ChoiceName = None,
    refit: Annotated[
        bool, option("Train the chosen model.", None, "--refit/--no-refit", panel=FOLDS, show_default=False)
    ] = True,
    baselines: Annotated[
        Literal["sum", "all", "none"],
        option(
            'Beside it the "sum" of all, "all" (each kernel), or "none". [default: sum]',
            "WHAT",
            panel=FOLDS,
            show_default=False,
        ),
    ] = "sum",
    split: Split = None,
    train: Train = None,
    every: Every = False,
    unknown: Unknown = None,
    drop_classes_below: DropClasses = 0,
    plot: Annotated[Path | None, option("Draw scores, weights, and weights over p here.", "DIR")] = None,
    state: State = None,
    restart: Restart = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
    **parameters: Any,
) -> None:
    """Search a grid of parameters by cross-validation, and train a model at the chosen point.

    Saves the scores in OUT and the model in OUT/best. After an interruption the same command goes on with what it keeps
    in OUT.partial, or in --state. With stored splits as folds all samples take part, each split chooses for itself, and
    test samples are scored only; --cv splits --split K takes one of them. Otherwise it uses the training part of split
    0, or all samples where there are no splits, unless --split, --train or --all say so. Two chains of --steps are
    tried where samples differ in k(x, x), unless --steps or --lam is given.

    Examples
    --------
        dmkl search kernels.zarr found
        dmkl search kernels.zarr found -p 1,4/3,2 --lam 1e-3,0.1
        dmkl search kernels.zarr found --cv "GroupKFold(5)" --groups subjects.txt
        dmkl search kernels.zarr found --grid steps=center+trace,cosine+center
        dmkl search kernels.zarr found --model mksvm -p 1,2 -C 0.25,1,4
    """
    from dmkl.searching.result import BEST, FORMAT
    from dmkl.searching.state import remove_state

    place = as_place(out)
    folder = state_of(place, "a search", FORMAT, state, overwrite=overwrite)
    for picture in [] if plot is None else [plot / name for name in (*_PICTURES, _OVER_P)]:
        refuse_existing(picture, overwrite=overwrite, what="folder")
    if plot is not None:
        claim_output(plot, overwrite=True)
    K = open_kernels(store, kernels)
    estimator = make_learner(model, parameters, K)
    values, note = chains_to_try(estimator, K, grid_values(estimator, K, p, lam, C, grid), parameters.get("steps"))
    chosen, on, folds = samples_and_folds(K, cv, split, train, every, drop_classes_below)
    known_groups = None if groups is None else read_groups(groups, K.samples, chosen)
    if note:
        say_aside("note", note)
    if restart:
        remove_state(folder)
    with resuming(folder), computing_on(cluster, reading=K, state=folder, workers=workers, memory=memory):
        started = time.monotonic()
        result = dmkl.search(
            estimator,
            K[chosen, chosen],
            None,
            values,
            folds,
            scoring=parse_scoring(scoring),
            groups=known_groups,
            unknown=unknown,
            refit=refit,
            rule=rule_of(rule),
            choice=choice,
            baselines=baselines,
            state=folder,
        )
        seconds = time.monotonic() - started
        result.save(place, overwrite=overwrite)
    remove_state(folder)
    if plot is not None:
        pictures = _draw(result, plot)
    if as_json:
        model_seconds = seconds - result.scores.attrs["seconds"]
        told = {"path": out, "samples": len(chosen), **search_as_mapping(result)}
        if best := getattr(result, "best_", None):
            told["model"] = model_as_mapping(best, str(place / BEST), len(best.train_samples_), model_seconds)
        print_json(told)
        return
    _print(result, K, store, out, f"{count(len(chosen), 'sample')} ({on})")
    if plot is not None:
        say(f"Pictures are in {plot}: {', '.join(pictures)}.")


def _draw(result: SearchResult, folder: Path) -> list[str]:
    """Draw the pictures of a search, and return their names."""
    from dmkl.files.writing import into_folder

    figures: dict[str, Callable[[], Figure]] = dict(
        zip(_PICTURES, (result.plot_scores, result.plot_weights), strict=True)
    )
    if len(result.grid.get("p", [])) > 1:
        figures[_OVER_P] = result.plot_weights_over
    with into_folder(folder):
        (folder / _OVER_P).unlink(missing_ok=True)  # of a search that this one replaces
        for name, draw in figures.items():
            save_figure(draw(), folder / name, dpi=150)
    return list(figures)


def _after_choices(lines: list[str]) -> list[str]:
    """A summary without the choices, which the table has already."""
    return [line for line in lines[1:] if not line.startswith("  ")]


def samples_and_folds(
    K: KernelSet, cv: str | None, split: int | None, train: Path | None, every: bool, least: int = 0
) -> tuple[Index, str, Any]:
    """Positions of the samples that the search may see, in words which, and the folds.

    Those of classes that have fewer than `least` samples are left out.
    """
    import numpy as np

    folds = None if cv is None else parse_cv(cv)
    if folds is None and K.splits is not None and (split is not None or train is not None):
        folds = 5  # the splits are of the whole set, not of a part of it
    if folds == "splits" and split is not None and train is None and not every:
        chosen, _ = training_samples(K, None, None, True, least)
        parts = [np.flatnonzero(np.isin(chosen, part)) for part in K.split(split)]
        return chosen, f"split {split}", {str(split): parts}
    by_splits = folds == "splits" or (folds is None and K.splits is not None and bool((K.splits == 1).any()))
    every = every or (by_splits and split is None and train is None)
    chosen, on = training_samples(K, split, train, every, least)
    return chosen, on, folds


def _print(result: SearchResult, K: KernelSet, store: str, out: str, on: str) -> None:
    screen = console()
    first, *more = result.summary().splitlines()
    say(f"{first}, on {on}", style="bold")
    screen.print()
    screen.print(points_table(result))
    screen.print()
    # The table has a row for each fold and task already, though not what classes have chosen.
    plain = not result.choosers or result.by_class
    for line in (
        more if plain else [*result.beside(), *result.notes(), *more[-2:]] if result.tasks else _after_choices(more)
    ):
        say(line)
    if not hasattr(result, "best_"):
        say(f"Saved in {out}, without a model; dmkl.load reads it.")
        return
    model, by_fold = result.best_, "refit_test_score" in result.scores or "fold" in result.choosers
    screen.print()
    screen.print(weights_table({str(model): model.weights_}))
    say(ON_WEIGHTS)
    screen.print()
    if hasattr(model, "covariate_effects_"):
        screen.print(effects_table(model))
        screen.print()
    which = f"training and validation rows of fold {result.scores.fold.values[0]}" if by_fold else "all of the folds"
    say(f"Refitted on {count(len(model.train_samples_), 'sample')} ({which}). {model.status_}")
    say(f"Saved in {out}; use it with: {predict_command(model, out, K, store)}")
