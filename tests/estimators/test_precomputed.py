"""The front for kernel matrices in memory: scikit-learn cuts rows and columns, the kernels are the third dimension."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.references import digits, in_memory
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_predict, cross_val_score
from sklearn.utils import get_tags

import dmkl
from dmkl.errors import InputError

FOLDS = KFold(3, shuffle=True, random_state=0)


def data():
    kernels, y = digits()
    return np.moveaxis(kernels, 0, 2), y % 3


@pytest.mark.parametrize("estimator", [None, dmkl.MKSVM(1.5, 4.0), dmkl.Uniform()])
def test_folds_are_cut_along_both_axes(estimator):
    X, y = data()
    result = cross_val_predict(dmkl.PrecomputedMKLClassifier(estimator), X, y, cv=FOLDS)
    K = in_memory(digits()[0], 25)
    for train, test in FOLDS.split(y):
        model = clone(dmkl.MKFDA() if estimator is None else estimator).fit(K[train, train], y[train])
        np.testing.assert_array_equal(result[test], model.predict(K[test, train]))


def test_labels_of_several_tasks():
    X, y = data()
    labels = np.stack([y == 0, y == 1], axis=1).astype(int)
    model = dmkl.PrecomputedMKLClassifier(names=list("abcde")).fit(X[:60, :60], labels[:60])
    assert list(model.weights_.kernel) == list("abcde")
    assert model.predict(X[60:, :60]).shape == (30, 2)
    assert get_tags(model).input_tags.pairwise
    scores = cross_val_score(dmkl.PrecomputedMKLClassifier(), X, labels, cv=FOLDS)
    assert (scores > 0.7).all()


def test_what_is_refused():
    X, y = data()
    with pytest.raises(InputError, match=r"expected 3: samples, training samples, kernels"):
        dmkl.PrecomputedMKLClassifier().fit(X[:, :, 0], y)
    with pytest.raises(InputError, match="symmetric"):
        dmkl.PrecomputedMKLClassifier().fit(X[:60, 30:], y[:60])
    with pytest.raises(InputError, match="estimator must be a classifier of dmkl"):
        dmkl.PrecomputedMKLClassifier(KFold()).fit(X, y)
    model = dmkl.PrecomputedMKLClassifier().fit(X[:60, :60], y[:60])
    with pytest.raises(InputError, match=r"X has shape \(30, 59, 5\), expected \(samples, 60, 5\)"):
        model.predict(X[60:, :59])
