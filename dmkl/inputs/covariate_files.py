"""Covariates of samples in files: tables of numbers and categories, by the names of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dmkl.arrays import Array
from dmkl.errors import InputError
from dmkl.inputs.label_files import read_file
from dmkl.unknown import is_known

__all__ = ["read_covariates"]


def read_covariates(path: Path) -> pd.DataFrame:
    """The covariates in a file of any kind that labels are read from.

    Parameters
    ----------
    path
        A table with titles above its columns, whose first column names the samples, or geneticists' lines of FID, IID
        and values; FILE:NAME is one column of it, or of obs of an .h5ad. A single column without a title is called by
        NAME or by the file.

    Returns
    -------
    pandas.DataFrame
        (samples, covariates), its index being the samples' names. Columns hold numbers where all that is known in them
        are numbers, and words otherwise; what is unknown is missing.

    Raises
    ------
    InputError
        If the file cannot be read, or names no samples or columns.
    """
    table = read_file(path)
    values = table.values if table.values.ndim == 2 else table.values[:, None]
    titles = table.columns
    if titles is None and values.shape[1] == 1:
        titles = (path.stem if path.exists() else str(path).rpartition(":")[2],)
    if table.row_names is None or titles is None:
        missing = "samples" if table.row_names is None else "columns"
        msg = (
            f"{path} does not name its {missing}, expected a table of covariates with a line of titles, the first "
            "column being the names of the samples: call it 'sample'"
        )
        raise InputError(msg)
    columns = {title: _numbers_or_words(values[:, at]) for at, title in enumerate(titles)}
    return pd.DataFrame(columns, index=list(table.row_names))


def _numbers_or_words(cells: Array) -> Any:
    """Numbers where all that is known are some, and words otherwise, with what is unknown missing."""
    known = is_known(cells)
    try:
        return np.where(known, cells, "nan").astype(np.float64)
    except ValueError:
        words = cells.astype(object)
        words[~known] = None
        return words
