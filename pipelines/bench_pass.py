"""Measure a pass over a kernel set and its floor (the lower bound of its time) on this machine.

    python pipelines/bench_pass.py                      # n = 16, m = 8192, float32, b = 64: 2.4 GB, temporary folder
    python pipelines/bench_pass.py --keep /data/bench   # keeps the set and reuses it

The floor of a pass is the larger of two times: reading the stored tiles at the bandwidth of this machine, and 2·n·m²·b
floating-point operations at its rate of matrix products. The script measures both rates with all cores, before and
after the pass, and uses the higher ones.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import numpy as np
from distributed import Client, LocalCluster, wait

import dmkl


def best_of(runs: int, work: Callable[[], object]) -> list[float]:
    """The wall-clock seconds of `runs` calls, sorted."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)


def make_set(path: Path, n: int, m: int) -> dmkl.KernelSet:
    """Store n Gram matrices of random features, as float32."""
    rng = np.random.default_rng(0)

    def kernels() -> Iterator[np.ndarray]:
        for _ in range(n):
            features = rng.standard_normal((m, 32), dtype=np.float32)
            yield features @ features.T / 32

    return dmkl.create(path, kernels())


def read_bandwidth(path: Path, cores: int) -> float:
    """Bytes per second of reading every tile file once into memory, from the page cache if it is warm."""
    files = sorted((path / "gram_upper" / "c").rglob("*"))
    files = [file for file in files if file.is_file()]
    total = sum(file.stat().st_size for file in files)

    def read(share: list[Path]) -> None:
        buffer = bytearray(max(file.stat().st_size for file in share))
        for file in share:
            with open(file, "rb", buffering=0) as handle:
                handle.readinto(buffer)

    with ThreadPoolExecutor(cores) as pool:
        return total / best_of(3, lambda: list(pool.map(read, [files[k::cores] for k in range(cores)])))[0]


def gemm_rate(b: int) -> float:
    """Floating-point operations per second of a 4096² float32 tile times b columns, with all cores."""
    rng = np.random.default_rng(0)
    tile = rng.standard_normal((4096, 4096), dtype=np.float32)
    block, out = rng.standard_normal((4096, b), dtype=np.float32), np.empty((4096, b), dtype=np.float32)
    return 2 * 4096**2 * b / best_of(20, lambda: np.matmul(tile, block, out=out))[0]


def main() -> None:
    """Measure the passes and the floor, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=16, help="kernels")
    parser.add_argument("-m", type=int, default=8192, help="samples")
    parser.add_argument("-b", type=int, default=64, help="columns multiplied in a pass")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="folder that keeps the set between runs")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.keep or Path(scratch)) / f"bench-{options.n}-{options.m}.zarr"
        kernels = dmkl.open(path) if path.exists() else make_set(path, options.n, options.m)
        block = np.random.default_rng(1).standard_normal((options.m, options.b), dtype=np.float32)
        kernels.apply(block).compute()  # warms the page cache, and verifies each tile's checksum once

        bandwidths, rates = [read_bandwidth(path, cores)], [gemm_rate(options.b)]
        rows: list[tuple[str, list[float]]] = []
        with dask.config.set(scheduler="threads"):
            rows.append((f"apply, {cores} threads", best_of(options.runs, lambda: kernels.apply(block).compute())))
            rows.append((f"project, {cores} threads", best_of(options.runs, lambda: kernels.project(block).compute())))
        cluster = LocalCluster(
            n_workers=cores, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=0
        )
        with cluster, Client(cluster):
            on_workers = best_of(options.runs + 1, lambda: wait(kernels.apply(block).persist()))[:-1]
            rows.append((f"apply, {cores} processes, results on the workers", on_workers))
            gathered = best_of(options.runs, lambda: kernels.apply(block).compute())
            rows.append((f"apply, {cores} processes, results on the client", gathered))
        bandwidths.append(read_bandwidth(path, cores))
        rates.append(gemm_rate(options.b))

    n_bytes, flops = kernels.bytes_per_pass, 2 * options.n * options.m**2 * options.b
    reading, multiplying = n_bytes / max(bandwidths), flops / max(rates)
    floor = max(reading, multiplying)
    print(f"{options.n} kernels of {options.m} x {options.m} float32, b = {options.b}, {cores} cores")
    print(f"reading      {n_bytes / 1e9:6.2f} GB     at {max(bandwidths) / 1e9:6.2f} GB/s      {reading:6.3f} s")
    print(f"multiplying  {flops / 1e9:6.1f} GFLOP  at {max(rates) / 1e9:6.1f} GFLOP/s   {multiplying:6.3f} s")
    print(f"floor of a full product {floor:.3f} s\n")
    print(f"{'pass':<46}{'best':>8}{'median':>8}{'floor/best':>12}{'floor/median':>14}")
    for name, seconds in rows:
        # project needs one product for each upper tile, apply two
        bound = max(reading, multiplying / 2) if name.startswith("project") else floor
        median = seconds[len(seconds) // 2]
        print(f"{name:<46}{seconds[0]:8.3f}{median:8.3f}{bound / seconds[0]:12.2f}{bound / median:14.2f}")


if __name__ == "__main__":
    main()
