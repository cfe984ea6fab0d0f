"""Feature matrices in pandas data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from pandas.api.types import is_complex_dtype, is_numeric_dtype

from dmkl.errors import InputError
from dmkl.inputs.feature_matrices import SourceMatrix, array_matrix, stored

__all__ = ["Numbers", "dtype_of", "frame_matrix", "is_number", "only_counts", "refuse_columns"]


def frame_matrix(name: str, frame: pd.DataFrame) -> SourceMatrix:
    """Take a data frame as a feature matrix; its index names the samples unless it only counts."""
    others = [str(column) for column, dtype in frame.dtypes.items() if not is_number(dtype)]
    if others:
        refuse_columns(f"features {name!r}", others, "; names of samples go into the index (set_index)")
    index = None if only_counts(frame.index) else frame.index
    values = Numbers(frame, dtype_of(name, frame.dtypes))
    return array_matrix(name, values, samples=index, columns=frame.columns)


def is_number(dtype: Any) -> bool:
    """Whether a column of this type is numeric."""
    return bool(is_numeric_dtype(dtype)) and not is_complex_dtype(dtype)


def only_counts(index: pd.Index[Any]) -> bool:
    """Whether an index is that of a data frame without names of rows."""
    return isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1


def refuse_columns(where: str, columns: Sequence[str], way_out: str = "") -> NoReturn:
    """Refuse columns that are not numeric, by their names."""
    more = f" … ({len(columns)} in all)" if len(columns) > 8 else ""
    msg = (
        f"{where}: not numeric {'is column' if len(columns) == 1 else 'are columns'} "
        f"{', '.join(map(repr, columns[:8]))}{more}; encode as numbers (pandas.get_dummies) or drop{way_out}"
    )
    raise InputError(msg)


def dtype_of(name: str, dtypes: pd.Series[Any]) -> np.dtype[Any]:
    """The type that holds all columns."""
    # Pandas's own types tell the NumPy type of their numbers.
    found = {stored(name, getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype))) for dtype in dtypes}
    return np.result_type(*found, np.float32)


class Numbers:
    """A data frame of numbers as an array."""

    def __init__(self, frame: pd.DataFrame, dtype: np.dtype[Any]) -> None:
        self._frame, self.shape, self.dtype = frame, frame.shape, dtype

    def __getitem__(self, key: Any) -> Any:
        return self._frame.iloc[key].to_numpy(self.dtype, na_value=np.nan)
