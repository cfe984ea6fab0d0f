"""Kernels of few features, multiplied by their factors, against the same kernels as matrices."""

import numpy as np
import pytest
from helpers.references import few_columns
from sklearn.base import clone

import dmkl
from dmkl.errors import InputError

M = 60
SPECS = [{"function": "linear", "feature": "*"}, {"function": "cosine", "feature": "a", "name": "direction"}]


@pytest.fixture(scope="module")
def sets():
    """The set with factors, and the same kernels as matrices in memory."""
    features, y = few_columns()
    K = dmkl.build(None, features, SPECS, labels=y, tile=16)
    return K, dmkl.create(None, list(np.asarray(K)), names=K.names, labels=y, tile=16)


TRAIN, TEST = np.random.default_rng(1).permutation(M)[:45], np.arange(M)
RESIDUALIZED = (dmkl.residualize(np.random.default_rng(2).normal(size=M)), "trace")
GROUPS = {"g": ["a-linear", "b-linear"], "h": ["c-linear", "direction"]}


@pytest.mark.parametrize(
    "learner",
    [
        dmkl.MKFDA(p=2, lam=1e-2, class_weight={0: 3.0, 1: 1.0, 2: 2.0}, steps=("center", "trace"), tol=1e-11),
        dmkl.MKFDA(lam=1e-2, kernel_groups=GROUPS, steps=("cosine", "center"), tol=1e-8),
        dmkl.MKRidge(p=2, lam=1e-2, steps=RESIDUALIZED, tol=1e-11),
    ],
    ids=["balanced", "groups", "ridge"],
)
def test_models_are_those_of_the_matrices(sets, learner):
    K, dense = sets
    y = few_columns()[0]["a"][:, 0] if isinstance(learner, dmkl.MKRidge) else K.labels
    # "direct" on K has sums of kernels by factors.
    model, by_sums, expected = (
        clone(learner).set_params(solver=solver).fit(S[TRAIN, TRAIN], y[TRAIN])
        for S, solver in ((K, "factors"), (K, "direct"), (dense, "direct"))
    )
    np.testing.assert_allclose(by_sums.weights_, model.weights_, atol=2e-5)
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=2e-5)
    scores = expected._decision(dense[TEST, TRAIN]).values
    np.testing.assert_allclose(model._decision(K[TEST, TRAIN]).values, scores, atol=1e-5 * np.abs(scores).max())
    assert model.gap_ <= 1e-8


def test_tasks_with_unknown_labels_and_several_targets(sets):
    K, dense = sets
    labels = np.stack([K.labels == 0, K.labels == 1], axis=1).astype(float)
    labels[::7, 0] = np.nan
    model, expected = (
        dmkl.MKFDA(solver=solver, tol=1e-10).fit(S, labels) for S, solver in ((K, "factors"), (dense, "direct"))
    )
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-5)
    np.testing.assert_allclose(model.decision_function(K), expected.decision_function(dense), atol=1e-5)


@pytest.mark.parametrize(
    "learner", [dmkl.MKFDA(p=2, lam=1e-2, tol=1e-10, decision="largest"), dmkl.MKRidge(p=2, lam=1e-2, tol=1e-10)]
)
def test_a_refit_after_a_search_needs_no_pass_for_its_sums(learner):
    """Its targets are linear combinations of a constant and of those of the folds, and so are their sums."""
    rng = np.random.default_rng(0)
    features = {name: rng.normal(size=(600, 40)) + 1.0 for name in "ab"}
    y = features["a"][:, 0] + rng.normal(size=600)
    y = y if isinstance(learner, dmkl.MKRidge) else np.digitize(y, [0.0, 1.5])
    searched, alone = (dmkl.build(None, features, {"function": "linear"}, labels=y) for _ in range(2))
    refitted = dmkl.search(learner, searched, grid={"lam": [1e-2]}, cv=3, baselines="none").best_
    expected = learner.fit(alone)
    assert refitted.n_passes_ == expected.n_passes_ - 1
    np.testing.assert_allclose(refitted.weights_, expected.weights_, rtol=1e-4)
    np.testing.assert_allclose(refitted.dual_coef_, expected.dual_coef_, atol=1e-5 * np.abs(expected.dual_coef_).max())
    # One pass for test rows, dual variables and means; leverages for the leave-one-out scores of classifiers follow.
    nested = dmkl.evaluate(learner, alone, grid={"lam": [1e-2]}, outer=2, inner=2, baselines="none")
    assert nested.scores.attrs["n_refit_passes"] == (1 if isinstance(learner, dmkl.MKRidge) else 2)


def test_a_large_set_is_fitted_without_a_kernel():
    """20,000 samples: the kernels would be 6.4 GB."""
    features, y = few_columns(20_000)
    K = dmkl.build(None, {name: table.astype(np.float32) for name, table in features.items()}, SPECS[:1], labels=y)
    model = dmkl.MKFDA(p=1, lam=1e-2).fit(K)
    assert model.gap_ <= 1e-4
    assert model.weights_.idxmax() == "a-linear"


def test_the_solver_is_refused_for_other_kernels(sets):
    K, dense = sets
    with pytest.raises(InputError, match="solver='factors' is for linear and cosine kernels"):
        dmkl.MKFDA(solver="factors").fit(dense)
    few = np.arange(20)
    with pytest.raises(InputError, match="fewer columns in all than training samples"):
        dmkl.MKFDA(solver="factors").fit(K[few, few])


def test_the_default_grid_has_the_ridges_that_the_solver_resolves():
    """Solvers that form these kernels round them to single precision; the solver for factors does not."""
    features, y = few_columns()
    K = dmkl.build(None, {name: table.astype(np.float32) for name, table in features.items()}, SPECS[:1], labels=y)
    more = {"grid": {"lam": None}, "cv": 2, "refit": False, "baselines": "none"}
    solvers = ("auto", "factors", "direct", "stacked")
    least = {name: dmkl.search(dmkl.MKFDA(p=2, solver=name), K, **more).scores.lam.min() for name in solvers}
    assert least["auto"] == least["factors"] == 1e-8
    assert least["direct"] == least["stacked"] > 1e-8
