"""`dmkl.importance`: sets of kernels against separate searches, groups, Shapley values, state, files, pictures."""

import cvxpy as cp
import numpy as np
import pytest
import xarray as xr
from helpers.references import digits, in_memory, labels
from scipy import stats
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score
from sklearn.model_selection import StratifiedKFold

import dmkl
from dmkl.errors import InputError
from dmkl.inference.importance import draw_orders
from dmkl.learners.learner import KernelRegressor
from dmkl.learners.saving import models

pytestmark = pytest.mark.usefixtures("rounds")

TIGHT = 1e-7
GRID = {"p": [1.0, 2.0], "lam": [1e-2, 1.0]}
PAIR = {"pair": ["kernel_0", "kernel_2"]}
EVERY = np.arange(90)
FOLDS = list(StratifiedKFold(3).split(EVERY, digits()[1] % 4))
TESTED = {str(f): (train[::2], train[1::2], test) for f, (train, test) in enumerate(FOLDS[:2])}


def kernels():
    return in_memory(digits()[0][[0, 1, 3, 4]], 90)


@pytest.fixture(scope="module")
def result():
    options = {"kernel_groups": PAIR, "shapley": 4, "random_state": 3, "scoring": ["accuracy", "matthews"]}
    return dmkl.importance(dmkl.MKFDA(tol=TIGHT), kernels(), labels("multiclass"), GRID, cv=FOLDS, **options)


# --- fits --------------------------------------------------------------------------------------------------------
POINT = {"p": [1.5], "lam": [1e-2]}
PRICES = dmkl.GMKL(sigma=[1.0, 2.0, 1.0, 3.0], tol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "kind", "grid", "cv", "choose"),
    [
        (dmkl.MKFDA(tol=TIGHT), "multiclass", GRID, FOLDS[:1], "held"),
        (dmkl.MKFDA(tol=TIGHT), "multiclass", GRID, FOLDS[:1], "anew"),
        (dmkl.MKFDA(tol=1e-6, solver="direct"), "multiclass", POINT, FOLDS[:1], "held"),
        (dmkl.MKFDA(tol=1e-6, solver="interleaved"), "multiclass", POINT, FOLDS[:1], "held"),
        pytest.param(dmkl.MKFDA(tol=TIGHT), "multiclass", GRID, TESTED, "held", marks=pytest.mark.slow),
        (dmkl.MKRidge(tol=TIGHT), "regression", {"p": [1.0], "lam": [0.1]}, FOLDS[:1], "held"),
        pytest.param(PRICES, "binary", {"C": [1.0, 4.0]}, FOLDS[:1], "held", marks=pytest.mark.slow),
    ],
    ids=["joint", "anew", "direct", "interleaved", "by-fold", "ridge", "prices"],
)
def test_fits_are_those_of_searches_over_fewer_kernels(estimator, kind, grid, cv, choose):
    y, K = labels(kind), kernels()
    result = dmkl.importance(estimator, K, y, grid, cv=cv, choose=choose)
    whole = dmkl.search(estimator, K, y, grid, cv, refit=False, baselines="none")
    assert float(result.data["chance_p_value"]) == float(whole.scores["chance_p_value"])
    assert "Permuted labels of the rows held out score" in result.summary()
    name, others = K.names[1], [*K.names[:1], *K.names[2:]]
    own = result.data.sel(source=name)
    for end, names in (("without", others), ("alone", [name])):
        model = clone(estimator)
        if isinstance(model, dmkl.GMKL):
            model.sigma = [model.sigma[K.names.index(name)] for name in names]
        alone = dmkl.search(model, K.select(names), y, grid, cv, refit=False, baselines="none")
        at_choice = alone.scores.isel(whole.best_index_) if choose == "held" else alone.chosen
        expected = at_choice.transpose("fold", "kernel", ...)
        np.testing.assert_allclose(own[f"objective_{end}"], expected.objective, rtol=1e-4)
        np.testing.assert_allclose(own[f"score_{end}"], expected["test_score" if cv is TESTED else "score"], atol=1e-9)
        assert not (own[f"gap_{end}"] > 1e-5).any()
    assert result.data.attrs["rows"] == ("test" if cv is TESTED else "validation")
    if choose == "held" and isinstance(estimator, dmkl.MKFDA) and estimator.solver == "auto":  # in its spaces
        # Leave-one-out scores of the new fits need a pass too.
        assert 0 < result.data.attrs["n_search_passes"] <= result.n_passes_ <= result.data.attrs["n_search_passes"] + 3
    left_out = xr.DataArray(np.eye(len(K), dtype=bool), dims=("source", "kernel"))
    assert (result.data.weight_without.where(left_out, 0.0) == 0).all()


LEARNERS = [
    *(
        model(n_examples=2) if model is dmkl.NCuts else model()  # few samples
        for name, model in sorted(models().items())
        if name in dir(dmkl) and model.traits.takes_subsets and model.traits.needs_labels
    ),
    dmkl.MKFDA(kernel_groups={"two": "kernel_[12]"}, sigma={"kernel_1": 2.0}),
    dmkl.MKFDA(constraints=lambda d: [cp.sum(d) <= 1, d["kernel_2"] <= 0.2]),
    dmkl.GSMKL(across=True),
    dmkl.GSMKL(loss="square", regroup=False),
]
"""Every learner that can omit a kernel; those with groups of samples form them by kernels that may have weight."""


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
def test_without_a_kernel_every_learner_is_a_search_on_the_others(learner):
    kind = "regression" if isinstance(learner, KernelRegressor) else "multiclass"
    y = labels(kind)
    _compare_left_out(learner, kernels().select([0, 1, 2]), np.abs(y) + 1.0 if isinstance(learner, dmkl.MKCox) else y)


def test_a_kernel_whose_weight_is_zero_without_the_others():
    rules = lambda d: [cp.sum(d) <= 1, d["kernel_1"] >= 2 * d["kernel_2"]]  # noqa: E731
    models = [dmkl.MKFDA(constraints=rules, solver=solver) for solver in ("subspace", "direct")]
    results = [dmkl.importance(model, kernels(), labels("binary"), {"lam": [0.1]}, cv=2).data for model in models]
    np.testing.assert_allclose(results[0].score_alone, results[1].score_alone)


def test_groups_by_features_are_by_those_of_the_kernels_that_may_have_weight():
    """Also against a set that was built without the table of the omitted kernel."""
    y = labels("binary")
    tables = {"noise": np.random.default_rng(0).random((90, 3)) * 5, "digits": digits()[0][0], "more": digits()[0][2]}
    model, specs = dmkl.GSMKL(grouping="kmeans"), [{"function": "rbf", "feature": "*"}]
    own = _compare_left_out(model, dmkl.build(None, tables, specs), y)
    alone = dmkl.build(None, {name: tables[name] for name in ("digits", "more")}, specs)
    expected = dmkl.search(model, alone, y, {"C": [1.0]}, FOLDS[:1], refit=False, baselines="none")
    np.testing.assert_allclose(own.score_without, expected.scores.score.isel(C=0))


def _compare_left_out(model, K, y):
    """Compare the importance without the first kernel with a search without it; return the importance."""
    machine = hasattr(model, "C") and getattr(model, "loss", "hinge") == "hinge"
    grid = {"C": [1.0]} if machine else {"lam": [0.1]} if hasattr(model, "lam") else None
    own = dmkl.importance(model, K, y, grid, cv=FOLDS[:1]).data.sel(source=K.names[0])
    alone = dmkl.search(model, K.select(K.names[1:]), y, grid, FOLDS[:1], refit=False, baselines="none").chosen
    np.testing.assert_allclose(own.score_without, alone.score.transpose("fold", ...), atol=1e-4)
    np.testing.assert_allclose(own.objective_without, alone.objective.transpose("fold", ...), rtol=1e-3)
    return own


# --- reports of the result ---------------------------------------------------------------------------------------
def test_losses_are_means_of_differences_within_folds(result):
    data = result.data
    for end in ("", "_matthews"):
        difference = (data[f"score{end}"] - data[f"score_without{end}"]).transpose("source", "fold").values
        np.testing.assert_allclose(data[f"loss{end}"], difference.mean(axis=1), atol=1e-11)
        error = difference.std(axis=1, ddof=1) / np.sqrt(3)
        np.testing.assert_allclose(data[f"loss_standard_error{end}"], error, atol=1e-11)
    difference = data["score"] - data["score_without"]
    margin = difference.std("fold", ddof=1) * np.sqrt(1 / 3 + 1 / 2) * stats.t(2).ppf(0.975)
    table = result.table()
    np.testing.assert_allclose(table.loss_margin, margin.sel(source=table.source.values), atol=1e-9)
    assert table.loss.is_monotonic_decreasing
    largest = table.iloc[0]
    assert f"Lost without: {largest.source} {largest.loss:#.3g} ± {largest.loss_margin:.2g}, " in result.summary()
    for f, (train, validation) in enumerate(FOLDS):
        np.testing.assert_array_equal(np.flatnonzero(data.part[f] == 0), train)
        np.testing.assert_array_equal(np.flatnonzero(data.part[f] == 1), validation)


def test_a_group_is_left_out_as_a_whole_and_a_player(result):
    assert (result.data.weight_without.sel(source="pair", kernel=PAIR["pair"]) == 0).all()
    assert (result.data.weight_without.sel(source="pair").max("kernel") > 0).all()
    assert list(result.data.player.values) == ["pair", "kernel_1", "kernel_3"]
    sums = result.data.shapley_by_fold.sum("player")
    np.testing.assert_allclose(sums, result.data.score - result.data.score_of_nothing)


def test_pictures(result):
    losses, _, shapley = result.plot()
    assert [text.get_text() for text in losses.get_yticklabels()] == list(result.table().source)
    assert [patch.get_width() for patch in losses.patches] == list(result.table().loss)
    assert len(shapley.patches) == result.data.sizes["player"]
    with pytest.raises(InputError, match="there is no task 'a'"):
        result.plot("a")


# --- Shapley values ----------------------------------------------------------------------------------------------
def test_shapley_values_are_means_over_the_orders_that_were_sampled():
    y, K = labels("multiclass"), kernels().select(["kernel_0", "kernel_1", "kernel_2"])
    result = dmkl.importance(dmkl.MKFDA(lam=0.1), K, y, {"p": [2.0]}, cv=FOLDS[:2], shapley=5, random_state=1)
    data = result.data
    (without, alone), everything = (data[f"score_{end}"].values for end in ("without", "alone")), data.score.values
    priors = [(of[1], DummyClassifier().fit(EVERY[of[0], None], y[of[0]])) for of in FOLDS[:2]]
    nothing = np.array([accuracy_score(y[test], prior.predict(EVERY[test, None])) for test, prior in priors])
    np.testing.assert_allclose(data.score_of_nothing, nothing)
    worth = {(): nothing, (0, 1, 2): everything}
    worth |= {(k,): alone[k] for k in range(3)}
    worth |= {tuple(sorted({0, 1, 2} - {k})): without[k] for k in range(3)}
    orders = draw_orders(3, 5, 1)
    added = np.zeros((5, 3, 2))
    for row, order in zip(added, orders, strict=True):
        for n, k in enumerate(order):
            row[k] = worth[tuple(sorted(order[: n + 1]))] - worth[tuple(sorted(order[:n]))]
    np.testing.assert_allclose(data.shapley, added.mean(axis=(0, 2)))
    np.testing.assert_allclose(data.shapley_by_fold, added.mean(axis=0))
    np.testing.assert_allclose(data.shapley_standard_error, added.mean(axis=2).std(axis=0, ddof=1) / np.sqrt(5))
