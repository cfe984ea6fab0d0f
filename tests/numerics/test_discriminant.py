"""Fisher's decision on scores: against scikit-learn's discriminant, and leave-one-out scores against new fits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.numerics.discriminant import Discriminant, excess, indicators, leave_one_out, sharpness
from dmkl.numerics.fisher import encode_targets
from dmkl.numerics.triangle import Factor


def sample(sizes, columns=4, seed=0):
    """Points around means, the classes mixed."""
    rng = np.random.default_rng(seed)
    index = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    means = rng.standard_normal((len(sizes), columns))
    return means[index] + rng.standard_normal((len(index), columns)) @ rng.standard_normal((columns, columns)), index


@pytest.mark.parametrize("priors", ["empirical", "uniform", "given"])
@pytest.mark.parametrize(("sizes", "columns"), [((30, 7), 1), ((40, 25, 6), 4), ((12, 50, 8, 30, 9), 3)])
def test_it_is_the_linear_discriminant(sizes, columns, priors):
    scores, index = sample(sizes, columns)
    new, _ = sample(sizes, columns, seed=1)
    shares = np.bincount(index) / len(index)
    q = {"empirical": shares, "uniform": np.full(len(sizes), 1 / len(sizes)), "given": shares[::-1]}[priors]
    theirs = LinearDiscriminantAnalysis(priors=q).fit(scores, index)
    ours = Discriminant.of(scores, index, len(sizes), q)
    logits = ours.log_densities(new) + np.log(q)
    np.testing.assert_allclose(softmax(logits, axis=1), theirs.predict_proba(new), atol=1e-6)
    np.testing.assert_array_equal(np.argmax(logits, axis=1), theirs.predict(new))
    found, expected = ours.coordinates(new, q), theirs.transform(new)
    assert found.shape == (len(new), min(len(sizes) - 1, columns))
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-6)


def test_scores_that_sum_to_a_constant_are_as_good_as_all_but_one_of_them():
    scores, index = sample((20, 30, 9), 2)
    whole = np.column_stack([scores, 1.0 - scores.sum(axis=1)])
    q = np.full(3, 1 / 3)
    few, all_of_them = (Discriminant.of(each, index, 3, q) for each in (scores, whole))
    some, others = few.log_densities(scores), all_of_them.log_densities(whole)
    np.testing.assert_allclose(softmax(others, axis=1), softmax(some, axis=1), atol=1e-6)


def test_scores_in_other_units_mean_the_same():
    scores, index = sample((20, 30, 9), 3)
    factor = np.array([2.0, 0.1, 5.0])
    q = np.full(3, 1 / 3)
    plain = Discriminant.of(scores, index, 3, q)
    scaled = Discriminant.of(scores * factor, index, 3, q).scaled(factor)
    np.testing.assert_allclose(scaled.log_densities(scores), plain.log_densities(scores), rtol=1e-4)


def test_equal_scores_within_classes_are_told_apart():
    index = np.array([0, 0, 1, 1, 2])
    one = Discriminant.of(np.eye(3)[index], index, 3, np.full(3, 1 / 3))
    np.testing.assert_array_equal(np.argmax(one.log_densities(np.eye(3)), axis=1), np.arange(3))


def regression(K, labels, lam):
    """α and A of the regression on all rows."""
    h = encode_targets(labels, len(labels)).problems[0]
    system = 0.5 * (np.eye(len(K)) + K / lam)
    return h, np.linalg.solve(system, h), system


def centered(K):
    at = np.eye(len(K)) - 1.0 / len(K)
    return at @ K @ at


@pytest.mark.parametrize("lam", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("sizes", [(14, 9), (9, 12, 6)])
def test_left_out_scores_are_those_of_training_without_the_row(sizes, lam):
    """Kernel centered and targets encoded anew without the row."""
    x, index = sample(sizes)
    kernel, n_classes = rbf_kernel(x, gamma=0.1), len(sizes)
    _, alpha, system = regression(centered(kernel), index, lam)
    inverse = np.linalg.inv(system)
    found = leave_one_out(alpha, np.diag(inverse), inverse.sum(axis=1), index, n_classes)
    expected = np.empty_like(found)
    for i in range(len(x)):
        rest = np.delete(np.arange(len(x)), i)
        _, dual, _ = regression(centered(kernel[np.ix_(rest, rest)]), index[rest], lam)
        row = kernel[i, rest] - kernel[np.ix_(rest, rest)].mean(axis=0)
        scores = (row - row.mean()) @ dual / (2.0 * lam)
        expected[i] = scores * excess(np.bincount(index[rest], minlength=n_classes).astype(float))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_without_centering_no_mean_is_left_out():
    x, index = sample((9, 12, 6))
    kernel, lam = rbf_kernel(x, gamma=0.1), 0.1
    h, alpha, system = regression(kernel, index, lam)
    inverse = np.linalg.inv(system)
    found = leave_one_out(alpha, np.diag(inverse), inverse.sum(axis=1), index, 3)
    sizes = np.bincount(index).astype(float)
    for i in range(0, len(x), 5):
        rest = np.delete(np.arange(len(x)), i)
        dual = np.linalg.solve(0.5 * (np.eye(len(rest)) + kernel[np.ix_(rest, rest)] / lam), h[rest])
        expected = kernel[i, rest] @ dual / (2.0 * lam) * excess(sizes)
        np.testing.assert_allclose(found[i], expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("m", [5, 300, 700])
def test_the_diagonal_of_the_inverse(m):
    rng = np.random.default_rng(m)
    x, order = rng.standard_normal((m, 20)), rng.permutation(m)
    K = x @ x.T
    expected = np.diag(np.linalg.inv(0.5 * (np.eye(m) + K / 0.3)))
    np.testing.assert_allclose(Factor(np.asfortranarray(K), 0.3).inverse_diagonal(), expected, rtol=1e-9)
    shuffled = np.asfortranarray(K[np.ix_(order, order)])
    np.testing.assert_allclose(Factor(shuffled, 0.3, order).inverse_diagonal(), expected, rtol=1e-9)


def test_sharpness_has_the_least_log_loss():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((4000, 3))
    index = np.array([rng.choice(3, p=softmax(row)) for row in truth])
    assert sharpness(truth, index) == pytest.approx(1.0, abs=0.1)
    found = sharpness(5.0 * truth, index)
    assert found == pytest.approx(sharpness(truth, index) / 5.0, rel=1e-3)
    best = minimize_scalar(lambda t: log_loss(index, softmax(5.0 * t * truth, axis=1)), bounds=(0.01, 1.0)).x
    assert found == pytest.approx(best, rel=1e-3)


def test_indicators():
    np.testing.assert_array_equal(indicators(np.array([1, 0]), 2), [[1], [0]])
    np.testing.assert_array_equal(indicators(np.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
