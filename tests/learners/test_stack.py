"""Stacks against ridge regressions of scikit-learn without one sample or group, and non-negative least squares."""

from contextlib import nullcontext

import numpy as np
import pytest
from helpers.references import in_memory
from scipy.optimize import nnls
from sklearn.dummy import DummyRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KernelCenterer

import dmkl
from dmkl.errors import IndefiniteKernelError, IndefiniteKernelWarning

M, TRAIN, TEST = 40, np.arange(30), np.arange(30, 40)
LAMS = (1e-2, 0.3, 2.0)


def kernels(rng, n=3):
    X = rng.standard_normal((n, M, 4))
    return X @ X.mT + np.exp(-((X[:, :, None] - X[:, None]) ** 2).mean(axis=3)), X


def regression(lam):
    """On a centered kernel, so that predictions have no intercept."""
    return make_pipeline(KernelCenterer(), KernelRidge(alpha=lam, kernel="precomputed"))


def stacked(K, y, groups):
    """Weights, λ and predictions of the test rows, by leaving out one group after another."""
    train, out = K[:, :30, :30], {"cv": LeaveOneGroupOut(), "groups": groups}
    target, parts, lams = y - cross_val_predict(DummyRegressor(), y, y, **out), [], []
    for kernel in train:
        left = {lam: cross_val_predict(regression(lam), kernel, y, **out) for lam in LAMS}
        lams.append(min(LAMS, key=lambda lam: ((target - left[lam]) ** 2).sum()))
        parts.append(left[lams[-1]].ravel())
    weights = nnls(np.stack(parts, axis=1), target.ravel())[0]
    of_test = [regression(lam).fit(k, y).predict(new) for lam, k, new in zip(lams, train, K[:, TEST, :30], strict=True)]
    return weights, lams, y.mean(axis=0) + np.tensordot(weights, of_test, axes=1)


@pytest.mark.parametrize(("grouped", "least"), [(False, 0.0), (True, 0.0), (False, -0.008)])
def test_a_stack_is_the_least_squares_of_left_out_regressions(grouped, least):
    """Also of a kernel with negative eigenvalues, which is told: every λ is larger than their size."""
    K, X = kernels(np.random.default_rng(0))
    if least:
        K[1] = X[1] @ X[1].T + least * np.eye(M)
    groups = TRAIN // 3 if grouped else TRAIN
    labels = np.argmax(X[0, :, :3] + 0.5 * X[1, :, :3], axis=1)
    weights, lams, scores = stacked(K, np.eye(3)[labels[TRAIN]], groups)
    together = {str(sample): group for sample, group in zip(TRAIN, groups, strict=True)} if grouped else None
    model = dmkl.Stack(LAMS, steps="center", kept_together=together)
    K = in_memory(K, 16)
    with pytest.warns(IndefiniteKernelWarning, match="'kernel_1'") if least else nullcontext():
        model.fit(K[TRAIN, TRAIN], labels[TRAIN])
    np.testing.assert_allclose(model.weights_, weights, atol=1e-8)
    np.testing.assert_array_equal(model.lam_, lams)
    np.testing.assert_allclose(model.decision_function(K[TEST, TRAIN]), scores, atol=1e-8)
    assert np.array_equal(model.predict(K[TEST, TRAIN]), scores.argmax(axis=1))
    if least:
        with pytest.raises(IndefiniteKernelError, match=r"'kernel_1' .* eigenvalue of -0\.008, and lams none larger"):
            dmkl.Stack([1e-3], steps="center").fit(K[TRAIN, TRAIN], labels[TRAIN])


def test_a_regression_has_weights_for_each_target():
    K, X = kernels(np.random.default_rng(1))
    y = np.stack([X[0, :, 0] + X[2, :, 1], X[1].sum(axis=1)], axis=1)
    expected = [stacked(K, y[TRAIN, k], TRAIN) for k in range(2)]
    K = in_memory(K, 16)
    model = dmkl.StackRegressor(LAMS, steps="center").fit(K[TRAIN, TRAIN], y[TRAIN])
    np.testing.assert_allclose(model.weights_.T, [weights for weights, *_ in expected], atol=1e-8)
    np.testing.assert_allclose(
        model.predict(K[TEST, TRAIN]), np.stack([scores for *_, scores in expected], axis=1), atol=1e-8
    )


def test_kernels_kept_as_factors_give_the_same():
    rng = np.random.default_rng(2)
    tables, labels = {name: rng.standard_normal((M, 5)) for name in "ab"}, np.arange(M) % 2
    tables["a"][:, 0] += labels
    factors = dmkl.build(None, tables, {"function": "linear"}, dtype="float64")
    plain = in_memory(np.stack([table @ table.T for table in tables.values()]), 16)
    of_factors, of_plain = (
        dmkl.Stack().fit(K[TRAIN, TRAIN], labels[TRAIN]).decision_function(K[TEST, TRAIN]) for K in (factors, plain)
    )
    np.testing.assert_allclose(of_factors.values, of_plain.values, atol=1e-8)


def test_folds_of_groups_are_groups_of_a_stack():
    K, X = kernels(np.random.default_rng(3))
    groups, y = np.arange(M) // 2, X[0, :, 0]
    K = in_memory(K, 16)
    result = dmkl.evaluate(dmkl.StackRegressor(LAMS), K, y, {"steps": [("center",)]}, outer=2, inner=2, groups=groups)
    (train, *_), model = next(iter(result.folds.values())), next(iter(result.models_.values()))
    together = dict(zip(K.samples.astype(str), groups.tolist(), strict=True))
    alone = dmkl.StackRegressor(LAMS, steps=("center",), kept_together=together).fit(K[train, train], y[train])
    np.testing.assert_allclose(model.weights_, alone.weights_, atol=1e-12)
