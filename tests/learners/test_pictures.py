"""Pictures of fitted models: their data are those of the model."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.figure import Figure
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl import pictures
from dmkl.errors import InputError

RNG = np.random.default_rng(0)
VIEWS = [RNG.normal(size=(45, 4)) + shift * (np.arange(45)[:, None] % 3) for shift in (1.5, 0.5, 0.0)]
ANIMALS = np.array(["ant", "bee", "cat"])[np.arange(45) % 3]
K = dmkl.create(None, list(map(rbf_kernel, VIEWS)), names=["clear", "fair", "noise"], labels=ANIMALS)


def test_weights_by_group_are_means_over_classes_or_those_of_one():
    grouped = dmkl.GSMKL(n_groups=2, across=True).fit(K)
    weights = grouped.weights_.transpose("class", "kernel", "group").values
    ax = grouped.plot_weight_map()
    ax.figure.canvas.draw()
    means = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    order = np.argsort(-means.mean(axis=1))
    np.testing.assert_allclose(ax.collections[0].get_array(), means[order])
    words = [label.get_text() for label in ax.get_yticklabels()]
    assert words == np.array(["clear", "fair", "noise"])[order].tolist()
    ax = grouped.plot_weight_map(of="bee")
    np.testing.assert_allclose(ax.collections[0].get_array(), weights[1][np.argsort(-weights[1].mean(axis=1))])
    assert ax.figure.get_suptitle().endswith("by group, class bee")
    with pytest.raises(InputError, match="no groups' weights of 'dog': there are ant, bee, cat"):
        grouped.plot_weight_map(of="dog")


def test_weights_by_task():
    Y = (np.arange(45)[:, None] % 3 == np.arange(2)).astype(int)
    model = dmkl.MKFDA(p=2, lam=0.1).fit(K, Y)
    weights = model.weights_.transpose("kernel", "task").values
    drawn = model.plot_weight_map().collections[0].get_array()
    np.testing.assert_allclose(drawn, weights[np.argsort(-weights.mean(axis=1))])
    with pytest.raises(InputError, match="no groups' weights of '0': its weights are by task alone; leave of out"):
        model.plot_weight_map(of="0")


def test_a_model_of_one_weight_each_has_bars_and_no_map():
    model = dmkl.MKFDA(p=2, lam=0.1).fit(K)
    with pytest.raises(InputError, match="one weight for each kernel, which plot_weights draws"):
        model.plot_weight_map()
    bars = model.plot_weights().patches
    np.testing.assert_allclose([bar.get_width() for bar in bars], np.sort(model.weights_)[::-1])


def test_axes_and_scales_of_colors_have_numbers_at_both_ends():
    ax = dmkl.MKFDA(p=2, lam=0.1).fit(K).plot_weights()
    assert (ax.get_xticks()[0], ax.get_xticks()[-1]) == ax.get_xlim()
    many = np.random.default_rng(0).normal(size=(45, 43))
    ax = dmkl.MKRidge(p=2).fit(K, many).plot_weight_map()
    assert ax.get_xticks()[[0, -1]].tolist() == [0.5, 42.5]
    scale, image = ax.figure.axes[-1], ax.collections[0]
    np.testing.assert_allclose(scale.get_yticks()[[0, -1]], image.get_clim())
    gap = dmkl.MKSVM(p=2).fit(K).plot_convergence()
    assert np.log10(gap.get_ylim()) == pytest.approx(np.round(np.log10(gap.get_ylim())))


def contributions(n_kernels=3):
    values = np.random.default_rng(0).standard_normal((2, n_kernels, 3))
    kernels = [f"kernel_{k}" for k in range(n_kernels)]
    coords = {"sample": ["a", "b"], "kernel": kernels, "class": [1, 2, 3]}
    return xr.DataArray(values, coords, ("sample", "kernel", "class"))


def ends(ax):
    """The end of each bar, from top to bottom."""
    return [bar.get_x() + bar.get_width() for bar in ax.patches]


def test_components_are_colored_by_label():
    coords = {"sample": list("abcd"), "component": [1, 2], "explained": ("component", [0.5, 0.25])}
    values = np.arange(8.0).reshape(4, 2)
    coordinates = xr.DataArray(values, coords, ("sample", "component"))
    ax = dmkl.plot_components(coordinates, pd.Series(list("xyxy"), list("dcba")))
    np.testing.assert_array_equal(ax.collections[0].get_offsets(), values[[1, 3]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["x", "y"]
    assert ax.get_xlabel() == "component 1 (50 % of the trace)"
    assert len(dmkl.plot_components(coordinates, pd.Series([0.1, 0.2, 0.3, 0.4], list("abcd"))).collections) == 1
    with pytest.raises(InputError, match="two components"):
        dmkl.plot_components(coordinates[:, :1])


def test_bars_lead_from_zero_to_the_score():
    result = contributions()
    ax = dmkl.plot_contributions(result, "b", 2)
    shares = result.sel(sample="b", **{"class": 2})
    order = np.argsort(-np.abs(shares.values))
    np.testing.assert_allclose(ends(ax), np.cumsum(shares.values[order]))
    np.testing.assert_allclose([bar.get_x() for bar in ax.patches], [0.0, *ends(ax)[:-1]])
    assert [text.get_text() for text in ax.get_yticklabels()] == [f"kernel_{k}" for k in order]
    # Without a class: the one of the largest score, which includes its constant.
    ax = dmkl.plot_contributions(result.assign_coords(intercept=("class", [0.0, 0.0, 50.0])), "a")
    assert "class 3" in ax.get_xlabel()
    assert ends(ax)[-1] == pytest.approx(float(result.sel(sample="a", **{"class": 3}).sum()) + 50.0)


def test_small_contributions_of_many_kernels_are_one_bar():
    result = contributions(30).sel({"class": 1}, drop=True)
    ax = dmkl.plot_contributions(result, "a")
    assert ax.get_yticklabels()[-1].get_text() == "10 others"
    assert ends(ax)[-1] == pytest.approx(float(result.sel(sample="a").sum()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((contributions(), "c"), "there is no sample 'c' among these contributions; there are a, b"),
        ((contributions(), "a", 4), "there is no class 4 among these contributions; there are 1, 2, 3"),
        ((np.zeros((2, 3)), "a"), "got ndarray"),
    ],
)
def test_what_is_no_contribution_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        dmkl.plot_contributions(*arguments)


def test_axes_end_at_the_ticks_around_the_data_without_margins():
    ax = Figure().subplots()
    ax.plot([0.0, 1.0], [3.0, 88.0], "o")
    pictures.label_ends(ax.xaxis, ax.yaxis)
    assert (ax.get_xlim(), ax.get_ylim()) == ((0.0, 1.0), (0.0, 100.0))
