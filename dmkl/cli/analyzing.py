"""Questions about the kernels themselves: `dmkl analyze` and `dmkl associate`."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import dmkl
from dmkl.cli.cluster import Resources
from dmkl.cli.options import STEPS_HELP, Json, Kernels, Overwrite, Store, flag, option
from dmkl.cli.output import (
    lock_output,
    lock_pictures,
    print_json,
    refuse_existing,
    save_figure,
    save_pictures,
    say,
    say_aside,
    show_description,
)
from dmkl.cli.parsing import parse_steps, read_covariates, sample_names
from dmkl.cli.samples import TrainingSamples
from dmkl.description import Description, count
from dmkl.errors import refuse
from dmkl.progress import ConsoleWatch

_DATA = "analysis.nc"
_PICTURES = ("alignment.png", "spectra.png", "targets.png")


def analyze(
    store: Store,
    samples: TrainingSamples,
    resources: Resources,
    output: Path | None = option(f"Save the data in this folder, as {_DATA} (NetCDF).", "DIR"),
    plot: Path | None = option("Pictures in a folder, or of alignments in a file.", "PATH"),
    kernels: Kernels = None,
    steps: str = option(STEPS_HELP, "STEP,…", default="center"),
    targets: bool = option("Align with labels.", None, "--targets/--no-targets", default=True, panel="Labels"),
    eigenvalues: int = option("Number of eigenvalues of each kernel.", "N", default=20, min=1),
    threshold: float = option("Least alignment of kernels in one group.", "A", default=0.95),
    probes: int | None = option("Random vectors that estimate alignments in one pass.", "N", min=3),
    seed: int = option("Seed of the random vectors.", "N", default=0, min=0),
    relevant: bool = flag("In how many eigenvectors labels are.", "--relevant-dimension", panel="Labels"),
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

    K = samples.open(store, kernels)
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
    description = analysis.describe()
    if relevant and "relevant" not in description.tables:
        refuse("--relevant-dimension needs stored labels and steps with center; leave it out")
    left_out = {"pairs" if "alignment" in description.tables else "alignment", *([] if relevant else ["relevant"])}
    _print(description, seconds, f"Analyzed {count(len(chosen), 'sample')} ({on})", left_out, as_json=as_json)


def associate(
    store: Store,
    samples: TrainingSamples,
    resources: Resources,
    output: Path | None = option("Save the result in this folder.", "DIR"),
    covariates: str | None = option('Tables of covariates: age.csv, table.csv:age, "sex.covar&age.qcovar".', "FILE"),
    family: Literal["gaussian", "binomial", "cox"] | None = option(
        "Numbers, two classes, or times of an event. [default: binomial for two different labels]"
    ),
    permutations: int = option("Check p-values by N permutations of residuals.", "N", default=0, min=0),
    known_variance: bool = flag("Take the variance of residuals as known, as SKAT does.", "--known-variance"),
    plot: Path | None = option("Picture of p-values.", "FILE"),
    kernels: Kernels = None,
    seed: int = option("Seed of the permutations.", default=0, min=0),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Test each kernel alone for association with the labels, given covariates.

    The score test of SKAT and MiRKAT, without a fit, in one pass: a p-value and a false discovery rate for each of
    thousands of kernels, and a p-value of all together. Takes all samples, unless --split or --train say so.

    Examples
    --------
        dmkl associate kernels.zarr
        dmkl associate kernels.zarr --covariates covariates.csv --plot association.png
    """
    K = samples.open(store, kernels)
    if output is not None:
        lock_output(output, overwrite=overwrite, what="folder")
    lock_pictures(plot, overwrite=overwrite)
    chosen, on = samples.choose(K, all_by_default=True)
    part = K[chosen, chosen] if len(chosen) < K.shape[1] else K
    given = None if covariates is None else read_covariates(f"--covariates={covariates}", sample_names(part))
    with ConsoleWatch(), resources.computing(reading=part):
        started = time.monotonic()
        result = dmkl.association_test(
            part,
            covariates=given,
            family=family,
            small_sample=not known_variance,
            n_permutations=permutations,
            seed=seed,
        )
        seconds = time.monotonic() - started
    if output is not None:
        result.save(output, overwrite=overwrite)
        say_aside("note", f"the result is in {output}")
    task = result.tasks[0] if result.tasks else None
    save_figure(lambda: result.plot(task), plot)
    if plot is not None and task is not None:
        say_aside("note", f"the picture is of {task}; Association.plot draws the others")
    _print(result.describe(), seconds, f"Tested {count(len(chosen), 'sample')} ({on})", as_json=as_json)


def _print(
    description: Description, seconds: float, what_was_done: str, omit: Collection[str] = (), *, as_json: bool
) -> None:
    if as_json:
        print_json({**description.as_data(), "seconds": seconds})
        return
    say(f"{description.headline}\n", style="bold")
    show_description(description, omit)
    say(f"{what_was_done} in {seconds:.3g} s.")
