"""Find which of six feature spaces explains each of thousands of targets, such as the voxels of a brain.

    python pipelines/many_targets.py --output out/many_targets
    python pipelines/many_targets.py --samples 300 --targets 100 --candidates 8         # smaller

Each target is a sum of responses to one, two or three of six feature spaces, and noise. The first command chooses λ and
one of the random candidates of kernel weights for each target by cross-validation (`MKRidge(weights="shared")`). The
second predicts held-out samples, writes R² and correlation of each target, split by feature space, and a page of them.
The script then compares these parts with the true parts of the targets.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import dmkl

SPACES = ("motion", "color", "edges", "faces", "words", "sounds")


def simulate(folder: Path, m: int, n_targets: int, noise: float) -> np.ndarray:
    """Write linear kernels of six feature spaces with targets as labels; return the variance of each space's part."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    variance, Y, kernels = np.zeros((len(SPACES), n_targets)), np.zeros((m, n_targets)), []
    for t, number in enumerate(rng.integers(1, 4, n_targets)):
        variance[rng.permutation(len(SPACES))[:number], t] = rng.dirichlet(np.full(number, 2.0))
    for k in range(len(SPACES)):
        X = rng.standard_normal((m, 10 + 10 * k))
        response = X @ rng.standard_normal((X.shape[1], n_targets))
        Y += np.sqrt(variance[k]) * response / response.std(axis=0)
        kernels.append(X @ X.T)
    Y += noise * rng.standard_normal(Y.shape)
    samples = [f"scan{i:04d}" for i in range(m)]
    labels = pd.DataFrame(Y, samples, [f"voxel{t:05d}" for t in range(n_targets)])
    splits = pd.DataFrame({"split": np.where(np.arange(m) < 0.8 * m, "train", "test")}, samples)
    store = folder / "kernels.zarr"
    dmkl.create(store, kernels, names=SPACES, samples=samples, labels=labels, splits=splits, overwrite=True)
    return variance


def main() -> None:
    """Simulate the data, run the commands, and compare the parts with the true ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--targets", type=int, default=2000)
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument(
        "--noise", type=float, default=1.0, help="standard deviation of the noise; that of the signal is 1"
    )
    parser.add_argument("--output", type=Path, default=Path("out/many_targets"))
    options = parser.parse_args()
    variance = simulate(options.output, options.samples, options.targets, options.noise)
    for step in (
        "search kernels.zarr found --model mkridge --weights shared "
        f"--n-candidates {options.candidates} --lam 1e-4,1e-3,1e-2,0.1 --cv 5 --split 0",
        "predict found/best kernels.zarr --split 0 --kernel-scores by_space.csv --report page.html",
    ):
        print(f"$ dmkl {step} --overwrite", flush=True)
        subprocess.run([sys.executable, "-m", "dmkl", *step.split(), "--overwrite"], cwd=options.output, check=True)
    table = pd.read_csv(options.output / "by_space.csv")
    parts = table.pivot(index="kernel", columns="target", values="kernel_r2").loc[list(SPACES)].to_numpy()
    total = table.groupby("target")["total_r2"].first()
    largest = np.mean(parts.argmax(axis=0) == variance.argmax(axis=0))
    correlation = np.corrcoef(parts.ravel(), variance.ravel())[0, 1]
    print(
        f"R² in test: {total.mean():.3f} on average, at most {1 / (1 + options.noise**2):.3f} expected without error."
    )
    print(f"The space with the largest part is the true one for {100 * largest:.0f} % of the targets; the parts of all")
    print(f"spaces correlate by {correlation:.3f} with their true variances.")


if __name__ == "__main__":
    main()
