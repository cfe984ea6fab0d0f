"""Types of arrays, and questions to arrays and labels of any library: their class, their text, which are unknown."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

UNKNOWN_TEXTS = frozenset({"", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "NULL", "null", "None", "NaT"})
"""Texts that stand for an unknown label, as tables and the printing of pandas, R and SQL have them."""


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


def is_known(labels: npt.ArrayLike) -> Mask:
    """Which labels are known: all but NaN, None, pandas's NA and the texts that stand for them."""
    values = np.asarray(labels)
    if values.dtype.kind in "biuf":
        return np.asarray(~np.isnan(values), dtype=bool)
    entries = values.ravel().tolist()
    texts = [not (isinstance(value, str) and value.strip() in UNKNOWN_TEXTS) for value in entries]
    written: Mask = np.array(texts, dtype=bool).reshape(values.shape)
    if all(isinstance(value, str) for value in entries):
        return written
    import pandas as pd

    return np.asarray(written & ~pd.isna(values), dtype=bool)
