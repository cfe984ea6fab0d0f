"""Learners with a smooth convex loss: logistic regression, probabilities, covariates, and losses of one's own."""

from functools import partial

import numpy as np
import pytest
from helpers.references import dense_view, in_memory
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import cohen_kappa_score, d2_tweedie_score, log_loss, mean_poisson_deviance

import dmkl
from dmkl.errors import InputError
from dmkl.numerics.losses import SquaredHinge

M, TRAIN, TEST = 60, np.arange(45), np.arange(45, 60)
EXACT = {"tol": 1e-9, "steps": ()}
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("poisson", "ordinal")]

LABELS = {
    "numbers": lambda eta, rng: eta,
    "logistic": lambda eta, rng: np.where(eta + rng.logistic(size=M) > 0.3, 1.0, -1.0),
    "classes": lambda eta, rng: np.digitize(eta, np.quantile(eta, [0.3, 0.7])),
    "poisson": lambda eta, rng: rng.poisson(np.exp(0.4 * eta)).astype(float),
    "ordinal": lambda eta, rng: np.digitize(eta + rng.logistic(size=M), (-2.0, 0.0, 1.0)) + 1.0,
}


def data(kind, seed=0):
    """Kernels of three features each, labels that two of them explain together with covariates, and these."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(3, M, 3)), rng.normal(size=(M, 2))
    kernels = X @ X.transpose(0, 2, 1)
    return X, kernels, in_memory(kernels, 20), LABELS[kind](1.5 * X[0, :, 0] - X[1, :, 1] + Z[:, 0], rng), Z


def test_one_kernel_is_scikit_learns_logistic_regression():
    X, _, K, y, _ = data("logistic")
    K, weights = K.select([0]), {"class_weight": "balanced"}
    model = dmkl.MKLogistic(np.inf, 2.0, **EXACT, **weights).fit(K[TRAIN, TRAIN], y[TRAIN])
    reference = LogisticRegression(C=0.5, tol=1e-12, max_iter=10_000, **weights).fit(X[0, TRAIN], y[TRAIN])
    np.testing.assert_allclose(
        model.decision_function(K[TEST, TRAIN]), reference.decision_function(X[0, TEST]), atol=1e-6
    )
    np.testing.assert_allclose(model.predict_proba(K[TEST, TRAIN]), reference.predict_proba(X[0, TEST]), atol=1e-6)
    assert model.gap_ <= 1e-9


@pytest.mark.parametrize("kind", ["poisson", SLOW[1]])
def test_the_baseline_of_covariates_is_of_the_same_loss(kind):
    _, _, K, y, Z = data("poisson", 10)
    scoring = {"poisson": "neg_mean_poisson_deviance", "ordinal": "quadratic_kappa"}[kind]
    learner = dmkl.MKGLM(kind, lam=4.0, steps=(dmkl.residualize(Z), "trace"))
    y = y if kind == "poisson" else np.minimum(y, 1)
    found = dmkl.evaluate(learner, K, y, {"p": [2], "lam": [4.0]}, outer=[(TRAIN, TEST)], inner=2, scoring=scoring)
    assert "residual_score" not in found.scores
    if kind == "poisson":
        alone = PoissonRegressor(alpha=0, tol=1e-10, max_iter=1000).fit(Z[TRAIN], y[TRAIN]).predict(Z[TEST])
        expected = -mean_poisson_deviance(y[TEST], alone)
    else:
        alone = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(Z[TRAIN], y[TRAIN] > 0).predict(Z[TEST])
        expected = cohen_kappa_score(y[TEST], alone, weights="quadratic")
    assert found.scores["covariates_test_score"].item() == pytest.approx(expected, abs=1e-4)
    with pytest.raises(InputError, match="have no residuals on covariates"):
        dmkl.permutation_test(learner, K, y, grid={"lam": [4.0]}, cv=2, n_permutations=2)


@pytest.mark.slow
def test_prices_and_constraints_of_weights_are_those_of_other_kernels():
    _, kernels, K, y, _ = data("logistic", 9)
    prices = np.array([1.0, 2.0, 4.0])
    priced = dmkl.MKLogistic(1.5, 2.0, sigma=prices, **EXACT).fit(K, y)
    expected = dmkl.solve_mkglm(kernels / prices[:, None, None], y, "logistic", 1.5, 2.0, tol=1e-9)
    np.testing.assert_allclose(priced.weights_ * prices, expected.weights, atol=1e-4)
    a, b, c = K.names
    alike = dmkl.MKLogistic(lam=2.0, constraints=lambda d: [d[a] == d[b], d[a] + d[b] + d[c] <= 1], **EXACT).fit(K, y)
    pair = np.stack([kernels[:2].mean(axis=0), kernels[2]])
    expected = dmkl.solve_mkglm(pair, y, "logistic", 1.0, 2.0, tol=1e-9)
    np.testing.assert_allclose(alike.weights_, expected.weights[[0, 0, 1]] / [2, 2, 1], atol=1e-4)


@pytest.mark.parametrize("sharing", ["none", pytest.param("classes", marks=pytest.mark.slow)])
def test_classes_against_the_rest_have_probabilities_in_searches_too(sharing):
    _, _, K, y, _ = data("classes", 1)
    learner = dmkl.MKLogistic(1.5, 0.5, sharing=sharing)
    model = learner.fit(K[TRAIN, TRAIN], y[TRAIN])
    assert model.weights_.dims == (("kernel",) if sharing == "classes" else ("kernel", "class"))
    p = expit(model.decision_function(K[TEST, TRAIN]).values)
    np.testing.assert_allclose(model.predict_proba(K[TEST, TRAIN]), p / p.sum(axis=1, keepdims=True), atol=1e-12)
    result = dmkl.search(learner, K, y, {"lam": [0.5]}, [(TRAIN, TEST)], scoring="neg_log_loss", baselines="none")
    expected = -log_loss(y[TEST], model.predict_proba(K[TEST, TRAIN]))
    assert result.best_score_ == pytest.approx(expected, abs=1e-6)
    assert dmkl.assess(model, K[TEST, TRAIN], y[TEST], scoring="neg_log_loss").score.item() == pytest.approx(expected)
    with pytest.raises(InputError, match="its own"):
        model.calibrate(K[TEST, TRAIN], y[TEST])


@pytest.mark.slow
def test_effects_of_covariates_on_each_class_are_reported(tmp_path):
    _, _, K, y, Z = data("classes", 1)
    model = dmkl.MKLogistic(steps=(dmkl.residualize(Z), "trace"), lam=0.1).fit(K, y)
    assert model.covariate_effects_.dims == ("covariate", "class")
    assert model.covariate_effects_[0, 0] < 0 < model.covariate_effects_[0, 2]
    dmkl.report(model, tmp_path / "report.html")
    assert "Effects of covariates" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["logistic", *SLOW])
def test_covariates_are_fixed_effects(kind):
    _, kernels, K, y, Z = data(kind, 2)
    learner = dmkl.MKLogistic if kind == "logistic" else partial(dmkl.MKGLM, kind)
    model = learner(p=1.5, lam=3.0, tol=1e-9, steps=(dmkl.residualize(Z),)).fit(K[TRAIN, TRAIN], y[TRAIN])
    dense = dense_view(kernels, TRAIN, TRAIN)
    solved = dmkl.solve_mkglm(dense, y[TRAIN], kind, 1.5, 3.0, covariates=Z[TRAIN], tol=1e-9)
    effects = solved.extra["effects"][-2:, 0]
    np.testing.assert_allclose(model.covariate_effects_[:, 0], effects, atol=1e-4)
    eta = np.tensordot(solved.weights, kernels, 1)[:, TRAIN] @ solved.dual[:, 0] + Z @ effects + solved.bias
    if kind == "ordinal":
        theta = dmkl.Ordinal().thresholds(y[TRAIN], eta[TRAIN], np.ones(45))[1]
        at_least = model.predict_proba(K[TEST, TRAIN]).values[:, ::-1].cumsum(axis=1)[:, ::-1]
        np.testing.assert_allclose(at_least, expit(eta[TEST, None] - theta), atol=1e-4)
        return
    scores = model.decision_function if kind == "logistic" else lambda K: np.log(model.predict(K))
    np.testing.assert_allclose(scores(K[TEST, TRAIN]), eta[TEST], atol=1e-4)
    found = dmkl.search(model, K, y, {"lam": [3.0]}, [(TRAIN, TEST)], baselines="none").predictions
    column = found["score"] if kind == "logistic" else np.log(found["prediction"])
    np.testing.assert_allclose(np.ravel(column), eta[TEST], atol=1e-4)


def test_counts_have_the_logarithm_of_an_exposure_as_offset(tmp_path):
    """In a fit, in the folds of a search, of new samples, and in a saved model."""
    _, kernels, K, eta, _ = data("numbers", 3)
    exposure = np.arange(M) % 4 + 1
    y = np.random.default_rng(3).poisson(exposure * np.exp(0.3 * eta))
    logs = dict(zip(TRAIN.astype(str), np.log(exposure[TRAIN]), strict=True))
    model = dmkl.MKGLM("poisson", lam=4.0, offset=logs, **EXACT).fit(K[TRAIN, TRAIN], y[TRAIN])
    dense, given = dense_view(kernels, TRAIN, TRAIN), {"offset": np.log(exposure[TRAIN]), "tol": 1e-9}
    solved = dmkl.solve_mkglm(dense, y[TRAIN].astype(float), "poisson", lam=4.0, **given)
    np.testing.assert_allclose(model.weights_, solved.weights, atol=1e-4)
    eta = np.tensordot(solved.weights, kernels, 1)[np.ix_(TEST, TRAIN)] @ solved.dual[:, 0] + solved.bias
    model.save(tmp_path / "model")
    for fitted in (model, dmkl.load(tmp_path / "model")):
        np.testing.assert_allclose(fitted.predict(K[TEST, TRAIN], offset=0.0), np.exp(eta), rtol=1e-4)
        counts = fitted.predict(K[TEST, TRAIN], offset=np.log(exposure[TEST]))
        np.testing.assert_allclose(counts, exposure[TEST] * np.exp(eta), rtol=1e-4)
    shares = model.contributions(K[TEST, TRAIN], offset=np.log(exposure[TEST]))
    np.testing.assert_allclose(shares.sum("kernel") + shares.intercept, np.log(counts))
    with pytest.raises(InputError, match="15 of 15 have none, the first being '45'"):
        model.predict(K[TEST, TRAIN])
    everywhere = dmkl.MKGLM("poisson", offset=np.log(exposure), **EXACT)
    found = dmkl.search(everywhere, K, y, {"lam": [4.0]}, [(TRAIN, TEST)], scoring="d2_poisson", baselines="none")
    np.testing.assert_allclose(found.predictions["prediction"], counts, rtol=1e-4)
    assert found.best_score_ == pytest.approx(d2_tweedie_score(y[TEST], counts, power=1), abs=1e-4)
    rates = dmkl.MKGLM("poisson", lam=4.0, **EXACT).fit(K[TRAIN, TRAIN], (y / exposure)[TRAIN], exposure[TRAIN])
    np.testing.assert_allclose(rates.predict(K[TEST, TRAIN]), np.exp(eta), rtol=1e-4)


def test_ordered_levels_have_thresholds_and_probabilities(tmp_path):
    """With one kernel, p = ∞, against SciPy's optimum over a linear predictor and thresholds."""
    X, _, K, y, _ = data("ordinal", 7)
    K, lam = K.select([0]), 2.0
    model = dmkl.MKGLM("ordinal", np.inf, lam, **EXACT).fit(K[TRAIN, TRAIN], y[TRAIN])

    def probabilities(w, theta, X):
        return -np.diff(expit((X @ w)[:, None] - np.concatenate([[-np.inf], theta, [np.inf]])), axis=1)

    def loss(parameters):
        w, theta = parameters[:3], parameters[3] + np.cumsum([0.0, *np.exp(parameters[4:])])
        return 0.5 * lam * w @ w - np.sum(
            np.log(probabilities(w, theta, X[0, TRAIN])[np.arange(45), y[TRAIN].astype(int) - 1])
        )

    best = minimize(loss, np.zeros(6), options={"gtol": 1e-7})
    assert model.objective_ == pytest.approx(best.fun, rel=1e-8)
    theta = best.x[3] + np.cumsum([0.0, *np.exp(best.x[4:])])
    np.testing.assert_allclose(model.thresholds_, [-np.inf, *theta], atol=1e-4)
    expected = probabilities(best.x[:3], theta, X[0, TEST])
    model.save(tmp_path / "model")
    for fitted in (model, dmkl.load(tmp_path / "model")):
        np.testing.assert_allclose(fitted.predict_proba(K[TEST, TRAIN]), expected, atol=1e-4)
        levels = fitted.predict(K[TEST, TRAIN]).values
        np.testing.assert_array_equal(levels, 1 + np.sum(np.cumsum(expected, axis=1) < 0.5, axis=1))
    given = {"cv": [(TRAIN, TEST)], "scoring": ["quadratic_kappa", "neg_mean_absolute_error"], "baselines": "none"}
    found = dmkl.search(model, K, y, {"lam": [lam]}, **given)
    np.testing.assert_array_equal(found.predictions["prediction"], levels)
    assert found.best_score_ == pytest.approx(cohen_kappa_score(y[TEST], levels, weights="quadratic"))
    assert not hasattr(dmkl.MKGLM("huber"), "predict_proba")


class Square(dmkl.Loss):
    """½(y − η)², as a loss of a user."""

    def value(self, y, eta):
        return 0.5 * (y - eta) ** 2

    def gradient(self, y, eta):
        return eta - y

    def curvature(self, y, eta):
        return np.ones_like(eta)


def test_a_loss_of_ones_own_is_ridge_regression():
    _, _, K, eta, _ = data("numbers", 4)
    more = {"tol": 1e-9, "steps": ("center", "trace")}
    model, ridge = (
        learner.fit(K[TRAIN, TRAIN], eta[TRAIN])
        for learner in (dmkl.MKGLM(Square(), 1.5, 0.1, **more), dmkl.MKRidge(1.5, 0.1, **more))
    )
    np.testing.assert_allclose(model.predict(K[TEST, TRAIN]), ridge.predict(K[TEST, TRAIN]), atol=1e-4)
    np.testing.assert_allclose(model.weights_, ridge.weights_, atol=1e-4)
    # P is −½S for MK-FDA's S = −min Σ(y − f)² + λR.
    assert model.objective_ == pytest.approx(-0.5 * ridge.objective_, rel=1e-7)


def test_options_of_a_loss_are_saved(tmp_path):
    _, _, K, eta, _ = data("numbers", 5)
    model = dmkl.MKGLM(dmkl.Huber(delta=2.5)).fit(K, eta)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    assert loaded.loss == dmkl.Huber(delta=2.5)
    np.testing.assert_array_equal(loaded.predict(K), model.predict(K))
    margin = dmkl.MKGLM("squared_hinge", lam=2.0, **EXACT).fit(K, np.sign(eta))
    f = margin.predict(K).values
    of_kernels = (f - margin.intercept_.values) @ margin.dual_coef_[:, 0].values
    assert margin.objective_ == pytest.approx(SquaredHinge().value(np.sign(eta), f).sum() + of_kernels, rel=1e-7)
