"""Fit ℓp MK-SVM with a combined kernel larger than the memory budget, and measure time and peak memory.

    python pipelines/large_margin.py                      # 12 kernels of 16,000 x 16,000 float32, budget 1.5 GiB
    python pipelines/large_margin.py -n 4 -m 6000 --memory 400MiB
    python pipelines/large_margin.py --keep /data/large   # keeps the set and reuses it

The kernels (half of informative features, half of noise) are built by `dmkl build`. Then the script runs `dmkl fit
--model mksvm` as a user would, and samples the memory of its processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from measuring import measured


def make_features(path: Path, n: int, m: int) -> None:
    """Write views of two classes, every second one of noise, and the labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, m)
    centers = rng.standard_normal((2, 20)).astype(np.float32)
    views = {
        f"view{k:02d}": rng.standard_normal((m, 20), dtype=np.float32) + (0.0 if k % 2 else 0.35) * centers[labels]
        for k in range(n)
    }
    np.savez(path, **views, label=labels)


def main() -> None:
    """Build the kernels, fit the model, print passes and gap."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=12)
    parser.add_argument("-m", type=int, default=16_000)
    parser.add_argument("--memory", default="1.5GiB", help="memory budget of the arrays of all processes together")
    parser.add_argument("-p", default="1.5")
    parser.add_argument("--C", default="1")
    parser.add_argument("--cluster", default="local", choices=["local", "threads"])
    parser.add_argument("--keep", type=Path, help="folder that keeps the set and the model")
    options = parser.parse_args()
    dmkl = [sys.executable, "-m", "dmkl"]
    budget = ["--memory", options.memory, "--cluster", options.cluster]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        features, store, model = (
            folder / f"margin-{options.n}-{options.m}{end}" for end in (".npz", ".zarr", ".model")
        )
        if not store.exists():
            make_features(features, options.n, options.m)
            measured([*dmkl, "build", str(store), str(features), "--function", "rbf", *budget])
        print(f"the combined kernel alone takes {8 * options.m**2 / 2**30:.2f} GiB in float64", flush=True)
        fit = ["fit", str(store), str(model), "--model", "mksvm", "-p", options.p, "--C", options.C, "--all"]
        measured([*dmkl, *fit, "--overwrite", *budget])
        root = json.loads((model / "zarr.json").read_text())["attributes"]["state"]
        print(f"{root['n_passes_']:g} passes, {root['n_iter_']} weightings, proven gap {root['gap_']:.1e}")


if __name__ == "__main__":
    main()
