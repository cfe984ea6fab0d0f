"""Distances as SciPy's pdist gives them: those of each pair once, as one vector."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dmkl.arrays import Array

__all__ = ["CondensedMatrix", "n_condensed"]


def n_condensed(length: int) -> int | None:
    """How many samples, 3 at least, have so many pairs; None where no number has."""
    n = (1 + math.isqrt(1 + 8 * length)) // 2
    return n if n >= 3 and n * (n - 1) // 2 == length else None


class CondensedMatrix:
    """A vector of the distances of n(n − 1)/2 pairs, read as the (n, n) matrix of them.

    The distance of samples i < k is entry ni − i(i + 1)/2 + k − i − 1 of the vector.
    """

    def __init__(self, values: Any, n: int) -> None:
        self._values, self._n = values, n
        self.shape = (n, n)
        self.dtype: np.dtype[Any] = np.dtype(values.dtype)

    def __getitem__(self, key: tuple[Any, slice]) -> Array:
        rows, cols = (np.arange(self._n)[part] for part in key)
        low, high = np.minimum(rows[:, None], cols), np.maximum(rows[:, None], cols)
        at = self._n * low - low * (low + 1) // 2 + high - low - 1
        apart = low < high
        found = np.zeros(apart.shape, dtype=self.dtype)
        found[apart] = np.asarray(self._values[:])[at[apart]]
        return found
