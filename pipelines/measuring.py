"""The memory that a command and its child processes take together, for the other scripts of this folder."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil


def measured(command: list[str]) -> float:
    """Run a command, and print its time and the peak memory of its processes together; returns the seconds.

    Resident memory is sampled every 20 ms: once as it stands (a page that several processes map counts in each), once
    with shared pages counted once (PSS).
    """
    print("$", " ".join(command), flush=True)
    start = time.perf_counter()
    child = subprocess.Popen(command)
    rss = pss = 0
    while child.poll() is None:
        now_rss = now_pss = 0
        try:
            family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
        except psutil.Error:
            break
        for process in family:
            try:
                info = process.memory_full_info()
            except psutil.Error:
                continue  # it has just ended
            now_rss += info.rss
            now_pss += getattr(info, "pss", info.rss)
        rss, pss = max(rss, now_rss), max(pss, now_pss)
        time.sleep(0.02)
    if child.wait():
        sys.exit(child.returncode)
    seconds = time.perf_counter() - start
    print(
        f"{seconds:.0f} s, peak memory {rss / 2**30:.2f} GiB resident, {pss / 2**30:.2f} GiB with shared pages "
        "counted once\n",
        flush=True,
    )
    return seconds
