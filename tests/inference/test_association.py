"""Score tests of kernels against tests that are known, and dense formulas; uniform p-values without association."""

import itertools

import dask
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import kstest, t

import dmkl
from dmkl.errors import MemoryBudgetError


def linear(r, n, m, d):
    F = r.normal(size=(n, m, d))
    return F, F @ F.transpose(0, 2, 1)


def features(F):
    return dmkl.build(None, {f"x{j}": part for j, part in enumerate(F)}, [{"function": "linear"}], dtype="float64")


@pytest.mark.parametrize("effect", [0.0, 0.3, 2.0])
def test_a_kernel_of_one_feature_is_the_t_test_of_its_coefficient(effect):
    r = np.random.default_rng(0)
    F, Ks = linear(r, 1, 50, 1)
    Z = r.normal(size=(50, 2))
    y = effect * F[0, :, 0] + Z[:, 0] + r.normal(size=50)
    X = np.column_stack([F[0], np.ones(50), Z])
    b, (residual, *_), *_ = np.linalg.lstsq(X, y, rcond=None)
    statistic = b[0] / np.sqrt(residual / 46 * np.linalg.inv(X.T @ X)[0, 0])
    found = dmkl.association_test(Ks, y, covariates=Z).data["p_value"].item()
    assert found == pytest.approx(2 * t.sf(abs(statistic), 46), rel=1e-7)


def imhof(w, x):
    def integrand(u):
        return np.sin(0.5 * np.sum(np.arctan(w * u)) - 0.5 * x * u) / (u * np.prod((1 + (w * u) ** 2) ** 0.25))

    return 0.5 + quad(integrand, 0, np.inf, limit=5000, epsabs=1e-12)[0] / np.pi


@pytest.mark.parametrize("small_sample", [True, False])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "cox"])
def test_kernels_and_their_factors_are_tested_as_the_dense_formula_has_it(family, small_sample):
    r = np.random.default_rng(8)
    F, Ks = linear(r, 3, 50, 6)
    Z = r.normal(size=(50, 1))
    mean, event = 0.4 * F[0, :, 0] + Z[:, 0], r.random(50) < 0.7
    y = {
        "gaussian": mean + r.normal(size=50),
        "binomial": (r.random(50) < expit(mean)).astype(int),
        "cox": dmkl.signed_times(np.round(r.exponential(np.exp(-mean)) + 0.05, 1), event),
    }[family]
    settings = {"covariates": Z, "family": family, "small_sample": small_sample}
    data = dmkl.association_test(Ks, y, **settings).data
    X = Z if family == "cox" else np.column_stack([np.ones(50), Z])
    b = np.zeros(X.shape[1])
    for _ in range(30):
        residuals, W = derivatives(family, y, X @ b)
        b = b + np.linalg.solve(X.T @ W @ X, X.T @ residuals)
    values, vectors = np.linalg.eigh(W - W @ X @ np.linalg.inv(X.T @ W @ X) @ X.T @ W)
    half = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
    scale = np.eye(50) if family == "cox" else np.diag(1 / np.diag(W))
    variance = residuals @ residuals / 48 if family == "gaussian" else 1.0
    for K, p in zip(Ks, data["p_value"].values, strict=True):
        Q = residuals @ K @ residuals / variance
        t = variance * Q / (residuals @ scale @ residuals) if small_sample else 0.0
        weights = np.linalg.eigvalsh(half @ (K - t * scale) @ half)
        expected = imhof(weights[np.abs(weights) > 1e-9], 0.0 if small_sample else Q)
        assert p == pytest.approx(expected, abs=1e-7)
    labels = np.column_stack([event, np.abs(y)]) if family == "cox" else y
    by_factor = dmkl.association_test(features(F), labels, **settings).data
    for name in ("p_value", "excess", "q_value", "omnibus_p_value"):
        np.testing.assert_allclose(by_factor[name], data[name], rtol=1e-10)


def derivatives(family, y, eta):
    """−∂ℓ/∂η and ∂²ℓ/∂η² of the negative log-likelihood ℓ, of times by Efron's method, term by term."""
    if family == "gaussian":
        return y - eta, np.eye(len(y))
    if family == "binomial":
        mu = expit(eta)
        return y - mu, np.diag(mu * (1 - mu))
    time, event = np.abs(y), y > 0
    residuals, hessian = event.astype(float), np.zeros((len(time), len(time)))
    for at in np.unique(time[event]):
        events = event & (time == at)
        for share in np.arange(events.sum()) / events.sum():
            hazards = np.exp(eta) * ((time >= at) - share * events)
            p = hazards / hazards.sum()
            residuals -= p
            hessian += np.diag(p) - np.outer(p, p)
    return residuals, hessian


def test_scales_and_constants_do_not_matter_and_a_constant_kernel_has_no_test():
    r = np.random.default_rng(3)
    _, Ks = linear(r, 1, 30, 3)
    data = dmkl.association_test(np.stack([Ks[0], 7 * Ks[0] + 100, np.ones((30, 30))]), r.normal(size=30)).data
    assert data["p_value"][1].item() == pytest.approx(data["p_value"][0].item(), rel=1e-7)
    assert data["p_value"].isnull().values.tolist() == data["q_value"].isnull().values.tolist() == [False, False, True]
    assert data["omnibus_p_value"].item() == pytest.approx(data["p_value"][0].item(), rel=1e-7)


def test_targets_with_unknown_labels_are_tested_one_by_one():
    r = np.random.default_rng(4)
    _, Ks = linear(r, 2, 40, 3)
    y = pd.DataFrame(r.normal(size=(40, 2)), columns=["height", "weight"])
    y.iloc[:5, 1] = np.nan
    Z = r.normal(size=(40, 1))
    both = dmkl.association_test(Ks, y.to_numpy(), covariates=Z)
    alone = dmkl.association_test(Ks[:, 5:, 5:], y["weight"].to_numpy()[5:], covariates=Z[5:])
    np.testing.assert_allclose(both.data["p_value"][:, 1], alone.data["p_value"], rtol=1e-9)
    assert {"target", "kernel", "p_value", "q_value"} <= set(both.table())
    assert str(both).count("false discovery rate") == 2
    assert both.plot("1").get_ylabel()
    of_all = both.plot()
    assert f"of {both.data['p_value'].size} pairs of a kernel and a " in of_all.get_figure().get_suptitle()
    assert sum(len(points.get_offsets()) for points in of_all.collections) == both.data["p_value"].size


def test_the_smallest_p_value_of_permutations():
    r = np.random.default_rng(5)
    F, Ks = linear(r, 3, 30, 2)
    result = dmkl.association_test(Ks, F[0, :, 0] + 0.1 * r.normal(size=30), n_permutations=99)
    assert result.data["permutation_p_value"][0].item() == 0.01
    assert "kernel_0 (p = " in str(result)


def test_the_covariance_of_times_is_refused_where_it_does_not_fit():
    """Also of kernels of few features, whose tests of numbers fit."""
    r = np.random.default_rng(9)
    F, y = r.normal(size=(2, 600, 3)), r.exponential(size=600)
    K = features(F)
    with dask.config.set({"dmkl.memory": "8MiB"}):
        dmkl.association_test(K, y)
        with pytest.raises(MemoryBudgetError, match="the covariance of residuals"):
            dmkl.association_test(K, y, family="cox")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "m", "n_covariates"),
    [
        *itertools.product(["gaussian", "binomial", "cox"], [60], [0, 1, 3]),
        *itertools.product(["gaussian", "binomial"], [1000], [1, 3]),
    ],
)
def test_p_values_are_uniform_without_association(family, m, n_covariates):
    r = np.random.default_rng([7, m, n_covariates, len(family)])
    p = []
    for _ in range(20):
        F, Z = r.normal(size=(100, m, 5)), r.normal(size=(m, n_covariates))
        mean = Z.sum(axis=1) * 0.5
        y = mean + r.normal(size=m)
        if family == "binomial":
            y = (r.random(m) < expit(mean)).astype(int)
        if family == "cox":
            y = dmkl.signed_times(r.exponential(np.exp(-mean)), r.random(m) < 0.7)
        data = dmkl.association_test(features(F), y, covariates=Z if n_covariates else None, family=family).data
        p.append(data["p_value"].values)
    # Kernels of one set of labels share these, so that only the independence between sets is assumed.
    p = np.array(p)
    assert kstest(p[:, 0], "uniform").pvalue > 1e-3
    assert abs((p < 0.05).mean() - 0.05) < 4 * (p < 0.05).mean(axis=1).std() / np.sqrt(len(p)) + 0.005
    assert kstest(p.ravel(), "uniform").statistic < 0.05
