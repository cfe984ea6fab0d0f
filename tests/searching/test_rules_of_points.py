"""The decision rule of each point of a search is the one that a fit of this point alone learns."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.solvers.fisher import registry

GRID = {"p": [1.0, 2.0, np.inf], "lam": [1e-4, 1e-2, 1.0]}


def drawn(m, n_classes, share):
    """A generator, labels of which the first class has the given share, and informative features."""
    rng = np.random.default_rng([m, n_classes])
    rest = (1.0 - share) / (n_classes - 1)
    y = rng.choice(n_classes, m, p=[share, *[rest] * (n_classes - 1)])
    return rng, y, rng.normal(size=(m, 5)) + 1.6 * np.eye(5)[y]


def kernels(m, *classes):
    """An informative linear kernel and two flat ones, in which samples are nearly orthogonal."""
    rng, y, F = drawn(m, *classes)
    flat = [rbf_kernel(rng.normal(size=(m, 20)), gamma=2.0) for _ in range(2)]
    return dmkl.create(None, np.stack([F @ F.T, *flat]), labels=y, dtype="float64")


def factors(m, *classes):
    rng, y, F = drawn(m, *classes)
    tables = {"informative": F, "noise": rng.normal(size=(m, 20))}
    return dmkl.build(None, tables, {"function": "linear"}, labels=y)


def search_and_fits(K, m, grid, scoring="neg_log_loss", every=1, **parameters):
    """A search that trains on the first m samples, and scores of fits at each p and `every` λ, (p, lam, measure)."""
    train, held_out = np.split(np.arange(K.shape[1]), [m])
    more = {"cv": [(train, held_out)], "scoring": scoring, "baselines": "none", "refit": False}
    searched = dmkl.search(dmkl.MKFDA(**parameters), K, grid=grid, **more)

    def scores_of_fit(p, lam):
        model = dmkl.MKFDA(p, lam, **parameters).fit(K[train, train])
        return dmkl.assess(model, K[held_out, train], scoring=scoring)["score"].values

    return searched, np.array([[scores_of_fit(p, lam) for lam in grid["lam"][::every]] for p in grid["p"]])


@pytest.mark.parametrize("make", [kernels, factors])
@pytest.mark.parametrize(("n_classes", "share"), [(2, 0.5), (2, 0.85), (4, 0.25), (4, 0.85)])
def test_scores_of_a_search_are_those_of_fits_at_every_point(make, n_classes, share):
    scoring = ["balanced_accuracy", "neg_log_loss"]
    searched, expected = search_and_fits(make(240, n_classes, share), 160, GRID, scoring, tol=1e-8)
    scores = searched.scores.isel(fold=0)
    np.testing.assert_allclose(scores["score"], expected[..., 0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(scores["score_neg_log_loss"], expected[..., 1], atol=1e-5)


@pytest.mark.slow
def test_rules_of_a_large_grid_are_learnt_at_each_point():
    """Beside flat kernels, the leverages of a plain sum differ from those of learnt weights."""
    grid = {"p": [1.0, 2.0], "lam": np.logspace(-6, 1, 41).tolist()}
    searched, expected = search_and_fits(kernels(900, 2, 0.85), 600, grid, every=20)
    scores = searched.scores["score"].isel(fold=0, lam=slice(None, None, 20))
    np.testing.assert_allclose(scores, expected[..., 0], rtol=0, atol=1e-4)


LARGE_GRID = {"p": [1.0, 2.0, np.inf], "lam": np.logspace(-3, 0, 4).tolist()}


@pytest.fixture
def small_limits(monkeypatch):
    """Constants of the registry by which few points of a small grid are factored."""
    monkeypatch.setattr(registry, "_OPERATIONS", 2**10)
    monkeypatch.setattr(registry, "_NODE_OPERATIONS", 2**10)


SMALL = [
    *((160, n, share, "center,trace") for n, share in ((2, 0.5), (2, 0.85), (4, 0.25), (4, 0.85))),
    (160, 4, 0.85, "trace"),  # A⁻¹1 is interpolated too
]
LARGE = [*((m, *case) for m in (300, 600, 1200) for _, *case in SMALL), (3000, 4, 0.85, "center,trace")]


@pytest.mark.parametrize("make", [kernels, factors])
@pytest.mark.parametrize(
    ("m", "n_classes", "share", "steps"), [*SMALL, *(pytest.param(*case, marks=pytest.mark.slow) for case in LARGE)]
)
def test_a_large_grid_chooses_by_scores_of_fits(m, make, n_classes, share, steps, small_limits):
    search, expected = search_and_fits(make(m + 80, n_classes, share), m, LARGE_GRID, steps=steps, tol=1e-8)
    scores = search.scores.isel(fold=0)
    errors = np.abs(scores.score.values - expected[..., 0])
    approximate = scores.approximate.values > 0
    assert 0 < approximate.sum() < approximate.size
    assert errors[~approximate].max() < 1e-5
    # Few factors, and flat kernels: the scores of these points differ most at small λ.
    assert errors[approximate].max() < 0.2
    assert not search.chosen.approximate.any()
    exact = scores.score.values[~approximate].max()
    assert float(search.best_score_) == exact
    assert f"{approximate.sum()} of 12 scores are approximate" in search.summary()


def test_importance_is_of_exact_scores_and_permutations_say_what_is_not(small_limits, monkeypatch):
    """Exact rules of all permutations would take a factor for each."""
    monkeypatch.setattr(registry, "_LEAST_FACTORS", 1)
    K, grid = kernels(60, 2, 0.5), {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}
    tested = dmkl.permutation_test(dmkl.MKFDA(), K, grid=grid, n_permutations=3, cv=2)
    n = tested.data.attrs["n_approximate"]
    assert 0 < n <= 4
    assert f"{n} of 4 scores are by rules from interpolated leave-one-out scores" in tested.summary()
    rows = np.random.default_rng(0).permutation(60)
    folds = [(rows[:30], rows[30:]), (rows[30:], rows[:30])]
    added = dmkl.importance(dmkl.MKFDA(tol=1e-8), K, grid=grid, cv=folds, scoring="neg_log_loss").data
    for scores, some in ((added["score"], K), (added["score_without"].isel(source=1), K.select(K.names[::2]))):
        for f, (train, test) in enumerate(folds):
            model = dmkl.MKFDA(float(added["p"]), float(added["lam"]), tol=1e-8).fit(some[train, train])
            expected = dmkl.assess(model, some[test, train], scoring="neg_log_loss").score[0]
            assert float(scores[f]) == pytest.approx(float(expected), abs=1e-5)


def test_choices_of_folds_baselines_and_tasks_are_exact(small_limits):
    K = kernels(150, 2, 0.5)
    tasks = np.stack([K.labels, np.arange(150) % 2], axis=1).astype(float)
    search = dmkl.search(dmkl.MKFDA(), K, tasks, grid=LARGE_GRID, cv=2, refit=False, rule="one_standard_error")
    assert search.scores.approximate.any()
    assert not search.chosen.approximate.any()
    estimate = dmkl.evaluate(dmkl.MKFDA(), K, grid=LARGE_GRID, outer=2, inner=2)
    assert "those that were chosen are exact" in estimate.summary()


def test_a_model_of_many_tasks_says_that_its_rules_are_approximate(small_limits):
    K = kernels(120, 2, 0.5)
    tasks = np.random.default_rng(0).integers(0, 2, (120, 9)).astype(float)
    assert dmkl.MKFDA(solver="subspace").fit(K, tasks).calibrated_on_.endswith(", approximate")
    assert not dmkl.MKFDA(solver="subspace").fit(K, tasks[:, 0]).calibrated_on_.endswith(", approximate")


def test_a_continued_search_makes_no_pass_for_exact_choices(small_limits, tmp_path):
    K = kernels(150, 2, 0.5)
    asked = {"grid": LARGE_GRID, "cv": 2, "refit": False, "state": tmp_path / "state"}
    first, again = (dmkl.search(dmkl.MKFDA(), K, **asked) for _ in range(2))
    np.testing.assert_array_equal(first.scores.score, again.scores.score)
    assert again.n_passes_ == first.n_passes_
