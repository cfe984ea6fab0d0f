"""`dmkl importance`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table
from rich.text import Text

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.grids import (
    ChoiceName,
    Costs,
    Folds,
    Grid,
    Groups,
    Norms,
    Ridges,
    RuleName,
    Scoring,
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
    Result,
    Split,
    State,
    Store,
    Train,
    Unknown,
    Workers,
    option,
)
from dmkl.cli.output import claim_output, console, print_json, save_figure, say, show, table
from dmkl.cli.parsing import parse_scoring
from dmkl.cli.resuming import resuming, state_of
from dmkl.cli.samples import open_kernels, read_groups
from dmkl.cli.searching import samples_and_folds
from dmkl.errors import InputError
from dmkl.files.urls import as_place
from dmkl.searching.texts import count, with_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dmkl.inference.importance import Importance

__all__ = ["importance"]

_KERNELS = "Kernels"


def importance(
    store: Store,
    out: Result,
    model: str = DEFAULT,
    kernels: Kernels = None,
    kernel_group: Annotated[
        list[str] | None,
        option(
            "Kernels that are left out together too, by name or pattern, such as shape=fou*,zer*; repeatable.",
            "NAME=A,B*,…",
            panel=_KERNELS,
        ),
    ] = None,
    choose: Annotated[
        Literal["held", "anew"],
        option("Parameters of fits without a kernel: held at the choice for all, or chosen anew.", panel=_KERNELS),
    ] = "held",
    shapley: Annotated[
        int,
        option("Orders sampled for Shapley values of groups, and of kernels in none.", "N", min=0, panel=_KERNELS),
    ] = 0,
    seed: Annotated[int, option("Seed of these orders.", "N", min=0, panel=_KERNELS)] = 0,
    p: Norms = None,
    lam: Ridges = None,
    C: Costs = None,
    grid: Grid = None,
    cv: Folds = None,
    groups: Groups = None,
    scoring: Scoring = None,
    rule: RuleName = "best",
    choice: ChoiceName = None,
    split: Split = None,
    train: Train = None,
    every: Every = False,
    unknown: Unknown = None,
    drop_classes_below: DropClasses = 0,
    plot: Annotated[Path | None, option("Draw the losses here, as PNG.", "FILE")] = None,
    state: State = None,
    restart: Restart = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
    **parameters: Any,
) -> None:
    """Show what each kernel adds: the score that is lost without it, and what it reaches alone.

    Searches a grid as dmkl search does, on the same samples and folds, and refits without each kernel and with it
    alone, mostly in the passes of the search. After an interruption the same command goes on with what it keeps in
    OUT.partial, or in --state.

    Examples
    --------
        dmkl importance kernels.zarr added --cv 3
        dmkl importance kernels.zarr added --kernel-group "shape=fou*,zer*" --kernel-group "pixels=pix*" --shapley 50
        dmkl importance kernels.zarr added -p 1,2 --lam 1e-3,0.1 --choose anew --plot added.png
    """
    from dmkl.inference.importance import Importance
    from dmkl.searching.state import remove_state

    place = as_place(out)
    folder = state_of(place, "an importance of kernels", Importance.FORMAT, state, overwrite=overwrite)
    if plot is not None:
        claim_output(plot, overwrite=overwrite, what="file")
    K = open_kernels(store, kernels)
    named = _groups(kernel_group or [], K.names)
    estimator = make_learner(model, parameters, K)
    values = grid_values(estimator, K, p, lam, C, grid)
    chosen, on, folds = samples_and_folds(K, cv, split, train, every, drop_classes_below)
    known_groups = None if groups is None else read_groups(groups, K.samples, chosen)
    if restart:
        remove_state(folder)
    with resuming(folder), computing_on(cluster, reading=K, state=folder, workers=workers, memory=memory):
        result = dmkl.importance(
            estimator,
            K[chosen, chosen],
            None,
            values,
            cv=folds,
            kernel_groups=named,
            choose=choose,
            shapley=shapley,
            random_state=seed,
            scoring=parse_scoring(scoring),
            groups=known_groups,
            unknown=unknown,
            rule=rule_of(rule),
            choice=choice,
            state=folder,
        )
        result.save(place, overwrite=overwrite)
    remove_state(folder)
    if plot is not None:
        save_figure(result.plot(), plot, dpi=150)
    if as_json:
        attrs = result.data.attrs
        told = {name: attrs[name] for name in ("estimator", "scoring", "rows", "choose", "choice", "seconds")}
        rows = result.table().to_dict("records")
        print_json({"path": out, "samples": len(chosen), **told, "passes": result.n_passes_, "sources": rows})
        return
    first, score, *more, took = result.summary().splitlines()
    say(f"{first}, on {count(len(chosen), 'sample')} ({on})", style="bold")
    console().print()
    show(_table(result))
    console().print()
    for line in (score, *(line for line in more if line.startswith("±")), took):
        say(line)
    say(f"Saved in {out}; dmkl.load reads it.{'' if plot is None else f' The picture is {plot}.'}")


def _groups(texts: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Names of kernels by group, from texts such as "shape=fou*,zer*"."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, patterns = (part.strip() for part in text.partition("="))
        if not (name and equals and patterns) or name in found:
            why = "twice" if name in found else "without a name or kernels"
            msg = f"--kernel-group takes a name and kernels, such as shape=fou*,zer*, each once, got {text!r} {why}"
            raise InputError(msg)
        some: list[str] = []
        for pattern in map(str.strip, patterns.split(",")):
            matching = [pattern] if pattern in names else [one for one in names if fnmatchcase(one, pattern)]
            if not matching:
                msg = f"no kernel is called {pattern!r}, of --kernel-group {name}; there are {', '.join(names[:10])}"
                raise InputError(msg)
            some += matching
        found[name] = some
    return found


def _table(result: Importance) -> Table:
    """A row for each source (and task), the largest loss first."""
    frame = result.table()
    names = [name for name in ("source", "task", "target") if name in frame]
    figures = {"loss": "loss_margin", "alone": "alone_margin", "shapley": "shapley_standard_error"}
    shown = {name: error for name, error in figures.items() if name in frame}
    found = table(*names, numbers=["loss without" if name == "loss" else name for name in shown])
    for row in frame.to_dict("records"):
        numbers = [with_error(row[name], row[error]) if row[name] == row[name] else "" for name, error in shown.items()]
        found.add_row(*(Text(str(row[name])) for name in names), *numbers)
    return found
