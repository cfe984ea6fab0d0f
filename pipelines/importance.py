"""Compare `dmkl.importance`, which uses the passes of a search, with a loop of refits without each kernel.

    python pipelines/importance.py uci_digits.npz                              # 30 kernels, 3 folds, the papers' grid
    python pipelines/importance.py uci_digits.npz --samples 600 --ps 1 2 --lams 1e-3 1e-1 --loop 5

The file holds views, (samples, features) each, and `label`; `uci_digits.toml`, in the folder of this script, defines
RBF kernels, and the kernels of a view are a group. The table has the passes and seconds of the search alone, of the
importance of all kernels (left out and alone) at the parameters chosen by the search, of the importance with groups and
their Shapley values, and of a loop that refits without each of --loop kernels and must reach the same objectives. The
script saves the result and its figure in --output.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

import dmkl


def kernels(options: argparse.Namespace) -> dmkl.KernelSet:
    """Return the kernel set of the file; build it if it does not exist."""
    store = options.output / f"kernels-{options.samples or 'all'}.zarr"
    if not store.exists():
        with np.load(options.data) as data:
            names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
            views, labels = {name: StandardScaler().fit_transform(data[name]) for name in names}, data["label"]
        chosen = np.sort(np.random.default_rng(0).permutation(len(labels))[: options.samples])
        specs = Path(__file__).with_name("uci_digits.toml")
        dmkl.build(store, {name: view[chosen] for name, view in views.items()}, specs, labels=labels[chosen])
    return dmkl.open(store)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its seconds."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def loop(K: dmkl.KernelSet, result: dmkl.Importance, folds: Any, options: argparse.Namespace) -> tuple[float, float]:
    """Refit without each of the first kernels; return the passes and the largest relative difference in objective."""
    params = {name: float(result.data[name]) for name in ("p", "lam")}
    passes, largest = 0.0, 0.0
    for name in K.names[: options.loop]:
        rest = K.select([other for other in K.names if other != name])
        for number, (train, _) in enumerate(folds):
            model = dmkl.MKFDA(**params, tol=options.tol).fit(rest[train, train])
            objective = float(result.data.objective_without.sel(source=name).isel(fold=number))
            passes += model.n_passes_
            largest = max(largest, abs(objective - model.objective_) / abs(model.objective_))
    return passes, largest


def main() -> None:
    """Build the kernels, search, compute the importance, run the loop, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="an .npz file of views, with a vector `label`")
    parser.add_argument("--samples", type=int, help="number of random samples; all by default")
    parser.add_argument("--ps", type=float, nargs="+", help="norms; the papers' twelve by default")
    parser.add_argument("--lams", type=float, nargs="+", help="ridges; the papers' ten by default")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--shapley", type=int, default=50, help="random orders of the groups")
    parser.add_argument("--loop", type=int, default=30, help="kernels to leave out by refits")
    parser.add_argument("--tol", type=float, default=1e-4, help="tolerance of the proven gap")
    parser.add_argument("--output", type=Path, default=Path("out/importance"))
    options = parser.parse_args()
    K = kernels(options)
    print(K, flush=True)
    requested = {"p": options.ps, "lam": options.lams}
    grid = {name: values for name, values in requested.items() if values is not None} or None
    cv = list(StratifiedKFold(options.folds, shuffle=True, random_state=0).split(K.labels, K.labels))
    groups: dict[str, list[str]] = {}
    for name in K.names:
        groups.setdefault(name.split("-")[0], []).append(name)
    learner = dmkl.MKFDA(tol=options.tol)
    with dask.config.set(scheduler="threads"):
        search, search_seconds = timed(lambda: dmkl.search(learner, K, grid=grid, cv=cv, refit=False))
        print(f"search: {search.best_params_}, {search_seconds:.0f} s", flush=True)
        plain, plain_seconds = timed(lambda: dmkl.importance(learner, K, grid=grid, cv=cv))
        print(f"{plain}", flush=True)
        extra = {"kernel_groups": groups, "shapley": options.shapley}
        whole, whole_seconds = timed(lambda: dmkl.importance(learner, K, grid=grid, cv=cv, **extra))
        print(f"{whole}", flush=True)
        (passes, largest), loop_seconds = timed(lambda: loop(K, plain, cv, options))
    frame = pd.DataFrame(
        {
            "fits": [search.scores["status"].size, plain.data.n_fits, whole.data.n_fits, options.loop * len(cv)],
            "passes": [search.n_passes_, plain.n_passes_, whole.n_passes_, passes],
            "seconds": [search_seconds, plain_seconds, whole_seconds, loop_seconds],
        },
        index=["search", "and each kernel", "and groups, Shapley", f"loop of {options.loop} left out"],
    )
    print(f"\n{frame.to_string(float_format='{:.4g}'.format)}\n")
    print(f"largest relative difference of an objective to the loop's: {largest:.1e}\n")
    print(whole.table().to_string(float_format="{:.3g}".format, index=False))
    whole.save(options.output / "importance.zarr", overwrite=True)
    whole.plot()[0].figure.savefig(options.output / "importance.png")


if __name__ == "__main__":
    main()
