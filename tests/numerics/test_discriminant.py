"""Decision rules on scores against scikit-learn's discriminant and regressions; leave-one-out against new fits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics.pairwise import rbf_kernel

from dmkl.learners.decisions import weigh
from dmkl.numerics.discriminant import (
    Discriminant,
    directions,
    excess,
    indicators,
    leave_one_out,
    left_out_densities,
    whitened,
)


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


@pytest.mark.parametrize("sizes", [(9, 12, 6), (9, 14)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("centered", [False, True])
def test_left_out_scores_are_those_of_training_without_the_row(sizes, weighted, centered):
    """Targets are encoded anew; a row is left out with all its weight; on centered kernels a bias is free."""
    x, index = sample(sizes)
    d = np.random.default_rng(2).uniform(0.2, 3.0, len(x)) if weighted else np.ones(len(x))
    kernel, lam, totals = rbf_kernel(x, gamma=0.1), 0.1, np.bincount(index, d)
    if centered:
        around = np.eye(len(x)) - d / d.sum()
        kernel = around @ kernel @ around.T
    scale, shares = excess(totals), (totals if len(sizes) > 2 else totals[1:]) / d.sum()
    h = (indicators(index, len(sizes)) - shares) / scale
    system = 0.5 * (np.diag(1 / d) + kernel / lam)
    root = np.sqrt(d)
    inverse = np.linalg.inv(system * np.outer(root, root))
    null, beside = (root[:, None], None) if centered else (None, inverse @ root)
    given = np.linalg.solve(system, h), inverse.diagonal(), index, len(sizes), null, d if weighted else None
    left_out = leave_one_out(*given, beside)
    for i in range(len(x)):
        rest = np.delete(np.arange(len(x)), i)
        targets, bias = indicators(index[rest], len(sizes)), np.ones((len(rest), int(centered)))
        targets -= np.average(targets, axis=0, weights=d[rest])
        # (K + λD⁻¹)c + b = Y, 1ᵀc = 0.
        bordered = np.block([[2 * lam * system[np.ix_(rest, rest)], bias], [bias.T, np.zeros((bias.shape[1],) * 2)]])
        solved = np.linalg.solve(bordered, np.vstack([targets, np.zeros((bias.shape[1], targets.shape[1]))]))
        expected = kernel[i, rest] @ solved[: len(rest)] + solved[len(rest) :].sum(axis=0)
        np.testing.assert_allclose(left_out[i], expected, rtol=1e-6, atol=1e-9)


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
