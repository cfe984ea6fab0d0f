"""`dmkl.stability`: every resample against a separate fit, draws, selection, its bounds, resuming, pictures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from helpers.references import digit_set, labels
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.errors import InputError
from dmkl.inference.stability import agreement, draw_resamples, error_bound, select

pytestmark = pytest.mark.usefixtures("rounds")

TIGHT = 1e-8


# --- against a loop of fits --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("estimator", "kind", "how", "tile"),
    [
        (dmkl.MKFDA(p=1.0, tol=TIGHT), "multiclass", "half", 25),
        (dmkl.MKFDA(p=1.5, tol=1e-5, solver="subspace"), "multilabel", "half", 25),
        (dmkl.MKFDA(p=1.5, tol=TIGHT), "binary", "bootstrap", 25),
        (dmkl.MKRidge(p=2.0, tol=TIGHT), "regression", "folds", 90),
        (dmkl.MKSVM(p=1.5, tol=1e-6), "binary", "bootstrap", 90),
    ],
)
def test_each_resample_is_a_fit_of_its_own(estimator, kind, how, tile):
    K, y = digit_set(tile), labels(kind)
    result = dmkl.stability(estimator, K, y, 2, how=how, random_state=3)
    folds = draw_resamples(how, 2, 3, y, classes=kind != "regression")
    for k, fold in enumerate(folds):
        train, test = fold.train, fold.validation
        single = result.data.isel(resample=k)
        alone = clone(estimator).fit(K[train, train], y[train], fold.counts)
        np.testing.assert_allclose(single["weight"], alone.weights_, atol=1e-6 if estimator.tol < 1e-6 else 1e-3)
        np.testing.assert_allclose(single["objective"], alone.objective_, rtol=1e-6)
        scoring = str(result.data.attrs["scoring"])
        own = dmkl.assess(alone, K[test, train], y[test], scoring=scoring)["score"].sel(measure=scoring)
        np.testing.assert_allclose(single["score"], own, rtol=1e-6)
        assert (single["n_train"], single["n_test"]) == (len(train), len(test))
        if how == "bootstrap":
            np.testing.assert_array_equal(single["n_drawn"][train], fold.counts)


def test_all_resamples_share_the_passes():
    K, y, model = digit_set(), labels("binary"), dmkl.MKFDA(p=1.5)
    alone = [clone(model).fit(K[f.train, f.train], y[f.train]).n_passes_ for f in draw_resamples("half", 4, 0, y)]
    assert dmkl.stability(model, K, y, 4).n_passes_ <= np.mean(alone) + 3


# --- draws -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("how", "kind"),
    [("half", "multiclass"), ("bootstrap", "multiclass"), ("bootstrap", "regression"), ("folds", "regression")],
)
def test_groups_are_whole(how, kind):
    y, groups = labels(kind), np.arange(90) // 3
    for fold in draw_resamples(how, 4, 0, y, groups=groups, classes=kind != "regression"):
        assert not set(groups[fold.train]) & set(groups[fold.validation])
        assert len(fold.train) + len(fold.validation) == 90
        if how == "bootstrap":
            assert fold.counts.sum() == 90
            assert all(len(set(fold.counts[groups[fold.train] == g])) == 1 for g in set(groups[fold.train]))


def test_draws_keep_the_shares_of_classes_and_halves_come_in_pairs_that_share_no_row():
    y = labels("multiclass")
    folds = draw_resamples("half", 6, 0, y)
    assert [fold.name for fold in folds] == list("012345")
    assert len({fold.train.tobytes() for fold in folds}) == 6
    for half, other in list(pairwise(folds))[::2]:
        np.testing.assert_array_equal(half.train, other.validation)
        np.testing.assert_array_equal(half.validation, other.train)
        assert np.abs(np.bincount(y[half.train]) - np.bincount(y[other.train])).max() <= 1
    for fold in draw_resamples("bootstrap", 3, 0, y):
        np.testing.assert_array_equal(np.bincount(y[fold.train], fold.counts), np.bincount(y))
        assert fold.counts.max() > 1


@pytest.mark.parametrize(("n_groups", "possible"), [(20, None), (6, 18), (5, 12)])
def test_halves_of_groups_are_drawn_from_all_that_there_are(n_groups, possible):
    """For g groups in each of two classes a half has g/2 of each: C(g, g/2)² random halves.

    For 3 and 3 groups a half has 2 and 1, or 1 and 2: 3·3·2 = 18; for 3 and 2 groups 2·1·3 = 6, and their complements.
    """
    sizes = np.random.default_rng(0).integers(15, 35, n_groups)
    groups = np.repeat([f"donor {g}" for g in range(n_groups)], sizes)
    y = np.repeat(np.arange(n_groups) % 2, sizes)
    folds = draw_resamples("half", 100, 0, y, groups=groups)
    halves = [frozenset(groups[fold.train]) for fold in folds]
    assert len(set(halves)) == (possible or 100)
    for half, other in list(pairwise(halves))[::2]:
        assert half | other == set(groups)
        assert abs(len(half) - len(other)) <= 1


@pytest.mark.parametrize("how", ["half", "bootstrap"])
def test_draws_that_lack_a_class_are_drawn_again(how):
    """Two of the eight groups have the rare class: four of seven halves split them; a bootstrap often misses both."""
    groups = np.repeat(np.arange(8), 4)
    y = np.where((groups < 2) & (np.arange(32) % 4 == 0), 1, 0)
    for fold in draw_resamples(how, 40, 0, y, groups=groups):
        assert len(fold.validation)
        assert set(y[fold.train]) == {0, 1}
    alone = np.where(groups == 0, 1, 0)
    with pytest.raises(InputError, match=r"how='half': .*class"):
        draw_resamples("half", 2, 0, alone, groups=groups)


def test_few_distinct_resamples_are_told():
    y, groups = labels("binary"), np.arange(90) % 6
    result = dmkl.stability(dmkl.MKFDA(p=1.0), digit_set(), y, 20, groups=groups)
    n_distinct = len({row.tobytes() for row in result.data["weight"].values})
    assert n_distinct < 20
    assert result.data.attrs["n_distinct"] == n_distinct
    assert f"Only {n_distinct} of the 20 half-samples are distinct" in result.summary()
    assert f"{n_distinct} of 20 half-samples are distinct" in result.plot()[0].figure.get_suptitle()


# --- selection ---------------------------------------------------------------------------------------------------
def test_what_is_selected():
    weights = np.array([[0.5, 0.3, 0.004, 0.2, 0.0], [0.4, 0.4, 0.2, 0.0, 0.0]])
    np.testing.assert_array_equal(select(weights), [[1, 1, 0, 1, 0], [1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(select(weights, 2), [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(select(weights, 1)[1], np.zeros(5))  # neither of two that are equal
    np.testing.assert_array_equal(select(weights, 9), weights > 0)


@pytest.mark.parametrize(
    ("q", "n", "pi", "pairs", "plain", "unimodal"),
    [
        # By hand from the two theorems.
        (3, 30, 0.9, 50, 0.375, 0.3 * 4 * 0.11 / 1.02),
        (3, 30, 0.6, 50, 1.5, 0.3 / (2 * (0.2 - 0.01))),
        (8, 10, 0.9, 50, 8.0, np.nan),
    ],
)
def test_the_bounds_of_stability_selection(q, n, pi, pairs, plain, unimodal):
    assert error_bound(q, n, pi) == pytest.approx(plain)
    assert error_bound(q, n, pi, pairs) == pytest.approx(unimodal, nan_ok=True)


def test_agreement_is_kendalls():
    rng = np.random.default_rng(1)
    weights = rng.random((6, 5)) + 0.1
    ranks = rankdata(weights, axis=1)
    sums = ranks.sum(axis=0)
    expected = 12 * ((sums - sums.mean()) ** 2).sum() / (6**2 * (5**3 - 5))
    assert agreement(weights) == pytest.approx(expected)
    assert agreement(np.tile(weights[0], (4, 1))) == pytest.approx(1.0)
    assert np.isnan(agreement(np.ones((4, 5))))
    assert np.isnan(agreement(weights[:, :2]))


# --- results -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def result():
    K, y = digit_set(), labels("multiclass")
    return dmkl.stability(dmkl.MKFDA(p=1.0), K, y, 6, n_selected=2, scoring=["accuracy", "matthews"])


@pytest.fixture(scope="module")
def of_tasks():
    return dmkl.stability(dmkl.MKFDA(p=1.0), digit_set(), labels("multilabel"), 3, how="folds")


def test_what_the_weights_tell(result):
    data = result.data
    weight = data["weight"].values
    np.testing.assert_allclose(data["mean_weight"], weight.mean(axis=0))
    np.testing.assert_allclose(data["standard_error"], weight.std(axis=0, ddof=1))
    np.testing.assert_allclose(data["upper"], np.quantile(weight, 0.975, axis=0))
    assert (data["selected"].sum("kernel") == 2).all()
    np.testing.assert_array_equal(result.stable(0.75), data["selected"].mean("resample") >= 0.75)
    assert result.mean_selected_ == 2
    assert result.error_bound() == pytest.approx(error_bound(2, data.sizes["kernel"], 0.9))
    folds = draw_resamples("half", 6, 0, labels("multiclass"))
    np.testing.assert_array_equal(data["part"], [np.isin(np.arange(90), fold.validation) for fold in folds])
    assert {"score", "score_matthews"} <= set(data)
    stable = data["kernel"].values[result.stable().values]
    assert f"Selected by 90 % of the resamples or more: {', '.join(stable)}" in result.summary()
    assert stable.tolist() == ["kernel_0", "kernel_1"]
    bound = "stable kernels that a half-sample selects with a probability of 0.400 or less is at most 1.00; noise"
    assert f"A resample selects 2 of 5. The expected number of {bound}" in result.summary()


def spectra(seed, informative):
    """One narrow and nine wide Gaussian kernels of noise, and one that separates the two classes."""
    rng, y = np.random.default_rng(seed), np.arange(100) % 2
    views = [(5.0, rng.normal(size=(100, 5)))] + [(0.02, rng.normal(size=(100, 5))) for _ in range(9)]
    if informative:
        views.append((0.05, rng.normal(size=(100, 5)) + 3.0 * y[:, None] * np.eye(5)[0]))
    return np.stack([rbf_kernel(view, gamma=gamma) for gamma, view in views]), y


def test_stable_weights_may_be_those_of_noise():
    """The narrow kernel of noise is selected by every half: its many equal eigenvalues fit any labels."""
    K, y = spectra(0, informative=False)
    noise = dmkl.stability(dmkl.MKFDA(p=1), K, y, 10, n_selected=1)
    assert noise.data["selection_frequency"][0] == 1
    bound = "a half-sample selects with a probability of 0.100 or less is at most 0.125; noise that it selects more"
    assert f"A resample selects 1 of 10. The expected number of stable kernels that {bound} often is" in noise.summary()
    majority = [max(np.mean(y[part.values == 1] == label) for label in (0, 1)) for part in noise.data["part"]]
    np.testing.assert_allclose(noise.data["constant_score"], majority)
    K, y = spectra(0, informative=True)
    signal = dmkl.stability(dmkl.MKFDA(p=1, lam=1.0), K, y, 10)
    assert signal.data["selection_frequency"][10] == 1
    assert signal.data["selection_frequency"][0] < 0.5


def test_several_tasks(of_tasks):
    assert of_tasks.stable().dims == ("kernel", "task")
    spread = of_tasks.data["weight"].std("resample") * np.sqrt(2)
    np.testing.assert_allclose(of_tasks.data["standard_error"], spread)
    assert np.isnan(of_tasks.error_bound()).all()
    assert np.isnan(of_tasks.error_bound(unimodal=True)).all()


def test_pictures(result, of_tasks):
    weights, shares = result.plot()
    ranked = result.data.isel(kernel=np.argsort(-result.data["mean_weight"].values, kind="stable"))
    assert [label.get_text() for label in weights.get_yticklabels()] == ranked["kernel"].values.tolist()
    assert [bar.get_width() for bar in shares.patches] == ranked["selection_frequency"].values.tolist()
    assert weights.get_xlim()[0] == 0.0
    task, mean = of_tasks.tasks[1], of_tasks.data["mean_weight"]
    (line,) = of_tasks.plot(task=task)[0].lines
    np.testing.assert_array_equal(line.get_xdata(), np.sort(mean.sel(task=task))[::-1])
    weights, _ = of_tasks.plot()  # tasks have equal weight in the mean, for any p
    np.testing.assert_allclose(weights.lines[0].get_xdata(), np.sort((mean / mean.sum("kernel")).mean("task"))[::-1])
    with pytest.raises(InputError, match="there is no task 'none'"):
        of_tasks.plot(task="none")


@pytest.mark.slow
def test_planted_kernels_are_found():
    """3 informative of 30 kernels, 10 seeds: all are stable, and false ones are within the bound.

    The same holds if each half selects twice as many kernels as are informative.
    """
    frequencies: dict[int, list[np.ndarray]] = {3: [], 6: []}
    for seed in range(10):
        rng, y = np.random.default_rng(seed), np.arange(150) % 2
        features = rng.standard_normal((30, 150, 5))
        features[:3, :, 0] += 1.6 * y
        K = features @ features.transpose(0, 2, 1)
        result = dmkl.stability(dmkl.MKFDA(p=1.0), K, y, 40, n_selected=3, threshold=0.75, random_state=seed)
        assert result.stable()[:3].all()
        for q, selections in frequencies.items():
            selections.append(select(result.data["weight"].values, q).mean(axis=0))
    for q, each in frequencies.items():
        for pi in (0.6, 0.75, 0.9):
            false = (np.array(each)[:, 3:] >= pi).sum(axis=1).mean()
            assert false <= np.fmin(error_bound(q, 30, pi), error_bound(q, 30, pi, 20))
