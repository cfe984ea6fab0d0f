"""A solver of MK-FDA needs one function and one line: that of the architecture is used everywhere."""

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


def test_a_solver_works_everywhere(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = {"np": np, "FisherSolver": FisherSolver, "SOLVERS": dict(SOLVERS)}
    exec(compile(re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)[0], "page", "exec"), names)
    monkeypatch.setitem(SOLVERS, "uniform", names["SOLVERS"]["uniform"])
    kernels, y = digits()
    K, y = in_memory(kernels, 25), y % 3
    with pytest.warns(dmkl.errors.ConvergenceWarning, match="MKFDA ended with a relative gap"):
        model = dmkl.MKFDA(2.0, 1e-2, solver="uniform").fit(K[TRAIN, TRAIN], y[TRAIN])
    assert model.solver_ == "uniform"
    np.testing.assert_allclose(model.weights_, uniform_weights(len(K), 2.0))
    best = dmkl.MKFDA(2.0, 1e-2, solver="direct").fit(K[TRAIN, TRAIN], y[TRAIN])
    assert model.objective_ <= best.objective_ <= model.objective_ + model.gap_ * abs(model.objective_)
    model.save(tmp_path / "model")
    assert dmkl.load(tmp_path / "model").solver == "uniform"
    estimator = dmkl.MKFDA(solver="uniform")
    result = dmkl.search(estimator, K, y, {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}, cv=3, refit=False, baselines="none")
    assert result.scores.attrs["solver"] == "uniform"
    # Twelve fits share the passes over the kernels; one pass is for scores, one for statistics.
    assert result.n_passes_ <= 5
    with pytest.raises(InputError, match="'stacked', 'factors' or 'uniform', got 'laziest'"):
        dmkl.MKFDA(solver="laziest").fit(K[TRAIN, TRAIN], y[TRAIN])


def test_the_former_name_of_the_learners_gives_the_same_classes():
    sys.modules.pop("dmkl.estimators", None)  # the warning comes at the first import
    with pytest.warns(FutureWarning, match="dmkl.estimators is called dmkl.learners now"):
        former = importlib.import_module("dmkl.estimators.learner")
    assert former.KernelClassifier is KernelClassifier
    with pytest.raises(ImportError, match="nothing"):
        importlib.import_module("dmkl.estimators.nothing")
