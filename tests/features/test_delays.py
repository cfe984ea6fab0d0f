"""Tables of delayed features: their linear kernels are sums of shifted kernels within runs."""

import numpy as np
import pandas as pd
import pytest

import dmkl
from dmkl.errors import InputError

RUNS = np.array(["a"] * 5 + ["b"] * 7 + ["a"] * 4)  # the last four are a run of their own
X = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)


def starts_and_ends(i):
    """The first row of the run of row i, and the one after its last."""
    return [(0, 5), (5, 12), (12, 16)][(i >= 5) + (i >= 12)]


@pytest.mark.parametrize("delays", [[1, 2, 3, 4], [0], [2, -1], [16, -20]])
def test_the_linear_kernel_is_the_sum_of_those_of_each_delay_within_runs(delays):
    table = dmkl.delay_features(X, delays, runs=RUNS)
    assert table.dtype == np.float32
    expected = np.zeros((16, 16))
    for i, j in np.ndindex(16, 16):
        (i_start, i_end), (j_start, j_end) = starts_and_ends(i), starts_and_ends(j)
        for d in delays:
            if i_start <= i - d < i_end and j_start <= j - d < j_end:
                expected[i, j] += float(X[i - d].astype(float) @ X[j - d])
    K = dmkl.build(None, table, {"function": "linear"}, dtype="float64")
    np.testing.assert_allclose(np.asarray(K)[0], expected, atol=1e-5)


def test_columns_and_rows_keep_their_names_and_runs_are_matched_by_name():
    names = [f"scan{i}" for i in range(16)]
    frame, runs = pd.DataFrame(X, names, ["x", "y", "z"]), pd.Series(RUNS, names)
    table = dmkl.delay_features(frame, [1, 2], runs=runs[::-1])
    assert table.index.tolist() == names
    assert table.columns.tolist() == [f"{column}, delay {d}" for d in (1, 2) for column in "xyz"]
    np.testing.assert_array_equal(table, dmkl.delay_features(X, [1, 2], runs=RUNS))
    whole = dmkl.delay_features(frame)
    np.testing.assert_array_equal(whole.filter(like="delay 4"), np.vstack([np.zeros((4, 3)), X[:-4]]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": X[0]}, r"takes a table \(rows, features\).*got features of shape \(3,\)"),
        ({"delays": []}, r"whole numbers of rows; got .* delays \[\]"),
        ({"delays": [0.5]}, r"whole numbers of rows; got .* delays \[0.5\]"),
        ({"runs": RUNS[:3]}, r"runs have shape \(3,\), expected a value for each of the 16 rows"),
    ],
)
def test_what_is_no_table_no_delay_and_no_run_for_each_row_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        dmkl.delay_features(**{"features": X, "runs": RUNS} | given)
