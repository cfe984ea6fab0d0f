"""Learn the weights of χ² kernels of the Oxford Flower17 images, on predefined splits.

    python pipelines/flower17.py flower17.npz --output out/flower17

The file holds views of L1-normalised histograms, (samples, bins) each, beside `label` and `split` (split, sample: 0
train,
1 validation, 2 test). The kernel of a view is exp(−χ²/η) with χ²(x, y) = Σ (x − y)²/(x + y) and η its mean over pairs
of
training samples of the first split. λ is chosen on the validation part of each split, the model trained on train alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.metrics import balanced_accuracy_score
from sklearn.metrics.pairwise import additive_chi2_kernel

import dmkl

LAMS = [10.0**k for k in range(-6, 1)]
NORMS = [1.0, 1 + 2**-6, 1.5, 2.0, 8.0, np.inf]


def chi2_kernels(data: np.lib.npyio.NpzFile, names: list[str], train: np.ndarray) -> Iterator[np.ndarray]:
    """One kernel after another, float32."""
    for name in names:
        view = data[name].astype(np.float64)
        view /= view.sum(axis=1, keepdims=True)
        distance = -additive_chi2_kernel(view)
        yield np.exp(-distance / distance[np.ix_(train, train)].mean()).astype(np.float32)


def main() -> None:
    """Import, check, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("out/flower17"))
    options = parser.parse_args()
    with np.load(options.data) as data:
        names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
        labels, splits = data["label"], data["split"]
        store = options.output / "kernels.zarr"
        kernels = (
            dmkl.open(store)
            if store.exists()
            else dmkl.create(
                store,
                chi2_kernels(data, names, np.flatnonzero(splits[0] == 0)),
                names=names,
                labels=labels,
                splits=splits,
            )
        )
    print(kernels)
    models = {f"MK-FDA p = {p:g}": lambda lam, p=p: dmkl.MKFDA(p, lam) for p in NORMS}
    models |= {"uniform sum": dmkl.Uniform, "product": dmkl.Product}
    models |= {f"single: {name}": lambda lam: dmkl.MKFDA(1.0, lam) for name in names}
    print(f"{'model':<26}{'validation':>12}{'test':>18}   lam of each split")
    for title, make in models.items():
        chosen = kernels.select(title.removeprefix("single: ")) if title.startswith("single") else kernels
        results, best_lams = [], []
        for number in range(len(splits)):
            train, validation, test = chosen.split(number)
            scores = []
            for lam in LAMS:
                model = make(lam).fit(chosen[train, train])
                scores.append([accuracy(model, chosen, rows, train) for rows in (validation, test)])
            best = max(range(len(LAMS)), key=lambda k: scores[k][0])
            results.append(scores[best])
            best_lams.append(f"{LAMS[best]:g}")
        means, spread = np.mean(results, axis=0), np.std(results, axis=0, ddof=1)
        print(f"{title:<26}{means[0]:12.3f}{means[1]:10.3f} ± {spread[1]:.3f}   {' '.join(best_lams)}")


def accuracy(model: dmkl.MKFDA, kernels: dmkl.KernelSet, rows: np.ndarray, train: np.ndarray) -> float:
    """Mean class accuracy on some rows."""
    return float(balanced_accuracy_score(kernels.labels[rows], model.predict(kernels[rows, train])))


if __name__ == "__main__":
    main()
