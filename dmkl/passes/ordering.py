"""Some samples of a store in the order of the store, in which those of one tile are neighbors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmkl.arrays import Index

__all__ = ["StoreOrder"]


@dataclass(frozen=True, eq=False)
class StoreOrder:
    """Samples sorted by their place in the source."""

    order: Index
    """Position of each among the samples as they were given."""
    stored: Index
    """Position of each in the source, ascending."""
    side: int
    """Of a tile, in samples."""

    @classmethod
    def of(cls, positions: Index, side: int) -> StoreOrder:
        """Sort samples, given by their positions in the source."""
        order = np.argsort(positions, kind="stable")
        return cls(order, positions[order], side)

    def run(self, tile: int) -> slice:
        """The samples that lie in one row (or column) of tiles."""
        start, stop = np.searchsorted(self.stored, (tile * self.side, (tile + 1) * self.side))
        return slice(int(start), int(stop))

    def inside(self, run: slice) -> Any:
        """Where in their tile the samples of a run lie: a slice where that can be, for it costs no copy."""
        local = self.stored[run] % self.side
        if len(local) and np.all(np.diff(local) == 1):
            return slice(int(local[0]), int(local[-1]) + 1)
        return local
