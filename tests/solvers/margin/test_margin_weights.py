"""Samples and classes of different weight: against scikit-learn, repeated samples, and the certificate."""

import numpy as np
import pytest
from helpers.references import in_memory, psd
from sklearn.svm import SVC

import dmkl


def problem(m=40, seed=0):
    """Kernels, signs, and whole weights from 1 to 3."""
    rng = np.random.default_rng(seed)
    kernels = psd(2, m, seed=seed, rank=10)
    y = np.where(kernels[0, 0] + 0.5 * rng.standard_normal(m) > 0, 1.0, -1.0)
    return kernels, y, rng.integers(1, 4, m)


@pytest.mark.parametrize(("class_weight", "multiclass"), [("balanced", "ovo"), ({0: 1.0, 1: 5.0, 2: 0.5}, "ovr")])
def test_classes_of_different_weight(class_weight, multiclass):
    """In one-against-one problems scikit-learn's machines use the class weights of all classes too."""
    kernels, _, _ = problem(60)
    labels = np.repeat([0, 1, 2], [35, 15, 10])
    model = dmkl.MKSVM(np.inf, 2.0, steps=(), class_weight=class_weight, multiclass=multiclass, tol=1e-8)
    model.fit(in_memory(kernels, 20), labels)
    K = kernels.sum(axis=0)
    balanced = {k: 60 / (3 * n) for k, n in enumerate([35, 15, 10])}
    weights = np.array([(balanced if class_weight == "balanced" else class_weight)[k] for k in labels])
    for number, dual in enumerate(model.dual_coef_.values.T):
        pair = [(0, 1), (0, 2), (1, 2)][number]
        rows = np.flatnonzero(np.isin(labels, pair)) if multiclass == "ovo" else np.arange(60)
        signs = np.where(labels[rows] == (pair[0] if multiclass == "ovo" else number), 1, -1)
        theirs = SVC(C=2.0, kernel="precomputed", tol=1e-8).fit(K[np.ix_(rows, rows)], signs, weights[rows])
        scores = K[rows] @ dual + model.intercept_.values[number]
        np.testing.assert_allclose(scores, theirs.decision_function(K[np.ix_(rows, rows)]), atol=1e-3)


@pytest.mark.parametrize(("class_weight", "weighted"), [(None, True), ({1: 3.0}, False)])
def test_one_group_of_weighted_samples_is_canonical_mkl(class_weight, weighted):
    """GS-MKL on one group reaches the optimum of the hinge loss at p = 1, where it is convex, also with weights."""
    kernels, y, weights = problem()
    K, labels = in_memory(kernels, 20), y.astype(int)
    options = {"steps": (), "class_weight": class_weight}
    grouped, single = dmkl.GSMKL(0.1, 1, across=True, tol=1e-9, **options), dmkl.MKSVM(1.0, 0.1, tol=1e-6, **options)
    for model in (grouped, single):
        model.fit(K, labels, weights if weighted else None)
    assert float(grouped.objective_) == pytest.approx(single.objective_, rel=1e-4)


def test_the_classifier_of_cuts_is_that_of_scikit_learn():
    kernels, y, weights = problem()
    K, labels = in_memory(kernels, 20), y.astype(int)
    model = dmkl.NCuts(2, C=0.5, steps=(), tol=1e-7, class_weight={1: 2.0}).fit(K, labels, weights)
    np.testing.assert_array_equal(model.weights_, dmkl.NCuts(2, C=0.5, steps=(), tol=1e-7).fit(K, labels).weights_)
    combined = np.tensordot(model.weights_.values, kernels, axes=1)
    counts = weights * np.where(labels == 1, 2.0, 1.0)
    theirs = SVC(C=0.5, kernel="precomputed", tol=1e-8).fit(combined, labels, counts)
    np.testing.assert_allclose(model.decision_function(K), theirs.decision_function(combined), atol=1e-3)
