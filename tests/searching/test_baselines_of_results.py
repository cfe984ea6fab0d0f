"""Baselines of a search (plain sum and single kernels) against direct fits, and comparisons of scores."""

import itertools

import dask
import numpy as np
import pytest
import sklearn.base
from helpers.optima import solve
from helpers.references import dense_view
from sklearn.dummy import DummyClassifier
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression
from sklearn.metrics import median_absolute_error, r2_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import SVC

import dmkl
from dmkl.description import with_interval
from dmkl.learners.decisions import DecisionRule
from dmkl.numerics.fisher import encode_targets
from dmkl.passes.execute import Machine
from dmkl.searching import baselines as module
from dmkl.searching.scoring import limits

Y = np.arange(60) % 3
NUMBERS = np.random.default_rng(3).normal(size=60)
LAM = [1e-3, 1e-1, 10.0]


def kernels(shifts, seed=0, y=Y):
    rng = np.random.default_rng(seed)
    return [rbf_kernel(rng.normal(size=(60, 4)) + shift * y[:, None]) for shift in shifts]


def kernel_set(shifts, **more):
    return dmkl.create(None, kernels(shifts, **more), names=[f"k{j}" for j in range(len(shifts))], labels=Y)


def folds(n=2, tested=True):
    rng = np.random.default_rng(1)
    return [tuple(np.split(rng.permutation(60), [36, 48] if tested else [36])) for _ in range(n)]


@pytest.fixture(scope="module")
def K():
    return kernel_set((1.0, 0.6, 0.0))


@pytest.mark.parametrize(
    ("learner", "grid", "axes"),
    [
        (
            dmkl.NCuts(2, C=3.0),
            {"sharing": ["mean", "own"], "max_iter": [2000, 3000], "multiclass": ["ovr", "ovo"]},
            {},
        ),
        (dmkl.NCuts(2), {"sharing": ["partition"], "C": [0.5, 2.0]}, {"C": [0.5, 2.0]}),
        (dmkl.LPBoost([0.1, 1.0, 10.0]), {"nu": [0.3, 0.5]}, {"C": [0.1, 1.0, 10.0]}),
        (dmkl.LPBoost([0.1, 10.0]), {"C": [1.0, 4.0]}, {"C": [1.0, 4.0]}),
        (dmkl.LPBoost(2.0), {"steps": ["center+trace", "cosine"]}, {"C": [2.0]}),
    ],
)
def test_the_sum_has_the_parameters_that_mean_the_same(K, learner, grid, axes):
    """Its scores are those of support vector machines on the sum, at each of their own parameters in the grid."""
    cv = folds(tested=False)
    scores = dmkl.search(learner, K, grid=grid, cv=cv, refit=False).scores
    own = axes | {name: grid[name] for name in ("multiclass", "steps") if name in grid}
    machine = dmkl.MKSVM(np.inf, 1.0 if "C" in axes else learner.C, steps=learner.steps)
    expected = dmkl.search(machine, K, grid=own, cv=cv, refit=False, baselines="none").scores
    assert set(scores.sum_score.dims) == {*own, "fold"}
    np.testing.assert_array_equal(scores.sum_score.transpose(*expected.score.dims), expected.score)


def test_each_baseline_is_a_fit_of_its_own(K):
    cv, given = folds(), kernels((1.0, 0.6, 0.0))
    scores = dmkl.search(
        dmkl.MKFDA(tol=1e-6), K, grid={"p": [1, 2], "lam": LAM}, cv=cv, refit=False, baselines="all"
    ).scores
    for name in ("sum", *K.names):
        some = K if name == "sum" else K.select([name])
        own = scores if name == "sum" else scores.sel(kernel=name)
        prefix = "sum" if name == "sum" else "alone"
        assert float(own[f"{prefix}_gap"].max()) <= 1e-6
        expected = dmkl.search(dmkl.Uniform(solver="direct"), some, grid={"lam": LAM}, cv=cv, refit=False).scores
        for kind in ("score", "test_score"):
            np.testing.assert_allclose(own[f"{prefix}_{kind}"], expected[kind], atol=1e-12)
        for f, (train, *_) in enumerate(cv):
            each, h = dense_view(given, train, train, ("center", "trace")), encode_targets(Y[train], 36).problems[0]
            beta = np.ones(3) if name == "sum" else np.eye(3)[K.names.index(name)]
            objectives = [solve(each, beta, h, lam)[1] for lam in LAM]
            np.testing.assert_allclose(own[f"{prefix}_objective"].isel(fold=f), objectives, rtol=1e-4)


@pytest.mark.parametrize(
    ("learner", "y", "name", "values", "reference"),
    [
        (dmkl.MKRidge(steps=(), tol=1e-9), NUMBERS, "lam", LAM, lambda lam: KernelRidge(lam, kernel="precomputed")),
        (
            dmkl.MKSVM(steps=(), tol=1e-6),
            (Y > 0).astype(int),
            "C",
            [0.5, 5.0],
            lambda C: SVC(C=C, kernel="precomputed", tol=1e-8),
        ),
    ],
)
def test_other_learners_on_the_sum_and_on_one_kernel_are_scikit_learns(learner, y, name, values, reference):
    given, cv = kernels((1.0, 0.2), y=y), folds(tested=False)
    grid = {"p": [1, 2], name: values}
    scores = dmkl.search(learner, given, y, grid, cv, refit=False, baselines="all").scores
    for kernel, own in ((sum(given), scores["sum_score"]), (given[0], scores["alone_score"].isel(kernel=0))):
        for value in values:
            for f, (train, validation) in enumerate(cv):
                model = reference(value).fit(kernel[np.ix_(train, train)], y[train])
                expected = model.score(kernel[np.ix_(validation, train)], y[validation])
                assert float(own.sel({name: value, "fold": str(f)})) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "tasks"])
def test_a_discriminant_is_compared_with_the_support_vector_machine_on_the_sum(kind):
    """Scores of each C equal those of scikit-learn's machines on the same rows; C is chosen by validation alone."""
    y = {"binary": (Y > 0).astype(int), "multiclass": Y, "tasks": np.stack([Y > 0, Y == 1], axis=1).astype(int)}[kind]
    given, cv = kernels((1.0, 0.4)), folds()
    more = {"scoring": "accuracy", "cv": cv, "refit": False}
    result = dmkl.search(dmkl.MKFDA(), given, y, {"p": [2], "lam": [0.1]}, **more)
    sums = [sum(dense_view(given, cols=train, steps=("center", "trace"))) for train, *_ in cv]
    costs = result.scores["C"].values
    np.testing.assert_allclose(costs, [c * 36 / 2 for c in module.COSTS])
    for C in costs:
        machines = OneVsRestClassifier(SVC(C=C, kernel="precomputed", tol=1e-8))
        for f, (train, *parts) in enumerate(cv):
            for name, rows in zip(("svm_score", "svm_test_score"), parts, strict=True):
                score = result.scores[name].sel(C=C, fold=str(f))
                sum_, columns = sums[f], y.reshape(60, -1).T
                expected = [machines.fit(sum_[train], of[train]).score(sum_[rows], of[rows]) for of in columns]
                np.testing.assert_allclose(score, expected[0] if kind != "tasks" else expected)
    machine = result.baselines.sel(baseline="SVM on the sum of kernels")
    best = result.scores["svm_score"].fillna(-1).transpose("C", ...).values.max(axis=0)
    np.testing.assert_allclose(machine["score"].values.ravel(), best.ravel())


def test_machines_that_need_more_than_the_budget_are_left_out_and_said_so(K, monkeypatch):
    question = {"grid": {"lam": LAM}, "cv": 3, "refit": False}
    plain = dmkl.search(dmkl.MKFDA(), K, **question)
    assert "svm_score" in plain.scores
    # The memory of a task is below 8 (n + 4) m² and 32 m² bytes: too small for the matrices of a machine.
    monkeypatch.setattr(module, "machine", lambda: Machine(2, 2, 30 * 40**2, 60 * 40**2))
    without = dmkl.search(dmkl.MKFDA(), K, **question)
    assert "svm_score" not in without.scores
    np.testing.assert_array_equal(without.scores["sum_score"], plain.scores["sum_score"])
    (note,) = [line for line in without.notes() if "SVM" in line]
    assert "was not fitted: a support vector machine on the sum would take" in note
    # One machine fits into memory, but all machines need too many passes.
    monkeypatch.setattr(module, "machine", lambda: Machine(2, 2, 33 * 40**2, 66 * 40**2))
    with dask.config.set({"dmkl.block-width": 20}):
        narrow = dmkl.search(dmkl.MKFDA(), K, **question)
    assert any("its 27 machines would take more than two passes" in note for note in narrow.notes())


def test_a_single_kernel_that_wins_is_said_to_win():
    """One good kernel among noise; p = 8 spreads the weights."""
    K = kernel_set((1.5, *[0.0] * 3), seed=4)
    more = {"cv": folds(n=3), "choice": "fold", "refit": False, "baselines": "all"}
    result = dmkl.search(dmkl.MKFDA(), K, grid={"p": [8], "lam": LAM}, **more)
    alone = result.baselines.sel(baseline="best single kernel")
    assert alone["best_kernel"].values.tolist() == ["k0"] * 3
    difference = (result.chosen["test_score"] - alone["test_score"]).values.mean()
    assert difference < 0
    line = next(line for line in result.summary().splitlines() if line.startswith("Best single kernel (kernel=k0"))
    assert f"scores higher than the choice by {-difference:#.3g}" in line
    row = result.comparison().set_index("model").loc["best single kernel"]
    np.testing.assert_allclose(row["difference"], difference)


def test_differences_have_intervals_that_are_corrected_for_shared_training_rows(K):
    """Those of five folds are t_4(97.5 %) · √(1 + 5 · 1/4) = 4.16 standard errors wide, those of two are left out.

    Of three folds it is 0.5 ± t_2(97.5 %) · 0.3 · √(1/3 + 1/2) = 0.5 ± 1.18, and accuracies differ by one at most.
    """
    scores = {n: dmkl.search(dmkl.MKFDA(), K, grid={"lam": [1e-1]}, cv=n, refit=False).scores for n in (2, 3, 5)}
    spread = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]) / 100  # s/√5 = √0.5 / 100
    may_be_chance = "paired over folds; between procedures a difference of this size may be chance"
    for better, words, told in (
        *((spread + n * np.sqrt(0.5) / 100, may_be_chance, n != 4.4) for n in (2.5, 4.0, 4.4, -4.0)),
        ([0.2, 0.5, 0.8], "the choice scores higher by 0.500 (95 %: -0.68 to 1)", True),
        ([0.2, 0.5], "95 %", False),
    ):
        both = {"score": np.add(0.2, better), "sum_score": np.full(len(better), 0.2)}
        both = {name: (("lam", "fold"), values[None]) for name, values in both.items()}
        result = dmkl.SearchResult(scores[len(better)].assign(both))
        (line,) = [line for line in result.baseline_lines() if line.startswith("Plain sum")]
        assert (words in line) == told
        assert result.comparison()["margin"].isna().all() == (len(better) == 2)
        assert result.comparison().attrs["limits"] == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("scoring", "mean", "margin", "text"),
    [
        ("accuracy", 0.9, 0.2, "0.900 (0.7 to 1)"),
        ("accuracy", 0.9, 0.05, "0.900 ± 0.05"),
        ("roc_auc_ovr", 0.9, 2.0, "0.900 (0 to 1)"),
        ("matthews", -0.9, 0.2, "-0.900 (-1 to -0.7)"),
        ("r2", 0.9, 2.0, "0.900 (-1.1 to 1)"),
        ("neg_log_loss", -0.1, 0.3, "-0.100 (-0.4 to 0)"),
        ("of_my_own", 0.9, 2.0, "0.900 ± 2"),
    ],
)
def test_intervals_end_at_the_limits_of_the_score(scoring, mean, margin, text):
    assert with_interval(mean, margin, limits(scoring)) == text


@pytest.mark.slow
def test_scores_that_are_not_above_chance_are_told(K):
    """Constant scores equal those of scikit-learn's most frequent class."""
    noise, grid = kernel_set((0.0, 0.0, 0.0)), {"lam": [1e-1, 1.0]}
    words = "the score of one decision for all rows"
    for result in (
        dmkl.search(dmkl.MKFDA(), noise, grid=grid, cv=5, refit=False, scoring="accuracy"),
        dmkl.evaluate(dmkl.MKFDA(), noise, grid=grid, outer=5),
        dmkl.importance(dmkl.MKFDA(), noise, grid=grid, cv=5),
    ):
        assert "Permuted labels of the rows held out score" in result.summary()
        assert words not in result.summary()
        data = result.data if hasattr(result, "data") else result.scores
        for part, score in zip(data["part"].values, data["constant_score"].values, strict=True):
            train, held_out = part == 0, part > 0
            model = DummyClassifier(strategy="most_frequent").fit(Y[train, None], Y[train])
            assert score == pytest.approx(model.score(Y[held_out, None], Y[held_out]))
    assert words not in dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=5, refit=False).summary()


@pytest.mark.slow
def test_of_many_kernels_those_of_most_weight_are_tried(monkeypatch, K):
    monkeypatch.setattr(module, "FEW", 2)
    monkeypatch.setattr(module, "TRIED", 1)
    cv, grid = folds(n=2), {"p": [1, 2], "lam": LAM}
    result = dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=cv, refit=False, baselines="all")
    weight = result.scores["weight"].sel(p=1)
    expected = (weight / weight.sum("kernel")).mean("lam").argmax("kernel")
    tried = np.isfinite(result.scores["alone_score"]).all("lam")
    assert tried.sum("kernel").values.tolist() == [1, 1]  # one kernel for each fold
    np.testing.assert_array_equal(tried.argmax("kernel"), expected)


@pytest.mark.parametrize("solver", ["subspace", "direct"])
def test_a_state_goes_on_with_other_baselines(K, tmp_path, solver):
    """Baselines are added after the fits of the search, which are not repeated."""
    question = {"grid": {"p": [1, 2], "lam": [1.0]}, "cv": folds(), "refit": False}
    passes = []
    for baselines in ("none", "sum", "all", "sum"):
        kept = dmkl.search(dmkl.MKFDA(solver=solver), K, **question, baselines=baselines, state=tmp_path / "state")
        whole = dmkl.search(dmkl.MKFDA(solver=solver), K, **question, baselines=baselines) if len(passes) < 3 else kept
        for name in ("score", "sum_score", "alone_score"):
            assert (name in kept.scores) == (name in whole.scores)
            if name in kept.scores:
                np.testing.assert_allclose(kept.scores[name], whole.scores[name])
        assert (kept.baselines is None) == (kept.baseline_lines() == []) == (baselines == "none")
        assert float(kept.scores["gap"].max()) <= 1e-4
        passes.append(kept.n_passes_)
    assert passes[3] <= passes[2]


@pytest.mark.slow
def test_an_evaluation_is_the_same_without_its_baselines(K):
    """This holds for separate weights of each task too, where additional fits could change the solver."""
    rng = np.random.default_rng(5)
    y = np.stack([rng.permutation(np.arange(60) % 2) for _ in range(6)], axis=1)
    grid = {"p": [1.0, 2.0], "lam": [1e-1, 10.0]}
    results = [dmkl.evaluate(dmkl.MKFDA(), K, y, grid, outer=2, inner=2, baselines=each) for each in ("sum", "none")]
    for name in ("test_score", "weight", "p", "lam"):
        np.testing.assert_allclose(results[0].scores[name], results[1].scores[name], rtol=0, atol=1e-10)
    assert results[1].baselines is None


# --- covariates ------------------------------------------------------------------------------------------------------
COVARIATES = np.random.default_rng(11).normal(size=(60, 2)) * (1.0, 30.0) + (0.0, 50.0)
OF_COVARIATES = NUMBERS + COVARIATES @ (1.5, 0.05)


def of_samples():
    return dmkl.residualize(COVARIATES)


def least_squares(train, rows, y):
    return LinearRegression().fit(COVARIATES[train], y[train]).predict(COVARIATES[rows])


@pytest.fixture(scope="module")
def unnamed():
    return dmkl.create(None, kernels((1.0, 0.0)), names=["k0", "k1"])


HOW, SCORING = ("tested", "validated", "nested"), ["r2", "neg_median_absolute_error"]


def scores_of(truth, predicted):
    return r2_score(truth, predicted), -median_absolute_error(truth, predicted)


@pytest.mark.parametrize(
    ("n_targets", "weights", "how"),
    [*itertools.product([1, 2, 3], [None], HOW), *itertools.product([3], ["shared"], HOW)],
)
def test_covariates_alone_and_the_kernels_part_of_a_regression(unnamed, monkeypatch, n_targets, weights, how):
    """Those of least squares and of fits to the known values of each target.

    Also of more targets than predictions are kept for, and where solvers return scores alone.
    """
    monkeypatch.setattr("dmkl.searching.fits.MOST_OUTPUTS", 2)
    y = np.column_stack([OF_COVARIATES, NUMBERS, OF_COVARIATES**2])[:, :n_targets]
    y[::9, 1:2] = np.nan
    chains = (("trace", of_samples()), ("center", "trace"))
    options = {"p": np.inf} if weights is None else {"weights": "shared", "n_candidates": 3}
    learner, asked = dmkl.MKRidge(**options, steps=chains[0]), y[:, 0] if n_targets == 1 else y
    if how == "nested":
        outer = [(np.concatenate(parts[:2]), parts[2]) for parts in folds()]
        result = dmkl.evaluate(learner, unnamed, asked, {"lam": LAM}, outer=outer, inner=2, scoring=SCORING)
    else:
        grid, cv = {"lam": LAM} | ({"steps": chains} if n_targets == 3 else {}), folds(tested=how == "tested")
        result = dmkl.search(learner, unnamed, asked, grid, cv, scoring=SCORING, refit=False)
    alone, kind = result.baselines.sel(baseline="covariates alone"), "score" if how == "validated" else "test_score"
    assert ("held_out_prediction" in result.scores) == (n_targets < 3)
    for (f, (fold, parts)), t in itertools.product(enumerate(result.folds.items()), range(n_targets)):
        column, task = y[:, t], {} if n_targets == 1 else {"target": t}
        train, rows = (of[~np.isnan(column[of])] for of in (parts[0], parts[-1]))
        if how == "nested":
            names = ["lam"] if weights is None else ["lam", "candidate"]
            params = {name: result.scores[name].isel(fold=f, **task).item() for name in names}
        else:
            params = result.best_params_[fold] if how == "tested" else result.best_params_
            params = params[str(t)] if task else params
        model = sklearn.base.clone(learner).set_params(**params).fit(unnamed[train, train], column[train])
        by_covariates = least_squares(train, rows, column)
        of_kernels = model.predict(unnamed[rows, train]).values - by_covariates
        known = scores_of(column[rows], by_covariates), scores_of(column[rows] - by_covariates, of_kernels)
        if params.get("steps") == chains[1]:
            known = known[0], (np.nan, np.nan)
        for end, *expected in zip(("", f"_{SCORING[1]}"), *known, strict=True):
            found = [each.isel(fold=f, **task) for each in (alone[kind + end], result.scores[f"residual_score{end}"])]
            np.testing.assert_allclose(found, expected, rtol=1e-9 if weights is None else 1e-6)
        if n_targets < 3:
            of_fold = np.flatnonzero(result.predictions["sample_fold"] == result.scores["fold"][f])
            own = result.predictions.isel(sample=of_fold, **task).sel(sample=unnamed.samples[rows])
            np.testing.assert_allclose(own["covariate_prediction"], by_covariates, rtol=1e-9)
            np.testing.assert_allclose(own["kernel_prediction"], of_kernels, atol=1e-9)
    of_first = result.scores["residual_score"].isel({} if n_targets == 1 else {"target": 0})
    assert np.isfinite(of_first).all()
    assert "Covariates alone: " in result.summary()
    assert "of the kernels' part: " in result.summary()
    if n_targets == 1:
        assert {"predicted", "by covariates", "by kernels"} <= set(dmkl.prediction_table(result.predictions))
        assert result.comparison().set_index("model")["p_value"].notna()["covariates alone"] == (how != "validated")
        assert f"r2 {float(of_first.mean()):#.3g}" in result.summary()


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("decision", ["largest", "means"])
def test_covariates_alone_of_a_classification(unnamed, n_classes, decision):
    """By the largest, least squares on class targets; by class means the rule of scikit-learn's regression left out."""
    y = np.digitize(COVARIATES[:, 0] + 0.3 * NUMBERS, [-0.3, 0.4][: n_classes - 1])
    learner = dmkl.MKFDA(2.0, 0.1, steps=(of_samples(), "trace"), decision=decision)
    result = dmkl.evaluate(learner, unnamed, y, {"lam": [0.1]}, outer=3, inner=2, scoring="accuracy")
    alone = result.baselines.sel(baseline="covariates alone")["test_score"].values
    assert "residual_score" not in result.scores  # a classifier predicts from the kernels alone
    for f, (train, test) in enumerate(result.folds.values()):
        targets = 2.0 * (y[:, None] == np.arange(n_classes)) - 1.0
        scores = least_squares(train, test, targets)
        if decision == "means":
            left_out = [least_squares(np.setdiff1d(train, [i]), [i], targets)[0] for i in train]
            columns = slice(1, None) if n_classes == 2 else slice(None)
            rule = DecisionRule.learn(
                "binary" if n_classes == 2 else "multiclass",
                [np.array(left_out)[:, columns]],
                [y[train]],
                [np.bincount(y[train]) / len(train)],
                "",
            )
            decided = rule.decision(scores[:, columns])
            predicted = (decided[:, 0] > 0) if n_classes == 2 else np.argmax(decided, axis=1)
        else:
            predicted = np.argmax(scores, axis=1)
        assert alone[f] == np.mean(predicted == y[test])
    assert alone.mean() > 0.6


def test_no_row_of_covariates_without_covariates_or_baselines(unnamed):
    plain = dmkl.search(dmkl.MKRidge(np.inf, 0.1), unnamed, NUMBERS, {"lam": LAM}, folds(), refit=False)
    assert "covariates alone" not in plain.baselines["baseline"]
    assert "covariate_prediction" not in plain.predictions
    learner = dmkl.MKRidge(np.inf, 0.1, steps=(of_samples(), "trace"))
    none = dmkl.search(learner, unnamed, OF_COVARIATES, {"lam": LAM}, folds(), baselines="none", refit=False)
    assert none.baselines is None
    assert "residual_score" in none.scores
