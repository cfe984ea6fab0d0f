"""Settings, kept in Dask's own configuration under the key ``dmkl``.

So they are set the way a user of Dask sets anything: ``dask.config.set({"dmkl.memory": "2GiB"})``, a YAML file in
Dask's configuration folder, or the environment (``DASK_DMKL__MEMORY=2GiB``).
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
    # the memory that is free there at that moment: of the machine's own, of a container's or of a job's. On a cluster
    # each worker's machine says what it has, unless the client sets a number, which then holds for every machine.
    "memory": "auto",
    # Side of a tile in samples. "auto" is 1024, or 2048 for more than 4,096 samples. Measured on 8,192 samples with 64
    # vectors, a pass takes 2 % less with 2048 than with 1024 on idle cores and 18 % less on busy ones: longer products
    # and fewer files. More than 2048 gains nothing.
    "tile": "auto",
    # Columns that ride one pass. Beyond some 64 columns a pass is bound by arithmetic; beyond this many it is split,
    # so that its memory stays bounded.
    "block-width": 256,
    # BLAS threads of one task. With one, results do not depend on how many tasks run side by side: with another number
    # BLAS rounds otherwise. "auto" is the cores of the machine divided by the tasks that run side by side.
    "blas-threads": 1,
    # Seconds to wait for a cluster's first worker.
    "workers-timeout": 60,
    # Read the other files that an HDF5 file points to: external storage, external links, virtual data sets.
    "external-files": False,
    # Options of fsspec for URLs, such as {"endpoint_url": …}, beside its own configuration and the object store's.
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
"""Memory that a task should have: what it takes to read and multiply tiles of the largest size, and as much again."""


def tasks_at_once() -> int:
    """Tasks that run side by side on this machine where nobody says: one for each core, fewer of a small budget.

    Each holds tiles, vectors and results of its own, so that many of them with little memory can do less than few.
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
    """Refuse to read what takes more memory than a computation may.

    Raises
    ------
    MemoryBudgetError
        If it does.
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
    """Most columns that ride one pass."""
    width = int(get("block-width"))
    if width < 1:
        msg = f"dmkl.block-width must be at least 1, got {width}"
        raise InputError(msg)
    return width
