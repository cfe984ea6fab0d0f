"""Whether the smallest λ of the default grid may be left out where samples are few: what the choice loses in test.

    python pipelines/small_ridges.py

On m samples a λ below 1/m², for kernels of unit trace, shrinks a direction with the mean eigenvalue 1/m by less than a
part in m, which accuracy on so few samples could hardly show. That takes a spectrum without a long tail, or labels with
noise: where there are neither, as on the spirals, small λ is what is needed. Each search is on m samples in five folds,
and is made once, on ten values of λ; the choice among those of 1/m² and more is then compared with the choice among
all, on rows that neither has seen, over several draws of the samples.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, make_moons
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

import dmkl

SETS = ("cancer", "digits", "moons", "views", "spirals")
RIDGES = [10.0**k for k in range(-8, 2)]
NORMS = [1, 1.5, np.inf]
TESTED = 250
"""Test rows at most."""


def main() -> None:
    """Draw, search, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[60, 120, 250])
    parser.add_argument("--draws", type=int, default=6)
    options = parser.parse_args()
    print("set       samples  λ kept  all λ, test  those kept  difference, paired over draws")
    for name in options.sets:
        for m in options.sizes:
            pairs = np.array([compared(name, m, seed) for seed in range(options.draws)])
            difference = pairs[:, 1] - pairs[:, 0]
            error = difference.std(ddof=1) / np.sqrt(len(difference))
            everything, kept = pairs.mean(axis=0)
            print(
                f"{name:<10}{m:>7}{len(kept_of(m)):>8}{everything:>13.4f}{kept:>12.4f}"
                f"{difference.mean():>+11.4f} ± {error:.4f}",
                flush=True,
            )


def kept_of(m: int) -> list[float]:
    """The λ of 1/m² and more."""
    return [lam for lam in RIDGES if lam >= 1 / m**2]


def compared(name: str, m: int, seed: int) -> tuple[float, float]:
    """Accuracy on the test rows of the choice among all λ, and among those of 1/m² and more."""
    kernels, labels = drawn(name, m + TESTED, np.random.default_rng(seed))
    test = np.arange(m, len(labels))
    folds = [(train, held, test) for train, held in StratifiedKFold(5).split(np.zeros(m), labels[:m])]
    found = dmkl.search(
        dmkl.MKFDA(), kernels, labels, {"p": NORMS, "lam": RIDGES}, folds, choice="joint", refit=False, baselines="none"
    )
    light = dmkl.SearchResult(found.scores.sel(lam=kept_of(m)))
    return float(found.chosen["test_score"].mean()), float(light.chosen["test_score"].mean())


def drawn(name: str, n: int, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
    """Kernels and labels of n samples, or of as many as there are."""
    labels = rng.integers(0, 2, n)
    if name == "views":
        shifts = (0.3, 0.15, 0.1, 0.0, 0.0)
        return [linear_kernel(rng.normal(size=(n, 50)) + labels[:, None] * shift) for shift in shifts], labels
    if name == "spirals":
        angle = rng.uniform(0.5, 3.5, n) * np.pi
        turned = angle + np.pi * labels
        x = angle[:, None] * np.stack([np.cos(turned), np.sin(turned)], axis=1)
    elif name == "moons":
        x, labels = make_moons(n, noise=0.2, random_state=int(rng.integers(2**31)))
    else:
        x, labels = {"cancer": load_breast_cancer, "digits": load_digits}[name](return_X_y=True)
        chosen = rng.permutation(len(labels))[:n]
        x, labels = x[chosen], labels[chosen]
    x = StandardScaler().fit_transform(x)
    widths = np.array([0.02, 0.2, 0.6, 2.0]) / x.shape[1]
    return [linear_kernel(x), *(rbf_kernel(x, gamma=gamma) for gamma in widths)], labels


if __name__ == "__main__":
    main()
