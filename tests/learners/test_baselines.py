"""The baselines: the unweighted sum, the best single kernel, the product."""

import numpy as np
import pytest
from helpers.optima import solve
from helpers.references import Counting, dense_view, in_memory, over
from sklearn.metrics.pairwise import chi2_kernel, rbf_kernel
from sklearn.model_selection import KFold, PredefinedSplit, StratifiedKFold

import dmkl
from dmkl.errors import InputError
from dmkl.numerics.fisher import encode_targets

STEPS = ("center", "trace")
M = 72
TRAIN, TEST = np.arange(M)[np.arange(M) % 4 > 0], np.arange(M)[np.arange(M) % 4 == 0]
LABELS = {
    "binary": np.array(["no", "yes"])[np.arange(M) // 3 % 2],
    "multiclass": np.arange(M) // 3 % 3,
    "multilabel": np.stack([np.arange(M) // 3 % 2, np.arange(M) // 3 % 3 > 0], axis=1).astype(int),
}


def make(kind):
    """Five kernels with positive entries, of which only the middle one is strongly related to the labels."""
    rng = np.random.default_rng(0)
    y = LABELS[kind].reshape(M, -1)
    signal = np.hstack([column[:, None] == np.unique(column) for column in y.T]).astype(float)
    kernels = [rbf_kernel(rng.standard_normal((M, 4)), gamma=0.2) for _ in range(4)]
    kernels.insert(2, rbf_kernel(signal + 0.4 * rng.standard_normal(signal.shape), gamma=1.0))
    return np.stack(kernels)


def parts(K):
    return K[TRAIN, TRAIN], K[TEST, TRAIN]


@pytest.mark.parametrize(("kind", "solver"), [("binary", "direct"), ("multiclass", "cg"), ("multilabel", "direct")])
def test_single_best_finds_the_planted_kernel(kind, solver):
    """The scores are those of MK-FDA on each kernel alone, and the fit is that on the best kernel."""
    training, testing = parts(in_memory(make(kind), 20))
    y = LABELS[kind][TRAIN]
    cv = KFold(3, shuffle=True, random_state=0)
    model = dmkl.SingleBest(0.05, solver=solver, cv=cv).fit(training, y)
    assert model.best_ == "kernel_2"
    for j in range(5):
        # A search classifies held-out rows in the same way.
        if kind != "multilabel":  # a search scores each task separately
            learner, grid = dmkl.MKFDA(1, 0.05, solver=solver), {"lam": [0.05]}
            options = {"cv": cv, "scoring": "accuracy", "refit": False, "baselines": "none"}
            alone = dmkl.search(learner, training.select(j), y, grid, **options).scores["score"]
            np.testing.assert_allclose(model.scores_[j], alone.values.ravel(), atol=1e-12)
    best = dmkl.MKFDA(1, 0.05, solver=solver).fit(training.select(2), y)
    weights = model.weights_.values.reshape(5, -1)
    np.testing.assert_array_equal(weights, np.eye(5)[:, [2] * weights.shape[1]])
    np.testing.assert_allclose(model.dual_coef_, best.dual_coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.gap_, best.gap_, atol=1e-12)
    np.testing.assert_array_equal(model.predict(testing), best.predict(testing))
    np.testing.assert_array_equal(model.predict(testing.select("kernel_2")), best.predict(testing))
    assert model.score(testing, LABELS[kind][TEST]) > 0.8


@pytest.mark.parametrize("learner", [dmkl.SingleBest(0.05), dmkl.LPBoost()], ids=["SingleBest", "LPBoost"])
def test_folds_of_a_splitter_without_a_seed_are_made_once(learner):
    """Made twice, they would compare scores of some rows with labels of others."""
    learner.set_params(cv=StratifiedKFold(3, shuffle=True))
    model = learner.fit(in_memory(make("binary"), 20), LABELS["binary"])
    accuracy = model.accuracy_ if isinstance(learner, dmkl.LPBoost) else model.scores_.mean("fold")
    assert accuracy.sel(kernel="kernel_2") > 0.85


def test_folds_without_a_class_are_refused_before_anything_is_read():
    K, source = over(in_memory(make("binary"), 20), Counting)
    third = np.arange(M) // 24
    with pytest.raises(InputError, match="fold 0 of cv has no training samples of class"):
        dmkl.SingleBest(cv=PredefinedSplit(third)).fit(K, third)
    assert source.reads.total() == 0


@pytest.mark.parametrize(("kind", "solver"), [("binary", "cg"), ("multiclass", "direct")])
def test_product_is_fda_on_the_geometric_mean(kind, solver):
    rng = np.random.default_rng(1)
    kernels = np.concatenate([make(kind)[:3], chi2_kernel(rng.random((M, 6)))[None]])
    kernels[0][kernels[0] < np.quantile(kernels[0], 0.05)] = 0  # zeros do not count as negative entries
    mean = np.prod(kernels, axis=0, keepdims=True) ** (1 / 4)
    training, testing = parts(in_memory(kernels, 20))
    y = LABELS[kind][TRAIN]
    model = dmkl.Product(5.0, solver=solver, tol=1e-8).fit(training, y)
    assert model.factors_ == training.names
    assert model.kernel_names_ == ("product",)
    np.testing.assert_array_equal(model.weights_, [1.0])
    h = encode_targets(y, len(TRAIN)).problems[0]
    alpha, objective = solve(dense_view(mean, TRAIN, TRAIN, STEPS), np.ones(1), h, 5.0)
    np.testing.assert_allclose(model.dual_coef_, alpha, atol=1e-5 * np.abs(alpha).max())
    assert model.objective_ == pytest.approx(objective, rel=1e-8)
    scores = (dense_view(mean, TEST, TRAIN, STEPS)[0] @ alpha).reshape(len(TEST), -1)
    given = model.decision_function(testing)
    np.testing.assert_allclose(given.values.reshape(scores.shape), scores, atol=1e-5 * np.abs(scores).max())
    # By name in any order, or as the product itself.
    np.testing.assert_allclose(model.decision_function(testing.select([3, 1, 0, 2])), given, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.decision_function(testing.product()), given)
    with pytest.raises(InputError, match=r"learnt with kernel 'kernel_3', which this set does not have"):
        model.predict(testing.select([0, 1, 2]))
