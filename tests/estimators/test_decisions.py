"""Labels and probabilities of fitted learners: rules, priors, what they were calibrated on, saving, searches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xarray as xr
from helpers.references import in_memory
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import InputError, UninformativeScoresWarning
from dmkl.estimators import fisher
from dmkl.estimators.decisions import (
    GIVEN,
    LEFT_OUT,
    SEARCHED,
    DecisionRule,
    HeldOut,
    NotCalibratedError,
    joined,
    weigh,
)
from dmkl.estimators.engine import run
from dmkl.estimators.plan import Fit, Plan
from dmkl.numerics.discriminant import directions

pytestmark = pytest.mark.usefixtures("synchronous")
SIZES = {"binary": (90, 15), "multiclass": (60, 30, 10)}


def thinned(kind, seed=0):
    """Kernels of digits whose classes differ in size, labels, and rows to train on; new rows have the same shares."""
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

    Releases of scikit-learn divide it by that number, or by that number less the classes'. The rows that it was learnt
    from tell which: what their coordinates have as sum of squares inside classes.
    """

    def __init__(self, x, y, priors):
        self.fitted = LinearDiscriminantAnalysis(priors=priors).fit(x, y)
        coordinates = self.fitted.transform(x)
        inside = [coordinates[y == k] - coordinates[y == k].mean(axis=0) for k in self.fitted.classes_]
        self.variance = np.mean(np.concatenate(inside) ** 2)

    def transform(self, x):
        return self.fitted.transform(x) / np.sqrt(self.variance)

    def log_densities(self, x):
        """But for a constant of each row, where the priors are equal."""
        return self.fitted.predict_log_proba(x) / self.variance


@pytest.mark.parametrize("priors", [None, "empirical", "uniform", "given"])
@pytest.mark.parametrize("kind", SIZES)
def test_labels_are_those_of_left_out_scores(kind, priors):
    """Scores of models that were trained without each row; scikit-learn's discriminant on them beside the scores."""
    K, y, train, test = thinned(kind)
    sizes = np.array(SIZES[kind])
    q = {"uniform": np.full(len(sizes), 1 / len(sizes)), "given": sizes[::-1] / sizes.sum()}.get(priors)
    learner = dmkl.Uniform(0.05, priors=q if priors == "given" else priors, steps=("center",))
    model = learner.fit(K[train, train], y[train])
    assert model.calibrated_on_ == LEFT_OUT

    kernel = K.to_xarray().values.sum(axis=0)

    def regression(rows, known):
        """P(k | x) − π_k of the regression on the known rows, centered by them; of two classes for the second."""
        truth = (y[known][:, None] == model.classes_).astype(float)
        truth -= truth.mean(axis=0)
        cut, means = kernel[np.ix_(known, known)], kernel[np.ix_(known, known)].mean(axis=0)
        inside = cut - means - means[:, None] + means.mean()
        new = kernel[np.ix_(rows, known)]
        new = new - new.mean(axis=1, keepdims=True) - means + means.mean()
        found = new @ np.linalg.solve(inside + 0.05 * np.eye(len(known)), truth)
        return found[:, 1:] if len(sizes) == 2 else found

    left_out = np.concatenate([regression([row], np.delete(train, i)) for i, row in enumerate(train)])
    new = regression(test, train)
    theirs = Reference(left_out, y[train], q)
    coordinates = model.transform(K[test, train])
    assert coordinates.dims == ("sample", "discriminant")
    np.testing.assert_allclose(np.abs(coordinates), np.abs(theirs.transform(new)), rtol=1e-4, atol=1e-4)
    # Log densities of their discriminant without priors, and the scores that the machine gives, whatever their scale.
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
    logits = a * plain + b * directions(new / of_targets) + np.log(theirs.fitted.priors_)
    np.testing.assert_allclose(model.predict_proba(K[test, train]), softmax(logits, axis=1), atol=1e-3)
    best = np.sort(logits, axis=1)
    sure = best[:, -1] - best[:, -2] > 0.02
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(model.predict(K[test, train])[sure], model.classes_[np.argmax(logits, axis=1)][sure])


@pytest.mark.parametrize(("kind", "width"), [("binary", 1), ("multiclass", 3), ("multilabel", 2)])
def test_a_rule_learnt_in_other_units_is_the_same(kind, width):
    """The machine's own scores are those that count, whatever multiples of them the rule was learnt from."""
    rng = np.random.default_rng(5)
    n_classes, n_problems = (3, 1) if kind == "multiclass" else (2, width)
    index = [rng.permutation(np.arange(60) % n_classes) for _ in range(n_problems)]
    scores = rng.standard_normal((60, width))
    scores += np.eye(3)[index[0]] if kind == "multiclass" else np.stack(index, axis=1)
    q = [np.full(n_classes, 1 / n_classes)] * n_problems
    units = np.split(rng.uniform(0.1, 5.0, width), n_problems)
    held_out = HeldOut(scores, index)
    expected = held_out.learn_rule(kind, q, GIVEN)
    multiplied = HeldOut(scores * np.concatenate(units), index, units=units)
    found = multiplied.learn_rule(kind, q, GIVEN).scaled(units)
    np.testing.assert_allclose(found.probabilities(scores), expected.probabilities(scores), rtol=1e-5)
    np.testing.assert_allclose(joined([multiplied]).units, units)


def test_models_from_before_scores_counted_themselves_decide_as_then():
    index = np.repeat([0, 1, 2], [60, 20, 20])
    scores = np.eye(3)[index] + np.random.default_rng(6).standard_normal((100, 3))
    held_out = HeldOut(scores, [index])
    q = [np.array([0.5, 0.2, 0.3])]
    arrays = {name: values for name, (_, values) in held_out.learn_rule("multiclass", q, GIVEN).arrays().items()}
    del arrays["decision_direct"]
    before = DecisionRule.of_arrays("multiclass", arrays, np.array(q), GIVEN)
    discriminant, t = before.discriminants[0], before.sharpness[0]
    expected = t * (discriminant.log_densities(held_out.scores) + np.log(q[0]))
    np.testing.assert_allclose(before.decision(held_out.scores), expected)
    again = {name: values for name, (_, values) in before.scaled([np.ones(3)]).arrays().items()}
    assert set(again) == set(arrays)


@pytest.mark.parametrize("priors", ["empirical", "uniform"])
def test_each_prior_is_better_than_the_largest_score_in_its_own_measure(priors):
    """Over several draws of unbalanced digits."""
    measure = {"empirical": accuracy_score, "uniform": balanced_accuracy_score}[priors]
    gains = []
    for seed in range(5):
        K, y, train, test = thinned("multiclass", seed)
        model = dmkl.Uniform(0.3, priors=priors).fit(K[train, train], y[train])
        scores = model.decision_function(K[test, train]).values
        largest = model.classes_[np.argmax(scores, axis=1)]
        gains.append(measure(y[test], model.labels_of(scores)) - measure(y[test], largest))
    assert np.mean(gains) > 0


@pytest.mark.parametrize("kind", SIZES)
def test_probabilities_are_better_than_shares(kind):
    K, y, train, test = thinned(kind)
    model = dmkl.MKFDA(2.0, 0.05).fit(K[train, train], y[train])
    probabilities = model.predict_proba(K[test, train])
    assert probabilities.dims == ("sample", "class")
    np.testing.assert_allclose(probabilities.sum("class"), 1.0)
    np.testing.assert_array_equal(
        model.classes_[np.argmax(probabilities.values, axis=1)], model.predict(K[test, train])
    )
    shares = np.tile(np.array(SIZES[kind]) / sum(SIZES[kind]), (len(test), 1))
    assert log_loss(y[test], probabilities.values) < 0.7 * log_loss(y[test], shares)


def test_a_multilabel_model_is_one_of_two_classes_for_each_task():
    K, y, train, test = thinned("multiclass")
    tasks = np.column_stack([y == 8, y == 9]).astype(int)
    model = dmkl.MKFDA(2.0, 0.05, priors="uniform").fit(K[train, train], tasks[train])
    together = model.predict_proba(K[test, train])
    for t in range(2):
        alone = dmkl.MKFDA(2.0, 0.05, priors="uniform").fit(K[train, train], tasks[train, t])
        np.testing.assert_allclose(together[:, t], alone.predict_proba(K[test, train])[:, 1], rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(model.predict(K[test, train])[:, t], alone.predict(K[test, train]))


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
    shares = np.tile(np.array(SIZES["multiclass"]) / sum(SIZES["multiclass"]), (len(new), 1))
    probabilities = model.predict_proba(K[new, train])
    assert log_loss(y[new], probabilities.values) < 0.7 * log_loss(y[new], shares)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    assert loaded.calibrated_on_ == GIVEN
    xr.testing.assert_equal(loaded.predict_proba(K[new, train]), probabilities)
    np.testing.assert_array_equal(loaded.predict(K[new, train]), model.predict(K[new, train]))
    np.testing.assert_array_equal(loaded.priors_, model.priors_)


def test_what_calibrate_refuses():
    K, y, train, test = thinned("multiclass")
    model = dmkl.MKSVM().fit(K[train, train], y[train])
    with pytest.raises(InputError, match="one of its training samples"):
        model.calibrate(K[train, train], y[train])
    with pytest.raises(InputError, match="none of the classes learnt"):
        model.calibrate(K[test, train], np.where(y[test] == 9, 7, y[test]))
    with pytest.raises(InputError, match="two rows of each class, and class 9 has 0"):
        model.calibrate(K[test[y[test] != 9], train], y[test[y[test] != 9]])
    with pytest.raises(InputError, match="calibrate needs labels"):
        model.calibrate(K[test, train])


@pytest.mark.parametrize(
    ("priors", "words"),
    [
        ("balanced", "'empirical'"),
        ([0.5, 0.6], "whose sum is 1.1"),
        ([1.0, 0.0], "positive number for each class"),
        ([0.2, 0.3, 0.5], "3 numbers and there are 2 classes"),
        ({3: 0.2, 5: 0.8}, "and the classes are"),
        ({3: 0.2}, "whose sum is 0.2"),
    ],
)
def test_priors_that_are_none(priors, words):
    K, y, train, _ = thinned("binary")
    with pytest.raises(InputError, match=words):
        dmkl.MKFDA(priors=priors).fit(K[train, train], y[train])


# --- searches --------------------------------------------------------------------------------------------------------


def test_a_search_scores_what_the_rule_decides_and_calibrates_its_model():
    K, y, train, test = thinned("binary")
    found = dmkl.search(dmkl.MKFDA(), K[train, train], y[train], {"p": [2.0], "lam": [0.01, 0.1, 1.0]}, cv=3)
    share = np.mean(y[train] == 3)
    assert found.scores["mean_score"].min() > share  # whereas cutting scores at zero is a balanced rule
    assert found.best_.calibrated_on_ == LEFT_OUT
    machine = dmkl.search(dmkl.MKSVM(), K[train, train], y[train], {"C": [1.0, 10.0]}, cv=3).best_
    assert machine.calibrated_on_ == SEARCHED
    loss = log_loss(y[test], machine.predict_proba(K[test, train]).values)
    assert loss < 0.7 * log_loss(y[test], np.tile([share, 1 - share], (len(test), 1)))


def test_a_search_of_an_iterative_solver_calibrates_in_units_of_the_whole_fit():
    """The scores of two classes shrink as 1/m: rules from folds are carried over."""
    K, y, train, test = thinned("binary")
    found = dmkl.search(dmkl.MKFDA(solver="cg"), K[train, train], y[train], {"lam": [0.05]}, cv=3).best_
    assert found.calibrated_on_ == SEARCHED
    expected = dmkl.MKFDA(lam=0.05).fit(K[train, train], y[train])
    ours, theirs = (model.predict_proba(K[test, train]).values for model in (found, expected))
    assert np.abs(ours - theirs).mean() < 0.05


@pytest.mark.parametrize("steps", [("center", "trace"), ("cosine", "center"), ("trace",), "residualize"])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_a_search_scores_a_fold_as_a_fit_on_its_training_rows_does(kind, steps):
    K, y, train, test = thinned(kind)
    if steps == "residualize":
        steps = (dmkl.residualize((y == y.max()) + np.random.default_rng(1).standard_normal(len(y))), "trace")
    for parameters in ({}, {"priors": "uniform"}, {"class_weight": "balanced"}):
        learner = dmkl.MKFDA(p=1.5, lam=0.02, steps=steps, **parameters)
        expected = clone(learner).fit(K[train, train], y[train]).score(K[test, train], y[test])
        found = dmkl.search(learner, K, y, {"p": [1.5], "lam": [0.02]}, cv=[(train, test)], refit=False)
        assert found.scores["score"].item() == expected


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_each_point_of_a_grid_is_scored_as_a_fit(kind):
    """To a tight tolerance, whatever the weights of classes and priors, which the points of a grid may have as well."""
    K, y, train, test = thinned(kind)
    balanced = {label: 1.0 / np.sum(y == label) for label in np.unique(y).tolist()}
    grid = {"p": [1.0, 3.0], "lam": [1e-3, 0.3], "class_weight": [None, balanced], "priors": [None, "uniform"]}
    found = dmkl.search(dmkl.MKFDA(tol=1e-9), K, y, grid, cv=[(train, test)], refit=False)
    assert found.scores.attrs["solver"] == "subspace"
    for p, lam, k, q in itertools.product(*(range(len(values)) for values in grid.values())):
        chosen = {name: values[at] for (name, values), at in zip(grid.items(), (p, lam, k, q), strict=True)}
        model = dmkl.MKFDA(tol=1e-9, **chosen).fit(K[train, train], y[train])
        score = found.scores["score"].isel(p=p, lam=lam, class_weight=k, priors=q).item()
        assert score == model.score(K[test, train], y[test])


@pytest.mark.parametrize("grid", [{"lam": [0.1]}, {"p": [1.0, 1.5, 2.0], "lam": [0.01, 0.1]}])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_labels_of_held_out_rows_teach_nothing(kind, grid):
    """What is decided about a row depends on the rows that trained alone."""
    K, y, train, test = thinned(kind)
    decisions = []

    def keep(estimator, scores, truth):
        decisions.append(scores)
        return 0.0

    changed = y.copy()
    changed[test] = np.random.default_rng(3).permutation(y[test])
    for labels in (y, changed):
        folds = [(train, test), (test, train)]
        dmkl.search(dmkl.MKFDA(), K, labels, grid, cv=folds[:1], scoring={"kept": keep}, refit=False)
    half = len(decisions) // 2
    for before, after in zip(decisions[:half], decisions[half:], strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("together", [1, 2**13, 2**30])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
def test_rules_learnt_together_are_those_learnt_one_by_one(kind, together, monkeypatch):
    monkeypatch.setattr(fisher, "_TOGETHER", together)
    K, y, train, test = thinned("multiclass" if kind == "multiclass" else "binary")
    if kind == "multilabel":
        y = np.stack([y == 3, np.random.default_rng(5).integers(2, size=len(y))], axis=1).astype(float)
        y[train[::7], 1] = np.nan
    fits = [
        Fit(model, train, model._targets(y[train], len(train), None), held_out=test)
        for model in (dmkl.MKFDA(lam=lam, class_weight=weight) for lam in (1e-3, 0.1) for weight in (None, "balanced"))
    ]
    found = run(Plan(K, fits)).fits
    for decision, one in zip(found[0].data.fit.learner._decide(found), found, strict=True):
        np.testing.assert_allclose(decision, one.decided, rtol=1e-10, atol=1e-10 * np.abs(decision).max())


def test_a_rule_never_turns_scores_round():
    """Where left-out rows of the second class have the lower scores, labels follow the priors, with a warning."""
    index = np.repeat([0, 1], [30, 20])
    scores = -index[:, None] + np.random.default_rng(4).standard_normal((50, 1))
    rule = DecisionRule.learn("binary", [scores], [index], [np.array([0.6, 0.4])], LEFT_OUT)
    decision = rule.decision(np.linspace(-5, 5, 11)[:, None])
    assert (np.diff(decision[:, 0]) > 0).all()
    assert (decision < 0).all()
    np.testing.assert_allclose(rule.probabilities(scores), np.tile([0.6, 0.4], (50, 1)), atol=1e-3)


def test_a_fit_tells_that_its_scores_are_of_no_use():
    """Rows that are left out are nearest to rows of the other class."""
    place, y = np.repeat(np.arange(20.0), 2)[:, None], np.tile([0, 1], 20)
    K = in_memory(rbf_kernel(place)[None], 10)
    with pytest.warns(UninformativeScoresWarning, match="follow the prior probabilities"):
        model = dmkl.MKFDA(lam=0.01).fit(K, y)
    np.testing.assert_allclose(model.predict_proba(K).values, 0.5, atol=1e-3)
