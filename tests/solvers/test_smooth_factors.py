"""Smooth losses from sums over the samples of kernels kept as factors, against memory, and in whole searches."""

import numpy as np
import pytest
from helpers.interruption import cut_off

import dmkl
from dmkl.errors import InputError

M, TRAIN = 120, np.arange(90)
GRID = {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}


def data():
    """A set of factors, two classes, covariates, and weights of samples, some of them zero."""
    rng = np.random.default_rng(0)
    tables = {f"table{j}": rng.normal(size=(M, 3)) for j in range(4)}
    Z = rng.normal(size=(M, 2))
    eta = tables["table0"][:, 0] + tables["table1"][:, 1] + 0.5 * Z[:, 0]
    K, y = dmkl.build(None, tables, {"function": "linear"}), eta + rng.logistic(size=M) > -1.0
    return K, y, Z, rng.integers(0, 3, size=M).astype(float)


@pytest.mark.parametrize(("p", "lam"), [(1, 1.0), (2, 1e-3), (np.inf, 10.0)])
def test_sums_find_what_memory_finds(p, lam):
    """Both prove that their objective is the optimum to 1e-6, so that these agree."""
    K, y, Z, d = data()
    steps = (dmkl.residualize(Z[TRAIN]), "multiplicative")
    sums, memory = (
        dmkl.MKLogistic(p, lam, tol=1e-6, steps=steps, solver=name).fit(K[TRAIN, TRAIN], y[TRAIN], d[TRAIN])
        for name in ("factors", "memory")
    )
    assert (sums.solver_, memory.solver_) == ("factors", "memory")
    assert max(sums.gap_, memory.gap_) <= 1e-6
    np.testing.assert_allclose(sums.objective_, memory.objective_, rtol=2e-6)
    np.testing.assert_allclose(sums.weights_, memory.weights_, atol=2e-2)
    np.testing.assert_allclose(sums.covariate_effects_, memory.covariate_effects_, atol=1e-2)
    np.testing.assert_allclose(sums.intercept_, memory.intercept_, atol=1e-2)


def test_a_search_from_sums_scores_as_one_in_memory():
    (K, y, *_), scores = data(), []
    for solver in ("factors", "memory"):
        learner = dmkl.MKLogistic(solver=solver, tol=1e-6)
        result = dmkl.search(learner, K, y, GRID, cv=3, baselines="none", refit=False)
        assert (result.scores["status"] == 0).all()
        scores.append(result.scores["score"])
    np.testing.assert_allclose(scores[0], scores[1], atol=1.01 / 40)  # a sample of a fold at the border of two classes


def test_solved_points_survive_an_interruption(tmp_path):
    K, y, *_ = data()

    def run(name):
        learner = dmkl.MKLogistic(solver="factors")
        return dmkl.search(learner, K, y, GRID, cv=3, refit=False, state=tmp_path / name).scores["score"]

    with cut_off(5, method="keep_outcome"):
        run("run")
    np.testing.assert_allclose(run("run"), run("whole"), atol=1.01 / 40)


def test_what_sums_cannot_solve_is_refused():
    K, _, Z, _ = data()
    with pytest.raises(InputError, match="solver='auto'"):
        dmkl.MKGLM("huber", solver="factors").fit(K, Z[:, 0])
