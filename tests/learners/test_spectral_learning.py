"""The learner of spectral weights: its weights and classifiers on stored kernels, and its refusals."""

from functools import partial
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from helpers.references import dense_view, digits, in_memory
from sklearn.svm import SVC

import dmkl
from dmkl.errors import ConvergenceWarning, IndefiniteKernelWarning, InputError
from dmkl.solvers.in_memory import answer
from dmkl.solvers.interface import run_with
from dmkl.solvers.spectral import spectral_weights

TRAIN, TEST = np.arange(60), np.arange(60, 90)


@pytest.fixture(autouse=True)
def threads():
    with dask.config.set(scheduler="threads"):
        yield


def training(steps=("cosine",)):
    K, y = digits()
    return in_memory(K, 37), y, dense_view(K, TRAIN, TRAIN, steps)


def dense_weights(K, labels, a=10.0):
    labels = np.unique(labels, return_inverse=True)[1]
    return run_with(spectral_weights(labels, len(K), a, tol=1e-6, max_iter=100), partial(answer, K))


@pytest.mark.parametrize("in_passes", [False, True])
@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
def test_weights_and_machines_are_those_on_dense_kernels(kind, in_passes, monkeypatch):
    S, y, dense = training()
    y = {"binary": y > 4, "multiclass": y % 3, "multilabel": np.column_stack([y > 4, y % 2]).astype(int)}[kind]
    if in_passes:
        monkeypatch.setattr("dmkl.learners.ncuts.machine", lambda: SimpleNamespace(task_bytes=0))
    model = dmkl.SpectralLearning(C=3.0, steps=("cosine",), tol=1e-6).fit(S[TRAIN, TRAIN], y[TRAIN])
    columns = y.T if kind == "multilabel" else [y]
    expected = [dense_weights(dense, column[TRAIN]) for column in columns]
    weights = model.weights_.values.reshape(len(dense), -1).T
    np.testing.assert_allclose(weights, [cut.weights for cut in expected], atol=1e-4)
    assert model.weights_.dims == (("kernel", "task") if kind == "multilabel" else ("kernel",))
    objectives = [cut.objective for cut in expected]
    np.testing.assert_allclose(model.cuts_.objective.values, np.squeeze(objectives), atol=1e-6)
    assert np.isnan(model.gap_).all()
    assert "nothing is proven" in model.status_
    assert (model.n_cut_passes_ == 1) != in_passes
    cross = dense_view(digits()[0], TEST, TRAIN, ("cosine",))
    scores = model.decision_function(S[TEST, TRAIN]).values.reshape(len(TEST), -1)
    of_class = [y == k for k in range(3)] if kind == "multiclass" else columns
    for k, positive in enumerate(of_class):
        own = weights[k % len(weights)]
        machine = SVC(kernel="precomputed", C=3.0, tol=1e-8).fit(np.tensordot(own, dense, 1), positive[TRAIN])
        np.testing.assert_allclose(scores[:, k], machine.decision_function(np.tensordot(own, cross, 1)), atol=1e-3)


def test_a_search_learns_the_weights_once_for_all_costs():
    S, y, _ = training()
    grid = {"eigengap_weight": [0.0, 10.0], "C": [1.0, 10.0]}
    weights = dmkl.search(dmkl.SpectralLearning(steps=()), S, y % 2, grid, [(TRAIN, TEST)], refit=False).scores.weight
    np.testing.assert_array_equal(weights.isel(C=0), weights.isel(C=1))
    for a in (0.0, 10.0):
        alone = dmkl.SpectralLearning(a, steps=()).fit(S[TRAIN, TRAIN], y[TRAIN] % 2)
        np.testing.assert_allclose(weights.sel(eigengap_weight=a).isel(C=1).squeeze(), alone.weights_, atol=1e-9)


def test_similarities_may_be_indefinite():
    """The similarities are random entries."""
    K, y = digits()
    noise = np.random.default_rng(0).exponential(1.0, (90, 90))
    K = np.stack([K[0], np.tril(noise) + np.tril(noise, -1).T])
    with pytest.warns(IndefiniteKernelWarning):
        S = dmkl.create(None, list(K))
    model = dmkl.SpectralLearning(0.0, tol=1e-6).fit(S[TRAIN, TRAIN], y[TRAIN] > 4)
    expected = dense_weights(K[:, :60, :60], y[TRAIN] > 4, 0.0)
    np.testing.assert_allclose(model.weights_, expected.weights, atol=1e-3)


def test_steps_that_run_out_are_told():
    S, y, _ = training()
    with pytest.warns(ConvergenceWarning, match="has not converged.*raise max_iter"):
        model = dmkl.SpectralLearning(max_iter=1, tol=1e-12).fit(S[TRAIN, TRAIN], y[TRAIN] > 4)
    assert "raise max_iter" in model.status_


@pytest.mark.parametrize(
    ("parameters", "entries", "message"),
    [
        ({"eigengap_weight": [1.0, 2.0]}, (), "eigengap_weight must be a finite number"),
        ({"steps": ("center",)}, (), r"kernel 'kernel_0' has an entry -.*; take steps without 'center'"),
        ({}, ([3, 4], [4, 3], -0.5), "kernel 'kernel_1' has an entry -0.5"),
        ({}, ([3], slice(None), 0.0), "kernel 'kernel_1' has a sample without any"),
    ],
)
@pytest.mark.filterwarnings("ignore::dmkl.errors.IndefiniteKernelWarning")
def test_what_breaks_a_rule(parameters, entries, message):
    K, y = digits()
    K = np.array(K[:2, :60, :60])
    if entries:
        rows, columns, value = entries
        K[1, rows, columns] = K[1, columns, rows] = value
    with pytest.raises(InputError, match=message):
        dmkl.SpectralLearning(**{"steps": (), **parameters}).fit(in_memory(K, 32), y[TRAIN])
