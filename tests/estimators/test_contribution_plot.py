"""Pictures of what speaks for a sample."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import dmkl
from dmkl.errors import InputError


def contributions(*, classes=True, n_kernels=3):
    values = np.random.default_rng(0).standard_normal((2, n_kernels, 3))
    kernels = [f"kernel_{k}" for k in range(n_kernels)]
    coords = {"sample": ["a", "b"], "kernel": kernels, "class": [1, 2, 3]}
    result = xr.DataArray(values, coords, ("sample", "kernel", "class"))
    return result if classes else result.isel({"class": 0}, drop=True)


def ends(ax):
    """Where each bar ends, from top to bottom."""
    return [bar.get_x() + bar.get_width() for bar in ax.patches]


def test_bars_lead_from_zero_to_the_score():
    result = contributions()
    ax = dmkl.plot_contributions(result, "b", 2)
    shares = result.sel(sample="b", **{"class": 2})
    order = np.argsort(-np.abs(shares.values))
    np.testing.assert_allclose(ends(ax), np.cumsum(shares.values[order]))
    np.testing.assert_allclose([bar.get_x() for bar in ax.patches], [0.0, *ends(ax)[:-1]])
    assert [text.get_text() for text in ax.get_yticklabels()] == [f"kernel_{k}" for k in order]


def test_the_largest_score_is_drawn_unless_another_is_named():
    result = contributions().assign_coords(intercept=("class", [0.0, 50.0, 0.0]))
    ax = dmkl.plot_contributions(result, "a")
    assert "class 2" in ax.get_xlabel()
    assert ends(ax)[-1] == pytest.approx(float(result.sel(sample="a", **{"class": 2}).sum()) + 50.0)


def test_small_contributions_of_many_kernels_are_one_bar():
    result = contributions(classes=False, n_kernels=30)
    ax = dmkl.plot_contributions(result, "a")
    assert ax.get_yticklabels()[-1].get_text() == "10 others"
    assert ends(ax)[-1] == pytest.approx(float(result.sel(sample="a").sum()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((contributions(), "c"), "there is no sample 'c' among these contributions; there are a, b"),
        ((contributions(), "a", 4), "there is no class 4 among these contributions; there are 1, 2, 3"),
        ((contributions(classes=False), "a", 1), "to one score, and of=1 names another"),
        ((np.zeros((2, 3)), "a"), "got ndarray"),
        ((contributions().transpose(), "a"), "got .*'class', 'kernel', 'sample'"),
    ],
)
def test_what_is_no_contribution_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        dmkl.plot_contributions(*arguments)
