"""The decision on scores: against scikit-learn's discriminant and regressions, and leave-one-out against new fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.estimators.decisions import weigh
from dmkl.numerics.cholesky import Factor
from dmkl.numerics.discriminant import (
    Discriminant,
    directions,
    excess,
    indicators,
    leave_one_out,
    left_out_densities,
    whitened,
)
from dmkl.numerics.fisher import encode_targets


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


@pytest.mark.parametrize(("sizes", "columns"), [((30, 7), 1), ((40, 25, 6), 4), ((12, 50, 8, 30, 9), 3)])
def test_functions_do_not_depend_on_the_order_of_coordinates(sizes, columns):
    scores, index = sample(sizes, columns)
    of_all = whitened(scores, index, len(sizes), None)
    ordered, other = Discriminant.of_whitened(of_all, np.bincount(index) / len(index)), Discriminant.unordered(of_all)
    np.testing.assert_allclose(other.log_densities(scores), ordered.log_densities(scores), rtol=1e-10, atol=1e-10)
    slopes, constants = other.functions()
    np.testing.assert_allclose(scores @ slopes + constants, ordered.log_densities(scores), rtol=1e-10, atol=1e-10)


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
    found = leave_one_out(alpha, np.diag(np.linalg.inv(system)), index, n_classes, np.ones((len(x), 1)))
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
    found = leave_one_out(alpha, np.diag(np.linalg.inv(system)), index, 3)
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


# --- Fisher's functions and the scores themselves -------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("sizes", "columns"), [((30, 7), 1), ((20, 12, 6), 4), ((9, 12, 3), 2)])
def test_left_out_densities_are_those_of_scikit_learn_without_the_row(sizes, columns, weighted):
    """Without all copies of it where it has a weight; up to what all classes share."""
    scores, index = sample(sizes, columns)
    weights = np.random.default_rng(1).integers(1, 4, len(index)) if weighted else np.ones(len(index), dtype=int)
    found = left_out_densities(scores, index, len(sizes), weights.astype(float) if weighted else None)
    for i in range(len(index)):
        rows = np.repeat(np.arange(len(index)), np.where(np.arange(len(index)) == i, 0, weights))
        # The solver whose covariance is divided by the number of rows.
        theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(scores[rows], index[rows])
        expected = theirs.predict_log_proba(scores[[i]])[0] - np.log(theirs.priors_)
        np.testing.assert_allclose(log_softmax(found[i]), log_softmax(expected), rtol=1e-5, atol=1e-5)


def test_what_was_whitened_before_gives_the_same():
    scores, index = sample((20, 30, 9), 3)
    q, d = np.array([0.2, 0.5, 0.3]), np.linspace(1.0, 2.0, 59)
    means, white, inside = of_all = whitened(scores, index, 3, d)
    np.testing.assert_allclose(inside.T, scores - means[index], rtol=1e-12, atol=1e-12)
    inside = inside.T
    np.testing.assert_allclose(white.T @ ((d[:, None] * inside).T @ inside / d.sum()) @ white, np.eye(3), atol=1e-6)
    one, other = Discriminant.of_whitened(of_all, q), Discriminant.of(scores, index, 3, q, d)
    np.testing.assert_array_equal(one.log_densities(scores), other.log_densities(scores))
    left_out = left_out_densities(scores, index, 3, d)
    np.testing.assert_array_equal(left_out_densities(scores, index, 3, d, of_all), left_out)


def sum_of_the_others(scores):
    """Scores of which one follows from the others, and one is there twice."""
    return np.concatenate([scores, -scores.sum(axis=-1, keepdims=True), scores[..., :1]], axis=-1)


@pytest.mark.parametrize("counted", ["once", "alike", "by machine"])
@pytest.mark.parametrize(
    ("sizes", "columns", "change"),
    [
        ((60, 9, 25), 3, None),
        ((40, 30, 2), 3, None),
        ((40, 30, 1), 3, None),  # whose only row cannot be left out
        ((25, 12), 1, None),
        ((25, 1), 1, None),
        ((20, 12, 15, 9, 30), 2, None),  # of fewer dimensions than classes tell apart
        ((20, 15, 25), 2, sum_of_the_others),
    ],
)
def test_rules_learnt_together_are_those_learnt_one_by_one(sizes, columns, change, counted):
    """Of machines whose scores differ in size and in what they tell, some of them nothing."""
    rng = np.random.default_rng(8)
    n, n_machines = len(sizes), 7
    (plain, index), means = sample(sizes, columns), rng.standard_normal((n, columns))
    noise = rng.standard_normal((n_machines, len(index), columns))
    told = np.array([0.0, 0.1, 0.3, 1.0, 3.0, 30.0, 0.0])[:, None, None]
    scores = (told * means[index] + noise) * 10.0 ** np.arange(-3, 4)[:, None, None]
    scores[-1] = 0.0
    scores[0] = plain
    scores = scores if change is None else change(scores)
    q = rng.dirichlet(np.full(n, 5.0), n_machines)
    weights = {
        "once": [None] * n_machines,
        "alike": [rng.uniform(0.5, 2.0, len(index))] * n_machines,
        "by machine": rng.uniform(0.5, 2.0, (n_machines, len(index))),
    }[counted]
    d = weights if counted == "by machine" else weights[0]

    def learnt(scores, q, d):
        """Log densities, those without each row, and the weights of both rules."""
        of_all = whitened(scores, index, n, d)
        left_out = left_out_densities(scores, index, n, d, of_all)
        own = np.concatenate([scores] * n, axis=-1)[..., :n] if n > 2 else directions(scores)
        densities = Discriminant.of_whitened(of_all, q).log_densities(scores)
        return densities, left_out, *weigh(left_out, own, index, d)

    together = learnt(scores, q, d)
    assert [each.shape for each in together] == [(n_machines, len(index), n)] * 2 + [(n_machines,)] * 2
    for k in range(n_machines):
        alone = learnt(scores[k], q[k], weights[k])
        for found, expected in zip(together, alone, strict=True):
            np.testing.assert_allclose(found[k], expected, rtol=1e-10, atol=1e-10 * np.nanmax(np.abs(expected)))


def test_the_only_row_of_a_class_cannot_be_left_out():
    scores, index = sample((9, 12, 1), 2)
    found = left_out_densities(scores, index, 3)
    np.testing.assert_array_equal(np.isnan(found).all(axis=1), index == 2)
    assert np.isfinite(found[index != 2]).all()
    assert all(np.isfinite(weigh(found, directions(np.eye(3)[index]), index)))
    assert weigh(np.full((3, 3), np.nan), np.eye(3), np.arange(3)) == (1.0, 0.0)


def loss(a, b, densities, scores, index, weights):
    """With the row of all classes by their shares, spread over the others."""
    shares = np.bincount(index, weights) / weights.sum()
    m = len(index)
    truth = (m * np.eye(len(shares))[index] + shares) / (m + 1)
    logs = log_softmax(a * densities + b * scores + np.log(shares), axis=1)
    return -np.average((truth * logs).sum(axis=1), weights=weights)


@given(st.integers(0, 1000), st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.booleans())
def test_the_weights_have_the_least_log_loss(seed, a, b, weighted):
    rng = np.random.default_rng(seed)
    densities, scores = rng.standard_normal((2, 60, 3))
    index = np.concatenate([np.arange(3), [rng.choice(3, p=softmax(row)) for row in (a * densities + b * scores)[3:]]])
    weights = rng.uniform(0.5, 2.0, 60) if weighted else np.ones(60)
    found = weigh(densities, scores, index, weights if weighted else None)
    assert min(found) >= 0
    best = minimize(
        lambda x: loss(*x, densities, scores, index, weights), [0.5, 0.5], method="Nelder-Mead", bounds=[(0, None)] * 2
    )
    reached = loss(*found, densities, scores, index, weights)
    assert reached <= best.fun + 1e-5
    np.testing.assert_allclose(weigh(3.0 * densities, scores / 5.0, index, 7.0 * weights)[0], found[0] / 3, atol=1e-4)


@pytest.mark.parametrize("told", [0.0, 0.3, 3.0, 30.0])
def test_the_slope_of_the_log_loss_vanishes_far_below_single_precision(told):
    """Where it is free; where a weight is at its bound the loss grows with it."""
    rng = np.random.default_rng(3)
    index = rng.integers(0, 5, 400)
    densities, scores = told * np.eye(5)[index] + rng.standard_normal((2, 400, 5))
    a, b = weigh(densities, scores, index)
    shares = np.bincount(index) / 400
    truth = (400 * np.eye(5)[index] + shares) / 401
    wrong = softmax(a * densities + b * scores + np.log(shares), axis=1) - truth
    for weight, terms in ((a, densities), (b, scores)):
        slope = (wrong * terms).sum() / 400
        assert abs(slope) < 1e-8 if weight > 1e-5 else slope > 0


def test_of_two_classes_it_is_logistic_regression():
    """On one score, whose slope and threshold are free where both weights are positive."""
    rng = np.random.default_rng(2)
    index = (rng.random(300) < 0.3).astype(int)
    score = (index + rng.exponential(1.0, 300))[:, None]
    ours = Discriminant.of(score, index, 2, np.full(2, 0.5))
    densities = ours.log_densities(score)
    a, b = weigh(densities, directions(score), index)
    assert min(a, b) > 0
    shares = np.bincount(index) / 300
    logits = a * densities + b * directions(score) + np.log(shares)
    truth = (300 * np.eye(2)[index] + shares) / 301
    both = LogisticRegression(C=np.inf, tol=1e-10).fit(
        np.vstack([score, score]), np.repeat([0, 1], 300), truth.T.ravel()
    )
    np.testing.assert_allclose(softmax(logits, axis=1), both.predict_proba(score), atol=1e-5)


def test_scores_without_mistakes_leave_some_doubt():
    index = np.repeat(np.arange(3), 20)
    scores = np.eye(3)[index] + 0.05 * np.random.default_rng(3).standard_normal((60, 3))
    left_out = left_out_densities(scores, index, 3)
    a, b = weigh(left_out, scores, index)
    probabilities = softmax(a * left_out + b * scores, axis=1)
    assert 0.95 < probabilities.max(axis=1).mean() < 1 - 1 / 200


def test_scores_that_say_nothing_decide_nothing():
    index = np.arange(30) % 3
    a, b = weigh(np.zeros((30, 3)), np.zeros((30, 3)), index)
    assert np.isfinite([a, b]).all()


def test_each_rule_is_followed_where_it_is_right():
    """Fisher's where a class lies between others; the largest score where many classes have few rows each."""
    rng = np.random.default_rng(4)

    def gains(sizes, draw):
        """Accuracy of the three rules on 3,000 new rows."""
        n = len(sizes)
        index, new = np.repeat(np.arange(n), sizes), np.arange(3000) % n
        scores, tried = draw(index), draw(new)
        a, b = weigh(left_out_densities(scores, index, n), scores, index)
        fisher = Discriminant.of(scores, index, n, np.full(n, 1 / n)).log_densities(tried)
        return [np.mean(np.argmax(each, axis=1) == new) for each in (fisher, tried, a * fisher + b * tried)]

    between = np.array([[1.0, 0.3, -1.0], [0.1, 0.2, 0.1], [-1.0, 0.3, 1.0]])
    fisher, largest, both = gains([60] * 3, lambda index: between[index] + 0.3 * rng.standard_normal((len(index), 3)))
    assert fisher > largest + 0.1
    assert both > fisher - 0.01
    fisher, largest, both = gains(
        [4] * 12, lambda index: np.eye(12)[index] + 0.5 * rng.standard_normal((len(index), 12))
    )
    assert largest > fisher + 0.05
    assert both > largest - 0.02


def test_indicators():
    np.testing.assert_array_equal(indicators(np.array([1, 0]), 2), [[1], [0]])
    np.testing.assert_array_equal(indicators(np.array([2, 0]), 3), [[0, 0, 1], [1, 0, 0]])
