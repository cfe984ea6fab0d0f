"""`dmkl.compare`, `dmkl compare` and `dmkl.auto` against hand-written loops over the same folds."""

import json

import numpy as np
import pytest
from helpers.references import Counting, over
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import LeaveOneOut, StratifiedKFold

import dmkl
from dmkl.building import features_of

M = 42
GRIDS = {"mkfda": {"p": [1, 2], "lam": [1e-3, 0.1]}, "mksvm": {"p": [1], "C": [1.0, 10.0]}, "sum": {"lam": [1e-3, 0.1]}}
LEARNERS = {"mkfda": dmkl.MKFDA(), "mksvm": dmkl.MKSVM(), "sum": dmkl.MKFDA(np.inf), "stack": dmkl.Stack()}
OUTER, INNER = (StratifiedKFold(n, shuffle=True, random_state=n) for n in (3, 2))


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    y = np.arange(M) % 3
    return {name: rng.normal(size=(M, 4)) + strength * np.eye(3, 4)[y] for name, strength in (("a", 1.3), ("b", 0.7))}


@pytest.fixture(scope="module")
def K(tables):
    names = np.array(["ant", "bee", "cat"])[np.arange(M) % 3]
    return dmkl.build(None, tables, {"function": "rbf"}, labels=names, dtype="float64")


@pytest.fixture(scope="module")
def result(K, tables):
    competitors = {"linear": LogisticRegression()}
    return dmkl.compare([*LEARNERS, "auto"], K, grids=GRIDS, outer=OUTER, inner=INNER, competitors=competitors)


def choice_by_hand(scores):
    """The plain sum, unless another is better by more than two standard errors of the difference."""
    gains = {name: of_folds - scores["sum"] for name, of_folds in scores.items()}
    errors = {name: np.std(gain, ddof=1) / np.sqrt(len(gain)) for name, gain in gains.items()}
    better = {name: np.mean(gain) for name, gain in gains.items() if np.mean(gain) > 2 * errors[name]}
    return max(better, key=better.get) if better else "sum"


@pytest.mark.slow
def test_scores_are_those_of_nested_loops(K, result, tables):
    y = K.labels
    X = np.hstack([*tables.values()])
    expected = {name: [] for name in [*LEARNERS, "auto", "linear"]}
    for train, test in OUTER.split(y, y):
        inner = {}
        for name, learner in LEARNERS.items():
            grid = GRIDS.get(name, {"lams": ["auto"]})
            searched = dmkl.search(learner, K[train, train], y[train], grid, INNER, baselines="none")
            inner[name] = searched.chosen["score"].values
            expected[name].append(accuracy_score(y[test], searched.best_.predict(K[test, train])))
        expected["auto"].append(expected[choice_by_hand(inner)][-1])
        expected["linear"].append(LogisticRegression().fit(X[train], y[train]).score(X[test], y[test]))
    np.testing.assert_array_equal(result.data["test_score"], [*expected.values()])
    means = {name: np.mean(scores) for name, scores in expected.items()}
    assert result.best == max(means, key=means.get)
    table = result.table().set_index("model")
    assert table.index[0] == result.best
    for name, mean in means.items():
        assert table.loc[name, "score"] == pytest.approx(mean)
        if name != result.best:
            assert table.loc[name, "difference"] == pytest.approx(means[result.best] - mean)
    assert table.loc["auto", "seconds"] == pytest.approx(sum(table.loc[name, "seconds"] for name in LEARNERS))
    assert table.loc["auto", "choices"].startswith("model = ")
    for name in LEARNERS:
        assert len(result.choices().query(f"model == '{name}'")) == 3
    assert "Models on the same folds" in dmkl.report(result)
    assert [each.get_text() for each in result.plot().get_yticklabels()] == [*table.index]


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "n_noise"), [(2.0, 0), (0.3, 6)])
def test_auto_is_the_search_of_the_model_that_its_rule_chooses(tables, scale, n_noise):
    noise = np.random.default_rng(0).normal(size=(n_noise + 1, M, 4))
    noisy = {name: X + scale * noise[0] for name, X in tables.items()} | dict(zip("cdefgh", noise[1:], strict=False))
    K = dmkl.build(None, noisy, {"function": "rbf"}, labels=np.arange(M) % 3, dtype="float64")
    folds = StratifiedKFold(4, shuffle=True, random_state=np.random.RandomState(0))  # other folds at each call
    found = dmkl.auto(K, models=[*LEARNERS], grids=GRIDS, cv=folds)
    given = {name: (GRIDS.get(name, {"lams": ["auto"]}), found.folds) for name in LEARNERS}
    by_hand = {
        name: dmkl.search(LEARNERS[name], K, None, *given[name], choice="joint", baselines="none") for name in LEARNERS
    }
    scores = {name: each.chosen["score"].values for name, each in by_hand.items()}
    np.testing.assert_array_equal(found.scores["model_score"], [*scores.values()])
    name = choice_by_hand(scores)
    assert found.scores.attrs["model_chosen"] == name
    np.testing.assert_array_equal(found.best_.predict(K), by_hand[name].best_.predict(K))
    assert f"Chosen model: {name}; accuracy mkfda " in found.summary()


def test_auto_takes_the_largest_mean_where_no_sum_is_among_the_models(K, monkeypatch):
    monkeypatch.setattr(dmkl.MKFDA, "_set_attributes", lambda *_: pytest.fail("a model that is not chosen is refitted"))
    K = K[:24, :24]
    found = dmkl.auto(K, models={"weak": dmkl.MKFDA(1, 1e6), "stack": dmkl.Stack()}, grids={"weak": {"p": [1]}}, cv=2)
    assert found.scores.attrs["model_chosen"] == "stack"
    assert isinstance(found.best_, dmkl.Stack)


def test_a_competitor_that_wins_is_named(K):
    class Cheat(LogisticRegression):
        """It knows the label of each row of features."""

        def fit(self, X, y):
            self.labels = dict(zip(map(tuple, features_of(K).side_by_side()), K.labels, strict=True))
            return self

        def decision_function(self, X):
            return np.array([[self.labels[tuple(x)] == name for name in ("ant", "bee", "cat")] for x in X], float)

        predict_proba = property()

    found = dmkl.compare(["stack"], K, outer=OUTER, inner=INNER, competitors={"cheat": Cheat()})
    assert found.best == "cheat"
    assert "cheat of scikit-learn, on the features, is ahead of all models on kernels" in found.summary()


@pytest.mark.slow
def test_models_without_any_score_are_compared_in_words(K):
    two = K.labels != "cat"
    few = K[two, two][:10, :10]
    result = dmkl.compare(["sum", "single"], few, grids={"sum": {"lam": [0.1]}}, outer=LeaveOneOut(), scoring="roc_auc")
    assert result.best == "sum"
    assert "roc_auc is undefined in the test rows of all folds" in result.summary()
    assert result.table()["score"].isna().all()


def test_names_mean_regressions_where_labels_are_numbers(K, tables):
    y, kernel = tables["a"].sum(axis=1), K.names[0]
    grids = {"mkridge": {"lam": [0.1], "p": [1]}, "sum": {"lam": [0.1]}}
    grids["single"] = {"weights": [{K.names[0]: 1.0, K.names[1]: 0.0}, {K.names[0]: 0.0, K.names[1]: 1.0}]}
    found = dmkl.compare(None, K, y, grids, outer=2, inner=2, competitors=["ridge"])
    kinds = [each.scores.attrs["estimator"] for each in found.evaluations.values()]
    assert kinds == ["MKRidge", "StackRegressor", "MKRidge", "MKRidge"]
    assert f"weights = {kernel} (2×)" in found.summary()
    assert found.data["test_score"].sel(model="ridge").mean() > 0.9  # y is linear in the features


def test_a_state_continues_each_model(K, tmp_path):
    options = {"grids": {"mkfda": GRIDS["mkfda"]}, "outer": 2, "inner": 2, "state": tmp_path / "state"}
    counted, source = over(K, Counting)
    first, reads = dmkl.compare(["mkfda", "stack"], counted, K.labels, **options), source.reads.total()
    source.reads.clear()
    again = dmkl.compare(["mkfda", "stack"], counted, K.labels, **options)
    assert source.reads.total() < reads
    np.testing.assert_array_equal(again.data["test_score"], first.data["test_score"])
    assert {path.name for path in (tmp_path / "state").iterdir()} >= {"mkfda", "stack"}


@pytest.mark.slow
def test_a_model_that_only_decides_otherwise_reads_the_fits_of_another(K):
    grids, largest = dict.fromkeys(("mkfda", "mkridge"), GRIDS["mkfda"]), dmkl.MKFDA(decision="largest")
    alone = dmkl.evaluate(largest, K, None, GRIDS["mkfda"], outer=OUTER, inner=INNER, baselines="none")
    found = dmkl.compare([*grids], K, grids=grids, outer=OUTER, inner=INNER).evaluations["mkridge"]
    # The refits remain, without the pass for the statistics of their training sets.
    assert found.n_passes_ == alone.scores.attrs["n_refit_passes"] - 1
    for name, search in found.searches.items():
        np.testing.assert_array_equal(search.scores["score"], alone.searches[name].scores["score"])
        np.testing.assert_allclose(search.scores["weight"], alone.searches[name].scores["weight"], rtol=1e-6)
    for name in ("test_score", "lam", "p", "held_out_predicted_label"):
        np.testing.assert_array_equal(found.scores[name], alone.scores[name])


@pytest.mark.slow
def test_the_command_compares_on_the_same_folds(K, tables, tmp_path, json_of, output_of):
    store = dmkl.build(tmp_path / "set.zarr", tables, {"function": "rbf"}, labels=K.labels).view.source.location
    given = ["--models", "mkfda,stack", "--grid", "mkfda:p=1,2", "--grid", "mkfda:lam=1e-3,0.1", "--outer", 2]
    given += ["--inner", 2, "--competitors", "random-forest", "--cluster", "threads"]
    printed = json_of("compare", store, tmp_path / "out", *given)
    expected = dmkl.compare(["mkfda", "stack"], dmkl.open(store), grids={"mkfda": GRIDS["mkfda"]}, outer=2, inner=2)
    scores = dmkl.load(tmp_path / "out").data["test_score"]
    np.testing.assert_array_equal(scores[:2], expected.data["test_score"])
    assert printed["best"] == dmkl.load(tmp_path / "out").best
    assert json.dumps(printed)
    assert "the same 2 outer folds and inner folds for all" in output_of("info", tmp_path / "out")


@pytest.mark.slow
def test_the_command_searches_the_model_that_auto_chooses(tables, tmp_path, json_of, error_of):
    store = dmkl.build(tmp_path / "set.zarr", tables, {"function": "rbf"}, labels=np.arange(M) % 3).view.source.location
    grids = {"sum": {"lam": [0.1]}, "mkfda": {"p": [1], "lam": [0.1]}, "mkridge": {"p": [1], "lam": [0.1]}}
    grids["mksvm"] = {"p": [1], "C": [1]}
    words = [f"{model}:{name}={value}" for model, grid in grids.items() for name, (value,) in grid.items()]
    given = ["search", store, tmp_path / "out", "--model", "auto", "--cv", 2]
    printed = json_of(*given, *(part for word in words for part in ("--grid", word)), "--cluster", "threads")
    expected = dmkl.auto(dmkl.open(store), grids=grids, cv=2)
    np.testing.assert_array_equal(dmkl.load(tmp_path / "out").scores["model_score"], expected.scores["model_score"])
    assert printed["model_chosen"] == expected.scores.attrs["model_chosen"]
    assert "MODEL:NAME=V,…" in error_of(*given, "--lam", "0.1", "--overwrite")
