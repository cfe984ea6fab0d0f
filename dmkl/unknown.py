"""Which labels are unknown, in memory and as files write them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UNKNOWN_TEXTS = frozenset({"", "NA", "N/A", "n/a", "<NA>", "#N/A", "NaN", "nan", "NULL", "null", "None", "NaT"})
"""Texts that stand for an unknown label, as tables and the printing of pandas, R and SQL have them."""


def is_known(labels: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which labels are known: all but NaN, None, pandas's NA and the texts that stand for them."""
    values = np.asarray(labels)
    if values.dtype.kind in "biuf":
        return np.asarray(~np.isnan(values), dtype=bool)
    entries = values.ravel().tolist()
    texts = [not (isinstance(value, str) and value.strip() in UNKNOWN_TEXTS) for value in entries]
    written: npt.NDArray[np.bool_] = np.array(texts, dtype=bool).reshape(values.shape)
    if all(isinstance(value, str) for value in entries):
        return written
    import pandas as pd

    return np.asarray(written & ~pd.isna(values), dtype=bool)
