"""Labels of noise score at chance through every route to a score, over 40 independent sets each; p-values are valid."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import LeaveOneOut, StratifiedKFold

import dmkl

N_SETS, M = 40, 60
SIZES = {"two": [30, 30], "three": [20] * 3, "four": [15] * 4, "ten": [6] * 10, "ninety-ten": [54, 6]}
SIZES["determined"] = SIZES["two"]
CASES = list(SIZES)
POINT, GRID = {"p": [2.0], "lam": [1.0]}, {"p": [2.0], "lam": [0.01, 0.1, 1.0]}
MORE = {"scoring": "balanced_accuracy", "baselines": "none"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:the covariates determine the training samples:dmkl.errors.CovariateWarning"),
]


def noise_sets(case):
    """A model, kernels and labels of each set; of "determined" ones two covariates single out a sample each.

    With the priors of 90:10 hardly any sample is predicted as the rare class, and most sets score exactly 1/2: their
    standard error says nothing of the few sets that score more. That case has uniform priors therefore.
    """
    rng = np.random.default_rng([1, CASES.index(case)])
    for _ in range(N_SETS):
        y = rng.permutation(np.repeat(np.arange(len(SIZES[case])), SIZES[case]))
        tables = [rng.normal(size=(M, 8)) for _ in range(2)]
        steps = ("center", "trace")
        if case == "determined":
            single_out = np.eye(M)[:, rng.choice(M, 2, replace=False)]
            steps = (dmkl.residualize(np.column_stack([single_out, rng.normal(size=M)])), "trace")
        priors = "uniform" if case == "ninety-ten" else None
        yield dmkl.MKFDA(steps=steps, priors=priors), dmkl.create(None, [table @ table.T for table in tables]), y


def assert_at_chance(scores, chance):
    """The mean of the scores of independent sets is within three standard errors of chance."""
    scores = np.asarray(scores)
    assert scores.shape == (N_SETS,)
    assert abs(scores.mean() - chance) <= 3 * scores.std(ddof=1) / np.sqrt(N_SETS), scores.mean()


def assert_valid(p_values):
    """At most three standard errors more than 10 % are up to 0.1, and the mean is at least 1/2 up to three of them."""
    assert np.mean(np.array(p_values) <= 0.1) <= 0.1 + 3 * np.sqrt(0.09 / N_SETS)
    assert np.mean(p_values) >= 0.5 - 3 / np.sqrt(12 * N_SETS)


# --- questions: scores of a set, and the p-value if there is one ------------------------------------------------------
def search(model, K, y):
    """The scores of every point, before the choice; the p-value has the choice among the points."""
    scores = dmkl.search(model, K, y, GRID, 3, refit=False, **MORE).scores
    return [scores["score"].mean()], scores["chance_p_value"]


def rows_and_single_best(model, K, y):
    """The test rows of each fold are the validation rows of the next."""
    rows = [test for _, test in StratifiedKFold(3).split(y, y)]
    folds = [(rows[k], rows[(k + 1) % 3], rows[(k + 2) % 3]) for k in range(3)]
    scores = dmkl.search(model, K, y, GRID, folds, **MORE).scores
    of_single = dmkl.SingleBest(cv=3).fit(K, y).scores_
    return [each.mean() for each in (scores["test_score"], scores["refit_test_score"], of_single)], None


def evaluation(model, K, y):
    """Test scores, those of the plain sum, and out-of-fold predictions."""
    result = dmkl.evaluate(model, K, y, GRID, outer=2, inner=2, scoring="balanced_accuracy")
    of_predictions = balanced_accuracy_score(result.predictions["true_label"], result.predictions["predicted_label"])
    scores = [result.scores[name].mean() for name in ("test_score", "sum_test_score")]
    return [*scores, of_predictions], result.scores["chance_p_value"]


def predictions_and_importance(model, K, y):
    """Predictions of rows that were not fitted; scores with all kernels, without each, and with each alone."""
    order = np.argsort(y, kind="stable")  # halves with all classes
    train, test = np.sort(order[::2]), np.sort(order[1::2])
    fitted = model.set_params(p=2.0, lam=1.0).fit(K[train, train], y[train])
    of_predictions = balanced_accuracy_score(y[test], fitted.predict(K[test, train]))
    data = dmkl.importance(model, K, y, POINT, cv=2, scoring="balanced_accuracy").data
    return [of_predictions, *(data[name].mean() for name in ("score", "score_without", "score_alone"))], None


def samples_left_out_one_by_one(model, K, y):
    """With uniform priors, which do not favour the classes of which no sample is left out; 30 samples of each set."""
    rows = np.argsort(y, kind="stable")[::2]
    more = MORE | {"scoring": "accuracy", "refit": False}
    result = dmkl.search(model.set_params(priors="uniform"), K[rows, rows], y[rows], POINT, LeaveOneOut(), **more)
    return [result.scores["score"].mean()], None


@pytest.mark.parametrize(
    ("question", "case"),
    [
        *((question, case) for question in (search, evaluation, predictions_and_importance) for case in CASES),
        *((rows_and_single_best, case) for case in ("two", "ten")),  # classes of equal sizes in each of three folds
        *((samples_left_out_one_by_one, case) for case in ("two", "four", "ten")),
    ],
)
def test_scores_are_at_chance(question, case):
    of_sets, p_values = zip(*(question(*noise) for noise in noise_sets(case)), strict=True)
    for scores in np.array(of_sets, dtype=np.float64).T:
        assert_at_chance(scores, 1 / len(SIZES[case]))
    if p_values[0] is not None:
        assert_valid(np.array(p_values, dtype=np.float64))


@pytest.mark.parametrize("learner", [dmkl.MKRidge, dmkl.MKFDA])
@pytest.mark.parametrize("case", ["independent", "linear", "nonlinear"])
def test_the_kernels_part_given_covariates(case, learner):
    """Kernels of noise, or of functions of the covariates and noise; labels are linear in covariates, or their sign."""
    rng, p_values = np.random.default_rng([2, len(case)]), []
    for _ in range(N_SETS):
        Z = rng.normal(size=(M, 2))
        functions = {"linear": Z, "nonlinear": np.column_stack([Z**2, np.exp(Z)])}.get(case, np.zeros((M, 1)))
        tables = [np.column_stack([functions + 0.3 * rng.normal(size=functions.shape), rng.normal(size=(M, 6))])] * 2
        K = dmkl.create(None, [table @ table.T for table in tables])
        model, y = learner(steps=(dmkl.residualize(Z), "trace")), Z.sum(axis=1) + rng.normal(size=M)
        y = (y > 0).astype(int) if learner is dmkl.MKFDA else y
        more = {"baselines": "none"}
        searched = dmkl.search(model, K, y, GRID, 3, refit=False, **more)
        tested = dmkl.evaluate(model, K, y, POINT, outer=3, inner=2, **more)
        p_values.append([float(result.scores["residual_p_value"]) for result in (searched, tested)])
    for of_question in np.transpose(p_values):
        assert_valid(of_question)


@pytest.mark.parametrize("n_positive", [30, 6])
def test_many_questions_at_once(n_positive):
    """Each set is a task of one problem, and a permutation of the labels of one question.

    Folds of tasks are not stratified: in those without rows of the rare class only areas under curves are undefined.
    """
    rng = np.random.default_rng(7)
    K = dmkl.create(None, [table @ table.T for table in rng.normal(size=(2, M, 8))])
    y = np.stack([rng.permutation(np.arange(M) < n_positive) for _ in range(N_SETS)], axis=1).astype(int)
    for scoring in ("roc_auc", "balanced_accuracy")[: 1 + (n_positive == M // 2)]:
        scores = dmkl.search(dmkl.MKFDA(), K, y, POINT, 3, refit=False, **MORE | {"scoring": scoring}).scores["score"]
        assert_at_chance(scores.mean(["p", "lam", "fold"]), 0.5)
    test = dmkl.permutation_test(dmkl.MKFDA(), K, y[:, 0], POINT, N_SETS, cv=3, scoring="balanced_accuracy")
    assert_at_chance(test.data["null_score"], 0.5)
