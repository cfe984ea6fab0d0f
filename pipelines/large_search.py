"""Search the papers' grid on a set larger than its memory budget, and measure the memory of all its processes together.

    python pipelines/large_search.py                         # 24 kernels of 8,000 x 8,000 float32, budget 4 GiB
    python pipelines/large_search.py -n 50 -m 20000          # the size of the JMLR paper: 44 GB of kernels
    python pipelines/large_search.py --keep /data/large      # keeps the set there, and uses it again
    python pipelines/large_search.py --cores 2 -p 1,2        # options that it does not know go to `dmkl search`

The kernels (Gaussian kernels of features, of which every second table is noise) are built by `dmkl.build`. Then `dmkl
search` runs as a user would run it, while this script samples the resident memory of its processes every 20 ms: once as
it stands (a page that several processes map counts in each), once with shared pages counted once (PSS). Printed at the
end: passes, where the time went, and how far every point of the grid is certified.
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
    """Kernels of features that see the classes, and every second one of noise."""
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
    """Make the set, search, print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=24)
    parser.add_argument("-m", type=int, default=8000)
    parser.add_argument("--memory", default="4GiB", help="the budget, for all processes together")
    parser.add_argument("--cv", default="3")
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="folder that keeps the set and the result")
    options, more = parser.parse_known_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        store, out = (folder / f"large-{options.n}-{options.m}{end}" for end in (".zarr", ".search"))
        try:
            dmkl.open(store)
        except (dmkl.errors.StoreNotFoundError, dmkl.errors.IncompleteStoreError):
            build(store, options.n, options.m)
        # An interrupted search would be gone on with, and this be a part of it.
        anew = ["--overwrite", "--restart"]
        budget = ["--memory", options.memory, "--cluster", options.cluster]
        search = ["search", str(store), str(out), "--cv", options.cv, *budget, *anew, *more]
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
