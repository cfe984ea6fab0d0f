"""Weights of samples and of classes in least squares: against repeated samples, scikit-learn and dense algebra."""

import itertools
import re

import numpy as np
import pytest
from helpers.optima import optimum
from helpers.references import in_memory
from hypothesis import given
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import InputError
from dmkl.learners.decisions import HeldOut, class_weights
from dmkl.solvers.fisher.registry import SOLVERS

M, NEW = 30, 12
TRAIN, TEST = np.arange(M), np.arange(M, M + NEW)
CHAINS = [
    ("center", "trace"),
    ("cosine", "center"),
    ("center", "multiplicative"),
    ("center", "cosine", "center", "trace"),
    ("trace",),
    (),
]


def data(seed=0):
    """Features of 42 samples, three kernels of full rank, and whole weights from 1 to 3 of the first 30."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((M + NEW, 5))
    squared = ((X[:, None] - X[None]) ** 2).sum(axis=-1)
    kernels = np.stack([X @ X.T + 0.3, np.exp(-squared / 5), (X[:, :2] @ X[:, :2].T + 1) ** 2])
    return X, kernels, rng.integers(1, 4, M)


X, KERNELS, COUNTS = data()


def labels_of(kind, X):
    return {
        "binary": (X[:, 0] > 0.3).astype(int),
        "multiclass": np.digitize(X[:, 0], [-0.5, 0.5]),
        "tasks": np.stack([X[:, 0] > 0, X[:, 1] > 0.4], axis=1).astype(int),
        "values": X[:, 0] ** 2,
        "targets": np.stack([X[:, 0] ** 2, 100 * X[:, 1]], axis=1),
    }[kind]


def made(kind, **parameters):
    return (dmkl.MKRidge if kind in ("values", "targets") else dmkl.MKFDA)(**parameters)


# --- whole weights are repeated samples -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("steps", "kind"), list(zip(CHAINS, ["binary", "multiclass", "tasks", "values", "targets", "binary"], strict=True))
)
def test_whole_weights_are_repeated_samples(kind, steps):
    """They agree in centering, scale, targets, priors, weights, certificate, scores and predictions of new rows."""
    K, y, rows = in_memory(KERNELS, 11), labels_of(kind, X[:M]), np.repeat(TRAIN, COUNTS)
    weighted = made(kind, p=np.inf, lam=0.05, solver="direct", steps=steps).fit(K[TRAIN, TRAIN], y, COUNTS)
    expected = made(kind, p=np.inf, lam=0.05, solver="direct", steps=steps).fit(K[rows, rows], y[rows])
    scores = expected._decision(K[TEST, rows]).values
    np.testing.assert_allclose(weighted._decision(K[TEST, TRAIN]).values, scores, atol=1e-8 * np.abs(scores).max())
    np.testing.assert_allclose(weighted.objective_, expected.objective_, rtol=1e-10)
    assert np.max(weighted.gap_) < 1e-12
    assert weighted.n_passes_ == expected.n_passes_
    # A sample's dual variable is the sum of those of its copies.
    sums = np.stack([np.bincount(rows, column) for column in expected.dual_coef_.values.T], axis=1)
    np.testing.assert_allclose(weighted.dual_coef_.values, sums, atol=1e-8 * np.abs(sums).max())
    if kind in ("values", "targets"):
        np.testing.assert_allclose(weighted.intercept_, expected.intercept_, atol=1e-12 * np.abs(y).max())
    else:
        np.testing.assert_allclose(weighted.priors_, expected.priors_, rtol=1e-14)
    plain = made(kind, p=np.inf, lam=0.05, solver="direct", steps=steps).fit(K[TRAIN, TRAIN], y)
    assert np.abs(plain._decision(K[TEST, TRAIN]).values - scores).max() > 1e-3 * np.abs(scores).max()


STORED = [solver for solver in SOLVERS if solver != "factors"]  # that one is for kernels computed from features


@pytest.mark.parametrize(("solver", "kind"), list(zip(STORED, itertools.cycle(["multiclass", "tasks", "targets"]))))
def test_every_solver_takes_weights(solver, kind):
    K, y, rows = in_memory(KERNELS, 11), labels_of(kind, X[:M]), np.repeat(TRAIN, COUNTS)
    make = lambda: made(kind, p=1.5, lam=0.05, solver=solver, tol=1e-8, steps=("cosine", "center"))  # noqa: E731
    weighted, expected = make().fit(K[TRAIN, TRAIN], y, COUNTS), make().fit(K[rows, rows], y[rows])
    assert weighted.solver_ == solver
    assert np.max(weighted.gap_) <= 1e-8
    np.testing.assert_allclose(weighted.objective_, expected.objective_, rtol=2e-8)
    scores = expected._decision(K[TEST, rows]).values
    np.testing.assert_allclose(weighted._decision(K[TEST, TRAIN]).values, scores, atol=1e-3 * np.abs(scores).max())


def test_held_out_rows_count_as_those_of_their_class_in_training():
    rng = np.random.default_rng(7)
    index, counts = np.arange(30) % 3, np.array([1.0, 2.0, 3.0])
    scores, priors = rng.standard_normal((30, 3)) + np.eye(3)[index], np.full(3, 1 / 3)
    result = HeldOut(scores, [index], [counts]).learn_rule("multiclass", [priors], "")
    rows = np.repeat(np.arange(30), counts[index].astype(int))
    expected = HeldOut(scores[rows], [index[rows]]).learn_rule("multiclass", [priors], "")
    ours, theirs = (each.discriminants[0].log_densities(scores) for each in (result, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    y, model = labels_of("multiclass", X), dmkl.MKFDA(class_weight={2: 5.0})
    targets = model._targets(y, len(y), None)
    (of_class,) = class_weights(model._weighted(targets))
    np.testing.assert_allclose(of_class, [1.0, 1.0, 5.0])


# --- the certificate ------------------------------------------------------------------------------------------------
def weighted_kernels(kernels, d, steps):
    """D^{1/2}K_jD^{1/2} after centering by the weighted mean, and dividing by the weighted trace, entry by entry."""
    m = len(d)
    P = np.eye(m) - np.outer(np.ones(m), d / d.sum())
    result = []
    for K in kernels:
        if "center" in steps:
            K = P @ K @ P.T
        if "trace" in steps:
            K = K / np.sum(d * K.diagonal())
        result.append(np.sqrt(d)[:, None] * K * np.sqrt(d))
    return np.stack(result)


@given(
    seed=st.integers(0, 50),
    p=st.sampled_from([1.0, 4 / 3, 2.0, np.inf]),
    lam=st.sampled_from([1e-3, 0.1, 10.0]),
    solver=st.sampled_from(["direct", "cg", "subspace", "dual"]),
    rough=st.booleans(),
)
def test_the_optimum_lies_within_the_gap(seed, p, lam, solver, rough):
    """The optimum of the weighted problem, for fractional weights, is from Clarabel; also for solvers stopped early."""
    X, kernels, _ = data(seed)
    d = np.random.default_rng(seed).uniform(0.2, 3.0, M)
    y = labels_of("multiclass", X[:M])
    model = dmkl.MKFDA(p, lam, solver="direct" if solver == "dual" and p == 1 else solver, tol=0.3 if rough else 1e-6)
    model.fit(in_memory(kernels, 11)[TRAIN, TRAIN], y, d)
    sizes = np.bincount(y, d)
    h = (np.eye(3)[y] - sizes / d.sum()) * np.sqrt(d.sum() / sizes)
    best = optimum(weighted_kernels(kernels[:, :M, :M], d, ("center", "trace")), np.sqrt(d)[:, None] * h, lam, p)
    assert abs(best - model.objective_) <= (model.gap_ + 1e-6) * abs(model.objective_)


# --- the precision of the kernels ------------------------------------------------------------------------------------
@pytest.mark.parametrize("heavy", [(1.0, 0), (400.0, 1), (25.0, 50), (0.04, 10)])
def test_the_least_ridge_is_the_size_of_weighted_rounding(heavy):
    """‖D^{1/2}ED^{1/2}‖₂ of entries that are rounded to single precision, for a few samples of another weight."""
    m, rng = 100, np.random.default_rng(0)
    weight, n = heavy
    d = np.where(np.arange(m) < n, weight, 1.0)
    kernel = rbf_kernel(rng.standard_normal((m, 3)), gamma=0.1).astype(np.float32)
    with pytest.raises(InputError, match="below what the stored precision resolves") as refused:
        dmkl.MKFDA(lam=1e-15, steps=()).fit(in_memory(kernel[None], 50), np.arange(m) % 2, d)
    least = float(re.search(r"about ([\d.e-]+)\.", str(refused.value))[1])
    sizes = []
    for _ in range(5):
        E = np.triu(rng.uniform(-1, 1, (m, m))) * 2.0**-24
        E = E + np.triu(E, 1).T
        sizes.append(np.linalg.norm(np.sqrt(np.outer(d, d)) * E, 2))
    assert 0.5 < least / np.mean(sizes) < 2.5


# --- against scikit-learn -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_regression_is_that_of_scikit_learn(weighted):
    d = np.random.default_rng(3).uniform(0.2, 3.0, M) if weighted else None
    y, new = X[:M, 1] + np.sin(X[:M, 2]) + 2.0, X[M:, 1]
    K = in_memory(KERNELS, 11).select([0])
    without = dmkl.MKRidge(np.inf, 0.7, steps=()).fit(K[TRAIN, TRAIN], y, d)
    reference = KernelRidge(alpha=0.7, kernel="precomputed").fit(KERNELS[0, :M, :M], y, d)
    expected = reference.predict(KERNELS[0][TEST][:, TRAIN])
    np.testing.assert_allclose(without.predict(K[TEST, TRAIN]), expected, rtol=1e-8)
    assert not without.intercept_.any()
    centered = dmkl.MKRidge(np.inf, 0.7, steps=("center",)).fit(K[TRAIN, TRAIN], y, d)
    linear = Ridge(alpha=0.7, solver="cholesky").fit(X[:M], y, d)
    np.testing.assert_allclose(centered.predict(K[TEST, TRAIN]), linear.predict(X[M:]), rtol=1e-8)
    assert centered.score(K[TEST, TRAIN], new) == pytest.approx(linear.score(X[M:], new))
    assert float(centered.intercept_[0]) == pytest.approx(np.average(y, weights=d))


# --- classes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [dmkl.MKFDA, dmkl.SingleBest, dmkl.Product])
def test_weights_of_classes_are_those_of_their_samples(make):
    K, y = in_memory(np.stack([KERNELS[1], KERNELS[1] ** 2]), 11), np.repeat([0, 1], [24, 6])
    balanced = make(class_weight="balanced").fit(K[TRAIN, TRAIN], y)
    given_each = make(class_weight={1: 4.0}).fit(K[TRAIN, TRAIN], y)
    by_sample = make().fit(K[TRAIN, TRAIN], y, sample_weight=np.where(y == 1, 2.5, 0.625))
    result = balanced.decision_function(K[TEST, TRAIN])
    np.testing.assert_allclose(by_sample.decision_function(K[TEST, TRAIN]), result, rtol=1e-9)
    np.testing.assert_allclose(balanced.priors_, [[0.5, 0.5]])
    np.testing.assert_array_equal(given_each.predict(K[TEST, TRAIN]), balanced.predict(K[TEST, TRAIN]))
    assert np.sum(balanced.predict(K[TEST, TRAIN])) >= np.sum(make().fit(K[TRAIN, TRAIN], y).predict(K[TEST, TRAIN]))


# --- everywhere -----------------------------------------------------------------------------------------------------
def test_a_sample_of_weight_zero_is_left_out(tmp_path):
    """Priors, statistics, leave-one-out scores and all else are those of a fit without it."""
    K, y, weights = in_memory(KERNELS, 11), labels_of("multiclass", X[:M]), np.where(TRAIN % 7 == 2, 0, COUNTS)
    y[2] = 7  # a class of which nothing is learnt
    rows = np.flatnonzero(weights)
    expected = dmkl.MKFDA(class_weight="balanced").fit(K[rows, rows], y[rows], weights[rows])
    model = dmkl.MKFDA(class_weight="balanced").fit(K[TRAIN, TRAIN], y, weights)
    model.save(tmp_path / "model")
    for columns, each in ((TRAIN, model), (rows, model), (TRAIN, dmkl.load(tmp_path / "model"))):
        np.testing.assert_array_equal(each.train_samples_, rows.astype(str))
        np.testing.assert_array_equal(each.predict(K[TEST, columns]), expected.predict(K[TEST, rows]))
        np.testing.assert_allclose(each.dual_coef_, expected.dual_coef_, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(each.priors_, expected.priors_)


@pytest.mark.parametrize(
    ("make", "weights", "words"),
    [
        (lambda: dmkl.MKFDA(class_weight="even"), None, "'balanced'"),
        (lambda: dmkl.Uniform(class_weight={7: 1.0}), None, r"weights for \[7\]"),
        (lambda: dmkl.GMKL(class_weight={1: -1.0}), None, "not positive"),
        (dmkl.MKRidge, np.ones(3), r"each of the 30 samples, got shape \(3,\)"),
        (dmkl.MKFDA, np.arange(30.0) - 1.0, "with -1 in it; samples of weight 0 are left out"),
        (dmkl.MKFDA, np.zeros(30), "with 0 in it; .* at least one must have more"),
        (lambda: dmkl.GSMKL(loss="square"), np.ones(30), "are for the hinge loss"),
        *((kind, np.ones(30), "does not weigh samples") for kind in (dmkl.EasyMKL, dmkl.KernelKMeans)),
        (lambda: dmkl.NCuts(2, loss="square", class_weight="balanced"), None, "take MKFDA"),
    ],
)
def test_weights_that_are_none(make, weights, words):
    with pytest.raises(InputError, match=words):
        make().fit(in_memory(KERNELS, 11)[TRAIN, TRAIN], labels_of("binary", X[:M]), sample_weight=weights)
