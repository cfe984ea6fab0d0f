"""Pictures of fitted models: their data are those of the model."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import InputError


@pytest.fixture(scope="module")
def K():
    rng = np.random.default_rng(0)
    y = np.array(["ant", "bee", "cat"])[np.arange(45) % 3]
    views = [rng.normal(size=(45, 4)) + shift * (np.arange(45)[:, None] % 3) for shift in (1.5, 0.5, 0.0)]
    return dmkl.create(None, [rbf_kernel(view) for view in views], names=["clear", "fair", "noise"], labels=y)


@pytest.fixture(scope="module")
def grouped(K):
    return dmkl.GSMKL(n_groups=2, across=True).fit(K)


def words(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def drawn(ax):
    ax.figure.canvas.draw()
    return ax.figure.axes


def test_weights_by_group_are_means_over_classes_or_those_of_one(grouped):
    weights = grouped.weights_.transpose("class", "kernel", "group").values
    ax, bar = drawn(grouped.plot_weight_map())
    means = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    order = np.argsort(-means.mean(axis=1))
    np.testing.assert_allclose(ax.collections[0].get_array(), means[order])
    assert words(ax.yaxis) == np.array(["clear", "fair", "noise"])[order].tolist()
    assert words(ax.xaxis) == ["0", "1"]
    assert (ax.get_xlabel(), bar.get_ylabel()) == ("group", "share of the weight")
    assert ax.figure.get_suptitle().startswith("Kernel weights of GSMKL")
    assert ax.figure.get_suptitle().endswith("by group, mean over classes")
    ax, bar = drawn(grouped.plot_weight_map(of="bee"))
    assert bar.get_ylabel() == "kernel weight β"
    np.testing.assert_allclose(ax.collections[0].get_array(), weights[1][np.argsort(-weights[1].mean(axis=1))])
    assert ax.figure.get_suptitle().endswith("by group, class bee")
    with pytest.raises(InputError, match="no groups' weights of 'dog': there are ant, bee, cat"):
        grouped.plot_weight_map(of="dog")


def test_weights_by_task(K):
    Y = (np.arange(45)[:, None] % 3 == np.arange(2)).astype(int)
    model = dmkl.MKFDA(p=2, lam=0.1).fit(K, Y)
    ax, _ = drawn(model.plot_weight_map())
    weights = model.weights_.transpose("kernel", "task").values
    np.testing.assert_allclose(ax.collections[0].get_array(), weights[np.argsort(-weights.mean(axis=1))])
    assert ax.get_xlabel() == "task"
    with pytest.raises(InputError, match="no groups' weights of '0': its weights are by task alone; leave of out"):
        model.plot_weight_map(of="0")


def test_a_model_of_one_weight_each_has_bars_and_no_map(K):
    model = dmkl.MKFDA(p=2, lam=0.1).fit(K)
    with pytest.raises(InputError, match="one weight for each kernel, which plot_weights draws"):
        model.plot_weight_map()
    (ax,) = drawn(model.plot_weights())
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], np.sort(model.weights_)[::-1])
    assert ax.figure.get_suptitle() == "Kernel weights of MKFDA"
