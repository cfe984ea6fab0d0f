"""The parts of a search: folds, grids, measures, against scikit-learn and plain formulas."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn import metrics as skm
from sklearn.base import is_classifier
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
    RepeatedStratifiedKFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    TimeSeriesSplit,
)

import dmkl
from dmkl.errors import InputError
from dmkl.searching.folds import make_folds
from dmkl.searching.grid import LAM_COSINE, LAM_TRACE, P_VALUES, as_grid
from dmkl.searching.scoring import OWN_METRICS, as_metrics, evaluate

M = 48
LABELS = {
    "binary": np.array(["no", "yes"])[np.arange(M) // 2 % 2],
    "multiclass": np.arange(M) // 2 % 3 * 10,
    "multilabel": np.stack([np.arange(M) // 2 % 2, np.arange(M) // 2 % 3 > 0], axis=1).astype(int),
}
GROUPS = np.arange(M) // 8


def same_folds(folds, expected, names=None):
    assert [fold.name for fold in folds] == (names or [str(k) for k in range(len(expected))])
    for fold, parts in zip(folds, expected, strict=True):
        for values, positions in itertools.zip_longest((fold.train, fold.validation, fold.test), parts, fillvalue=[]):
            assert values.dtype == np.int64
            np.testing.assert_array_equal(values, positions)


# --- folds --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", LABELS)
def test_a_number_of_folds_is_scikit_learns(kind):
    y = LABELS[kind]
    splitter = KFold if kind == "multilabel" else StratifiedKFold
    same_folds(make_folds(4, y), list(splitter(4).split(y, y)))
    same_folds(make_folds(np.int64(3), y), list(splitter(3).split(y, y)))
    same_folds(make_folds(None, y), list(splitter(5).split(y, y)))
    whole_groups = GroupKFold(3) if kind == "multilabel" else StratifiedGroupKFold(3)
    same_folds(make_folds(3, y, groups=GROUPS), list(whole_groups.split(y, y, GROUPS)))


@pytest.mark.parametrize(
    "splitter",
    [
        KFold(4, shuffle=True, random_state=1),
        RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0),
        TimeSeriesSplit(3),
        PredefinedSplit(np.arange(M) // 4 % 4 - 1),
        GroupKFold(3),
        LeaveOneGroupOut(),
    ],
    ids=lambda splitter: type(splitter).__name__,
)
def test_splitters_of_scikit_learn(splitter):
    y, grouped = LABELS["multiclass"], "Group" in type(splitter).__name__
    groups = GROUPS if grouped else None
    same_folds(make_folds(splitter, y, groups=groups), list(splitter.split(y, y, groups)))
    if grouped:
        names = list("abcdef") if isinstance(splitter, LeaveOneGroupOut) else None
        folds = make_folds(splitter, y, groups=np.repeat(list("abcdef"), 8))
        same_folds(folds, list(splitter.split(y, y, groups)), names)


def stored_splits():
    """Two splits: the first with a test part and rows in no part, the second without test."""
    first = np.resize(np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, -1, 0, 1], dtype=np.int8), M)
    return np.stack([first, np.resize(np.array([1, 0, 0], dtype=np.int8), M)])


def test_stored_splits():
    y, splits = LABELS["binary"], stored_splits()
    for cv in (None, "splits"):
        expected = [[np.flatnonzero(split == part) for part in (0, 1, 2)] for split in splits]
        same_folds(make_folds(cv, y, splits=splits), expected)
    tested = np.where(splits == 1, 2, splits)  # without validation they are no default
    same_folds(make_folds(None, y, splits=tested), list(StratifiedKFold(5).split(y, y)))


def mask(positions):
    return np.isin(np.arange(M), positions)


TRAIN, VALIDATION, TEST = np.arange(0, 24), np.arange(24, 36), np.arange(36, 48)
PAIR = (TRAIN, VALIDATION), (VALIDATION, TRAIN)
EQUAL = (TRAIN[:12], VALIDATION), (VALIDATION, TRAIN[:12])


@pytest.mark.parametrize(
    ("cv", "expected"),
    [
        ((TRAIN, VALIDATION), PAIR[:1]),
        ((TRAIN, VALIDATION, TEST), [(TRAIN, VALIDATION, TEST)]),
        ((mask(TRAIN), list(mask(VALIDATION))), PAIR[:1]),
        ((TRAIN.tolist(), range(24, 36)), PAIR[:1]),
        ((TRAIN.astype(np.uint8), VALIDATION - M, []), PAIR[:1]),
        (((TRAIN, VALIDATION, TEST),), [(TRAIN, VALIDATION, TEST)]),
        ((TRAIN[::-1], VALIDATION[::-1]), [(TRAIN[::-1], VALIDATION[::-1])]),
        (EQUAL, EQUAL),
        (tuple(tuple(tuple(part) for part in fold) for fold in PAIR), PAIR),
        ((PAIR[0], [mask(part) for part in PAIR[1]]), PAIR),
        ((fold for fold in PAIR), PAIR),
        (np.array([[TRAIN[:12], VALIDATION]]), EQUAL[:1]),
    ],
    ids=range(12),
)
def test_explicit_folds(cv, expected):
    """A tuple of folds is no pair of positions, also for parts of equal length; the order of positions is kept."""
    same_folds(make_folds(cv, LABELS["binary"]), expected)


THREE_CLASSES = {"labels": np.array(["a", "b", "c"])[np.arange(M) // 16]}
RARE_TASK = {"labels": np.stack([np.arange(M) % 2, np.arange(M) < 3], axis=1).astype(int)}
EVEN, ODD = np.arange(0, 32, 2), np.arange(1, 32, 2)


@pytest.mark.parametrize(
    ("cv", "options", "words"),
    [
        ("folds", {}, "cv='folds' is unknown; the only word"),
        ("splits", {}, "needs splits stored with the kernels .* give cv=5"),
        ("splits", {"splits": np.where(stored_splits() == 1, 2, stored_splits())},
         "stored split 0 has no validation rows"),
        ("splits", {"splits": np.where(stored_splits() == 0, -1, stored_splits())},
         "stored split 0 has no training rows"),
        (3.5, {}, "cv must be a number of folds, a splitter .* got 3.5"),
        ([], {}, "cv has no folds"),
        (GroupKFold(3), {}, "GroupKFold splits by groups; give groups=, one for each of the 48 rows"),
        (GroupKFold(3), {"groups": GROUPS[1:]}, r"groups has shape \(47,\), expected \(48,\)"),
        (KFold(3, shuffle=True, random_state=0), {"groups": GROUPS},
         "fold 0 has . groups with rows in training and in validation, .* keeps groups whole"),
        ((TRAIN, VALIDATION, TEST), {"groups": np.arange(M) // 24},
         "fold 0 has 1 groups with rows in validation and in test, 1 first"),
        ([(TRAIN, VALIDATION), (TRAIN, [])], {}, "fold 1 has no validation rows"),
        (([], VALIDATION), {}, "fold 0 has no training rows"),
        ((TRAIN, [*VALIDATION, 7, 3]), {}, "fold 0 has 2 training rows that are validation rows too, row 3 first"),
        ((TRAIN, VALIDATION, [5]), {}, "fold 0 has 1 training rows that are test rows too, row 5 first"),
        ((TRAIN, VALIDATION, VALIDATION), {},
         "fold 0 has 12 validation rows that are test rows too, row 24 first; rows that choose must not test"),
        ([(TRAIN, VALIDATION), (TRAIN, [M])], {}, "fold 1, validation: row 48 is outside the 48 rows"),
        ((mask(TRAIN)[1:], VALIDATION), {}, r"fold 0, train: a boolean row mask must have shape \(48,\), got \(47,\)"),
        ([TRAIN, VALIDATION], {}, "fold 0 must be .* a single fold is a tuple"),
        ([(TRAIN, VALIDATION + 0.5)], {}, "fold 0 must be"),
        (StratifiedKFold(3), {"labels": LABELS["multilabel"]},
         "StratifiedKFold cannot split .* several tasks are not stratified, use KFold"),
        ([(EVEN, ODD), (EVEN, ODD, [40])], THREE_CLASSES, "fold 1 has no training rows of class 'c', .* test rows"),
        (KFold(3), RARE_TASK, "fold 0 has no training rows of class 1 in task 1, of which it has validation"),
        ((TRAIN[5:], VALIDATION), RARE_TASK, "fold 0 has training rows of a single class, 0 in task 1, and needs two"),
    ],
)  # fmt: skip
def test_bad_folds(cv, options, words):
    with pytest.raises(InputError, match=words):
        make_folds(cv, **{"labels": LABELS["binary"], **options})


def test_too_few_of_a_class_to_stratify():
    """Scikit-learn warns; a fold without a class is refused where classes are needed."""
    y = np.where(np.arange(M) == 1, "rare", LABELS["binary"])
    with (
        pytest.warns(UserWarning, match="least populated class"),
        pytest.raises(InputError, match=r"fold \d has no training rows of class 'rare'"),
    ):
        make_folds(5, y)


# --- grids --------------------------------------------------------------------------------------------------
def test_default_grids_are_the_papers():
    np.testing.assert_array_equal(P_VALUES, [1, 1.015625, 1.03125, 1.0625, 1.125, 1.25, 1.5, 2, 3, 4, 8, np.inf])
    np.testing.assert_allclose(LAM_TRACE, np.logspace(-8, 1, 10), rtol=1e-15)
    np.testing.assert_allclose(LAM_COSINE, np.logspace(-5, 4, 10, base=4), rtol=1e-15)
    assert list(as_grid(None, dmkl.MKFDA()).items()) == [("p", P_VALUES), ("lam", LAM_TRACE)]
    assert as_grid(None, dmkl.MKFDA(steps=("center", "cosine"))) == {"p": P_VALUES, "lam": LAM_COSINE}
    for steps, lams in (
        ("center", LAM_TRACE),
        ("cosine,center", LAM_COSINE),
        ("center,multiplicative", LAM_COSINE),
        ("trace,cosine", LAM_COSINE),
        ("cosine,center,trace", LAM_TRACE),
    ):
        assert as_grid(None, dmkl.SingleBest(steps=steps)) == {"lam": lams}


def test_a_grid_is_made_plain():
    grid = {"lam": np.logspace(-2, 0, 3, dtype=np.float32), "p": [1, 1e7, np.float64(2)], "steps": "cosine,center"}
    result = as_grid(grid, dmkl.MKFDA())
    assert result == {"lam": tuple(grid["lam"].tolist()), "p": (1.0, np.inf, 2.0), "steps": (("cosine", "center"),)}
    assert list(result) == ["lam", "p", "steps"]
    assert all(type(value) is float for value in (*result["lam"], *result["p"]))
    for grid, plain_values in (
        ({"lam": 1, "steps": None, "tol": np.array(1e-3)}, {"lam": (1.0,), "steps": ((),), "tol": (1e-3,)}),
        ({"steps": ("center+trace", None), "max_iter": range(2, 4)},
         {"steps": (("center", "trace"), ()), "max_iter": (2, 3)}),
        ({"lam": (10.0**k for k in (0, 1))}, {"lam": (1.0, 10.0)}),
        ({"steps": [("trace",), ["center"]]}, {"steps": (("trace",), ("center",))}),
    ):  # fmt: skip
        assert as_grid(grid, dmkl.MKFDA()) == plain_values


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({}, "grid must map parameters to their values"),
        ({"lamda": [1]}, "'lamda' is no parameter of MKFDA; its parameters are class_weight, constraints, .*"),
        ({"p": []}, "the grid has no values for p; give one at least, or leave p out"),
        ({"p": [1e6, 2, np.inf]}, r"has inf twice among the values of p \(from 1e6 on it counts as infinite\)"),
        ({"lam": [1, 0.5, 1.0]}, r"the grid has 1\.0 twice among the values of lam; leave one out"),
        ({"steps": ("center", "trace")}, r"may be one chain of steps or several.*\[\('center', 'trace'\)\]"),
        ({"p": "2"}, "the values of p must be numbers, got '2'"),
        ({"lam": [0]}, "the values of lam must be positive and finite, got 0"),
    ],
)
def test_bad_grids(grid, words):
    with pytest.raises(InputError, match=words):
        as_grid(grid, dmkl.MKFDA())


# --- average precision: rankings of the VOC devkit and of the definitions -------------------------------------
def measure(scoring, kind, classes, truth, decision):
    return evaluate(as_metrics(scoring, kind), kind, classes, truth, decision)


def voc07(positive, scores):
    """The mean of the largest precision at a recall of k tenths or more."""
    precision, recall, _ = skm.precision_recall_curve(positive, scores)
    hits = np.rint(recall[:-1] * positive.sum())  # the last point of scikit-learn is no threshold
    return np.mean([precision[:-1][10 * hits >= k * positive.sum()].max() for k in range(11)])


def voc(positive, scores):
    """VOCap.m: make precision monotone from the end, and sum it over changes of recall."""
    precision, recall, _ = skm.precision_recall_curve(positive, scores)
    return -np.diff(recall) @ np.maximum.accumulate(precision)[:-1]


REFERENCES = {
    "average_precision": skm.average_precision_score,
    "average_precision_voc": voc,
    "average_precision_voc07": voc07,
}


@pytest.mark.parametrize("n", [10, 20, 30, 70])
def test_a_recall_of_k_tenths_reaches_the_level(n):
    """Of n positives k n/10 rank first, the others last: precision is one up to the recall k/10."""
    for tenths in (1, 3, 6, 7):
        first = tenths * n // 10
        positive = np.repeat([True, False, True], [first, 1000, n - first])
        expected = ((tenths + 1) + (10 - tenths) * n / (n + 1000)) / 11
        measured = measure("average_precision_voc07", "binary", [0, 1], positive.astype(int), -np.arange(n + 1000.0))
        assert measured[0] == pytest.approx(expected, rel=1e-12)


rankings = st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=1, max_size=30)


@given(rankings, st.sampled_from(list(REFERENCES)))
def test_average_precision_is_its_definition(ranking, name):
    truth, scores = (np.array(values) for values in zip(*ranking, strict=True))
    assume(truth.any())
    value = measure(name, "binary", [0, 1], truth.astype(int), scores.astype(float))[0]
    assert value == pytest.approx(REFERENCES[name](truth, scores), rel=1e-12)
    if name == "average_precision":
        assert value == skm.average_precision_score(truth, scores)


# --- measures of predictions --------------------------------------------------------------------------------
def problem(kind, seed, rows=60):
    """Classes, labels of all classes, and scores that are mostly right."""
    rng = np.random.default_rng(seed)
    if kind == "multilabel":
        truth = rng.integers(0, 2, (rows, 3))
        return np.array([0, 1]), truth, truth - 0.5 + rng.standard_normal((rows, 3))
    classes = np.array(["no", "yes"]) if kind == "binary" else np.array([-3, 0, 8, 20])
    index = np.arange(rows) % len(classes)
    signs = np.eye(len(classes))[index] + 0.7 * rng.standard_normal((rows, len(classes)))
    return classes, classes[index], signs[:, 1] - signs[:, 0] if kind == "binary" else signs


def predict(classes, decision):
    return classes[(decision > 0).astype(int) if decision.ndim == 1 else np.argmax(decision, axis=1)]


def one_vs_rest(classes, truth, decision):
    """Truth, score and prediction of each measured class: the second of two, or all."""
    if decision.ndim == 1:
        return [(truth == classes[1], decision, decision > 0)]
    best = predict(classes, decision)
    return [(truth == c, decision[:, k], best == c) for k, c in enumerate(classes)]


@pytest.mark.parametrize(("kind", "absent"), [("binary", None), ("multiclass", None), ("multiclass", 8)])
def test_own_measures(kind, absent):
    """Measures do not depend on the order of rows; means are over the classes that are there."""
    classes, truth, decision = problem(kind, 0)
    truth, decision = truth[truth != absent], decision[truth != absent]
    best = predict(classes, decision)
    cases = [case for case in one_vs_rest(classes, truth, decision) if case[0].any()]
    expected = {
        "accuracy": skm.accuracy_score(truth, best),
        "mean_class_accuracy": skm.recall_score(truth, best, labels=np.unique(truth), average="macro"),
        **{name: np.mean([f(t, s) for t, s, _ in cases]) for name, f in REFERENCES.items()},
        "matthews": np.mean([skm.matthews_corrcoef(t, predicted) for t, _, predicted in cases]),
        "neg_matthews_loss": np.mean([skm.matthews_corrcoef(t, predicted) - 1 for t, _, predicted in cases]),
    }
    expected |= {"balanced_accuracy": expected["mean_class_accuracy"]}
    expected |= {f"mean_{name}": expected[name] for name in REFERENCES}
    assert set(expected) == set(OWN_METRICS)
    for rows in (slice(None), np.random.default_rng(0).permutation(len(truth))):
        measured = measure(list(expected), kind, classes, truth[rows], decision[rows])
        np.testing.assert_allclose(measured, list(expected.values()), rtol=1e-12)


# --- scikit-learn's scorers -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "kind", "reference"),
    [
        ("roc_auc", "binary", lambda t, s, b: skm.roc_auc_score(t, s)),
        ("matthews_corrcoef", "multiclass", lambda t, s, b: skm.matthews_corrcoef(t, b)),
        ("top_k_accuracy", "multiclass", lambda t, s, b: skm.top_k_accuracy_score(t, s, k=2)),
        ("f1", "binary", lambda t, s, b: skm.f1_score(t, b, pos_label="yes")),
    ],
)
def test_scikit_learns_names(name, kind, reference):
    """Scores do not depend on the type of labels; the second class is positive."""
    classes, truth, decision = problem(kind, 1)
    forms = [(truth, classes), (truth.astype(object), classes.astype(object)), (truth.astype(object), classes)]
    if kind == "binary":
        forms.append(tuple(values.astype(np.dtypes.StringDType()) for values in forms[0]))
        forms += [
            (np.where(truth == "yes", *pair[::-1]), pair) for pair in ([-1, 1], [1, 2], ["b", "c"], [False, True])
        ]
    for labels, learnt in forms:
        (score,) = measure(name, kind, learnt, labels, decision)
        assert score == pytest.approx(reference(truth, decision, predict(classes, decision)), rel=1e-12)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_callables_see_a_fitted_classifier_and_the_labels(kind):
    classes, truth, decision = problem(kind, 3)
    best = predict(classes, decision)

    def share(estimator, X, y):
        assert is_classifier(estimator)
        np.testing.assert_array_equal(estimator.classes_, classes)
        np.testing.assert_array_equal(estimator.decision_function(X), decision)
        np.testing.assert_array_equal(estimator.predict(X), best)
        np.testing.assert_array_equal(y, truth)
        return np.mean(estimator.predict(X[::2]) == y[::2])

    np.testing.assert_allclose(measure(share, kind, classes, truth, decision), [np.mean(best[::2] == truth[::2])])
    assert list(as_metrics(share, kind)) == ["share"]


def test_scorers_may_name_their_positive_class_and_losses_have_their_sign_turned():
    classes, truth, decision = problem("binary", 4)
    best, ranking = predict(classes, decision), {"response_method": "decision_function", "pos_label": "no"}
    precision = skm.average_precision_score(truth == "no", -decision)
    for scorer, expected in (
        (skm.make_scorer(skm.f1_score, pos_label="no"), skm.f1_score(truth, best, pos_label="no")),
        (skm.make_scorer(skm.average_precision_score, **ranking), precision),
        (skm.make_scorer(skm.zero_one_loss, greater_is_better=False), -np.mean(best != truth)),
    ):
        assert measure(scorer, "binary", classes, truth, decision) == pytest.approx([expected], rel=1e-12)


def test_probabilities_are_refused_with_what_does_work():
    with pytest.raises(InputError, match=r"scoring 'roc_auc_ovr' needs probabilities, .*; these do: ") as caught:
        as_metrics("roc_auc_ovr", "multiclass")
    listed = str(caught.value).split("these do: ")[1].replace("and dmkl's ", "").split(", ")
    assert {"accuracy", "average_precision_voc07"} < set(listed)
    assert np.isfinite(measure(listed, "multiclass", *problem("multiclass", 0))).all()


def sloppy(estimator, X, y):
    return {"a": 1}


def broken(estimator, X, y):
    raise TypeError("mine")


POSITIVE_IS_1 = skm.make_scorer(skm.f1_score)


@pytest.mark.parametrize(
    ("scoring", "kind", "error", "words"),
    [
        ("acuracy", "binary", InputError, r"no scoring 'acuracy'; dmkl has mean_class_accuracy.*get_scorer_names\(\)"),
        ("f1", "multiclass", InputError, "'f1' does not suit more than two classes .*average='binary'.*f1_macro"),
        ("f1_samples", "multilabel", InputError, "scoring 'f1_samples' does not suit two classes"),
        (["accuracy", "accuracy"], "binary", InputError, "a list of scoring holds names, each once"),
        (3.5, "binary", InputError, "scoring must be a name, a callable .*, a list of names or a mapping, got 3.5"),
        ({}, "binary", InputError, "scoring must name at least one scorer, by strings"),
        (["accuracy", sloppy], "binary", InputError, "for callables give a mapping of names"),
        (skm.f1_score, "binary", InputError, r"'f1_score' must be a name or take \(estimator, X, y\).*make_scorer"),
        ({"mine": POSITIVE_IS_1}, "binary", InputError, "'mine' does not suit two classes .*pos_label=1"),
        (sloppy, "binary", InputError, r"scoring 'sloppy' .*must return one number, and returned \{'a': 1\}"),
        (skm.make_scorer(skm.log_loss, response_method="predict_proba"), "binary", InputError, "needs probabilities"),
        (broken, "binary", TypeError, "mine"),
    ],
)
def test_bad_scoring(scoring, kind, error, words):
    """Also of rows of one class alone."""
    classes, truth, decision = problem(kind, 0)
    for rows in (slice(None), slice(1, None, 2)):
        with pytest.raises(error, match=words):
            measure(scoring, kind, classes, truth[rows], decision[rows])


# --- measures that the labels leave undefined ------------------------------------------------------------------
NEEDS_POSITIVES = ["average_precision", "average_precision_voc", "average_precision_voc07", "f1", "jaccard", "recall"]
NEEDS_BOTH = ["matthews", "neg_matthews_loss", "roc_auc"]
NEEDS_NEITHER = ["accuracy", "balanced_accuracy", "mean_class_accuracy"]


@pytest.mark.parametrize("shift", [-9, 0, 9], ids=["none predicted", "some predicted", "all predicted"])
def test_tasks_are_binary_problems_of_which_some_are_undefined(shift):
    """This holds for any scores, without warnings."""
    _, truth, decision = problem("multilabel", 0)
    truth = np.column_stack([truth, np.zeros(60, dtype=int), np.ones(60, dtype=int)])
    decision = np.column_stack([decision, decision[:, :2]]) + shift
    names = [*NEEDS_POSITIVES, "precision", *NEEDS_BOTH, *NEEDS_NEITHER]
    measured = measure(names, "multilabel", [0, 1], truth, decision)
    undefined = [[False] * 3 + [name not in NEEDS_NEITHER, name in NEEDS_BOTH] for name in names]
    assert np.isnan(measured).tolist() == undefined
    for scores, labels, of_task in zip(measured.T, truth.T, decision.T, strict=True):
        np.testing.assert_array_equal(scores, measure(names, "binary", [0, 1], labels, of_task))
    np.testing.assert_array_equal(measure(names, "multilabel", [0, 1], truth.astype(bool), decision), measured)
