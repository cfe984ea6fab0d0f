"""Decision rules on scores against scikit-learn's discriminant and regressions; leave-one-out against new fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.estimators.decisions import weigh
from dmkl.numerics.discriminant import (
    Discriminant,
    directions,
    excess,
    leave_one_out,
    left_out_densities,
    whitened,
)
from dmkl.numerics.fisher import encode_targets


def sample(sizes, columns=4, seed=0):
    """Points around class means, in mixed order of classes."""
    rng = np.random.default_rng(seed)
    index = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    means = rng.standard_normal((len(sizes), columns))
    return means[index] + rng.standard_normal((len(index), columns)) @ rng.standard_normal((columns, columns)), index


@pytest.mark.parametrize(
    ("sizes", "columns", "priors"),
    [((30, 7), 1, "empirical"), ((40, 25, 6), 4, "uniform"), ((12, 50, 8, 30, 9), 3, "given")],
)
def test_it_is_the_linear_discriminant(sizes, columns, priors):
    scores, index = sample(sizes, columns)
    new, _ = sample(sizes, columns, seed=1)
    shares = np.bincount(index) / len(index)
    q = {"empirical": shares, "uniform": np.full(len(sizes), 1 / len(sizes)), "given": shares[::-1]}[priors]
    theirs = LinearDiscriminantAnalysis(priors=q).fit(scores, index)
    ours = Discriminant.of(whitened(scores, index, len(sizes), None), q)
    logits = ours.log_densities(new) + np.log(q)
    np.testing.assert_allclose(softmax(logits, axis=1), theirs.predict_proba(new), atol=1e-6)
    np.testing.assert_array_equal(np.argmax(logits, axis=1), theirs.predict(new))
    computed, expected = ours.coordinates(new, q), theirs.transform(new)
    assert computed.shape == (len(new), min(len(sizes) - 1, columns))
    np.testing.assert_allclose(np.abs(computed), np.abs(expected), atol=1e-6)


def test_scores_that_sum_to_a_constant_are_as_good_as_all_but_one_of_them():
    scores, index = sample((20, 30, 9), 2)
    whole = np.column_stack([scores, 1.0 - scores.sum(axis=1)])
    q = np.full(3, 1 / 3)
    few, all_of_them = (Discriminant.of(whitened(each, index, 3, None), q) for each in (scores, whole))
    some, others = few.log_densities(scores), all_of_them.log_densities(whole)
    np.testing.assert_allclose(softmax(others, axis=1), softmax(some, axis=1), atol=1e-6)


def regression(K, labels, lam):
    """α and A of the regression on all rows."""
    h = encode_targets(labels, len(labels)).problems[0]
    system = 0.5 * (np.eye(len(K)) + K / lam)
    return h, np.linalg.solve(system, h), system


def centered(K):
    at = np.eye(len(K)) - 1.0 / len(K)
    return at @ K @ at


@pytest.mark.parametrize(
    ("sizes", "lam", "center"),
    [((14, 9), 1e-4, True), ((9, 12, 6), 1e-2, True), ((9, 12, 6), 100.0, True), ((9, 12, 6), 0.1, False)],
)
def test_left_out_scores_are_those_of_training_without_the_row(sizes, lam, center):
    """With centering, kernel and targets are centered and encoded without the row; otherwise both are fixed."""
    x, index = sample(sizes)
    kernel, n_classes = rbf_kernel(x, gamma=0.1), len(sizes)
    h, alpha, system = regression(centered(kernel) if center else kernel, index, lam)
    diagonal = np.diag(np.linalg.inv(system))
    left_out = leave_one_out(alpha, diagonal, index, n_classes, *([np.ones((len(x), 1))] if center else []))
    expected = np.empty_like(left_out)
    for i in range(len(x)):
        rest = np.delete(np.arange(len(x)), i)
        square, row = kernel[np.ix_(rest, rest)], kernel[i, rest]
        if center:
            _, dual, _ = regression(centered(square), index[rest], lam)
            row = row - square.mean(axis=0)
            row = row - row.mean()
        else:
            dual = np.linalg.solve(0.5 * (np.eye(len(rest)) + square / lam), h[rest])
        counts = np.bincount(index[rest] if center else index, minlength=n_classes)
        expected[i] = row @ dual / (2.0 * lam) * excess(counts.astype(float))
    np.testing.assert_allclose(left_out, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


# --- Fisher's functions and the scores themselves -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "columns", "weighted"), [((30, 7), 1, False), ((20, 12, 6), 4, True), ((9, 12, 3), 2, False)]
)
def test_left_out_densities_are_those_of_scikit_learn_without_the_row(sizes, columns, weighted):
    """A weighted row is left out with all its copies; densities are equal up to a term common to all classes."""
    scores, index = sample(sizes, columns)
    weights = np.random.default_rng(1).integers(1, 4, len(index)) if weighted else np.ones(len(index), dtype=int)
    computed = left_out_densities(scores, index, len(sizes), weights.astype(float) if weighted else None)
    for i in range(len(index)):
        rows = np.repeat(np.arange(len(index)), np.where(np.arange(len(index)) == i, 0, weights))
        # This solver divides the covariance by the number of rows.
        theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(scores[rows], index[rows])
        expected = theirs.predict_log_proba(scores[[i]])[0] - np.log(theirs.priors_)
        np.testing.assert_allclose(log_softmax(computed[i]), log_softmax(expected), rtol=1e-5, atol=1e-5)


def sum_of_the_others(scores):
    """Scores with a column that depends on the others, and a duplicate column."""
    return np.concatenate([scores, -scores.sum(axis=-1, keepdims=True), scores[..., :1]], axis=-1)


@pytest.mark.parametrize(
    ("sizes", "columns", "change", "counted"),
    [
        ((60, 9, 25), 3, None, "by machine"),
        ((40, 30, 2), 3, None, "alike"),
        ((40, 30, 1), 3, None, "once"),  # whose only row cannot be left out
        ((25, 12), 1, None, "by machine"),
        ((25, 1), 1, None, "alike"),
        ((20, 12, 15, 9, 30), 2, None, "once"),  # fewer dimensions than the classes span
        ((20, 15, 25), 2, sum_of_the_others, "by machine"),
    ],
)
def test_rules_learnt_together_are_those_learnt_one_by_one(sizes, columns, change, counted):
    """The scores of the machines differ in scale and information; some have none."""
    rng = np.random.default_rng(8)
    n, n_machines = len(sizes), 7
    (plain, index), means = sample(sizes, columns), rng.standard_normal((n, columns))
    noise = rng.standard_normal((n_machines, len(index), columns))
    separations = np.array([0.0, 0.1, 0.3, 1.0, 3.0, 30.0, 0.0])[:, None, None]
    scores = (separations * means[index] + noise) * 10.0 ** np.arange(-3, 4)[:, None, None]
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
        densities = Discriminant.of(of_all, q).log_densities(scores)
        return densities, left_out, *weigh(left_out, own, index, d)

    together = learnt(scores, q, d)
    assert [each.shape for each in together] == [(n_machines, len(index), n)] * 2 + [(n_machines,)] * 2
    for k in range(n_machines):
        alone = learnt(scores[k], q[k], weights[k])
        for computed, expected in zip(together, alone, strict=True):
            np.testing.assert_allclose(computed[k], expected, rtol=1e-10, atol=1e-10 * np.nanmax(np.abs(expected)))


def test_the_only_row_of_a_class_cannot_be_left_out():
    scores, index = sample((9, 12, 1), 2)
    computed = left_out_densities(scores, index, 3)
    np.testing.assert_array_equal(np.isnan(computed).all(axis=1), index == 2)
    assert np.isfinite(computed[index != 2]).all()
    assert all(np.isfinite(weigh(computed, directions(np.eye(3)[index]), index)))
    assert weigh(np.full((3, 3), np.nan), np.eye(3), np.arange(3)) == (1.0, 0.0)


def loss(a, b, densities, scores, index, weights):
    """The log loss with one additional row, spread over the classes by their shares."""
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
    computed = weigh(densities, scores, index, weights if weighted else None)
    assert min(computed) >= 0
    best = minimize(
        lambda x: loss(*x, densities, scores, index, weights), [0.5, 0.5], method="Nelder-Mead", bounds=[(0, None)] * 2
    )
    reached = loss(*computed, densities, scores, index, weights)
    assert reached <= best.fun + 1e-5
    np.testing.assert_allclose(
        weigh(3.0 * densities, scores / 5.0, index, 7.0 * weights)[0], computed[0] / 3, atol=1e-4
    )


@pytest.mark.parametrize("separation", [0.0, 0.3, 3.0, 30.0])
def test_the_slope_of_the_log_loss_vanishes_far_below_single_precision(separation):
    """The slope vanishes for free weights; it is positive for weights at their bound."""
    rng = np.random.default_rng(3)
    index = rng.integers(0, 5, 400)
    densities, scores = separation * np.eye(5)[index] + rng.standard_normal((2, 400, 5))
    a, b = weigh(densities, scores, index)
    shares = np.bincount(index) / 400
    truth = (400 * np.eye(5)[index] + shares) / 401
    wrong = softmax(a * densities + b * scores + np.log(shares), axis=1) - truth
    for weight, terms in ((a, densities), (b, scores)):
        slope = (wrong * terms).sum() / 400
        assert abs(slope) < 1e-8 if weight > 1e-5 else slope > 0
