"""Problems on kernels in memory: their solutions, and the same solutions by passes."""

from unittest.mock import patch

import dask
import numpy as np
import pytest
from helpers.faults import interrupted
from helpers.margin import made
from sklearn.base import clone

import dmkl
from dmkl.numerics.cholesky import Cholesky
from dmkl.solvers import in_memory
from dmkl.solvers.in_memory import InMemory
from dmkl.solvers.smooth_subspace import SmoothMethod

LABELS = np.array(["fig", "nut", "oat"])[np.arange(60) % 3]
NUMBERS = np.arange(60) % 3 + np.random.default_rng(0).normal(size=60)
UNKNOWN = np.stack([LABELS == "fig", LABELS == "nut"], axis=1).astype(float)
UNKNOWN[::7, 0] = np.nan


@pytest.fixture
def kernels(tmp_path):
    return dmkl.create(tmp_path / "set.zarr", made(4, 60)[0], tile=25)


def searched(model, kernels, labels, grid, cv, **more):
    return dmkl.search(model, kernels, labels, grid, cv, refit=False, baselines="none", **more)


@pytest.mark.parametrize(
    ("model", "labels"),
    [
        (dmkl.MKSVM(1.0, 4.0, multiclass="ovo", steps=("center", "cosine"), tol=1e-7), LABELS),
        (dmkl.MKSVM(2.0, 4.0, tol=1e-7), UNKNOWN),
        (dmkl.GMKL(4.0, 2.0, multiclass="ovo", tol=1e-5), LABELS),
        (dmkl.GSMKL(4.0, 2, restarts=2, tol=1e-3), LABELS == "fig"),
        (dmkl.GSMKL(4.0, 2, loss="square", weighting="softmax", tol=1e-3), LABELS == "fig"),
        (dmkl.GSMKL(4.0, (2, 1), tol=1e-3), UNKNOWN),
        (dmkl.LocalizedMKL(40.0, tol=1e-3), LABELS == "fig"),
        (dmkl.EasyMKL(tol=1e-8), LABELS),
        (dmkl.LPBoost(cv=3), LABELS),
        (dmkl.Stack(), LABELS),
        (dmkl.MKLogistic(1.25, 0.7, tol=1e-9), LABELS == "fig"),
        (dmkl.MKCox(tol=1e-8), np.abs(NUMBERS)),
        *((dmkl.VarianceComponents(method, tests=False), NUMBERS) for method in ("reml", "he")),
        *((kind(3, tol=1e-9), None) for kind in (dmkl.KernelKMeans, dmkl.MultipleKernelKMeans)),
    ],
)
def test_memory_and_passes_find_the_same(kernels, model, labels, monkeypatch):
    here = clone(model).fit(kernels, labels)
    monkeypatch.setattr(in_memory, "suits", lambda *_, **__: False)
    there = clone(model).fit(kernels, labels)
    close = 0.05 if isinstance(model, dmkl.GSMKL | dmkl.LocalizedMKL) else 1e-6
    np.testing.assert_allclose(there.objective_, here.objective_, rtol=max(1e-7, 10 * getattr(model, "tol", 0.0)))
    np.testing.assert_allclose(there.weights_, here.weights_, atol=close)
    found, expected = (each._decision(kernels).values for each in (there, here))
    if isinstance(model, dmkl.KernelKMeans | dmkl.MultipleKernelKMeans):  # coordinates along eigenvectors of any sign
        found, expected = found @ found.T, expected @ expected.T
    np.testing.assert_allclose(found, expected, atol=close)
    assert there.dual_coef_.shape == here.dual_coef_.shape
    assert there.status_ == here.status_
    assert here.n_passes_ <= 6
    assert here.n_passes_ + 2 <= there.n_passes_


def test_searches_find_the_same_whatever_the_memory(kernels, monkeypatch):
    given = dmkl.MKSVM(1.0, tol=1e-7), kernels, LABELS == "fig", {"C": [0.5, 4.0]}, 2
    results = [searched(*given)]
    with dask.config.set({"dmkl.memory": "70kB"}):  # three kernels are read at a time, for one training set
        results.append(searched(*given))
    monkeypatch.setattr(in_memory, "suits", lambda *_, **__: False)
    results.append(searched(*given))
    for other in results[1:]:
        np.testing.assert_allclose(results[0].scores["objective"], other.scores["objective"], rtol=1e-6)
        np.testing.assert_array_equal(results[0].scores["score"], other.scores["score"])
    assert results[0].n_passes_ < results[1].n_passes_ < results[2].n_passes_


@pytest.mark.parametrize("model", [dmkl.MKSVM(np.inf), dmkl.MKSVM(weights=[1.0, 0.0, 2.0, 1.0])])
def test_large_kernels_of_known_weights_are_not_written_to_files(kernels, model, monkeypatch):
    small = searched(model, kernels, LABELS, {"C": [0.5, 2.0, 4.0]}, 3)
    monkeypatch.setattr(in_memory, "_SMALL_BYTES", 0)
    large = searched(model, kernels, LABELS, {"C": [0.5, 2.0, 4.0]}, 3)
    assert "load" in small.scores["round_kind"]
    assert "load" not in large.scores["round_kind"]
    np.testing.assert_allclose(large.scores["objective"], small.scores["objective"], rtol=1e-3)
    np.testing.assert_allclose(large.scores["score"], small.scores["score"], atol=0.02)


def test_a_search_goes_on_from_its_state(kernels, tmp_path, monkeypatch):
    given, state = (dmkl.MKSVM(1.5), kernels, LABELS, {"C": [0.5, 4.0]}, 3), tmp_path / "state"
    monkeypatch.setattr(in_memory, "_ROUNDS", 3)
    with interrupted(in_memory, "_solve", 10):
        searched(*given, state=state)
    with patch.object(in_memory, "_solve", wraps=in_memory._solve) as solved:
        solution = searched(*given, state=state)
    assert solved.call_count == 18 - 9  # rounds of three: nine kernels were kept
    assert (solution.scores["gap"] <= 1e-3).all()


def test_problems_of_a_loss_share_tasks_and_begin_near_each_other(kernels, monkeypatch):
    def search():
        grid = {"p": [1.0, 1.03, 1.06], "lam": [0.01, 0.1]}
        with (
            patch.object(Cholesky, "of", wraps=Cholesky.of) as factorized,
            patch.object(in_memory, "_solve", wraps=in_memory._solve) as solved,
        ):
            result = searched(dmkl.MKLogistic(tol=1e-6), kernels, LABELS == "fig", grid, 2)
        return result.scores, factorized.call_count, solved.call_count

    together, n_factors, n_tasks = search()
    monkeypatch.setattr(SmoothMethod, "_bunches", lambda _, *of, **how: InMemory()._bunches(*of, **how))
    alone, n_factors_alone, n_tasks_alone = search()
    assert (together["gap"] <= 1e-6).all()
    np.testing.assert_allclose(together["objective"], alone["objective"], rtol=2e-6)
    assert n_tasks <= 4 < n_tasks_alone == 12
    assert n_factors < 0.8 * n_factors_alone
