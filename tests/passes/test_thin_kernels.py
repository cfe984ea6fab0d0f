"""Kernels of few features, which passes multiply by their factors, against the same kernels as matrices."""

from __future__ import annotations

import numpy as np
import pytest

import dmkl
from dmkl.errors import InputError

M = 60
SPECS = [{"function": "linear", "feature": "*"}, {"function": "cosine", "feature": "a", "name": "direction"}]


def tables(m=M, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(m) % 3
    wide = rng.normal(size=(m, 9)) + 1.0
    wide[:, :3] += 0.8 * np.eye(3)[y]
    return {"a": wide, "b": rng.normal(size=(m, 4)), "c": rng.normal(size=(m, 2))}, y


@pytest.fixture(scope="module")
def sets():
    """The set by factors, and the same kernels as matrices in memory."""
    features, y = tables()
    K = dmkl.build(None, features, SPECS, labels=y, tile=16)
    return K, dmkl.create(None, list(np.asarray(K)), names=K.names, labels=y, tile=16)


TRAIN, TEST = np.random.default_rng(1).permutation(M)[:45], np.arange(M)
Z = np.random.default_rng(2).normal(size=M)
CHAINS = [
    (),
    ("center", "trace"),
    ("cosine", "center"),
    ("center", "multiplicative"),
    ("center", "cosine"),
    (dmkl.residualize(Z), "trace"),
]


@pytest.mark.parametrize("steps", CHAINS)
def test_products_are_those_of_the_matrices(sets, steps):
    K, dense = sets
    V = np.random.default_rng(3).normal(size=(len(TRAIN), 3))
    for part in (TRAIN, TRAIN[::-1]):
        square, expected = (S[part, part].with_steps(steps) for S in (K, dense))
        np.testing.assert_allclose(square.apply(V), expected.apply(V), atol=1e-10)
        np.testing.assert_allclose(square.project(V), expected.project(V), atol=1e-10)


LEARNERS = {
    "p": lambda **more: dmkl.MKFDA(p=1.5, lam=1e-3, **more),
    "sparse": lambda **more: dmkl.MKFDA(p=1, lam=1e-1, **more),
    "uniform": lambda **more: dmkl.Uniform(lam=1e-2, **more),
    "balanced": lambda **more: dmkl.MKFDA(p=2, lam=1e-2, class_weight={0: 3.0, 1: 1.0, 2: 2.0}, **more),
    "groups": lambda tol, **more: dmkl.MKFDA(
        lam=1e-2, kernel_groups={"g": ["a-linear", "b-linear"], "h": ["c-linear", "direction"]}, tol=1e-8, **more
    ),
    "ridge": lambda **more: dmkl.MKRidge(p=2, lam=1e-2, **more),
}


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *zip(LEARNERS, 2 * [CHAINS[1], CHAINS[2], CHAINS[5]], strict=True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("p", CHAINS[2]), ("p", CHAINS[5]), ("ridge", CHAINS[1])]
        ),
    ],
)
def test_models_are_those_of_the_matrices(sets, name, steps):
    K, dense = sets
    y = tables()[0]["a"][:, 0] if name == "ridge" else K.labels
    learner = LEARNERS[name](steps=steps, tol=1e-11)
    model = learner.set_params(solver="factors").fit(K[TRAIN, TRAIN], y[TRAIN])
    by_sums = learner.set_params(solver="direct").fit(K[TRAIN, TRAIN], y[TRAIN])  # sums of kernels by factors
    np.testing.assert_allclose(by_sums.weights_, model.weights_, atol=2e-5)
    expected = learner.set_params(solver="direct").fit(dense[TRAIN, TRAIN], y[TRAIN])
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=2e-5)
    scores = expected._decision(dense[TEST, TRAIN]).values
    np.testing.assert_allclose(model._decision(K[TEST, TRAIN]).values, scores, atol=1e-5 * np.abs(scores).max())
    assert model.gap_ <= 1e-8
    if name != "ridge":  # calibrated on scores of left-out rows, from leverages by factors
        proba = expected.predict_proba(dense[TEST, TRAIN])
        np.testing.assert_allclose(model.predict_proba(K[TEST, TRAIN]), proba, atol=1e-4)


def test_at_the_same_weights_scores_agree_to_rounding(sets):
    K, dense = sets
    # α has rounding of its own size, and the scores Kα are λ times smaller: at 1e-8 both solvers keep seven digits.
    for lam in (1e-6, 1e-4, 10.0):
        model, expected = (
            dmkl.Uniform(lam=lam, solver=solver).fit(S[TRAIN, TRAIN], K.labels[TRAIN])
            for S, solver in ((K, "factors"), (dense, "direct"))
        )
        scores = expected.decision_function(dense[TEST, TRAIN]).values
        np.testing.assert_allclose(model.decision_function(K[TEST, TRAIN]), scores, atol=1e-8 * np.abs(scores).max())


def test_tasks_with_unknown_labels_and_several_targets(sets):
    K, dense = sets
    labels = np.stack([K.labels == 0, K.labels == 1], axis=1).astype(float)
    labels[::7, 0] = np.nan
    model, expected = (
        dmkl.MKFDA(solver=solver, tol=1e-10).fit(S, labels) for S, solver in ((K, "factors"), (dense, "direct"))
    )
    np.testing.assert_allclose(model.weights_, expected.weights_, atol=1e-5)
    np.testing.assert_allclose(model.decision_function(K), expected.decision_function(dense), atol=1e-5)


@pytest.mark.slow
def test_searches_take_the_factors_and_one_pass_for_all_points(sets, tmp_path):
    K, dense = sets
    grid = {"p": [1, 1.0625, 2, np.inf], "lam": [1e-8, 1e-3, 1.0]}
    result, expected = (
        dmkl.search(dmkl.MKFDA(tol=1e-8, solver=solver), S, grid=grid, cv=3)
        for S, solver in ((K, "auto"), (dense, "subspace"))
    )
    assert result.best_.solver_ == "factors"
    np.testing.assert_allclose(result.scores.mean_score, expected.scores.mean_score, atol=0.051)  # one row of a fold
    np.testing.assert_allclose(result.scores.objective, expected.scores.objective, rtol=1e-6)
    assert float(result.scores.gap.max()) <= 1e-7
    state = tmp_path / "state"
    first = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3, state=state)
    again = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3, state=state)
    np.testing.assert_array_equal(first.scores.mean_score, again.scores.mean_score)
    without = dmkl.importance(dmkl.MKFDA(), K, grid={"lam": [1e-2]}, cv=2)
    assert without.data.sizes["source"] == 4


@pytest.mark.parametrize("steps", [("center", "trace"), ("cosine", "center")])
def test_a_refit_after_a_search_is_the_fit_of_its_choice(steps):
    # The refit adds up the products of the folds if its steps act on sums.
    features, y = tables()
    learner = dmkl.MKFDA(p=2, lam=1e-2, steps=steps, tol=1e-10)
    searched = dmkl.build(None, features, SPECS, labels=y)
    refitted = dmkl.search(learner, searched, grid={"lam": [1e-2]}, cv=3).best_
    alone = learner.fit(dmkl.build(None, features, SPECS, labels=y))
    assert refitted.objective_ == pytest.approx(alone.objective_, rel=1e-9)
    np.testing.assert_allclose(refitted.weights_, alone.weights_, rtol=1e-4)


def test_new_samples_are_predicted_from_features(sets):
    K, _ = sets
    features, _ = tables(20, seed=5)
    model = dmkl.MKFDA().fit(K)
    cross = dmkl.build_cross(K, features)
    np.testing.assert_allclose(model.decision_function(features=features), model.decision_function(cross), atol=1e-12)
    dense = dmkl.create(None, list(np.asarray(K)), names=K.names, labels=K.labels)
    expected = (
        dmkl.MKFDA(solver="direct").fit(dense).decision_function(dict(zip(K.names, np.asarray(cross), strict=True)))
    )
    np.testing.assert_allclose(model.decision_function(cross), expected, atol=1e-4)


def test_a_large_set_is_fitted_without_a_kernel():
    """20,000 samples: the kernels would be 6.4 GB."""
    features, y = tables(20_000)
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
    """Solvers that form these kernels round them to single precision, and the solver for factors does not."""
    features, y = tables()
    K = dmkl.build(None, {name: table.astype(np.float32) for name, table in features.items()}, SPECS[:1], labels=y)
    least = {
        solver: dmkl.search(dmkl.MKFDA(p=2, solver=solver), K, grid={"lam": None}, cv=2, refit=False).scores.lam.min()
        for solver in ("auto", "factors", "direct", "stacked")
    }
    assert least["auto"] == least["factors"] == 1e-8
    assert least["direct"] == least["stacked"] > 1e-8
