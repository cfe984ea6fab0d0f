"""Variance components of kernels kept as factors against the same kernels as matrices, and dense algebra."""

import numpy as np
import pytest
import xarray as xr
from helpers.variance import check_maximum, reml

import dmkl

M, TRAIN, TEST = 140, np.arange(110), np.arange(110, 140)
ONE, Z = np.ones((M, 1)), np.random.default_rng(9).normal(size=(M, 2))
WITH_Z = (dmkl.residualize(Z),)


def made(seed):
    """A set kept as factors, its kernels as matrices, and y; one factor has dependent columns of two others."""
    rng = np.random.default_rng(seed)
    tables = {f"t{j}": rng.normal(size=(M, d)) / np.sqrt(d) + 0.3 for j, d in enumerate((12, 20, 3))}
    y = 3.0 + Z @ [1.0, -2.0] + rng.normal(size=M)
    for variance, table in zip((1.0, 0.0 if seed % 2 else 0.8, 0.5), tables.values(), strict=True):
        y += np.sqrt(variance) * table @ rng.normal(size=table.shape[1])
    tables["t2"] = np.hstack([tables["t2"], 2 * tables["t2"], tables["t0"][:, :1]])
    K = dmkl.build(None, tables, {"function": "linear"}, labels=y)
    return K, dmkl.create(None, list(np.asarray(K)), names=K.names, labels=y), y


@pytest.mark.parametrize(("seed", "steps", "X"), [(0, "center", ONE), (1, "center", ONE), (1, WITH_Z, np.c_[ONE, Z])])
def test_the_maximum_is_that_of_dense_algebra(seed, steps, X):
    K, dense, y = made(seed)
    model = dmkl.VarianceComponents(steps=steps, shares="diagonal").fit(K[TRAIN, TRAIN], y[TRAIN])
    check_maximum(model, reml(np.asarray(dense)[:, TRAIN][:, :, TRAIN], y[TRAIN], X[TRAIN]))
    assert model.components_.boundary.any() == (seed == 1)
    assert model.n_passes_ == 2


@pytest.mark.parametrize("method", ["reml", "he"])
@pytest.mark.parametrize("steps", [("center", "trace"), (*WITH_Z, "trace"), WITH_Z])
def test_tests_and_predictions_are_those_of_the_matrices(method, steps):
    K, dense, y = made(0)
    models = []
    for S in (K, dense):
        model = dmkl.VarianceComponents(method, steps=steps, shares="diagonal").fit(S[TRAIN, TRAIN], y[TRAIN])
        models.append((model, *model.predict(S[TEST, TRAIN], return_std=True, training=S[TRAIN, TRAIN])))
    (model, *predicted), (expected, *known) = models
    xr.testing.assert_allclose(model.components_, expected.components_, rtol=1e-7, atol=1e-9)
    for ours, theirs in zip(predicted, known, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8)
    ours, theirs = (m.contributions(S[TEST, TRAIN]) for m, S in ((model, K), (expected, dense)))
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.slow
def test_targets_have_their_own_rows_and_searches_their_folds(tmp_path):
    K, dense, y = made(1)
    targets = np.column_stack([y, -2 * y, y**2])
    targets[:30, 1] = np.nan
    ours, theirs = (dmkl.VarianceComponents(shares="diagonal").fit(S, targets) for S in (K, dense))
    xr.testing.assert_allclose(ours.components_, theirs.components_, rtol=1e-6, atol=1e-8)
    for a, b in zip(*(m.predict(S, return_std=True, training=S) for m, S in ((ours, K), (theirs, dense))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7)
    learner = dmkl.VarianceComponents(shares="diagonal", tests=False)
    scores = [
        dmkl.search(learner, S, y, {"method": ["reml", "he"]}, cv=3, state=tmp_path / name).table()["mean_score"]
        for S, name in ((K, "factors"), (dense, "matrices"), (K, "factors"))
    ]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-8)
    np.testing.assert_array_equal(scores[0], scores[2])


def test_a_factor_of_the_covariance_has_not_to_fit(monkeypatch):
    K, _, y = made(0)
    monkeypatch.setattr("dmkl.learners.variance._factor_bytes", lambda _: 2**60)
    model = dmkl.VarianceComponents(traces="exact", shares="diagonal").fit(K, y)
    assert not model.components_.variance_probe_se.fillna(0).any()
