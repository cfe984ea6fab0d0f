"""Labels and probabilities of fitted learners: both rules of every classifier, priors, calibration, searches."""

from itertools import cycle, product

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.references import in_memory, ridge_predictions
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold

import dmkl
from dmkl.errors import CovariateWarning, InputError, LabelWarning, UninformativeScoresWarning
from dmkl.learners import fisher
from dmkl.learners.decisions import GIVEN, IN_FOLDS, LEFT_OUT, SEARCHED, DecisionRule, HeldOut, NotCalibratedError

SIZES = {"binary": (60, 18), "multiclass": (40, 24, 9)}
DIGITS = (3, 8, 9)


def unbalanced(kind, names=(0, 1, 2)):
    """Two kernels of classes that differ in size and overlap, labels, and rows to train on and to test."""
    rng = np.random.default_rng(0)
    y = np.concatenate([np.full(2 * size, k) for k, size in enumerate(SIZES[kind])])
    x = rng.standard_normal((len(y), 6)) + 1.2 * np.eye(6)[y] + 0.8 * np.eye(6)[y + 3]
    train = np.concatenate([np.arange(2 * size) < size for size in SIZES[kind]])
    kernels = np.stack([rbf_kernel(x[:, part], gamma=0.3) for part in (slice(0, 3), slice(3, 6))])
    return in_memory(kernels, 40), np.take(names, y), np.flatnonzero(train), np.flatnonzero(~train)


def directions(scores):
    return np.concatenate([-scores, scores], axis=1) if scores.shape[1] == 1 else scores


def densities(known, y, new):
    """−½ (s − m_k)ᵀW⁻¹(s − m_k), W the covariance within classes with the number of rows as the divisor."""
    means = np.stack([known[y == k].mean(axis=0) for k in range(y.max() + 1)])
    apart = known - means[y]
    inverse = np.linalg.pinv(apart.T @ apart / len(y), rcond=1e-10, hermitian=True)  # scores may sum to zero
    away = new[:, None] - means
    return -0.5 * np.einsum("nkc,cd,nkd->nk", away, inverse, away)


def by_means(known, y, new, priors=None):
    """log q_k + a L_k + b s_k of new scores, with a and b of the smallest log loss of leave-one-out L.

    The priors q are the shares of the classes where None.
    """
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
    return np.log(shares if priors is None else priors) + a * densities(known, y, new) + b * directions(new)


def discriminant_coordinates(known, y, priors, new):
    """Those of scikit-learn, for the covariance inside classes divided by the number of rows.

    Some of its releases divide it by that number less the number of classes. The divisor follows from the variance of
    the training rows' coordinates inside classes.
    """
    fitted = LinearDiscriminantAnalysis(priors=priors).fit(known, y)
    coordinates = fitted.transform(known)
    inside = [coordinates[y == k] - coordinates[y == k].mean(axis=0) for k in fitted.classes_]
    return fitted.transform(new) / np.sqrt(np.mean(np.concatenate(inside) ** 2))


@pytest.mark.parametrize(
    ("kind", "priors", "steps", "solver"),
    [
        ("binary", None, ("center",), "direct"),
        ("binary", "given", ("center",), "direct"),
        ("multiclass", "empirical", ("center",), "direct"),
        ("multiclass", "uniform", ("center",), "direct"),
        ("binary", "given", (), "direct"),  # the targets too are encoded without the row
        ("multiclass", "empirical", (), "subspace"),
    ],
)
def test_labels_are_those_of_left_out_scores(kind, priors, steps, solver):
    """Labels are those of Fisher's discriminant, with the scores themselves, on leave-one-out scores."""
    K, y, train, test = unbalanced(kind, DIGITS)
    shares = np.array(SIZES[kind]) / np.sum(SIZES[kind])
    q = {"uniform": np.full(len(shares), 1 / len(shares)), "given": shares[::-1]}.get(priors, shares)
    learner = dmkl.Uniform(0.05, priors=q if priors == "given" else priors, steps=steps, solver=solver)
    model = learner.fit(K[train, train], y[train])
    assert model.calibrated_on_ == LEFT_OUT

    kernel = K.to_xarray().values.sum(axis=0, keepdims=True)
    truth = (y[:, None] == model.classes_[len(shares) == 2 :]).astype(float)

    def regression(rows, known):
        """P(k | x) − π_k by the regression on the known rows, for the second of two classes."""
        return ridge_predictions(kernel, truth, [1.0], 0.05, known, rows, steps) - truth[known].mean(axis=0)

    left_out = np.concatenate([regression([row], np.delete(train, i)) for i, row in enumerate(train)])
    new = regression(test, train)
    coordinates = model.transform(K[test, train])
    assert coordinates.dims == ("sample", "discriminant")
    expected = discriminant_coordinates(left_out, y[train], q, new)
    np.testing.assert_allclose(np.abs(coordinates), np.abs(expected), rtol=1e-4, atol=1e-4)
    of_targets = np.sqrt(shares) if kind == "multiclass" else np.ones(1)
    logits = by_means(left_out / of_targets, np.searchsorted(model.classes_, y[train]), new / of_targets, q)
    np.testing.assert_allclose(model.predict_proba(K[test, train]), softmax(logits, axis=1), atol=1e-3)
    best = np.sort(logits, axis=1)
    sure = best[:, -1] - best[:, -2] > 0.02
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(model.predict(K[test, train])[sure], model.classes_[np.argmax(logits, axis=1)][sure])


def test_models_from_before_scores_counted_themselves_decide_as_then():
    index = np.repeat([0, 1, 2], [60, 20, 20])
    scores = np.eye(3)[index] + np.random.default_rng(6).standard_normal((100, 3))
    q = [np.array([0.5, 0.2, 0.3])]
    arrays = {
        name: values
        for name, (_, values) in HeldOut(scores, [index]).learn_rule("multiclass", q, GIVEN).arrays().items()
    }
    del arrays["decision_direct"]
    before = DecisionRule.of_arrays("multiclass", arrays, np.array(q), GIVEN)
    discriminant, t = before.discriminants[0], before.sharpness[0]
    expected = t * (discriminant.log_densities(scores) + np.log(q[0]))
    np.testing.assert_allclose(before.decision(scores), expected)


@pytest.mark.parametrize("make", [lambda: dmkl.MKFDA(2.0, 0.05, solver="cg"), lambda: dmkl.MKSVM(2.0, 10.0)])
def test_without_honest_scores_there_are_no_probabilities(make, tmp_path):
    K, y, train, test = unbalanced("multiclass", DIGITS)
    held, new = test[::2], test[1::2]
    model = make().fit(K[train, train], y[train])
    assert model.calibrated_on_ is None
    with pytest.raises(NotCalibratedError, match=r"calibrate\(K\[held_out, train\], y\)"):
        model.predict_proba(K[new, train])
    before = model.predict(K[new, train])
    assert model.calibrate(K[held, train], y[held]) is model
    assert model.calibrated_on_ == GIVEN
    if isinstance(model, dmkl.MKSVM):
        np.testing.assert_array_equal(model.predict(K[new, train]), before)
    probabilities = model.predict_proba(K[new, train])
    shares = np.tile(np.array(SIZES["multiclass"]) / 73, (len(new), 1))
    assert log_loss(y[new], probabilities.values) < 0.7 * log_loss(y[new], shares)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    assert loaded.calibrated_on_ == GIVEN
    xr.testing.assert_equal(loaded.predict_proba(K[new, train]), probabilities)


def test_what_calibrate_refuses():
    K, y, train, test = unbalanced("multiclass", DIGITS)
    model = dmkl.MKSVM().fit(K[train, train], y[train])
    some = test[y[test] != 9]
    for rows, labels, message in (
        (train, y[train], "one of its training samples"),
        (test, np.where(y[test] == 9, 7, y[test]), "none of the classes learnt"),
        (some, y[some], "two rows of each class, and class 9 has 0"),
        (test, None, "calibrate needs labels"),
    ):
        with pytest.raises(InputError, match=message):
            model.calibrate(K[rows, train], labels)


# --- searches --------------------------------------------------------------------------------------------------------
def test_a_search_of_an_iterative_solver_calibrates_in_units_of_the_whole_fit():
    """The scores of two classes scale as 1/m: rules from folds are rescaled."""
    K, y, train, test = unbalanced("binary", DIGITS)
    learner = dmkl.MKFDA(solver="cg")
    model = dmkl.search(learner, K[train, train], y[train], {"lam": [0.05]}, cv=3, baselines="none").best_
    assert model.calibrated_on_ == SEARCHED
    expected = dmkl.MKFDA(lam=0.05).fit(K[train, train], y[train])
    probabilities = [each.predict_proba(K[test, train]).values for each in (model, expected)]
    assert np.abs(np.subtract(*probabilities)).mean() < 0.05


@pytest.mark.parametrize(("kind", "together"), [("binary", 2**30), ("multiclass", 1)])
def test_each_point_of_a_grid_is_scored_as_a_fit(kind, together, monkeypatch):
    """At a tight tolerance, also for grids over steps, class weights and priors."""
    monkeypatch.setattr(fisher, "_TOGETHER", together)
    K, y, train, test = unbalanced(kind, DIGITS)
    balanced = {label: 1.0 / np.sum(y == label) for label in np.unique(y).tolist()}
    confounded = (y == y.max()) + np.random.default_rng(1).standard_normal(len(y))
    steps = [("cosine", "center"), (dmkl.residualize(confounded), "trace"), ("trace",)]
    grid = {"lam": [1e-3, 0.3], "steps": steps, "class_weight": [None, balanced], "priors": [None, "uniform"]}
    learner = dmkl.MKFDA(1.5, tol=1e-9)
    result = dmkl.search(learner, K, y, grid, cv=[(train, test)], refit=False, baselines="none")
    assert result.scores.attrs["solver"] == "subspace"
    for at in product(*(range(len(values)) for values in grid.values())):
        if sum(at) % 2:  # half of the points, which contain each pair of values
            continue
        chosen = {name: values[k] for (name, values), k in zip(grid.items(), at, strict=True)}
        model = clone(learner).set_params(**chosen).fit(K[train, train], y[train])
        score = result.scores["score"].isel(dict(zip(grid, at, strict=True))).item()
        assert score == model.score(K[test, train], y[test])


@pytest.mark.parametrize(
    ("learner", "kind", "grid"),
    [
        (dmkl.MKFDA(), "binary", {"p": [1.0, 2.0], "lam": [0.01, 0.1]}),
        (dmkl.MKSVM(decision="means"), "multiclass", {"C": [1.0, 4.0]}),
    ],
)
def test_labels_of_held_out_rows_teach_nothing(learner, kind, grid):
    K, y, train, test = unbalanced(kind, DIGITS)
    decisions = []

    def keep(estimator, scores, truth):
        decisions.append(scores)
        return 0.0

    changed = y.copy()
    changed[test] = np.random.default_rng(3).permutation(y[test])
    for labels in (y, changed):
        options = {"cv": [(train, test)], "scoring": {"kept": keep}, "refit": False, "baselines": "none"}
        dmkl.search(learner, K, labels, grid, **options)
    half = len(decisions) // 2
    for before, after in zip(decisions[:half], decisions[half:], strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_fit_tells_that_its_scores_are_of_no_use():
    """Left-out rows are nearest to rows of the other class."""
    place, y = np.repeat(np.arange(20.0), 2)[:, None], np.tile([0, 1], 20)
    K = in_memory(rbf_kernel(place)[None], 10)
    with pytest.warns(UninformativeScoresWarning, match="follow the prior probabilities"):
        model = dmkl.MKFDA(lam=0.01).fit(K, y)
    np.testing.assert_allclose(model.predict_proba(K).values, 0.5, atol=1e-3)


# --- both rules of every classifier -----------------------------------------------------------------------------------
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
    kernels, sizes, m = K.to_xarray().values, np.bincount(y[train]), len(train)
    h = np.where(y[:, None] == np.arange(3), np.sqrt(m / sizes), 0.0) - np.sqrt(sizes / m)  # of mean zero
    f = [ridge_predictions(kernels, h[:, k], np.ones(2), lam, train, test, ()) for k, lam in enumerate(lams)]
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


def test_rules_and_pairs_of_classes_are_values_of_a_grid():
    K, y, train, test = unbalanced("multiclass")
    rules = {"decision": ["largest", "means"]}
    for learner, grid in (
        (dmkl.MKFDA(lam=0.05, tol=1e-9), rules | {"p": [1.0, 2.0]}),
        (dmkl.MKSVM(C=3.0, tol=1e-7), rules | {"p": [1.0, 2.0]}),
        (dmkl.NCuts(2), rules | {"C": [1.0, 10.0]}),
        (dmkl.EasyMKL(), {"multiclass": ["ovr", "ovo"], "lam": [0.1, 0.5]}),
    ):
        scores = dmkl.search(learner, K, y, grid, [(train, test)], refit=False, baselines="none").scores["score"]
        for at in (dict(zip(grid, point, strict=True)) for point in product(*grid.values())):
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
def test_rules_that_are_refused():
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
        with pytest.warns(CovariateWarning, match="training samples 3:"):
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
    with pytest.warns(CovariateWarning), pytest.warns(LabelWarning):
        model = dmkl.MKFDA(steps=(dmkl.residualize((y == 0).astype(float)), "trace")).fit(K)
    assert np.isfinite(model.predict_proba(K)).all()
    assert (model.predict(K) == y)[1:].mean() > 0.8
