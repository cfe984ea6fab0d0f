"""Kernels that are constant or zero over training samples: no weight, a warning, and the fit of the others."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import ConstantKernelWarning, DegenerateKernelError

M = 48
Y = np.arange(M) % 3
TRAIN, TEST = np.arange(16, M), np.arange(16)
NUMBERS = Y[TRAIN] + np.random.default_rng(2).normal(size=len(TRAIN))
GOOD, SHIFTS = ["a", "b", "c"], (1.0, 0.6, 0.3)


@pytest.fixture(scope="module")
def K():
    """Three kernels, a constant and a zero one, and one that is zero outside the first samples."""
    rng = np.random.default_rng(0)
    kernels = {
        name: rbf_kernel(rng.normal(size=(M, 4)) + s * np.eye(4)[Y]) for name, s in zip(GOOD, SHIFTS, strict=True)
    }
    rare = np.where(np.arange(M) < 12, rng.normal(size=M), 0.0)
    kernels |= {"one": np.full((M, M), 0.1), "zero": np.zeros((M, M)), "rare": np.outer(rare, rare)}
    return dmkl.create(None, kernels, labels=Y)


@pytest.fixture(scope="module")
def factors():
    """The same kinds of kernels, kept as factors."""
    rng = np.random.default_rng(1)
    rare = np.where(np.arange(M)[:, None] < 12, rng.normal(size=(M, 2)), 0.0)
    tables = {name: rng.normal(size=(M, 2)) + s * np.eye(3)[Y, :2] for name, s in zip(GOOD, SHIFTS, strict=True)}
    tables |= {"one": np.full((M, 2), 1e3 / 3), "zero": np.zeros((M, 2)), "rare": rare}
    return dmkl.build(None, tables, {"function": "linear"}, labels=Y)


def warned(action, *names):
    with pytest.warns(ConstantKernelWarning) as record:
        result = action()
    messages = [str(w.message) for w in record if w.category is ConstantKernelWarning]
    assert len(messages) == 1
    assert all(repr(name) in messages[0] for name in names)
    return result


ON_BOTH = [
    dmkl.MKSVM(np.inf),
    dmkl.EasyMKL(),
    dmkl.GSMKL(n_groups=2, max_iter=10),
    dmkl.LocalizedMKL(20.0, max_iter=10),
    dmkl.SingleBest(),
]
ON_TILES = [
    *(dmkl.MKFDA(p) for p in (1.0, 2.0, np.inf)),
    *(dmkl.MKFDA(steps=steps) for steps in ("center", "cosine,center", "center,cosine", "center,multiplicative")),
    dmkl.MKFDA(solver="subspace"),
    dmkl.MKFDA(class_weight="balanced"),
    dmkl.GMKL(),
    dmkl.LPBoost(cv=2, sharing="none"),
    dmkl.NCuts(2, steps="center,trace"),
    dmkl.KernelKMeans(3),
    dmkl.MultipleKernelKMeans(3),
]
ON_FACTORS = [
    *(dmkl.MKFDA(np.inf, steps=steps) for steps in ("center,trace", "center", "multiplicative", "center,cosine")),
    *(dmkl.MKFDA(steps=steps) for steps in ("cosine", "cosine,center")),
    dmkl.MKSVM(steps="cosine"),
    dmkl.GMKL(tol=1e-10),
    dmkl.LPBoost(cv=2),
    dmkl.Stack(),
]
REGRESSIONS = [
    dmkl.MKRidge(),
    dmkl.VarianceComponents(),
    dmkl.VarianceComponents("he"),
    dmkl.VarianceComponents(steps="center,trace"),
    dmkl.VarianceComponents(traces="probes", n_probes=5),
]
CASES = {"K": ON_BOTH + ON_TILES + REGRESSIONS, "factors": ON_BOTH + ON_FACTORS + REGRESSIONS}


@pytest.mark.parametrize(("of", "learner"), [(of, each) for of in CASES for each in CASES[of]], ids=repr)
def test_a_fit_is_that_of_the_other_kernels(of, learner, request, tmp_path):
    K = request.getfixturevalue(of)
    good, others = list(K.names[:3]), list(K.names[3:])
    if of == "K" and "cosine" in str(learner.steps):
        others = ["one"]
    elif of == "factors" and learner.steps == "cosine":
        others.remove(K.names[3])  # a kernel of ones is no kernel of zeros if it is not centered
    y, scores = (NUMBERS, "predict") if learner in REGRESSIONS else (Y[TRAIN], "decision_function")
    some, rest = K.select(good + others), K.select(good)
    model = warned(lambda: clone(learner).fit(some[TRAIN, TRAIN], y), *others)
    other = clone(learner).fit(rest[TRAIN, TRAIN], y)
    assert not model.weights_.sel(kernel=others).any()
    # Products of more columns are rounded differently. Weights of GMKL are as accurate as the root of its proven gap,
    # and rounding may decide whether it takes another step: 6e-6 measured at this tolerance.
    accuracy = 1e-12 if of == "K" else 1e-4 if isinstance(learner, dmkl.GMKL) else 1e-9
    of_weights, of_scores = {"rtol": accuracy, "atol": 1e-12 * (of != "K")}, {"atol": accuracy}
    if learner in REGRESSIONS:
        of_weights = of_scores = {"rtol": 1e-6, "atol": 1e-9}
    np.testing.assert_allclose(model.weights_.sel(kernel=good), other.weights_, **of_weights)
    expected = getattr(other, scores)(rest[TEST, TRAIN])
    computed = getattr(model, scores)(some[TEST, TRAIN])
    np.testing.assert_allclose(computed, expected, **of_scores)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(getattr(dmkl.load(tmp_path / "model"), scores)(some[TEST, TRAIN]), computed)
    if hasattr(model, "gating_"):
        assert np.isneginf(model.gating_["gating_constant"].sel(kernel=others)).all()
    if hasattr(model, "components_"):
        own, theirs = (m.components_.sel(term=[*good, "residual", "total"]) for m in (model, other))
        for name in ("variance_se", "variance_share", "likelihood_ratio", "p_value"):
            np.testing.assert_allclose(own[name], theirs[name], rtol=1e-5, atol=1e-9)
        with pytest.raises(DegenerateKernelError, match="no variance of a kernel can be estimated"):
            clone(learner).fit(K.select(others)[TRAIN, TRAIN], y)


@pytest.mark.filterwarnings("ignore::dmkl.errors.ConstantKernelWarning")
@pytest.mark.parametrize("of", ["K", "factors"])
@pytest.mark.parametrize(
    ("learner", "grid"),
    [
        (dmkl.MKSVM(), {"C": [4.0]}),
        (dmkl.LocalizedMKL(max_iter=5), {"C": [20.0]}),
        (dmkl.VarianceComponents(), {"method": ["reml"]}),
    ],
)
def test_searches_and_evaluations_have_the_scores_of_fits(of, learner, grid, request):
    K, cv = request.getfixturevalue(of), [(TRAIN, TEST), (np.arange(32), np.arange(32, M))]
    y = Y + 0.1 if "method" in grid else Y
    result = dmkl.search(learner, K, y, grid, cv, refit=False, baselines="none")
    point = {name: value for name, (value,) in grid.items()}
    for (train, test), score in zip(cv, result.scores.score.values.ravel(), strict=True):
        model = clone(learner).set_params(**point).fit(K[train, train], y[train])
        assert model.score(K[test, train], y[test]) == pytest.approx(score, rel=1e-9)
    evaluated = dmkl.evaluate(learner, K, y, grid, outer=cv, inner=2, baselines="none").scores.test_score
    np.testing.assert_allclose(evaluated.values.ravel(), result.scores.score.values.ravel(), rtol=1e-9)


@pytest.mark.filterwarnings("ignore::dmkl.errors.ConstantKernelWarning")
@pytest.mark.parametrize("of", ["K", "factors"])
def test_every_analysis_goes_on_where_a_kernel_is_constant_in_one_fold(of, request):
    K = request.getfixturevalue(of)
    cv, grid, rare = [(TRAIN, TEST), (np.arange(32), np.arange(32, M))], {"p": [1.0, np.inf], "lam": [0.1]}, K.names[5]
    result = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=cv, baselines="all")
    weights = result.scores.weight.sel(kernel=rare, p=np.inf).values.ravel()
    np.testing.assert_array_equal(weights, [0.0, 1.0])
    assert np.isfinite(result.baselines["score"]).all()
    for fold, (train, test) in enumerate(cv):
        model = dmkl.MKFDA(np.inf, 0.1).fit(K[train, train])
        score = result.scores.score.sel(p=np.inf).isel(fold=fold).item()
        assert model.score(K[test, train]) == score
    options = {"grid": grid, "cv": cv}
    assert np.isfinite(dmkl.permutation_test(dmkl.MKFDA(), K, n_permutations=3, **options).data.p_value)
    assert dmkl.importance(dmkl.MKFDA(), K, **options).data.loss.sel(source=K.names[4]) == 0
    assert np.isfinite(dmkl.evaluate(dmkl.MKFDA(), K, grid=grid, outer=cv, inner=2).scores.test_score).all()
    assert not dmkl.stability(dmkl.MKFDA(), K, n_resamples=2).data["weight"].sel(kernel=K.names[4]).any()


def test_a_kernel_that_is_constant_for_one_task_has_no_weight_there(K):
    labels = np.stack([Y == 0, Y == 1], axis=1).astype(float)
    labels[:12, 0] = np.nan
    some = K.select([*GOOD, "rare"])
    weights = warned(lambda: dmkl.MKFDA(np.inf).fit(some, labels), "rare").weights_
    np.testing.assert_array_equal(weights.sel(kernel="rare"), [0.0, 1.0])


@pytest.mark.parametrize("steps", [(), "center", "center,trace", "cosine", "cosine,center"])
def test_kernels_that_are_all_zero_are_refused(steps):
    for kernels in (np.zeros((2, M, M)), np.zeros((1, M, M)), *([np.ones((2, M, M))] if "center" in steps else [])):
        with pytest.raises(DegenerateKernelError, match=r"all kernels .* are constant or zero"):
            dmkl.MKFDA(steps=steps).fit(kernels, Y)


def test_zeros_on_the_diagonal_alone_are_no_zero_kernel(K):
    values = np.asarray(K.select(GOOD))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dmkl.errors.IndefiniteKernelWarning)
        hollow = dmkl.create(None, values * (1 - np.eye(M)), labels=Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConstantKernelWarning)
        assert dmkl.NCuts(2).fit(hollow).weights_.any()
