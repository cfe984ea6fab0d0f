"""`dmkl analyze`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

import dmkl
from dmkl.cli.cluster import Resources
from dmkl.cli.options import STEPS_HELP, Json, Kernels, Overwrite, Store, flag, option
from dmkl.cli.output import (
    bar,
    lock_output,
    lock_pictures,
    number,
    print_json,
    refuse_existing,
    save_pictures,
    say,
    say_aside,
    show,
    table,
)
from dmkl.cli.parsing import parse_steps
from dmkl.cli.samples import TrainingSamples, open_kernels
from dmkl.errors import refuse
from dmkl.progress import ConsoleWatch
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from dmkl.analysis.analyze import Analysis

_DATA = "analysis.nc"
_PICTURES = ("alignment.png", "spectra.png", "targets.png")
_MOST_COLUMNS = 10
"""Kernels whose alignments are printed as a matrix; of more kernels the pairs with the largest are printed."""
_MOST_PAIRS = 15


def analyze(
    store: Store,
    samples: TrainingSamples,
    resources: Resources,
    output: Path | None = option(f"Save the data in this folder, as {_DATA} (NetCDF).", "DIR"),
    plot: Path | None = option("Pictures in a folder, or of alignments in a file.", "PATH"),
    kernels: Kernels = None,
    steps: str = option(STEPS_HELP, "STEP,…", default="center"),
    targets: bool = option("Align with stored labels.", None, "--targets/--no-targets", default=True),
    eigenvalues: int = option("Number of eigenvalues of each kernel.", "N", default=20, min=1),
    threshold: float = option("Kernels with at least this alignment are in one group.", "A", default=0.95),
    probes: int | None = option("Estimate alignments from N random vectors, in one pass.", "N", min=3),
    seed: int = option("Seed of the random vectors.", default=0, min=0),
    relevant: bool = flag("Show in how many eigenvectors labels are.", "--relevant-dimension"),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Show which kernels are alike, how well each alone fits the labels, and how many dimensions it has.

    Analyzes the training part of split 0 if the set has splits and all samples otherwise, unless --split, --train
    or --all say so. Takes two passes over the kernels, or one with --probes.

    Examples
    --------
        dmkl analyze kernels.zarr
        dmkl analyze kernels.zarr --steps cosine,center --plot alignments.png
        dmkl analyze kernels.zarr --steps none --probes 100 --json > analysis.json
    """
    from dmkl.files.writing import into_folder, write_whole

    K = open_kernels(store, kernels)
    if output is not None:
        refuse_existing(output / _DATA, overwrite=overwrite, what="folder")
        lock_output(output, overwrite=True)
    lock_pictures(plot, _PICTURES, overwrite=overwrite)
    chosen, on = samples.choose(K)
    part = K[chosen, chosen] if len(chosen) < K.shape[1] else K
    with ConsoleWatch(), resources.computing(reading=part):
        started = time.monotonic()
        analysis = dmkl.analyze(
            part,
            steps=parse_steps(steps),
            targets=targets,
            n_eigenvalues=eigenvalues,
            threshold=threshold,
            probes=probes,
            seed=seed,
        )
        seconds = time.monotonic() - started
    if output is not None:
        with into_folder(output):
            write_whole(output / _DATA, bytes(analysis.data.to_netcdf(engine="scipy")))
        say_aside("note", f"the data are in {output / _DATA}")
    targets_picture = analysis.plot_targets if "target_alignment" in analysis.data else None
    draw = (analysis.plot_alignment, analysis.plot_spectra, targets_picture)
    save_pictures(dict(zip(_PICTURES, draw, strict=True)), plot)
    if as_json:
        print_json(_as_mapping(analysis, seconds))
        return
    show(_kernels_table(analysis), *([_relevant_table(analysis)] if relevant else []), _alignments_table(analysis))
    say(f"\n{analysis.summary()}")
    say(f"Analyzed {count(len(chosen), 'sample')} ({on}) in {seconds:.2f} s.")


# --- tables --------------------------------------------------------------------------------------------------------


def _kernels_table(analysis: Analysis) -> Table:
    """A row for each kernel."""
    data, frame, by_task = analysis.data, analysis.table(), "task" in analysis.data.dims
    has_fit = "target_alignment" in data
    if has_fit and by_task:
        frame["target_alignment"] = data["target_alignment"].mean("task").values
    titles = ["fit to labels, mean of tasks" if by_task else "fit to labels"] if has_fit else []
    numbers = ("trace", "effective rank", "first eigenvalue", "90 % of trace in", "99 % in")
    rows = (
        [
            row["kernel"],
            *([_with_bar(row["target_alignment"], row.get("target_alignment_error"))] if has_fit else []),
            number(row["trace"]),
            number(row["effective_rank"]),
            _share(row["largest_share_least"], row["largest_share_most"]),
            *(_between(row[f"components_{share}_least"], row[f"components_{share}_most"]) for share in (90, 99)),
            Text(f"a multiple of {row['repeats']}" if row["repeats"] else "", style="yellow"),
        ]
        for row in frame.reset_index().to_dict("records")
    )
    made = table("kernel", *titles, numbers=numbers, last=[""], rows=rows)
    made.columns[1].no_wrap = True
    return made


def _relevant_table(analysis: Analysis) -> Table:
    """A row for each kernel: its fit to the labels, their noise, and the relevant dimension; means over tasks."""
    data, names = analysis.data, ["target_alignment", "label_noise", "relevant_dimension", "relevant_dimension_most"]
    if not set(names) <= set(data):
        refuse("--relevant-dimension needs stored labels and steps with center; leave it out")
    figures = data[names].mean([dim for dim in data["label_noise"].dims if dim != "kernel"], skipna=False)
    columns = zip(analysis.names, *(figures[name].values.tolist() for name in names), strict=True)
    rows = ([name, number(fit), number(noise), _between(d, most)] for name, fit, noise, d, most in columns)
    return table("kernel", numbers=["fit to labels", "label noise", "relevant dimension"], rows=rows)


def _with_bar(value: float, error: float | None) -> Text:
    if math.isnan(value):
        return Text("–")
    text = f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"
    return Text.assemble(f"{text} ", (bar(value, 12), "cyan"))


def _share(least: float, most: float) -> str:
    if math.isnan(least):
        return "–"
    low, high = (f"{100 * share:.1f}" for share in (least, min(most, 1.0)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _between(least: float, most: float) -> str:
    if math.isnan(least):
        return "–"
    if math.isnan(most):
        return f"≥ {least:.0f}"
    return f"{most:.0f}" if least >= most else f"{least:.0f} to {most:.0f}"


def _alignments_table(analysis: Analysis) -> Table:
    """The matrix of alignments, with similar kernels side by side; the most similar pairs if there are many kernels."""
    if len(analysis.names) > _MOST_COLUMNS:
        pairs = analysis.pairs(least=-1.0).head(_MOST_PAIRS)
        cells = ((a, b, f"{unbiased:.4f}", f"{value:.4f}") for a, b, unbiased, value in pairs.itertuples(index=False))
        numbers = ["unbiased alignment", "alignment"]
        return table("kernel", "kernel", numbers=numbers, title="Most similar pairs", rows=cells)
    order, alignment = analysis.data["order"].values, analysis.similarity.values
    rows = (
        [analysis.names[i], *("–" if math.isnan(value) else f"{value:.3f}" for value in alignment[i, order])]
        for i in order
    )
    return table("", numbers=[analysis.names[j] for j in order], title="Unbiased alignments", rows=rows)


def _as_mapping(analysis: Analysis, seconds: float) -> dict[str, Any]:
    data = analysis.data
    figures = [str(key) for key in data.data_vars if "kernel_2" not in data[key].dims]
    by_kernel = [
        {"name": name, **{key: data[key].values[j] for key in figures}} for j, name in enumerate(analysis.names)
    ]
    return {
        **{str(key): value for key, value in data.attrs.items()},
        "kernels": by_kernel,
        "tasks": data["task"].values.astype(str) if "task" in data.dims else None,
        "alignment": data["alignment"].values,
        "alignment_error": data["alignment_error"].values if "alignment_error" in data else None,
        "unbiased_alignment": analysis.similarity.values,
        "groups": analysis.groups(),
        "seconds": seconds,
    }
