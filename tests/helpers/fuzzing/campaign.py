"""`python -m helpers.fuzzing.campaign`: many mutated files of every format, read by processes with limits.

A process that dies, takes 10 seconds of processor time for a file, or asks for more than a gibibyte, is a finding like
an exception is, and another takes its place. How busy the machine is makes none.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

__all__ = ["main"]

SECONDS = 10.0  # of processor time for one file
GIBIBYTE = 2**30  # of memory for one file, beside what a process has when it begins
TICK = 5.0  # seconds that are waited for a process to say something
SILENCE = 24  # times that this was in vain: a process that says nothing, and wants no processor, hangs


@dataclass
class Share:
    """What one process reads: files `next` to `stop` of a format."""

    name: str
    next: int
    stop: int
    process: subprocess.Popen[str] | None = None
    silent: int = 0
    spent: float | None = None
    """Seconds of processor time that it and its helpers had taken when it was first found silent."""


def main() -> int:
    """Read as many files as asked for, and print what was found; 1 where anything was."""
    parser = argparse.ArgumentParser(description="Read mutated files of every format.")
    parser.add_argument("--inputs", type=int, default=100_000, help="how many, of all formats together")
    parser.add_argument("--formats", nargs="*", help="of these alone")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0, help="number of the first file of each format")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _read(given.child[0], int(given.child[1]), int(given.child[2]))
        return 0
    from helpers.fuzzing.corpora import FORMATS

    names = given.formats or list(FORMATS)
    each = -(-given.inputs // len(names))
    step = min(each, 1000)
    waiting = [
        Share(name, start, min(start + step, given.seed + each))
        for start in range(given.seed, given.seed + each, step)
        for name in names
    ]
    return _report(names, each, *_campaign(waiting, given.processes))


def _campaign(waiting: list[Share], n_processes: int) -> tuple[list[tuple[str, int, str]], Counter[str]]:
    """Run all shares, and give (format, number of the file, what was wrong), and processor seconds by format."""
    found: list[tuple[str, int, str]] = []
    seconds: Counter[str] = Counter()
    running = selectors.DefaultSelector()
    while waiting or running.get_map():
        while waiting and len(running.get_map()) < n_processes:
            _start(waiting.pop(0), running)
        told = running.select(timeout=TICK)
        for key, _ in told:
            share, line = key.data, key.fileobj.readline()  # type: ignore[union-attr]
            share.silent, share.spent = 0, None
            if line:
                number, fault = json.loads(line)
                share.next = number + 1
                if fault:
                    found.append((share.name, number, fault))
                    print(f"{share.name} {number}: {fault}", flush=True)
                continue
            before = _ended_seconds()
            _end(share, running, waiting, found)
            seconds[share.name] += _ended_seconds() - before
        for key in [] if told else list(running.get_map().values()):
            _look_after(key.data)
    return found, seconds


def _look_after(share: Share) -> None:
    """End a silent process that hangs, or whose helpers take too long; one that waits for a processor does neither."""
    assert share.process is not None
    with suppress(psutil.Error, OSError):
        process = psutil.Process(share.process.pid)
        family = [*process.children(recursive=True), process]
        spent = sum(sum(member.cpu_times()[:2]) for member in family)
        share.spent = spent if share.spent is None else share.spent
        share.silent += not any(_wants_processor(member.pid) for member in family)
        if spent - share.spent > SECONDS or share.silent > SILENCE:
            for member in family:
                member.send_signal(signal.SIGKILL if share.silent > SILENCE else signal.SIGPROF)


def _wants_processor(process: int) -> bool:
    """Whether a thread of a process computes, waits for its turn, or for a disk."""
    stats = [file.read_text() for file in Path(f"/proc/{process}/task").glob("*/stat")]
    return any(stat.rpartition(")")[2].split()[0] in "RD" for stat in stats)


def _ended_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _start(share: Share, running: selectors.BaseSelector) -> None:
    command = [
        sys.executable,
        "-m",
        "helpers.fuzzing.campaign",
        "--child",
        share.name,
        str(share.next),
        str(share.stop),
    ]
    # Each arena of the allocator, and each thread's stack, reserves memory that is never used.
    environment = {
        **os.environ,
        "MALLOC_ARENA_MAX": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "ZARR_THREADING__MAX_WORKERS": "1",
    }
    share.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    share.silent, share.spent = 0, None
    running.register(share.process.stdout, selectors.EVENT_READ, share)  # type: ignore[arg-type]


def _end(
    share: Share, running: selectors.BaseSelector, waiting: list[Share], found: list[tuple[str, int, str]]
) -> None:
    """Say what a process died of, and let another go on behind the file that killed it."""
    assert share.process is not None
    running.unregister(share.process.stdout)  # type: ignore[arg-type]
    status = share.process.wait()
    if share.next < share.stop:
        why = {-signal.SIGPROF: f"more than {SECONDS:g} s", -signal.SIGKILL: "hangs"}.get(
            status, f"exit status {status}"
        )
        found.append((share.name, share.next, why))
        print(f"{share.name} {share.next}: {why}", flush=True)
        waiting.append(Share(share.name, share.next + 1, share.stop))


def _report(names: list[str], each: int, found: list[tuple[str, int, str]], seconds: Counter[str]) -> int:
    faults = Counter(name for name, _, _ in found)
    print(f"{'format':<16}{'inputs':>8}{'faults':>8}{'CPU s':>8}")
    for name in names:
        print(f"{name:<16}{each:>8,}{faults[name]:>8,}{seconds[name]:>8.0f}")
    print(f"{'all':<16}{each * len(names):>8,}{len(found):>8,}{sum(seconds.values()):>8.0f}")
    return int(bool(found))


# --- in a child ------------------------------------------------------------------------------------------------------


def _read(name: str, start: int, stop: int) -> None:
    """Read some files under the limits, and say after each what was wrong."""
    from helpers.fuzzing.trial import Lab

    said: IO[Any] = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), name)
        for files in lab.valid:  # whatever is imported or started for the first file is no file's doing
            fault = lab.attempt(files)
            if fault:
                print(json.dumps((stop, f"valid files: {fault}")), file=said)
                return
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + GIBIBYTE,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for seed in range(start, stop):
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process, also inside a library
            fault = lab.trial(seed)
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps((seed, fault)), file=said)


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
