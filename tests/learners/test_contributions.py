"""Contributions of kernels to scores, and feature weights of linear kernels."""

import numpy as np
import pytest
import xarray as xr
from helpers.references import dense_view, in_memory
from sklearn.base import clone

import dmkl
from dmkl.errors import InputError

M, TRAIN = 160, np.arange(120)
TEST = np.arange(120, M)


@pytest.fixture(scope="module")
def made():
    """A linear and a Gaussian kernel, labels that depend on the first, and the direction of the dependence."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, M)
    direction = rng.standard_normal(12)
    first = rng.standard_normal((M, 12)) + np.outer(2 * y - 1, direction)
    views = {"first": first, "second": rng.standard_normal((M, 5))}
    recipes = [{"function": "linear", "feature": "first"}, {"function": "rbf", "feature": "second"}]
    return dmkl.build(None, views, recipes, labels=y, dtype="float64"), views, y, direction


LEARNERS = {
    "several classes": (dmkl.MKFDA(p=1.5, lam=0.1), 3),
    "two classes": (dmkl.MKFDA(p=2.0, lam=0.1, steps=("cosine", "center")), 2),
    "machine": (dmkl.MKSVM(p=1.5, C=1.0), 3),
    "prices": (dmkl.GMKL(C=1.0), 2),
    "sparse": (dmkl.MKSVM(p=1.0, C=1.0), 2),
    "boosting": (dmkl.LPBoost(cv=3), 3),
    "stack": (dmkl.Stack(), 2),
    "stack of one kernel": (dmkl.Stack(), 2),
    "product": (dmkl.Product(), 2),
    "tasks": (dmkl.MKFDA(lam=0.1), 2),
    "groups": (dmkl.GSMKL(max_iter=5), 3),
    "localized": (dmkl.LocalizedMKL(20.0, max_iter=5), 3),
}


def problem(n_classes):
    rng = np.random.default_rng(1)
    y = rng.integers(0, n_classes, M)
    X = rng.standard_normal((4, M, 6)) + np.array([0.8, 0.4, 0.0, 0.0])[:, None, None] * y[None, :, None]
    return np.exp(-((X[:, :, None] - X[:, None]) ** 2).mean(axis=3)), y


@pytest.mark.parametrize("name", LEARNERS)
def test_contributions_sum_to_the_scores(name):
    learner, n_classes = LEARNERS[name]
    kernels, y = problem(n_classes)
    K = in_memory(kernels[: 1 if "one kernel" in name else None], 32)
    if name == "tasks":  # of which some labels are unknown
        y = np.stack([y, 1 - y], axis=1).astype(float)
        y[:10, 1] = np.nan
    model = clone(learner).fit(K[TRAIN, TRAIN], y[TRAIN])
    shares, scores = model.contributions(K[TEST, TRAIN]), model.decision_function(K[TEST, TRAIN])
    total = shares.sum("kernel") + (shares.intercept if "intercept" in shares.coords else 0.0)
    np.testing.assert_allclose(total.values, scores.values, rtol=0, atol=1e-10 * np.abs(scores.values).max())
    assert shares.dims == ("sample", "kernel", *scores.dims[1:])
    assert shares.kernel.values.tolist() == list(model.kernel_names_)
    assert shares.sample.values.tolist() == scores.sample.values.tolist()


def test_each_pair_has_contributions_of_its_own():
    kernels, y = problem(3)
    K = in_memory(kernels, 32)
    model = dmkl.MKSVM(p=1.5, C=1.0, multiclass="ovo").fit(K[TRAIN, TRAIN], y[TRAIN])
    result = model.contributions(K[TEST, TRAIN])
    dense = dense_view(kernels, TEST, TRAIN, model.steps)
    expected = np.einsum("nrm,nk,mk->rnk", dense, model.weights_.values, model.dual_coef_.values)
    # One against one, the statistics of steps are from all training samples.
    np.testing.assert_allclose(result.values, expected, atol=1e-10)
    assert result.dims == ("sample", "kernel", "pair")


@pytest.mark.parametrize("steps", [("center", "trace"), ("multiplicative", "center"), ()])
def test_features_behind_a_linear_kernel(made, steps, tmp_path):
    K, views, y, direction = made
    model = dmkl.MKFDA(p=2.0, lam=0.1, steps=steps).fit(K[TRAIN, TRAIN], y[TRAIN])
    weights = model.feature_weights("first-linear")
    share = model.contributions(K[TEST, TRAIN]).sel(kernel="first-linear")
    left = share.values - views["first"][TEST] @ weights.values
    # With centering a constant remains, without centering nothing.
    assert np.ptp(left) < 1e-5 * np.ptp(share.values)
    if not steps:
        np.testing.assert_allclose(left, 0.0, atol=1e-5 * np.ptp(share.values))
    assert np.corrcoef(weights.values, direction)[0, 1] > 0.9
    assert weights.dims == ("feature",)
    model.save(tmp_path / "model.zarr")
    xr.testing.assert_identical(dmkl.load(tmp_path / "model.zarr").feature_weights("first-linear"), weights)


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [
        ("second-rbf", ("center",), "only linear kernels have weights"),
        ("third", ("center",), "no kernel 'third'"),
        ("first-linear", ("cosine",), "divides each sample by its own norm"),
        ("kernel_0", ("center",), "not computed from features"),
    ],
)
def test_kernels_without_weights_of_features_are_refused(made, name, steps, message):
    K, _, y, _ = made
    kernels = np.asarray(K) if name == "kernel_0" else K
    model = dmkl.MKFDA(lam=0.1, steps=steps).fit(kernels, y)
    with pytest.raises(InputError, match=message):
        model.feature_weights(name)
