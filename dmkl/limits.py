"""What this process may take of its machine: by its affinity, its cgroups, its batch system, its resource limits.

Nothing is kept: a container or a batch system may change what it grants, and other programs take and free memory.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
from dask.system import cpu_count

__all__ = ["available_cores", "bound_cores", "free_bytes", "machine_name"]

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where the kernel keeps control groups, and says to which this process belongs."""
_NO_LIMIT = 2**60
"""Version 1 says so with a number near 2⁶³."""


def available_cores() -> int:
    """Cores that this process may use: the least of its affinity, the quotas of its cgroups and SLURM's grant."""
    granted = [cpu_count(), *(math.ceil(quota) for quota in _core_quotas())]
    granted += [cores for cores in (_slurm("CPUS_PER_TASK"), _slurm("CPUS_ON_NODE")) if cores]
    return max(1, min(granted))


def bound_cores() -> frozenset[int] | None:
    """Numbers of the cores to which this process is bound; None where it may run on all cores of the machine."""
    if not hasattr(os, "sched_getaffinity"):  # Windows, macOS
        return None
    cores = frozenset(os.sched_getaffinity(0))
    return cores if len(cores) < (os.cpu_count() or 1) else None


def free_bytes() -> int:
    """Memory that this process may still take.

    The least of what the machine has free, what is left to each of its cgroups, SLURM's grant and its own resource
    limits of address space and data. Files that the kernel keeps in memory count as free, as it gives them up.
    """
    grant = _slurm_bytes()
    allowed: list[int] = [psutil.virtual_memory().available, *_left_to_cgroups(), *_left_by_resource_limits()]
    if grant is not None:
        allowed.append(grant - psutil.Process().memory_info().rss)
    return max(0, min(allowed))


def machine_name() -> str:
    """Which memory this process shares with others on its host: that of its job of the batch system, or the host's."""
    return os.environ.get("SLURM_JOB_ID", "")


# --- control groups ------------------------------------------------------------------------------------------------


def _core_quotas() -> Iterator[float]:
    """CPU time by time that passes, of each cgroup that limits it."""
    for folder in _cgroups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            limit, period = (folder / "cpu.max").read_text().split()  # "max 100000" is no limit
            yield int(limit) / int(period)
        quota, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period_us and quota > 0:
            yield quota / period_us


def _left_to_cgroups() -> Iterator[int]:
    """The limit of each cgroup that has one, less what it holds apart from files."""
    for folder in _cgroups("memory"):
        for limit_file, used_file, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.high", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and limit < _NO_LIMIT:
                yield limit - max(0, (used or 0) - _file_bytes(folder / "memory.stat", prefix))


def _cgroups(controller: str) -> Iterator[Path]:
    """The folders of the cgroups that this process is in, each with all above it.

    In a container they are often mounted as if its own cgroup were the root of all, under names that are the host's.
    """
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return
    seen = set()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if not controllers:  # version 2
            tops = [CGROUPS, CGROUPS / "unified"]
        elif controller in names:
            tops = [CGROUPS / controllers, CGROUPS / controller, CGROUPS / ",".join(reversed(names))]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for top in tops:
            for depth in range(len(parts) + 1):
                folder = top.joinpath(*parts[:depth])
                if folder not in seen and folder.is_dir():
                    seen.add(folder)
                    yield folder


def _file_bytes(stat: Path, prefix: str) -> int:
    """Bytes of files that a cgroup holds in memory."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for line in stat.read_text().splitlines():
            name, value = line.split()
            if name in (f"{prefix}inactive_file", f"{prefix}active_file"):
                total += int(value)
    return total


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max"
        return None


# --- batch systems and resource limits -----------------------------------------------------------------------------


def _slurm(name: str) -> int | None:
    """A number of the environment of a SLURM job; None where there is none."""
    value = os.environ.get(f"SLURM_{name}", "")
    return int(value) if value.isdecimal() else None


def _slurm_bytes() -> int | None:
    """Memory of this node that SLURM has granted the job; zero stands for all of it."""
    if per_node := _slurm("MEM_PER_NODE"):
        return per_node * 2**20
    per_core, cores = _slurm("MEM_PER_CPU"), _slurm("CPUS_ON_NODE") or _slurm("CPUS_PER_TASK")
    return per_core * cores * 2**20 if per_core and cores else None


def _left_by_resource_limits() -> Iterator[int]:
    """What RLIMIT_AS and RLIMIT_DATA leave, where they are set and the system has them."""
    try:
        import resource
    except ImportError:
        return
    used = psutil.Process().memory_info()
    for name, taken in (("RLIMIT_AS", "vms"), ("RLIMIT_DATA", "data")):
        if hasattr(resource, name) and hasattr(used, taken):
            limit, _ = resource.getrlimit(getattr(resource, name))
            if limit != resource.RLIM_INFINITY:
                yield limit - int(getattr(used, taken))
