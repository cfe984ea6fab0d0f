"""Kills and power cuts at random moments of all commands; the same commands then have to give the same results.

python tests/faults/campaign.py kills 150
python tests/faults/campaign.py cuts 20      # on copies of an ext4 image; needs root to mount it
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.context import ForkProcess
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.faults import PHASES, Phase, assert_same, make_files, result
from helpers.power import Disk

from dmkl.cli.main import main as run_command


def start(work: Callable[[], object], log: Path) -> ForkProcess:
    """Begin work in a fork of this process, which has no threads yet; it ends with the status of the command."""

    def run() -> None:
        file = os.open(log, os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.exit(work())

    (process := ForkProcess(target=run)).start()
    return process


def ended(process: ForkProcess) -> int | None:
    """The status of a fork; negative for a signal."""
    process.join()
    return process.exitcode


@contextmanager
def folder_to_disturb(kind: str, parent: Path) -> Iterator[tuple[Path, Callable[[], Path]]]:
    """A new folder, and a function that returns what is left of it after a fault."""
    parent.mkdir()
    if kind == "kills":
        yield parent, lambda: parent
        return
    with closing(Disk(parent)) as disk:
        (disk.path / "work").mkdir()
        os.sync()
        yield disk.path / "work", lambda: disk.after_power_cut() / "work"


def trial(kind: str, phase: Phase, files: Path, undisturbed: Path, seconds: float, place: Path, overwrite: bool) -> str:
    """Disturb a command after so many seconds and run it again; the faults, or "ended" if it was faster."""
    faults = []

    def check(out: Path, what: str) -> None:
        if ended(start(lambda: assert_same(result(out), result(undisturbed)), place / "log")):
            faults.append(what)

    with folder_to_disturb(kind, place) as (folder, remains):
        command = phase.command(files, folder / "out")
        if overwrite:
            ended(start(lambda: run_command(command), place / "log"))
            os.sync()
            command = [*command, "--overwrite"]
        process = start(lambda: run_command(command), place / "log")
        process.join(seconds)
        if process.exitcode is not None:
            return "ended"
        process.kill()
        process.join()
        out = remains() / "out"
        if overwrite:
            check(out, "readers do not see the output that is replaced")
        again = [str(out) if word == str(folder / "out") else word for word in command]
        status = ended(start(lambda: run_command(again), place / "again"))
        complete = "exists" in (place / "again").read_text() and not overwrite
        if status and not complete:
            faults.append(f"status {status}: {(place / 'again').read_text()[-300:]}")
        check(out, "the result differs")
        left = {entry.name for entry in out.parent.iterdir()} - {"out", "log", "again"}
        faults += [f"left behind: {left}"] if left and not complete else []
    return "; ".join(faults)


def main() -> int:
    """Print every fault and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("kills", "cuts"))
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, n_disturbed, n_faults = random.Random(options.seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        (files := Path(folder) / "files").mkdir()
        ended(start(lambda: make_files(files) and None, files.parent / "log"))
        seconds = {}
        for number, (name, phase) in enumerate(PHASES.items()):
            began = time.monotonic()
            command = phase.command(files, Path(folder) / f"{number}")
            assert ended(start(lambda command=command: run_command(command), files / "log")) == 0
            seconds[name] = time.monotonic() - began
        for number in range(10 * options.number):
            at = number % len(PHASES)
            name, overwrite = list(PHASES)[at], chance.random() < 0.3
            after, place = chance.uniform(0.05, 1.0) * seconds[name], Path(folder) / f"trial-{number}"
            faults = trial(options.kind, PHASES[name], files, Path(folder) / f"{at}", after, place, overwrite)
            n_disturbed += faults != "ended"
            if faults not in ("", "ended"):
                n_faults += 1
                print(f"{name}{' --overwrite' * overwrite} after {after:.2f} s: {faults}", flush=True)
            if n_disturbed == options.number:
                break
    print(f"{n_disturbed} {options.kind}, {n_faults} faults")
    return int(n_faults > 0)


if __name__ == "__main__":
    sys.exit(main())
