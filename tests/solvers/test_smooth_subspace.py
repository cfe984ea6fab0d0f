"""Smooth losses beyond memory: the subspace against the method in memory, its bounds, searches, and interruptions."""

import itertools

import dask
import numpy as np
import pytest
from helpers.interruption import cut_off
from helpers.references import in_memory

import dmkl
from dmkl.errors import InputError, MemoryBudgetError
from dmkl.numerics.losses import LOSSES
from dmkl.solvers import smooth_subspace

pytestmark = pytest.mark.usefixtures("rounds")

M, TRAIN, TEST = 90, np.arange(70), np.arange(70, 90)


def data(seed: int, n: int = 4):
    """Kernels of nearly full rank, labels of each loss, classes, covariates, and weights of samples."""
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, M, 4)), rng.normal(size=(M, 2))
    kernels = np.exp(-0.1 * np.sum((X[:, :, None] - X[:, None]) ** 2, axis=-1))
    eta = 2 * np.sin(X[0, :, 0]) + X[-1, :, 1] + 0.5 * Z[:, 0]
    numbers, counts = eta + rng.standard_t(2, size=M), rng.poisson(np.exp(0.4 * eta)).astype(float)
    signs = np.where(eta + rng.logistic(size=M) > 0, 1.0, -1.0)
    labels = dict.fromkeys(LOSSES, numbers) | {"poisson": counts, "squared_hinge": signs, "logistic": signs}
    labels["cox"] = dmkl.signed_times(np.ceil(3 * np.exp(-eta) * rng.exponential(size=M)), rng.random(M) < 0.7)
    labels["ordinal"] = np.digitize(eta, [-1, 1]).astype(float)
    d = rng.integers(1, 3, size=M).astype(float)
    return in_memory(kernels, 25), labels, np.digitize(eta, [-1, 1]), Z, d


def model_of(loss, p, lam, **options):
    return dmkl.MKCox(p, lam, **options) if loss == "cox" else dmkl.MKGLM(loss, p, lam, **options)


def check_against_memory(learner, K, y, **more):
    """Both prove that their objective is the optimum to 1e-7, so that these agree; returns both models."""
    memory, subspace = (type(learner)(**learner.get_params() | {"solver": name}) for name in ("memory", "subspace"))
    memory.fit(K[TRAIN, TRAIN], y[TRAIN], **more)
    subspace.fit(K[TRAIN, TRAIN], y[TRAIN], **more)
    assert (memory.solver_, subspace.solver_) == ("memory", "subspace")
    assert subspace.n_passes_ > memory.n_passes_
    assert np.all(np.asarray(subspace.gap_) <= learner.tol)
    np.testing.assert_allclose(subspace.objective_, memory.objective_, rtol=1e-6)
    np.testing.assert_allclose(subspace.weights_, memory.weights_, atol=1e-2)
    np.testing.assert_allclose(subspace._decision(K[TEST, TRAIN]), memory._decision(K[TEST, TRAIN]), atol=1e-2)
    return memory, subspace


OTHERS = itertools.product([name for name in LOSSES if name != "logistic"], [(1, 1.0), (2, 0.05), (np.inf, 5.0)])


@pytest.mark.parametrize(
    ("loss", "p", "lam"),
    [("logistic", 1.25, 1.0), *(pytest.param(loss, *at, marks=pytest.mark.slow) for loss, at in OTHERS)],
)
def test_the_subspace_finds_what_memory_finds(loss, p, lam):
    K, labels, _, _, d = data(1, 2 if loss == "logistic" else 4)
    memory, subspace = check_against_memory(model_of(loss, p, lam, tol=1e-7), K, labels[loss], sample_weight=d[TRAIN])
    if loss == "cox":
        np.testing.assert_allclose(subspace.baseline_hazard_, memory.baseline_hazard_, rtol=1e-2)
    if loss == "ordinal":
        np.testing.assert_allclose(subspace.thresholds_[1:], memory.thresholds_[1:], atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["none", "classes"])
def test_classes_and_covariates_too(sharing):
    K, _, classes, Z, _ = data(2)
    steps = (dmkl.residualize(Z), "multiplicative")
    learner = dmkl.MKLogistic(1.5, 0.3, sharing=sharing, steps=steps, class_weight="balanced", tol=1e-7)
    memory, subspace = check_against_memory(learner, K, classes)
    np.testing.assert_allclose(subspace.covariate_effects_, memory.covariate_effects_, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_bounds_hold_in_every_round(seed):
    """Whatever step a fit ends at, the objective and the lower bound of it enclose the optimum."""
    rng = np.random.default_rng(seed)
    K, labels, _, _, _ = data(seed, int(rng.integers(1, 6)))
    loss, p, lam = str(rng.choice(list(LOSSES))), float(rng.choice([1, 1.5, 4])), 10 ** rng.uniform(-2, 1)
    best = model_of(loss, p, lam, solver="memory", tol=1e-8).fit(K, labels[loss])
    model = model_of(loss, p, lam, solver="subspace", tol=1e-6).fit(K, labels[loss])
    assert np.isfinite(model.gap_)
    rounding = 1e-8 * best.objective_
    assert (model.history_["lower"] <= best.objective_ + rounding).all()
    assert (model.history_["objective"] >= best.objective_ * (1 - best.gap_) - rounding).all()


@pytest.mark.slow
def test_a_grid_over_folds_shares_its_passes():
    K, labels, _, _, _ = data(4)
    y, grid = (labels["logistic"] > 0).astype(int), {"p": [1, 2], "lam": [0.1, 1.0]}
    folds = [(TRAIN, TEST), (np.arange(20, 90), np.arange(20))]
    results = {
        name: dmkl.search(dmkl.MKLogistic(solver=name, tol=1e-6), K, y, grid, folds, scoring="neg_log_loss")
        for name in ("memory", "subspace")
    }
    scores = {name: result.scores["score"] for name, result in results.items()}
    np.testing.assert_allclose(scores["subspace"], scores["memory"], atol=1e-3)
    assert (results["subspace"].scores["gap"] <= 1e-6).all()
    assert results["subspace"].scores.attrs["n_passes"] < 30  # one point alone takes some ten


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3])
def test_a_search_that_was_interrupted_has_the_result_of_an_undisturbed_one(tmp_path, after):
    K, labels, _, Z, _ = data(6)
    offset = dict(zip(K.samples, 0.1 * Z[:, 0], strict=True))

    def search(name):
        learner = dmkl.MKGLM("poisson", solver="subspace", offset=offset)
        grid = {"p": [1, 2], "lam": [0.1, 1.0]}
        return dmkl.search(learner, K, labels["poisson"], grid, 2, refit=False, state=tmp_path / name).scores

    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "extra-0.npz").touch()  # as a process leaves it that is killed before its first commit
    whole = search("whole")
    with cut_off(after, method="commit"):
        search("state")
    resumed = search("state")
    for name in ("score", "weight", "gap", "objective"):
        np.testing.assert_array_equal(resumed[name], whole[name])
    assert resumed.attrs["n_passes"] == whole.attrs["n_passes"]


@pytest.mark.slow
def test_a_fit_that_ends_early_has_its_true_gap_or_is_finished_in_memory():
    K, labels, _, _, _ = data(7)
    options = {"lam": 0.1, "max_iter": 3}
    best = dmkl.MKLogistic(2, 0.1, solver="memory", tol=1e-8).fit(K, labels["logistic"])
    with pytest.warns(UserWarning, match="gap"):
        early = dmkl.MKLogistic(solver=dmkl.Subspace(finish="report"), **options).fit(K, labels["logistic"])
    assert early.gap_ > 1e-4
    assert early.gap_ >= (early.objective_ - best.objective_) / best.objective_
    finished = dmkl.MKLogistic(solver=dmkl.Subspace(), **options | {"tol": 1e-6}).fit(K, labels["logistic"])
    assert finished.objective_ == pytest.approx(best.objective_, rel=1e-6)
    with pytest.raises(InputError, match="solver must be 'auto', 'memory', 'factors', 'subspace'"):
        dmkl.MKLogistic(solver="direct").fit(K, labels["logistic"])


def test_larger_sets_take_the_subspace_unless_memory_is_asked_for():
    X = np.random.default_rng(0).normal(size=(420, 3))
    K, y = in_memory((X @ X.T)[None], 64), X[:, 0] > 0.1 * X[:, 1]
    model = dmkl.MKLogistic(np.inf, 50.0)
    with dask.config.set({"dmkl.memory": "4MB"}):  # combined kernels and factors take 5.6 MB
        assert model.fit(K, y.astype(int)).solver_ == "subspace"
        with pytest.raises(
            MemoryBudgetError, match=r"(?s)a smooth loss with solver='memory' would take.*Take solver='subspace'"
        ):
            model.set_params(solver="memory").fit(K, y.astype(int))


def test_problems_whose_factors_take_longest_take_the_subspace(monkeypatch):
    K, labels, _, Z, _ = data(8, 2)
    y, thin = labels["logistic"], dmkl.build(None, {"a": Z}, {"function": "linear"}, dtype="float64")
    assert dmkl.MKLogistic().fit(K, y).solver_ == "memory"
    # As if a basis had one vector: passes and steps are then fewer operations than factors of 90 samples.
    monkeypatch.setattr(smooth_subspace, "_WIDTH", 1)
    monkeypatch.setattr(smooth_subspace, "_RANK", 1)
    assert dmkl.MKLogistic().fit(K, y).solver_ == "subspace"
    assert dmkl.MKLogistic().fit(thin, y).solver_ == "memory"
    assert dmkl.MKCox().fit(K, labels["cox"]).solver_ == "memory"
