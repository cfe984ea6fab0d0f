"""Measure how the time of a search of kernels in memory grows with classes, samples, folds, targets and kernels.

    python pipelines/growth.py
    python pipelines/growth.py --rows kernels --kernels 100 400 1600 10000
    python pipelines/growth.py --rows folds samples --folds 3 30 0 --samples 200 400         # smaller; 0: leave-one-out

A row changes one size and keeps the others. Each line has the time of `dmkl.search` on nine grid points (p = 1, 1.5, 2;
λ = 1e-4, 1e-2, 1), without baselines and refit. The exponent of a row is the slope of log seconds over log size, by
least squares; CPU seconds are those of all threads. The features are simulated: a tenth of the kernels has means that
differ between the classes, or determines the targets.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.model_selection import LeaveOneOut

import dmkl

SIZES = {
    "classes": [5, 25, 100],
    "samples": [400, 800, 1600, 3200],
    "folds": [3, 30, 120, 0],
    "targets": [50, 200, 800],
    "kernels": [100, 400, 1600],
}
OTHERS = {"classes": 3, "samples": 300, "folds": 3, "targets": 0, "kernels": 5}
GRID = {"p": [1, 1.5, 2], "lam": [1e-4, 1e-2, 1.0]}
FEATURES = 10


def seconds(options: argparse.Namespace, row: str, size: int) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds of a search with one size changed."""
    sizes = OTHERS | {"samples": options.of_classes if row == "classes" else OTHERS["samples"], row: size}
    m, n, folds = sizes["samples"], sizes["kernels"], sizes["folds"]
    rng, y = np.random.default_rng(0), np.arange(m) % sizes["classes"]
    X = rng.standard_normal((n, m, FEATURES), dtype=np.float32)
    signal = X[: max(1, n // 10)]
    if row == "targets":
        weights = rng.standard_normal((signal.shape[0] * FEATURES, size))
        labels = signal.transpose(1, 0, 2).reshape(m, -1) @ weights + rng.standard_normal((m, size))
    else:
        signal += 0.5 * rng.standard_normal((sizes["classes"], FEATURES), dtype=np.float32)[y]
        labels = y
    kernels = X @ X.transpose(0, 2, 1)
    learner = dmkl.MKRidge() if row == "targets" else dmkl.MKFDA()
    wall, cpu = time.perf_counter(), time.process_time()
    dmkl.search(
        learner, kernels, labels, grid=GRID, cv=folds if folds else LeaveOneOut(), baselines="none", refit=False
    )
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Time the searches of all sizes, and print a line after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=SIZES, default=list(SIZES))
    for name, sizes in SIZES.items():
        parser.add_argument(f"--{name}", nargs="+", type=int, default=sizes)
    parser.add_argument("--of-classes", type=int, default=1600, help="samples of the row `classes`")
    options = parser.parse_args()
    print(f"{'':10}{'size':>10}{'seconds':>10}{'CPU':>10}")
    seconds(options, "samples", 60)  # imports and the compiled loops are not measured
    for row in options.rows:
        # Leave-one-out has as many folds as samples.
        counts = [size or OTHERS["samples"] for size in getattr(options, row)]
        times = []
        for count, size in zip(counts, getattr(options, row), strict=True):
            times.append(seconds(options, row, size))
            print(f"{row:10}{count:>10,}{times[-1][0]:>10.1f}{times[-1][1]:>10.1f}", flush=True)
        if len(counts) > 1:
            wall, cpu = np.polyfit(np.log(counts), np.log(times), 1)[0]
            print(f"{row:10}{'exponent':>10}{wall:>10.2f}{cpu:>10.2f}\n", flush=True)


if __name__ == "__main__":
    main()
