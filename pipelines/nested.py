"""Nested cross-validation in shared passes, compared with a loop of searches, one for each outer fold.

    python pipelines/nested.py flower17.npz                        # 5 × 3 folds, the papers' 12 × 10 values of (p, λ)
    python pipelines/nested.py flower17.npz --cold                 # the same, with kernels read from disk
    python pipelines/nested.py flower17.npz --ps 1 2 --lams 1e-3 1e-1 --outer 3 --inner 2

Both choose (p, λ) on the training rows of each outer fold, refit the chosen point there, and score the test rows of the
fold; both solve to the same proven gap. The first table compares passes over the stored kernels and seconds with those
of a plain search with as many folds as there are outer folds. The second lists the chosen (p, λ) and the accuracy of
each outer fold. The kernels, χ² or RBF kernels of the views in the file, are kept in --output. With --cold they are
continually dropped from the page cache, so that every pass reads from disk.
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
    """Open the kernel set of the file; build it if it does not exist."""
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
    """Return the result of a function and its seconds."""
    started = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - started
    print(f"{title}: {seconds:.0f} s", flush=True)
    return result, seconds


@contextmanager
def dropped(store: Path) -> Iterator[None]:
    """Continually drop the unmapped files of a set from the page cache."""
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
    """Search on the training rows of each outer fold, and score the chosen model on the test rows."""
    rows = []
    for train, test in folds:
        result = dmkl.search(learner, K[train, train], grid=grid, cv=inner)
        passes = result.n_passes_ + result.best_.n_passes_
        rows.append({**result.best_params_, "accuracy": result.best_.score(K[test, train]), "passes": passes})
    return rows


def main() -> None:
    """Build, evaluate with three methods, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="an .npz file of views, with a vector `label`")
    parser.add_argument("--function", choices=["chi2", "rbf"], default="chi2")
    parser.add_argument("--ps", type=float, nargs="+", help="norms; default: the twelve of the papers")
    parser.add_argument("--lams", type=float, nargs="+", help="values of λ; default: the ten of the papers")
    parser.add_argument("--outer", type=int, default=5)
    parser.add_argument("--inner", type=int, default=3)
    parser.add_argument(
        "--tol", type=float, default=1e-4, help="proven gap; with a small one, both methods resolve ties alike"
    )
    parser.add_argument("--cold", action="store_true", help="keep the kernels out of the page cache")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    options.output = options.output or Path("out/nested") / options.data.stem
    K = kernels(options)
    print(K, flush=True)
    parameters = {"p": options.ps, "lam": options.lams}
    outer, inner = (
        StratifiedKFold(n, shuffle=True, random_state=seed) for seed, n in enumerate((options.outer, options.inner))
    )
    folds, learner = list(outer.split(K.labels, K.labels)), dmkl.MKFDA(tol=options.tol)
    cold = dropped(options.output / "kernels.zarr") if options.cold else nullcontext()
    with cold, dask.config.set(scheduler="threads"):
        plain, plain_seconds = timed(
            f"plain search, {options.outer} folds", lambda: dmkl.search(learner, K, grid=grid_of(parameters), cv=outer)
        )
        nested, nested_seconds = timed(
            "nested", lambda: dmkl.evaluate(learner, K, grid=grid_of(parameters), outer=outer, inner=inner)
        )
        searches, loop_seconds = timed("loop of searches", lambda: loop(learner, K, grid_of(parameters), folds, inner))
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
    table, loop_table = nested.table(), pd.DataFrame(searches)
    comparison = pd.concat(
        {
            "nested": table[["p", "lam", "accuracy"]],
            "loop": loop_table[["p", "lam", "accuracy"]],
        },
        axis=1,
    )
    print(f"{comparison.to_string(float_format='{:.6g}'.format)}\n")
    difference = np.abs(table["accuracy"] - loop_table["accuracy"])
    print(f"largest difference of an outer fold {difference.max():.4f}\n\n{nested.summary()}")
    nested.save(options.output / "nested.zarr", overwrite=True)


def grid_of(parameters: dict[str, list[float] | None]) -> dict[str, list[float]] | None:
    """Return the grid of the options, without omitted parameters; None, the default grid, if all are omitted."""
    chosen = {name: values for name, values in parameters.items() if values is not None}
    return chosen or None


if __name__ == "__main__":
    main()
