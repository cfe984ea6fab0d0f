"""Peak memory of the commands, compared with their memory budget.

    python pipelines/memory_promise.py                          # 12 kernels of 6,000 x 6,000 float32: 1.2 GB on disk
    python pipelines/memory_promise.py --memory 300MiB --commands fit predict

Each command runs with each budget, as a user would run it, while this script sums the memory of all its processes
every 50 ms, with shared pages counted once (PSS). The search has two norms and two λ in two folds. The same command
with as many processes on a set of 90 samples measures the memory of interpreters and libraries; the budget limits the
rest. Memory-mapped files, which the system can evict, are counted separately. A refused budget must be refused at
once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

import dmkl

COMMANDS = {
    "fit": ["fit", "{set}", "{out}/model", "--all", "-p", "2", "--lam", "1e-2", "--overwrite"],
    "search": ["search", "{set}", "{out}/found", "--all", "-p", "1,2", "--lam", "1e-2,1", "--cv", "2", "--overwrite"],
    "analyze": ["analyze", "{set}"],
    "predict": ["predict", "{out}/model", "{set}", "--rows", "{out}/rows.txt"],
}
MIB = 2**20


@dataclass
class Usage:
    """Peak memory of a command in bytes, its seconds, its processes, and its last line of output if it failed."""

    own: int = 0
    files: int = 0
    seconds: float = 0.0
    processes: int = 0
    failed: str = ""


def kernels(n: int, m: int, labels: np.ndarray) -> Iterator[np.ndarray]:
    """Yield Gaussian kernels; the features of every second one depend on the classes."""
    rng = np.random.default_rng(1)
    for k in range(n):
        centers = rng.standard_normal((3, 20))
        x = (rng.standard_normal((m, 20)) + (0.0 if k % 2 else 0.5) * centers[labels]).astype(np.float32)
        squares = np.sum(x * x, axis=1)
        distance = np.maximum(squares[:, None] + squares - 2 * x @ x.T, 0)
        yield np.exp(distance / -distance.mean())


def made(folder: Path, n: int, m: int) -> Path:
    """Create a kernel set of this size, and a file of its sample names, in a folder; return the folder."""
    if not (folder / "set.zarr").exists():
        labels = np.random.default_rng(0).integers(0, 3, m)
        dmkl.create(folder / "set.zarr", kernels(n, m, labels), labels=labels)
        (folder / "rows.txt").write_text("\n".join(map(str, range(m))))
    return folder


def memory_of(process: psutil.Process) -> tuple[int, int]:
    """Return the bytes of a process's own memory and of its mapped files, with shared pages counted once."""
    own = files = 0
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Pss_Anon", "Pss_Shmem"):
            own += int(value.split()[0]) * 1024
        elif name == "Pss_File":
            files += int(value.split()[0]) * 1024
    return own, files


def run(arguments: list[str], max_seconds: float) -> Usage:
    """Run a dmkl command until it ends or exceeds the time limit."""
    usage, started = Usage(), time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen([sys.executable, "-m", "dmkl", *arguments], stdout=output, stderr=output)
        while child.poll() is None:
            family = [psutil.Process(child.pid)]
            sizes = []
            try:
                family += family[0].children(recursive=True)
                sizes = [memory_of(process) for process in family]
            except (psutil.Error, OSError):
                pass  # a process has just ended
            usage.own = max(usage.own, sum(own for own, _ in sizes))
            usage.files = max(usage.files, sum(files for _, files in sizes))
            usage.processes = max(usage.processes, len(sizes))
            time.sleep(0.05)
            if time.monotonic() - started > max_seconds:
                child.terminate()
                child.wait()
        usage.seconds = time.monotonic() - started
        if child.returncode:
            output.seek(0)
            usage.failed = output.read().strip().splitlines()[-1]
    return usage


def main() -> None:
    """Build the sets, run the commands, print the measured memory relative to the budgets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=12, help="kernels")
    parser.add_argument("-m", type=int, default=6000, help="samples")
    parser.add_argument("--memory", nargs="+", default=["300MiB", "600MiB", "1.5GiB"], help="budgets")
    parser.add_argument("--commands", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--workers", type=int, help="number of processes; derived from the budget by default")
    parser.add_argument("--keep", type=Path, help="folder in which the sets are kept and reused")
    parser.add_argument("--seconds", type=float, default=3600, help="time limit of a command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        base = options.keep or Path(temporary)
        large, small = made(base / f"large-{options.n}-{options.m}", options.n, options.m), made(base / "small", 3, 90)
        print(
            f"{'command':<9}{'budget':>8}{'arrays':>9}{'of it':>7}{'mapped files':>14}{'processes':>11}{'seconds':>9}"
        )
        for command in options.commands:
            for budget in options.memory:
                place = ["--cluster", "local", "--memory", budget]
                place += [] if options.workers is None else ["--workers", str(options.workers)]
                filled = [
                    [part.format(set=folder / "set.zarr", out=folder) for part in COMMANDS[command]] + place
                    for folder in (small, large)
                ]
                idle, usage = (run(arguments, options.seconds) for arguments in filled)
                allowed, arrays = dmkl_bytes(budget), usage.own - idle.own
                columns = f"{arrays / MIB:>9.0f}{arrays / allowed:>7.2f}{(usage.files - idle.files) / MIB:>14.0f}"
                print(
                    f"{command:<9}{budget:>8}{columns}{usage.processes:>11}{usage.seconds:>9.1f}  {usage.failed}",
                    flush=True,
                )


def dmkl_bytes(text: str) -> int:
    """Return the bytes of a size such as 300MiB."""
    unit = {"KiB": 2**10, "MiB": MIB, "GiB": 2**30}[text[-3:]]
    return int(float(text[:-3]) * unit)


if __name__ == "__main__":
    main()
