"""A solver and a learner need one file and one line each: both are defined here and used everywhere."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.conformance import problems
from helpers.references import digits, in_memory

import dmkl
from dmkl.errors import InputError
from dmkl.estimators.learner import KernelClassifier
from dmkl.numerics.fisher import uniform_weights
from dmkl.solvers.fisher.problem import FisherSolver
from dmkl.solvers.fisher.registry import SOLVERS
from dmkl.solvers.interface import Outcome, Status, Step

TRAIN, TEST = np.arange(60), np.arange(60, 90)


def at_uniform_weights(kernels, h, lam, weights):
    """The exact α for uniform weights: no search for weights at all."""
    beta = weights.start(len(kernels))
    system = 0.5 * (np.eye(len(h)) + np.tensordot(beta, kernels, 1) / lam)
    return np.linalg.solve(system, h), beta


LAZY = FisherSolver.from_arrays("lazy", "uniform weights, and the gap that they leave", at_uniform_weights)


@pytest.fixture
def lazy(monkeypatch):
    """The one line: an entry in the registry."""
    monkeypatch.setitem(SOLVERS, LAZY.name, LAZY)


@pytest.fixture
def centroid(models):
    """The one line would be an import: the class registers itself when it is defined."""

    class Centroid(KernelClassifier):
        """Nearest class mean under the mean kernel.

        Parameters
        ----------
        share
            Weight of the first kernel; the others share the rest.
        steps
            As in `MKFDA`.
        """

        def __init__(self, share=0.5, *, steps=("center", "trace")):
            self.share = share
            self.steps = steps

        def _check_parameters(self):
            super()._check_parameters()
            if not 0 <= self.share <= 1:
                msg = f"share must lie between 0 and 1, got {self.share!r}"
                raise InputError(msg)

        def _jobs(self, data, prepared):
            return data.jobs(lambda k: partial(self._means, data.problems.h[k], data.n_kernels))

        def _means(self, signs, n):
            yield from ()
            weights = np.array([self.share, *[(1 - self.share) / max(1, n - 1)] * (n - 1)])
            dual = np.where(signs > 0, 1 / np.sum(signs > 0), -1 / np.sum(signs < 0))[:, None]
            return Outcome(Status.CONVERGED, weights, dual, float("nan"), steps=[Step(weights, {"share": self.share})])

    return Centroid


def kernels():
    K, y = digits()
    return in_memory(K, 25), y % 3


def test_a_solver_works_everywhere(lazy, tmp_path):
    K, y = kernels()
    with pytest.warns(dmkl.errors.ConvergenceWarning, match="MKFDA ended with a relative gap"):
        model = dmkl.MKFDA(2.0, 1e-2, solver="lazy").fit(K[TRAIN, TRAIN], y[TRAIN])
    assert model.solver_ == "lazy"
    np.testing.assert_allclose(model.weights_, uniform_weights(len(K), 2.0))
    best = dmkl.MKFDA(2.0, 1e-2, solver="direct").fit(K[TRAIN, TRAIN], y[TRAIN])
    assert model.objective_ <= best.objective_ <= model.objective_ + model.gap_ * abs(model.objective_)
    model.save(tmp_path / "model")
    assert dmkl.load(tmp_path / "model").solver == "lazy"
    estimator = dmkl.MKFDA(solver="lazy")
    result = dmkl.search(estimator, K, y, {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}, cv=3, refit=False, baselines="none")
    assert result.scores.attrs["solver"] == "lazy"
    # Twelve fits share the passes over the kernels; one pass is for scores, one for statistics.
    assert result.n_passes_ <= 5
    with pytest.raises(InputError, match="'stacked', 'factors' or 'lazy', got 'laziest'"):
        dmkl.MKFDA(solver="laziest").fit(K[TRAIN, TRAIN], y[TRAIN])


def test_the_examples_of_the_architecture_run(monkeypatch, models, tmp_path):
    page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = {
        **{"np": np, "partial": partial, "KernelClassifier": KernelClassifier, "FisherSolver": FisherSolver},
        **{"SOLVERS": dict(SOLVERS), "Outcome": Outcome, "Status": Status, "Step": Step, "__name__": "page"},
    }
    first, second = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    exec(compile(first, "page", "exec"), names)
    exec(compile(second, "page", "exec"), names)
    K, y = kernels()
    monkeypatch.setitem(SOLVERS, "uniform", names["solver"])
    with pytest.warns(dmkl.errors.ConvergenceWarning, match="relative gap"):
        model = dmkl.MKFDA(2.0, 1e-2, solver="uniform").fit(K[TRAIN, TRAIN], y[TRAIN])
    np.testing.assert_allclose(model.weights_, uniform_weights(len(K), 2.0))
    fixed = names["FixedWeights"](share=0.2).fit(K[TRAIN, TRAIN], y[TRAIN])
    np.testing.assert_allclose(fixed.weights_.values[0], 0.2)
    assert fixed.score(K[TEST, TRAIN], y[TEST]) > 0.5
    fixed.save(tmp_path / "model")
    np.testing.assert_array_equal(dmkl.load(tmp_path / "model").predict(K[TEST, TRAIN]), fixed.predict(K[TEST, TRAIN]))
    result = dmkl.search(names["FixedWeights"](), K, y, {"share": [0.2, 0.5]}, cv=3, baselines="none")
    assert result.best_params_["share"] in (0.2, 0.5)


def test_a_learner_works_everywhere(centroid, tmp_path):
    K, y = kernels()
    model = centroid(share=0.2).fit(K[TRAIN, TRAIN], y[TRAIN])
    assert model.weights_.dims == ("kernel", "class")
    assert np.isnan(model.gap_).all()
    assert model.score(K[TEST, TRAIN], y[TEST]) > 0.7
    model.save(tmp_path / "model")
    loaded = dmkl.load(tmp_path / "model")
    assert isinstance(loaded, centroid)
    np.testing.assert_array_equal(loaded.predict(K[TEST, TRAIN]), model.predict(K[TEST, TRAIN]))
    grid, state = {"share": [0.0, 0.5, 1.0]}, tmp_path / "state"
    result = dmkl.search(centroid(), K, y, grid, cv=3, baselines="none", state=state)
    assert set(result.table()["status"]) == {"converged"}
    result.save(tmp_path / "found")
    assert dmkl.load(tmp_path / "found").best_params_ == result.best_params_
    with pytest.raises(InputError, match="share must lie"):
        centroid(share=2).fit(K[TRAIN, TRAIN], y[TRAIN])


@pytest.fixture
def shifted(centroid):
    """A learner that returns an intercept, and keeps an array that no other learner has."""

    class Shifted(centroid):
        """Nearest class mean with a score that is moved by 5."""

        def _means(self, signs, n):
            outcome = yield from super()._means(signs, n)
            return replace(outcome, bias=np.array([5.0]))

        def _set_attributes(self, outcome):
            self.spread_ = xr.DataArray([1.0, np.nan], [("side", ["left", "right"])], name="spread")

    return Shifted


def test_a_returned_intercept_counts_in_predictions_and_files(centroid, shifted, tmp_path):
    K, y = kernels()
    y = y == 1
    plain, model = (kind(share=0.2).fit(K[TRAIN, TRAIN], y[TRAIN]) for kind in (centroid, shifted))
    expected = plain.decision_function(K[TEST, TRAIN]) + 5.0
    model.save(tmp_path / "model")
    for each in (model, dmkl.load(tmp_path / "model")):
        np.testing.assert_allclose(each.decision_function(K[TEST, TRAIN]), expected)
        shares = each.contributions(K[TEST, TRAIN])
        np.testing.assert_allclose(shares.sum("kernel") + shares.intercept, expected)
    searched = dmkl.search(shifted(), K, y, {"share": [0.2]}, cv=[(TRAIN, TEST)], baselines="none")
    assert searched.best_score_ == model.score(K[TEST, TRAIN], y[TEST]) == np.mean(y[TEST])


def test_arrays_that_a_learner_sets_are_saved_and_others_refused(shifted, tmp_path):
    K, y = kernels()
    model = shifted().fit(K[TRAIN, TRAIN], y[TRAIN])
    model.save(tmp_path / "model")
    assert not problems(tmp_path / "model")
    xr.testing.assert_identical(dmkl.load(tmp_path / "model").spread_, model.spread_)
    model.trail_ = [1, 2]
    with pytest.raises(InputError, match=r"trail_ of this Shifted is of type list"):
        model.save(tmp_path / "model", overwrite=True)
    assert dmkl.load(tmp_path / "model").spread_.name == "spread"
