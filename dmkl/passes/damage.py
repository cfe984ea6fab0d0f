"""Damage that came after a tile was first read and checked: looked for before anything else is blamed."""

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
    """Where work on a view meets what sound kernels cannot give, check its tiles on disk before that is said.

    Raises
    ------
    CorruptTileError
        If one of them is missing, or not what was written; otherwise what the work raised.
    """
    try:
        yield
    except Exception as error:
        # What dmkl raises on purpose is about arguments and machines, but for kernels that prove unfit.
        if isinstance(error, IndefiniteKernelError | DegenerateKernelError) or not isinstance(error, DmklError):
            refuse_damage(view, error)
        raise


def refuse_damage(view: View, reason: Exception | None = None) -> None:
    """Read the tiles of the kernels of a view once more, each against its checksum: one pass.

    Raises
    ------
    CorruptTileError
        If one of them is missing, or not what was written.
    """
    source = view.source
    if not isinstance(source, StoreReader):
        return
    token = uuid.uuid4().hex
    shared = send(source, f"verify-source-{token}")
    look = delayed(StoreReader.verify, pure=False)
    tasks = [
        look(shared, int(kernel), dask_key_name=f"verify-kernel-{k}-{token}") for k, kernel in enumerate(view.kernels)
    ]
    tile_bytes = source.tiling.tile**2 * source.dtype.itemsize
    n_bytes = tile_bytes * sum(1 for _ in source.tiling.pairs())
    found = execute(tasks, [(task, n_bytes) for task in tasks], "verify")
    for error in found:
        if error is not None:
            raise error from reason
