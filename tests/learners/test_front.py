"""Learners as estimators of scikit-learn, on tables of features and on matrices: its checks, and built kernels."""

import copy
import pickle
import threading

import dask
import joblib
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from helpers.references import digits, in_memory
from scipy.sparse import csr_array
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import AdaBoostClassifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import pairwise, r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
    parametrize_with_checks,
)
from sklearn.utils.validation import has_fit_parameter

import dmkl
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.learners import scikit_learn
from dmkl.passes.execute import machine

FIXED = {"function": "rbf", "gamma": [0.1, 1.0]}
# Two blocks, each with partial information about the class: 60 samples for training, 25 new ones.
X, NEW = np.split(np.random.default_rng(0).normal(size=(85, 6)), [60])
Y = np.where(X[:, 0] + X[:, 4] > 0.3, "much", np.where(X[:, 0] < -0.5, "little", "some"))


def changed_by_copies(estimator):
    """Checks that fail by definition: copies count in a mean distance, and stay when one of them is left out."""
    reason = "bandwidths multiply the mean distance between samples, and leave-one-out scores leave out all copies"
    return {f"check_sample_weight_equivalence_on_{kind}_data": reason for kind in ("dense", "sparse")}


@pytest.mark.filterwarnings("ignore::dmkl.errors.LabelWarning")  # of 15 random labels a class may have one
@parametrize_with_checks(
    [dmkl.MKLClassifier(missing="zero"), dmkl.MKLRegressor()], expected_failed_checks=changed_by_copies
)
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::dmkl.errors.LabelWarning")
@pytest.mark.parametrize(
    "check", [check_sample_weight_equivalence_on_dense_data, check_sample_weight_equivalence_on_sparse_data]
)
@pytest.mark.parametrize(
    "estimator", [dmkl.MKLClassifier(dmkl.MKFDA(decision="largest"), FIXED), dmkl.MKLRegressor(kernels=FIXED)]
)
def test_whole_weights_are_copies_where_nothing_depends_on_pairs_of_them(monkeypatch, estimator, check):
    monkeypatch.delattr(scikit_learn.TableFront, "transform")  # principal components count each training sample once
    check(type(estimator).__name__, estimator)


def test_samples_of_weight_zero_are_left_out():
    weights = np.ones(60)
    weights[::3] = 0.0
    kept = weights > 0
    weighed, model = dmkl.MKLClassifier().fit(X, Y, weights), dmkl.MKLClassifier().fit(X[kept], Y[kept])
    np.testing.assert_allclose(weighed.predict_proba(NEW), model.predict_proba(NEW), rtol=1e-9)
    with pytest.raises(ValueError, match="non-zero"):
        dmkl.MKLClassifier().fit(X, Y, np.zeros(60))
    square, cross = (pairwise.rbf_kernel(rows, X)[:, :, None] for rows in (X, NEW))
    of_all = dmkl.PrecomputedMKLClassifier().fit(square, Y, weights)
    of_kept = dmkl.PrecomputedMKLClassifier().fit(square[kept][:, kept], Y[kept])
    np.testing.assert_allclose(of_all.predict_proba(cross), of_kept.predict_proba(cross[:, kept]), rtol=1e-9)


def test_weights_are_routed_and_boosted():
    front = dmkl.MKLClassifier(kernels=FIXED)
    assert has_fit_parameter(front, "sample_weight")
    with config_context(enable_metadata_routing=True):
        assert front.set_fit_request(sample_weight=True).get_metadata_routing().fit.requests["sample_weight"]
    boosted = AdaBoostClassifier(dmkl.MKLClassifier(kernels=FIXED), n_estimators=2).fit(X, Y)
    assert boosted.score(X, Y) > 0.6


@pytest.mark.parametrize("method", ["predict_proba", "decision_function"])
def test_held_out_values_of_many_labels(method):
    tasks = (X[:, :3] + X[:, 1:4] > 0).astype(int)
    folds = KFold(2)
    values = cross_val_predict(dmkl.MKLClassifier(), X, tasks, cv=folds, method=method)
    for train, test in folds.split(X):
        np.testing.assert_array_equal(
            values[test], getattr(dmkl.MKLClassifier().fit(X[train], tasks[train]), method)(X[test])
        )


def test_a_sparse_table_is_a_dense_one():
    train, test = X * (X > 0), NEW * (NEW > 0)
    for blocks in (None, {"left": [0, 1], "right": slice(2, 6)}):
        dense, sparse = (dmkl.MKLClassifier(blocks=blocks).fit(table(train), Y) for table in (np.asarray, csr_array))
        np.testing.assert_array_equal(sparse.decision_function(csr_array(test)), dense.decision_function(test))


def test_a_column_of_labels_some_of_which_are_unknown():
    labels = (X[:, :1] > 0).astype(float)
    labels[::4] = np.nan
    for front in (dmkl.MKLClassifier, dmkl.MKLRegressor):
        assert front(kernels=FIXED).fit(X, labels).predict(NEW).shape == (25, 1)


def test_a_front_saves_its_model(tmp_path):
    model = dmkl.MKLClassifier().fit(X, Y)
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    scores = loaded.decisions_of(loaded.decision_function(features={"X": NEW}).values)
    np.testing.assert_array_equal(scores, model.decision_function(NEW))


def dense_default(X, train):
    squared = pairwise.euclidean_distances(train, train, squared=True)
    mean = squared[~np.eye(len(train), dtype=bool)].mean()
    return np.stack([pairwise.rbf_kernel(X, train, gamma=1 / (b * mean)) for b in (0.1, 0.3, 1, 3, 10)])


@pytest.mark.parametrize("estimator", [dmkl.MKFDA(p=1.2), dmkl.SingleBest(), dmkl.Product(), dmkl.MKRidge(1.5, 1e-3)])
def test_as_the_estimator_on_kernels_by_scikit_learn(estimator):
    is_regression = isinstance(estimator, dmkl.MKRidge)
    y, front = (numbers(X)[:, 0], dmkl.MKLRegressor) if is_regression else (Y, dmkl.MKLClassifier)
    model = front(estimator).fit(X, y)
    assert list(model.kernel_names_) == [f"X-rbf-bandwidth{b}" for b in ("0.1", "0.3", "1", "3", "10")]
    stored = dmkl.create(None, dense_default(X, X), names=model.kernel_names_)
    reference = clone(estimator).fit(stored, y)
    cross = dmkl.create(None, dense_default(NEW, X), names=model.kernel_names_, symmetric=False)
    np.testing.assert_allclose(model.weights_.values, reference.weights_.values, atol=2e-5)
    if is_regression:
        predicted = reference.predict(cross).values
        np.testing.assert_allclose(model.predict(NEW), predicted, rtol=0, atol=1e-4 * np.abs(predicted).max())
        assert model.score(NEW, numbers(NEW)[:, 0]) == pytest.approx(r2_score(numbers(NEW)[:, 0], model.predict(NEW)))
        assert not hasattr(model, "decision_function")
        return
    scores = reference.decisions_of(reference.decision_function(cross).values)
    assert isinstance(model.decision_function(NEW), np.ndarray)
    np.testing.assert_allclose(model.decision_function(NEW), scores, rtol=0, atol=1e-4 * np.abs(scores).max())
    np.testing.assert_array_equal(model.predict(NEW), reference.predict(cross))
    np.testing.assert_array_equal(model.classes_, ["little", "much", "some"])
    assert model.n_iter_ == model.estimator_.n_iter_ >= 1


NAMES = list("abcdef")
LEFT = [["a", "b"], slice("a", "b"), pd.Index(["a", "b"]), [0, 1], np.array([0, -5]), slice(2), np.arange(6) < 2]


def test_blocks_are_columns_by_name_position_slice_or_mask():
    frame, new_frame = pd.DataFrame(X, columns=NAMES), pd.DataFrame(NEW, columns=NAMES)
    kernels = [{"function": "rbf", "feature": "left"}, {"function": "linear", "feature": "right"}]
    K = dmkl.build(None, {"left": X[:, :2], "right": X[:, 2:]}, kernels)
    expected = dmkl.Uniform().fit(K, Y)
    scores = expected.decision_function(features={"left": NEW[:, :2], "right": NEW[:, 2:]}).values
    scores = expected.decisions_of(scores)
    for left in LEFT:
        model = dmkl.MKLClassifier(dmkl.Uniform(), kernels, {"left": left, "right": slice(2, None)}).fit(frame, Y)
        assert model.kernel_names_ == K.names
        np.testing.assert_allclose(model.decision_function(new_frame), scores, rtol=0, atol=1e-12, err_msg=repr(left))
        np.testing.assert_array_equal(model.feature_names_in_, NAMES)


def test_specs_name_the_columns_of_a_data_frame():
    frame = pd.DataFrame(X, columns=NAMES)
    kernels = {"function": "rbf", "columns": {"first": ["a", "b"], "rest": ["c", "f"]}}
    model = dmkl.MKLClassifier(kernels=kernels).fit(frame, Y)
    assert model.kernel_names_ == ("X-rbf-first", "X-rbf-rest")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[NAMES[::-1]])
    with pytest.raises(InputError, match="'z'"):
        dmkl.MKLClassifier(blocks={"left": ["a", "z"]}).fit(frame, Y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"blocks": {}}, "blocks maps the name of each block"),
        ({"blocks": {"left": [0, 6]}}, r"blocks\['left'\] must be names, positions, a slice or a mask"),
        ({"blocks": {"left": ["a"]}}, "X has no names of columns, give a data frame"),
        ({"blocks": {"left": [True, False]}}, "of the 6 columns of X, got"),
        ({"blocks": {"left": slice(0, 0)}}, "has no column of X"),
        ({"estimator": "MKFDA"}, "estimator must be a classifier of dmkl"),
        ({"kernels": {"function": "random_rbf"}}, "names of the samples, and rows of X have none"),
        ({"missing": "drop"}, "missing must be 'refuse' or 'zero'"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, message):
    model = dmkl.MKLClassifier(**parameters)
    with pytest.raises(InputError, match=message):
        model.fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_many_labels_at_once():
    tasks = (X[:, [0, 3]] + X[:, [1, 2]] > 0).astype(int)
    alone = [
        dmkl.MKLClassifier(dmkl.MKFDA(p=p, lam=lam)).fit(X, tasks[:, t]).decision_function(NEW)
        for t, (p, lam) in enumerate([(1, 0.01), (2, 0.1)])
    ]
    for form in (np.ndarray.tolist, csr_array, pd.DataFrame):
        model = dmkl.MKLClassifier(dmkl.MKFDA(p=[1, 2], lam=[0.01, 0.1])).fit(X, form(tasks))
        assert model.weights_.dims == ("kernel", "task")
        for t, scores in enumerate(alone):
            np.testing.assert_allclose(model.decision_function(NEW)[:, t], scores, atol=1e-3 * np.abs(scores).max())
    assert model.predict(NEW).shape == (25, 2)


def test_samples_that_lack_a_block():
    train, test = X.copy(), NEW.copy()
    train[::7, 4:] = np.nan
    test[3, 4:] = np.nan
    blocks = {"left": slice(0, 4), "right": [4, 5]}
    with pytest.raises(ValueError, match="NaN"):
        dmkl.MKLClassifier(blocks=blocks).fit(train, Y)
    model = dmkl.MKLClassifier(blocks=blocks, missing="zero").fit(train, Y)
    specs = {"function": "rbf", "bandwidth": [0.1, 0.3, 1, 3, 10]}
    K = dmkl.build(None, {"left": train[:, :4], "right": train[:, 4:]}, specs, missing="zero")
    expected = dmkl.MKFDA().fit(K, Y)
    features = {"left": test[:, :4], "right": test[:, 4:]}
    scores = expected.decisions_of(expected.decision_function(features=features, missing="zero").values)
    np.testing.assert_array_equal(model.decision_function(test), scores)


def test_labels_that_mean_nothing_are_refused_before_kernels_are_computed(monkeypatch):
    monkeypatch.setattr(scikit_learn, "build", None)
    for model, wrong, message in [
        (dmkl.MKLClassifier(), np.zeros(60, dtype=int), "single class"),
        (dmkl.MKLClassifier(), np.stack([np.arange(60) % 2, np.zeros(60, dtype=int)], axis=1), "only the label 0"),
        (dmkl.MKLRegressor(), np.ones(60), "single value"),
        (dmkl.MKLRegressor(), Y, "numbers; for classes take a classifier"),
        (dmkl.MKLRegressor(dmkl.MKFDA()), numbers(X), r"must be a regression of dmkl such as MKRidge\(\), got MKFDA"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.fit(X, wrong)


def test_kernels_that_do_not_fit_are_refused_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr(scikit_learn, "build", None)
    with dask.config.set({"dmkl.memory": 5 * 60 * 60 * 8 - 1}):
        with pytest.raises(MemoryBudgetError, match=r"5 kernels of 60 samples .* dmkl\.build"):
            dmkl.MKLClassifier().fit(X, Y)


def test_half_the_memory_in_single_precision():
    """The model keeps a copy of the table that it was fitted on."""
    table = X.astype(np.float32)
    expected = dmkl.MKLClassifier().fit(X, Y).decision_function(NEW)
    models = dmkl.MKLClassifier(dtype="float32").fit(X, Y), dmkl.MKLClassifier().fit(table, Y)
    table[:] = 0
    for model in models:
        assert model.estimator_.features_.dtype == np.float32
        np.testing.assert_allclose(model.decision_function(NEW), expected, atol=1e-3 * np.abs(expected).max())


# --- regressions -----------------------------------------------------------------------------------------------------
def numbers(X):
    return np.stack([np.sin(X[:, 0]) + X[:, 4], 10.0 * X[:, 3] ** 2], axis=1)


def test_several_targets_and_a_search_over_the_default():
    both = dmkl.MKLRegressor(blocks={"left": slice(3), "right": slice(3, 6)}).fit(X, numbers(X))
    assert both.weights_.dims == ("kernel", "target")
    grid = {"mklregressor__estimator__lam": [1e-4, 10.0]}
    search = GridSearchCV(make_pipeline(StandardScaler(), dmkl.MKLRegressor()), grid, cv=3).fit(X, numbers(X))
    assert search.best_params_ == {"mklregressor__estimator__lam": 1e-4}
    assert search.best_score_ > 0.4


# --- inside scikit-learn ---------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "threading", "dask"])
def test_a_search_in_parallel_finds_the_same(backend, request):
    if backend == "dask":
        # Each fit is one task, which waits for no other: with two workers of one thread it would wait forever.
        request.getfixturevalue("client")
    model, grid = dmkl.MKLClassifier(), {"estimator__lam": [1e-3, 1e-1], "kernels": [None, {"function": "laplacian"}]}
    expected = GridSearchCV(model, grid, cv=3).fit(X, Y)
    with joblib.parallel_config(backend):
        found = GridSearchCV(model, grid, cv=3, n_jobs=2, error_score="raise").fit(X, Y)
    np.testing.assert_array_equal(found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])
    np.testing.assert_allclose(found.decision_function(NEW), expected.decision_function(NEW), atol=1e-12)


@pytest.mark.parametrize("function", ["rbf", "laplacian"])
def test_a_cluster_is_left_alone(function):
    """Anything sent to a cluster without workers would wait forever."""
    some = X.copy()
    some[5, 4:] = np.nan
    model = dmkl.MKLClassifier(
        kernels={"function": function}, blocks={"left": slice(4), "right": slice(4, 6)}, missing="zero"
    )
    predictions = []

    def fit():
        predictions.append(model.fit(some, Y).predict(NEW))

    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as idle, Client(idle):
        before = dask.config.get("scheduler", None)
        thread = threading.Thread(target=fit, daemon=True)
        thread.start()
        thread.join(60)
        assert len(predictions) == 1
        assert dask.config.get("scheduler", None) == before


def test_a_worker_process_of_joblib_takes_its_share(monkeypatch):
    monkeypatch.setattr(scikit_learn.settings, "available_cores", lambda: 8)
    with dask.config.set({"dmkl.memory": "2GiB"}, scheduler="threads"):
        monkeypatch.setattr(scikit_learn.multiprocessing, "parent_process", lambda: "parent")
        for threads, cores in [("2", 2), ("64", 8), ("", 8), ("4,2", 8)]:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
            with scikit_learn.in_this_process():
                assert machine().slots == cores
                assert machine().total_bytes == cores * 2**28


def test_parameters_of_the_default_estimator_can_be_set():
    model = dmkl.MKLClassifier().set_params(estimator__p=3, dtype="float32")
    assert (model.estimator.p, model.dtype) == (3, "float32")
    assert clone(model).estimator.p == 3
    replaced = dmkl.MKLClassifier().set_params(estimator=dmkl.Uniform(), estimator__lam=0.5)
    assert isinstance(replaced.estimator, dmkl.Uniform)
    assert replaced.estimator.lam == 0.5
    with pytest.raises(ValueError, match="Invalid parameter 'q'"):
        dmkl.MKLClassifier().set_params(estimator__q=3)


# --- copies of fitted models -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("place", "copy_of"),
    [("persisted", copy.deepcopy), ("rows", lambda model: pickle.loads(pickle.dumps(model))), ("loaded", copy.copy)],
)
def test_copies_of_estimators_predict_the_same_from_features(tmp_path, place, copy_of):
    path = None if place == "persisted" else tmp_path / "set.zarr"
    K = dmkl.build(path, {"X": X}, {"function": ["rbf", "laplacian"]}, tile=25)
    train = np.arange(0, 60, 2) if place == "rows" else slice(None)
    K = K.persist() if place == "persisted" else K[train, train]
    model = dmkl.MKFDA().fit(K, Y[train])
    if place == "loaded":
        model.save(tmp_path / "model.zarr")
        model = dmkl.load(tmp_path / "model.zarr")
    scores = model.decision_function(features={"X": NEW}).values
    copied = copy_of(model)
    np.testing.assert_array_equal(copied.decision_function(features={"X": NEW}).values, scores)
    copied.save(tmp_path / "copy.zarr")
    loaded = dmkl.load(tmp_path / "copy.zarr")
    np.testing.assert_array_equal(loaded.decision_function(features={"X": NEW}).values, scores)


# --- kernel matrices in memory ----------------------------------------------------------------------------------------
FOLDS = KFold(3, shuffle=True, random_state=0)


def stacked():
    kernels, y = digits()
    return np.moveaxis(kernels, 0, 2), y % 3


def test_folds_of_matrices_are_cut_along_both_axes():
    X, y = stacked()
    result = cross_val_predict(dmkl.PrecomputedMKLClassifier(), X, y, cv=FOLDS)
    K = in_memory(digits()[0], 25)
    for train, test in FOLDS.split(y):
        model = dmkl.MKFDA().fit(K[train, train], y[train])
        np.testing.assert_array_equal(result[test], model.predict(K[test, train]))


def test_a_regression_on_matrices_is_that_on_kernel_sets():
    X, y = stacked()
    targets = np.stack([y, X[:, 0, 0]], axis=1)
    K = in_memory(digits()[0], 25)
    train, test = np.arange(60), np.arange(60, 90)
    model = dmkl.PrecomputedMKLRegressor(dmkl.MKRidge(lam=0.1), names=list("abcde")).fit(X[:60, :60], targets[train])
    assert list(model.weights_.kernel) == list("abcde")
    predicted = model.predict(X[60:, :60])
    expected = dmkl.MKRidge(lam=0.1).fit(K[train, train], targets[train]).predict(K[test, train])
    np.testing.assert_allclose(predicted, expected, rtol=1e-8)
    assert model.score(X[60:, :60], targets[test]) == r2_score(targets[test], predicted) > 0.5


def test_arrays_that_are_no_kernels_are_refused():
    X, y = stacked()
    model = dmkl.PrecomputedMKLClassifier().fit(X[:60, :60], y[:60])
    for message, action in (
        ("expected 3: samples, training samples, kernels", lambda: clone(model).fit(X[:, :, 0], y)),
        (r"X has shape \(30, 59, 5\), expected \(samples, 60, 5\)", lambda: model.predict(X[60:, :59])),
    ):
        with pytest.raises(InputError, match=message):
            action()
