"""Import and fit a set larger than its memory budget, and measure the memory of all its processes together.

    python pipelines/large_fit.py                         # 24 kernels of 8,000 x 8,000 float32, budget 2 GiB
    python pipelines/large_fit.py --keep /data/large      # keeps files and set, and reuses them

The kernels (half of informative features, half of noise) are written as one .npy file each. The script
runs `dmkl import` and `dmkl fit` as a user would, and samples the memory of their processes: resident memory (a page
that several processes share counts in each) and PSS (shared pages count once).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from measuring import measured


def make_files(folder: Path, n: int, m: int) -> None:
    """Write Gaussian kernels, one .npy file each, in strips of rows, and the labels."""
    folder.mkdir(parents=True)
    labels = np.random.default_rng(0).integers(0, 5, m)
    np.save(folder / "labels.npy", labels)
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((5, 20)).astype(np.float32)
    for j in range(n):
        noise = rng.standard_normal((m, 20)).astype(np.float32)
        features = noise if j % 2 else noise + (0.3 + 0.05 * j) * centers[labels]
        squares = (features**2).sum(axis=1)
        kernel = np.lib.format.open_memmap(folder / f"kernel_{j:02d}.npy", "w+", np.float32, (m, m))
        for start in range(0, m, 500):
            rows = slice(start, start + 500)
            distance = squares[rows, None] + squares[None, :] - 2 * features[rows] @ features.T
            np.exp(-np.maximum(distance, 0) / 40, out=kernel[rows])
        kernel.flush()
        del kernel


def main() -> None:
    """Write the files, import and fit the set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=24)
    parser.add_argument("-m", type=int, default=8000)
    parser.add_argument("--memory", default="2GiB", help="memory budget of all processes together")
    parser.add_argument("--solver", default="auto", choices=["auto", "direct", "cg", "subspace", "interleaved", "dual"])
    parser.add_argument("-p", default="2")
    parser.add_argument("--lam", default="1e-2")
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--keep", type=Path, help="folder that keeps the files and the set between runs")
    options = parser.parse_args()
    dmkl = [sys.executable, "-m", "dmkl"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        files, store, model = (folder / f"large-{options.n}-{options.m}{end}" for end in ("", ".zarr", ".model"))
        if not files.exists():
            make_files(files, options.n, options.m)
        if not store.exists():
            measured([*dmkl, "import", str(store), str(files)])
        budget = ["--memory", options.memory, "--cluster", options.cluster]
        fit = [
            "fit",
            str(store),
            str(model),
            "-p",
            options.p,
            "--lam",
            options.lam,
            "--solver",
            options.solver,
        ]
        measured([*dmkl, *fit, "--overwrite", *budget])


if __name__ == "__main__":
    main()
