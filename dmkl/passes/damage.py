"""Search for tiles that were damaged on disk after their first check, before another cause is reported."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from dask.delayed import delayed

from dmkl.errors import DegenerateKernelError, DmklError, IndefiniteKernelError
from dmkl.passes.execute import execute, send
from dmkl.passes.view import View
from dmkl.store.reader import StoreReader

__all__ = ["looking_for_damage", "refuse_damage"]


@contextmanager
def looking_for_damage(view: View) -> Iterator[None]:
    """If work on a view fails in a way that sound kernels cannot cause, check its tiles on disk first.

    Raises
    ------
    CorruptTileError
        If a tile is missing or differs from what was written; otherwise the original error is raised.
    """
    try:
        yield
    except Exception as error:
        # Errors that dmkl raises on purpose concern arguments and machines. The exceptions are an indefinite or a
        # degenerate kernel, which damaged tiles can imitate.
        if isinstance(error, IndefiniteKernelError | DegenerateKernelError) or not isinstance(error, DmklError):
            refuse_damage(view, error)
        raise


def refuse_damage(view: View, reason: Exception | None = None) -> None:
    """Read all tiles of the kernels of a view again and compare each with its checksum: one pass.

    Raises
    ------
    CorruptTileError
        If a tile is missing or differs from what was written.
    """
    source = view.source
    if not isinstance(source, StoreReader):
        return
    token = uuid.uuid4().hex
    shared = send(source, f"verify-source-{token}")
    # One task for each kernel, which returns an error instead of raising it: one damaged tile must not hide the others'
    # tasks.
    look = delayed(StoreReader.verify, pure=False)
    tasks = [
        look(shared, int(kernel), dask_key_name=f"verify-kernel-{k}-{token}") for k, kernel in enumerate(view.kernels)
    ]
    tile_bytes = source.tiling.tile**2 * source.dtype.itemsize
    n_bytes = tile_bytes * sum(1 for _ in source.tiling.pairs())
    outcomes = execute(tasks, [(task, n_bytes) for task in tasks], "verify")
    for error in outcomes:
        if error is not None:
            raise error from reason
