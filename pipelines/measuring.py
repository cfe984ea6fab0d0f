"""The memory that a command and its child processes take together, for the other scripts of this folder."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil


def measured(command: list[str]) -> float:
    """Run a command, and print its time and the peak memory of its processes together; returns the seconds.

    Resident memory is sampled every 20 ms as it stands (a page that several processes map counts in each), and twice a
    second with shared pages counted once (PSS), which takes a look at every page and so is no measure to take often.
    """
    print("$", " ".join(command), flush=True)
    start = time.perf_counter()
    child = subprocess.Popen(command)
    rss = pss = samples = 0
    while child.poll() is None:
        now_rss = now_pss = 0
        try:
            family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
        except psutil.Error:
            break
        for process in family:
            try:
                now_rss += process.memory_info().rss
                if samples % 25 == 0:
                    info = process.memory_full_info()
                    now_pss += getattr(info, "pss", info.rss)
            except psutil.Error:
                continue  # it has just ended
        rss, pss, samples = max(rss, now_rss), max(pss, now_pss), samples + 1
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
