"""CPU time and peak memory of the client of a search on a cluster, compared with its workers.

    python pipelines/client_load.py                       # 12 kernels of 3,000 and of 6,000 samples: 1.1 GB on disk
    python pipelines/client_load.py -m 1500 3000 --arguments -p 1 --lam 1e-2

The client may be a laptop or a login node. Scheduler, workers and client are separate processes, as on a cluster. The
table gives CPU seconds and the peak memory of the client without mapped files. The same figures of a search on a set of
90 samples (start-up and bookkeeping) are subtracted.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from memory_promise import MIB, made, memory_of

ALL = ["--all", "--lam", "1e-7,1e-6,1e-5,1e-4,1e-3,1e-2,0.1,1,10"]
"""The default grid without λ = 10⁻⁸, which single precision does not resolve on 90 samples."""


@dataclass
class Load:
    """CPU seconds of a client and of its workers, and the peak memory of the client."""

    client_seconds: float = 0.0
    client_bytes: int = 0
    worker_seconds: float = 0.0

    def __sub__(self, other: Load) -> Load:
        return Load(
            self.client_seconds - other.client_seconds,
            self.client_bytes - other.client_bytes,
            self.worker_seconds - other.worker_seconds,
        )

    @property
    def share(self) -> float:
        """The client's share of the CPU seconds; NaN if the start-up took as many as the search."""
        both = self.client_seconds + self.worker_seconds
        return self.client_seconds / both if both > 0 else math.nan


@contextmanager
def scheduler_and_workers(folder: Path, n_workers: int) -> Iterator[tuple[Path, list[psutil.Process]]]:
    """Start a scheduler and `n_workers` workers; yield the scheduler file and the workers."""
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    worker_options = ["--nthreads", "1", "--no-dashboard", "--local-directory", str(folder / "scratch")]
    commands = [["scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]]
    commands += [["worker", "--host", "127.0.0.1", "--no-nanny", *worker_options]] * n_workers
    running: list[psutil.Popen] = []
    try:
        for role, *options in commands:
            command = [sys.executable, "-m", "dask", role, "--scheduler-file", str(file), *options]
            running.append(psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        yield file, running[1:]
    finally:
        for process in reversed(running):
            process.terminate()
        # A worker may wait forever if its scheduler ends first, so it is killed.
        for process in psutil.wait_procs(running, timeout=5)[1]:
            process.kill()
            process.wait()


def cpu_seconds(process: psutil.Process) -> float:
    """The CPU seconds that a process has used so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_search(folder: Path, n_workers: int, arguments: list[str]) -> Load:
    """Search the kernel set of a folder on a local cluster, and measure the load."""
    load = Load()
    with scheduler_and_workers(folder, n_workers) as (file, workers), tempfile.TemporaryFile("w+") as output:
        place = ["--cluster", str(file)]
        command = ["search", str(folder / "set.zarr"), str(folder / "found"), "--cv", "3", "--overwrite", *place]
        while not file.exists():
            time.sleep(0.1)
        child = subprocess.Popen([sys.executable, "-m", "dmkl", *command, *arguments], stdout=output, stderr=output)
        client = psutil.Process(child.pid)
        while child.poll() is None:
            with suppress(psutil.Error, OSError):
                load.client_seconds = max(load.client_seconds, cpu_seconds(client))
                load.client_bytes = max(load.client_bytes, memory_of(client)[0])
            time.sleep(0.02)
        if child.returncode:
            output.seek(0)
            sys.exit(output.read())
        load.worker_seconds = sum(cpu_seconds(worker) for worker in workers)
    return load


def main() -> None:
    """Build the sets, search them, and print the load of each search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=12, help="kernels")
    parser.add_argument("-m", type=int, nargs="+", default=[3000, 6000], help="samples")
    parser.add_argument("--workers", type=int, default=2, help="number of single-threaded workers")
    parser.add_argument("--keep", type=Path, help="folder that keeps the sets between runs")
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, default=ALL, help="arguments of `dmkl search`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        base = options.keep or Path(temporary)
        idle = measure_search(made(base / f"small-{options.n}", options.n, 90), options.workers, options.arguments)
        print(f"{'samples':>8}{'client s':>10}{'workers s':>11}{'share':>8}{'client MiB':>12}")
        for m in options.m:
            folder = made(base / f"large-{options.n}-{m}", options.n, m)
            load = measure_search(folder, options.workers, options.arguments) - idle
            figures = f"{load.client_seconds:>10.1f}{load.worker_seconds:>11.1f}{load.share:>8.1%}"
            print(f"{m:>8,}{figures}{load.client_bytes / MIB:>12.0f}", flush=True)


if __name__ == "__main__":
    main()
