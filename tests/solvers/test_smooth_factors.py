"""Smooth losses from sums over the samples of kernels kept as factors, against dense references and whole searches."""

import numpy as np
import pytest
from helpers.interruption import cut_off
from scipy.optimize import minimize
from scipy.special import xlogy

import dmkl
from dmkl.errors import InputError

M, TRAIN, TEST = 120, np.arange(90), np.arange(90, 120)


def data(seed: int = 0):
    """A set of factors, classes, counts, covariates, and weights of samples, some of them zero."""
    rng = np.random.default_rng(seed)
    tables = {f"table{j}": rng.normal(size=(M, 3)) for j in range(4)}
    Z = rng.normal(size=(M, 2))
    eta = tables["table0"][:, 0] + tables["table1"][:, 1] + 0.5 * Z[:, 0]
    classes = np.digitize(eta + rng.logistic(size=M), [-1, 1])
    return (
        dmkl.build(None, tables, {"function": "linear"}),
        classes,
        rng.poisson(np.exp(0.4 * eta)).astype(float),
        Z,
        rng.integers(0, 3, size=M).astype(float),
    )


def both(learner, K, y, **more):
    """Models of the sums and of the factors in memory, which prove the optimum to the same tolerance."""
    models = [
        type(learner)(**learner.get_params() | {"solver": name}).fit(K, y, **more) for name in ("factors", "memory")
    ]
    assert [model.solver_ for model in models] == ["factors", "memory"]
    for model in models:
        assert np.all(np.asarray(model.gap_) <= learner.tol)
    np.testing.assert_allclose(models[0].objective_, models[1].objective_, rtol=2e-6)
    np.testing.assert_allclose(models[0].weights_, models[1].weights_, atol=2e-2)
    return models


@pytest.mark.parametrize(("p", "lam"), [(1, 1.0), (2, 1e-3), (np.inf, 10.0)])
def test_sums_find_what_memory_finds(p, lam):
    K, classes, _, Z, d = data()
    steps = (dmkl.residualize(Z[TRAIN]), "multiplicative")
    learner = dmkl.MKLogistic(p, lam, tol=1e-6, steps=steps)
    sums, memory = both(learner, K[TRAIN, TRAIN], classes[TRAIN] > 0, sample_weight=d[TRAIN])
    np.testing.assert_allclose(sums.covariate_effects_, memory.covariate_effects_, atol=1e-2)
    np.testing.assert_allclose(sums.intercept_, memory.intercept_, atol=1e-2)


def test_counts_have_the_optimum_of_a_general_optimizer():
    K, _, counts, _, _ = data()
    model = dmkl.MKGLM("poisson", np.inf, 2.0, solver="factors", tol=1e-8, steps=("center",)).fit(K, counts)
    dense = np.asarray(K).sum(axis=0)
    C = np.eye(M) - 1.0 / M
    values, vectors = np.linalg.eigh(C @ dense @ C)
    root = vectors * np.sqrt(np.maximum(values, 0.0))

    def objective(x):
        eta = root @ x[1:] + x[0]
        u = np.exp(eta) - counts
        value = np.sum(np.exp(eta) - counts * eta + xlogy(counts, counts) - counts) + x[1:] @ x[1:]
        return value, np.append(u.sum(), root.T @ u + 2.0 * x[1:])

    best = minimize(objective, np.zeros(1 + M), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15})
    np.testing.assert_allclose(model.objective_, best.fun, rtol=1e-6)


def test_a_search_from_sums_scores_as_one_in_memory():
    K, classes, _, _, _ = data()
    grid, scores = {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}, []
    for solver in ("factors", "memory"):
        learner = dmkl.MKLogistic(solver=solver, tol=1e-6)
        result = dmkl.search(learner, K, classes > 0, grid, cv=3, baselines="none", refit=False)
        assert (result.scores["status"] == 0).all()
        scores.append(result.scores["score"])
    np.testing.assert_allclose(scores[0], scores[1], atol=1.01 / 40)  # a sample of a fold at the border of two classes


def test_solved_points_survive_an_interruption(tmp_path):
    K, classes, _, _, _ = data()
    learner, grid = dmkl.MKLogistic(solver="factors"), {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}

    def run():
        return dmkl.search(learner, K, classes > 0, grid=grid, cv=3, refit=False, state=tmp_path / "run")

    with cut_off(5, method="keep_outcome"):
        run()
    whole = dmkl.search(learner, K, classes > 0, grid=grid, cv=3, refit=False)
    np.testing.assert_allclose(run().scores["score"], whole.scores["score"], atol=1.01 / 40)


def test_what_sums_cannot_solve_is_refused():
    K, _, counts, _, _ = data()
    with pytest.raises(InputError, match="solver='auto'"):
        dmkl.MKGLM("huber", solver="factors").fit(K, counts)
