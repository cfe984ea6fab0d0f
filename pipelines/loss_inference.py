"""Permutation tests, importance and stability of MKLogistic and MKCox beside MK-FDA: passes and seconds of each.

    python pipelines/loss_inference.py                      # digits of scikit-learn, below 5 or not
    python pipelines/loss_inference.py --survival GBSG2     # scikit-survival; MK-FDA has the events as classes

The digits have two Gaussian kernels of the upper half, of the lower half and of the whole of each image; survival sets
have the kernels of `survival.py`. Grids have two norms and two ridges. Every line is printed when its call is over.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import euclidean_distances

import dmkl


def digits(n: int | None) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Kernels of the first digits, and whether each is at least 5."""
    X, y = (values[:n] for values in load_digits(return_X_y=True))
    kernels = {}
    for part, rows in {"upper": slice(32), "lower": slice(32, 64), "whole": slice(64)}.items():
        squares = euclidean_distances(X[:, rows], squared=True)
        kernels |= {f"{part} {factor:g}": np.exp(-squares / (factor * squares.mean())) for factor in (0.25, 1.0)}
    return kernels, y >= 5


def main() -> None:
    """Search, test, and assess the kernels with each learner; print a line for each call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--survival", help="a set of survival.py; the digits by default")
    parser.add_argument("--samples", type=int, help="number of digits; all by default")
    parser.add_argument("--permutations", type=int, default=9)
    parser.add_argument("--resamples", type=int, default=10)
    options = parser.parse_args()
    learners: dict[str, tuple[Any, np.ndarray, list[float]]]
    if options.survival:
        import survival

        tables, times = survival.load(options.survival)
        kernels = survival.kernels_of(tables)
        learners = {"MK-FDA": (dmkl.MKFDA(), times > 0, [0.01, 1.0]), "Cox": (dmkl.MKCox(), times, [1.0, 10.0])}
    else:
        kernels, y = digits(options.samples)
        learners = {"MK-FDA": (dmkl.MKFDA(), y, [0.01, 1.0]), "logistic": (dmkl.MKLogistic(), y, [0.01, 1.0])}
    K = dmkl.create(None, kernels, dtype="float32")
    print(f"{len(kernels)} kernels of {K.shape[1]:,} samples\n{'':10}{'':18}{'passes':>8}{'wall s':>9}{'CPU s':>9}")
    for name, (model, y, ridges) in learners.items():
        grid = {"p": [1.0, 2.0], "lam": ridges}
        calls = {
            "search": partial(dmkl.search, model, K, y, grid, 3, refit=False, baselines="none"),
            "permutation test": partial(dmkl.permutation_test, model, K, y, grid, options.permutations, cv=3),
            "importance": partial(dmkl.importance, model, K, y, grid, cv=3),
            "stability": partial(dmkl.stability, model, K, y, n_resamples=options.resamples),
        }
        for title, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            passes = call().n_passes_
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(f"{name:10}{title:18}{passes:>8g}{wall:>9.1f}{cpu:>9.1f}", flush=True)


if __name__ == "__main__":
    main()
