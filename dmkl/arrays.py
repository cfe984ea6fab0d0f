"""Types of arrays, as annotations name them, and how values of theirs are written in messages."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def is_instance(value: Any, library: str, *kinds: str) -> bool:
    """Whether a value is of one of these classes of a library, which is not imported: nobody has made one without."""
    module = sys.modules.get(library)
    return module is not None and isinstance(value, tuple(getattr(module, kind) for kind in kinds))


def plain_repr(value: Any) -> str:
    """`repr`, with NumPy's scalars as Python's: 0 and 'a', not np.int64(0) and np.str_('a'), in containers too."""
    with np.printoptions(legacy="1.25"):
        return repr(value)


def weight_shares(weights: Array, axis: int) -> Array:
    """Kernel weights divided by the sum of their sizes over the kernels: the scale on which fits are averaged.

    Weights have unit p-norm, and therefore another scale at each p. An array of zeros stays zero.
    """
    total = np.abs(weights).sum(axis=axis, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1.0))
