"""Types of arrays, as annotations name them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Float", "Index", "Mask"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
