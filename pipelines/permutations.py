"""Permutation tests compared with searches of the same grid: passes, seconds and p-values, on real and random labels.

    python pipelines/permutations.py uci_digits.npz --samples 600
    python pipelines/permutations.py flower17.npz

Each view of the digits, (samples, features), becomes five RBF kernels; each histogram of the flowers a χ² kernel
exp(−d/d̄). Both use the same folds, grid and learner. Noise labels are permuted labels, which must not be significant.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import dmkl


def main() -> None:
    """Search, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--samples", type=int, help="number of samples, with balanced classes")
    parser.add_argument("--permutations", type=int, default=199)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--labels", choices=("real", "noise"), default="real")
    parser.add_argument("--choose", choices=("anew", "fixed"), default="anew")
    parser.add_argument("--quick", action="store_true", help="a grid of 3 × 3 instead of the default one")
    options = parser.parse_args()
    grid = {"p": [1.0, 1.5, 4.0], "lam": [1e-4, 1e-2, 1.0]} if options.quick else None
    with np.load(options.data) as data:
        tables = {name: data[name] for name in data.files if data[name].ndim == 2 and name != "split"}
        labels = data["label"]
    rows = _balanced_rows(labels, options.samples or len(labels))
    y = labels[rows] if options.labels == "real" else np.random.default_rng(0).permutation(labels[rows])
    kernels = {name: K for table, x in tables.items() for name, K in _kernels(table, x[rows].astype(np.float64))}
    with tempfile.TemporaryDirectory() as folder:
        matrices = (kernels[name].astype(np.float32) for name in kernels)
        K = dmkl.create(Path(folder) / "set", matrices, names=list(kernels), labels=y)
        model = dmkl.MKFDA()
        start = _clocks()
        search = dmkl.search(model, K, None, grid, options.folds, refit=False)
        search_time = _clocks() - start
        print(search.summary(), flush=True)
        start = _clocks()
        test = dmkl.permutation_test(
            model, K, None, grid, options.permutations, cv=options.folds, choose=options.choose
        )
        test_time = _clocks() - start
    print(test.summary())
    print(
        f"search {search.n_passes_:g} passes, {search_time[0]:.1f} s, {search_time[1]:.1f} CPU seconds; test "
        f"{test.n_passes_:g} passes, {test_time[0]:.1f} s, {test_time[1]:.1f} CPU seconds: "
        f"{test.n_passes_ / search.n_passes_:.2f} times the passes, {test_time[0] / search_time[0]:.1f} times the "
        f"seconds, {test_time[1] / search_time[1]:.1f} times the CPU seconds"
    )


def _clocks() -> np.ndarray:
    """Return wall-clock seconds, and CPU seconds of this process, in whose threads the passes run."""
    return np.array([time.perf_counter(), time.process_time()])


def _balanced_rows(labels: np.ndarray, n: int) -> np.ndarray:
    """Return n rows, with balanced classes."""
    rng, classes = np.random.default_rng(0), np.unique(labels)
    each = [rng.permutation(np.flatnonzero(labels == label))[: n // len(classes) + 1] for label in classes]
    return np.sort(np.concatenate(each) if n < len(labels) else np.arange(len(labels)))[:n]


def _kernels(name: str, x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield one χ² kernel of a table of histograms, or five RBF kernels of another table."""
    if x.min() >= 0 and x.shape[1] > 170 and name not in ("fac", "pix"):
        x = x / np.maximum(x.sum(axis=1, keepdims=True), 1e-12)
        d = np.stack([np.sum((x - row) ** 2 / np.maximum(x + row, 1e-12), axis=1) for row in x])
        yield name, np.exp(-d / d.mean())
        return
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-12)
    squares = np.sum(x**2, axis=1)
    d = np.maximum(squares[:, None] + squares - 2.0 * x @ x.T, 0.0)
    for scale in (0.25, 0.5, 1.0, 2.0, 4.0):
        yield f"{name}-{scale:g}", np.exp(-d / (scale * d.mean()))


if __name__ == "__main__":
    main()
