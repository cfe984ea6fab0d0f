"""Learners at given weights, and weights from alignments, against scikit-learn and cvxpy."""

import cvxpy as cp
import numpy as np
import pytest
import xarray as xr
from helpers.references import dense_view
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC

import dmkl
from dmkl.errors import InputError

M, NAMES = 45, ("a", "b", "c", "d")
WEIGHTS = np.array([0.5, 0.0, 2.0, 1.0])


@pytest.fixture(scope="module")
def dense():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(4, M, 6))
    features[:2] += np.array([0.5, 1.0])[:, None, None] * np.eye(6)[classes()]
    features[2] = features[1] + 0.3 * rng.normal(size=(M, 6))  # similar to another
    return features @ features.transpose(0, 2, 1)


@pytest.fixture(scope="module")
def kernels(dense):
    return dmkl.create(None, dense, names=NAMES)


def classes():
    return np.arange(M) % 3


@pytest.mark.parametrize(
    ("solver", "given"),
    [
        ("direct", WEIGHTS),
        ("cg", list(WEIGHTS)),
        ("subspace", dict(zip(NAMES, WEIGHTS, strict=True))),
        ("dual", xr.DataArray(WEIGHTS, {"kernel": list(NAMES)})),
    ],
)
def test_a_discriminant_at_given_weights_is_that_of_their_sum(dense, kernels, given, solver):
    model = dmkl.Weighted(given, dmkl.MKFDA(lam=0.3, steps=(), solver=solver, tol=1e-10)).fit(kernels, classes())
    alone = dmkl.MKFDA(lam=0.3, steps=(), solver="direct", tol=1e-10).fit(
        np.tensordot(WEIGHTS, dense, 1)[None], classes()
    )
    np.testing.assert_array_equal(model.weights_, WEIGHTS)
    np.testing.assert_allclose(model.dual_coef_, alone.dual_coef_, atol=1e-4)
    assert model.objective_ == pytest.approx(alone.objective_, rel=1e-8)
    assert model.gap_ <= 1e-8


def test_ridge_at_given_weights_is_that_of_scikit_learn(dense, kernels):
    y = np.random.default_rng(2).normal(size=M)
    model = dmkl.Weighted(WEIGHTS, dmkl.MKRidge(lam=0.7, steps=())).fit(kernels, y)
    theirs = KernelRidge(alpha=0.7, kernel="precomputed").fit(np.tensordot(WEIGHTS, dense, 1), y)
    np.testing.assert_allclose(model.dual_coef_[:, 0], theirs.dual_coef_, atol=1e-8)


@pytest.mark.parametrize("sharing", ["none", "classes"])
def test_a_machine_at_given_weights_is_that_of_scikit_learn(dense, kernels, sharing):
    learner = dmkl.MKSVM(C=0.4, steps=(), sharing=sharing, tol=1e-8)
    model = dmkl.Weighted(WEIGHTS, learner).fit(kernels, classes())
    total = np.tensordot(WEIGHTS, dense, 1)
    for k in range(3):
        theirs = SVC(C=0.4, kernel="precomputed", tol=1e-10).fit(total, classes() == k)
        np.testing.assert_allclose(model.decision_function(kernels)[:, k], theirs.decision_function(total), atol=1e-5)
    assert np.max(model.gap_) <= 1e-8


@pytest.mark.slow
def test_given_weights_are_searched_saved_and_restricted(kernels, tmp_path):
    learner = dmkl.Weighted(xr.DataArray(WEIGHTS, {"kernel": list(NAMES)}))
    result = dmkl.search(learner, kernels, classes(), {"lam": [0.1, 1.0]}, cv=2)
    np.testing.assert_array_equal(result.best_.weights_, WEIGHTS)
    assert "sum_score" in result.scores  # the plain sum is another model
    result.best_.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(kernels), result.best_.predict(kernels))
    assert loaded.weights == dict(zip(NAMES, WEIGHTS, strict=True))
    some = dmkl.importance(dmkl.Weighted([1.0, 2.0, 3.0, 4.0]), kernels, classes(), cv=2).data["weight_without"]
    assert some.sel(source="a", kernel=["a", "c"]).min(["fold"]).values.tolist() == [0.0, 3.0]
    with pytest.raises(InputError, match="only kernels of weight zero"):
        dmkl.importance(learner, kernels, classes(), cv=2)


@pytest.mark.parametrize("method", ["align", "alignf", "cka", "statis"])
def test_weights_from_alignments_follow_their_definitions(dense, kernels, method):
    weights = dmkl.aligned_weights(kernels, classes(), method=method)
    K = dense_view(dense, steps=("center", "trace"))
    indicators = np.eye(3)[classes()]
    indicators = indicators / np.linalg.norm(indicators, axis=0)
    (ideal,) = dense_view((indicators @ indicators.T)[None], steps=("center", "trace"))
    gram, target = np.einsum("iab,jab->ij", K, K), np.einsum("iab,ab->i", K, ideal)
    norms = np.sqrt(np.diag(gram))
    if method == "align":
        exact = target / norms
    elif method == "cka":
        exact = np.linalg.solve(gram, target)
    elif method == "alignf":
        w = cp.Variable(4, nonneg=True)
        scale = 1.0 / np.linalg.norm(target)
        cp.Problem(cp.Minimize(cp.quad_form(w, gram / norms.max() ** 2) - 2 * scale * target @ w)).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
        exact = w.value
        exact[exact < 1e-6 * exact.max()] = 0.0
    else:
        m, sums = K.shape[1], K.sum(axis=2) - np.diagonal(K, axis1=1, axis2=2)
        U = K - (sums[:, :, None] + sums[:, None, :]) / (m - 2) + sums.sum(axis=1)[:, None, None] / ((m - 1) * (m - 2))
        U *= ~np.eye(m, dtype=bool)  # of which unbiased alignments are the correlations
        _, vectors = np.linalg.eigh(np.corrcoef(U.reshape(4, -1)))
        leading = vectors[:, -1] * np.sign(vectors[:, -1].sum())
        exact = np.maximum(leading, 0) / norms
    np.testing.assert_allclose(weights, exact / np.linalg.norm(exact), atol=1e-5)


def test_weights_of_tasks_and_rules(kernels):
    tasks = np.stack([classes() == 0, classes() == 1], axis=1).astype(int)
    both = dmkl.aligned_weights(kernels, tasks)
    assert both.dims == ("kernel", "task")
    np.testing.assert_allclose(both[:, 0], dmkl.aligned_weights(kernels, tasks[:, 0]), atol=1e-10)
    groups = ["x", "x", "y", "y"]
    for message, action in (
        ("needs labels", lambda: dmkl.aligned_weights(kernels)),
        ("method must be one of", lambda: dmkl.aligned_weights(kernels, classes(), method="sum")),
        ("begin with 'center'", lambda: dmkl.aligned_weights(kernels, classes(), steps=())),
        ("nothing to restrict", lambda: dmkl.MKFDA(weights=WEIGHTS, kernel_groups=groups).fit(kernels, classes())),
        ("has no parameter weights", lambda: dmkl.Weighted(WEIGHTS, dmkl.GMKL())),
        ("4 finite numbers", lambda: dmkl.Weighted([1.0, 2.0]).fit(kernels, classes())),
        ("none negative", lambda: dmkl.Weighted([1.0, -1.0, 0.0, 0.0]).fit(kernels, classes())),
        ("lacks the kernel 'b'", lambda: dmkl.Weighted({"a": 1.0}).fit(kernels, classes())),
        ("kernel 'e', which this set does not have", lambda: dmkl.Weighted({"e": 1.0}).fit(kernels, classes())),
    ):
        with pytest.raises(InputError, match=message):
            action()
