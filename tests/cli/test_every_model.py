"""`dmkl fit`, `search` and `evaluate` with each model of the help and no options, on a toy set."""

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


COMMANDS = {"fit": MODELS, "search": LABELED, "evaluate": LABELED}


@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        pytest.param(command, name, marks=[pytest.mark.slow] * (command != "fit"))
        for command, names in COMMANDS.items()
        for name in names
    ],
)
def test_every_model_without_options(succeed, tmp_path, sets, command, name):
    succeed(command, sets["numbers" if is_regressor(MODELS[name]) else "classes"], tmp_path / "out", "--model", name)
    out = dmkl.load(tmp_path / "out")
    if command == "evaluate":
        assert np.isfinite(out.scores["test_score"]).all()
        return
    model = out if command == "fit" else out.best_
    assert type(model) is type(MODELS[name])
    assert np.isfinite(model.weights_ if command == "fit" else out.best_score_).all()
