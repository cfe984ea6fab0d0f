"""Names for the arrays that signatures speak of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Float", "Index"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
"""Positions or numbers of things."""
