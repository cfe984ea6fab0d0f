"""Weights by normalized cuts over types of features, numbers of kernels and training sizes (NCuts Figure 1 (b) to (d)).

    python pipelines/ncuts_figures.py
    python pipelines/ncuts_figures.py --panels b --pairs 2        # one of them, on fewer pairs of classes

Section 4.1 of Mukherjee, Singh, Peng, Hinrichs (CVPR 2010), on handwritten digits in place of Caltech101, with C = 10
and ten training samples of each class:

(b) pairs of classes, with 4 and 12 kernels of one type of features: cuts, spectral learning, ℓ1 MK-SVM, the average;
(c) pairs, and all classes: 5 to 30 kernels drawn ten times from 150: cuts, the average, the best single kernel (chosen
    by its accuracy on the tested samples, as published) and the mean of single kernels;
(d) all classes with 10 to 30 training samples of each, 39 kernels.

The types are pixels ("ink"), absolute differences of neighbors ("edges"), and whether a pixel is darker than the pixel
below and to the right ("patterns"); each has 50 RBF kernels of four columns. (a) is in `ncuts.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ncuts import models as ncuts_models
from sklearn.datasets import load_digits
from sklearn.svm import SVC

import dmkl

N_OF_TYPE, N_TESTED = 50, 30
Rows = tuple[np.ndarray, np.ndarray]


def kernels(seed: int = 0) -> dmkl.KernelSet:
    """Return 150 kernels of 600 digits, those of each type side by side."""
    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    rows = np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:60] for k in range(10)])
    images = images[rows].reshape(-1, 8, 8)
    down, right = np.diff(images, axis=1).reshape(600, -1), np.diff(images, axis=2).reshape(600, -1)
    both = np.hstack([down, right])
    views = {}
    for name, columns in {"ink": images.reshape(600, -1), "edges": np.abs(both), "patterns": 1.0 * (both > 0)}.items():
        varying = np.flatnonzero(columns.std(axis=0) > 0.2 * columns.std())
        views |= {f"{name} {k}": columns[:, rng.choice(varying, 4, replace=False)] for k in range(N_OF_TYPE)}
    specs = {"function": "rbf", "feature": "*", "bandwidth": 1}
    return dmkl.build(None, views, specs, labels=labels[rows]).persist()


def draw_rows(labels: np.ndarray, classes: Sequence[int], n_train: int, rng: np.random.Generator) -> Rows:
    """Draw training and test rows of some classes."""
    shuffled = [rng.permutation(np.flatnonzero(labels == k)) for k in classes]
    parts = slice(n_train), slice(n_train, n_train + N_TESTED)
    train, test = (np.concatenate([rows[part] for rows in shuffled]) for part in parts)
    return train, test


def accuracies(K: dmkl.KernelSet, rows: Rows, names: Sequence[str]) -> dict[str, float]:
    """Return the accuracy of models in percent."""
    train, test = rows
    learners: dict[str, Any] = ncuts_models(len(K)) | {"ℓ1 MK-SVM": dmkl.MKSVM(1.0, 10.0, steps=("cosine",))}
    fitted = {name: learners[name].fit(K[train, train]) for name in names}
    return {k: 100 * float((model.predict(K[test, train]) == K.labels[test]).mean()) for k, model in fitted.items()}


def single_accuracies(K: dmkl.KernelSet, rows: Rows) -> np.ndarray:
    """Return the accuracy of a support vector machine on each kernel."""
    (train, test), y = rows, K.labels
    machines = [(SVC(C=10, kernel="precomputed").fit(k[np.ix_(train, train)], y[train]), k) for k in np.asarray(K)]
    return np.array([100 * (machine.predict(k[np.ix_(test, train)]) == y[test]).mean() for machine, k in machines])


def panel_b(K: dmkl.KernelSet, pairs: Sequence[Rows], draws: int) -> Iterator[dict[str, Any]]:
    """Compare models on kernels of one type."""
    for place, name in enumerate(("ink", "edges", "patterns")):
        for count in (4, 12):
            of_type = K.select(slice(place * N_OF_TYPE, place * N_OF_TYPE + count))
            for rows in pairs:
                scores = accuracies(of_type, rows, ["ncuts", "spectral a = 10", "ℓ1 MK-SVM", "uniform machine"])
                yield {"type": name, "kernels": count} | scores


def panel_c(K: dmkl.KernelSet, pairs: Sequence[Rows], draws: int) -> Iterator[dict[str, Any]]:
    """Compare cuts with single kernels."""
    rng = np.random.default_rng(1)
    for title, several in {"pairs": pairs, "all": [draw_rows(K.labels, range(10), 10, rng)]}.items():
        for rows in several:
            single = single_accuracies(K, rows)
            for count in (5, 10, 15, 20, 25, 30):
                for _ in range(draws):
                    chosen = rng.choice(len(K), count, replace=False)
                    scores = accuracies(K.select(chosen), rows, ["ncuts", "uniform machine"])
                    scores |= {"best kernel": single[chosen].max(), "mean of kernels": single[chosen].mean()}
                    ahead = 100.0 * (scores["ncuts"] > scores["best kernel"])
                    yield {"classes": title, "kernels": count} | scores | {"ahead of the best, %": ahead}


def panel_d(K: dmkl.KernelSet, pairs: Sequence[Rows], draws: int) -> Iterator[dict[str, Any]]:
    """Compare models over the number of training samples."""
    chosen = K.select([place * N_OF_TYPE + k for place in range(3) for k in range(13)])
    for size in (10, 15, 20, 25, 30):
        for seed in range(min(3, draws)):
            rows = draw_rows(K.labels, range(10), size, np.random.default_rng(seed))
            yield {"training samples": size} | accuracies(chosen, rows, ["ncuts", "ℓ1 MK-SVM", "uniform machine"])


PANELS = {
    "b": (panel_b, ["type", "kernels"]),
    "c": (panel_c, ["classes", "kernels"]),
    "d": (panel_d, ["training samples"]),
}


def main() -> None:
    """Run the panels, print and save the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panels", nargs="+", choices=list(PANELS), default=list(PANELS))
    parser.add_argument("--pairs", type=int, default=12, help="random pairs of classes")
    parser.add_argument("--draws", type=int, default=10, help="random choices of kernels in (c)")
    parser.add_argument("--output", type=Path, default=Path("out/ncuts_figures"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    K, rng = kernels(), np.random.default_rng(0)
    pairs = [draw_rows(K.labels, rng.choice(10, 2, replace=False), 10, rng) for _ in range(options.pairs)]
    for name in options.panels:
        panel, keys = PANELS[name]
        table = pd.DataFrame(panel(K, pairs, options.draws)).groupby(keys, sort=False).mean().reset_index()
        table.to_csv(options.output / f"panel-{name}.csv", index=False)
        print(f"({name})\n{table.to_string(index=False, float_format='%.1f')}\n", flush=True)


if __name__ == "__main__":
    main()
