"""Cores and memory that this process may use: by affinity, cgroups, batch system and resource limits.

Nothing is cached: a container or a batch system may change its limits, and other programs allocate and free memory.
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
"""The control groups of the system, and those of this process."""
_NO_LIMIT = 2**60
"""Version 1 of cgroups writes a number near 2⁶³ if there is no limit."""


def available_cores() -> int:
    """Cores that this process may use: the minimum of affinity, quotas of cgroups and SLURM's grant."""
    granted = [cpu_count(), *(math.ceil(quota) for quota in _core_quotas())]
    granted += [cores for cores in (_slurm("CPUS_PER_TASK"), _slurm("CPUS_ON_NODE")) if cores]
    return max(1, min(granted))


def bound_cores() -> frozenset[int] | None:
    """Numbers of the cores to which this process is bound; None if it may run on all cores of the host."""
    if not hasattr(os, "sched_getaffinity"):  # Windows, macOS
        return None
    cores = frozenset(os.sched_getaffinity(0))
    return cores if len(cores) < (os.cpu_count() or 1) else None


def free_bytes() -> int:
    """Memory that this process may still allocate.

    The minimum over the free memory of the host, the remaining memory of its cgroups and of SLURM's grant, and its
    resource limits of address space and data. The file cache counts as free, since the system releases it.
    """
    grant = _slurm_bytes()
    allowed: list[int] = [psutil.virtual_memory().available, *_memory_left_in_cgroups(), *_memory_left_by_rlimits()]
    if grant is not None:
        allowed.append(grant - psutil.Process().memory_info().rss)
    return max(0, min(allowed))


def machine_name() -> str:
    """The name of the memory that this process shares with others: that of its SLURM job, or "" for the host's."""
    return os.environ.get("SLURM_JOB_ID", "")


# --- control groups ------------------------------------------------------------------------------------------------


def _core_quotas() -> Iterator[float]:
    """Cores that each cgroup with a quota allows: CPU time per wall time."""
    for folder in _cgroups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            limit, period = (folder / "cpu.max").read_text().split()  # "max 100000" means no limit
            yield int(limit) / int(period)
        quota, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period_us and quota > 0:
            yield quota / period_us


def _memory_left_in_cgroups() -> Iterator[int]:
    """The limit of each cgroup that has one, less its memory without file cache."""
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
    """The folders of the cgroups of this process, and of all their ancestors.

    In a container they are often mounted with the container's cgroup as root, under the names on the host.
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
    """Bytes of the file cache of a cgroup."""
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
    """A number in the environment of a SLURM job; None if there is none."""
    value = os.environ.get(f"SLURM_{name}", "")
    return int(value) if value.isdecimal() else None


def _slurm_bytes() -> int | None:
    """Memory of this node that SLURM grants to the job; zero means all of it."""
    if per_node := _slurm("MEM_PER_NODE"):
        return per_node * 2**20
    per_core, cores = _slurm("MEM_PER_CPU"), _slurm("CPUS_ON_NODE") or _slurm("CPUS_PER_TASK")
    return per_core * cores * 2**20 if per_core and cores else None


def _memory_left_by_rlimits() -> Iterator[int]:
    """The remaining memory under RLIMIT_AS and RLIMIT_DATA, if they are set."""
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
