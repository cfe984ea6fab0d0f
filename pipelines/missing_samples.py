"""Accuracy where samples lack some kernels: without these samples, and with them by join="outer".

    python pipelines/missing_samples.py flower17.npz --output out/missing_samples

The file holds views of L1-normalised histograms, `label` and `split`, as for `flower17.py`. A random share of the
samples is removed from each view, and each view becomes a data frame of its remaining samples, in random order. Three
sets are built: from the complete views, as reference; with join="inner", which keeps only samples of all views; with
join="outer", which uses the available views of each sample. MK-FDA is trained on the training part of each split, with
λ chosen on its validation part (the samples of both that the set contains). Mean class accuracy is measured on the test
samples of all views, which each set can predict, and on all test samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from flower17 import histograms
from sklearn.metrics import balanced_accuracy_score

import dmkl

SPECS = {"function": "chi2", "bandwidth": 1.0}
LAMS = [10.0**k for k in range(-6, 1)]


def frames(views: dict[str, np.ndarray], share: float, rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    """Return each view without a random share of the samples, shuffled."""
    tables = {}
    for name, values in views.items():
        rows = rng.permutation(len(values))[round(share * len(values)) :]
        tables[name] = pd.DataFrame(values[rows], index=[f"image {row}" for row in rows])
    return tables


def accuracies(K: dmkl.KernelSet, number: int, everywhere: set[str]) -> dict[str, float]:
    """Return mean class accuracy on the test part of a split, with λ chosen on its validation part."""
    train, validation, test = K.split(number)
    labels, complete = K.labels, np.array([name in everywhere for name in K.samples])

    def accuracy(model: dmkl.MKFDA, rows: np.ndarray) -> float:
        return float(balanced_accuracy_score(labels[rows], model.predict(K[rows, train])))

    models = [dmkl.MKFDA(lam=lam).fit(K[train, train]) for lam in LAMS]
    best = max(models, key=lambda model: accuracy(model, validation))
    row = {"training samples": len(train), "complete": accuracy(best, test[complete[test]])}
    return row | {"all": accuracy(best, test) if len(test) > complete[test].sum() else np.nan}


def main() -> None:
    """Remove samples, build, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--share", type=float, default=0.1, help="share of the samples that each view lacks")
    parser.add_argument("--repetitions", type=int, default=3, help="number of random choices of the removed samples")
    parser.add_argument("--output", type=Path, default=Path("out/missing_samples"))
    options = parser.parse_args()
    views, labels, splits = histograms(options.data)
    names = [f"image {row}" for row in range(len(labels))]
    metadata = {"labels": pd.Series(labels, names), "splits": pd.DataFrame(splits.T, index=names)}
    rows = []
    for seed in range(options.repetitions):
        rng = np.random.default_rng(seed)
        incomplete = frames(views, options.share, rng)
        everywhere = set(names).intersection(*(frame.index for frame in incomplete.values()))
        for title, tables, join in (
            ("nothing missing", frames(views, 0.0, rng), "exact"),
            ("left out (inner)", incomplete, "inner"),
            ("kept (outer)", incomplete, "outer"),
        ):
            place = options.output / f"{title.split()[0]}{seed}.zarr"
            K = dmkl.build(place, tables, SPECS, **metadata, samples=names, join=join, overwrite=True)
            rows += [{"set": title} | accuracies(K, number, everywhere) for number in range(len(splits))]
            print(title, seed, len(K.samples), pd.DataFrame(rows[-len(splits) :]).mean(numeric_only=True).to_dict())
    groups = pd.DataFrame(rows).groupby("set", sort=False)
    print(pd.concat({"mean": groups.mean(), "deviation": groups.std()}, axis=1).round(3).to_string())


if __name__ == "__main__":
    main()
