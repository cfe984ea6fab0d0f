"""What the commands take of memory, beside the budget that they were given.

    python pipelines/memory_promise.py                          # 12 kernels of 6,000 x 6,000 float32: 1.2 GB on disk
    python pipelines/memory_promise.py --memory 300MiB --commands fit predict

Each command runs with each budget, as a user would run it, while this script adds up the memory of all its processes
every 50 ms, with shared pages counted once (PSS). The search is one of two norms and two λ in two folds. The same
command with as many processes on a set of 90 samples says what interpreters and libraries take, and the rest is what
the budget promises. Files that are mapped into memory, which the system takes back when it needs the room, are told
apart. A budget that is refused must be refused at once.
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
class Taken:
    """What a command took at most, in bytes, its seconds, its processes, and its last words where it failed."""

    own: int = 0
    files: int = 0
    seconds: float = 0.0
    processes: int = 0
    failed: str = ""


def kernels(n: int, m: int, labels: np.ndarray) -> Iterator[np.ndarray]:
    """Gaussian kernels, every second one of features that know the classes."""
    rng = np.random.default_rng(1)
    for k in range(n):
        centers = rng.standard_normal((3, 20))
        x = (rng.standard_normal((m, 20)) + (0.0 if k % 2 else 0.5) * centers[labels]).astype(np.float32)
        squares = np.sum(x * x, axis=1)
        distance = np.maximum(squares[:, None] + squares - 2 * x @ x.T, 0)
        yield np.exp(distance / -distance.mean())


def made(folder: Path, n: int, m: int) -> Path:
    """A folder with a set of this size, and the names of all its samples."""
    if not (folder / "set.zarr").exists():
        labels = np.random.default_rng(0).integers(0, 3, m)
        dmkl.create(folder / "set.zarr", kernels(n, m, labels), labels=labels)
        (folder / "rows.txt").write_text("\n".join(map(str, range(m))))
    return folder


def memory_of(process: psutil.Process) -> tuple[int, int]:
    """Memory of a process of its own, and of files that it maps, with shared pages counted once."""
    own = files = 0
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Pss_Anon", "Pss_Shmem"):
            own += int(value.split()[0]) * 1024
        elif name == "Pss_File":
            files += int(value.split()[0]) * 1024
    return own, files


def run(arguments: list[str], most_seconds: float) -> Taken:
    """Run a command of dmkl to its end, or stop it after some time."""
    taken, started = Taken(), time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen([sys.executable, "-m", "dmkl", *arguments], stdout=said, stderr=said)
        while child.poll() is None:
            family = [psutil.Process(child.pid)]
            found = []
            try:
                family += family[0].children(recursive=True)
                found = [memory_of(process) for process in family]
            except (psutil.Error, OSError):
                pass  # one has just ended
            taken.own = max(taken.own, sum(own for own, _ in found))
            taken.files = max(taken.files, sum(files for _, files in found))
            taken.processes = max(taken.processes, len(found))
            time.sleep(0.05)
            if time.monotonic() - started > most_seconds:
                child.terminate()
                child.wait()
        taken.seconds = time.monotonic() - started
        if child.returncode:
            said.seek(0)
            taken.failed = said.read().strip().splitlines()[-1]
    return taken


def main() -> None:
    """Make the sets, run the commands, print promised and measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=12, help="kernels")
    parser.add_argument("-m", type=int, default=6000, help="samples")
    parser.add_argument("--memory", nargs="+", default=["300MiB", "600MiB", "1.5GiB"], help="budgets")
    parser.add_argument("--commands", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--workers", type=int, help="processes; by the budget where missing")
    parser.add_argument("--keep", type=Path, help="a folder for the sets, kept and used again")
    parser.add_argument("--seconds", type=float, default=3600, help="after which a command is stopped")
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
                idle, taken = (run(arguments, options.seconds) for arguments in filled)
                promised, arrays = dmkl_bytes(budget), taken.own - idle.own
                told = f"{arrays / MIB:>9.0f}{arrays / promised:>7.2f}{(taken.files - idle.files) / MIB:>14.0f}"
                print(
                    f"{command:<9}{budget:>8}{told}{taken.processes:>11}{taken.seconds:>9.1f}  {taken.failed}",
                    flush=True,
                )


def dmkl_bytes(text: str) -> int:
    """A size in words as bytes."""
    unit = {"KiB": 2**10, "MiB": MIB, "GiB": 2**30}[text[-3:]]
    return int(float(text[:-3]) * unit)


if __name__ == "__main__":
    main()
