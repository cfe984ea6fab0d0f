"""Covariances of traits by kernel against dense regression, and against simulation."""

from itertools import product

import dask
import numpy as np
import pytest
import xarray as xr
from helpers.references import in_memory
from scipy.optimize import minimize
from scipy.stats import chi2, norm

import dmkl
from dmkl.solvers import trait_covariances

PAIRS = ((0, 0), (0, 1), (1, 1))
TRUTH = np.array([[[0.4, 0.2], [0.2, 0.4]], [[0.3, -0.15], [-0.15, 0.3]], [[0.3, 0.1], [0.1, 0.3]]])
"""Covariances of two traits by two kernels, and of the residuals."""


def markers(m, n_markers, seed=0):
    return np.random.default_rng(seed).standard_normal((2, m, n_markers)) / np.sqrt(n_markers)


def traits(W, rng):
    """Two traits, (m, 2), with the covariances `TRUTH` by the kernels WWᵀ."""
    roots = [*W, np.eye(W.shape[1])]
    return sum(
        root @ rng.standard_normal((root.shape[1], 2)) @ np.linalg.cholesky(covariance).T
        for root, covariance in zip(roots, TRUTH, strict=True)
    )


def case():
    """Two kernels, covariates, and two traits each of which is unknown for some samples."""
    W, Z = markers(60, 80), np.random.default_rng(1).standard_normal((60, 2))
    Y = traits(W, np.random.default_rng(2)) + Z @ [[1.0, 2.0], [0.0, 1.0]]
    Y[:12, 0] = Y[50:, 1] = np.nan
    return W @ W.transpose(0, 2, 1), Z, Y


def fitted(kernels, Z, Y, method="he", **options):
    learner = dmkl.VarianceComponents(method, steps=(dmkl.residualize(Z),), genetic_correlation=True, **options)
    return learner.fit(in_memory(kernels, 25), Y)


def dense(kernels, Z, Y):
    """The least squares fits of products of residuals, and their covariance for normal traits."""
    matrices, projections, residuals = [*kernels, np.eye(len(Y))], [], []
    for y in Y.T:
        known = np.isfinite(y).astype(float)
        X = np.column_stack([np.ones(len(y)), Z]) * known[:, None]
        projections.append(np.diag(known) - X @ np.linalg.pinv(X))
        residuals.append(projections[-1] @ np.nan_to_num(y))
    columns, values, sigma = {}, {}, {}
    for s, t in product((0, 1), repeat=2):
        columns[s, t] = np.stack([(projections[s] @ A @ projections[t]).ravel() for A in matrices], axis=1)
        values[s, t] = np.linalg.lstsq(columns[s, t], np.outer(residuals[s], residuals[t]).ravel(), rcond=None)[0]
        sigma[s, t] = projections[s] @ np.tensordot(values[s, t], matrices, 1) @ projections[t]
    covariance = np.zeros((3, 3, 3, 3))
    for (p, (s, t)), (q, (u, v)) in product(enumerate(PAIRS), repeat=2):
        moments = [
            [np.trace(A @ sigma[t, u] @ B @ sigma[v, s] + A @ sigma[t, v] @ B @ sigma[u, s]) for B in matrices]
            for A in matrices
        ]
        inverses = [np.linalg.pinv(columns[pair].T @ columns[pair]) for pair in ((s, t), (u, v))]
        covariance[p, :, q] = inverses[0] @ moments @ inverses[1]
    return values, covariance


@pytest.mark.parametrize("rows", [slice(None), slice(12, 50)], ids=["unequal", "equal"])
def test_covariances_and_errors_are_those_of_dense_regression(rows, tmp_path):
    """Also of traits that are known for the same samples, whose products are shared."""
    kernels, Z, Y = case()
    kernels, Z, Y = kernels[:, rows, rows], Z[rows], Y[rows]
    model = fitted(kernels, Z, Y)
    table = model.trait_covariances_
    assert table.trait_covariance.dims == ("term", "target", "target_2")
    assert table.term.values.tolist() == ["kernel_0", "kernel_1", "residual", "total"]
    values, covariance = dense(kernels, Z, Y)
    sums = np.vstack([np.eye(3), [1, 1, 0]])
    joint = np.einsum("ki,piqj,kj->kpq", sums, covariance, sums)
    for p, (s, t) in enumerate(PAIRS):
        np.testing.assert_allclose(table.trait_covariance[:, s, t], sums @ values[s, t], rtol=1e-8)
        np.testing.assert_allclose(table.trait_covariance_se[:, t, s], np.sqrt(joint[:, p, p]), rtol=1e-8)
    quotients = table.trait_covariance[:, 0, 1] / table.trait_covariance_se[:, 0, 1]
    np.testing.assert_allclose(table.trait_p_value[:, 0, 1], 2.0 * norm.sf(np.abs(quotients)), rtol=1e-8)
    estimates = np.stack([sums @ values[pair] for pair in PAIRS], axis=1)

    def correlation(v):
        return v[1] / np.sqrt(v[0] * v[2])

    for k, found in enumerate(table.trait_correlation[:, 0, 1].values):
        if not (estimates[k, [0, 2]] > 0).all():
            assert np.isnan(found)
            continue
        assert found == pytest.approx(correlation(estimates[k]), rel=1e-8)
        slope = [(correlation(estimates[k] + h) - correlation(estimates[k] - h)) / 2e-7 for h in 1e-7 * np.eye(3)]
        error = np.sqrt(slope @ joint[k] @ slope)
        assert table.trait_correlation_se[k, 1, 0] == pytest.approx(error, rel=1e-5)
    model.save(tmp_path / "model")
    model.save(tmp_path / "model.zip", compact=True)
    for name in ("model", "model.zip"):
        xr.testing.assert_identical(dmkl.load(tmp_path / name).trait_covariances_, table)


def likelihood(values, kernels, Z, Y):
    """Minus the restricted log-likelihood of two traits, up to a constant, and its average information."""
    known = np.isfinite(Y.T.ravel())
    X = np.linalg.qr(np.kron(np.eye(2), np.column_stack([np.ones(len(Y)), Z]))[known])[0]
    forms = [[[1, 0], [0, 0]], [[0, 1], [1, 0]], [[0, 0], [0, 1]]]
    D = [np.kron(form, A)[np.ix_(known, known)] for A in [*kernels, np.eye(len(Y))] for form in forms]
    V = np.tensordot(np.ravel(values), D, 1)
    inverse = np.linalg.inv(V)
    P = inverse - inverse @ X @ np.linalg.inv(X.T @ inverse @ X) @ X.T @ inverse
    y = Y.T.ravel()[known]
    value = 0.5 * (np.linalg.slogdet(V)[1] + np.linalg.slogdet(X.T @ inverse @ X)[1] + y @ P @ y)
    images = np.stack([A @ P @ y for A in D])
    return value, 0.5 * images @ P @ images.T


def from_roots(roots):
    """(n, 3) of the matrices LLᵀ."""
    a, b, c = np.reshape(roots, (-1, 3)).T
    return np.stack([a**2, a * b, b**2 + c**2], axis=1)


@pytest.mark.parametrize("n_singular", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_likelihood_is_at_its_maximum(n_singular):
    """Beside a general optimizer; terms whose correlation is 1, as of traits that are nearly equal, have no errors."""
    kernels, Z, Y = case()
    if n_singular:
        Y[:, 1] = 0.5 * Y[:, 0] + 0.1 * np.random.default_rng(3).standard_normal(60)
    table = fitted(kernels, Z, Y, "reml").trait_covariances_
    values, errors = (
        np.stack([table[f"trait_covariance{end}"][:3, s, t] for s, t in PAIRS], axis=1) for end in ("", "_se")
    )
    start = np.tile([0.6, 0.1, 0.6], 3)
    best = minimize(lambda x: likelihood(from_roots(x), kernels, Z, Y)[0], start)
    value, information = likelihood(values, kernels, Z, Y)
    assert value <= best.fun + 1e-5
    a, b, c = from_roots(best.x).T
    singular = a * c - b**2 < 1e-4 * a * c
    assert singular.sum() == n_singular
    np.testing.assert_array_equal(np.isnan(errors).any(axis=1), singular)
    free = np.flatnonzero(np.repeat(~singular, 3))
    expected = np.sqrt(np.linalg.inv(information[np.ix_(free, free)]).diagonal())
    np.testing.assert_allclose(errors.ravel()[free], expected, rtol=1e-5)
    without = np.delete(best.x, 1)  # the first matrix is then diagonal
    reduced = minimize(lambda x: likelihood(from_roots(np.insert(x, 1, 0.0)), kernels, Z, Y)[0], without)
    p = chi2.sf(2.0 * (reduced.fun - value), 1)
    assert table.trait_p_value[0, 0, 1] == pytest.approx(p, rel=1e-2, abs=1e-6)
    assert np.isnan(table.trait_p_value[0, 0, 0])


@pytest.mark.slow
def test_the_likelihood_by_random_vectors_comes_near():
    kernels, Z, Y = case()
    exact, probes = (
        fitted(kernels, Z, Y, "reml", traces=traces, n_probes=100, tests=False).trait_covariances_
        for traces in ("exact", "probes")
    )
    gaps = np.abs(exact.trait_covariance - probes.trait_covariance)
    assert (gaps < 0.5 * exact.trait_covariance_se)[:3].all()


def test_random_vectors_and_small_memory_come_near(monkeypatch):
    kernels, Z, Y = case()
    exact = fitted(kernels, Z, Y).trait_covariances_
    monkeypatch.setattr(trait_covariances, "FEW_SAMPLES", 10)
    table = fitted(kernels, Z, Y, n_probes=400).trait_covariances_
    np.testing.assert_allclose(
        table.trait_covariance, exact.trait_covariance, atol=0.25 * exact.trait_covariance_se.max()
    )
    np.testing.assert_allclose(table.trait_covariance_se, exact.trait_covariance_se, rtol=0.25)
    with dask.config.set({"dmkl.memory": "24MiB"}):
        in_parts = fitted(kernels, Z, Y, n_probes=400).trait_covariances_
    np.testing.assert_allclose(in_parts.trait_covariance, table.trait_covariance, rtol=1e-6, atol=1e-8)


def test_targets_without_common_samples_have_no_residual_covariance():
    kernels, Z, Y = case()
    Y[:30, 0] = Y[30:, 1] = np.nan
    for method in ("reml", "he"):
        table = fitted(kernels, Z, Y, method, tests=False).trait_covariances_
        assert np.isnan(table.trait_covariance[2, 0, 1])
        assert np.isfinite(table.trait_covariance[:2]).all()
    np.testing.assert_allclose(table.trait_covariance[:2, 0, 1], dense(kernels, Z, Y)[0][0, 1][:2], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("n_markers", [600, 60])
def test_intervals_cover_what_was_simulated(n_markers):
    """± 1.96 standard errors cover 95 of 100 covariances and correlations, also where kernels have few dimensions."""
    W, rng = markers(200, n_markers), np.random.default_rng(1)
    K = in_memory(W @ W.transpose(0, 2, 1), 200)
    learner = dmkl.VarianceComponents("he", genetic_correlation=True)
    found = [
        learner.fit(K, traits(W, rng)).trait_covariances_[["trait_covariance", "trait_covariance_se"]]
        for _ in range(40)
    ]
    table = xr.concat(found, "repeat", data_vars="all").isel(term=slice(3), target=0)
    covered = np.abs(table.trait_covariance - TRUTH[:, 0]) <= 1.96 * table.trait_covariance_se
    # Of 40 trials with probability 0.95, 33 to 40 succeed in 99.7 of 100 cases.
    assert (covered.sum("repeat") >= 33).all()
    error = table.trait_covariance_se.mean("repeat")
    np.testing.assert_allclose(table.trait_covariance.std("repeat"), error, rtol=0.4)
    assert (np.abs(table.trait_covariance.mean("repeat") - TRUTH[:, 0]) <= 3.5 * error / np.sqrt(40)).all()
