"""`dmkl stability`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table
from rich.text import Text

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.grids import Groups
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
)
from dmkl.cli.options import option as _option
from dmkl.cli.output import bar, claim_output, console, print_json, save_figure, say, show, table
from dmkl.cli.parsing import parse_scoring
from dmkl.cli.resuming import resuming, state_of
from dmkl.cli.samples import open_kernels, read_groups, training_samples
from dmkl.files.urls import as_place
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from dmkl.inference.stability import Stability

__all__ = ["stability"]


def option(text: str, metavar: str | None = None, *names: str) -> Any:
    """An option in the panel of this command."""
    return _option(text, metavar, *names, panel="Resamples")


def stability(
    store: Store,
    out: Result,
    model: str = DEFAULT,
    kernels: Kernels = None,
    how: Annotated[
        Literal["half", "bootstrap", "folds"],
        option("Random halves in pairs, draws with replacement, or all samples but those of a fold."),
    ] = "half",
    resamples: Annotated[
        int | None, option("How many; an even number of halves. [default: 100; 10 folds]", "N", "--resamples")
    ] = None,
    selected: Annotated[
        int | None,
        option(
            "Each resample selects the Q kernels of the largest weights. [default: those above 1 % of its largest]",
            "Q",
            "--selected",
        ),
    ] = None,
    threshold: Annotated[
        float, option("Share of the resamples, above 0.5, that selects a kernel that is stable.", "SHARE")
    ] = 0.9,
    groups: Groups = None,
    scoring: Annotated[
        list[str] | None, option("Measures such as accuracy,matthews, of the samples left out.", "NAME,…")
    ] = None,
    seed: Annotated[int, option("Seed of the draws.", "N")] = 0,
    split: Split = None,
    train: Train = None,
    every: Every = False,
    unknown: Unknown = None,
    drop_classes_below: DropClasses = 0,
    plot: Annotated[Path | None, _option("Draw the weights and how often kernels are selected.", "FILE.png")] = None,
    state: State = None,
    restart: Restart = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
    **parameters: Any,
) -> None:
    """Show how far kernel weights can be trusted, by fits to resamples of the samples that share their passes.

    Tells the mean weight of each kernel, between which bounds it lies in 95 % of the resamples, how often it is
    selected, and how many kernels would be selected as often by chance. Uses the training part of split 0 if the set
    has splits and all samples otherwise, unless --split, --train or --all say so. After an interruption the same
    command goes on with what it keeps in OUT.partial, or in --state.

    Examples
    --------
        dmkl stability kernels.zarr trust -p 1 --selected 3
        dmkl stability kernels.zarr trust -p 1 --lam 1e-3 --resamples 200 --plot trust.png
        dmkl stability kernels.zarr trust --how bootstrap --groups subjects.txt
    """
    from dmkl.inference.stability import Stability
    from dmkl.searching.state import remove_state

    place = as_place(out)
    folder = state_of(place, "a result of resampling", Stability.FORMAT, state, overwrite=overwrite)
    if plot is not None:
        claim_output(plot, overwrite=overwrite)
    K = open_kernels(store, kernels)
    estimator = make_learner(model, parameters, K)
    chosen, on = training_samples(K, split, train, every, drop_classes_below)
    known_groups = None if groups is None else read_groups(groups, K.samples, chosen)
    if restart:
        remove_state(folder)
    with resuming(folder), computing_on(cluster, reading=K, state=folder, workers=workers, memory=memory):
        found = dmkl.stability(
            estimator,
            K[chosen, chosen],
            None,
            resamples,
            how=how,
            n_selected=selected,
            threshold=threshold,
            groups=known_groups,
            scoring=parse_scoring(scoring),
            unknown=unknown,
            random_state=seed,
            state=folder,
        )
        found.save(place, overwrite=overwrite)
    remove_state(folder)
    if plot is not None:
        save_figure(found.plot(), plot, dpi=150)
    if as_json:
        print_json({"path": out, "samples": len(chosen), **_as_mapping(found)})
        return
    first, *more = found.summary().splitlines()
    say(f"{first}, of {count(len(chosen), 'sample')} ({on})", style="bold")
    console().print()
    show(_kernels_table(found))
    console().print()
    for line in more:
        say(line)
    if plot is not None:
        say(f"The picture is {plot}.")
    say(f"Saved in {out}; dmkl.load reads it.")


def _kernels_table(found: Stability) -> Table:
    """A row for each kernel; of several tasks or targets with means over them."""
    frame = found.table().groupby("kernel", sort=False).mean(numeric_only=True)
    columns = table("kernel", numbers=["weight", "± s.e.", "95 % of resamples"])
    columns.add_column("selected", no_wrap=True)
    for name, row in frame.iterrows():
        share = float(row["selection_frequency"])
        columns.add_row(
            Text(str(name)),
            f"{row['mean_weight']:.4f}",
            f"{row['standard_error']:.4f}",
            f"{row['lower']:.4f} to {row['upper']:.4f}",
            Text.assemble(f"{100 * share:3.0f} % ", (bar(share, 12), "cyan")),
        )
    return columns


def _as_mapping(found: Stability) -> dict[str, Any]:
    """What is told of a result, for JSON."""
    import numpy as np

    data, attrs = found.data, found.data.attrs
    stable = found.stable()
    return {
        **{name: attrs[name] for name in ("estimator", "how", "threshold", "scoring", "random_state")},
        "resamples": data.sizes["resample"],
        "distinct_resamples": attrs["n_distinct"],
        "kernels": found.table().to_dict("records"),
        "stable": stable["kernel"].values[stable.values].tolist() if stable.ndim == 1 else stable.to_series().to_dict(),
        "mean_selected": np.asarray(found.mean_selected_).tolist(),
        "error_bound": np.asarray(found.error_bound()).tolist(),
        "unimodal_error_bound": np.asarray(found.error_bound(unimodal=True)).tolist(),
        "rank_agreement": data["rank_agreement"].values.tolist(),
        "scores": data["score"].values.tolist(),
        "largest_gap": float(data["gap"].max()),
        "passes": found.n_passes_,
        "seconds": attrs["seconds"],
    }
