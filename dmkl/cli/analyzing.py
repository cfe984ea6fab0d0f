"""`dmkl analyze`."""

from __future__ import annotations

import time
from pathlib import Path

import dmkl
from dmkl.cli.cluster import Resources
from dmkl.cli.options import STEPS_HELP, Json, Kernels, Overwrite, Store, flag, option
from dmkl.cli.output import (
    lock_output,
    lock_pictures,
    print_json,
    refuse_existing,
    save_pictures,
    say,
    say_aside,
    show_description,
)
from dmkl.cli.parsing import parse_steps
from dmkl.cli.samples import TrainingSamples
from dmkl.description import count
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
    if as_json:
        print_json({**description.as_data(), "seconds": seconds})
        return
    left_out = {"pairs" if "alignment" in description.tables else "alignment", *([] if relevant else ["relevant"])}
    say(f"{description.headline}\n", style="bold")
    show_description(description, left_out)
    say(f"Analyzed {count(len(chosen), 'sample')} ({on}) in {seconds:.2f} s.")
