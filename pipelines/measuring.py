"""Measure the time and the peak memory of a command and its child processes, for the scripts of this folder."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil


def measured(command: list[str]) -> float:
    """Run a command, print its time and the peak memory of all its processes, and return the seconds.

    Resident memory (a page that several processes share counts in each) is sampled every 20 ms, PSS (shared pages
    count once) twice a second; both less often if sampling would take more than 2 % of the time.
    """
    print("$", " ".join(command), flush=True)
    start = next_pss = time.perf_counter()
    child = subprocess.Popen(command)
    rss = pss = 0
    while child.poll() is None:
        now_rss = now_pss = 0
        sample_start = time.perf_counter()
        try:
            processes = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
        except psutil.Error:
            break
        for process in processes:
            try:
                now_rss += process.memory_info().rss
                if sample_start >= next_pss:
                    info = process.memory_full_info()
                    now_pss += getattr(info, "pss", info.rss)
            except psutil.Error:
                continue  # the process has ended
        rss, pss = max(rss, now_rss), max(pss, now_pss)
        pause = 50 * (time.perf_counter() - sample_start)
        if sample_start >= next_pss:
            next_pss = sample_start + max(0.5, pause)
            pause = 0.0
        time.sleep(max(0.02, pause))
    if child.wait():
        sys.exit(child.returncode)
    seconds = time.perf_counter() - start
    print(
        f"{seconds:.0f} s, peak memory {rss / 2**30:.2f} GiB resident, {pss / 2**30:.2f} GiB with shared pages "
        "counted once\n",
        flush=True,
    )
    return seconds
