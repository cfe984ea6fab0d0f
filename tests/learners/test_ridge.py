"""ℓp multiple kernel ridge regression, against cvxpy, scikit-learn, dense algebra, and fits one by one."""

import numpy as np
import pandas as pd
import pytest
from helpers.references import digits, in_memory, ridge_predictions
from sklearn.base import clone
from sklearn.metrics import r2_score

import dmkl
from dmkl.errors import InputError

TRAIN, TEST = np.arange(60), np.arange(60, 90)


def problem():
    """Five kernels of 90 digits, and targets that depend on the first, on the third, on both, with noise."""
    kernels, _ = digits()
    rng = np.random.default_rng(3)
    roots = [np.linalg.cholesky(K + 1e-8 * np.trace(K) * np.eye(90)) for K in (kernels[0], kernels[2])]
    a, b = (root @ rng.standard_normal(90) for root in roots)
    a, b = (v / v.std() for v in (a, b))
    y = np.stack([a, b, a + b], axis=1) + 0.1 * rng.standard_normal((90, 3))
    return in_memory(kernels, 25), kernels, y * [1.0, 100.0, 0.01] + [5.0, -3.0, 0.0]


K, KERNELS, Y = problem()


def test_classes_are_no_truth_of_a_regression():
    model = dmkl.MKRidge().fit(K[TRAIN, TRAIN], Y[TRAIN, 2])
    for ask in (model.score, lambda *given: dmkl.assess(model, *given)):
        with pytest.raises(InputError, match=r"the targets of a regression are numbers; .*; found 'hi'"):
            ask(K[TEST, TRAIN], ["hi", "lo"] * 15)


# --- searches --------------------------------------------------------------------------------------------------------
def test_scores_of_a_search_are_those_of_the_sum_of_kernels_at_infinite_p():
    grid, options = {"p": [np.inf], "lam": [1e-2]}, {"cv": [(TRAIN, TEST)], "refit": False, "baselines": "none"}
    scores = dmkl.search(dmkl.MKRidge(), K, Y, grid, scoring=list(SCORES), **options).scores
    predicted = ridge_predictions(KERNELS, Y, np.ones(5), 1e-2, TRAIN, TEST)
    for name, measure in SCORES.items():
        variable = "score" if name == "r2" else f"score_{name}"
        expected = [measure(Y[TEST, k], predicted[:, k]) for k in range(3)]
        np.testing.assert_allclose(scores[variable].values.ravel(), expected, rtol=1e-3)


SCORES = {
    "r2": r2_score,
    "correlation": lambda truth, result: np.corrcoef(truth, result)[0, 1],
    "neg_mean_squared_error": lambda truth, result: -np.mean((truth - result) ** 2),
}


def test_an_evaluation_and_an_assessment_measure_numbers():
    options = {"outer": 2, "inner": 2, "scoring": ["r2", "correlation"], "baselines": "none"}
    result = dmkl.evaluate(dmkl.MKRidge(), K, Y[:, :2], {"lam": [1e-4, 1e-2]}, **options)
    assert result.scores["test_score"].dims == ("fold", "target")
    with pytest.raises(InputError, match="which no confusion matrix counts"):
        _ = result.confusion
    with pytest.raises(InputError, match="does not suit a regression"):
        dmkl.search(dmkl.MKRidge(), K, Y, {"lam": [1.0]}, scoring="accuracy")
    model = dmkl.MKRidge(2.0, 1e-2).fit(K[TRAIN, TRAIN], Y[TRAIN])
    measured = dmkl.assess(model, K[TEST, TRAIN], Y[TEST], scoring=["r2", "correlation"])["score"]
    for name in ("r2", "correlation"):
        expected = [SCORES[name](*pair) for pair in zip(Y[TEST].T, model.predict(K[TEST, TRAIN]).values.T, strict=True)]
        np.testing.assert_allclose(measured.sel(measure=name), expected)
    assert model.score(K[TEST, TRAIN], Y[TEST]) == pytest.approx(float(measured.sel(measure="r2").mean()))


def confounded(m=90):
    """Two kernels, the covariates age and site that both they and the targets depend on, and two targets."""
    rng = np.random.default_rng(0)
    Z = pd.DataFrame({"age": rng.normal(50, 9, m), "north": rng.integers(0, 2, m)})
    X = rng.standard_normal((m, 12)) + np.outer(Z["age"] - 50, rng.standard_normal(12)) / 9
    squares = ((X[:, None] - X[None]) ** 2).sum(axis=-1)
    y = X @ rng.standard_normal((12, 2)) + np.outer(Z["age"], [0.5, -0.2]) + np.outer(Z["north"], [4.0, 0.0])
    return np.array([X @ X.T, np.exp(-squares / 24)]), Z, y + 0.5 * rng.standard_normal((m, 2)) + 7


CONFOUNDED, Z, OUTCOMES = confounded()


def generalized_least_squares(K, Z, y, lam, d, rows, cols):
    """b of y = [1, Z]b + g + e, var(g + e) = K + λD⁻¹ with K centered on `cols`, and the predictions for `rows`."""
    design = np.column_stack([np.ones(len(Z)), Z])
    C = np.eye(len(cols)) - np.outer(np.ones(len(cols)), d) / d.sum()
    L = np.zeros((len(Z), len(Z)))  # centers rows by the mean of the training samples
    L[:, cols] = -d / d.sum()
    centered = ((L + np.eye(len(Z))) @ K)[:, cols] @ C.T
    V = centered[cols] + lam * np.diag(1 / d)
    b = np.linalg.solve(design[cols].T @ np.linalg.solve(V, design[cols]), design[cols].T @ np.linalg.solve(V, y[cols]))
    return b, design[rows] @ b + centered[rows] @ np.linalg.solve(V, y[cols] - design[cols] @ b)


@pytest.mark.parametrize(("solver", "weighted"), [("direct", True), ("subspace", False), ("dual", True)])
def test_effects_of_covariates_are_those_of_generalized_least_squares(solver, weighted, tmp_path):
    d = np.random.default_rng(1).uniform(0.5, 2, len(TRAIN)) if weighted else np.ones(len(TRAIN))
    model = dmkl.MKRidge(p=2, lam=5.0, steps=dmkl.residualize(Z), solver=solver, tol=1e-10)  # a chain of one step
    K = in_memory(CONFOUNDED, 25)
    model.fit(K[TRAIN, TRAIN], OUTCOMES[TRAIN, 0], sample_weight=d if weighted else None)
    total = np.tensordot(model.weights_.values, CONFOUNDED, axes=1)
    b, expected = generalized_least_squares(total, Z, OUTCOMES[:, 0], 5.0, d, TEST, TRAIN)
    assert model.covariate_effects_.dims == ("covariate", "target")
    assert model.covariate_effects_.covariate.values.tolist() == ["age", "north"]
    np.testing.assert_allclose(model.covariate_effects_.values[:, 0], b[1:], rtol=1e-4)
    np.testing.assert_allclose(model.intercept_.values, b[:1], rtol=1e-4)
    np.testing.assert_allclose(model.predict(K[TEST, TRAIN]), expected, rtol=1e-4)
    model.save(tmp_path / "model")
    again = dmkl.load(tmp_path / "model")
    assert again.covariate_effects_.identical(model.covariate_effects_)
    predicted = again.predict(K[TEST, TRAIN], covariates=Z.loc[TEST])
    assert np.array_equal(predicted, model.predict(K[TEST, TRAIN]))
    shares = again.contributions(K[TEST, TRAIN])
    np.testing.assert_allclose(shares.sum("kernel") + shares.intercept, predicted.values, rtol=1e-10)


@pytest.mark.parametrize("chain", ["residualize, trace", "cosine, residualize, trace", "residualize, cosine"])
def test_predictions_with_covariates_are_scored_wherever_they_are_made(chain):
    steps = tuple(dmkl.residualize(Z) if name == "residualize" else name for name in chain.split(", "))
    K, model = in_memory(CONFOUNDED, 25), dmkl.MKRidge(p=1.5, lam=1e-2, steps=steps)
    several = OUTCOMES.copy()
    several[5:20, 1] = np.nan
    model.fit(K[TRAIN, TRAIN], several[TRAIN])
    known = np.setdiff1d(TRAIN, np.arange(5, 20))
    alone = [clone(model).fit(K[rows, rows], OUTCOMES[rows, t]) for t, rows in enumerate((TRAIN, known))]
    predicted = model.predict(K[TEST, TRAIN]).values
    for t, (single, rows) in enumerate(zip(alone, (TRAIN, known), strict=True)):
        np.testing.assert_allclose(predicted[:, t], single.predict(K[TEST, rows]).values, rtol=1e-6)
        np.testing.assert_allclose(model.covariate_effects_[:, t], single.covariate_effects_[:, 0], rtol=1e-6)
    score = alone[0].score(K[TEST, TRAIN], OUTCOMES[TEST, 0])
    assert score == r2_score(OUTCOMES[TEST, 0], alone[0].predict(K[TEST, TRAIN]).values) > 0.9
    # As in a search, by products with the held-out rows or by solvers that keep them.
    for solver in ("direct", "subspace"):
        options = {"cv": [(TRAIN, TEST)], "refit": False, "baselines": "none"}
        result = dmkl.search(model.set_params(solver=solver), K, OUTCOMES[:, 0], {"lam": [1e-2, 1e-1]}, **options)
        assert abs(float(result.scores["score"].sel(lam=1e-2).squeeze()) - score) < 1e-4


@pytest.mark.parametrize("several", [False, True])
def test_an_assessment_has_the_score_of_the_kernels_part(several):
    y = OUTCOMES if several else OUTCOMES[:, 0]
    K, steps = in_memory(CONFOUNDED, 25), (dmkl.residualize(Z), "trace")
    model = dmkl.MKRidge(p=2, lam=1e-2, steps=steps).fit(K[TRAIN, TRAIN], y[TRAIN])
    assessed = dmkl.assess(model, K[TEST, TRAIN], y[TEST], scoring=["r2", "correlation"])
    design = np.column_stack([np.ones(len(Z)), Z])
    by_covariates = design[TEST] @ np.linalg.lstsq(design[TRAIN], y[TRAIN], rcond=None)[0]
    residual, of_kernels = y[TEST] - by_covariates, model.predict(K[TEST, TRAIN]).values - by_covariates
    for name in ("r2", "correlation"):
        columns = zip(residual.reshape(len(TEST), -1).T, of_kernels.reshape(len(TEST), -1).T, strict=True)
        expected = [SCORES[name](*pair) for pair in columns]
        np.testing.assert_allclose(np.atleast_1d(assessed["residual_score"].sel(measure=name)), expected, rtol=1e-9)
    assert (assessed["residual_score"] < assessed["score"]).all()
    plain = dmkl.MKRidge().fit(K[TRAIN, TRAIN], y[TRAIN])
    assert "residual_score" not in dmkl.assess(plain, K[TEST, TRAIN], y[TEST])


def test_models_saved_without_effects_of_covariates_predict_with_a_warning():
    K = in_memory(CONFOUNDED, 25)
    model = dmkl.MKRidge(steps=(dmkl.residualize(Z), "trace")).fit(K[TRAIN, TRAIN], OUTCOMES[TRAIN, 0])
    del model.covariate_effects_
    with pytest.warns(UserWarning, match="without effects of covariates"):
        model.predict(K[TEST, TRAIN])
    with pytest.warns(UserWarning, match="without effects of covariates"):
        assert "residual_score" not in dmkl.assess(model, K[TEST, TRAIN], OUTCOMES[TEST, 0])


def test_a_permutation_test_asks_for_the_kernels_beside_the_covariates():
    """With kernels of noise and a target that covariates predict, permuted residuals score as high as the target."""
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((90, 5)), Z["age"].to_numpy() + rng.standard_normal(90)
    model = dmkl.MKRidge(lam=1.0, steps=(dmkl.residualize(Z), "trace"))
    result = dmkl.permutation_test(model, in_memory(np.array([X @ X.T]), 30), y, {"lam": [1.0]}, 19, cv=3)
    assert float(result.data["score"]) > 0.9
    assert result.p_value > 0.05
