"""`dmkl fit`, `search` and `evaluate` with each model of the help and no options, on a toy set."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import is_clusterer, is_regressor

import dmkl
from dmkl.cli.learners import learners

M = 30
MODELS = {name: getattr(dmkl, learner.name)() for name, learner in learners().items() if hasattr(dmkl, learner.name)}
LABELED = [name for name, model in MODELS.items() if not is_clusterer(model)]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Sets of classes and of numbers with two kernels of similarities; of one of them samples differ in k(x, x)."""
    rng = np.random.default_rng(0)
    y = np.arange(M) % 2
    X = np.abs(rng.normal(size=(M, 4)) + 1.5 * np.eye(2, 4)[y])
    squares = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    kernels = {"gaussian": np.exp(-squares / squares.mean()), "linear": X @ X.T}
    folder = tmp_path_factory.mktemp("toy")
    of = {"classes": np.array(["apple", "pear"])[y], "numbers": X[:, 0] + 0.3 * rng.normal(size=M)}
    return {
        kind: dmkl.create(folder / f"{kind}.zarr", kernels, labels=labels).view.source.location
        for kind, labels in of.items()
    }


@pytest.fixture
def set_of(sets):
    """The set that suits a model."""
    return lambda name: sets["numbers" if is_regressor(MODELS[name]) else "classes"]


@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", MODELS)
def test_fit_takes_every_model_without_options(succeed, tmp_path, set_of, name):
    succeed("fit", set_of(name), tmp_path / "model", "--model", name)
    model = dmkl.load(tmp_path / "model")
    assert type(model) is type(MODELS[name])
    assert np.isfinite(model.weights_).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", LABELED)
def test_search_takes_every_model_without_options(succeed, tmp_path, set_of, name):
    succeed("search", set_of(name), tmp_path / "result", "--model", name)
    result = dmkl.load(tmp_path / "result")
    assert np.isfinite(result.best_score_)
    assert type(result.best_) is type(MODELS[name])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", LABELED)
def test_evaluate_takes_every_model_without_options(succeed, tmp_path, set_of, name):
    succeed("evaluate", set_of(name), tmp_path / "estimate", "--model", name)
    assert np.isfinite(dmkl.load(tmp_path / "estimate").scores["test_score"]).all()
