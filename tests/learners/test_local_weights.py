"""Weights of groups of samples and localized weights, against the dense composite kernel and finite differences."""

from unittest.mock import patch

import dask
import numpy as np
import pytest
import xarray as xr
from helpers.faults import interrupted
from helpers.margin import composite_kernel
from scipy.special import softmax
from sklearn.base import clone
from sklearn.metrics import average_precision_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

import dmkl
from dmkl.errors import InputError
from dmkl.learners import groups
from dmkl.searching.grid import class_values
from dmkl.solvers.groups import gating_gradient
from dmkl.solvers.margin.svm import solve_dense

# Two classes in two hidden sub-categories: view s separates the classes in sub-category s only.
RNG = np.random.default_rng(0)
Y, HIDDEN = RNG.integers(0, 2, 150), RNG.integers(0, 2, 150)
THIRDS = np.array(["ash", "elm", "oak"])[Y + (np.arange(150) % 3 == 0)]
VIEWS = {"context": RNG.standard_normal((150, 4)) * 0.3 + 2.0 * HIDDEN[:, None]}
for s in range(2):
    VIEWS[f"view{s}"] = RNG.standard_normal((150, 3)) + np.where(HIDDEN == s, 2.0 * (2 * Y - 1), 0.0)[:, None]
K = dmkl.build(None, VIEWS, {"function": "rbf", "gamma": 0.2}, labels=Y, tile=40)
TRAIN, TEST = np.random.default_rng(1).permutation(150)[:90], np.arange(150)


def check_machine(composite, positive, C, scores):
    """Check that the scores are those of scikit-learn's machine on the composite kernel."""
    machine = SVC(C=C, kernel="precomputed", tol=1e-8).fit(composite, positive)
    np.testing.assert_allclose(machine.decision_function(composite), scores, atol=2e-2)


def check_descent(model):
    falls = np.diff(np.atleast_2d(model.history_["objective"].values), axis=1)
    assert (falls[np.isfinite(falls)] <= 0).all()


@pytest.mark.parametrize(
    ("n_groups", "grouping", "weighting", "classes"),
    [
        (2, "kernel", "root", 2),
        (2, "kernel", "softmax", 3),
        (2, "kmeans", "softmax", 2),
        (2, "kmeans", "root", 3),
        ("samples", "kernel", "softmax", 2),
    ],
)
def test_scores_are_those_of_machines_on_the_composite_kernel(n_groups, grouping, weighting, classes):
    labels = Y if classes == 2 else Y + (np.arange(150) % 3 == 0)
    model = dmkl.GSMKL(2.0, n_groups, grouping, weighting=weighting, feature="context", max_iter=15)
    if grouping == "kernel":
        model.set_params(feature=None)
    model.fit(K[TRAIN, TRAIN], labels[TRAIN])
    dense = np.asarray(K[TRAIN, TRAIN].center().normalize("multiplicative"))
    groups = model.groups_.values
    scores = model.decision_function(K[TRAIN, TRAIN]).values.reshape(len(TRAIN), -1)
    again = model.groups_of(K[TRAIN, TRAIN])  # as new samples: each of them contributes to a center
    assert 0.8 < np.mean(again == groups) <= 1.0
    for c in range(scores.shape[1]):
        composite = composite_kernel(dense, model.weights_.values[:, :, c], again, groups)
        u, bias = model.dual_coef_.values[:, c], model.intercept_.values[c]
        np.testing.assert_allclose(scores[:, c], composite @ u + bias, atol=1e-10)
        training = composite_kernel(dense, model.weights_.values[:, :, c], groups)
        check_machine(training, labels[TRAIN] == model.classes_[c - scores.shape[1]], 2.0, training @ u + bias)
        power = 2.0 if weighting == "root" else 1.0
        np.testing.assert_allclose((model.weights_.values[:, :, c] ** power).sum(axis=0), 1.0, atol=1e-12)
    check_descent(model)


@pytest.mark.parametrize("grouping", ["kmeans", "plsa"])
def test_saved_and_predicting_from_features(grouping, tmp_path):
    views = {name: np.abs(view) for name, view in VIEWS.items()}
    K = dmkl.build(None, views, {"function": "rbf", "gamma": 0.2}, tile=40)
    model = dmkl.GSMKL(n_groups=2, grouping=grouping, max_iter=5).fit(K[TRAIN, TRAIN], Y[TRAIN])
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    expected = model.decision_function(K[TEST, TRAIN])
    assert np.array_equal(loaded.decision_function(K[TEST, TRAIN]).values, expected.values)
    np.testing.assert_allclose(loaded.decision_function(features=views).values, expected.values, atol=1e-10)
    assert loaded.groups_.equals(model.groups_)
    assert list(loaded.group_class_.values) == list(model.group_class_.values)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_each_class_chooses_its_number_by_its_own_validation_scores(n_classes, tmp_path):
    labels = np.array(["ash", "elm"])[Y] if n_classes == 2 else THIRDS
    rows = np.random.default_rng(0).permutation(150)
    folds = [tuple(np.roll(rows, 50 * k).reshape(3, 50)) for k in range(2)]
    learner, grid = dmkl.GSMKL(max_iter=3, tol=1e-2), {"n_groups": [1, 2, 3], "C": [1.0, 4.0]}
    result = dmkl.search(learner, K, labels, grid, cv=folds, baselines="none")
    assert result.by_class == ("n_groups",)
    for name, (train, validation, test) in zip("01", folds, strict=True):
        params, precision = result.best_params_[name], {}
        for n in (1, 2, 3):
            fit = clone(learner).set_params(C=params["C"], n_groups=n).fit(K[train, train], labels[train])
            scores = fit.decision_function(K[validation, train]).values.reshape(50, -1)
            columns = np.hstack([-scores, scores]) if n_classes == 2 else scores
            for label, column in zip(fit.classes_, columns.T, strict=True):
                precision[label, n] = average_precision_score(labels[validation] == label, column)
        for label, chosen in params["n_groups"].items():
            assert precision[label, chosen] == pytest.approx(max(precision[label, n] for n in (1, 2, 3)), abs=1e-3)
        seen = np.union1d(train, validation)
        model = clone(learner).set_params(**params).fit(K[seen, seen], labels[seen])
        made = model.group_class_.values.tolist()
        assert {label: made.count(label) for label in model.classes_.tolist()} == params["n_groups"]
        expected = model.score(K[test, seen], labels[test])
        np.testing.assert_allclose(result.scores["refit_test_score"].sel(fold=name), expected)
    assert result.best_.n_groups == result.best_params_["0"]["n_groups"]
    assert result.best_.calibrated_on_ is not None
    result.save(tmp_path / "found")
    assert dmkl.load(tmp_path / "found").best_params_ == result.best_params_


@pytest.mark.slow
def test_an_evaluation_records_the_numbers_of_each_class():
    learner, folds = dmkl.GSMKL(C=2.0, max_iter=1), {"outer": 2, "inner": 2, "baselines": "none"}
    result = dmkl.evaluate(learner, K[TRAIN, TRAIN], THIRDS[TRAIN], {"n_groups": [1, 2]}, **folds)
    chosen = [search.best_params_["n_groups"].items() for search in result.searches.values()]
    texts = [",".join(f"{label}={count}" for label, count in counts) for counts in chosen]
    assert result.scores["n_groups"].values.tolist() == texts


@pytest.mark.parametrize("rule", ["best", "one_standard_error"])
def test_a_class_that_no_fold_validates_takes_the_number_of_all(rule):
    scores = np.array([[[0.5, np.nan], [0.7, np.nan]], [[0.9, np.nan], [0.5, np.nan]]])  # two numbers, folds, classes
    coords = {"n_groups": [1, 2], "class": ["a", "b"]}
    data = xr.Dataset({"class_score": (("n_groups", "fold", "class"), scores)}, coords)
    expected = {"a": 2 if rule == "best" else 1, "b": 2}
    assert class_values(data, {"n_groups": 1}, "n_groups", [1, 2], rule) == expected


def test_groups_that_belong_to_no_class_have_one_number():
    grid = {"n_groups": [1, 2], "C": [1.0]}
    result = dmkl.search(dmkl.GSMKL(across=True, max_iter=1), K, THIRDS, grid, cv=2, baselines="none")
    assert result.by_class == ()
    assert result.best_.n_groups == result.best_params_["n_groups"]


# --- several labels per sample -------------------------------------------------------------------------------------
TASKS = np.stack([Y, np.arange(150) % 3 == 0], axis=1).astype(float)
TASKS[::7, 0] = np.nan
"""Two tasks: the classes, with some unknown labels, and another third of the samples."""


@pytest.mark.parametrize("grouping", ["kernel", "kmeans"])
def test_each_task_has_groups_of_its_positives_and_negatives(grouping):
    labels, C, counts = TASKS[TRAIN], (2.0, 1.0), ({0: 1, 1: 3}, 2)
    options = {"grouping": grouping, "max_iter": 5}
    model = dmkl.GSMKL(C, counts, **options).fit(K[TRAIN, TRAIN], labels)
    scores, new_groups = model.decision_function(K[TEST, TRAIN]), model.groups_of(K[TEST, TRAIN])
    np.testing.assert_allclose(model.decision_function(features=VIEWS), scores, atol=1e-8)
    assert (model.groups_.values[np.isnan(labels[:, 0]), 0] == -1).all()
    for k in range(2):
        rows = np.flatnonzero(~np.isnan(labels[:, k]))
        alone = dmkl.GSMKL(C[k], counts[k], **options).fit(K[TRAIN[rows], TRAIN[rows]], labels[rows, k].astype(int))
        n_groups = alone.weights_.sizes["group"]
        np.testing.assert_allclose(model.weights_.values[:, :n_groups, k], alone.weights_.values[..., 0], atol=1e-6)
        assert not model.weights_.values[:, n_groups:, k].any()
        np.testing.assert_allclose(scores[:, k], alone.decision_function(K[TEST, TRAIN[rows]]), atol=1e-6)
        np.testing.assert_array_equal(new_groups[:, k], alone.groups_of(K[TEST, TRAIN[rows]]))
        np.testing.assert_array_equal(model.groups_.values[rows, k], alone.groups_)
        assert model.group_class_.values[:, k].tolist() == [*alone.group_class_.values, *[-1] * (4 - n_groups)]


@pytest.mark.parametrize("sites", [False, True])
def test_groups_that_tasks_share(sites):
    grouping = {str(name): "north" if k % 3 else "south" for k, name in enumerate(K.samples)} if sites else "kernel"
    learner = dmkl.GSMKL(grouping=grouping, across=not sites, max_iter=2)
    shared = clone(learner).fit(K[TRAIN, TRAIN], np.nan_to_num(TASKS[TRAIN]))
    assert shared.groups_.dims == ("sample",)
    model = clone(learner).fit(K[TRAIN, TRAIN], TASKS[TRAIN])
    assert model.groups_.dims == ("sample", "task")
    np.testing.assert_allclose(
        model.decision_function(K[TEST, TRAIN])[:, 1], shared.decision_function(K[TEST, TRAIN])[:, 1]
    )
    assert model.group_class_.values[:, 0].tolist() == (["north", "south"] if sites else [0, 0])


def test_each_task_chooses_its_numbers_by_its_average_precision():
    counts = [1, {0: 1, 1: 3}]
    grid = {"n_groups": counts, "C": [0.5, 4.0]}
    result = dmkl.search(dmkl.GSMKL(max_iter=1), K, TASKS, grid, cv=2, baselines="none")
    assert result.scores.attrs["scoring"] == "average_precision"
    for task, chosen in result.best_params_.items():
        means = result.scores.mean_score.sel(task=task).transpose("n_groups", "C").values
        assert means[counts.index(chosen["n_groups"]), grid["C"].index(chosen["C"])] == means.max()
    values = [chosen["n_groups"] for chosen in result.best_params_.values()]
    assert result.best_.n_groups == (values[0] if values[0] == values[1] else tuple(values))


# --- resumed searches ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("grouping", "done"), [("kernel", 8), ("kernel", 3), ("kmeans", 3)])
@pytest.mark.slow
def test_a_continued_search_computes_the_missing_groups(grouping, done, tmp_path):
    """Two folds, two tasks and two numbers of groups make eight groupings; the search ends after some of them."""
    arguments = (dmkl.GSMKL(grouping=grouping, max_iter=2), K, TASKS, {"n_groups": [1, 2], "C": [1.0]})
    options = {"cv": 2, "baselines": "none", "refit": False}
    expected = dmkl.search(*arguments, **options)
    name = f"group_by_{grouping}"
    with (
        dask.config.set(scheduler="synchronous"),
        patch("dmkl.solvers.in_memory.InMemory.solve", side_effect=KeyboardInterrupt),
        interrupted(groups, name, done),
    ):
        dmkl.search(*arguments, **options, state=tmp_path / "state")
    assert len(list((tmp_path / "state").glob("prepared-*.npz"))) == done
    with patch.object(groups, name, wraps=getattr(groups, name)) as grouped:
        result = dmkl.search(*arguments, **options, state=tmp_path / "state")
    assert grouped.call_count == 8 - done
    np.testing.assert_array_equal(result.scores.score, expected.scores.score)


def test_what_is_not_proven_is_never_called_so():
    result = dmkl.search(dmkl.GSMKL(n_groups=1, max_iter=2), K, Y, {"C": [0.5, 4.0]}, cv=2, baselines="none")
    assert np.isnan(result.scores["gap"]).all()
    assert set(result.table()["status"]) == {"open"}
    for text in (result.summary(), result.best_.status_):
        assert "proven" not in text
        assert "certified" not in text


def test_restarts_keep_the_lowest_objective():
    single, several = (
        dmkl.GSMKL(restarts=r, max_iter=8, weighting="softmax").fit(K[TRAIN, TRAIN], Y[TRAIN]) for r in (1, 3)
    )
    assert several.objective_ <= single.objective_


def test_given_groups_by_name(tmp_path):
    """Groups are sites; those of new samples are looked up by name, or given with the samples."""
    sites = {str(name): "north" if k % 3 else "south" for k, name in enumerate(K.samples)}
    model = dmkl.GSMKL(2.0, grouping=sites, max_iter=5, steps=()).fit(K[TRAIN, TRAIN], Y[TRAIN])
    assert model.group_class_.values.tolist() == ["north", "south"]
    place = np.array([sites[str(name)] == "south" for name in K.samples]).astype(int)
    np.testing.assert_array_equal(model.groups_, place[TRAIN])
    weights = model.weights_.values[:, :, 0]
    composite = composite_kernel(np.asarray(K)[:, :, TRAIN], weights, place, place[TRAIN])
    expected = composite @ model.dual_coef_.values[:, 0] + model.intercept_.values[0]
    np.testing.assert_allclose(model.decision_function(K[TEST, TRAIN]), expected, atol=1e-10)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(K[TEST, TRAIN]), model.predict(K[TEST, TRAIN]))
    known = {name: sites[name] for name in map(str, K.samples[TRAIN])}
    short = dmkl.GSMKL(2.0, grouping=known, max_iter=5, steps=()).fit(K[TRAIN, TRAIN], Y[TRAIN])
    with pytest.raises(InputError, match="every sample needs a group"):
        short.predict(K[TEST, TRAIN])
    np.testing.assert_array_equal(short.predict(K[TEST, TRAIN], groups=sites), model.predict(K[TEST, TRAIN]))
    new = np.setdiff1d(TEST, TRAIN)
    test = K[new, TRAIN], Y[new]
    assert short.score(*test, groups=sites) == model.score(*test)
    calibrated = short.calibrate(*test, groups=sites).decider_
    np.testing.assert_array_equal(calibrated.sharpness, model.calibrate(*test).decider_.sharpness)
    with pytest.raises(InputError, match="has no training samples"):
        short.predict(K[TEST, TRAIN], groups=dict.fromkeys(sites, "west"))


# --- localized weights --------------------------------------------------------------------------------------------
def test_gradients_by_finite_differences():
    rng = np.random.default_rng(0)
    n, m = 3, 30
    kernels = np.array([rbf_kernel(rng.normal(size=(m, 2))) for _ in range(n)])
    y, features = np.where(rng.random(m) < 0.5, 1.0, -1.0), np.column_stack([rng.normal(size=(m, 2)), np.ones(m)])
    theta = rng.normal(size=(n, 3))

    def trained(at):
        weights = softmax(at @ features.T, axis=0)
        return weights, solve_dense(composite_kernel(kernels, weights, np.arange(m)), y, 2.0, 1e-12)

    weights, machine = trained(theta)
    gradient = gating_gradient(weights, machine.u, kernels @ (weights * machine.u).T, 0.5, features)
    for at in np.ndindex(*theta.shape):
        step = np.zeros_like(theta)
        step[at] = 1e-4
        change = (trained(theta + step)[1].dual - trained(theta - step)[1].dual) / 2e-4
        assert change == pytest.approx(gradient[at], rel=2e-3, abs=2e-4 * np.abs(gradient).max())


@pytest.mark.parametrize("gating", ["kernel", "context"])
def test_scores_are_those_of_the_localized_kernel(gating):
    learner = dmkl.LocalizedMKL((5.0, 5.0, 2.0), gating, max_iter=5)
    model = learner.fit(K[TRAIN, TRAIN], THIRDS[TRAIN])
    assert np.isnan(model.gap_).all()
    check_descent(model)
    dense = np.asarray(K[TRAIN, TRAIN].center().normalize("multiplicative"))
    features = dense.mean(axis=0) if gating == "kernel" else VIEWS["context"][TRAIN]
    names = model.train_samples_ if gating == "kernel" else [str(k) for k in range(features.shape[1])]
    np.testing.assert_array_equal(model.gating_["gating_feature"], names)
    scores = model.decision_function(K[TRAIN, TRAIN])
    for k in range(3):
        slope, constant = (model.gating_[f"gating_{name}"].values[..., k] for name in ("slope", "constant"))
        weights = softmax(features @ slope.T + constant, axis=1).T
        np.testing.assert_allclose(model.gating_["weight"][..., k], weights, atol=1e-8)
        np.testing.assert_allclose(model.weights_[:, k], weights.mean(axis=1), atol=1e-8)
        composite = composite_kernel(dense, weights, np.arange(len(TRAIN)))
        expected = composite @ model.dual_coef_.values[:, k] + model.intercept_.values[k]
        np.testing.assert_allclose(scores[:, k], expected, atol=1e-8)
        check_machine(composite, THIRDS[TRAIN] == model.classes_[k], learner.C[k], scores[:, k])
    new = model.decision_function(K[TEST, TRAIN])
    np.testing.assert_allclose(model.decision_function(features=VIEWS), new, atol=1e-8)


@pytest.mark.parametrize("learner", [dmkl.GSMKL(max_iter=1), dmkl.LocalizedMKL(max_iter=1)])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_there_is_no_single_kernel_and_no_weight_of_a_feature(learner, n_classes):
    model = clone(learner).fit(K, Y if n_classes == 2 else THIRDS)
    for ask, given in ((model.combined_kernel, K), (model.kernel_pca, K), (model.feature_weights, K.names[0])):
        with pytest.raises(InputError, match="weighs each kernel by groups of samples"):
            ask(given)
