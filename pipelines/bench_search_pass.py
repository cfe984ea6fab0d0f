"""Measure the passes of a search over a kernel set and their floor (the lower bound of their time) on this machine.

    python pipelines/bench_search_pass.py                      # n = 16, m = 8192, float32, 3 folds, 2.4 GB: 3 minutes
    python pipelines/bench_search_pass.py --keep /data/bench   # keeps the set and reuses it
    python pipelines/bench_search_pass.py --cores 2 --folds 5

The script runs `dmkl.search` with the subspace solver. From its record it takes the passes that extend the
basis of every fold by a full block; it omits the first, narrow pass. Such a pass also stores products on disk and
computes the small products VᵀK_jV.

The floor is the larger of two times: reading the stored tiles at the bandwidth of this machine, and 2·n·m·m_f·b
operations for each fold of m_f training samples and b columns, at its rate of products of float32 matrices. The script
measures both rates with all cores, before and after the searches, and uses the higher ones.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
from bench_pass import gemm_rate, read_bandwidth

import dmkl


def make_set(path: Path, n: int, m: int) -> dmkl.KernelSet:
    """Store n float32 Gaussian kernels; the features of every second kernel depend on the class."""
    rng = np.random.default_rng(0)
    labels, centers = rng.integers(0, 3, m), rng.standard_normal((3, 20))
    features = (rng.standard_normal((m, 20)) + (0.3 if j % 2 else 0.0) * centers[labels] for j in range(n))
    views = {f"view{j:02d}": table.astype(np.float32) for j, table in enumerate(features)}
    return dmkl.build(path, views, [{"function": "rbf", "feature": "*", "bandwidth": 1.0}], labels=labels)


def passes(kernels: dmkl.KernelSet, folds: int, runs: int) -> list[tuple[int, float]]:
    """Return the columns of each fold and the seconds of every full pass of `runs` searches."""
    records = [record for _ in range(runs) for record in _passes(kernels, folds)]
    widest = max(width for width, _ in records)
    return [record for record in records if record[0] == widest]


def _passes(kernels: dmkl.KernelSet, folds: int) -> Iterator[tuple[int, float]]:
    grid = {"p": [1.0, 1.125, 2.0], "lam": [1e-6, 1e-4, 1e-2]}
    # Rules that learn from the scores, and baselines, would take more than half of the time, and share no pass.
    learner = dmkl.MKFDA(solver="subspace", decision="largest")
    scores = dmkl.search(learner, kernels, grid=grid, cv=folds, refit=False, baselines="none").scores
    basis = 0
    for kind, seconds, width in zip(
        *(scores[f"round_{name}"].values for name in ("kind", "seconds", "basis")), strict=True
    ):
        if kind == "extend":
            if basis:
                yield int(width) - basis, float(seconds)
            basis = int(width)


def main() -> None:
    """Measure the passes and the floor, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=16, help="kernels")
    parser.add_argument("-m", type=int, default=8192, help="samples")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2, help="searches with threads, and again with processes")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="folder that keeps the set between runs")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.keep or Path(scratch)) / f"bench-search-{options.n}-{options.m}.zarr"
        kernels = dmkl.open(path) if path.exists() else make_set(path, options.n, options.m)
        read_bandwidth(path, cores)  # warms the page cache
        bandwidths, rates = [read_bandwidth(path, cores)], [gemm_rate(128)]
        rows: list[tuple[str, list[tuple[int, float]]]] = []
        with dask.config.set(scheduler="threads"):
            rows.append((f"{cores} threads", passes(kernels, options.folds, options.runs)))
        bandwidths.append(read_bandwidth(path, cores))
        rates.append(gemm_rate(128))
        with dmkl.cluster("local", workers=cores):
            rows.append((f"{cores} processes", passes(kernels, options.folds, options.runs)))
        bandwidths.append(read_bandwidth(path, cores))
        rates.append(gemm_rate(128))

    print(f"{options.n} kernels of {options.m} x {options.m} float32, {options.folds} folds, {cores} cores")
    print(f"reading {max(bandwidths) / 1e9:.2f} GB/s, multiplying {max(rates) / 1e9:.1f} GFLOP/s\n")
    print(f"{'pass of a search':<20}{'columns':>9}{'passes':>8}{'floor':>8}{'best':>8}{'median':>8}", end="")
    print(f"{'floor/best':>12}{'floor/median':>14}")
    for name, records in rows:
        width, seconds = records[0][0], sorted(seconds for _, seconds in records)
        flops = 2 * options.n * options.m * options.m * (options.folds - 1) * width
        floor = max(kernels.bytes_per_pass / max(bandwidths), flops / max(rates))
        median = statistics.median(seconds)
        print(
            f"{name:<20}{f'{options.folds} x {width}':>9}{len(seconds):>8}{floor:8.3f}{seconds[0]:8.3f}{median:8.3f}",
            end="",
        )
        print(f"{floor / seconds[0]:12.2f}{floor / median:14.2f}")


if __name__ == "__main__":
    main()
