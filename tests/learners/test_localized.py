"""Localized MKL against finite differences, its composite kernel and scikit-learn's machine on it."""

import numpy as np
import pytest
from helpers.margin import composite_kernel
from scipy.special import softmax
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

import dmkl
from dmkl.errors import InputError
from dmkl.solvers.groups import gating_gradient
from dmkl.solvers.margin.svm import solve_dense


@pytest.fixture(scope="module")
def built():
    """Two classes, which view s separates in region s only, and places, which depend on the region only."""
    rng = np.random.default_rng(0)
    y, region = rng.integers(0, 2, 240), rng.integers(0, 2, 240)
    views = {"place": (2.0 * region - 1.0 + 0.4 * rng.normal(size=240))[:, None]}
    for s in range(2):
        signs = np.where(region == s, 2 * y - 1, rng.choice([-1, 1], 240))
        views[f"view{s}"] = rng.normal(size=(240, 3)) + 1.5 * signs[:, None] * [1.0, 0.0, 0.0]
    return dmkl.build(None, views, {"function": "rbf", "gamma": 0.2}, labels=y, tile=60), views, y


TRAIN, TEST = np.arange(120), np.arange(120, 240)


def test_gradients_by_finite_differences():
    rng = np.random.default_rng(0)
    n, m = 3, 30
    kernels = np.array([rbf_kernel(rng.normal(size=(m, 2))) for _ in range(n)])
    y, features = np.where(rng.random(m) < 0.5, 1.0, -1.0), np.column_stack([rng.normal(size=(m, 2)), np.ones(m)])
    theta = rng.normal(size=(n, 3))

    def trained(at):
        weights = softmax(at @ features.T, axis=0)
        return weights, solve_dense(composite_kernel(kernels, weights, np.arange(m)), y, 2.0, 1e-12)

    weights, machine = trained(theta)
    gradient = gating_gradient(weights, machine.u, kernels @ (weights * machine.u).T, 0.5, features)
    for at in np.ndindex(*theta.shape):
        step = np.zeros_like(theta)
        step[at] = 1e-4
        change = (trained(theta + step)[1].dual - trained(theta - step)[1].dual) / 2e-4
        assert change == pytest.approx(gradient[at], rel=2e-3, abs=2e-4 * np.abs(gradient).max())


@pytest.mark.parametrize("gating", ["kernel", "place"])
def test_scores_are_those_of_the_localized_kernel(built, gating):
    K, views, y = built
    labels = y + (np.arange(240) % 3 == 0)
    learner = dmkl.LocalizedMKL((5.0, 5.0, 2.0), gating, max_iter=5)
    model = learner.fit(K[TRAIN, TRAIN], labels[TRAIN])
    assert np.isnan(model.gap_).all()
    falls = np.diff(model.history_["objective"].values, axis=1)
    assert (falls[np.isfinite(falls)] <= 0).all()
    dense = np.asarray(K[TRAIN, TRAIN].center().normalize("multiplicative"))
    features = dense.mean(axis=0) if gating == "kernel" else views["place"][TRAIN]
    names = model.train_samples_ if gating == "kernel" else [str(k) for k in range(features.shape[1])]
    np.testing.assert_array_equal(model.gating_["gating_feature"], names)
    scores = model.decision_function(K[TRAIN, TRAIN])
    for k in range(3):
        slope, constant = (model.gating_[f"gating_{name}"].values[..., k] for name in ("slope", "constant"))
        weights = softmax(features @ slope.T + constant, axis=1).T
        np.testing.assert_allclose(model.gating_["weight"][..., k], weights, atol=1e-8)
        np.testing.assert_allclose(model.weights_[:, k], weights.mean(axis=1), atol=1e-8)
        composite = composite_kernel(dense, weights, np.arange(len(TRAIN)))
        expected = composite @ model.dual_coef_.values[:, k] + model.intercept_.values[k]
        np.testing.assert_allclose(scores[:, k], expected, atol=1e-8)
        machine = SVC(C=learner.C[k], kernel="precomputed", tol=1e-8)
        machine.fit(composite, labels[TRAIN] == model.classes_[k])
        np.testing.assert_allclose(scores[:, k], machine.decision_function(composite), atol=2e-2)
    shares = model.contributions(K[TRAIN, TRAIN])
    np.testing.assert_allclose((shares.sum("kernel") + shares.intercept).values, scores, atol=1e-10)
    new = model.decision_function(K[TEST, TRAIN])
    tables = {name: view[TEST] for name, view in views.items()}
    np.testing.assert_allclose(model.decision_function(features=tables), new, atol=1e-8)
    with pytest.raises(InputError, match="weighs each kernel by groups of samples"):
        model.combined_kernel(K[TEST, TRAIN])


def test_what_is_refused(built):
    K, _, y = built
    labels = np.stack([y, 1 - y], axis=1)
    assert dmkl.LocalizedMKL(max_iter=1).fit(K, labels).predict(K).shape == (240, 2)
    for learner, of_learner, words in (
        (dmkl.LocalizedMKL(gating="no"), y, "no feature table 'no'"),
        (dmkl.LocalizedMKL(), np.where(np.arange(240)[:, None] > 3, labels, np.nan), "needs the labels of all"),
    ):
        with pytest.raises(InputError, match=words):
            learner.fit(K, of_learner)
    with pytest.raises(InputError, match="gating='place' needs features"):
        dmkl.LocalizedMKL(gating="place").fit([np.eye(20)], np.arange(20) % 2)
