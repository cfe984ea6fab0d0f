"""`dmkl permute`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.grids import Costs, Folds, Grid, Groups, Norms, Ridges, Scoring, grid_values
from dmkl.cli.learners import DEFAULT, make_learner
from dmkl.cli.options import (
    Cluster,
    DropClasses,
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
from dmkl.cli.output import console, print_json, say, show, table
from dmkl.cli.parsing import parse_cv, parse_scoring
from dmkl.cli.resuming import resuming, state_of
from dmkl.cli.samples import open_kernels, read_groups, training_samples
from dmkl.files.urls import as_place
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from dmkl.inference.permutation_result import PermutationTest

__all__ = ["permute"]

_PERMUTED = "Permutations"
_MOST_ROWS = 30


def permute(
    store: Store,
    out: Result,
    model: str = DEFAULT,
    kernels: Kernels = None,
    p: Norms = None,
    lam: Ridges = None,
    C: Costs = None,
    grid: Grid = None,
    permutations: Annotated[
        int, option("How many; the smallest p-value is one in as many and one.", "B", panel=_PERMUTED)
    ] = 199,
    choose: Annotated[
        Literal["anew", "fixed"],
        option(
            'The point of the grid: "anew" for each permutation, or "fixed" at that of the labels as they are, for '
            "which p-values are too small if there was a choice.",
            "HOW",
            panel=_PERMUTED,
        ),
    ] = "anew",
    blocks: Annotated[
        Literal["within", "whole"],
        option('What changes places with --groups: labels "within" a group, or of "whole" groups.', panel=_PERMUTED),
    ] = "within",
    seed: Annotated[int, option("Seed of the permutations.", "N", panel=_PERMUTED)] = 0,
    cv: Folds = None,
    groups: Groups = None,
    scoring: Scoring = None,
    split: Split = None,
    train: Train = None,
    unknown: Unknown = None,
    drop_classes_below: DropClasses = 0,
    state: State = None,
    restart: Restart = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
    **parameters: Any,
) -> None:
    """Test by permuted labels whether labels depend on the kernels, and which kernels' weights show it.

    The cross-validated score at the best point of the grid is compared with that of labels that have changed places,
    and so is each kernel's share of the weight. All samples take part unless --split or --train say otherwise. After an
    interruption the same command goes on with what it keeps in OUT.partial, or in --state.

    Examples
    --------
        dmkl permute kernels.zarr significance
        dmkl permute kernels.zarr significance --permutations 999 --p 1,2 --lam 1e-3,0.1
        dmkl permute kernels.zarr significance --groups sites.txt
    """
    from dmkl.inference.permutation_result import PermutationTest
    from dmkl.searching.state import remove_state

    place = as_place(out)
    folder = state_of(place, "a permutation test", PermutationTest.FORMAT, state, overwrite=overwrite)
    K = open_kernels(store, kernels)
    estimator = make_learner(model, parameters, K)
    values = grid_values(estimator, K, p, lam, C, grid)
    chosen, on = training_samples(K, split, train, split is None and train is None, drop_classes_below)
    known_groups = None if groups is None else read_groups(groups, K.samples, chosen)
    if restart:
        remove_state(folder)
    with resuming(folder), computing_on(cluster, reading=K, state=folder, workers=workers, memory=memory):
        result = dmkl.permutation_test(
            estimator,
            K[chosen, chosen],
            None,
            values,
            permutations,
            cv=None if cv is None else parse_cv(cv, "--cv"),
            groups=known_groups,
            blocks=blocks,
            scoring=parse_scoring(scoring),
            choose=choose,
            unknown=unknown,
            random_state=seed,
            state=folder,
        )
        result.save(place, overwrite=overwrite)
    remove_state(folder)
    if as_json:
        print_json({"path": out, "samples": len(chosen), **_as_mapping(result)})
        return
    first, *more = result.summary().splitlines()
    say(f"{first}, on {count(len(chosen), 'sample')} ({on})", style="bold")
    console().print()
    show(_kernels_table(result))
    console().print()
    for line in more:
        say(line)
    say(f"Saved in {out}; dmkl.load reads it.")


def _as_mapping(result: PermutationTest) -> dict[str, Any]:
    """What is told of a test."""
    import numpy as np

    data, attrs = result.data, result.data.attrs
    figures = {name: np.asarray(data[name]).tolist() for name in ("score", "p_value", "p_value_error")}
    return {
        "estimator": attrs["estimator"],
        "scoring": attrs["scoring"],
        "choose": attrs["choose"],
        "permutations": result.n_permutations,
        **figures,
        "kernels": result.table().to_dict("records"),
        "passes": result.n_passes_,
        "seconds": attrs["seconds"],
    }


def _kernels_table(result: PermutationTest) -> Table:
    """Kernels by their p-values."""
    rows = result.table()
    texts = [name for name in rows.columns if rows[name].dtype == object]
    numbers = [name for name in rows.columns if name not in texts]
    shown = table(*texts, numbers=numbers)
    for _, row in rows.head(_MOST_ROWS).iterrows():
        shown.add_row(*(str(row[name]) for name in texts), *(f"{row[name]:.3g}" for name in numbers))
    return shown
