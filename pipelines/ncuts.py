"""Weights by normalized cuts, the uniform sum and MK-FDA, as noise kernels are added to kernels of real data.

    python pipelines/ncuts.py flower17.npz                            # χ² kernels of histograms, on the stored splits
    python pipelines/ncuts.py uci_digits.npz --function rbf --bandwidth 0.25,0.5,1,2,4
    python pipelines/ncuts.py flower17.npz --pairs 40 --train 10      # random pairs of classes, as in the paper

The file holds views, (samples, columns) each, `label`, and optionally `split` (split, sample: 0 train, 1 validation, 2
test). Models train on the training and validation samples; without `split`, on three random halves. Noise kernels are
RBF kernels of random vectors. No parameter is chosen: C = 10, as in the paper, and λ as in the table of models;
spectral learning, which the paper compares, has several weights a of the eigengap.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedShuffleSplit

import dmkl

Rows = np.ndarray[Any, np.dtype[np.intp]]


def models(n: int) -> dict[str, Any]:
    """Return the compared models for n kernels; an SVM on the mean kernel with C is one on the sum with C / n."""
    return {
        "ncuts": dmkl.NCuts(),
        "ncuts, own weights": dmkl.NCuts(sharing="own"),
        "ncuts, joint": dmkl.NCuts(sharing="joint"),
        "ncuts, square loss": dmkl.NCuts(loss="square"),
        **{f"spectral a = {a:g}": dmkl.SpectralLearning(a) for a in (0.0, 10.0, 1e6)},
        "uniform machine": dmkl.MKSVM(np.inf, 10.0 / n, steps=("cosine",)),
        "uniform Fisher": dmkl.Uniform(1e-3),
        "MK-FDA p = 1": dmkl.MKFDA(1.0, 1e-3),
        "MK-FDA p = 1.5": dmkl.MKFDA(1.5, 1e-3),
    }


def kernels(options: argparse.Namespace) -> dmkl.KernelSet:
    """Open the set of view and noise kernels; build it if it does not exist."""
    store = options.output / "kernels.zarr"
    if store.exists():
        return dmkl.open(store)
    with np.load(options.data) as data:
        labels = data["label"]
        views = {name: data[name].astype(np.float32) for name in data.files if data[name].ndim == 2 and name != "split"}
        split = data["split"] if "split" in data else None
    if options.function == "chi2":
        views = {name: view / view.sum(axis=1, keepdims=True) for name, view in views.items()}
    else:
        views = {name: (view - view.mean(axis=0)) / (view.std(axis=0) + 1e-9) for name, view in views.items()}
    widths = [float(width) for width in options.bandwidth.split(",")]
    rng = np.random.default_rng(0)
    noise = {f"noise{k}": rng.standard_normal((len(labels), 20), dtype=np.float32) for k in range(max(options.noise))}
    specs = [{"function": options.function, "bandwidth": widths, "feature": name} for name in views]
    specs += [{"function": "rbf", "bandwidth": 1.0, "feature": name} for name in noise]
    return dmkl.build(store, views | noise, specs, labels=labels, splits=split)


def parts(K: dmkl.KernelSet, options: argparse.Namespace) -> Iterator[tuple[Rows, Rows]]:
    """Yield training and test rows: of the splits, or of random pairs of classes."""
    rng = np.random.default_rng(0)
    if options.pairs:
        classes = np.unique(K.labels)
        for _ in range(options.pairs):
            both = [rng.permutation(np.flatnonzero(K.labels == c)) for c in rng.choice(classes, 2, replace=False)]
            size = options.train
            yield (
                np.concatenate([rows[:size] for rows in both]),
                np.concatenate([rows[size : size + 50] for rows in both]),
            )
    elif K.splits is None:
        yield from StratifiedShuffleSplit(3, test_size=0.5, random_state=0).split(K.labels, K.labels)
    else:
        for number in range(len(K.splits)):
            train, validation, test = K.split(number)
            yield np.union1d(train, validation), test


def main() -> None:
    """Build, fit, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--function", choices=["chi2", "rbf"], default="chi2")
    parser.add_argument("--bandwidth", default="1", help="multiples of the mean distance")
    parser.add_argument("--noise", type=int, nargs="+", default=[0, 30], help="numbers of noise kernels")
    parser.add_argument("--pairs", type=int, default=0, help="random pairs of classes instead of all classes")
    parser.add_argument("--train", type=int, default=10, help="training samples of each class of a pair")
    parser.add_argument("--models", nargs="+", choices=list(models(1)), default=list(models(1)))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    options.output = options.output or Path("out/ncuts") / options.data.stem
    K = kernels(options)
    n_views = sum(not name.startswith("noise") for name in K.names)
    print(K, flush=True)
    rows = []
    for count in options.noise:
        chosen = K.select(slice(n_views + count))
        for name in options.models:
            if options.pairs and "," in name and "square" not in name:
                continue  # two classes have one cut
            started, scores, used, noisy = time.perf_counter(), [], [], []
            for train, test in parts(chosen, options):
                with dask.config.set(scheduler="threads"):
                    model = models(len(chosen))[name].fit(chosen[train, train])
                    predicted = model.predict(chosen[test, train])
                scores.append(balanced_accuracy_score(K.labels[test], predicted))
                weights = model.weights_.values.reshape(len(chosen), -1).mean(axis=1)
                used.append(np.count_nonzero(weights > 1e-6))
                noisy.append(weights[n_views:].sum() / weights.sum())
            rows.append(
                {
                    "noise": count,
                    "model": name,
                    "accuracy": np.mean(scores),
                    "±": np.std(scores, ddof=1) / np.sqrt(len(scores)),
                    "kernels": np.mean(used),
                    "weight of noise": np.mean(noisy),
                    "passes": model.n_passes_,
                    "seconds": time.perf_counter() - started,
                }
            )
            print(
                pd.DataFrame(rows[-1:]).to_string(index=False, header=len(rows) == 1, float_format="%.3f"), flush=True
            )
    table = pd.DataFrame(rows)
    table.to_csv(options.output / "table.csv", index=False)
    print("\n" + table.to_string(index=False, float_format="%.3f"))


if __name__ == "__main__":
    main()
