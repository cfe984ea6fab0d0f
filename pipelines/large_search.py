"""Search the papers' grid on a set larger than its memory budget, and measure the memory of all its processes together.

    python pipelines/large_search.py                         # 24 kernels of 8,000 x 8,000 float32, budget 4 GiB
    python pipelines/large_search.py -n 50 -m 20000          # the size of the JMLR paper: 44 GB of kernels
    python pipelines/large_search.py --keep /data/large      # keeps the set and reuses it
    python pipelines/large_search.py --cores 2 -p 1,2        # other options are passed to `dmkl search`

The Gaussian kernels, every second one of noise features, are built by `dmkl.build`. Then the script runs `dmkl search`
as a user would, and samples the memory of its processes: resident memory (a page that several processes share counts in
each) and PSS (shared pages count once). At the end it prints the passes, the time of each round and the proven gaps.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from measuring import measured

import dmkl


def build(path: Path, n: int, m: int) -> None:
    """Build Gaussian kernels of features that depend on the class, every second one of noise."""
    rng = np.random.default_rng(1)
    labels, centers = np.random.default_rng(0).integers(0, 5, m), rng.standard_normal((5, 20))
    features = {}
    for j in range(n):
        noise = rng.standard_normal((m, 20))
        features[f"view{j:02d}"] = (noise if j % 2 else noise + (0.3 + 0.7 * j / n) * centers[labels]).astype(
            np.float32
        )
    started = time.perf_counter()
    dmkl.build(path, features, [{"function": "rbf", "feature": "*", "bandwidth": 1.0}], labels=labels, overwrite=True)
    print(f"built in {time.perf_counter() - started:.0f} s", flush=True)


def main() -> None:
    """Build the set, search, print passes, times and gaps."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=24)
    parser.add_argument("-m", type=int, default=8000)
    parser.add_argument("--memory", default="4GiB", help="memory budget of all processes together")
    parser.add_argument("--cv", default="3")
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="folder that keeps the set and the result")
    options, extra = parser.parse_known_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        store, out = (folder / f"large-{options.n}-{options.m}{end}" for end in (".zarr", ".search"))
        try:
            dmkl.open(store)
        except (dmkl.errors.StoreNotFoundError, dmkl.errors.IncompleteStoreError):
            build(store, options.n, options.m)
        # Otherwise an interrupted search would be resumed, and only a part of it measured.
        restart = ["--overwrite", "--restart"]
        budget = ["--memory", options.memory, "--cluster", options.cluster]
        search = ["search", str(store), str(out), "--cv", options.cv, *budget, *restart, *extra]
        measured([sys.executable, "-m", "dmkl", *search])
        result = dmkl.load(out)
        stored = dmkl.open(store).bytes_per_pass
        print(result.summary())
        scores = result.scores
        worst = scores["gap"].max([name for name in scores["gap"].dims if name != "lam"])
        print(
            "largest gap by λ: "
            + ", ".join(f"{float(lam):g}: {float(gap):.1e}" for lam, gap in zip(worst["lam"], worst, strict=True))
        )
        columns = ["kind", "seconds", "bytes", "basis", "certified", "worst_gap"]
        rounds = scores[[f"round_{name}" for name in columns]].to_dataframe()
        print(rounds.set_axis(columns, axis=1).to_string(float_format="{:.3g}".format))
        print(f"{result.n_passes_:g} passes over {stored / 1e9:.1f} GB in {result.scores.attrs['seconds']:.0f} s")


if __name__ == "__main__":
    main()
