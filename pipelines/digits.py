"""Search, evaluate, compare and explain kernels of handwritten digits, from arrays to a report, in fifteen lines.

    python pipelines/digits.py --output out/digits

The kernels are computed from four quarters of scikit-learn's images (q1 to q4), from their Fourier magnitudes (FFT) and
from noise, each with two bandwidths. The search chooses p and λ. Nested cross-validation estimates its score on new
images and compares it with the sum of the kernels. Fits to half of the samples at p = 1 show how stable the weights
are. The report is one page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import dmkl


def compare_views(folder: Path, n_samples: int, n_resamples: int) -> None:
    """Build the kernels, search, evaluate, resample, and write the report."""
    images, y = (values[:n_samples] for values in load_digits(return_X_y=True))
    images = images.reshape(-1, 8, 8)
    quarters = [part for half in np.split(images, 2, axis=1) for part in np.split(half, 2, axis=2)]
    views = {f"q{k}": quarter for k, quarter in enumerate(quarters, 1)}
    views |= {"FFT": np.abs(np.fft.rfft2(images)), "noise": np.random.default_rng(0).normal(size=(len(y), 20))}
    views = {name: view.reshape(len(y), -1) for name, view in views.items()}
    spec = {"function": "rbf", "bandwidth": [0.5, 2]}
    K = dmkl.build(folder / "kernels.zarr", views, spec, labels=y, overwrite=True)
    grid = {"p": [1, 1.2, 1.5, 2, np.inf], "lam": [1e-3, 0.01, 0.1, 1]}
    result = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3)
    estimate = dmkl.evaluate(dmkl.MKFDA(), K, grid=grid, outer=5, inner=3, baselines="rules")
    # At p = ∞, which the search may choose, all weights are equal.
    stability = dmkl.stability(dmkl.MKFDA(p=1, lam=result.best_params_["lam"]), K, n_resamples=n_resamples)
    print(result, estimate, stability, sep="\n\n")
    dmkl.report([result, estimate, stability], folder / "report.html")


def main() -> None:
    """Parse the options, and run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--resamples", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("out/digits"))
    options = parser.parse_args()
    compare_views(options.output, options.samples, options.resamples)


if __name__ == "__main__":
    main()
