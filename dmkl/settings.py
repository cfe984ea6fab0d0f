"""Settings, kept in Dask's configuration under the key ``dmkl``, and the cores and memory that this process may use.

They are set like all of Dask's: ``dask.config.set({"dmkl.memory": "2GiB"})``, a YAML file in Dask's configuration
folder, or the environment (``DASK_DMKL__MEMORY=2GiB``).

Cores and memory follow from affinity, cgroups, batch system and resource limits. They are read again after a tenth of a
second: a container or a batch system may change its limits, and other programs allocate and free memory.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import dask
import psutil
from dask.system import cpu_count
from dask.utils import parse_bytes

from dmkl.errors import MemoryBudgetError, refuse

DEFAULTS: dict[str, Any] = {
    # Bytes that the arrays of one computation may take on one machine, all its processes together. "auto" is 60 % of
    # the memory of the machine, the container or the job that is free at that moment. On a cluster each machine of a
    # worker determines its own limit, unless the client sets a number for all machines.
    "memory": "auto",
    # Side of a tile in samples. "auto" is 1024, or 2048 for more than 4,096 samples. Measured on 8,192 samples with 64
    # vectors, a pass takes 2 % less time with 2048 than with 1024 on idle cores and 18 % less on busy ones: products
    # are longer and files fewer. More than 2048 gains nothing.
    "tile": "auto",
    # Most columns of one pass. Beyond some 64 columns the arithmetic limits the speed of a pass; wider blocks are split
    # to limit memory.
    "block-width": 256,
    # BLAS threads of one task. With one, results do not depend on the number of concurrent tasks, since BLAS rounds
    # differently with other numbers. "auto" is the number of cores of the machine divided by that of concurrent tasks.
    "blas-threads": 1,
    # Seconds to wait for a cluster's first worker, and for the answer of a worker that sends no messages.
    "workers-timeout": 60,
    # Read other files that an HDF5 file refers to: external storage, external links, virtual data sets.
    "external-files": False,
    # The value of a pair of samples that a list has with several values: "refuse", "first", "max" or "mean".
    "duplicates": "refuse",
    # Texts and numbers that stand for missing values in files that are read, in addition to NA and such.
    "unknown": [],
    # Options of fsspec for URLs, such as {"endpoint_url": …}, in addition to its configuration files.
    "storage": {},
    # Show a line of progress on standard error: "auto" if that is a terminal or belongs to a notebook, True or False.
    "progress": "auto",
    # Verify the checksum of a tile when a process first reads it ("first"), each time ("always") or "never".
    "verify": "first",
}

dask.config.update_defaults({"dmkl": DEFAULTS})


def get(key: str) -> Any:
    """Return the setting `key` (one of `DEFAULTS`)."""
    return dask.config.get(f"dmkl.{key}", DEFAULTS[key])


_TASK_BYTES = 2**28  # Memory of a task: twice what it takes to read and multiply tiles of the largest size.


def tasks_at_once() -> int:
    """Default concurrency: a task for each core, fewer if memory is scarce, as each has its own tiles and results."""
    return max(1, min(available_cores(), memory_budget_bytes() // _TASK_BYTES))


def memory_budget_bytes() -> int:
    """Bytes that the arrays of one computation may take on this machine: "auto", or a size ("2GiB", "500MB", 1e9)."""
    return size_in_bytes(get("memory"))


def size_in_bytes(value: Any) -> int:
    """The setting ``dmkl.memory`` in bytes; InputError if it is neither "auto" nor a positive size."""
    if value == "auto":
        return max(1, int(0.6 * free_bytes()))
    try:
        budget = parse_bytes(value)
    except (ValueError, TypeError) as error:
        refuse(f"dmkl.memory must be 'auto' or a size such as '2GiB', got {value!r}", error)
    if budget <= 0:
        refuse(f"dmkl.memory must be positive, got {value!r}")
    return int(budget)


def check_memory(what: str, needed_bytes: int, way_out: str) -> None:
    """Raise MemoryBudgetError if something takes more memory than a computation may; the message ends in `way_out`."""
    budget_bytes = memory_budget_bytes()
    if needed_bytes > budget_bytes:
        allowed = f"{budget_bytes:.3g} are allowed (the setting dmkl.memory)"
        refuse(f"{what} takes {needed_bytes:.3g} bytes of memory, and {allowed}; {way_out}", kind=MemoryBudgetError)


def tile_size(n_samples: int, tile: int | None = None) -> int:
    """Side of a tile for a set of `n_samples`; `tile` overrides the setting."""
    value = get("tile") if tile is None else tile
    if value == "auto":
        value = 1024 if n_samples <= 4096 else 2048
    if isinstance(value, bool) or int(value) != value or int(value) < 1:
        refuse(f"tile must be a positive number of samples, got {value!r}")
    return min(int(value), max(n_samples, 1))


def block_width() -> int:
    """Most columns of one pass."""
    width = int(get("block-width"))
    if width < 1:
        refuse(f"dmkl.block-width must be at least 1, got {width}")
    return width


# --- cores and memory that this process may use -----------------------------------------------------------------------

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""The control groups of the system, and those of this process."""
_NO_LIMIT = 2**60  # Version 1 of cgroups writes a number near 2⁶³ if there is no limit.


_VALID_SECONDS = 0.1
"""Time for which a reading is used again: reading the limits of all cgroups takes longer than a small computation."""


def available_cores() -> int:
    """Cores that this process may use: the minimum of affinity, quotas of cgroups and SLURM's grant."""
    return _read_cores(time.monotonic() // _VALID_SECONDS)


@lru_cache(1)
def _read_cores(_: float) -> int:
    granted = [cpu_count(), *(math.ceil(quota) for quota in _core_quotas())]
    granted += [cores for cores in (_slurm("CPUS_PER_TASK"), _slurm("CPUS_ON_NODE")) if cores]
    return max(1, min(granted))


def bound_cores() -> frozenset[int] | None:
    """Numbers of the cores to which this process is bound; None if it may run on all cores of the host."""
    if not hasattr(os, "sched_getaffinity"):  # Windows, macOS
        return None
    cores = frozenset(os.sched_getaffinity(os.getpid()))  # 0 would be this thread
    return cores if len(cores) < (os.cpu_count() or 1) else None


def free_bytes() -> int:
    """Memory that this process may still allocate.

    The minimum over the free memory of the host, the remaining memory of its cgroups and of SLURM's grant, and its
    resource limits of address space and data. The file cache counts as free, since the system releases it.
    """
    return _read_free_bytes(time.monotonic() // _VALID_SECONDS)


@lru_cache(1)
def _read_free_bytes(_: float) -> int:
    per_node, per_core = _slurm("MEM_PER_NODE"), _slurm("MEM_PER_CPU")  # zero means all of it
    granted = per_node or (per_core or 0) * (_slurm("CPUS_ON_NODE") or _slurm("CPUS_PER_TASK") or 0)
    allowed: list[int] = [psutil.virtual_memory().available, *_memory_left_in_cgroups(), *_memory_left_by_rlimits()]
    if granted:
        allowed.append(granted * 2**20 - psutil.Process().memory_info().rss)
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
            limit, used = _number(folder / limit_file), _number(folder / used_file) or 0
            if limit is None or limit >= _NO_LIMIT:
                continue
            with contextlib.suppress(OSError, ValueError):
                for line in (folder / "memory.stat").read_text().splitlines():
                    name, value = line.split()
                    used -= int(value) if name in (f"{prefix}inactive_file", f"{prefix}active_file") else 0
            yield limit - max(0, used)


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
