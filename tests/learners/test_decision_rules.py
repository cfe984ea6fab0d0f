"""Both decision rules of every classifier, in fits, searches and evaluations, against dense computations."""

from itertools import cycle

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.references import in_memory
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold

import dmkl
from dmkl.errors import InputError
from dmkl.learners.decisions import IN_FOLDS, LEFT_OUT

SIZES = {"binary": (60, 18), "multiclass": (40, 24, 9)}
MACHINES = [
    dmkl.MKSVM(2.0, 3.0, tol=1e-7),
    dmkl.MKSVM(2.0, 3.0, multiclass="ovo", tol=1e-7),
    dmkl.GMKL(3.0, tol=1e-7),
    dmkl.MKSVM(2.0, 3.0, sharing="classes", tol=1e-7),
    dmkl.GSMKL(3.0, n_groups=1, tol=1e-8),
    dmkl.LocalizedMKL(30.0, tol=1e-8),
    dmkl.EasyMKL(tol=1e-9),
    dmkl.NCuts(2, C=3.0, tol=1e-7),
    dmkl.SpectralLearning(1.0, C=3.0, tol=1e-7),
    dmkl.Weighted([0.5, 1.0], dmkl.MKSVM(C=3.0, tol=1e-7)),
]
DISCRIMINANTS = [
    dmkl.MKFDA(2.0, 0.05),
    dmkl.Uniform(0.05),
    dmkl.SingleBest(0.05),
    dmkl.Product(0.05),
    dmkl.Weighted([0.5, 1.0], dmkl.MKFDA(lam=0.05)),
]


def unbalanced(kind, seed=0):
    """Two kernels of classes that differ in size and overlap, labels, and rows to train on and to test."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.full(2 * size, k) for k, size in enumerate(SIZES[kind])])
    x = rng.standard_normal((len(y), 6)) + 1.2 * np.eye(6)[y] + 0.8 * np.eye(6)[y + 3]
    train = np.concatenate([np.arange(2 * size) < size for size in SIZES[kind]])
    kernels = np.stack([rbf_kernel(x[:, part], gamma=0.3) for part in (slice(0, 3), slice(3, 6))])
    return in_memory(kernels, 40), y, np.flatnonzero(train), np.flatnonzero(~train)


def directions(scores):
    return np.concatenate([-scores, scores], axis=1) if scores.shape[1] == 1 else scores


def densities(known, y, new):
    """−½ (s − m_k)ᵀW⁻¹(s − m_k), W the covariance within classes with the number of rows as the divisor."""
    means = np.stack([known[y == k].mean(axis=0) for k in range(y.max() + 1)])
    apart = known - means[y]
    inverse = np.linalg.inv(apart.T @ apart / len(y))
    away = new[:, None] - means
    return -0.5 * np.einsum("nkc,cd,nkd->nk", away, inverse, away)


def by_means(known, y, new):
    """log q_k + a L_k + b s_k of new scores, with a and b of the smallest log loss of leave-one-out L."""
    m, shares = len(y), np.bincount(y) / len(y)
    rest = [np.delete(np.arange(m), i) for i in range(m)]
    left_out = np.concatenate([densities(known[rows], y[rows], known[[i]]) for i, rows in enumerate(rest)])
    terms = np.stack([left_out, directions(known)])
    terms -= terms.mean(axis=2, keepdims=True)
    scale = terms.std(axis=(1, 2))
    truth = (np.eye(len(shares))[y] + shares / m) / (1 + 1 / m)

    def loss(ab):
        logits = np.log(shares) + np.tensordot(ab / scale, terms, 1)
        return np.mean(logsumexp(logits, axis=1) - np.sum(truth * logits, axis=1))

    optimum = minimize(loss, np.ones(2), bounds=[(1e-6, None), (0, None)], options={"ftol": 1e-15, "gtol": 1e-10})
    a, b = optimum.x / scale
    return np.log(shares) + a * densities(known, y, new) + b * directions(new)


def columns(model, K):
    return model.decision_function(K).values.reshape(K.shape[1], -1)


# Half of the pairs of learners and kinds; the next test has the other half.
@pytest.mark.parametrize(("learner", "kind"), list(zip(MACHINES, cycle(["binary", "multiclass"]))))
def test_machines_decide_by_class_means_of_scores_that_folds_left_out(learner, kind):
    K, y, train, test = unbalanced(kind)
    left_out = np.zeros((len(train), 1 if kind == "binary" else 3))
    for rows, held in StratifiedKFold(5, shuffle=True, random_state=0).split(train, y[train]):
        fold = clone(learner).fit(K[train[rows], train[rows]], y[train[rows]])
        left_out[held] = columns(fold, K[train[held], train[rows]])
    model = clone(learner).set_params(decision="means").fit(K[train, train], y[train])
    assert model.calibrated_on_ == IN_FOLDS
    scores = columns(model, K[test, train])
    expected = by_means(left_out, y[train], scores)
    decided = model.decisions_of(model.decision_function(K[test, train]).values)
    if kind == "binary":
        np.testing.assert_allclose(decided, expected[:, 1] - expected[:, 0], rtol=1e-3, atol=1e-3)
    else:
        relative = [values - values.mean(axis=1, keepdims=True) for values in (decided, expected)]
        np.testing.assert_allclose(*relative, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(model.predict(K[test, train]), np.argmax(expected, axis=1))
    probabilities = np.exp(expected - logsumexp(expected, axis=1, keepdims=True))
    np.testing.assert_allclose(model.predict_proba(K[test, train]), probabilities, atol=1e-3)


@pytest.mark.parametrize(("learner", "kind"), list(zip([*MACHINES, *DISCRIMINANTS], cycle(["multiclass", "binary"]))))
def test_the_largest_score_decides(learner, kind):
    K, y, train, test = unbalanced(kind)
    model = clone(learner).set_params(decision="largest").fit(K[train, train], y[train])
    scores = columns(model, K[test, train])
    expected = (scores[:, 0] > 0).astype(int) if kind == "binary" else np.argmax(scores, axis=1)
    np.testing.assert_array_equal(model.predict(K[test, train]), expected)
    default = clone(learner).fit(K[train, train], y[train])
    if learner in DISCRIMINANTS:
        assert model.calibrated_on_ == LEFT_OUT
        xr.testing.assert_allclose(model.predict_proba(K[test, train]), default.predict_proba(K[test, train]))
        assert (default.predict(K[test, train]) != expected).any()
    else:
        np.testing.assert_array_equal(default.predict(K[test, train]), expected)


def test_classes_with_ridges_of_their_own_are_compared_in_units_of_the_targets():
    """f of each class is from a dense solve of its ridge regression."""
    K, y, train, test = unbalanced("multiclass")
    lams = (0.02, 0.2, 2.0)
    model = dmkl.MKFDA(np.inf, lams, sharing="none", decision="largest", steps=()).fit(K[train, train], y[train])
    kernel, sizes, m = K.to_xarray().values.sum(axis=0), np.bincount(y[train]), len(train)
    h = np.where(y[train][:, None] == np.arange(3), np.sqrt(m / sizes), 0.0) - np.sqrt(sizes / m)
    inside, new = kernel[np.ix_(train, train)], kernel[np.ix_(test, train)]
    f = [new @ np.linalg.solve(inside + lam * np.eye(m), h[:, k]) for k, lam in enumerate(lams)]
    np.testing.assert_array_equal(model.predict(K[test, train]), np.argmax(f, axis=0))


def test_tasks_decide_one_by_one_and_unknown_labels_teach_nothing():
    K, y, train, test = unbalanced("multiclass")
    tasks = np.stack([y == 0, y == 1], axis=1).astype(float)
    tasks[train[::7], 1] = np.nan
    model = dmkl.MKSVM(2.0, 3.0, decision="means").fit(K[train, train], tasks[train])
    decided = model.decisions_of(model.decision_function(K[test, train]).values)
    np.testing.assert_array_equal(model.predict(K[test, train]), (decided > 0).astype(int))
    right = np.mean(model.predict(K[test, train]) == tasks[test], axis=0)
    assert (right > np.maximum(tasks[test].mean(axis=0), 1 - tasks[test].mean(axis=0))).all()


# --- searches and evaluations ----------------------------------------------------------------------------------------
TITLES = "same learner by the largest score", "plain sum of the kernels by the largest score"


def test_rules_are_values_of_a_grid():
    K, y, train, test = unbalanced("multiclass")
    for learner, name, values in (
        (dmkl.MKFDA(lam=0.05, tol=1e-9), "p", [1.0, 2.0]),
        (dmkl.MKSVM(C=3.0, tol=1e-7), "p", [1.0, 2.0]),
        (dmkl.NCuts(2), "C", [1.0, 10.0]),
    ):
        grid = {"decision": ["largest", "means"], name: values}
        scores = dmkl.search(learner, K, y, grid, [(train, test)], refit=False, baselines="none").scores["score"]
        for at in ({"decision": d, name: value} for d in grid["decision"] for value in values):
            model = clone(learner).set_params(**at).fit(K[train, train], y[train])
            assert scores.sel(at).item() == model.score(K[test, train], y[test])


@pytest.mark.parametrize("learner", [dmkl.MKFDA(2.0, tol=1e-7), dmkl.MKSVM(2.0, decision="means", tol=1e-6)], ids=str)
@pytest.mark.slow
def test_a_search_shows_both_rules(learner):
    """Each rule, and the machine on the sum, has the scores and the choice of a separate search."""
    K, y, train, test = unbalanced("multiclass")
    parts = np.array_split(np.random.default_rng(0).permutation(train), 2)
    folds = [(parts[0], parts[1], test), (parts[1], parts[0], test)]
    grid = {"lam": [0.01, 0.1, 1.0]} if isinstance(learner, dmkl.MKFDA) else {"C": [0.3, 3.0, 30.0]}
    more = {"cv": folds, "refit": False, "choice": "fold", "scoring": "accuracy"}
    both = dmkl.search(learner, K, y, grid, baselines="rules", **more)
    own, of_sum = (both.baselines.sel(baseline=title) for title in TITLES)
    largest = dmkl.search(clone(learner).set_params(decision="largest"), K, y, grid, baselines="sum", **more)
    for name in ("score", "test_score"):
        np.testing.assert_array_equal(both.scores[f"largest_own_{name}"], largest.scores[name])
        np.testing.assert_array_equal(both.scores[f"largest_sum_{name}"], largest.scores[f"sum_{name}"])
        np.testing.assert_array_equal(own[name], largest.chosen[name])
        np.testing.assert_array_equal(of_sum[name], largest.baselines[name][0])
    if isinstance(learner, dmkl.MKFDA):
        machine = dmkl.MKSVM(np.inf, decision="means", steps=("center", "trace"))
        alone = dmkl.search(machine, K, y, {"C": both.scores["C"].values.tolist()}, baselines="none", **more).scores
        for name in ("score", "test_score"):
            np.testing.assert_array_equal(both.scores[f"svm_{name}"], alone[name])
            np.testing.assert_array_equal(both.scores[f"largest_svm_{name}"], largest.scores[f"svm_{name}"])


@pytest.mark.slow
def test_an_evaluation_shows_both_rules():
    K, y, _, _ = unbalanced("multiclass")
    outer, inner = (StratifiedKFold(n, shuffle=True, random_state=n) for n in (3, 2))
    grid = {"p": [1.0, 2.0], "lam": [0.02, 0.5]}
    both = dmkl.evaluate(dmkl.MKFDA(tol=1e-7), K, y, grid, outer=outer, inner=inner, baselines="rules")
    largest = dmkl.evaluate(dmkl.MKFDA(decision="largest", tol=1e-7), K, y, grid, outer=outer, inner=inner)
    own, of_sum = (both.baselines.sel(baseline=title) for title in TITLES)
    for name in ("test_score", "inner_score", "lam"):
        np.testing.assert_array_equal(own[name], largest.scores[name])
        np.testing.assert_array_equal(of_sum[name], largest.baselines[name][0])


# --- files and errors ------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:fit. the class:dmkl.errors.LabelWarning")
def test_what_is_refused():
    K, y, train, _ = unbalanced("multiclass")
    some = np.concatenate([train[y[train] < 2], train[y[train] == 2][:1]])
    with pytest.raises(InputError, match="a class has one training row"):
        dmkl.MKSVM(decision="means").fit(K[some, some], y[some])
    for learner in (dmkl.MKSVM(), dmkl.MKFDA(decision="largest")):
        for job in (dmkl.search, dmkl.evaluate):
            with pytest.raises(InputError, match="does not decide by class means; take a classifier with decision='me"):
                job(learner, K, y, baselines="rules")


# --- samples that covariates determine ------------------------------------------------------------------------------
def covariates(kind, m):
    age = np.random.default_rng(1).normal(size=m)
    if kind in ("-9999", "-1e6"):
        age[3] = float(kind)
    site = np.where(np.arange(m) % 2, "north", "south").astype(object)
    if kind == "site of one":
        site[3] = "-"
    return pd.DataFrame({"age": age, "site": site}, index=[str(i) for i in range(m)])


@pytest.mark.parametrize("kind", ["-9999", "-1e6", "site of one"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_sample_that_covariates_determine_has_no_say_in_decisions(kind, weighted):
    """Its own leave-one-out score is 0/0, or extrapolates: the accuracy is that without the odd value."""
    rng = np.random.default_rng(0)
    m, train, test = 300, np.arange(180), np.arange(180, 300)
    y = rng.integers(0, 3, m)
    F = rng.normal(size=(m, 5)) + 1.5 * np.eye(5)[y]
    K = dmkl.create(None, np.stack([F @ F.T, rbf_kernel(F, gamma=0.1)]), labels=y, dtype="float64")
    d = rng.uniform(0.5, 2.0, len(train)) if weighted else None
    for learner in (dmkl.MKFDA, dmkl.Uniform):
        plain = learner(steps=(dmkl.residualize(covariates("plain", m)), "trace")).fit(K[train, train], sample_weight=d)
        odd = learner(steps=(dmkl.residualize(covariates(kind, m)), "trace"))
        with pytest.warns(dmkl.errors.CovariateWarning, match="training samples 3:"):
            odd.fit(K[train, train], sample_weight=d)
        assert odd.score(K[test, train]) >= plain.score(K[test, train]) - 0.02
        plain_odds, odds = (np.log(model.predict_proba(K[test, train])) for model in (plain, odd))
        assert np.abs(plain_odds - odds).mean() < 0.2


def test_a_class_that_covariates_determine_is_predicted_from_the_others():
    """No row of a class says anything about it: there is a decision, and it is finite."""
    rng = np.random.default_rng(0)
    y = np.r_[np.zeros(1), np.arange(1, 60) % 2 + 1].astype(int)
    F = rng.normal(size=(60, 5)) + 2.0 * np.eye(5)[y]
    K = dmkl.create(None, (F @ F.T)[None], labels=y, dtype="float64")
    with pytest.warns(dmkl.errors.CovariateWarning), pytest.warns(dmkl.errors.LabelWarning):
        model = dmkl.MKFDA(steps=(dmkl.residualize((y == 0).astype(float)), "trace")).fit(K)
    assert np.isfinite(model.predict_proba(K)).all()
    assert (model.predict(K) == y)[1:].mean() > 0.8
