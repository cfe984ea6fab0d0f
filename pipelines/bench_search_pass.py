"""Measure the pass that a search makes over a kernel set, and its floor on this machine, in the same run.

    python pipelines/bench_search_pass.py                      # n = 16, m = 8192, float32, 3 folds, 2.4 GB of kernels
    python pipelines/bench_search_pass.py --keep /data/bench   # keeps the set there, and uses it again
    python pipelines/bench_search_pass.py --cores 2 --folds 5

It is the pass by which `dmkl.search` extends the basis of every fold: its own lenses, columns and precision, products
kept on disk as it keeps them, and the small products VᵀK_jV. The folds are shuffled, as scikit-learn shuffles them.

The floor is the larger of two times: reading the stored tiles at the bandwidth of this machine, and
2·n·m·m_f·b operations for each fold of m_f training samples and b columns, at its rate of products of float32 matrices.
Both are measured here, with all cores, before and after the passes, and the better figure counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import dask
import numpy as np
from bench_pass import gemm_rate, make_set, read_bandwidth
from distributed import Client, LocalCluster
from sklearn.model_selection import KFold

import dmkl
from dmkl.kernelset import measure
from dmkl.solvers.fisher.subspace.engine import block_width
from dmkl.solvers.fisher.subspace.extend import extend
from dmkl.solvers.fisher.subspace.problem import TargetSet
from dmkl.solvers.fisher.subspace.space import Subspace
from dmkl.solvers.jobs import Training


def trainings(kernels: dmkl.KernelSet, folds: int) -> list[Training]:
    """The training sets of a cross-validation, centered and of unit trace."""
    views = []
    for train, test in KFold(folds, shuffle=True, random_state=0).split(np.arange(kernels.shape[1])):
        views.append(kernels[np.concatenate([train, test]), train].with_steps(("center", "trace")))
    lenses = [one.lens() for one in measure(views)[0]]
    return [Training(lens.training(), lens, kernels.names) for lens in lenses]


def passes(learnt: list[Training], width: int, runs: int, scratch: Path) -> list[float]:
    """Seconds of each of several passes, each with the first block of new subspaces."""
    rng = np.random.default_rng(0)
    blocks = [np.linalg.qr(rng.standard_normal((one.n_train, width)))[0] for one in learnt]
    seconds = []
    for run in range(runs):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            spaces = []
            for f, one in enumerate(learnt):
                (Path(folder) / str(f)).mkdir()
                spaces.append(Subspace(TargetSet(one, ()), Path(folder) / str(f)))
            start = time.perf_counter()
            taken = sum(1 for _ in extend(spaces, blocks, run))
            seconds.append(time.perf_counter() - start)
            if taken > 1:
                print(f"the columns took {taken} passes for want of memory")
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=16, help="kernels")
    parser.add_argument("-m", type=int, default=8192, help="samples")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="folder that keeps the set between runs")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    cores, width = len(os.sched_getaffinity(0)), block_width(options.folds)
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.keep or Path(scratch)) / f"bench-{options.n}-{options.m}.zarr"
        kernels = dmkl.open(path) if path.exists() else make_set(path, options.n, options.m)
        learnt = trainings(kernels, options.folds)
        bandwidths, rates = [read_bandwidth(path, cores)], [gemm_rate(width)]
        rows: list[tuple[str, list[float]]] = []
        with dask.config.set(scheduler="threads"):
            rows.append((f"{cores} threads", passes(learnt, width, options.runs + 1, Path(scratch))[1:]))
        bandwidths.append(read_bandwidth(path, cores))
        rates.append(gemm_rate(width))
        cluster = LocalCluster(
            n_workers=cores, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=0
        )
        with cluster, Client(cluster):
            rows.append((f"{cores} processes", passes(learnt, width, options.runs + 1, Path(scratch))[1:]))
        bandwidths.append(read_bandwidth(path, cores))
        rates.append(gemm_rate(width))

    n_bytes = kernels.bytes_per_pass
    flops = sum(2 * options.n * one.n_rows * one.n_train * width for one in learnt)
    reading, multiplying = n_bytes / max(bandwidths), flops / max(rates)
    floor = max(reading, multiplying)
    print(
        f"{options.n} kernels of {options.m} x {options.m} float32, {options.folds} folds of {width} columns each, "
        f"{cores} cores"
    )
    print(f"reading      {n_bytes / 1e9:6.2f} GB     at {max(bandwidths) / 1e9:6.2f} GB/s      {reading:6.3f} s")
    print(f"multiplying  {flops / 1e9:6.1f} GFLOP  at {max(rates) / 1e9:6.1f} GFLOP/s   {multiplying:6.3f} s\n")
    print(f"{'pass of a search':<46}{'best':>8}{'median':>8}{'floor/best':>12}{'floor/median':>14}")
    for name, seconds in rows:
        seconds = sorted(seconds)
        median = seconds[len(seconds) // 2]
        print(f"{name:<46}{seconds[0]:8.3f}{median:8.3f}{floor / seconds[0]:12.2f}{floor / median:14.2f}")


if __name__ == "__main__":
    main()
