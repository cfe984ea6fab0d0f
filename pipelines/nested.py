"""Nested cross-validation whose folds share their passes, against a loop of searches, one for each outer fold.

    python pipelines/nested.py flower17.npz                        # 5 × 3 folds, the papers' 12 × 10 values of (p, λ)
    python pipelines/nested.py flower17.npz --cold                 # the same with the kernels read from the disk
    python pipelines/nested.py flower17.npz --ps 1 2 --lams 1e-3 1e-1 --outer 3 --inner 2

Both choose (p, λ) in the training rows of each outer fold, fit the chosen point anew there, and score the rows that no
choice has seen; both solve to the same proven gap. The table has the passes over the stored kernels and the seconds of
each, beside those of a plain search with as many folds as there are outer ones, and then the outer folds one by one:
what each way has chosen, and its accuracy. The kernels, χ² or RBF ones of the views in the file, are kept in --output.
With --cold they are dropped from the page cache all the time, as if it could not hold them: every pass reads the disk.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from sklearn.model_selection import StratifiedKFold

import dmkl


def kernels(options: argparse.Namespace) -> dmkl.KernelSet:
    """The set of this file, built where it is not there yet."""
    store = options.output / "kernels.zarr"
    if not store.exists():
        with np.load(options.data) as data:
            names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
            views, labels = {name: data[name].astype(np.float32) for name in names}, data["label"]
        if options.function == "chi2":  # histograms, which sum to one again after half precision
            views = {name: view / view.sum(axis=1, keepdims=True) for name, view in views.items()}
        dmkl.build(store, views, {"function": options.function, "bandwidth": 1.0}, labels=labels)
    return dmkl.open(store)


def timed(title: str, work: Callable[[], Any]) -> tuple[Any, float]:
    """What some work gives, and its seconds."""
    started = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - started
    print(f"{title}: {seconds:.0f} s", flush=True)
    return found, seconds


@contextmanager
def dropped(store: Path) -> Iterator[None]:
    """Inside, the files of a set leave the page cache as soon as nobody maps them."""
    files = [os.open(path, os.O_RDONLY) for path in store.rglob("*") if path.is_file()]
    ended = threading.Event()

    def drop() -> None:
        while not ended.wait(0.02):
            for file in files:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for file in files:
            os.close(file)


def loop(
    learner: dmkl.MKFDA,
    K: dmkl.KernelSet,
    grid: dict[str, list[float]] | None,
    folds: list[tuple[np.ndarray, np.ndarray]],
    inner: Any,
) -> list[dict[str, Any]]:
    """A search in the training rows of each outer fold, and the score of its model on the test rows."""
    rows = []
    for train, test in folds:
        found = dmkl.search(learner, K[train, train], grid=grid, cv=inner)
        passes = found.n_passes_ + found.best_.n_passes_
        rows.append({**found.best_params_, "accuracy": found.best_.score(K[test, train]), "passes": passes})
    return rows


def main() -> None:
    """Build, evaluate in three ways, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="an .npz file of views, with a vector `label`")
    parser.add_argument("--function", choices=["chi2", "rbf"], default="chi2")
    parser.add_argument("--ps", type=float, nargs="+", help="norms; the papers' twelve by default")
    parser.add_argument("--lams", type=float, nargs="+", help="ridges; the papers' ten by default")
    parser.add_argument("--outer", type=int, default=5)
    parser.add_argument("--inner", type=int, default=3)
    parser.add_argument(
        "--tol", type=float, default=1e-4, help="gap to prove: where scores tie, a smaller one decides alike"
    )
    parser.add_argument("--cold", action="store_true", help="keep the kernels out of the page cache")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    options.output = options.output or Path("out/nested") / options.data.stem
    K = kernels(options)
    print(K, flush=True)
    given = {"p": options.ps, "lam": options.lams}
    outer, inner = (
        StratifiedKFold(n, shuffle=True, random_state=seed) for seed, n in enumerate((options.outer, options.inner))
    )
    folds, learner = list(outer.split(K.labels, K.labels)), dmkl.MKFDA(tol=options.tol)
    cold = dropped(options.output / "kernels.zarr") if options.cold else nullcontext()
    with cold, dask.config.set(scheduler="threads"):
        plain, plain_seconds = timed(
            f"plain search, {options.outer} folds", lambda: dmkl.search(learner, K, grid=grid_of(given), cv=outer)
        )
        nested, nested_seconds = timed(
            "nested", lambda: dmkl.evaluate(learner, K, grid=grid_of(given), outer=outer, inner=inner)
        )
        searches, loop_seconds = timed("loop of searches", lambda: loop(learner, K, grid_of(given), folds, inner))
    refit, plain_refit = nested.scores.attrs["n_refit_passes"], plain.best_.n_passes_
    passes = [plain.n_passes_ + plain_refit, nested.n_passes_, sum(row["passes"] for row in searches)]
    frame = pd.DataFrame(
        {
            "passes": passes,
            "of them refits": [plain_refit, refit, np.nan],
            "over plain": np.array(passes) / passes[0],
            "seconds": [plain_seconds, nested_seconds, loop_seconds],
        },
        index=["plain search", "nested", "loop of searches"],
    )
    print(f"\n{frame.to_string(float_format='{:.4g}'.format)}\n")
    mine, theirs = nested.table(), pd.DataFrame(searches)
    side = pd.concat(
        {
            "nested": mine[["p", "lam", "accuracy"]],
            "loop": theirs[["p", "lam", "accuracy"]],
        },
        axis=1,
    )
    print(f"{side.to_string(float_format='{:.6g}'.format)}\n")
    difference = np.abs(mine["accuracy"] - theirs["accuracy"])
    print(f"largest difference of an outer fold {difference.max():.4f}\n\n{nested.summary()}")
    nested.save(options.output / "nested.zarr", overwrite=True)


def grid_of(given: dict[str, list[float] | None]) -> dict[str, list[float]] | None:
    """The grid that was asked for: the default one where nothing was; what is not asked for has one value."""
    chosen = {name: values for name, values in given.items() if values is not None}
    return chosen or None


if __name__ == "__main__":
    main()
