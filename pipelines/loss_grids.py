"""Search the default grids of MKFDA and MKLogistic on one kernel set: passes, seconds, gaps, scores.

    python pipelines/loss_grids.py out/search_grid/digits/kernels.zarr --two      # made by search_grid.py
    python pipelines/loss_grids.py out/search_grid/flower17/kernels.zarr
    python pipelines/loss_grids.py large/large-24-8000.zarr --cluster local       # made by large_search.py --keep large

Each learner searches its own default grid on the same folds, without baselines and refit. MKLogistic has a machine with
weights of its own for each class. `--two` makes the first half of the classes one class and the rest another.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import psutil
from sklearn.model_selection import StratifiedKFold

import dmkl

LEARNERS = {
    "MK-FDA": dmkl.MKFDA(),
    "logistic": dmkl.MKLogistic(),
    "logistic-subspace": dmkl.MKLogistic(solver="subspace"),
    "logistic-memory": dmkl.MKLogistic(solver="memory"),
}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its workers."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main() -> None:
    """Search with both learners, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="a kernel set with classes")
    parser.add_argument("--two", action="store_true", help="make two classes of the labels")
    parser.add_argument("--cluster", choices=["threads", "local"], default="threads")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    options = parser.parse_args()
    K = dmkl.open(options.store)
    classes, labels = np.unique(K.labels, return_inverse=True)
    if options.two:
        labels = labels >= len(classes) // 2
    folds = StratifiedKFold(options.folds, shuffle=True, random_state=0)
    print(
        f"{'':10}{'fits':>7}{'passes':>8}{'wall s':>9}{'CPU s':>9}{'certified':>11}{'largest gap':>13}{'accuracy':>10}"
    )
    with dmkl.cluster(options.cluster):
        for name in options.learners:
            wall, cpu = time.perf_counter(), cpu_seconds()
            result = dmkl.search(LEARNERS[name], K, labels, cv=folds, scoring="accuracy", baselines="none", refit=False)
            wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
            status, gap = result.scores["status"].values, result.scores["gap"].values
            print(
                f"{name:10}{status.size:>7,}{result.n_passes_:>8.0f}{wall:>9.1f}{cpu:>9.1f}{np.sum(status == 0):>11,}"
                f"{np.nanmax(gap):>13.1e}{result.best_score_:>10.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
