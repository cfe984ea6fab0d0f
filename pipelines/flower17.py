"""Learn the weights of χ² kernels of the Oxford Flower17 images, on predefined splits.

    python pipelines/flower17.py flower17.npz --output out/flower17

The file holds views of L1-normalised histograms, (samples, bins) each, beside `label` and `split` (split, sample: 0
train, 1 validation, 2 test). `flower17.toml`, in the folder of this script, defines the kernels: exp(−χ²/η) with
χ²(x, y) = Σ (x − y)²/(x + y) and η its mean over pairs of training samples of the first split. λ, or C of the support
vector machines on the uniform sum, is chosen on the validation part of each split, for a model trained on train alone.
The table has these machines both with scikit-learn's default for several classes (one-vs-one voting) and with
one-vs-rest by the largest score.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import balanced_accuracy_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC

import dmkl

LAMS = [10.0**k for k in range(-6, 1)]
COSTS = [10.0**k for k in range(-2, 4)]
NORMS = [1.0, 1 + 2**-6, 1.5, 2.0, 8.0, np.inf]
Accuracy = Callable[[np.ndarray], float]


def histograms(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return the views with rows that sum to one again after half precision, the labels and the splits."""
    with np.load(path) as data:
        names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
        views = {name: data[name].astype(np.float32) for name in names}
        return {k: v / v.sum(axis=1, keepdims=True) for k, v in views.items()}, data["label"], data["split"]


def discriminant(make: Callable[[float], Any], K: dmkl.KernelSet, lam: float, train: np.ndarray) -> Accuracy:
    """Fit a model of dmkl; return its mean class accuracy as a function of the rows."""
    model = make(lam).fit(K[train, train])
    return lambda rows: float(balanced_accuracy_score(K.labels[rows], model.predict(K[rows, train])))


def machine(model: Any, total: np.ndarray, labels: np.ndarray, train: np.ndarray) -> Accuracy:
    """Fit support vector machines on a kernel matrix; return their mean class accuracy as a function of the rows."""
    model.fit(total[np.ix_(train, train)], labels[train])
    return lambda rows: float(balanced_accuracy_score(labels[rows], model.predict(total[np.ix_(rows, train)])))


def report(title: str, K: dmkl.KernelSet, fit: Callable[[float, np.ndarray], Accuracy], grid: list[float]) -> None:
    """Choose a grid value on the validation part of each split, and print the accuracies."""
    results, chosen = [], []
    for number in range(len(K.splits)):
        train, validation, test = K.split(number)
        accuracies = [[accuracy(rows) for rows in (validation, test)] for accuracy in (fit(v, train) for v in grid)]
        best = max(range(len(grid)), key=lambda k: accuracies[k][0])
        results.append(accuracies[best])
        chosen.append(f"{grid[best]:g}")
    means, spread = np.mean(results, axis=0), np.std(results, axis=0, ddof=1)
    print(f"{title:<26}{means[0]:12.3f}{means[1]:10.3f} ± {spread[1]:.3f}   {' '.join(chosen)}", flush=True)


def main() -> None:
    """Build the kernels, fit the models and print the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("out/flower17"))
    options = parser.parse_args()
    store = options.output / "kernels.zarr"
    if not store.exists():
        views, labels, splits = histograms(options.data)
        dmkl.build(store, views, Path(__file__).with_suffix(".toml"), labels=labels, splits=splits)
    K = dmkl.open(store)
    print(K)
    print(f"{'model':<26}{'validation':>12}{'test':>18}   lam, or C, of each split")
    total = np.asarray(K).mean(axis=0)
    for title, strategy in (("1-vs-1", lambda svc: svc), ("1-vs-rest", OneVsRestClassifier)):
        svm = lambda C, train, strategy=strategy: machine(  # noqa: E731
            strategy(SVC(C=C, kernel="precomputed")), total, K.labels, train
        )
        report(f"uniform sum, SVM {title}", K, svm, COSTS)
    models: dict[str, Callable[[float], Any]] = {f"MK-FDA p = {p:g}": lambda v, p=p: dmkl.MKFDA(p, v) for p in NORMS}
    models |= {"uniform sum, MK-FDA": dmkl.Uniform, "product, MK-FDA": dmkl.Product}
    for title, make in models.items():
        report(title, K, lambda v, train, make=make: discriminant(make, K, v, train), LAMS)
    for name in K.names:
        kernel = K.select(name)
        fit = lambda v, train, kernel=kernel: discriminant(lambda lam: dmkl.MKFDA(1.0, lam), kernel, v, train)  # noqa: E731
        report(f"single: {name}", kernel, fit, LAMS)


if __name__ == "__main__":
    main()
