"""Labels and probabilities of fitted learners: rules, priors, what they were calibrated on, saving, searches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from helpers.references import in_memory
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import InputError
from dmkl.estimators import fisher
from dmkl.estimators.decisions import GIVEN, LEFT_OUT, SEARCHED, Decider, NotCalibratedError
from dmkl.estimators.held_out import HeldOut, cross_decided, joined, of_machines
from dmkl.numerics.discriminant import directions
from dmkl.numerics.fisher import encode_targets
from dmkl.numerics.rule_weights import weigh

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
    held_out = HeldOut(scores, index, np.arange(60), 60)
    expected = held_out.decider(kind, q, GIVEN)
    multiplied = HeldOut(scores * np.concatenate(units), index, np.arange(60), 60, units=units)
    found = multiplied.decider(kind, q, GIVEN).scaled(units)
    np.testing.assert_allclose(found.probabilities(scores), expected.probabilities(scores), rtol=1e-5)
    np.testing.assert_allclose(joined([multiplied]).units, units)


def test_models_from_before_scores_counted_themselves_decide_as_then():
    held_out = folds_of(np.random.default_rng(6), 1)[0]
    q = [np.array([0.5, 0.2, 0.3])]
    arrays = {name: values for name, (_, values) in held_out.decider("multiclass", q, GIVEN).arrays().items()}
    del arrays["decision_direct"]
    before = Decider.of_arrays("multiclass", arrays, np.array(q), GIVEN)
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


def folds_of(rng, n_folds, sizes=(60, 20, 20)):
    """Held-out rows of folds that share no row, the scores being the classes with noise."""
    found = []
    for f in range(n_folds):
        index = np.repeat(np.arange(len(sizes)), sizes)
        scores = np.eye(len(sizes))[index] + rng.standard_normal((len(index), len(sizes)))
        found.append(HeldOut(scores, [index], 1000 * f + np.arange(len(index)), len(index)))
    return found


@pytest.mark.parametrize("n_folds", [1, 3])
def test_no_row_decides_about_itself(n_folds):
    """Nor about those that are decided with it: a fold, or a fifth of the only one."""
    q = [np.full(3, 1 / 3)]
    folds = folds_of(np.random.default_rng(0), n_folds)
    plain = cross_decided("multiclass", folds, [q] * n_folds)
    scores = folds[0].scores.copy()
    scores[0] = 30.0
    changed = HeldOut(scores, folds[0].index, folds[0].rows, folds[0].n_validation)
    again = cross_decided("multiclass", [changed, *folds[1:]], [q] * n_folds)
    same = np.array([np.allclose(*pair) for pair in zip(again[0], plain[0], strict=True)])
    together = np.arange(len(same)) % 5 == 0 if n_folds == 1 else np.full(len(same), True)
    np.testing.assert_array_equal(same[1:], together[1:])
    assert all(not np.allclose(*pair) for pair in zip(again[1:], plain[1:], strict=True))


def test_rows_that_another_fold_tests_on_do_not_decide_about_them():
    rng = np.random.default_rng(1)
    first, second = folds_of(rng, 2)
    q = [np.full(3, 1 / 3)]
    shared = HeldOut(second.scores, second.index, first.rows, second.n_validation)
    alone = cross_decided("multiclass", [first], [q])[0]
    np.testing.assert_allclose(cross_decided("multiclass", [first, shared], [q, q])[0], alone)


def held_out_rows(rng, kind, n_folds, n_models, own=False):
    """Of several models the scores of the same rows, a third of them for testing; of `own` weights and units."""
    shares, n_problems = [0.7, 0.3], 3 if kind == "multilabel" else 1
    if kind == "multiclass":
        shares = [0.6, 0.3, 0.1]
    n_classes = len(shares)
    found = [[] for _ in range(n_models)]
    for f in range(n_folds):
        n = 60 + f
        index = [rng.choice(n_classes, n, p=shares) for _ in range(n_problems)]
        truth = np.eye(3)[index[0]] if kind == "multiclass" else np.stack(index, axis=1)
        if kind == "multilabel":
            index[1][:7] = -1
        rows = 50 * f + np.arange(n)  # some of which the next fold holds out too
        for k, models in enumerate(found):
            scores = (0.5 * k * truth + rng.standard_normal(truth.shape)) * 10.0 ** (k - 2)
            held_out = HeldOut(scores, index, rows, 40)
            if own and k:
                by_class = [rng.uniform(0.5, 2.0, n_classes) for _ in range(n_problems)]
                units = np.split(rng.uniform(0.5, 2.0, truth.shape[1]), n_problems)
                held_out = replace(held_out, by_class=by_class, units=units)
            models.append(held_out)
    priors = [[[rng.dirichlet(np.full(n_classes, 9.0)) for _ in range(n_problems)] for _ in found[0]] for _ in found]
    return found, priors


def stacked(some):
    """The same rows with the scores of several machines."""
    by_class, units = (of_machines([getattr(one, name) for one in some]) for name in ("by_class", "units"))
    return replace(some[0], scores=np.stack([one.scores for one in some]), by_class=by_class, units=units)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("n_folds", [1, 3])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
def test_models_decided_about_together_are_decided_about_one_by_one(kind, n_folds, own):
    """Also where some classes and units count as they do and others by themselves."""
    models, priors = held_out_rows(np.random.default_rng(9), kind, n_folds, 5, own)
    folds = [stacked(each) for each in zip(*models, strict=True)]
    q = [[np.stack(each) for each in zip(*of_models, strict=True)] for of_models in zip(*priors, strict=True)]
    together = cross_decided(kind, folds, q)
    for k, (alone, of_model) in enumerate(zip(models, priors, strict=True)):
        for found, expected in zip(together, cross_decided(kind, alone, of_model), strict=True):
            np.testing.assert_allclose(found[k], expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())
    probabilities = joined(folds).decider(kind, q[0], SEARCHED).probabilities(folds[0].scores)
    for k, alone in enumerate(models):
        expected = joined(alone).decider(kind, priors[k][0], SEARCHED).probabilities(alone[0].scores)
        np.testing.assert_allclose(probabilities[k], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("together", [1, 2**13, 2**30])
def test_points_of_all_parameters_are_decided_about_one_by_one(monkeypatch, together):
    """Whatever their ridges, weights of classes and priors, and however many are taken at once."""
    monkeypatch.setattr(fisher, "_TOGETHER", together)
    models = [
        dmkl.MKFDA(lam=lam, class_weight=weight, priors=priors)
        for lam in (1e-4, 1.0)
        for weight in (None, "balanced", {1: 3.0})
        for priors in (None, "uniform", [0.2, 0.3, 0.5])
    ]
    held_out, _ = held_out_rows(np.random.default_rng(10), "multiclass", 3, len(models))
    labels = np.repeat([0, 1, 2], (50, 30, 20))
    targets = [encode_targets(labels[f:], len(labels) - f) for f in range(3)]
    folds = [stacked(each) for each in zip(*held_out, strict=True)]
    found = dmkl.MKFDA._decided_held_out(models, folds, targets)
    for k, model in enumerate(models):
        alone = [fold.machines(slice(k, k + 1)) for fold in folds]
        for ours, theirs in zip(found, dmkl.MKFDA._decided_held_out([model], alone, targets), strict=True):
            np.testing.assert_allclose(ours[k], theirs[0], rtol=1e-10, atol=1e-10 * np.abs(theirs).max())


def test_two_classes_keep_their_order():
    rng = np.random.default_rng(2)
    index = np.repeat([0, 1], [80, 20])
    held_out = HeldOut(index[:, None] + rng.standard_normal((100, 1)), [index], np.arange(100), 60 + 0)
    held_out = HeldOut(held_out.scores[::-1], [index[::-1]], np.arange(100), 60)
    (found,) = cross_decided("binary", [held_out], [[np.array([0.8, 0.2])]])
    np.testing.assert_array_equal(np.argsort(found[:60, 0]), np.argsort(held_out.scores[:60, 0]))
    assert np.mean(found[:, 0] > 0) < 0.35
