"""The front for kernel matrices in memory: scikit-learn cuts rows and columns, the kernels are the third dimension."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from helpers.references import digits, in_memory
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score

import dmkl
from dmkl.errors import InputError

FOLDS = KFold(3, shuffle=True, random_state=0)


def data():
    kernels, y = digits()
    return np.moveaxis(kernels, 0, 2), y % 3


def test_folds_are_cut_along_both_axes():
    X, y = data()
    result = cross_val_predict(dmkl.PrecomputedMKLClassifier(), X, y, cv=FOLDS)
    K = in_memory(digits()[0], 25)
    for train, test in FOLDS.split(y):
        model = dmkl.MKFDA().fit(K[train, train], y[train])
        np.testing.assert_array_equal(result[test], model.predict(K[test, train]))


def test_a_regression_is_that_on_kernel_sets():
    X, y = data()
    targets = np.stack([y, X[:, 0, 0]], axis=1)
    K = in_memory(digits()[0], 25)
    train, test = np.arange(60), np.arange(60, 90)
    model = dmkl.PrecomputedMKLRegressor(dmkl.MKRidge(lam=0.1), names=list("abcde")).fit(X[:60, :60], targets[train])
    assert list(model.weights_.kernel) == list("abcde")
    predicted = model.predict(X[60:, :60])
    expected = dmkl.MKRidge(lam=0.1).fit(K[train, train], targets[train]).predict(K[test, train])
    np.testing.assert_allclose(predicted, expected, rtol=1e-8)
    assert model.score(X[60:, :60], targets[test]) == r2_score(targets[test], predicted) > 0.5
    with pytest.raises(InputError, match="estimator must be a regression of dmkl"):
        dmkl.PrecomputedMKLRegressor(dmkl.MKFDA()).fit(X, y)


@pytest.mark.parametrize(
    "model",
    [dmkl.Uniform(), dmkl.MKRidge(lam=0.1), dmkl.KernelKMeans(3), dmkl.VarianceComponents(shares="diagonal")],
    ids=repr,
)
def test_arrays_in_give_arrays_and_names_on_demand(model):
    kernels, y = digits()
    y = y % 3 if isinstance(model, dmkl.Uniform) else y.astype(float)
    train, test = np.arange(60), np.arange(60, 90)
    arrays, K = kernels[:, 60:, :60], in_memory(kernels, 25)[test, train]
    model.fit(kernels[:, :60, :60], *([] if isinstance(model, dmkl.KernelKMeans) else [y[:60]]))
    plain = model.predict(arrays)
    assert type(plain) is np.ndarray
    named = model.predict(K, as_xarray=True)
    assert named["sample"].values.tolist() == K.samples.tolist()
    np.testing.assert_allclose(named, plain, rtol=1e-8)  # tiles of another size round differently
    np.testing.assert_array_equal(model.predict(arrays, as_xarray=True), plain)
    assert isinstance(model.predict(K), np.ndarray) == (not isinstance(model, dmkl.MKRidge | dmkl.VarianceComponents))


@pytest.mark.parametrize("table", [np.ones((6, 3)), pd.DataFrame(np.ones((6, 3)))], ids=["array", "frame"])
def test_a_table_of_features_is_no_kernel(table):
    with pytest.raises(InputError, match=r"table of shape \(6, 3\); make kernels .* dmkl.build, take dmkl.MKLClass"):
        dmkl.MKFDA().fit(table, [0, 1] * 3)
    with pytest.raises(InputError, match=r"\(6, 3\); give features of new samples as features=, or give a single kern"):
        dmkl.MKFDA().fit([np.eye(6)], [0, 1] * 3).predict(table)


def test_what_is_refused():
    X, y = data()
    model = dmkl.PrecomputedMKLClassifier().fit(X[:60, :60], y[:60])
    for message, action in (
        ("expected 3: samples, training samples, kernels", lambda: clone(model).fit(X[:, :, 0], y)),
        ("estimator must be a classifier of dmkl", lambda: dmkl.PrecomputedMKLClassifier(KFold()).fit(X, y)),
        (r"X has shape \(30, 59, 5\), expected \(samples, 60, 5\)", lambda: model.predict(X[60:, :59])),
    ):
        with pytest.raises(InputError, match=message):
            action()


def test_a_kernel_set_tells_scikit_learn_what_to_use():
    """scikit-learn would count the kernels of a set as samples."""
    K = dmkl.create(None, np.stack([np.eye(6)] * 6))
    for fit in (GridSearchCV(dmkl.MKFDA(), {"p": [1, 2]}).fit, partial(cross_val_score, dmkl.MKFDA())):
        with pytest.raises(InputError, match=r"dmkl\.search\(dmkl\.MKFDA\(\), K, y\)"):
            fit(K, [0, 1] * 3)
    assert len(K) == 6
    assert not hasattr(K, "predict")
