"""LP-β and LP-B against machines of scikit-learn, and their linear programs by cvxpy."""

import cvxpy as cp
import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

import dmkl

M = 60


@pytest.fixture(scope="module")
def kernels():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(4, M, 4))
    features[:2] += np.array([1.2, 0.7])[:, None, None] * np.eye(4)[classes(3)]
    return features @ features.transpose(0, 2, 1)


def classes(n):
    return np.arange(M) % n


def machine(kernel, signs, C, new):
    return SVC(C=C, kernel="precomputed", tol=1e-5).fit(kernel, signs).decision_function(new)


def out_of_sample(kernels, y, C, cv):
    """Scores of each kernel for each class against the rest, (n, m, classes); one column for two classes."""
    labels = np.unique(y)[1:] if len(np.unique(y)) == 2 else np.unique(y)
    scores = np.empty((len(kernels), M, len(labels)))
    for train, test in cv.split(y, y):
        for j, kernel in enumerate(kernels):
            for k, label in enumerate(labels):
                signs = np.where(y[train] == label, 1, -1)
                scores[j, test, k] = machine(kernel[np.ix_(train, train)], signs, C, kernel[np.ix_(test, train)])
    return scores


def program(scores, y, nu, sharing):
    """β of the linear program, (n, classes), and its minimum."""
    n, _, k = scores.shape
    beta, slack, rho = cp.Variable((n, k), nonneg=True), cp.Variable(M, nonneg=True), cp.Variable()
    rules = [cp.sum(beta, axis=0) == 1]
    if k == 1:
        rules += [(2 * y[i] - 1) * (scores[:, i, 0] @ beta[:, 0]) + slack[i] >= rho for i in range(M)]
    elif sharing == "classes":
        shared = cp.Variable(n, nonneg=True)
        rules = [cp.sum(shared) == 1, beta == cp.vstack([shared] * k).T]
    for i in range(M if k > 1 else 0):
        for c in set(range(k)) - {y[i]}:
            rules.append(scores[:, i, y[i]] @ beta[:, y[i]] - scores[:, i, c] @ beta[:, c] + slack[i] >= rho)
    problem = cp.Problem(cp.Minimize(-rho + cp.sum(slack) / (nu * M)), rules)
    problem.solve(solver=cp.CLARABEL)
    return beta.value, problem.value


@pytest.mark.parametrize(("n_classes", "sharing"), [(2, "classes"), (3, "classes"), (3, "none")])
def test_weights_and_scores_are_those_of_the_machines_and_the_program(kernels, n_classes, sharing):
    y, nu, C, cv = classes(n_classes), 0.4, 2.0, StratifiedKFold(3)
    model = dmkl.LPBoost(C, nu, sharing=sharing, steps=(), tol=1e-8, cv=cv).fit(kernels, y)
    beta, value = program(out_of_sample(kernels, y, C, cv), y, nu, sharing)
    assert model.objective_ == pytest.approx(value, rel=1e-4)
    weights = model.weights_.values.reshape(4, -1)
    np.testing.assert_allclose(np.broadcast_to(weights, beta.shape), beta, atol=1e-3)
    scores = model.decision_function(kernels).values.reshape(M, -1)
    for k, label in enumerate([1] if n_classes == 2 else range(3)):
        of_kernels = np.array([machine(kernel, np.where(y == label, 1, -1), C, kernel) for kernel in kernels])
        np.testing.assert_allclose(scores[:, k], np.broadcast_to(weights, beta.shape)[:, k] @ of_kernels, atol=1e-3)
    assert model.gap_ <= 1e-8


def test_each_kernel_takes_the_penalty_of_best_accuracy(kernels):
    # Without the kernel of noise, whose machines have few free vectors: their biases are not unique.
    kernels, y, cv = kernels[:3], classes(3), StratifiedKFold(3)
    model = dmkl.LPBoost([0.1, 2.0], steps=(), tol=1e-6, cv=cv).fit(kernels, y)
    accuracies = np.array([(out_of_sample(kernels, y, C, cv).argmax(axis=2) == y).mean(axis=1) for C in (0.1, 2.0)])
    np.testing.assert_allclose(model.accuracy_, accuracies.max(axis=0))
    np.testing.assert_array_equal(model.C_, np.array([0.1, 2.0])[accuracies.argmax(axis=0)])


def test_each_class_has_weights_that_sum_to_one():
    """No linear machine separates the middle class: with one simplex for all classes it had no weight."""
    x = np.array([-3.0, 3.0, 0.0])[classes(3)] + np.random.default_rng(0).normal(size=(2, M))
    kernels = x[:, :, None] * x[:, None, :]
    model = dmkl.LPBoost(2.0, 0.3, sharing="none", steps=(), cv=3).fit(kernels, classes(3))
    np.testing.assert_allclose(model.weights_.sum("kernel"), np.ones(3))
    assert model.score(kernels, classes(3)) > 0.8
