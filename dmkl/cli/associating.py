"""`dmkl associate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import dmkl
from dmkl.cli.cluster import Resources
from dmkl.cli.options import Json, Kernels, Overwrite, Store, flag, option
from dmkl.cli.output import lock_output, lock_pictures, print_json, save_figure, say, say_aside, show_description
from dmkl.cli.parsing import read_covariates, sample_names
from dmkl.cli.samples import TrainingSamples
from dmkl.description import count
from dmkl.progress import ConsoleWatch


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
    description = result.describe()
    if as_json:
        print_json({**description.as_data(), "seconds": seconds})
        return
    say(f"{description.headline}\n", style="bold")
    show_description(description)
    say(f"Tested {count(len(chosen), 'sample')} ({on}) in {seconds:.2f} s.")
