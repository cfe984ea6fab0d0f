"""`dmkl demo`: an example on data that comes with scikit-learn."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dmkl
from dmkl.cli.cluster import Resources
from dmkl.cli.options import option
from dmkl.cli.output import console, save_figure, say, show_tables
from dmkl.description import count
from dmkl.errors import size_text
from dmkl.progress import ConsoleWatch

if TYPE_CHECKING:
    import xarray as xr

    from dmkl.arrays import Array
    from dmkl.kernelset import KernelSet


_LAM = 1e-3
_NORMS = {"p = 1": 1.0, "p = 1.5": 1.5, "p = 2": 2.0, "p = ∞": math.inf}
_SAVED = "MK-FDA, p = 1"


def demo(
    resources: Resources,
    output: Path = option("Folder for the kernels, the model and the picture.", "DIR", default=Path("dmkl-demo")),
) -> None:
    """Run an example: kernels of handwritten digits, weights with a proven gap, a picture.

    Eleven kernels describe 1,797 digits in different ways, four are noise. ℓp MK-FDA learns weights for several p,
    and is compared with the uniform sum, the single best kernel and the product of all. A second run replaces
    the output of the first.

    Examples
    --------
        dmkl demo
        dmkl demo --output /tmp/demo --cluster local
    """
    import xarray as xr

    from dmkl.cli.tables import MOST_COLUMNS, models_table
    from dmkl.learners.tables import weights_table

    out = console()
    store, saved, drawn = output / "digits.zarr", output / "model", output / "weights.png"
    views, labels, part = digits()
    K = dmkl.create(store, kernels_of(views), names=list(views), labels=labels, splits=part, tile=450, overwrite=True)
    split = K.split(0)
    say(
        f"{count(len(K), 'kernel')} over {count(K.shape[1], 'handwritten digit')}, 8 × 8 pixels each; "
        f"{len(split.train):,} to learn from, {len(split.test):,} to test on. A pass reads "
        f"{size_text(K.bytes_per_pass)}."
    )
    # The many small steps would fill a log.
    delay_seconds = 2.0 if sys.stderr.isatty() else math.inf
    with ConsoleWatch(delay_seconds=delay_seconds), resources.computing(reading=K) as client:
        where = "threads of this process"
        if client is not None:
            scheduler: Any = client.scheduler
            n_processes = client.scheduler_info(n_workers=0)["n_workers"]
            where = f"a Dask cluster of {count(n_processes, 'process')} at {scheduler.address}"
        say(f"Learning on {where}.")
        models, seconds, accuracy = _learn(K)
    learned = {name: models[f"MK-FDA, {name}"].weights_ for name in _NORMS}
    weights = xr.Dataset(learned).to_array("norm").transpose("kernel", "norm")
    out.print()
    show_tables(weights_table(weights, MOST_COLUMNS), models_table(models, seconds, accuracy))
    say(
        "The proven gap bounds how far the objective is from its optimum, relative to the part of it that weights can "
        f"change. Cross-validation finds {models['single best'].best_!r} to be the best single kernel.",
        style="dim",
    )
    models[_SAVED].save(saved, overwrite=True)
    _draw_weights(drawn, weights)
    out.print()
    for label, path in (("kernels", store), ("model", saved), ("picture", drawn)):
        say((f"{label:8}", "bold"), f" {path}", *([f" ({_SAVED})"] if path == saved else []))
    out.print()
    say("Next:")
    predictions = saved.parent / "predictions.csv"
    # The path by which this program was called, so that the commands work as they are printed.
    program = sys.argv[0] if sys.argv and Path(sys.argv[0]).name == "dmkl" else "dmkl"
    for command in (("info", store), ("check", store), ("predict", saved, store, "--split", "0", "--out", predictions)):
        say(f"  {shlex.join([program, *map(str, command)])}")


def _learn(K: KernelSet) -> tuple[dict[str, Any], dict[str, float], dict[str, float]]:
    """Every model with its time and its accuracy on the test samples."""
    models: dict[str, Any] = {
        **{f"MK-FDA, {name}": dmkl.MKFDA(p, _LAM) for name, p in _NORMS.items()},
        "uniform sum": dmkl.Uniform(_LAM),
        "single best": dmkl.SingleBest(_LAM),
        "product": dmkl.Product(_LAM),
    }
    train, _, test = K.split(0)
    seconds, accuracy = {}, {}
    for name, model in models.items():
        started = time.monotonic()
        model.fit(K[train, train])
        seconds[name] = time.monotonic() - started
        accuracy[name] = model.score(K[test, train])
    return models, seconds, accuracy


# --- kernels -------------------------------------------------------------------------------------------------------


Views = dict[str, tuple["Array", str | float]]
"""For each kernel: features (samples, features), and "linear", "polynomial" or the width of an RBF kernel as a multiple
of the features' median distance."""


def kernels_of(views: Views) -> Iterator[Array]:
    """The matrices, one at a time."""
    import numpy as np
    from sklearn.metrics.pairwise import euclidean_distances, linear_kernel, polynomial_kernel

    for features, function in views.values():
        if function == "linear":
            kernel = linear_kernel(features)
        elif function == "polynomial":
            kernel = polynomial_kernel(features, degree=3)
        else:
            squared = euclidean_distances(features, squared=True)
            kernel = np.exp(squared / (-2 * float(function) ** 2 * np.median(squared)))
        yield kernel.astype(np.float32)


def digits(seed: int = 0) -> tuple[Views, Array, Array]:
    """Features of scikit-learn's 1,797 digits, their labels, and a stratified split (0 train, 2 test)."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = images.reshape(-1, 8, 8) / 16.0
    flat = pixels.reshape(-1, 64)
    noise = np.random.default_rng(seed).standard_normal((4, len(flat), 64))
    views: Views = {
        "pixels, wide": (flat, 1.0),
        "pixels, medium": (flat, 0.5),
        "pixels, narrow": (flat, 0.25),
        "pixels, linear": (flat, "linear"),
        "pixels, cubic": (flat, "polynomial"),
        "upper left": (pixels[:, :4, :4].reshape(-1, 16), 0.5),
        "upper right": (pixels[:, :4, 4:].reshape(-1, 16), 0.5),
        "lower left": (pixels[:, 4:, :4].reshape(-1, 16), 0.5),
        "lower right": (pixels[:, 4:, 4:].reshape(-1, 16), 0.5),
        "row profile": (pixels.sum(axis=2), 0.5),
        "column profile": (pixels.sum(axis=1), 0.5),
        **{f"noise {number}": (features, 1.0) for number, features in enumerate(noise, 1)},
    }
    train, _ = train_test_split(np.arange(len(flat)), train_size=0.25, random_state=seed, stratify=labels)
    split = np.full(len(flat), 2, dtype=np.int8)
    split[train] = 0
    return views, labels, split


# --- picture -------------------------------------------------------------------------------------------------------


def _draw_weights(path: Path, weights: xr.DataArray) -> None:
    from matplotlib.figure import Figure

    from dmkl.pictures import bars

    figure = Figure(figsize=(3.4 * weights.sizes["norm"], 4.6), layout="constrained")
    panels = figure.subplots(1, weights.sizes["norm"], squeeze=False)[0]
    for panel, values in zip(panels, weights.T, strict=True):
        bars(values.kernel.values.tolist(), values.values[:, None], "", str(values.norm.item()), ax=panel)
    title = "Which kernels tell handwritten digits apart: ℓp MK-FDA for four norms p"
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.008, ha="left")
    save_figure(lambda: panels, path, aside=False)
