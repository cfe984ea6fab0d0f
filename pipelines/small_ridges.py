"""Loss of test accuracy if a search of few samples omits the smallest λ of the default grid.

    python pipelines/small_ridges.py

On m samples a λ below 1/m², for kernels of unit trace, shrinks a direction with the mean eigenvalue 1/m by a fraction
of less than 1/m, which hardly changes accuracy on m samples. This requires a spectrum without a long tail, or noisy
labels; without either, as on the spirals, the best λ is small. Each search uses m samples, five folds and ten values of
λ. The choice among λ ≥ 1/m² is compared with the choice among all λ, on unseen rows, over several draws of the samples.
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
MAX_TEST = 250
"""Maximum number of test rows."""


def main() -> None:
    """Draw the samples, search, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--sizes", type=int, nargs="+", default=[60, 120, 250])
    parser.add_argument("--draws", type=int, default=6)
    options = parser.parse_args()
    print("set       samples  λ kept  all λ, test  those kept  difference, paired over draws")
    for name in options.sets:
        for m in options.sizes:
            pairs = np.array([compare_choices(name, m, seed) for seed in range(options.draws)])
            difference = pairs[:, 1] - pairs[:, 0]
            error = difference.std(ddof=1) / np.sqrt(len(difference))
            everything, kept = pairs.mean(axis=0)
            print(
                f"{name:<10}{m:>7}{len(large_ridges(m)):>8}{everything:>13.4f}{kept:>12.4f}"
                f"{difference.mean():>+11.4f} ± {error:.4f}",
                flush=True,
            )


def large_ridges(m: int) -> list[float]:
    """Return the values of λ ≥ 1/m²."""
    return [lam for lam in RIDGES if lam >= 1 / m**2]


def compare_choices(name: str, m: int, seed: int) -> tuple[float, float]:
    """Return the test accuracy of the choice among all λ, and among λ ≥ 1/m²."""
    kernels, labels = draw_samples(name, m + MAX_TEST, np.random.default_rng(seed))
    test = np.arange(m, len(labels))
    folds = [(train, validation, test) for train, validation in StratifiedKFold(5).split(np.zeros(m), labels[:m])]
    result = dmkl.search(
        dmkl.MKFDA(), kernels, labels, {"p": NORMS, "lam": RIDGES}, folds, choice="joint", refit=False, baselines="none"
    )
    restricted = dmkl.SearchResult(result.scores.sel(lam=large_ridges(m)))
    return float(result.chosen["test_score"].mean()), float(restricted.chosen["test_score"].mean())


def draw_samples(name: str, n: int, rng: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
    """Return kernels and labels of n samples, or of all samples of a smaller data set."""
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
