"""Accuracy of four kinds of kernel weights with 10 to 30 training images of each class (GS-MKL Figure 3, Table 3).

    python pipelines/training_sizes.py                                         # a replica: classes of two digits each
    python pipelines/training_sizes.py out/compare_models/flower17/kernels-0.zarr --sizes 10 30 --runs 3

Section 5.4 of Yang, Li, Tian, Duan, Gao (ICCV 2009): equal weights (UMK), weights for each class (MKL), weights that
are a function of the sample (SS-MKL, here `dmkl.LocalizedMKL`, as in the paper) and weights of groups (GS-MKL), over
runs with other random images. The paper's topics have several kinds of images. A class of the replica is "0 or 1",
"2 or 3", …: two kinds of images, in equal parts, by seven kernels of a few pixels each.

Ten more images of each class choose C and, for GS-MKL, the number of groups of each class (1 to 3) by the mean class
accuracy; groups are those of kernel k-means, the paper's are those of pLSA. Of the other images at most 60 of each
class are tested.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from compare_models import test_scores
from sklearn.datasets import load_digits

import dmkl

COSTS = [1.0, 10.0, 100.0]
N_VALIDATION, MOST_TESTED = 10, 60


def methods(n: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return learners and grids; C has the same meaning for n equal weights, which MKL and GS-MKL begin at."""
    return {
        "UMK": (dmkl.MKSVM(np.inf), {"C": [C / n for C in COSTS]}),
        "MKL": (dmkl.MKSVM(1.0), {"C": COSTS}),
        "SS-MKL": (dmkl.LocalizedMKL(max_iter=50), {"C": [C * n for C in COSTS]}),
        "GS-MKL": (dmkl.GSMKL(tol=3e-3, max_iter=30), {"C": COSTS, "n_groups": [1, 2, 3]}),
    }


def replica(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return seven RBF kernels of four pixels each of 1,000 digits, and the classes, of two digits each."""
    rng = np.random.default_rng(seed)
    images, digits = load_digits(return_X_y=True)
    rows = np.concatenate([rng.permutation(np.flatnonzero(digits == k))[:100] for k in range(10)])
    pixels = np.flatnonzero(images.std(axis=0) > 1.6)
    views = {f"view {k}": images[rows][:, rng.choice(pixels, 4, replace=False)] for k in range(7)}
    K = dmkl.build(None, views, {"function": "rbf", "feature": "*", "bandwidth": 1})
    return np.asarray(K), digits[rows] // 2


def draw_splits(labels: np.ndarray, n_train: int, runs: int) -> np.ndarray:
    """Return splits (run, sample) with the given number of training samples of each class."""
    splits = np.full((runs, len(labels)), -1, dtype=np.int8)
    for seed, split in enumerate(splits):
        rng = np.random.default_rng(seed)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))[: n_train + N_VALIDATION + MOST_TESTED]
            split[rows] = 2
            split[rows[: n_train + N_VALIDATION]] = 1
            split[rows[:n_train]] = 0
    return splits


def main() -> None:
    """Search with each method for each size, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path, nargs="?", help="a kernel set with classes; default: the replica")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 15, 20, 25, 30], help="training images of a class")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("out/training_sizes"))
    options = parser.parse_args()
    if options.kernels is None:
        kernels, labels = replica()
    else:
        K = dmkl.open(options.kernels)
        kernels, labels = np.asarray(K), np.asarray(K.labels)
    rows = []
    for size in options.sizes:
        K = dmkl.create(None, kernels, labels=labels, splits=draw_splits(labels, size, options.runs))
        for name, (learner, grid) in methods(len(kernels)).items():
            result = dmkl.search(
                learner,
                K,
                grid=grid,
                cv="splits",
                scoring="mean_class_accuracy",
                choice="fold",
                refit=False,
                baselines="none",
            )
            test = 100 * test_scores(result, learner, K)
            row = {"training images": size, "method": name, "accuracy": test.mean(), "± deviation": test.std(ddof=1)}
            rows.append(row)
            print(pd.DataFrame([row]).to_string(index=False, header=len(rows) == 1, float_format="%.1f"), flush=True)
    table = pd.DataFrame(rows)
    options.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.output / "table.csv", index=False)
    by_size = table.pivot(index="method", columns="training images", values="accuracy")
    print("\n" + by_size.to_string(float_format="%.1f"))


if __name__ == "__main__":
    main()
