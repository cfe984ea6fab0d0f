"""Search the papers' grid on a set larger than its memory budget, and measure the memory of all its processes together.

    python pipelines/large_search.py                         # 24 kernels of 8,000 x 8,000 float32, budget 4 GiB
    python pipelines/large_search.py --keep /data/large      # keeps the set there, and uses it again
    python pipelines/large_search.py -p 1,2 --lam 0.01,0.1   # options that it does not know go to `dmkl search`

The kernels (half of informative features, half of noise) are made strip by strip and stored one after another. Then
`dmkl search` runs as a user would run it, while this script samples the resident memory of its processes every 20 ms:
once as it stands (a page that several processes map counts in each), once with shared pages counted once (PSS).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measuring import measured

import dmkl


def gaussian_kernels(labels: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Kernels of features that see the classes, and every second one of noise; float32, made strip by strip."""
    rng = np.random.default_rng(1)
    centers = rng.standard_normal((5, 20)).astype(np.float32)
    for j in range(n):
        noise = rng.standard_normal((len(labels), 20)).astype(np.float32)
        features = noise if j % 2 else noise + (0.3 + 0.05 * j) * centers[labels]
        squares = (features**2).sum(axis=1)
        kernel = np.empty((len(labels), len(labels)), dtype=np.float32)
        for start in range(0, len(labels), 500):
            rows = slice(start, start + 500)
            distance = squares[rows, None] + squares[None, :] - 2 * features[rows] @ features.T
            np.exp(-np.maximum(distance, 0) / 40, out=kernel[rows])
        yield kernel


def main() -> None:
    """Make the set, search, print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=24)
    parser.add_argument("-m", type=int, default=8000)
    parser.add_argument("--memory", default="4GiB", help="the budget, for all processes together")
    parser.add_argument("--cv", default="3")
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--keep", type=Path, help="folder that keeps the set and the result")
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        store, out = (folder / f"large-{options.n}-{options.m}{end}" for end in (".zarr", ".search"))
        try:
            dmkl.open(store)
        except (dmkl.errors.StoreNotFoundError, dmkl.errors.IncompleteStoreError):
            labels = np.random.default_rng(0).integers(0, 5, options.m)
            dmkl.create(store, gaussian_kernels(labels, options.n), labels=labels)
        # An interrupted search would be gone on with, and this be a part of it.
        anew = ["--overwrite", "--restart"]
        budget = ["--memory", options.memory, "--cluster", options.cluster]
        search = ["search", str(store), str(out), "--cv", options.cv, *budget, *anew, *more]
        measured([sys.executable, "-m", "dmkl", *search])
        result = dmkl.load(out)
        stored = dmkl.open(store).bytes_per_pass
        print(f"{result.n_passes_:g} passes over {stored / 1e9:.1f} GB in {result.scores.attrs['seconds']:.0f} s")


if __name__ == "__main__":
    main()
