"""`dmkl demo`: everything once, on data that comes with scikit-learn."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.digits import digits
from dmkl.cli.options import Cluster, Memory, Workers, option
from dmkl.cli.output import console, count, say, size
from dmkl.cli.picture import draw_weights
from dmkl.cli.tables import summary_table, weights_table
from dmkl.kernelset import KernelSet
from dmkl.progress import ConsoleWatch

__all__ = ["demo"]

_LAM = 1e-3
_SAVED = "MK-FDA, p = 1"


def demo(
    output: Annotated[Path, option("Folder for the kernels, the model and the picture.", "DIR")] = Path("dmkl-demo"),
    cluster: Cluster = "local",
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Show everything once: kernels of handwritten digits, weights with a proven gap, a picture.

    Eleven kernels show 1,797 digits in different ways, four are noise. ℓp MK-FDA learns weights for several p,
    and is compared with the uniform sum, the single best kernel and the product of all. A second run replaces
    the output of the first.

    Examples
    --------
        dmkl demo
        dmkl demo --output /tmp/demo --cluster threads
    """
    out = console()
    store, saved, picture = output / "digits.zarr", output / "model", output / "weights.png"
    data = digits()
    K = dmkl.create(
        store, data.kernels(), names=list(data.views), labels=data.labels, splits=data.split, tile=450, overwrite=True
    )
    split = K.split(0)
    say(
        f"{count(len(K), 'kernel')} over {count(K.shape[1], 'handwritten digit')}, 8 × 8 pixels each; "
        f"{len(split.train):,} to learn from, {len(split.test):,} to test on. A pass reads "
        f"{size(K.bytes_per_pass)}."
    )
    with computing_on(cluster, workers=workers, memory=memory) as client, _Watch():
        say("Learning on " + ("threads of this process." if client is None else _place(client)))
        models, seconds, accuracy = _learn(K)
    out.print()
    prefix = "MK-FDA, "
    weights = {name.removeprefix(prefix): m.weights_ for name, m in models.items() if name.startswith(prefix)}
    out.print(weights_table(weights))
    out.print()
    out.print(summary_table(models, seconds, accuracy))
    say(
        "The proven gap bounds how far a result is from the best weights there are, relative to the "
        f"objective. Cross-validation finds {models['single best'].best_!r} to be the best single kernel.",
        style="dim",
    )
    models[_SAVED].save(saved, overwrite=True)
    draw_weights(
        picture,
        list(K.names),
        weights,
        "Which kernels tell handwritten digits apart: ℓp MK-FDA for four norms p",
        muted=[name for name in K.names if name.startswith("noise")],
    )
    _say_where(out, store, saved, picture)


class _Watch(ConsoleWatch):
    """Progress on a terminal; the many small steps of the demo would only fill a log."""

    def note(self, text: str) -> None:
        """See `dmkl.progress.Watch.note`."""
        if self.console.is_terminal:
            super().note(text)


def _place(client: Any) -> str:
    n = len(client.scheduler_info(n_workers=-1)["workers"])
    return f"a Dask cluster of {count(n, 'process', 'processes')} at {client.scheduler.address}."


def _learn(K: KernelSet) -> tuple[dict[str, Any], dict[str, float], dict[str, float]]:
    """Every model with its time and its accuracy on the test samples."""
    models: dict[str, Any] = {
        **{f"MK-FDA, p = {p:g}".replace("inf", "∞"): dmkl.MKFDA(p, _LAM) for p in (1, 1.5, 2, np.inf)},
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


def _say_where(out: Console, store: Path, saved: Path, picture: Path) -> None:
    out.print()
    for what, path in (("kernels", store), ("model", saved), ("picture", picture)):
        say((f"{what:8}", "bold"), f" {path}", *([f" ({_SAVED})"] if path == saved else []))
    out.print()
    say("Next:")
    predictions = saved.parent / "predictions.csv"
    for command in (("info", store), ("check", store), ("predict", saved, store, "--split", "0", "--out", predictions)):
        say(f"  {shlex.join([_program(), *map(str, command)])}")


def _program() -> str:
    """How this program was called, so that the commands to run next work as they are printed."""
    called = sys.argv[0] if sys.argv else "dmkl"
    return called if Path(called).name == "dmkl" else "dmkl"
