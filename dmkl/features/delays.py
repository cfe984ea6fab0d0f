"""Tables of delayed features, for responses that lag behind their cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dmkl.arrays import is_instance
from dmkl.errors import refuse
from dmkl.inputs.columns import axis_names
from dmkl.inputs.label_tables import matched


def delay_features(features: Any, delays: Sequence[int] = (1, 2, 3, 4), runs: Any = None) -> Any:
    """Features of earlier rows side by side: row t is [x(t − d) for d in delays], 0 where t − d is outside its run.

    A linear model of the result has a weight for each feature at each delay (a finite impulse response), and its linear
    kernel is Σ_d x(s − d)·x(t − d), without the terms outside a run.

    Parameters
    ----------
    features
        An array or DataFrame (rows, features), the rows in the order of time.
    delays
        Numbers of rows; negative ones take later rows.
    runs
        The run of each row, matched by name if both have names of rows. Neighbors with equal values are in one run. By
        default all rows are.

    Returns
    -------
    array or DataFrame
        (rows, delays × features), all features of the first delay first. Columns of a DataFrame are named
        ``"FEATURE, delay D"``.

    Raises
    ------
    InputError
        If the features are no table, there is no delay or one that is no whole number, or not every row has a run.

    Notes
    -----
    Huth, Nishimoto, Vu, Gallant, Neuron 76 (2012), take delays of 4 to 8 seconds, two to four scans.

    Examples
    --------
    >>> import dmkl
    >>> dmkl.delay_features([[1.0], [2.0], [3.0], [4.0]], delays=[0, 1], runs=["a", "a", "b", "b"])
    array([[1., 0.],
           [2., 1.],
           [3., 0.],
           [4., 3.]])
    """
    values, names = np.asarray(features), axis_names(features, 0)
    lags = np.asarray(delays)
    if values.ndim != 2 or lags.ndim != 1 or not lags.size or lags.dtype.kind not in "iu":
        what = "delay_features takes a table (rows, features) and delays as whole numbers of rows"
        refuse(f"{what}; got features of shape {values.shape} and delays {delays!r}")
    rows, run = np.arange(len(values)), np.zeros(len(values), dtype=np.int64)
    if runs is not None:
        samples = rows if names is None else np.array(names, dtype=object)
        of_rows = matched("runs", runs, samples, named=names is not None).values
        if of_rows.shape != rows.shape:
            refuse(f"runs have shape {of_rows.shape}, expected a value for each of the {len(rows)} rows")
        run[1:] = np.cumsum(of_rows[1:] != of_rows[:-1])
    result = np.zeros((len(rows), len(lags), values.shape[1]), dtype=values.dtype)
    for k, delay in enumerate(lags.tolist()):
        later = rows[(rows >= delay) & (rows < len(rows) + delay)]
        later = later[run[later] == run[later - delay]]
        result[later, k] = values[later - delay]
    result = result.reshape(len(rows), -1)
    if not is_instance(features, "pandas", "DataFrame"):
        return result
    columns = [f"{column}, delay {delay}" for delay in lags.tolist() for column in features.columns]
    return type(features)(result, features.index, columns)
