"""CPU seconds of small jobs in one process: a fit, a search of the default grid, predictions of one row and of many.

    python pipelines/small_jobs.py

Iris has 150 samples and here five linear kernels, of each feature and of all. Models with three kinds of kernels of 300
samples × 10 features are saved and loaded, and predict one new sample. The Gaussian one predicts 10,000 too, beside
scikit-learn's SVC on the sum of the same kernels, and is loaded from a file of what predictions need. Each figure is
the least of several runs, and BLAS has one thread.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import tempfile
import time
import timeit
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.datasets import load_iris
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

import dmkl

SPECS = {
    "rbf": {"function": "rbf", "bandwidth": [0.5, 1.0, 2.0]},
    "linear": {"function": "linear"},
    "rbf, rank=100": {"function": "rbf", "rank": 100},
}


def least(job: Callable[[], object], n_runs: int) -> float:
    """Return the least CPU seconds of several runs, after one that is not measured."""
    job()
    return min(timeit.repeat(job, timer=time.process_time, number=1, repeat=n_runs))


def gaussian(new: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the sum of Gaussian kernels with three bandwidths."""
    return np.sum([rbf_kernel(new, table, gamma) for gamma in (0.02, 0.05, 0.2)], axis=0)


def main() -> None:
    """Print a line for each job."""
    warnings.simplefilter("ignore", dmkl.errors.ConstantKernelWarning)
    X, y = load_iris(return_X_y=True)
    kernels = [X[:, [j]] @ X[:, [j]].T for j in range(4)] + [X @ X.T]
    K = dmkl.create(None, np.stack(kernels), labels=y)
    print(f"fit                     {least(lambda: dmkl.MKFDA().fit(kernels, y), 30):.4f} s", flush=True)
    print(f"fit, SVC of the sum     {least(lambda: SVC(kernel='precomputed').fit(sum(kernels), y), 30):.4f} s")
    print(f"search, default grid    {least(lambda: dmkl.search(dmkl.MKFDA(), K, cv=5), 3):.2f} s", flush=True)
    rng = np.random.default_rng(0)
    table, new, many = rng.normal(size=(300, 10)), {"x": rng.normal(size=(1, 10))}, rng.normal(size=(10_000, 10))
    labels = (table[:, 0] + 0.3 * rng.normal(size=300) > 0).astype(int)
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for name, spec in SPECS.items():
            model = dmkl.MKFDA().fit(dmkl.build(None, {"x": table}, spec, labels=labels))
            model.save(f"{folder}/{name}.zip", compact=True)
            model.save(f"{folder}/{name}")
            models[name] = dmkl.load(f"{folder}/{name}")
            print(
                f"predict, {name:15}{1e3 * least(partial(models[name].predict, features=new), 30):.1f} ms", flush=True
            )
        print(f"load one file           {least(lambda: dmkl.load(f'{folder}/rbf.zip'), 10):.3f} s")
        print(f"predict 10,000 rows     {least(lambda: models['rbf'].predict(features={'x': many}), 10):.3f} s")
    svm = SVC(kernel="precomputed").fit(gaussian(table, table), labels)
    print(f"the same, SVC           {least(lambda: svm.predict(gaussian(many, table)), 10):.3f} s")


if __name__ == "__main__":
    main()
