"""Settings, kept in Dask's configuration under the key ``dmkl``.

They are set like all of Dask's: ``dask.config.set({"dmkl.memory": "2GiB"})``, a YAML file in Dask's configuration
folder, or the environment (``DASK_DMKL__MEMORY=2GiB``).
"""

from __future__ import annotations

from typing import Any

import dask
from dask.utils import parse_bytes

from dmkl import limits
from dmkl.errors import InputError, MemoryBudgetError

__all__ = [
    "DEFAULTS",
    "available_cores",
    "block_width",
    "check_memory",
    "get",
    "memory_budget_bytes",
    "tasks_at_once",
    "tile_size",
]

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
    # Seconds to wait for a cluster's first worker.
    "workers-timeout": 60,
    # Read other files that an HDF5 file refers to: external storage, external links, virtual data sets.
    "external-files": False,
    # Options of fsspec for URLs, such as {"endpoint_url": …}, in addition to its configuration files.
    "storage": {},
    # Verify the checksum of a tile when a process first reads it ("first"), each time ("always") or "never".
    "verify": "first",
}

dask.config.update_defaults({"dmkl": DEFAULTS})


def get(key: str) -> Any:
    """Return the setting `key` (one of `DEFAULTS`)."""
    return dask.config.get(f"dmkl.{key}", DEFAULTS[key])


def available_cores() -> int:
    """Cores that this process may use; see `dmkl.limits`."""
    return limits.available_cores()


_TASK_BYTES = 2**28
"""Memory of a task: twice what it takes to read and multiply tiles of the largest size."""


def tasks_at_once() -> int:
    """Default concurrency on this machine: one task for each core, fewer if memory is scarce.

    Each task has its own tiles, vectors and results, so that many tasks with little memory do less work than few.
    """
    return max(1, min(available_cores(), memory_budget_bytes() // _TASK_BYTES))


def memory_budget_bytes() -> int:
    """Bytes that the arrays of one computation may take on this machine.

    Raises
    ------
    InputError
        If the setting is neither "auto" nor a positive number of bytes ("2GiB", "500MB", 1e9).
    """
    value = get("memory")
    if value == "auto":
        return max(1, int(0.6 * limits.free_bytes()))
    try:
        budget = parse_bytes(value)
    except (ValueError, TypeError) as error:
        msg = f"dmkl.memory must be 'auto' or a size such as '2GiB', got {value!r}"
        raise InputError(msg) from error
    if budget <= 0:
        msg = f"dmkl.memory must be positive, got {value!r}"
        raise InputError(msg)
    return int(budget)


def check_memory(what: str, needed_bytes: int, way_out: str) -> None:
    """Raise MemoryBudgetError if something takes more memory than a computation may.

    Parameters
    ----------
    what, way_out
        What takes the memory, and what to do about it, for the message.
    """
    budget_bytes = memory_budget_bytes()
    if needed_bytes > budget_bytes:
        msg = (
            f"{what} takes {needed_bytes:.3g} bytes of memory, and {budget_bytes:.3g} are allowed (the setting "
            f"dmkl.memory); {way_out}"
        )
        raise MemoryBudgetError(msg)


def tile_size(n_samples: int, tile: int | None = None) -> int:
    """Side of a tile for a set of `n_samples`; `tile` overrides the setting."""
    value = get("tile") if tile is None else tile
    if value == "auto":
        value = 1024 if n_samples <= 4096 else 2048
    if isinstance(value, bool) or int(value) != value or int(value) < 1:
        msg = f"tile must be a positive number of samples, got {value!r}"
        raise InputError(msg)
    return min(int(value), max(n_samples, 1))


def block_width() -> int:
    """Most columns of one pass."""
    width = int(get("block-width"))
    if width < 1:
        msg = f"dmkl.block-width must be at least 1, got {width}"
        raise InputError(msg)
    return width
