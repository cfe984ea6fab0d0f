"""What rides a pass: blocks of vectors, and what is wanted of their products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dmkl.arrays import Array

__all__ = ["Columns", "Want"]

Want = Literal["each", "sum", "project"]


@dataclass(frozen=True)
class Columns:
    """A block of vectors that rides a pass."""

    block: Array
    """V, (cols, b), over the columns of its view."""
    want: Want
    """K_j V for every kernel ("each"), Σ_j K_j V diag(w_j) ("sum"), or VᵀK_jV for every kernel ("project")."""
    weights: Array | None
    """w, (kernels, b), for "sum"."""
    dtype: np.dtype[Any]
    """The precision of the products: that of the kernels, or float64 to lose nothing of a float32 set's entries."""
    lens: int = 0
    """Which of the lenses that share the pass it goes through."""

    @property
    def width(self) -> int:
        """Columns of the block."""
        return int(self.block.shape[1])

    def without_vectors(self) -> Columns:
        """The same with a block of no rows: what a task needs to know where the vectors reach it in another way."""
        return replace(self, block=self.block[:0].copy())
