"""p-values of held-out scores under permuted labels, and scores of many labelings against those of each."""

import numpy as np
import pytest
from sklearn import metrics as skm
from sklearn.model_selection import LeaveOneOut, RepeatedKFold

import dmkl
from dmkl.searching.scoring import OF_NUMBERS, OWN_METRICS, PROBABILISTIC, as_metrics, evaluate_each

M, GRID = 60, {"p": [1, 2], "lam": [1e-2, 1.0]}
MORE = {"refit": False, "baselines": "none"}


def kernel_set(seed, shift, n_classes=2):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(M) % n_classes)
    tables = [rng.normal(size=(M, 20)) + shift * np.eye(20)[y] for _ in range(2)]
    return [table @ table.T for table in tables], y


@pytest.mark.parametrize("question", ["evaluate", "accuracy", "neg_log_loss", "average_precision"])
def test_scores_far_above_chance_have_small_p_values(question):
    """Of evaluations, and of whole grids by each scoring."""
    n_classes = 3 if question == "accuracy" else 2
    K, y = kernel_set(0, 3.0, n_classes)
    if question == "evaluate":
        result = dmkl.evaluate(dmkl.MKFDA(), K, y, GRID, outer=5, baselines="none")
    else:
        grid = {"p": [1, 1.5, 2, np.inf], "lam": [1e-3, 1e-2, 0.1, 1.0]}
        result = dmkl.search(dmkl.MKFDA(), K, y, grid, 5, scoring=question, **MORE)
    assert float(result.scores["chance_p_value"]) == pytest.approx(1 / 1000)
    assert int(result.scores["chance_permutations"]) == 999
    if question in ("evaluate", "accuracy"):
        assert float(result.scores["chance_score"]) == pytest.approx(1 / n_classes, abs=0.1)
    assert "p = 0.001" in result.summary()
    assert "not clearly above" not in result.summary()


def test_regressions_folds_of_one_row_and_groups_have_p_values():
    K, y = kernel_set(1, 3.0)
    assert dmkl.search(dmkl.MKRidge(), K, y.astype(float), GRID, 5, **MORE).scores["chance_p_value"] <= 0.01
    grid = {"p": [2], "lam": [0.1]}
    assert dmkl.search(dmkl.MKFDA(), K, y, grid, LeaveOneOut(), **MORE).scores["chance_p_value"] <= 0.01
    pairs = np.repeat(np.arange(M // 2), 2)
    order = np.argsort(y, kind="stable")
    grouped = [kernel[np.ix_(order, order)] for kernel in K]
    result = dmkl.search(dmkl.MKFDA(), grouped, y[order], grid, 5, groups=pairs, **MORE)
    assert result.scores["chance_p_value"] <= 0.01


def test_leave_one_out_below_chance_names_the_remedy():
    """The priors of the other rows favour the other class; with uniform priors, or stratified folds, nothing does."""
    K, y = kernel_set(2, 0.0)
    grid, remedy = {"p": [2], "lam": [100.0]}, "the priors of its training rows favour the other classes"
    result = dmkl.search(dmkl.MKFDA(), K, y, grid, LeaveOneOut(), **MORE)
    assert float(result.scores["chance_score"]) > float(result.scores["mean_score"].max())
    assert remedy in result.summary()
    assert remedy not in dmkl.search(dmkl.MKFDA(), K, y, grid, 5, **MORE).summary()
    signal, y = kernel_set(1, 3.0)
    assert remedy not in dmkl.search(dmkl.MKFDA(), signal, y, grid, LeaveOneOut(), **MORE).summary()


def test_scorers_that_are_called_too_often_are_named():
    K, y = kernel_set(3, 3.0)
    grid = {"p": [1, 2, 3], "lam": [1e-2, 1.0]}
    result = dmkl.search(dmkl.MKFDA(), K, y, grid, 5, scoring="f1", **MORE)
    assert int(result.scores["chance_permutations"]) == 0
    assert "No p-value under permuted labels: scores of every point" in result.summary()
    assert np.isnan(result.scores["chance_p_value"])
    by_accuracy = dmkl.search(dmkl.MKFDA(), K, y, grid, 5, scoring="accuracy", **MORE)
    assert "would take too long" not in by_accuracy.summary()


@pytest.mark.parametrize("question", ["search", "repeated", "tested", "evaluate"])
def test_the_kernels_part_of_a_regression_has_a_p_value_given_covariates(question):
    """Of two targets that covariates determine up to noise, the kernels know the noise of the first."""
    rng = np.random.default_rng(6)
    Z, tables, noise = rng.normal(size=(M, 1)), rng.normal(size=(2, M, 6)), rng.normal(size=(M, 2))
    y = 3.0 * Z + noise + 2.0 * np.column_stack([tables[0, :, 0], np.zeros(M)])
    K, rows = [table @ table.T for table in tables], rng.permutation(M)
    learner, grid = dmkl.MKRidge(steps=(dmkl.residualize(Z), "trace")), {"p": [2], "lam": [0.1, 1.0]}
    more = {"baselines": "none"}
    if question == "evaluate":
        result = dmkl.evaluate(learner, K, y, grid, outer=3, inner=2, **more)
    else:
        cv = {"repeated": RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), "search": 3}
        folds = cv.get(question, [(rows[:20], rows[20:30], rows[30:])])
        result = dmkl.search(learner, K, y, grid, folds, refit=False, **more)
    assert (result.scores["chance_p_value"] <= 0.01).all()
    p = result.scores["residual_p_value"].values
    assert p[0] <= 0.01
    assert p[1] > 0.05
    assert "permuted y − Zb: p ≤ 0.05 for 1 of 2" in result.summary()


def test_targets_without_known_test_rows_have_no_p_value():
    K, y = kernel_set(1, 3.0)
    targets, rows = np.stack([y, y], axis=1).astype(float), np.random.default_rng(0).permutation(M)
    targets[rows[45:], 1] = np.nan
    folds = [(rows[:30], rows[30:45], rows[45:])]
    result = dmkl.search(dmkl.MKRidge(2), K, targets, {"lam": [0.1, 1.0]}, folds, refit=False)
    assert np.isnan(result.scores["chance_p_value"].values).tolist() == [False, True]


def test_p_values_say_whether_covariates_count():
    """Permuted labels leave the covariates, which predict numbers; classes are predicted from the kernels alone."""
    K, y = kernel_set(3, 3.0)
    covariates = dmkl.residualize(np.random.default_rng(4).normal(size=(M, 1)))
    counts, of_kernels = "what labels owe to the covariates counts too", "The score is that of the kernels alone"
    for steps in ((covariates, "trace"), ("center", "trace")):
        for learner, labels in ((dmkl.MKFDA, y), (dmkl.MKRidge, y.astype(float))):
            grid = {"p": [2], "lam": [0.1]}
            result = dmkl.evaluate(learner(steps=steps), K, labels, grid, outer=3, inner=2, baselines="none")
            of_classes = learner is dmkl.MKFDA and covariates in steps
            assert (of_kernels in result.summary()) == of_classes
            assert (counts in result.summary()) == (learner is dmkl.MKRidge and covariates in steps)
            assert ("residual_p_value" in result.scores) == (covariates in steps)
            if of_classes:
                assert float(result.scores["residual_p_value"]) == float(result.scores["chance_p_value"])


# --- scores of many labelings ---------------------------------------------------------------------------------------
N_ROWS, N_POINTS, N_LABELINGS = 23, 3, 7
OF_CLASSES = [*OWN_METRICS, *PROBABILISTIC]


def scores_of_each(metric, kind, classes, decisions, labels):
    return np.stack([evaluate_each({"": metric}, kind, classes, y, decisions)[0] for y in labels], axis=-1)


@pytest.mark.parametrize(("name", "n_classes"), [*((name, n) for name in OF_CLASSES for n in (2, 3)), ("roc_auc", 2)])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of labelings without some class
def test_scores_of_many_labelings_are_those_of_each(name, n_classes):
    """Decisions have ties, labels are text, and one labeling is of a single class."""
    rng = np.random.default_rng(0)
    classes = np.array(["a", "b", "c"])[:n_classes]
    kind = "binary" if n_classes == 2 else "multiclass"
    shape = (N_POINTS, N_ROWS) if n_classes == 2 else (N_POINTS, N_ROWS, n_classes)
    decisions = rng.normal(size=shape).round(0 if n_classes == 2 else 1)
    labels = np.vstack([rng.choice(n_classes, (N_LABELINGS, N_ROWS)), np.ones(N_ROWS, int)])
    metric = as_metrics(name, kind, probabilistic=True)[name]
    assert np.isfinite(metric.cost)
    values = metric.scores(labels, decisions, classes)
    assert values.shape == (N_POINTS, N_LABELINGS + 1)
    expected = scores_of_each(metric, kind, classes, decisions, classes[labels])
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)


OF_ROWS = {
    "correlation": lambda y, f: 0.0 if np.ptp(f) == 0 else np.corrcoef(y, f)[0, 1],
    "r2": skm.r2_score,
    "neg_mean_squared_error": lambda y, f: -skm.mean_squared_error(y, f),
    "d2_poisson": lambda y, f: skm.d2_tweedie_score(y, f, power=1),
    "quadratic_kappa": lambda y, f: 1 - np.mean((y - f) ** 2) / np.mean((y[:, None] - f) ** 2),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_scores_of_many_numbers_are_those_of_each(name):
    rng = np.random.default_rng(1)
    labels, predicted = rng.normal(40.0, 2.0, (N_LABELINGS, N_ROWS)), rng.normal(40.0, 2.0, (N_POINTS, N_ROWS))
    predicted[0] = 40.0
    metric = as_metrics(name, "regression")[name]
    assert np.isfinite(metric.cost) == (name != "dynamic_auc")  # which counts pairs anew at each time
    values = metric.scores(labels, predicted, np.zeros(0))
    np.testing.assert_allclose(values, scores_of_each(metric, "regression", (), predicted, labels), atol=1e-10)
    if name in OF_ROWS:
        np.testing.assert_allclose(values, [[OF_ROWS[name](y, f) for y in labels] for f in predicted], atol=1e-10)


def test_other_scorers_are_called_and_labels_that_were_not_learnt_have_no_score():
    rng = np.random.default_rng(2)
    decisions, labels = rng.normal(size=(N_POINTS, N_ROWS)), rng.choice(2, (N_LABELINGS, N_ROWS))
    f1 = as_metrics("f1", "binary")["f1"]
    assert f1.cost == np.inf
    values = f1.scores(labels, decisions, np.arange(2))
    expected = [[skm.f1_score(y, decision > 0) for y in labels] for decision in decisions]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    for metric in (f1, OWN_METRICS["accuracy"]):
        assert np.isnan(metric.scores(np.full((1, N_ROWS), -1), decisions, np.arange(2))).all()
