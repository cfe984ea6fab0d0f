"""Weights of shared candidates, refined for each target, against dense linear algebra and SciPy's minimizer."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from helpers.references import dense_view
from scipy.optimize import approx_fprime, minimize
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, LeaveOneGroupOut

import dmkl
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.solvers.refinement import residuals

M, N, T = 48, 4, 4
LAMS = [1e-3, 1e-2, 0.1]
FOLDS = KFold(3)


@pytest.fixture(scope="module")
def dense():
    features = np.random.default_rng(0).normal(size=(N, M, 5)) * np.array([1.0, 3.0, 0.2, 1.0])[:, None, None] + 0.5
    return features @ features.transpose(0, 2, 1) + 0.1 * np.eye(M)


@pytest.fixture(scope="module")
def Y(dense):
    rng = np.random.default_rng(1)
    roots = np.linalg.cholesky(dense / np.trace(dense, axis1=1, axis2=2)[:, None, None])
    parts = roots @ rng.normal(size=(N, M, T)) * rng.integers(1, 5, (N, 1, T))
    return 5.0 + parts.sum(axis=0) + 0.2 * rng.normal(size=(M, T))


@pytest.fixture(scope="module")
def K(dense):
    return dmkl.create(None, dense)


@pytest.fixture(scope="module")
def found(K, Y):
    return dmkl.search(refining(), K, Y, {"lam": LAMS}, FOLDS)


def refining(**parameters):
    return dmkl.MKRidge(**{"weights": "shared", "n_candidates": 3, "random_state": 3, "refine": 200} | parameters)


def after_steps(dense, train, rows):
    return [dense_view(dense, part, train, ("center", "trace")) for part in (train, rows)]


def predicted(dense, y, weights, lam, train, rows):
    square, cross = (np.tensordot(weights, kernels, 1) for kernels in after_steps(dense, train, rows))
    return y[train].mean() + cross @ np.linalg.solve(square + lam * np.eye(len(train)), y[train] - y[train].mean())


def mean_error(dense, y, lam):
    """1 − R², mean over the folds, as a function of the logarithms of the weights."""
    folds = [(after_steps(dense, a, b), y[a], y[b]) for a, b in FOLDS.split(y)]

    def error(delta):
        parts = []
        for kernels, known, truth in folds:
            square, cross = (np.tensordot(np.exp(delta), part, 1) for part in kernels)
            dual = np.linalg.solve(square + lam * np.eye(len(known)), known - known.mean())
            parts.append(np.sum((truth - known.mean() - cross @ dual) ** 2) / np.sum((truth - truth.mean()) ** 2))
        return np.mean(parts)

    return error


def test_derivatives_are_central_differences():
    rng = np.random.default_rng(0)
    m, new, lam = 12, 5, 0.3
    factors = rng.normal(size=(N, m + new, 3))
    kernels = factors @ factors[:, :m].transpose(0, 2, 1)
    h, goal, delta = rng.normal(size=m), rng.normal(size=new), rng.normal(size=N)

    def reference(at):
        total = np.tensordot(np.exp(at), kernels, 1)
        return 0.7 * (total[m:] @ np.linalg.solve(total[:m] + lam * np.eye(m), h) - goal)

    values, derivatives = residuals(kernels, h, goal, 0.7, delta, lam)
    np.testing.assert_allclose(values, reference(delta), rtol=1e-10)
    steps = 1e-5 * np.eye(N)
    expected = np.transpose([(reference(delta + step) - reference(delta - step)) / 2e-5 for step in steps])
    np.testing.assert_allclose(derivatives, expected, rtol=1e-6, atol=1e-9)


def test_weights_are_those_of_a_minimizer_of_the_dense_error(found, dense, Y):
    chosen, refined, scores = found.chosen, found.scores["refined_weight"], found.scores["refined_score"]
    for t in range(T):
        lam, start = float(chosen["lam"][t]), chosen["weight"].isel(fold=0, target=t).values
        end = refined.isel(target=t).values
        score = float(scores.isel(target=t).mean())
        error = mean_error(dense, Y[:, t], lam)
        assert 1.0 - score == pytest.approx(error(np.log(end)), abs=1e-9)
        assert score > float(chosen["mean_score"][t])
        # With several minima: the nearest one, and one about as good as that found from the candidate.
        assert 1.0 - score == pytest.approx(minimize(error, np.log(end), tol=1e-9).fun, abs=1e-6)
        best = minimize(error, np.log(np.maximum(start, 1e-3 * start.max())), tol=1e-9)
        assert 1.0 - score == pytest.approx(best.fun, abs=1e-3)
        assert np.abs(approx_fprime(np.log(end), error, 1e-6)).max() < 1e-3


def test_the_model_is_the_ridge_regression_at_refined_weights(found, dense, Y, K, tmp_path):
    model = found.best_
    np.testing.assert_array_equal(model.weights_, found.scores["refined_weight"].transpose(*model.weights_.dims))
    assert model.gap_.max() <= 1e-8
    square = dense_view(dense, steps=("center", "trace"))
    for t in range(T):
        total = np.tensordot(model.weights_[:, t].values, square, 1) + float(found.chosen["lam"][t]) * np.eye(M)
        np.testing.assert_allclose(
            model.dual_coef_[:, t], np.linalg.solve(total, Y[:, t] - Y[:, t].mean()), rtol=1e-7, atol=1e-10
        )
    assert "Refined weights: r2 " in found.summary()
    assert f"better for {T} of {T} choices" in found.summary()
    found.save(tmp_path / "found")
    loaded = dmkl.load(tmp_path / "found")
    assert loaded.summary() == found.summary()
    np.testing.assert_array_equal(loaded.best_.predict(K), model.predict(K))


def test_no_target_gets_worse_by_the_scorer_that_chooses(K, Y):
    """Steps lower squared errors; a target whose correlation they do not raise keeps its candidate."""
    targets = np.random.default_rng(5).standard_t(3, size=(M, 12))
    result = dmkl.search(refining(), K, targets, {"lam": LAMS}, FOLDS, scoring="correlation", refit=False)
    plain = dmkl.search(refining(refine=0), K, targets, {"lam": LAMS}, FOLDS, scoring="correlation", refit=False)
    assert result.best_params_ == plain.best_params_
    before, after = result.chosen["mean_score"].values, result.scores["refined_score"].mean("fold").values
    kept = (result.scores["refined_weight"] == result.chosen["weight"].isel(fold=0)).all("kernel").values
    assert 0 < kept.sum() < 12
    np.testing.assert_allclose(after[kept], before[kept], rtol=1e-9)
    assert (after[~kept] > before[~kept]).all()
    assert f"better for {12 - kept.sum()} of 12 choices" in result.summary()


def test_more_steps_are_no_worse(K, Y, found):
    few = dmkl.search(refining(refine=1), K, Y, {"lam": LAMS}, FOLDS, refit=False).scores["refined_score"].mean("fold")
    assert (few.values >= found.chosen["mean_score"].values - 1e-9).all()
    assert (found.scores["refined_score"].mean("fold").values > few.values).all()


def test_one_target_and_folds_that_choose_alone(dense, K, Y):
    """Each fold refines on its validation rows, and tests the model of all its training and validation rows."""
    parts = [np.split(np.roll(np.arange(M), 16 * k), [24, 36]) for k in range(2)]
    result = dmkl.search(refining(), K, Y[:, 0], {"lam": LAMS}, parts)
    for f, (train, rows, test) in enumerate(parts):
        weights = result.scores["refined_weight"].isel(fold=f).values
        lam = float(result.chosen["lam"][f])
        expected = r2_score(Y[rows, 0], predicted(dense, Y[:, 0], weights, lam, train, rows))
        assert float(result.scores["refined_score"][f]) == pytest.approx(expected, abs=1e-9)
        seen = np.sort(np.r_[train, rows])
        expected = r2_score(Y[test, 0], predicted(dense, Y[:, 0], weights, lam, seen, test))
        assert float(result.scores["refit_test_score"][f]) == pytest.approx(expected, abs=1e-8)


def test_an_evaluation_refines_on_inner_folds(K, Y):
    outer = LeaveOneGroupOut().split(Y, groups=np.arange(M) // 24)
    evaluation = dmkl.evaluate(refining(), K, Y, {"lam": LAMS}, outer=list(outer), inner=FOLDS)
    for f, (train, rows) in enumerate(LeaveOneGroupOut().split(Y, groups=np.arange(M) // 24)):
        model = dmkl.search(refining(), K[train, train], Y[train], {"lam": LAMS}, FOLDS).best_
        np.testing.assert_allclose(list(evaluation.models_.values())[f].weights_, model.weights_, rtol=1e-6)
        scores = r2_score(Y[rows], model.predict(K[rows, train]), multioutput="raw_values")
        np.testing.assert_allclose(evaluation.scores["test_score"].isel(fold=f), scores, rtol=1e-6)


def test_the_command_line_refines(tmp_path, dense, Y, K, found, output_of):
    dmkl.create(tmp_path / "set.zarr", dense, labels=Y)
    given = ("--weights", "shared", "--n-candidates", 3, "--random-state", 3, "--refine", 200, "--lam", "1e-3,1e-2,0.1")
    printed = output_of(
        "search", tmp_path / "set.zarr", tmp_path / "out", "--model", "mkridge", *given, "--cv", "KFold(3)"
    )
    assert "Refined weights: " in printed
    weights = dmkl.load(tmp_path / "out").best_.weights_
    np.testing.assert_allclose(weights, found.best_.weights_, rtol=1e-6)


def test_bad_input(dense, K, Y):
    with pytest.raises(InputError, match="refine starts at the candidates of weights='shared'"):
        dmkl.MKRidge(refine=5).fit(K, Y)
    with pytest.raises(InputError, match=r"a plain fit has no folds; let dmkl\.search"):
        refining(candidate=0).fit(K, Y)
    unknown = np.where(np.arange(M * T).reshape(M, T) == 0, np.nan, Y)
    with pytest.raises(InputError, match="refine takes targets without unknown values; fill them in"):
        dmkl.search(refining(), K, unknown, {"lam": LAMS}, FOLDS)
    needed = 3 * 8 * N * 48 * 32
    with dask.config.set({"dmkl.memory": f"{needed}B"}), pytest.raises(MemoryBudgetError, match="take fewer folds"):
        dmkl.search(refining(), K, Y, {"lam": LAMS}, FOLDS)
