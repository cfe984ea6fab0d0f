"""The fold models of evaluations and searches: their predictions reproduce the test scores."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from helpers.references import digits, in_memory
from sklearn.model_selection import StratifiedKFold

import dmkl
from dmkl.errors import InputError

GRID = {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}


def kernels():
    return in_memory(digits()[0], 90), digits()[1] % 3


def assert_scored(result, name, K, y, path):
    """Assert that the fold models, in memory and loaded from a file, reproduce the scores."""
    result.save(path)
    loaded = dmkl.load(path)
    assert list(result.models_) == list(loaded.models_) == list(result.folds)
    for fold, (*seen, test) in result.folds.items():
        train = np.sort(np.concatenate(seen))
        for model in (result.models_[fold], loaded.models_[fold]):
            assert model.train_samples_.tolist() == K.samples[train].astype(str).tolist()
            assert model.score(K[test, train], y[test]) == result.scores[name].sel(fold=fold).item()
        xr.testing.assert_equal(loaded.models_[fold].dual_coef_, result.models_[fold].dual_coef_)


@pytest.mark.parametrize(
    ("learner", "grid"),
    [
        (dmkl.MKFDA(), GRID),
        pytest.param(dmkl.MKSVM(decision="means"), {"p": [1.0, 2.0], "C": [1.0, 4.0]}, marks=pytest.mark.slow),
    ],
)
def test_an_evaluation_keeps_the_models_that_it_tests(learner, grid, tmp_path):
    K, y = kernels()
    result = dmkl.evaluate(learner, K, y, grid, outer=StratifiedKFold(2), inner=2, baselines="none")
    assert_scored(result, "test_score", K, y, tmp_path / "result")
    for fold, search in result.searches.items():
        assert search.models_ == {}
        chosen = {name: result.scores[name].sel(fold=fold).item() for name in grid}
        assert {name: getattr(result.models_[fold], name) for name in grid} == chosen
        weights = result.models_[fold].weights_
        if weights.dims == ("kernel",):
            np.testing.assert_array_equal(weights, result.scores["weight"].sel(fold=fold))


def test_a_search_keeps_the_model_of_each_split(tmp_path):
    K, y = kernels()
    order = np.random.default_rng(0).permutation(len(y))
    folds = [(order[:50], order[50:70], order[70:]), (order[20:70], order[70:], order[:20])]
    result = dmkl.search(dmkl.MKFDA(), K, y, GRID, folds, choice="fold", baselines="none")
    assert_scored(result, "refit_test_score", K, y, tmp_path / "result")
    weights = result.scores["weight"]  # for every p, λ and split, as in figures over p
    assert {name: weights.sizes[name] for name in ("p", "lam", "fold", "kernel")} == dict(p=2, lam=2, fold=2, kernel=5)


def test_without_test_rows_or_a_refit_there_are_none():
    K, y = kernels()
    assert dmkl.search(dmkl.MKFDA(), K, y, GRID, 2, baselines="none").models_ == {}
    folds = [(np.arange(40), np.arange(40, 60), np.arange(60, 90))]
    assert dmkl.search(dmkl.MKFDA(), K, y, GRID, folds, baselines="none", refit=False).models_ == {}


def test_models_of_folds_predict_from_kernels_alone():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)) + np.arange(60)[:, None] % 3, np.arange(60) % 3
    K = dmkl.build(None, {"x": x}, {"function": "rbf", "bandwidth": 1.0}, labels=y)
    result = dmkl.evaluate(dmkl.MKFDA(), K, grid=GRID, outer=2, inner=2, baselines="none")
    with pytest.raises(InputError, match=r"without the features of training; take kernels, K\[test, train\]"):
        result.models_["0"].predict(features={"x": x})
