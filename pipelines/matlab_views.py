"""Predictions and a report from a MATLAB file of feature views, the usual form of multi-view data, in four commands.

    python pipelines/matlab_views.py --output out/matlab_views

The file has the usual form: `X`, a cell array with a matrix for each view, (features, samples), and `Y`, the classes,
numbered from one. The views are those of scikit-learn's handwritten digits: Fourier magnitudes, pixels, the sums of
rows and columns, and noise. Two thirds of the samples are for training, as listed in `split.txt`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy.io import savemat
from sklearn.datasets import load_digits


def write_views(path: Path, n: int, seed: int = 0) -> None:
    """Write the views of n digits to `path`, and their split to `split.txt` in the same folder."""
    rng = np.random.default_rng(seed)
    pixels, digit = load_digits(return_X_y=True)
    chosen = rng.permutation(len(digit))[:n]
    images = pixels[chosen].reshape(-1, 8, 8)
    views = (
        np.abs(np.fft.rfft2(images)).reshape(n, -1),
        images.reshape(n, -1),
        np.concatenate([images.sum(axis=1), images.sum(axis=2)], axis=1),
        rng.normal(size=(n, 20)),
    )
    X = np.empty((1, len(views)), dtype=object)
    for k, view in enumerate(views):
        X[0, k] = view.T
    savemat(path, {"X": X, "Y": digit[chosen][:, None] + 1.0})
    # 0: training, 2: test.
    np.savetxt(path.with_name("split.txt"), 2 * (rng.permutation(n) < n // 3), fmt="%d")


def main() -> None:
    """Write the files, and run the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--output", type=Path, default=Path("out/matlab_views"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    write_views(options.output / "views.mat", options.samples)
    for step in (
        "build kernels.zarr views.mat --function rbf --splits split.txt",
        "search kernels.zarr found -p 1,2 --lam 1e-6,1e-4,1e-2 --cv 3",
        "report found -o report.html",
        "predict found kernels.zarr --split 0 --out predictions.csv",
    ):
        print(f"$ dmkl {step} --overwrite", flush=True)
        command = [sys.executable, "-m", "dmkl", *step.split(), "--overwrite"]
        subprocess.run(command, cwd=options.output, check=True)


if __name__ == "__main__":
    main()
