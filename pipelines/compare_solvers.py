"""Compare the passes, seconds, memory and proven gaps of all solvers of ℓp MK-FDA on the same problems.

    python pipelines/compare_solvers.py                                     # all problems, about 15 minutes
    python pipelines/compare_solvers.py --sizes 8x400 --lams 1e-2 --output out/small

The kernels are float32 Gaussian kernels of 20 features. Half of them separate three classes, better at larger indices;
the other half are noise. Each solver solves every problem (n, m, p, λ) from scratch to a proven gap of 1e-4, with all
cores of this machine in one process. The script writes the table as NetCDF, and a figure of it.

A solver that takes more than `--patience` seconds for a problem skips the problems with a smaller λ and the same p, n
and m: these entries are NaN in the table and missing from the figure.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import xarray as xr
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress

import dmkl

SOLVERS: dict[str, Any] = {
    "direct, Newton": "direct",
    "direct, exact cuts": dmkl.Direct("exact"),
    "direct, Taylor cuts": dmkl.Direct("taylor"),
    "cg, Newton": "cg",
    "interleaved": "interleaved",
    "dual": "dual",
    "subspace": "subspace",
}
# Wong: Points of view: color blindness, Nature Methods 8 (2011).
COLORS = ["#000000", "#999999", "#56b4e9", "#d55e00", "#e69f00", "#cc79a7", "#009e73"]
MARKERS = "oxvs^Pd"
MEASURES = {"seconds": "seconds", "passes": "passes over the kernels", "memory": "memory / MiB"}


class Memory:
    """Context manager that measures the peak memory of this process in bytes, without mapped files."""

    def __enter__(self) -> Memory:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # memory freed by earlier fits would be reused and not counted
        self.before = self.peak = self._own()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def taken(self) -> int:
        """The peak memory minus the memory at entry."""
        return self.peak - self.before

    def _sample(self) -> None:
        while not self._done.wait(0.01):
            self.peak = max(self.peak, self._own())

    @staticmethod
    def _own() -> int:
        info = psutil.Process().memory_info()
        return int(info.rss - getattr(info, "shared", 0))


def make_set(folder: Path, n: int, m: int) -> dmkl.KernelSet:
    """Return the kernels of one size; build them if they do not exist."""
    store = folder / f"kernels-{n}-{m}.zarr"
    if store.exists():
        return dmkl.open(store)
    labels = np.random.default_rng(0).integers(0, 3, m)
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((3, 20)).astype(np.float32)
    tables = {}
    for j in range(n):
        noise = rng.standard_normal((m, 20)).astype(np.float32)
        tables[f"view {j}"] = noise if j % 2 else noise + (0.3 + 1.2 * j / n) * centers[labels]
    specs = {"function": "rbf", "gamma": 1 / 40}
    return dmkl.build(store, tables, specs, labels=labels, dtype="float32")


def solve(K: dmkl.KernelSet, p: float, lam: float, solver: Any) -> dict[str, float]:
    """Fit a model; return its passes, seconds, memory, gap and objective."""
    model = dmkl.MKFDA(p=p, lam=lam, max_iter=100, solver=solver)
    with Memory() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", dmkl.errors.ConvergenceWarning)  # the gap is in the table
        started = time.perf_counter()
        model.fit(K)
        seconds = time.perf_counter() - started
    return {
        "passes": model.n_passes_,
        "seconds": seconds,
        "memory": memory.taken / 2**20,
        "gap": model.gap_,
        "objective": model.objective_,
    }


def undefined(name: str, p: float) -> bool:
    """Whether a solver does not support this norm."""
    return name == "dual" and p == 1


def compare(sets: dict[str, dmkl.KernelSet], norms: list[float], lams: list[float], patience: float) -> xr.Dataset:
    """Run all solvers on all problems, larger λ first."""
    lams = sorted(lams, reverse=True)
    shape = (len(sets), len(norms), len(lams), len(SOLVERS))
    arrays = {name: np.full(shape, np.nan) for name in ("passes", "seconds", "memory", "gap", "objective")}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("solving", total=int(np.prod(shape)))
        for (s, (size, K)), (a, p) in itertools.product(enumerate(sets.items()), enumerate(norms)):
            skipped: set[str] = set()
            for (b, lam), (c, (name, solver)) in itertools.product(enumerate(lams), enumerate(SOLVERS.items())):
                progress.update(task, description=f"{size}, p = {p:g}, λ = {lam:g}: {name}")
                if name not in skipped and not undefined(name, p):
                    for key, value in solve(K, p, lam, solver).items():
                        arrays[key][s, a, b, c] = value
                    if not progress.console.is_terminal:
                        print(
                            f"{size}, p = {p:g}, λ = {lam:g}, {name}: {arrays['seconds'][s, a, b, c]:.1f} s", flush=True
                        )
                    if arrays["seconds"][s, a, b, c] > patience:
                        skipped.add(name)
                progress.advance(task)
    dims = ("size", "p", "lam", "solver")
    table = xr.Dataset(
        {name: (dims, values) for name, values in arrays.items()},
        coords={
            "size": list(sets),
            "n": ("size", [len(K) for K in sets.values()]),
            "m": ("size", [K.shape[1] for K in sets.values()]),
            "p": norms,
            "lam": lams,
            "solver": list(SOLVERS),
        },
    )
    table["seconds"].attrs["units"] = "s"
    table["memory"].attrs["units"] = "MiB"
    table["gap"].attrs["long_name"] = "proven relative gap"
    return table


def picture(table: xr.Dataset) -> Figure:
    """Plot a column of panels for each size and norm, a row for each measure; hollow marks are open gaps."""
    columns = list(itertools.product(table["size"].values, table["p"].values))
    figure = Figure(figsize=(2.1 * len(columns) + 1.2, 8), layout="constrained")
    panels = figure.subplots(len(MEASURES), len(columns), sharex=True, sharey="row", squeeze=False)
    for (row, (measure, label)), (column, (size, p)) in itertools.product(
        enumerate(MEASURES.items()), enumerate(columns)
    ):
        panel = panels[row][column]
        for solver, color, marker in zip(table["solver"].values, COLORS, MARKERS, strict=True):
            series = table.sel(size=size, p=p, solver=solver)
            proven = series["gap"].values <= 1e-4
            panel.plot(series["lam"], series[measure], color=color, linewidth=1, label=solver if not row else None)
            for mask, fill in ((proven, color), (~proven, "white")):
                panel.plot(
                    series["lam"].values[mask], series[measure].values[mask], marker, color=color, markersize=5,
                    markerfacecolor=fill,
                )  # fmt: skip
        panel.set(xscale="log", yscale="log")
        panel.grid(alpha=0.3)
        if row == 0:
            panel.set_title(f"{size}, p = {p:g}", fontsize=9)
        if row == len(MEASURES) - 1:
            panel.set_xlabel("λ")
        if column == 0:
            panel.set_ylabel(label)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(SOLVERS), 2 * len(columns)), fontsize=9)
    return figure


def main() -> None:
    """Build the sets, run the solvers, write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["10x1000", "50x1000", "16x4000"], help="kernels x samples")
    parser.add_argument("--norms", nargs="+", type=float, default=[1.0, 1.0625, 2.0])
    parser.add_argument("--lams", nargs="+", type=float, default=[1.0, 1e-2, 1e-4])
    parser.add_argument("--patience", type=float, default=10.0, help="limit of seconds of a fit, as above")
    parser.add_argument("--output", type=Path, default=Path("out/compare_solvers"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    sets = {}
    for size in options.sizes:
        n, m = map(int, size.split("x"))
        sets[f"n = {n}, m = {m:,}"] = make_set(options.output, n, m)
    started = time.perf_counter()
    with dask.config.set(scheduler="threads"):
        solve(next(iter(sets.values())), 2.0, 1.0, "auto")  # compiles before the first measured fit
        table = compare(sets, options.norms, options.lams, options.patience)
    table.to_netcdf(options.output / "solvers.nc", engine="scipy")
    picture(table).savefig(options.output / "solvers.png", dpi=110)
    frame = table.to_dataframe().reset_index().dropna(subset="seconds")
    columns = ["size", "p", "lam", "solver", "passes", "seconds", "memory", "gap", "objective"]
    print(frame[columns].to_string(index=False, float_format="%.4g"))
    print(f"\n{time.perf_counter() - started:.0f} s; the table and its figure are in {options.output}")


if __name__ == "__main__":
    main()
