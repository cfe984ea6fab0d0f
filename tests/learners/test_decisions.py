"""Labels and probabilities of fitted learners: rules, priors, calibration data, saving, searches."""

import itertools

import numpy as np
import pytest
import xarray as xr
from helpers.references import in_memory
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import InputError, UninformativeScoresWarning
from dmkl.learners import fisher
from dmkl.learners.decisions import GIVEN, LEFT_OUT, SEARCHED, DecisionRule, HeldOut, NotCalibratedError, weigh
from dmkl.numerics.discriminant import directions

SIZES = {"binary": (90, 15), "multiclass": (60, 30, 10)}


def thinned(kind, seed=0):
    """Kernels of digits in classes of different size, labels, and training and test rows with the same class shares."""
    x, digit = load_digits(return_X_y=True)
    classes = {"binary": (3, 8), "multiclass": (3, 8, 9)}[kind]
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(digit == k))[: 2 * s] for k, s in zip(classes, SIZES[kind], strict=True)]
    train = np.concatenate([np.arange(2 * s) < s for s in SIZES[kind]])
    chosen = np.concatenate(rows)
    x = x[chosen] / 16 + 0.3 * rng.standard_normal((len(chosen), 64))
    kernels = np.stack([rbf_kernel(x[:, part], gamma=0.05) for part in (slice(0, 32), slice(32, 64))])
    return in_memory(kernels, 50), digit[chosen], np.flatnonzero(train), np.flatnonzero(~train)


class Reference:
    """Fisher's discriminant by scikit-learn, the covariance inside classes divided by the number of rows.

    Some releases of scikit-learn divide it by that number less the number of classes. The divisor follows from the
    variance of the training rows' coordinates inside classes.
    """

    def __init__(self, x, y, priors):
        self.fitted = LinearDiscriminantAnalysis(priors=priors).fit(x, y)
        coordinates = self.fitted.transform(x)
        inside = [coordinates[y == k] - coordinates[y == k].mean(axis=0) for k in self.fitted.classes_]
        self.variance = np.mean(np.concatenate(inside) ** 2)

    def transform(self, x):
        return self.fitted.transform(x) / np.sqrt(self.variance)

    def log_densities(self, x):
        """Log densities up to a constant of each row, for equal priors."""
        return self.fitted.predict_log_proba(x) / self.variance


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
    """Labels are those of scikit-learn's discriminant, with the scores themselves, on leave-one-out scores."""
    K, y, train, test = thinned(kind)
    sizes = np.array(SIZES[kind])
    q = {"uniform": np.full(len(sizes), 1 / len(sizes)), "given": sizes[::-1] / sizes.sum()}.get(priors)
    learner = dmkl.Uniform(0.05, priors=q if priors == "given" else priors, steps=steps, solver=solver)
    model = learner.fit(K[train, train], y[train])
    assert model.calibrated_on_ == LEFT_OUT

    kernel = K.to_xarray().values.sum(axis=0)

    def regression(rows, known):
        """P(k | x) − π_k by the regression on the known rows, for the second of two classes."""
        truth = (y[known][:, None] == model.classes_).astype(float)
        truth -= truth.mean(axis=0)
        inside, new = kernel[np.ix_(known, known)], kernel[np.ix_(rows, known)]
        if steps:
            means = inside.mean(axis=0)
            inside = inside - means - means[:, None] + means.mean()
            new = new - new.mean(axis=1, keepdims=True) - means + means.mean()
        result = new @ np.linalg.solve(inside + 0.05 * np.eye(len(known)), truth)
        return result[:, 1:] if len(sizes) == 2 else result

    left_out = np.concatenate([regression([row], np.delete(train, i)) for i, row in enumerate(train)])
    new = regression(test, train)
    reference = Reference(left_out, y[train], q)
    coordinates = model.transform(K[test, train])
    assert coordinates.dims == ("sample", "discriminant")
    np.testing.assert_allclose(np.abs(coordinates), np.abs(reference.transform(new)), rtol=1e-4, atol=1e-4)
    # Log densities of their discriminant without priors, and the scores of the machine, on any scale.
    equal = np.full(len(sizes), 1 / len(sizes))
    index = np.searchsorted(model.classes_, y[train])
    densities = np.concatenate(
        [
            Reference(np.delete(left_out, i, 0), np.delete(y[train], i), equal).log_densities([row])
            for i, row in enumerate(left_out)
        ]
    )
    of_targets = np.sqrt(sizes / sizes.sum()) if kind == "multiclass" else np.ones(1)
    a, b = weigh(densities, directions(left_out / of_targets), index)
    plain = Reference(left_out, y[train], equal).log_densities(new)
    logits = a * plain + b * directions(new / of_targets) + np.log(reference.fitted.priors_)
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
    K, y, train, test = thinned("multiclass")
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
    shares = np.tile(np.array(SIZES["multiclass"]) / 100, (len(new), 1))
    assert log_loss(y[new], probabilities.values) < 0.7 * log_loss(y[new], shares)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    assert loaded.calibrated_on_ == GIVEN
    xr.testing.assert_equal(loaded.predict_proba(K[new, train]), probabilities)


def test_what_calibrate_refuses():
    K, y, train, test = thinned("multiclass")
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


def test_priors_that_are_none():
    K, y, train, _ = thinned("binary")
    for priors, words in (
        ("balanced", "'empirical'"),
        ([0.5, 0.6], "whose sum is 1.1"),
        ([0.2, 0.3, 0.5], "3 numbers and there are 2 classes"),
        ({3: 0.2, 5: 0.8}, "and the classes are"),
    ):
        with pytest.raises(InputError, match=words):
            dmkl.MKFDA(priors=priors).fit(K[train, train], y[train])


# --- searches --------------------------------------------------------------------------------------------------------
def test_a_search_of_an_iterative_solver_calibrates_in_units_of_the_whole_fit():
    """The scores of two classes scale as 1/m: rules from folds are rescaled."""
    K, y, train, test = thinned("binary")
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
    K, y, train, test = thinned(kind)
    balanced = {label: 1.0 / np.sum(y == label) for label in np.unique(y).tolist()}
    confounded = (y == y.max()) + np.random.default_rng(1).standard_normal(len(y))
    steps = [("cosine", "center"), (dmkl.residualize(confounded), "trace"), ("trace",)]
    grid = {"lam": [1e-3, 0.3], "steps": steps, "class_weight": [None, balanced], "priors": [None, "uniform"]}
    learner = dmkl.MKFDA(1.5, tol=1e-9)
    result = dmkl.search(learner, K, y, grid, cv=[(train, test)], refit=False, baselines="none")
    assert result.scores.attrs["solver"] == "subspace"
    for at in itertools.product(*(range(len(values)) for values in grid.values())):
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
    """Decisions about a held-out row depend on the training rows only."""
    K, y, train, test = thinned(kind)
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
