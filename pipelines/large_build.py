"""Build kernels larger than the memory budget from features, and compare the rate with the limit of the machine.

    python pipelines/large_build.py                       # 8 RBF kernels of 20,000 samples and 100 features, 2 GiB
    python pipelines/large_build.py --function chi2       # of histograms
    python pipelines/large_build.py -n 2 -m 8192

The script runs `dmkl build` as a user would, and samples the memory of its processes. Then it measures the floor, the
lower bound of the time. One thread per core computes some tiles into reused arrays (a product of float32 matrices and
exponentials, or scikit-learn's sums over columns for χ²) and writes files of a tile's size. Computing and writing both
occupy a core, so their times add up.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from measuring import measured
from sklearn.metrics.pairwise import additive_chi2_kernel, manhattan_distances
from threadpoolctl import threadpool_limits

import dmkl


def make_features(path: Path, n: int, m: int, d: int) -> None:
    """Write views of the same samples, float32 and positive, and labels to one .npz file."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, m)
    centers = rng.random((5, d), dtype=np.float32)
    views = {f"view{k}": rng.random((m, d), dtype=np.float32) + centers[labels] for k in range(n)}
    np.savez(path, **views, label=labels)


def floor(folder: Path, side: int, d: int, function: str, cores: int) -> tuple[float, float]:
    """Return the seconds to compute a tile and to write it on one core, with all cores busy."""
    tiles = 24

    def work(core: int) -> tuple[float, float]:
        rng = np.random.default_rng(core)
        X, Y = (rng.random((side, d), dtype=np.float32) for _ in range(2))
        tile, computing, writing = np.ones((side, side), dtype=np.float32), 0.0, 0.0
        for number in range(tiles):
            start = time.perf_counter()
            if function == "rbf":
                np.matmul(X, Y.T, out=tile)
            elif number == 0:  # a fraction of the rows suffices
                rows = max(1, side // 16)
                {"chi2": additive_chi2_kernel, "laplacian": manhattan_distances}[function](X[:rows], Y)
                sums = (time.perf_counter() - start) * side / rows
            if function != "rbf":
                start = time.perf_counter() - sums
            np.multiply(tile, -1e-3, out=tile)
            np.exp(tile, out=tile)
            middle = time.perf_counter()
            with open(folder / f"floor-{core}-{number}", "wb") as file:
                file.write(tile.data)
            computing, writing = computing + middle - start, writing + time.perf_counter() - middle
        return computing / tiles, writing / tiles

    with threadpool_limits(1), ThreadPoolExecutor(cores) as pool:
        times = list(pool.map(work, range(cores)))
    for file in folder.glob("floor-*"):
        file.unlink()
    return float(np.mean([c for c, _ in times])), float(np.mean([w for _, w in times]))


def main() -> None:
    """Write the features, build the kernels, measure the floor, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=8, help="kernels, one for each view")
    parser.add_argument("-m", type=int, default=20_000, help="samples")
    parser.add_argument("-d", type=int, default=100, help="features of a view")
    parser.add_argument("--function", choices=["rbf", "chi2", "laplacian"], default="rbf")
    parser.add_argument("--memory", default="2GiB", help="memory budget of the arrays of all processes together")
    parser.add_argument("--cluster", default="threads", choices=["local", "threads"])
    parser.add_argument("--folder", type=Path, help="folder of the build; a temporary folder by default")
    options = parser.parse_args()
    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else psutil.cpu_count()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        features, store, specs = folder / "features.npz", folder / "kernels.zarr", folder / "specs.toml"
        make_features(features, options.n, options.m, options.d)
        specs.write_text(f'[[kernel]]\nfunction = "{options.function}"\ngamma = {1 / options.d}\n')
        build = [sys.executable, "-m", "dmkl", "build", str(store), str(features), "--specs", str(specs)]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "dmkl", "--version"], check=True)
        startup = time.perf_counter() - start
        seconds = measured([*build, "--memory", options.memory, "--cluster", options.cluster]) - startup
        K = dmkl.open(store)
        side = K.view.source.tiling.tile
        tiles = K.bytes_per_pass // (side * side * K.dtype.itemsize)
        computing, writing = floor(folder, side, options.d, options.function, cores)
    least = tiles * (computing + writing) / cores
    size = f"{tiles:,} tiles of {side:,} x {side:,}, {K.bytes_per_pass / 1e9:.1f} GB"
    print(f"{size}, in {seconds:.1f} s (and {startup:.1f} s of start-up):")
    print(f"  {tiles / seconds:.1f} tiles a second, {K.bytes_per_pass / 1e9 / seconds:.2f} GB/s")
    print(f"  a core takes {1e3 * computing:.1f} ms to compute a tile and {1e3 * writing:.1f} ms to write it at best,")
    print(f"  {cores} cores {least:.1f} s: floor / measured = {least / seconds:.2f}")


if __name__ == "__main__":
    main()
