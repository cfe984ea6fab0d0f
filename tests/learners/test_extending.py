"""A solver of MK-FDA needs one function and one line: it is defined here and used everywhere."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.references import digits, in_memory

import dmkl
from dmkl.errors import InputError
from dmkl.learners.learner import KernelClassifier
from dmkl.numerics.fisher import uniform_weights
from dmkl.solvers.fisher.problem import FisherSolver
from dmkl.solvers.fisher.registry import SOLVERS

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


def test_the_solver_of_the_architecture_runs(monkeypatch):
    page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = {"np": np, "FisherSolver": FisherSolver, "SOLVERS": dict(SOLVERS)}
    exec(compile(re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)[0], "page", "exec"), names)
    K, y = kernels()
    monkeypatch.setitem(SOLVERS, "uniform", names["solver"])
    with pytest.warns(dmkl.errors.ConvergenceWarning, match="relative gap"):
        model = dmkl.MKFDA(2.0, 1e-2, solver="uniform").fit(K[TRAIN, TRAIN], y[TRAIN])
    np.testing.assert_allclose(model.weights_, uniform_weights(len(K), 2.0))


def test_the_former_name_of_the_learners_gives_the_same_classes():
    sys.modules.pop("dmkl.estimators", None)  # the warning comes at the first import
    with pytest.warns(FutureWarning, match="dmkl.estimators is called dmkl.learners now"):
        former = importlib.import_module("dmkl.estimators.learner")
    assert former.KernelClassifier is KernelClassifier
    with pytest.raises(ImportError, match="nothing"):
        importlib.import_module("dmkl.estimators.nothing")
