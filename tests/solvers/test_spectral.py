"""The criterion of spectral learning against its definition, and its minimizer against SciPy's; dense kernels."""

from functools import partial

import numpy as np
import pytest
from scipy.linalg import eigvals
from scipy.optimize import minimize
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import run_with
from dmkl.solvers.spectral import Criterion, spectral_weights

SETS = {
    "digits, two classes": (load_digits, 2),
    "iris": (load_iris, 3),
    "wine": (load_wine, 3),
    "digits": (load_digits, 10),
}


def similarities(name, m=60, n_noise=3):
    """RBF kernels of halves of the features at two bandwidths, RBF kernels of random vectors, and the classes."""
    load, n_classes = SETS[name]
    X, y = load(return_X_y=True)
    rng = np.random.default_rng(0)
    rows = rng.permutation(np.flatnonzero(y < n_classes))[:m]
    X = (X[rows] - X[rows].mean(axis=0)) / (X[rows].std(axis=0) + 1e-9)
    tables = [*np.array_split(X, 2, axis=1), *rng.standard_normal((n_noise, m, 10))]
    bandwidths = ((0.5, 2.0), (0.5, 2.0), *[(1.0,)] * n_noise)
    K = [rbf_kernel(part, gamma=g / part.shape[1]) for part, gs in zip(tables, bandwidths, strict=True) for g in gs]
    return np.array(K), y[rows]


def terms(weights, K, y):
    """MNCut, gap and eigengap by their definitions, from the eigenvalues of D⁻¹S."""
    S = np.tensordot(weights, K, axes=1)
    d = S.sum(axis=1)
    values = np.sort(eigvals(S / d[:, None]).real)[::-1]
    sides = [np.flatnonzero(y == k) for k in np.unique(y)]
    c = len(sides)
    mncut = sum((d[side].sum() - S[np.ix_(side, side)].sum()) / d[side].sum() for side in sides)
    return mncut, mncut - (c - values[:c].sum()), values[c - 1] - values[c]


def objective(weights, K, y, a):
    _, gap, eigengap = terms(weights / weights.sum(), K, y)
    return gap - a * eigengap**2


def learnt(K, y, a, tol=1e-7, max_iter=1000):
    return run_with(spectral_weights(y, len(K), a, tol=tol, max_iter=max_iter), partial(answer, K))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("a", [0.0, 5.0])
def test_values_and_derivatives(name, a):
    """Values are those of D⁻¹S, which is not symmetric; derivatives are their central differences."""
    K, y = similarities(name)
    indicators = (y[:, None] == np.unique(y)).astype(float)
    degrees = K.sum(axis=2)
    within = np.einsum("ik,nij,jk->nk", indicators, K, indicators)
    criterion = Criterion(degrees, within, degrees @ indicators, a)
    for weights in np.random.default_rng(1).dirichlet(np.ones(len(K)), 3):
        computed = criterion.at(weights, np.tensordot(weights, K, axes=1))
        figures = [computed.figures[name] for name in ("mncut", "cut_gap", "eigengap")]
        np.testing.assert_allclose(figures, terms(weights, K, y), atol=1e-10)
        assert computed.figures["objective"] == pytest.approx(objective(weights, K, y, a), abs=1e-10)
        assert computed.figures["cut_gap"] >= 0
        forms = np.einsum("ik,nij,jk->nk", computed.vectors, K, computed.vectors)
        gradient = criterion.gradient(weights, computed, forms)
        assert weights @ gradient == pytest.approx(0.0, abs=1e-12)
        step = 1e-6
        ends = [[objective(weights + s * e, K, y, a) for s in (step, -step)] for e in np.eye(len(K))]
        # `objective` divides by Σβ, which J does not depend on.
        differences = np.array([(up - down) / (2 * step) for up, down in ends])
        np.testing.assert_allclose(gradient, differences, atol=1e-6 * (1 + np.abs(differences).max()))


@pytest.mark.parametrize(("name", "a"), [("digits, two classes", 1.0), ("iris", 0.0), ("iris", 5.0), ("wine", 5.0)])
def test_the_minimum_is_that_of_scipy(name, a):
    """The reference is SLSQP with numerical derivatives, from equal weights and from two random ones."""
    K, y = similarities(name, 45, 1)
    outcome = learnt(K, y, a)
    assert outcome.weights.min() >= 0
    assert outcome.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert outcome.objective == pytest.approx(objective(outcome.weights, K, y, a), abs=1e-10)
    starts = [np.full(len(K), 1 / len(K)), *np.random.default_rng(0).dirichlet(np.ones(len(K)), 2)]
    simplex = {"type": "eq", "fun": lambda weights: weights.sum() - 1.0}
    others = [
        minimize(objective, start, (K, y, a), "SLSQP", bounds=[(0, 1)] * len(K), constraints=simplex, tol=1e-10)
        for start in starts
    ]
    best = min(others, key=lambda other: other.fun)
    assert outcome.objective == pytest.approx(best.fun, abs=1e-6)
    np.testing.assert_allclose(outcome.weights, best.x, atol=2e-2)
    values = [step.figures["objective"] for step in outcome.steps]
    assert values == sorted(values, reverse=True)
    assert np.isnan(outcome.gap)


def test_the_eigengap_keeps_similarities_of_noise_out():
    """Without the eigengap, samples that are only similar to themselves have a gap of zero."""
    K, y = similarities("digits, two classes")
    K = np.concatenate([K[:4], np.eye(len(y))[None]])
    without, with_eigengap = learnt(K, y, 0.0), learnt(K, y, 1.0)
    assert without.objective == pytest.approx(0.0, abs=1e-6)
    assert without.weights[-1] > 0.9
    assert with_eigengap.weights[-1] < 1e-6
    assert with_eigengap.extra["eigengap"] > 10 * without.extra["eigengap"]


def test_one_kernel_and_kernels_that_are_alike():
    K, y = similarities("iris")
    np.testing.assert_array_equal(learnt(K[:1], y, 1.0).weights, [1.0])
    same = learnt(K[[0, 0, 0]], y, 1.0)
    np.testing.assert_allclose(same.weights, 1 / 3)
    assert len(same.steps) == 1
