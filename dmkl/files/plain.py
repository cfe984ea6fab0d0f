"""Zarr stores in folders of unknown origin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zarr.storage import LocalStore

from dmkl import settings
from dmkl.errors import DamagedFileError
from dmkl.files.regular import check_plain

_SMALL_BYTES = 2**24
"""Bytes of files that every computation may hold in memory."""


class PlainStore(LocalStore):
    """A Zarr store in a folder, which reads only regular files that fit the memory budget."""

    def _check(self, key: str, byte_range: Any) -> None:
        size = check_plain(self.root, key)
        # Asking for the budget reads the limits of the machine, which takes longer than a small file.
        if byte_range is None and size > _SMALL_BYTES and size > (budget := settings.memory_budget_bytes()):
            most = f"more than a computation may hold in memory (the setting dmkl.memory, {budget:.3g} bytes)"
            msg = f"{self.root}/{key} has {size:.3g} bytes, {most}; it is damaged, or allow more"
            raise DamagedFileError(msg)

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """A file, or a part of it; None if there is none."""
        self._check(key, byte_range)
        return await super().get(key, prototype, byte_range)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """A file, or a part of it; None if there is none."""
        self._check(key, byte_range)
        return super().get_sync(key, prototype=prototype, byte_range=byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> Any:
        """Parts of files."""
        parts = list(key_ranges)
        for key, byte_range in parts:
            self._check(key, byte_range)
        return await super().get_partial_values(prototype, parts)
